"""Scripts with tf.get_variable and tf.nn.embedding_lookup: the same numbers with tables as with variables."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph

v1 = tf.compat.v1

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adagrad", "ftrl", "ftrl_shrinkage", "lazy_adam", "rmsprop",
              "centered_rmsprop", "adadelta", "proximal_sgd", "proximal_adagrad")


@pytest.fixture
def everything(v1):
    """mx_rec with every variable that can be a table."""


def model(optimizer, variable, rows_of, clip=None):
    """A function for stock_cases.run: rows, a fixed projection, a squared loss.

    Args:
        optimizer: Name of one of stock_cases.optimizers().
        variable: Makes the variable, or a list of them.
        rows_of: (variable, ids (b, 3)) to floats (b, 12).
        clip: Pairs of gradients and variables to what is applied.
    """

    def build(ids, labels):
        made = variable()
        wide = rows_of(made, ids)
        project = tf.constant(np.linspace(-1, 1, 12), tf.float32)
        loss = tf.reduce_mean(tf.square(tf.tensordot(tf.reshape(wide, [-1, 12]), project, 1) - labels))
        opt = cases.optimizers()[optimizer]()
        pairs = opt.compute_gradients(loss)
        train = opt.apply_gradients(clip(pairs) if clip else pairs)
        parts = list(made) if type(made).__name__ == "PartitionedVariable" else [made]
        return loss, train, parts

    return build


def one(use_resource, shape=(cases.ROWS, cases.DIM), **kwargs):
    return lambda: tf.compat.v1.get_variable(
        "w", shape, use_resource=use_resource,
        initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.1), **kwargs)


def looked_up(variable, ids):
    return tf.nn.embedding_lookup(variable, ids)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_gives_the_numbers_of_the_variable(everything, optimizer, use_resource):
    plans = cases.expect_equal(model(optimizer, one(use_resource), looked_up), ["w"])
    slots = {"adagrad": 1, "momentum": 1, "nesterov": 1, "ftrl": 2, "ftrl_shrinkage": 2, "lazy_adam": 2,
             "rmsprop": 2, "centered_rmsprop": 3, "adadelta": 2, "proximal_adagrad": 1}.get(optimizer, 0)
    assert len(plans["w"].slots) == slots


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_each_part_of_a_partitioned_variable_is_a_table(everything, strategy, use_resource):
    def rows_of(variable, ids):
        return tf.nn.embedding_lookup(variable, ids, partition_strategy=strategy)

    made = one(use_resource, partitioner=tf.compat.v1.fixed_size_partitioner(3))
    plans = cases.expect_equal(model("adagrad", made, rows_of), ["w/part_{}".format(part) for part in range(3)])
    assert [plan.shape[0] for plan in plans.values()] == [20, 20, 20]


@pytest.mark.parametrize("shape", [(cases.ROWS,), (cases.ROWS, 2, 2), (cases.ROWS, 1)],
                         ids=["rank 1", "rank 3", "one column"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_row_of_a_variable_may_have_any_rank(everything, optimizer, shape):
    def rows_of(variable, ids):
        rows = tf.reshape(tf.nn.embedding_lookup(variable, ids), [tf.shape(ids)[0], -1])
        return tf.tile(rows, [1, 4])[:, :12]

    cases.expect_equal(model(optimizer, one(True, shape), rows_of), ["w"])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("safe", [False, True], ids=["plain", "safe"])
def test_sparse_ids_with_weights_are_pooled_as_before(everything, combiner, safe):
    def rows_of(variable, ids):
        padded = tf.where(ids % 7 == 0, -tf.ones_like(ids), ids) if safe else ids + 1
        sparse = tf.sparse.from_dense(padded + 1 if safe else padded)
        sparse = tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)
        weights = tf.SparseTensor(sparse.indices, 0.5 + tf.cast(sparse.values % 3, tf.float32), sparse.dense_shape)
        look_up = tf.nn.safe_embedding_lookup_sparse if safe else tf.compat.v1.nn.embedding_lookup_sparse
        pooled = look_up([variable] if safe else variable, sparse, weights, combiner=combiner)
        return tf.tile(pooled, [1, 3])

    cases.expect_equal(model("adagrad", one(True), rows_of), ["w"])


def bags_with_empty_rows(ids):
    """Sparse ids of which some rows have none, some negative ones, and the others up to three."""
    padded = tf.where(ids % 3 == 0, tf.zeros_like(ids), ids)
    sparse = tf.sparse.from_dense(padded)
    return tf.SparseTensor(sparse.indices, tf.where(sparse.values % 5 == 1, -sparse.values, sparse.values),
                           sparse.dense_shape)


@pytest.mark.parametrize("optimizer, combiner, use_resource", support.by_turns(
    ["sgd", "momentum", "adagrad", "ftrl", "ftrl_shrinkage", "rmsprop", "centered_rmsprop"], ["sum", "mean", "sqrtn"],
    [False, True]))
def test_pooled_rows_and_rows_without_ids_are_those_of_the_variable(everything, optimizer, combiner, use_resource):
    """Rows without ids touch the first row with a gradient of zeros, which momentum and FTRL notice."""
    def rows_of(variable, ids):
        pooled = tf.nn.safe_embedding_lookup_sparse(variable, bags_with_empty_rows(ids), combiner=combiner)
        return tf.tile(pooled, [1, 3])

    plans = cases.expect_equal(model(optimizer, one(use_resource), rows_of), ["w"])
    assert (plans["w"].pieces is not None) == (optimizer != "sgd")


@pytest.mark.long
def test_two_pooled_lookups_and_a_clipped_gradient_keep_the_ops_of_tensorflow(everything):
    def rows_of(variable, ids):
        one_bag = tf.nn.safe_embedding_lookup_sparse(variable, bags_with_empty_rows(ids), combiner="mean")
        other = tf.nn.safe_embedding_lookup_sparse(variable, bags_with_empty_rows(ids * 7 % cases.ROWS), combiner="sum")
        return tf.concat([one_bag, other, one_bag], 1)

    def clipped(pairs):
        grads, variables = zip(*pairs)
        return list(zip(tf.clip_by_global_norm(grads, 0.05)[0], variables))

    plans = cases.expect_equal(model("adagrad", one(True), rows_of, clipped), ["w"])
    assert plans["w"].pieces is None
    plans = cases.expect_equal(model("adagrad", one(True), rows_of), ["w"])
    assert len(plans["w"].pieces) == 2


def test_what_else_reads_a_fused_chain_still_has_its_value(everything, graph):
    ids = v1.placeholder(tf.int64, [None, 3])
    variable = one(True)()
    pooled = tf.nn.safe_embedding_lookup_sparse(variable, bags_with_empty_rows(ids))
    optimizer = v1.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(tf.reduce_sum(pooled))
    train = optimizer.apply_gradients(pairs)
    sums = [op.outputs[0] for op in graph.get_operations() if op.type == "SparseSegmentMean"]
    norm = tf.norm(pairs[0][0].values)
    plans = convert_graph(graph, True)
    assert plans[0].pieces
    with support.started(support.new_session()) as sess:
        feed = {ids: [[1, 2, 4], [7, 8, 9]]}
        before = sess.run(pooled, feed)
        outer, value, _ = sess.run([pooled, norm, train], feed)
        np.testing.assert_array_equal(outer, before)
        assert value > 0
        inner, outer, again = sess.run([sums[0], pooled, norm], feed)
        np.testing.assert_allclose(inner, outer, rtol=1e-6)
        assert again == value
        # TensorFlow reads these before the update; nothing would order them here.
        before = sess.run(pooled, feed)
        with pytest.raises(ValueError, match="nothing orders them before the update.*stock_tables"):
            sess.run([sums[0], train], feed)
        np.testing.assert_array_equal(sess.run(pooled, feed), before)


@pytest.mark.parametrize("what", ["Gather", "SparseSegment"])
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_rows_of_bags_that_the_graph_reads_too_are_read_before_the_update(everything, use_resource, what):
    seen = []

    def rows_of(variable, ids):
        pooled = tf.nn.safe_embedding_lookup_sparse(variable, bags_with_empty_rows(ids))
        of, = [op.outputs[0] for op in ids.graph.get_operations()
               if what in op.type and op.outputs[0].dtype == tf.float32 and op.outputs[0].shape.rank == 2]
        seen.append(tf.stop_gradient(tf.reduce_mean(tf.square(of))))
        return tf.tile(pooled, [1, 3]) + seen[-1]

    plans = cases.expect_equal(model("adagrad", one(use_resource), rows_of), ["w"])
    assert plans["w"].pieces is None


@pytest.mark.parametrize("clip", ["norm", "global norm", "value", "twice the rate"])
def test_what_stands_between_gradient_and_update_goes_on_working(everything, clip):
    def clipped(pairs):
        grads, variables = zip(*pairs)
        if clip == "norm":
            grads = [tf.clip_by_norm(grad, 0.05) for grad in grads]
        elif clip == "global norm":
            grads, _ = tf.clip_by_global_norm(grads, 0.05)
        elif clip == "value":
            grads = [tf.IndexedSlices(tf.clip_by_value(grad.values, -0.01, 0.01), grad.indices, grad.dense_shape)
                     for grad in grads]
        else:
            grads = [tf.IndexedSlices(grad.values * 2.0, grad.indices, grad.dense_shape) for grad in grads]
        return list(zip(grads, variables))

    cases.expect_equal(model("adagrad", one(True), looked_up, clipped), ["w"])


def test_a_learning_rate_that_decays_is_a_tensor_as_before(everything):
    def build(ids, labels):
        step = v1.train.get_or_create_global_step()
        made = one(False)()
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(looked_up(made, ids), [1, 2]) - labels))
        rate = v1.train.exponential_decay(0.1, step, 10, 0.9)
        return loss, v1.train.AdagradOptimizer(rate).minimize(loss, global_step=step), [made]

    cases.expect_equal(build, ["w"])


def test_two_lookups_of_a_variable_are_lookups_of_one_table(everything):
    def rows_of(variable, ids):
        return tf.concat([tf.nn.embedding_lookup(variable, ids[:, :2]), tf.gather(variable, ids[:, 2:])], 1)

    plans = cases.expect_equal(model("ftrl", one(False), rows_of), ["w"])
    assert [lookup.trains for lookup in plans["w"].lookups] == [True, True]


def test_an_id_outside_of_the_variable_is_the_error_of_gather(everything, graph):
    variable = one(True)()
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(variable, ids)
    train = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows))
    convert_graph(graph, True)
    with support.started(support.new_session()) as sess:
        for wrong in (-1, -5, cases.ROWS, 2 ** 40):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] = {} is not in \[0, {}\)".format(
                    wrong, cases.ROWS)):
                sess.run(train, {ids: [3, wrong]})
        assert converted(graph)[0].table.size() == 0
        assert sess.run(rows, {ids: []}).shape == (0, cases.DIM)
        sess.run(train, {ids: [0, cases.ROWS - 1]})
        assert converted(graph)[0].table.size() == 2


def test_a_lookup_that_trains_nothing_makes_no_row_and_shows_what_one_would_start_with(everything, graph):
    variable = one(False)()
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(
        tf.reduce_sum(tf.nn.embedding_lookup(variable, ids)))
    other = tf.nn.embedding_lookup(variable, ids)
    convert_graph(graph, True)
    table = converted(graph)[0].table
    with support.started(support.new_session()) as sess:
        before = sess.run(other, {ids: [1, 2, 1]})
        assert table.size() == 0
        assert (before[0] == before[2]).all() and (before[0] != before[1]).all() and np.abs(before).max() < 0.2
        sess.run(train, {ids: [1]})
        assert table.size() == 1
        after = sess.run(other, {ids: [1, 2]})
        np.testing.assert_allclose(after[0], before[0] - 0.1, rtol=1e-6)
        assert (after[1] == before[1]).all()


def test_a_script_that_asks_for_nothing_keeps_its_variables(dynamic, graph):
    variable = one(True)()
    tf.compat.v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(variable, [1])))
    before = graph.as_graph_def()
    assert convert_graph(graph, True) == []
    assert graph.as_graph_def() == before


@pytest.mark.parametrize("optimizer", ["ftrl", "adagrad", "adam"])
@pytest.mark.parametrize("shared", [False, True], ids=["gated", "shared"])
def test_a_fed_gradient_that_an_update_reads_past_is_refused(mx, optimizer, shared):
    """Rows were updated by the gradients from before the feed, without a word.

    Of a gradient behind `gate_gradients=GATE_GRAPH`, which the update waits for, and of one that another update reads as well.
    """
    def step(convert, value):
        with tf.Graph().as_default() as graph:
            ids = v1.placeholder(tf.int64, [None])
            w, other = [v1.get_variable(name, [cases.ROWS, 3], initializer=v1.constant_initializer(0.25)) for name in "wv"]
            loss = tf.reduce_sum(tf.square(tf.gather(w, ids) + 1.0)) + tf.reduce_sum(tf.gather(other, ids))
            opt = v1.train.AdamOptimizer(0.1) if optimizer == "adam" else cases.optimizers()[optimizer]()
            (slices, _), (second, _) = opt.compute_gradients(loss, [w, other], gate_gradients=opt.GATE_OP if shared else opt.GATE_GRAPH)
            if shared:
                second = tf.IndexedSlices(slices.values * 0.5, slices.indices, slices.dense_shape)
            train = opt.apply_gradients([(slices, w), (second, other)])
            if convert:
                mx(stock_tables=".*")
            with support.started(v1.Session()) as session:
                seen = session.run(slices.values, {ids: [1, 2]})
                feeds = {ids: [1, 2]} if value is None else {ids: [1, 2], slices.values: np.full_like(seen, value)}
                if value is not None and convert and not graph.is_feedable(slices.values):
                    with pytest.raises(ValueError, match="may not be fed"):
                        session.run(train, feeds)
                    return None
                session.run(train, feeds)
                return session.run([tf.gather(w, [1, 2]), tf.gather(other, [1, 2])])

    expected = step(False, -7.0)
    assert np.any(expected[0] != step(False, None)[0])
    found = step(True, -7.0)
    if found is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_scores_of_all_rows_in_the_graph_that_trains_are_those_of_the_variable(mx, optimizer, use_resource):
    """A variable stayed TensorFlow's for them, although only a run that fetches them computes them."""
    def seen(convert):
        with tf.Graph().as_default() as graph:
            ids = v1.placeholder(tf.int64, [None])
            w, b = [v1.get_variable(name, shape, initializer=v1.constant_initializer(0.25), use_resource=use_resource)
                    for name, shape in (("w", [cases.ROWS, 3]), ("b", [cases.ROWS]))]
            user = tf.gather(w, ids)
            scores = tf.nn.dropout(tf.matmul(user, tf.concat([w, 2.0 * w], 0), transpose_b=True), rate=0.0)[:, :9] + b[:9]
            loss = tf.reduce_sum(tf.square(user - 1.0)) + tf.reduce_sum(tf.square(tf.gather(b, ids) + 1.0))
            opt = v1.train.AdamOptimizer(0.1) if optimizer == "adam" else cases.optimizers()[optimizer]()
            train = opt.minimize(loss)
            if convert:
                mx(stock_tables=".*")
            found = []
            with support.started(v1.Session()) as session:
                for batch in ([1, 2], [2, 7, 2], [], [0]):
                    found += [session.run(train, {ids: batch}), session.run(scores, {ids: [1, 5]})]
            if convert:
                assert [op.type for op in graph.get_operations()].count("MxRecTable") == 2
            return found[1::2]

    for mine, theirs in zip(seen(True), seen(False)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_initializers_of_a_variable_and_of_its_slots_run_together(mx):
    """A slot that was read while the other emptied the table was an error, `ABORTED`, in three runs of four."""
    rows = 20000
    mx(stock_tables=".*")
    ids = v1.placeholder(tf.int64, [None])
    variable = v1.get_variable("users", [rows, 4], initializer=v1.random_uniform_initializer(-1, 1), use_resource=True)
    optimizer = v1.train.AdagradOptimizer(0.1)
    train = optimizer.minimize(tf.nn.l2_loss(tf.nn.embedding_lookup(variable, ids)))
    slot = optimizer.get_slot(variable, "accumulator")
    of_all = [one.initializer for one in v1.global_variables()]
    with support.new_session() as session:
        session.run(of_all)
        for _ in range(12):
            session.run(train, {ids: np.arange(rows)})
            session.run(of_all)
        assert (session.run(slot) == np.float32(0.1)).all()
        session.run(train, {ids: np.arange(100)})
        assert (session.run(slot)[:100] > 0.1).any()
        trained = session.run(variable)
        session.run(slot.initializer)
        assert (session.run(slot) == np.float32(0.1)).all()
        np.testing.assert_array_equal(session.run(variable), trained)
