"""Optimizers for several ranks: tf_adapter.optimizers."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "optimizers")
