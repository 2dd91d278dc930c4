"""Puts ops of a table in the place of the ops of one variable."""

from typing import Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.core.table import Table
from mx_rec.edits.replacing import FUSED_ATTRIBUTE, mark_positions
from mx_rec.edits.wiring import (depends, in_place_of, on_device, replace_change, replace_output,
                                 waits_between, waits_of_copy, waits_of_gather)
from mx_rec.ops import library
from mx_rec.ops.lookups import checked_ids, find_rows, mark_movable, read_rows, resolve
from mx_rec.ops.optimizers import Gradients, OptimizerStep, optimizer_named, update
from mx_rec.state.table_variable import row_shape
from mx_rec.stock import updates as forms
from mx_rec.stock.admission import (RowRules, admit, admitted, count_before, occurrences,
                                     uncounted, users_of)
from mx_rec.stock.planned import Slot, StockVariable
from mx_rec.stock.dense import chunk_of
from mx_rec.stock.dense_updates import Penalty
from mx_rec.stock.fused import SHAPES, Piece
from mx_rec.stock.nodes import Output


class Rows:
    """The rows of one variable, which become those of its table.

    Args:
        graph: The graph.
        plan: What was planned for the variable.
        table: Its table.
        rules: When keys get rows.

    Attributes:
        device: The device of ops in the place of others, "" for that of the task.
        slot: Which slot of the rows these are, None if the embeddings.
    """

    device = ""
    slot = None  # type: Optional[Slot]

    def __init__(self, graph: tf.Graph, plan: StockVariable, table: Table,
                 rules: RowRules = RowRules()) -> None:
        self.graph = graph
        self.plan = plan
        self.table = table
        self.rules = rules
        self._users = users_of(graph, plan) if rules.counts else {}
        # What counts for lookups and reads counts for updates, by the updates they are of.
        self._counting = []  # type: List[Tuple[tf.Operation, FrozenSet[str]]]
        self._recounts = []  # type: List[Tuple[tf.Operation, str]]
        self._batch = None  # type: Optional[Tuple[tf.Tensor, tf.Tensor, tf.Tensor]]
        self._padded = {lookup.node for lookup in plan.lookups if lookup.is_padded}
        #: What gives the whole variable in the place of reads.
        self.values = []  # type: List[tf.Operation]

    def op(self, name: str) -> tf.Operation:
        """Returns an op of the graph."""
        return self.graph.get_operation_by_name(name)

    def tensor(self, output: Output) -> tf.Tensor:
        """Returns a tensor of the graph."""
        return self.op(output[0]).outputs[output[1]]

    def checked_ids(self, ids: tf.Tensor) -> tf.Tensor:
        """Adds the op that refuses ids that the variable does not have; returns their keys."""
        checked, = checked_ids([ids], [self.plan.id_end], [self.plan.name])
        if self.plan.first == 0:
            return checked
        return tf.cast(checked, tf.int64) + self.plan.first

    def padded_ids(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns checked ids in which id 0 is padding: it gives zeros and takes no gradient."""
        return tf.compat.v1.where(tf.equal(ids, 0), -tf.ones_like(ids), ids, name="padded")

    def look_up(self, op: tf.Operation, trains: bool) -> List[tf.Tensor]:
        """Replaces a gather.

        Args:
            op: The gather.
            trains: Whether it makes rows.

        Returns:
            The offsets and the inverse of a lookup that makes rows, nothing of another.
        """
        made = []  # type: List[tf.Tensor]
        with in_place_of(op, waits_of_gather(op), device=self.device):
            ids = self.checked_ids(op.inputs[1])
            if op.name in self._padded:
                ids = self.padded_ids(ids)
            if trains:
                made.extend(self.make_rows(op.name, ids, self.occurrences(op.inputs[1]), [op]))
                found, = read_rows([self.table.handle], [row_shape(self.table.variable)],
                                   *[[one] for one in made])
            else:
                found = self._find(ids)
            if len(self.plan.shape) != 2:
                found = tf.reshape(found, tf.concat(
                    [tf.shape(ids), tf.constant(self.plan.shape[1:], tf.int32)], 0), name="rows")
        self.table.multi_lookup_times[trains] += 1
        replace_output(op, found)
        return made

    def occurrences(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns what is counted of the ids of a gather."""
        # A table that admits every key makes a row of one that fills sparse ids, as without rules.
        return occurrences(ids, not self.rules.refuses) if self.rules.counts else ids

    def make_rows(self, gather: str, ids: tf.Tensor, counted: tf.Tensor,
                  replaced: Sequence[tf.Operation]) -> Tuple[tf.Tensor, tf.Tensor]:
        """Adds the ops that find the rows of ids, and make those that are missing.

        Args:
            gather: The name of the gather that took the ids.
            ids: Checked ids.
            counted: What is counted of them; not checked, it has no other ids.
            replaced: The ops in whose place the lookup and others will stand.

        Returns:
            offsets and their inverse index in the shape of ids.
        """
        if self.rules.counts:
            # Ids that are counted as they are take the checked ones.
            is_same = counted is ids or any(counted is one for one in ids.op.inputs)
            users = self._users[gather]
            made = admit(self.table, self.rules, ids, ids if is_same else counted, replaced,
                         {one for one, others in self._counting if others != users})
            # The first of the pair that `Admit` reads is from the op that counts.
            self._counting.append((made[0].op.inputs[1].op, users))
            return made
        offsets, inverse = resolve([self.table.handle], [ids]).of(0)
        mark_movable(offsets.op, True)
        return offsets, inverse

    def end(self) -> None:
        """Orders what the lookups and updates of the variable count, once all are replaced."""
        for read, name in self._recounts:
            count_before([one for one, users in self._counting if name in users], read)

    def look_up_apart(self, op: tf.Operation, pool: tf.Operation, pooled: tf.Tensor) -> None:
        """Replaces a gather whose rows only runs need that fetch them, in which nothing orders it
        before updates; their shape does not need them.

        Args:
            op: The gather.
            pool: The op that pools its rows.
            pooled: The vectors of the bags of its rows.
        """
        # Where rows are pooled, only the shape is read of what takes no part any more.
        for reader in pool.outputs[0].consumers():
            if reader.type in SHAPES:
                reader._update_input(0, pooled)  # pylint: disable=protected-access
        self.shapes_apart(op)
        output = op.outputs[0]
        self.look_up(op, False)
        mark_positions(output.op, FUSED_ATTRIBUTE, [output.value_index])
        self.graph.prevent_feeding(output)

    def shapes_apart(self, op: tf.Operation) -> None:
        """Replaces the ops that tell the shape of what a gather gives: it does not need the rows.

        Args:
            op: The gather, of rows of the variable or of rows that another gave.
        """
        for shape in [reader for reader in _readers(op.outputs[0]) if reader.type == "Shape"]:
            with in_place_of(shape):
                kind = shape.outputs[0].dtype
                sizes = tf.concat([tf.shape(op.inputs[1], out_type=kind),
                                   tf.constant(self.plan.shape[1:], kind)], 0, name="shape")
            replace_output(shape, sizes)

    def read(self, op: tf.Operation) -> None:
        """Replaces a read of the whole variable."""
        for reader in op.outputs[0].consumers():
            positions = [at for at, tensor in enumerate(reader.inputs) if tensor.op is op]
            value = self.value_behind(op, reader)
            for position in positions if value is not None else ():
                reader._update_input(position, value)  # pylint: disable=protected-access
                # One that is fed would have no effect on that reader.
                self.graph.prevent_feeding(op.outputs[0])
        value = self.value(op)
        self.values.append(value.op)
        replace_output(op, value)

    def value_behind(self, op: tf.Operation, reader: tf.Operation) -> Optional[tf.Tensor]:
        """Returns the whole variable for one reader of it, which may run behind a change of it.

        The copy of a reference variable is its memory: a reader sees what that holds when it runs,
        behind all that it takes and waits for.

        Args:
            op: See `value`.
            reader: An op that takes what `op` gives.

        Returns:
            None if the reader needs no value of its own.
        """
        if self.op(self.plan.name).type == "VarHandleOp":
            return None
        waits = list(reader.control_inputs) + [
            tensor.op for tensor in reader.inputs if tensor.op is not op]
        return self.value(op, reader, waits) if depends(waits, self.changes()) else None

    def changes(self) -> Set[tf.Operation]:
        """Returns the ops of the table, and so those that change it."""
        return set(self.table.handle.consumers())

    def value(self, op: tf.Operation, reader: Optional[tf.Operation] = None,
              waits: Sequence[tf.Operation] = ()) -> tf.Tensor:
        """Returns the whole variable as an op gives it, which is or copies or has changed it.

        Of a table by other ids than the variable's, without limits, it gives rows that are there,
        and new ones where the variable has more.

        Args:
            op: The op.
            reader: The op that takes it alone, None if all do.
            waits: What it is read behind.
        """
        before = waits_of_copy(op.outputs[0]) + list(waits)
        with in_place_of(reader or op, before, device=self.device):
            keys = tf.range(tf.constant(self.plan.shape[0], tf.int64)) + self.plan.first
            if self.plan.ids.is_lifted and not self.plan.ids.keeps_rows:
                there = library().mx_rec_export(self.table.handle, [], name="keys").keys
                keys = tf.concat([there, -2 - keys], 0)[:self.plan.shape[0]]
            return tf.reshape(self._find_all(keys), self.plan.shape, name="value")

    def shape(self, op: tf.Operation, count: Optional[int] = None) -> None:
        """Replaces an op that tells the shape.

        Args:
            op: The op.
            count: How many rows it tells; None: as many as the variable has.
        """
        sizes = self.plan.shape if count is None else [count] + self.plan.shape[1:]
        with in_place_of(op, waits_of_copy(op.inputs[0]), device=self.device):
            shape = tf.constant(sizes, op.outputs[0].dtype, name="shape")
        replace_output(op, shape)

    def state(self, op: tf.Operation) -> None:
        """Replaces an op that tells whether the variable has a value: rows always have."""
        with in_place_of(op, device=self.device):
            state = self.is_ready()
        replace_output(op, state)

    def is_ready(self) -> tf.Tensor:
        """Returns whether the table can be used: one whose rows are all set has them."""
        if self.plan.sets_rows or self.plan.was_run:
            rows = library().mx_rec_table_stats(self.table.handle)[0]
            return tf.greater(rows, 0, name="is_initialized")
        return tf.constant(True, name="is_initialized")

    def update(self, step: forms.Step) -> None:
        """Replaces a sparse update by one that takes keys."""
        op = self.op(step.ops[0])
        waits = self.waits_of(step, [] if step.dense is None else [
            self.tensor(one) for part in step.parts for one in part])
        batch = self.batch() if step.decays else None
        with in_place_of(op, waits, step.ops):
            ids, grad = self.gradient(step)
            inverses = []  # type: List[tf.Tensor]
            if batch is not None:
                # The rows that the value of the penalty is of, before any of them changes.
                offsets, inverse, rows = batch
                grad = library().mx_rec_reduce(grad, inverse, offsets, name="sums")
                for one in step.decays:
                    number = one.factor * tf.reshape(self.tensor(one.number), [])
                    grad += number * (tf.sign(rows) if one.is_sign else rows)
            else:
                # An embedding that the gradient depends on was counted before; see `end`.
                with tf.control_dependencies([grad]):
                    offsets, inverse = self._counted_rows(ids, [step])
                inverses = [inverse]
            done = update(optimizer_step(step, self.numbers(step), self.initial()),
                          Gradients([self.table.handle], [offsets], [grad], inverses), "update")
        self.replace_update(step, done)

    def waits_of(self, step: forms.Step, first: Sequence[tf.Tensor]) -> List[tf.Operation]:
        """Returns what an op in the place of an update waits for.

        Args:
            step: The update.
            first: The tensors that it takes in the place of what the update takes; none if it takes
                the same.
        """
        between = waits_between([self.tensor(one) for one in step.last], first) if first else []
        return between + [wait for op in self.ops(step) for wait in op.control_inputs
                          if wait.name not in step.ops]

    def ops(self, step: forms.Step) -> List[tf.Operation]:
        """Returns the ops of an update, which are replaced."""
        return [self.op(name) for name in step.ops]

    def replace_update(self, step: forms.Step, done: tf.Operation) -> None:
        """Puts an op in the place of an update."""
        ops = self.ops(step)
        for one in ops:
            replace_change(one, done, ops)
        for name in step.gates:
            gate = self.op(name)
            replace_change(gate, done)
            # What else it waits for, `done` needs.
            gate._remove_all_control_inputs()  # pylint: disable=protected-access
            gate._add_control_input(done)  # pylint: disable=protected-access

    def gradient(self, step: forms.Step) -> Tuple[tf.Tensor, tf.Tensor]:
        """Returns the checked ids (n) of an update, and what is subtracted (n, dim)."""
        ids = [self.checked_ids(tf.reshape(self.tensor(indices), [-1]))
               for _, indices in step.parts]
        if self._padded:
            ids = [self.padded_ids(one) for one in ids]
        grads = [tf.reshape(self.tensor(values), [-1, self.plan.dim], name="grad")
                 for values, _ in step.parts]
        if len(ids) > 1:
            ids = [tf.concat([tf.cast(one, tf.int64) for one in ids], 0)]
            grads = [tf.concat(grads, 0)]
        return ids[0], _subtracted(step, grads[0])

    def _counted_rows(self, ids: tf.Tensor,
                      steps: Sequence[forms.Step]) -> Tuple[tf.Tensor, tf.Tensor]:
        """Adds the ops that find the rows of ids for updates.

        They count ids that no lookup does, such as those of gradients that are fed.

        Args:
            ids: Checked ids.
            steps: The updates, of the same ids.

        Returns:
            offsets and their inverse index.
        """
        if not self.rules.counts:
            return resolve([self.table.handle], [ids]).of(0)
        names = [step.ops[0] for step in steps]
        gathers = [self.op(name) for name, users in self._users.items()
                   if users.intersection(names)]
        offsets, inverse = admitted(self.table, self.rules, ids, [
            one for _, indices in steps[0].parts
            for one in uncounted(self.tensor(indices), gathers)])
        self._recounts.extend((offsets.op.inputs[1].op, name) for name in names)
        return offsets, inverse

    def batch(self) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the distinct rows of all lookups whose gradients an update with a penalty sums:
        their offsets, for each id its place among these, and the rows as they are before the step.
        They are made where they are missing."""
        if self._batch is None:
            steps = [step for step in self.plan.updates if step.decays]
            graph = self.graph
            with graph.as_default(), graph.control_dependencies(None), on_device(self.device), \
                    tf.compat.v1.name_scope(self.plan.name + "/rows_of_batch/"):
                ids, _ = self.gradient(steps[0])
                offsets, inverse = self._counted_rows(ids, steps)
                rows, = read_rows([self.table.handle], [row_shape(self.table.variable)], [offsets])
            self._batch = offsets, inverse, rows
        return self._batch

    def penalize(self, penalty: Penalty) -> None:
        """Replaces the penalty on all rows by that on the rows of a batch.

        Where nothing trains they are those of all lookups of the graph, and none is made.
        """
        op = self.op(penalty.node)
        if any(step.decays for step in self.plan.updates):
            _, _, rows = self.batch()
        with in_place_of(op, device=self.device):
            if not any(step.decays for step in self.plan.updates):
                ids = tf.concat([tf.cast(tf.reshape(self.op(one.node).inputs[1], [-1]), tf.int64)
                                 for one in self.plan.lookups], 0)
                ids = self.checked_ids(tf.unique(ids)[0])
                rows = self._find(self.padded_ids(ids) if self._padded else ids)
            value = tf.reduce_sum(tf.abs(rows)) if penalty.kind == "Abs" else tf.nn.l2_loss(rows)
            if penalty.kind == "Square":
                value *= 2.0
            value = tf.reshape(value, op.outputs[0].shape, name="penalty")
        replace_output(op, value)

    def numbers(self, step: forms.Step) -> Dict[str, tf.Tensor]:
        """Returns the optimizer's numbers of a step by name."""
        return {name: self._number(self.tensor(output), step)
                for name, output in step.numbers.items()}

    def _number(self, number: tf.Tensor, step: forms.Step) -> tf.Tensor:
        """Returns a number of a step; AdamW reads some behind the first op of the update."""
        if number.op.name not in step.ops:
            return number
        with self.graph.as_default(), self.graph.control_dependencies(None), \
                tf.compat.v1.colocate_with(number.op):
            return tf.raw_ops.ReadVariableOp(resource=number.op.inputs[0], dtype=number.dtype)

    def initial(self) -> List[float]:
        """Returns what each slot starts at."""
        return [slot.initial for slot in self.plan.slots]

    def _find_all(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the rows of as many keys as the variable has rows."""
        return self._find(keys)

    def field(self) -> Tuple[List[tf.Tensor], tf.Tensor]:
        """Returns which floats of a row these are, as the engine's ops take it, and their start."""
        name, initial = ("", 0.0) if self.slot is None else (self.slot.name, self.slot.initial)
        return ([tf.constant(np.frombuffer(name.encode("utf-8"), np.uint8), name="field")],
                tf.constant([initial], tf.float32, name="initial"))

    def _find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, those that were never made as a training lookup gives them."""
        initial = self.plan.initializer
        absent, starts = (), not self.rules.refuses  # type: Sequence[tf.Tensor], bool
        if starts and self.plan.ids.is_lifted and initial["kind"] in ("zeros", "constant"):
            # The same rows, by an op that plain exports know.
            absent, starts = [tf.fill([1, self.plan.dim], tf.constant(
                initial.get("value", 0.0), tf.float32))], False
        return find_rows([self.table.handle], [row_shape(self.table.variable)], [ids], absent,
                         initial=starts)[0]


class SlotRows(Rows):
    """A slot of the rows of one variable, which was a variable of its optimizer.

    Args:
        rows: The rows.
        slot: Which of their slots.
    """

    def __init__(self, rows: Rows, slot: Slot) -> None:
        super().__init__(rows.graph, rows.plan, rows.table, rows.rules)
        self.slot = slot

    def _find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the slot of the rows of ids, what it starts at for ids without a row."""
        offsets, places = resolve([self.table.handle], [ids], create=False, name="offsets").of(0)
        count, dim = tf.size(offsets), self.plan.dim
        # Rows that an eviction has taken meanwhile are left out with their gradients, which number
        # the others: the bits of the numbers pass unchanged. Number 0 is no row's.
        numbers = tf.bitcast(tf.range(1, count + 1), tf.float32)
        names, initial = self.field()
        read = library().mx_rec_read_rows(
            self.table.handle, offsets, tf.tile(tf.expand_dims(numbers, 1), [1, dim]), names,
            initial, name="read")
        there = tf.bitcast(read.gradients[:, :1], tf.int32)
        found = tf.tensor_scatter_nd_update(
            tf.fill([count + 1, dim], initial[0]), there, read.values[0])
        return tf.gather(found, places + 1, name="find")

    def _find_all(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the slot of as many keys as the variable has rows."""
        if not self.table.ssd_vocabulary_size:
            return self._find(keys)
        chunk = chunk_of(self.table)
        turns = -(-self.plan.shape[0] // chunk)
        parts = tf.TensorArray(tf.float32, turns, infer_shape=False)
        return tf.compat.v1.while_loop(
            lambda at, _: at < turns,
            lambda at, done: [at + 1, done.write(at, self._find(keys[at * chunk:][:chunk]))],
            [0, parts], parallel_iterations=1, back_prop=False, name="parts")[1].concat()


def _readers(tensor: tf.Tensor) -> List[tf.Operation]:
    """Returns the ops that read a tensor or its copies."""
    found = []  # type: List[tf.Operation]
    for op in tensor.consumers():
        found.extend(_readers(op.outputs[0]) if op.type == "Identity" else [op])
    return found


def sums_of(plan: StockVariable, step: forms.Step, pieces: Sequence[Piece],
            grads: Sequence[tf.Tensor], found: Sequence[Tuple[tf.Tensor, tf.Tensor]]
            ) -> List[tf.Tensor]:
    """Adds the ops that sum the gradients of lookups, or what is added, by row.

    Args:
        plan: Of the variable.
        step: The update.
        pieces: Lookups without bags.
        grads: Their gradients.
        found: For each the rows, or their keys, and in the shape of the ids which of these each id
            is of.

    Returns:
        For each (rows, dim), what is subtracted.
    """
    if pieces and pieces[0].is_of_all:
        grads = tf.split(grads[0], [tf.size(inverse) for _, inverse in found], name="grads")
    sums = []  # type: List[tf.Tensor]
    for grad, (offsets, inverse) in zip(grads, found):
        if len(plan.shape) != 2 or grad.shape.rank is None or inverse.shape.rank is None \
                or grad.shape.rank != inverse.shape.rank + 1:
            grad = tf.reshape(grad, tf.concat([tf.shape(inverse), [plan.dim]], 0))
        sums.append(library().mx_rec_reduce(_subtracted(step, grad), inverse, offsets))
    return sums


def _subtracted(step: forms.Step, grad: tf.Tensor) -> tf.Tensor:
    return tf.negative(grad) if step.kind == forms.ADD and not step.subtracts else grad


def optimizer_step(step: forms.Step, numbers: Dict[str, tf.Tensor], initial: Sequence[float]
                   ) -> OptimizerStep:
    """Returns the step of the plugin's optimizer that does what an update does.

    Args:
        step: The update of TensorFlow.
        numbers: The optimizer's numbers by name.
        initial: What each slot starts at.
    """
    optimizer = optimizer_named(step.kind)
    constants = dict(step.constants)
    constants.update((slot.number.name, start) for slot, start in zip(optimizer.slots, initial)
                     if slot.number is not None)
    given = {name: tf.constant(value, tf.float32) for name, value in constants.items()}
    return optimizer.step(dict(given, **numbers))
