"""Admission for unchanged models: rows for keys that occur often enough, in training, evaluation and checkpoints."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.ops import library
from mx_rec.state.table_variable import table_config_of
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util import initialize
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

START = 0.25
STEPS = 20


def admission(mx, access=None, eviction=None, **more):
    mx(stock_tables=StockTables(least_rows=1, access_threshold=access, eviction_threshold=eviction, **more))


def again(mx, *arguments, **more):
    """The settings of a new process."""
    initialize.terminate_config_initializer()
    admission(mx, *arguments, **more)


def pooled(w, ids, are_weighted=False):
    """(b, dim) of ids (b, 3), where negative ones are none."""
    sparse = tf.SparseTensor(tf.where(tf.greater_equal(ids, 0)), tf.boolean_mask(ids, ids >= 0),
                             tf.shape(ids, out_type=tf.int64))
    weights = tf.SparseTensor(sparse.indices, tf.ones_like(sparse.values, tf.float32), sparse.dense_shape)
    return tf.nn.safe_embedding_lookup_sparse(w, sparse, weights if are_weighted else None, combiner="mean")


def weighted(w, ids):
    return pooled(w, ids, True)


def rows_of(w, ids):
    return tf.reduce_sum(tf.nn.embedding_lookup(w, ids), 1)


LOOKUPS = {"rows": rows_of, "bags": pooled, "weights": weighted}


class Model:
    """A converted model of one variable, which a script trains in a session.

    Attributes:
        step: Trains one batch of ids (b, 3); returns the vectors that training saw.
        find: The vectors of ids that evaluation gives.
    """

    def __init__(self, how, optimizer, clips=False, rows=cases.ROWS, start=START, parts=None):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ids = v1.placeholder(tf.int64, [None, 3])
            v1.train.get_or_create_global_step()
            w = v1.get_variable("w", [rows, 2], initializer=v1.constant_initializer(start),
                                partitioner=parts and v1.fixed_size_partitioner(parts))
            self.seen = LOOKUPS[how](w, self.ids)
            loss = tf.reduce_sum(tf.square(self.seen - 1.0))
            made = cases.optimizers()[optimizer]()
            pairs = made.compute_gradients(loss)
            if clips:
                pairs = [(tf.clip_by_norm(grad, 100.0), variable) for grad, variable in pairs]
            with tf.control_dependencies([self.seen]):
                self.train = made.apply_gradients(pairs, v1.train.get_global_step())
            self.asked = v1.placeholder(tf.int64, [None])
            self.found = tf.nn.embedding_lookup(w, self.asked)
            self.plans = convert_graph(self.graph, True)
            assert all(plan.converts for plan in self.plans) and len(self.plans) == (parts or 1)
            self.saver = v1.train.Saver()
            self.sess = v1.Session(graph=self.graph, config=v1.ConfigProto(
                intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
            self.sess.run(v1.global_variables_initializer())

    def step(self, ids):
        return self.sess.run([self.seen, self.train], {self.ids: ids})[0]

    def find(self, ids=None):
        return self.sess.run(self.found, {self.asked: np.arange(cases.ROWS) if ids is None else ids})

    def keys(self):
        """The keys that have a row."""
        with self.graph.as_default():
            return [set(self.sess.run(library().mx_rec_export(one.table.handle, []).keys).tolist())
                    for one in converted(self.graph)]


def batches(how, steps=STEPS):
    for ids, _ in cases.batches(steps):
        if how != "rows":
            ids = np.where(np.arange(3)[None] >= np.arange(len(ids))[:, None] % 4, -1, ids)
        yield ids


FORMS = [(how, clips) for how in sorted(LOOKUPS) for clips in (False, True)]


@pytest.mark.parametrize("optimizer, form, threshold", support.by_turns(
    ["adagrad", "ftrl", "momentum", "lazy_adam", "sgd", "centered_rmsprop"], FORMS, [0, 1]))
def test_a_threshold_that_admits_every_key_gives_the_bits_of_none(mx, optimizer, form, threshold):
    how, clips = form

    def run():
        model = Model(how, optimizer, clips)
        return [model.step(ids) for ids in batches(how)] + [model.find()], model.keys()

    admission(mx)
    expected, keys = run()
    again(mx, threshold)
    got, there = run()
    support.assert_same_each(got, expected, what="vectors")
    assert there == keys


def trained_by_gradients_of_other_runs(is_fed):
    """Sums gradients over two runs, applies them by a run without a lookup, six times: all rows, the keys that have one, and
    the ids that were applied, by time."""
    applied = []
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None])
        w = v1.get_variable("w", [cases.ROWS, 2], initializer=v1.constant_initializer(START))
        made = v1.train.AdagradOptimizer(0.1)
        (grad, _), = made.compute_gradients(tf.reduce_sum(tf.square(tf.gather(w, ids) - 1.0)))
        if is_fed:
            values, keys = v1.placeholder(tf.float32, [None, 2]), v1.placeholder(tf.int64, [None])
            train = made.apply_gradients([(tf.IndexedSlices(values, keys), w)])
        else:
            sums = v1.SparseConditionalAccumulator(tf.float32, [cases.ROWS, 2])
            add = sums.apply_indexed_slices_grad(grad, tf.constant(2 ** 40, tf.int64))
            train = made.apply_gradients([(sums.take_indexed_slices_grad(2), w)])
        plan, = convert_graph(graph, True)
        assert plan.converts
        with v1.Session() as sess:
            sess.run(v1.global_variables_initializer())
            for _ in range(6):
                batches = [np.random.RandomState(len(applied) + one).randint(0, 20, 5) for one in range(2)]
                if is_fed:
                    found = [sess.run([grad.values, grad.indices], {ids: batch}) for batch in batches]
                    sess.run(train, dict(zip((values, keys), map(np.concatenate, zip(*found)))))
                    applied.append(np.concatenate(batches))
                else:
                    for batch in batches:
                        sess.run(add, {ids: batch})
                    sess.run(train)
                    applied.append(np.unique(np.concatenate(batches)))
            one, = converted(graph)
            keys = set(sess.run(library().mx_rec_export(one.table.handle, []).keys).tolist())
            return cases.value_of(sess, w), keys, applied


@pytest.mark.parametrize("is_fed", [False, True])
def test_an_update_counts_the_ids_of_gradients_that_no_lookup_of_its_run_gives(mx, is_fed):
    """Gradients from accumulators, or fed ones, were dropped: nothing counted their ids, so that no row was ever trained."""
    admission(mx)
    expected, keys, _ = trained_by_gradients_of_other_runs(is_fed)
    again(mx, 1)
    got, there, _ = trained_by_gradients_of_other_runs(is_fed)
    support.assert_same_bits(got, expected)
    assert there == keys and len(keys) > 5
    again(mx, 3)
    _, there, applied = trained_by_gradients_of_other_runs(is_fed)
    counts = Counter(np.concatenate(applied).tolist())
    assert there == {key for key, count in counts.items() if count >= 3} and there != keys


@pytest.mark.parametrize("is_one_batch", [False, True])
def test_an_update_counts_the_ids_that_none_of_its_lookups_has_and_those_of_lookups_once(mx, is_one_batch):
    """A gradient of the batch joined with one of other ids: these were dropped, also if they were computed from another part of the batch."""
    admission(mx, 3)
    with tf.Graph().as_default() as graph:
        ids, others = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [None])
        feeds = {ids: [1, 55], others: [7, 7, 9]}
        if is_one_batch:
            data = tf.data.Dataset.from_tensors((np.array(feeds.pop(ids)), np.array(feeds.pop(others)))).repeat()
            ids, others = v1.data.make_one_shot_iterator(data).get_next()
            others = 1 * others
        w = v1.get_variable("w", [cases.ROWS, 2], initializer=v1.constant_initializer(START))
        made = v1.train.MomentumOptimizer(0.1, 0.5)
        (grad, _), = made.compute_gradients(tf.reduce_sum(tf.square(tf.gather(w, ids) - 1.0)))
        chosen = grad.indices < 50
        train = made.apply_gradients([(tf.IndexedSlices(
            tf.concat([tf.boolean_mask(grad.values, chosen), tf.ones([tf.size(others), 2])], 0),
            tf.concat([tf.boolean_mask(grad.indices, chosen), others], 0)), w)])
        plan, = convert_graph(graph, True)
        assert plan.converts
        with support.started(support.new_session()) as sess:
            one, = converted(graph)
            for keys in (set(), {7}, {1, 7, 9}):
                sess.run(train, feeds)
                assert set(sess.run(library().mx_rec_export(one.table.handle, []).keys).tolist()) - {55} == keys


@pytest.mark.parametrize("how, clips", FORMS)
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum", "sgd", "rmsprop"])
def test_a_key_gets_a_row_when_it_has_occurred_often_enough_and_no_filled_bag_counts(mx, how, clips, optimizer):
    threshold = 6
    admission(mx, threshold)
    model = Model(how, optimizer, clips)
    counts = Counter()
    for ids in batches(how):
        before = model.find()
        counts.update(ids[ids >= 0].tolist())
        admitted = {key for key, count in counts.items() if count >= threshold}
        seen = model.step(ids)
        assert model.keys() == [admitted]
        # A key that is admitted by this batch starts as a new row, and others are zeros.
        rows = np.array([before[key] if before[key].any() else np.full(2, START * (key in admitted))
                         for key in range(cases.ROWS)])
        rows = np.concatenate([rows, np.zeros([1, 2])])
        expected = rows[ids].sum(1)
        if how != "rows":
            expected /= np.maximum((ids >= 0).sum(1), 1)[:, None]
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
        absent = sorted(set(range(cases.ROWS)) - admitted)
        assert not model.find(absent).any()
    assert 5 < len(admitted) < len(counts)


def test_evaluation_and_training_give_a_refused_key_what_a_lookup_of_the_api_gives(mx):
    admission(mx, 3)
    model = Model("rows", "sgd")
    ids = np.array([[1, 2, 2]])
    mine = [model.step(ids), model.find([1, 2])]
    with tf.Graph().as_default():
        asked = v1.placeholder(tf.int64, [None, 3])
        table = support.make_table("t", 2, 100, START)
        rows = sparse_lookup(table, asked, is_train=True, modify_graph=True,
                             access_and_evict_config={"access_threshold": 3})
        found = sparse_lookup(table, asked, is_train=False, modify_graph=True)
        with support.started(support.new_session()) as sess:
            theirs = [sess.run(rows, {asked: ids}), sess.run(found, {asked: ids})]
    assert not mine[0].any() and not theirs[0].any()
    assert not mine[1].any() and not theirs[1].any()


def test_lookups_of_one_variable_count_together_before_one_of_them_decides(mx):
    admission(mx, 2)
    with tf.Graph().as_default() as graph:
        one, other = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [None, 1])
        w = v1.get_variable("w", [20, 2], initializer=v1.constant_initializer(START))
        u = v1.get_variable("u", [20, 2], initializer=v1.constant_initializer(START))
        first, second = tf.nn.embedding_lookup(w, one), pooled(w, other)
        third = tf.nn.embedding_lookup(u, one)
        loss = sum(tf.reduce_sum(value * value) for value in (first, second, third))
        with tf.control_dependencies([first, second, third]):
            train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        assert all(plan.converts for plan in convert_graph(graph, True)) and len(converted(graph)) == 2
        with support.started(support.new_session()) as sess:
            seen = sess.run([first, second, third, train], {one: [3, 4], other: [[3], [5]]})
    # Of the variable u each key occurred once.
    np.testing.assert_array_equal(seen[0], [[START] * 2, [0] * 2])
    np.testing.assert_array_equal(seen[1], [[START] * 2, [0] * 2])
    assert not seen[2].any()


def test_a_lookup_whose_ids_come_from_another_one_of_the_variable_does_not_wait_in_a_circle(mx):
    admission(mx, 2)
    for turn in (False, True):
        with tf.Graph().as_default() as graph:
            ids = v1.placeholder(tf.int64, [None])
            w = v1.get_variable("w", [20, 1], initializer=v1.constant_initializer(2.0))
            first = tf.nn.embedding_lookup(w, ids)
            second = tf.nn.embedding_lookup(w, tf.cast(tf.reshape(first, [-1]), tf.int64))
            parts = [second, first] if turn else [first, second]
            loss = sum(tf.reduce_sum(tf.square(part)) for part in parts)
            with tf.control_dependencies(parts):
                train = v1.train.GradientDescentOptimizer(0.0).minimize(loss)
            plan, = convert_graph(graph, True)
            assert plan.converts
            with support.started(support.new_session()) as sess:
                seen = [sess.run([first, second, train], {ids: [7]})[:2] for _ in range(3)]
        # 7 is refused once, and leads to 0; then it is admitted, and leads to 2.
        assert [one[0][0, 0] for one in seen] == [0, 2, 2]
        assert [one[1][0, 0] for one in seen] == [0, 0, 2]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "momentum"])
@pytest.mark.parametrize("clips", [False, True])
def test_an_update_whose_gradient_needs_no_row_waits_for_the_counts(mx, optimizer, clips):
    admission(mx, 2)
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None])
        slow = tf.reduce_sum(tf.linalg.matmul(tf.fill([700, 700], 1e-9), tf.fill([700, 700], 1e-9)))
        w = v1.get_variable("w", [20, 1], initializer=v1.constant_initializer(2.0))
        with tf.control_dependencies([slow]):
            found = tf.gather(w, ids)
        made = cases.optimizers()[optimizer]()
        pairs = made.compute_gradients(tf.reduce_sum(found), [w])
        if clips:
            pairs = [(tf.clip_by_norm(grad, 100.0), variable) for grad, variable in pairs]
        train = made.apply_gradients(pairs)
        assert convert_graph(graph, True)[0].converts
        with support.started(support.new_session()) as sess:
            for _ in range(3):
                sess.run([train, found], {ids: [7, 7]})
            row = cases.dense_value(sess, converted(graph)[0], 20)[7, 0]
    np.testing.assert_allclose(row, reference(optimizer, clips), rtol=1e-6)


def reference(optimizer, clips):
    """The row after three steps of TensorFlow's own variable."""
    with tf.Graph().as_default():
        support.keep_variables()
        w = v1.get_variable("w", [20, 1], initializer=v1.constant_initializer(2.0))
        made = cases.optimizers()[optimizer]()
        pairs = made.compute_gradients(tf.reduce_sum(tf.gather(w, [7, 7])), [w])
        if clips:
            pairs = [(tf.clip_by_norm(grad, 100.0), variable) for grad, variable in pairs]
        train = made.apply_gradients(pairs)
        with support.started(v1.Session()) as sess:
            for _ in range(3):
                sess.run(train)
            return sess.run(w)[7, 0]


def test_steps_of_other_placeholders_need_no_feed_of_each_other(mx):
    admission(mx, 2)
    with tf.Graph().as_default() as graph:
        ids = [v1.placeholder(tf.int64, [None]) for _ in range(2)]
        w = v1.get_variable("w", [20, 1], initializer=v1.constant_initializer(2.0))
        found = [tf.gather(w, one) for one in ids]
        made = v1.train.GradientDescentOptimizer(0.1)
        train = [made.minimize(tf.reduce_sum(tf.square(one))) for one in found]
        assert convert_graph(graph, True)[0].converts
        with support.started(support.new_session()) as sess:
            seen = [sess.run([found[at], train[at]], {ids[at]: [7]})[0][0, 0] for at in (0, 1, 0)]
    assert seen[0] == 0 and seen[1] in (2.0, np.float32(1.6)) and seen[2] < 2


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "momentum"])
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_a_run_of_one_train_op_counts_its_own_lookups_and_runs_no_other(mx, optimizer, resource, clips):
    """Of two train ops on the same placeholder each run counted the ids of both: a key had its row in half of the steps."""
    admission(mx, 4)
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None])
        ran = [v1.get_variable("ran{}".format(at), [], tf.int64, initializer=v1.zeros_initializer()) for at in range(2)]
        w = v1.get_variable("w", [20, 1], initializer=v1.constant_initializer(2.0), use_resource=resource)
        made, train, found = cases.optimizers()[optimizer](), [], []
        for at in range(2):
            with tf.control_dependencies([ran[at].assign_add(1)]):
                found.append(tf.gather(w, tf.identity(ids)))
            pairs = made.compute_gradients(tf.reduce_sum(tf.square(found[at])), [w])
            if clips:
                pairs = [(tf.clip_by_norm(grad, 100.0), variable) for grad, variable in pairs]
            train.append(made.apply_gradients(pairs))
        assert convert_graph(graph, True)[0].converts
        with support.started(support.new_session()) as sess:
            seen = []
            for at in (0, 1, 0, 0, 1):
                seen.append(sess.run([found[at], train[at]], {ids: [7]})[0][0, 0])
            assert sess.run(ran) == [3, 2]
            sess.run(train, {ids: [8]})
            sess.run(train, {ids: [8]})
            assert sess.run(found[0], {ids: [8]})[0, 0] > 0
    assert seen[:3] == [0, 0, 0] and 0 < seen[3] <= 2 and 0 < seen[4] < 2


def test_counts_stand_in_checkpoints_and_go_on_after_a_restore(mx, tmp_path):
    admission(mx, 3)
    model = Model("rows", "adagrad")
    model.step(np.array([[1, 2, 2]]))
    path = model.saver.save(model.sess, str(tmp_path / "model"))
    model.step(np.array([[1, 2, 4]]))
    expected = model.step(np.array([[1, 4, 4]]))
    other = Model("rows", "adagrad")
    other.step(np.array([[9, 9, 9]]))
    other.saver.restore(other.sess, path)
    assert other.keys() == [set()]
    other.step(np.array([[1, 2, 4]]))
    assert other.keys() == [{2}]
    support.assert_same_bits(other.step(np.array([[1, 4, 4]])), expected, "vectors")
    assert other.keys() == [{1, 2, 4}]


@pytest.mark.parametrize("saved, now", [((3,), ()), ((3,), (0,)), ((1, 5), (1, 5))])
def test_a_session_that_sets_another_admission_than_the_checkpoint_has_does_not_go_on(mx, tmp_path, saved, now):
    """Every key got a row then, or was old at once, where the training that saved it gave none."""
    admission(mx, *saved, eviction_unit="steps")
    model = Model("rows", "adagrad")
    model.step(np.array([[1, 2, 2]]))
    path = model.saver.save(model.sess, str(tmp_path / "model"))
    again(mx, *now)
    other = Model("rows", "adagrad")
    other.step(np.array([[9, 9, 9]]))
    expected = other.find()
    with pytest.raises(tf.errors.InvalidArgumentError, match="'w'.*StockTables"):
        other.saver.restore(other.sess, path)
    np.testing.assert_array_equal(other.find(), expected)
    again(mx, 1)
    last = Model("rows", "adagrad")
    last.saver.restore(last.sess, path)
    last.step(np.array([[1, 2, 4]]))
    assert last.keys() == [{1, 2, 4}]


def test_a_session_that_evaluates_without_the_admission_of_the_checkpoint_is_warned(mx, tmp_path, caplog):
    admission(mx, 3)
    model = Model("rows", "adagrad")
    model.step(np.array([[1, 2, 2]]))
    path = model.saver.save(model.sess, str(tmp_path / "model"))
    again(mx)
    with tf.Graph().as_default() as graph:
        v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [cases.ROWS, 2], initializer=v1.constant_initializer(START))
        tf.gather(w, [1, 2, 5, 7])
        convert_graph(graph, False)
        with v1.Session() as sess, caplog.at_level("WARNING"):
            v1.train.Saver().restore(sess, path)
    assert "'w'" in caplog.text and "access_threshold of 3" in caplog.text


def test_keys_without_rows_are_counted_in_a_sketch(mx, tmp_path):
    def run():
        model = Model("rows", "adagrad")
        seen = [model.step(ids) for ids in batches("rows")]
        return model, seen, model.keys()

    admission(mx, 4)
    _, expected, keys = run()
    again(mx, 4, admission_sketch_bytes={"v": 2048, "w": 2 ** 20})
    model, got, there = run()
    np.testing.assert_array_equal(got, expected)
    assert there == keys
    config = table_config_of(converted(model.graph)[0].table.variable.op)
    assert config["admission_sketch_bytes"] == 2 ** 20
    path = model.saver.save(model.sess, str(tmp_path / "model"))
    other = Model("rows", "adagrad")
    other.saver.restore(other.sess, path)
    np.testing.assert_array_equal(other.step(np.array([[1, 2, 50]])), model.step(np.array([[1, 2, 50]])))
    for wrong in (1, "a", {"w": -1}, True):
        with pytest.raises(ValueError, match="admission_sketch_bytes"):
            again(mx, 4, admission_sketch_bytes=wrong)


@pytest.mark.parametrize("has_trained", [False, True])
def test_rows_of_a_checkpoint_without_counts_are_admitted(mx, tmp_path, has_trained):
    admission(mx)
    old = Model("rows", "adagrad")
    old.step(np.array([[1, 2, 2]]))
    path = old.saver.save(old.sess, str(tmp_path / "model"))
    expected = old.find([1, 2])
    again(mx, 5)
    new = Model("rows", "adagrad")
    if has_trained:
        new.step(np.array([[8, 9, 9]]))
    new.saver.restore(new.sess, path)
    seen = new.step(np.array([[1, 2, 7]]))
    np.testing.assert_array_equal(seen[0], expected.sum(0))
    assert new.keys() == [{1, 2}] and not new.find([7]).any()


@pytest.mark.parametrize("has_trained", [False, True])
def test_rows_of_a_variable_of_a_checkpoint_are_admitted(mx, tmp_path, has_trained):
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        v1.get_variable("w", [cases.ROWS, 2], initializer=v1.constant_initializer(0.5))
        v1.get_variable("w/Adagrad", [cases.ROWS, 2], initializer=v1.constant_initializer(0.3))
        saver = v1.train.Saver()
        with support.started(v1.Session()) as sess:
            path = saver.save(sess, str(tmp_path / "model"))
    admission(mx, 5)
    model = Model("rows", "adagrad")
    if has_trained:
        model.step(np.array([[8, 9, 9]]))
    model.saver.restore(model.sess, path)
    np.testing.assert_array_equal(model.find(), np.full([cases.ROWS, 2], 0.5))
    np.testing.assert_array_equal(model.step(np.array([[1, 2, 8]])), [[1.5, 1.5]])


def test_each_part_of_a_partitioned_variable_counts_its_own_keys(mx):
    admission(mx, {"w": 4})
    model = Model("rows", "adagrad", parts=2)
    model.step(np.array([[0, 1, 1], [1, 0, 58]]))
    assert model.keys() == [set(), set()]
    seen = model.step(np.array([[1, 1, 1], [0, 59, 59]]))
    # Ids alternate between the parts.
    assert sorted(map(sorted, model.keys())) == [[], [0]]
    np.testing.assert_array_equal(seen[:, 0], [3 * START, 0])


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("combiner", ["mean", "sum"])
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum"])
def test_parts_count_all_occurrences_of_sparse_ids_and_no_filled_bag(mx, strategy, combiner, optimizer):
    threshold, rows = 5, 31
    admission(mx, threshold)
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None, 3])
        w = v1.get_variable("w", [rows, 2], initializer=v1.constant_initializer(START),
                            partitioner=v1.fixed_size_partitioner(3))
        sparse = tf.SparseTensor(tf.where(tf.greater_equal(ids, 0)), tf.boolean_mask(ids, ids >= 0),
                                 tf.shape(ids, out_type=tf.int64))
        seen = tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner=combiner, partition_strategy=strategy) \
            if strategy == "div" else tf.nn.safe_embedding_lookup_sparse(list(w), sparse, combiner=combiner,
                                                                         partition_strategy=strategy)
        with tf.control_dependencies([seen]):
            train = cases.optimizers()[optimizer]().minimize(tf.reduce_sum(tf.square(seen - 1.0)))
        assert all(plan.converts for plan in convert_graph(graph, True)) and len(converted(graph)) == 3
        keys = {}
        for part, one in enumerate(converted(graph)):
            sizes = [11, 10, 10]
            ours = range(part, rows, 3) if strategy == "mod" else range(sum(sizes[:part]), sum(sizes[:part + 1]))
            keys[part] = list(ours)
        counts = Counter()
        with support.started(support.new_session()) as sess:
            for batch in batches("bags"):
                batch = np.where(batch >= 0, batch % rows, batch)
                counts.update(batch[batch >= 0].tolist())
                sess.run(train, {ids: batch})
                for part, one in enumerate(converted(graph)):
                    with_row = cases.dense_value(sess, one, len(keys[part])) != np.float32(START)
                    for key, is_there in zip(keys[part], with_row.any(1)):
                        # A row that was made was moved, too.
                        assert is_there == (counts[key] >= threshold), (key, counts[key])
    assert 3 < sum(count >= threshold for count in counts.values()) < rows


def test_the_first_expression_that_matches_gives_a_variable_its_threshold(mx):
    admission(mx, {"deep/x": 7, "deep/": 3, "none": 9}, {"deep/x": 40})
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None])
        loss = 0.0
        for name in ("deep/x", "deep/y", "wide/x"):
            loss += tf.reduce_sum(tf.nn.embedding_lookup(v1.get_variable(name, [20, 2]), ids))
        v1.train.AdagradOptimizer(0.1).minimize(loss)
        convert_graph(graph, True)
        assert [one.rules[:2] for one in converted(graph)] == [(7, 40), (3, -1), (-1, -1)]


@pytest.mark.parametrize("settings, words", [
    (dict(access_threshold=-2), "access_threshold"), (dict(access_threshold="3"), "access_threshold"),
    (dict(access_threshold={"w": 1.5}), "access_threshold"), (dict(access_threshold={"(": 1}), "regular expression"),
    (dict(eviction_threshold=5), "eviction_threshold"), (dict(access_threshold=True), "access_threshold"),
    (dict(access_threshold=1, eviction_threshold=5, eviction_unit="days"), "eviction_unit"),
    (dict(evict_step_interval=0), "evict_step_interval"), (dict(evict_time_interval=-1), "evict_time_interval"),
    (dict(access_threshold=1, eviction_threshold=5, evict_time_interval=None), "evict_step_interval")])
def test_settings_that_are_none_are_refused_by_init(mx, settings, words):
    with pytest.raises(ValueError, match=words):
        mx(stock_tables=StockTables(**settings))


def test_an_eviction_threshold_without_access_threshold_names_the_variable_before_anything_changes(mx):
    admission(mx, {"u": 3}, 5)
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [20, 2])
        v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [1, 2])))
        before = graph.as_graph_def()
        with pytest.raises(ValueError, match="variable 'w'.*access_threshold"):
            convert_graph(graph, True)
        assert graph.as_graph_def() == before
