"""Rows with a greatest norm in unchanged models: scaled down where they are read, with TensorFlow's numbers."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from test_fused_updates import needed
from test_stock_groups import types_of

NORM = 0.5

both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


pytestmark = pytest.mark.usefixtures("v1")


@pytest.fixture
def special_rows(monkeypatch):
    """Rows of norm 0, of exactly the greatest norm, and far beyond it, among those that models start with."""
    plain = cases.start

    def start(shape=(cases.ROWS, cases.DIM), seed=5):
        rows = plain(shape, seed)
        if len(shape) == 2 and shape[1] >= 2:
            rows[:6] = 0.0
            rows[1, 0], rows[2, :2], rows[3, 1] = NORM, (0.3, 0.4), -NORM
            rows[4], rows[5] = 1e4, 1e-20
        return rows

    monkeypatch.setattr(cases, "start", start)


def bags_of(ids, at=0):
    """Sparse ids with bags that are empty, repeated ids, and ids below 0."""
    moved = tf.where((ids + at) % 4 == 0, tf.zeros_like(ids), ids)
    # An id of 0 is no entry; every third one is below 0 then.
    sparse = tf.sparse.from_dense(moved)
    values = tf.where(sparse.values % 7 == 3, -sparse.values, sparse.values)
    return tf.SparseTensor(sparse.indices, values % cases.ROWS * tf.sign(values), sparse.dense_shape)


def pooled(variable, sparse, combiner="mean", max_norm=NORM, weights=None):
    return tf.nn.safe_embedding_lookup_sparse([variable], sparse, weights, combiner=combiner, max_norm=max_norm)


def loss_of(vectors, labels):
    joined = tf.concat(vectors, 1)
    factors = tf.constant(np.cos(np.arange(joined.shape.as_list()[1])).astype(np.float32))
    return tf.reduce_mean(tf.square(tf.reduce_sum(joined * factors, 1) - labels))


def variables(count, use_resource=False, dims=(4, 16, 7)):
    v1 = tf.compat.v1
    return [v1.get_variable("w%d" % at, [cases.ROWS, dims[at % len(dims)]], use_resource=use_resource,
                            initializer=v1.random_uniform_initializer(-0.1, 0.1)) for at in range(count)]


def leftovers(train):
    """The ops of TensorFlow that scale rows down which a run still needs."""
    return sorted(op.name for op in cases.ops_of_run([train])
                  if op.type in ("SqrtGrad", "SparseSegmentMean", "SparseSegmentSum", "SparseSegmentSqrtN"))


@both
@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "momentum", "lazy_adam", "adam"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_pooled_lookup_and_its_update_are_one_op_each(special_rows, combiner, optimizer, use_resource):
    found = []

    def build(ids, labels):
        w, = variables(1, use_resource)
        loss = loss_of([pooled(w, bags_of(ids), combiner)], labels)
        made = tf.compat.v1.train.AdamOptimizer(0.01) if optimizer == "adam" else cases.optimizers()[optimizer]()
        found.append(made.minimize(loss))
        return loss, found[-1], [w]

    cases.expect_equal(build, ["w0"], 20)
    assert not leftovers(found[-1]) and types_of(found[-1])["MxRecUpdate"] == 1


@pytest.mark.long
@both
def test_lookups_with_a_norm_and_without_share_an_op(special_rows, use_resource):
    found = []

    def build(ids, labels):
        w = variables(3, use_resource)
        norms = (NORM, None, 0.2, 0.7)
        vectors = [pooled(w[at % 3], bags_of(ids, at), ("sum", "mean", "sqrtn", "sum")[at], norm)
                   for at, norm in enumerate(norms)]
        loss = loss_of(vectors, labels)
        found.append(cases.optimizers()["adagrad"]().minimize(loss))
        return loss, found[-1], w

    cases.expect_equal(build, ["w0", "w1", "w2"], 20)
    train = found[-1]
    with support.new_session(graph=train.graph) as session:
        session.run(tf.compat.v1.global_variables_initializer())
        ids = train.graph.get_tensor_by_name("Placeholder:0")
        session.run(train, {ids: [[1, 2, 3]], train.graph.get_tensor_by_name("Placeholder_1:0"): [0.0]})
    assert not leftovers(train)
    kinds = needed(train)
    (read,), (update,) = [op for kind, ops in kinds.items() if kind.startswith("MxRecRead") for op in ops], \
        kinds["MxRecUpdate"]
    assert (read.get_attr("N"), read.get_attr("L")) == (4, 4)
    assert [update.get_attr(name) for name in "NBL"] == [4, 4, 4]


@pytest.mark.long
def test_embedding_columns_of_an_input_layer(special_rows):
    found = []

    def build(ids, labels):
        features, columns = {}, []
        for at, norm in enumerate((NORM, None, 0.1)):
            features["f%d" % at] = bags_of(ids, at)
            column = tf.feature_column.categorical_column_with_identity("f%d" % at, cases.ROWS, default_value=0)
            columns.append(tf.feature_column.embedding_column(column, 4 * at + 4, "mean", max_norm=norm))
        made = {}
        vectors = tf.compat.v1.feature_column.input_layer(features, columns, cols_to_vars=made)
        loss = loss_of([vectors], labels)
        found.append(cases.optimizers()["adagrad"]().minimize(loss))
        return loss, found[-1], [variable for several in made.values() for variable in several]

    plans = cases.run(build, True, 2).plans
    cases.expect_equal(build, [name for name, plan in plans.items() if plan.converts], 20)
    assert len(plans) == 3 and not leftovers(found[-1])


def scaled_rows(ids, w):
    """TensorFlow's own form of a lookup in which other ops can read what is in between."""
    sparse = bags_of(ids)
    kept = tf.sparse.retain(sparse, sparse.values >= 0)
    filled, is_empty = tf.sparse.fill_empty_rows(kept, 0)
    keys, places = tf.unique(filled.values)
    clipped = tf.clip_by_norm(tf.nn.embedding_lookup(w, keys), NORM, axes=[1])
    vectors = tf.compat.v1.sparse_segment_mean(clipped, places, tf.cast(filled.indices[:, 0], tf.int32))
    shape = tf.stack([1, tf.shape(vectors)[1]])
    return clipped, tf.where(tf.tile(tf.reshape(is_empty, [-1, 1]), shape), tf.zeros_like(vectors), vectors)


@pytest.mark.parametrize("how", ["rows", "gradients", "other gradients", "value"])
def test_what_else_reads_rows_or_their_gradients_keeps_tensorflows_ops(how):
    found = []

    def build(ids, labels):
        w, = variables(1)
        clipped, vectors = scaled_rows(ids, w)
        loss = loss_of([vectors], labels)
        if how == "rows":
            loss += 0.01 * tf.reduce_sum(tf.square(clipped))
        optimizer = cases.optimizers()["adagrad"]()
        (grad, _), = optimizer.compute_gradients(loss, [w])
        seen = tf.no_op()
        if how == "gradients":
            seen = tf.reduce_sum(grad.values).op
        if how == "other gradients":
            grad = tf.IndexedSlices(grad.values * 0.5, grad.indices, grad.dense_shape)
        if how == "value":
            seen = tf.reduce_sum(clipped).op
        with tf.control_dependencies([seen]):
            found.append(optimizer.apply_gradients([(grad, w)]))
        return loss, found[-1], [w]

    cases.expect_equal(build, ["w0"], 20)
    assert leftovers(found[-1])


def test_the_norm_may_be_a_gradient_of_its_own_and_then_stays():
    """A norm that is computed, and one that is trained, are none of the engine's."""
    found = []

    def build(ids, labels):
        w, = variables(1)
        norm = tf.constant(0.25) + tf.reduce_mean(labels) * 0.0
        sparse = bags_of(ids)
        loss = loss_of([tf.nn.safe_embedding_lookup_sparse([w], sparse, combiner="sum", max_norm=norm)], labels)
        found.append(cases.optimizers()["adagrad"]().minimize(loss))
        return loss, found[-1], [w]

    cases.expect_equal(build, ["w0"], 20)
    assert leftovers(found[-1])


def test_two_updates_of_one_variable_keep_tensorflows_order(special_rows):
    """The second update is by the gradients of the rows as they were read, not of those that the first one left."""
    def build(ids, labels):
        w, = variables(1)
        loss = loss_of([pooled(w, bags_of(ids), "sum")], labels)
        other = loss_of([pooled(w, bags_of(ids, 1), "mean", 0.3)], labels)
        second_optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.3)
        second_pairs = second_optimizer.compute_gradients(other, [w])
        # Otherwise nothing says whether the second gather reads before the first update or after it.
        with tf.control_dependencies([pair[0].values for pair in second_pairs]):
            first = cases.optimizers()["sgd"]().minimize(loss)
        with tf.control_dependencies([first]):
            second = second_optimizer.apply_gradients(second_pairs)
        return loss + other, second, [w]

    tables = cases.run(build, True, 20)
    stock = cases.run(build, False, 20)
    if any(plan.converts for plan in tables.plans.values()):
        np.testing.assert_allclose(tables.rows["w0"], stock.rows["w0"], rtol=1e-4, atol=1e-4)
