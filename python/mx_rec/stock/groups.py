"""Lookups and updates that need no tensor of rows: in plain form, which the graph pass joins."""

from collections import OrderedDict
from typing import (Any, Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Sequence, Set,
                    Tuple)

import tensorflow as tf

from mx_rec.core.bags import COMBINERS, norms_of
from mx_rec.edits.wiring import (depends, in_its_place, in_place_of, replace_change, replace_output,
                                 sources, waits_between)
from mx_rec.ops import library
from mx_rec.ops.lookups import read_rows
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.ops.registered import only_computes
from mx_rec.optimizers.base import apply_rows
from mx_rec.state.table_variable import row_shape
from mx_rec.stock import updates as forms
from mx_rec.stock.fused import Piece
from mx_rec.stock.rows import Rows, optimizer_step


class _Lookup:
    """A lookup that the gradients of its variable's update come straight from.

    Attributes:
        rows: Its variable.
        piece: What was recognized.
        op: The op whose result is replaced: the gather, or the vectors of the bags.
        grad: The gradient of that result.
        inputs: The ids; or indices, ids and shape of sparse ones.
        waits: Of a pooled lookup, what the ops in its place wait for.
        found: What the update takes of it, once it is replaced.
        pooled: The vectors of the bags, once it is replaced.
    """

    def __init__(self, rows: Rows, piece: Piece) -> None:
        self.rows = rows
        self.piece = piece
        self.grad = rows.tensor(piece.grad)
        self.found = []  # type: List[Any]
        self.waits = []  # type: List[tf.Operation]
        self.pooled = None  # type: Any
        if piece.bags is None:
            self.op = rows.op(piece.gather)
            self.inputs = [self.op.inputs[1]]
            return
        self.op = rows.op(piece.bags.result)
        self.inputs = [rows.tensor(one) for one in piece.bags.sparse]
        self.waits = waits_between([self.op.outputs[0]], self.inputs)

    def can_fuse(self) -> bool:
        """Whether shapes are what the chain was recognized for."""
        if self.piece.bags is None:
            ids = self.inputs[0]
            return self.grad.shape.rank is not None and ids.shape.rank is not None \
                and self.grad.shape.rank == ids.shape.rank + 1
        fill = self.rows.op(self.piece.bags.fill)
        return fill.inputs[2].shape.as_list() == [2] and self.grad.shape.rank == 2

    def form(self) -> Tuple[Any, ...]:
        """The bags of pooled lookups of the same form can be made by one op."""
        # A run of one lookup makes the bags of those together with it: it must need no other
        # placeholder for that, nor take a batch of another dataset.
        return self.inputs[1].dtype, sources([tensor.op for tensor in self.inputs] + self.waits)

    def fills(self) -> bool:
        """Whether a bag without ids touches the first row."""
        # TensorFlow gives rows without ids the first row, with a gradient of zeros: Adagrad then
        # changes nothing, but an optimizer with momentum, or one that shrinks, does.
        return not optimizer_named(self.rows.plan.kind).ignores_zeros


# What they give is not in their inputs alone.
_NOT_COMPUTED = ("PlaceholderWithDefault", "Switch", "Merge", "Enter", "Exit", "NextIteration")


class _Update(NamedTuple):
    """An update by the gradients of lookups.

    Attributes:
        rows: Its variable.
        step: The update.
        numbers: The optimizer's numbers by name.
        lookups: The lookups, in the order in which their gradients are added.
        waits: What the op in its place waits for.
    """

    rows: Rows
    step: forms.Step
    numbers: Dict[str, tf.Tensor]
    lookups: List[_Lookup]
    waits: List[tf.Operation]

    def ops(self) -> List[tf.Operation]:
        """Returns the ops that are replaced."""
        return [self.rows.op(name) for name in self.step.ops]


def gates_of(ops: Sequence[tf.Operation]) -> List[tf.Operation]:
    """Returns the ops that do nothing but wait for the ops of an update: of those of Adam, one.

    It also waits for what `tf.control_dependencies` asks of all of them.

    Args:
        ops: The ops of the update.
    """
    own = set(ops)
    return [other for other in _waiting(ops) if len(ops) > 1 and other.type == "NoOp"
            and all(one in own or only_computes(one.type) for one in other.control_inputs)]


def waiting_of(ops: Sequence[tf.Operation]) -> FrozenSet[str]:
    """Returns the names of the ops that wait for an update.

    Args:
        ops: The ops of the update.
    """
    own = gates_of(ops)
    if len(ops) > 1:
        # Of the ops of Adam, some read a variable for nothing.
        own += [other for other in _waiting(ops)
                if other.type == "ReadVariableOp" and not other.outputs[0].consumers()]
    waiting = _waiting(list(ops) + own)
    return frozenset(op.name for op in waiting if op not in ops and op not in own)


def _waiting(ops: Sequence[tf.Operation]) -> List[tf.Operation]:
    """Returns the ops that wait for any of some."""
    return list(OrderedDict.fromkeys(
        other for op in ops for other in op._control_outputs))  # pylint: disable=protected-access


def fuse(graph: tf.Graph, variables: Sequence[Rows]) -> Dict[str, Set[str]]:
    """Replaces lookups, and the updates that take their gradients straight.

    Args:
        graph: The graph.
        variables: The variables that become tables.

    Returns:
        By the name of each variable whose update is replaced, the names of the gathers that are
        replaced as well.
    """
    updates = []  # type: List[_Update]
    for rows in variables:
        if not rows.plan.pieces or len(rows.plan.shape) != 2:
            continue
        lookups = [_Lookup(rows, piece) for piece in rows.plan.pieces]
        if all(lookup.can_fuse() for lookup in lookups):
            step = rows.plan.updates[0]
            updates.append(_Update(rows, step, rows.numbers(step), lookups,
                                   _waits(rows, step, lookups)))
    every = [one for change in updates for one in change.lookups]
    for one in every:
        if one.piece.bags is None:
            one.found = one.rows.look_up(one.op, True)
    for group in grouped([one for one in every if one.piece.bags], _Lookup.form,
                         lambda one: one.inputs, lambda one: [one.op]):
        _pool(graph, group)
    for change in updates:
        _apply(change)
    for change in updates:
        for one in change.lookups:
            if one.piece.bags is not None:
                # A run that fetches these rows finds them by itself.
                change.rows.look_up_apart(change.rows.op(one.piece.gather),
                                          change.rows.op(one.piece.bags.pool), one.pooled)
    return {change.rows.plan.name: {one.piece.gather for one in change.lookups}
            for change in updates}


def _waits(rows: Rows, step: forms.Step, lookups: Sequence[_Lookup]) -> List[tf.Operation]:
    """Returns what an update waits for, and the ops between it and the gradients."""
    first = [lookup.grad for lookup in lookups]
    for lookup in lookups:
        first.append(rows.op(lookup.piece.gather).inputs[1])
        bags = lookup.piece.bags
        if bags is not None:
            first.append(rows.tensor((bags.fill, 0)))
            first.append(rows.tensor((bags.result, 0)))
            if bags.of_rows is not None:
                # The ops between wait for each other alone.
                first.append(rows.tensor(bags.of_rows))
    waits = waits_between([rows.tensor(one) for one in step.last], first)
    for name in step.ops:
        waits.extend(wait for wait in rows.op(name).control_inputs if wait.name not in step.ops)
    return waits


def grouped(members: Sequence[Any], form: Callable[[Any], Any],
            inputs: Callable[[Any], List[tf.Tensor]],
            ops: Callable[[Any], List[tf.Operation]]) -> Iterable[List[Any]]:
    """Yields the members that one op can stand for together.

    Of members of which one depends on another each is alone, and so is one inside of a branch.

    Args:
        members: Lookups or updates.
        form: Only members of the same form can be together.
        inputs: What a member takes.
        ops: The ops that a member is now.
    """
    together = OrderedDict()  # type: Dict[Any, List[Any]]
    for at, member in enumerate(members):
        # pylint: disable=protected-access
        inside = any(op._get_control_flow_context() is not None for op in ops(member))
        together.setdefault(at if inside else form(member), []).append(member)
    for group in together.values():
        starts = [tensor.op for member in group for tensor in inputs(member)]
        starts += [wait for member in group for wait in member.waits]
        if len(group) > 1 and depends(starts, {op for member in group for op in ops(member)}):
            for member in group:
                yield [member]
        else:
            yield group


def _pool(graph: tf.Graph, group: Sequence[_Lookup]) -> None:
    """Replaces pooled lookups."""
    ops = [one.op for one in group]
    # Some may have been replaced since a lookup noted them.
    waits = [in_its_place(wait) for one in group for wait in one.waits]
    scope = None if len(group) == 1 else graph.unique_name("tables/lookups")
    with in_place_of(ops[0], waits, [op.name for op in ops], scope):
        none = tf.zeros([0])
        bags = _bags(group)
        for one, of_one, counted in zip(group, bags, _counted(group, bags)):
            table = one.rows.table
            table.multi_lookup_times[True] += 1
            offsets, inverse = one.rows.make_rows(one.piece.gather, of_one.ids, counted, ops)
            norms = norms_of(one.piece.bags.max_norm)
            one.pooled, = read_rows([table.handle], [row_shape(table.variable)], [offsets],
                                    [inverse], ([of_one.ends], [none], [of_one.divisors]),
                                    norms=norms, name="pooled")
            one.found = [offsets, inverse, of_one.ends, none, of_one.divisors, norms,
                         one.pooled.op.outputs[1:]]
    for one in group:
        replace_output(one.op, one.pooled)


def _apply(change: _Update) -> None:
    """Replaces an update by one that takes sums; before the first run the graph pass joins them."""
    rows, ops = change.rows, change.ops()
    # Some may have been replaced since they were noted.
    waits = [in_its_place(wait) for wait in change.waits]
    with in_place_of(ops[0], waits, [op.name for op in ops]):
        taken = []  # type: List[Tuple[tf.Tensor, ...]]
        for one in change.lookups:
            offsets, inverse, *bags = one.found
            grad = library().mx_rec_reduce_pooled(one.grad, inverse, *bags, offsets) \
                if bags else library().mx_rec_reduce(one.grad, inverse, offsets)
            taken.append((rows.table.handle, offsets, grad))
        done = apply_rows(optimizer_step(change.step, change.numbers, rows.initial()), taken)
    gates = gates_of(ops)
    for op in ops:
        replace_change(op, done, ops)
    for gate in gates:
        replace_change(gate, done)


class _Bags(NamedTuple):
    """The bags of a lookup: int64 ids, where each bag ends among them, and divisors of bags."""

    ids: tf.Tensor
    ends: tf.Tensor
    divisors: tf.Tensor


def _bags(group: Sequence[_Lookup], may_fill: bool = True) -> List[_Bags]:
    """Adds the ops that make bags of sparse ids: one for the lookups with the same attributes.

    Args:
        group: The lookups.
        may_fill: Whether bags without ids touch the first row where TensorFlow's do.
    """
    together = OrderedDict()  # type: Dict[Tuple[bool, bool], List[int]]
    for place, lookup in enumerate(group):
        key = (lookup.piece.bags.leaves_out, may_fill and lookup.fills())
        together.setdefault(key, []).append(place)
    found = [None] * len(group)  # type: List[Any]
    for (leaves_out, fills), places in together.items():
        some = [group[place] for place in places]
        combiners = [COMBINERS[one.piece.bags.combiner] if one.piece.bags.combiner != "sum" else 0
                     for one in some]
        bags = library().mx_rec_sparse_bags_many(
            [one.inputs[0] for one in some], [one.inputs[1] for one in some],
            [one.inputs[2] for one in some],
            tf.constant([one.rows.plan.id_end for one in some], tf.int64),
            tf.constant(combiners, tf.int32), leave_out=int(leaves_out), fill=int(fills),
            name="bags")
        for place, ids, ends, divisors in zip(places, bags.bag_ids, bags.ends, bags.divisors):
            found[place] = _Bags(ids, ends, divisors)
    return found


def _counted(group: Sequence[_Lookup], bags: Sequence[_Bags]) -> List[tf.Tensor]:
    """Returns what is counted of the ids of bags: without those that fill bags without ids."""
    places = [place for place, one in enumerate(group) if one.rows.rules.refuses and one.fills()]
    counted = [one.ids for one in bags]
    for place, one in zip(places, _bags([group[place] for place in places], False)):
        counted[place] = one.ids
    return counted


class SameNumbers:
    """Tells which tensors of a graph are the same number.

    Optimizers make some of their numbers once for each variable, or for each device: of the same
    variables and constants by the same ops.
    """

    def __init__(self) -> None:
        self._known = {}  # type: Dict[Any, int]
        self._keys = {}  # type: Dict[str, int]

    def key(self, tensor: tf.Tensor) -> int:
        """Returns the same for tensors that are the same number."""
        # A rate may be computed from a loss: the way there is long, and has many crossings.
        waiting = [tensor]
        while waiting:
            one = waiting[-1]
            needs = [source for source in self._sources(one) if source.name not in self._keys]
            if needs:
                waiting.extend(needs)
            else:
                self._keys[one.name] = self._key(waiting.pop())
        return self._keys[tensor.name]

    def _sources(self, tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        """Returns what a number is computed from; nothing if that does not tell what it is."""
        op = tensor.op
        if _is_copy(op):
            return op.inputs[:1]
        is_told = op.type not in _NOT_COMPUTED and not op.op_def.is_stateful \
            and only_computes(op.type)
        return op.inputs if is_told else ()

    def _key(self, tensor: tf.Tensor) -> int:
        op, sources = tensor.op, [self._keys[one.name] for one in self._sources(tensor)]
        if _is_copy(op):
            return sources[0]
        what = tensor.name  # type: Any
        if sources or op.type == "Const":
            attributes = sorted((name, value.SerializeToString()) for name, value in
                                op.node_def.attr.items() if not name.startswith("_"))
            what = (op.type, tensor.value_index, tuple(attributes), tuple(sources))
        return self._known.setdefault(what, len(self._known))


def _is_copy(op: tf.Operation) -> bool:
    return op.type in ("Identity", "ReadVariableOp") and not op.control_inputs


__all__ = ["SameNumbers", "fuse", "grouped", "waiting_of"]
