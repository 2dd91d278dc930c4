"""Recognizes the sparse updates of Adam and its like, which are several ops.

    | optimizer | its sparse form |
    |---|---|
    | tf.train.AdamOptimizer, Keras' Adam | decays the moments of all rows, and moves all rows |
    | contrib's AdamWOptimizer | decays the rows of the batch before that |
    | contrib's NadamOptimizer, Keras' Nadam | decays the moments of all rows |
    | contrib's LazyAdamOptimizer and AdaMaxOptimizer, Keras' Adamax | has rows of the batch alone |
    | EasyRec's AdamOptimizerS | the same as LazyAdamOptimizer, by other ops |
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

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
        matches = ()  # type: Tuple[Callable[[_Match, Any], AdamStep], ...]
        if use.node.op in ("ScatterSub", "ResourceScatterSub"):
            matches = (_Match.lazy,)
        elif use.node.op in ("AssignSub", "AssignSubVariableOp"):
            matches = (_Match.whole,)
        elif use.node.op in _ADDS:
            matches = (_Match.nesterov, _Match.scheduled, _Match.infinity, _Match.added)
        for match in matches:
            try:
                found.append(match(_Match(nodes, is_lazy_enough), use.node))
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
        self._numbers = {}  # type: Dict[str, Output]

    def lazy(self, scatter: Any) -> AdamStep:
        """Matches an update of contrib's LazyAdamOptimizer that ends with `scatter`."""
        indices = self._nodes.inputs[scatter.name][1]
        m_part, v_part = self._quotient(scatter, 2)
        m_sum, m_step = self._new_rows(m_part, indices)
        v_sum, v_step = self._new_rows(v_part, indices)
        m, grad = self._moment(m_sum, "beta1", indices)
        v, squared = self._moment(v_sum, "beta2", indices)
        if self._squared(squared) != grad:
            raise _No
        return self._made(scatter, (m_step or self._update_of(m, m_sum, indices),
                                    v_step or self._update_of(v, v_sum, indices)),
                          (m, v), grad, indices, forms.LAZY_ADAM)

    def whole(self, subtraction: Any) -> AdamStep:
        """Matches an update of AdamOptimizer, or AdamWOptimizer, that ends with `subtraction`."""
        m_part, v_part = self._quotient(subtraction, 1)
        if self._is_largest(v_part):
            raise Refused("its optimizer is Adam with amsgrad=True, which tables do not have")
        moments, others, (grad, indices) = self._all_moments(m_part, v_part)
        decay = self._row_decay(subtraction, indices)
        if decay:
            return self._made(subtraction, others + decay, moments, grad, indices, forms.ADAMW)
        if not self._is_lazy_enough:
            return self._made(subtraction, others, moments, grad, indices, forms.ADAM)
        return self._made(subtraction, others, moments, grad, indices, forms.LAZY_ADAM)._replace(
            is_lazy=False)

    def nesterov(self, scatter: Any) -> AdamStep:
        """Matches an update of contrib's NadamOptimizer that ends with `scatter`."""
        indices = self._nodes.inputs[scatter.name][1]
        rate, bar, root = self._moved(scatter)
        self._rate(rate)
        added, of_m = self._parts(bar, ("Add", "AddV2"))
        decay, m_rows = self._parts(of_m, ("Mul",))
        self._number("beta1", decay)
        moments, others, (grad, rows) = self._all_moments(
            self._gathered(m_rows, indices), self._gathered(root, indices))
        if rows != indices or self._scaled(added, "beta1") != grad:
            raise _No
        return self._made(scatter, others, moments, grad, indices, forms.NADAM)

    def scheduled(self, scatter: Any) -> AdamStep:
        """Matches an update of Keras' Nadam that ends with `scatter`."""
        indices = self._nodes.inputs[scatter.name][1]
        rate, bar, root = self._moved(scatter)
        self._number("lr", rate)
        of_grad, of_m = self._parts(bar, ("Add", "AddV2"))
        rest, part = self._parts(of_grad, ("Mul",))
        self._number("momentum", self._one_minus(rest))
        grad, below = self._parts(part, ("RealDiv",))
        self._number("schedule", self._one_minus(below))
        momentum, part = self._parts(of_m, ("Mul",))
        self._number("next_momentum", momentum)
        m_rows, below = self._parts(part, ("RealDiv",))
        self._number("next_schedule", self._one_minus(below))
        v_rows, below = self._parts(root, ("RealDiv",))
        self._number("beta2_power", self._one_minus(below))
        moments, others, found = self._all_moments(
            self._gathered(m_rows, indices), self._gathered(v_rows, indices))
        if found != (grad, indices):
            raise _No
        return self._made(scatter, others, moments, grad, indices, forms.SCHEDULED_NADAM)

    def infinity(self, scatter: Any) -> AdamStep:
        """Matches an update of AdaMaxOptimizer, or Keras' Adamax, that ends with `scatter`."""
        inputs = self._nodes.inputs[scatter.name]
        indices = inputs[1]
        rate, quotient = self._parts(inputs[2], ("Mul",))
        minus, below = self._inputs(rate, ("RealDiv",))
        self._number("lr", self._inputs(minus, ("Neg",))[0])
        self._number("beta1_power", self._one_minus(below))
        m_sum, below = self._parts(quotient, ("RealDiv",))
        u_largest, epsilon = self._parts(below, ("Add", "AddV2"))
        self._number("epsilon", epsilon)
        old, new = self._parts(m_sum, ("Add", "AddV2"))
        m = self._decayed_rows(old, "beta1", indices)
        grad = self._scaled(new, "beta1")
        old, new = self._parts(u_largest, ("Maximum",))
        u = self._decayed_rows(old, "beta2", indices)
        if self._parts(new, ("Abs",)) != [grad]:
            raise _No
        return self._made(scatter, (self._update_of(m, m_sum, indices),
                                    self._update_of(u, u_largest, indices)),
                          (m, u), grad, indices, forms.ADAMAX)

    def added(self, scatter: Any) -> AdamStep:
        """Matches an update of EasyRec's AdamOptimizerS that ends with `scatter`."""
        indices = self._nodes.inputs[scatter.name][1]
        rate, m_sum, v_sum = self._moved(scatter)
        self._rate(rate)
        new, old = self._parts(m_sum, ("Add", "AddV2"))
        m = self._decayed_rows(old, "beta1", indices)
        grad = self._scaled(new, "beta1")
        new, old = self._parts(v_sum, ("Add", "AddV2"))
        v = self._decayed_rows(old, "beta2", indices)
        if self._squared(self._scaled(new, "beta2")) != grad:
            raise _No
        return self._made(scatter, (self._update_of(m, m_sum, indices),
                                    self._update_of(v, v_sum, indices)),
                          (m, v), grad, indices, forms.LAZY_ADAM)

    def _made(self, last: Any, others: Tuple[str, ...], slots: Tuple[str, str], grad: Output,
              indices: Output, kind: str) -> AdamStep:
        """Checks that nothing else reads what the update computes."""
        inner = self._inner | {last.name} | set(others)
        for name in inner:
            for use in self._nodes.all_uses(self._nodes.by_name[name]):
                if use.node.name not in inner and not self._is_read_for_nothing(use.node):
                    raise _No
        if set(self._numbers) != {number.name for number in optimizer_named(kind).numbers}:
            raise _No
        behind = {waiting for name in inner for waiting in self._behind(name)}
        # Numbers that are read behind the update's first op are read elsewhere, see rows.numbers.
        if any(name in behind and self._nodes.by_name[name].op != "ReadVariableOp"
               for name, _ in self._numbers.values()):
            raise _No
        ops = (last.name,) + tuple(sorted(inner.union(behind) - {last.name}))
        step = forms.Step(ops, kind, slots, grad, indices, self._numbers,
                          gates=self._nodes.gates(ops))
        return AdamStep(step, True, inner)

    def _row_decay(self, last: Any, indices: Output) -> Tuple[str, ...]:
        """Returns the op that decays the rows of the batch before an update; none without one."""
        nodes = self._nodes
        variable = nodes.by_name[nodes.inputs[last.name][0][0]]
        for use in nodes.all_uses(variable):
            inputs = nodes.inputs[use.node.name]
            if use.node.op not in _ADDS or use.position != 0 or inputs[1] != indices:
                continue
            part, rows = self._parts(inputs[2], ("Mul",))
            self._number("weight_change", part)
            if self._variable(self._gathered(rows, indices)) != variable.name:
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

    def _quotient(self, last: Any, position: int) -> Tuple[Output, Output]:
        """Takes lr * m / (sqrt(v) + epsilon) apart; returns m and v."""
        above, below = self._parts(self._nodes.inputs[last.name][position], ("RealDiv",))
        rate, m_part = self._parts(above, ("Mul",))
        root, epsilon = self._parts(below, ("Add", "AddV2"))
        v_part, = self._parts(root, ("Sqrt",))
        self._number("epsilon", epsilon)
        self._rate(rate)
        return m_part, v_part

    def _moved(self, scatter: Any) -> Tuple[Output, Output, Output]:
        """Takes -rate * x / (sqrt(y) + epsilon) apart; returns rate, x and y."""
        above, below = self._parts(self._nodes.inputs[scatter.name][2], ("RealDiv",))
        minus, bar = self._parts(above, ("Mul",))
        rate, = self._inputs(minus, ("Neg",))
        root, epsilon = self._parts(below, ("Add", "AddV2"))
        inside, = self._parts(root, ("Sqrt",))
        self._number("epsilon", epsilon)
        return rate, bar, inside

    def _rate(self, output: Output) -> None:
        """Takes lr * sqrt(1 - beta2_power) / (1 - beta1_power) apart, as Keras also in brackets."""
        first, second = self._inputs(output, ("RealDiv", "Mul"))
        if self._nodes.by_name[output[0]].op == "Mul":
            rate, (root, below) = first, self._inputs(second, ("RealDiv",))
        else:
            (rate, root), below = self._inputs(first, ("Mul",)), second
        inside, = self._inputs(root, ("Sqrt",))
        self._number("lr", rate)
        self._number("beta2_power", self._one_minus(inside))
        self._number("beta1_power", self._one_minus(below))

    def _new_rows(self, output: Output, indices: Output) -> Tuple[Output, Optional[str]]:
        """Returns the new rows of a moment: in reference variables they are gathered again."""
        node = self._nodes.by_name[output[0]]
        if node.op not in ("Gather", "GatherV2"):
            return output, None
        inputs = self._nodes.inputs[node.name]
        made = self._nodes.by_name[inputs[0][0]]
        if made.op != "ScatterUpdate" or inputs[1] != indices:
            raise _No
        given = self._nodes.inputs[made.name]
        if given[1] != indices:
            raise _No
        self._inner.update((node.name, made.name))
        return given[2], made.name

    def _update_of(self, slot: str, rows: Output, indices: Output) -> str:
        """Returns the op that writes the new rows of a moment."""
        for use in self._nodes.all_uses(self._nodes.by_name[slot]):
            inputs = self._nodes.inputs[use.node.name]
            if use.node.op in ("ResourceScatterUpdate", "ScatterUpdate") \
                    and inputs[1:] == [indices, rows]:
                return str(use.node.name)
        raise _No

    def _moment(self, output: Output, beta: str, indices: Output) -> Tuple[str, Output]:
        """Takes beta * rows + (1 - beta) * x apart; returns the slot and x."""
        old, new = self._parts(output, ("Add", "AddV2"))
        decay, rows = self._parts(old, ("Mul",))
        rest, added = self._parts(new, ("Mul",))
        self._number(beta, decay)
        if self._one_minus(rest) != decay:
            raise _No
        return self._variable(self._gathered(rows, indices)), added

    def _decayed_rows(self, output: Output, beta: str, indices: Output) -> str:
        """Takes rows * beta apart; returns the slot."""
        rows, decay = self._parts(output, ("Mul",))
        self._number(beta, decay)
        return self._variable(self._gathered(rows, indices))

    def _gathered(self, rows: Output, indices: Output) -> Output:
        """Returns what rows are gathered from, by `indices`."""
        node = self._nodes.by_name[rows[0]]
        if node.op == "Identity":
            self._inner.add(node.name)
            node = self._nodes.by_name[self._nodes.inputs[node.name][0][0]]
        inputs = self._nodes.inputs[node.name]
        if node.op not in _GATHERS or inputs[1] != indices \
                or node.op == "GatherV2" and constant_int(self._nodes, node.name, 2) != 0:
            raise _No
        self._inner.add(node.name)
        return inputs[0]

    def _all_moments(self, m_part: Output, v_part: Output) -> Tuple[
            Tuple[str, str], Tuple[str, ...], Tuple[Output, Output]]:
        """Takes moments apart that decay in all rows.

        Returns:
            The slots, the ops that change them, and (gradient, indices).
        """
        m, m_ops, (indices, added) = self._decayed(m_part, "beta1")
        v, v_ops, (others, squared) = self._decayed(v_part, "beta2")
        grad = self._scaled(added, "beta1")
        if others != indices or self._squared(self._scaled(squared, "beta2")) != grad:
            raise _No
        return (m, v), m_ops + v_ops, (grad, indices)

    def _decayed(self, output: Output, beta: str) -> Tuple[str, Tuple[str, ...],
                                                           Tuple[Output, Output]]:
        """Takes slot = slot * beta, slot[indices] += x apart.

        Returns:
            The slot, the ops that change it, and (indices, x).
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
        inputs = self._nodes.inputs[add.name]
        slot = self._variable(inputs[0])
        waits = [self._nodes.by_name[name] for name in self._nodes.waits[add.name]]
        assigns = [one for one in waits if one.op in ("Assign", "AssignVariableOp")
                   and self._nodes.inputs[one.name][0][0] == slot]
        if len(assigns) != 1:
            raise _No
        self._inner.update((add.name, assigns[0].name))
        old, decay = self._parts(self._nodes.inputs[assigns[0].name][1], ("Mul",))
        self._number(beta, decay)
        read = self._nodes.by_name[old[0]]
        if read.op not in ("ReadVariableOp", "Identity") or self._variable(old) != slot:
            raise _No
        if read.op == "ReadVariableOp":
            self._inner.add(read.name)
        return slot, (assigns[0].name, add.name), (inputs[1], inputs[2])

    def _scaled(self, output: Output, beta: str) -> Output:
        """Takes x * (1 - beta) apart; returns x."""
        value, rest = self._parts(output, ("Mul",))
        if self._one_minus(rest) != self._numbers[beta]:
            raise _No
        return value

    def _squared(self, output: Output) -> Output:
        """Takes x^2 apart; returns x."""
        parts = self._parts(output, ("Square", "Mul"))
        if len(parts) == 2 and parts[0] != parts[1]:
            raise _No
        return parts[0]

    def _variable(self, output: Output) -> str:
        """Returns the variable that a tensor is, or is a copy of."""
        node = self._nodes.by_name[output[0]]
        while node.op in ("Identity", "ReadVariableOp"):
            node = self._nodes.by_name[self._nodes.inputs[node.name][0][0]]
        if node.op not in VARIABLES:
            raise _No
        return str(node.name)

    def _one_minus(self, output: Output) -> Output:
        """Takes 1 - x apart; returns x."""
        one, other = self._inputs(output, ("Sub",))
        value = affine_value(self._nodes, *one)
        if value is None or value.kind is not None or value.shift != 1.0:
            raise _No
        return other

    def _number(self, name: str, output: Output) -> None:
        """Notes one of the optimizer's numbers; the second time it has to be the same."""
        if self._numbers.setdefault(name, output) != output:
            raise _No

    def _parts(self, output: Output, kinds: Tuple[str, ...]) -> List[Output]:
        """Returns what an op of the update takes, which nothing else may read."""
        inputs = self._inputs(output, kinds)
        self._inner.add(output[0])
        return inputs

    def _inputs(self, output: Output, kinds: Tuple[str, ...]) -> List[Output]:
        node = self._nodes.by_name.get(output[0])
        if node is None or node.op not in kinds or output[1] != 0:
            raise _No
        return self._nodes.inputs[node.name]


__all__ = ["AdamStep", "Refused", "adam_steps"]
