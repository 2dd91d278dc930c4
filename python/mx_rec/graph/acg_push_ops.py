"""`ACGPushOpsToDatasetHook`, for scripts of older releases."""

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.validator.validator import Bool, checked


class ACGPushOpsToDatasetHook(tf.compat.v1.train.SessionRunHook):
    """Accepted and without effect: GraphModifierHook moves what can be moved.

    Args:
        dump_graph: Accepted; `GraphModifierHook(dump_graph=True)` writes the graphs.

    Raises:
        ValueError: If dump_graph is not a bool.
    """

    @checked(dump_graph=Bool())
    def __init__(self, dump_graph: bool = False) -> None:
        super().__init__()
        self.dump_graph = dump_graph

    def begin(self) -> None:
        """Says that there is nothing to do."""
        logger.info("ACGPushOpsToDatasetHook has nothing to do: GraphModifierHook moves the "
                    "ops that ids pass through.")
