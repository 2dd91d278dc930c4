"""Collective operations: tf_adapter.hccl_ops."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "hccl_ops")
