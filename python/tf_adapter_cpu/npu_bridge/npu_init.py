"""All names at once: what `from npu_bridge.npu_init import *` is for.

Beside ours there are those of TensorFlow and Python that the vendor's module imports, which
scripts take from it, too.
"""

import atexit  # noqa: F401
import os  # noqa: F401

import tensorflow as tf  # noqa: F401
from tensorflow.python.client import session  # noqa: F401
from tensorflow.python.training import session_run_hook  # noqa: F401

from npu_bridge._stand_in import shared
from npu_bridge.estimator.npu import keras_to_npu, npu_strategy  # noqa: F401

_ALL = shared("")

npu_close = _ALL.npu_plugin.npu_close

_OWN = ["atexit", "keras_to_npu", "npu_close", "npu_strategy", "os", "session",
        "session_run_hook", "tf"]
__all__ = sorted(set(_ALL.__all__) | set(_OWN))


def __getattr__(name):
    """Finds the names of our tf_adapter."""
    return getattr(_ALL, name)
