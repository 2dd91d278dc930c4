"""Loops of several steps in one `sess.run`, which there are none of here: loops of one only."""

from . import _checks


def set_iteration_per_loop(sess, train_op, iterations_per_loop=1):
    """Returns `train_op`, which does one step each time that it is run.

    Args:
        sess: The session; not looked at.
        train_op: An op, tensor or list of them.
        iterations_per_loop: 1.

    Raises:
        ValueError: If `iterations_per_loop` is no int >= 1.
        NotImplementedError: If it is more than 1.
    """
    _loop_of_one(iterations_per_loop)
    return train_op


class IterationPerLoop:
    """The same in two calls, for graphs that are finalised in between."""

    def create_iteration_per_loop_var(self, train_op):
        """Returns `train_op`."""
        return train_op

    def load_iteration_per_loop_var(self, sess, iterations_per_loop=1):
        """Checks that `iterations_per_loop` is 1.

        Raises:
            ValueError: If it is no int >= 1.
            NotImplementedError: If it is more than 1.
        """
        _loop_of_one(iterations_per_loop)


def _loop_of_one(iterations_per_loop):
    _checks.check("iterations_per_loop", iterations_per_loop, _checks.POSITIVE)
    if iterations_per_loop != 1:
        raise NotImplementedError(
            "iterations_per_loop is {}, but on CPUs each sess.run is one step: there is no device "
            "that could loop by itself. Set it to 1 and call sess.run as many times more.".format(
                iterations_per_loop))
