"""Rank and rank count, taken from the TensorFlow cluster description in TF_CONFIG."""

import json
import os
from typing import Any, Dict, List, Tuple

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
    return _cluster()[0]


def get_rank_size() -> int:
    """Returns the number of training tasks (chief, master and workers) of the job.

    Returns:
        An int >= 1; 1 without a cluster.

    Raises:
        ValueError: If TF_CONFIG is not valid.
    """
    return _cluster()[1]


def get_local_rank_size() -> int:
    """Returns the number of ranks that share a device: 1, as every process has its own memory."""
    return 1


def _cluster() -> Tuple[int, int]:
    """Reads TF_CONFIG and returns (rank id, rank size)."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return 0, 1
    try:
        config: Dict[str, Any] = json.loads(text)
        cluster: Dict[str, Any] = config.get("cluster") or {}
        task: Dict[str, Any] = config.get("task") or {}
        members: List[Tuple[str, int]] = [
            (kind, index) for kind in _TRAINING_TASKS
            for index in range(len(cluster.get(kind) or ()))]
        own = (task.get("type", "worker"), int(task.get("index", 0)))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("the environment variable TF_CONFIG is not a valid cluster description "
                         "({}): {!r}".format(error, text)) from error
    if not members:
        return 0, 1
    if own in members:
        return members.index(own), len(members)
    if own[0] in _TRAINING_TASKS:
        raise ValueError("the environment variable TF_CONFIG names the task {}:{}, which its "
                         "cluster does not contain: {!r}".format(own[0], own[1], text))
    return 0, len(members)
