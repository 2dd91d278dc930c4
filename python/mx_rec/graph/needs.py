"""Runs that need less than what fused and joined lookups do, or more.

Lookups that share an op do so because the ends of the graph need them together. A run may fetch
what lies between: the rows of one of them, or what is computed from these. Where sums over bags are
fused, a step does not compute the rows of each id, which a run may fetch beside an update that
changes them. Such a run computes what it needs by ops as they were before the pass, which are added
to the graph when the first run needs them: no run needs more than before, makes more rows, or reads
rows at another time.
"""

from collections import OrderedDict
from typing import (Any, Container, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple,
                    Union)

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from mx_rec.base.log import logger
from mx_rec.edits.replacing import FUSED_ATTRIBUTE, extending, extensible
from mx_rec.edits.upstream import downstream, upstream
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.nodes import Nodes
from mx_rec.tensorflow.graph_def import tensors_of, waits_of
from mx_rec.tensorflow.names import control_flow_util

# The ops that change rows begin so.
_UPDATES = ("MxRecUpdate", "MxRecWriteRows", "MxRecAssign", "MxRecRemove")

# What makes the arrays and stacks by which a loop hands on what its turns compute.
_MAKERS = frozenset(("StackV2", "TensorArrayGradV3", "TensorArrayV3"))

# Name scope of the ops as they were.
_SCOPE = "mx_rec_unfused"

_Fetched = Union[tf.Tensor, tf.Operation]
# The names of what a run fetches and of what it is fed.
_Signature = Tuple[FrozenSet[str], FrozenSet[str]]


class Needs:
    """What the runs of a graph need of its fused and joined lookups.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._joined = []  # type: List[tf.Operation]
        self._replaced = set()  # type: Set[tf.Operation]
        self._before = None  # type: Optional[_Before]
        self._known = {}  # type: Dict[Tuple[_Signature, bool], Dict[str, _Fetched]]

    def remember(self, before: bytes, lookups: Iterable[str]) -> None:
        """Remembers the graph as it is now, before it is changed.

        Args:
            before: Its serialized GraphDef.
            lookups: The names of the ops that are going to be changed.
        """
        if self._before is None:
            self._before = _Before(self._graph)
        self._before.add(before, lookups)

    def end(self, joined: Iterable[tf.Operation], replaced: Iterable[tf.Operation]) -> None:
        """Notes that the graph was changed.

        Args:
            joined: The ops that do the work of several lookups.
            replaced: The updates whose work others do.
        """
        self._joined.extend(joined)
        self._replaced.update(replaced)
        self._known.clear()
        if self._before is not None:
            self._before.last = self._graph.version

    def instead(self, fetched: Sequence[_Fetched], fed: Iterable[tf.Tensor],
                is_in_parts: bool = False) -> Dict[str, _Fetched]:
        """Returns what a run fetches in the place of what it was given.

        Args:
            fetched: The tensors and ops that a run fetches.
            fed: The tensors that it is fed.
            is_in_parts: Whether they are fetched and fed bit by bit: no lookup may wait for what
                another one is fed.

        Returns:
            By the names of fetched tensors and ops others; empty for a run that needs all that its
            lookups do.

        Raises:
            ValueError: If the run needs rows of single ids beside an update of their table, and the
                graph was modified elsewhere or has grown since.
        """
        fed = list(fed)
        signature = frozenset(one.name for one in fetched), frozenset(one.name for one in fed)
        key = signature, is_in_parts
        if key not in self._known:
            self._known[key] = self._decide(fetched, fed, is_in_parts)
        return self._known[key]

    def _decide(self, fetched: Sequence[_Fetched], fed: Sequence[tf.Tensor],
                is_in_parts: bool) -> Dict[str, _Fetched]:
        given = {tensor.name for tensor in fed}
        needed = needed_by(fetched, given)
        conflict = self._conflict(needed, given)
        if conflict is None and self._replaced.isdisjoint(needed) \
                and needed.isdisjoint(self._joined if is_in_parts else ()) \
                and not self._has_idle_lookups(fetched, needed, given):
            return {}
        instead = None
        if self._before is not None:
            instead = self._before.copy(fetched, fed)
            # These ops stay as they are.
            graph_state(self._graph).passed = self._graph.version
        if conflict is not None:
            # What needs these rows may have been there before all that was changed.
            now = [(instead or {}).get(one.name, one) for one in fetched]
            conflict = self._conflict(needed_by(now, given), given)
        if conflict is not None:
            raise ValueError(
                "{!r} needs the rows of single ids, which are not computed in this step since "
                "their sums over bags are fused; nothing orders them before the update {!r} of the "
                "same run. Fetch them in a run without updates, or call init(graph_pass=False) "
                "where the graph is modified (for a converted variable: leave its name out of "
                "init(stock_tables=...)).".format(*conflict))
        return instead or {}

    def _conflict(self, needed: Set[tf.Operation], given: Set[str]) -> Optional[Tuple[str, str]]:
        """The names of what needs rows of single ids, and of the update of their table."""
        kept = [op for op in needed
                if op.type.startswith("MxRec") and FUSED_ATTRIBUTE in op.node_def.attr]
        needing = {op: next((reader.name for position in op.get_attr(FUSED_ATTRIBUTE)
                             for reader in op.outputs[position].consumers()
                             if reader in needed and op.outputs[position].name not in given),
                            op.name) for op in kept}
        for op, reader in needing.items():
            handles = {handle.op.name for handle in op.inputs if handle.op.type == "MxRecTable"}
            for update in needed:
                if update.type.startswith(_UPDATES) \
                        and any(one.op.name in handles for one in update.inputs):
                    return reader, update.name
        return None

    def _has_idle_lookups(self, fetched: Sequence[_Fetched], needed: Set[tf.Operation],
                          given: Set[str]) -> bool:
        """Whether the run needs some of the lookups of an op and not the others."""
        names = {one.name for one in fetched}
        for op in self._joined:
            if op not in needed or op.name in names:
                continue
            members = op.get_attr("N")
            used = {output.value_index % members for output in op.outputs
                    if output.name not in given and (output.name in names or any(
                        reader in needed for reader in output.consumers()))}
            if 0 < len(used) < members:
                return True
        return False


class _Before:
    """A graph as it was, as far as what depends on lookups that were changed goes.

    Args:
        graph: The graph.

    Attributes:
        last: The version of the graph when it was changed; what is newer the script has added.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self.last = 0
        # What was added first, of which nothing is read before a run needs it.
        self._unread = None  # type: Optional[Tuple[bytes, Set[str]]]
        # The outputs whose objects had become those of other ops by then.
        self._moved = set()  # type: Set[str]
        self._versions = None  # type: Optional[Any]
        self._nodes = {}  # type: Dict[str, node_def_pb2.NodeDef]

    def add(self, definition: bytes, lookups: Iterable[str]) -> None:
        """Adds what depends on some lookups, which are going to be changed.

        Args:
            definition: The serialized GraphDef.
            lookups: The names of the lookups.
        """
        if not self._nodes and self._unread is None:
            self._unread = definition, set(lookups)
            self._moved = {"{}:{}".format(op.name, place) for op in self._graph.get_operations()
                           for place, tensor in enumerate(op.outputs) if tensor.op is not op}
            return
        self._read()
        were = self._were()
        added = set(_below(graph_pb2.GraphDef.FromString(definition), lookups))
        for name in added.difference(self._nodes):
            self._add(self._graph.get_operation_by_name(name), were)

    def _add(self, op: tf.Operation, were: Dict[str, str]) -> None:
        """Adds an op that was made later."""
        self._nodes[op.name] = _node_of(op, were)
        for place, tensor in enumerate(op.outputs):
            name = "{}:{}".format(op.name, place)
            if tensor.op is op:
                were[name] = name
            else:
                self._moved.add(name)

    def _read(self) -> None:
        # Threads may come at once.
        with extending:
            if self._unread is not None:
                definition, lookups = self._unread
                before = graph_pb2.GraphDef.FromString(definition)
                self._versions = before.versions
                self._nodes.update(_below(before, lookups))
                self._unread = None

    def _were(self) -> Dict[str, str]:
        """The names that tensors had before, by those that they have: an op still lists the objects
        that its outputs were, which become the tensors that take their places."""
        found = {}  # type: Dict[str, str]
        for name in self._nodes:
            for place, tensor in enumerate(self._graph.get_operation_by_name(name).outputs):
                before = "{}:{}".format(name, place)
                if before not in self._moved:
                    found[tensor.name] = before
        return found

    def _adopt(self, op: tf.Operation, were: Dict[str, str]) -> bool:
        """Takes an op that was added later for one of before, with all that it is computed from.

        Returns:
            Whether it depends on the lookups; False also if it is computed from what the change of
            the graph has made, and by which nothing stood before.
        """
        depends = False
        for tensor in op.inputs:
            depends |= tensor.name in were or self._is_newer(tensor.op) \
                and self._adopt(tensor.op, were)
        for waited in op.control_inputs:
            depends |= waited.name in self._nodes or self._is_newer(waited) \
                and self._adopt(waited, were)
        if depends and op.name not in self._nodes:
            self._add(op, were)
        return depends

    def _is_newer(self, op: tf.Operation) -> bool:
        # pylint: disable=protected-access
        return op._id > self.last and not op.name.startswith(_SCOPE)

    def copy(self, fetched: Sequence[_Fetched],
             fed: Sequence[tf.Tensor]) -> Optional[Dict[str, _Fetched]]:
        """Adds the ops as they were that some fetches need.

        Args:
            fetched: Tensors and ops.
            fed: Tensors that are given.

        Returns:
            By the names of those that depend on the lookups what to fetch in their place; None if
            none does by what the graph had before, or has got later.
        """
        self._read()
        were = self._were()
        given = {were[tensor.name]: tensor for tensor in fed if tensor.name in were}
        wanted = OrderedDict()  # type: Dict[str, str]
        for one in fetched:
            if isinstance(one, tf.Operation):
                if one.name in self._nodes:
                    wanted[one.name] = one.name
                elif self._is_newer(one) and self._adopt(one, were):
                    wanted[one.name] = one.name
            elif one.name in were or self._is_newer(one.op) and self._adopt(one.op, were):
                wanted[one.name] = were[one.name]
        # What is computed by both would read rows at different times.
        present = {self._graph.get_operation_by_name(_op_name(name)) for name in were}
        others = [one for one in fetched if one.name not in wanted]
        if not wanted or not present.isdisjoint(
                needed_by(others, {tensor.name for tensor in fed})):
            return None
        nodes = self._needed(wanted.values(), given)
        self._take_loops(nodes, were, given)
        if any(FUSED_ATTRIBUTE in node.attr for node in nodes.values()):
            return None
        return self._copied(nodes, wanted, given)

    def _copied(self, nodes: Dict[str, node_def_pb2.NodeDef], wanted: Dict[str, str],
                given: Dict[str, tf.Tensor]) -> Dict[str, _Fetched]:
        """Adds ops as they were; returns those in the places of what is wanted."""
        part = graph_pb2.GraphDef(versions=self._versions)
        inputs = {}  # type: Dict[str, tf.Tensor]
        waits = []  # type: List[Tuple[str, str]]
        for name, before in nodes.items():
            node = part.node.add()
            node.CopyFrom(before)
            for attribute in ("_class", "_output_shapes"):
                node.attr.pop(attribute, None)
            if "frame_name" in node.attr:
                # A loop of the same frame may be in the same run.
                frame = "{}/{}_{}".format(node.attr["frame_name"].s.decode("utf-8"), _SCOPE,
                                          self._graph.version)
                node.attr["frame_name"].s = frame.encode("utf-8")
            inputs.update((source, given.get(source, self._graph.get_tensor_by_name(source)))
                          for source in tensors_of(before)
                          if source in given or _op_name(source) not in nodes)
            waits.extend((name, waited) for waited in waits_of(before) if waited not in nodes)
            node.input[:] = tensors_of(before) + [
                "^" + waited for waited in waits_of(before) if waited in nodes]
        with extensible(self._graph):
            found = tf.import_graph_def(part, inputs, list(wanted.values()), name=_SCOPE)
            # What import_graph_def has made is told by the first of its ops: the scope is before.
            scope = found[0].name[:-len(next(iter(wanted.values())))]
            for name, waited in waits:
                op = self._graph.get_operation_by_name(scope + name)
                # pylint: disable=protected-access
                op._add_control_input(self._graph.get_operation_by_name(waited))
        logger.info("graph pass: a run that fetches %s computes it by %d ops of its own, as the "
                    "graph was before.", ", ".join(wanted), len(part.node))
        return dict(zip(wanted, found))

    def _take_loops(self, nodes: Dict[str, node_def_pb2.NodeDef], were: Dict[str, str],
                    given: Dict[str, tf.Tensor]) -> None:
        """Adds the ops of loops of which some nodes are a part: a loop is copied whole.

        So is what uses the arrays and stacks of one: the loop itself may be in the same run, and
        an element is read or popped once.
        """
        fed = {tensor.name for tensor in given.values()}
        waiting = list(nodes.values())

        def take(op: tf.Operation) -> None:
            # What is no node was there before, under its name of then.
            nodes[op.name] = self._nodes.get(op.name) or _node_of(op, were)
            waiting.append(nodes[op.name])

        while waiting:
            makers = set()  # type: Set[tf.Operation]
            while waiting:
                node = waiting.pop()
                sources = [one for one in tensors_of(node) if one not in given] + waits_of(node)
                for name in map(_op_name, sources):
                    op = self._graph.get_operation_by_name(name)
                    if name in nodes:
                        continue
                    if name not in self._nodes and op.type in _MAKERS:
                        makers.add(op)
                    if name in self._nodes or control_flow_util.IsInWhileLoop(op):
                        take(op)
            if makers:
                outside = [self._graph.get_tensor_by_name(source) for node in nodes.values()
                           for source in tensors_of(node)
                           if source not in given and _op_name(source) not in nodes]
                for op in needed_by(outside, fed).intersection(downstream(makers, True)):
                    if op.name not in nodes and op.name not in self._nodes:
                        take(op)

    def _needed(self, names: Iterable[str],
                given: Dict[str, tf.Tensor]) -> Dict[str, node_def_pb2.NodeDef]:
        """The nodes that some tensors and ops need, without those that only give what is fed."""
        found = {}  # type: Dict[str, node_def_pb2.NodeDef]
        waiting = list(names)
        while waiting:
            source = waiting.pop()
            name = _op_name(source)
            if source not in given and name not in found and name in self._nodes:
                found[name] = self._nodes[name]
                waiting.extend(tensors_of(found[name]) + waits_of(found[name]))
        return found


def _node_of(op: tf.Operation, were: Dict[str, str]) -> node_def_pb2.NodeDef:
    """The node of an op, whose inputs have the names of before."""
    node = node_def_pb2.NodeDef()
    node.CopyFrom(op.node_def)
    node.input[:] = [were.get(tensor.name, tensor.name) for tensor in op.inputs] + [
        "^" + waited.name for waited in op.control_inputs]
    return node


def has_fused(graph: tf.Graph) -> bool:
    """Returns whether rows of single ids are kept beside their sums.

    Args:
        graph: Any graph.
    """
    return any(op.type.startswith("MxRec") and FUSED_ATTRIBUTE in op.node_def.attr
               for op in graph.get_operations())


def needed_by(fetched: Iterable[_Fetched], given: Container[str] = ()) -> Set[tf.Operation]:
    """Returns the ops that a run needs, with those that it fetches.

    Args:
        fetched: Tensors and ops.
        given: Names of tensors that are fed, which need none.
    """
    return set(upstream(fetched, control_inputs=True, given=given))


def _below(definition: graph_pb2.GraphDef, roots: Iterable[str]) -> Dict[str, Any]:
    """The nodes of some names, and those that depend on them, by their names."""
    nodes = Nodes(definition)
    return nodes.downstream([nodes.by_name[name] for name in roots], waits=True)


def _op_name(tensor: str) -> str:
    return tensor.split(":")[0]
