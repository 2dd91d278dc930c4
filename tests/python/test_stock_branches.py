"""Models that look rows up inside of branches (tf.cond, tf.case), on tables: the numbers of the variable."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
STEPS = 16


def is_odd(ids):
    return tf.equal(tf.reduce_sum(ids) % 2, 1)


def total(w, ids):
    return tf.reduce_sum(tf.nn.embedding_lookup(w, ids), 1)


def zeros(ids):
    return tf.zeros([tf.shape(ids)[0], cases.DIM])


def cond(*arguments):
    return tf.compat.v1.cond(*arguments)


def one_branch(w, ids):
    return cond(is_odd(ids), lambda: total(w, ids), lambda: zeros(ids))


def both_branches(w, ids):
    return cond(is_odd(ids), lambda: total(w, ids), lambda: total(w, (ids + 7) % cases.ROWS) * 2.0)


def twice_in_a_branch(w, ids):
    return cond(is_odd(ids), lambda: total(w, ids) - total(w, ids[:, :1]), lambda: zeros(ids) + 0.1)


def and_outside(w, ids):
    return total(w, ids[:, :2]) + cond(is_odd(ids), lambda: total(w, ids[:, 2:]), lambda: zeros(ids))


def two_conditions(w, ids):
    return one_branch(w, ids) + cond(is_odd(ids[:, 0]), lambda: zeros(ids), lambda: total(w, ids[:, 1:]))


def nested(w, ids):
    return cond(is_odd(ids), lambda: cond(
        is_odd(ids[:, 0]), lambda: total(w, ids), lambda: zeros(ids)), lambda: total(w, ids[:, 1:]))


def of_cases(w, ids):
    rest = tf.reduce_sum(ids) % 3
    return tf.case([(tf.equal(rest, 0), lambda: total(w, ids)), (tf.equal(rest, 1), lambda: total(w, ids[:, 1:]))],
                   default=lambda: zeros(ids), exclusive=True)


def pooled(w, ids):
    def bags():
        sparse = tf.sparse.from_dense(tf.where(ids % 4 == 0, tf.zeros_like(ids), ids))
        return tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner="mean")

    return cond(is_odd(ids), bags, lambda: total(w, ids))


def shown_alone(w, ids):
    """Rows in a branch that nothing trains beside rows that are trained."""
    return total(w, ids) * cond(is_odd(ids), lambda: tf.stop_gradient(total(w, ids[:, :1])), lambda: zeros(ids) + 1.0)


def partitioned(w, ids):
    """Parts of one variable, which are made where it is looked up."""
    parts = v1.get_variable("p", [cases.ROWS, cases.DIM], partitioner=v1.fixed_size_partitioner(2),
                            initializer=v1.zeros_initializer(), use_resource=w.op.type == "VarHandleOp")
    return total(w, ids) + cond(is_odd(ids), lambda: total(parts, ids), lambda: zeros(ids))


MODELS = (one_branch, both_branches, twice_in_a_branch, and_outside, two_conditions, nested, of_cases, pooled, shown_alone)


def adam():
    return tf.compat.v1.train.AdamOptimizer(0.02)


def build(rows_of, optimizer, use_resource, clip=False):
    def make(ids, labels):
        # The second one is looked up outside of branches alone.
        w, v = [v1.get_variable(name, [cases.ROWS, cases.DIM], use_resource=use_resource,
                                initializer=v1.random_uniform_initializer(-0.1, 0.1)) for name in ("w", "v")]
        project = tf.constant(np.linspace(-1, 1, cases.DIM), tf.float32)
        loss = tf.reduce_mean(tf.square(tf.tensordot(rows_of(w, ids) + total(v, ids), project, 1) - labels))
        pairs = optimizer().compute_gradients(loss)
        if clip:
            grads, variables = zip(*pairs)
            pairs = list(zip(tf.clip_by_global_norm(grads, 0.05)[0], variables))
        return loss, optimizer().apply_gradients(pairs), [w, v]

    return make


@both
@pytest.mark.parametrize("rows_of", MODELS, ids=lambda one: one.__name__)
def test_rows_of_branches_have_the_numbers_of_the_variable(mx, rows_of, use_resource):
    if rows_of is pooled and not use_resource and not tf.__version__.startswith("1."):
        pytest.skip("TensorFlow 2.x pools reference variables by ops that read them as a whole")
    mx(stock_tables=".*")
    cases.expect_equal(build(rows_of, cases.optimizers()["adagrad"], use_resource), ["v", "w"], STEPS)


@both
def test_parts_of_branches_are_tables(v1, use_resource):
    cases.expect_equal(build(partitioned, cases.optimizers()["adagrad"], use_resource),
                       ["p/part_0", "p/part_1", "v", "w"], STEPS)


@both
@pytest.mark.parametrize("name", ["sgd", "adam", "clipped"])
def test_optimizers_that_leave_rows_without_a_gradient(v1, name, use_resource):
    optimizer = adam if name == "adam" else cases.optimizers()["sgd" if name == "sgd" else "adagrad"]
    rows_of = one_branch if name == "adam" else and_outside
    cases.expect_equal(build(rows_of, optimizer, use_resource, name == "clipped"), ["v", "w"], STEPS)


@both
@pytest.mark.parametrize("name", ["momentum", "ftrl", "lazy_adam", "rmsprop"])
def test_optimizers_that_move_rows_by_gradients_of_zeros_keep_the_variable(v1, name, use_resource):
    """TensorFlow gives all rows a gradient of zeros where their branch is not taken."""
    plans = cases.expect_equal(build(one_branch, cases.optimizers()[name], use_resource), ["v"], STEPS)
    assert "branch" in plans["w"].reason and name in plans["w"].reason, plans["w"].reason


def converted_to(graph, trains=True):
    """The plan of the variable w."""
    return next(plan for plan in convert_graph(graph, trains) if plan.name == "w")


def variable(use_resource):
    return v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource,
                           initializer=v1.random_uniform_initializer(-0.1, 0.1))


@both
def test_rows_are_those_that_branches_looked_up(v1, graph, use_resource):
    """No row is made for the zeros of a branch that is not taken, whatever comes before and after it."""
    ids, taken = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.bool, [])
    w = variable(use_resource)
    rows = v1.cond(taken, lambda: total(w, ids), lambda: zeros(ids))
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(rows - 1.0)))
    assert converted_to(graph).converts
    table = converted(graph)[0].table
    with support.started(support.new_session()) as session:
        sizes = []
        for is_taken, batch in ((False, [[1, 2, 3]]), (True, [[4, 5, 4]]), (False, [[7, 8, 9]]), (True, np.zeros([0, 3])),
                                (True, [[5, 6, 6]])):
            before = session.run(w)
            session.run(train, {taken: is_taken, ids: batch})
            sizes.append(table.size())
            changed = np.abs(session.run(w) - before).max(1).nonzero()[0].tolist()
            assert changed == (sorted({one for row in batch for one in row}) if is_taken else []), (changed, batch)
        assert sizes == [0, 2, 2, 2, 3]
        # An id that the variable does not have is an error of the branch that is taken.
        session.run(rows, {taken: False, ids: [[cases.ROWS] * 3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
            session.run(rows, {taken: True, ids: [[cases.ROWS] * 3]})


@both
def test_a_graph_that_evaluates_finds_rows_in_its_branches(v1, graph, use_resource):
    taken = v1.placeholder(tf.bool, [])
    w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource, initializer=v1.ones_initializer())
    rows = v1.cond(taken, lambda: tf.nn.embedding_lookup(w, [3]), lambda: 2.0 * tf.nn.embedding_lookup(w, [3, 4]))
    assert converted_to(graph, False).converts
    with support.started(support.new_session()) as session:
        assert session.run(rows, {taken: True}).tolist() == [[1.0] * cases.DIM]
        assert session.run(rows, {taken: False}).tolist() == [[2.0] * cases.DIM] * 2


@pytest.mark.long
@both
def test_a_checkpoint_of_branches_goes_on_as_variables_and_back(v1, tmp_path, use_resource):
    paths = {form: str(tmp_path / form) for form in ("stock", "tables")}

    def trained(form, restored):
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(3)
            ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
            loss, train, _ = build(both_branches, cases.optimizers()["adagrad"], use_resource)(ids, labels)
            support.keep_variables(graph)
            if form == "tables":
                assert converted_to(graph).converts
            saver = v1.train.Saver()
            with support.started(support.new_session()) as session:
                if restored:
                    saver.restore(session, paths[restored])
                losses = [session.run([loss, train], {ids: one, labels: other})[0] for one, other in cases.batches(6)]
                if restored != form:
                    saver.save(session, paths[form])
                return losses

    trained("stock", None)
    expected = trained("stock", "stock")
    found = trained("tables", "stock")
    np.testing.assert_allclose(found, expected, rtol=cases.TOLERANCE)
    np.testing.assert_allclose(trained("stock", "tables"), trained("tables", "tables"), rtol=cases.TOLERANCE)


def shows_its_gradient(v1, w, loss):
    pairs = v1.train.AdagradOptimizer(0.1).compute_gradients(loss, [w])
    v1.summary.scalar("mean", v1.reduce_mean(pairs[0][0].values))
    return v1.train.AdagradOptimizer(0.1).apply_gradients(pairs)


def makes_it_dense(v1, w, loss):
    grad, = v1.gradients(loss, [w])
    return v1.train.AdagradOptimizer(0.1).apply_gradients([(v1.convert_to_tensor(grad), w)])


def clips_it_by_value(v1, w, loss):
    grad, = v1.gradients(loss, [w])
    clipped = v1.IndexedSlices(v1.clip_by_value(grad.values, 0.1, 1.0), grad.indices, grad.dense_shape)
    return v1.train.AdagradOptimizer(0.1).apply_gradients([(clipped, w)])


def reads_it_in_a_branch(v1, w, loss):
    more = v1.cond(loss > 0.0, lambda: v1.reduce_max(v1.stop_gradient(w)), lambda: 0.0)
    return v1.train.AdagradOptimizer(0.1).minimize(loss + v1.reduce_sum(v1.gather(w, [1])) * more)


def penalizes_it_in_a_branch(v1, w, loss):
    return v1.train.AdagradOptimizer(0.1).minimize(
        loss + v1.cond(loss > 0.0, lambda: v1.nn.l2_loss(w), lambda: 0.0))


def updates_in_a_branch(v1, w, loss):
    optimizer = v1.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss, [w])
    return v1.cond(loss > 0.0, lambda: optimizer.apply_gradients(pairs), v1.no_op)


def loops_over_branches(v1, w, loss):
    total_of = v1.while_loop(lambda at, _: at < 2, lambda at, sums: (at + 1, sums + v1.cond(
        at > 0, lambda: v1.reduce_sum(v1.gather(w, [1])), lambda: 0.0)), (0, 0.0), back_prop=False)[1]
    return v1.train.AdagradOptimizer(0.1).minimize(loss * (1.0 + total_of))


@both
@pytest.mark.parametrize("train", [shows_its_gradient, makes_it_dense, clips_it_by_value, reads_it_in_a_branch,
                                   penalizes_it_in_a_branch, updates_in_a_branch, loops_over_branches],
                         ids=lambda one: one.__name__)
def test_what_needs_the_zeros_of_all_rows_keeps_the_variable(mx, graph, train, use_resource):
    mx(stock_tables=StockTables(least_rows=1, l2="rows of the batch"))
    w = variable(use_resource)
    ids = tf.constant([[1, 2, 3]], tf.int64)
    done = train(v1, w, tf.reduce_sum(tf.square(one_branch(w, ids) - 1.0)))
    before = graph.as_graph_def()
    plan = converted_to(graph)
    assert not plan.converts and support.re.search("branch|loop|dense|as a whole", plan.reason), plan.reason
    assert graph.as_graph_def() == before
    with support.started(support.new_session()) as session:
        session.run(done)


@pytest.mark.parametrize("setting", ["access_threshold", "servers"])
def test_counts_and_servers_keep_the_variable(mx, graph, setting):
    mx(stock_tables=StockTables(least_rows=1, **({"access_threshold": 2} if setting == "access_threshold" else {})))
    device = v1.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0") if setting == "servers" else None
    with v1.device(device):
        loss = v1.reduce_sum(one_branch(variable(True), v1.placeholder(v1.int64, [None, 3])))
        v1.train.AdagradOptimizer(0.1).minimize(loss)
        plan = converted_to(graph)
    assert not plan.converts and "branch" in plan.reason, plan.reason


def test_a_summary_that_reads_all_rows_in_a_branch_keeps_no_table_from_counting(mx, graph):
    """tf.nn.zero_fraction, which the linear part of canned Estimators shows, has such a branch."""
    mx(stock_tables=StockTables(least_rows=1, access_threshold=2))
    w = variable(True)
    v1.summary.scalar("zeros", v1.nn.zero_fraction(w))
    v1.train.AdagradOptimizer(0.1).minimize(v1.reduce_sum(v1.gather(w, [1])))
    assert converted_to(graph).converts


def test_branches_of_control_flow_v2_keep_the_variable(v1, graph):
    was_on = v1.control_flow_v2_enabled()
    v1.enable_control_flow_v2()
    try:
        w = variable(True)
        ids = v1.placeholder(tf.int64, [None, 3])
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(one_branch(w, ids) - 1.0)))
    finally:
        if not was_on:
            v1.disable_control_flow_v2()
    plan = converted_to(graph)
    assert not plan.converts and support.re.search(r"branch or loop, by .*\(If\)", plan.reason), plan
    with support.started(support.new_session()) as session:
        session.run(train, {ids: [[1, 2, 3]]})
