"""Lookups of several tables by one tensor of ids give what lookups by copies of it give."""


import numpy as np
import pytest
import tensorflow as tf

import support
from test_fused_updates import lookup
from test_grouped_updates import make_table
from test_sparse_lookup_many import lazy_adam

DIMS = [16, 1, 5]


def copies(ids, count):
    """The same ids in tensors of their own."""
    return [tf.identity(ids) for _ in range(count)]


class Side:
    """Tables that are looked up by one tensor, or each by a copy of it, and trained."""

    def __init__(self, name, ids, shares, rows=2000):
        self.tables = [make_table("%s_%d" % (name, at), dim) for at, dim in enumerate(DIMS)]
        given = [ids] * len(DIMS) if shares else copies(ids, len(DIMS))
        self.found = [lookup(table, one) for table, one in zip(self.tables, given)]
        losses = [tf.reduce_sum(tf.sin(one * 3.0)) for one in self.found]
        variables = [table.variable for table in self.tables]
        self.train = lazy_adam().apply_gradients(zip(tf.gradients(losses, variables), variables))
        self.raws = [support.Raw.of(table) for table in self.tables]

    def fill(self, sess, keys):
        for at, raw in enumerate(self.raws):
            raw.assign(sess, np.arange(keys), np.random.RandomState(at).randn(keys, raw.dim))

    def content(self, sess):
        found = []
        for raw in self.raws:
            keys = np.sort(raw.export(sess)[0])
            found.append((keys, raw.find(sess, keys)))
        return found


def equal(mine, others):
    for one, other in zip(mine, others):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_several_tables_by_one_tensor_train_as_by_copies_of_it(graph, session, dynamic, dtype):
    """Zipf batches, empty and large ones; keys are removed and set in between."""
    ids = tf.compat.v1.placeholder(dtype, [None, None])
    sides = [Side("one", ids, True), Side("copies", ids, False)]
    sess = support.started(session())
    for side in sides:
        side.fill(sess, 500)
    random = np.random.RandomState(3)
    for shape in [(5, 3), (0, 3), (70, 20), (1000, 5), (1, 1), (9000, 5), (1000, 5)]:
        batch = np.minimum(random.zipf(1.2, size=shape), 499).astype(dtype)
        batch[:1] = -1
        values = sess.run([(side.found, side.train) for side in sides], {ids: batch})
        equal(values[0][0], values[1][0])
        for side in sides:
            side.raws[1].remove(sess, [1, 2])
            side.raws[1].assign(sess, [1, 2], np.ones([2, DIMS[1]]))


def test_new_keys_removal_and_restore_go_as_with_copies(graph, session, dynamic, tmp_path):
    """New keys in every step; the two graphs have tables of one name, so rows begin with the same values."""
    contents = []
    for shares in (True, False):
        with tf.Graph().as_default() as own:
            ids = tf.compat.v1.placeholder(tf.int64, [None])
            side = Side("table", ids, shares)
            saver = tf.compat.v1.train.Saver()
            with support.new_session(own) as sess:
                sess.run(tf.compat.v1.global_variables_initializer())
                for step in range(6):
                    batch = np.random.RandomState(step).randint(-1, 40 * (step + 1), size=500)
                    sess.run(side.train, {ids: batch})
                    side.raws[step % 3].remove(sess, np.arange(step, 60, 7))
                    if step == 2:
                        path = saver.save(sess, str(tmp_path / ("shares_%d" % shares)))
                saved = side.content(sess)
                saver.restore(sess, path)
                sess.run(side.train, {ids: np.arange(300)})
                contents.append(saved + side.content(sess))
    for mine, others in zip(*contents):
        equal(mine, others)


@pytest.mark.long
def test_two_sessions_with_different_feeds_disturb_nobody(graph, dynamic):
    """Sessions of one graph run at the same time."""
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    side = Side("one", ids, True)

    def run(number, sess):
        random = np.random.RandomState(number)
        for step in range(30):
            batch = random.randint(0, 400 + number, size=[3000, 20000][step % 2])
            sess.run(side.train, {ids: batch})
        return side.content(sess)

    both = []
    for at_once in (False, True):
        sessions = [support.started(support.new_session(graph)) for _ in range(2)]
        runs = list(enumerate(sessions))
        both.append(support.in_threads(lambda one: run(*one), runs) if at_once else [run(*one) for one in runs])
        for sess in sessions:
            sess.close()
    expected, found = both
    for number in range(2):
        for mine, others in zip(found[number], expected[number]):
            equal(mine, others)


@pytest.mark.parametrize("parallel", [1, 10])
def test_lookups_in_a_while_loop(graph, session, dynamic, parallel):
    """Each turn has other ids; several turns may run at once."""
    batches = tf.compat.v1.placeholder(tf.int64, [None, None])
    tables = [make_table("loop_%d" % at, dim) for at, dim in enumerate(DIMS[:2])]

    def turn(at, total):
        ids = batches[at]
        found = [lookup(table, ids) for table in tables]
        return at + 1, total + tf.reduce_sum(found[0]) + tf.reduce_sum(found[1] * found[1])

    count = tf.shape(batches)[0]
    total = tf.while_loop(lambda at, _: at < count, turn, [0, 0.0], parallel_iterations=parallel)[1]
    raws, sess = support.opened(tables, session, True)
    rows = [np.random.RandomState(at).randint(-9, 9, size=(50, dim)) for at, dim in enumerate(DIMS[:2])]
    for raw, values in zip(raws, rows):
        raw.assign(sess, np.arange(50), values)
    given = np.random.RandomState(5).randint(0, 50, size=(40, 200))
    # Whole numbers: their sums are exact in any order.
    expected = rows[0][given].sum() + (rows[1][given] ** 2).sum()
    assert sess.run(total, {batches: given}) == expected


def test_an_imported_copy_of_the_lookups_takes_other_ids(graph, session, dynamic):
    """Its ops run in the same step as the first ones."""
    ids = tf.compat.v1.placeholder(tf.int64, [None], name="the_ids")
    tables = [make_table("copied_%d" % at, 3) for at in range(2)]
    found = [tf.identity(lookup(table, ids), name="rows_%d" % at) for at, table in enumerate(tables)]
    raws = [support.Raw.of(table) for table in tables]
    other = tf.compat.v1.placeholder(tf.int64, [None])
    inputs = {raw.handle.name: raw.handle for raw in raws}
    inputs[ids.name] = other
    copied = tf.import_graph_def(graph.as_graph_def(), inputs, ["rows_0:0", "rows_1:0"], name="again")
    sess = support.started(session())
    for at, raw in enumerate(raws):
        raw.assign(sess, np.arange(90), np.random.RandomState(at).randn(90, 3))
    for step in range(10):
        batches = [np.random.RandomState(step + at).randint(0, 90, size=n) for at, n in ((0, 400), (50, 300))]
        values = sess.run([found, copied], {ids: batches[0], other: batches[1]})
        for pair, batch in zip(values, batches):
            for rows, raw in zip(pair, raws):
                np.testing.assert_array_equal(rows, raw.find(sess, batch))


def test_the_error_of_one_table_names_it_and_spares_the_others(graph, session, dynamic):
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    small, large = make_table("small", 2, capacity=8), make_table("large", 2, capacity=50000)
    found = [lookup(table, ids) for table in (large, small)]
    raws = [support.Raw.of(table) for table in (large, small)]
    sess = support.started(session())
    for count in (100, 20000):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="on table 'small'"):
            sess.run(found, {ids: np.arange(count)})
        assert raws[1].size(sess) == 0
        assert sess.run(found[0], {ids: np.arange(count)}).shape == (count, 2)
        assert raws[0].size(sess) == count
    sess.run(found, {ids: np.arange(5)})
    assert [raw.size(sess) for raw in raws] == [20000, 5]


def test_a_run_that_needs_one_lookup_makes_no_rows_in_the_other_table(graph, session, dynamic):
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    tables = [make_table("apart_%d" % at, 2) for at in range(2)]
    found = [lookup(table, ids) for table in tables]
    raws, sess = support.opened(tables, session, True)
    for step in range(40):
        sess.run(found[0], {ids: [step, step + 1]})
    assert [raw.size(sess) for raw in raws] == [41, 0]
