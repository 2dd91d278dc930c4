"""Variables as inputs of the plugin's ops: an assignment beside the op changes nothing under its hands.

TensorFlow lends an op the memory of a reference variable, and an assignment writes there. An op that reads its ids twice then
met other ids the second time: rows of other keys, or "the op panicked".
"""

import threading

import numpy as np
import pytest
import tensorflow as tf

import support

DIM = 2


@pytest.fixture
def table(graph):
    return support.Raw.new(DIM, ops=support.shaped_ops(), capacity=500000)


def variable(value, use_resource=False):
    return tf.compat.v1.Variable(value, use_resource=use_resource)


def copied(tensor):
    """Whether any input of the op that makes `tensor` is a copy."""
    return "DeepCopy" in [one.op.type for one in tensor.op.inputs]


def test_what_may_be_the_memory_of_a_reference_variable_is_copied(graph, table):
    ops = support.shaped_ops()
    tf1 = tf.compat.v1
    ids = variable(np.arange(6))

    def looped(value):
        return tf1.while_loop(lambda at, _: at < 1, lambda at, kept: (at + 1, kept), (0, value))[1]

    ways = {
        "itself": ids, "its value": ids.read_value(), "reference": ids._ref(), "identity": tf.identity(ids),
        "reshape": tf.reshape(ids, [2, 3]), "slice": ids[:3], "part": tf.split(ids, 2)[0], "stack of one": tf.stack([ids]),
        "expanded": tf.expand_dims(tf.expand_dims(ids, 0), 0), "same type": tf1.cast(tf.bitcast(ids, tf.int64), tf.int64),
        "cond": tf1.cond(tf1.placeholder_with_default(True, []), lambda: tf.identity(ids), lambda: tf.constant(np.arange(6))),
        "loop": looped(ids.read_value()), "twice": tf.identity(ids.read_value()),
    }
    for name, value in ways.items():
        assert copied(ops.find(table.handle, table.variable, value, tf.zeros([0, DIM]))), name
    assert copied(support.update(
        "sgd", [table.handle], [tf.zeros([6], tf.int64)], [variable(np.ones([6, DIM], np.float32))], [1.0, 0.0],
        [tf.cast(ids, tf.int32)], ops=ops))


def test_what_nobody_writes_to_is_not_copied(graph, table):
    ops = support.shaped_ops()
    ids = variable(np.arange(6))
    for name, value in {
            "constant": tf.constant(np.arange(6)), "list": [1, 2, 3], "computed": ids + 1, "resource": variable(np.arange(6), True),
            "placeholder": tf.compat.v1.placeholder(tf.int64, [None]), "gathered": tf.gather(ids, [0])}.items():
        assert not copied(ops.find(table.handle, table.variable, value, tf.zeros([0, DIM]))), name
    # The plugin copies scalars at once.
    rate = variable(0.5)
    assert not copied(support.update_ids("sgd", table.handle, [1], [[1.0] * DIM], rate, 0.0, ops=ops))


def test_a_variable_outside_of_a_function_is_copied_for_the_op_inside(graph, table):
    ops = support.shaped_ops()
    from tensorflow.python.framework import func_graph

    ids = variable(np.arange(6))
    value = ids.read_value()
    inside = func_graph.FuncGraph("inside")
    with inside.as_default():
        found = ops.find(table.handle, table.variable, tf.identity(value), tf.zeros([0, DIM]))
        assert copied(found) or "DeepCopy" in [outer.op.type for outer, _ in inside.captures]
        plain = ops.find(table.handle, table.variable, tf.constant([1], tf.int64), tf.zeros([0, DIM]))
        assert not copied(plain)


def test_gradients_go_through_a_copy(graph, session):
    ops = support.shaped_ops()
    rows = variable(np.arange(6, dtype=np.float32).reshape(3, DIM))
    spread = ops.mx_rec_restore(rows, tf.constant([0, 2, 2], tf.int32))
    assert copied(spread)
    grad, = tf.gradients(tf.reduce_sum(spread * [[1.0], [2.0], [3.0]]), [rows])
    sess = support.started(session(), rows.initializer)
    assert sess.run(grad).tolist() == [[1, 1], [0, 0], [5, 5]]


def while_assigned(sess, assigns, run, turns):
    """Runs `run` some times while another thread runs `assigns` in turn."""
    stop, errors = threading.Event(), []

    def assigning():
        try:
            while not stop.is_set():
                for assign in assigns:
                    sess.run(assign)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    thread = threading.Thread(target=assigning)
    thread.start()
    try:
        for _ in range(turns):
            run()
    finally:
        stop.set()
        thread.join(timeout=300)
    assert not errors, errors[0]


@pytest.mark.long
def test_ids_that_are_assigned_while_they_are_looked_up_give_their_own_rows(graph, session, table):
    """Every id of one batch has a row of its own value; the two batches share no id."""
    ops = support.shaped_ops()
    n = 100000
    batches = [np.arange(n), np.arange(n) + n]
    ids = variable(batches[0])
    others = [tf.constant(batch) for batch in batches]
    assigns = [ids.assign(other).op for other in others]
    resolved = ops.resolve(table.handle, ids, create=0)
    found = ops.embed(table.handle, table.variable, resolved.offsets, resolved.inverse)
    direct = ops.find(table.handle, table.variable, ids, tf.zeros([0, DIM]))
    sess = support.started(session(), ids.initializer)
    for batch in batches:
        table.assign(sess, batch, np.stack([batch, -batch], 1))

    def run():
        for rows in sess.run([found, direct]):
            old, new = [rows[:, 0] == batch for batch in batches]
            assert np.all(old | new)
            assert np.array_equal(rows[:, 0], -rows[:, 1])

    while_assigned(sess, assigns, run, 60)
    assert table.size(sess) == 2 * n


@pytest.mark.long
def test_gradients_and_rates_that_are_assigned_while_they_are_applied_are_old_or_new(graph, session, table):
    ops = support.shaped_ops()
    n = 50000
    keys = tf.constant(np.arange(n))
    grads, rate = variable(np.ones([n, DIM], np.float32)), variable(1.0)
    assigns = [assign.op for value in (1.0, 2.0) for assign in (
        grads.assign(tf.fill([n, DIM], value)), rate.assign(value))]
    update = support.update_ids("sgd", table.handle, keys, grads, rate, 0.0, ops=ops)
    found = ops.find(table.handle, table.variable, keys, tf.zeros([0, DIM]))
    sess = support.started(session(), [grads.initializer, rate.initializer])
    before = [np.zeros([n, DIM], np.float32)]

    def run():
        assert sess.run(update) == n
        after = sess.run(found)
        step = before[0] - after
        assert np.all(np.isin(step, [1.0, 2.0, 4.0]))
        # One rate for all rows.
        assert not {1.0, 4.0} <= set(np.unique(step).tolist())
        before[0] = after

    while_assigned(sess, assigns, run, 40)
