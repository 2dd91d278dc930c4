"""`dataset.eos_map`: ends a dataset after a number of batches."""

from typing import Any

from mx_rec.constants.constants import EVAL_CHANNEL_ID, MAX_INT32, TRAIN_CHANNEL_ID
from mx_rec.validator.validator import Int


def eos_map(self: Any, librec: Any, channel_id: int, max_train_steps: int = -1,
            max_eval_steps: int = -1) -> Any:
    """Ends the dataset after the number of batches of its channel.

    The original also makes all ranks end together. Here ranks share no pipeline: each ends after
    its own batches.

    Args:
        librec: Accepted; the op library of the original.
        channel_id: 0 for training, 1 for evaluation.
        max_train_steps: Batches of channel 0, in [-1, 2147483647]; -1 is all.
        max_eval_steps: Batches of channel 1, likewise.

    Returns:
        The dataset, which ends after so many elements or with the original, whichever is first.

    Raises:
        ValueError: If an argument is out of its range.
    """
    del librec
    channel_id = Int(TRAIN_CHANNEL_ID, EVAL_CHANNEL_ID)("channel_id", channel_id)
    max_train_steps = Int(-1, MAX_INT32)("max_train_steps", max_train_steps)
    max_eval_steps = Int(-1, MAX_INT32)("max_eval_steps", max_eval_steps)
    steps = max_train_steps if channel_id == TRAIN_CHANNEL_ID else max_eval_steps
    return self if steps == -1 else self.take(steps)
