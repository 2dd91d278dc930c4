"""Start-up of mx_rec: `init`, the process-wide configuration and the older free functions."""

import atexit
from typing import Any, Dict, List, Optional, cast

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.base.ranks import get_rank_id, get_rank_size
from mx_rec.constants import constants
from mx_rec.constants.constants import MAX_INT32
from mx_rec.state.settings import Settings
from mx_rec.stock.options import StockTables, checked_options
from mx_rec.tensorflow.names import ops
from mx_rec.util.host_ops import HostOps, host_pipeline_ops
from mx_rec.util.sub_configs import FeatureSpecConfig, HybridManagerConfig, SparseEmbedConfig
from mx_rec.validator.validator import Bool, Int, Text, checked

# Keywords of older releases, accepted without a warning because they ask for nothing here.
_OLD_KEYWORDS = ("rank_id", "rank_size", "train_interval", "prefetch_batch_number", "use_hot",
                 "is_graph_modify_hook_running", "iterations_per_loop", "ascend_device_id")


class ConfigInitializer(Settings):
    """The configuration of this process, made by `init`; one at a time.

    Attributes:
        sparse_embed_config: Tables of the present graph.
        feature_spec_config: Features of the present graph.
        hybrid_manager_config: State of the present graph's pipeline.
        optimizer_config: The optimizer created last.
        train_params_config: Iterators, collections and paths around training.
        modify_graph: Whether some lookup asked for graph modification.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.sparse_embed_config = SparseEmbedConfig()
        self.feature_spec_config = FeatureSpecConfig()
        self.hybrid_manager_config = HybridManagerConfig()

    @staticmethod
    def get_instance() -> "ConfigInitializer":
        """Returns the configuration of this process.

        Raises:
            EnvironmentError: If `init` was not called.
        """
        return cast(ConfigInitializer, Settings.get_instance())

    @property
    def host_pipeline_ops(self) -> HostOps:
        """The Python functions of the plugin's ops, and the host ops of the original."""
        return host_pipeline_ops()


@checked(use_mpi=Bool(), max_steps=Int(-1, MAX_INT32), train_steps=Int(-1, MAX_INT32),
         eval_steps=Int(-1, MAX_INT32), save_steps=Int(-1, MAX_INT32), if_load=Bool(),
         use_dynamic=Bool(), use_dynamic_expansion=Bool(), bind_cpu=Bool(), use_lccl=Bool(),
         is_incremental_checkpoint=Bool(),
         save_checkpoint_due_time=Int(1, MAX_INT32, optional=True),
         save_delta_checkpoints_secs=Int(1, MAX_INT32, optional=True),
         restore_model_version=Int(0, MAX_INT32, optional=True),
         recent_key_count_threshold=Int(0, MAX_INT32), graph_pass=Bool())
def init(use_mpi: bool = True, *, max_steps: int = -1, train_steps: int = -1,
         eval_steps: int = -1, save_steps: int = -1, if_load: bool = False,
         use_dynamic: bool = True, use_dynamic_expansion: bool = False, bind_cpu: bool = True,
         use_lccl: bool = False, is_incremental_checkpoint: bool = False,
         save_checkpoint_due_time: Optional[int] = None,
         save_delta_checkpoints_secs: Optional[int] = None,
         restore_model_version: Optional[int] = None, recent_key_count_threshold: int = 0,
         stock_tables: Any = None, graph_pass: bool = True, **kwargs: Any) -> None:
    """Initialises mx_rec for this process; to be called once, before tables are made.

    Args:
        use_mpi: Of older releases; must be True. No MPI is used.
        max_steps: Total number of training steps in [-1, 2147483647]; -1 is until the data end.
            Where it is more than 0, a training pipeline that graph modification made ends after
            so many batches.
        train_steps: Training steps between two evaluations, same range.
        eval_steps: Steps of one evaluation, same range.
        save_steps: Training steps between two saves, same range.
        if_load: Whether a checkpoint will be restored before training.
        use_dynamic: Whether shapes and the number of keys of a batch may vary. False: every
            lookup needs a send_count.
        use_dynamic_expansion: Whether tables grow without a preset size.
        bind_cpu: Accepted and without effect: nothing is bound.
        use_lccl: Accepted and without effect: there is no collective library.
        is_incremental_checkpoint: Whether to write base and delta checkpoints.
        save_checkpoint_due_time: Seconds between base saves in [1, 2147483647].
        save_delta_checkpoints_secs: Seconds between delta saves, same range.
        restore_model_version: Global step of the version to restore in [0, 2147483647].
        recent_key_count_threshold: Keys with fewer recent occurrences are left out of a delta.
        stock_tables: Which variables of models that do not know mx_rec become tables
            (docs/unchanged-estimators.md): True for those that pay, a regular expression or a list
            of them for those whose names match, or mx_rec.util.stock_tables.StockTables. None or
            False: none. The first run of a graph converts it, and an Estimator when its model_fn
            has returned; no call is needed.
        graph_pass: Whether lookups and updates of a graph are fused and joined, before its first
            run and where it is modified (docs/graph-modification.md); False: each keeps ops of its
            own.
        **kwargs: Unknown keywords are named in one warning and ignored.

    Raises:
        ValueError: If a value is out of its range or of a wrong type, if max_steps, train_steps
            and eval_steps are all 0, or if a time of incremental checkpoints is missing.
        EnvironmentError: If mx_rec is initialised already.
    """
    assumed = Settings.assumed()
    if Settings._single_instance is not None and not assumed:  # pylint: disable=protected-access
        raise EnvironmentError("mx_rec was initialised once in this process; a second init is "
                               "forbidden (call terminate_config_initializer() before it).")
    if not use_mpi:
        raise ValueError("'use_mpi' should be True: older releases knew no other value")
    if max_steps == 0 and train_steps == 0 and eval_steps == 0:
        raise ValueError("'max_steps', 'train_steps' and 'eval_steps' must not all be 0")
    if is_incremental_checkpoint:
        if save_checkpoint_due_time is None or save_delta_checkpoints_secs is None:
            raise ValueError("'save_checkpoint_due_time' and 'save_delta_checkpoints_secs' are "
                             "required when 'is_incremental_checkpoint' is True")
    elif restore_model_version is not None:
        logger.warning("'restore_model_version' chooses a version of incremental checkpoints and "
                       "has no effect without them.")
    if ops.executing_eagerly_outside_functions():
        logger.info("init: eager execution is on; create_table and sparse_lookup need graph mode: "
                    "build the model in `with tf.Graph().as_default():`, or call "
                    "tf.compat.v1.disable_v2_behavior() right after the import of TensorFlow.")
    options = checked_options(stock_tables)
    if assumed is not None:
        options = assumed.stock_tables if stock_tables is None else options
        graph_pass = graph_pass and assumed.graph_pass
    use_hot = bool(kwargs.get("use_hot", True))
    _report_keywords(kwargs, bind_cpu, use_lccl)
    Settings.set_instance(ConfigInitializer(
        max_steps=max_steps, train_steps=train_steps, eval_steps=eval_steps,
        save_steps=save_steps, if_load=if_load, use_static=not use_dynamic,
        use_dynamic_expansion=use_dynamic_expansion, bind_cpu=bind_cpu, use_lccl=use_lccl,
        is_incremental_checkpoint=is_incremental_checkpoint,
        save_checkpoint_due_time=save_checkpoint_due_time,
        save_delta_checkpoints_secs=save_delta_checkpoints_secs,
        restore_model_version=restore_model_version,
        recent_key_count_threshold=recent_key_count_threshold, use_hot=use_hot,
        stock_tables=options, graph_pass=graph_pass))
    atexit.register(_terminate_quietly)


def assume(options: StockTables, graph_pass: bool) -> None:
    """Sets what `python -m mx_rec run` was told; `init` of the script may still come.

    Args:
        options: Which variables become tables, from `checked_options`.
        graph_pass: As of `init`.
    """
    settings = ConfigInitializer(stock_tables=options, graph_pass=graph_pass)
    settings.is_assumed = True
    Settings.set_instance(settings)


def terminate_config_initializer() -> None:
    """Ends the configuration of this process, so that `init` may be called again.

    Tables are not touched: they live in their sessions.
    """
    if Settings._single_instance is None:  # pylint: disable=protected-access
        logger.warning("mx_rec is not initialised, or was terminated already.")
        return
    Settings.set_instance(None)
    atexit.unregister(_terminate_quietly)


def _terminate_quietly() -> None:
    Settings.set_instance(None)


def _report_keywords(kwargs: Dict[str, Any], bind_cpu: bool, use_lccl: bool) -> None:
    """Says which of the given settings have no effect."""
    if "use_shm_swap" in kwargs:
        logger.warning("'use_shm_swap' is deprecated: older releases read the environment "
                       "variable USE_SHM_SWAP instead. Here it has no effect.")
    unknown = sorted(set(kwargs) - set(_OLD_KEYWORDS) - {"use_shm_swap"})
    if unknown:
        logger.warning("init ignores keywords that it does not know: %s.", ", ".join(unknown))
    idle = [name for name, given in (("bind_cpu", bind_cpu), ("use_lccl", use_lccl)) if given]
    idle += sorted(set(kwargs) & set(_OLD_KEYWORDS))
    if idle:
        logger.info("accepted without effect: %s.", ", ".join(idle))
    if kwargs.get("rank_size") not in (None, get_rank_size()):
        logger.warning("'rank_size' is ignored: ranks come from TF_CONFIG, which says %d.",
                       get_rank_size())


# Free functions of older releases ------------------------------------------------------------

_config = ConfigInitializer.get_instance


def get_initializer(is_training: bool) -> Optional[tf.Operation]:
    """See TrainParamsConfig.get_initializer."""
    return _config().train_params_config.get_initializer(is_training)


def get_target_batch(is_training: bool) -> Any:
    """See TrainParamsConfig.get_target_batch."""
    return _config().train_params_config.get_target_batch(is_training)


def set_if_load(if_load: bool) -> None:
    """Says whether a checkpoint will be restored before training."""
    _config().if_load = if_load


def get_if_load() -> bool:
    """Returns whether a checkpoint will be restored before training."""
    return _config().if_load


def get_use_static() -> bool:
    """Returns whether batches have fixed shapes."""
    return _config().use_static


def get_use_hot() -> bool:
    """Returns the accepted setting `use_hot`, which has no effect."""
    return _config().use_hot


def get_use_dynamic_expansion() -> bool:
    """Returns whether tables grow without a preset size."""
    return _config().use_dynamic_expansion


def get_host_pipeline_ops() -> HostOps:
    """Returns the Python functions of the plugin's ops, and the host ops of the original."""
    return host_pipeline_ops()


@checked(is_train_channel=Bool())
def clear_channel(is_train_channel: bool = False) -> tf.Operation:
    """Returns an op to run before an evaluation round.

    Lookups take their ids from the batch itself: there is no queue that could be out of step, so
    that the op has nothing to clear.

    Args:
        is_train_channel: Which channel, training or evaluation.

    Returns:
        An op without inputs and outputs.
    """
    return tf.no_op(name="clear_channel_{}".format(
        constants.TRAIN_CHANNEL_ID if is_train_channel else constants.EVAL_CHANNEL_ID))


def set_ascend_global_hashtable_collection(name: str) -> None:
    """Sets the name of the graph collection that new tables are put into, of 1-255 characters."""
    _config().train_params_config.ascend_global_hashtable_collection = name


def get_ascend_global_hashtable_collection() -> str:
    """Returns the name of the graph collection that new tables are put into."""
    return _config().train_params_config.ascend_global_hashtable_collection


@checked(name=Text(1, 255, optional=True))
def set_ascend_table_name_must_contain(name: Optional[str] = "merged") -> None:
    """Sets what names of tables must contain to be saved on the original's device; no effect."""
    constants.ASCEND_TABLE_NAME_MUST_CONTAIN = name


def get_name_to_var_dict() -> Dict[str, tf.Tensor]:
    """Returns table name -> table variable for the present graph."""
    return _config().sparse_embed_config.name_to_var_dict


def export_feature_spec() -> Dict[str, Any]:
    """Returns unique feature name -> FeatureSpec for the present graph."""
    return _config().feature_spec_config.feature_spec_dict


def insert_merged_multi_lookup(is_training: bool, value: bool = True) -> None:
    """Marks the lookups of a mode as merged."""
    _config().train_params_config.set_merged_multi_lookup(is_training, value)


__all__ = [
    "ConfigInitializer",
    "assume",
    "clear_channel",
    "export_feature_spec",
    "get_ascend_global_hashtable_collection",
    "get_host_pipeline_ops",
    "get_if_load",
    "get_initializer",
    "get_name_to_var_dict",
    "get_rank_id",
    "get_rank_size",
    "get_target_batch",
    "get_use_dynamic_expansion",
    "get_use_hot",
    "get_use_static",
    "init",
    "insert_merged_multi_lookup",
    "set_ascend_global_hashtable_collection",
    "set_ascend_table_name_must_contain",
    "set_if_load",
    "terminate_config_initializer",
]  # type: List[str]
