"""Several steps in one call: tf_adapter.util."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "util")
