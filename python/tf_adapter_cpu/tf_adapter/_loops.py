"""Runs of a session that are several steps: which ops ask for them, and how a session does them."""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow as tf
from tensorflow.python.client import session as session_module

# What the vendor calls an op whose run is several steps.
NAME = "IterationOp"

# Attribute of a graph: its ops of loops, with the bool that a session feeds to run them, by name.
_GUARDS = "_mx_rec_loop_guards"
# Attribute of a session: the numbers of steps of the ops that it loops, by name.
_COUNTS = "_mx_rec_loop_counts"
# Attribute of a graph: its version, and the ops of loops that a run of certain ops then needs.
_REACHED = "_mx_rec_loops_reached"
# Attribute of a replaced method.
_STOCK = "_mx_rec_unlooped"

_REFUSAL = ("the op {!r} does several steps in a run, but {}. No step was done. Give this session "
            "to set_iteration_per_loop or load_iteration_per_loop_var, and call its run().")


class LoopOp(NamedTuple):
    """An op whose run is several steps, in the sessions that loop it.

    Attributes:
        op: The op.
        is_looped: bool scalar that such a session feeds with True; None if any session may run it.
    """

    op: tf.Operation
    is_looped: Optional[tf.Tensor]


def guarded(train_op: Any) -> LoopOp:
    """Makes an op that runs `train_op` in sessions that loop it, and that others refuse.

    Args:
        train_op: An op or tensor.

    Returns:
        The op, in the graph of `train_op`, which must not be finalised.
    """
    with train_op.graph.as_default(), tf.name_scope(None), tf.device("/cpu:0"), \
            tf.control_dependencies(None):
        is_looped = tf.compat.v1.placeholder_with_default(False, [], name=NAME + "_is_looped")
        # For what does not go through the methods of a session that are replaced below.
        guard = tf.debugging.Assert(is_looped, [
            "an op that does several steps in a run was run without tf_adapter: it did one step."],
            name=NAME + "_guard")
        made = LoopOp(tf.group(train_op, guard, name=NAME), is_looped)
    _register(made)
    return made


def named(graph: tf.Graph) -> LoopOp:
    """Returns the op that is called IterationOp, which a script makes by hand.

    Raises:
        RuntimeError: If the graph does not have exactly one.
    """
    found = [op for op in graph.get_operations() if op.name.split("/")[-1] == NAME]
    if len(found) != 1:
        raise RuntimeError(
            "iterations_per_loop needs one training op that is called {0}, as tf.group(train_op, "
            "name={0!r}) makes it; the graph has {1}.".format(NAME, len(found)))
    made = LoopOp(found[0], _guards(graph).get(found[0].name))
    _register(made)
    return made


def install(sess: Any, loop: LoopOp, count: int) -> None:
    """Has a session do several steps wherever it runs an op.

    Args:
        sess: A Session, or a MonitoredSession, whose session of TensorFlow is what loops.
        loop: The op.
        count: The number of steps, at least 1.

    Raises:
        ValueError: If the session runs another graph.
    """
    plain = _session_of_tensorflow(sess)
    if plain is None or plain.graph is not loop.op.graph:
        raise ValueError("sess should be a session of the graph of the training op {!r}, but is "
                         "{!r}".format(loop.op.name, sess))
    _compare_with_config(plain, count)
    # A new dict: other threads may be in a run.
    counts = dict(vars(plain).get(_COUNTS) or {})
    counts[loop.op.name] = int(count)
    setattr(plain, _COUNTS, counts)


def _session_of_tensorflow(sess: Any) -> Any:
    """Returns the BaseSession that a session is or wraps, None if there is none."""
    while sess is not None and not isinstance(sess, session_module.BaseSession):
        inner = getattr(sess, "_tf_sess", None)
        sess = inner() if callable(inner) else getattr(sess, "_sess", None)
    return sess


def _guards(graph: tf.Graph) -> Dict[str, Optional[tf.Tensor]]:
    return vars(graph).setdefault(_GUARDS, {})


def _register(loop: LoopOp) -> None:
    """Has the sessions of a graph know an op."""
    _guards(loop.op.graph)[loop.op.name] = loop.is_looped
    vars(loop.op.graph)[_REACHED] = loop.op.graph.version, {}
    owner = session_module.BaseSession
    for name, make in (("run", _looping), ("make_callable", _refusing),
                       ("partial_run_setup", _refusing)):
        stock = getattr(owner, name)
        if not hasattr(stock, _STOCK):
            replacement = functools.wraps(stock)(make(stock))
            setattr(replacement, _STOCK, stock)
            setattr(owner, name, replacement)


def _looping(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes BaseSession.run, which runs fetches several times where they need an op of a loop."""

    def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None,
            run_metadata: Any = None) -> Any:
        needed = _needed(self, fetches)
        if not needed:
            return stock(self, fetches, feed_dict, options, run_metadata)
        guards = _guards(self.graph)
        counts = vars(self).get(_COUNTS, {})
        for name in needed:
            if name not in counts and guards[name] is not None:
                raise RuntimeError(_REFUSAL.format(name, "this session does not loop it"))
        distinct = {counts.get(name, 1) for name in needed}
        if len(distinct) != 1:
            raise ValueError("one run cannot be loops of {} steps".format(
                " and ".join(str(count) for count in sorted(distinct))))
        feed = dict(feed_dict or {})
        feed.update({guards[name]: True for name in needed if guards[name] is not None})
        for _ in range(distinct.pop() - 1):
            stock(self, fetches, feed, options, run_metadata)
        return stock(self, fetches, feed, options, run_metadata)

    return run


def _refusing(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Makes BaseSession.make_callable or partial_run_setup, which cannot loop."""

    def method(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        for name in _needed(self, fetches):
            if _guards(self.graph)[name] is not None:
                raise RuntimeError(_REFUSAL.format(name, "only run() loops it"))
        return stock(self, fetches, *args, **kwargs)

    return method


def _needed(sess: Any, fetches: Any) -> List[str]:
    """Returns the names of the ops of loops that a run of fetches needs."""
    graph = sess.graph
    if not vars(graph).get(_GUARDS):
        return []
    try:
        names = _fetched(graph, fetches)
    except (KeyError, TypeError, ValueError):
        return []  # The session says what is wrong with them.
    version, reached = vars(graph)[_REACHED]
    if version != graph.version:
        reached = {}
        vars(graph)[_REACHED] = graph.version, reached
    if names not in reached:
        reached[names] = _loops_above(graph, names)
    return reached[names]


def _fetched(graph: tf.Graph, fetches: Any) -> Tuple[str, ...]:
    """Returns the names of the ops that fetches name, which are nested as `run` allows."""
    with graph.as_default():
        mapper = session_module._FetchMapper.for_fetch(  # pylint: disable=protected-access
            fetches)
    elements = [graph.as_graph_element(one) for one in mapper.unique_fetches()]
    return tuple(sorted({one.op.name if isinstance(one, tf.Tensor) else one.name
                         for one in elements}))


def _loops_above(graph: tf.Graph, names: Tuple[str, ...]) -> List[str]:
    """Returns the names of the ops of loops among the ops that a run of those ops needs."""
    guards = _guards(graph)
    waiting = [graph.get_operation_by_name(name) for name in names]
    seen = set(waiting)
    found = []  # type: List[str]
    while waiting:
        op = waiting.pop()
        if op.name in guards:
            found.append(op.name)
        for above in [tensor.op for tensor in op.inputs] + list(op.control_inputs):
            if above not in seen:
                seen.add(above)
                waiting.append(above)
    return sorted(found)


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
