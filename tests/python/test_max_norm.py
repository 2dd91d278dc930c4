"""max_norm of pooled lookups: rows are scaled down where they are read, beside tf.clip_by_norm on a dense variable."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from fused_cases import LENGTH, batches
from pooled_cases import make_table, pooled
from test_fused_updates import needed
from test_pooled_together import COMBINERS, EMBED_MANY, FIND_MANY, ragged_of, sparse_of, tables_of, trained
from mx_rec.core.embedding import sparse_lookup_pooled_many
from mx_rec.ops import library
from mx_rec.optimizers.gradient_descent import create_hash_optimizer

NORM = 1.5
KEYS = 12


def special_rows(dim, with_nan=False):
    """Random rows, and those of norm 0, of exactly the greatest norm, near it, and far from it."""
    rows = np.random.RandomState(dim).randn(KEYS, dim).astype(np.float32)
    rows[0] = 0.0
    rows[1] = 0.0
    rows[1, 0] = NORM
    rows[2] = 0.0
    rows[2, -1] = -np.nextafter(np.float32(NORM), np.float32(2))
    rows[3], rows[4], rows[5] = 1e4, 1e-30, 0.01
    if with_nan:
        rows[6, 0], rows[7, -1] = np.nan, np.nan
    return rows


def clipped_by_tensorflow(dense, ids, combiner, norm):
    """Rows of padding add nothing, and do not count."""
    clipped = tf.clip_by_norm(tf.gather(dense, tf.maximum(ids, 0)), norm, axes=[2])
    is_id = tf.cast(tf.not_equal(ids, -1), tf.float32)
    total = tf.reduce_sum(tf.where(tf.tile(is_id[..., None] > 0, [1, 1, dense.shape[1]]), clipped,
                                   tf.zeros_like(clipped)), 1)
    count = tf.reduce_sum(is_id, 1, keepdims=True)
    divisor = {"sum": tf.ones_like(count), "mean": count, "sqrtn": tf.sqrt(count)}[combiner]
    return tf.math.divide_no_nan(total, divisor)


@pytest.mark.parametrize("dim", [1, 2, 8, 16, 19, 64])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_values_and_gradients_are_those_of_clip_by_norm(graph, session, dynamic, dim, combiner):
    """Of repeated ids, padding, bags without ids, and rows of all norms."""
    table = make_table("table", dim=dim)
    dense = tf.compat.v1.get_variable("dense", initializer=special_rows(dim), use_resource=False)
    random = np.random.RandomState(1)
    batch = random.randint(0, KEYS, [30, 4])
    batch[random.random_sample(batch.shape) < 0.2] = -1
    batch[7] = -1
    ids = tf.constant(batch, tf.int64)
    forms = [pooled(table, ids, combiner, max_norm=NORM), clipped_by_tensorflow(dense, ids, combiner, NORM)]
    evaluated = pooled(table, ids, combiner, max_norm=NORM, is_train=False)
    factors = tf.constant(random.randn(30, dim).astype(np.float32))
    grads = [tf.gradients(tf.reduce_sum(form * factors), over)[0] for form, over in zip(forms, (table.variable, dense))]
    sess = support.started(session())
    raw = support.Raw.of(table)
    raw.assign(sess, np.arange(KEYS), special_rows(dim))
    ours, theirs = sess.run(forms)
    support.assert_rounding(ours, theirs, 8, scale=2.0)
    support.assert_same_bits(sess.run(evaluated), ours)
    (ours, theirs), keys = sess.run(grads), raw.export(sess)[0]
    sums, expected = np.zeros([KEYS, dim], np.float32), np.zeros([KEYS, dim], np.float32)
    for offset, value in zip(ours.indices, ours.values):
        sums[int(keys[support.row_of(offset)])] += value
    np.add.at(expected, theirs.indices, theirs.values)
    support.assert_rounding(sums, expected, 60, scale=4.0)


def test_rows_that_are_not_numbers_are_those_of_clip_by_norm(graph, session, dynamic):
    table = make_table("table", dim=16)
    rows = special_rows(16, with_nan=True)
    given = tf.constant(rows)
    ids = tf.reshape(tf.range(KEYS, dtype=tf.int64), [-1, 1])
    forms = [pooled(table, ids, max_norm=NORM), pooled(table, ids, max_norm=NORM, is_train=False),
             tf.clip_by_norm(given, NORM, axes=[1])]
    grads = [tf.gradients(forms[0], table.variable)[0].values, tf.gradients(forms[2], given)[0]]
    sess = session()
    support.Raw.of(table).assign(sess, np.arange(KEYS), rows)
    ours, evaluated, theirs = sess.run(forms)
    support.assert_same_bits(ours, evaluated)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=0)
    ours, theirs = sess.run(grads)
    support.assert_rounding(ours[:6], theirs[:6], 30, scale=2.0)
    assert np.isnan(ours[6:8]).all() and np.isnan(theirs[6:8]).all()


@pytest.mark.parametrize("norm", [0.3, 1.5, 1e6])
def test_a_step_is_that_of_the_dense_variable_also_after_a_restore(graph, tmp_path, norm, dynamic):
    """With an update whose sums are its own, twice from a checkpoint, and with one that is changed before."""
    dim = 8
    table = make_table("table", dim=dim)
    dense = tf.compat.v1.get_variable("dense", initializer=special_rows(dim), use_resource=False)
    batch = np.array([[0, 1, 2], [1, 1, -1], [-1, -1, -1], [3, 4, 5], [9, 9, 9]])
    ids = tf.constant(batch, tf.int64)
    forms = [pooled(table, ids, "mean", max_norm=norm), clipped_by_tensorflow(dense, ids, "mean", norm)]
    losses = [tf.reduce_sum(tf.square(form - 0.3)) for form in forms]
    ours = create_hash_optimizer(0.2).minimize(losses[0], var_list=[table.variable])
    theirs = tf.compat.v1.train.GradientDescentOptimizer(0.2).minimize(losses[1], var_list=[dense])
    saver = tf.compat.v1.train.Saver()
    path = str(tmp_path / "model")
    with support.started(support.new_session()) as sess:
        raw = support.Raw.of(table)
        raw.assign(sess, np.arange(KEYS), special_rows(dim))
        for step in range(6):
            sess.run([ours, theirs])
            if step == 2:
                saver.save(sess, path)
        before = raw.rows(sess)
        saver.restore(sess, path)
        for _ in range(3):
            sess.run([ours, theirs])
        rows, expected = raw.rows(sess), sess.run(dense)
        for key in range(KEYS):
            if key in rows:
                support.assert_same_bits(rows[key], before[key])
                support.assert_rounding(rows[key], expected[key], 200, scale=max(1.0, np.abs(expected[key]).max()))


def test_two_updates_take_the_gradients_of_the_rows_as_they_were_read(graph, session, dynamic):
    dim, norm = 8, 0.5
    table = make_table("table", dim=dim)
    dense = tf.compat.v1.get_variable("dense", initializer=special_rows(dim), use_resource=False)
    ids = tf.constant([[0, 1, 9], [9, 9, 10]], tf.int64)
    forms = [pooled(table, ids, max_norm=norm), clipped_by_tensorflow(dense, ids, "sum", norm)]
    optimizer = create_hash_optimizer(0.5)
    pairs = optimizer.compute_gradients(tf.reduce_sum(tf.square(forms[0] - 0.3)), [table.variable])
    grad, = tf.gradients(tf.reduce_sum(tf.square(forms[1] - 0.3)), dense)
    with tf.control_dependencies([grad.values]):
        first = optimizer.apply_gradients(pairs)
        first_dense = tf.compat.v1.scatter_sub(dense, grad.indices, 0.5 * grad.values)
    with tf.control_dependencies([first]):
        second = optimizer.apply_gradients(pairs)
    with tf.control_dependencies([first_dense]):
        second_dense = tf.compat.v1.scatter_sub(dense, grad.indices, 0.5 * grad.values)
    sess = support.started(session())
    raw = support.Raw.of(table)
    raw.assign(sess, np.arange(KEYS), special_rows(dim))
    sess.run([second, second_dense.op])
    rows, expected = raw.rows(sess), sess.run(dense)
    for key in (0, 1, 9, 10):
        support.assert_rounding(rows[key], expected[key], 100, scale=4.0)


@support.run_by(cases.alike, moves=7, use_dynamic=True)
def test_lookups_with_a_norm_share_ops_with_others(run):
    """Training and evaluation of several tables, one of them with a norm and without; the bits of ops of their own."""
    source, ids, label = batches(True, features=3)
    tables = tables_of(run)
    kinds = [ids[:, 0], sparse_of(ids[:, 1]), ragged_of(ids[:, 2])]

    def looked(is_train):
        return [pooled(table, one, combiner, is_train=is_train, max_norm=norm) for table, one, combiner, norm in
                zip(tables, kinds, COMBINERS, (0.4, None, 0.02))]

    vectors, others = looked(True), looked(False)
    vectors.append(pooled(tables[0], ids[:, 1], "mean"))
    update = trained(run, source, tables, vectors, label, others, {EMBED_MANY: [4]}, {FIND_MANY: [3]})
    if run.is_modified:
        made, = needed(update)["MxRecUpdate"]
        assert (made.get_attr("N"), made.get_attr("L")) == (4, 4)


def test_a_run_of_one_lookup_of_a_group_reads_its_rows_alone(graph, session, dynamic):
    tables = [make_table("t%d" % at, dim=4 + at) for at in range(3)]
    ids = [tf.compat.v1.placeholder(tf.int64, [None, 3]) for _ in tables]
    vectors = sparse_lookup_pooled_many(tables, ids, "mean", max_norm=0.1)
    alone = pooled(tables[1], ids[1], "mean")
    grads = tf.gradients([tf.reduce_sum(one) for one in vectors], [table.variable for table in tables])
    sess = session()
    feed = {one: [[1, 2, 2]] for one in ids}
    everything = sess.run([vectors, [grad.values for grad in grads]], feed)
    one, grad = sess.run([vectors[1], grads[1].values], {ids[1]: [[1, 2, 2]]})
    support.assert_same_bits(one, everything[0][1])
    support.assert_same_bits(grad, everything[1][1])
    assert np.linalg.norm(one) < 0.1 * (1 + 1e-6) < np.linalg.norm(sess.run(alone, {ids[1]: [[1, 2, 2]]}))


def test_weights_with_gradients_and_a_norm_are_those_of_tensorflow(graph, session, dynamic):
    dim = 16
    table = make_table("table", dim=dim)
    rows = special_rows(dim)
    dense = tf.compat.v1.get_variable("dense", initializer=rows, use_resource=False)
    random = np.random.RandomState(2)
    ids = tf.constant(random.randint(0, KEYS, [9, LENGTH]), tf.int64)
    weights = tf.compat.v1.get_variable("weights", initializer=random.randn(9, LENGTH).astype(np.float32),
                                        use_resource=False)
    clipped = tf.clip_by_norm(tf.gather(dense, ids), NORM, axes=[2])
    forms = [pooled(table, ids, weights=weights, max_norm=NORM), tf.reduce_sum(clipped * weights[..., None], 1)]
    grads = [tf.gradients(tf.reduce_sum(tf.sin(form)), weights)[0] for form in forms]
    sess = support.started(session())
    support.Raw.of(table).assign(sess, np.arange(KEYS), rows)
    for ours, theirs in (sess.run(forms), sess.run(grads)):
        support.assert_rounding(ours, theirs, 60, scale=4.0)


@pytest.mark.parametrize("norm, text", [(0.0, "max_norm"), (-1.0, "max_norm"), (np.nan, "max_norm"), (np.inf, "max_norm")])
def test_a_norm_that_none_can_have_is_refused_by_the_op(graph, session, dynamic, norm, text):
    none = tf.zeros([0])
    made = library().mx_rec_restore_pooled(tf.ones([2, 3]), [0, 1], tf.constant([2], tf.int64), none, none,
                                           [tf.constant(norm, tf.float32)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        session().run(made)


def test_a_graph_of_before_has_lookups_without_norms(graph, session, dynamic):
    """Graphs that were saved before there were norms have no attribute that counts them."""
    table = make_table("table", dim=4)
    ids = tf.compat.v1.placeholder(tf.int64, [None, 2], name="ids")
    vectors = [tf.identity(pooled(table, ids, is_train=is_train), name=name)
               for is_train, name in ((True, "trained"), (False, "found"))]
    sess = session()
    feed = [[1, 2], [2, -1]]
    expected = sess.run(vectors[0], {ids: feed})
    before = graph.as_graph_def()
    counting = [node for node in before.node if "L" in node.attr]
    assert {node.op for node in counting} == {"MxRecRead", "MxRecFind"}
    for node in counting:
        del node.attr["L"]
    with tf.Graph().as_default() as imported:
        found = tf.import_graph_def(before, return_elements=["trained:0", "found:0"], name="")
        with support.new_session(graph=imported) as other:
            for one in found:
                support.assert_same_bits(other.run(one, {imported.get_tensor_by_name("ids:0"): feed}), expected)
