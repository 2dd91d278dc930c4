"""The sparse updates of TensorFlow's optimizers, as ops of a graph, and the engine's for them."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

ADAGRAD = "adagrad"
FTRL = "ftrl"
MOMENTUM = "momentum"
ADD = "add"


class Form(NamedTuple):
    """A type of op that updates rows of a variable.

    Attributes:
        kind: Which optimizer.
        slots: Inputs that are slot variables.
        grad: The input of the gradients, or of what is added.
        indices: The input of the rows.
        numbers: Inputs of the optimizer's numbers by name.
        sums: Whether rows may repeat: TensorFlow adds what repeats, and so does the engine.
        attributes: Attributes that have to have this value, where the op has them.
    """

    kind: str
    slots: Tuple[int, ...]
    grad: int
    indices: int
    numbers: Dict[str, int]
    sums: bool = False
    attributes: Tuple[Tuple[str, bool], ...] = ()


_SPARSE = {
    "SparseApplyAdagrad": Form(ADAGRAD, (1,), 3, 4, {"lr": 2},
                               attributes=(("update_slots", True),)),
    "SparseApplyMomentum": Form(MOMENTUM, (1,), 3, 4, {"lr": 2, "momentum": 5}),
    "SparseApplyFtrl": Form(
        FTRL, (1, 2), 3, 4, {"lr": 5, "l1": 6, "l2": 7, "lr_power": 8},
        attributes=(("multiply_linear_by_lr", False),)),
    "SparseApplyFtrlV2": Form(
        FTRL, (1, 2), 3, 4, {"lr": 5, "l1": 6, "l2": 7, "l2_shrinkage": 8, "lr_power": 9},
        attributes=(("multiply_linear_by_lr", False),)),
}
_FORMS = dict(_SPARSE)
_FORMS.update(("Resource" + name, form) for name, form in _SPARSE.items())
_FORMS.update((name, Form(ADD, (), 2, 1, {}, sums=True))
              for name in ("ScatterSub", "ScatterAdd", "ResourceScatterSub", "ResourceScatterAdd"))

# The slots of each optimizer as checkpoints of tables name them, in the order of Form.slots.
SLOTS = {ADAGRAD: ("Adagrad_accumulator",), FTRL: ("Ftrl_accum", "Ftrl_linear"),
         MOMENTUM: ("Momentum_momentum",), ADD: ()}


def form_of(op_type: str) -> Optional[Form]:
    """Returns the form of a type of op, None if it is no sparse update."""
    return _FORMS.get(op_type)


def is_subtraction(op_type: str) -> bool:
    """Returns whether an op of the kind ADD subtracts."""
    return op_type.endswith("ScatterSub")


def has_wrong_attribute(form: Form, node: Any) -> Optional[str]:
    """Returns the name of an attribute by which the op computes something else."""
    for name, wanted in form.attributes:
        if name in node.attr and node.attr[name].b != wanted:
            return name
    return None


__all__ = ["ADAGRAD", "ADD", "FTRL", "MOMENTUM", "SLOTS", "Form", "form_of",
           "has_wrong_attribute", "is_subtraction"]  # type: List[str]
