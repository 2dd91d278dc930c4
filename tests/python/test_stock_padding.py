"""Models that set the row of padding ids in each step before they look rows up, on tables."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

PADDING = cases.ROWS - 1
STEPS = 12

both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


def adam():
    return tf.compat.v1.train.AdamOptimizer(0.02)


def padded(ids):
    """Ids of which some are padding; PADDING itself is no other id."""
    ids = tf.minimum(ids, PADDING - 1)
    return tf.where(tf.equal(ids % 3, 1), tf.fill(tf.shape(ids), tf.constant(PADDING, tf.int64)), ids)


def zeroed(w, ids=PADDING):
    return v1.scatter_update(w, ids, v1.zeros(np.shape(ids) + (cases.DIM,)))


def sequence(w, ids):
    """A bag of rows behind the update of the padding, and an item beside it."""
    with tf.control_dependencies([zeroed(w)]):
        rows = tf.nn.embedding_lookup(w, padded(ids))
    return tf.reduce_sum(rows, 1) + tf.nn.embedding_lookup(w, tf.minimum(ids[:, 0], PADDING - 1))


def features(w, ids):
    """Two bags of one variable, each with a padding of its own."""
    found = []
    for padding in (PADDING, PADDING - 1):
        with tf.control_dependencies([zeroed(w, [padding])]):
            rows = tf.nn.embedding_lookup(w, tf.where(
                tf.equal(ids % 2, 0), tf.fill(tf.shape(ids), tf.constant(padding, tf.int64)), ids % 40))
        found.append(tf.reduce_sum(rows, 1))
    return found[0] - 0.5 * found[1]


def pooled(w, ids):
    sparse = tf.sparse.from_dense(padded(ids) + 0)
    with tf.control_dependencies([zeroed(w)]):
        return tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner="mean")


def build(optimizer, rows_of, use_resource, penalty=None):
    def make(ids, labels):
        variables = [v1.get_variable(name, [cases.ROWS, cases.DIM], use_resource=use_resource,
                                     initializer=v1.random_uniform_initializer(-0.1, 0.1)) for name in ("w", "v")]
        # The second one is looked up as always: what is joined must not wait for less.
        rows = rows_of(variables[0], ids) + tf.reduce_sum(tf.nn.embedding_lookup(variables[1], ids), 1)
        project = tf.constant(np.linspace(-1, 1, cases.DIM), tf.float32)
        loss = tf.reduce_mean(tf.square(tf.tensordot(rows, project, 1) - labels))
        return loss, optimizer().minimize(loss), variables

    return make


@both
@pytest.mark.parametrize("rows_of", [sequence, features, pooled])
@pytest.mark.parametrize("name", ["adagrad", "adam", "ftrl"])
def test_the_numbers_are_those_of_the_variable(v1, name, rows_of, use_resource):
    optimizer = adam if name == "adam" else cases.optimizers()[name]
    plans = cases.expect_equal(build(optimizer, rows_of, use_resource), ["v", "w"], STEPS)
    assert "rows set by " in plans["w"].reason and "rows set by " not in plans["v"].reason


@both
def test_a_graph_that_evaluates_sets_the_row_before_its_lookup(v1, graph, use_resource):
    w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource, initializer=v1.ones_initializer())
    with tf.control_dependencies([zeroed(w)]):
        rows = tf.nn.embedding_lookup(w, tf.constant([PADDING, 3]))
    plan, = convert_graph(graph, False)
    assert plan.converts, plan
    support.keep_variables(graph)
    with support.started(support.new_session()) as session:
        for _ in range(2):
            np.testing.assert_array_equal(session.run(rows), [[0.0] * cases.DIM, [1.0] * cases.DIM])
            session.run(zeroed(w))
        np.testing.assert_array_equal(session.run(w)[PADDING - 1:], [[1.0] * cases.DIM, [0.0] * cases.DIM])


def test_each_run_sets_it_anew(v1, graph):
    """An assignment between two steps is undone by the next one, as in TensorFlow."""
    ids = v1.placeholder(tf.int64, [None])
    w = v1.get_variable("w", [cases.ROWS, cases.DIM], initializer=v1.ones_initializer())
    with tf.control_dependencies([zeroed(w)]):
        rows = tf.nn.embedding_lookup(w, ids)
    train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(tf.square(rows - 2.0)))
    plan, = convert_graph(graph, True)
    assert plan.converts, plan
    with support.started(support.new_session()) as session:
        for _ in range(3):
            found = session.run([rows, train], {ids: [PADDING, PADDING, 5]})[0]
            np.testing.assert_array_equal(found[:2], np.zeros([2, cases.DIM]))
            assert np.abs(session.run(w)[PADDING]).min() > 0.1
            session.run(v1.scatter_update(w, [PADDING], [[7.0] * cases.DIM]))


def test_an_access_threshold_gives_the_padding_its_row(mx):
    """A row that is set counts as admitted; with a threshold of 1 all numbers are those of the variable."""
    mx(stock_tables=StockTables(least_rows=1, access_threshold=1))
    cases.expect_equal(build(cases.optimizers()["adagrad"], sequence, False), ["v", "w"], STEPS)


def test_ids_of_a_variable_whose_rows_are_set_keep_their_limits(mx, graph):
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=True))
    w = v1.get_variable("w", [cases.ROWS, cases.DIM])
    with tf.control_dependencies([zeroed(w)]):
        rows = tf.nn.embedding_lookup(w, tf.strings.to_hash_bucket_fast(tf.constant(["a"]), PADDING))
    v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows))
    plan, = convert_graph(graph, True)
    assert plan.converts and not plan.ids.is_lifted and "sets rows of it" in plan.reason, plan


def test_a_variable_that_is_read_from_what_sets_it_stays(v1, graph):
    w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=False)
    rows = tf.gather(zeroed(w), [1, 2])
    v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [3])) * tf.stop_gradient(tf.reduce_sum(rows)))
    plan = next(plan for plan in convert_graph(graph, True) if plan.name == "w")
    assert not plan.converts and "reads or changes it as a whole" in plan.reason, plan
