"""A stand-in for the vendor's `tf_adapter`, so that scripts for NPUs run on tf.estimator and CPUs.

Importing it raises ImportError where the vendor's package is present.
"""

from ._stand_in import refuse_to_shadow

refuse_to_shadow()

import tensorflow as tf  # noqa: E402,F401  scripts take it from a star import
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2  # noqa: E402
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig  # noqa: E402

from . import (  # noqa: E402
    hccl_ops,
    npu_ops,
    npu_plugin,
    npu_rnn,
    npu_scope,
    npu_unary_ops,
    util,
)
from ._version import VERSION as __version__  # noqa: E402,F401
from .absent import (  # noqa: E402
    KerasDistributeOptimizer,
    NPUBroadcastGlobalVariablesCallback,
    NPUStrategy,
    create_group,
    destroy_group,
    model_to_npu_estimator,
    npu_callbacks_append,
    npu_clear_session,
    npu_keras_optimizer,
    set_keras_session_npu_config,
)
from .config import (  # noqa: E402
    DumpConfig,
    DynamicInputConfig,
    ExperimentalConfig,
    GraphMemoryOptimizeConfig,
    MemoryConfig,
    NPURunConfig,
    NpuExecutePlacement,
    ProfilingConfig,
)
from .estimator import NPUEstimator, NPUEstimatorSpec  # noqa: E402
from .hooks import (  # noqa: E402
    NPUBroadcastGlobalVariablesHook,
    NPUCheckpointSaverHook,
    NPUOutputTensorHook,
    NpuEmptyHook,
    SetIterationsVarHook,
    npu_hooks_append,
)
from .optimizers import (  # noqa: E402
    NPUDistributedOptimizer,
    NPUOptimizer,
    allreduce,
    npu_allreduce,
    npu_distributed_optimizer_wrapper,
    npu_tf_optimizer,
)
from .ranks import (  # noqa: E402
    get_group_rank_from_world_rank,
    get_local_rank_id,
    get_local_rank_size,
    get_npu_local_rank_id,
    get_npu_rank_id,
    get_npu_rank_size,
    get_rank_id,
    get_rank_size,
    get_world_rank_from_group_rank,
    set_split_strategy_by_idx,
    set_split_strategy_by_size,
)
from .session import (  # noqa: E402
    close_session,
    init_resource,
    npu_config_proto,
    npu_graph_options,
    npu_optimizer_options,
    npu_run_config_init,
    shutdown_resource,
)

# Found on first use: they need tf.contrib, which takes seconds to import.
_LATE = ("ExponentialUpdateLossScaleManager", "FixedLossScaleManager", "NPULossScaleOptimizer")

__all__ = [
    "DumpConfig",
    "DynamicInputConfig",
    "ExperimentalConfig",
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "GraphMemoryOptimizeConfig",
    "KerasDistributeOptimizer",
    "MemoryConfig",
    "NPUBroadcastGlobalVariablesCallback",
    "NPUBroadcastGlobalVariablesHook",
    "NPUCheckpointSaverHook",
    "NPUDistributedOptimizer",
    "NPUEstimator",
    "NPUEstimatorSpec",
    "NPULossScaleOptimizer",
    "NPUOptimizer",
    "NPUOutputTensorHook",
    "NPURunConfig",
    "NPUStrategy",
    "NpuEmptyHook",
    "NpuExecutePlacement",
    "ProfilingConfig",
    "RewriterConfig",
    "SetIterationsVarHook",
    "allreduce",
    "close_session",
    "config_pb2",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_npu_local_rank_id",
    "get_npu_rank_id",
    "get_npu_rank_size",
    "get_rank_id",
    "get_rank_size",
    "get_world_rank_from_group_rank",
    "hccl_ops",
    "init_resource",
    "model_to_npu_estimator",
    "npu_allreduce",
    "npu_callbacks_append",
    "npu_clear_session",
    "npu_config_proto",
    "npu_distributed_optimizer_wrapper",
    "npu_graph_options",
    "npu_hooks_append",
    "npu_keras_optimizer",
    "npu_ops",
    "npu_optimizer_options",
    "npu_plugin",
    "npu_rnn",
    "npu_run_config_init",
    "npu_scope",
    "npu_tf_optimizer",
    "npu_unary_ops",
    "rewriter_config_pb2",
    "set_keras_session_npu_config",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
    "shutdown_resource",
    "tf",
    "util",
]


def __getattr__(name):
    """Finds the names that are imported on first use."""
    if name in _LATE:
        from . import loss_scale
        return getattr(loss_scale, name)
    raise AttributeError("module 'tf_adapter' has no attribute {!r}".format(name))
