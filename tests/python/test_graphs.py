"""Lookups in the other places a graph can have them: branches, loops, functions, meta graphs, saved models."""

import os

import numpy as np
import pytest
import tensorflow as tf

import support
from support import lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer


def sgd(loss, table):
    return create_hash_optimizer(1.0).minimize(loss, var_list=[table.variable])


def test_a_lookup_in_a_branch_makes_rows_only_where_the_branch_is_taken(graph, session, dynamic):
    table = support.make_table()
    flag = tf.compat.v1.placeholder(tf.bool, [])
    looked = tf.cond(flag, lambda: lookup(table, tf.constant([1], tf.int64)),
                     lambda: lookup(table, tf.constant([2], tf.int64)))
    raw, sess = support.opened(table, session)
    sess.run(looked, {flag: False})
    assert sorted(raw.rows(sess)) == [2]
    sess.run(looked, {flag: True})
    assert sorted(raw.rows(sess)) == [1, 2]


def test_an_embedding_that_is_used_in_a_branch_has_its_gradient(graph, session, dynamic):
    table = support.make_table()
    flag = tf.compat.v1.placeholder(tf.bool, [])
    embedding = lookup(table, tf.constant([7, 8], tf.int64))
    loss = tf.cond(flag, lambda: tf.reduce_sum(embedding[0]) * 2.0, lambda: tf.reduce_sum(embedding[1]) * 3.0)
    update = sgd(loss, table)
    raw, sess = support.opened(table, session, True)
    sess.run(update, {flag: True})
    assert raw.rows(sess)[7].tolist() == [-2, -2] and raw.rows(sess)[8].tolist() == [0, 0]
    sess.run(update, {flag: False})
    assert raw.rows(sess)[7].tolist() == [-2, -2] and raw.rows(sess)[8].tolist() == [-3, -3]


def test_an_embedding_that_is_used_in_a_loop_has_its_gradient(graph, session, dynamic):
    """As in a recurrent network over the looked-up sequence: d(x + x + x)/dx = 3."""
    table = support.make_table()
    embedding = lookup(table, tf.constant([7], tf.int64))
    _, total = tf.while_loop(lambda i, _: i < 3, lambda i, total: (i + 1, total + embedding),
                             (tf.constant(0), tf.zeros([1, 2])))
    update = sgd(tf.reduce_sum(total), table)
    raw, sess = support.opened(table, session, True)
    sess.run(update)
    assert raw.rows(sess)[7].tolist() == [-3, -3]


def test_a_second_optimizer_adds_its_slots_and_leaves_rows_and_slots_alone(graph, session):
    table = support.Raw.new(3)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    none = tf.zeros([0, 3])
    adagrad = support.update_ids("adagrad", table.handle, ids, tf.ones([tf.size(ids), 3]), 0.5, 0.1)
    adam = support.update_ids("lazy_adam", table.handle, tf.zeros([0], tf.int64), none, 0.1, 0.9, 0.9, 0.9, 0.9, 1e-8)
    for slot in ("Adagrad_accumulator", "LazyAdam_momentum", "LazyAdam_velocity"):
        table.slot(slot)
    sess = session()
    keys = np.arange(30) * 3
    sess.run(adagrad, {ids: keys})
    table.remove(sess, keys[5:9])
    rows, slots = table.rows(sess), table.slot_rows(sess, "Adagrad_accumulator")
    sess.run(adam)
    support.assert_same_tables(table.rows(sess), rows)
    support.assert_same_tables(table.slot_rows(sess, "Adagrad_accumulator"), slots)
    for slot in ("LazyAdam_momentum", "LazyAdam_velocity"):
        values = table.slot_rows(sess, slot)
        assert sorted(values) == sorted(rows) and not any(row.any() for row in values.values())
    sess.run(adagrad, {ids: keys[5:9]})
    support.assert_same_bits(table.rows(sess)[int(keys[6])], rows[0])


@pytest.fixture
def saved(graph, session, dynamic, tmp_path):
    """A trained table, saved: (prefix, names of ids and embedding, what it looks up)."""
    table = support.make_table(start=tf.compat.v1.random_normal_initializer(seed=2))
    ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    update = sgd(tf.reduce_sum(lookup(table, ids)), table)
    found = tf.identity(lookup(table, ids, is_train=False), name="found")
    sess = support.started(session())
    sess.run(update, {ids: [1, 2, 3]})
    return sess, ids, found, os.path.realpath(str(tmp_path)), sess.run(found, {ids: [3, 4, 1]})


def test_a_meta_graph_is_imported_with_its_tables(saved):
    sess, _, _, directory, expected = saved
    path = tf.compat.v1.train.Saver().save(sess, directory + "/model.ckpt", global_step=1)
    with tf.Graph().as_default() as graph:
        saver = tf.compat.v1.train.import_meta_graph(path + ".meta")
        with support.restored(support.new_session(graph), saver, path) as other:
            support.assert_same_bits(other.run("found:0", {"ids:0": [3, 4, 1]}), expected)


@pytest.mark.parametrize("dense", [True, False])
def test_a_saved_model_carries_its_tables(saved, dense):
    """Also where the tables are all that it has."""
    sess, ids, found, directory, expected = saved
    if dense:
        sess.run(tf.compat.v1.get_variable("dense", initializer=1.0).initializer)
    tf.compat.v1.saved_model.simple_save(sess, directory + "/saved", {"ids": ids}, {"found": found})
    with tf.Graph().as_default() as graph:
        with support.new_session(graph) as other:
            tf.compat.v1.saved_model.load(other, ["serve"], directory + "/saved")
            support.assert_same_bits(other.run("found:0", {"ids:0": [3, 4, 1]}), expected)
