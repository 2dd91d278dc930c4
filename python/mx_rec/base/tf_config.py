"""The TensorFlow cluster that the environment variable TF_CONFIG describes."""

import json
import os
from typing import Any, Dict, NamedTuple, Optional, Tuple

EVALUATOR = "evaluator"


class Cluster(NamedTuple):
    """A TF_CONFIG with a cluster.

    Attributes:
        jobs: Number of tasks of each job, in the order of the description.
        task: Job and index of this process.
        text: The value of TF_CONFIG, for messages.
    """

    jobs: Dict[str, int]
    task: Tuple[str, int]
    text: str

    @property
    def training_jobs(self) -> Dict[str, int]:
        """The jobs whose tasks take part in training: all but evaluators."""
        return {job: tasks for job, tasks in self.jobs.items() if job != EVALUATOR and tasks}


def read_cluster() -> Optional[Cluster]:
    """Reads TF_CONFIG.

    Returns:
        The cluster; None if TF_CONFIG is not set, is empty or has no cluster.

    Raises:
        ValueError: If TF_CONFIG is not valid.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config: Dict[str, Any] = json.loads(text)
        described: Dict[str, Any] = config.get("cluster") or {}
        task: Dict[str, Any] = config.get("task") or {}
        jobs = {job: len(members or ()) for job, members in described.items()}
        own = (task.get("type", "worker"), int(task.get("index", 0)))
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("the environment variable TF_CONFIG is not a valid cluster description "
                         "({}): {!r}".format(error, text)) from error
    return Cluster(jobs, own, text) if any(jobs.values()) else None


def describe_jobs(jobs: Dict[str, int]) -> str:
    """Returns for example "1 chief, 2 worker, 1 ps"."""
    return ", ".join("{} {}".format(tasks, job) for job, tasks in jobs.items())
