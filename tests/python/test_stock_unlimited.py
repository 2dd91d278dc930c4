"""Ids without limits: hash buckets and sizes of identity columns fall away in the place of tables, and nowhere else."""

import numpy as np
import pytest

import stock_cases as cases
import support

BUCKETS = 16
STEPS = 200


@pytest.fixture
def v1(mx):
    unlimited(mx)
    return support.tf().compat.v1


def unlimited(mx, names=True, **more):
    from mx_rec.util.stock_tables import StockTables

    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=names, **more))


def batches(steps=STEPS, seed=0):
    """Strings (b, 3), more than BUCKETS, and labels."""
    random = np.random.RandomState(seed)
    for _ in range(steps):
        ids = random.zipf(1.3, [cases.BATCH, 3]) % 50
        yield ids.astype(str), np.sin(ids.sum(1)).astype(np.float32)


def hashed(strings, buckets):
    return support.tf().strings.to_hash_bucket_fast(strings, buckets)


def crossed(strings, buckets):
    column = support.tf().feature_column.crossed_column(["a", "b"], buckets)
    return strings, column


def look_up(how, w, strings, buckets):
    """(b, dim) out of a variable by strings (b, 3)."""
    tf = support.tf()
    ids = hashed(strings, buckets)
    if how == "gather":
        return tf.reduce_sum(tf.gather(w, ids), 1)
    if how == "modulo":
        wide = tf.strings.to_number(strings, tf.int64) * 1000003 + 5
        return tf.reduce_sum(tf.nn.embedding_lookup(w, tf.math.floormod(wide, buckets)), 1)
    if how == "reshaped":
        flat = tf.reshape(ids, [-1])
        return tf.reduce_sum(tf.reshape(tf.nn.embedding_lookup(w, flat), [-1, 3, w.shape[1]]), 1)
    sparse = tf.sparse.from_dense(ids + 1)
    sparse = tf.SparseTensor(sparse.indices, tf.reshape(ids, [-1]), sparse.dense_shape)
    if how == "sparse":
        return tf.nn.embedding_lookup_sparse(w, sparse, None, combiner="sqrtn")
    if how == "weighted":
        weights = tf.SparseTensor(sparse.indices, tf.cast(sparse.indices[:, 1] + 1, tf.float32), sparse.dense_shape)
        return tf.nn.safe_embedding_lookup_sparse(w, sparse, weights, combiner="mean")
    return tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner=how)


def large(how):
    """Buckets without collisions, few enough that a variable of them is made."""
    return 60000000 if how == "modulo" else 40000


def train(how, optimizer, is_converted, buckets, resource, steps=STEPS):
    """Losses of a model whose variable starts at zeros but for its labels."""
    tf = support.tf()
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        strings, labels = v1.placeholder(tf.string, [None, 3]), v1.placeholder(tf.float32, [None])
        w = v1.get_variable("w", [buckets, 2], initializer=v1.constant_initializer(0.05), use_resource=resource)
        net = tf.reduce_sum(look_up(how, w, strings, buckets), 1)
        loss = tf.reduce_mean(tf.square(net - labels))
        op = cases.optimizers()[optimizer]().minimize(loss)
        if is_converted:
            from mx_rec.stock.select import convert_graph

            plan, = convert_graph(graph, True)
            assert plan.converts and plan.ids.is_lifted and plan.ids.limits, plan
            assert "unlimited" in plan.table
        with support.new_session() as sess:
            sess.run(v1.global_variables_initializer())
            return np.array([sess.run([loss, op], {strings: text, labels: label})[0]
                             for text, label in batches(steps)])


def buckets_without_collisions(how):
    """A size by which a plain variable has a row for each id of the batches."""
    if how == "modulo":
        return 50021
    values = np.arange(50).astype(str)
    tf = support.tf()
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        for buckets in range(20000, 20050):
            if len(set(sess.run(hashed(tf.constant(values), buckets)))) == 50:
                return buckets
    raise AssertionError("no size is without collisions")


HOWS = ("gather", "modulo", "reshaped", "sparse", "weighted", "sum", "mean", "sqrtn")


@pytest.mark.parametrize("how, optimizer, resource", [
    (how, optimizer, place % 2 == 0) for place, (how, optimizer) in enumerate(
        [(how, "adagrad") for how in HOWS] + [("mean", name) for name in (
            "sgd", "momentum", "nesterov", "ftrl", "ftrl_shrinkage", "lazy_adam")])])
def test_the_numbers_are_those_of_a_variable_of_many_more_rows(v1, how, optimizer, resource):
    size = buckets_without_collisions(how)
    expected = train(how, optimizer, False, size, resource)
    got = train(how, optimizer, True, BUCKETS, resource)
    with_collisions = train(how, optimizer, False, BUCKETS, resource, 20)
    np.testing.assert_allclose(got, expected, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    assert np.abs(with_collisions - expected[:20]).max() > 1e-3
