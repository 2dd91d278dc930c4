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

TURNS = """
from cluster_random_models import Turns, compare_by_turns
compare_by_turns(server.target, cluster, int(os.environ["SEED"]), os.environ["ROW_DTYPE"],
                 Turns(index, cluster.num_tasks("worker"), os.environ["PLACE"]))
"""
PATH = os.pathsep.join([support.PACKAGES, os.path.dirname(__file__)])


def compared(first, last):
    """Compares models; returns for each and each form how many results were compared and had the same bits."""
    with Job(WORKER, PYTHONPATH=PATH, FIRST=first, LAST=last) as job:
        lines = [line.split() for line in job.worker(seconds=60 + 10 * (last - first)).splitlines()]
    return [(int(same), int(results), promised == "1") for _, _, same, results, promised in lines]


@pytest.mark.long
def test_random_models_train_on_servers_what_one_process_trains():
    lines = compared(0, COUNT)
    assert len(lines) == 3 * COUNT and all(results >= 14 for _, results, _ in lines)
    exact = [same == results for same, results, promised in lines if promised]
    assert exact and all(exact)


@pytest.mark.long
def test_workers_that_train_by_turns_see_each_other_s_updates_as_one_process_does(tmp_path):
    """Tables that several features share, with halves, padding, an access threshold and bags without ids."""
    with Job(TURNS, worker=2, PYTHONPATH=PATH, SEED=4, ROW_DTYPE="bfloat16", PLACE=tmp_path) as job:
        for index in range(2):
            job.start("worker", index)
        printed = [job.finish("worker", index).split() for index in range(2)]
    assert printed == [["step", steps, steps, "ahead", steps, steps] for steps in ("8", "6")]


@pytest.mark.slow
def test_many_random_models_train_on_servers_what_one_process_trains():
    assert len(compared(COUNT, COUNT + LONG)) == 3 * LONG
