"""Models that read zeros in the place of a variable's first row, for the id of padding, as tables:
`tf.concat([tf.zeros([1, dim]), v[1:, :]], 0)`."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables
from test_stock_groups import made_optimizer, types_of

v1 = tf.compat.v1

STEPS = 20

both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


@pytest.fixture(autouse=True)
def everything(mx):
    mx(stock_tables=StockTables(least_rows=1))


def variable(use_resource=False, name="w"):
    return v1.get_variable(name, [cases.ROWS, cases.DIM], use_resource=use_resource,
                           initializer=v1.random_uniform_initializer(-0.1, 0.1))


def padded(w, ids):
    """Ids of padding for a third of the places: 0, which others are as well."""
    return tf.where(tf.equal(ids % 3, 1), tf.zeros_like(ids), ids)


def zeros_first(w, is_short=False):
    return tf.concat((tf.zeros(shape=[1, cases.DIM]), w[1:] if is_short else w[1:, :]), 0)


def loss_of(vectors, labels):
    factors = tf.constant(np.linspace(-1, 1, cases.DIM), tf.float32)
    return tf.reduce_mean(tf.square(tf.reduce_sum(vectors * factors, -1) - labels))


def one_lookup(w, ids, labels):
    rows = tf.nn.embedding_lookup(zeros_first(w, True), padded(w, ids)) * np.sqrt(cases.DIM)
    return loss_of(tf.reduce_sum(rows, 1), labels)


def of_int32(w, ids, labels):
    return loss_of(tf.reduce_max(tf.gather(zeros_first(w), tf.cast(padded(w, ids), tf.int32)), 1), labels)


def sequence(w, ids, labels):
    """A sequence, and a positive and a negative item: the loss of SASRec. Some items are padding, too."""
    table = zeros_first(w)
    state = tf.reduce_sum(tf.nn.embedding_lookup(table, padded(w, ids)) * cases.DIM ** 0.5, 1)
    right, wrong = [tf.nn.embedding_lookup(table, padded(w, (ids[:, 0] + at) % cases.ROWS)) for at in (1, 2)]
    score = tf.reduce_sum(state * (right - wrong), 1)
    return tf.reduce_mean(tf.nn.softplus(-score) + tf.square(labels) * tf.reduce_sum(tf.square(state), 1))


def twice_the_same(w, ids, labels):
    table, ids = zeros_first(w), padded(w, ids)
    rows = tf.nn.embedding_lookup(table, ids) - 0.3 * tf.tanh(tf.nn.embedding_lookup(table, ids))
    return loss_of(tf.reduce_sum(rows, 1), labels)


def penalty_on_rows(w, ids, labels):
    rows = tf.nn.embedding_lookup(zeros_first(w), padded(w, ids))
    return loss_of(tf.reduce_sum(rows, 1), labels) + 0.01 * tf.nn.l2_loss(rows)


def made_twice(w, ids, labels):
    first = tf.nn.embedding_lookup(zeros_first(w), padded(w, ids))
    second = tf.nn.embedding_lookup(zeros_first(w, True), padded(w, ids + 5) % cases.ROWS)
    return loss_of(tf.reduce_mean(first, 1) + tf.reduce_sum(second, 1), labels)


def sasrec_adam():
    return v1.train.AdamOptimizer(0.02, beta2=0.98)


OPTIMIZERS = {"sgd": cases.optimizers()["sgd"], "adagrad": cases.optimizers()["adagrad"], "adam": sasrec_adam}


def build(loss, optimizer, use_resource, found=None):
    def make(ids, labels):
        w = variable(use_resource)
        value = loss(w, ids, labels)
        train = OPTIMIZERS[optimizer]().minimize(value)
        if found is not None:
            found.append(train)
        return value, train, [w]

    return make


@pytest.mark.parametrize("loss, optimizer, use_resource", support.by_turns(
    [one_lookup, of_int32, sequence, twice_the_same, penalty_on_rows, made_twice], sorted(OPTIMIZERS), [False, True]))
def test_the_numbers_are_those_of_the_variable(loss, optimizer, use_resource):
    found = []
    plan = cases.expect_equal(build(loss, optimizer, use_resource, found), ["w"], STEPS)["w"]
    assert "row 0 reads as zeros" in plan.reason
    if loss is not twice_the_same:
        # The update takes what the lookups have found.
        assert plan.gradients and types_of(found[-1])["MxRecUpdate"] == 1
    # Nothing reads all rows in a step.
    assert "MxRecFind" not in types_of(found[-1])


@both
def test_a_dense_gradient_that_is_clipped_keeps_the_variable(use_resource):
    def make(ids, labels):
        w = variable(use_resource)
        loss = sequence(w, ids, labels)
        optimizer = sasrec_adam()
        (grad, _), = optimizer.compute_gradients(loss, [w])
        return loss, optimizer.apply_gradients([(tf.clip_by_norm(grad, 0.1), w)]), [w]

    cases.expect_equal(make, [], STEPS)


def tied(w, ids, labels):
    table = zeros_first(w)
    state = tf.reduce_sum(tf.nn.embedding_lookup(table, padded(w, ids)), 1)
    return tf.reduce_mean(tf.square(tf.matmul(state, table, transpose_b=True)[:, 5] - labels))


def with_and_without(w, ids, labels):
    return sequence(w, ids, labels) + loss_of(tf.nn.embedding_lookup(w, ids[:, 1]), labels)


def two_rows_of_zeros(w, ids, labels):
    table = tf.concat([tf.zeros([2, cases.DIM]), w[2:, :]], 0)
    return loss_of(tf.nn.embedding_lookup(table, ids[:, 0]), labels)


def ones_first(w, ids, labels):
    table = tf.concat([tf.ones([1, cases.DIM]), w[1:, :]], 0)
    return loss_of(tf.nn.embedding_lookup(table, ids[:, 0]), labels)


def zeros_in_front(w, ids, labels):
    """One row more than the variable: ids are moved."""
    table = tf.concat([tf.zeros([1, cases.DIM]), w], 0)
    return loss_of(tf.nn.embedding_lookup(table, ids[:, 0]), labels)


def zeros_behind(w, ids, labels):
    table = tf.concat([w[1:, :], tf.zeros([1, cases.DIM])], 0)
    return loss_of(tf.nn.embedding_lookup(table, ids[:, 0]), labels)


def part_is_read(w, ids, labels):
    rest = w[1:, :]
    table = tf.concat([tf.zeros([1, cases.DIM]), rest], 0)
    return loss_of(tf.nn.embedding_lookup(table, ids[:, 0]), labels) + 0.01 * tf.reduce_mean(tf.abs(rest))


def branch(w, ids, labels):
    table = zeros_first(w)
    return loss_of(tf.cond(ids[0, 0] % 2 > 0, lambda: tf.nn.embedding_lookup(table, ids[:, 0]),
                           lambda: tf.nn.embedding_lookup(table, ids[:, 1])), labels)


@pytest.mark.parametrize("loss", [tied, with_and_without, two_rows_of_zeros, ones_first, zeros_in_front, zeros_behind,
                                  part_is_read, branch])
@both
def test_what_is_anything_else_stays(loss, use_resource):
    cases.expect_equal(build(loss, "adam", use_resource), [], 6)


@pytest.mark.parametrize("optimizer", ["momentum", "ftrl", "rmsprop"])
def test_an_optimizer_that_changes_rows_without_a_gradient_keeps_the_variable(optimizer):
    def make(ids, labels):
        w = variable()
        loss = sequence(w, ids, labels)
        return loss, made_optimizer(optimizer).minimize(loss), [w]

    cases.expect_equal(make, [], STEPS)


@pytest.mark.parametrize("settings, text", [
    (dict(access_threshold=2), "reads zeros for its first row, which tables with an access_threshold do not"),
    (dict(unlimited_ids=[".*"]), "keep their limits: it is also read as a whole")])
def test_what_tables_of_such_rows_do_not_have_is_said(settings, text):
    ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
    build(sequence, "adam", False)(ids, labels)
    from mx_rec.stock.analysis import plan_variables

    plan = plan_variables(v1.get_default_graph().as_graph_def(), StockTables(least_rows=1, **settings), True)[0]
    assert text in plan.reason


@both
def test_a_penalty_on_all_rows_is_that_of_the_rows_that_are_no_padding(mx, use_resource):
    """TensorFlow's penalty of the batch's rows, of which the first is none."""
    from mx_rec.util import initialize

    initialize.terminate_config_initializer()
    mx(stock_tables=StockTables(least_rows=1, l2="rows of the batch"))

    def make(is_written):
        def built(ids, labels):
            w = variable(use_resource)
            rows = w
            if is_written:
                keys = tf.unique(tf.reshape(padded(w, ids), [-1]))[0]
                rows = tf.gather(w, tf.boolean_mask(keys, keys > 0))
            loss = one_lookup(w, ids, labels) + 0.1 * tf.nn.l2_loss(rows)
            return loss, v1.train.GradientDescentOptimizer(0.05).minimize(loss), [w]
        return built

    written, tables = cases.run(make(True), False, STEPS), cases.run(make(False), True, STEPS)
    assert tables.plans["w"].converts
    np.testing.assert_allclose(tables.losses, written.losses, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    np.testing.assert_allclose(tables.rows["w"], written.rows["w"], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@both
def test_runs_beside_the_training_and_goes_on_from_checkpoints_of_either_kind(tmp_path, use_resource):
    """Scores of items that are only fetched, the value with zeros, a batch of padding, an empty one, and four steps
    from a checkpoint behind four before it."""
    def steps(is_converted, path, begins):
        with tf.Graph().as_default() as graph:
            ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
            w = variable(use_resource)
            train = sasrec_adam().minimize(sequence(w, ids, labels))
            table = zeros_first(w)
            asked = tf.nn.embedding_lookup(table, tf.range(12))
            if is_converted:
                assert [plan.converts for plan in convert_graph(graph, True) if plan.name == "w"] == [True]
            later = tf.nn.embedding_lookup(table, tf.constant([0, 3]))
            batches = list(cases.batches(8))
            batches[1] = np.zeros([5, 3], np.int64), np.ones(5, np.float32)
            batches[6] = np.zeros([5, 3], np.int64), np.ones(5, np.float32)
            with support.new_session(graph=graph) as session:
                cases.train_half(session, path, begins, w, lambda batch, label: session.run(
                    train, {ids: batch, labels: label}), batches)
                return [cases.value_of(session, w)] + session.run([asked, table, later])

    found = cases.both_halves(tmp_path, steps)
    assert not found[1][0].any() and found[0][0].any()


@both
def test_ids_that_the_variable_does_not_have_are_errors_and_the_first_row_stays(use_resource):
    ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
    _, train, (w,) = build(one_lookup, "adagrad", use_resource)(ids, labels)
    with support.new_session() as session:
        session.run(v1.global_variables_initializer())
        cases.set_variable(session, w, cases.start())
        session.run(train, {ids: np.zeros([2, 3]), labels: [1.0, 2.0]})
        session.run(train, {ids: np.zeros([0, 3]), labels: []})
        np.testing.assert_array_equal(cases.value_of(session, w), cases.start())
        for wrong in (-1, cases.ROWS + 2):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"= {} is not in \[0, 60\)".format(wrong)):
                session.run(train, {ids: [[2, 3, wrong]], labels: [1.0]})
        np.testing.assert_array_equal(cases.value_of(session, w), cases.start())
