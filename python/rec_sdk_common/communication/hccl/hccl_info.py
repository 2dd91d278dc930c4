"""Rank and rank count, taken from the TensorFlow cluster description in TF_CONFIG."""

from mx_rec.util.communication.hccl_ops import (get_local_rank_size, get_rank_id,
                                                 get_rank_size)

__all__ = [
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
]
