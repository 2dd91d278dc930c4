"""init checks its keywords, there is one configuration per process, and the older functions read it."""

import logging

import pytest
import tensorflow as tf

import support
from mx_rec.constants import constants
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util import initialize
from mx_rec.util.initialize import (
    ConfigInitializer, get_ascend_global_hashtable_collection, get_name_to_var_dict, init,
    set_ascend_global_hashtable_collection, terminate_config_initializer)
from mx_rec.util.ops import import_host_pipeline_ops
from mx_rec.util.variable import get_dense_and_sparse_variable

STEPS = ("max_steps", "train_steps", "eval_steps", "save_steps")


@pytest.mark.parametrize("changes, message", [
    ({name: value}, message) for name in STEPS for value, message in (
        (-2, "'{}' is less than -1".format(name)), (2 ** 31, "'{}' is bigger than".format(name)),
        (1.0, "type of '{}' is not int".format(name)), (True, "type of '{}' is not int".format(name)),
        (None, "type of '{}' is not int".format(name)))
] + [
    ({name: 1}, "type of '{}' is not bool".format(name)) for name in (
        "if_load", "use_dynamic", "use_dynamic_expansion", "bind_cpu", "use_lccl",
        "is_incremental_checkpoint", "use_mpi")
] + [
    ({"max_steps": 0, "train_steps": 0, "eval_steps": 0}, "must not all be 0"),
    ({"save_checkpoint_due_time": 0}, "'save_checkpoint_due_time' is less than 1"),
    ({"save_delta_checkpoints_secs": 2 ** 31}, "'save_delta_checkpoints_secs' is bigger than"),
    ({"restore_model_version": -1}, "'restore_model_version' is less than 0"),
    ({"recent_key_count_threshold": -1}, "'recent_key_count_threshold' is less than 0"),
    ({"is_incremental_checkpoint": True}, "are required"),
    ({"is_incremental_checkpoint": True, "save_checkpoint_due_time": 1}, "are required"),
    ({"use_mpi": False}, "'use_mpi' should be True"),
])
def test_a_wrong_keyword_is_a_value_error_and_initialises_nothing(graph, changes, message):
    with pytest.raises(ValueError) as caught:
        init(**changes)
    assert message in str(caught.value)
    with pytest.raises(EnvironmentError):
        ConfigInitializer.get_instance()


def test_incremental_checkpoints_have_their_settings(graph, mx):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=5, save_delta_checkpoints_secs=1,
       restore_model_version=7, recent_key_count_threshold=2)
    config = ConfigInitializer.get_instance()
    assert (config.is_incremental_checkpoint, config.save_checkpoint_due_time, config.save_delta_checkpoints_secs,
            config.restore_model_version, config.recent_key_count_threshold) == (True, 5, 1, 7, 2)


def test_init_is_called_once_and_again_after_terminating(mx, caplog):
    mx(max_steps=7)
    with pytest.raises(EnvironmentError, match="second init is forbidden"):
        init()
    first = ConfigInitializer.get_instance()
    assert ConfigInitializer.get_instance() is first and first.max_steps == 7
    terminate_config_initializer()
    with pytest.raises(EnvironmentError, match="Please init the environment for mx_rec at first."):
        ConfigInitializer.get_instance()
    with caplog.at_level(logging.WARNING, "mx_rec"):
        terminate_config_initializer()
    assert "not initialised" in caplog.text
    init()
    assert ConfigInitializer.get_instance() is not first


def test_unknown_keywords_give_one_warning_and_old_ones_none(mx, caplog):
    with caplog.at_level(logging.WARNING, "mx_rec"):
        mx(use_mpi=True, use_hot=False, prefetch_batch_number=3, colour="red", size=3)
    assert len(caplog.records) == 1 and "colour, size" in caplog.text


def test_use_shm_swap_is_deprecated(mx, caplog):
    with caplog.at_level(logging.WARNING, "mx_rec"):
        mx(use_shm_swap=True)
    assert "USE_SHM_SWAP" in caplog.text


def test_settings_without_effect_are_named_in_the_log(mx, caplog):
    with caplog.at_level(logging.INFO, "mx_rec"):
        mx(bind_cpu=True, use_lccl=True)
    assert "without effect: bind_cpu, use_lccl" in caplog.text


def test_the_configuration_reads_and_writes_what_it_documents(mx):
    mx(max_steps=1, train_steps=2, eval_steps=3, save_steps=4, if_load=True, use_dynamic=False,
       use_dynamic_expansion=True)
    config = ConfigInitializer.get_instance()
    assert [getattr(config, name) for name in STEPS] == [1, 2, 3, 4]
    assert config.if_load and config.use_static and config.use_dynamic_expansion
    for name in STEPS:
        setattr(config, name, 9)
        assert getattr(config, name) == 9
        with pytest.raises(ValueError):
            setattr(config, name, -2)
    config.if_load = False
    config.use_static = False
    config.modify_graph = True
    assert not config.if_load and not config.use_static and config.modify_graph
    for name in ("use_lccl", "save_checkpoint_due_time", "save_delta_checkpoints_secs",
                 "is_incremental_checkpoint", "restore_model_version", "use_dynamic_expansion"):
        with pytest.raises(AttributeError):
            setattr(config, name, 1)


def test_the_older_functions_read_the_configuration(mx):
    mx(if_load=True, use_hot=False)
    assert initialize.get_if_load() and not initialize.get_use_static() and not initialize.get_use_hot()
    assert not initialize.get_use_dynamic_expansion()
    initialize.set_if_load(False)
    assert not initialize.get_if_load()
    assert initialize.get_initializer(True) is None and initialize.get_target_batch(False) is None
    for function in (initialize.get_initializer, initialize.get_target_batch, initialize.clear_channel):
        with pytest.raises(ValueError, match="is not bool"):
            function(1)
    assert isinstance(initialize.clear_channel(is_train_channel=False), tf.Operation)
    assert hasattr(initialize.get_host_pipeline_ops(), "mx_rec_table")
    initialize.set_ascend_table_name_must_contain("merged")
    # It is a constant of the module, which other tests compare.
    initialize.set_ascend_table_name_must_contain(None)


@pytest.mark.parametrize("name", ["", "c" * 256, None])
def test_the_collection_s_name_is_checked(dynamic, name):
    with pytest.raises(ValueError):
        set_ascend_global_hashtable_collection(name)


def test_tables_are_found_by_name_variable_and_tensor_and_go_with_the_graph(dynamic):
    assert get_ascend_global_hashtable_collection() == "ASCEND_GLOBAL_HASHTABLE_COLLECTION"
    set_ascend_global_hashtable_collection("mine")
    weight = tf.compat.v1.get_variable("weight", [2])
    table = create_table(tf.int64, 4, "t", tf.compat.v1.zeros_initializer())
    assert tf.compat.v1.get_collection("mine") == [table.variable]
    assert get_dense_and_sparse_variable() == ([weight], [table.variable])
    tables = ConfigInitializer.get_instance().sparse_embed_config
    assert tables.table_instance_dict == {table.variable: table} and tables.table_name_set == {"t"}
    assert tables.name_to_var_dict == get_name_to_var_dict() == {"t": table.variable}
    assert tables.removing_var_list == ["t"]
    assert tables.get_table_instance(table.variable) is table
    assert tables.get_table_instance_by_name("t") is table
    assert tables.get_table_instance_by_tensor(table.handle) is table
    for call, key in ((tables.get_table_instance, weight), (tables.get_table_instance_by_name, "u"),
                      (tables.get_table_instance_by_tensor, tf.zeros([]))):
        with pytest.raises(KeyError):
            call(key)
    tf.compat.v1.reset_default_graph()
    assert tables.table_name_set == set()


def test_a_graph_with_tables_is_freed_with_its_last_reference(dynamic):
    import gc
    import weakref

    graph = tf.Graph()
    with graph.as_default():
        table = create_table(tf.int64, 4, "t", tf.compat.v1.zeros_initializer())
        rows = sparse_lookup(table, tf.constant([1], tf.int64), modify_graph=True)
        with support.new_session(graph) as sess:
            sess.run(rows)
        saver = tf.compat.v1.train.Saver()
    gone = weakref.ref(graph)
    del graph, table, rows, sess, saver
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("config, rank, size", [
    (None, 0, 1), ("", 0, 1), ("{}", 0, 1),
    ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}', 1, 2),
    ('{"cluster": {"chief": ["a:1"], "ps": ["p:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}', 1, 2),
    ('{"cluster": {"chief": ["a:1"], "ps": ["p:1"], "worker": ["b:1"]}, "task": {"type": "ps", "index": 0}}', 0, 2),
    ('{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}', 0, 2),
])
def test_rank_and_size_come_from_the_cluster(monkeypatch, config, rank, size):
    from rec_sdk_common.communication.hccl.hccl_info import get_rank_id, get_rank_size

    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config)
    assert (get_rank_id(), get_rank_size()) == (rank, size)


@pytest.mark.parametrize("config", [
    "{", "[]", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 5}}',
    '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "x"}}'])
def test_a_cluster_that_makes_no_sense_is_a_value_error(monkeypatch, config):
    from mx_rec.util.initialize import get_rank_id

    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match="TF_CONFIG"):
        get_rank_id()


def test_constants_are_named_by_their_value():
    for name in ("ASCEND_GLOBAL_HASHTABLE_COLLECTION", "ASCEND_CUTTING_POINT_INITIALIZER",
                 "ASCEND_SPARSE_LOOKUP_ENTRANCE", "ASCEND_SPARSE_LOOKUP_ID_OFFSET",
                 "ASCEND_SPARSE_LOOKUP_LOCAL_EMB", "ASCEND_TIMESTAMP", "ASCEND_SPARSE_LOOKUP_UNIQUE_KEYS"):
        assert getattr(constants, name) == name
    assert constants.All2allGradientsOp.mapping("sum_gradients") is constants.All2allGradientsOp.SUM_GRADIENTS
    with pytest.raises(KeyError, match="is not a value of"):
        constants.All2allGradientsOp.mapping("mean")


def test_the_ops_are_reached_by_the_plugin_s_name():
    assert hasattr(import_host_pipeline_ops(), "mx_rec_table")
    for name in ("", "n" * 101, 5):
        with pytest.raises(ValueError, match="so_pkg_name"):
            import_host_pipeline_ops(name)
    with pytest.raises(RuntimeError, match="not the name of a shared library"):
        import_host_pipeline_ops("plugin")
