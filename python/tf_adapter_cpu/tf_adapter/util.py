"""Loops of several steps in one `sess.run`: the session runs the step so many times."""

from typing import Any

import tensorflow as tf

from . import _checks, _loops


def set_iteration_per_loop(sess: Any, train_op: tf.Operation,
                           iterations_per_loop: int = 1) -> tf.Operation:
    """Makes an op that does `iterations_per_loop` steps each time that the session runs it.

    A run is as many runs of the same fetches with the same feeds, one after the other, and returns
    what the last one returns; hooks of a MonitoredSession see one run. It ends early if one of
    them fails, for instance at the end of the data: then the steps before it are done.

    Args:
        sess: A Session or MonitoredSession of the op's graph, which must not be finalised.
        train_op: The op that does one step.
        iterations_per_loop: The number of steps, at least 1.

    Returns:
        The op; `train_op` itself for 1. Any other session refuses to run it, with a RuntimeError
        before anything is done.

    Raises:
        ValueError: If `train_op` is no Operation, `iterations_per_loop` is no int >= 1, or the
            session runs another graph.
    """
    _check(train_op, iterations_per_loop)
    if iterations_per_loop == 1:
        return train_op
    loop = _loops.guarded(train_op)
    _loops.install(sess, loop, iterations_per_loop)
    return loop.op


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
        self._made = _loops.guarded(train_op)
        return self._made.op

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
        _loops.install(sess, self._made, iterations_per_loop)


def _check(train_op: Any, iterations_per_loop: Any) -> None:
    if not isinstance(train_op, tf.Operation):
        raise ValueError("train_op should be an Operation, but is {!r}; tf.group makes one of "
                         "several".format(train_op))
    _checks.check("iterations_per_loop", iterations_per_loop, _checks.POSITIVE)
