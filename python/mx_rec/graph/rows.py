"""The shapes of rows, for what needs these without the rows."""

from typing import Any, Dict, Iterable, Sequence, Tuple

import tensorflow as tf

from mx_rec.edits.replacing import FUSED_NAME, in_place_of, replace_each


class Constants:
    """Constants that new ops of a graph share, each once for a device.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._made = {}  # type: Dict[Any, tf.Tensor]

    def of(self, value: Any, dtype: tf.DType, device: str) -> tf.Tensor:
        """Returns a constant.

        Args:
            value: A number, or a list of numbers.
            dtype: Their type.
            device: Where what reads it is.
        """
        key = str(value), dtype, device
        if key not in self._made:
            with self._graph.as_default(), self._graph.control_dependencies(None), \
                    tf.device(device):
                self._made[key] = tf.constant(value, dtype, name=FUSED_NAME)
        return self._made[key]


def replace_shapes(constants: Constants, shapes: Iterable[tf.Operation],
                   known: Dict[str, Tuple[tf.Tensor, tf.Tensor]],
                   waits: Sequence[tf.Operation]) -> None:
    """Makes the shapes of rows known without the rows.

    Args:
        constants: Of the graph.
        shapes: Ops Shape and ShapeN that read rows, or what passes them on.
        known: By the names of rows their ids, and a tensor whose last dimension is theirs.
        waits: What reads the rows instead: an update that needs a shape still comes after it.
    """
    for op in shapes:
        if not any(output.consumers() for output in op.outputs):
            continue
        with in_place_of(op), tf.control_dependencies(list(waits)):
            values = [_shape(constants, known, op, tensor) for tensor in op.inputs]
        replace_each(op, values)


def _shape(constants: Constants, known: Dict[str, Tuple[tf.Tensor, tf.Tensor]], op: tf.Operation,
           tensor: tf.Tensor) -> tf.Tensor:
    """Returns the shape of a tensor; of rows without reading them."""
    rows = tensor
    while rows.name not in known and rows.op.type in ("Identity", "StopGradient"):
        rows = rows.op.inputs[0]
    kind = op.outputs[0].dtype
    if rows.name not in known:
        return tf.identity(tf.shape(tensor, out_type=kind))
    ids, like = known[rows.name]
    width = rows.shape.as_list()[-1] if rows.shape.rank else None
    dim = tf.shape(like, out_type=kind)[-1:] if width is None \
        else constants.of([width], kind, op.device)
    axis = constants.of(0, tf.int32, op.device)
    return tf.concat([tf.shape(ids, out_type=kind), dim], axis, name="shape")
