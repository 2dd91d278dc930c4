"""What becomes of a variable of a model: the plan of one, and the text of several."""

import hashlib
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from mx_rec.core.rows import FLOAT32
from mx_rec.stock import updates as forms
from mx_rec.stock.dense_updates import Penalty
from mx_rec.stock.fused import Piece
from mx_rec.stock.id_limits import ID_END, IdLimits
from mx_rec.stock.parts import Part

_LONGEST_NAME = 80
_UNLIMITED = "unlimited"


class Slot(NamedTuple):
    """A variable of an optimizer that lives on as a slot of the table's rows.

    Attributes:
        variable: Name of its op.
        name: Name of the slot.
        initial: What each float starts at.
        start: The op that sets all of them to those of a checkpoint where the rows start so, too.
    """

    variable: str
    name: str
    initial: float
    start: str = ""


class Lookup(NamedTuple):
    """A gather of rows.

    Attributes:
        node: Name of the op.
        trains: Whether updates of the variable depend on it, so that it makes rows.
        is_padded: Whether id 0 gives zeros.
    """

    node: str
    trains: bool
    is_padded: bool = False


class StockVariable(NamedTuple):
    """A variable of a model, and what becomes of it.

    Attributes:
        name: Name of its op.
        shape: Its sizes; the first is the number of rows.
        converts: Whether it becomes a table.
        reason: Why, or why not.
        table: Name of the table.
        initializer: The engine's description of new rows.
        lookups: Gathers.
        reads: Ops that read the whole variable, whose result is computed from the table.
        shapes: Ops that tell the shape.
        states: Ops that tell whether the variable has a value.
        updates: Sparse updates (stock.updates.Step).
        kind: Of the updates; "" without any.
        slots: The optimizer's variables.
        assigns: Its initializer and those of the slots.
        pieces: The lookups that the gradients of the one update come straight from, None if
            something stands between them.
        ids: What becomes of the limits of its ids; no text where nothing was asked for.
        part: Of a partitioned variable whose parts share a table: which part it is.
        on_servers: Whether the table is on parameter servers.
        gradients: The gradients that the one update sums, by lookup, as pieces without bags; None
            if it sums others.
        penalties: Sums of the squares of the variable, which become those of a batch's rows.
        changes: Ops that set rows, as scripts do with that of padding before each lookup.
        is_in_branches: Whether branches look rows up.
        pivots: Copies of the variable in branches, for which ops wait that run there alone.
        zeros: Ops that tell the shape of the gradient of a branch that is not taken.
        sets_rows: Whether its initializer sets all rows, to a value that is not drawn row by row.
        was_run: Whether it has a value already: its initializer and those of its slots are
            assignments like others then, each of all rows.
        slot_changes: Those that set its slots then.
        row_dtype: As what the table keeps its rows.
        slot_dtype: As what it keeps its slots.
    """

    name: str
    shape: List[int]
    converts: bool
    reason: str
    table: str
    initializer: Dict[str, Any]
    lookups: List[Lookup]
    reads: List[str]
    shapes: List[str]
    states: List[str]
    updates: List[forms.Step]
    kind: str
    slots: List[Slot]
    assigns: List[str]
    pieces: Optional[List[Piece]] = None
    ids: IdLimits = IdLimits(False, "")
    part: Optional[Part] = None
    on_servers: bool = False
    gradients: Optional[List[Piece]] = None
    penalties: Sequence[Penalty] = ()
    changes: Sequence[str] = ()
    is_in_branches: bool = False
    pivots: Sequence[str] = ()
    zeros: Sequence[str] = ()
    sets_rows: bool = False
    was_run: bool = False
    slot_changes: Sequence[str] = ()
    row_dtype: str = FLOAT32
    slot_dtype: str = FLOAT32

    @property
    def first(self) -> int:
        """The key of its first row."""
        return 0 if self.part is None else self.part.first

    @property
    def rows(self) -> int:
        """Rows that the table is for."""
        return self.shape[0] if self.part is None else self.part.whole

    def staying(self, reason: str) -> "StockVariable":
        """Returns the plan of the same variable if it stays TensorFlow's."""
        return staying(self.name, self.shape, reason)

    @property
    def id_end(self) -> int:
        """What ids are below."""
        return ID_END if self.ids.is_lifted else self.shape[0]

    @property
    def trains(self) -> bool:
        """Whether a lookup makes rows."""
        return any(lookup.trains for lookup in self.lookups)

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return product(self.shape[1:])


def staying(name: str, shape: List[int], reason: str) -> StockVariable:
    """Returns the plan of a variable that stays TensorFlow's, with the reason."""
    return StockVariable(name, list(shape), False, reason, "", {}, [], [], [], [], [], "", [], [])


def product(sizes: Sequence[int]) -> int:
    """Returns how many elements a shape has."""
    found = 1
    for size in sizes:
        found *= size
    return found


def table_name(variable: str, is_unlimited_table: bool = False) -> str:
    """Returns the name of the table of a variable: letters, digits and underscores.

    Args:
        variable: Name of the variable's op.
        is_unlimited_table: Whether its keys are ids without limits. Rows by such ids are no rows
            by ids with limits, so that the tables have different names in checkpoints.

    Returns:
        At most 100 characters; different variables have different ones.
    """
    cleaned = re.sub(r"[^0-9A-Za-z]+", "_", variable).strip("_")
    digest = hashlib.sha256(variable.encode("utf-8")).hexdigest()[:8]
    if is_unlimited_table:
        return "{}_{}_{}".format(cleaned[-_LONGEST_NAME:].strip("_"), _UNLIMITED, digest)
    if cleaned == variable and len(cleaned) <= _LONGEST_NAME:
        return cleaned
    return "{}_{}".format(cleaned[-_LONGEST_NAME:].strip("_"), digest)


def plan_text(plans: Sequence[StockVariable]) -> str:
    """Returns a plan for a person to read, several lines; nothing for no variables."""
    lines = []  # type: List[str]
    for chosen, title in ((True, "{} become{} a table:"),
                          (False, "{} stay{} TensorFlow's:")):
        found = [plan for plan in plans if plan.converts == chosen]
        if not found:
            continue
        lines.append(title.format(
            "{} variable{}".format(len(found), "" if len(found) == 1 else "s"),
            "s" if len(found) == 1 else ""))
        lines.extend("  {} [{}]: {}".format(plan.name, ", ".join(map(str, plan.shape)),
                                             plan.reason) for plan in found)
    return "\n".join(lines) + "\n" if lines else ""
