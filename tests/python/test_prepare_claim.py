"""Batches ahead: what MxRecPrepare makes in the input pipeline, MxRecIdOffset takes in the step, with what it gives without."""

import time

import numpy as np
import pytest
import tensorflow as tf

import support

DIM = 3
UNIFORM = {"kind": "random_uniform", "min": -1.0, "max": 1.0}


class Ahead:
    """Batches of ids, a table that is fed through Prepare and Claim, and another that uses IdOffset on the same batches."""

    def __init__(self, batches, dtype=np.int64, depth=6, capacity=1000, limit=0):
        ops = support.shaped_ops()
        config = {"capacity": capacity, "initializer": UNIFORM, "padding_keys": [5]}
        self.table = support.Raw.new(DIM, name="ahead", **config)
        self.peer = support.Raw.new(DIM, name="peer", **config)
        self.source = tf.compat.v1.placeholder(dtype, [None, None])
        self.batches = [np.asarray(batch, dtype) for batch in batches]

        def prepare(ids):
            (offsets,), restore = ops.prepare([self.table.handle], ids, limit=limit)
            return ids, offsets, restore

        data = tf.data.Dataset.from_tensor_slices(self.source).map(prepare).prefetch(depth)
        iterator = tf.compat.v1.data.make_initializable_iterator(data)
        self.start = iterator.initializer
        self.ids, self.offsets, self.restore = iterator.get_next()
        claimed = ops.resolve(self.table.handle, self.ids, prepared=(self.offsets, self.restore), limit=limit)
        resolved = ops.resolve(self.peer.handle, self.ids, create=1, limit=limit)
        self.claimed, self.resolved = claimed, resolved
        self.embedding = self._embedding(self.table, claimed)
        self.expected = self._embedding(self.peer, resolved)
        self.train = [self._train(self.table, claimed, self.embedding), self._train(self.peer, resolved, self.expected)]

    def _embedding(self, table, found):
        ops = support.shaped_ops()
        rows = ops.lookup(table.handle, support.raw_variable(table), found[0])
        return ops.mx_rec_restore(rows, found[1])

    def _train(self, table, found, embedding):
        ops = support.shaped_ops()
        grads = ops.mx_rec_reduce(tf.cos(embedding * 7.0), found[1], found[0])
        return support.update_rows("adagrad", table.handle, found[0], grads, 0.1, 0.3)

    def open(self, sess):
        sess.run([self.table.handle, self.peer.handle])
        self.fill(sess)

    def fill(self, sess):
        """(Re-)initialises the iterator and gives the pipeline time to prepare what it can."""
        sess.run(self.start, {self.source: np.stack(self.batches)})
        time.sleep(0.15)

    def same(self, sess):
        support.assert_same_tables(self.table.rows(sess), self.peer.rows(sess))
        assert self.table.size(sess) == self.peer.size(sess)


def draw(steps, n, keys, seed=0):
    return np.random.RandomState(seed).randint(-1, keys, [steps, n])


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("capacity", [1000, 120])
def test_training_through_prepared_batches_gives_the_same_bits(graph, session, dtype, capacity):
    ahead = Ahead(draw(40, 50, 119), dtype, capacity=capacity)
    sess = session()
    ahead.open(sess)
    for step in range(40):
        made = sess.run([ahead.embedding, ahead.expected] + ahead.train)
        support.assert_same_bits(made[0], made[1], "step %d" % step)
        if step % 7 == 6:
            for table in (ahead.table, ahead.peer):
                table.remove(sess, np.arange(step, step + 20))
        if step == 25:
            sess.run([support.ops().mx_rec_clear(table.handle, [], [], []) for table in (ahead.table, ahead.peer)])
        ahead.same(sess)
    slots = [table.slot_rows(sess, "Adagrad_accumulator") for table in (ahead.table, ahead.peer)]
    support.assert_same_tables(*slots)


def test_nobody_sees_what_was_only_prepared(graph, session):
    ahead = Ahead([[1, 2, 3], [3, 4, 5], [6, 7, 8]])
    sess = session()
    ahead.open(sess)
    assert ahead.table.size(sess) == 0 and ahead.table.export(sess)[0].size == 0
    assert np.all(ahead.table.find(sess, [1, 4]) == 0.0)
    assert ahead.table.remove(sess, [1]) == 0
    offsets, restore, claimed, places = sess.run(
        [ahead.offsets, ahead.restore, ahead.claimed.offsets, ahead.claimed.inverse])
    assert offsets.tolist() == claimed.tolist() and support.row_of(offsets).tolist() == [0, 1, 2]
    assert restore.tolist() == places.tolist() == [0, 1, 2]
    assert sorted(ahead.table.rows(sess)) == [1, 2, 3]
    sess.run(ahead.ids)  # A batch that no step uses.
    sess.run(ahead.claimed)
    assert sorted(ahead.table.rows(sess)) == [1, 2, 3, 6, 7, 8]


def test_initialising_the_iterator_again_frees_what_was_staged(graph, session):
    ahead = Ahead(np.arange(200).reshape(4, 50), capacity=10000)
    sess = session()
    ahead.open(sess)
    for at in range(1, 11):
        ahead.batches = np.arange(200).reshape(4, 50) + 200 * at
        ahead.fill(sess)
    ids = tf.constant(np.arange(5000, 5200))
    offsets = sess.run(support.ops().resolve(ahead.table.handle, ids, create=1).offsets)
    # Row numbers are used again: without that, 2200 rows would be staged before these. Two pipelines may overlap.
    assert support.row_of(offsets).max() < 800


def test_a_claim_of_other_buffers_resolves_the_ids_again(graph, session):
    ahead = Ahead([[4, 4, -1, 9]])
    sess = session()
    ahead.open(sess)
    fed = {ahead.ids: [7, 8, 7, -1], ahead.offsets: [0, 1], ahead.restore: [1, 1, 1, 1]}
    offsets, restore = sess.run(ahead.claimed, fed)
    assert restore.tolist() == [0, 1, 0, -1]
    assert sorted(ahead.table.rows(sess)) == [7, 8]
    rows = sess.run(ahead.embedding, fed)
    support.assert_same_bits(rows[:2], ahead.table.find(sess, [7, 8]))
    for wrong in ({ahead.offsets: []}, {ahead.offsets: [99999, -5, 3]}, {ahead.restore: np.full([7], -9)}):
        feed = dict(fed)
        feed.update(wrong)
        assert sess.run(ahead.claimed, feed)[1].tolist() == [0, 1, 0, -1]
    # Prepared for one table, claimed for another.
    other = support.shaped_ops().resolve(ahead.peer.handle, ahead.ids, prepared=(ahead.offsets, ahead.restore))
    assert sess.run(other.inverse).tolist() == [0, 0, -1, 1]
    assert sorted(ahead.peer.rows(sess)) == [4, 9] and sorted(ahead.table.rows(sess)) == [7, 8]


def test_empty_batches_and_batches_of_padding_are_ordinary(graph, session):
    for batch in ([], [-1, -1]):
        tf.compat.v1.reset_default_graph()
        ahead = Ahead([batch, batch])
        sess = session()
        ahead.open(sess)
        for _ in range(2):
            offsets, restore = sess.run(ahead.claimed)
            assert offsets.tolist() == [] and restore.tolist() == [-1] * len(batch)
        assert ahead.table.size(sess) == 0


@pytest.mark.parametrize("capacity, limit", [(4, 0), (100, 3)])
def test_an_error_appears_in_the_step_of_its_batch(graph, session, capacity, limit):
    ahead = Ahead([[1, 2, 1, 2], [3, 4, 5, 6], [2, 3, 3, 2]], capacity=capacity, limit=limit)
    sess = session()
    ahead.open(sess)
    sess.run(ahead.claimed)
    with pytest.raises((tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError)) as error:
        sess.run(ahead.claimed)
    assert "MxRecIdOffset" in error.value.message and "ahead" in error.value.message
    assert ("limit" if limit else "capacity") in error.value.message
    assert sorted(ahead.table.rows(sess)) == [1, 2]
    sess.run(ahead.claimed)
    assert sorted(ahead.table.rows(sess)) == [1, 2, 3]


# Long, since it compares times: only the build for release tells what a claim costs.
@pytest.mark.long
def test_a_claim_costs_next_to_nothing(graph, session):
    ops = support.ops()
    table = support.Raw.new(1, capacity=1 << 20)
    data = tf.data.Dataset.range(1000).map(lambda _: tf.random.uniform([1 << 18], 0, 1 << 19, tf.int64))
    data = data.map(lambda ids: (ids,) + support.prepared(ops.prepare([table.handle], ids))).prefetch(20)
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    ids, offsets, restore = iterator.get_next()
    claim = ops.resolve(table.handle, ids, prepared=(offsets, restore))
    resolve = ops.resolve(table.handle, ids, create=1)
    sess = session()
    sess.run(table.handle)
    sess.run(iterator.initializer)
    for _ in range(12):
        sess.run(claim.offsets.op)
    # The ops' own times, whatever a step waits for.
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    took = {claim: [], resolve: []}
    for _ in range(5):
        for op, times in took.items():
            told = tf.compat.v1.RunMetadata()
            sess.run(op.offsets.op, options=options, run_metadata=told)
            times.extend(node.op_end_rel_micros for device in told.step_stats.dev_stats
                         for node in device.node_stats if node.node_name == op.offsets.op.name)
    assert [len(times) for times in took.values()] == [5, 5]
    assert min(took[claim]) < min(took[resolve]) / 3, took


def test_a_removal_during_a_step_does_not_touch_its_rows(graph, session):
    ops = support.ops()
    table = support.Raw.new(DIM, initializer=UNIFORM)
    found = ops.resolve(table.handle, tf.constant([1, 2], tf.int64), create=1)
    with tf.control_dependencies([found.offsets]):
        removed = ops.mx_rec_remove(table.handle, tf.constant([2], tf.int64))
    with tf.control_dependencies([removed]):
        new = ops.resolve(table.handle, tf.constant([3, 2], tf.int64), create=1)
    with tf.control_dependencies([new.offsets]):
        rows = ops.lookup(table.handle, support.raw_variable(table), found.offsets)
        update = support.update_rows("sgd", table.handle, found.offsets, tf.ones_like(rows), 1.0, 0.0)
    sess = session()
    before, _ = sess.run([rows, update])
    after = table.find(sess, [1, 2, 3])
    support.assert_same_bits(after[0], before[0] - 1.0)
    support.assert_same_bits(after[1], before[1], "the new row of key 2 starts afresh")
    assert sorted(table.rows(sess)) == [1, 2, 3]


def test_a_wrong_rank_is_refused_when_the_graph_is_built(graph):
    ops = support.shaped_ops()
    table = support.Raw.new(DIM)
    ids = tf.zeros([2, 3], tf.int64)
    (offsets,), restore = ops.prepare([table.handle], ids)
    assert offsets.shape.as_list() == [None] and restore.shape.as_list() == [2, 3]
    claimed = ops.resolve(table.handle, ids, prepared=(offsets, restore))
    assert claimed.offsets.shape.as_list() == [None] and claimed.inverse.shape.as_list() == [2, 3]
    with pytest.raises(ValueError, match="prepared_offsets must have rank 1"):
        ops.resolve(table.handle, ids, prepared=(ids, restore))
    assert tf.gradients(tf.cast(claimed.offsets, tf.float32), table.variable) == [None]


@pytest.mark.parametrize("op", ["MxRecPrepare", "MxRecIdOffset"])
def test_a_handle_of_no_table_is_refused(graph, session, op):
    ops = support.ops()
    ids, handle = tf.constant([1, 2], tf.int64), tf.compat.v1.placeholder(tf.int64, [])
    call = {
        "MxRecPrepare": lambda: ops.prepare([handle], ids),
        "MxRecIdOffset": lambda: ops.resolve(handle, ids, prepared=(ids, tf.constant([0, 1]))),
    }[op]().offsets
    with pytest.raises(tf.errors.NotFoundError) as error:
        session().run(call, {handle: 12345})
    assert op in error.value.message


@pytest.mark.long
def test_sessions_that_close_with_batches_ahead_neither_crash_nor_leak():
    """In a process of its own, since a crash is what it looks for."""
    printed = support.run_python("""
import gc, sys, time
sys.path.insert(0, %r)
import numpy as np
import support
tf, ops = support.tf(), support.ops()
table = support.Raw.new(64, capacity=1 << 20)
data = tf.data.Dataset.range(10000).map(lambda at: tf.range(at * 5000, at * 5000 + 5000))
data = data.map(lambda ids: (ids,) + support.prepared(ops.prepare([table.handle], ids)), num_parallel_calls=2)
iterator = tf.compat.v1.data.make_initializable_iterator(data.prefetch(20))
ids, offsets, restore = iterator.get_next()
claim = ops.resolve(table.handle, ids, prepared=(offsets, restore))
kept = []
for at in range(12):
    sess = support.new_session()
    sess.run(table.handle)
    sess.run(iterator.initializer)
    for _ in range(at):
        kept.append(sess.run(claim.offsets))
    time.sleep(0.02 * (at %% 4))
    sess.close()
    del sess
    gc.collect()
    resident = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    print(int(resident[0].split()[1]) // 1024)
print("done")
""" % support.os.path.dirname(support.__file__))
    lines = printed.split()
    assert lines[-1] == "done"
    sizes = [int(line) for line in lines[:-1]]
    # Each session staged 20 batches of 1.3 MB of rows at least; twelve of them would be 300 MB.
    assert min(sizes[-4:]) < min(sizes[:4]) + 100, sizes
