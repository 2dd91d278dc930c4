"""Which tests a version of TensorFlow cannot run, and why: those that themselves ask it for what it does not have.

On 1.15 nothing is left out. Where the package asks for it, the test fails.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

# What an error says -> the reason.
_REASONS = (
    ("has no attribute 'estimator'", "Estimators: TensorFlow 2.16 and newer have none"),
    ("No module named 'tensorflow_estimator'", "Estimators: TensorFlow 2.16 and newer have none"),
    ("No module named 'tensorflow.contrib'", "tf.contrib: only 1.15 has it"),
    ("has no attribute 'contrib'", "tf.contrib: only 1.15 has it"),
    ("has no attribute 'layers'", "tf.layers: only 1.15 has it by that name"),
    ("is not available with Keras 3", "tf.compat.v1.layers: TensorFlow 2.16 and newer have none"),
    ("has no attribute 'get_registered_ops'", "op_def_registry.get_registered_ops: only 1.15 has it"),
    ("'tensorflow.python.framework.graph_util_impl' has no attribute 'convert_variables_to_constants'",
     "graph_util_impl.convert_variables_to_constants: moved after 2.12; test_freezing has the public name"),
    ("'Graph' object has no attribute '__dict__'", "scopes of a thread of its own: graphs of TensorFlow 2.21 have no __dict__"),
    ("tf.device does not support functions", "tf.device with a function: only 1.15 takes it by that name"),
)


def reason(info):
    """Why the test that ended with an exception is left out; None if it has failed.

    Args:
        info: The ExceptionInfo, or None.
    """
    tensorflow = sys.modules.get("tensorflow")
    if info is None or tensorflow is None or tensorflow.__version__.startswith("1."):
        return None
    own = [entry for entry in info.traceback if "site-packages" not in str(entry.path)]
    if not own or not str(own[-1].path).startswith(HERE):
        return None
    text = str(info.value)
    return next((why for part, why in _REASONS if part in text), None)


def forget_init():
    """Ends what a test that was left out has initialised."""
    from mx_rec.util.initialize import terminate_config_initializer
    from mx_rec.state.settings import Settings

    if Settings._single_instance is not None:
        terminate_config_initializer()
