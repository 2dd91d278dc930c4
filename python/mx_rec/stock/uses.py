"""What a graph does with one variable, use by use: what is not known keeps it TensorFlow's."""

import re
from typing import Any, List, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.ops.registered import only_computes
from mx_rec.stock import updates as forms
from mx_rec.stock.branches import is_shape_of_zeros
from mx_rec.stock.dense_updates import DenseUpdates
from mx_rec.stock.nodes import GATHERS, Nodes, Stays, Use, shape_of
from mx_rec.stock.padding import padded_value
from mx_rec.stock.values import constant_int

# Reads of the whole variable that are there only to be summarized are run when a summary is.
SUMMARIES = frozenset(("ScalarSummary", "HistogramSummary", "MergeSummary", "TensorSummary",
                        "TensorSummaryV2"))
_DENSE_UPDATE = re.compile(r"(Resource)?Apply[A-Z]")
_ASSIGNS = re.compile(r"Assign(Add|Sub)?(VariableOp)?$")
_SAME = ("Identity",)
# The names of what restores the values with which tf.train.init_from_checkpoint starts variables.
_STARTS = re.compile(r"(^|/)checkpoint_initializer(_[0-9]+)?$")
# How the names of values end in the checkpoints of tf.train.Checkpoint.
_OF_OBJECTS = b"/.ATTRIBUTES/VARIABLE_VALUE"
_CONTROL_FLOW = ("RefSwitch", "RefEnter", "Enter", "Switch", "If", "StatelessIf", "Case",
                 "StatelessCase", "While", "StatelessWhile")


class Uses:
    """What a graph does with one variable, gathered use by use."""

    def __init__(self, nodes: Nodes, variable: Any, adam: Sequence[forms.Step] = (),
                 dense: DenseUpdates = DenseUpdates(), was_run: bool = False) -> None:
        self.nodes = nodes
        self.was_run = was_run
        self.adam = adam
        self.dense = dense
        known = {name for step in adam for name in step.ops}.union(dense.inner)
        self.variable = variable
        self.gathers = []  # type: List[Any]
        self.snapshots = []  # type: List[Any]
        # Those of them in which id 0 gives zeros.
        self.padded = []  # type: List[Any]
        self.reads = []  # type: List[Any]
        self.whole = []  # type: List[Any]
        self.shapes = []  # type: List[Any]
        self.states = []  # type: List[Any]
        self.updates = []  # type: List[Tuple[Any, int]]
        self.assigns = []  # type: List[Any]
        self.starts = []  # type: List[Any]
        self.savers = []  # type: List[Any]
        self.changes = []  # type: List[Any]
        self.slot_changes = []  # type: List[Any]
        self.is_in_branches = False
        self.pivots = []  # type: List[Any]
        self.zeros = []  # type: List[Any]
        self.enters = []  # type: List[Any]
        self._known = known
        for use in nodes.all_uses(variable):
            if use.node.name not in known:
                self._of_variable(use)

    def _of_variable(self, use: Use) -> None:
        """Notes an op that has the variable itself (a reference or a handle) as an input."""
        node, kind = use.node, use.node.op
        if forms.form_of(kind) is not None:
            self.updates.append((node, use.position))
        elif kind in ("Assign", "AssignVariableOp") and use.position == 0:
            restores = self._restores(node)
            if restores is not None and _STARTS.search(restores.name):
                self.starts.append(node)
            (self.assigns if restores is None or node in self.starts
             else self.changes if self._is_by_objects(restores) else self.savers).append(node)
        elif kind in ("ScatterUpdate", "ResourceScatterUpdate") and use.position == 0 \
                and not self.nodes.all_uses(node):
            self.changes.append(node)
        elif kind in ("IsVariableInitialized", "VarIsInitializedOp"):
            self.states.append(node)
        elif kind == "VariableShape":
            self.shapes.append(node)
        elif kind == "ResourceGather" and use.position == 0:
            self._gather(node)
        elif kind == "ReadVariableOp":
            self.snapshots.append(node)
            self._of_value(node, node)
        elif kind == "DisableCopyOnRead":
            # Newer Savers read without a copy.
            self.savers.append(node)
        elif kind == "Switch" and use.position == 0 and self.variable.op == "VarHandleOp":
            self._of_branch(node, None)
        elif _DENSE_UPDATE.match(kind):
            raise Stays("its gradient is dense: {} updates it as a whole".format(node.name))
        elif kind in _CONTROL_FLOW:
            self.enters.append(node)
        elif self.variable.op == "VarHandleOp":
            raise Stays("{} ({}) uses it in a way that tables do not know".format(node.name, kind))
        elif kind in _SAME:
            self._of_value(node, node)
        else:
            self._value_use(use, None)

    def _of_branch(self, switch: Any, read: Any) -> None:
        """Notes what is done with a variable inside of branches.

        Args:
            switch: The op that gives it to a branch, or copies it there.
            read: The op that reads the whole value outside of branches, None of a handle.
        """
        for use in self.nodes.all_uses(switch):
            node, kind = use.node, use.node.op
            if kind in GATHERS and use.position == 0:
                self._gather(node)
                self.is_in_branches = True
            elif kind in ("Shape", "VariableShape"):
                is_of_zeros = is_shape_of_zeros(self.nodes, node)
                (self.zeros if is_of_zeros else self.shapes).append(node)
            elif kind == "Identity" and not self.nodes.all_uses(node):
                self.pivots.append(node)
            elif (kind == "Switch" and use.position == 0) or (kind == "Identity" and read):
                self._of_branch(node, read)
            elif read is not None:
                self._read_as_whole(read, node)
            elif kind == "ReadVariableOp":
                for other in self.nodes.all_uses(node):
                    self._read_as_whole(node, other.node)
            else:
                raise Stays("{} ({}) uses it inside of a branch".format(node.name, kind))

    def _of_value(self, read: Any, first: Any) -> None:
        """Notes what is done with a copy of the whole value."""
        for use in self.nodes.all_uses(read):
            if use.node.name in self._known:
                continue
            if use.node.op in _SAME and first.op in _SAME + ("ReadVariableOp",):
                self._of_value(use.node, first)
            else:
                self._value_use(use, read)

    def _value_use(self, use: Use, read: Any) -> None:
        """Notes an op that takes the whole value; `read` is the op that gives it."""
        node, kind = use.node, use.node.op
        if kind in GATHERS and use.position == 0:
            self._gather(node)
        elif kind == "Shape":
            self.shapes.append(node)
        elif kind == "SaveV2" and not (read is not None and self._is_by_objects(node)):
            self.savers.append(node)
        elif kind == "Switch" and use.position == 0 and read is not None:
            self._of_branch(node, read)
        elif read is not None and self._of_padded(node, read):
            pass
        elif read is None:
            raise Stays("{} ({}) reads or changes it as a whole".format(node.name, kind))
        else:
            self._read_as_whole(read, node)

    def _of_padded(self, rest: Any, read: Any) -> bool:
        """Notes what is done with the value that has zeros in the place of the first row; returns
        whether an op takes the other rows for one."""
        padded = padded_value(self.nodes, rest, shape_of(self.variable))
        if padded is None:
            return False
        # Ops that are made later may take it.
        self._add_read(read)
        for use in self.nodes.all_uses(padded):
            if use.node.op in GATHERS and use.position == 0:
                self._gather(use.node)
                self.padded.append(use.node)
            else:
                self._read_as_whole(read, use.node)
        return True

    def _add_read(self, read: Any) -> None:
        if all(read is not one for one in self.reads):
            self.reads.append(read)

    def _read_as_whole(self, read: Any, node: Any) -> None:
        """Notes that `node` takes the whole value, which `read` gives."""
        self._add_read(read)
        self.whole.append(node)

    def _gather(self, node: Any) -> None:
        if node.op == "GatherV2" and constant_int(self.nodes, node.name, 2) != 0:
            raise Stays("{} gathers along an axis that is not the first".format(node.name))
        if node.attr["batch_dims"].i:
            raise Stays("{} gathers batch by batch".format(node.name))
        if node.attr["Tindices"].type not in (tf.int32.as_datatype_enum,
                                              tf.int64.as_datatype_enum):
            raise Stays("{} gathers by ids of another type than int32 or int64".format(node.name))
        self.gathers.append(node)

    def steps(self) -> List[forms.Step]:
        """Returns the updates."""
        found = list(self.adam) + list(self.dense.steps)
        return found + [forms.step_of(self.nodes, update, forms.form_of(update.op))
                        for update, _ in self.updates]

    def _restores(self, assign: Any) -> Any:
        """Returns the op by which an assignment's value comes out of a checkpoint, or None."""
        name, _ = self.nodes.behind(self.nodes.inputs[assign.name][1])
        node = self.nodes.by_name.get(name)
        return node if node is not None and node.op == "RestoreV2" else None

    def _is_by_objects(self, node: Any) -> bool:
        """Whether tf.train.Checkpoint or a model of Keras saves or restores by an op.

        Theirs work on all rows, as ops do that are made later, where a session has run them.
        """
        names, _ = self.nodes.source(node.name, 1)
        return self.was_run and names is not None and names.op == "Const" and any(
            name.endswith(_OF_OBJECTS) for name in tf.make_ndarray(
                names.attr["value"].tensor).ravel())


def check_reads(uses: Uses) -> None:
    """Refuses variables that training reads as a whole.

    Summaries may read them, and what is only computed where it is fetched, such as the scores of
    all items in the graph that trains.
    """
    refused = []  # type: List[Tuple[bool, str]]
    for node in uses.whole:
        if node.op == "SaveV2":
            continue
        readers = uses.nodes.downstream([node]).values()
        ends = [one for one in readers if not uses.nodes.all_uses(one)
                and one.op not in SUMMARIES and not is_idle(one)]
        if not ends or (all(one is node or only_computes(one.op) for one in readers)
                        and not any(uses.nodes.waiting.get(one.name) for one in readers)):
            continue
        changed = [one for one in ends if _ASSIGNS.match(one.op)]
        refused.append((not changed or changed[0].op.startswith("AssignVariable"), "by {}{}".format(
            node.name, ", for {} ({})".format(changed[0].name, changed[0].op) if changed else "")))
    if refused:
        # What an average of all steps adds says more than what it starts with.
        raise Stays("it is also read as a whole, {}".format(
            min(refused, key=lambda one: one[0])[1]))


def check_snapshots(uses: Uses) -> None:
    """Refuses resource variables whose value is read before they change, and shown afterwards.

    What reads a table in the place of a gather, or of what a run fetches, reads it when it runs.
    """
    nodes = uses.nodes
    ops = {name for step in uses.steps() for name in step.ops}.union(
        one.name for one in uses.changes)

    def changed_behind(node: Any) -> Set[str]:
        return ops.intersection(nodes.downstream([node], waits=True))

    for read in [one for one in uses.snapshots if one.name not in ops]:
        changes = changed_behind(read)
        copies = [read]
        for copy in copies if changes else ():
            readers = [use.node for use in nodes.all_uses(copy)]
            copies.extend(one for one in readers if one.op in _SAME)
            # A penalty is that of the rows of the batch, which lookups have read.
            shown = [one for one in readers if one.op not in _SAME
                     and one.name not in uses.dense.inner and changed_behind(one) != changes]
            if not readers or nodes.waiting.get(copy.name):
                shown.append(copy)
            if shown:
                raise Stays("{} reads it before {} changes it, and {} ({}) shows what it was "
                            "before".format(read.name, min(changes), shown[0].name, shown[0].op))


def is_idle(node: Any) -> bool:
    """Whether an op that nothing reads only computes: nothing runs it unless it is fetched."""
    return node.op in ("Identity", "Shape", "Size", "Rank", "Cast", "Const")
