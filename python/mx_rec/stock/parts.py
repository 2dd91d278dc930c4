"""Partitioned variables: the tables of their parts, and where parameter servers hold tables.

A table can hold all rows of a partitioned variable: keys are then rows of the whole variable, as
TensorFlow's checkpoints number them, so that it does not matter into how many parts a graph cuts
it. It has the name that the first part would have by itself.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set

import tensorflow as tf

from mx_rec.edits.wiring import COPIES
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.ops.registered import gives_the_same
from mx_rec.stock.nodes import VARIABLES, Nodes, Output, attributes_of
from mx_rec.stock.updates import Step

# Jobs whose first task may be the process that makes a table.
_OWN_JOBS = (None, "", "localhost", "worker", "chief", "master", "evaluator")
_PART = re.compile(r"^(.*)/part_(\d+)$")


class SavedPlace(NamedTuple):
    """Where a variable stands in a checkpoint of variables.

    Attributes:
        name: The name there.
        offset: Where it begins in the whole, for each dimension.
        shape: The sizes of the whole.
        spec: Which part of the whole it is, as TensorFlow's savers write it; "" if it is all.
    """

    name: str
    offset: List[int]
    shape: List[int]
    spec: str = ""

    @property
    def first(self) -> int:
        """Its first row in the whole."""
        return self.offset[0]

    @property
    def whole(self) -> int:
        """Rows of the whole."""
        return self.shape[0]


class Part(NamedTuple):
    """A part of a partitioned variable.

    Attributes:
        names: Names of the ops of all parts, in the order of their rows.
        first: The row of the whole with which it begins.
        whole: Rows of the whole.
    """

    names: List[str]
    first: int
    whole: int


class Placement(NamedTuple):
    """On which tasks the variables of a graph are.

    Attributes:
        job: The job of the parameter servers, "" without any.
        elsewhere: The device of a variable on a task that shares no table, "" without one.
    """

    job: str
    elsewhere: str

    def has(self, device: str) -> bool:
        """Whether a device is one of a parameter server."""
        return bool(self.job) and tf.DeviceSpec.from_string(device).job == self.job


def placement_of(variables: Sequence[Any], uses_servers: bool = True) -> Placement:
    """Finds out where variables are.

    Args:
        variables: Their nodes.
        uses_servers: Whether tables may be on parameter servers.
    """
    jobs = {}  # type: Dict[str, str]
    tasks = []  # type: List[str]
    for device in sorted({node.device for node in variables if node.device}):
        spec = tf.DeviceSpec.from_string(device)
        if spec.job not in _OWN_JOBS:
            jobs.setdefault(spec.job, device)
        elif spec.task:
            tasks.append(device)
    if len(jobs) == 1 and uses_servers:
        return Placement(next(iter(jobs)), "")
    return Placement("", next(iter(sorted(list(jobs.values()) + tasks)), ""))


def parts_of(shapes: Dict[str, List[int]],
             saved: Optional[Dict[str, SavedPlace]]) -> Dict[str, Optional[Part]]:
    """Finds the parts of partitioned variables.

    Args:
        shapes: The sizes of variables by the names of their ops.
        saved: Where they stand in checkpoints; None if that is not known: then names tell.

    Returns:
        The parts by name. None are those of a variable that its parts, along the first dimension,
        do not make up.
    """
    whole = {}  # type: Dict[str, List[str]]
    for name, shape in shapes.items():
        if saved is None:
            match = _PART.match(name)
            if match:
                whole.setdefault(match.group(1), []).append(name)
        elif name in saved and saved[name].shape != shape:
            whole.setdefault(saved[name].name, []).append(name)
    found = {}  # type: Dict[str, Optional[Part]]
    for names in whole.values():
        if saved is None:
            names.sort(key=lambda name: int(_PART.match(name).group(2)))  # type: ignore
            if len(names) == 1 or any(not name.endswith("/part_{}".format(at))
                                      for at, name in enumerate(names)):
                continue
        else:
            names.sort(key=lambda name: saved[name].offset)  # type: ignore
        found.update(_joined(names, shapes, saved))
    return found


def _joined(names: List[str], shapes: Dict[str, List[int]],
            saved: Optional[Dict[str, SavedPlace]]) -> Dict[str, Optional[Part]]:
    """Returns the parts of one variable."""
    rows = sum(shapes[name][0] for name in names)
    first, found = 0, {}  # type: int, Dict[str, Optional[Part]]
    for name in names:
        found[name] = Part(names, first, rows)
        wrong = shapes[name][1:] != shapes[names[0]][1:]
        if saved is not None:
            place = saved[name]
            wrong = wrong or place.offset != [first] + [0] * (len(place.offset) - 1) \
                or place.shape != [rows] + shapes[name][1:]
        if wrong:
            return dict.fromkeys(names)
        first += shapes[name][0]
    return found


def with_parts(nodes: Nodes, plans: Sequence[Any], parts: Dict[str, Optional[Part]],
               together: Dict[str, Optional[Part]], tables: Set[str]) -> List[Any]:
    """Gives the parts of each partitioned variable one table, or none.

    Parts that share a table stay if no one step of Adam is a step of all of them. Such a step
    changes all rows of the table: a run may not make one with some parts alone, nor with other
    numbers for some. A part of a variable also stays if another part of it does: checkpoints have
    the parts that stay by the name of the whole variable, which nothing can read without the
    others.

    Args:
        nodes: The graph.
        plans: stock.planned.StockVariable of all variables.
        parts: The parts of variables.
        together: Those whose rows are to be in one table.
        tables: Names of variables that a checkpoint has as tables, whose layout stays.

    Returns:
        The plans.
    """
    by_name = {plan.name: plan for plan in plans}
    plans = [_with_one_table(plan, together[plan.name], by_name)
             if plan.converts and together.get(plan.name) is not None else plan for plan in plans]
    stepping = {plan.name: plan for plan in plans
                if plan.kind and optimizer_named(plan.kind).changes_all_rows}
    waiting = {name: [_waiting(nodes, step) for step in plan.updates]
               for name, plan in stepping.items()}
    plans = [_with_one_step(nodes, plan, together[plan.name], stepping, waiting)
             if plan.name in stepping and together.get(plan.name) is not None else plan
             for plan in plans]
    converts = {plan.name for plan in plans if plan.converts}
    found = []  # type: List[Any]
    for plan in plans:
        part = parts.get(plan.name)
        if part is not None and plan.converts and tables.isdisjoint(part.names):
            staying = [name for name in part.names if name not in converts]
            if staying:
                plan = plan.staying("its part {} stays TensorFlow's".format(staying[0]))
        found.append(plan)
    return found


def _with_one_table(plan: Any, part: Part, by_name: Dict[str, Any]) -> Any:
    """Returns the plan of a part that is to share the table of all."""
    others = [by_name.get(name) for name in part.names]
    reason = _difference(plan, others)
    return plan.staying(reason) if reason else plan._replace(
        table=others[0].table, part=part, pieces=None,
        reason="{}, with all {} parts in one table".format(plan.reason, len(others)))


def _with_one_step(nodes: Nodes, plan: Any, part: Part, stepping: Dict[str, Any],
                   waiting: Dict[str, List[Set[str]]]) -> Any:
    """Returns the plan of a part, each of whose updates has to be a step of all parts."""
    for name in part.names:
        reason = ""
        if waiting.get(name) != waiting[plan.name] or not all(waiting[name]):
            reason = "its parts are not always updated together"
        elif not all(_have_same_numbers(nodes, *pair)
                     for pair in zip(plan.updates, stepping[name].updates)):
            reason = "its part {} is updated with other numbers".format(name)
        if reason:
            return plan.staying("its optimizer ({}) changes all rows of a variable in each step, "
                                "and {}".format(plan.kind, reason))
    return plan


def _have_same_numbers(nodes: Nodes, one: Step, other: Step) -> bool:
    """Whether the numbers of two updates are computed by the same ops of the same variables."""
    def numbers(step: Step) -> List[Output]:
        # AdamW reads some behind the first op of its update.
        return [nodes.inputs[output[0]][0] if output[0] in step.ops else output
                for _, output in sorted(step.numbers.items())]

    if sorted(one.numbers) != sorted(other.numbers) or one.constants != other.constants:
        return False
    waiting, seen = list(zip(numbers(one), numbers(other))), set()  # type: List[Any], Set[Any]
    while waiting:
        pair = tuple(_behind_copies(nodes, output) for output in waiting.pop())
        if pair[0] == pair[1] or pair in seen:
            continue
        seen.add(pair)
        ops = [nodes.by_name[name] for name, _ in pair]
        inputs = [nodes.inputs[op.name] for op in ops]
        # What reads a variable after a change of it gives another value than what reads it before.
        is_late = any(nodes.waits[op.name] and any(
            nodes.by_name[name].op in VARIABLES for name, _ in sources)
                      for op, sources in zip(ops, inputs))
        if ops[0].op != ops[1].op or pair[0][1] != pair[1][1] or is_late \
                or not gives_the_same(ops[0].op) or attributes_of(ops[0]) != attributes_of(ops[1]) \
                or len(inputs[0]) != len(inputs[1]) or not inputs[0] and ops[0].op != "Const":
            return False
        waiting.extend(zip(*inputs))
    return True


def _behind_copies(nodes: Nodes, output: Output) -> Output:
    """Returns the tensor of which another is a copy that waits for nothing."""
    while nodes.by_name[output[0]].op in COPIES and not nodes.waits[output[0]]:
        output = nodes.inputs[output[0]][0]
    return output


def _waiting(nodes: Nodes, step: Step) -> Set[str]:
    """Returns the names of the ops that wait for an update by several ops."""
    own = set(step.ops + step.gates)
    return {_group_of(nodes, name) for name in set().union(
        *[nodes.waiting.get(one, ()) for one in own]) - own}


def _group_of(nodes: Nodes, name: str) -> str:
    """Returns the op that tf.group has made, for its ops of one device each, others as they are."""
    whole, _, own = name.rpartition("/")
    is_one = own.startswith("NoOp") and nodes.waiting.get(name) == {whole} \
        and nodes.by_name[name].op == nodes.by_name[whole].op == "NoOp"
    return whole if is_one else name


def _difference(plan: Any, others: Sequence[Any]) -> str:
    """Returns why a part cannot share a table with the others, "" if it can."""
    def kind(one: Any) -> Any:
        return one.kind, [(slot.name, slot.initial) for slot in one.slots], one.initializer

    for other in others:
        if other is None or not other.converts:
            return "another part of it stays TensorFlow's" if other is None \
                else "its part {} stays TensorFlow's".format(other.name)
        if kind(other) != kind(plan):
            return "its part {} has another initial value or optimizer".format(other.name)
    return ""


def are_together(part: Optional[Part], known: Set[str], names: Dict[str, str],
                 on_servers: bool) -> bool:
    """Returns whether the rows of all parts are in one table.

    Args:
        part: One of them, None for a variable that is no part.
        known: Names of the tables of a checkpoint, whose layout stays.
        names: The name of the table of each variable that has one by itself.
        on_servers: Whether tables are on parameter servers.
    """
    if part is None:
        return False
    first, others = part.names[0], part.names[1:]
    if any(names[name] in known for name in others):
        return False
    return on_servers or names[first] in known
