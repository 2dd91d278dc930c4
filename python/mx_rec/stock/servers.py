"""Where the tables of a graph's variables live: in this process, or on parameter servers."""

from collections import Counter
from typing import Any, List, NamedTuple

import tensorflow as tf

from mx_rec.core.clusters import check_graph
from mx_rec.stock.analysis import VARIABLES
from mx_rec.stock.parts import placement_of


class Servers(NamedTuple):
    """The parameter servers that hold tables.

    Attributes:
        devices: The device of each; none where tables belong to this process.
        worker: The device of what is done beside them.
    """

    devices: List[str]
    worker: str


HERE = Servers([], "")


def servers_of(graph: tf.Graph) -> Servers:
    """Finds the parameter servers of a graph.

    They are those of the device function in force; without one, those that variables are on, up to
    the last of them.

    Args:
        graph: The graph.

    Raises:
        NotImplementedError: If the graph is one of several tasks without parameter servers.
        ValueError: If TF_CONFIG is not valid.
    """
    nodes = graph.as_graph_def().node
    variables = [node for node in nodes if node.op in VARIABLES]
    job = placement_of(variables).job
    with graph.as_default():
        if not job:
            if check_graph("stock_tables"):
                raise NotImplementedError(
                    "the job has parameter servers, and no variable of the graph is on one.")
            return HERE
        if graph._device_function_stack.peek_objs():  # pylint: disable=protected-access
            devices = check_graph("stock_tables")
        else:
            devices = []
    of_job = [device for device in devices
              if tf.DeviceSpec.from_string(device).job == job]
    if not of_job:
        tasks = [tf.DeviceSpec.from_string(node.device) for node in variables]
        last = max(task.task or 0 for task in tasks if task.job == job)
        of_job = ["/job:{}/task:{}/device:CPU:0".format(job, task) for task in range(last + 1)]
    return Servers(of_job, _worker(nodes, job))


def _worker(nodes: Any, job: str) -> str:
    """Returns the processor of the task that most ops outside of a job are on."""
    found = Counter()  # type: Any
    for node in nodes:
        spec = tf.DeviceSpec.from_string(node.device) if node.device else None
        if spec is not None and spec.job and spec.job != job:
            found["/job:{}/task:{}/device:CPU:0".format(spec.job, spec.task or 0)] += 1
    return str(found.most_common(1)[0][0]) if found else "/cpu:0"
