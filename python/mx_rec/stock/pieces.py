"""Lookups and updates that need no tensor of rows: in plain form, which the graph pass joins."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.core.bags import COMBINERS, norms_of
from mx_rec.edits.wiring import (in_its_place, in_place_of, on_device, replace_output,
                                 waits_between)
from mx_rec.ops import library
from mx_rec.ops.lookups import read_rows
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.optimizers.base import apply_rows
from mx_rec.state.table_variable import row_shape
from mx_rec.stock import updates as forms
from mx_rec.stock.fused import Bags, Piece
from mx_rec.stock.rows import Rows, optimizer_step, sums_of


class _Lookup:
    """A lookup that the gradients of its variable's update come straight from.

    Attributes:
        rows: Its variable.
        piece: What was recognized.
        op: The op whose result is replaced: the gather, or the vectors of the bags.
        grad: The gradient of that result.
        inputs: The ids; or indices, ids and shape of sparse ones.
        weights: Of a pooled lookup, (n, 1) for n ids, None without.
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
        self.weights = None  # type: Optional[tf.Tensor]
        if piece.bags is None:
            self.op = rows.op(piece.gather)
            self.inputs = [self.op.inputs[1]]
            return
        self.op = rows.op(piece.bags.result)
        self.inputs = [rows.tensor(one) for one in piece.bags.sparse]
        if piece.bags.weights is not None:
            self.weights = rows.tensor(piece.bags.weights)
        self.waits = waits_between([self.op.outputs[0]], self.sources())

    def sources(self) -> List[tf.Tensor]:
        """Returns what its result is computed from, beside rows."""
        return self.inputs + ([] if self.weights is None else [self.weights])

    def can_fuse(self) -> bool:
        """Whether shapes are what the chain was recognized for."""
        if self.piece.bags is None:
            return True
        if self.weights is not None and (
                self.weights.shape.rank != 2 or self.weights.shape.as_list()[1] != 1):
            return False
        return all(one.shape.as_list() == [2] for one in self.inputs[2:]) \
            and self.grad.shape.rank == len(self.rows.plan.shape) == 2

    def fills(self) -> bool:
        """Whether a bag without ids touches the first row."""
        # TensorFlow gives rows without ids the first row, with a gradient of zeros: Adagrad then
        # changes nothing, but an optimizer with momentum, or one that shrinks, does.
        return bool(self.piece.bags.fill) \
            and not optimizer_named(self.rows.plan.kind).ignores_zeros


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
        lookups = _lookups(rows)
        if lookups:
            step = rows.plan.updates[0]
            updates.append(_Update(rows, step, rows.numbers(step), lookups,
                                   _waits(rows, step, lookups)))
    every = [one for change in updates for one in change.lookups]
    found = {}  # type: Dict[str, List[Any]]
    for one in every:
        if one.piece.bags is None:
            if one.piece.gather not in found:
                found[one.piece.gather] = one.rows.look_up(one.op, True)
            one.found = found[one.piece.gather]
    pooled = [one for one in every if one.piece.bags is not None]
    if pooled:
        with graph.as_default(), graph.control_dependencies(None), on_device(""):
            none = tf.zeros([0], name="tables/no_weights")
    for one in pooled:
        _pool(one, none)
    for change in updates:
        _apply(change)
    for change in updates:
        for one in change.lookups:
            if one.piece.bags is not None:
                _leave_rows_out(change.rows, one.piece.bags)
                # A run that fetches these rows finds them by itself.
                change.rows.look_up_apart(change.rows.op(one.piece.gather),
                                          change.rows.op(one.piece.bags.pool), one.pooled)
    return {change.rows.plan.name: {one.piece.gather for one in change.lookups}
            for change in updates}


def _leave_rows_out(rows: Rows, bags: Bags) -> None:
    """Lets the gradient of rows with weights be computed without the rows: for a run that fetches
    it. It waits for that of the weights, which nothing reads."""
    if bags.weights is None:
        return
    product = rows.op(bags.pool).inputs[0].op
    weights = rows.tensor(bags.weights)
    spread = next(one for one in map(_copied, product.inputs) if one is not weights).op
    rows.shapes_apart(spread)
    waiting = [op for op in spread.outputs[0].consumers() if op.type == "Mul" and op is not product]
    while waiting:
        left = waiting.pop()
        waiting.extend(left.outputs[0].consumers())
        for gate in [op for op in left._control_outputs if op.type == "NoOp"]:
            others = [op for op in gate.control_inputs if op is not left]
            gate._remove_all_control_inputs()
            gate._add_control_inputs(others)


def _copied(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _lookups(rows: Rows) -> List[_Lookup]:
    """Returns the lookups whose gradients the update of a variable sums, none if it sums others or
    has to be replaced by itself."""
    plan = rows.plan
    if plan.part is not None or any(step.decays for step in plan.updates):
        return []
    for pieces in (plan.pieces, plan.gradients):
        lookups = [_Lookup(rows, piece) for piece in pieces or ()]
        if lookups and all(lookup.can_fuse() for lookup in lookups):
            return lookups
    return []


def _waits(rows: Rows, step: forms.Step, lookups: Sequence[_Lookup]) -> List[tf.Operation]:
    """Returns what an update waits for, and the ops between it and the gradients."""
    first = [lookup.grad for lookup in lookups]
    for lookup in lookups:
        first.append(rows.op(lookup.piece.gather).inputs[1])
        bags = lookup.piece.bags
        if bags is not None:
            first.extend([rows.tensor((bags.fill, 0))] if bags.fill else lookup.sources())
            first.append(rows.tensor((bags.result, 0)))
            if bags.of_rows is not None:
                # The ops between wait for each other alone.
                first.append(rows.tensor(bags.of_rows))
    return rows.waits_of(step, first)


def _pool(one: _Lookup, none: tf.Tensor) -> None:
    """Replaces a pooled lookup.

    Args:
        one: The lookup.
        none: No weight, and no divisor.
    """
    table = one.rows.table
    # Some may have been replaced since the lookup noted them.
    waits = [in_its_place(wait) for wait in one.waits]
    with in_place_of(one.op, waits, [one.op.name]):
        ids, counted, ends, divisors = _bags(one) if one.weights is None \
            else _weighted_bags(one, none)
        table.multi_lookup_times[True] += 1
        offsets, inverse = one.rows.make_rows(one.piece.gather, ids, counted, [one.op])
        norms = norms_of(one.piece.bags.max_norm)
        weights = none
        if one.weights is not None:
            weights = library().mx_rec_bag_weights(tf.reshape(one.weights, [-1]), inverse,
                                                   name="weights")
        one.pooled, = read_rows([table.handle], [row_shape(table.variable)], [offsets], [inverse],
                                ([ends], [weights], [divisors]), norms=norms,
                                name="pooled")
        one.found = [offsets, inverse, ends, weights, divisors, norms,
                     one.pooled.op.outputs[1:]]
    replace_output(one.op, one.pooled)


def _apply(change: _Update) -> None:
    """Replaces an update by one that takes sums; before the first run the graph pass joins them."""
    rows, ops = change.rows, change.rows.ops(change.step)
    # Some may have been replaced since they were noted.
    waits = [in_its_place(wait) for wait in change.waits]
    with in_place_of(ops[0], waits, [op.name for op in ops]):
        plain = [one for one in change.lookups if one.piece.bags is None]
        sums = {id(one): made for one, made in zip(plain, sums_of(
            rows.plan, change.step, [one.piece for one in plain], [one.grad for one in plain],
            [one.found for one in plain]))}
        taken = []  # type: List[Tuple[tf.Tensor, ...]]
        for one in change.lookups:
            offsets, inverse, *bags = one.found
            grad = library().mx_rec_reduce_pooled(one.grad, inverse, *bags, offsets) if bags \
                else sums[id(one)]
            taken.append((rows.table.handle, offsets, grad))
        done = apply_rows(optimizer_step(change.step, change.numbers, rows.initial()), taken)
    rows.replace_update(change.step, done)


def _bags(lookup: _Lookup) -> Sequence[tf.Tensor]:
    """Adds the op that makes bags of sparse ids without weights; returns ids, what is counted of
    them, where each bag ends among them, and divisors of bags."""
    bags = lookup.piece.bags
    indices, shape = _matrix(lookup.inputs)

    def made(fills: bool) -> Any:
        return library().mx_rec_sparse_bags_many(
            [indices], [lookup.inputs[1]], [shape],
            tf.constant([lookup.rows.plan.id_end], tf.int64),
            tf.constant([COMBINERS[bags.combiner]], tf.int32), leave_out=int(bags.leaves_out),
            fill=int(fills), name="bags")

    found = made(lookup.fills())
    ids = found.bag_ids[0]
    # What is counted is without the ids that fill bags without ids.
    counted = made(False).bag_ids[0] if lookup.rows.rules.refuses and lookup.fills() else ids
    return ids, counted, found.ends[0], found.divisors[0]


def _weighted_bags(lookup: _Lookup, none: tf.Tensor) -> Sequence[tf.Tensor]:
    """As `_bags`, of sparse ids with weights, in the order of the ids."""
    ids = lookup.rows.checked_ids(lookup.inputs[1])
    indices, shape = _matrix(lookup.inputs)
    ends = library().mx_rec_sparse_bag_ends(indices, shape, name="ends")
    return ids, lookup.rows.occurrences(lookup.inputs[1]), ends, none


def _matrix(sparse: Sequence[tf.Tensor]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the indices (n, 2) and the shape of sparse ids: indices, ids and shape, if any."""
    indices, _, *shape = sparse
    if shape:
        return indices, shape[0]
    # TensorFlow reads the first column alone, of any number and of int32, too.
    rows = tf.cast(indices[:, 0], tf.int64)
    if indices.dtype != tf.int64 or indices.shape.rank != 2 or indices.shape.as_list()[1] != 2:
        indices = tf.stack([rows, tf.zeros_like(rows)], 1)
    last = tf.reduce_max(tf.concat([rows, [-1]], 0))
    return indices, tf.stack([last + 1, tf.int64.max], name="shape")
