"""Pooled lookups of sparse and ragged ids, with weights, beside TensorFlow's functions on a dense variable."""

import numpy as np
import pytest
import tensorflow as tf

import support
from pooled_cases import DIM, make_table, pooled, start_of
from mx_rec.core.embedding import embedding_lookup_sparse, safe_embedding_lookup_sparse
from mx_rec.optimizers.gradient_descent import create_hash_optimizer

COMBINERS = ["sum", "mean", "sqrtn"]
KEYS = 30


def start():
    """The rows that tables and variables begin with."""
    return start_of(KEYS)[1]


def sparse_batch(random, bags, is_safe):
    """Indices and ids; where `is_safe`, with bags without ids and ids below 0."""
    counts = random.randint(0 if is_safe else 1, 6, size=bags)
    if not is_safe and bags:
        counts[-1] += 1
    indices = [(bag, place) for bag, count in enumerate(counts) for place in range(count)]
    ids = random.randint(-3 if is_safe else 0, KEYS, size=len(indices))
    return np.array(indices, np.int64).reshape(-1, 2), ids.astype(np.int64), np.array([bags, 8], np.int64)


class Case:
    """One table beside one dense variable, with sparse ids and weights that are fed."""

    def __init__(self, ours, theirs, combiner, weighted, **arguments):
        tf1 = tf.compat.v1
        self.table = make_table("table")
        self.dense = tf1.get_variable("dense", initializer=start(), use_resource=False)
        self.indices = tf1.placeholder(tf.int64, [None, 2])
        self.ids = tf1.placeholder(tf.int64, [None])
        self.shape = tf1.placeholder(tf.int64, [2])
        self.weights = tf1.placeholder(tf.float32, [None]) if weighted else None
        scale = tf1.get_variable("scale", initializer=np.float32(1.0), use_resource=False)
        sparse = tf.SparseTensor(self.indices, self.ids, self.shape)
        self.scaled = None if self.weights is None else self.weights * scale
        weights = None if self.weights is None else tf.SparseTensor(self.indices, self.scaled, self.shape)
        self.forms = [ours(self.table, sparse, weights, combiner=combiner, **arguments),
                      theirs(self.dense, sparse, weights, combiner=combiner, **arguments)]
        losses = []
        for form in self.forms:
            place = tf.cast(tf.reshape(tf.range(tf.size(form)), tf.shape(form)), tf.float32)
            losses.append(tf.reduce_sum(tf.sin(form + place)))
        wanted = [] if self.scaled is None else [scale]
        self.gradients = [tf.gradients(loss, [over] + wanted)
                          for loss, over in zip(losses, (self.table.variable, self.dense))]

    def run(self, batch, weights):
        """Compares values, gradients of rows and of weights."""
        indices, ids, shape = batch
        feed = {self.indices: indices, self.ids: ids, self.shape: shape}
        if self.weights is not None:
            feed[self.weights] = weights
        with support.started(support.new_session()) as sess:
            raw = support.Raw.of(self.table)
            raw.assign(sess, np.arange(KEYS), start())
            ours, theirs = sess.run(self.forms, feed)
            support.assert_rounding(ours[:len(theirs)], theirs, 30, scale=3.0)
            assert len(ours) == shape[0] and not ours[len(theirs):].any()
            (slices, *own), (dense, *other) = sess.run(self.gradients, feed)
            sums = np.zeros([KEYS, DIM], np.float32)
            keys = raw.export(sess)[0]
            for offset, value in zip(slices.indices, slices.values):
                sums[int(keys[support.row_of(offset)])] += value
            expected = np.zeros([KEYS, DIM], np.float32)
            np.add.at(expected, dense.indices, dense.values)
            support.assert_rounding(sums, expected, 100, scale=4.0)
            for one, another in zip(own, other):
                support.assert_rounding(one, another, 400, scale=10.0)


@pytest.mark.parametrize("max_norm", [None, 1.5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_the_sparse_lookup_is_that_of_tensorflow(graph, dynamic, combiner, weighted, max_norm):
    case = Case(embedding_lookup_sparse, tf.nn.embedding_lookup_sparse, combiner, weighted, max_norm=max_norm)
    random = np.random.RandomState(3)
    for bags in (1, 5, 60):
        batch = sparse_batch(random, bags, False)
        case.run(batch, random.random_sample(len(batch[1])).astype(np.float32) + 0.1)


@pytest.mark.parametrize("default_id", [None, 0, 7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_the_safe_lookup_is_that_of_tensorflow(graph, dynamic, combiner, weighted, default_id):
    """Rows without ids, ids below 0, weights that are 0 or below."""
    def theirs(dense, sparse, weights, **arguments):
        return tf.nn.safe_embedding_lookup_sparse([dense], sparse, weights, **arguments)

    case = Case(safe_embedding_lookup_sparse, theirs, combiner, weighted, default_id=default_id)
    random = np.random.RandomState(3)
    for bags in (1, 5, 60):
        batch = sparse_batch(random, bags, True)
        case.run(batch, random.random_sample(len(batch[1])).astype(np.float32) - 0.2)


def test_the_safe_lookup_keeps_the_leading_dimensions(graph, session, dynamic):
    sparse = tf.SparseTensor([[0, 0, 1], [1, 0, 0], [1, 2, 3]], tf.constant([4, 5, 6], tf.int64), [2, 3, 4])
    table = make_table("table")
    vector = safe_embedding_lookup_sparse(table, sparse, combiner="sum")
    sess = session()
    value = sess.run(vector)
    rows = support.Raw.of(table).rows(sess)
    assert value.shape == (2, 3, DIM)
    for place, key in (((0, 0), 4), ((1, 0), 5), ((1, 2), 6)):
        support.assert_same_bits(value[place], rows[key])
    assert not value[0, 1:].any() and not value[1, 1].any()


@pytest.mark.parametrize("is_train", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("split_type", ["int32", "int64"])
def test_ragged_ids_are_pooled_as_their_dense_form(graph, session, dynamic, combiner, is_train, split_type):
    table = make_table("table")
    rows = [[1, 2, 2], [], [9], [], [4, 4, 4, 1]]
    weights = [[0.5, 2.0, 1.0], [], [-1.0], [], [1.0, 2.0, 3.0, 0.0]]
    ids = tf.ragged.constant(rows, tf.int64, row_splits_dtype=split_type)
    factors = tf.ragged.constant(weights, tf.float32, row_splits_dtype=split_type)
    dense = tf.constant([row + [-1] * (5 - len(row)) for row in rows], tf.int64)
    dense_factors = tf.constant([row + [7.0] * (5 - len(row)) for row in weights])
    forms = [(pooled(table, ids, combiner, is_train=is_train), pooled(table, dense, combiner)),
             (pooled(table, ids, combiner, weights=factors, is_train=is_train),
              pooled(table, dense, combiner, weights=dense_factors))]
    sess = session()
    sess.run([two for _, two in forms])
    for one, other in sess.run(forms):
        assert one.any()
        support.assert_same_bits(one, other)


def test_weights_that_are_no_parameters_have_no_gradient_unless_it_is_asked_for(graph, session, dynamic):
    table = make_table("table")
    ids = tf.constant([[1, 2, -1], [2, 2, 5]], tf.int64)
    weights = tf.compat.v1.placeholder_with_default(tf.constant([[1.0, 2.0, 5.0], [0.5, 1.0, 1.0]]), [2, 3])
    without, given = [pooled(table, ids, "mean", weights=weights, is_weight_grad=asked) for asked in (None, True)]
    assert tf.gradients(tf.reduce_sum(without), weights) == [None]
    assert support.kind_of(without.op) == "MxRecRead bags"
    gradient = tf.gradients(tf.reduce_sum(tf.square(given)), weights)[0]
    sess = session()
    found, value = sess.run([gradient, given])
    assert found[0, 2] == 0.0
    # What a small change of each weight changes, in float64.
    rows = support.Raw.of(table).rows(sess)
    batch, start_weights = np.array([[1, 2, -1], [2, 2, 5]]), np.array([[1.0, 2.0, 5.0], [0.5, 1.0, 1.0]])

    def loss(changed):
        total = 0.0
        for bag, of in zip(batch, changed):
            kept = [(key, one) for key, one in zip(bag, of) if key != -1]
            vector = sum(rows[key].astype(np.float64) * one for key, one in kept) / sum(one for _, one in kept)
            total += np.sum(vector ** 2)
        return total

    for place in np.ndindex(2, 3):
        step = np.zeros([2, 3])
        step[place] = 1e-5
        slope = (loss(start_weights + step) - loss(start_weights - step)) / 2e-5
        assert abs(found[place] - slope) < 1e-4
    support.assert_same_bits(sess.run(without), value)


def test_trained_weights_and_rows_move_together(graph, session, dynamic):
    """The gradient of the weights reads the rows as they were, while the step changes them."""
    table = make_table("table", 64)
    batch = np.random.RandomState(1).randint(0, 3000, (500, 20))
    scale = tf.compat.v1.get_variable("scale", initializer=np.ones([1, 20], np.float32), use_resource=False)
    weights = tf.tile(scale, [500, 1])
    vector = pooled(table, tf.constant(batch), "sum", weights=weights)
    loss = tf.reduce_sum(vector)
    rows_train = create_hash_optimizer(1.0).minimize(loss, var_list=[table.variable])
    of_scale = tf.gradients(loss, scale)[0]
    raw, sess = support.opened(table, session, True)
    sess.run(vector)
    for _ in range(5):
        rows = raw.rows(sess)
        expected = np.array([sum(rows[key].astype(np.float64).sum() for key in column) for column in batch.T])
        found, _ = sess.run([of_scale, rows_train])
        support.assert_rounding(found[0], expected, 4000, scale=np.abs(expected).max())


@pytest.mark.parametrize("what", ["unsorted", "outside", "splits", "descending splits", "short splits", "long splits",
                                  "no splits", "short weights", "no weights"])
def test_ids_and_weights_that_do_not_fit_fail_with_their_names(graph, session, dynamic, what):
    table = make_table("table")
    ids = tf.compat.v1.placeholder_with_default(tf.constant([3, 4, 5], tf.int64), [None])
    indices = tf.compat.v1.placeholder_with_default(tf.constant([[0, 0], [0, 1], [1, 0]], tf.int64), [None, 2])
    splits = tf.compat.v1.placeholder_with_default(tf.constant([0, 1, 3], tf.int64), [None])
    weights = tf.compat.v1.placeholder_with_default(tf.constant([1.0, 2.0, 3.0]), [None])
    sparse = tf.SparseTensor(indices, ids, [2, 2])
    ragged = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
    vector = pooled(table, ragged if "splits" in what else sparse, weights=weights)
    feeds = {"unsorted": ({indices: [[1, 0], [0, 1], [1, 1]]}, "must ascend"),
             "outside": ({indices: [[0, 0], [0, 1], [2, 0]]}, "outside of their shape"),
             "splits": ({splits: [1, 2, 3]}, "begin with 0"),
             "descending splits": ({splits: [0, 2, 1, 3]}, "ascend"),
             "short splits": ({splits: [0, 2]}, "last bag must end at the last id"),
             "long splits": ({splits: [0, 4]}, "must ascend from 0 to the ids"),
             "no splits": ({splits: []}, "begin with 0"),
             "short weights": ({weights: [1.0, 2.0]}, "weights must have the shape of the ids"),
             "no weights": ({weights: []}, "weights must have the shape of the ids")}
    sess = session()
    feed, message = feeds[what]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sess.run(vector, feed)
    assert sess.run(vector).shape == (2, DIM)


def test_arguments_out_of_their_range_are_refused_by_name(graph, dynamic):
    table = make_table("table")
    ids = tf.constant([[1, 2]], tf.int64)
    sparse = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    for arguments, message in (
            (dict(ids=tf.constant(3, tf.int64)), "scalar"),
            (dict(combiner="max"), "combiner"),
            (dict(weights=tf.constant([[1.0, 2.0, 3.0]])), "weights"),
            (dict(weights=tf.constant([[1, 2]])), "float type"),
            (dict(weights=sparse), "SparseTensor"),
            (dict(max_norm=0), "max_norm"),
            (dict(max_norm=-1.0), "max_norm"),
            (dict(max_norm=1.0, serving_default_value=np.ones(DIM, np.float32)), "max_norm"),
            (dict(ids=tf.ragged.constant([[[1]]], tf.int64)), "RaggedTensor"),
            (dict(ids=tf.SparseTensor([[0, 0, 0]], tf.constant([1], tf.int64), [1, 1, 1])), "rank 2")):
        with pytest.raises(ValueError, match=message):
            pooled(table, **dict({"ids": ids}, **arguments))
    for function in (embedding_lookup_sparse, safe_embedding_lookup_sparse):
        with pytest.raises(TypeError, match="SparseTensor"):
            function(table, ids, None)
        with pytest.raises(TypeError, match="SparseTensor"):
            function(table, sparse, tf.constant([1.0]))
