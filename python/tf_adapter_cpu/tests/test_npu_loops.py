"""One run of a looped op is so many runs of the step: the same numbers, in every kind of session."""

import numpy as np
import pytest
import tensorflow as tf

from tf_adapter import SetIterationsVarHook, util


def model(data=None):
    """A step on two dense variables; returns (the step, its loss, the variable)."""
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(12, dtype=np.float32) if data is None else data)
    value = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.constant_initializer(0.5))
    loss = tf.square(weight * value - 3.0)
    step = tf.compat.v1.train.get_or_create_global_step()
    train = tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    return train, loss, weight


def initialised():
    sess = tf.compat.v1.Session()
    sess.run(tf.compat.v1.global_variables_initializer())
    return sess


def single_runs(count):
    with tf.Graph().as_default():
        train, loss, weight = model()
        with initialised() as sess:
            losses = [sess.run([train, loss])[1] for _ in range(count)]
            return losses[-1], sess.run(weight)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_run_has_the_numbers_of_as_many_runs(count):
    train, loss, weight = model()
    with initialised() as sess:
        looped = util.set_iteration_per_loop(sess, train, count)
        assert isinstance(looped, tf.Operation) and looped is not train
        for runs in (1, 2):
            nothing, last = sess.run([looped, loss])
            assert nothing is None
            assert (last, sess.run(weight)) == single_runs(count * runs)
        assert sess.run(tf.compat.v1.train.get_global_step()) == 2 * count


def test_other_fetches_are_run_once():
    train, _, weight = model()
    with initialised() as sess:
        util.set_iteration_per_loop(sess, train, 5)
        count = tf.compat.v1.assign_add(tf.compat.v1.get_variable("n", [], tf.int64, tf.compat.v1.zeros_initializer()), 1)
        sess.run(tf.compat.v1.get_default_graph().get_operation_by_name("n/Assign"))
        assert sess.run({"n": count, "w": [weight]})["n"] == 1


def test_what_depends_on_the_looped_op_is_looped_too_and_feeds_are_kept():
    weight = tf.compat.v1.get_variable("w", [], initializer=tf.compat.v1.zeros_initializer())
    amount = tf.compat.v1.placeholder(tf.float32, [])
    with initialised() as sess:
        looped = util.set_iteration_per_loop(sess, weight.assign_add(amount).op, 4)
        with tf.control_dependencies([looped]):
            after = tf.identity(amount)
        assert sess.run(after, {amount: 2.0}) == 2.0 and sess.run(weight) == 8.0
        sess.run(looped.name, {amount: 1.0})
        assert sess.run(weight) == 12.0
        looped.run({amount: 1.0}, session=sess)
        assert sess.run(weight) == 16.0


def test_the_end_of_the_data_ends_a_run_after_the_steps_before_it():
    train, _, _ = model(np.ones(5, np.float32))
    with initialised() as sess:
        looped = util.set_iteration_per_loop(sess, train, 3)
        sess.run(looped)
        with pytest.raises(tf.errors.OutOfRangeError):
            sess.run(looped)
        assert sess.run(tf.compat.v1.train.get_global_step()) == 5


def test_a_session_that_does_not_loop_the_op_refuses_before_any_step():
    train, loss, _ = model()
    step = tf.compat.v1.train.get_global_step()
    with initialised() as sess, initialised() as other:
        looped = util.set_iteration_per_loop(sess, train, 3)
        with tf.control_dependencies([looped]):
            after = tf.identity(loss)
        for fetches in (looped, [looped, loss], {"a": (after,)}, looped.name):
            with pytest.raises(RuntimeError, match="'IterationOp' does several steps .* No step was done"):
                other.run(fetches)
        with pytest.raises(RuntimeError, match="only run"):
            other.make_callable(looped)
        with pytest.raises(RuntimeError, match="only run"):
            sess.partial_run_setup([looped])
        assert other.run(step) == 0 and sess.run(step) == 0
        assert other.run(loss) == 9.0  # The first sample: nothing was read, either.
        assert other.make_callable(step)() == 0


def test_what_does_not_run_by_our_methods_fails_all_the_same():
    train, _, _ = model()
    with initialised() as sess, initialised() as other:
        looped = util.set_iteration_per_loop(sess, train, 3)
        with pytest.raises(tf.errors.InvalidArgumentError, match="run without tf_adapter"):
            getattr(type(other).run, "_mx_rec_unlooped")(other, looped)


def test_two_sessions_loop_one_op_so_often_as_each_was_told():
    train, _, _ = model()
    step = tf.compat.v1.train.get_global_step()
    loop = util.IterationPerLoop()
    looped = loop.create_iteration_per_loop_var(train)
    with initialised() as sess, initialised() as other:
        loop.load_iteration_per_loop_var(sess, 2)
        loop.load_iteration_per_loop_var(other, 5)
        sess.run(looped)
        other.run(looped)
        assert (sess.run(step), other.run(step)) == (2, 5)
        loop.load_iteration_per_loop_var(sess, 1)
        sess.run(looped)
        assert sess.run(step) == 3


def test_wrong_fetches_get_the_error_of_the_session():
    train, _, _ = model()
    with initialised() as sess:
        looped = util.set_iteration_per_loop(sess, train, 3)
        for fetches, words in (([looped, None], "None"), ([looped, "no_such:0"], "no_such")):
            with pytest.raises((TypeError, ValueError), match=words):
                sess.run(fetches)
        assert sess.run(tf.compat.v1.train.get_global_step()) == 0


def test_sessions_of_other_graphs_do_as_ever():
    train, _, _ = model()
    with initialised() as sess:
        util.set_iteration_per_loop(sess, train, 3)
        with tf.Graph().as_default(), tf.compat.v1.Session() as other:
            assert other.run(tf.group(tf.constant(1), name="IterationOp")) is None


@pytest.mark.parametrize("op, count, words", [
    (None, 3, "train_op should be an Operation"), ("tensor", 3, "train_op should be an Operation"),
    ("op", 0, "iterations_per_loop"), ("op", True, "iterations_per_loop"), ("op", 2.0, "iterations_per_loop")])
def test_wrong_arguments_are_named(op, count, words):
    op = {"tensor": tf.constant(1.0), "op": tf.no_op()}.get(op, op)
    with tf.compat.v1.Session() as sess, pytest.raises(ValueError, match=words):
        util.set_iteration_per_loop(sess, op, count)


def test_a_session_of_another_graph_is_refused():
    with tf.Graph().as_default():
        elsewhere = tf.compat.v1.Session()
    with pytest.raises(ValueError, match="session of the graph"):
        util.set_iteration_per_loop(elsewhere, tf.no_op(), 2)
    elsewhere.close()


def test_loops_of_different_lengths_are_no_one_run():
    with tf.compat.v1.Session() as sess:
        two = util.set_iteration_per_loop(sess, tf.no_op(), 2)
        three = util.set_iteration_per_loop(sess, tf.no_op(), 3)
        with pytest.raises(ValueError, match="loops of 2 and 3 steps"):
            sess.run([two, three])


class Steps(tf.estimator.SessionRunHook):
    """Notes the global step after each run."""

    def __init__(self):
        self.seen = []

    def after_run(self, run_context, run_values):
        self.seen.append(run_context.session.run(tf.compat.v1.train.get_global_step()))


def test_hooks_of_a_monitored_session_see_the_step_advance_by_the_loop():
    train, loss, _ = model()
    hook = Steps()
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as sess:
        sess.graph._unsafe_unfinalize()
        looped = util.set_iteration_per_loop(sess, train, 4)
        last = sess.run([looped, loss])[1]
        sess.run(looped)
    assert hook.seen == [4, 8] and last == single_runs(4)[0]


def test_a_hook_loops_the_op_that_a_script_calls_iteration_op():
    train, loss, _ = model()
    train = tf.group(train, name="IterationOp")
    hook = Steps()
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=[SetIterationsVarHook(3), hook]) as sess:
        assert sess.run([train, loss])[1] == single_runs(3)[0]
    assert hook.seen == [3]
    with initialised() as sess:  # Without the hook it is an op as any other.
        sess.run(train)
        assert sess.run(tf.compat.v1.train.get_global_step()) == 1


def test_a_hook_that_finds_no_such_op_says_how_to_make_it():
    for count in (None, 0, True, 1.5):
        with pytest.raises(ValueError, match="iterations_per_loop"):
            SetIterationsVarHook(count)
    model()
    with pytest.raises(RuntimeError, match="name='IterationOp'.*has 0"):
        tf.compat.v1.train.MonitoredTrainingSession(hooks=[SetIterationsVarHook(3)])


def test_two_calls_serve_graphs_that_are_finalised_in_between():
    train, loss, _ = model()
    loop = util.IterationPerLoop()
    with pytest.raises(RuntimeError, match="create_iteration_per_loop_var"):
        loop.load_iteration_per_loop_var(None, 2)
    looped = loop.create_iteration_per_loop_var(train)
    with tf.compat.v1.train.MonitoredTrainingSession() as sess:
        with pytest.raises(ValueError, match="iterations_per_loop"):
            loop.load_iteration_per_loop_var(sess, 0)
        loop.load_iteration_per_loop_var(sess, 3)
        assert sess.run([looped, loss])[1] == single_runs(3)[0]


def test_a_session_configured_for_another_number_is_told(caplog):
    config = tf.compat.v1.ConfigProto()
    optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
    optimizer.name = "NpuOptimizer"
    optimizer.parameter_map["iterations_per_loop"].i = 10
    with tf.compat.v1.Session(config=config) as sess:
        with caplog.at_level("WARNING", logger="tensorflow"):
            util.set_iteration_per_loop(sess, tf.no_op(), 10)
            assert not caplog.records
            util.set_iteration_per_loop(sess, tf.no_op(), 5)
    assert "10 in the session's configuration, and 5" in caplog.text
