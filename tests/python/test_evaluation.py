"""Evaluation and prediction never create rows; unknown ids give zeros or the serving default."""

import numpy as np
import pytest
import tensorflow as tf

import support
from support import lookup
from mx_rec.core.embedding import create_table
from mx_rec.optimizers.lazy_adam import create_hash_optimizer


def make_table(name="table", dim=2, **arguments):
    arguments.setdefault("emb_initializer", tf.compat.v1.constant_initializer(0.25))
    return create_table(key_dtype=tf.int64, dim=dim, name=name, device_vocabulary_size=100, **arguments)


def test_unknown_ids_give_zeros_and_no_rows(graph, session, dynamic):
    table = make_table()
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    train, evaluate = lookup(table, ids), lookup(table, ids, is_train=False)
    raw, sess = support.opened(table, session)
    for _ in range(3):
        support.assert_same_bits(sess.run(evaluate, {ids: [1, 2, 3]}), np.zeros([3, 2]))
        assert raw.size(sess) == 0
    sess.run(train, {ids: [2]})
    support.assert_same_bits(sess.run(evaluate, {ids: [1, 2, 3]}), [[0, 0], [0.25, 0.25], [0, 0]])
    assert raw.size(sess) == 1 and sorted(raw.rows(sess)) == [2]


DEFAULTS = [
    ("a scalar", lambda tf: tf.constant(7.0), [[7, 7], [7, 7], [7, 7]]),
    ("one row of shape [dim]", lambda tf: tf.constant([1.0, 2.0]), [[1, 2], [1, 2], [1, 2]]),
    ("one row of shape [1, dim]", lambda tf: tf.constant([[1.0, 2.0]]), [[1, 2], [1, 2], [1, 2]]),
    ("a row for each id", lambda tf: tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), [[1, 2], [3, 4], [5, 6]]),
    ("a column", lambda tf: tf.constant([[1.0], [2.0], [3.0]]), [[1, 1], [2, 2], [3, 3]]),
]


@pytest.mark.parametrize("make, expected", [case[1:] for case in DEFAULTS], ids=[case[0] for case in DEFAULTS])
@pytest.mark.parametrize("static", [True, False])
def test_serving_default_value_stands_in_for_unknown_ids(graph, session, dynamic, make, expected, static):
    table = make_table()
    ids = tf.constant([4, 5, 6], tf.int64) if static else tf.compat.v1.placeholder(tf.int64, [None])
    evaluate = lookup(table, ids, is_train=False, serving_default_value=make(tf))
    raw, sess = support.opened(table, session)
    feed = {} if static else {ids: [4, 5, 6]}
    support.assert_same_bits(sess.run(evaluate, feed), expected)
    raw.assign(sess, [5], [[-1, -2]])
    expected = np.array(expected, np.float32)
    expected[1] = [-1, -2]
    support.assert_same_bits(sess.run(evaluate, feed), expected)
    assert raw.size(sess) == 1


def test_serving_default_value_fits_ids_of_rank_2(graph, session, dynamic):
    table = make_table()
    ids = tf.constant([[4, 5], [6, 4]], tf.int64)
    each = np.arange(8, dtype=np.float32).reshape(4, 2)
    evaluate = lookup(table, ids, is_train=False, serving_default_value=tf.constant(each))
    raw, sess = support.opened(table, session)
    raw.assign(sess, [6], [[9, 9]])
    expected = each.reshape(2, 2, 2).copy()
    expected[1, 0] = 9
    support.assert_same_bits(sess.run(evaluate), expected)


@pytest.mark.parametrize("shape", [[3], [4, 2], [2, 2, 2]])
def test_a_serving_default_value_that_does_not_fit_is_a_value_error(graph, dynamic, shape):
    with pytest.raises(ValueError):
        lookup(make_table(), tf.constant([4, 5, 6], tf.int64), is_train=False, serving_default_value=tf.zeros(shape))


def test_training_and_evaluation_of_one_table_share_its_rows_in_one_graph(graph, session, dynamic):
    """Evaluation in between sees each step at once and changes nothing about the training."""
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    tables = [make_table(name) for name in ("disturbed", "alone")]
    updates = [create_hash_optimizer(0.1).minimize(tf.reduce_sum(tf.square(lookup(table, ids))),
                                                   var_list=[table.variable]) for table in tables]
    evaluate = lookup(tables[0], ids, is_train=False)
    raws, sess = support.opened(tables, session, True)
    random = np.random.RandomState(0)
    for _ in range(10):
        batch = random.randint(0, 30, 8)
        sess.run(updates, {ids: batch})
        rows = raws[0].rows(sess)
        looked = sess.run(evaluate, {ids: np.arange(40)})
        for key in range(40):
            support.assert_same_bits(looked[key], rows.get(key, np.zeros(2)))
    support.assert_same_tables(raws[0].rows(sess), raws[1].rows(sess))


def test_evaluation_before_training_does_not_move_the_initial_values(graph, session, dynamic):
    normal = tf.compat.v1.random_normal_initializer(seed=3)
    table = make_table(emb_initializer=normal)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    train, evaluate = lookup(table, ids), lookup(table, ids, is_train=False)
    quiet, asked = session(), session()
    asked.run(evaluate, {ids: np.arange(20)})
    support.assert_same_bits(asked.run(train, {ids: [3, 1]}), quiet.run(train, {ids: [3, 1]}))


def test_table_size_and_capacity_are_those_of_the_session(graph, session, dynamic):
    table = make_table(host_vocabulary_size=50)
    embedding = lookup(table, tf.constant([3, 1, 3, -1], tf.int64))
    with session() as sess:
        assert table.size() == 0
        sess.run(embedding)
        assert table.size() == 2
    stats = table.stats
    assert session().run(stats)[1] == 150


def test_finding_needs_no_row_even_when_the_table_is_full(graph, session):
    table = support.Raw.new(1, capacity=2)
    find = support.ops().find(table.handle, support.raw_variable(table), tf.constant([1, 2, 3], tf.int64), tf.zeros([0, 1]))
    sess = session()
    table.assign(sess, [1, 2], [[5], [6]])
    support.assert_same_bits(sess.run(find), [[5], [6], [0]])


@pytest.mark.parametrize("create", [0, 1])
def test_id_offset_without_create_gives_unknown_keys_no_offset(graph, session, create):
    table = support.Raw.new(1)
    ids = tf.constant([[9, 4], [9, -1], [8, 4]], tf.int64)
    offsets, restore = support.ops().resolve(table.handle, ids, create=create)
    sess = session()
    table.assign(sess, [4], [[5]])
    got = sess.run([offsets, restore])
    if create:
        assert support.row_of(got[0]).tolist() == [1, 0, 2] and got[1].tolist() == [[0, 1], [0, -1], [2, 1]]
    else:
        assert support.row_of(got[0]).tolist() == [0] and got[1].tolist() == [[-1, 0], [-1, -1], [-1, 0]]
    assert table.size(sess) == (3 if create else 1)
