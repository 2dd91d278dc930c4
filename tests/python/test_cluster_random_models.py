"""Random models on two parameter servers train what one process trains: in groups, apart and modified."""

import os

import pytest

import support
from cluster_cases import Job

COUNT, LONG = 2, int(os.environ.get("MX_REC_RANDOM_MODELS", "300"))
WORKER = """
from cluster_random_models import compare
compare(server.target, cluster, range(int(os.environ["FIRST"]), int(os.environ["LAST"])))
"""


def compared(first, last):
    """Compares models; returns for each and each form how many results were compared and had the same bits."""
    path = os.pathsep.join([support.PACKAGES, os.path.dirname(__file__)])
    with Job(WORKER, PYTHONPATH=path, FIRST=first, LAST=last) as job:
        lines = [line.split() for line in job.worker(seconds=60 + 10 * (last - first)).splitlines()]
    return [(int(same), int(results), promised == "1") for _, _, same, results, promised in lines]


@pytest.mark.long
def test_random_models_train_on_servers_what_one_process_trains():
    lines = compared(0, COUNT)
    assert len(lines) == 3 * COUNT and all(results >= 14 for _, results, _ in lines)
    exact = [same == results for same, results, promised in lines if promised]
    assert exact and all(exact)


@pytest.mark.slow
def test_many_random_models_train_on_servers_what_one_process_trains():
    assert len(compared(COUNT, COUNT + LONG)) == 3 * LONG
