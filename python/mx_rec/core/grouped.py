"""`sparse_lookup_many`: a lookup for each of many tables, which share ops once the graph runs."""

from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import tensorflow as tf

from mx_rec.cluster.lookups import is_shared
from mx_rec.core.lookup import (LOOKUP_CHECKS, PlannedLookup, add_lookup, expect_room,
                                ids_of_lookup, look_up_shared, note_lookup, plan_lookup)
from mx_rec.core.table import Table
from mx_rec.state.feature_spec import FeatureSpec
from mx_rec.state.graph_state import graph_state
from mx_rec.validator.validator import Bool, Type, checked


@checked(hashtables=Type(list, tuple), ids=Type(list, tuple), **LOOKUP_CHECKS, concat=Bool())
def sparse_lookup_many(hashtables: Sequence[Table],
                       ids: Sequence[Union[FeatureSpec, tf.Tensor, List[FeatureSpec]]],
                       send_count: Optional[int] = None, is_train: bool = True,
                       name: Optional[str] = None, modify_graph: bool = False,
                       batch: Union[None, Dict[Any, tf.Tensor], Tuple[Any, ...], List[Any]] = None,
                       access_and_evict_config: Optional[Dict[str, Optional[int]]] = None,
                       is_grad: bool = True, serving_default_value: Optional[tf.Tensor] = None,
                       concat: bool = False) -> Union[List[tf.Tensor], tf.Tensor]:
    """Looks up several batches of ids, each in a table of its own.

    The ops are those of one `sparse_lookup` for each pair of a table and ids. Before the first run
    of the graph they come to share one op for all tables, as other lookups do that a run needs
    together (docs/graph-modification.md). If a batch fails in it, as one that exceeds the rows of
    its table, no table gets a row.

    Args:
        hashtables: The tables; one may come several times.
        ids: For each table the ids, as for `sparse_lookup`.
        send_count: As for `sparse_lookup`, for each of the lookups.
        is_train: Whether these are lookups of the training pipeline.
        name: Name of the group, 1-255 characters.
        modify_graph: As for `sparse_lookup`.
        batch: As for `sparse_lookup`.
        access_and_evict_config: As for `sparse_lookup`, for each of the lookups.
        is_grad: Whether the results have gradients.
        serving_default_value: As for `sparse_lookup`, for each of the lookups.
        concat: Whether the embeddings are concatenated along their last dimension.

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
    first = graph_state().lookups
    planned = [plan_lookup(table, value, send_count, is_train,
                           "sparse_lookup_{}".format(first + at), modify_graph, batch,
                           access_and_evict_config, is_grad, serving_default_value)
               for at, (table, value) in enumerate(zip(tables, ids))]
    if concat:
        _check_shapes(tables, planned)
    results = add_group(planned, modify_graph, name or "sparse_lookup_many")
    return tf.concat(results, -1, name=name or "concat") if concat else results


def add_group(planned: Sequence[PlannedLookup], modify_graph: bool, name: str) -> List[tf.Tensor]:
    """Adds the ops of lookups that are needed together.

    Args:
        planned: The lookups.
        modify_graph: Whether they may move.
        name: The name of their group.

    Returns:
        The result of each.

    Raises:
        ValueError: If one of them counts the same ids for admission as another lookup.
        RuntimeError: If a table would have more lookups than it may.
    """
    new = Counter((one.request.table, one.request.is_train) for one in planned
                  if one.earlier is None)
    for (table, is_train), count in new.items():
        expect_room(table, is_train, count)
    if _share_requests(planned):
        ids = []  # type: List[tf.Tensor]
        for one in planned:
            with tf.compat.v1.name_scope(one.scope):
                ids.append(ids_of_lookup(one.request, modify_graph))
        with tf.compat.v1.name_scope(name), tf.device("/cpu:0"):
            results = look_up_shared([one.request for one in planned], ids, modify_graph)
        for one, result in zip(planned, results):
            note_lookup(one, result)
        return results
    group = tf.compat.v1.get_default_graph().unique_name(name)
    return [add_lookup(one, modify_graph, group) for one in planned]


def _share_requests(planned: Sequence[PlannedLookup]) -> bool:
    """Whether lookups are of tables on parameter servers, and can share requests from the start.

    The graph pass joins requests of lookups whose ids every run computes together alone.
    """
    # pylint: disable=protected-access
    graph = tf.compat.v1.get_default_graph()
    if graph.building_function \
            or graph._get_control_flow_context() is not None \
            or any(one.earlier is not None for one in planned):
        return False
    requests = [one.request for one in planned]
    return all(is_shared(request.table) and request.pooling is None
               and request.form() == requests[0].form() for request in requests) \
        and not any(other.table is request.table and other.has_ids_of(request)
                    for at, request in enumerate(requests) for other in requests[:at])


def check_group(tables: List[Any], ids: Sequence[Any]) -> None:
    """Refuses no tables, what is no table, and another number of ids."""
    if not tables:
        raise ValueError("'hashtables' should have at least one table, but is empty")
    for table in tables:
        Type(Table)("hashtables", table)
    if len(ids) != len(tables):
        raise ValueError("'ids' should have one entry for each of the {} tables, but has {}".format(
            len(tables), len(ids)))


def _check_shapes(tables: List[Table], planned: Sequence[PlannedLookup]) -> None:
    """Refuses ids of different shapes, as far as these are known."""
    shapes = [one.request.ids.shape for one in planned]
    for table, shape in zip(tables, shapes):
        if not shape.is_compatible_with(shapes[0]):
            raise ValueError(
                "'concat' needs ids of one shape, but those of the table {!r} have the shape {} "
                "and those of the table {!r} {}".format(
                    tables[0].table_name, shapes[0], table.table_name, shape))
