"""Adam of converted variables: contrib's lazy one with its numbers, TensorFlow's own on request, and its slots."""

import numpy as np
import pytest

import stock_cases as cases
import support


def pooled(variable, ids):
    """Rows of bags, some of them without ids."""
    tf = support.tf()
    sparse = tf.sparse.from_dense(tf.where(ids % 3 == 0, tf.zeros_like(ids), ids))
    return tf.tile(tf.nn.safe_embedding_lookup_sparse(variable, sparse, combiner="mean"), [1, 3])


def plain(variable, ids):
    tf = support.tf()
    return tf.reshape(tf.nn.embedding_lookup(variable, ids), [-1, 12])


def clipped(pairs):
    tf = support.tf()
    grads, variables = zip(*pairs)
    return list(zip(tf.clip_by_global_norm(grads, 0.05)[0], variables))


def build(optimizer, use_resource, rows_of, clip=None):
    def make(ids, labels):
        tf = support.tf()
        v1 = tf.compat.v1
        variables = [v1.get_variable(name, [cases.ROWS, cases.DIM], use_resource=use_resource,
                                     initializer=v1.random_uniform_initializer(-0.1, 0.1)) for name in ("w", "v")]
        wide = sum(rows_of(variable, ids) for variable in variables)
        project = tf.constant(np.linspace(-1, 1, 12), tf.float32)
        loss = tf.reduce_mean(tf.square(tf.tensordot(wide, project, 1) - labels))
        opt = optimizer()
        pairs = opt.compute_gradients(loss)
        return loss, opt.apply_gradients(clip(pairs) if clip else pairs), variables

    return make


both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


@both
@pytest.mark.parametrize("rows_of, clip", [(plain, None), (pooled, None), (plain, clipped)],
                         ids=["plain", "pooled", "clipped"])
def test_the_lazy_adam_of_contrib_gives_its_numbers_with_its_moments_in_the_rows(mx, use_resource, rows_of, clip):
    mx(stock_tables=".*")
    lazy = cases.optimizers()["lazy_adam"]
    plans = cases.expect_equal(build(lazy, use_resource, rows_of, clip), ["v", "w"])
    assert [slot.name for slot in plans["w"].slots] == ["LazyAdam_momentum", "LazyAdam_velocity"]
    assert (plans["w"].pieces is None) == (clip is not None) and "Adam" not in plans["w"].reason
    assert not [name for name in plans if "Adam" in name], "moments are no variables any more"


@both
def test_adam_stays_if_nobody_asks_and_is_lazy_if_asked(mx, use_resource):
    from mx_rec.util import initialize
    from mx_rec.util.stock_tables import StockTables

    tf = support.tf()
    adam = build(lambda: tf.compat.v1.train.AdamOptimizer(0.02), use_resource, pooled)
    mx(stock_tables=".*")
    plans = cases.expect_equal(adam, [])
    assert "lazy_adam=True" in plans["w"].reason
    initialize.terminate_config_initializer()
    mx(stock_tables=StockTables(least_rows=1, lazy_adam=True))
    tables = cases.run(adam, True)
    assert "as lazy_adam asks" in tables.plans["w"].reason and tables.plans["w"].pieces
    lazy = cases.run(build(cases.optimizers()["lazy_adam"], use_resource, pooled), False)
    np.testing.assert_allclose(tables.losses, lazy.losses, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    np.testing.assert_allclose(tables.rows["w"], lazy.rows["w"], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@both
@pytest.mark.parametrize("name", ["AdamOptimizer", "LazyAdamOptimizer"])
def test_a_moment_that_something_else_reads_keeps_the_variable(mx, graph, name, use_resource):
    from mx_rec.stock.select import convert_graph
    from mx_rec.util.stock_tables import StockTables

    tf = support.tf()
    v1 = tf.compat.v1
    mx(stock_tables=StockTables(least_rows=1, lazy_adam=True))
    w = v1.get_variable("w", [cases.ROWS, 2], use_resource=use_resource)
    optimizer = (v1.train.AdamOptimizer if name == "AdamOptimizer" else tf.contrib.opt.LazyAdamOptimizer)(0.1)
    train = optimizer.minimize(tf.reduce_sum(tf.nn.embedding_lookup(w, [1])))
    norm = tf.norm(optimizer.get_slot(w, "m"))
    plan, = [plan for plan in convert_graph(graph, True) if plan.name == "w"]
    assert not plan.converts and "Adam" in plan.reason, plan.reason
    with support.new_session() as sess:
        sess.run(v1.global_variables_initializer())
        sess.run(train)
        assert sess.run(norm) > 0


def write_steps(tmp_path, is_converted, steps, restored=None):
    """Trains from a checkpoint and saves; returns losses and the path."""
    from mx_rec.stock.select import convert_graph

    tf = support.tf()
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
        loss, train, _ = build(cases.optimizers()["lazy_adam"], True, plain)(ids, labels)
        support.keep_variables()
        if is_converted:
            assert all(plan.converts for plan in convert_graph(graph, True))
        saver = v1.train.Saver()
        with v1.Session() as sess:
            sess.run(v1.global_variables_initializer())
            if restored:
                saver.restore(sess, restored)
            losses = [sess.run([loss, train], {ids: batch, labels: label})[0]
                      for batch, label in list(cases.batches(40))[steps]]
            return np.array(losses), saver.save(sess, str(tmp_path / ("tables" if is_converted else "stock")))


def test_moments_go_into_tables_from_an_old_checkpoint_and_back(mx, tmp_path):
    _, old = write_steps(tmp_path, False, slice(0, 10))
    expected, _ = write_steps(tmp_path, False, slice(10, 40), old)
    _, old = write_steps(tmp_path, False, slice(0, 10))
    mx(stock_tables=".*")
    losses, path = write_steps(tmp_path, True, slice(10, 25), old)
    np.testing.assert_allclose(losses, expected[:15], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    names = support.tf().train.load_checkpoint(path).get_variable_to_shape_map()
    assert sorted(names) == ["beta1_power", "beta2_power"]
    with_tables, _ = write_steps(tmp_path / "x", True, slice(25, 40), path)
    np.testing.assert_allclose(with_tables, expected[15:], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    back, _ = write_steps(tmp_path, False, slice(25, 40), path)
    np.testing.assert_allclose(back, expected[15:], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
