"""Rank and rank count, taken from the TensorFlow cluster description in TF_CONFIG."""

from typing import Tuple

from mx_rec.base.tf_config import read_cluster

# Task types that train, in the order in which ranks are given out.
_TRAINING_TASKS = ("chief", "master", "worker")


def get_rank_id() -> int:
    """Returns the number of this process among the training tasks.

    Returns:
        An int in [0, rank size). 0 without a cluster, and for tasks that do not train
        (parameter servers, evaluators).

    Raises:
        ValueError: If TF_CONFIG is not valid.
    """
    return _rank_and_size()[0]


def get_rank_size() -> int:
    """Returns the number of training tasks (chief, master and workers) of the job.

    Tables of a job with several of them are refused (mx_rec.core.clusters).

    Returns:
        An int >= 1; 1 without a cluster.

    Raises:
        ValueError: If TF_CONFIG is not valid.
    """
    return _rank_and_size()[1]


def get_local_rank_size() -> int:
    """Returns the number of ranks that share a device: 1, as every process has its own memory."""
    return 1


def _rank_and_size() -> Tuple[int, int]:
    cluster = read_cluster()
    if cluster is None:
        return 0, 1
    members = [(kind, index) for kind in _TRAINING_TASKS
               for index in range(cluster.jobs.get(kind, 0))]
    if not members:
        return 0, 1
    if cluster.task in members:
        return members.index(cluster.task), len(members)
    if cluster.task[0] in _TRAINING_TASKS:
        raise ValueError("the environment variable TF_CONFIG names the task {}:{}, which its "
                         "cluster does not contain: {!r}".format(*cluster.task, cluster.text))
    return 0, len(members)
