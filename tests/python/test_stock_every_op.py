"""Every op on a variable that becomes a table is moved to it, whatever runs it, or the variable stays TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph

KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


def model(optimizer, use_resource):
    """A builder for stock_cases.run of a model of one variable."""

    def build(ids, labels):
        w = tf.compat.v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource)
        found = tf.reduce_sum(tf.nn.embedding_lookup(w, ids), 1)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(found, 1) - labels))
        return loss, optimizer(loss, w), [w]

    return build


@pytest.mark.parametrize("name, settings, slots", [
    ("RMSprop", {}, []), ("RMSprop", {"centered": True}, []), ("SGD", {}, []),
    ("Adamax", {}, ["AdaMax_momentum", "AdaMax_infinity_norm"]), ("Nadam", {}, ["LazyAdam_momentum", "LazyAdam_velocity"]),
    ("Ftrl", {}, ["Ftrl_accum", "Ftrl_linear"]), ("RMSprop", {"momentum": 0.5}, ["RMSProp_rms", "RMSProp_momentum"]),
    ("RMSprop", {"momentum": 0.5, "centered": True, "epsilon": 1e-3}, ["RMSProp_rms", "RMSProp_mg", "RMSProp_momentum"])])
def test_optimizers_of_keras_train_tables(v1, name, settings, slots):
    """RMSprop and Adamax wait for a read of the variable, which nothing takes: "Error while reading resource variable"."""
    make = getattr(getattr(tf.keras.optimizers, "legacy", tf.keras.optimizers), name)

    def optimizer(loss, w):
        return tf.group(*make(0.05, **settings).get_updates(loss, [w]))

    plan = cases.expect_equal(model(optimizer, True), ["w"], 30)["w"]
    # Without momentum, RMSprop decays all rows of its variables in each step: these stay.
    assert [slot.name for slot in plan.slots] == slots


@pytest.mark.parametrize("name", ["AddSignOptimizer", "PowerSignOptimizer"])
def test_sign_optimizers_of_contrib_keep_their_slot_and_train_the_table(v1, name):
    make = getattr(tf.contrib.opt, name)
    cases.expect_equal(model(lambda loss, w: make(0.05).minimize(loss), False), ["w"], 30)


WAITS = {
    "read_value": lambda v1, w: w.read_value(),
    "value": lambda v1, w: w.value(),
    "copy": lambda v1, w: v1.identity(w),
    "copy_of_copy": lambda v1, w: v1.identity(v1.identity(w.read_value())),
    "shape": lambda v1, w: v1.shape(w),
    "size": lambda v1, w: v1.size(w),
    "cast": lambda v1, w: v1.cast(w, v1.float64),
    "state": lambda v1, w: v1.is_variable_initialized(w),
    "rows": lambda v1, w: v1.gather(w, [1, 2]),
    "mean": lambda v1, w: v1.reduce_mean(w),
    "histogram": lambda v1, w: v1.summary.histogram("w", w),
    "read_of_slot": lambda v1, w: w.slot.read_value(),
    "state_of_slot": lambda v1, w: v1.is_variable_initialized(w.slot),
    "rows_of_slot": lambda v1, w: v1.gather(w.slot, [1, 2]),
    "assert": lambda v1, w: v1.debugging.Assert(v1.reduce_all(v1.is_finite(w)), [1]),
    "variable": lambda v1, w: w.op,
}


@KINDS
@pytest.mark.parametrize("how", list(WAITS))
def test_a_training_may_wait_for_any_op_on_its_variable(v1, use_resource, how):
    """An op that nothing reads, and that something waits for, was left on the variable, which has no value."""
    def optimizer(loss, w):
        made = v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.3)
        pairs = made.compute_gradients(loss, [w])
        train = made.apply_gradients(pairs)
        w.slot = made.get_slot(w, "accumulator")
        waited = WAITS[how](v1, w)
        with tf.control_dependencies([train, waited]):
            step = tf.no_op()
        return step

    stock, tables = [cases.run(model(optimizer, use_resource), converts, 4) for converts in (False, True)]
    np.testing.assert_allclose(tables.losses, stock.losses, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    plan = tables.plans["w"]
    assert plan.converts or plan.reason
    assert plan.converts == (how not in ("mean", "assert", "rows_of_slot")), plan.reason


@KINDS
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "momentum"])
def test_a_run_may_ask_for_the_op_that_updates_a_variable(v1, use_resource, optimizer):
    """The op of the variable ran: "Attempting to use uninitialized value w"."""
    seen = []
    for tables in (False, True):
        with tf.Graph().as_default() as graph:
            ids = v1.placeholder(tf.int64, [None])
            w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource, initializer=v1.ones_initializer())
            cases.optimizers()[optimizer]().minimize(tf.reduce_sum(tf.square(tf.gather(w, ids))))
            kinds = ("SparseApply", "Scatter")
            updates = [op for op in graph.get_operations() if op.type.replace("Resource", "").startswith(kinds)
                       and op.inputs[0].op is w.op]
            assert len(updates) == 1
            support.keep_variables()
            if tables:
                assert convert_graph(graph, True)[0].converts
            fetched = updates + list(updates[0].outputs)
            with support.started(support.new_session()) as sess:
                for _ in range(3):
                    got = sess.run(fetched, {ids: [3, 3, 7]})
                    seen.append(sess.run(w))
                    np.testing.assert_array_equal(got[-1] if len(got) > 1 else seen[-1], seen[-1])
    assert (seen[0] != seen[2]).any()
    np.testing.assert_allclose(seen[3:], seen[:3], rtol=1e-6)


READS = {
    "sum": lambda v1, w: tf.reduce_sum(w, 0),
    "norm in a summary": lambda v1, w: v1.summary.scalar("norm", tf.norm(w)),
    "slice": lambda v1, w: w[2:5] * 1.0,
    "copy": lambda v1, w: tf.identity(w),
}


@KINDS
@pytest.mark.parametrize("is_late, is_read", [(False, False), (True, False), (True, True)], ids=["before", "later", "read and later"])
def test_what_reads_a_variable_behind_its_training_sees_what_that_left(v1, use_resource, is_late, is_read):
    """The copy of a reference variable is its memory; the table was read where the copy stood, in front of the training."""
    seen = []
    for tables in (False, True):
        with tf.Graph().as_default() as graph:
            ids = v1.placeholder(tf.int64, [None])
            w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource, initializer=v1.ones_initializer())
            train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(tf.gather(w, ids))))

            def reads():
                with tf.control_dependencies([train]):
                    made = [make(v1, w) for make in READS.values()]
                    done = tf.constant(2.0) * 1.0
                # A reader may also take what was made behind the training.
                return made + [tf.multiply(w, done)] * (not use_resource)

            made = [] if is_late else reads()
            # What a program reads later is what stands in the place of this read then.
            if is_read:
                tf.reduce_mean(w)
            support.keep_variables()
            if tables:
                assert convert_graph(graph, True)[0].converts
            with support.started(support.new_session()) as sess:
                sess.run(train, {ids: [3]})
                made = made or reads()
                with tf.control_dependencies([train]):
                    made.append(tf.gather(w, [3, 4]))
                for one in made:
                    value = sess.run(one, {ids: [3, 3, 7]})
                    seen.append(v1.Summary.FromString(value).value[0].simple_value if isinstance(value, bytes) else value)
    half = len(seen) // 2
    for table, stock in zip(seen[half:], seen[:half]):
        np.testing.assert_allclose(table, stock, rtol=1e-6)
    assert (seen[0] != seen[3].sum(0)).any()
