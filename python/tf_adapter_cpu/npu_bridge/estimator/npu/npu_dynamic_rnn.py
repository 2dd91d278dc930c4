"""DynamicRNN and DynamicGRUV2, which are not possible: tf_adapter.absent."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "absent")
