"""sparse_lookup refuses what it documents, and fills the documented collections."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.base import log
from mx_rec.constants import constants
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup


def table_of(name="table", **changes):
    arguments = dict(key_dtype=tf.int64, dim=4, name=name, device_vocabulary_size=100,
                     emb_initializer=tf.compat.v1.ones_initializer())
    arguments.update(changes)
    return create_table(**arguments)


def lookup(*args, **kwargs):
    kwargs.setdefault("modify_graph", True)
    return sparse_lookup(*args, **kwargs)


def ids_of(shape=(3,), dtype=tf.int64):
    return tf.compat.v1.placeholder(dtype, shape)


@pytest.mark.parametrize("changes, message", [
    ({"is_train": 1}, "type of 'is_train' is not bool"),
    ({"name": ""}, "'name' length is less than 1"),
    ({"name": "n" * 256}, "'name' length is bigger than 255"),
    ({"name": 3}, "type of 'name' is not str"),
    ({"modify_graph": None}, "type of 'modify_graph' is not bool"),
    ({"modify_graph": False}, "modify_graph=True"),
    ({"batch": 5}, "Invalid parameter type of para 'batch'"),
    ({"is_grad": 0}, "type of 'is_grad' is not bool"),
    ({"send_count": 0}, "'send_count' is less than 1"),
    ({"send_count": 2.0}, "type of 'send_count' is not int"),
    ({"send_count": 2 ** 31}, "'send_count' is bigger than"),
    ({"access_and_evict_config": [1]}, "Invalid parameter type of para 'access_and_evict_config'"),
    ({"access_and_evict_config": {"access": 1}}, "Invalid option of 'access_and_evict_config'"),
    ({"access_and_evict_config": {"access_threshold": -2}}, "'access_threshold' is less than -1"),
    ({"access_and_evict_config": {"access_threshold": 1.0}}, "type of 'access_threshold' is not int"),
    ({"access_and_evict_config": {"eviction_threshold": 2 ** 31}}, "'eviction_threshold' is bigger"),
    ({"access_and_evict_config": {"faae_coefficient": 0}}, "'faae_coefficient' is less than 1"),
    ({"access_and_evict_config": {"eviction_threshold": 1}}, "needs an 'access_threshold'"),
    ({"serving_default_value": 1.0}, "Invalid parameter type of para 'serving_default_value'"),
    ({"serving_default_value": np.ones([4], np.int32)}, "should be float32"),
    ({"serving_default_value": np.ones([5], np.float32)}, "cannot be broadcast"),
    ({"serving_default_value": np.ones([2, 4], np.float32)}, "cannot be broadcast"),
    ({"serving_default_value": np.ones([1, 3, 4], np.float32)}, "cannot be broadcast"),
])
def test_a_wrong_argument_is_a_value_error_that_names_it(dynamic, changes, message):
    table, ids = table_of(), ids_of()
    with pytest.raises(ValueError) as caught:
        lookup(table, ids, **changes)
    assert message in str(caught.value)


def make_sparse():
    return tf.SparseTensor(indices=[[0, 0]], values=np.int64([1]), dense_shape=[1, 1])


@pytest.mark.parametrize("make, message", [
    (make_sparse, "tf.sparse.to_dense"),
    (lambda: tf.ragged.constant([[1], [2, 3]]), "ids.to_tensor"),
    (lambda: tf.keras.Input([3], dtype=tf.int64), "Keras models are not supported"),
    (lambda: tf.constant(["a"]), "should be of an integer or float type"),
    (lambda: [1, 2], "exactly one FeatureSpec"),
    (lambda: np.int64([1]), "not in ['FeatureSpec', 'Tensor']"),
    (lambda: None, "not in ['FeatureSpec', 'Tensor']"),
])
def test_ids_of_another_kind_are_refused(dynamic, make, message):
    table = table_of()
    with pytest.raises(ValueError) as caught:
        lookup(table, make())
    assert message in str(caught.value)


def test_only_a_table_of_this_graph_can_be_looked_up(dynamic):
    with pytest.raises(ValueError, match="'hashtable'"):
        lookup("table", ids_of())
    table = table_of()
    with tf.Graph().as_default(), pytest.raises(ValueError, match="another graph"):
        lookup(table, ids_of())


def test_the_129th_lookup_of_a_mode_is_refused(dynamic):
    table, ids = table_of(), ids_of()
    for _ in range(128):
        lookup(table, ids)
    with pytest.raises(RuntimeError, match="128 lookups"):
        lookup(table, ids)
    lookup(table, ids, is_train=False)
    assert table.multi_lookup_times == {True: 128, False: 1}


def test_a_started_pipeline_takes_evaluation_lookups_only(dynamic):
    table, ids = table_of(), ids_of()
    start_asc_pipeline()
    start_asc_pipeline()
    with pytest.raises(RuntimeError, match="Cannot build new sparse forward graph"):
        lookup(table, ids)
    lookup(table, ids, is_train=False)


@pytest.mark.parametrize("config", [None, {}, {"access_threshold": None}, {"access_threshold": -1},
                                    {"access_threshold": -1, "eviction_threshold": -1, "faae_coefficient": 2}])
def test_thresholds_that_switch_nothing_on_are_fine(dynamic, config):
    lookup(table_of(), ids_of(), access_and_evict_config=config)


def test_lookups_of_one_table_must_agree_on_thresholds(dynamic):
    table = table_of()
    lookup(table, ids_of())
    with pytest.raises(ValueError, match="must be same in one table when multi lookup"):
        lookup(table, ids_of(), access_and_evict_config={"access_threshold": 3})


@pytest.mark.parametrize("send_count", [None, 0, -1, True, 1.5])
def test_static_shape_needs_a_send_count(mx, send_count):
    mx(use_dynamic=False)
    table = table_of()
    with pytest.raises(ValueError, match="Send count must be a integer which is larger than 0."):
        lookup(table, ids_of(), send_count)


def test_send_counts_of_static_shape_reach_the_op_and_the_table(mx):
    mx(use_dynamic=False)
    table = table_of()
    lookup(table, ids_of(), 5)
    lookup(table, ids_of(), 7)
    limits = [op.get_attr("limit") for op in table.variable.graph.get_operations()
              if op.type == "MxRecIdOffset"]
    assert limits == [5, 7] and table.send_count == 12


def test_padding_keys_len_is_the_send_count_of_static_shape(mx):
    mx(use_dynamic=False)
    table = table_of(padding_keys=0, padding_keys_mask=True, padding_keys_len=6)
    lookup(table, ids_of())
    assert [op.get_attr("limit") for op in table.variable.graph.get_operations()
            if op.type == "MxRecIdOffset"] == [6]


@pytest.mark.parametrize("device, host", [(10, 100), (100, 10)])
def test_static_shape_with_host_rows_needs_room_for_a_batch(mx, device, host):
    mx(use_dynamic=False)
    table = table_of(device_vocabulary_size=device, host_vocabulary_size=host)
    with pytest.raises(ValueError, match="_vocabulary_size was too small for table"):
        lookup(table, ids_of(), 11)


def test_collections_hold_what_scripts_look_for(dynamic):
    table, ids = table_of(), ids_of([2, 3])
    embedding = lookup(table, ids)
    lookup(table, ids, is_grad=False)
    lookup(table, ids, is_train=False)
    entrance, rows, offsets = [tf.compat.v1.get_collection(name) for name in (
        constants.ASCEND_SPARSE_LOOKUP_ENTRANCE, constants.ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
        constants.ASCEND_SPARSE_LOOKUP_ID_OFFSET)]
    assert [tensor.op.inputs[0] for tensor in entrance] == [ids] * 3
    assert len(rows) == len(offsets) == 1 and rows[0].op.inputs[2] is offsets[0]
    assert rows[0] is embedding and offsets[0].op.type == "MxRecIdOffset"
    assert embedding.shape.as_list() == [2, 3, 4] and embedding.dtype == tf.float32


def test_is_grad_and_evaluation_have_no_gradient(dynamic):
    table, ids = table_of(), ids_of()
    still = lookup(table, ids, is_grad=False)
    found = lookup(table, ids, is_train=False)
    assert tf.gradients(tf.reduce_sum(still + found), [table.variable]) == [None]
    assert not table.is_grad
    moving = lookup(table, ids)
    gradient = tf.gradients(tf.reduce_sum(moving), [table.variable])[0]
    assert isinstance(gradient, tf.IndexedSlices) and gradient.dense_shape is None
    assert table.is_grad


def test_ops_are_in_the_scope_of_table_and_name(dynamic):
    table = table_of()
    assert lookup(table, ids_of(), name="mine").op.name.startswith("table//mine/")
    assert lookup(table, ids_of()).op.name.startswith("table//sparse_lookup_1/")
    assert lookup(table, ids_of(), name="table_lookup/deep").op.name.startswith("table//table_lookup/deep/")


def test_unknown_keywords_are_ignored_and_slow_lookups_warned_of_once_when_they_run(dynamic, session, caplog):
    log._said.clear()
    with caplog.at_level(logging.WARNING, "mx_rec"):
        found = lookup(table_of(), tf.constant([1]), dim=None, multi_lookup=True)
        lookup(table_of("other"), ids_of())
        assert "inside the training step" not in caplog.text
        for _ in range(2):
            session().run(found)
    assert caplog.text.count("inside the training step") == 1
