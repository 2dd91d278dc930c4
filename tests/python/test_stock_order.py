"""Converted variables keep the order of control dependencies, and what initializes them."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables


def variable(v1, use_resource, initializer=None, name="w"):
    return v1.get_variable(name, [cases.ROWS, cases.DIM], use_resource=use_resource,
                           initializer=initializer or v1.ones_initializer())


def plan_of(graph):
    return {plan.name: plan for plan in convert_graph(graph, True)}["w"]


def convert(graph):
    plan = plan_of(graph)
    assert plan.converts, plan.reason
    return plan


both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


@both
def test_an_update_waits_for_what_its_gradients_wait_for(v1, graph, use_resource):
    w, good = variable(v1, use_resource), v1.placeholder(tf.bool, [])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(w, [1, 2]))
    optimizer = v1.train.AdagradOptimizer(0.1)
    (grad, _), = optimizer.compute_gradients(loss)
    with tf.control_dependencies([v1.Assert(good, ["not good"])]):
        grad = tf.IndexedSlices(tf.identity(grad.values), tf.identity(grad.indices), grad.dense_shape)
    train = optimizer.apply_gradients([(grad, w)])
    init = v1.global_variables_initializer()
    assert convert(graph).pieces
    with support.started(support.new_session(), init) as sess:
        before = sess.run(loss)
        with pytest.raises(tf.errors.InvalidArgumentError, match="not good"):
            sess.run(train, {good: False})
        assert sess.run(loss) == before
        sess.run(train, {good: True})
        assert sess.run(loss) != before


@both
def test_a_fused_update_does_not_wait_for_gates(v1, graph, use_resource):
    w, values = variable(v1, use_resource), v1.placeholder(tf.int64, [None])
    sparse = tf.SparseTensor([[0, 0], [1, 0]], values, [2, 1])
    rows = tf.nn.safe_embedding_lookup_sparse([w], sparse, combiner="mean")
    v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows * rows))
    assert convert(graph).pieces
    update, = support.updates_in(graph.get_operations())
    assert not [op.name for op in update.control_inputs]


@both
def test_rows_of_a_value_that_was_read_later_are_read_later(v1, graph, use_resource):
    w, ids = variable(v1, use_resource), v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(w, ids))
    train = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
    with tf.control_dependencies([train]):
        value = w.read_value()
    after = tf.gather(value, ids)
    init = v1.global_variables_initializer()
    convert(graph)
    with support.started(support.new_session(), init) as sess:
        np.testing.assert_array_equal(sess.run(after, {ids: [1, 2]}), np.full([2, cases.DIM], 0.5))


def orders(kind, use_resource, tables):
    """Rows that are looked up after an update of the same run, by ids that were made before; with tables or without."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        w = variable(v1, use_resource, v1.truncated_normal_initializer(seed=3))
        v1.set_random_seed(1)
        ids = v1.placeholder(tf.int64, [None, 2])
        bounded = tf.math.floormod(ids, cases.ROWS)
        optimizer = v1.train.AdagradOptimizer(0.5)
        first = optimizer.minimize(tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, bounded))))
        with tf.control_dependencies([first]):
            if kind == "modulo":
                # The constant of the modulo waits, and neither the modulo nor the gather.
                again = tf.math.floormod(ids, cases.ROWS)
            else:
                again = bounded
            after = tf.nn.embedding_lookup(w, again) if kind != "read" else tf.gather(tf.identity(w.read_value()), again)
        if kind == "two train ops":
            after = optimizer.minimize(tf.reduce_sum(tf.pow(after, 3.0)))
        evaluated = tf.nn.embedding_lookup(w, bounded)
        init = v1.global_variables_initializer()
        support.keep_variables()
        if tables:
            assert convert(graph).lookups
        with support.started(support.new_session(), init) as sess:
            set_start(sess, w)
            found = []
            for step in range(4):
                feed = {ids: [[1, 2], [step, 2]]}
                result = sess.run(after, feed)
                found.append([] if result is None else result.tolist())
                found.append(sess.run(evaluated, feed).tolist())
            return np.array(found[1::2]), [np.array(one) for one in found[0::2]]


def set_start(sess, w):
    cases.set_variable(sess, w, cases.start(w.shape.as_list()))


@both
@pytest.mark.parametrize("kind", ["lookup", "modulo", "read", "two train ops"])
def test_rows_are_looked_up_after_the_update_that_their_block_waits_for(v1, graph, use_resource, kind):
    """TensorFlow hangs the control edge of a block on the constants that the gather reads, if its ids were made
    outside of it: the lookup read rows of before the update."""
    stock, tables = orders(kind, use_resource, False), orders(kind, use_resource, True)
    for expected, found in zip([stock[0]] + stock[1], [tables[0]] + tables[1]):
        np.testing.assert_allclose(found, expected, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


# (What a run shows of a value that was read before the training, what that waits for), given the value and rows of it.
SHOWN = {"rows": lambda value, rows: (lambda: tf.gather(value, [1, 2]), rows), "value": lambda value, rows: (lambda: value, value),
         "sum": lambda value, rows: (lambda: tf.reduce_sum(value, 0), value)}


@both
@pytest.mark.parametrize("what", sorted(SHOWN))
def test_what_was_read_before_a_training_is_shown_as_it_was(v1, use_resource, what):
    """Tables showed rows of after the training in the place of those that a resource variable had before it. A reference
    variable is its memory: its copies have what is there later."""
    found = []
    for tables in (False, True):
        with tf.Graph().as_default() as graph:
            w = variable(v1, use_resource)
            value = tf.identity(w.read_value())
            rows = tf.gather(value, [1, 2, 3])
            show, waited = SHOWN[what](value, rows)
            with tf.control_dependencies([waited]):
                train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(rows)))
            with tf.control_dependencies([train]):
                shown = show()
            support.keep_variables()
            if tables:
                plan = plan_of(graph)
                assert plan.converts != use_resource, plan.reason
                assert not use_resource or "shows what it was before" in plan.reason
            with support.started(support.new_session()) as sess:
                found.append([sess.run([shown, train])[0] for _ in range(3)])
    np.testing.assert_allclose(found[1], found[0], rtol=cases.TOLERANCE)


@pytest.mark.parametrize("is_read_by_others", [False, True])
def test_a_reference_variable_that_is_fetched_beside_its_training_has_what_that_has_made(v1, is_read_by_others):
    """`sess.run([train, w])` gave rows of before the training or of after it, as threads ran. TensorFlow copies the memory
    of a reference variable when the run has ended."""
    found = []
    for tables in (False, True):
        with tf.Graph().as_default() as graph:
            w, other = variable(v1, False), variable(v1, False, name="other")
            optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
            train, train_other = [optimizer.minimize(tf.reduce_sum(tf.square(tf.gather(one, [1, 2])))) for one in (w, other)]
            reads = [w, tf.identity(w), w.read_value(), "w:0", optimizer.get_slot(w, "momentum"), [w, other]]
            if is_read_by_others:
                v1.summary.histogram("w", w)
            support.keep_variables()
            if tables:
                convert(graph)
            with support.started(support.new_session()) as sess:
                for _ in range(3):
                    for read in reads:
                        found.append([tables] + list(np.ravel(sess.run([read, train])[0])))
                found.append([tables] + list(np.ravel(sess.run([w, train_other])[0])))
                found.append([tables] + list(np.ravel(sess.run({"both": [w, train, train_other]})["both"][0])))
                # What a loop and a branch change.
                sets = w.assign(np.full(w.shape, 0.25, np.float32)), v1.assign(reads[4], np.full(w.shape, 0.5, np.float32))
                found.append([tables] + list(np.ravel(sess.run([*sets, w, reads[4]]))))
                for is_added in (True, False):
                    added = tf.cond(tf.constant(is_added), lambda: tf.group(v1.scatter_add(w, [3], np.ones([1, cases.DIM]))), tf.no_op)
                    found.append([tables] + list(np.ravel(sess.run([w, added])[0])))
                count = len(graph.get_operations())
                for read in reads:
                    sess.run([read, train])
                assert len(graph.get_operations()) == count
    half = len(found) // 2
    for expected, seen in zip(found[:half], found[half:]):
        np.testing.assert_allclose(seen[1:], expected[1:], rtol=cases.TOLERANCE)


@pytest.fixture
def unlimited(mx, graph):
    mx(stock_tables=StockTables(names=".*", least_rows=1, unlimited_ids=True))


@both
def test_ids_without_limits_wait_for_what_their_limit_waited_for(unlimited, use_resource):
    stock, tables = orders("modulo", use_resource, False), orders("modulo", use_resource, True)
    for expected, found in zip(stock[1], tables[1]):
        # Each row, the one that the same run has updated included.
        np.testing.assert_allclose(found, expected, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@both
def test_an_initializer_that_runs_again_starts_again(v1, graph, use_resource):
    w = variable(v1, use_resource)
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, [1, 2])))
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    init = v1.global_variables_initializer()
    convert(graph)
    with support.new_session() as sess:
        runs = []
        for start in (init, init, v1.global_variables_initializer()):
            sess.run(start)
            runs.append([sess.run([loss, train])[0] for _ in range(3)])
    assert runs[0][0] == 2 * cases.DIM and runs[0][0] > runs[0][2]
    assert runs[1] == runs[0] and runs[2] == runs[0]


@both
def test_a_value_that_a_table_cannot_take_is_refused(v1, graph, use_resource):
    w = variable(v1, use_resource, v1.random_uniform_initializer())
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(w, [1, 2])))
    init, own = v1.global_variables_initializer(), w.initializer
    start = own.inputs[1]
    convert(graph)
    value = np.zeros([cases.ROWS, cases.DIM], np.float32)
    with support.started(support.new_session(), init) as sess:
        with pytest.raises(ValueError, match="fed"):
            sess.run(init, {start: value})
        start = cases.value_of(sess, w)
        sess.run(train)
        assert (cases.value_of(sess, w)[1:3] != start[1:3]).all()
        # Its initializer alone starts the table again.
        sess.run(own)
        np.testing.assert_array_equal(cases.value_of(sess, w), start)


def spread(v1, use_resource):
    return v1.get_variable("w", use_resource=use_resource, initializer=v1.zeros([cases.ROWS, cases.DIM])
                           + v1.random_uniform([1, cases.DIM], seed=5))


def twice(v1, use_resource):
    start = v1.random_uniform([cases.ROWS, cases.DIM])
    v1.get_variable("other", initializer=start, use_resource=use_resource)
    return v1.get_variable("w", initializer=start, use_resource=use_resource)


def rounded(v1, use_resource):
    start = v1.cast(v1.cast(v1.constant(0.7), v1.int32), v1.float32)
    return v1.get_variable("w", initializer=v1.fill([cases.ROWS, cases.DIM], start), use_resource=use_resource)


@both
@pytest.mark.parametrize("made", [spread, twice, rounded], ids=lambda made: made.__name__)
def test_numbers_that_are_not_drawn_for_each_element_are_set_by_the_initializer(v1, graph, made, use_resource):
    w = made(v1, use_resource)
    v1.train.AdagradOptimizer(0.1).minimize(v1.reduce_sum(v1.gather(w, [1])))
    plan = plan_of(graph)
    assert plan.converts and plan.sets_rows
    other = [one for one in v1.global_variables() if one.op.name == "other"]
    with support.started(support.new_session()) as session:
        rows = session.run(w)
        expected = session.run(other[0]) if other else np.broadcast_to(rows[:1] if made is spread else 0.0, rows.shape)
    np.testing.assert_array_equal(rows, expected)
    assert made is rounded or rows.std() > 0.1


@both
def test_a_variable_to_which_one_number_is_added_stays(v1, graph, use_resource):
    w = variable(v1, use_resource)
    tf.nn.embedding_lookup(w, [1, 2])
    if use_resource:
        tf.raw_ops.ResourceScatterAdd(resource=w.handle, indices=[1, 2], updates=1.0)
    else:
        tf.group(v1.scatter_add(w, [1, 2], 1.0).op)
    plan = plan_of(graph)
    assert not plan.converts and "adds one number" in plan.reason
