"""Recurrent networks of the device: tf_adapter.npu_rnn."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "npu_rnn")
