"""Finds what limits the ids of a variable: hash buckets, a modulo, the size of an identity column.

It reads a GraphDef and changes nothing; lift.py changes the graph. A limit that something else
reads as well stays for that reader. Where it is not certain that all lookups of a variable get the
same ids without limits, the variable keeps them.
"""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from mx_rec.stock.fused import SHAPES
from mx_rec.stock.nodes import Nodes, Output, Use
from mx_rec.stock.patterns import Search, op
from mx_rec.stock.values import constant_int

# Ids are below it: the largest number of buckets that TensorFlow's hashes take.
ID_END = 2 ** 63 - 1

BUCKETS = "buckets"
CROSS = "cross"
MODULO = "modulo"
DEFAULT = "default"
ASSERTION = "assertion"

_HASHES = ("StringToHashBucketFast", "StringToHashBucketStrong", "StringToHashBucket")
_MODULOS = ("FloorMod", "Mod", "TruncateMod")

_ALL, _ALL_BUT_THE_LAST = None, ()  # type: None, Tuple[int, ...]

# Ops that pass ids on: which inputs are ids, and which output has them.
_CARRIERS = {
    "Identity": ((0,), 0), "StopGradient": ((0,), 0), "Reshape": ((0,), 0), "Squeeze": ((0,), 0),
    "ExpandDims": ((0,), 0), "StridedSlice": ((0,), 0), "Slice": ((0,), 0), "Gather": ((0,), 0),
    "GatherV2": ((0,), 0), "GatherNd": ((0,), 0), "Transpose": ((0,), 0), "Tile": ((0,), 0),
    "Select": ((1, 2), 0), "SelectV2": ((1, 2), 0), "SparseFillEmptyRows": ((1, 3), 1),
    "Unique": ((0,), 0), "UniqueV2": ((0,), 0),
    "Pack": (_ALL, 0), "ConcatV2": (_ALL_BUT_THE_LAST, 0),
}  # type: Dict[str, Tuple[Optional[Tuple[int, ...]], int]]
# Those of which a second one can be made, for readers whose ids have a limit.
COPIED = frozenset(("Identity", "StopGradient", "Reshape", "Squeeze", "ExpandDims", "StridedSlice",
                    "Slice", "Gather", "GatherV2", "GatherNd", "Transpose", "Tile"))
_COMPARISONS = ("Less", "GreaterEqual", "Greater", "LessEqual")


class Limit(NamedTuple):
    """An op whose output has ids below a limit.

    Attributes:
        node: Its name.
        output: Which of its outputs.
        kind: What limits them.
        size: The limit.
        gone: Of the kind ASSERTION: names of the assertions on which the op does not wait any more.
    """

    node: str
    output: int
    kind: str
    size: int
    gone: Tuple[str, ...] = ()


class IdLimits(NamedTuple):
    """What becomes of the limits of a variable's ids.

    Attributes:
        is_lifted: Whether they fall away.
        text: Which ones, or why they stay.
        limits: What is lifted.
        keeps_rows: Whether each id that was below the limit is the same without it.
    """

    is_lifted: bool
    text: str
    limits: Tuple[Limit, ...] = ()
    keeps_rows: bool = True


class KeepsLimits(Exception):
    """Why the ids of a variable keep their limits."""


def _ends(plan: Any) -> Set[str]:
    """Returns the names of the ops that take the ids of a variable."""
    return {lookup.node for lookup in plan.lookups} \
        | {op for step in plan.updates for op in step.ops} \
        | {one.by for step in plan.updates for one in step.slices}


class IdPaths:
    """The ways of ids from limits to lookups.

    Args:
        nodes: The graph.
        plans: Those of the variables whose ids lose their limits (stock.planned.StockVariable).
    """

    def __init__(self, nodes: Nodes, plans: Iterable[Any]) -> None:
        self._nodes = nodes
        self._ends = set()  # type: Set[str]
        for plan in plans:
            self._ends |= _ends(plan)
        self._reaches = {}  # type: Dict[Output, bool]
        self._is_alone = {}  # type: Dict[Output, bool]

    def takes(self, name: str, position: int) -> bool:
        """Whether an op takes the ids without limits that stand at one of its inputs."""
        node = self._nodes.by_name.get(name)
        return node is not None and (name in self._ends
                                     or _is_indifferent(self._nodes, node, position))

    def passes(self, name: str, position: int) -> Optional[Output]:
        """Returns the output to which an op passes the ids of an input; None if to none."""
        node = self._nodes.by_name.get(name)
        return None if node is None else passed(node, position, self._nodes)

    def _further(self, output: Output) -> Iterator[Tuple[Use, Optional[Output]]]:
        """Yields what reads ids, and the output to which it passes them, None if to none."""
        for use in self._nodes.uses(*output):
            yield use, self.passes(use.node.name, use.position)

    def reaches(self, output: Output) -> bool:
        """Whether one of the lookups takes these ids."""
        if output not in self._reaches:
            self._reaches[output] = any(
                use.node.name in self._ends or further is not None and self.reaches(further)
                for use, further in self._further(output))
        return self._reaches[output]

    def is_alone(self, output: Output) -> bool:
        """Whether nothing but the lookups takes these ids."""
        if output not in self._is_alone:
            self._is_alone[output] = all(
                self.takes(use.node.name, use.position)
                or further is not None and self.is_alone(further)
                for use, further in self._further(output))
        return self._is_alone[output]


def passed(node: Any, position: int, nodes: Nodes) -> Optional[Output]:
    """Returns the output to which an op passes the ids of an input; None if to none."""
    carrier = _CARRIERS.get(node.op)
    if carrier is None:
        return None
    inputs, output = carrier
    if inputs == _ALL_BUT_THE_LAST:
        inputs = tuple(range(len(nodes.inputs[node.name]) - 1))
    return (str(node.name), output) if inputs is _ALL or position in inputs else None


def _is_indifferent(nodes: Nodes, node: Any, position: int) -> bool:
    """Whether an op gives the same for ids with and without limits."""
    if node.op in SHAPES:
        return True
    return node.op in _COMPARISONS and position == 0 and constant_int(nodes, node.name, 1) == 0


def id_limits(nodes: Nodes, plans: List[Any],
              kept: Dict[str, str]) -> Dict[str, IdLimits]:
    """Decides which variables lose the limits of their ids.

    Args:
        nodes: The graph.
        plans: Of variables whose limits are to fall away.
        kept: Names of variables whose rows a checkpoint has by ids with limits, and what to say of
            those whose ids would become others.

    Returns:
        What becomes of each of these.
    """
    found = {}  # type: Dict[str, IdLimits]
    wanted = []  # type: List[Tuple[Any, IdLimits, List[Output]]]
    for plan in plans:
        try:
            limits, between = _limits(nodes, plan)
            made = _described(limits)
            if plan.name in kept and not made.keeps_rows:
                raise KeepsLimits(kept[plan.name])
            wanted.append((plan, made, between))
        except KeepsLimits as why:
            found[plan.name] = IdLimits(False, str(why))
    while True:
        paths = IdPaths(nodes, [plan for plan, _, _ in wanted])
        left = []  # type: List[Tuple[Any, IdLimits, List[Output]]]
        for one in wanted:
            plan, made, between = one
            shared = [output for output in between if not paths.is_alone(output)
                      and nodes.by_name[output[0]].op not in COPIED]
            if shared and made.limits:
                found[plan.name] = IdLimits(
                    False, "something else reads the ids of {}, too".format(shared[0][0]))
            else:
                found[plan.name] = made
                left.append(one)
        if len(left) == len(wanted):
            return found
        wanted = left


def _described(limits: List[Limit]) -> IdLimits:
    """Returns what is said of limits that fall away."""
    if not limits:
        return IdLimits(True, "any id that is not negative has a row")
    parts = []  # type: List[str]
    for limit in limits:
        if limit.kind in (BUCKETS, CROSS):
            parts.append("the {} buckets of {} fall away".format(limit.size, limit.node))
        elif limit.kind == MODULO:
            parts.append("the modulo {} of {} falls away".format(limit.size, limit.node))
        else:
            parts.append("the size {} of {} falls away".format(limit.size, limit.node))
    return IdLimits(True, ", ".join(parts), tuple(limits),
                    all(limit.kind in (DEFAULT, ASSERTION) for limit in limits))


def _limits(nodes: Nodes, plan: Any) -> Tuple[List[Limit], List[Output]]:
    """Returns the limits of a variable's ids, and all tensors of ids between them and its ops."""
    starts = [nodes.inputs[lookup.node][1] for lookup in plan.lookups]
    starts += [indices for step in plan.updates for _, indices in step.parts]
    found = {}  # type: Dict[Output, Limit]
    between = []  # type: List[Output]
    others = []  # type: List[str]
    seen = set()  # type: Set[Output]
    waiting = list(starts)
    while waiting:
        output = waiting.pop()
        if output in seen:
            continue
        seen.add(output)
        node = nodes.by_name[output[0]]
        limit = _limit(nodes, node, output, plan.shape[0])
        if limit is not None:
            found[output] = limit
            continue
        inputs = [nodes.inputs[node.name][position]
                  for position in range(len(nodes.inputs[node.name]))
                  if passed(node, position, nodes) == output]
        if inputs:
            between.append(output)
            waiting.extend(inputs)
        else:
            others.append(node.name)
    for name in sorted(others):
        _check_other(nodes, name)
    return [found[output] for output in sorted(found)], between


def _check_other(nodes: Nodes, name: str) -> None:
    """Refuses ids that are computed from such with limits: the limits would stay in them."""
    if nodes.by_name[name].op == "DynamicPartition":
        raise KeepsLimits("it is a part of a partitioned variable")
    for other in sorted(nodes.upstream([name])):
        kind = nodes.by_name[other].op if other in nodes.by_name else ""
        if kind in _HASHES or kind in _MODULOS or kind == "SparseCross":
            raise KeepsLimits("{} ({}) computes its ids from those of {} ({})".format(
                name, nodes.by_name[name].op, other, kind))


def _limit(nodes: Nodes, node: Any, output: Output, rows: int) -> Optional[Limit]:
    """Returns the limit of ids that an op gives; None if it is none that can be lifted."""
    if node.op in _HASHES:
        return Limit(node.name, 0, BUCKETS, node.attr["num_buckets"].i)
    if node.op == "SparseCross" and output[1] == 1 and node.attr["hashed_output"].b:
        return Limit(node.name, 1, CROSS, node.attr["num_buckets"].i)
    if node.op == "FloorMod" and constant_int(nodes, node.name, 1) == rows:
        return Limit(node.name, 0, MODULO, rows)
    if node.op in ("Select", "SelectV2"):
        # where(ids < 0 or ids >= rows, default, ids)
        is_outside = op("LogicalOr", op("Less", "ids", 0), op("GreaterEqual", "ids", rows))
        if Search(nodes, ()).fits((node.name, 0), op(node.op, is_outside, None, "ids")):
            return Limit(node.name, 0, DEFAULT, rows)
    if node.op == "Identity" and nodes.waits[node.name]:
        gone = [wait for wait in nodes.waits[node.name]
                if _asserts_size(nodes, wait, nodes.inputs[node.name][0], rows)]
        if gone:
            return Limit(node.name, 0, ASSERTION, rows, tuple(gone))
    return None


def _asserts_size(nodes: Nodes, wait: str, ids: Output, rows: int) -> bool:
    """Whether an op does nothing but to assert that all of some ids are below a size."""
    seen = {wait}
    waiting = [wait]
    asserts = []  # type: List[Any]
    while waiting:
        name = waiting.pop()
        node = nodes.by_name[name]
        if node.op == "Assert":
            asserts.append(node)
            continue
        if node.op not in ("Merge", "Switch", "Identity", "NoOp", "Const"):
            continue
        for other in [one for one, _ in nodes.inputs[name]] + nodes.waits[name]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    if len(asserts) != 1:
        return False
    search = Search(nodes, ("Switch", "Identity"), ids=[nodes.behind(ids, ("Switch", "Identity"))])
    return search.fits(nodes.inputs[asserts[0].name][0], op("All", op("Less", "ids", rows)))
