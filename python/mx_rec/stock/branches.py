"""The gradients of rows that are looked up inside of a branch (tf.cond, tf.case).

Where the branch is not taken, TensorFlow gives all rows of the variable a gradient of zeros: slices
with the ids of all rows, which a Merge puts in the place of those of the lookup. Without these an
optimizer does the same, if it leaves rows where they are whose gradient is zero.
"""

from typing import Any, List, Optional, Sequence

from mx_rec.stock.nodes import Nodes, Stays
from mx_rec.stock.updates import form_of
from mx_rec.stock.values import affine_value

# Ops that give slices on: zeros stay zeros in them, and rows stay rows.
_PASS = ("Identity", "ConcatV2", "Merge", "Mul", "RealDiv", "Neg", "Cast", "Reshape")
# Ops that sum slices up, or find the distinct rows whose gradients are summed up.
_ENDS = ("L2Loss", "UnsortedSegmentSum", "Unique", "UniqueV2")


def _unknown(why: str) -> Stays:
    """Returns why zeros that have the shape of a variable are no gradient that can be left out."""
    return Stays("it is used inside of a branch, and " + why)


def is_shape_of_zeros(nodes: Nodes, shape: Any) -> bool:
    """Returns whether an op tells the shape of a variable for a gradient of zeros for all rows.

    Args:
        nodes: The graph.
        shape: An op that tells the shape of a variable inside of a branch.

    Raises:
        Stays: If it is for such zeros, and something else than the update may need them.
    """
    fills = [use.node for use in nodes.all_uses(shape) if use.node.op == "Fill"]
    if not fills:
        return False
    fill = fills[0]
    value = affine_value(nodes, *nodes.inputs[fill.name][1])
    if len(nodes.all_uses(shape)) > 1 or value is None or value.kind is not None or value.shift:
        raise _unknown("{} has its shape".format(fill.name))
    ids = []  # type: List[Any]
    for use in nodes.all_uses(fill):
        if use.node.op == "Shape":
            ids += [part for one in nodes.all_uses(use.node) for part in _ids(nodes, one.node)]
        elif use.node.op != "Merge":
            raise _unknown("{} reads its gradient".format(use.node.name))
    if not ids:
        raise _unknown("its gradient is dense where its branch is not taken ({})".format(
            fill.name))
    other = _other_reader(nodes, [fill] + ids)
    if other is not None:
        raise _unknown("{} ({}) reads its gradient, of which a branch that is not taken makes "
                       "zeros for all rows".format(other.name, other.op))
    return True


def _ids(nodes: Nodes, node: Any) -> Sequence[Any]:
    """Returns what gives the ids of all rows, given an op that takes their number or shape."""
    if node.op == "Merge":
        # The shape of the whole, which nothing has to read but the Merge of an outer branch.
        for use in nodes.all_uses(node):
            if use.node.op != "Merge":
                raise _unknown("{} reads the shape of its gradient".format(use.node.name))
            _ids(nodes, use.node)
        return ()
    ranges = [use.node for use in nodes.all_uses(node)] if node.op == "StridedSlice" else [node]
    if any(one.op != "Range" for one in ranges):
        raise _unknown("{} reads the shape of its gradient".format(ranges[0].name))
    return ranges


def _other_reader(nodes: Nodes, starts: Sequence[Any]) -> Optional[Any]:
    """Returns an op that takes slices and is none of those that know no zeros; None without one."""
    seen, waiting = {node.name for node in starts}, list(starts)
    while waiting:
        for use in nodes.all_uses(waiting.pop()):
            node = use.node
            is_known = node.op in _ENDS or form_of(node.op) is not None or node.name in seen
            if is_known or (node.op == "Shape" and nodes.source(node.name, 0)[0] is starts[0]):
                continue
            if node.op not in _PASS:
                return node
            seen.add(node.name)
            waiting.append(node)
    return None
