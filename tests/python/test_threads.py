"""Several Python threads on one session and on several: no crash, no lost update, no torn row."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer


THREADS = 6
STEPS = 60


@pytest.mark.parametrize("way", ["by_ids", "lookup"])
def test_no_sgd_update_is_lost_when_threads_train_at_once(graph, session, dynamic, way):
    """Gradients are small integers and the rate is 1, so that sums in any order are exact."""
    dim = 5
    table = support.make_table("table", dim, 3000)
    raw = support.Raw.of(table)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.compat.v1.placeholder(tf.float32, [None, dim])
    if way == "by_ids":
        update = support.update_ids("sgd", raw.handle, ids, grads, 1.0, 0.0)
    else:
        loss = tf.reduce_sum(sparse_lookup(table, ids, modify_graph=True) * grads)
        update = create_hash_optimizer(1.0).minimize(loss, var_list=[table.variable])
    evaluate = sparse_lookup(table, ids, is_train=False, modify_graph=True)
    sess = support.started(session())

    def batches(thread):
        random = np.random.RandomState(thread)
        for step in range(STEPS):
            keys = random.randint(0, 400 + 40 * step, 200)
            yield keys * 1009 - 10 ** 9, random.randint(-4, 5, [200, dim]).astype(np.float32)

    expected = {}
    for thread in range(THREADS):
        for keys, values in batches(thread):
            for key, value in zip(keys.tolist(), values):
                expected[key] = expected.get(key, 0.0) - value
    stop = threading.Event()

    def train(thread):
        for keys, values in batches(thread):
            sess.run(update, {ids: keys, grads: values})

    def look():
        while not stop.is_set():
            rows = sess.run(evaluate, {ids: np.arange(0, 400) * 1009 - 10 ** 9})
            assert np.array_equal(rows, np.round(rows))
            keys, values = raw.export(sess)
            assert len(set(keys.tolist())) == len(keys) == len(values)

    def work():
        try:
            support.in_threads(train, range(THREADS))
        finally:
            stop.set()

    support.in_threads(lambda work: work(), [work, look])
    rows = raw.rows(sess)
    assert sorted(rows) == sorted(expected)
    keys = sorted(expected)
    assert np.array_equal(support.as_array(rows, keys), support.as_array(expected, keys))


def test_a_row_is_never_seen_half_written(graph, session):
    """Writers set whole rows to one number; a reader that sees two numbers in a row saw a torn write."""
    dim = 256
    table = support.Raw.new(dim, capacity=1000)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    rows = tf.compat.v1.placeholder(tf.float32, [None, dim])
    assign = support.ops().mx_rec_assign(table.handle, ids, rows, [], [], [])
    find = support.ops().find(table.handle, support.raw_variable(table), ids, tf.zeros([0, dim]))
    sess = session()
    keys = np.arange(50)
    stop = threading.Event()

    def write(thread):
        for step in range(80):
            sess.run(assign, {ids: keys, rows: np.full([50, dim], 1000 * thread + step)})

    def writers():
        try:
            support.in_threads(write, (1, 2))
        finally:
            stop.set()

    def read():
        while not stop.is_set():
            for values in (sess.run(find, {ids: keys}), table.export(sess)[1]):
                assert np.all(values == values[:, :1])

    support.in_threads(lambda work: work(), [writers, read, read])


def test_two_sessions_in_two_threads_do_not_touch_each_other(graph, session):
    table = support.Raw.new(3, capacity=20000)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.compat.v1.placeholder(tf.float32, [None, 3])
    update = support.update_ids("adagrad", table.handle, ids, grads, 0.1, 0.1)
    sessions = [session() for _ in range(4)]

    def train(sess):
        random = np.random.RandomState(1)
        for _ in range(30):
            sess.run(update, {ids: random.randint(0, 5000, 1000), grads: random.randn(1000, 3)})

    support.in_threads(train, sessions)
    reference = table.export(sessions[0])
    for sess in sessions[1:]:
        keys, rows = table.export(sess)
        assert keys.tolist() == reference[0].tolist()
        support.assert_same_bits(rows, reference[1])


def test_every_verb_at_once_neither_crashes_nor_loses_the_budget(graph, session, tmp_path):
    """Creating, updating, finding, removing, clearing, exporting and saving in threads of one session."""
    ops = support.ops()
    table = support.Raw.new(4, name="busy", capacity=2000)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.ones([tf.size(ids), 4])
    offsets, restore = ops.resolve(table.handle, ids, create=1)
    verbs = [
        ops.mx_rec_restore(ops.lookup(table.handle, support.raw_variable(table), offsets), restore),
        support.update_ids("adagrad", table.handle, ids, grads, 0.1, 0.1),
        ops.find(table.handle, support.raw_variable(table), ids, tf.zeros([0, 4])),
        ops.mx_rec_remove(table.handle, ids), ops.mx_rec_clear(table.handle, [], [], []),
        ops.mx_rec_assign(table.handle, ids, grads, [], [], []), ops.mx_rec_table_stats(table.handle),
        ops.mx_rec_save(table.handle, support.bytes_tensor(str(tmp_path / "busy")), -1, 0),
    ]
    sess = session()
    allowed = (tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError, tf.errors.AbortedError)

    def work(seed):
        random = np.random.RandomState(seed)
        for _ in range(150):
            keys = random.randint(-500, 2500, random.randint(0, 300))
            try:
                sess.run(verbs[random.randint(len(verbs))], {ids: keys})
            except allowed as error:
                # Another thread may have removed a row or cleared the table after its lookup, and the budget may be full.
                assert "busy" in error.message

    support.in_threads(work, range(6))
    keys, rows = table.export(sess)
    assert len(set(keys.tolist())) == len(keys) == table.size(sess) <= 2000
    assert -1 not in keys and np.all(np.isfinite(rows))
    for key, row in list(table.rows(sess).items())[:50]:
        support.assert_same_bits(table.find(sess, [key])[0], row)


def test_exports_and_saves_are_snapshots_between_batches(graph, session, tmp_path):
    """A writer sets all rows to one number in one step; what is exported or saved meanwhile holds one number only."""
    table = support.Raw.new(64, capacity=4000)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    number = tf.compat.v1.placeholder(tf.float32, [])
    assign = support.ops().mx_rec_assign(table.handle, ids, tf.fill([tf.size(ids), 64], number), [], [], [])
    directory = str(tmp_path / "snapshot")
    save = support.ops().mx_rec_save(table.handle, support.bytes_tensor(directory), -1, 0).rows
    sess = session()
    keys = np.arange(3000)
    sess.run(assign, {ids: keys, number: -1.0})
    stop = threading.Event()

    def write():
        step = 0
        while not stop.is_set():
            sess.run(assign, {ids: keys, number: float(step)})
            step += 1

    def read():
        seen = set()
        try:
            # However slow the disk is: something must have been written between two looks.
            for _ in range(200):
                exported = table.export(sess)[1]
                assert sess.run(save) == 3000
                saved = np.fromfile(directory + "/embedding/slice.data", "<f4")
                for values in (exported, saved):
                    assert values.size == 3000 * 64 and np.all(values == values.flat[0])
                    seen.add(float(values.flat[0]))
                if len(seen) >= 10:
                    break
        finally:
            stop.set()
        assert len(seen) >= 10

    support.in_threads(lambda work: work(), [write, read])
