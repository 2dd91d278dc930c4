"""Activations of the device: tf_adapter.npu_unary_ops."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "npu_unary_ops")
