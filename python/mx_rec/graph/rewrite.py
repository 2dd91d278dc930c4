"""Applies the plan of a modification to one iterator of the present graph."""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import tensorflow as tf

from mx_rec.cluster import modified as clusters
from mx_rec.cluster.ahead import with_next
from mx_rec.edits.replacing import forbid_feeding, in_place_of, replace_each
from mx_rec.edits.upstream import readings
from mx_rec.graph.plan import ONE_SHOT, SPLIT, TRAIN, Record
from mx_rec.graph.sessions import PIPELINE_SCOPE
from mx_rec.ops.lookups import Resolved, mark_movable, prepare, resolve
from mx_rec.tensorflow.graph_def import tensors_of
from mx_rec.tensorflow.names import MapDataset, dataset_ops

# Batches that are prepared ahead of the step. One hides the key work; more smooth out jitter.
# Rows of prepared batches wait in memory, so the number is small.
AHEAD = 4

# tf.data would rewrite the functions that it is given for eager execution.
_as_it_stands = tf.autograph.experimental.do_not_convert

_Prepared = Dict[str, Tuple[tf.Tensor, tf.Tensor]]


class Rewritten(NamedTuple):
    """An iterator after its rewrite.

    Attributes:
        initializers: The ops that start it: the user's own MakeIterator ops, or a new one for a
            one-shot iterator.
        components: The tensors of the user's element.
    """

    initializers: List[tf.Operation]
    components: List[tf.Tensor]


def rewrite(graph: tf.Graph, iterator: Record, lookups: Sequence[Record],
            requests: Sequence[Record], max_steps: int, pull_ahead: bool = False) -> Rewritten:
    """Moves the key work of an iterator's lookups into its pipeline.

    A new iterator stands in the place of the old one. Its elements are the old ones and, behind
    them, computed ids and the offsets and inverse indices of training lookups. Whatever read the
    old iterator reads the new one: ops of the graph, and the tensors that the script holds.

    Args:
        graph: The graph; no open session has run it.
        iterator: What the plan says of the iterator.
        lookups: Those of the plan's lookups that it feeds.
        requests: Which of these share requests to parameter servers.
        max_steps: Elements after which the new iterator ends, -1 for those of the dataset.
        pull_ahead: Whether rows of training are pulled from parameter servers a step ahead.

    Returns:
        How the iterator is started, and its element.
    """
    get_next = graph.get_operation_by_name(iterator.get_next)
    spec = tuple(tf.TensorSpec(output.shape, output.dtype) for output in get_next.outputs)
    shared, split = clusters.moving(graph, [one for one in lookups if one.kind == SPLIT],
                                    [one.nodes for one in requests], pull_ahead)
    own = [lookup for lookup in lookups if lookup.kind != SPLIT]
    extension = _Extension(graph, iterator, own, shared)
    with graph.as_default(), graph.control_dependencies(None), tf.device(_processor(get_next)), \
            tf.compat.v1.name_scope(PIPELINE_SCOPE + iterator.iterator + "/"):
        if iterator.kind == ONE_SHOT:
            sources = [_repeat(get_next)]
        else:
            sources = [dataset_ops._VariantDataset(  # pylint: disable=protected-access
                graph.get_operation_by_name(name).inputs[0], spec)
                       for name in iterator.initializers]
        datasets = [_ahead(source, extension, max_steps) for source in sources]
        element = datasets[0].element_spec
        flat = {"output_types": [part.dtype for part in tf.nest.flatten(element)],
                "output_shapes": [part.shape for part in tf.nest.flatten(element)]}
        resource = tf.raw_ops.IteratorV2(container="", shared_name="", name="iterator", **flat)
        values = tf.raw_ops.IteratorGetNext(iterator=resource, name="get_next", **flat)
        if iterator.kind == ONE_SHOT:
            variant = datasets[0]._variant_tensor  # pylint: disable=protected-access
            initializers = [tf.raw_ops.MakeIterator(dataset=variant, iterator=resource,
                                                    name="initializer")]
        else:
            initializers = [_restart(graph.get_operation_by_name(name), dataset, resource)
                            for name, dataset in zip(iterator.initializers, datasets)]
    components = list(get_next.outputs)
    own_components, extra, *ahead = tf.nest.pack_sequence_as(element, values)
    replace_each(get_next, own_components)
    computed, prepared = extra.computed, extension.prepared(extra)
    following = iter(ahead[0] if ahead else ())
    for work, outputs in zip(shared, extra.requests):
        behind = next(following) + tuple(ahead[1:]) if work.is_ahead else ()
        for op in clusters.take_over(work, outputs, behind):
            for initializer in initializers:
                initializer._add_control_input(op)  # pylint: disable=protected-access
    for lookup in split:
        if lookup.ids in computed:
            op = graph.get_operation_by_name(lookup.node)
            # pylint: disable=protected-access
            op._update_input(lookup.member, computed[lookup.ids])
    for lookup in own:
        _take_over(graph.get_operation_by_name(lookup.node), lookup, computed, prepared)
    for name in iterator.bags:
        _read_instead(graph.get_tensor_by_name(name), computed[name])
    _forbid_feeding(graph, iterator, components)
    return Rewritten(initializers, components)


class _Extra(NamedTuple):
    """What an element has beside its components.

    Attributes:
        computed: Ids, and what is computed with them, by the names of the tensors.
        prepared: For lookups of training by the same ids the offsets of each, and the inverse.
        requests: What the work for tables on parameter servers gives.
    """

    computed: Dict[str, tf.Tensor]
    prepared: Tuple[Tuple[Tuple[tf.Tensor, ...], tf.Tensor], ...]
    requests: Tuple[Tuple[tf.Tensor, ...], ...]


class _Extension:
    """The function that is mapped over the user's dataset."""

    def __init__(self, graph: tf.Graph, iterator: Record, lookups: Sequence[Record],
                 shared: Sequence[clusters.Moving]) -> None:
        self._iterator = iterator
        self._shared = shared
        self._moved = iterator.graph
        self._moved.versions.CopyFrom(graph.graph_def_versions)
        self._computed = [ids.tensor for ids in iterator.ids if ids.component is None]
        self._computed += iterator.bags
        training = [lookup for lookup in lookups if lookup.kind == TRAIN]
        self._handles = {lookup.node: graph.get_tensor_by_name(lookup.handle)
                         for lookup in training}
        self._limits = {lookup.node: graph.get_operation_by_name(lookup.node).get_attr("limit")
                        for lookup in training}
        # What is looked up by the same ids shares an inverse; they are made distinct once.
        sources = self._sources()
        types = {ids.tensor: ids.dtype for ids in iterator.ids}
        groups = OrderedDict()  # type: Dict[Any, Dict[Any, List[Record]]]
        for lookup in training:
            key = types[lookup.ids], self._limits[lookup.node]
            same = groups.setdefault(key, OrderedDict())
            same.setdefault(sources[lookup.ids], []).append(lookup)
        # One op for each of these prepares lookups by several ids.
        self._ops = [list(same.values()) for same in groups.values()]

    def _sources(self) -> Dict[str, Any]:
        """Returns for each ids tensor what is the same for all tensors that are one by identity."""
        nodes = {node.name: node for node in self._moved.node}
        found = {}  # type: Dict[str, Any]
        for ids in self._iterator.ids:
            name = ids.tensor
            while ids.component is None:
                node = nodes.get(name.split(":")[0])
                if node is None or node.op != "Identity" or len(node.input) != 1:
                    break
                name, = tensors_of(node)
            found[ids.tensor] = name if ids.component is None else ids.component
        return found

    def extend(self, *components: tf.Tensor) -> Tuple[Tuple[tf.Tensor, ...], _Extra]:
        """Returns the components, and what comes with them."""
        computed = {}  # type: Dict[str, tf.Tensor]
        ids = {one.tensor: components[one.component] for one in self._iterator.ids
               if one.component is not None}
        if self._computed:
            inputs = {"{}:{}".format(self._iterator.get_next, position): component
                      for position, component in enumerate(components)}
            used = {name for node in self._moved.node for name in tensors_of(node)}
            inputs = {name: value for name, value in inputs.items() if name in used}
            values = tf.import_graph_def(self._moved, input_map=inputs, name="ids",
                                         return_elements=self._computed)
            computed = dict(zip(self._computed, values))
            ids.update(computed)
        prepared = [one for sets in self._ops for one in self._prepare(sets, ids)]
        return components, _Extra(
            computed, tuple((tuple(offsets), inverse) for offsets, inverse in prepared),
            tuple(tuple(clusters.prepare(work, ids)) for work in self._shared))

    def with_next(self, dataset: Any) -> Any:
        """Returns a dataset of extended elements with the next requests, if rows are pulled ahead.

        Args:
            dataset: What `extend` was mapped to.
        """
        ahead = [(place, work) for place, work in enumerate(self._shared) if work.is_ahead]
        if not ahead:
            return dataset
        return with_next(dataset, lambda element: tuple(
            clusters.request_of(work, element[1].requests[place]) for place, work in ahead),
                         tuple(clusters.no_request(work) for _, work in ahead))

    def _prepare(self, sets: Sequence[Sequence[Record]], ids: Dict[str, tf.Tensor]
                 ) -> List[Tuple[List[tf.Tensor], tf.Tensor]]:
        """Adds the op that prepares lookups by some ids: for each ids offsets, and an inverse."""
        limit = self._limits[sets[0][0].node]
        handles = [[self._handles[lookup.node] for lookup in together] for together in sets]
        if len(sets) == 1:
            offsets, inverses = prepare(handles[0], [ids[sets[0][0].ids]], limit)
            return [(offsets, inverses[0])]
        # Ids that are the same are read as the same tensor, so that the op sees it.
        read = [ids[together[0].ids] for together in sets for _ in together]
        offsets, inverses = prepare(sum(handles, []), read, limit)
        found = []  # type: List[Tuple[List[tf.Tensor], tf.Tensor]]
        at = 0
        for together in sets:
            found.append((offsets[at:at + len(together)], inverses[at]))
            at += len(together)
        return found

    def prepared(self, extra: _Extra) -> _Prepared:
        """Returns offsets and inverse of what `extend` gave, by the names of lookups."""
        return {lookup.node: (offsets, inverse) for together, (every, inverse) in zip(
            [together for sets in self._ops for together in sets], extra.prepared)
                for lookup, offsets in zip(together, every)}


def _processor(op: tf.Operation) -> str:
    """The device of an op's process that has input pipelines."""
    spec = tf.DeviceSpec.from_string(op.device)
    return tf.DeviceSpec(job=spec.job, replica=spec.replica, task=spec.task, device_type="CPU",
                         device_index=0).to_string()


def _take_over(op: tf.Operation, lookup: Record, computed: Dict[str, tf.Tensor],
               prepared: _Prepared) -> None:
    """Makes a lookup in the step take what the pipeline gives; a training lookup claims it."""
    mark_movable(op, False)
    if lookup.kind != TRAIN:
        if lookup.ids in computed:
            position = [tensor.name for tensor in op.inputs].index(lookup.ids)
            op._update_input(position, computed[lookup.ids])  # pylint: disable=protected-access
        return
    offsets, inverse = prepared[lookup.node]
    with in_place_of(op):
        claimed = resolve([op.inputs[0]], [computed.get(lookup.ids, op.inputs[1])],
                          Resolved([offsets], [inverse]), limit=op.get_attr("limit"), name="claim")
    replace_each(op, claimed.of(0))


def _read_instead(bags: tf.Tensor, moved: tf.Tensor) -> None:
    """Makes pooled lookups and their updates read what the pipeline says of their bags."""
    moved.set_shape(bags.shape)
    for reader, position in readings(bags):
        if reader.type.startswith("MxRec"):
            reader._update_input(position, moved)  # pylint: disable=protected-access


def _forbid_feeding(graph: tf.Graph, iterator: Record, components: Sequence[tf.Tensor]) -> None:
    """Makes session.run refuse values for tensors from which the pipeline has computed ids.

    Lookups would not see such a value, while the rest of the step would. An attribute of the ops
    tells it to the graphs into which this one is imported.
    """
    for name in iterator.nodes:
        op = graph.get_operation_by_name(name)
        forbid_feeding(op, range(len(op.outputs)))
    read = {name for node in iterator.graph.node for name in tensors_of(node)}
    unfed = [component for position, component in enumerate(components)
             if "{}:{}".format(iterator.get_next, position) in read]
    if unfed:
        forbid_feeding(unfed[0].op, [component.value_index for component in unfed])


def _ahead(source: Any, extension: _Extension, max_steps: int) -> Any:
    """Returns the dataset of extended elements."""
    if max_steps >= 0:
        source = source.take(max_steps)
    return extension.with_next(source.map(_as_it_stands(extension.extend))).prefetch(AHEAD)


def _repeat(get_next: tf.Operation) -> Any:
    """Returns a dataset of the elements that a one-shot iterator still has."""
    resource = get_next.inputs[0]
    types = [output.dtype for output in get_next.outputs]
    shapes = [output.shape for output in get_next.outputs]

    def read(_: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        return tuple(tf.raw_ops.IteratorGetNext(iterator=resource, output_types=types,
                                                output_shapes=shapes))

    # The end of the iterator, an error OutOfRange of the function, is the end of the dataset.
    return MapDataset(tf.data.Dataset.from_tensors(0).repeat(),
                                  _as_it_stands(read), preserve_cardinality=False)


def _restart(initializer: tf.Operation, dataset: Any, resource: tf.Tensor) -> tf.Operation:
    """Makes the user's MakeIterator op start the new iterator on the new dataset."""
    # pylint: disable=protected-access
    initializer._update_input(0, dataset._variant_tensor)
    initializer._update_input(1, resource)
    return initializer
