"""The sparse updates of TensorFlow's optimizers, as ops of a graph, and the engine's for them."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from mx_rec.ops.optimizers import optimizer_named
from mx_rec.stock.nodes import Nodes, Output

# Names of the plugin's optimizers.
LAZY_ADAM = "lazy_adam"
ADAM = "adam"
ADAMW = "adamw"
NADAM = "nadam"
SCHEDULED_NADAM = "scheduled_nadam"
ADAMAX = "adamax"
# w -= lr * g, with what TensorFlow would subtract as the gradient.
ADD = "sgd"


class Form(NamedTuple):
    """A type of op that updates rows of a variable.

    Attributes:
        kind: Which optimizer, where the op has no other form by an attribute.
        slots: Inputs that are slot variables, by the names of the optimizer's slots.
        grad: The input of the gradients, or of what is added.
        indices: The input of the rows.
        numbers: Inputs of the optimizer's numbers by name.
        constants: Its other numbers by name, but for those that say what a slot starts at.
        sums: Whether rows may repeat: TensorFlow adds what repeats, and so does the engine.
        attributes: Attributes that have to have this value, where the op has them.
    """

    kind: str
    slots: Dict[str, int]
    grad: int
    indices: int
    numbers: Dict[str, int]
    constants: Dict[str, float] = {}
    sums: bool = False
    attributes: Tuple[Tuple[str, bool], ...] = ()


class Slices(NamedTuple):
    """Gradients of rows that are made dense.

    Attributes:
        values: The gradients.
        indices: Their rows.
        by: Name of the op that makes them dense.
        is_padded: Whether those of row 0 count for nothing.
    """

    values: Output
    indices: Output
    by: str
    is_padded: bool = False


class Decay(NamedTuple):
    """The gradient of a penalty.

    Attributes:
        number: A tensor of one element.
        factor: What it is multiplied with, and then with each row.
        is_sign: Whether with the signs of the row's floats instead: of a sum of absolute values.
    """

    number: Output
    factor: float
    is_sign: bool = False


class Step(NamedTuple):
    """One update of rows of a variable, by an op or by several.

    Attributes:
        ops: Names of the ops that are of no use without it, first the one that changes the
            variable itself.
        kind: Which optimizer.
        slots: Names of the ops of its slot variables, in the order of the optimizer's slots.
        grad: The gradients, or what is added.
        indices: The rows.
        numbers: The optimizer's numbers by name.
        constants: See `Form`.
        sums: See `Form`.
        subtracts: Of the kind ADD: whether it subtracts.
        dense: Of a dense update: the dense gradient, whose part `grad` and `indices` are.
        slices: All that it is the sum of; of another update `parts` gives its one.
        decays: What is added to the sum in each of the rows that occur.
        gates: Names of the ops that do nothing but wait for it.
        moves_all: Whether TensorFlow's update moves all rows, where this one moves the batch's.
    """

    ops: Tuple[str, ...]
    kind: str
    slots: Tuple[str, ...]
    grad: Output
    indices: Output
    numbers: Dict[str, Output]
    constants: Dict[str, float] = {}
    sums: bool = False
    subtracts: bool = False
    dense: Optional[Output] = None
    slices: Tuple[Slices, ...] = ()
    decays: Tuple[Decay, ...] = ()
    gates: Tuple[str, ...] = ()
    moves_all: bool = False

    @property
    def parts(self) -> Tuple[Tuple[Output, Output], ...]:
        """The gradients, or what is added, and their rows."""
        return tuple((one.values, one.indices) for one in self.slices) \
            or ((self.grad, self.indices),)

    @property
    def last(self) -> Tuple[Output, ...]:
        """What the update takes of the gradients."""
        return (self.grad, self.indices) if self.dense is None \
            else (self.dense,) + tuple(one.indices for one in self.slices)


_FTRL_SLOTS = {"Ftrl_accum": 1, "Ftrl_linear": 2}
_SPARSE = {
    "SparseApplyAdagrad": Form("adagrad", {"Adagrad_accumulator": 1}, 3, 4, {"lr": 2},
                               attributes=(("update_slots", True),)),
    "SparseApplyAdagradV2": Form(
        "adagrad_v2", {"Adagrad_accumulator": 1}, 4, 5, {"lr": 2, "epsilon": 3},
        attributes=(("update_slots", True),)),
    "SparseApplyMomentum": Form("momentum", {"Momentum_momentum": 1}, 3, 4,
                                {"lr": 2, "momentum": 5}),
    "SparseApplyFtrl": Form(
        "ftrl", _FTRL_SLOTS, 3, 4, {"lr": 5, "l1": 6, "l2": 7, "lr_power": 8},
        {"l2_shrinkage": 0.0}, attributes=(("multiply_linear_by_lr", False),)),
    "SparseApplyFtrlV2": Form(
        "ftrl", _FTRL_SLOTS, 3, 4,
        {"lr": 5, "l1": 6, "l2": 7, "l2_shrinkage": 8, "lr_power": 9},
        attributes=(("multiply_linear_by_lr", False),)),
    "SparseApplyRMSProp": Form(
        "rmsprop", {"RMSProp_rms": 1, "RMSProp_momentum": 2}, 7, 8,
        {"lr": 3, "decay": 4, "momentum": 5, "epsilon": 6}),
    "SparseApplyCenteredRMSProp": Form(
        "centered_rmsprop", {"RMSProp_mg": 1, "RMSProp_rms": 2, "RMSProp_momentum": 3}, 8, 9,
        {"lr": 4, "decay": 5, "momentum": 6, "epsilon": 7}),
    "SparseApplyAdadelta": Form(
        "adadelta", {"Adadelta_accum": 1, "Adadelta_accum_update": 2}, 6, 7,
        {"lr": 3, "rho": 4, "epsilon": 5}),
    "SparseApplyProximalGradientDescent": Form("proximal_sgd", {}, 4, 5,
                                               {"lr": 1, "l1": 2, "l2": 3}),
    "SparseApplyProximalAdagrad": Form(
        "proximal_adagrad", {"ProximalAdagrad_accumulator": 1}, 5, 6,
        {"lr": 2, "l1": 3, "l2": 4}),
    # Of Keras, which has it for resource variables alone.
    "SparseApplyKerasMomentum": Form("keras_momentum", {"KerasMomentum_momentum": 1}, 3, 4,
                                     {"lr": 2, "momentum": 5}),
}
# What an optimizer is in Nesterov's form.
_NESTEROV = {"momentum": "nesterov", "keras_momentum": "keras_nesterov"}
_FORMS = dict(_SPARSE)
_FORMS.update(("Resource" + name, form) for name, form in _SPARSE.items())
_FORMS.update((name, Form(ADD, {}, 2, 1, {}, {"lr": 1.0, "weight_decay": 0.0}, sums=True))
              for name in ("ScatterSub", "ScatterAdd", "ResourceScatterSub", "ResourceScatterAdd"))


def form_of(op_type: str) -> Optional[Form]:
    """Returns the form of a type of op, None if it is no sparse update."""
    return _FORMS.get(op_type)


def step_of(nodes: Nodes, node: Any, form: Form) -> Step:
    """Returns the step that an op is.

    Args:
        nodes: The graph.
        node: The op.
        form: Its form.
    """
    inputs = nodes.inputs[node.name]
    is_nesterov = "use_nesterov" in node.attr and node.attr["use_nesterov"].b
    kind = _NESTEROV.get(form.kind, form.kind) if is_nesterov else form.kind
    slots = optimizer_named(kind).slot_names
    return Step(
        (node.name,), kind, tuple(inputs[form.slots[name]][0] for name in slots),
        inputs[form.grad], inputs[form.indices],
        {name: inputs[at] for name, at in form.numbers.items()}, form.constants, form.sums,
        node.op.endswith("ScatterSub"))


def has_wrong_attribute(form: Form, node: Any) -> Optional[str]:
    """Returns the name of an attribute by which the op computes something else."""
    for name, wanted in form.attributes:
        if name in node.attr and node.attr[name].b != wanted:
            return name
    return None
