"""Ids of any numeric type are cast to int64, in both modes; floats that are no whole numbers are refused."""

import numpy as np
import pytest
import support
from support import lookup
import tensorflow as tf
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import get_initializer

TYPES = [tf.float32, tf.float64, tf.float16, tf.uint8, tf.int8, tf.int16, tf.uint16, tf.uint32, tf.uint64, tf.int32]


def table_of(name="table"):
    return create_table(tf.int64, 4, name, tf.compat.v1.random_normal_initializer(seed=5), device_vocabulary_size=100)


@pytest.mark.parametrize("is_train", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_ids_of_every_numeric_type_are_those_of_int64(dynamic, session, dtype, is_train):
    table = table_of()
    wanted = lookup(table, tf.constant([[1, 7], [120, 7]], tf.int64))
    found = lookup(table, tf.constant([[1, 7], [120, 7]], dtype), is_train=is_train)
    assert found.shape == [2, 2, 4]
    sess = session()
    rows = sess.run(wanted)
    np.testing.assert_array_equal(sess.run(found), rows)
    assert table.size() == 3


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("value, text", [
    (float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf"), (0.5, "0.5"), (-1.25, "-1.25"),
    (2.0 ** 63, "92233720368547"), (-2.0 ** 64, "-184467440737")])
def test_a_float_that_is_no_id_fails_the_step_and_makes_no_row(dynamic, session, dtype, value, text):
    table = table_of("named_here")
    ids = tf.compat.v1.placeholder(dtype, [None], name="the_ids")
    found = lookup(table, ids)
    sess = session()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the_ids.*'named_here' are float.*a fraction.*: " + text):
        sess.run(found, {ids: [3.0, value]})
    assert table.size() == 0


def test_floats_at_the_ends_of_int64_are_their_keys(dynamic, session):
    table = table_of()
    ids = tf.compat.v1.placeholder(tf.float64, [None])
    keys = tf.compat.v1.placeholder(tf.int64, [None])
    from_floats, from_keys = lookup(table, ids), lookup(table, keys)
    sess = session()
    rows = sess.run(from_keys, {keys: [-2 ** 63, 2 ** 63 - 1024, 0, -5]})
    np.testing.assert_array_equal(sess.run(from_floats, {ids: [-2.0 ** 63, 2.0 ** 63 - 1024, -0.0, -5.0]}), rows)
    assert not sess.run(from_floats, {ids: [-1.0]}).any() and table.size() == 4


def dataset():
    text = tf.data.Dataset.from_tensor_slices([["1", "2"], ["2", "3"], ["9", "1"]])
    return text.map(lambda part: {"ids": tf.strings.to_number(part)}).batch(1)


@pytest.mark.parametrize("form", ["spec", "modified", "in_step"])
def test_ids_of_strings_to_number_train_in_every_form(dynamic, session, form):
    spec = FeatureSpec("ids", table_name="table")
    data = dataset()
    if form == "spec":
        data = data.map(get_asc_insert_func([spec]))
    iterator = tf.compat.v1.data.make_initializable_iterator(data.prefetch(1))
    batch = iterator.get_next()
    assert batch["ids"].dtype == tf.float32
    table = table_of()
    rows = sparse_lookup(table, spec, batch=batch) if form == "spec" else lookup(table, batch["ids"])
    train = create_hash_optimizer(0.5).minimize(tf.reduce_sum(rows), var_list=[table.variable])
    if form == "modified":
        modify_graph_and_start_emb_cache()
    sess = session()
    sess.run(get_initializer(True) if form == "modified" else iterator.initializer)
    before = {}
    for batch_ids in ([1, 2], [2, 3], [9, 1]):
        values = sess.run([rows, train])[0][0]
        for key, row in zip(batch_ids, values):
            np.testing.assert_allclose(row, before.get(key, row), rtol=1e-6)
            before[key] = row - 0.5
    assert table.size() == 4


def test_the_cast_of_floats_moves_into_the_pipeline(dynamic, session):
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset())
    rows = lookup(table_of(), iterator.get_next()["ids"])
    modify_graph_and_start_emb_cache()
    types = set()
    waiting = [rows.op]
    while waiting:
        op = waiting.pop()
        types.add(support.kind_of(op))
        waiting.extend(tensor.op for tensor in op.inputs)
    assert "MxRecIdOffset prepared" in types and "StringToNumber" not in types and "MxRecIdOffset" not in types
