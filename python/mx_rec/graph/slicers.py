"""Hooks of older releases: with this pass, nothing is left for them to do.

In the original they prepare id sub-graphs that its graph modification cannot move. This one moves
them as they are, or leaves them in the step, where they work as well.
"""

from typing import List

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.validator.validator import Bool, Text, checked


class _IdleHook(tf.compat.v1.train.SessionRunHook):
    """A hook that says at its begin why it has nothing to do."""

    _why = ""

    def begin(self) -> None:
        """Says that there is nothing to do."""
        logger.info("%s has nothing to do: %s.", type(self).__name__, self._why)


class LookupSubgraphSlicerHook(_IdleHook):
    """Accepted and without effect: GraphModifierHook moves every stateless op before the ids.

    Args:
        op_types: Types of the ops to move, such as "StringToHashBucketFast"; not empty.

    Raises:
        ValueError: If op_types is not a list, is empty, or holds something else than names.
    """

    _why = "GraphModifierHook moves the stateless ops that ids pass through, of any type"

    def __init__(self, op_types: List[str]) -> None:
        super().__init__()
        if not isinstance(op_types, list):
            raise ValueError("type of 'op_types' is not list: it is {!r}".format(op_types))
        if not op_types:
            raise ValueError("'op_types' length is less than 1")
        for op_type in op_types:
            Text(1, 255)("op_types", op_type)
        self.op_types = list(op_types)


class OrphanLookupKeySlicerHook(_IdleHook):
    """Accepted and without effect: ids that come from no iterator are looked up in the step."""

    _why = "ids that come from no iterator are looked up in the step"


class ACGPushOpsToDatasetHook(_IdleHook):
    """Accepted and without effect: GraphModifierHook moves what can be moved.

    Args:
        dump_graph: Accepted; `GraphModifierHook(dump_graph=True)` writes the graphs.

    Raises:
        ValueError: If dump_graph is not a bool.
    """

    _why = "GraphModifierHook moves the ops that ids pass through"

    @checked(dump_graph=Bool())
    def __init__(self, dump_graph: bool = False) -> None:
        super().__init__()
        self.dump_graph = dump_graph
