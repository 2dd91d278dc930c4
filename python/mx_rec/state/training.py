"""What hangs on the settings and changes while a script builds and trains: views of the graph."""

from typing import Any, Dict, Optional, Set

import tensorflow as tf

from mx_rec.constants.constants import (ASCEND_GLOBAL_HASHTABLE_COLLECTION, EVAL_CHANNEL_ID,
                                        TRAIN_CHANNEL_ID)
from mx_rec.state.graph_state import graph_state
from mx_rec.validator.validator import Bool, Text, checked


class OptimizerConfig:
    """The optimizer for tables that was created last.

    Attributes:
        optimizer_instance: The optimizer, or None.
    """

    def __init__(self) -> None:
        self.optimizer_instance = None  # type: Optional[tf.compat.v1.train.Optimizer]


class TrainParamsConfig:
    """What a script reads and sets around training.

    Attributes:
        sparse_dir: The directory that the last Saver.save of tables wrote, or None.
        is_last_round: Whether train_and_evaluate is in its last round.
        experimental_mode: Which of train, evaluate, predict or train_and_evaluate runs.
        bool_gauge_set: Names of the modes that were seen.
        iterator_type: The kind of the rewritten iterator.
        dataset_element_spec: The structure of the rewritten iterator's batches.
    """

    def __init__(self) -> None:
        self.sparse_dir = None  # type: Optional[str]
        self.is_last_round = False
        self.experimental_mode = None  # type: Optional[str]
        self.bool_gauge_set = set()  # type: Set[str]
        self.iterator_type = ""
        self.dataset_element_spec = None  # type: Any
        self._collection = ASCEND_GLOBAL_HASHTABLE_COLLECTION
        self._merged_multi_lookup = {}  # type: Dict[bool, bool]

    @property
    def ascend_global_hashtable_collection(self) -> str:
        """Name of the graph collection that new tables are put into."""
        return self._collection

    @ascend_global_hashtable_collection.setter
    def ascend_global_hashtable_collection(self, name: str) -> None:
        Text(1, 255)("name", name)
        self._collection = name

    @checked(is_training=Bool())
    def get_training_mode_channel_id(self, is_training: bool) -> int:
        """Returns 0 for training, 1 for evaluation."""
        return TRAIN_CHANNEL_ID if is_training else EVAL_CHANNEL_ID

    @checked(is_training=Bool())
    def get_initializer(self, is_training: bool) -> Optional[tf.Operation]:
        """Returns the initialisation op of the rewritten iterator of that mode.

        Args:
            is_training: Which mode.

        Returns:
            The op; None if the present graph was not modified.
        """
        return graph_state().initializers.get(is_training)

    @checked(is_training=Bool())
    def set_initializer(self, is_training: bool, initializer: tf.Operation) -> None:
        """Stores the initialisation op of the rewritten iterator of that mode."""
        graph_state().initializers[is_training] = initializer

    @checked(is_training=Bool())
    def get_target_batch(self, is_training: bool) -> Any:
        """Returns the batch of the rewritten iterator of that mode.

        Args:
            is_training: Which mode.

        Returns:
            Tensors in the structure of the user's dataset; None if the present graph was not
            modified.
        """
        return graph_state().target_batches.get(is_training)

    @checked(is_training=Bool())
    def set_target_batch(self, is_training: bool, batch: Any) -> None:
        """Stores the batch of the rewritten iterator of that mode."""
        graph_state().target_batches[is_training] = batch

    @checked(is_training=Bool())
    def get_merged_multi_lookup(self, is_training: bool) -> bool:
        """Returns whether the lookups of that mode were marked as merged."""
        return self._merged_multi_lookup.get(is_training, False)

    @checked(is_training=Bool())
    def set_merged_multi_lookup(self, is_training: bool, value: bool = True) -> None:
        """Marks the lookups of that mode as merged."""
        self._merged_multi_lookup[is_training] = bool(value)
