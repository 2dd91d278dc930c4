"""Where the entries of a batch are: dicts, tuples, lists, and dicts inside tuples."""

from typing import Any, Optional, Sequence, Union

import tensorflow as tf


def holder_of(batch: Any, index_key: Union[str, int]) -> Optional[Any]:
    """Finds the container that holds an entry.

    Args:
        batch: A dict, tuple or list; a tuple or list may hold dicts (features, labels).
        index_key: A key or a position.

    Returns:
        The container, so that `container[index_key]` is the entry; None if there is none.
    """
    if isinstance(batch, dict):
        return batch if index_key in batch else None
    if isinstance(batch, (tuple, list)):
        if isinstance(index_key, int):
            return batch if index_key < len(batch) else None
        for part in batch:
            holder = holder_of(part, index_key) if isinstance(part, dict) else None
            if holder is not None:
                return holder
    return None


def entry_of(batch: Any, index_key: Union[str, int]) -> Any:
    """Returns an entry of a batch.

    Args:
        batch: As `holder_of`.
        index_key: A key or a position.

    Returns:
        The entry.

    Raises:
        KeyError: If there is none; the message lists what there is.
    """
    holder = holder_of(batch, index_key)
    if holder is None:
        if isinstance(batch, dict):
            present = sorted(batch, key=str)  # type: Sequence[Any]
        else:
            present = [sorted(part, key=str) if isinstance(part, dict) else position
                       for position, part in enumerate(batch)]
        raise KeyError("the batch has no entry {!r}; it has {}.".format(index_key, present))
    return holder[index_key]


def check_dense(entry: Any, what: str) -> tf.Tensor:
    """Returns `entry` if it is a dense tensor.

    Args:
        entry: An entry of a batch.
        what: What it is, for the message.

    Returns:
        The entry.

    Raises:
        ValueError: If it is not a dense tensor.
    """
    if not isinstance(entry, tf.Tensor):
        raise ValueError("{} should be a Tensor, but is a {}. Make sparse ids dense, with -1 as "
                         "padding: tf.sparse.to_dense(ids, default_value=-1).".format(
                             what, type(entry).__name__))
    return entry
