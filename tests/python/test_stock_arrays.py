"""Variables that start with an array, a fed value or an assignment, on tables: the numbers of the variable from its own start."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

SHAPE = (cases.ROWS, cases.DIM)
STEPS = 12
both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


def array(seed=3):
    return np.random.RandomState(seed).randn(*SHAPE).astype(np.float32)


def get(use_resource, **arguments):
    return tf.compat.v1.get_variable("w", use_resource=use_resource, **arguments)


class Started:
    """A variable, and what a script feeds and runs before it trains.

    Attributes:
        variable: The variable.
        feeds: What it feeds to the initializer.
        sets: An op and its feeds that it runs behind that, or None.
    """

    def __init__(self, variable, feeds=None, sets=None):
        self.variable = variable
        self.feeds = feeds or {}
        self.sets = sets


def constant_initializer(use_resource):
    return Started(get(use_resource, shape=SHAPE, initializer=tf.compat.v1.constant_initializer(array())))


def constant(use_resource):
    return Started(get(use_resource, initializer=tf.constant(array())))


def of_a_variable(use_resource):
    return Started(tf.compat.v1.Variable(array(), name="w", use_resource=use_resource))


def of_a_function(use_resource):
    return Started(get(use_resource, shape=SHAPE, initializer=lambda shape, **_: v1.reshape(
        v1.py_func(array, [], v1.float32), shape)))


def fed_initializer(use_resource):
    fed = v1.placeholder(v1.float32, SHAPE)
    return Started(get(use_resource, initializer=fed), {fed: array()})


def assigned(use_resource):
    made = get(use_resource, shape=SHAPE, initializer=v1.zeros_initializer())
    fed = v1.placeholder(v1.float32, SHAPE)
    return Started(made, sets=(made.assign(fed), {fed: array()}))


def assigned_over_an_array(use_resource):
    made = get(use_resource, shape=SHAPE, initializer=v1.constant_initializer(array(5)))
    return Started(made, sets=(v1.group(made.assign(array())), {}))


STARTS = (constant_initializer, constant, of_a_variable, of_a_function, fed_initializer, assigned, assigned_over_an_array)


def optimizers():
    return dict(cases.optimizers(), adam=lambda: tf.compat.v1.train.AdamOptimizer(0.02))


def graph_of(start, use_resource, optimizer):
    """A model in the default graph: its start, placeholders, loss and training op."""
    ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
    started = start(use_resource)
    rows = tf.reduce_sum(tf.nn.embedding_lookup(started.variable, ids), 1)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, 1) - labels))
    train = optimizers()[optimizer]().minimize(loss)
    return started, ids, labels, loss, train


def initialize(session, started):
    session.run(v1.global_variables_initializer(), started.feeds)
    if started.sets:
        session.run(started.sets[0], started.sets[1])


def plan_of(graph):
    return next(plan for plan in convert_graph(graph, True) if plan.name == "w")


def numbers(start, use_resource, optimizer, is_converted, checkpoint=None, restores=False):
    """The rows at the start, the losses, and the rows at the end."""
    with tf.Graph().as_default() as graph:
        started, ids, labels, loss, train = graph_of(start, use_resource, optimizer)
        if is_converted:
            plan = plan_of(graph)
            assert plan.converts, plan.reason
        support.keep_variables(graph)
        saver = v1.train.Saver() if checkpoint else None
        with support.new_session() as session:
            initialize(session, started)
            if restores:
                saver.restore(session, checkpoint)
            first = session.run(started.variable)
            losses = [session.run([loss, train], {ids: one, labels: other})[0] for one, other in cases.batches(STEPS)]
            if checkpoint and not restores:
                saver.save(session, checkpoint)
            last = session.run(started.variable)
            initialize(session, started)
            np.testing.assert_array_equal(session.run(started.variable), array())
            return [first, np.array(losses), last]


@both
@pytest.mark.parametrize("start", STARTS, ids=lambda one: one.__name__)
def test_a_table_starts_with_the_value_of_its_variable(v1, start, use_resource):
    optimizer = {constant: "adam", fed_initializer: "momentum", of_a_variable: "sgd"}.get(start, "adagrad")
    stock, tables = [numbers(start, use_resource, optimizer, is_converted) for is_converted in (False, True)]
    np.testing.assert_array_equal(tables[0], array())
    for one, other in zip(tables, stock):
        np.testing.assert_allclose(one, other, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@pytest.mark.parametrize("start", [constant, assigned], ids=lambda one: one.__name__)
def test_such_tables_go_on_as_variables_and_back(v1, start, tmp_path):
    paths = [str(tmp_path / name) for name in ("stock", "tables")]
    for is_converted, path in zip((False, True), paths):
        numbers(start, True, "adagrad", is_converted, path)
    found = [numbers(start, True, "adagrad", is_converted, path, True) for is_converted in (False, True) for path in paths]
    for other in found[1:]:
        for one, wanted in zip(other, found[0]):
            np.testing.assert_allclose(one, wanted, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


def test_a_value_of_its_own_distribution_is_drawn_by_tensorflow(v1, graph):
    w = get(True, shape=SHAPE, initializer=v1.orthogonal_initializer())
    v1.train.AdagradOptimizer(0.1).minimize(v1.reduce_sum(v1.gather(w, [1])))
    assert plan_of(graph).converts
    with support.started(support.new_session()) as session:
        rows = session.run(w)
    np.testing.assert_allclose(rows.T.dot(rows), np.eye(cases.DIM), atol=1e-5)


@both
def test_a_variable_that_is_not_initialized_says_so_until_it_is(v1, graph, use_resource):
    """Keras and MonitoredSession run the initializers of variables that say so."""
    started, ids, labels, loss, train = graph_of(constant, use_resource, "adagrad")
    missing = v1.report_uninitialized_variables([started.variable])
    state = v1.is_variable_initialized(started.variable)
    assert plan_of(graph).converts
    with support.new_session() as session:
        assert session.run([missing, state]) == [[b"w"], False]
        session.run(started.variable.initializer)
        assert session.run([missing, state])[1] and not len(session.run(missing))
        np.testing.assert_array_equal(session.run(started.variable), array())


@pytest.mark.parametrize("how", ["monitored", "hook"])
def test_a_monitored_session_starts_it(v1, graph, how, tmp_path):
    class Sets(tf.estimator.SessionRunHook):
        def after_create_session(self, session, coord):
            if started.sets:
                session.run(started.sets[0], started.sets[1])

    step = v1.train.get_or_create_global_step()
    started, ids, labels, loss, train = graph_of(constant if how == "monitored" else assigned, False, "adagrad")
    train = v1.group(train, step.assign_add(1))
    batches = list(cases.batches(4))
    found = []
    for _ in range(2):
        with v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, hooks=[Sets()],
                                               save_summaries_steps=None, save_summaries_secs=None) as session:
            from mx_rec.stock.convert import converted

            assert [one.plan.name for one in converted(graph)] == ["w"]
            if not found:
                np.testing.assert_array_equal(session.run(started.variable), array())
            elif how == "monitored":
                np.testing.assert_array_equal(session.run(started.variable), found[-1])
            for one, other in batches:
                session.run(train, {ids: one, labels: other})
            found.append(session.run(started.variable))


@pytest.mark.parametrize("setting, part", [("access_threshold", "access_threshold"), ("parts", "row by row")])
def test_what_has_no_rows_to_start_with_keeps_the_variable(mx, graph, setting, part):
    mx(stock_tables=StockTables(least_rows=1, **({"access_threshold": 2} if setting == "access_threshold" else {})))
    with v1.device(v1.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")
                   if setting == "parts" else None):
        w = constant(True).variable
        v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [1])))
        plan = plan_of(graph)
    assert not plan.converts and part in plan.reason, plan.reason


def test_ids_of_a_variable_that_starts_with_an_array_keep_their_limits(mx, graph):
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=True))
    w = constant(False).variable
    ids = v1.strings.to_hash_bucket_fast(v1.constant(["a", "b"]), cases.ROWS)
    v1.train.AdagradOptimizer(0.1).minimize(v1.reduce_sum(v1.gather(w, ids)))
    plan = plan_of(graph)
    assert plan.converts and not plan.ids.is_lifted and "initializer sets its rows" in plan.reason, plan


@pytest.mark.parametrize("start", [constant, assigned], ids=lambda one: one.__name__)
def test_rows_on_disk_start_with_an_array(mx, start, tmp_path):
    mx(stock_tables=StockTables(least_rows=1, memory_rows=50, ssd_data_path=[str(tmp_path)]))
    stock, tables = [numbers(start, True, "adagrad", is_converted) for is_converted in (False, True)]
    for one, other in zip(tables, stock):
        np.testing.assert_allclose(one, other, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@pytest.mark.long
def test_an_estimator_trains_evaluates_and_goes_on_from_an_array(mx, tmp_path):
    ids, labels = [np.concatenate(parts) for parts in zip(*cases.batches(4))]

    def input_fn():
        return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(cases.BATCH)

    def model_fn(features, labels, mode):
        rows = tf.reduce_sum(tf.nn.embedding_lookup(constant(True).variable, features), [1, 2])
        loss = tf.reduce_mean(tf.square(rows - labels))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, predictions=rows, loss=loss, train_op=train)

    def seen(name):
        made = tf.estimator.Estimator(model_fn, str(tmp_path / name), tf.estimator.RunConfig(log_step_count_steps=None))
        found = []
        for _ in range(2):
            made.train(input_fn)
            found += [made.evaluate(input_fn)["loss"], made.get_variable_value("w")]
        return found

    expected = seen("stock")
    mx(stock_tables=".*")
    for one, other in zip(seen("tables"), expected):
        np.testing.assert_allclose(one, other, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    assert list((tmp_path / "tables").glob("sparse-*"))
