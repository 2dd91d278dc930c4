"""Applies the plan of stock/analysis.py to a graph: tables in the place of variables."""

import hashlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.constants.constants import DEFAULT_SEED
from mx_rec.core.bags import COMBINERS
from mx_rec.core.graph_state import graph_state
from mx_rec.core.lookup import mark_movable
from mx_rec.core.table import PhysicalTable, Table, TableOptions, build_physical_table
from mx_rec.core.table_variable import row_shape
from mx_rec.ops import library
from mx_rec.stock import updates as forms
from mx_rec.stock.analysis import StockVariable, plan_variables
from mx_rec.stock.dense import Filling, make_filling
from mx_rec.stock.fused import Piece
from mx_rec.util.stock_tables import StockTables
from mx_rec.stock.wiring import (forget_variables, in_place_of, replace_output, replace_waiting,
                                 waits_between, waits_of_copy)
from mx_rec.util.log import logger
from mx_rec.util.settings import Settings

# The attribute of a graph that holds what was converted.
_CONVERTED = "_mx_rec_stock_tables"


class Slice(NamedTuple):
    """Where a variable stands in a checkpoint of variables.

    Attributes:
        name: Its name there.
        spec: Empty, or which part of the whole it is, as TensorFlow's savers write it.
        first: Its first row in the whole.
        whole: Rows of the whole.
    """

    name: str
    spec: str
    first: int
    whole: int


class ConvertedVariable(NamedTuple):
    """A variable that is a table now.

    Attributes:
        plan: What was planned for it.
        table: The table.
        saved: Where its values stand in a checkpoint of variables.
        slots: The same for each of `plan.slots`.
        filling: The ops that fill the table from variables.
    """

    plan: StockVariable
    table: Table
    saved: Slice
    slots: List[Slice]
    filling: Filling


def converted(graph: tf.Graph, operations: Any = None) -> List[ConvertedVariable]:
    """Returns the variables of a graph that were converted.

    Args:
        graph: The graph.
        operations: None, or what saves and loads tables (saver.table_ops.TableOps): of these alone.
    """
    found = list(getattr(graph, _CONVERTED, ()))
    if operations is None:
        return found
    tables = [op.table for op in operations]
    return [one for one in found if any(one.table.variable.op is op for op in tables)]


def convert(graph: tf.Graph, options: StockTables, trains: bool,
            known: Optional[Set[str]] = None, only_known: bool = False) -> List[StockVariable]:
    """Makes tables of the variables of a graph that qualify. No session may have run it.

    Args:
        graph: The graph, complete: gradients, updates, evaluation.
        options: Which variables.
        trains: See `plan_variables`.
        known: See `plan_variables`.
        only_known: See `plan_variables`.

    Returns:
        The plan, with the variables that stay and why.
    """
    plans = plan_variables(graph.as_graph_def(), options, trains, known, only_known)
    objects = _variable_objects(graph)
    done = converted(graph)
    for plan in plans:
        if not plan.converts:
            logger.debug("the variable %s stays TensorFlow's: %s.", plan.name, plan.reason)
            continue
        done.append(_convert(graph, plan, objects))
        logger.info("the variable %s of shape %s is the table %s: %s.", plan.name, plan.shape,
                    plan.table, plan.reason)
    setattr(graph, _CONVERTED, done)
    return plans


def _variable_objects(graph: tf.Graph) -> Dict[str, Any]:
    """Returns the variables of Python by the name of their op."""
    found = {}  # type: Dict[str, Any]
    for key in (tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            if isinstance(variable, tf.Variable) and hasattr(variable, "op"):
                found[variable.op.name] = variable
    return found


def saved_slices(graph: tf.Graph, plan: StockVariable) -> Tuple[Slice, List[Slice]]:
    """Returns where a variable and its slots stand in a checkpoint of variables."""
    return _slices(_variable_objects(graph), plan)


def _slices(objects: Dict[str, Any], plan: StockVariable) -> Tuple[Slice, List[Slice]]:
    rows = plan.shape[0]
    return (_slice(objects, plan.name, rows),
            [_slice(objects, slot.variable, rows) for slot in plan.slots])


def _slice(objects: Dict[str, Any], name: str, rows: int) -> Slice:
    info = getattr(objects.get(name), "_save_slice_info", None)
    if info is None:
        return Slice(name, "", 0, rows)
    return Slice(info.full_name, info.spec, int(info.var_offset[0]), int(info.full_shape[0]))


def _convert(graph: tf.Graph, plan: StockVariable, objects: Dict[str, Any]) -> ConvertedVariable:
    with graph.as_default(), graph.control_dependencies(None):
        table = make_table(plan)
        filling = make_filling(table, _dim(plan), plan.slots)
    rows = _Rows(graph, plan, table)
    fused = rows.fuse()
    for update in plan.updates if fused is None else ():
        rows.update(graph.get_operation_by_name(update))
    for name in plan.shapes:
        rows.shape(graph.get_operation_by_name(name))
    for name in plan.states:
        rows.state(graph.get_operation_by_name(name))
    for lookup in plan.lookups:
        if lookup.node not in (fused or ()):
            rows.look_up(graph.get_operation_by_name(lookup.node), lookup.trains)
    for read in plan.reads:
        rows.read(graph.get_operation_by_name(read))
    with graph.as_default(), graph.control_dependencies(None), tf.device("/cpu:0"), \
            tf.compat.v1.name_scope(table.variable.op.name + "//table/"):
        clear = library().mx_rec_clear(table.handle, name="initialize").op
    for name in plan.assigns:
        assign = graph.get_operation_by_name(name)
        replace_waiting(assign, clear)
        # They would set variables that nothing reads any more.
        graph.prevent_fetching(assign)
        graph.prevent_feeding(assign.inputs[1])
    names = [plan.name] + [slot.variable for slot in plan.slots]
    if plan.name in objects:
        _pass_on(objects[plan.name], plan, clear)
    made = ConvertedVariable(plan, table, *_slices(objects, plan), filling)
    forget_variables(graph, names)
    return made


def _pass_on(variable: Any, plan: StockVariable, clear: tf.Operation) -> None:
    """Makes a variable of Python initialize its table, and say that it cannot load a value."""

    def load(value: Any, session: Any = None) -> None:
        raise NotImplementedError(
            "the variable {!r} is the table {!r}, which load() cannot set: restore it from a "
            "checkpoint, or leave its name out of init(stock_tables=...).".format(
                plan.name, plan.table))

    variable._initializer_op = clear  # pylint: disable=protected-access
    variable.load = load


def make_table(plan: StockVariable) -> Table:
    """Makes the table of a planned variable in the default graph, with a key for each row."""
    rows, dim = plan.shape[0], _dim(plan)
    options = TableOptions(
        table_name=plan.table, key_dtype=tf.int64, dim=dim, initializer=None,
        device_vocabulary_size=rows, host_vocabulary_size=0, ssd_vocabulary_size=0, is_save=True,
        is_dp=False, init_param=1.0, all2all_gradients_op="sum_gradients", padding_keys=None,
        padding_keys_mask=False, padding_keys_len=None, admission_sketch_bytes=0)
    settings = Settings._single_instance  # pylint: disable=protected-access
    physical = build_physical_table(plan.table, options, plan.initializer, _seed(plan.table), rows,
                                    settings is not None
                                    and settings.is_incremental_checkpoint)  # type: PhysicalTable
    table = Table(options, physical)
    table.ext_emb_size = dim * (1 + len(plan.slots))
    graph_state().tables[plan.table] = table
    return table


def _seed(name: str) -> int:
    """Returns the seed of a table's new rows: the same in every graph of one seed and name."""
    seed = tf.compat.v1.get_default_graph().seed
    text = "{}:{}".format(DEFAULT_SEED if seed is None else int(seed), name)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "little")


def _dim(plan: StockVariable) -> int:
    return int(np.prod(plan.shape[1:], dtype=np.int64))


class _Rows:
    """Replaces the ops of one variable by those of its table."""

    def __init__(self, graph: tf.Graph, plan: StockVariable, table: Table) -> None:
        self._graph = graph
        self._plan = plan
        self._table = table
        self._dim = _dim(plan)

    def look_up(self, op: tf.Operation, trains: bool) -> Sequence[tf.Tensor]:
        """Replaces a gather; returns offsets and inverse if it trains."""
        resolved = ()  # type: Sequence[tf.Tensor]
        with in_place_of(op, waits_of_copy(op.inputs[0])):
            ids = library().mx_rec_checked_ids(
                op.inputs[1], tf.constant(self._plan.shape[0], tf.int64, name="rows"), name="ids")
            if trains:
                offsets, inverse = library().mx_rec_id_offset(
                    self._table.handle, ids, create=1, limit=0, name="id_offset")
                mark_movable(offsets.op, True)
                found = library().mx_rec_embed(
                    self._table.handle, row_shape(self._table.variable), offsets, inverse,
                    name="embedding")
                resolved = offsets, inverse
            else:
                found = self._find(ids)
            if len(self._plan.shape) != 2:
                found = tf.reshape(found, tf.concat(
                    [tf.shape(ids), tf.constant(self._plan.shape[1:], tf.int32)], 0), name="rows")
        self._table.multi_lookup_times[trains] += 1
        replace_output(op, found)
        return resolved

    def read(self, op: tf.Operation) -> None:
        """Replaces a read of the whole variable."""
        with in_place_of(op):
            value = tf.reshape(self._find(tf.range(tf.constant(self._plan.shape[0], tf.int64))),
                               self._plan.shape, name="value")
        replace_output(op, value)

    def shape(self, op: tf.Operation) -> None:
        """Replaces an op that tells the shape."""
        with in_place_of(op):
            shape = tf.constant(self._plan.shape, op.outputs[0].dtype, name="shape")
        replace_output(op, shape)

    def state(self, op: tf.Operation) -> None:
        """Replaces an op that tells whether the variable has a value: rows always have."""
        if not op.outputs[0].consumers():
            return
        with in_place_of(op):
            state = tf.constant(True, name="is_initialized")
        replace_output(op, state)

    def update(self, op: tf.Operation) -> None:
        """Replaces a sparse update."""
        form = forms.form_of(op.type)
        assert form is not None
        with in_place_of(op):
            ids = library().mx_rec_checked_ids(
                tf.reshape(op.inputs[form.indices], [-1]),
                tf.constant(self._plan.shape[0], tf.int64, name="rows"), name="ids")
            grad = tf.reshape(op.inputs[form.grad], [-1, self._dim], name="grad")
            if form.kind == forms.ADD and not forms.is_subtraction(op.type):
                grad = tf.negative(grad)
            update = self._apply(op, form, "by_ids", [ids, grad])
        replace_waiting(op, update)

    def fuse(self) -> Optional[Set[str]]:
        """Replaces lookups and the update that takes their gradients straight.

        Returns:
            The names of the gathers that were replaced, None if there is no such update.
        """
        pieces = self._plan.pieces
        if not pieces or len(self._plan.shape) != 2 or not all(map(self._can_fuse, pieces)):
            return None
        op = self._graph.get_operation_by_name(self._plan.updates[0])
        form = forms.form_of(op.type)
        assert form is not None
        waits = self._waits(op, form, pieces)
        members = []  # type: List[List[tf.Tensor]]
        for piece in pieces:
            grad = self._tensor(piece.grad)
            members.append(self._pool(piece, grad) if piece.bags else self._keep(piece, grad))
        with in_place_of(op, waits):
            lists = [list(part) for part in zip(*members)]
            if any(piece.bags for piece in pieces):
                update = self._apply(op, form, "pooled", lists)
            else:
                update = self._apply(op, form, "by_restore", lists[:3])
        replace_waiting(op, update)
        for position in (form.grad, form.indices):
            self._graph.prevent_feeding(op.inputs[position])
        # What else reads the rows of a pooled lookup, such as a summary, gathers them by itself.
        return {piece.gather for piece in pieces if piece.bags is None}

    def _waits(self, op: tf.Operation, form: forms.Form,
               pieces: Sequence[Piece]) -> List[tf.Operation]:
        """Returns what ops between gradients and an update wait for."""
        first = [self._tensor(piece.grad) for piece in pieces]
        for piece in pieces:
            first.append(self._graph.get_operation_by_name(piece.gather).inputs[1])
            if piece.bags is not None:
                first.append(self._tensor((piece.bags.fill, 0)))
                first.append(self._tensor((piece.bags.result, 0)))
        return waits_between([op.inputs[form.grad], op.inputs[form.indices]], first)

    def _can_fuse(self, piece: Piece) -> bool:
        """Whether shapes are what the chain was recognized for."""
        grad = self._tensor(piece.grad)
        if piece.bags is None:
            ids = self._graph.get_operation_by_name(piece.gather).inputs[1]
            return grad.shape.rank is not None and ids.shape.rank is not None \
                and grad.shape.rank == ids.shape.rank + 1
        fill = self._graph.get_operation_by_name(piece.bags.fill)
        return fill.inputs[2].shape.as_list() == [2] and grad.shape.rank == 2

    def _tensor(self, output: Any) -> tf.Tensor:
        return self._graph.get_operation_by_name(output[0]).outputs[output[1]]

    def _keep(self, piece: Piece, grad: tf.Tensor) -> List[tf.Tensor]:
        """Replaces a gather; returns what the update takes of it."""
        op = self._graph.get_operation_by_name(piece.gather)
        offsets, inverse = self.look_up(op, True)
        none = [tf.zeros([0], tf.int64), tf.zeros([0]), tf.zeros([0])]
        return [offsets, inverse, grad] + none

    def _pool(self, piece: Piece, grad: tf.Tensor) -> List[tf.Tensor]:
        """Replaces a pooled lookup; returns what the update takes of it."""
        bags = piece.bags
        assert bags is not None
        op = self._graph.get_operation_by_name(bags.result)
        fill = self._graph.get_operation_by_name(bags.fill)
        indices, values, shape = fill.inputs[:3]
        # TensorFlow gives rows without ids the first row, with a gradient of zeros: Adagrad then
        # changes nothing, but an optimizer with momentum, or one that shrinks, does.
        is_filled = self._plan.kind != forms.ADAGRAD
        if is_filled:
            indices, values = fill.outputs[:2]
        make = library()
        with in_place_of(op):
            ids = make.mx_rec_checked_ids(
                values, tf.constant(self._plan.shape[0], tf.int64, name="rows"), name="ids")
            ends = make.mx_rec_sparse_bag_ends(indices, shape, name="ends")
            weights = divisors = tf.zeros([0], name="none")
            if bags.combiner != "sum":
                divisors = make.mx_rec_bag_divisors(
                    ids, ends, weights, combiner=COMBINERS[bags.combiner], name="divisors")
            if is_filled:
                # A vector that is divided by 0 is zeros, and so is its gradient.
                has_ids = tf.cast(tf.logical_not(fill.outputs[2]), tf.float32, name="has_ids")
                divisors = has_ids if bags.combiner == "sum" else tf.multiply(divisors, has_ids)
            offsets, inverse = make.mx_rec_id_offset(self._table.handle, ids, create=1, limit=0,
                                                     name="id_offset")
            mark_movable(offsets.op, True)
            pooled = make.mx_rec_embed_pooled(
                self._table.handle, row_shape(self._table.variable), offsets, inverse, ends,
                weights, divisors, name="pooled")
        self._table.multi_lookup_times[True] += 1
        replace_output(op, pooled)
        return [offsets, inverse, grad, ends, weights, divisors]

    def _apply(self, op: tf.Operation, form: forms.Form, how: str,
               gradients: Sequence[Any]) -> tf.Operation:
        """Adds the op that updates rows.

        Args:
            op: The op of TensorFlow.
            form: Its form.
            how: Which op of the optimizer.
            gradients: What that op takes before the optimizer's numbers.
        """
        numbers = {name: op.inputs[position] for name, position in form.numbers.items()}
        slots = [tf.constant(slot.initial, tf.float32) for slot in self._plan.slots]
        attributes = {}  # type: Dict[str, int]
        if form.kind == forms.ADD:
            # w -= lr * g, with what TensorFlow would subtract as the gradient.
            optimizer, tensors = "sgd", [tf.constant(1.0), tf.constant(0.0)]
        elif form.kind == forms.MOMENTUM:
            optimizer, tensors = "momentum", [numbers["lr"], numbers["momentum"]]
            attributes["nesterov"] = int(op.get_attr("use_nesterov"))
        elif form.kind == forms.ADAGRAD:
            optimizer, tensors = "adagrad", [numbers["lr"], slots[0]]
        else:
            shrinkage = numbers["l2_shrinkage"] if "l2_shrinkage" in numbers else tf.constant(0.0)
            optimizer = "ftrl"
            tensors = [numbers["lr"], numbers["lr_power"], slots[0], numbers["l1"], numbers["l2"],
                       shrinkage]
        make = getattr(library(), "mx_rec_apply_{}_{}".format(optimizer, how))
        return make(self._table.handle, *gradients, *tensors, name="update", **attributes).op

    def _find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, those that were never made as they would be made."""
        return library().mx_rec_find_initial(
            self._table.handle, row_shape(self._table.variable), ids, name="find")
