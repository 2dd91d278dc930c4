"""A GraphDef with its edges in both directions."""

import collections
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.ops.registered import only_computes

VARIABLES = ("VariableV2", "Variable", "VarHandleOp")

GATHERS = ("Gather", "GatherV2", "ResourceGather")

# (name of a node, number of its output).
Output = Tuple[str, int]


class Stays(Exception):
    """Why a variable stays TensorFlow's."""


class Use(NamedTuple):
    """A node that reads an output.

    Attributes:
        node: The node.
        position: Which of its inputs, control inputs not counted.
    """

    node: Any
    position: int


class Nodes:
    """The nodes of a graph.

    Args:
        graph_def: The graph; functions of its library count as unknown ops.
    """

    def __init__(self, graph_def: Any) -> None:
        self._graph_def = graph_def
        self._imported = tf.Graph()
        self._in_it = set()  # type: Set[str]
        self.by_name = {node.name: node for node in graph_def.node}  # type: Dict[str, Any]
        self._order = {name: at for at, name in enumerate(self.by_name)}
        self._uses = {}  # type: Dict[Output, List[Use]]
        self._readers = {}  # type: Dict[str, List[Use]]
        self.inputs = {}  # type: Dict[str, List[Output]]
        self.waits = {}  # type: Dict[str, List[str]]
        self.waiting = {}  # type: Dict[str, Set[str]]
        for node in graph_def.node:
            data = [parse(source) for source in node.input if not source.startswith("^")]
            self.inputs[node.name] = data
            self.waits[node.name] = [source[1:] for source in node.input if source.startswith("^")]
            for waited in self.waits[node.name]:
                self.waiting.setdefault(waited, set()).add(node.name)
            for position, output in enumerate(data):
                self._uses.setdefault(output, []).append(Use(node, position))
                self._readers.setdefault(output[0], []).append(Use(node, position))

    def uses(self, name: str, output: int = 0) -> List[Use]:
        """Returns what reads an output of a node, in the order of the graph."""
        return self._uses.get((name, output), [])

    def behind(self, output: Output, through: Sequence[str] = ("Identity",)) -> Output:
        """Returns the tensor of which another is a copy.

        Args:
            output: A tensor.
            through: The types of ops that copy.
        """
        while True:
            node = self.by_name.get(output[0])
            if node is None or node.op not in through or output[1] != 0:
                return output
            output = self.inputs[node.name][0]

    def all_uses(self, node: Any) -> List[Use]:
        """Returns what reads any output of a node."""
        return self._readers.get(node.name, [])

    def source(self, name: str, position: int) -> Tuple[Any, int]:
        """Returns the node and output that an input of a node reads; (None, 0) if it is absent."""
        inputs = self.inputs.get(name, [])
        if position >= len(inputs):
            return None, 0
        made_by, output = inputs[position]
        return self.by_name.get(made_by), output

    def upstream(self, starts: Iterable[str], waits: bool = False) -> Set[str]:
        """Returns the names of nodes and of all whose data these depend on, or that they wait for
        as well."""
        return set(self._before(starts, waits))

    def needed(self, starts: Iterable[str], wanted: Iterable[str]) -> Set[str]:
        """Returns which of some nodes others are, or depend on by their data.

        Args:
            starts: Names of the nodes that may depend on them.
            wanted: Their names.
        """
        left, found = set(wanted), set()  # type: Set[str], Set[str]
        for name in self._before(starts) if left else ():
            if name in left:
                left.discard(name)
                found.add(name)
                if not left:
                    break
        return found

    def _before(self, starts: Iterable[str], waits: bool = False,
                first: int = 0) -> Iterator[str]:
        """Yields nodes and all whose data they depend on, or that they wait for as well.

        They come in breadth: what is looked for is mostly near.

        Args:
            starts: Names of the nodes.
            waits: Whether those that a node waits for belong to it.
            first: Nodes that are in the graph before this place are left out.
        """
        seen = set(starts)
        waiting = collections.deque(seen)
        while waiting:
            name = waiting.popleft()
            yield name
            for source in [one for one, _ in self.inputs.get(name, ())] \
                    + (self.waits.get(name, []) if waits else []):
                if source not in seen and self._order.get(source, 0) >= first:
                    seen.add(source)
                    waiting.append(source)

    def gates(self, ops: Sequence[str]) -> Tuple[str, ...]:
        """Returns the ops that wait for some of others and do nothing: who waits for one of them
        waits for no more than the others do.

        `tf.group` makes one of the ops of an update. Inside of `tf.control_dependencies` it waits
        for what these wait for, too.

        Args:
            ops: Names of the others, all that a run needs of which it needs one.
        """
        own = set(ops)
        waiting = set().union(*[self.waiting.get(op, ()) for op in ops]) - own
        # Nodes are made after what they need. Loops, or another order, may hide a need.
        return tuple(name for name in sorted(waiting) if self.by_name[name].op == "NoOp" and all(
            one in own or only_computes(self.by_name[one].op)
            or one in self._before(ops, True, self._order[one]) for one in self.waits[name]))

    def downstream(self, starts: Iterable[Any], waits: bool = False) -> Dict[str, Any]:
        """Returns nodes and all that depend on their data, or wait for them as well, by name."""
        seen = {node.name: node for node in starts}  # type: Dict[str, Any]
        waiting = list(seen.values())
        while waiting:
            last = waiting.pop()
            found = [use.node for use in self.all_uses(last)]
            if waits:
                found += [self.by_name[name] for name in self.waiting.get(last.name, ())]
            for node in found:
                if node.name not in seen:
                    seen[node.name] = node
                    waiting.append(node)
        return seen

    def is_one(self, output: Output) -> bool:
        """Returns whether a tensor has one element, by the shape that TensorFlow infers."""
        try:
            self._import(output[0])
            shape = self._imported.get_tensor_by_name("{}:{}".format(*output)).shape
        except (KeyError, ValueError, tf.errors.OpError):
            return False
        return shape.is_fully_defined() and shape.num_elements() == 1

    def _import(self, name: str) -> None:
        """Makes a copy of a node, and of those whose data it depends on: an import of the graph
        takes seconds.

        Raises:
            ValueError, OpError: If TensorFlow does not take them.
        """
        copied = tf.compat.v1.GraphDef(versions=self._graph_def.versions)
        if not self._in_it:
            copied.library.CopyFrom(self._graph_def.library)
        missing = [one for one in self._before([name]) if one not in self._in_it]
        known = {}  # type: Dict[str, tf.Tensor]
        for one in missing:
            added = copied.node.add()
            added.CopyFrom(self.by_name[one])
            del added.input[:]
            for source in self.inputs[one]:
                tensor = "{}:{}".format(*source)
                added.input.append(tensor)
                if source[0] in self._in_it:
                    known[tensor] = self._imported.get_tensor_by_name(tensor)
            added.device = ""
            added.attr.pop("_class", None)
        with self._imported.as_default():
            tf.import_graph_def(copied, known, name="")
        self._in_it.update(missing)


def parse(source: str) -> Output:
    """Returns (node, output) that an input of a NodeDef names."""
    name, _, output = source.partition(":")
    return name, int(output) if output else 0


def attributes_of(node: Any) -> Dict[str, Any]:
    """Returns the attributes of a node that say what it computes, by their names."""
    return {name: value for name, value in node.attr.items() if not name.startswith("_")}


def shape_of(node: Any) -> Any:
    """Returns the attribute `shape` of a node as a list of sizes, None if it is not all known."""
    if "shape" not in node.attr or node.attr["shape"].shape.unknown_rank:
        return None
    sizes = [dim.size for dim in node.attr["shape"].shape.dim]
    return None if any(size < 0 for size in sizes) else sizes
