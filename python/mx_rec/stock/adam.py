"""Recognizes the sparse updates of Adam and its like, which are several ops.

    | optimizer | its sparse form |
    |---|---|
    | tf.train.AdamOptimizer, Keras' Adam | decays the moments of all rows, and moves all rows |
    | contrib's AdamWOptimizer | decays the rows of the batch before that |
    | contrib's NadamOptimizer, Keras' Nadam | decays the moments of all rows |
    | contrib's LazyAdamOptimizer and AdaMaxOptimizer, Keras' Adamax | has rows of the batch alone |
    | EasyRec's AdamOptimizerS | the same as LazyAdamOptimizer, by other ops |
"""

from typing import Any, Dict, List, Set, Tuple

from mx_rec.edits.wiring import COPIES
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.stock import updates as forms
from mx_rec.stock.nodes import VARIABLES, Nodes, Output, Stays
from mx_rec.stock.patterns import Op, Search, gathered, op

_ADDS = ("ScatterAdd", "ResourceScatterAdd")


class _No(Exception):
    """The ops are not those of Adam."""


def _sum(one: Any, other: Any, name: str = "") -> Op:
    return op("Add AddV2", one, other, name=name)


def _product(one: Any, other: Any) -> Op:
    return op("Mul", one, other)


def _quotient(above: Any, below: Any) -> Op:
    return op("RealDiv", above, below)


def _number(kind: str, *of: Any) -> Op:
    """A number of the optimizer, which others may read."""
    return op(kind, *of, is_own=False)


def _rest(beta: str) -> Op:
    return _number("Sub", 1, beta)


def _moved(rate: Any, moment: Any, squares: Any) -> Op:
    """What is added to rows."""
    return _quotient(_product(_number("Neg", rate), moment), _below(squares))


def _below(squares: Any) -> Op:
    return _sum(op("Sqrt", squares), "epsilon")


def _rows_of(source: Any) -> Tuple[Op, ...]:
    """The rows of the batch."""
    found = gathered(source, "indices") + (op("ResourceGather", source, "indices"),)
    return found + (op("Identity", found),)


def _decayed(slot: str, beta: str, added: Op) -> Tuple[Op, ...]:
    """A slot after slot = slot * beta, slot[indices] += added."""
    old = op("ReadVariableOp", slot), op("Identity", slot, is_own=False)
    decayed = op("Assign AssignVariableOp", slot, _product(old, beta))
    change = op("ScatterAdd ResourceScatterAdd", slot, "indices", added, waits=(decayed,))
    return change, op("ReadVariableOp", slot, waits=(change,))


# lr * sqrt(1 - beta2_power) / (1 - beta1_power); Keras has brackets around the quotient.
_ROOT = _number("Sqrt", _rest("beta2_power"))
_RATE = (_number("RealDiv", _number("Mul", "lr", _ROOT), _rest("beta1_power")),
         _number("Mul", "lr", _number("RealDiv", _ROOT, _rest("beta1_power"))))
_SQUARE = op("Square", "grad"), op("Mul", "grad", "grad")
_OF_GRAD = _product("grad", _rest("beta1"))
_OF_SQUARE = _product(_SQUARE, _rest("beta2"))
_OLD_M, _OLD_V = _rows_of("m"), _rows_of("v")
_ALL_M, _ALL_V = _decayed("m", "beta1", _OF_GRAD), _decayed("v", "beta2", _OF_SQUARE)
_NEW_M, _NEW_V = _rows_of(_ALL_M), _rows_of(_ALL_V)

_SUBTRACTED = _quotient(_product(_RATE, "new m"), _below("new v"))
_LAZY_M = _sum(_product("beta1", _OLD_M), _product(_rest("beta1"), "grad"))
_LAZY_V = _sum(_product("beta2", _OLD_V), _product(_rest("beta2"), _SQUARE))
_NESTEROV = _moved(_RATE, _sum(_OF_GRAD, _product("beta1", _NEW_M)), _NEW_V)
_SCHEDULED = _moved(
    "lr", _sum(_product(_rest("momentum"), _quotient("grad", _rest("schedule"))),
               _product("next_momentum", _quotient(_NEW_M, _rest("next_schedule")))),
    _quotient(_NEW_V, _rest("beta2_power")))
_INFINITY = _product(
    _number("RealDiv", _number("Neg", "lr"), _rest("beta1_power")),
    _quotient(_sum(_product(_OLD_M, "beta1"), _OF_GRAD, "new m"),
              _sum(op("Maximum", _product(_OLD_V, "beta2"), op("Abs", "grad"), name="new v"),
                   "epsilon")))
_ADDED = _moved(_RATE, _sum(_OF_GRAD, _product(_OLD_M, "beta1"), "new m"),
                _sum(_OF_SQUARE, _product(_OLD_V, "beta2"), "new v"))


def adam_steps(nodes: Nodes, variable: Any, is_lazy_enough: bool) -> List[forms.Step]:
    """Finds the updates of a variable by Adam.

    Args:
        nodes: The graph.
        variable: The variable's op.
        is_lazy_enough: Whether the lazy form takes the place of the one that moves all rows.

    Returns:
        The updates, none if it has none.

    Raises:
        Stays: If it has one that is known, and tables have not.
    """
    found = []  # type: List[forms.Step]
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
        self._search = Search(nodes, ())

    @property
    def _taken(self) -> Dict[str, Output]:
        """Tensors by the names that formulas give them."""
        return self._search.tensors

    @property
    def _inner(self) -> Set[str]:
        """The names of the update's own ops."""
        return self._search.ops

    def whole(self, subtraction: Any) -> forms.Step:
        """Matches an update of AdamOptimizer, or AdamWOptimizer, that ends with `subtraction`."""
        self._take(self._nodes.inputs[subtraction.name][1], _SUBTRACTED)
        if self._is_largest(self._taken["new v"]):
            raise Stays("its optimizer is Adam with amsgrad=True, which tables do not have")
        self._take(self._taken["new m"], _ALL_M)
        self._take(self._taken["new v"], _ALL_V)
        if self._takes_row_decay(subtraction):
            return self._made(subtraction, forms.ADAMW)
        if not self._is_lazy_enough:
            return self._made(subtraction, forms.ADAM)
        return self._made(subtraction, forms.LAZY_ADAM)._replace(moves_all=True)

    def of_all(self, scatter: Any, formula: Op, kind: str) -> forms.Step:
        """Matches an update that ends with `scatter`, by moments that decay in all rows."""
        self._take_scatter(scatter, formula)
        return self._made(scatter, kind)

    def of_batch(self, scatter: Any, formula: Op, kind: str) -> forms.Step:
        """Matches an update that ends with `scatter`, by moments that decay in the batch's rows."""
        self._take_scatter(scatter, formula)
        are_written = [self._gathered_again(name) for name in ("new m", "new v")]
        if formula is _SUBTRACTED:
            self._take(self._taken["new m"], _LAZY_M)
            self._take(self._taken["new v"], _LAZY_V)
        for slot, is_written in zip(("m", "v"), are_written):
            if not is_written:
                self._inner.add(self._update_of(self._slot(slot), self._taken["new " + slot]))
        return self._made(scatter, kind)

    def _take_scatter(self, scatter: Any, formula: Op) -> None:
        """Takes what an op adds to rows, or subtracts, apart."""
        _, indices, rows = self._nodes.inputs[scatter.name]
        self._take(indices, "indices")
        self._take(rows, formula)

    def _made(self, last: Any, kind: str) -> forms.Step:
        """Checks that nothing else reads what the update computes."""
        inner = self._inner | {last.name}
        slots = self._slot("m"), self._slot("v")
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
        return forms.Step(ops, kind, slots, self._taken["grad"], self._taken["indices"], numbers,
                          gates=self._nodes.gates(ops))

    def _takes_row_decay(self, last: Any) -> bool:
        """Takes the op that decays the rows of the batch before an update; whether there is one."""
        nodes = self._nodes
        variable, _ = nodes.inputs[last.name][0]
        for use in nodes.all_uses(nodes.by_name[variable]):
            inputs = nodes.inputs[use.node.name]
            if use.node.op not in _ADDS or use.position != 0 \
                    or inputs[1] != self._taken["indices"]:
                continue
            self._take(inputs[2], _product("weight_change", _rows_of("decayed")))
            if self._slot("decayed") != variable or not self._waits_for(last.name, use.node.name):
                raise _No
            self._inner.add(use.node.name)
            return True
        return False

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

    def _waits_for(self, name: str, other: str) -> bool:
        """Whether an op of the update needs another, or waits for it."""
        nodes = self._nodes
        seen, todo = {name}, [name]
        while todo:
            now = todo.pop()
            if now == other:
                return True
            for before in [one for one, _ in nodes.inputs[now]] + nodes.waits[now]:
                is_own = before in self._inner or before == other \
                    or self._is_read_for_nothing(nodes.by_name[before])
                if is_own and before not in seen:
                    seen.add(before)
                    todo.append(before)
        return False

    def _is_read_for_nothing(self, node: Any) -> bool:
        """Whether an op reads a variable after its update and nothing takes the value."""
        return node.op in ("ReadVariableOp", "Identity") and not self._nodes.all_uses(node)

    def _gathered_again(self, name: str) -> bool:
        """Takes the new rows of a moment for what is written: in reference variables they are
        gathered again; returns whether they are."""
        node = self._nodes.by_name[self._taken[name][0]]
        if node.op not in ("Gather", "GatherV2"):
            return False
        written = op("ScatterUpdate", None, "indices", name + " written")
        self._take(self._taken[name], op("Gather GatherV2", written, "indices"))
        self._taken[name] = self._taken[name + " written"]
        return True

    def _update_of(self, slot: str, rows: Output) -> str:
        """Returns the op that writes the new rows of a moment."""
        for use in self._nodes.all_uses(self._nodes.by_name[slot]):
            inputs = self._nodes.inputs[use.node.name]
            if use.node.op in ("ResourceScatterUpdate", "ScatterUpdate") \
                    and inputs[1:] == [self._taken["indices"], rows]:
                return str(use.node.name)
        raise _No

    def _slot(self, name: str) -> str:
        """Returns the variable that a tensor is, or is a copy of."""
        variable, _ = self._nodes.behind(self._taken[name], COPIES)
        if self._nodes.by_name[variable].op not in VARIABLES:
            raise _No
        return variable

    def _take(self, output: Output, formula: Any) -> None:
        """Takes a tensor apart, and notes those that its formula names."""
        if not self._search.fits(output, formula):
            raise _No


# How the ops of updates are matched that end with an op of one of some types.
_MATCHES = (
    (("ScatterSub", "ResourceScatterSub"), _Match.of_batch, _SUBTRACTED, forms.LAZY_ADAM),
    (("AssignSub", "AssignSubVariableOp"), _Match.whole),
    (_ADDS, _Match.of_all, _NESTEROV, forms.NADAM),
    (_ADDS, _Match.of_all, _SCHEDULED, forms.SCHEDULED_NADAM),
    (_ADDS, _Match.of_batch, _INFINITY, forms.ADAMAX),
    (_ADDS, _Match.of_batch, _ADDED, forms.LAZY_ADAM),
)  # type: Tuple[Any, ...]
