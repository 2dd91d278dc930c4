"""Loops of several steps in one `sess.run`: the session runs the step so many times."""

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import tensorflow as tf
from tensorflow.python.client import session as session_module

from . import _checks

# Attribute of a session: its loops.
_LOOPS = "_mx_rec_loops"
_NAME = "IterationOp"


class _Loop(NamedTuple):
    """An op whose run is several steps.

    Attributes:
        op: The op.
        is_looped: bool scalar that the session feeds with True.
        count: How many steps.
    """

    op: tf.Operation
    is_looped: tf.Tensor
    count: int


def set_iteration_per_loop(sess: Any, train_op: tf.Operation,
                           iterations_per_loop: int = 1) -> tf.Operation:
    """Makes an op that does `iterations_per_loop` steps each time that the session runs it.

    A run is as many runs of the same fetches with the same feeds, one after the other, and returns
    what the last one returns; hooks of a MonitoredSession see each of them. It ends early if one of
    them fails, for instance at the end of the data: then the steps before it are done.

    Args:
        sess: A Session or MonitoredSession of the op's graph, which must not be finalised.
        train_op: The op that does one step.
        iterations_per_loop: The number of steps, at least 1.

    Returns:
        The op; `train_op` itself for 1. Any other session refuses to run it.

    Raises:
        ValueError: If `train_op` is no Operation, `iterations_per_loop` is no int >= 1, or the
            session runs another graph.
    """
    _check(train_op, iterations_per_loop)
    if iterations_per_loop == 1:
        return train_op
    op, is_looped = _guarded(train_op)
    _install(sess, _Loop(op, is_looped, int(iterations_per_loop)))
    return op


class IterationPerLoop:
    """The same in two calls, for graphs that are finalised in between."""

    def __init__(self) -> None:
        self._made = None  # type: Any

    def create_iteration_per_loop_var(self, train_op: tf.Operation) -> tf.Operation:
        """Makes an op that does several steps each time that a session runs it.

        Args:
            train_op: The op that does one step.

        Returns:
            The op. A session runs it after `load_iteration_per_loop_var` only.

        Raises:
            ValueError: If `train_op` is no Operation.
        """
        _check(train_op, 1)
        self._made = _guarded(train_op)
        return self._made[0]

    def load_iteration_per_loop_var(self, sess: Any, iterations_per_loop: int = 1) -> None:
        """Sets how many steps a run of the op is in a session.

        Args:
            sess: A Session or MonitoredSession of the op's graph.
            iterations_per_loop: The number of steps, at least 1.

        Raises:
            ValueError: If `iterations_per_loop` is no int >= 1, or the session runs another graph.
            RuntimeError: If no op was made.
        """
        _checks.check("iterations_per_loop", iterations_per_loop, _checks.POSITIVE)
        if self._made is None:
            raise RuntimeError("call create_iteration_per_loop_var before "
                               "load_iteration_per_loop_var")
        _install(sess, _Loop(self._made[0], self._made[1], int(iterations_per_loop)))


def _check(train_op: Any, iterations_per_loop: Any) -> None:
    if not isinstance(train_op, tf.Operation):
        raise ValueError("train_op should be an Operation, but is {!r}; tf.group makes one of "
                         "several".format(train_op))
    _checks.check("iterations_per_loop", iterations_per_loop, _checks.POSITIVE)


def _guarded(train_op: tf.Operation) -> Tuple[tf.Operation, tf.Tensor]:
    """Returns an op that runs `train_op`, and the bool that is True where a session loops it."""
    with train_op.graph.as_default(), tf.name_scope(None), tf.device("/cpu:0"), \
            tf.control_dependencies(None):
        is_looped = tf.compat.v1.placeholder_with_default(False, [], name=_NAME + "_is_looped")
        guard = tf.debugging.Assert(is_looped, [
            "an op of iterations_per_loop was run by a session that does not loop it, or inside "
            "of make_callable: it did one step. Give that session to set_iteration_per_loop or "
            "load_iteration_per_loop_var, and call its run()."], name=_NAME + "_guard")
        return tf.group(train_op, guard, name=_NAME), is_looped


def _install(sess: Any, loop: _Loop) -> None:
    """Has a session loop an op."""
    if getattr(sess, "graph", None) is not loop.op.graph:
        raise ValueError("sess should be a session of the graph of the training op {!r}, but is "
                         "{!r}".format(loop.op.name, sess))
    _compare_with_config(sess, loop.count)
    loops = vars(sess).get(_LOOPS)
    if loops is None:
        loops = {}  # type: Dict[str, _Loop]
        setattr(sess, _LOOPS, loops)
        sess.run = _looping(sess, loops)
    loops[loop.op.name] = loop


def _looping(sess: Any, loops: Dict[str, _Loop]) -> Callable[..., Any]:
    """Returns a session's `run` that runs fetches several times where they need a loop."""
    stock = sess.run
    reached = {}  # type: Dict[Tuple[str, ...], List[str]]

    def run(fetches: Any, feed_dict: Any = None, options: Any = None,
            run_metadata: Any = None) -> Any:
        names = _fetched(sess.graph, fetches)
        if names not in reached:
            reached[names] = _ops_above(sess.graph, names)
        found = [loop for name, loop in loops.items() if name in reached[names]]
        if not found:
            return stock(fetches, feed_dict, options, run_metadata)
        counts = {loop.count for loop in found}
        if len(counts) != 1:
            raise ValueError("one run cannot be loops of {} steps".format(
                " and ".join(str(count) for count in sorted(counts))))
        feed = dict(feed_dict or {})
        feed.update({loop.is_looped: True for loop in found})
        for _ in range(counts.pop() - 1):
            stock(fetches, feed, options, run_metadata)
        return stock(fetches, feed, options, run_metadata)

    return run


def _fetched(graph: tf.Graph, fetches: Any) -> Tuple[str, ...]:
    """Returns the names of the ops that fetches name, which are nested as `run` allows."""
    with graph.as_default():
        mapper = session_module._FetchMapper.for_fetch(  # pylint: disable=protected-access
            fetches)
    elements = [graph.as_graph_element(one) for one in mapper.unique_fetches()]
    return tuple(sorted({one.op.name if isinstance(one, tf.Tensor) else one.name
                         for one in elements}))


def _ops_above(graph: tf.Graph, names: Tuple[str, ...]) -> List[str]:
    """Returns the names of the loop ops among the ops that a run of those ops needs."""
    waiting = [graph.get_operation_by_name(name) for name in names]
    seen = set(waiting)
    found = []  # type: List[str]
    while waiting:
        op = waiting.pop()
        if op.name.split("/")[-1].startswith(_NAME):
            found.append(op.name)
        for above in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if above not in seen:
                seen.add(above)
                waiting.append(above)
    return found


def _compare_with_config(sess: Any, count: int) -> None:
    """Warns if the session's configuration names another number of steps."""
    config = getattr(sess, "_config", None)
    if config is None:
        return
    for optimizer in config.graph_options.rewrite_options.custom_optimizers:
        given = optimizer.parameter_map["iterations_per_loop"].i \
            if "iterations_per_loop" in optimizer.parameter_map else count
        if optimizer.name == "NpuOptimizer" and given != count:
            tf.compat.v1.logging.warning(
                "tf_adapter, mx_rec's stand-in for CPUs: iterations_per_loop is %d in the "
                "session's configuration, and %d in the call, which is what counts.", given, count)
