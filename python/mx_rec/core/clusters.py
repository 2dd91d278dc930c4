"""Where tables live in jobs of several processes: on parameter servers, or they are refused.

A table belongs to the process that its session runs in, or, under the device function of a cluster
with parameter servers (tf.compat.v1.train.replica_device_setter), to these servers, which hold a
part of it each. Anything else would give each worker a table of its own, and a checkpoint would
hold those of the chief alone. A cluster shows in four places:

| where | checked |
|---|---|
| TF_CONFIG with several tasks other than evaluators | `check_graph`, `check_session` |
| tf.device, replica_device_setter: a ps, or a task that is not the first | `check_graph` |
| a distribution strategy with a cluster of its own | `check_graph` |
| a session on a server that knows several tasks | `check_session` |

`check_graph` runs when a table is made; `check_session` when a session is opened, and again when
it runs a graph that has grown. Device filters hide tasks: a session that sees its own alone shares
nothing, neither variables nor tables, and passes.
"""

import os
import re
from typing import Any, List, Optional, Tuple

import tensorflow as tf

from mx_rec.base.tf_config import EVALUATOR, describe_jobs, read_cluster
from mx_rec.tensorflow.names import device_setter

# Attributes of a session: the tasks (job, index) of its server once known, and the version of the
# graph that was checked; _ALONE for a session that needs no further checks.
_TASKS = "_mx_rec_tasks"
_CHECKED = "_mx_rec_checked_version"
_ALONE = -1

_TABLE = "MxRecTable"
# Ops that only training runs; a graph without them only reads tables.
_TRAINS = frozenset(["MxRecIdOffset", "MxRecObserve", "MxRecUpdate"])

_UNKNOWN_OP = re.compile(r"Op type not registered '(MxRec\w+)'")
_TASK = re.compile(r"/job:([^/]+)(?:/replica:\d+)?/task:(\d+)")


def check_graph(table_name: str) -> List[str]:
    """Says where a table that is about to be made lives, and refuses it where it cannot.

    An evaluator is no part of the job: it reads checkpoints.

    Args:
        table_name: The table, for the message.

    Returns:
        The devices of the parameter servers that hold a part of it each; empty for a table of the
        session's own.

    Raises:
        NotImplementedError: If TF_CONFIG, a device in force or a distribution strategy shows
            several tasks.
        ValueError: If TF_CONFIG is not valid.
    """
    servers, by_device = _devices_in_force()
    found = by_device or _tasks_of_strategy()
    if not servers:
        found = _tasks_of_environment() or found
    if found is not None:
        raise _refusal("the table {!r} cannot be made: {}".format(table_name, found))
    return servers


def check_session(session: Any) -> None:
    """Refuses a session that runs the tables of its graph in a cluster of several tasks.

    Sessions without a server and graphs without tables pass.

    Args:
        session: An open session.

    Raises:
        NotImplementedError: If the session's server knows several tasks, or TF_CONFIG has several
            and the graph trains tables.
        ValueError: If TF_CONFIG is not valid.
        tf.errors.OpError: If the server does not answer.
    """
    # pylint: disable=protected-access
    checked = session.__dict__.get(_CHECKED)
    graph = session.graph
    if checked is None and not session._target and not os.environ.get("TF_CONFIG"):
        checked = _ALONE
        setattr(session, _CHECKED, checked)
    if checked in (_ALONE, graph.version):
        return
    version = graph.version
    types = {op.type for op in graph.get_operations()}
    if _TABLE in types:
        found = None  # type: Optional[str]
        if _TRAINS.intersection(types):
            found = _tasks_of_environment()
        found = found or _tasks_of_server(session)
        if found is not None:
            names = [op.name for op in graph.get_operations() if op.type == _TABLE]
            raise _refusal("the session cannot run the graph, which has the tables {}: {}".format(
                ", ".join(map(repr, names)), found))
    setattr(session, _CHECKED, version)


def refuse_unknown_ops(error: tf.errors.NotFoundError) -> None:
    """Explains the error of a step that runs ops of mx_rec in a process that did not import it.

    Args:
        error: What TensorFlow says.

    Raises:
        tf.errors.NotFoundError: If the error is that one; the text says what to do.
    """
    found = _UNKNOWN_OP.search(error.message)
    if found is None:
        return
    raise tf.errors.NotFoundError(
        error.node_def, error.op,
        "a process of the cluster does not know the op {} and cannot hold tables: it did not "
        "import mx_rec. Import it in the script of every parameter server and worker, before "
        "tf.distribute.Server is made: `import mx_rec`. ({})".format(found.group(1), error.message)
    ) from error


def _refusal(what: str) -> NotImplementedError:
    return NotImplementedError(
        what + ". Each worker would train a table of its own, and checkpoints would hold that of "
        "one of them alone. Put the tables on parameter servers: create them under "
        "tf.device(tf.compat.v1.train.replica_device_setter(cluster=...)), or give an Estimator a "
        "TF_CONFIG with a ps (docs/cluster.md). Or train in one process: leave TF_CONFIG unset or "
        "with a single chief or worker in its cluster, and use a server of a single task.")


def _tasks_of_environment() -> Optional[str]:
    cluster = read_cluster()
    if cluster is None or cluster.task[0] == EVALUATOR:
        return None
    jobs = cluster.training_jobs
    if sum(jobs.values()) < 2 and "ps" not in jobs:
        return None
    return "the environment variable TF_CONFIG describes a job of several tasks ({}), of which " \
        "this process is {}:{}".format(describe_jobs(jobs), *cluster.task)


def _devices_in_force() -> Tuple[List[str], Optional[str]]:
    """Looks at the devices that are in force where a table is made.

    Returns:
        The devices of the parameter servers that a device function spreads variables over, and what
        stands in the way of a table here, if anything does.
    """
    graph = tf.compat.v1.get_default_graph()
    merged = tf.DeviceSpec()
    servers = []  # type: List[str]
    # pylint: disable=protected-access
    for spec in reversed(list(graph._device_function_stack.peek_objs())):
        function = getattr(spec, "function", None)
        if function is None:
            merged, servers = tf.DeviceSpec(), []
            continue
        setter = getattr(function, "__self__", None)
        if isinstance(setter, device_setter._ReplicaDeviceChooser):
            text = setter._worker_device or ""
            if setter._ps_tasks:
                server = tf.DeviceSpec.from_string(setter._ps_device or "")
                if not server.job:
                    return [], "tf.device(tf.train.replica_device_setter(...)) places variables " \
                        "on {} parameter servers without the name of their job ({!r})".format(
                            setter._ps_tasks, setter._ps_device)
                servers = ["/job:{}/task:{}/device:CPU:0".format(server.job, task)
                           for task in range(setter._ps_tasks)]
        else:
            text = getattr(spec, "raw_string", None) or ""
        if text:
            merged = merged.make_merged_spec(tf.DeviceSpec.from_string(text))
    if merged.job == "ps" or (merged.task and not servers):
        return [], "tf.device places it on {}, a task of a job of several".format(
            merged.to_string())
    return servers, None


def _tasks_of_strategy() -> Optional[str]:
    if not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    described = getattr(strategy.extended, "_cluster_spec", None)
    jobs = tf.train.ClusterSpec(described).as_dict() if described else {}
    counts = {job: len(members) for job, members in jobs.items() if job != EVALUATOR and members}
    if sum(counts.values()) < 2 and "ps" not in counts:
        return None
    return "{} distributes training over several tasks ({})".format(
        type(strategy).__name__, describe_jobs(counts))


def _tasks_of_server(session: Any) -> Optional[str]:
    """Asks the server of a session for the tasks that it places ops on."""
    target = session._target  # pylint: disable=protected-access
    if not target:
        return None
    tasks = session.__dict__.get(_TASKS)  # type: Optional[List[Any]]
    if tasks is None:
        names = [_TASK.search(one.name) for one in session.list_devices()]
        tasks = sorted({(name.group(1), int(name.group(2))) for name in names
                        if name and name.group(1) != EVALUATOR})
        setattr(session, _TASKS, tasks)
    if len(tasks) < 2 and not any(job == "ps" for job, _ in tasks):
        return None
    return "its server {} knows several tasks ({})".format(
        tf.compat.as_str_any(target), ", ".join("{}:{}".format(*task) for task in tasks))
