"""Recognizes the sparse updates of Adam and its like, which are several ops.

    | optimizer | its sparse form |
    |---|---|
    | tf.train.AdamOptimizer, Keras' Adam | decays the moments of all rows, and moves all rows |
    | contrib's AdamWOptimizer | decays the rows of the batch before that |
    | contrib's NadamOptimizer, Keras' Nadam | decays the moments of all rows |
    | contrib's LazyAdamOptimizer and AdaMaxOptimizer, Keras' Adamax | has rows of the batch alone |
    | EasyRec's AdamOptimizerS | the same as LazyAdamOptimizer, by other ops |
"""

from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from mx_rec.edits.wiring import COPIES
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.stock import updates as forms
from mx_rec.stock.nodes import VARIABLES, Nodes, Output
from mx_rec.stock.values import affine_value, constant_int

_GATHERS = ("Gather", "GatherV2", "ResourceGather")
_ADDS = ("ScatterAdd", "ResourceScatterAdd")


class AdamStep(NamedTuple):
    """An update of a variable by Adam or its like.

    Attributes:
        step: The update of rows that takes its place.
        is_lazy: Whether TensorFlow's rule is that of the step, and none that moves all rows.
        inner: Names of the ops that are of no use without it.
    """

    step: forms.Step
    is_lazy: bool
    inner: Set[str]


class Refused(Exception):
    """Why tables cannot have an update that is known."""


class _No(Exception):
    """The ops are not those of Adam."""


class _Op(NamedTuple):
    """An op of a formula.

    Attributes:
        kinds: The types that it may have.
        of: What it takes: ops, the names of tensors, or 1; a single one is all of its inputs.
        is_own: Whether it is of the update, and nothing else may read it.
        name: Of its result, "" without.
    """

    kinds: Tuple[str, ...]
    of: Tuple[Any, ...]
    is_own: bool = True
    name: str = ""


def _sum(one: Any, other: Any, name: str = "") -> _Op:
    return _Op(("Add", "AddV2"), (one, other), name=name)


def _product(one: Any, other: Any) -> _Op:
    return _Op(("Mul",), (one, other))


def _quotient(above: Any, below: Any) -> _Op:
    return _Op(("RealDiv",), (above, below))


def _number(kind: str, *of: Any) -> _Op:
    """A number of the optimizer, which others may read."""
    return _Op((kind,), of, False)


def _rest(beta: str) -> _Op:
    return _number("Sub", 1, beta)


def _moved(rate: Any, moment: Any, squares: Any) -> _Op:
    """What is added to rows."""
    return _quotient(_product(_number("Neg", rate), moment), _below(squares))


def _below(squares: Any) -> _Op:
    return _sum(_Op(("Sqrt",), (squares,)), "epsilon")


# lr * sqrt(1 - beta2_power) / (1 - beta1_power); Keras has brackets around the quotient.
_ROOT = _number("Sqrt", _rest("beta2_power"))
_RATE = (_number("RealDiv", _number("Mul", "lr", _ROOT), _rest("beta1_power")),
         _number("Mul", "lr", _number("RealDiv", _ROOT, _rest("beta1_power"))))
_SQUARE = _Op(("Square", "Mul"), ("grad",))
_OF_GRAD = _product("grad", _rest("beta1"))
_OF_SQUARE = _product(_SQUARE, _rest("beta2"))

_SUBTRACTED = _quotient(_product(_RATE, "new m"), _below("new v"))
_LAZY_M = _sum(_product("beta1", "m"), _product(_rest("beta1"), "grad"))
_LAZY_V = _sum(_product("beta2", "v"), _product(_rest("beta2"), _SQUARE))
_NESTEROV = _moved(_RATE, _sum(_OF_GRAD, _product("beta1", "m")), "v")
_SCHEDULED = _moved(
    "lr", _sum(_product(_rest("momentum"), _quotient("grad", _rest("schedule"))),
               _product("next_momentum", _quotient("m", _rest("next_schedule")))),
    _quotient("v", _rest("beta2_power")))
_INFINITY = _product(
    _number("RealDiv", _number("Neg", "lr"), _rest("beta1_power")),
    _quotient(_sum(_product("m", "beta1"), _OF_GRAD, "new m"),
              _sum(_Op(("Maximum",), (_product("v", "beta2"), _Op(("Abs",), ("grad",))),
                       name="new v"), "epsilon")))
_ADDED = _moved(_RATE, _sum(_OF_GRAD, _product("m", "beta1"), "new m"),
                _sum(_OF_SQUARE, _product("v", "beta2"), "new v"))


def adam_steps(nodes: Nodes, variable: Any, is_lazy_enough: bool) -> List[AdamStep]:
    """Finds the updates of a variable by Adam.

    Args:
        nodes: The graph.
        variable: The variable's op.
        is_lazy_enough: Whether the lazy form takes the place of the one that moves all rows.

    Returns:
        The updates, none if it has none.

    Raises:
        Refused: If it has one that is known, and tables have not.
    """
    found = []  # type: List[AdamStep]
    for use in nodes.all_uses(variable):
        if use.position != 0:
            continue
        for kinds, match, *formula in _MATCHES:
            if use.node.op in kinds:
                try:
                    found.append(match(_Match(nodes, is_lazy_enough), use.node, *formula))
                    break
                except _No:
                    pass
    return found


class _Match:
    """Takes the ops of an update apart, from its end to its beginning."""

    def __init__(self, nodes: Nodes, is_lazy_enough: bool) -> None:
        self._nodes = nodes
        self._is_lazy_enough = is_lazy_enough
        self._inner = set()  # type: Set[str]
        # Tensors by the names that formulas give them.
        self._taken = {}  # type: Dict[str, Output]

    def whole(self, subtraction: Any) -> AdamStep:
        """Matches an update of AdamOptimizer, or AdamWOptimizer, that ends with `subtraction`."""
        self._take(self._nodes.inputs[subtraction.name][1], _SUBTRACTED)
        if self._is_largest(self._taken["new v"]):
            raise Refused("its optimizer is Adam with amsgrad=True, which tables do not have")
        moments, others = self._all_moments(self._taken["new m"], self._taken["new v"])
        decay = self._row_decay(subtraction)
        if decay:
            return self._made(subtraction, others + decay, moments, forms.ADAMW)
        if not self._is_lazy_enough:
            return self._made(subtraction, others, moments, forms.ADAM)
        return self._made(subtraction, others, moments, forms.LAZY_ADAM)._replace(is_lazy=False)

    def of_all(self, scatter: Any, formula: _Op, kind: str) -> AdamStep:
        """Matches an update that ends with `scatter`, by moments that decay in all rows."""
        self._take_scatter(scatter, formula)
        moments, others = self._all_moments(*[self._gathered(self._taken[name])
                                              for name in ("m", "v")])
        return self._made(scatter, others, moments, kind)

    def of_batch(self, scatter: Any, formula: _Op, kind: str) -> AdamStep:
        """Matches an update that ends with `scatter`, by moments that decay in the batch's rows."""
        self._take_scatter(scatter, formula)
        steps = [self._gathered_again(name) for name in ("new m", "new v")]
        if formula is _SUBTRACTED:
            self._take(self._taken["new m"], _LAZY_M)
            self._take(self._taken["new v"], _LAZY_V)
        slots = [self._variable(self._gathered(self._taken[name])) for name in ("m", "v")]
        others = [step or self._update_of(slot, self._taken["new " + name])
                  for step, slot, name in zip(steps, slots, ("m", "v"))]
        return self._made(scatter, tuple(others), tuple(slots), kind)

    def _take_scatter(self, scatter: Any, formula: _Op) -> None:
        """Takes what an op adds to rows, or subtracts, apart."""
        _, indices, rows = self._nodes.inputs[scatter.name]
        self._take(indices, "indices")
        self._take(rows, formula)

    def _made(self, last: Any, others: Tuple[str, ...], slots: Tuple[str, ...],
              kind: str) -> AdamStep:
        """Checks that nothing else reads what the update computes."""
        inner = self._inner | {last.name} | set(others)
        for name in inner:
            for use in self._nodes.all_uses(self._nodes.by_name[name]):
                if use.node.name not in inner and not self._is_read_for_nothing(use.node):
                    raise _No
        numbers = {number.name: self._taken[number.name]
                   for number in optimizer_named(kind).numbers}
        behind = {waiting for name in inner for waiting in self._behind(name)}
        # Numbers that are read behind the update's first op are read elsewhere, see rows.numbers.
        if any(name in behind and self._nodes.by_name[name].op != "ReadVariableOp"
               for name, _ in numbers.values()):
            raise _No
        ops = (last.name,) + tuple(sorted(inner.union(behind) - {last.name}))
        step = forms.Step(ops, kind, slots, self._taken["grad"], self._taken["indices"], numbers,
                          gates=self._nodes.gates(ops))
        return AdamStep(step, True, inner)

    def _row_decay(self, last: Any) -> Tuple[str, ...]:
        """Returns the op that decays the rows of the batch before an update; none without one."""
        nodes = self._nodes
        variable = nodes.by_name[nodes.inputs[last.name][0][0]]
        for use in nodes.all_uses(variable):
            inputs = nodes.inputs[use.node.name]
            if use.node.op not in _ADDS or use.position != 0 \
                    or inputs[1] != self._taken["indices"]:
                continue
            self._take(inputs[2], _product("weight_change", "rows"))
            if self._variable(self._gathered(self._taken["rows"])) != variable.name:
                raise _No
            if not self._waits_for(last.name, {use.node.name}):
                raise _No
            return (use.node.name,)
        return ()

    def _is_largest(self, output: Output) -> bool:
        """Whether a slot keeps the largest of its values."""
        assigns = [self._nodes.by_name[name] for name in self._nodes.waits[output[0]]]
        return any(self._nodes.by_name[self._nodes.inputs[one.name][1][0]].op == "Maximum"
                   for one in assigns if one.op in ("Assign", "AssignVariableOp"))

    def _behind(self, name: str) -> Tuple[str, ...]:
        """Returns the constants and reads that wait for an op, or for a read that does."""
        found = []  # type: List[str]
        for waiting in sorted(self._nodes.waiting.get(name, ())):
            node = self._nodes.by_name[waiting]
            if node.op in ("Const", "ReadVariableOp"):
                found.append(waiting)
                if self._is_read_for_nothing(node):
                    found.extend(self._behind(waiting))
        return tuple(found)

    def _waits_for(self, name: str, others: Set[str]) -> bool:
        """Whether an op of the update needs or waits for any of some others."""
        nodes = self._nodes
        seen, todo = {name}, [name]
        while todo:
            now = todo.pop()
            if now in others:
                return True
            for before in [one for one, _ in nodes.inputs[now]] + nodes.waits[now]:
                is_own = before in self._inner or before in others \
                    or self._is_read_for_nothing(nodes.by_name[before])
                if is_own and before not in seen:
                    seen.add(before)
                    todo.append(before)
        return False

    def _is_read_for_nothing(self, node: Any) -> bool:
        """Whether an op reads a variable after its update and nothing takes the value."""
        return node.op in ("ReadVariableOp", "Identity") and not self._nodes.all_uses(node)

    def _gathered_again(self, name: str) -> Optional[str]:
        """Takes the new rows of a moment for what is written: in reference variables they are
        gathered again; returns the op that writes them, None of others."""
        node = self._nodes.by_name[self._taken[name][0]]
        if node.op not in ("Gather", "GatherV2"):
            return None
        inputs = self._nodes.inputs[node.name]
        self._take(inputs[1], "indices")
        made = self._nodes.by_name[inputs[0][0]]
        if made.op != "ScatterUpdate":
            raise _No
        _, indices, self._taken[name] = self._nodes.inputs[made.name]
        self._take(indices, "indices")
        self._inner.update((node.name, made.name))
        return str(made.name)

    def _update_of(self, slot: str, rows: Output) -> str:
        """Returns the op that writes the new rows of a moment."""
        for use in self._nodes.all_uses(self._nodes.by_name[slot]):
            inputs = self._nodes.inputs[use.node.name]
            if use.node.op in ("ResourceScatterUpdate", "ScatterUpdate") \
                    and inputs[1:] == [self._taken["indices"], rows]:
                return str(use.node.name)
        raise _No

    def _gathered(self, rows: Output) -> Output:
        """Returns what rows are gathered from, by the indices of the update."""
        node = self._nodes.by_name[rows[0]]
        if node.op == "Identity":
            self._inner.add(node.name)
            node = self._nodes.by_name[self._nodes.inputs[node.name][0][0]]
        inputs = self._nodes.inputs[node.name]
        if node.op not in _GATHERS or inputs[1] != self._taken["indices"] \
                or node.op == "GatherV2" and constant_int(self._nodes, node.name, 2) != 0:
            raise _No
        self._inner.add(node.name)
        return inputs[0]

    def _all_moments(self, m_part: Output, v_part: Output) -> Tuple[Tuple[str, str],
                                                                    Tuple[str, ...]]:
        """Takes moments apart that decay in all rows; returns the slots, and the ops that change
        them."""
        m, m_ops = self._decayed(m_part, _product("old m", "beta1"), _OF_GRAD)
        v, v_ops = self._decayed(v_part, _product("old v", "beta2"), _OF_SQUARE)
        return (m, v), m_ops + v_ops

    def _decayed(self, output: Output, decay: _Op, added: _Op) -> Tuple[str, Tuple[str, ...]]:
        """Takes slot = slot * beta, slot[indices] += x apart.

        Args:
            output: The slot as it is then.
            decay: The formula of slot * beta.
            added: That of x.

        Returns:
            The slot, and the ops that change it.
        """
        node = self._nodes.by_name[output[0]]
        if node.op == "ReadVariableOp":
            self._inner.add(node.name)
            waits = [self._nodes.by_name[name] for name in self._nodes.waits[node.name]]
            adds = [one for one in waits if one.op == "ResourceScatterAdd"]
            if len(adds) != 1 or self._nodes.inputs[node.name][0] \
                    != self._nodes.inputs[adds[0].name][0]:
                raise _No
            add = adds[0]
        elif node.op == "ScatterAdd":
            add = node
        else:
            raise _No
        variable, indices, rows = self._nodes.inputs[add.name]
        slot = self._variable(variable)
        waits = [self._nodes.by_name[name] for name in self._nodes.waits[add.name]]
        assigns = [one for one in waits if one.op in ("Assign", "AssignVariableOp")
                   and self._nodes.inputs[one.name][0][0] == slot]
        if len(assigns) != 1:
            raise _No
        self._inner.update((add.name, assigns[0].name))
        self._take(self._nodes.inputs[assigns[0].name][1], decay)
        old = self._taken[decay.of[0]]
        read = self._nodes.by_name[old[0]]
        if read.op not in COPIES or self._variable(old) != slot:
            raise _No
        if read.op == "ReadVariableOp":
            self._inner.add(read.name)
        self._take(indices, "indices")
        self._take(rows, added)
        return slot, (assigns[0].name, add.name)

    def _variable(self, output: Output) -> str:
        """Returns the variable that a tensor is, or is a copy of."""
        name, _ = self._nodes.behind(output, COPIES)
        if self._nodes.by_name[name].op not in VARIABLES:
            raise _No
        return name

    def _take(self, output: Output, formula: Any) -> None:
        """Takes a tensor apart, and notes those that its formula names.

        Args:
            output: The tensor.
            formula: An _Op, or several of which one has to be it; or the name of a tensor, which
                has to be the same where it stands again; or 1.
        """
        if isinstance(formula, str):
            if self._taken.setdefault(formula, output) != output:
                raise _No
            return
        if formula == 1:
            value = affine_value(self._nodes, *output)
            if value is None or value.kind is not None or value.shift != 1.0:
                raise _No
            return
        node = self._nodes.by_name.get(output[0])
        several = [formula] if isinstance(formula, _Op) else formula
        op = next((one for one in several if node is not None and node.op in one.kinds), None)
        if op is None or output[1] != 0:
            raise _No
        if op.is_own:
            self._inner.add(output[0])
        if op.name:
            self._take(output, op.name)
        inputs = self._nodes.inputs[node.name]
        for pair in zip(inputs, op.of if len(op.of) > 1 else op.of * len(inputs)):
            self._take(*pair)


# How the ops of updates are matched that end with an op of one of some types.
_MATCHES = (
    (("ScatterSub", "ResourceScatterSub"), _Match.of_batch, _SUBTRACTED, forms.LAZY_ADAM),
    (("AssignSub", "AssignSubVariableOp"), _Match.whole),
    (_ADDS, _Match.of_all, _NESTEROV, forms.NADAM),
    (_ADDS, _Match.of_all, _SCHEDULED, forms.SCHEDULED_NADAM),
    (_ADDS, _Match.of_batch, _INFINITY, forms.ADAMAX),
    (_ADDS, _Match.of_batch, _ADDED, forms.LAZY_ADAM),
)  # type: Tuple[Any, ...]
