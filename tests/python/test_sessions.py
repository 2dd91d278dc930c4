"""A table lives as long as its session: two sessions have two, a closed one gives its memory back."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from mx_rec.core.embedding import sparse_lookup


def error_text(error):
    """The message of the op, without TensorFlow's listing of the graph."""
    return str(error.value.message)


def test_two_sessions_have_two_tables(graph, session):
    table = support.Raw.new(1)
    first, second = session(), session()
    table.assign(first, [1, 2], [[10], [20]])
    assert table.size(second) == 0
    table.assign(second, [1], [[99]])
    assert {key: row[0] for key, row in table.rows(first).items()} == {1: 10, 2: 20}
    assert {key: row[0] for key, row in table.rows(second).items()} == {1: 99}


def test_a_session_keeps_its_table_over_its_runs(graph, session):
    table = support.Raw.new(1)
    sess = session()
    handles = {int(sess.run(table.handle)) for _ in range(3)}
    assert len(handles) == 1
    table.assign(sess, [1], [[10]])
    assert table.size(sess) == 1
    assert int(session().run(table.handle)) not in handles


def test_two_tables_of_one_graph_are_apart(graph, session):
    first, second = support.Raw.new(1, name="first"), support.Raw.new(3, name="second")
    sess = session()
    first.assign(sess, [1], [[10]])
    second.assign(sess, [1, 2], [[1, 2, 3], [4, 5, 6]])
    assert first.size(sess) == 1 and second.size(sess) == 2
    assert first.rows(sess)[1].tolist() == [10] and second.rows(sess)[1].tolist() == [1, 2, 3]
    assert sess.run(first.handle) != sess.run(second.handle)


def test_tables_with_equal_configurations_are_not_merged_into_one(graph, session):
    """Two nodes that differ in nothing but their name are still two tables."""
    first, second = support.Raw.new(1, name="same"), support.Raw.new(1, name="same")
    sess = session()
    first.assign(sess, [1], [[10]])
    assert second.size(sess) == 0


def test_global_variables_initializer_leaves_a_table_alone(graph, session, dynamic):
    table = support.make_table("table", 2, 10, 1.0)
    embedding = sparse_lookup(table, tf.constant([3], tf.int64), modify_graph=True)
    raw, sess = support.opened(table, session, True)
    sess.run(embedding)
    raw.assign(sess, [3], [[4, 5]])
    sess.run(tf.compat.v1.global_variables_initializer())
    support.assert_same_bits(sess.run(embedding), [[4, 5]])


def test_a_table_that_was_cleared_starts_afresh(graph, session):
    table = support.Raw.new(2, initializer={"kind": "random_normal", "mean": 0.0, "stddev": 1.0})
    clear = support.ops().mx_rec_clear(table.handle, [], [], [])
    ids = tf.constant([5, 6], tf.int64)
    offsets, restore = support.ops().resolve(table.handle, ids, create=1)
    rows = support.ops().lookup(table.handle, support.raw_variable(table), offsets)
    update = support.update_ids("adagrad", table.handle, ids, tf.ones([2, 2]), 0.1, 0.1)
    table.slot("Adagrad_accumulator")
    sess = session()
    first = sess.run(rows)
    sess.run(update)
    once = table.rows(sess)
    assert sess.run(clear) == 2
    assert table.size(sess) == 0 and sess.run(clear) == 0
    support.assert_same_bits(sess.run(rows), first)
    sess.run(update)
    support.assert_same_tables(table.rows(sess), once)
    support.assert_same_bits(table.slot_rows(sess, "Adagrad_accumulator")[5], [1.1, 1.1])


def test_a_handle_of_another_session_or_of_no_table_is_refused(graph, session):
    table = support.Raw.new(2)
    handle = tf.compat.v1.placeholder(tf.int64, [])
    size = support.ops().mx_rec_table_stats(handle)[0]
    sess = session()
    live = int(sess.run(table.handle))
    assert sess.run(size, {handle: live}) == 0
    closing = support.new_session()
    stale = int(closing.run(table.handle))
    closing.close()
    del closing
    gc.collect()
    for number in (stale, 0, -1, 1, live + 1, support.INT64_MAX, support.INT64_MIN):
        with pytest.raises((tf.errors.NotFoundError, tf.errors.InvalidArgumentError,
                            tf.errors.FailedPreconditionError)) as error:
            sess.run(size, {handle: number})
        assert "MxRecTableStats" in error_text(error)
    assert sess.run(size, {handle: live}) == 0


@pytest.mark.long
def test_closing_a_session_gives_the_memory_of_its_tables_back(graph):
    """Twelve sessions, each filling a table of about 50 MB: without freeing, that would be 600 MB."""
    rows, dim = 100000, 64
    table = support.Raw.new(dim, capacity=rows, initializer={"kind": "ones"})
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    # Piece by piece: TensorFlow's own buffers of a step stay small beside a table.
    pieces = np.split(np.arange(rows) * 977, 20)
    fill = support.update_ids("adagrad", table.handle, ids, tf.zeros([rows // 20, dim]), 0.1, 0.1)
    used = []
    for _ in range(12):
        sess = support.new_session()
        assert [sess.run(fill, {ids: keys}) for keys in pieces] == [rows // 20] * 20
        sess.close()
        del sess
        gc.collect()
        used.append(support.resident_bytes())
    # A leak would be a table a round: seven.
    growth = min(used[8:]) - min(used[1:5])
    assert growth < 2 * rows * dim * 4, "grew by %d MB: %s" % (growth >> 20, [number >> 20 for number in used])


def test_an_error_in_a_run_leaves_the_session_and_its_tables_usable(graph, session):
    table = support.Raw.new(2)
    bad = support.ops().lookup(table.handle, support.raw_variable(table), tf.constant([77], tf.int64))
    sess = session()
    table.assign(sess, [1], [[1, 2]])
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            sess.run(bad)
        assert table.rows(sess)[1].tolist() == [1, 2]


def make_iterator(dataset):
    return tf.compat.v1.data.make_initializable_iterator(dataset)


def test_a_handle_captured_by_a_map_function_is_the_session_s_own_table(graph, session):
    table = support.Raw.new(1, initializer={"kind": "ones"})
    keys = np.arange(12, dtype=np.int64).reshape(4, 3) * 5

    def insert(ids):
        offsets, restore = support.ops().resolve(table.handle, ids, create=1)
        return ids, offsets, restore

    dataset = tf.data.Dataset.from_tensor_slices(keys).map(insert, num_parallel_calls=2).prefetch(2)
    iterator = make_iterator(dataset)
    ids, offsets, restore = iterator.get_next()
    rows = support.ops().lookup(table.handle, support.raw_variable(table), offsets)
    find = support.ops().find(table.handle, support.raw_variable(table), ids, tf.zeros([0, 1]))
    for sess in (session(), session()):
        sess.run(iterator.initializer)
        seen = []
        while True:
            try:
                got_ids, got_rows, found = sess.run([ids, rows, find])
            except tf.errors.OutOfRangeError:
                break
            assert got_rows.tolist() == [[1], [1], [1]] and found.tolist() == [[1], [1], [1]]
            seen.extend(got_ids.tolist())
        assert seen == keys.ravel().tolist()
        assert sorted(table.rows(sess)) == sorted(seen)
    table.assign(sess, [0], [[42]])
    assert table.size(sess) == 12


def test_a_session_that_closes_while_its_pipeline_runs_neither_hangs_nor_crashes():
    """In a process of its own, because a crash would take the tests with it."""
    out = preloaded.run_python("""
import numpy as np, support
tf, ops = support.tf(), support.ops()
for round in range(4):
    tf.compat.v1.reset_default_graph()
    table = support.Raw.new(8, capacity=200000)
    def insert(ids):
        return ops.resolve(table.handle, ids, create=1)
    data = tf.data.Dataset.range(10**9).map(lambda x: tf.range(x * 50, x * 50 + 100)).map(insert, 2).prefetch(50)
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    batch = iterator.get_next()
    sess = support.new_session()
    sess.run(iterator.initializer)
    for _ in range(5):
        sess.run(batch)
    sess.close()
    del sess
print("alive")
""")
    assert out.strip().endswith("alive")


def test_a_table_outlives_nothing_but_the_process_may_end_with_sessions_open():
    """The interpreter exits with open sessions, tables and a running pipeline."""
    out = support.run_python("""
import numpy as np, support
tf, ops = support.tf(), support.ops()
table = support.Raw.new(8)
data = tf.data.Dataset.range(10**9).map(
    lambda x: ops.resolve(table.handle, tf.reshape(x, [1]) % 100, create=1), 2).prefetch(10)
iterator = tf.compat.v1.data.make_initializable_iterator(data)
sess = support.new_session()
sess.run(iterator.initializer)
sess.run(iterator.get_next())
print("done")
""")
    assert out.strip().endswith("done")


def test_a_session_of_a_server_keeps_its_table_over_its_runs():
    """The master of a grpc session places the graph anew, but the table stays. A server cannot be stopped: a process."""
    out = preloaded.run_python("""
import numpy as np, support
tf, ops = support.tf(), support.ops()
target = tf.compat.v1.train.Server.create_local_server().target
table = support.Raw.new(2)
update = support.update_ids("sgd", table.handle, tf.constant([1, 2, 1], tf.int64), tf.ones([3, 2]), 1.0, 0.0)
for _ in range(2):
    with tf.compat.v1.Session(target) as sess:
        for step in range(3):
            assert sess.run(update) == 2
        rows = table.rows(sess)
        assert rows[1].tolist() == [-6, -6] and rows[2].tolist() == [-3, -3], rows
print("trained")
""")
    assert out.strip().endswith("trained")
