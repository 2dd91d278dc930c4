"""`get_asc_insert_func`: the function that a dataset maps over its batches."""

import itertools
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.core.asc.batches import check_dense, holder_of
from mx_rec.core.ids import is_id_type
from mx_rec.state.feature_spec import FeatureSpec, Insertion
from mx_rec.state.graph_state import GraphState, graph_state
from mx_rec.state.settings import Settings
from mx_rec.tensorflow.names import nest
from mx_rec.validator.validator import Bool, Int, Text, Type, checked

MARKER = "mx_rec_insert_{}"
EXTRA_SUFFIX = "_read_emb_key"
DUMP_DIRECTORY = "./export_graph"
DUMP_FILE = "pipeline_graph.pb"

_numbers = itertools.count()


@checked(tgt_key_specs=Type(FeatureSpec, list, tuple, optional=True),
         args_index_list=Type(list, tuple, optional=True),
         table_names=Type(list, tuple, optional=True), is_training=Bool(), dump_graph=Bool())
def get_asc_insert_func(
        tgt_key_specs: Union[None, FeatureSpec, Sequence[FeatureSpec]] = None,
        args_index_list: Optional[Sequence[int]] = None,
        table_names: Optional[Sequence[str]] = None, is_training: bool = True,
        dump_graph: bool = False) -> Callable[..., Any]:
    """Makes the function that ties features to the batches of a dataset.

    Give it to `dataset.map`. It leaves every entry of the batch as it is and adds one: an int32
    scalar, the number of ids in the entries that the features name. In a dict batch the entry is
    `<last key in sorted order>_read_emb_key`; in a tuple or list it is one more element at the end;
    in a tuple of (dict, ...) whose dict holds the features, it is added to that dict. Lookups take
    their ids from the batch itself, so that prefetching, shuffling, restarted iterators and an
    evaluation in between cannot get out of step.

    Args:
        tgt_key_specs: A FeatureSpec, or a list or tuple of at least one.
        args_index_list: Instead of specs: positions in the batch, each in [0, 255] ...
        table_names: ... and the table of each.
        is_training: Which pipeline the dataset feeds.
        dump_graph: Whether to write the traced function to ./export_graph/pipeline_graph.pb.

    Returns:
        A function of the components of one dataset element.

    Raises:
        ValueError: If an argument has a wrong type, a list is empty or the lists differ in length.
        RuntimeError: If neither or both kinds of description are given.
        EnvironmentError: If `init` was not called.
    """
    Settings.get_instance()
    specs = _check_specs(tgt_key_specs, args_index_list, table_names)

    def insert(*args: Any) -> Any:
        return _insert(args, specs, is_training, dump_graph)

    return tf.autograph.experimental.do_not_convert(insert)


def _check_specs(specs: Any, positions: Optional[Sequence[int]],
                 tables: Optional[Sequence[str]]) -> List[FeatureSpec]:
    """Returns the features that either form of the arguments describes."""
    if specs is not None:
        if positions is not None or tables is not None:
            raise RuntimeError("give either 'tgt_key_specs' or 'args_index_list' with "
                               "'table_names', not both")
        specs = [specs] if isinstance(specs, FeatureSpec) else list(specs)
        if not specs:
            raise ValueError("'tgt_key_specs' length is less than 1")
        for spec in specs:
            Type(FeatureSpec)("tgt_key_specs", spec)
        return specs
    if positions is None and tables is None:
        raise RuntimeError("give 'tgt_key_specs', or both 'args_index_list' and 'table_names'")
    if positions is None or tables is None:
        raise ValueError("'args_index_list' and 'table_names' belong together, but one is missing")
    if len(positions) != len(tables):
        raise ValueError("'args_index_list' and 'table_names' should have the same length, but "
                         "have {} and {}".format(len(positions), len(tables)))
    if not positions:
        raise ValueError("'args_index_list' length is less than 1")
    for position in positions:
        Int(0, 255)("args_index_list", position)
    for table in tables:
        Text(1, 255)("table_names", table)
    return [FeatureSpec(table, table_name=table, index_key=int(position))
            for position, table in zip(positions, tables)]


def _insert(args: Tuple[Any, ...], specs: List[FeatureSpec], is_training: bool,
            dump_graph: bool) -> Any:
    """Reads one batch (while the map function is traced) and returns it with the new entry."""
    batch = args[0] if len(args) == 1 and isinstance(args[0], (dict, list, tuple)) else args
    state = graph_state()
    found = {}  # type: Dict[str, FeatureSpec]
    entries = {}  # type: Dict[str, tf.Tensor]
    holder = None
    for spec in specs:
        place = holder_of(batch, spec.index_key)
        if place is None:
            logger.debug("the batch has no entry %r; feature %r is skipped.", spec.index_key,
                         spec.name)
            continue
        holder = place if holder is None else holder
        entry = check_dense(place[spec.index_key], "the entry {!r}".format(spec.index_key))
        _check_entry(spec, entry, is_training, state)
        if not spec.is_timestamp and entry.shape.rank:
            spec.feat_cnt = entry.shape[1:].num_elements()
        found[spec.name] = spec
        entries[spec.name] = entry
    marker = MARKER.format(next(_numbers))
    counts = [tf.size(entry) for name, entry in entries.items() if not found[name].is_timestamp]
    count = tf.add_n(counts) if counts else tf.constant(0)
    result = _with_extra(batch, holder, tf.identity(count, name=marker))
    # tf.data flattens tuples and dicts; a list only comes from a direct call.
    flat = nest.flatten(tuple(result) if isinstance(result, list) else result)
    components = {name: _position(flat, entry) for name, entry in entries.items()}
    state.insertions[marker] = Insertion(is_training, found, components)
    if dump_graph:
        os.makedirs(DUMP_DIRECTORY, exist_ok=True)
        tf.io.write_graph(tf.compat.v1.get_default_graph(), DUMP_DIRECTORY, DUMP_FILE,
                          as_text=False)
    return result


def _check_entry(spec: FeatureSpec, entry: tf.Tensor, is_training: bool,
                 state: GraphState) -> None:
    """Checks the tensor of one feature."""
    if spec.is_timestamp:
        if entry.shape.rank not in (None, 0):
            raise ValueError("the timestamp {!r} should be a scalar, but has the shape {}".format(
                spec.name, entry.shape))
        if entry.dtype not in (tf.int32, tf.int64):
            raise ValueError("the timestamp {!r} should be int64 seconds, but is {}".format(
                spec.name, entry.dtype.name))
        if is_training:
            if state.timestamp_spec not in (None, spec):
                raise EnvironmentError("there is a training timestamp already, {!r}; {!r} cannot "
                                       "be a second one".format(
                                           state.timestamp_spec.name, spec.name))
            state.timestamp_spec = spec
        return
    if not is_id_type(entry.dtype):
        raise ValueError("the entry {!r} of the feature {!r} should be of an integer or float "
                         "type, but is {}".format(spec.index_key, spec.name, entry.dtype.name))
    if not Settings.get_instance().use_static:
        return
    if entry.shape.rank == 0:
        raise ValueError("in static shape the entry {!r} of the feature {!r} cannot be a "
                         "scalar".format(spec.index_key, spec.name))


def _with_extra(batch: Any, holder: Any, extra: tf.Tensor) -> Any:
    """Returns a copy of the batch with the new entry."""
    if isinstance(batch, dict):
        return _dict_with_extra(batch, extra)
    if isinstance(holder, dict):
        parts = [_dict_with_extra(part, extra) if part is holder else part for part in batch]
        return type(batch)(parts) if type(batch) in (list, tuple) else tuple(parts)
    if isinstance(batch, list):
        return batch + [extra]
    return tuple(batch) + (extra,)


def _dict_with_extra(batch: Dict[Any, Any], extra: tf.Tensor) -> Dict[Any, Any]:
    last = sorted(batch, key=str)[-1] if batch else ""
    return dict(batch, **{"{}{}".format(last, EXTRA_SUFFIX): extra})


def _position(flat: List[Any], entry: tf.Tensor) -> int:
    return next(position for position, part in enumerate(flat) if part is entry)
