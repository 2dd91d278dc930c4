"""Several Python threads on one table most of whose rows are on disk: no update is lost, and each sum is exact."""

import os
import time

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.admission import evict
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import get_initializer
from mx_rec.util.stats import table_stats

TRAINERS = 3
STEPS = 300
KEYS = 3000
DIM = 17
BATCH = 50
# A step's lookup and update, for each trainer, and the batches that are looked up ahead of them.
MEMORY = BATCH * (2 * TRAINERS + 4)


def rounds():
    """One round; rounds until so many seconds are over if MX_REC_STRESS_SECONDS is set."""
    until = time.time() + float(os.environ.get("MX_REC_STRESS_SECONDS", "0"))
    number = 0
    while number == 0 or time.time() < until:
        yield number
        number += 1


def batches(seed):
    """`STEPS` batches of keys, most of them from the same few, with gradients that are small integers."""
    random = np.random.RandomState(seed)
    for _ in range(STEPS):
        keys = np.where(random.rand(BATCH) < 0.5, random.randint(0, 100, BATCH), random.randint(0, KEYS, BATCH))
        yield keys * 1009 - 10 ** 6, random.randint(-4, 5, [BATCH, DIM]).astype(np.float32)


def add(sums, seed):
    for keys, grads in batches(seed):
        for key, grad in zip(keys.tolist(), grads):
            sums[key] = sums.get(key, 0.0) - grad


def make_table(directory):
    return support.make_table("table", DIM, 1, host_vocabulary_size=MEMORY - 1, ssd_vocabulary_size=2 * KEYS,
                              ssd_data_path=str(directory))


def descent(table, looked, grads):
    """An update that adds -`grads`: sums in any order are exact."""
    return create_hash_optimizer(1.0).minimize(tf.reduce_sum(looked * grads), var_list=[table.variable])


class Watchers:
    """What runs beside training: evaluation, numbers, saves. Each looks at least once, until training is over."""

    def __init__(self, sess, table, raw, evaluate, directory):
        ops = support.ops()
        self._sess, self._table, self._raw = sess, table, raw
        self._ids, self._rows = evaluate
        self._directory = str(directory)
        self._save = ops.mx_rec_save(raw.handle, support.bytes_tensor(self._directory), -1, 0).rows
        self._graph = tf.compat.v1.get_default_graph()
        self._is_over = False

    def beside(self, train):
        """Runs the functions `train` at once, and everything else until they have returned."""
        self._is_over = False

        def work():
            try:
                support.in_threads(lambda work: work(), train)
            finally:
                self._is_over = True

        looks = [lambda one=one: self._until_over(one) for one in (self._look, self._count, self._write)]
        support.in_threads(lambda run: run(), [work] + looks)

    def _until_over(self, look):
        random = np.random.RandomState(5)
        while True:
            look(random)
            if self._is_over:
                return

    def _look(self, random):
        # More rows than memory has: they are read, and stay where they are.
        keys = random.randint(0, KEYS, 2 * MEMORY) * 1009 - 10 ** 6
        rows = self._sess.run(self._rows, {self._ids: keys})
        assert np.array_equal(rows, np.round(rows)) and rows.shape == (2 * MEMORY, DIM)

    def _count(self, _):
        with self._graph.as_default(), self._sess.as_default():
            numbers = table_stats(self._table)
        assert numbers.rows_memory <= MEMORY == numbers.capacity_memory

    def _write(self, _):
        rows = self._sess.run(self._save)
        saved = np.fromfile(os.path.join(self._directory, "embedding", "slice.data"), "<f4")
        assert saved.size == rows * DIM and np.array_equal(saved, np.round(saved))


def expect_sums(sess, table, raw, sums):
    rows = raw.rows(sess)
    assert sorted(rows) == sorted(sums)
    keys = sorted(sums)
    assert np.array_equal(support.as_array(rows, keys), support.as_array(sums, keys))
    numbers = table_stats(table)
    assert numbers.rows_memory + numbers.rows_disk == len(sums)
    assert numbers.rows_disk > len(sums) // 2 and numbers.read_disk > 1000, numbers


@pytest.mark.long
def test_threads_that_train_evaluate_save_and_evict_lose_no_update(graph, session, dynamic, tmp_path):
    """Keys of a visitor are evicted all the time, in between those that stay; their rows take turns in memory."""
    (tmp_path / "rows").mkdir()
    table = make_table(tmp_path / "rows")
    raw = support.Raw.of(table)
    ids, grads = tf.compat.v1.placeholder(tf.int64, [None]), tf.compat.v1.placeholder(tf.float32, [None, DIM])
    now = tf.compat.v1.placeholder(tf.int64, [])
    tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, now)
    looked = sparse_lookup(table, ids, modify_graph=True,
                           access_and_evict_config={"access_threshold": 1, "eviction_threshold": 10})
    update = descent(table, looked, grads)
    evaluated = sparse_lookup(table, ids, is_train=False, modify_graph=True)
    sess = support.started(session())
    watchers = Watchers(sess, table, raw, (ids, evaluated), tmp_path / "saved")
    sums = {}
    # The time is that of what stays from the first step on.
    sess.run(update, {ids: [-10 ** 6], grads: np.zeros([1, DIM]), now: 1000})
    sums[-10 ** 6] = np.zeros(DIM)

    def train(seed):
        for keys, values in batches(seed):
            sess.run(update, {ids: keys, grads: values, now: 1000})

    evicted = []

    def visit(seed):
        random = np.random.RandomState(seed)
        with graph.as_default(), sess.as_default():
            for step in range(STEPS):
                keys = 10 ** 9 + random.randint(0, KEYS, BATCH)
                sess.run(update, {ids: keys, grads: np.ones([BATCH, DIM]), now: 1})
                if step % 3 == 2:
                    evicted.append(evict(table)["table"][0])

    for number in rounds():
        seeds = range(100 * number, 100 * number + TRAINERS)
        watchers.beside([lambda seed=seed: train(seed) for seed in seeds] + [lambda: visit(100 * number + 99)])
        for seed in seeds:
            add(sums, seed)
        with sess.as_default():
            evict(table)
            assert sum(evicted) > KEYS // 10
            expect_sums(sess, table, raw, sums)


@pytest.mark.long
def test_threads_that_train_on_one_modified_pipeline_lose_no_batch(graph, session, dynamic, tmp_path):
    """Threads take batches off one iterator whose rows come in ahead of them; each batch counts once."""
    (tmp_path / "rows").mkdir()
    table = make_table(tmp_path / "rows")
    fed = tf.compat.v1.placeholder(tf.int64, [None, BATCH]), tf.compat.v1.placeholder(tf.float32, [None, BATCH, DIM])
    dataset = tf.data.Dataset.from_tensor_slices(fed).prefetch(2)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    ids, grads = iterator.get_next()
    update = descent(table, sparse_lookup(table, ids, modify_graph=True), grads)
    asked = tf.compat.v1.placeholder(tf.int64, [None])
    evaluated = sparse_lookup(table, asked, is_train=False, modify_graph=True)
    modify_graph_and_start_emb_cache(dump_graph=False)
    raw, sess = support.opened(table, session, True)
    watchers = Watchers(sess, table, raw, (asked, evaluated), tmp_path / "saved")
    sums = {}

    def train():
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                sess.run(update)

    for number in rounds():
        seeds = range(100 * number, 100 * number + TRAINERS)
        drawn = [one for seed in seeds for one in batches(seed)]
        keys, values = np.stack([one[0] for one in drawn]), np.stack([one[1] for one in drawn])
        sess.run(get_initializer(True), {fed[0]: keys, fed[1]: values})
        watchers.beside([train] * TRAINERS)
        for seed in seeds:
            add(sums, seed)
        with sess.as_default():
            expect_sums(sess, table, raw, sums)
