"""Optimizers around optimizers: with one rank, they do what the inner one does."""

import tensorflow as tf

from .ranks import need_single_rank

_Optimizer = tf.compat.v1.train.Optimizer


def allreduce(tensor, average=True):
    """Returns `tensor`, a tensor or IndexedSlices: the mean and the sum over one rank.

    Raises:
        NotImplementedError: If there are several ranks.
    """
    need_single_rank("allreduce")
    return tensor


def npu_allreduce(values, reduction="mean", fusion=1, fusion_id=-1, group="hccl_world_group"):
    """Returns `values`, a tensor or a list: any reduction over one rank.

    Raises:
        NotImplementedError: If there are several ranks.
    """
    need_single_rank("npu_allreduce")
    return values


def npu_distributed_optimizer_wrapper(optimizer):
    """Returns `optimizer` itself: with one rank, there is nothing to average.

    Raises:
        NotImplementedError: If there are several ranks.
    """
    need_single_rank("npu_distributed_optimizer_wrapper")
    return optimizer


def npu_tf_optimizer(opt):
    """Returns NPUDistributedOptimizer(opt)."""
    return NPUDistributedOptimizer(opt)


class _Wrapper(_Optimizer):
    """Hands every call to another optimizer."""

    def __init__(self, optimizer, name):
        super().__init__(use_locking=False, name=name)
        self._optimizer = optimizer

    def compute_gradients(self, *args, **kwargs):
        """As that of the optimizer inside."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """As that of the optimizer inside."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, *args, **kwargs):
        """As that of the optimizer inside."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        """As that of the optimizer inside."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args, **kwargs):
        """As that of the optimizer inside."""
        return self._optimizer.variables(*args, **kwargs)


class NPUDistributedOptimizer(_Wrapper):
    """An optimizer that would average gradients over ranks; over one, they are what they are.

    Args:
        optimizer: A `tf.compat.v1.train.Optimizer`.
        is_weight_update_sharding: Without effect.
        name: Its name, "Distributed" and the other's class by default.

    Raises:
        NotImplementedError: If there are several ranks.
    """

    def __init__(self, optimizer, is_weight_update_sharding=False, name=None):
        need_single_rank("NPUDistributedOptimizer")
        super().__init__(optimizer, name or "Distributed" + type(optimizer).__name__)


class NPUOptimizer(_Wrapper):
    """An optimizer that can average gradients over ranks, scale the loss, or both.

    Args:
        opt: A `tf.compat.v1.train.Optimizer`.
        loss_scale_manager: Needed if `is_loss_scale`.
        is_distributed: Whether gradients would be averaged; with one rank that changes nothing.
        is_loss_scale: Whether the loss is scaled, as by NPULossScaleOptimizer.
        is_tailing_optimization: Without effect.
        name: Its name.

    Raises:
        ValueError: If `is_loss_scale` comes without a `loss_scale_manager`.
        NotImplementedError: If there are several ranks and `is_distributed`.
    """

    def __init__(self, opt, loss_scale_manager=None, is_distributed=False, is_loss_scale=False,
                 is_tailing_optimization=False, name=None):
        if is_distributed:
            need_single_rank("NPUOptimizer")
        if is_loss_scale:
            if loss_scale_manager is None:
                raise ValueError("loss_scale_manager is needed with is_loss_scale=True")
            from .loss_scale import NPULossScaleOptimizer
            opt = NPULossScaleOptimizer(opt, loss_scale_manager)
        super().__init__(opt, name or "NPUOptimizer" + type(opt).__name__)
