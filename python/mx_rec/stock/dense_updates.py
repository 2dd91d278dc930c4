"""Recognizes dense updates that are no more than updates of rows.

TensorFlow makes the gradient of a variable dense where a script converts it, and where the loss has
a penalty on all rows of the variable: tf.nn.l2_loss, or the sum of the squares or of the absolute
values. The first is an
update of the rows of the batch, if its optimizer leaves rows without a gradient where they are, or
moves them in its sparse form, too. The second becomes one if the penalty is to be that of the
batch's rows: other numbers than TensorFlow's, which are asked for by `StockTables.l2`.
"""

from typing import Any, Iterator, List, NamedTuple, Sequence, Set, Tuple

from mx_rec.stock.nodes import GATHERS, Nodes, Output, Stays, shape_of
from mx_rec.stock.options import BATCH_ROWS, StockTables
from mx_rec.stock.padding import GRADIENT, padded_gradients, padded_value
from mx_rec.stock.patterns import Search, op
from mx_rec.stock.updates import (ADAM, ADD, LAZY_ADAM, Decay, Form, Slices, Step, form_of,
                                  has_wrong_attribute, step_of)

_NO_INDICES = -1
_DENSE = {
    "ApplyGradientDescent": Form(ADD, {}, 2, _NO_INDICES, {"lr": 1}, {"weight_decay": 0.0}),
    "ApplyAdam": Form(ADAM, {"LazyAdam_momentum": 1, "LazyAdam_velocity": 2}, 9, _NO_INDICES,
                      {"beta1_power": 3, "beta2_power": 4, "lr": 5, "beta1": 6, "beta2": 7,
                       "epsilon": 8}, attributes=(("use_nesterov", False),)),
}
# Those that take what their sparse form takes, without the indices.
_DENSE.update(("Apply" + name, form._replace(indices=_NO_INDICES, numbers={
    number: at - int(at > form.indices) for number, at in form.numbers.items()}))
              for name, form in ((name, form_of("SparseApply" + name)) for name in (
                  "Adagrad", "Momentum", "Ftrl", "FtrlV2", "RMSProp", "CenteredRMSProp")))
_FORMS = dict(_DENSE)
_FORMS.update(("Resource" + name, form) for name, form in _DENSE.items())
# Optimizers whose sparse form gives rows without a gradient what the dense one gives them, and
# rows whose gradient is zero the same.
SAME_AS_SPARSE = (ADD, "adagrad", ADAM)
# What has no number of the graph that trains.
_SHOWS = ("ScalarSummary", "HistogramSummary", "TensorSummary", "TensorSummaryV2", "MergeSummary",
          "WriteSummary", "WriteScalarSummary", "WriteHistogramSummary")
# The gradients of penalties, what they are multiplied with, and whether that is a sign: of
# tf.nn.l2_loss v * g; of sums g, as large as v, times what an element changes by.
_DECAYS = tuple((op("Mul", *factors), factor, is_sign) for value, number, factor, is_sign in (
    ("variable", "number", 1.0, False),
    (op("Mul", "variable", 2, name="change"), op("Tile", "number"), 2.0, False),
    (op("Sign", "variable", name="change"), op("Tile", "number"), 1.0, True),
) for factors in ((value, number), (number, value)))


class Penalty(NamedTuple):
    """A penalty on a variable.

    Attributes:
        node: Name of the op that gives it.
        kind: Of which numbers it is the sum: "L2Loss", of the halved squares, "Square" or "Abs".
        inner: Names of the ops that are of no use without it.
    """

    node: str
    kind: str
    inner: Tuple[str, ...]


class DenseUpdates(NamedTuple):
    """What a graph does with one variable that is dense and can be done by rows.

    Attributes:
        steps: The updates.
        penalties: The penalties that are those of the rows of a batch.
        inner: Names of all ops that read or change the variable only for these.
    """

    steps: Sequence[Step] = ()
    penalties: Sequence[Penalty] = ()
    inner: Sequence[str] = ()

    @property
    def decays(self) -> bool:
        """Whether an update has the gradient of a penalty."""
        return any(step.decays for step in self.steps)


def dense_updates(nodes: Nodes, variable: Any, options: StockTables,
                  trains: bool) -> DenseUpdates:
    """Finds the dense updates of a variable that can be updates of rows, and its penalties.

    Args:
        nodes: The graph.
        variable: The variable's op.
        options: Whether penalties are to be those of the rows of a batch.
        trains: Whether the graph trains. Of one that does not, a penalty is what is computed from
            all rows and added to what lookups give.

    Raises:
        Stays: If a dense update is none of rows.
    """
    reads = list(_reads(nodes, variable))
    updates = [use.node for use in nodes.all_uses(variable)
               if use.position == 0 and use.node.op in _FORMS]
    steps, inner = [], []  # type: List[Step], List[str]
    for update in updates:
        step, decayed = _Match(nodes, {name for name, _ in reads}, update,
                               shape_of(variable)).step(options)
        steps.append(step)
        inner += [update.name] + decayed
    decays = [step for step in steps if step.decays]
    if len({tuple(one.indices for one in step.slices) for step in decays}) > 1:
        raise Stays("its gradients are dense, and its penalty is not for the same lookups in all "
                    "of its updates: {}".format(" and ".join(step.ops[0] for step in decays)))
    penalties = []  # type: List[Penalty]
    if options.l2 == BATCH_ROWS and (decays or not trains):
        penalties = [one for one in _penalties(nodes, reads)
                     if _is_added_to_lookups(nodes, variable, reads, one)]
        inner += [name for one in penalties for name in one.inner]
    return DenseUpdates(steps, penalties, inner)


class _Match:
    """Takes the gradient of a dense update apart.

    Args:
        nodes: The graph.
        reads: Names of the ops that give the variable's value.
        update: The update.
        shape: The sizes of the variable.
    """

    def __init__(self, nodes: Nodes, reads: Set[str], update: Any, shape: Sequence[int]) -> None:
        self._nodes = nodes
        self._shape = shape
        self._reads = reads
        self._update = update
        self._slices = []  # type: List[Slices]
        self._decays = []  # type: List[Decay]
        self._decayed = []  # type: List[str]

    def step(self, options: StockTables) -> Tuple[Step, List[str]]:
        """Returns the update of rows, and the names of the ops that read the variable for it."""
        update, form = self._update, _FORMS[self._update.op]
        plain = "its gradient is dense: {} updates it as a whole".format(update.name)
        inputs = self._nodes.inputs[update.name]
        if not self._takes(inputs[form.grad]) or not self._slices:
            raise Stays(plain)
        if self._decays and options.l2 != BATCH_ROWS:
            raise Stays("{}, because of the penalty on all of its rows whose gradient is {}. "
                        "StockTables(l2={!r}) would make it a table whose penalty is that of the "
                        "rows of a batch".format(plain, self._decayed[0], BATCH_ROWS))
        if not all(self._nodes.is_one(one.number) for one in self._decays):
            raise Stays(plain)
        if not self._decays and form.kind not in SAME_AS_SPARSE:
            raise Stays("{}, and {} also changes rows without a gradient".format(
                plain, form.kind))
        wrong = has_wrong_attribute(form, update)
        if wrong is not None:
            raise Stays("{} has {}, which tables do not".format(update.name, wrong))
        if self._nodes.all_uses(update):
            raise Stays("the result of the update {} is used".format(update.name))
        step = step_of(self._nodes, update, form)
        return step._replace(
            kind=LAZY_ADAM if form.kind == ADAM and options.lazy_adam else step.kind,
            moves_all=form.kind == ADAM and options.lazy_adam,
            grad=self._slices[0].values, indices=self._slices[0].indices, sums=True,
            subtracts=True, dense=inputs[form.grad], slices=tuple(self._slices),
            decays=tuple(self._decays)), self._decayed

    def _takes(self, output: Output) -> bool:
        """Takes a term of the gradient; returns whether it is known and nothing else reads it."""
        node = self._nodes.by_name.get(output[0])
        if node is None or output[1] != 0 or len(self._nodes.all_uses(node)) != 1:
            return False
        inputs = self._nodes.inputs[node.name]
        if node.op == "Identity":
            return self._takes(inputs[0])
        if node.op in ("AddN", "Add", "AddV2"):
            return all(self._takes(one) for one in inputs)
        if node.op == "UnsortedSegmentSum":
            self._slices.append(Slices(inputs[0], inputs[1], node.name))
            return True
        if node.op == GRADIENT:
            found = padded_gradients(self._nodes, node, self._shape)
            self._slices += [Slices(values, ids, node.name, True) for values, ids in found]
            return bool(found)
        return node.op == "Mul" and self._takes_decay(node)

    def _takes_decay(self, node: Any) -> bool:
        """Takes what may be the gradient of a penalty: a number times the variable or its signs."""
        for pattern, factor, is_sign in _DECAYS:
            search = Search(self._nodes, (), variable=[(name, 0) for name in self._reads])
            if not search.fits((node.name, 0), pattern):
                continue
            change, _ = search.tensors.get("change", (node.name, 0))
            if len(self._nodes.all_uses(self._nodes.by_name[change])) == 1:
                self._decays.append(Decay(search.tensors["number"], factor, is_sign))
                self._decayed += [node.name] + [change] * (change != node.name)
                return True
        return False


def _reads(nodes: Nodes, variable: Any) -> Iterator[Tuple[str, Any]]:
    """Yields the names of the ops that give a variable's value, and what reads it there.

    What waits before it reads may be to see what an update has made.
    """
    if variable.op == "VarHandleOp":
        starts = [use.node for use in nodes.all_uses(variable) if use.node.op == "ReadVariableOp"]
    else:
        starts = [variable]
    while starts:
        read = starts.pop()
        for use in nodes.all_uses(read) if not nodes.waits[read.name] else ():
            yield read.name, use
            if use.node.op == "Identity":
                starts.append(use.node)


def _penalties(nodes: Nodes, reads: Sequence[Tuple[str, Any]]) -> Iterator[Penalty]:
    """Yields the sums of squares and of absolute values of a variable."""
    for _, use in reads:
        node = use.node
        if node.op == "L2Loss":
            yield Penalty(node.name, node.op, (node.name,))
        elif node.op in ("Square", "Abs"):
            sums = [one.node for one in nodes.all_uses(node)]
            if len(sums) == 1 and sums[0].op == "Sum" and nodes.is_one((sums[0].name, 0)):
                yield Penalty(sums[0].name, node.op, (node.name,))


def _is_added_to_lookups(nodes: Nodes, variable: Any, reads: Sequence[Tuple[str, Any]],
                         penalty: Penalty) -> bool:
    """Whether something is computed from a penalty and from what lookups give.

    A number that is only shown is that of all rows.
    """
    uses = nodes.all_uses(variable) + [use for _, use in reads]
    padded = [padded_value(nodes, use.node, shape_of(variable)) for _, use in reads]
    uses += [use for value in padded if value is not None for use in nodes.all_uses(value)]
    gathers = [use.node for use in uses if use.position == 0
               and use.node.op in GATHERS]
    both = set(nodes.downstream(gathers)) & set(
        nodes.downstream([nodes.by_name[penalty.node]]))
    return any(nodes.by_name[name].op not in _SHOWS for name in both)
