"""Collective operations among the ranks of a job of one: each returns what it is given."""

import tensorflow as tf

from .ranks import need_single_rank

_WORLD = "hccl_world_group"
_REDUCTIONS = ("sum", "max", "min", "prod")


def _same(what, tensor):
    """Returns a copy of a tensor, or of each of a list, once there is but one rank."""
    need_single_rank("hccl_ops." + what)
    if isinstance(tensor, (list, tuple)):
        return [tf.identity(one) for one in tensor]
    return tf.identity(tensor)


def _reduced(what, tensor, reduction):
    if reduction not in _REDUCTIONS:
        raise ValueError("reduction should be one of {}, but is {!r}".format(
            ", ".join(_REDUCTIONS), reduction))
    return _same(what, tensor)


def _of_one(rank_size):
    if rank_size != 1:
        raise ValueError("rank_size should be 1, the number of ranks, but is {!r}".format(
            rank_size))


def allreduce(tensor, reduction, fusion=1, fusion_id=-1, group=_WORLD):
    """Returns `tensor` reduced over one rank: itself, of the same shape and dtype.

    Raises:
        ValueError: If `reduction` is none of sum, max, min, prod.
        NotImplementedError: If there are several ranks.
    """
    return _reduced("allreduce", tensor, reduction)


def allgather(tensor, rank_size, fusion=0, fusion_id=-1, group=_WORLD):
    """Returns `tensor`, the only one to gather.

    Raises:
        ValueError: If `rank_size` is not 1.
        NotImplementedError: If there are several ranks.
    """
    _of_one(rank_size)
    return _same("allgather", tensor)


def broadcast(tensor, root_rank, fusion=2, fusion_id=0, group=_WORLD):
    """Returns the tensors of the list `tensor`, which rank 0 has already.

    Raises:
        ValueError: If `root_rank` is not 0.
        NotImplementedError: If there are several ranks.
    """
    _of_root(root_rank)
    return _same("broadcast", tensor)


def reduce(tensor, reduction, root_rank, fusion=0, fusion_id=-1, group=_WORLD):
    """Returns `tensor` reduced over one rank: itself.

    Raises:
        ValueError: If `reduction` is none of sum, max, min, prod, or `root_rank` is not 0.
        NotImplementedError: If there are several ranks.
    """
    _of_root(root_rank)
    return _reduced("reduce", tensor, reduction)


def reduce_scatter(tensor, reduction, rank_size, fusion=0, fusion_id=-1, group=_WORLD):
    """Returns `tensor`, the part of rank 0 of one.

    Raises:
        ValueError: If `reduction` is none of sum, max, min, prod, or `rank_size` is not 1.
        NotImplementedError: If there are several ranks.
    """
    _of_one(rank_size)
    return _reduced("reduce_scatter", tensor, reduction)


def send(tensor, sr_tag, dest_rank, group=_WORLD):
    """Raises NotImplementedError: there is no other rank to send to."""
    raise NotImplementedError("hccl_ops.send: there is no other rank to send a tensor to")


def receive(shape, data_type, sr_tag, src_rank, group=_WORLD):
    """Raises NotImplementedError: there is no other rank to receive from."""
    raise NotImplementedError("hccl_ops.receive: there is no other rank to receive a tensor from")


def _of_root(root_rank):
    if root_rank != 0:
        raise ValueError("root_rank should be 0, the only rank, but is {!r}".format(root_rank))
