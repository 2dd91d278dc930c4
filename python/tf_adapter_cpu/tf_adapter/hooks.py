"""Hooks for training, evaluation and prediction."""

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

from . import _checks, _loops
from .ranks import launched_ranks


class NPUBroadcastGlobalVariablesHook(tf.estimator.SessionRunHook):
    """Would give all ranks the variables of one; there is one rank, so it does nothing.

    Args:
        root_rank: The rank that has them.
        index: The rank of this process.
    """

    def __init__(self, root_rank=None, index=None):
        super().__init__()

    def begin(self):
        """Refuses to let separate processes pass for one job.

        Raises:
            NotImplementedError: If the environment variable RANK_SIZE is more than 1.
        """
        ranks = launched_ranks()
        if ranks > 1:
            raise NotImplementedError(
                "RANK_SIZE is {}, but this stand-in for the vendor's tf_adapter cannot give the "
                "variables of one process to another: each would train a model of its own. Unset "
                "RANK_SIZE to train in one process.".format(ranks))


class NPUCheckpointSaverHook(tf.estimator.CheckpointSaverHook):
    """`tf.estimator.CheckpointSaverHook`."""


class NPUOutputTensorHook(tf.estimator.SessionRunHook):
    """Collects values of tensors and hands them to a function.

    Args:
        tensors: A dict from tags to tensors or their names, a list of them, which are then tagged
            with their names, or None for nothing.
        dependencies: Ops or tensors that run before the tensors are read; only with tensors, not
            with names.
        output_fn: Called with a list of dicts from tag to value, one per step.
        output_every_n_steps: After how many steps it is called; 0 is only at the end. What is left
            is handed over at the end.

    Raises:
        ValueError: If `output_fn` cannot be called, or `output_every_n_steps` is no int >= 0.
    """

    def __init__(self, tensors, dependencies=None, output_fn=None, output_every_n_steps=0):
        super().__init__()
        _checks.check("output_every_n_steps", output_every_n_steps, _checks.NATURAL)
        if tensors is not None and not callable(output_fn):
            raise ValueError("output_fn should be callable, but is {!r}".format(output_fn))
        if tensors is not None and not isinstance(tensors, dict):
            tensors = {getattr(one, "name", one): one for one in tensors}
        if tensors is not None and dependencies is not None:
            with tf.control_dependencies(tf.nest.flatten(dependencies)):
                tensors = {tag: tf.identity(one) for tag, one in tensors.items()}
        self._tensors = tensors or {}
        self._output_fn = output_fn
        self._every = output_every_n_steps
        self._fetches = {}
        self._kept = []

    def begin(self):
        """Finds the tensors in the graph."""
        graph = tf.compat.v1.get_default_graph()
        self._fetches = {tag: graph.as_graph_element(one) for tag, one in self._tensors.items()}
        self._kept = []

    def before_run(self, run_context):
        """Asks for them."""
        return tf.estimator.SessionRunArgs(self._fetches) if self._fetches else None

    def after_run(self, run_context, run_values):
        """Keeps them, and hands them over every so many steps."""
        if self._fetches:
            self._kept.append(run_values.results)
            if self._every and len(self._kept) >= self._every:
                self._hand_over()

    def end(self, session):
        """Hands over what is left."""
        if self._kept:
            self._hand_over()

    def _hand_over(self):
        kept, self._kept = self._kept, []
        self._output_fn(kept)


class NpuEmptyHook(tf.estimator.SessionRunHook):
    """A hook that does nothing."""


class HostCallHook(tf.estimator.SessionRunHook):
    """Runs the ops of a `host_call` with every step, and looks after its summary writers.

    Args:
        result: What the function of the `host_call` returned: ops or tensors, nested as it likes.
    """

    def __init__(self, result):
        super().__init__()
        self._fetches = [one for one in tf.nest.flatten(result)
                         if isinstance(one, (tf.Operation, tf.Tensor))]
        self._starts = []
        self._flushes = []

    def begin(self):
        """Adds the ops that flush the writers."""
        self._starts = list(summary_ops_v2.summary_writer_initializer_op())
        self._flushes = [summary_ops_v2.flush(writer=one.inputs[0]) for one in self._starts]

    def after_create_session(self, session, coord):
        """Opens the writers."""
        session.run(self._starts)

    def before_run(self, run_context):
        """Adds the ops to the step."""
        return tf.estimator.SessionRunArgs(self._fetches) if self._fetches else None

    def end(self, session):
        """Writes what the writers hold."""
        session.run(self._flushes)


class SetIterationsVarHook(tf.estimator.SessionRunHook):
    """Makes each run of the training op several steps; it is one run for hooks.

    The training op is called IterationOp: `tf.group(train_op, name="IterationOp")`.

    Args:
        iterations_per_loop: The number of steps, at least 1.

    Raises:
        ValueError: If it is no such int.
    """

    def __init__(self, iterations_per_loop=None):
        super().__init__()
        _checks.check("iterations_per_loop", iterations_per_loop, _checks.POSITIVE)
        self._count = iterations_per_loop
        self._loop = None

    def begin(self):
        """Finds the op.

        Raises:
            RuntimeError: If the graph does not have exactly one of that name.
        """
        self._loop = _loops.named(tf.compat.v1.get_default_graph())

    def after_create_session(self, session, coord):
        """Has the session loop it."""
        _loops.install(session, self._loop, self._count)


class LoopHook(tf.estimator.SessionRunHook):
    """Makes each run of an op several steps in the sessions of an Estimator.

    Args:
        loop: The op, as `_loops.guarded` made it.
        count: The number of steps.
    """

    def __init__(self, loop, count):
        super().__init__()
        self._loop = loop
        self._count = count

    def after_create_session(self, session, coord):
        """Has the session loop it; a session that replaces a lost one, too."""
        _loops.install(session, self._loop, self._count)


def npu_hooks_append(hooks_list=()):
    """Appends NPUBroadcastGlobalVariablesHook to a list of hooks, in place.

    Args:
        hooks_list: A list; any other iterable, or None, is copied into a new one.

    Returns:
        The list.
    """
    if not isinstance(hooks_list, list):
        hooks_list = list(hooks_list or ())
    hooks_list.append(NPUBroadcastGlobalVariablesHook(0, 0))
    return hooks_list
