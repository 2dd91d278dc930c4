"""What a plan says of lookups that are fused with what reads their rows."""

from typing import Any, Dict, List, NamedTuple, Optional

# So many tables of a concatenation are named.
_SHOWN = 5


class Sum(NamedTuple):
    """A sum over the bags of a lookup.

    Attributes:
        node: Name of its op, Sum or Mean.
        combiner: "sum" or "mean".
        keep_dims: Whether the summed dimension stays, with size 1.
    """

    node: str
    combiner: str
    keep_dims: bool


class Gradient(NamedTuple):
    """A gradient of each id that repeats one of each bag.

    Attributes:
        tensor: Its name.
        readers: Names of the ops that take it for the rows.
        repeated: How it is made: {"tensor": name of what is repeated}, {"scaled": {"op", "by",
            "of"}} or {"added": [..]}.
        waits: Names of the ops that what makes it waits for.
    """

    tensor: str
    readers: List[str]
    repeated: Dict[str, Any]
    waits: List[str]


class Weights(NamedTuple):
    """What rows are multiplied with before they are summed.

    Attributes:
        tensor: Name of the tensor: the shape of the ids, and one dimension of size 1.
        axis: That dimension, -1 or -2.
    """

    tensor: str
    axis: int


class Sums(NamedTuple):
    """A lookup whose rows are summed over bags.

    Attributes:
        lookup: Name of the op that reads the rows.
        output: Which of its outputs they are.
        table: Name of the table.
        fuses: Whether the rows are added up where they are read.
        weights: What they are multiplied with before, None without weights.
        sums: The sums.
        shapes: Names of the ops that read the shape of the rows.
        gradients: The gradients that go to the rows without being repeated.
        left_out: Tensors that the fused graph does not read.
        reason: Why it is fused or not, one sentence.
    """

    lookup: str
    output: int
    table: str
    fuses: bool
    weights: Optional[Weights]
    sums: List[Sum]
    shapes: List[str]
    gradients: List[Gradient]
    left_out: List[str]
    reason: str


class Part(NamedTuple):
    """A lookup whose rows are part of a concatenation.

    Attributes:
        lookup: Name of the op that reads the rows.
        output: Which of its outputs they are.
        table: Name of the table.
    """

    lookup: str
    output: int
    table: str


class Columns(NamedTuple):
    """A gradient of a part that is columns of the gradient of the whole.

    Attributes:
        tensor: Its name.
        whole: Name of the gradient of the whole.
        first: The first of its columns.
        dim: How many there are.
        readers: Names of the ops that take it for the rows.
        waits: Names of the ops that what makes it waits for.
    """

    tensor: str
    whole: str
    first: int
    dim: int
    readers: List[str]
    waits: List[str]


class Concat(NamedTuple):
    """A concatenation of lookups.

    Attributes:
        node: Name of its op.
        fuses: Whether rows are copied straight to their places.
        parts: The lookups, in order.
        shapes: Names of the ops that read shapes of the rows.
        gradients: The gradients that are read in the gradient of the whole.
        left_out: Tensors that the fused graph does not read.
        reason: Why it is fused or not, one sentence.
    """

    node: str
    fuses: bool
    parts: List[Part]
    shapes: List[str]
    gradients: List[Columns]
    left_out: List[str]
    reason: str


class Member(NamedTuple):
    """A gradient of ids that an update sums itself.

    Attributes:
        sum: Name of the tensor of sums; the update takes the inputs of its op.
        whole: Name of the gradient that it is columns of, if that is read instead.
        first: The first of these columns.
    """

    sum: str
    whole: Optional[str]
    first: int


class Update(NamedTuple):
    """An update that changes.

    Attributes:
        node: Name of its op.
        members: What it takes, in order; nothing if it takes the gradient that it has.
        left_out: Tensors that it does not read any more.
        waits: Names of the ops that these wait for.
        ends: Where others share its op, names of the ops that wait for it alone.
    """

    node: str
    members: List[Member]
    left_out: List[str]
    waits: List[str]
    ends: List[str]


class Updates(NamedTuple):
    """Updates that become one op.

    Attributes:
        updates: The updates, in the order of the graph.
        reason: Why, one sentence.
    """

    updates: List[Update]
    reason: str


def read_updates(described: List[Dict[str, Any]]) -> List[Updates]:
    """Reads updates that change.

    Args:
        described: The entry `updates` of a plan.
    """
    return [Updates([Update(**dict(one, members=[Member(**part) for part in one["members"]]))
                     for one in group["updates"]], group["reason"]) for group in described]


def text_of_updates(updates: List[Updates]) -> List[str]:
    """Returns the lines of a plan that tell of updates, none without any."""
    lines = ["", "updates:"] if updates else []
    for group in updates:
        shown = ", ".join(one.node for one in group.updates[:_SHOWN])
        rest = len(group.updates) - _SHOWN
        lines.append("  {}  {}{}: {}".format("joins" if len(group.updates) > 1 else "fuses", shown,
                                            " and {} more".format(rest) if rest > 0 else "",
                                            group.reason))
    return lines


def read_concats(described: List[Dict[str, Any]]) -> List[Concat]:
    """Reads concatenations of lookups.

    Args:
        described: The entry `concats` of a plan.
    """
    return [Concat(**dict(one, parts=[Part(**part) for part in one["parts"]],
                          gradients=[Columns(**part) for part in one["gradients"]]))
            for one in described]


def text_of_concats(concats: List[Concat]) -> List[str]:
    """Returns the lines of a plan that tell of concatenations, none without any."""
    if not concats:
        return []
    lines = ["", "concatenations of lookups:"]
    for one in concats:
        tables = list(dict.fromkeys(part.table for part in one.parts))
        shown = ", ".join(map(repr, tables[:_SHOWN]))
        rest = len(tables) - _SHOWN
        lines.append("  {}  {} of {} lookups of {}{}: {}".format(
            "fuses" if one.fuses else "stays", one.node, len(one.parts), shown,
            " and {} more".format(rest) if rest > 0 else "", one.reason))
    return lines


def read_sums(described: List[Dict[str, Any]]) -> List[Sums]:
    """Reads sums over bags.

    Args:
        described: The entry `sums` of a plan.
    """
    return [Sums(**dict(one, sums=[Sum(**part) for part in one["sums"]],
                        weights=one["weights"] and Weights(**one["weights"]),
                        gradients=[Gradient(**part) for part in one["gradients"]]))
            for one in described]


def text_of_sums(sums: List[Sums]) -> List[str]:
    """Returns the lines of a plan that tell of sums over bags, none without any."""
    if not sums:
        return []
    lines = ["", "sums over bags:"]
    for one in sums:
        lines.append("  {}  {} over bags of {}:{} of the table {!r}: {}".format(
            "fuses" if one.fuses else "stays",
            " and ".join("the {}{} {}".format("weighted " if one.weights else "", part.combiner,
                                              part.node) for part in one.sums),
            one.lookup, one.output, one.table, one.reason))
    return lines
