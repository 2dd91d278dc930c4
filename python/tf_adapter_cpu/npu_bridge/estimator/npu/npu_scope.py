"""Scopes for the device's compiler: tf_adapter.npu_scope."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "npu_scope")
