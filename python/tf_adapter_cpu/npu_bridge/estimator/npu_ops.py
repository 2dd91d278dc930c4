"""Operations of the device that have a meaning on CPUs: tf_adapter.npu_ops."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "npu_ops")
