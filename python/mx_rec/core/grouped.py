"""`sparse_lookup_many`: lookups of many tables with one op of each kind; those of bags share it."""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from mx_rec.base.global_env_conf import groups_tables
from mx_rec.cluster.lookups import is_shared
from mx_rec.constants.constants import (ASCEND_SPARSE_LOOKUP_ID_OFFSET,
                                        ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
from mx_rec.core.bags import Bagged, Pooling, Sought, embed_pooled, find_pooled
from mx_rec.core.lookup import (LookupRequest, PlannedLookup, admitted,
                                 ids_of_lookup, look_up, look_up_shared, mark_movable, note_lookup,
                                 plan_lookup, sparse_lookup, with_default)
from mx_rec.core.table import Table
from mx_rec.ops.lookups import find_rows, read_rows, resolve
from mx_rec.state.feature_spec import FeatureSpec
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import raw_tensor, row_shape
from mx_rec.validator.validator import Bool, Text, Type, checked


class _Member(NamedTuple):
    """A lookup of a group, with its ids as the ops of tables take them."""

    planned: PlannedLookup
    ids: tf.Tensor

    @property
    def request(self) -> LookupRequest:
        """What is looked up."""
        return self.planned.request


# Offsets and inverse of a lookup.
_Found = Tuple[tf.Tensor, tf.Tensor]


@checked(hashtables=Type(list, tuple), ids=Type(list, tuple), is_train=Bool(),
         name=Text(1, 255, optional=True), modify_graph=Bool(),
         batch=Type(dict, list, tuple, optional=True),
         access_and_evict_config=Type(dict, optional=True), is_grad=Bool(),
         serving_default_value=Type(tf.Tensor, tf.Variable, np.ndarray, optional=True),
         concat=Bool())
def sparse_lookup_many(hashtables: Sequence[Table],
                       ids: Sequence[Union[FeatureSpec, tf.Tensor, List[FeatureSpec]]],
                       send_count: Optional[int] = None, is_train: bool = True,
                       name: Optional[str] = None, modify_graph: bool = False,
                       batch: Union[None, Dict[Any, tf.Tensor], Tuple[Any, ...], List[Any]] = None,
                       access_and_evict_config: Optional[Dict[str, Optional[int]]] = None,
                       is_grad: bool = True, serving_default_value: Optional[tf.Tensor] = None,
                       concat: bool = False) -> Union[List[tf.Tensor], tf.Tensor]:
    """Looks up several batches of ids, each in a table of its own, by one op for all of them.

    The numbers are those of one `sparse_lookup` for each pair of a table and ids. One op does the
    work of many small ones, and shares it among the threads. If a batch fails, as one that exceeds
    the rows of its table, no table gets a row.

    Inside of a tf.cond, a loop or a tf.function, with dynamic expansion, and with the environment
    variable MXREC_GROUP_TABLES=0, each lookup has ops of its own.

    Args:
        hashtables: The tables; one may come several times.
        ids: For each table the ids, as for `sparse_lookup`.
        send_count: As for `sparse_lookup`, for each of the lookups.
        is_train: Whether these are lookups of the training pipeline.
        name: Name scope of the ops for all tables, 1-255 characters.
        modify_graph: As for `sparse_lookup`.
        batch: As for `sparse_lookup`.
        access_and_evict_config: As for `sparse_lookup`, for each of the lookups.
        is_grad: Whether the results have gradients.
        serving_default_value: As for `sparse_lookup`, for each of the lookups.
        concat: Whether the embeddings are concatenated along their last dimension. In training,
            rows are then copied straight to their places, and the gradients of the tables are read
            from the one of the concatenation.

    Returns:
        For each table a float32 tensor of shape ids.shape + [dim]; with `concat` one tensor of
        shape ids.shape + [sum of the dims], in the order of `hashtables`.

    Raises:
        ValueError: If there are no tables, or not as many ids, or with `concat` ids of different
            shapes; and where `sparse_lookup` raises it.
        RuntimeError, KeyError, EnvironmentError: As `sparse_lookup`.
    """
    tables = list(hashtables)
    check_group(tables, ids)
    arguments = (send_count, is_train, modify_graph, batch, access_and_evict_config, is_grad,
                 serving_default_value)
    planned = None  # type: Optional[List[PlannedLookup]]
    if len(tables) > 1 and _may_group():
        planned = _plan(tables, ids, *arguments)
    if planned is None:
        results = [_one(table, value, *arguments) for table, value in zip(tables, ids)]
        return _concatenated(tables, results, name) if concat else results
    with tf.compat.v1.name_scope(name, "sparse_lookup_many"):
        pass_on = _Group(planned, is_train, is_grad, modify_graph)
        return pass_on.concatenation(tables) if concat else pass_on.embeddings()


def look_up_pooled_many(tables: List[Table], ids: Sequence[Any], poolings: Sequence[Pooling],
                        send_count: Optional[int], is_train: bool, name: Optional[str],
                        modify_graph: bool, batch: Any, config: Any, is_grad: bool,
                        default: Any) -> List[tf.Tensor]:
    """Adds pooled lookups of several tables to the graph, by one op where that is possible.

    Args:
        tables: The tables.
        ids: For each table the ids.
        poolings: For each table how their rows are pooled.
        send_count: As of `sparse_lookup`, like the arguments behind it.
        is_train: See there.
        name: Name scope of the ops for all tables.
        modify_graph: See there.
        batch: See there.
        config: access_and_evict_config.
        is_grad: See there.
        default: serving_default_value.

    Returns:
        For each table a vector for each bag.

    Raises:
        ValueError, RuntimeError, KeyError, EnvironmentError: As `sparse_lookup_pooled`.
    """
    arguments = (send_count, is_train, modify_graph, batch, config, is_grad, default)
    planned = None  # type: Optional[List[PlannedLookup]]
    if len(tables) > 1 and _may_group() and not any(is_shared(table) for table in tables):
        planned = _plan(tables, ids, *arguments, poolings=poolings)
    if planned is None:
        return [look_up(table, value, send_count, is_train, None, modify_graph, batch, config,
                        is_grad, default, pooling)
                for table, value, pooling in zip(tables, ids, poolings)]
    with tf.compat.v1.name_scope(name, "sparse_lookup_pooled_many"):
        return _PooledGroup(planned, is_train, is_grad, modify_graph).embeddings()


def _may_group() -> bool:
    """Whether lookups that are made now can share ops."""
    # pylint: disable=protected-access
    graph = tf.compat.v1.get_default_graph()
    is_outermost = not graph.building_function and graph._get_control_flow_context() is None
    return groups_tables() and is_outermost \
        and not Settings.get_instance().use_dynamic_expansion


def check_group(tables: List[Any], ids: Sequence[Any]) -> None:
    """Refuses no tables, what is no table, and another number of ids."""
    if not tables:
        raise ValueError("'hashtables' should have at least one table, but is empty")
    for table in tables:
        Type(Table)("hashtables", table)
    if len(ids) != len(tables):
        raise ValueError("'ids' should have one entry for each of the {} tables, but has {}".format(
            len(tables), len(ids)))


def _one(table: Table, ids: Any, send_count: Any, is_train: bool, modify_graph: bool, batch: Any,
         config: Any, is_grad: bool, default: Any) -> tf.Tensor:
    """A lookup by ops of its own."""
    return sparse_lookup(table, ids, send_count=send_count, is_train=is_train,
                         modify_graph=modify_graph, batch=batch, access_and_evict_config=config,
                         is_grad=is_grad, serving_default_value=default)


def _plan(tables: List[Table], ids: Sequence[Any], send_count: Any, is_train: bool,
          modify_graph: bool, batch: Any, config: Any, is_grad: bool, default: Any,
          poolings: Optional[Sequence[Pooling]] = None) -> Optional[List[PlannedLookup]]:
    """Checks all lookups. None if two of them are the same feature's, which share a result."""
    first = graph_state().lookups
    planned = [plan_lookup(table, value, send_count, is_train,
                           "sparse_lookup_{}".format(first + at), modify_graph, batch, config,
                           is_grad, default, None if poolings is None else poolings[at])
               for at, (table, value) in enumerate(zip(tables, ids))]
    made = [(table, one.made) for table, one in zip(tables, planned) if one.made is not None]
    for at, (table, one) in enumerate(made):
        if any(other is table and earlier.has_ids_of(one) for other, earlier in made[:at]):
            return None
    return planned


def _concatenated(tables: List[Table], results: List[tf.Tensor],
                  name: Optional[str] = None) -> tf.Tensor:
    """Concatenates embeddings along their last dimension."""
    _check_shapes(tables, [result.shape[:-1] for result in results])
    return tf.concat(results, -1, name=name or "concat")


def _check_shapes(tables: List[Table], shapes: List[tf.TensorShape]) -> None:
    """Refuses ids of different shapes, as far as these are known."""
    for table, shape in zip(tables, shapes):
        if not shape.is_compatible_with(shapes[0]):
            raise ValueError(
                "'concat' needs ids of one shape, but those of the table {!r} have the shape {} "
                "and those of the table {!r} {}".format(
                    tables[0].table_name, shapes[0], table.table_name, shape))


class _Group:
    """The ops of several lookups.

    Args:
        planned: The lookups.
        is_train: Their mode.
        is_grad: Whether they have gradients.
        modify_graph: Whether they may move.
    """

    def __init__(self, planned: List[PlannedLookup], is_train: bool, is_grad: bool,
                 modify_graph: bool) -> None:
        self._planned = planned
        self._is_train = is_train
        self._is_grad = is_grad
        self._modify_graph = modify_graph
        self._members = []  # type: List[_Member]
        for one in planned:
            if one.earlier is None:
                with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(one.scope):
                    self._members.append(_Member(one, ids_of_lookup(one.request, modify_graph)))

    def embeddings(self) -> List[tf.Tensor]:
        """Adds the ops and returns the result of each lookup."""
        with tf.device("/cpu:0"):
            if self._is_shared():
                made = self._look_up_shared()
            else:
                made = self._train() if self._is_train else self._find()
        for member, result in zip(self._members, made):
            note_lookup(member.planned, result)
        results = iter(made)
        return [next(results) if one.earlier is None else one.earlier for one in self._planned]

    def concatenation(self, tables: List[Table]) -> tf.Tensor:
        """Adds the ops and returns the embeddings side by side."""
        shapes = [one.earlier.shape[:-1] if one.earlier is not None else one.request.ids.shape
                  for one in self._planned]
        _check_shapes(tables, shapes)
        # Results that others may ask for again, or that are chosen from, are tensors of their own.
        whole = self._is_train and not self._is_shared() and all(
            one.earlier is None and one.request.absent is None and one.request.thresholds[0] < 0
            for one in self._planned)
        if not whole:
            return _concatenated(tables, self.embeddings())
        with tf.device("/cpu:0"):
            found = self._offsets()
            result, = read_rows(*self._inputs(found), is_whole=True)
            if not self._is_grad:
                result = tf.stop_gradient(result)
        result.set_shape(_joined_shape(shapes).concatenate(
            [sum(table.emb_size for table in tables)]))
        for member in self._members:
            note_lookup(member.planned, None)
        return result

    def _is_shared(self) -> bool:
        """Whether the tables are on parameter servers."""
        return any(is_shared(member.request.table) for member in self._members)

    def _look_up_shared(self) -> List[tf.Tensor]:
        """Rows by key from parameter servers: one request for each of them."""
        return look_up_shared([member.request for member in self._members],
                              [member.ids for member in self._members], self._modify_graph)

    def _find(self) -> List[tf.Tensor]:
        """Evaluation: rows by key."""
        results = [None] * len(self._members)  # type: List[Any]
        for places in self._by(lambda member: member.ids.dtype):
            members = [self._members[place] for place in places]
            found = find_rows(
                [member.request.table.handle for member in members],
                [row_shape(member.request.table.variable) for member in members],
                [member.ids for member in members],
                [member.request.absent for member in members])
            mark_movable(found[0].op, self._modify_graph)
            for place, rows in zip(places, found):
                results[place] = tf.stop_gradient(rows)
        return results

    def _train(self) -> List[tf.Tensor]:
        """Training: offsets, then rows."""
        found = self._offsets()
        results = read_rows(*self._inputs(found))
        if not self._is_grad:
            results = [tf.stop_gradient(result) for result in results]
        else:
            for (offsets, _), result in zip(found, results):
                tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, result)
                tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET, offsets)
        return [with_default(member.request, member.ids, inverse, result)
                for member, (_, inverse), result in zip(self._members, found, results)]

    def _offsets(self) -> List[_Found]:
        """Offsets and inverse of each lookup; those that are counted for admission alone."""
        found = [None] * len(self._members)  # type: List[Any]
        for place, member in enumerate(self._members):
            if member.request.thresholds[0] >= 0:
                with tf.compat.v1.name_scope(None), tf.compat.v1.name_scope(member.planned.scope):
                    found[place] = admitted(member.request, member.ids, self._modify_graph)
        for places in self._by(lambda member: (member.ids.dtype, member.request.limit)):
            places = [place for place in places if found[place] is None]
            if not places:
                continue
            members = [self._members[place] for place in places]
            resolved = resolve([member.request.table.handle for member in members],
                               [member.ids for member in members],
                               limit=members[0].request.limit)
            mark_movable(resolved.offsets[0].op, self._modify_graph)
            for at, place in enumerate(places):
                found[place] = resolved.of(at)
        return found

    def _inputs(self, found: List[_Found]) -> Tuple[List[tf.Tensor], ...]:
        """The inputs of an op that reads rows by offset."""
        tables = [member.request.table for member in self._members]
        like = raw_tensor if self._is_grad else row_shape
        return ([table.handle for table in tables], [like(table.variable) for table in tables],
                [offsets for offsets, _ in found], [inverse for _, inverse in found])

    def _by(self, key: Any) -> List[List[int]]:
        """The places of the lookups, those together that one op can take."""
        together = OrderedDict()  # type: Dict[Any, List[int]]
        for place, member in enumerate(self._members):
            together.setdefault(key(member), []).append(place)
        return list(together.values())


class _PooledGroup(_Group):
    """The ops of several pooled lookups."""

    def _find(self) -> List[tf.Tensor]:
        """Evaluation: vectors by key; nothing is made distinct."""
        results, finders = find_pooled([
            Sought(member.request.table, member.ids, member.request.absent,
                   member.request.pooling, member.planned.scope) for member in self._members])
        for finder in finders:
            mark_movable(finder, self._modify_graph)
        return [tf.stop_gradient(found) for found in results]

    def _train(self) -> List[tf.Tensor]:
        """Training: offsets, then the vectors of bags."""
        found = self._offsets()
        lookups = [Bagged(member.request.table, member.ids, resolved, member.request.absent,
                          member.request.pooling, member.request.thresholds[0] >= 0,
                          member.planned.scope)
                   for member, resolved in zip(self._members, found)]
        results, _ = embed_pooled(lookups, self._is_grad)
        if self._is_grad:
            for (offsets, _), result in zip(found, results):
                tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB, result)
                tf.compat.v1.add_to_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET, offsets)
        return results


def _joined_shape(shapes: List[tf.TensorShape]) -> tf.TensorShape:
    """What is known of shapes that are all the same."""
    joined = shapes[0]
    for shape in shapes[1:]:
        joined = joined.merge_with(shape)
    return joined
