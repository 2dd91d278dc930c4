"""Ranks: who this process is, and the refusal of what needs several of them.

Rank and size come from the TensorFlow cluster in TF_CONFIG, as for mx_rec; RANK_SIZE, which the
vendor's launchers set, is only looked at to refuse a job whose processes could not talk.
"""

import os

import tensorflow as tf


def get_rank_size(group: str = "hccl_world_group") -> int:
    """Returns the number of processes that train: chief and workers of TF_CONFIG, or 1."""
    return max(1, tf.estimator.RunConfig().num_worker_replicas)


def get_rank_id(group: str = "hccl_world_group") -> int:
    """Returns the number of this process among those that train, from 0."""
    config = tf.estimator.RunConfig()
    number = config.global_id_in_cluster or 0
    return number if number < config.num_worker_replicas else 0


def get_local_rank_size(group: str = "hccl_world_group") -> int:
    """Returns 1: processes share no device here."""
    return 1


def get_local_rank_id(group: str = "hccl_world_group") -> int:
    """Returns 0, as `get_local_rank_size` is 1."""
    return 0


def get_npu_rank_size() -> int:
    """Returns `get_rank_size()`."""
    return get_rank_size()


def get_npu_rank_id() -> int:
    """Returns `get_rank_id()`."""
    return get_rank_id()


def get_npu_local_rank_id() -> int:
    """Returns `get_local_rank_id()`."""
    return get_local_rank_id()


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """Returns `group_rank_id`: there is one group, that of all ranks."""
    return group_rank_id


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """Returns `world_rank_id`: there is one group, that of all ranks."""
    return world_rank_id


def set_split_strategy_by_idx(idxList, group: str = "hccl_world_group") -> None:
    """Does nothing: no gradients are exchanged that could be split."""


def set_split_strategy_by_size(dataSizeList, group: str = "hccl_world_group") -> None:
    """Does nothing: no gradients are exchanged that could be split."""


def launched_ranks() -> int:
    """Returns RANK_SIZE of the environment, 1 without it.

    Raises:
        ValueError: If it is no int.
    """
    text = os.environ.get("RANK_SIZE", "").strip() or "1"
    try:
        return int(text)
    except ValueError:
        raise ValueError("the environment variable RANK_SIZE should be an int, but is {!r}".format(
            text)) from None


def need_single_rank(what: str) -> None:
    """Refuses what would have to exchange tensors with other processes.

    Args:
        what: Who needs that, for the message.

    Raises:
        NotImplementedError: If there are several ranks, by TF_CONFIG or by RANK_SIZE.
    """
    ranks = max(launched_ranks(), get_rank_size())
    if ranks > 1:
        raise NotImplementedError(
            "{} would have to exchange tensors among {} ranks (RANK_SIZE or TF_CONFIG), which "
            "this stand-in for the vendor's tf_adapter cannot: its collective operations are for "
            "one process. Unset RANK_SIZE to train in one.".format(what, ranks))
