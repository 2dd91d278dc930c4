"""NPURunConfig: tf.estimator's RunConfig, which takes the settings of NPUs and ignores them."""

import enum
import inspect
import os

import tensorflow as tf

from . import _checks
from ._checks import (BOOL, INTEGER, NATURAL, NUMBER, POSITIVE, TEXT, TEXT_OR_INTEGER)


class ProfilingConfig:
    """What the device should record of its work: without effect here."""

    def __init__(self, enable_profiling=False, profiling_options=None):
        _checks.check("enable_profiling", enable_profiling, BOOL)
        _checks.check("profiling_options", profiling_options, TEXT, optional=True)


class MemoryConfig:
    """How the device should use its memory: without effect here."""

    def __init__(self, atomic_clean_policy=0, static_memory_policy=0,
                 memory_optimization_policy=None):
        _checks.check("atomic_clean_policy", atomic_clean_policy, NATURAL)
        _checks.check("static_memory_policy", static_memory_policy, NATURAL)
        _checks.check("memory_optimization_policy", memory_optimization_policy, TEXT,
                      optional=True)


class DumpConfig:
    """Which tensors the device should write to files: without effect here."""

    def __init__(self, enable_dump=False, dump_path=None, dump_step=None, dump_mode="output",
                 enable_dump_debug=False, dump_debug_mode="all", dump_data="tensor",
                 dump_layer=None):
        _checks.check("enable_dump", enable_dump, BOOL)
        _checks.check("dump_path", dump_path, TEXT, optional=True)
        _checks.check("dump_step", dump_step, TEXT, optional=True)
        _checks.check("dump_mode", dump_mode, TEXT)
        _checks.check("enable_dump_debug", enable_dump_debug, BOOL)
        _checks.check("dump_debug_mode", dump_debug_mode, TEXT)
        _checks.check("dump_data", dump_data, TEXT)
        _checks.check("dump_layer", dump_layer, TEXT, optional=True)


class GraphMemoryOptimizeConfig:
    """What the device should compute again to save memory: without effect here."""

    def __init__(self, recompute=None, graph_slice=None):
        _checks.one_of("recompute", recompute, (None, "auto", "manual"))
        _checks.one_of("graph_slice", graph_slice, (None, "auto", "manual"))


class ExperimentalConfig:
    """Settings of the device that its vendor may change: without effect here."""

    def __init__(self, logical_device_cluster_deploy_mode="LB", logical_device_id=None,
                 model_deploy_mode=None, model_deploy_devicelist=None,
                 graph_memory_optimize_config=None, enable_graph_parallel=None,
                 graph_parallel_option_path=None, graph_compiler_cache_dir=None,
                 resource_config_path=None, accelerate_train_mode=None):
        _checks.check("graph_memory_optimize_config", graph_memory_optimize_config,
                      GraphMemoryOptimizeConfig, optional=True)


class DynamicInputConfig:
    """Which sizes the inputs of a graph can have: without effect, as any size works here."""

    def __init__(self, input_shape, dynamic_dims, dynamic_node_type):
        _checks.check("input_shape", input_shape, TEXT)
        _checks.check("dynamic_dims", dynamic_dims, TEXT)
        _checks.one_of("dynamic_node_type", dynamic_node_type, (0, 1, "0", "1"))


class NpuExecutePlacement(enum.Enum):
    """Parts of the device."""

    ALL = "all"
    CUBE = "cube"
    VECTOR = "vector"
    TAISHAN = "taishan"
    DVPP = "dvpp"
    HOST = "host"


# Kinds of the settings that have no effect. None is right where it is the default.
_IGNORED = {
    "HCCL_algorithm": TEXT,
    "aoe_config_file": TEXT,
    "aoe_mode": TEXT,
    "auto_tune_mode": TEXT,
    "buffer_optimize": TEXT,
    "compress_weight_conf": TEXT,
    "customize_dtypes": TEXT,
    "debug_dir": TEXT,
    "deterministic": NATURAL,
    "device_type": TEXT,
    "distribute_config": TEXT,
    "dump_config": DumpConfig,
    "dynamic_graph_execute_mode": TEXT,
    "dynamic_input": BOOL,
    "dynamic_input_config": DynamicInputConfig,
    "dynamic_inputs_shape_range": TEXT,
    "enable_compress_weight": BOOL,
    "enable_data_pre_proc": BOOL,
    "enable_exception_dump": NATURAL,
    "enable_reduce_precision": BOOL,
    "enable_scope_fusion_passes": TEXT,
    "enable_small_channel": NATURAL,
    "es_cluster_config": TEXT,
    "event_sync_timeout": INTEGER,
    "experimental_config": ExperimentalConfig,
    "external_weight": BOOL,
    "frozen_variable": BOOL,
    "fusion_switch_file": TEXT,
    "graph_memory_max_size": TEXT_OR_INTEGER,
    "graph_run_mode": NATURAL,
    "hccl_timeout": NATURAL,
    "hcom_multi_mode": BOOL,
    "hcom_parallel": BOOL,
    "horovod_mode": BOOL,
    "insert_op_file": TEXT,
    "is_tailing_optimization": BOOL,
    "jit_compile": TEXT,
    "local_device_list": TEXT,
    "local_rank_id": NATURAL,
    "memory_config": MemoryConfig,
    "mix_compile_mode": BOOL,
    "modify_mixlist": TEXT,
    "op_compiler_cache_dir": TEXT,
    "op_compiler_cache_mode": TEXT,
    "op_debug_config": TEXT,
    "op_debug_level": NATURAL,
    "op_execute_timeout": NATURAL,
    "op_precision_mode": TEXT,
    "op_select_implmode": TEXT,
    "op_wait_timeout": NATURAL,
    "optypelist_for_implmode": TEXT,
    "precision_mode": TEXT,
    "precision_mode_v2": TEXT,
    "profiling_config": ProfilingConfig,
    "session_device_id": NATURAL,
    "soc_config": TEXT,
    "stream_max_parallel_num": TEXT,
    "stream_sync_timeout": INTEGER,
    "topo_sorting_mode": NATURAL,
    "variable_format_optimize": BOOL,
    "variable_memory_max_size": TEXT_OR_INTEGER,
    "variable_placement": TEXT,
    "work_path": TEXT,
}

# Kinds of RunConfig's own arguments that it would fail on with less clear words.
_PASSED_ON = {
    "tf_random_seed": INTEGER,
    "save_summary_steps": NATURAL,
    "save_checkpoints_steps": NATURAL,
    "save_checkpoints_secs": NUMBER,
    "session_config": tf.compat.v1.ConfigProto,
    "keep_checkpoint_max": NATURAL,
    "keep_checkpoint_every_n_hours": NUMBER,
    "log_step_count_steps": POSITIVE,
    "experimental_max_worker_delay_secs": INTEGER,
    "session_creation_timeout_secs": NUMBER,
}


class NPURunConfig(tf.estimator.RunConfig):
    """A RunConfig that takes the arguments of the vendor's, in its order and with its defaults.

    RunConfig's own arguments do what they do there, those that the vendor's lacks are at the end.
    Where they differ, the defaults are the vendor's: a checkpoint every 100 steps unless
    `save_checkpoints_steps` or `save_checkpoints_secs` is given, `save_summary_steps` 0,
    `keep_checkpoint_every_n_hours` 10000.

    The settings of NPUs are checked and then ignored; one log line names those that are not at
    their default. `npu_settings` has them all.

    Args:
        iterations_per_loop: An int >= 1 that divides the number of steps of
            `NPUEstimator.train`. Each step still is one `sess.run`, as hooks see it.
        mix_compile_mode: A bool; with True, `iterations_per_loop` must be 1.
        distribute: None. Strategies go to `train_distribute` and `eval_distribute`.

    Raises:
        ValueError: If an argument is of a wrong type or out of range; the message names it.
        NotImplementedError: If `distribute` is given.
    """

    def __init__(self,
                 iterations_per_loop=1,
                 profiling_config=None,
                 model_dir=None,
                 tf_random_seed=None,
                 save_summary_steps=0,
                 save_checkpoints_steps=None,
                 save_checkpoints_secs=None,
                 session_config=None,
                 keep_checkpoint_max=5,
                 keep_checkpoint_every_n_hours=10000,
                 log_step_count_steps=100,
                 distribute=None,
                 enable_data_pre_proc=True,
                 precision_mode=None,
                 enable_reduce_precision=False,
                 variable_format_optimize=None,
                 mix_compile_mode=False,
                 hcom_parallel=True,
                 graph_memory_max_size=None,
                 variable_memory_max_size=None,
                 dump_config=None,
                 stream_max_parallel_num=None,
                 is_tailing_optimization=False,
                 horovod_mode=False,
                 graph_run_mode=1,
                 op_debug_level=None,
                 enable_scope_fusion_passes=None,
                 enable_exception_dump=0,
                 op_select_implmode=None,
                 optypelist_for_implmode=None,
                 dynamic_input_config=None,
                 aoe_mode=None,
                 work_path=None,
                 buffer_optimize="l2_optimize",
                 enable_small_channel=0,
                 fusion_switch_file=None,
                 enable_compress_weight=False,
                 compress_weight_conf=None,
                 op_compiler_cache_mode=None,
                 op_compiler_cache_dir=None,
                 debug_dir=None,
                 hcom_multi_mode=False,
                 dynamic_input=None,
                 dynamic_graph_execute_mode="dynamic_execute",
                 dynamic_inputs_shape_range=None,
                 train_distribute=None,
                 eval_distribute=None,
                 local_rank_id=None,
                 local_device_list=None,
                 session_device_id=None,
                 distribute_config=None,
                 modify_mixlist=None,
                 op_precision_mode=None,
                 device_type="default_device_type",
                 soc_config=None,
                 hccl_timeout=None,
                 op_wait_timeout=None,
                 op_execute_timeout=None,
                 HCCL_algorithm=None,
                 customize_dtypes=None,
                 op_debug_config=None,
                 memory_config=None,
                 experimental_config=None,
                 topo_sorting_mode=None,
                 aoe_config_file=None,
                 insert_op_file=None,
                 stream_sync_timeout=-1,
                 event_sync_timeout=-1,
                 external_weight=False,
                 es_cluster_config=None,
                 deterministic=0,
                 frozen_variable=False,
                 variable_placement="Device",
                 jit_compile="auto",
                 precision_mode_v2=None,
                 auto_tune_mode=None,
                 device_fn=None,
                 protocol=None,
                 experimental_distribute=None,
                 experimental_max_worker_delay_secs=None,
                 session_creation_timeout_secs=7200):
        given = dict(locals())
        defaults = {name: parameter.default for name, parameter in
                    inspect.signature(NPURunConfig.__init__).parameters.items()}
        _checks.check("iterations_per_loop", iterations_per_loop, POSITIVE)
        for name, kind in _IGNORED.items():
            _checks.check(name, given[name], kind, optional=defaults[name] is None)
        for name, kind in _PASSED_ON.items():
            _checks.check(name, given[name], kind, optional=True)
        if model_dir is not None and not isinstance(model_dir, (str, os.PathLike)):
            _checks.check("model_dir", model_dir, TEXT, optional=True)
        _checks.one_of("graph_run_mode", graph_run_mode, (0, 1))
        if mix_compile_mode and iterations_per_loop != 1:
            raise ValueError("iterations_per_loop should be 1 with mix_compile_mode=True, but is "
                             "{}".format(iterations_per_loop))
        if distribute is not None:
            raise NotImplementedError(
                "distribute is for parameter servers beside NPUs. Give a strategy of TensorFlow "
                "to train_distribute and eval_distribute.")
        if save_checkpoints_steps is None and save_checkpoints_secs is None:
            save_checkpoints_steps = 100
        super().__init__(
            model_dir=model_dir, tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_steps=save_checkpoints_steps,
            save_checkpoints_secs=save_checkpoints_secs, session_config=session_config,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps, train_distribute=train_distribute,
            device_fn=device_fn, protocol=protocol, eval_distribute=eval_distribute,
            experimental_distribute=experimental_distribute,
            experimental_max_worker_delay_secs=experimental_max_worker_delay_secs,
            session_creation_timeout_secs=session_creation_timeout_secs)
        self.iterations_per_loop = int(iterations_per_loop)
        self.npu_settings = {name: given[name] for name in _IGNORED}
        _checks.log_ignored("NPURunConfig", [
            name for name in sorted(_IGNORED) if given[name] != defaults[name]])
