"""Variables with a penalty on all of their rows, as tables whose penalty is that of the batch's rows; and gradients
that are made dense. The other side of each comparison is TensorFlow with the penalty written for those rows."""


import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.graph.__main__ import main
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

BATCH_ROWS = "rows of the batch"
STEPS = 12


def options(**settings):
    return StockTables(**dict(dict(least_rows=1, l2=BATCH_ROWS), **settings))


def variable(name="w", **settings):
    settings.setdefault("initializer", v1.random_uniform_initializer(-0.1, 0.1))
    return v1.get_variable(name, [cases.ROWS, cases.DIM], **settings)


def loss_of(rows, labels):
    project = tf.constant(np.linspace(-1, 1, 3 * cases.DIM), tf.float32)
    return tf.reduce_mean(tf.square(tf.tensordot(tf.reshape(rows, [-1, 3 * cases.DIM]), project, 1) - labels))


def distinct(w, *ids):
    return tf.gather(w, tf.unique(tf.concat([tf.reshape(one, [-1]) for one in ids], 0))[0])


def half(value):
    return 0.1 * tf.nn.l2_loss(value)


def contrib(value):
    return tf.contrib.layers.l2_regularizer(0.1)(value)


def keras(value):
    return tf.keras.regularizers.l2(0.05)(value)


def twice(value):
    """Two terms, one with a scale of the graph."""
    return keras(value) + tf.exp(-2.0 * tf.reduce_mean(tf.constant([1.0, 1.2]))) * tf.nn.l2_loss(value)


def build(optimizer, penalty, use_resource=False, is_written=False):
    def make(ids, labels):
        w = variable(use_resource=use_resource)
        lookup = tf.nn.embedding_lookup(w, ids)
        loss = loss_of(lookup, labels) + penalty(distinct(w, ids) if is_written else w)
        return loss, optimizer().minimize(loss), [w]

    return make


def expect_as_written(make, steps=STEPS, variables=1):
    """Compares tables with TensorFlow, where the penalty is written for the rows of the batch.

    Args:
        make: Takes whether it is so written, returns what `cases.run` builds.
    """
    written, tables = cases.run(make(True), False, steps), cases.run(make(False), True, steps)
    plans = [plan for plan in tables.plans.values() if plan.converts]
    assert len(plans) == variables, tables.plans
    np.testing.assert_allclose(tables.losses, written.losses, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    for name, rows in written.rows.items():
        np.testing.assert_allclose(tables.rows[name], rows, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    return tables.plans


def adam():
    return tf.compat.v1.train.AdamOptimizer(0.02)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adagrad", "ftrl", "ftrl_shrinkage", "rmsprop",
                                  "centered_rmsprop", "adam"])
def test_value_and_gradient_are_those_of_the_rows_of_the_batch(mx, name, use_resource):
    mx(stock_tables=options())
    optimizer = adam if name == "adam" else cases.optimizers()[name]
    plans = expect_as_written(lambda is_written: build(optimizer, half, use_resource, is_written))
    assert "its penalty is that of the rows of a batch, as l2 asks" in plans["w"].reason


def absolute(value):
    """As recommenders writes it, with squares beside it."""
    l1 = tf.zeros([1]) + 0.03 * tf.norm(value, ord=1) + 0.01 * tf.reduce_sum(tf.abs(value))
    return tf.reduce_sum(l1 + half(value))


def both(value):
    return tf.keras.regularizers.l1_l2(0.02, 0.05)(value)


@pytest.mark.parametrize("penalty", [contrib, keras, twice, absolute, both])
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_forms_of_penalties(mx, penalty, use_resource):
    mx(stock_tables=options())
    expect_as_written(lambda is_written: build(cases.optimizers()["adagrad"], penalty, use_resource, is_written))


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_where_each_batch_has_all_rows_the_numbers_are_those_of_tensorflow(mx, name):
    """Each of them in every batch, some twice."""
    mx(stock_tables=options())
    optimizer = adam if name == "adam" else cases.optimizers()[name]

    def make(ids, labels):
        w = variable()
        every = tf.concat([tf.reshape(ids, [-1]), tf.range(cases.ROWS, dtype=tf.int64)], 0)
        rows = tf.nn.embedding_lookup(w, every)
        loss = loss_of(rows[:3 * cases.BATCH], labels) + twice(w) + tf.reduce_mean(tf.square(rows[-cases.ROWS:] - 0.1))
        return loss, optimizer().minimize(loss), [w]

    cases.expect_equal(make, ["w"], STEPS)


def numpy_sgd(w, batches, scale, rate):
    """The oracle without TensorFlow: mean over the batch of (sum of its rows - label)^2 / 2, and the penalty."""
    w, losses = w.astype(np.float64), []
    for ids, labels in batches:
        error = w[ids].sum((1, 2)) - labels
        rows = np.unique(ids)
        losses.append((error ** 2).mean() / 2 + scale / 2 * (w[rows] ** 2).sum())
        grad = np.zeros_like(w)
        np.add.at(grad, ids, np.broadcast_to(error[:, None, None] / len(ids), ids.shape + (1,)))
        grad[rows] += scale * w[rows]
        w = w - rate * grad
    return losses, w


def test_numbers_are_those_of_numpy(mx):
    mx(stock_tables=options())

    def make(ids, labels):
        w = variable()
        sums = tf.reduce_sum(tf.nn.embedding_lookup(w, ids), [1, 2])
        loss = tf.reduce_mean(tf.square(sums - labels)) / 2 + 0.3 * tf.nn.l2_loss(w)
        return loss, tf.compat.v1.train.GradientDescentOptimizer(0.05).minimize(loss), [w]

    tables = cases.run(make, True, STEPS)
    losses, rows = numpy_sgd(cases.start(seed=0), cases.batches(STEPS), 0.3, 0.05)
    np.testing.assert_allclose(tables.losses, losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tables.rows["w"], rows, rtol=1e-5, atol=1e-6)


def test_two_tables_of_one_optimizer_with_several_lookups_and_the_collection(mx):
    """A row that two lookups give counts once; penalties come from the collection; the rate is a tensor that decays."""
    mx(stock_tables=options())

    def make(is_written):
        def of(ids, labels):
            regularizer = None if is_written else tf.contrib.layers.l2_regularizer(0.1)
            w, v = [variable(name, regularizer=regularizer) for name in "wv"]
            rows = [tf.nn.embedding_lookup(w, ids), tf.nn.embedding_lookup(w, (ids + 1) % cases.ROWS),
                    tf.nn.embedding_lookup(v, ids[:, :1])]
            loss = loss_of(rows[0] - 0.5 * rows[1] + rows[2], labels)
            if is_written:
                loss += 0.1 * tf.nn.l2_loss(distinct(w, ids, (ids + 1) % cases.ROWS))
                loss += 0.1 * tf.nn.l2_loss(distinct(v, ids[:, :1]))
            else:
                terms = v1.get_collection(v1.GraphKeys.REGULARIZATION_LOSSES)
                assert len(terms) == 2
                loss += tf.add_n(terms)
            step = v1.train.get_or_create_global_step()
            rate = v1.train.exponential_decay(0.05, step, 5, 0.5)
            return loss, v1.train.AdamOptimizer(rate).minimize(loss, global_step=step), [w, v]

        return of

    expect_as_written(make, variables=2)


def test_a_penalty_in_the_mean_over_examples_and_a_scale_that_is_fed(mx):
    """The number by which rows decay is what arithmetic on the batch gives."""
    mx(stock_tables=options())

    def make(is_written):
        def of(ids, labels):
            w = variable()
            scale = v1.placeholder_with_default(tf.constant(0.07), [])
            unknown = v1.placeholder_with_default(tf.constant(0.5), None)
            value = distinct(w, ids) if is_written else w
            sums = tf.reduce_sum(tf.nn.embedding_lookup(w, ids), [1, 2])
            each = tf.square(sums - labels) + (scale * tf.nn.l2_loss(value) + unknown * keras(value))
            loss = tf.reduce_mean(each)
            return loss, v1.train.AdagradOptimizer(0.05).minimize(loss), [w]

        return of

    expect_as_written(make)


@pytest.mark.long
def test_sparse_lookups_and_parts_of_a_partitioned_variable(mx):
    """Bags of distinct ids; in each part the rows of that part. Bags without ids have the row 0, as in TensorFlow."""
    mx(stock_tables=options())

    def make(is_written):
        def of(ids, labels):
            sparse = tf.sparse.from_dense(tf.where(ids % 3 == 0, tf.zeros_like(ids), ids))
            w = variable(partitioner=v1.fixed_size_partitioner(2), regularizer=None if is_written else half)
            v = variable("v", regularizer=None if is_written else half)
            rows = tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner="mean", partition_strategy="div") \
                + tf.nn.safe_embedding_lookup_sparse(v, sparse, combiner="sum")
            loss = loss_of(tf.tile(rows, [1, 3]), labels)
            if is_written:
                is_empty = tf.reduce_all(tf.equal(tf.sparse.to_dense(sparse), 0), 1)
                used = tf.concat([sparse.values, tf.boolean_mask(tf.zeros_like(ids[:, 0]), is_empty)], 0)
                middle = cases.ROWS // 2
                first, second = tf.boolean_mask(used, used < middle), tf.boolean_mask(used, used >= middle)
                parts = list(w)
                loss += half(distinct(v, used)) + half(distinct(parts[0], first))
                loss += half(distinct(parts[1], second - middle))
            else:
                loss += tf.add_n(v1.get_collection(v1.GraphKeys.REGULARIZATION_LOSSES))
            return loss, v1.train.AdagradOptimizer(0.05).minimize(loss), list(w) + [v]

        return of

    expect_as_written(make, variables=3)


@pytest.fixture
def model(mx, graph):
    """A graph with a penalty, its conversion, and a session that has begun: (ids, w, loss, penalty, train, session)."""
    mx(stock_tables=options())
    ids = v1.placeholder(tf.int64, [None])
    w = variable()
    penalty = 0.5 * tf.nn.l2_loss(w)
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, ids) - 1.0)) + penalty
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    seen = tf.nn.l2_loss(w)
    v1.summary.scalar("norm", seen)
    shown = v1.summary.merge_all()
    support.keep_variables(graph)
    assert [plan.converts for plan in convert_graph(graph, True)] == [True]
    with support.started(support.new_session()) as session:
        cases.set_variable(session, w, cases.start(seed=3))
        yield ids, w, loss, penalty, train, session, seen, shown


def test_the_penalty_alone_is_that_of_the_batch_that_is_fed_and_an_error_without_one(model):
    ids, _, _, penalty, _, session, seen, shown = model
    rows = cases.start(seed=3)
    np.testing.assert_allclose(session.run(penalty, {ids: [7, 3, 7]}), 0.25 * (rows[[3, 7]] ** 2).sum(), rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="feed"):
        session.run(penalty)
    # A norm that is only shown is that of all rows.
    np.testing.assert_allclose(session.run(seen), 0.5 * (rows ** 2).sum(), rtol=1e-6)
    summary = tf.compat.v1.Summary.FromString(session.run(shown))
    np.testing.assert_allclose(summary.value[0].simple_value, 0.5 * (rows ** 2).sum(), rtol=1e-6)


def test_an_empty_batch_has_no_penalty_and_changes_nothing(model):
    ids, w, loss, _, train, session, _, _ = model
    assert session.run([loss, train], {ids: []})[0] == 0.0
    np.testing.assert_array_equal(cases.value_of(session, w), cases.start(seed=3))


def test_the_value_is_that_before_the_step(model):
    ids, w, _, penalty, train, session, _, _ = model
    for _ in range(20):
        before = cases.value_of(session, w)[[3, 7]]
        found = session.run([penalty, train], {ids: [3, 7, 3]})[0]
        np.testing.assert_allclose(found, 0.25 * (before ** 2).sum(), rtol=1e-6)


def test_feeds_that_would_have_no_effect_are_refused(model, graph):
    """The dense gradient, and what it is the sum of; the penalty itself may be fed, as in TensorFlow."""
    ids, w, loss, _, train, session, _, _ = model
    before = cases.value_of(session, w)
    for name in ("gradients/AddN:0", "gradients/L2Loss_grad/mul:0", "gradients/AddN/inputs_1:0", "w/read:0"):
        with pytest.raises(ValueError, match="may not be fed|not be fed"):
            session.run(train, {ids: [1], name: np.zeros([cases.ROWS, cases.DIM])})
    np.testing.assert_array_equal(cases.value_of(session, w), before)
    penalty = loss.op.inputs[1]
    found = session.run([loss, train], {ids: [1], penalty: 7.0})[0]
    np.testing.assert_allclose(found, ((before[1] - 1) ** 2).sum() + 7, rtol=1e-6)


def test_a_restored_training_goes_on_with_the_same_numbers(model, tmp_path):
    ids, w, loss, _, train, session, _, _ = model
    saver = tf.compat.v1.train.Saver()

    def steps():
        return [session.run([loss, train], {ids: [at % 7, at % 5, 50]})[0] for at in range(6)]

    steps()
    path = saver.save(session, str(tmp_path / "model"))
    first, rows = steps(), cases.value_of(session, w)
    saver.restore(session, path)
    np.testing.assert_array_equal(steps(), first)
    np.testing.assert_array_equal(cases.value_of(session, w), rows)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_graph_that_evaluates_has_the_penalty_of_its_batch_and_makes_no_rows(mx, graph, is_asked):
    mx(stock_tables=options() if is_asked else options(l2="all rows"))
    ids = v1.placeholder(tf.int64, [None])
    w = variable()
    shown = tf.nn.l2_loss(w) * 1.0
    total = tf.reduce_sum(tf.nn.embedding_lookup(w, ids)) + half(w) + keras(w)
    support.keep_variables(graph)
    convert_graph(graph, False)
    table = cases.table_of(w).table
    with support.started(support.new_session()) as session:
        rows = session.run(w)
        counted = rows[[2, 5]] if is_asked else rows
        wanted = rows[[5, 2, 5]].sum() + 0.1 * (counted ** 2).sum()
        np.testing.assert_allclose(session.run(total, {ids: [5, 2, 5]}), wanted, rtol=1e-5)
        np.testing.assert_allclose(session.run(shown), 0.5 * (rows ** 2).sum(), rtol=1e-5)
        assert session.run(table.size()) == 0 if tf.is_tensor(table.size()) else table.size() == 0


def test_by_default_it_stays_and_the_log_names_the_setting(v1, caplog):
    tables = cases.run(build(cases.optimizers()["adagrad"], half), True, 3)
    assert "StockTables(l2='rows of the batch')" in tables.plans["w"].reason and not tables.plans["w"].converts
    written = cases.run(build(cases.optimizers()["adagrad"], half), False, 3)
    np.testing.assert_array_equal(tables.losses, written.losses)
    line = next(one for one in caplog.messages if one.startswith("the variable w of shape"))
    assert "the penalty on all of its rows whose gradient is gradients/L2Loss_grad/mul" in line
    assert "StockTables(l2='rows of the batch')" in line


def refused(loss, use_resource):
    """The reason why a variable with a loss stays, although it is asked for."""
    w = variable(use_resource=use_resource)
    loss(v1, w)
    return next(plan for plan in convert_graph(v1.get_default_graph(), True) if plan.name == "w")


def lookup(v1, w, ids=(1, 2)):
    return v1.reduce_sum(v1.square(v1.gather(w, list(ids))))


def train(v1, loss, optimizer=None):
    return (optimizer or v1.train.AdagradOptimizer(0.1)).minimize(loss)


def mean(v1, w):
    train(v1, lookup(v1, w) + v1.reduce_mean(v1.square(w)))


def norm(v1, w):
    train(v1, lookup(v1, w) + v1.norm(w))


def weighted(v1, w):
    train(v1, lookup(v1, w) + v1.reduce_sum(v1.square(w) * v1.range(4.0)))


def fourth_power(v1, w):
    train(v1, lookup(v1, w) + v1.square(v1.reduce_sum(v1.square(v1.square(w)))))


def by_hand(v1, w):
    """Decay by another number for each column."""
    optimizer = v1.train.AdagradOptimizer(0.1)
    (grad, _), = optimizer.compute_gradients(lookup(v1, w), [w])
    optimizer.apply_gradients([(v1.convert_to_tensor(grad) + w * v1.range(4.0), w)])


def seen_gradient(v1, w):
    optimizer = v1.train.AdagradOptimizer(0.1)
    (grad, _), = optimizer.compute_gradients(lookup(v1, w) + v1.nn.l2_loss(w), [w])
    v1.summary.histogram("gradient", grad)
    optimizer.apply_gradients([(grad, w)])


def clipped_gradient(v1, w):
    optimizer = v1.train.AdagradOptimizer(0.1)
    (grad, _), = optimizer.compute_gradients(lookup(v1, w) + v1.nn.l2_loss(w), [w])
    optimizer.apply_gradients([(v1.clip_by_norm(grad, 1.0), w)])


def other_lookups(v1, w):
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train(v1, lookup(v1, w) + v1.nn.l2_loss(w), optimizer)
    train(v1, lookup(v1, w, [3]) + v1.nn.l2_loss(w), optimizer)


def after_the_step(v1, w):
    """The value is to be that behind the step."""
    done = train(v1, lookup(v1, w))
    with v1.control_dependencies([done]):
        loss = v1.nn.l2_loss(v1.identity(w)) + lookup(v1, w, [3])
    train(v1, loss)


def in_a_branch(v1, w):
    train(v1, lookup(v1, w) + v1.cond(v1.constant(True), lambda: v1.nn.l2_loss(w), lambda: v1.constant(0.0)))


def in_a_loop(v1, w):
    total = v1.while_loop(lambda at, _: at < 2, lambda at, sums: (at + 1, sums + v1.nn.l2_loss(w)), [0, 0.0])[1]
    train(v1, lookup(v1, w) + total)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("loss, reason", [
    (in_a_branch, ""), (in_a_loop, ""), (mean, "its gradient is dense"), (norm, "its gradient is dense"), (weighted, "its gradient is dense"),
    (fourth_power, "its gradient is dense"), (by_hand, "its gradient is dense"),
    (seen_gradient, "its gradient is dense"), (clipped_gradient, "its gradient is dense"),
    (other_lookups, "not for the same lookups in all of its updates"), (after_the_step, "its gradient is dense")])
def test_other_penalties_and_readers_of_the_gradient_leave_it_to_tensorflow(mx, graph, loss, reason, use_resource):
    mx(stock_tables=options())
    plan = refused(loss, use_resource)
    assert not plan.converts and reason in plan.reason, plan.reason


def test_decay_by_hand_is_that_of_the_rows_of_the_batch(mx):
    """No penalty has a value here."""
    mx(stock_tables=options())

    def make(is_written):
        def of(ids, labels):
            w = variable()
            loss = loss_of(tf.nn.embedding_lookup(w, ids), labels)
            optimizer = tf.compat.v1.train.AdagradOptimizer(0.1)
            (grad, _), = optimizer.compute_gradients(loss, [w])
            if is_written:
                rows = tf.unique(tf.reshape(ids, [-1]))[0]
                grad = tf.IndexedSlices(tf.concat([grad.values, 0.2 * tf.gather(w, rows)], 0),
                                        tf.concat([grad.indices, rows], 0), grad.dense_shape)
            else:
                grad = tf.convert_to_tensor(grad) + 0.2 * w
            return loss, optimizer.apply_gradients([(grad, w)]), [w]

        return of

    expect_as_written(make)


def test_with_an_access_threshold_rows_that_are_not_there_have_no_penalty(mx, graph):
    mx(stock_tables=options(access_threshold=2))
    ids = v1.placeholder(tf.int64, [None])
    w = variable(initializer=v1.ones_initializer())
    penalty = tf.nn.l2_loss(w)
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, ids))) + penalty
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    convert_graph(graph, True)
    with support.started(support.new_session()) as session:
        found = [session.run([loss, penalty, train_op], {ids: batch})[:2] for batch in ([1, 2], [1, 3], [1], [1, 1])]
    # 1 has its row from its second occurrence on: w = 1, then w - 0.1 (2 w + w), and twice that gradient.
    np.testing.assert_allclose(found, [(0, 0), (4 + 2, 2), (6 * 0.49, 2 * 0.49), (10 * 0.2401, 2 * 0.2401)], rtol=1e-5)


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_rows_on_disk_have_their_penalty(mx, tmp_path, name):
    """A batch has fewer distinct rows than memory holds."""
    mx(stock_tables=options(memory_rows=50, ssd_data_path=[str(tmp_path)]))
    optimizer = adam if name == "adam" else cases.optimizers()[name]

    def make(is_written):
        def of(ids, labels):
            w = variable()
            some = ids[:12]
            loss = loss_of(tf.nn.embedding_lookup(w, some), labels[:12])
            loss += half(distinct(w, some) if is_written else w)
            return loss, optimizer().minimize(loss), [w]

        return of

    expect_as_written(make)


def dense(optimizer, use_resource=False, clip=None, lookups=1):
    """Gradients made dense before they are applied."""
    def make(ids, labels):
        w = variable(use_resource=use_resource)
        rows = sum(tf.nn.embedding_lookup(w, (ids + at) % cases.ROWS) for at in range(lookups))
        loss = loss_of(rows, labels)
        opt = optimizer()
        pairs = [(tf.convert_to_tensor(grad), one) for grad, one in opt.compute_gradients(loss)]
        return loss, opt.apply_gradients(pairs), [w]

    return make


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("lookups", [1, 2])
def test_gradients_made_dense_give_tensorflows_numbers(v1, name, use_resource, lookups):
    optimizer = adam if name == "adam" else cases.optimizers()[name]
    plans = cases.expect_equal(dense(optimizer, use_resource, lookups=lookups), ["w"], 30)
    assert "dense" not in plans["w"].reason


def test_a_dense_adam_is_lazy_if_asked_and_the_plan_says_so(mx):
    mx(stock_tables=options(lazy_adam=True))
    tables = cases.run(dense(adam), True, STEPS)
    assert "as lazy_adam asks" in tables.plans["w"].reason and tables.plans["w"].kind == "lazy_adam"
    lazy = cases.run(sparse(cases.optimizers()["lazy_adam"]), False, STEPS)
    np.testing.assert_allclose(tables.losses, lazy.losses, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


def sparse(optimizer):
    def make(ids, labels):
        w = variable()
        loss = loss_of(tf.nn.embedding_lookup(w, ids), labels)
        return loss, optimizer().minimize(loss), [w]

    return make


@pytest.mark.parametrize("name", ["momentum", "nesterov", "ftrl", "rmsprop", "centered_rmsprop"])
def test_optimizers_that_change_rows_without_a_gradient_are_named(mx, name):
    """Whether a penalty is to be that of the batch does not matter: there is none."""
    mx(stock_tables=options())
    plan = cases.run(dense(cases.optimizers()[name]), True, 1).plans["w"]
    assert not plan.converts and "also changes rows without a gradient" in plan.reason
    assert name.replace("nesterov", "momentum") in plan.reason


def test_ids_without_limits_have_penalties_of_their_rows(mx, graph):
    """More strings than buckets: each has a row, and decays where its batch has it."""
    mx(stock_tables=options(unlimited_ids=True))
    words = v1.placeholder(tf.string, [None])
    ids = tf.strings.to_hash_bucket_fast(words, 4)
    w = v1.get_variable("w", [4, 2], initializer=v1.ones_initializer())
    penalty = tf.nn.l2_loss(w)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(w, ids)) + penalty
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    plan, = convert_graph(graph, True)
    assert plan.ids.is_lifted, plan
    with support.started(support.new_session()) as session:
        batch = ["word{}".format(at) for at in range(20)] + ["word3"]
        np.testing.assert_allclose(session.run([penalty, loss, train_op], {words: batch})[:2], [20, 62])
        # 1 - 0.1 (1 + 1), of word3 1 - 0.1 (2 + 1).
        np.testing.assert_allclose(session.run(penalty, {words: ["word1", "word3"]}), 0.64 + 0.49, rtol=1e-6)


def test_the_command_plans_as_the_setting_says(dynamic, graph, tmp_path):
    w = variable()
    train(tf.compat.v1, lookup(tf.compat.v1, w) + half(w))
    tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt")
    plans = []
    for more in ([], ["--l2", BATCH_ROWS]):
        path = str(tmp_path / "plan.json")
        assert main([str(tmp_path / "graph.pbtxt"), "--variables", "1", "--json", path] + more) == 0
        plans.append(support.json_of(path)["variables"][0])
    assert [plan["converts"] for plan in plans] == [False, True]
    assert BATCH_ROWS in plans[0]["reason"] and "as l2 asks" in plans[1]["reason"]


@pytest.mark.parametrize("wrong", ["some", None, True, ""])
def test_a_wrong_setting_is_an_error_of_init(mx, wrong):
    with pytest.raises(ValueError, match="'l2' of stock_tables should be 'all rows' or 'rows of the batch'"):
        mx(stock_tables=options(l2=wrong))
