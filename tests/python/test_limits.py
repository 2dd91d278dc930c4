"""A batch over the row budget or over the limit of distinct keys fails as a whole and changes nothing."""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer


def message_of(error):
    return str(error.value.message)


def ways_to_overflow(tf, table, ids):
    """Each op that can create rows."""
    ops = support.ops()
    count = tf.size(ids)
    return {
        "id_offset": ops.resolve(table.handle, ids, create=1).offsets,
        "assign": ops.mx_rec_assign(table.handle, ids, tf.ones([count, 2]), [], [], []),
        "update_sgd": support.update_ids("sgd", table.handle, ids, tf.ones([count, 2]), 1.0, 0.0),
        "update_adagrad": support.update_ids("adagrad", table.handle, ids, tf.ones([count, 2]), 1.0, 0.1),
    }


@pytest.mark.parametrize("way, op", [("id_offset", "MxRecIdOffset"), ("assign", "MxRecAssign"),
                                     ("update_sgd", "MxRecIdOffset"), ("update_adagrad", "MxRecIdOffset")])
def test_a_batch_over_the_budget_changes_nothing_and_names_table_and_budget(graph, session, way, op):
    table = support.Raw.new(2, name="tight_table", capacity=10)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    run = ways_to_overflow(tf, table, ids)[way]
    sess = session()
    table.assign(sess, np.arange(8), np.arange(16))
    before = table.export(sess)
    for _ in range(2):
        with pytest.raises(tf.errors.ResourceExhaustedError) as error:
            sess.run(run, {ids: [0, 100, 101, 100, 1, 102]})
        message = message_of(error)
        assert op in message and "tight_table" in message and "10" in message, message
        after = table.export(sess)
        assert after[0].tolist() == before[0].tolist()
        support.assert_same_bits(after[1], before[1])
    sess.run(run, {ids: [0, 100, 101, 100, 1, -1]})
    assert table.size(sess) == 10
    assert sorted(table.rows(sess)) == list(range(8)) + [100, 101]


def test_removed_rows_make_room_again(graph, session):
    table = support.Raw.new(1, capacity=4)
    sess = session()
    table.assign(sess, [1, 2, 3, 4], [[1], [2], [3], [4]])
    for key in range(10, 60):
        with pytest.raises(tf.errors.ResourceExhaustedError):
            table.assign(sess, [key], [[key]])
        oldest = sorted(table.rows(sess))[0]
        assert table.remove(sess, [oldest]) == 1
        assert table.assign(sess, [key], [[key]]) == 4
    assert {key: row[0] for key, row in table.rows(sess).items()} == {56: 56, 57: 57, 58: 58, 59: 59}


def test_sparse_lookup_over_the_budget_fails_and_training_goes_on(graph, session, dynamic):
    table = support.make_table("small_table", 2, 3, host_vocabulary_size=2)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    embedding = sparse_lookup(table, ids, modify_graph=True)
    update = create_hash_optimizer(0.1).minimize(tf.reduce_sum(embedding), var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    sess.run(update, {ids: [1, 2, 3]})
    before = raw.rows(sess)
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        sess.run(update, {ids: [1, 4, 5, 6]})
    assert "small_table" in message_of(error) and "5" in message_of(error)
    support.assert_same_tables(raw.rows(sess), before)
    sess.run(update, {ids: [1, 4, 5]})
    assert raw.size(sess) == 5


@pytest.mark.parametrize("create", [0, 1])
def test_more_distinct_keys_than_the_limit_fail_as_a_whole(graph, session, create):
    table = support.Raw.new(1, name="limited")
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    offsets, _ = support.ops().resolve(table.handle, ids, create=create, limit=3)
    sess = session()
    table.assign(sess, [1, 2, 3, 4], np.zeros([4, 1]))
    assert support.row_of(sess.run(offsets, {ids: [1, 2, 1, 3, -1, 3]})).tolist() == [0, 1, 2]
    with pytest.raises((tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError)) as error:
        sess.run(offsets, {ids: [1, 2, 3, 4, 1]})
    assert "limited" in message_of(error) and "3" in message_of(error)
    with pytest.raises((tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError)):
        sess.run(offsets, {ids: [50, 51, 52, 53]})
    assert table.size(sess) == 4


def test_send_count_is_the_limit_in_static_shape(graph, session, mx):
    mx(use_dynamic=False)
    table = support.make_table("static_table", 2, 100)
    ids = tf.compat.v1.placeholder(tf.int64, [6])
    embedding = sparse_lookup(table, ids, 3, modify_graph=True)
    raw, sess = support.opened(table, session)
    assert sess.run(embedding, {ids: [1, 1, 2, 3, 3, -1]}).shape == (6, 2)
    with pytest.raises(tf.errors.OpError) as error:
        sess.run(embedding, {ids: [1, 2, 3, 4, 1, 1]})
    message = message_of(error)
    assert "static_table" in message and "3" in message, message
    assert raw.size(sess) == 3
    assert sess.run(embedding, {ids: [4, 1, 2, 4, -1, -1]}).shape == (6, 2)


def test_dynamic_shape_ignores_send_count(graph, session, dynamic):
    table = support.make_table("table", 2, 100)
    embedding = sparse_lookup(table, tf.range(20, dtype=tf.int64), 3, modify_graph=True)
    assert session().run(embedding).shape == (20, 2)


def test_a_budget_of_one_row_holds_one_row(graph, session):
    table = support.Raw.new(1, capacity=1)
    sess = session()
    assert table.assign(sess, [5, 5, 5], [[1], [2], [3]]) == 1
    assert table.rows(sess)[5].tolist() == [3]
    with pytest.raises(tf.errors.ResourceExhaustedError):
        table.assign(sess, [6], [[1]])


def test_a_huge_budget_costs_no_memory_until_rows_come(graph, session):
    """A budget of 2e9 rows of 8192 floats is 64 TB; only what is used may be held."""
    table = support.Raw.new(8192, capacity=2 * 10 ** 9)
    sess = session()
    before = support.resident_bytes()
    table.assign(sess, [1, 2, 3], np.ones([3, 8192]))
    assert table.size(sess) == 3
    assert support.resident_bytes() - before < 200 << 20


def test_growth_over_many_batches_loses_no_row(graph, session):
    table = support.Raw.new(4, capacity=400000)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    rows = tf.cast(tf.stack([ids % 1000, ids // 1000, ids % 7, ids % 11], axis=1), tf.float32)
    assign = support.ops().mx_rec_assign(table.handle, ids, rows, [], [], [])
    find = support.ops().find(table.handle, support.raw_variable(table), ids, tf.fill([1, 4], -5.0))
    sess = session()
    keys = np.random.RandomState(0).permutation(600000)[:200000].astype(np.int64)
    for part in np.array_split(keys, 40):
        sess.run(assign, {ids: part})
    assert table.size(sess) == len(keys)
    found = sess.run(find, {ids: keys})
    assert np.array_equal(found[:, 0] + 1000 * found[:, 1], keys.astype(np.float32))
    assert np.array_equal(found[:, 3], (keys % 11).astype(np.float32))
    absent = np.setdiff1d(np.arange(600000), keys)[:50000]
    assert np.all(sess.run(find, {ids: absent}) == -5.0)
    assert table.export(sess)[0].tolist() == keys.tolist()


@pytest.mark.parametrize("op", ["lookup", "apply"])
def test_the_offset_of_a_removed_row_is_refused_or_dropped(graph, session, op):
    """There is nothing to read; an update goes on without the gradient, as training does when a key was evicted."""
    table = support.Raw.new(2)
    offsets = tf.compat.v1.placeholder(tf.int64, [None])
    run = {
        "lookup": support.ops().lookup(table.handle, support.raw_variable(table), offsets),
        "apply": support.update_rows("sgd", table.handle, offsets, tf.ones([tf.size(offsets), 2]), 1.0, 0.0),
    }[op]
    sess = session()
    table.assign(sess, [5, 6, 7], np.zeros([3, 2]))
    given = np.array(sess.run(support.ops().resolve(table.handle, tf.constant([5, 6, 7], tf.int64), create=0)[0]))
    sess.run(run, {offsets: given})
    table.remove(sess, [6])
    if op == "lookup":
        with pytest.raises(tf.errors.InvalidArgumentError, match="removed"):
            sess.run(run, {offsets: given[:2]})
    else:
        assert sess.run(run, {offsets: given[:2]}) == 1
        support.assert_same_tables(table.rows(sess), {5: [-2, -2], 7: [-1, -1]})
    sess.run(run, {offsets: given[[2, 0]]})
    assert table.size(sess) == 2
