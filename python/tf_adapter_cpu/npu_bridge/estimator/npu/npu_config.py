"""NPURunConfig and the settings that it takes: tf_adapter.config."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "config")
