"""Puts other ops in the place of ops of a graph that no session has run."""

import collections
import contextlib
import re
from collections import OrderedDict
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.edits.replacing import kept, replace_each, replace_waiting
from mx_rec.edits.upstream import upstream

# Ops that cannot fail and change nothing: to wait for one is to wait for what it depends on.
_PURE = frozenset(("Const", "Identity", "NoOp", "Reshape", "Select", "Shape", "StridedSlice",
                   "Tile", "ZerosLike"))

# Ops that give a variable on, whose value an op in their place reads.
COPIES = ("Identity", "ReadVariableOp")

# The attribute of a graph that has what runs in the place of ops that changed a variable, by these.
INSTEAD = "_mx_rec_instead"

# The attribute of a Switch of a variable: the ops that run where its branches do.
_GATES = "_mx_rec_gates"

# The attribute of a graph that has the ops in the places of others, by these.
REPLACED = "_mx_rec_replaced"

# Where batches come from: a placeholder has to be fed, and the others go on to the next batch.
_SOURCE = re.compile(r"Placeholder(V2)?$|Iterator(V2)?GetNext|.*Dequeue|ReaderRead|.*PyFunc"
                     r"|(Map|OrderedMap)?Unstage")

# An op, what it takes and what it waits for.
Inputs = Tuple[tf.Operation, List[tf.Tensor], List[tf.Operation]]


def inputs_of(op: tf.Operation) -> Inputs:
    """Returns what an op takes and waits for.

    Args:
        op: The op.
    """
    return op, list(op.inputs), list(op.control_inputs)


def replace_output(old: tf.Operation, value: tf.Tensor) -> None:
    """As `replace_each`, and notes what stands in the place of `old`.

    Args:
        old: An op with one output.
        value: An output of another op, of the same type.
    """
    kept(old.graph, REPLACED)[old] = value.op
    replace_each(old, [value])


def replace_change(old: tf.Operation, new: tf.Operation,
                   replaced: Sequence[tf.Operation] = ()) -> None:
    """Puts an op in the place of one that changes a variable.

    Args:
        old: The op.
        new: The op that changes the table.
        replaced: All ops in whose place it is. If there are others than `old`, which do not wait
            for it, it does not run where a run asks for `old` alone.
    """
    replace_waiting(old, [new], replaced)
    kept(old.graph, REPLACED)[old] = new
    if len(replaced) < 2:
        run_instead(old, new)


def run_instead(old: tf.Operation, new: tf.Operation) -> None:
    """Has a run that asks for an op that changes a variable run another one.

    Args:
        old: The op.
        new: The op that changes the table.
    """
    kept(old.graph, INSTEAD)[old] = new


def change_of(op: tf.Operation) -> Optional[tf.Operation]:
    """Returns what stands in the place of an op that changes a variable, None without that."""
    return getattr(op.graph, INSTEAD, {}).get(op)


@contextlib.contextmanager
def in_place_of(op: tf.Operation, waits: Iterable[tf.Operation] = (),
                replaced: Iterable[str] = (), scope: Optional[str] = None,
                device: str = "") -> Iterator[None]:
    """Ops made inside belong to the branch or loop of `op` and wait for what it waits for.

    Args:
        op: The op that they replace.
        waits: What they wait for besides.
        replaced: Names of ops that are replaced too, which they do not wait for.
        scope: Their name scope; None is one of the op's.
        device: Their device, whatever device functions are in force; "" is the processor of the
            task that these give.
    """
    # pylint: disable=protected-access
    graph = op.graph
    context = op._get_control_flow_context()
    with graph.as_default(), graph.control_dependencies(None):
        if context is not None:
            context.Enter()
        try:
            gone = set(replaced)
            before = [wait for wait in OrderedDict.fromkeys(list(op.control_inputs) + list(waits))
                      if wait.name not in gone]
            with graph.control_dependencies(before), on_device(device), \
                    tf.compat.v1.name_scope((scope or op.name + "/table") + "/"):
                yield
        finally:
            if context is not None:
                context.Exit()


@contextlib.contextmanager
def on_device(device: str) -> Iterator[None]:
    """Ops made inside are on a device; see `in_place_of`."""
    if not device:
        with tf.device("/cpu:0"):
            yield
        return
    with tf.device(None), tf.device(device):
        yield


def forbid_dropped_feeds(graph: tf.Graph) -> None:
    """Refuses feeds of tensors that replaced ops needed, and the ops in their places do not.

    Such a feed would have no effect, or one on some of the ops that it is for. What batches come
    from may be fed: others may need it.
    """
    replaced = getattr(graph, REPLACED, {})
    needed = _needed_by(replaced)
    still = _needed_by(replaced.values())
    for op, by in needed.items():
        if by & ~still.get(op, 0) and op not in replaced \
                and not _SOURCE.match(op.type) and op.type != "PlaceholderWithDefault":
            for tensor in op.outputs:
                graph.prevent_feeding(tensor)


def _needed_by(ops: Iterable[tf.Operation]) -> Dict[tf.Operation, int]:
    """Returns, for ops and all that they need the data of, which of them do: a bit for each."""
    found = OrderedDict()  # type: Dict[tf.Operation, int]
    for number, op in enumerate(ops):
        found[op] = found.get(op, 0) | 1 << number
    order = _inputs_first(found)
    has_loop = any(op.type == "NextIteration" for op in order)
    while True:
        is_done = True
        for op in reversed(order):
            for tensor in op.inputs:
                before = found.get(tensor.op, 0)
                found[tensor.op] = before | found[op]
                is_done = is_done and found[tensor.op] == before
        if is_done or not has_loop:
            return found


def _inputs_first(ops: Iterable[tf.Operation]) -> List[tf.Operation]:
    """Returns ops and all that they need the data of, each behind its inputs but in loops."""
    order = []  # type: List[tf.Operation]
    seen = set()  # type: Set[tf.Operation]
    waiting = [(op, False) for op in ops]
    while waiting:
        op, is_done = waiting.pop()
        if is_done:
            order.append(op)
        elif op not in seen:
            seen.add(op)
            waiting.append((op, True))
            waiting.extend((tensor.op, False) for tensor in op.inputs if tensor.op not in seen)
    return order


def in_its_place(op: tf.Operation) -> tf.Operation:
    """Returns what stands in the place of an op, the op itself if nothing does."""
    return getattr(op.graph, REPLACED, {}).get(op, op)


def waits_instead(op: tf.Operation) -> bool:
    """Makes an op wait for what stands in the places of ops that it waits for.

    Args:
        op: An op that was made since those were replaced.

    Returns:
        Whether it waited for one.
    """
    # pylint: disable=protected-access
    waits = op.control_inputs
    instead = [change_of(one) or in_its_place(one) for one in waits]
    if instead == list(waits):
        return False
    op._remove_all_control_inputs()
    op._add_control_inputs(list(OrderedDict.fromkeys(instead)))
    return True


def depends(starts: Iterable[tf.Operation], others: Set[tf.Operation]) -> bool:
    """Returns whether ops are, depend on, or wait for any of some others."""
    return not others.isdisjoint(upstream(starts, control_inputs=True))


def waits_of_copy(tensor: tf.Tensor) -> List[tf.Operation]:
    """Returns what the copies of a variable wait for that a tensor is the last of.

    Args:
        tensor: The value of a variable, read by Identity or ReadVariableOp, or what an op gives
            that has changed it.
    """
    found = []  # type: List[tf.Operation]
    while True:
        op, change = tensor.op, change_of(tensor.op)
        if change is not None:
            return found + [change]
        if op.type == "Switch":
            found.append(gate_of(tensor))
        elif op.type not in COPIES:
            return found
        found.extend(op.control_inputs)
        tensor = op.inputs[0]


def gate_of(tensor: tf.Tensor) -> tf.Operation:
    """Returns an op that runs in the branch alone that an op gives a variable to.

    Args:
        tensor: An output of a Switch.
    """
    op = tensor.op
    if not hasattr(op, _GATES):
        with op.graph.as_default(), op.graph.control_dependencies(None), \
                op.graph.control_dependencies(op.control_inputs), \
                tf.compat.v1.name_scope(op.name + "/table/"), tf.device(op.inputs[1].device):
            ways = tf.raw_ops.Switch(data=op.inputs[1], pred=op.inputs[1])
            setattr(op, _GATES, [tf.identity(one, name="gate").op for one in ways])
    return getattr(op, _GATES)[tensor.value_index]


def waits_of_gather(op: tf.Operation) -> List[tf.Operation]:
    """Returns what a gather waits for by its inputs other than the ids, which are dropped with it.

    Args:
        op: A Gather, GatherV2 or ResourceGather. Inside of `tf.control_dependencies` TensorFlow
            lets the constant of its axis wait in its place.
    """
    return waits_of_copy(op.inputs[0]) + waits_between(op.inputs[2:], ())


def waits_between(last: Iterable[tf.Tensor], first: Iterable[tf.Tensor]) -> List[tf.Operation]:
    """Returns what ops of a chain wait for: an op in the place of all of them has to wait for it.

    TensorFlow makes the first op inside of `tf.control_dependencies` wait, and not those that read
    it. What optimizers do to gradients before the update is such a chain.

    Args:
        last: What the chain gives.
        first: What it takes; the op in its place takes the same.

    Returns:
        Ops, without those that only gate gradients.
    """
    ends = {tensor.op for tensor in first}
    chain = set(upstream(last, ends.__contains__)) - ends
    waits = {wait for op in chain for wait in op.control_inputs}
    return [wait for wait in sorted(waits, key=lambda op: op.name) if _holds_up(wait, ends)]


def _holds_up(wait: tf.Operation, ends: Set[tf.Operation]) -> bool:
    """Whether an op needs one that is more than a gate, and that none of `ends` needs.

    What `ends` need is looked through in breadth, since that is mostly near, and no further than
    to the first op that is wanted: ops are made after what they need. Loops are an exception: they
    may find a need too many.
    """
    wanted = set()  # type: Set[tf.Operation]
    seen, gates = {wait}, [wait]
    while gates:
        op = gates.pop()
        if op in ends:
            continue
        if op.type not in _PURE:
            wanted.add(op)
            continue
        sources = [tensor.op for tensor in op.inputs] + op.control_inputs
        gates.extend(source for source in sources if source not in seen)
        seen.update(sources)
    # pylint: disable=protected-access
    first = min((op._id for op in wanted), default=0)
    found, queue = set(ends), collections.deque(ends)
    while queue and wanted:
        op = queue.popleft()
        wanted.discard(op)
        for source in [tensor.op for tensor in op.inputs] + op.control_inputs:
            if source not in found and (source._id >= first or source.type == "Merge"):
                found.add(source)
                queue.append(source)
    return bool(wanted)


def forget_variables(graph: tf.Graph, names: List[str]) -> Dict[str, List[Any]]:
    """Removes variables from the collections that a Saver of all saves.

    In others a program finds by which variables to derive, and what to count, to log and to set.

    Args:
        graph: The graph.
        names: Names of the variables' ops.

    Returns:
        What was removed, by the key of the collection.
    """
    gone = set(names)
    removed = {}  # type: Dict[str, List[Any]]
    for key in (tf.compat.v1.GraphKeys.GLOBAL_VARIABLES,
                tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS):
        values = graph.get_collection_ref(key)
        kept = [value for value in values if variable_name(value) not in gone]
        if len(kept) != len(values):
            removed[key] = [value for value in values if variable_name(value) in gone]
            values[:] = kept
    return removed


def variable_name(value: Any) -> Optional[str]:
    """Returns the name of the op of a variable, None of anything else."""
    if isinstance(value, tf.Variable):
        try:
            return str(value.op.name)
        except (AttributeError, NotImplementedError, ValueError):
            return None
    return None
