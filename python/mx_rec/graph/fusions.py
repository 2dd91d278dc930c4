"""What a plan says of lookups that are fused with what reads their rows."""

from typing import Any, Dict, List, NamedTuple


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


class Sums(NamedTuple):
    """A lookup whose rows are summed over bags.

    Attributes:
        lookup: Name of the op that reads the rows.
        output: Which of its outputs they are.
        table: Name of the table.
        fuses: Whether the rows are added up where they are read.
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
    sums: List[Sum]
    shapes: List[str]
    gradients: List[Gradient]
    left_out: List[str]
    reason: str


def read_sums(described: List[Dict[str, Any]]) -> List[Sums]:
    """Reads sums over bags.

    Args:
        described: The entry `sums` of a plan.
    """
    return [Sums(**dict(one, sums=[Sum(**part) for part in one["sums"]],
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
            " and ".join("the {} {}".format(part.combiner, part.node) for part in one.sums),
            one.lookup, one.output, one.table, one.reason))
    return lines
