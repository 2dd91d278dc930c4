"""create_table refuses what it documents, and what it returns has the documented attributes."""

import logging
import os

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from mx_rec.constants.constants import ASCEND_GLOBAL_HASHTABLE_COLLECTION
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.initializers import describe_initializer, table_seed
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.state.graph_state import graph_state
from mx_rec.util.variable import get_dense_and_sparse_variable


def create(**changes):
    arguments = dict(key_dtype=tf.int64, dim=4, name="table",
                     emb_initializer=tf.compat.v1.zeros_initializer())
    arguments.update(changes)
    return create_table(**arguments)


@pytest.mark.parametrize("changes, message", [
    ({"key_dtype": tf.float32}, "Invalid option of 'key_dtype'"),
    ({"key_dtype": "int64"}, "Invalid option of 'key_dtype'"),
    ({"dim": 0}, "'dim' is less than 1"),
    ({"dim": 8193}, "'dim' is bigger than 8192"),
    ({"dim": 4.0}, "Invalid parameter type of para 'dim'"),
    ({"dim": True}, "type of 'dim' is not int"),
    ({"dim": tf.TensorShape([2, 3])}, "one known dimension"),
    ({"dim": tf.TensorShape([])}, "one known dimension"),
    ({"dim": tf.TensorShape(None)}, "one known dimension"),
    ({"dim": tf.TensorShape([None])}, "one known dimension"),
    ({"dim": tf.TensorShape([8193])}, "'dim' is bigger than 8192"),
    ({"name": ""}, "'name' length is less than 1"),
    ({"name": "n" * 101}, "'name' length is bigger than 100"),
    ({"name": 7}, "type of 'name' is not str"),
    ({"name": "-/!"}, "has no letter"),
    ({"name": "mergeable_table_x"}, "mergeable_table"),
    ({"device_vocabulary_size": 0}, "'device_vocabulary_size' is less than 1"),
    ({"device_vocabulary_size": 10 ** 9 + 1}, "'device_vocabulary_size' is bigger than"),
    ({"device_vocabulary_size": True}, "type of 'device_vocabulary_size' is not int"),
    ({"device_vocabulary_size": 1.0}, "type of 'device_vocabulary_size' is not int"),
    ({"host_vocabulary_size": -1}, "'host_vocabulary_size' is less than 0"),
    ({"host_vocabulary_size": 10 ** 9 + 1}, "'host_vocabulary_size' is bigger than"),
    ({"ssd_vocabulary_size": -1}, "'ssd_vocabulary_size' is less than 0"),
    ({"ssd_vocabulary_size": 10 ** 9 + 1}, "'ssd_vocabulary_size' is bigger than"),
    ({"ssd_vocabulary_size": 1}, "needs a 'host_vocabulary_size'"),
    ({"ssd_vocabulary_size": 1, "host_vocabulary_size": 1, "ssd_data_path": []},
     "'ssd_data_path' length is less than 1"),
    ({"ssd_vocabulary_size": 1, "host_vocabulary_size": 1, "ssd_data_path": ["/nowhere/at/all"]},
     "existing directory"),
    ({"ssd_vocabulary_size": 1, "host_vocabulary_size": 1, "ssd_data_path": ["/tmp/../tmp"]},
     "must not contain '..'"),
    ({"ssd_vocabulary_size": 1, "host_vocabulary_size": 1, "ssd_data_path": [7]},
     "type of 'ssd_data_path' is not str"),
    ({"ssd_data_path": 7}, "Invalid parameter type of para 'ssd_data_path'"),
    ({"is_save": 1}, "type of 'is_save' is not bool"),
    ({"is_dp": None}, "type of 'is_dp' is not bool"),
    ({"init_param": 1}, "type of 'init_param' is not float"),
    ({"init_param": 10.5}, "'init_param' is bigger than 10"),
    ({"init_param": -10.5}, "'init_param' is less than -10"),
    ({"init_param": float("nan")}, "'init_param' is less than -10"),
    ({"all2all_gradients_op": "mean"}, "Invalid option of 'all2all_gradients_op'"),
    ({"enable_merge": "yes"}, "type of 'enable_merge' is not bool"),
    ({"padding_keys_mask": True}, "there are no 'padding_keys'"),
    ({"padding_keys": 1, "padding_keys_len": 4}, "'padding_keys_mask' should be True"),
    ({"padding_keys": 1, "padding_keys_mask": True}, "'padding_keys_len' is required"),
    ({"padding_keys": [], "padding_keys_mask": True, "padding_keys_len": 4},
     "the length of the padding keys should be between"),
    ({"padding_keys": [2 ** 63], "padding_keys_mask": True, "padding_keys_len": 4},
     "the padding keys should be between"),
    ({"padding_keys": [-2 ** 63 - 1], "padding_keys_mask": True, "padding_keys_len": 4},
     "the padding keys should be between"),
    ({"padding_keys_len": 0}, "'padding_keys_len' is less than 1"),
    ({"padding_keys_mask": 1}, "type of 'padding_keys_mask' is not bool"),
    ({"value_dtype": tf.float16}, "Invalid option of 'value_dtype'"),
    ({"shard_num": 0}, "'shard_num' is less than 1"),
    ({"shard_num": 8193}, "'shard_num' is bigger than 8192"),
    ({"fusion_optimizer_var": 1}, "type of 'fusion_optimizer_var' is not bool"),
    ({"hashtable_threshold": -1}, "'hashtable_threshold' is less than 0"),
    ({"admission_sketch_bytes": 1023}, "'admission_sketch_bytes' of the table 'table' should be 0"),
    ({"admission_sketch_bytes": 2 ** 40 + 1}, "between 1024 and 1099511627776, but is 1099511627777"),
    ({"admission_sketch_bytes": -1}, "but is -1"),
    ({"admission_sketch_bytes": 4096.0}, "but is 4096.0"),
    ({"admission_sketch_bytes": True}, "but is True"),
    ({"admission_sketch_bytes": None}, "but is None"),
    ({"emb_initializer": None}, "cannot use"),
    ({"emb_initializer": lambda shape: 0}, "cannot use"),
    ({"emb_initializer": tf.compat.v1.initializers.orthogonal()}, "supported are"),
    ({"emb_initializer": tf.compat.v1.initializers.identity()}, "supported are"),
    ({"emb_initializer": tf.compat.v1.constant_initializer([1.0, 2.0])}, "one finite number"),
    ({"emb_initializer": tf.compat.v1.random_normal_initializer(stddev=float("inf"))},
     "one finite number"),
])
def test_a_wrong_argument_is_a_value_error_that_names_it(dynamic, changes, message):
    with pytest.raises(ValueError) as caught:
        create(**changes)
    assert message in str(caught.value)
    assert not [op for op in tf.compat.v1.get_default_graph().get_operations()
                if op.type.startswith("MxRec")]


V1 = tf.compat.v1.initializers


@pytest.mark.parametrize("make, values", [
    (lambda: V1.random_normal(0.0, -1.0), ["stddev", "-1"]),
    (lambda: V1.truncated_normal(0.5, -0.25), ["stddev", "-0.25"]),
    (lambda: tf.random_normal_initializer(stddev=-2.0), ["stddev", "-2"]),
    (lambda: tf.keras.initializers.TruncatedNormal(stddev=-3.0), ["stddev", "-3"]),
    (lambda: V1.random_normal(1e39, 1.0), ["mean", "1e+39"]),
    (lambda: V1.random_uniform(2.0, 1.0), ["min=2", "max=1"]),
    (lambda: V1.random_uniform(-3e38, 3e38), ["max - min", "3e+38"]),
    (lambda: V1.random_uniform(0.0, 1e300), ["max", "1e+300"]),
    (lambda: V1.constant(1e39), ["value", "1e+39"]),
    (lambda: V1.constant(-1e39), ["value", "-1e+39"]),
    (lambda: V1.constant(np.float64(1e39)), ["value", "1e+39"]),
    (lambda: V1.constant(10 ** 39), ["value", "1e+39"]),
    (lambda: V1.constant(10 ** 400), ["value", "1" + 400 * "0"]),
    (lambda: V1.constant(float("nan")), ["value", "nan"]),
    (lambda: V1.constant(-float("inf")), ["value", "-inf"]),
    (lambda: V1.variance_scaling(1e39), ["scale", "1e+39"]),
    (lambda: V1.random_normal(0.0, float("nan")), ["stddev", "nan"]),
    (lambda: V1.constant([1.0, 2.0]), ["value", "[1.0, 2.0]"]),
    (lambda: V1.constant("1"), ["value", "'1'"]),
    (lambda: V1.random_normal(seed=float("nan")), ["seed", "nan"]),
    (lambda: V1.random_normal(seed="x"), ["seed", "'x'"]),
    (lambda: V1.orthogonal(), ["Orthogonal"]),
])
@pytest.mark.parametrize("enable_merge", [False, True])
def test_an_impossible_initializer_is_refused_at_the_call(mx, make, values, enable_merge):
    """They were accepted; the first step failed, or rows were infinite."""
    mx(use_dynamic_expansion=enable_merge)
    with pytest.raises(ValueError) as caught:
        create(emb_initializer=make(), enable_merge=enable_merge)
    message = str(caught.value)
    for part in ["'emb_initializer' of the table 'table'"] + values:
        assert part in message, message
    assert not tf.compat.v1.get_default_graph().get_operations()
    assert not graph_state().tables and not graph_state().merged
    create(enable_merge=enable_merge)


def test_a_constant_that_init_param_carries_beyond_float32_is_refused(dynamic):
    create(emb_initializer=V1.constant(3e38), init_param=1.0)
    with pytest.raises(ValueError, match="'table2'.*init_param must fit float32.*init_param=10"):
        create(name="table2", emb_initializer=V1.constant(3e38), init_param=10.0)


@pytest.mark.parametrize("of", [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8])
def test_numbers_of_numpy_are_taken_in_initializers(dynamic, of):
    one, two, seed = of(1), of(2), np.int64(3)
    for at, initializer in enumerate([
            V1.constant(one), V1.random_uniform(one, two, seed=seed), V1.random_normal(one, two, seed=seed),
            V1.truncated_normal(one, two, seed=seed), V1.variance_scaling(two, seed=seed),
            tf.keras.initializers.Constant(one), tf.constant_initializer(two)]):
        create(name="numpy_{}".format(at), emb_initializer=initializer)


def test_a_user_s_subclass_of_an_initializer_is_refused(dynamic):
    class Mine(type(tf.compat.v1.zeros_initializer())):
        pass

    with pytest.raises(ValueError, match="Mine"):
        create(emb_initializer=Mine())


@pytest.mark.parametrize("keys", ["1", 1.5, (1, 2), [1, 2.0], [True], True])
def test_padding_keys_of_a_wrong_type_are_a_type_error(dynamic, keys):
    with pytest.raises(TypeError, match="'padding_keys' should be"):
        create(padding_keys=keys, padding_keys_mask=True, padding_keys_len=4)


def test_padding_keys_lose_duplicates_and_keep_their_order(dynamic):
    table = create(padding_keys=[5, -3, 5, 0, -1], padding_keys_mask=True, padding_keys_len=4)
    assert table.padding_keys == [5, -3, 0, -1]


def test_a_link_as_ssd_data_path_is_refused(dynamic, tmp_path):
    link = str(tmp_path / "link")
    os.symlink(str(tmp_path), link)
    with pytest.raises(ValueError, match="symbolic link"):
        create(ssd_vocabulary_size=1, host_vocabulary_size=1, ssd_data_path=link)


def test_a_file_as_ssd_data_path_is_refused(dynamic, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ValueError, match="existing directory, but '{}'".format(path)):
        create(ssd_vocabulary_size=1, host_vocabulary_size=1, ssd_data_path=[str(tmp_path), str(path)])


def test_sizes_over_the_greatest_budget_are_refused(dynamic, tmp_path):
    with pytest.raises(ValueError, match="are 1000000000, 1000000000 and 1, together more than"):
        create(device_vocabulary_size=10 ** 9, host_vocabulary_size=10 ** 9, ssd_vocabulary_size=1,
               ssd_data_path=str(tmp_path))


@pytest.mark.parametrize("paths", [str, lambda path: [str(path)], lambda path: (str(path), str(path) + os.sep)])
def test_rows_on_disk_have_absolute_directories(dynamic, tmp_path, monkeypatch, paths):
    monkeypatch.chdir(tmp_path.parent)
    table = create(device_vocabulary_size=10, host_vocabulary_size=20, ssd_vocabulary_size=30,
                   ssd_data_path=paths(tmp_path.name if paths is str else tmp_path))
    assert set(table.ssd_data_path) == {str(tmp_path)} and not table.is_hbm
    assert table.slice_ssd_vocabulary_size == 30
    assert create(name="memory", ssd_data_path="/nowhere").ssd_data_path == []


def test_rows_on_disk_do_not_go_with_dynamic_expansion(mx, tmp_path):
    mx(use_dynamic_expansion=True)
    with pytest.raises(ValueError, match="leave host and ssd sizes at 0"):
        create(host_vocabulary_size=10, ssd_vocabulary_size=10, ssd_data_path=str(tmp_path))


def test_a_table_needs_init(graph):
    with pytest.raises(EnvironmentError, match="Please init the environment for mx_rec at first."):
        create()


def test_a_name_can_be_taken_once_per_graph(dynamic):
    create()
    with pytest.raises(ValueError, match="Duplicated hashtable name"):
        create()
    with pytest.raises(ValueError, match="Duplicated hashtable name"):
        create(name="ta-ble")
    with tf.Graph().as_default():
        create()


@pytest.mark.parametrize("given, kept", [
    ("user.table", "usertable"), ("user table!", "usertable"), ("a/b:0", "ab0"), ("_x", "_x"),
    ("User_1", "User_1")])
def test_other_characters_are_removed_from_names(dynamic, caplog, given, kept):
    with caplog.at_level(logging.WARNING, "mx_rec"):
        table = create(name=given)
    assert table.table_name == kept
    assert ("named" in caplog.text) == (given != kept)


def test_a_started_pipeline_takes_no_new_table(dynamic):
    create()
    start_asc_pipeline()
    with pytest.raises(EnvironmentError, match="you cannot build new hash table"):
        create(name="late")
    with tf.Graph().as_default():
        create(name="late")


def test_merging_needs_dynamic_expansion(dynamic):
    with pytest.raises(RuntimeError, match="merge table function requires dynamic expansion mode"):
        create(enable_merge=True)


def test_host_rows_do_not_go_with_dynamic_expansion(mx):
    mx(use_dynamic_expansion=True)
    with pytest.raises(ValueError, match="no preset size"):
        create(host_vocabulary_size=10)


def test_equal_tables_are_merged_and_others_are_not(mx):
    mx(use_dynamic_expansion=True)
    one = create(name="one", enable_merge=True)
    two = create(name="two", enable_merge=True)
    wide = create(name="wide", dim=8, enable_merge=True)
    alone = create(name="alone")
    assert one.variable is two.variable and one.physical_name == "mergeable_table_0"
    assert wide.physical_name == "mergeable_table_1" and alone.physical_name == "alone"
    assert get_dense_and_sparse_variable()[1] == [one.variable, wide.variable, alone.variable]
    with pytest.raises(ValueError, match="Duplicated hashtable name"):
        create(name="two", enable_merge=True)


def test_the_table_has_its_documented_attributes(dynamic):
    table = create(dim=tf.TensorShape([8]), key_dtype=tf.int32, device_vocabulary_size=10,
                   host_vocabulary_size=20, init_param=-2.5, is_save=False)
    assert table.emb_size == 8 and table.embedding_size.as_list() == [8]
    assert table.key_dtype == tf.int32 and table.init_param == -2.5
    assert not table.is_hbm and not table.is_dp and not table.is_save and not table.is_grad
    assert table.send_count is None and table.multi_lookup_times == {True: 0, False: 0}
    assert (table.slice_device_vocabulary_size, table.slice_host_vocabulary_size,
            table.slice_ssd_vocabulary_size) == (10, 20, 0)
    assert table.padding_keys is None and table.optimizer is None and table.ext_emb_size == 8
    assert table.variable.op.name == "table" and table.variable.shape.as_list() == [0, 8]
    assert table.variable.dtype == tf.float32
    assert tf.compat.v1.get_collection(ASCEND_GLOBAL_HASHTABLE_COLLECTION) == [table.variable]
    assert table.variable not in tf.compat.v1.trainable_variables()


def test_slices_are_the_sizes_divided_by_the_rank_count(dynamic, monkeypatch):
    """Of a job of several workers only its evaluator has tables."""
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, '
                                    '"task": {"type": "evaluator", "index": 0}}')
    table = create(device_vocabulary_size=10, host_vocabulary_size=7)
    assert (table.slice_device_vocabulary_size, table.slice_host_vocabulary_size) == (4, 3)
    shared = create(name="shared", device_vocabulary_size=10, is_dp=True)
    assert shared.slice_device_vocabulary_size == 10


def test_size_and_capacity_need_a_session_and_then_find_it(dynamic):
    table = create(device_vocabulary_size=10, host_vocabulary_size=20)
    for call in (table.size, table.capacity):
        with pytest.raises(RuntimeError, match="session"):
            call()
    embedding = sparse_lookup(table, tf.constant([3, 4, 3], tf.int64), modify_graph=True)
    tf.compat.v1.get_default_graph().finalize()
    sess = support.new_session()
    assert table.size() == 0 and table.capacity() == 30
    sess.run(embedding)
    assert table.size() == 2
    with support.new_session():
        assert table.size() == 0
    sess.close()
    with pytest.raises(RuntimeError):
        table.size()


def test_the_seed_is_the_initializer_s_or_the_graph_s_or_a_fixed_one(dynamic):
    plain = tf.compat.v1.random_normal_initializer()
    seeded = tf.compat.v1.random_normal_initializer(seed=3)
    default = table_seed(plain, "t")
    assert default == table_seed(tf.compat.v1.random_normal_initializer(seed=10086), "t")
    assert table_seed(plain, "other") != default
    tf.compat.v1.set_random_seed(3)
    assert table_seed(plain, "t") == table_seed(seeded, "t") != default
    tf.compat.v1.set_random_seed(4)
    assert table_seed(seeded, "t") != table_seed(plain, "t")
    assert 0 <= default < 2 ** 64


@pytest.mark.parametrize("initializer, expected", [
    (tf.compat.v1.zeros_initializer, {"kind": "zeros"}),
    (tf.compat.v1.ones_initializer(), {"kind": "ones"}),
    (tf.compat.v2.constant_initializer(np.float32(0.5)), {"kind": "constant", "value": 0.5}),
    (tf.compat.v1.random_uniform_initializer(), {"kind": "random_uniform", "min": 0.0, "max": 1.0}),
    (tf.compat.v2.random_uniform_initializer(-1, 2), {"kind": "random_uniform", "min": -1.0, "max": 2.0}),
    (tf.compat.v1.keras.initializers.TruncatedNormal(1, 2),
     {"kind": "truncated_normal", "mean": 1.0, "stddev": 2.0}),
    (tf.compat.v2.keras.initializers.RandomNormal(), {"kind": "random_normal", "mean": 0.0, "stddev": 0.05}),
    (tf.compat.v1.initializers.he_uniform(), {"kind": "variance_scaling", "scale": 2.0, "mode": "fan_in",
                                              "distribution": "uniform", "fan_in": 100.0, "fan_out": 4.0}),
])
def test_initializers_are_described_to_the_engine(graph, initializer, expected):
    assert describe_initializer(initializer, 100, 4, "table") == expected


@pytest.mark.parametrize("merged", [False, True])
def test_numbers_of_numpy_are_as_good_as_those_of_python(mx, merged):
    """A dim of np.int64 was refused; a size reached the table's configuration, which is JSON, and failed there."""
    mx(use_dynamic_expansion=merged)
    sizes = {} if merged else {"host_vocabulary_size": np.int32(5)}
    table = create(dim=np.int64(8), device_vocabulary_size=np.int32(20), padding_keys=[np.int64(3), np.uint8(4)],
                   padding_keys_mask=True, padding_keys_len=np.int16(6), shard_num=np.int64(2),
                   hashtable_threshold=np.int32(0), init_param=np.float64(0.5), admission_sketch_bytes=np.int64(2048),
                   emb_initializer=tf.compat.v1.random_normal_initializer(stddev=np.float32(0.1), seed=np.int64(3)),
                   enable_merge=merged, **sizes)
    assert table.emb_size == 8 and table.variable.shape.as_list() == [0, 8]
    assert table.padding_keys == [3, 4] and table.padding_keys_len == 6
    for value in (table.emb_size, table.device_vocabulary_size, table.host_vocabulary_size, table.padding_keys_len):
        assert type(value) is int
    with support.new_session(table.variable.graph):
        assert table.size() == 0 and table.capacity() == (0 if merged else 25)


@pytest.mark.parametrize("name", ["_table", "__", "_1", "_x_"])
def test_a_name_may_begin_with_an_underscore(dynamic, session, tmp_path, name):
    """TensorFlow does not let the name of an op begin so: sparse_lookup failed."""
    ids = tf.constant([1, 2], tf.int64)
    tables = [create(name=each, device_vocabulary_size=10) for each in (name, "table" + name)]
    found = [sparse_lookup(table, ids, is_train=False, modify_graph=True) for table in tables]
    loss = tf.add_n([tf.reduce_sum(sparse_lookup(table, ids, modify_graph=True)) * factor
                     for table, factor in zip(tables, (1.0, 2.0))])
    counted = sparse_lookup(create(name=name + "2", device_vocabulary_size=10), ids, modify_graph=True, name="_lookup",
                            access_and_evict_config={"access_threshold": 1})
    update = create_hash_optimizer(1.0).minimize(loss, var_list=[table.variable for table in tables])
    saver = tf.compat.v1.train.Saver()
    with session() as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        assert sess.run([update, counted])[1].tolist() == [[0.0] * 4] * 2
        path = saver.save(sess, os.path.join(os.path.realpath(str(tmp_path)), "model.ckpt"), 1)
    with session() as sess:
        saver.restore(sess, path)
        assert [values.tolist() for values in sess.run(found)] == [[[-1.0] * 4] * 2, [[-2.0] * 4] * 2]
    assert tables[0].table_name == name


EAGER = """
import tensorflow as tf
tf.compat.v1.enable_eager_execution()
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init
init()

def create():
    create.table = create_table(tf.int64, 4, "items", tf.compat.v1.zeros_initializer())
    return tf.constant(0)

for make in (create, tf.function(create, autograph=False),
             lambda: tf.data.Dataset.range(1).map(tf.autograph.experimental.do_not_convert(lambda _: create()))):
    try:
        make()
    except RuntimeError as error:
        print(error)
with tf.Graph().as_default():
    create()
    print("made")
try:
    sparse_lookup(create.table, tf.constant([1], tf.int64), modify_graph=True)
except RuntimeError as error:
    print(error)
"""


def test_eager_execution_has_no_tables_also_in_functions():
    """In a tf.function the table's ops came into the eager context, where they failed with an error of their own."""
    lines = preloaded.run_python(EAGER).splitlines()
    assert len(lines) == 5 and lines[3] == "made"
    for line, call in zip(lines[:3] + lines[4:], ["create_table"] * 3 + ["sparse_lookup"]):
        assert line.startswith(call + ": tables need graph mode, also inside of a tf.function") and "'items'" in line
        assert "tf.compat.v1.disable_v2_behavior()" in line
