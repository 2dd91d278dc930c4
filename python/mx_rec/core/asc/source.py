"""Where the ids of a FeatureSpec are: in the given batch, or at the iterator that yields it."""

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import tensorflow as tf

from mx_rec.core.asc.batches import check_dense, entry_of, holder_of
from mx_rec.state.feature_spec import FeatureSpec
from mx_rec.state.graph_state import GraphState, graph_state, outermost_graph

_GET_NEXT = ("IteratorGetNext", "IteratorGetNextSync")
_MAKE_ITERATOR = "MakeIterator"
_ONE_SHOT = "OneShotIterator"

# Datasets whose elements have the components of their input's elements, in the same order.
_KEEPS_COMPONENTS = frozenset([
    "AssertNextDataset", "AutoShardDataset", "BatchDataset", "BatchDatasetV2", "BytesProducedStats",
    "CacheDataset", "CacheDatasetV2", "FilterDataset", "IgnoreErrorsDataset",
    "LatencyStatsDataset", "MaxIntraOpParallelismDataset", "ModelDataset", "OptimizeDataset",
    "OptionsDataset", "PaddedBatchDataset", "PaddedBatchDatasetV2", "PrefetchDataset",
    "PrivateThreadPoolDataset", "RebatchDataset", "RepeatDataset", "SamplingDataset",
    "SetStatsAggregatorDataset", "ShardDataset", "ShuffleAndRepeatDataset", "ShuffleDataset",
    "ShuffleDatasetV2", "ShuffleDatasetV3", "SkipDataset", "SleepDataset", "SnapshotDataset",
    "TakeDataset", "TakeWhileDataset", "ThreadPoolDataset", "UnbatchDataset", "Identity",
    "ConcatenateDataset",
])
# Datasets whose function makes the datasets that their elements come from.
_FUNCTION_MAKES_DATASET = frozenset([
    "FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset",
    "ParallelInterleaveDatasetV2", "ParallelInterleaveDatasetV3",
])


class _Found(NamedTuple):
    """A marker of an insert function somewhere above an iterator.

    Attributes:
        marker: Its name.
        is_intact: Whether the components are still in the order that the function left them in.
    """

    marker: str
    is_intact: bool


def ids_of_spec(spec: FeatureSpec, is_training: bool, batch: Any, use_static: bool) -> tf.Tensor:
    """Finds the ids of a feature.

    Args:
        spec: The feature.
        is_training: Mode of the lookup.
        batch: Element of the dataset (dict, tuple or list), or None to search the graph for the
            iterator whose batches passed through the feature's insert function.
        use_static: Whether shapes are static.

    Returns:
        The ids' tensor.

    Raises:
        RuntimeError: If no insert function of that mode has read the feature (a lookup for
            evaluation or prediction needs none where the batch holds the ids), if batch is None in
            dynamic shape, or if the search does not find exactly one place.
        ValueError: If the entry of such a batch is not a dense tensor.
        KeyError: If the batch has no entry for the feature.
    """
    state = graph_state()
    if _is_served(spec, is_training, batch, state):
        return check_dense(entry_of(batch, spec.index_key),
                           "the entry {!r}".format(spec.index_key))
    if not state.insertions_of(spec, is_training):
        mode = "training" if is_training else "evaluation"
        other = state.insertions_of(spec)
        raise RuntimeError(
            "the feature {!r} was not read by an insert function for {}{}. Map "
            "get_asc_insert_func([spec, ...], is_training={}) over the dataset before the "
            "lookup.".format(spec.name, mode, ", but by one of the other mode" if other else "",
                             is_training))
    if batch is not None:
        return entry_of(batch, spec.index_key)
    if not use_static:
        raise RuntimeError("the lookup of the feature {!r} needs batch= in dynamic shape: pass the "
                           "element of the dataset that it belongs to.".format(spec.name))
    return _search(spec, is_training, state)


def _is_served(spec: FeatureSpec, is_training: bool, batch: Any, state: GraphState) -> bool:
    """Whether a lookup for prediction has its ids in a batch that no insert function has read.

    So it is in graphs for export, whose batch is placeholders, and in graphs of their own for
    prediction. An insert function that has read the feature has to be one of the lookup's mode.
    """
    return not is_training and not state.insertions_of(spec) \
        and batch is not None and holder_of(batch, spec.index_key) is not None


def timestamp_of_spec(spec: FeatureSpec, batch: Any, use_static: bool) -> Optional[tf.Tensor]:
    """Finds the timestamp of the training batch that a feature is part of.

    Args:
        spec: The feature, not the timestamp's.
        batch: As `ids_of_spec`.
        use_static: As `ids_of_spec`.

    Returns:
        The timestamp's tensor; None if no insert function read it together with the feature, or
        the batch does not hold it any more.

    Raises:
        RuntimeError: As `ids_of_spec`.
    """
    state = graph_state()
    stamp = state.timestamp_spec
    if stamp is None or not any(stamp.name in insertion.components
                                for insertion in state.insertions_of(spec, True)):
        return None
    if batch is not None and holder_of(batch, stamp.index_key) is None:
        return None
    return ids_of_spec(stamp, True, batch, use_static)


def _search(spec: FeatureSpec, is_training: bool, state: GraphState) -> tf.Tensor:
    """Finds the output of the one IteratorGetNext that yields the feature."""
    graph = outermost_graph()
    markers = {marker for marker, insertion in state.insertions.items()
               if insertion.is_training == is_training and spec.name in insertion.components}
    places = []  # type: List[Tuple[tf.Operation, int]]
    moved = False
    for op in graph.get_operations():
        if op.type not in _GET_NEXT:
            continue
        for found in _markers_above(op, state):
            if found.marker in markers:
                moved = moved or not found.is_intact
                place = (op, state.insertions[found.marker].components[spec.name])
                if place not in places:
                    places.append(place)
    if len(places) == 1 and not moved:
        op, component = places[0]
        if component < len(op.outputs):
            return op.outputs[component]
    if not places:
        reason = "no iterator of the graph yields batches of its insert function"
    elif moved:
        reason = "the dataset changes its batches after the insert function"
    else:
        reason = "several places in the graph yield it"
    raise RuntimeError("the ids of the feature {!r} cannot be found: {}. Pass batch= to "
                       "sparse_lookup, the element of the dataset that the ids belong to.".format(
                           spec.name, reason))


def _markers_above(get_next: tf.Operation, state: GraphState) -> Set[_Found]:
    """Returns the markers above one IteratorGetNext."""
    iterator = get_next.inputs[0].op
    library = _Functions(get_next.graph, state)
    if iterator.type == _ONE_SHOT:
        factory = iterator.get_attr("dataset_factory").name
        return set(library.markers_of_result(factory, True))
    found = set()  # type: Set[_Found]
    for consumer in iterator.outputs[0].consumers():
        if consumer.type == _MAKE_ITERATOR:
            found.update(library.markers_above(consumer.inputs[0].op.name, True))
    return found


class _Functions:
    """The search through dataset ops and the bodies of their functions."""

    def __init__(self, graph: tf.Graph, state: GraphState) -> None:
        self._graph = graph
        self._state = state
        self._bodies = {}  # type: Dict[str, Any]

    def markers_of_result(self, name: str, intact: bool) -> Iterator[_Found]:
        """Yields the markers above the dataset that a function returns."""
        body = self._body(name)
        if body is None:
            return
        nodes = {node.name: node for node in body.node_def}
        for result in body.ret.values():
            yield from self.markers_above(result, intact, nodes.get)

    def markers_above(self, source: str, intact: bool,
                      find: Optional[Callable[[str], Any]] = None) -> Iterator[_Found]:
        """Yields the markers at and above a dataset.

        Args:
            source: Its name, or that of a tensor of it.
            intact: Whether its components are still in their order.
            find: Gives NodeDefs of what it is in by their names; None: those of the graph.
        """
        node = (find or self._dataset)(source.split(":")[0])
        if node is None:
            return
        functions = [node.attr[key].func.name for key in ("f", "dataset_factory")
                     if key in node.attr and node.attr[key].HasField("func")]
        markers = [marker for name in functions for marker in self._markers_in(name)]
        if markers:
            yield from (_Found(marker, intact) for marker in markers)
            return
        if node.op in _FUNCTION_MAKES_DATASET:
            for name in functions:
                yield from self.markers_of_result(name, intact)
        for name in node.input:
            if not name.startswith("^"):
                yield from self.markers_above(name, intact and node.op in _KEEPS_COMPONENTS, find)

    def _dataset(self, name: str) -> Any:
        """Returns the NodeDef of an op of the graph that gives a dataset, None of others."""
        op = self._graph.get_operation_by_name(name)
        return op.node_def if any(one.dtype == tf.variant for one in op.outputs) else None

    def _markers_in(self, name: str) -> List[str]:
        """Returns the markers that a function holds in its own body."""
        body = self._body(name)
        if body is None:
            return []
        names = [node.name.split("/")[-1] for node in body.node_def if node.op == "Identity"]
        return [marker for marker in names if marker in self._state.insertions]

    def _body(self, name: str) -> Optional[Any]:
        if name not in self._bodies:
            function = self._graph._get_function(name)  # pylint: disable=protected-access
            self._bodies[name] = None if function is None else function.definition
        return self._bodies[name]
