"""The private names of TensorFlow that mx_rec uses, from where this version has them.

All other modules take them from here. Names that every version has in one place stand first; the
others tell since when they are where.
"""

import operator
from typing import Any

from mx_rec.tensorflow.versions import IS_1, Absent, find

_P = "tensorflow.python."
_SINCE_1 = (1, 15)

# Modules that have not moved.
array_ops = find("gradients in branches", (_SINCE_1, _P + "ops.array_ops"))
checkpoint_management = find(
    "tf.train.Saver with tables", ((2, 9), _P + "checkpoint.checkpoint_management"),
    (_SINCE_1, _P + "training.checkpoint_management"))
control_flow_util = find("optimizers for tables", (_SINCE_1, _P + "ops.control_flow_util"))
dataset_ops = find("graph modification", (_SINCE_1, _P + "data.ops.dataset_ops"))
deprecation = find("quick changes of graphs", (_SINCE_1, _P + "util.deprecation"))
device_setter = find("the check for clusters", (_SINCE_1, _P + "training.device_setter"))
gen_state_ops = find("ftrl_t", (_SINCE_1, _P + "ops.gen_state_ops"))
keras_backend = find("weights of Keras's models", (_SINCE_1, _P + "keras.backend")) \
    if IS_1 else None
nest = find("FeatureSpec", (_SINCE_1, _P + "data.util.nest"))
ops = find("gradients", (_SINCE_1, _P + "framework.ops"))
resources = find("tables on parameter servers", (_SINCE_1, _P + "ops.resources"))
resource_variable_ops = find("ftrl_t", (_SINCE_1, _P + "ops.resource_variable_ops"))
saveable_object = find("tf.train.Saver with tables alone",
                       (_SINCE_1, _P + "training.saving.saveable_object"))
session = find("sessions", (_SINCE_1, _P + "client.session"))
structure = find("get_target_batch", (_SINCE_1, _P + "data.util.structure"))
sync_replicas = find("synchronous training on parameter servers",
                     (_SINCE_1, _P + "training.sync_replicas_optimizer"))
tensor_util = find("constants", (_SINCE_1, _P + "framework.tensor_util"))
training_util = find("tf.train.Saver with tables", (_SINCE_1, _P + "training.training_util"))
variables = find("tf.train.Saver with tables", (_SINCE_1, _P + "ops.variables"))
warm_starting_util = find("warm starts", (_SINCE_1, _P + "training.warm_starting_util"))
while_v2 = find("gradients in loops", (_SINCE_1, _P + "ops.while_v2"))

# Names that have.
MapDataset = find("graph modification of one-shot iterators",
                  ((2, 12), _P + "data.ops.map_op:_MapDataset"),
                  (_SINCE_1, _P + "data.ops.dataset_ops:MapDataset"))
# TensorFlow's own: patches.py imports this before it replaces anything.
NewCheckpointReader = find(
    "readers of checkpoints", ((2, 2), _P + "training.py_checkpoint_reader:NewCheckpointReader"),
    (_SINCE_1, _P + "pywrap_tensorflow:NewCheckpointReader"))
RefVariable = find("copies of variables", ((2, 12), _P + "ops.ref_variable:RefVariable"),
                   (_SINCE_1, _P + "ops.variables:RefVariable"))
c_api = find("graph modification", ((2, 0), _P + "client.pywrap_tf_session"),
             (_SINCE_1, _P + "pywrap_tensorflow"))

# The version of the graph of a session, a number that grows with the graph. Without the lock that
# `Graph.version` takes in a 1.x: reading a number needs none.
version_for = operator.attrgetter("_graph._version" if IS_1 else "_graph.version")

if isinstance(RefVariable, Absent):
    RefVariable = type("NoRefVariable", (), {})


def _dense_like() -> Any:
    """Returns the base class by which 2.x knows what is converted as a whole, not by its items."""
    found = None if IS_1 else find("lists with the variable of a table",
                                   ((2, 0), _P + "types.core:Tensor"))
    return found or type("DenseLike", (), {})


DenseLike = _dense_like()


def register_dense_like(kind: type) -> None:
    """Lets TensorFlow convert lists that hold objects of a class derived from `DenseLike`.

    Without it, lists are converted by NumPy.
    """
    if IS_1:
        ops.register_dense_tensor_like_type(kind)


def known_gradients() -> Any:
    """Returns the names of the registered gradient functions."""
    return ops._gradient_registry.list()  # pylint: disable=protected-access


def require_graph_mode(call: str, what: str) -> None:
    """Refuses eager execution, also outside of the tf.function that a call is made in.

    Args:
        call: What was called.
        what: What it was called for.

    Raises:
        RuntimeError: If eager execution is on; the text says how to switch.
    """
    if ops.executing_eagerly_outside_functions():
        raise RuntimeError(
            "{}: tables need graph mode, also inside of a tf.function, and eager execution is on. "
            "Call tf.compat.v1.disable_v2_behavior() (or disable_eager_execution()) right after "
            "the import of TensorFlow, or build the model in `with tf.Graph().as_default():`, and "
            "run it in a tf.compat.v1.Session. ({})".format(call, what))
