"""Rank and rank count, under the name that scripts import."""

from mx_rec.base.ranks import get_local_rank_size, get_rank_id, get_rank_size  # noqa: F401
