"""Compares every public name, parameter, order and default of the package with the API that scripts are written for.

Run as a program it prints what differs and ends with 1 if anything does; test_contract.py runs it as a test. A signature
here is what a script may rely on: ours begins with the same parameters, in that order and with those defaults, and has
further ones only with defaults. `*` begins parameters that are given by keyword, in any order. A name that begins with `_`
may have any name: it is given by position. None stands for names whose parameters the API leaves open.
"""

import enum
import importlib
import inspect
import os
import sys

MAX = 2147483647

FUNCTIONS = {
    "mx_rec": {"version": ""},
    "mx_rec.util.initialize": {
        "init": "*, max_steps=-1, train_steps=-1, eval_steps=-1, save_steps=-1, if_load=False, use_dynamic=True, "
                "use_dynamic_expansion=False, bind_cpu=True, use_lccl=False, is_incremental_checkpoint=False, "
                "save_checkpoint_due_time=None, save_delta_checkpoints_secs=None, restore_model_version=None, "
                "recent_key_count_threshold=0, use_mpi=True",
        "terminate_config_initializer": "",
        "get_rank_id": "", "get_rank_size": "", "get_initializer": "is_training", "get_target_batch": "is_training",
        "set_if_load": "if_load", "get_if_load": "", "get_use_static": "", "get_use_hot": "",
        "get_use_dynamic_expansion": "", "get_host_pipeline_ops": "", "clear_channel": "*, is_train_channel=False",
        "set_ascend_global_hashtable_collection": "_name", "get_ascend_global_hashtable_collection": "",
        "set_ascend_table_name_must_contain": "_name='merged'", "get_name_to_var_dict": "", "export_feature_spec": "",
        "insert_merged_multi_lookup": "is_training, _value=True", "ConfigInitializer.get_instance": "",
    },
    "mx_rec.util.variable": {"get_dense_and_sparse_variable": ""},
    "mx_rec.util.ops": {"import_host_pipeline_ops": "*, so_pkg_name='libmx_rec.so'"},
    "mx_rec.util.communication.hccl_ops": {"get_rank_id": "", "get_rank_size": ""},
    "mx_rec.util.tf_version_adapter": {"hccl_ops.allreduce": "tensor, reduction", "npu_ops.dropout": "x, keep_prob"},
    "rec_sdk_common.util.tf_adapter": {"hccl_ops.allreduce": "tensor, reduction", "npu_ops.dropout": "x, keep_prob"},
    "rec_sdk_common.communication.hccl.hccl_info": {
        "get_rank_id": "", "get_rank_size": "", "get_local_rank_size": ""},
    "mx_rec.core.embedding": {
        "create_table": "key_dtype, dim, name, emb_initializer, device_vocabulary_size=1, host_vocabulary_size=0, "
                        "ssd_vocabulary_size=0, ssd_data_path=CURRENT, is_save=True, is_dp=False, init_param=1.0, "
                        "all2all_gradients_op='sum_gradients', enable_merge=False, padding_keys=None, "
                        "padding_keys_mask=False, padding_keys_len=None, value_dtype=FLOAT, shard_num=1, "
                        "fusion_optimizer_var=True, hashtable_threshold=0, *, optimizer_list=None",
        "sparse_lookup": "hashtable, ids, send_count=None, is_train=True, name=None, modify_graph=False, batch=None, "
                         "access_and_evict_config=None, is_grad=True, serving_default_value=None, **kwargs",
    },
    "mx_rec.core.asc.feature_spec": {
        "FeatureSpec": "name, table_name=None, index_key=None, access_threshold=None, eviction_threshold=None, "
                       "is_timestamp=None, batch_size=None, faae_coefficient=1, *, feat_count=None"},
    "mx_rec.core.asc.helper": {
        "FeatureSpec": "name, table_name=None",
        "get_asc_insert_func": "tgt_key_specs=None, args_index_list=None, table_names=None, is_training=True, "
                               "dump_graph=False"},
    "mx_rec.core.asc.manager": {"start_asc_pipeline": ""},
    "mx_rec.core.feature_process": {
        "EvictHook": "evict_enable=False, evict_time_interval=86400, evict_step_interval=None"},
    "mx_rec.graph.modifier": {
        "modify_graph_and_start_emb_cache": "full_graph=None, dump_graph=False",
        "GraphModifierHook": "dump_graph=False, modify_graph=True"},
    "mx_rec.graph": {
        "GraphModifierHook": "dump_graph=False, modify_graph=True", "LookupSubgraphSlicerHook": "op_types",
        "OrphanLookupKeySlicerHook": "", "do_merge_lookup": "is_train=True", "run": None,
        "ACGPushOpsToDatasetHook": "*, dump_graph=False"},
    "mx_rec.graph.hooks": {"LookupSubgraphSlicerHook": "op_types", "OrphanLookupKeySlicerHook": ""},
    "mx_rec.graph.merge_lookup": {"do_merge_lookup": "is_train=True"},
    "mx_rec.optimizers.lazy_adam": {
        "create_hash_optimizer": "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, name='LazyAdam', "
                                 "use_fusion_optim=False", "CustomizedLazyAdam": None},
    "mx_rec.optimizers.lazy_adam_by_addr": {
        "create_hash_optimizer_by_address": "learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, "
                                            "name='LazyAdamByAddress'", "CustomizedLazyAdamByAddress": None},
    "mx_rec.optimizers.adagrad": {
        "create_hash_optimizer": "learning_rate=0.001, initial_accumulator_value=0.9, use_locking=False, "
                                 "name='Adagrad'", "CustomizedAdagrad": None},
    "mx_rec.optimizers.adagrad_by_addr": {
        "create_hash_optimizer_by_address": "learning_rate=0.001, initial_accumulator_value=0.9, name='Adagrad'",
        "CustomizedAdagradByAddress": None},
    "mx_rec.optimizers.ftrl": {
        "create_hash_optimizer": "learning_rate, use_locking=False, name='Ftrl', *, learning_rate_power=-0.5, "
                                 "initial_accumulator_value=0.1, l1_regularization_strength=0, "
                                 "l2_regularization_strength=0, accum_name=None, linear_name=None, "
                                 "l2_shrinkage_regularization_strength=0", "CustomizedFtrl": None},
    "mx_rec.optimizers.gradient_descent": {
        "create_hash_optimizer": "learning_rate, use_locking=False, name='GradientDescent', use_fusion_optim=False, "
                                 "weight_decay=None", "CustomizedGradientDescent": None},
    "mx_rec.optimizers.gradient_descent_by_addr": {
        "create_hash_optimizer_by_addr": "learning_rate, weight_decay=0.0001, use_locking=False, "
                                         "name='GradientDescentByAddr'", "CustomizedGradientDescentByAddr": None},
    "mx_rec.optimizers.momentum": {
        "create_hash_optimizer": "learning_rate_input=0.001, mom=0.9, enable_locking=False, "
                                 "optimizer_name='momentum', enable_nesterov=False"},
    "mx_rec.optimizers.rmsprop": {
        "create_hash_optimizer": "learning_rate=0.001, decay=0.9, momentum=0.0, epsilon=1e-10, use_locking=False, "
                                 "centered=False, name='RMSProp'", "CustomizedRMSProp": None},
    "mx_rec.optimizers.rmsprop_by_addr": {
        "create_hash_optimizer_by_address": "learning_rate=0.001, decay=0.9, momentum=0.0, epsilon=1e-10, "
                                            "centered=False, name='RMSPropByAddress'",
        "CustomizedRMSPropByAddress": None},
    "mx_rec.optimizers.ftrl_t": {
        "create_hash_optimizer": "learning_rate, use_locking=False, name='Ftrl_t', *, alpha=0.06, beta=1.0, lambda1=0, "
                                 "lambda2=0, epsilon=0, grad_factor=0"},
    "mx_rec.optimizers.ftrl_t_dense": {
        "create_hash_optimizer": "learning_rate, use_locking=False, *, alpha=0.06, beta=1.0, lambda1=0, lambda2=0, "
                                 "epsilon=0, grad_factor=0"},
    "mx_rec.optimizers.base": {"CustomizedOptimizer": ""},
    "mx_rec.saver.saver": {
        "Saver": "var_list=None, max_to_keep=3, prefix_name='checkpoint'",
        "Saver.save": "self, sess, save_path", "Saver.restore": "self, sess, save_path",
        "validate_read_file": "read_file_path"},
    "mx_rec.saver.patch": {"validate_save_path": "_path"},
    "mx_rec.saver.sparse": {"export": "table_list=None"},
    "tensorflow.compat.v1.train": {
        "Saver.save": "self, sess, save_path, global_step=None, latest_filename=None, meta_graph_suffix='meta', "
                      "write_meta_graph=True, write_state=True, strip_default_attrs=False, save_debug_info=False, "
                      "is_incremental_checkpoint=False, save_delta=False",
        "Saver.restore": "self, sess, save_path"},
    "tensorflow.data": {
        "Dataset.eos_map": "self, librec, channel_id, *, max_train_steps=-1, max_eval_steps=-1"},
    "mx_rec.util.sub_configs": {
        "TrainParamsConfig.get_initializer": "self, is_training",
        "TrainParamsConfig.get_target_batch": "self, is_training",
        "TrainParamsConfig.get_training_mode_channel_id": "self, is_training",
        "TrainParamsConfig.set_initializer": "self, is_training, _initializer",
        "TrainParamsConfig.set_target_batch": "self, is_training, _batch",
        "TrainParamsConfig.set_merged_multi_lookup": "self, is_training, _value=True",
        "TrainParamsConfig.get_merged_multi_lookup": "self, is_training",
        "SparseEmbedConfig.get_table_instance": "self, key",
        "SparseEmbedConfig.get_table_instance_by_name": "self, table_name",
        "SparseEmbedConfig.get_table_instance_by_tensor": "self, tensor",
        "HybridManagerConfig.trigger_evict": "self", "HybridManagerConfig.save_host_data": "self, _path",
        "HybridManagerConfig.restore_host_data": "self, _path", "HybridManagerConfig.fetch_device_emb": "self",
        "HybridManagerConfig.get_table_size": "self, _table_name",
        "HybridManagerConfig.get_table_capacity": "self, _table_name"},
    "mx_rec.core.table": {"Table.size": "self", "Table.capacity": "self"},
    "mx_rec.constants.constants": {"BaseEnum.mapping": "_value"},
    "tf_adapter": {
        "NPUEstimator": "model_fn=None, model_dir=None, config=None, params=None, job_start_file='', warm_start_from=None",
        "NPURunConfig": "iterations_per_loop=1, *, model_dir=None, save_checkpoints_steps=None, session_config=None",
        "npu_hooks_append": "_hooks_list=()", "util.set_iteration_per_loop": "sess, train_op, iterations_per_loop=1"},
}

# create_table's parameters by position in older releases, with a value for each that is not its default.
OLDER_CREATE_TABLE = [
    ("key_dtype", "tf.int32"), ("dim", "4"), ("name", "'older'"), ("emb_initializer", "tf.compat.v1.ones_initializer()"),
    ("optimizer_list", "[]"), ("device_vocabulary_size", "16"), ("host_vocabulary_size", "8"),
    ("ssd_vocabulary_size", "0"), ("ssd_data_path", "('.',)"), ("is_save", "False"), ("init_param", "2.0"),
    ("all2all_gradients_op", "'sum_gradients_and_div_by_ranksize'"), ("value_dtype", "tf.float32"), ("shard_num", "2"),
    ("fusion_optimizer_var", "False"), ("hashtable_threshold", "1")]

# Functions of what import_host_pipeline_ops() returns.
HOST_OPS = {
    "clear_channel": "channel_id", "set_threshold": "input, *, emb_name='', ids_name=''", "return_timestamp": "input",
    "read_emb_key_v2": None, "read_emb_key_v2_dynamic": None,
    "eos_dataset": "input_dataset, channel_id, max_train_steps, max_eval_steps, output_types, output_shapes"}

NAMED = ["ASCEND_GLOBAL_HASHTABLE_COLLECTION", "ASCEND_CUTTING_POINT_INITIALIZER", "ASCEND_SPARSE_LOOKUP_ENTRANCE",
         "ASCEND_SPARSE_LOOKUP_ID_OFFSET", "ASCEND_SPARSE_LOOKUP_LOCAL_EMB", "ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS",
         "ASCEND_TIMESTAMP"]

CONSTANTS = {
    "MULTI_LOOKUP_TIMES": 128, "DEFAULT_EVICT_TIME_INTERVAL": 86400, "TRAIN_CHANNEL_ID": 0, "EVAL_CHANNEL_ID": 1,
    "MAX_VOCABULARY_SIZE": 10 ** 9, "MAX_DEVICE_VOCABULARY_SIZE": 10 ** 9, "MAX_WHILE_SIZE": 800, "MAX_INT32": MAX,
    "ASCEND_TABLE_NAME_MUST_CONTAIN": None, "FILE_MODE": 0o640, "DIRECTORY_MODE": 0o750,
    "HDFS_FILE_PREFIX": ("viewfs://", "hdfs://")}

# Environment variables: the attribute of global_env, the default, values that are taken, values that are not.
ENVIRONMENT = {
    "MXREC_LOG_LEVEL": ("log_level", "INFO", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], ["LOUD", ""]),
    "GLOG_stderrthreshold": ("glog_stderrthreshold", 0, ["-2", "-1", "0", "1", "2"], ["-3", "3", "x"]),
    "TF_DEVICE": ("tf_device", "NONE", ["NPU", "GPU", "CPU", "NONE"], ["TPU"]),
    "AclTimeout": ("acl_timeout", -1, ["-1", str(MAX)], ["-2", str(MAX + 1)]),
    "HD_CHANNEL_SIZE": ("hd_channel_size", 40, ["2", "8192"], ["1", "8193"]),
    "KEY_PROCESS_THREAD_NUM": ("key_process_thread_num", 6, ["1", "10"], ["0", "11"]),
    "MAX_UNIQUE_THREAD_NUM": ("max_unique_thread_num", 8, ["1", "8"], ["0", "9"]),
    "FAST_UNIQUE": ("fast_unique", False, ["0", "1"], ["2"]),
    "HOT_EMB_UPDATE_STEP": ("hot_emb_update_step", 1000, ["1", "1000"], ["0", "1001"]),
    "USE_COMBINE_FAAE": ("use_combine_faae", False, ["0", "1"], ["2"]),
    "RECORD_KEY_COUNT": ("record_key_count", False, ["0", "1"], ["2"]),
    "SSD_SAVE_COMPACT_LEVEL": ("ssd_save_compact_level", 2, ["0", "1", "2"], ["3"]),
    "USE_SHM_SWAP": ("use_shm_swap", False, ["0", "1"], ["2"]),
    "HUGE_TLB_ENABLE": ("huge_tlb_enable", False, ["0", "1"], ["2"]),
    "CM_WORKER_SIZE": ("cm_worker_size", 0, ["0", "512"], ["-1", "513"]),
    "APPLY_GRADIENTS_STRATEGY": ("apply_gradients_strategy", "direct_apply",
                                 ["direct_apply", "sum_same_id_gradients_and_apply"], ["other"])}

FEATURE = ["name", "table_name", "index_key", "access_threshold", "eviction_threshold", "is_timestamp", "batch_size",
           "faae_coefficient", "feat_cnt"]

# Objects that are no functions, by module.
OBJECTS = {"mx_rec.util.log": "logger", "rec_sdk_common.log": "logger", "mx_rec": "__version__"}

LIBRARIES = ["LIBREC_CPU_SO", "LIBREC_EOS_OPS_SO", "LIBREC_TF_REC_V1_CPU_SO"]

ENUMS = {"All2allGradientsOp": ["sum_gradients", "sum_gradients_and_div_by_ranksize"],
         "CacheModeEnum": ["HBM", "DDR", "SSD"],
         "ApplyGradientsStrategy": ["direct_apply", "sum_same_id_gradients_and_apply"]}

# Attributes of the configuration that init makes; True: they can be set.
CONFIGURATION = {
    "": {"use_lccl": False, "save_checkpoint_due_time": False, "save_delta_checkpoints_secs": False,
         "is_incremental_checkpoint": False, "restore_model_version": False, "use_dynamic_expansion": False,
         "modify_graph": True, "max_steps": True, "train_steps": True, "eval_steps": True, "save_steps": True,
         "if_load": True, "use_static": True, "sparse_embed_config": False, "feature_spec_config": False,
         "hybrid_manager_config": False, "optimizer_config": False, "train_params_config": False,
         "host_pipeline_ops": False},
    "train_params_config": {"ascend_global_hashtable_collection": True, "sparse_dir": False, "bool_gauge_set": False,
                            "iterator_type": False, "dataset_element_spec": False, "is_last_round": False,
                            "experimental_mode": False},
    "sparse_embed_config": {"table_instance_dict": False, "name_to_var_dict": False, "table_name_set": False,
                            "removing_var_list": False},
    "hybrid_manager_config": {"asc_manager": False, "freeze": True},
    "optimizer_config": {"optimizer_instance": True},
}

TABLE = ["table_name", "embedding_size", "emb_size", "key_dtype", "variable", "is_hbm", "is_dp", "is_save", "is_grad",
         "send_count", "multi_lookup_times", "slice_device_vocabulary_size", "slice_host_vocabulary_size",
         "slice_ssd_vocabulary_size", "padding_keys", "padding_keys_mask", "padding_keys_len", "init_param",
         "all2all_gradients_op", "optimizer", "ext_emb_size"]


def expected(text):
    """Returns (parameters by position, parameters by keyword, whether unknown keywords are taken) of a signature."""
    import tensorflow as tf

    names = {"FLOAT": tf.float32, "CURRENT": (os.getcwd(),)}
    scope = {}
    exec("def stated({}): pass".format(text), names, scope)
    parameters = inspect.signature(scope["stated"]).parameters.values()
    return ([one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD],
            [one for one in parameters if one.kind is one.KEYWORD_ONLY],
            any(one.kind is one.VAR_KEYWORD for one in parameters))


def signature_of(function):
    """Returns the parameters that a function takes, `self` of a bound method or of a class left out.

    TensorFlow's methods that are replaced refer to the stock ones, and checked functions to what they check: where the
    function itself names its parameters, these count.
    """
    return list(inspect.signature(function, follow_wrapped=not _is_explicit(function)).parameters.values())


def _is_explicit(function):
    kinds = [one.kind for one in inspect.signature(function, follow_wrapped=False).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL not in kinds


def compare(function, text):
    """Yields how a function's parameters differ from a stated signature."""
    ordered, by_keyword, takes_unknown = expected(text)
    ours = signature_of(function)
    taken = {one.name: one for one in ours}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in ours)
    placed = [one for one in ours if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)]
    for position, wanted in enumerate(ordered):
        is_open = wanted.name.startswith("_")
        if position >= len(placed) or (placed[position].name != wanted.name and not is_open):
            yield "parameter {} should be {!r}, but is {!r}".format(
                position, wanted.name, placed[position].name if position < len(placed) else None)
        elif _differ(placed[position].default, wanted.default):
            yield "default of {!r} should be {!r}, but is {!r}".format(
                wanted.name, wanted.default, placed[position].default)
    for wanted in by_keyword:
        if wanted.name not in taken:
            if not takes_any:
                yield "there is no parameter {!r}".format(wanted.name)
        elif _differ(taken[wanted.name].default, wanted.default):
            yield "default of {!r} should be {!r}, but is {!r}".format(
                wanted.name, wanted.default, taken[wanted.name].default)
    if takes_unknown and not takes_any:
        yield "unknown keywords are not taken"
    known = {one.name for one in ordered + by_keyword} | {one.name for one in placed[:len(ordered)]}
    for one in ours:
        if one.name not in known and one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            yield "parameter {!r} has no default, and the API does not have it".format(one.name)


def _differ(one, other):
    """Returns whether two defaults differ; True and 1 do."""
    return one != other or isinstance(one, bool) != isinstance(other, bool)


def find(module, path):
    """Returns what a dotted path names in a module."""
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def function_differences(functions):
    """Yields what differs in functions, given as signatures by module and name."""
    for module, names in sorted(functions.items()):
        for name, text in sorted(names.items()):
            try:
                function = find(module, name)
            except (ImportError, AttributeError) as error:
                yield "{}.{} is missing: {}".format(module, name, error)
                continue
            if not callable(function):
                yield "{}.{} cannot be called".format(module, name)
            elif text is not None:
                for difference in compare(function, text):
                    yield "{}.{}: {}".format(module, name, difference)


def constant_differences():
    """Yields what differs in constants and enumerations."""
    from mx_rec.constants import constants

    wanted = dict(CONSTANTS, **{name: name for name in NAMED})
    for name, value in sorted(wanted.items()):
        if getattr(constants, name, "missing") != value:
            yield "constant {} should be {!r}, but is {!r}".format(name, value, getattr(constants, name, "missing"))
    for module, name in sorted(OBJECTS.items()):
        if not hasattr(importlib.import_module(module), name):
            yield "{}.{} is missing".format(module, name)
    for name in LIBRARIES:
        if not str(getattr(constants, name, "")).endswith(".so"):
            yield "constant {} is no name of a library".format(name)
    for name, values in sorted(ENUMS.items()):
        kind = getattr(constants, name, None)
        if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
            yield "there is no enumeration {}".format(name)
        elif [member.value for member in kind] != values or kind.mapping(values[0]).value != values[0]:
            yield "{} should have the values {}".format(name, values)


def instance_differences():
    """Yields what differs in attributes of the configuration and of tables. Needs `init` and a fresh graph."""
    import tensorflow as tf

    from mx_rec.core.asc.helper import FeatureSpec
    from mx_rec.core.embedding import create_table
    from mx_rec.util.initialize import ConfigInitializer
    from mx_rec.util.ops import import_host_pipeline_ops

    root = ConfigInitializer.get_instance()
    for path, attributes in sorted(CONFIGURATION.items()):
        owner = getattr(root, path) if path else root
        for name, can_be_set in sorted(attributes.items()):
            label = "ConfigInitializer.{}".format(".".join(part for part in (path, name) if part))
            if not hasattr(owner, name):
                yield label + " is missing"
            elif can_be_set:
                try:
                    setattr(owner, name, getattr(owner, name))
                except AttributeError as error:
                    yield "{} cannot be set: {}".format(label, error)
    table = create_table(tf.int64, 4, "contract", tf.compat.v1.zeros_initializer())
    for name in TABLE:
        if not hasattr(table, name):
            yield "tables have no {}".format(name)
    for name in FEATURE:
        if not hasattr(FeatureSpec("contract"), name):
            yield "features have no {}".format(name)
    for difference in older_differences():
        yield difference
    host = import_host_pipeline_ops()
    for name, text in sorted(HOST_OPS.items()):
        if not callable(getattr(host, name, None)):
            yield "host op {} is missing".format(name)
        elif text is not None:
            for difference in compare(getattr(host, name), text):
                yield "host op {}: {}".format(name, difference)


def older_differences():
    """Yields what differs if create_table gets its arguments by position, as in older releases."""
    import tensorflow as tf

    from mx_rec.core.embedding import create_table

    values = [eval(text, {"tf": tf}) for _, text in OLDER_CREATE_TABLE]
    given = {name: value for (name, _), value in zip(OLDER_CREATE_TABLE, values)}
    try:
        table = create_table(*values)
    except (TypeError, ValueError) as error:
        yield "create_table does not take the arguments of older releases by position: {}".format(error)
        return
    kept = {"key_dtype": "key_dtype", "emb_size": "dim", "table_name": "name", "is_save": "is_save",
            "slice_device_vocabulary_size": "device_vocabulary_size", "init_param": "init_param",
            "slice_host_vocabulary_size": "host_vocabulary_size", "all2all_gradients_op": "all2all_gradients_op"}
    for attribute, name in sorted(kept.items()):
        found = getattr(table, attribute)
        if getattr(found, "value", found) != given[name]:
            yield "create_table by position of older releases: {} is {!r}, but {!r} was given".format(
                name, found, given[name])


def environment_differences():
    """Yields what differs in the environment variables, whose values it changes for a moment."""
    from mx_rec.base.global_env_conf import read_environment

    before = {name: os.environ.pop(name) for name in ENVIRONMENT if name in os.environ}
    try:
        for name, (attribute, default, taken, refused) in sorted(ENVIRONMENT.items()):
            if _differ(getattr(read_environment(), attribute), default):
                yield "the default of {} should be {!r}".format(name, default)
            for value in taken + refused:
                os.environ[name] = value
                try:
                    found = getattr(read_environment(), attribute)
                    wanted = value == "1" if isinstance(default, bool) else type(default)(value)
                    if value in refused or _differ(found, wanted):
                        yield "{}={} should be {}, but is {!r}".format(
                            name, value, "refused" if value in refused else repr(wanted), found)
                except ValueError:
                    if value in taken:
                        yield "{}={} is refused".format(name, value)
            del os.environ[name]
    finally:
        os.environ.update(before)


def differences():
    """Returns all that differs, as sentences. Needs `init` and a fresh graph."""
    return list(function_differences(FUNCTIONS)) + list(constant_differences()) + \
        list(instance_differences()) + list(environment_differences())


if __name__ == "__main__":
    import support  # finds the package of this checkout

    sys.path.append(os.path.join(support.PACKAGES, "tf_adapter_cpu"))
    from mx_rec.util.initialize import init

    init()
    found = differences()
    print("\n".join(found) if found else "nothing differs")
    sys.exit(1 if found else 0)
