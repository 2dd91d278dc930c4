"""What the initial value of a variable is: constants and random numbers, read from its graph."""

import math
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from mx_rec.stock.nodes import Nodes, Output

_PASS = ("Identity", "StopGradient", "Snapshot")
_RANDOM = {"RandomUniform": "uniform", "RandomStandardNormal": "normal",
           "TruncatedNormal": "truncated"}
_BINARY = {
    "Add": lambda a, b: a + b,
    "AddV2": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "RealDiv": lambda a, b: a / b,
}
# An expression deeper than this is not that of an initializer.
_DEEPEST = 40


class Affine(NamedTuple):
    """random * factor + shift, each float drawn by itself; `kind` None is the constant `shift`."""

    kind: Optional[str]
    factor: float
    shift: float


def affine_value(nodes: Nodes, name: str, output: int = 0, depth: int = 0,
                 shape: Optional[List[int]] = None) -> Optional[Affine]:
    """Reads an expression whose elements are all drawn from one distribution, or all equal.

    Args:
        nodes: The graph.
        name: The node that makes the value.
        output: Which of its outputs.
        depth: How deep the expression is already.
        shape: The sizes of the value. Random numbers of fewer elements would be spread over it,
            and those that something else reads as well would be the same there.

    Returns:
        The distribution of each element, None if it is anything else. Shapes of constants are not
        looked at; without `shape` there are only constants.
    """
    node = nodes.by_name.get(name)
    if node is None or output != 0 or depth > _DEEPEST:
        return None

    def part(position: int) -> Optional[Affine]:
        inputs = nodes.inputs[name]
        return affine_value(nodes, *inputs[position], depth=depth + 1, shape=shape)

    if node.op in _PASS or node.op == "Reshape":
        return part(0)
    if node.op == "Fill":
        return part(1)
    if node.op == "Const":
        value = _equal_elements(node)
        return None if value is None else Affine(None, 0.0, value)
    if node.op in _RANDOM:
        if shape is None or not _is_own(nodes, node, shape):
            return None
        return Affine(_RANDOM[node.op], 1.0, 0.0)
    if node.op == "Neg":
        one = part(0)
        return None if one is None else Affine(one.kind, -one.factor, -one.shift)
    if node.op == "Cast":
        # Of a constant alone: random numbers of another type are other numbers.
        one = part(0)
        if one is None or one.kind is not None:
            return None
        if not tf.as_dtype(node.attr["DstT"].type).is_floating and one.shift != int(one.shift):
            return None
        return one
    if node.op in _BINARY:
        return _combined(node.op, part(0), part(1))
    return None


def _is_own(nodes: Nodes, node: Any, shape: List[int]) -> bool:
    """Whether random numbers are one for each element of a variable, and for nothing else."""
    source, output = nodes.source(node.name, 0)
    if source is None or source.op != "Const" or output != 0:
        return False
    sizes = tf.make_ndarray(source.attr["value"].tensor)
    if int(np.prod(sizes, dtype=np.int64)) != int(np.prod(shape, dtype=np.int64)):
        return False
    # A variable's initializer is a chain: each op of it is read by one other.
    while True:
        readers = {use.node.name: use.node for use in nodes.all_uses(node)}
        if len(readers) != 1:
            return False
        node = next(iter(readers.values()))
        if node.op in ("Assign", "AssignVariableOp"):
            return True


def _combined(op: str, one: Optional[Affine], other: Optional[Affine]) -> Optional[Affine]:
    if one is None or other is None or (one.kind is not None and other.kind is not None):
        return None
    calculate = _BINARY[op]
    if one.kind is None and other.kind is None:
        if op == "RealDiv" and other.shift == 0.0:
            return None
        return Affine(None, 0.0, float(np.float32(calculate(one.shift, other.shift))))
    random, number = (one, other.shift) if one.kind is not None else (other, one.shift)
    if op in ("Add", "AddV2"):
        return Affine(random.kind, random.factor, random.shift + number)
    if op == "Mul":
        return Affine(random.kind, random.factor * number, random.shift * number)
    if op == "Sub" and random is one:
        return Affine(random.kind, random.factor, random.shift - number)
    return None


def _equal_elements(node: Any) -> Optional[float]:
    """Returns the one number that a constant consists of, None if it has several or none."""
    tensor = node.attr["value"].tensor
    if tensor.dtype not in (tf.float32.as_datatype_enum, tf.int32.as_datatype_enum,
                            tf.int64.as_datatype_enum, tf.float64.as_datatype_enum):
        return None
    if not tensor.tensor_content:
        for field in ("float_val", "int_val", "int64_val", "double_val"):
            values = getattr(tensor, field)
            if len(values) >= 1:
                return float(values[0]) if len(set(values)) == 1 else None
        return 0.0 if all(dim.size for dim in tensor.tensor_shape.dim) else None
    values = np.frombuffer(tensor.tensor_content, tf.as_dtype(tensor.dtype).as_numpy_dtype)
    return float(values[0]) if values.size and (values == values[0]).all() else None


def describe(value: Affine) -> Optional[Dict[str, Any]]:
    """Returns the engine's initializer of a distribution, None if it has none."""
    numbers = value.factor, value.shift
    if not all(math.isfinite(np.float32(number)) for number in numbers):
        return None
    if value.kind is None:
        return {"kind": "zeros"} if value.shift == 0.0 else {"kind": "constant",
                                                             "value": value.shift}
    if value.kind == "uniform":
        ends = sorted((value.shift, value.shift + value.factor))
        return {"kind": "random_uniform", "min": ends[0], "max": ends[1]}
    # Both are symmetric about their mean.
    kind = "random_normal" if value.kind == "normal" else "truncated_normal"
    return {"kind": kind, "mean": value.shift, "stddev": abs(value.factor)}


def joined_rows(nodes: Nodes, output: Output) -> List[Output]:
    """Returns what is joined along the first dimension: the tensor itself if nothing is.

    Args:
        nodes: The graph.
        output: The tensor.
    """
    output = nodes.behind(output)
    node = nodes.by_name.get(output[0])
    if node is None or node.op != "ConcatV2":
        return [output]
    inputs = nodes.inputs[node.name]
    axis = constant_int(nodes, node.name, len(inputs) - 1)
    return list(inputs[:-1]) if axis == 0 else [output]


def constant_int(nodes: Nodes, name: str, position: int) -> Optional[int]:
    """Returns the scalar integer that an input of a node is, None if it is not known."""
    node, output = nodes.source(name, position)
    if node is None:
        return None
    value = affine_value(nodes, node.name, output)
    return int(value.shift) if value is not None and value.kind is None \
        and value.shift == int(value.shift) else None
