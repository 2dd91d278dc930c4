"""Puts other ops in the place of ops of a graph that no session has run."""

import contextlib
from typing import Any, Iterator, List, Optional

import tensorflow as tf

from mx_rec.tensorflow.moved import move_outputs


def replace_output(old: tf.Operation, value: tf.Tensor) -> None:
    """Puts a tensor in the place of the one output of `old`.

    Ops that read the old output read the tensor, ops that wait for `old` wait for its op. The
    tensor object of the old output, which the script may hold and fetch, becomes the new one.

    Args:
        old: An op with one output.
        value: The first output of another op, of the same type.
    """
    output = old.outputs[0]
    value.set_shape(output.shape)
    for consumer in output.consumers():
        for position, tensor in enumerate(consumer.inputs):
            if tensor is output:
                consumer._update_input(position, value)  # pylint: disable=protected-access
    replace_waiting(old, value.op)
    move_outputs(old, value.op)


def replace_waiting(old: tf.Operation, new: Optional[tf.Operation]) -> None:
    """Makes the ops that wait for `old` wait for `new`, or for nothing.

    Args:
        old: An op.
        new: Another op; None: nothing is waited for.
    """
    # pylint: disable=protected-access
    for waiting in list(old._control_outputs):
        if waiting is new:
            continue
        others = [op for op in waiting.control_inputs if op is not old]
        if new is not None and new not in others:
            others.append(new)
        waiting._remove_all_control_inputs()
        waiting._add_control_inputs(others)


@contextlib.contextmanager
def in_place_of(op: tf.Operation) -> Iterator[None]:
    """Ops made inside belong to the branch or loop of `op` and wait for what it waits for.

    Args:
        op: The op that they replace.
    """
    # pylint: disable=protected-access
    graph = op.graph
    context = op._get_control_flow_context()
    with graph.as_default(), graph.control_dependencies(None):
        if context is not None:
            context.Enter()
        try:
            with graph.control_dependencies(op.control_inputs), tf.device("/cpu:0"), \
                    tf.compat.v1.name_scope(op.name + "/table/"):
                yield
        finally:
            if context is not None:
                context.Exit()


def forget_variables(graph: tf.Graph, names: List[str]) -> None:
    """Removes variables from all collections, and what initializes them from its groups.

    Args:
        graph: The graph.
        names: Names of the variables' ops.
    """
    gone = set(names)
    for key in graph.get_all_collection_keys():
        values = graph.get_collection_ref(key)
        kept = [value for value in values if _name(value) not in gone]
        if len(kept) != len(values):
            values[:] = kept


def _name(value: Any) -> Optional[str]:
    if isinstance(value, tf.Variable):
        try:
            return str(value.op.name)
        except (AttributeError, NotImplementedError, ValueError):
            return None
    return None
