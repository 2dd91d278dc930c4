"""The plugin's optimizers, as its one table of them says, and the ops that update rows by them."""

import json
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec import plugin
from mx_rec.ops import library
from mx_rec.ops.shapes import lists_of

UPDATE = "MxRecUpdate"
PUSH = "MxRecPush"

_optimizers = OrderedDict()  # type: OrderedDict[str, Optimizer]


class Number(NamedTuple):
    """A number (hyperparameter) of an optimizer.

    Attributes:
        name: Its name.
        least: The least that it may be.
        most: The most.
        without: The one of the two that it may not be, or None.
    """

    name: str
    least: float
    most: float
    without: Optional[float]

    def may_be(self, value: float) -> bool:
        """Returns whether it may have a value."""
        return self.least <= value <= self.most and value != self.without


class Slot(NamedTuple):
    """A slot of an optimizer.

    Attributes:
        name: Its name in checkpoints.
        initial: What it starts at, or does by default.
        number: The number of the optimizer that says what it starts at, or None.
        per_row: Whether it is one float for a row, and not one for each column.
    """

    name: str
    initial: float
    number: Optional[Number]
    per_row: bool

    def may_start_at(self, value: float) -> bool:
        """Returns whether it may start at a value."""
        return value == self.initial if self.number is None else self.number.may_be(value)


class Optimizer(NamedTuple):
    """An optimizer of the plugin.

    Attributes:
        place: Its number in graphs.
        name: Its name.
        numbers: Its numbers, in order.
        slots: Its slots, in order.
        ignores_zeros: Whether a gradient of zeros changes no row and no slot.
        changes_all_rows: Whether a step changes rows without a gradient, or their slots.
    """

    place: int
    name: str
    numbers: Tuple[Number, ...]
    slots: Tuple[Slot, ...]
    ignores_zeros: bool
    changes_all_rows: bool

    @property
    def slot_names(self) -> Tuple[str, ...]:
        """Names of its slots in checkpoints."""
        return tuple(slot.name for slot in self.slots)

    def floats(self, dim: int) -> int:
        """Returns how many floats of a row of `dim` columns its slots are."""
        return sum(1 if slot.per_row else dim for slot in self.slots)

    def step(self, numbers: Dict[str, tf.Tensor]) -> "OptimizerStep":
        """Returns a step of it.

        Args:
            numbers: Its numbers by name, float32 scalars.

        Raises:
            ValueError: If these are not all of them, and nothing else.
        """
        names = [number.name for number in self.numbers]
        if sorted(names) != sorted(numbers):
            raise ValueError("the optimizer {} takes the numbers {}, and was given {}".format(
                self.name, ", ".join(names), ", ".join(sorted(numbers))))
        return OptimizerStep(self, [numbers[name] for name in names])


# Ends, weights, divisors, norms and rows.
_LISTS_OF_BAGS = 5


class OptimizerStep(NamedTuple):
    """One step of an optimizer.

    Attributes:
        optimizer: The optimizer.
        hyper: Its numbers in order, float32 scalars.
    """

    optimizer: Optimizer
    hyper: List[tf.Tensor]


class Gradients(NamedTuple):
    """What an update takes, for each of its members.

    Attributes:
        handles: The tables.
        offsets: int64 (u), the rows.
        grads: float32, the gradients of the rows (u, dim), or those of what is read by `inverses`.
        inverses: int32, for each id its place among the offsets; empty if gradients are of rows.
        bags: int64 ends, float32 weights and float32 divisors of bags, each for all members, and
            where some have a greatest norm of their rows, these norms and the rows; empty if no
            member is pooled.
        columns: int32 (members), the first column of each gradient that is a member's own, -1 if
            all are; empty, or one tensor.
    """

    handles: Sequence[tf.Tensor]
    offsets: Sequence[tf.Tensor]
    grads: Sequence[tf.Tensor]
    inverses: Sequence[tf.Tensor] = ()
    bags: Sequence[Sequence[tf.Tensor]] = ()
    columns: Sequence[tf.Tensor] = ()


def optimizer_named(name: str) -> Optimizer:
    """Returns an optimizer of the plugin.

    Args:
        name: Its name.

    Raises:
        ImportError: If the plugin cannot be loaded.
        KeyError: If there is none of this name.
    """
    return _all()[name]


def optimizer_of(op: Any) -> Optional[Optimizer]:
    """Returns the optimizer of an op, None if it is no step of one.

    Args:
        op: An op of any kind.
    """
    if op.type not in (UPDATE, PUSH):
        return None
    return list(_all().values())[op.get_attr("optimizer")]


def update(step: OptimizerStep, gradients: Gradients, name: Optional[str] = None) -> tf.Operation:
    """Adds the op that updates rows of tables.

    Args:
        step: The step of an optimizer.
        gradients: Of what.
        name: Name of the op.

    Returns:
        The op.
    """
    bags = [list(part) for part in gradients.bags]
    bags += [[] for _ in range(_LISTS_OF_BAGS - len(bags))]
    return library().mx_rec_update(
        list(gradients.handles), list(gradients.offsets), list(gradients.inverses),
        list(gradients.grads), *(bags + [list(gradients.columns), step.hyper]),
        optimizer=step.optimizer.place, name=name).op


def gradients_of(op: tf.Operation) -> Gradients:
    """Returns what an update takes.

    Args:
        op: An op of the type UPDATE.
    """
    handles, offsets, inverses, grads, *bags, columns, _ = lists_of(op).values()
    return Gradients(handles, offsets, grads, inverses, [one for one in bags if one], columns)


def _all() -> "OrderedDict[str, Optimizer]":
    if not _optimizers:
        status, result = plugin.call("mx_rec_optimizers")
        if status != 0:
            raise ImportError(result.decode("utf-8", "replace"))
        for place, one in enumerate(json.loads(result.decode("utf-8"))):
            numbers = OrderedDict(
                (number["name"], Number(number["name"], *[
                    number["range"][key] for key in ("least", "most", "without")]))
                for number in one["numbers"])
            slots = tuple(Slot(slot["name"], slot["initial"], numbers.get(slot["starts_at"]),
                               slot["per_row"])
                          for slot in one["slots"])
            _optimizers[one["name"]] = Optimizer(place, one["name"], tuple(numbers.values()),
                                                 slots, one["ignores_zeros"],
                                                 one["other_rows"] != "stay")
    return _optimizers
