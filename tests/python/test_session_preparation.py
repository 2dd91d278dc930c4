"""What has to happen before a session's first step happens once, for all threads, and however the step is run."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.ops import control_flow_ops

import modify_cases as cases
import support
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import EvictHook
from mx_rec.graph import modify_graph_and_start_emb_cache, sessions
from mx_rec.state.graph_state import graph_state
from mx_rec.util.initialize import ConfigInitializer, terminate_config_initializer


def modified_numbers(count=48):
    """A modified graph on a one-shot iterator: (ids of a batch, the update)."""
    run = cases.Run(cases.AHEAD)
    data = tf.data.Dataset.range(count).map(lambda number: {"ids": tf.reshape(number, [1])})
    batch = cases.one_shot(data).get_next()
    rows = run.lookup(run.table(), batch["ids"])
    modify_graph_and_start_emb_cache()
    return batch["ids"], rows


def test_threads_that_come_first_together_start_a_one_shot_pipeline_once(dynamic):
    """One thread marked the session as prepared and then started the iterator; the others ran steps meanwhile and failed."""
    ids, rows = modified_numbers()
    for _ in range(10):
        with support.new_session() as sess:
            seen = support.in_threads(lambda number: [sess.run([ids, rows])[0][0] for _ in range(6)], range(8))
            assert sorted(np.ravel(seen).tolist()) == list(range(48))


def test_a_step_that_is_a_callable_starts_a_one_shot_pipeline(dynamic):
    ids, rows = modified_numbers()
    with support.new_session() as sess:
        step = sess.make_callable([ids, rows])
        assert [step()[0][0] for _ in range(3)] == [0, 1, 2]
        assert sess.run(ids).tolist() == [3]
    with support.new_session() as sess:
        handle = sess.partial_run_setup([ids, rows])
        assert sess.partial_run(handle, ids).tolist() == [0]


def counted(feed_stamp=True):
    """A lookup with eviction whose timestamp is named only after the lookup was made: (rows, the op that counts)."""
    table = create_table(tf.int64, 4, "table", tf.compat.v1.ones_initializer(), device_vocabulary_size=100)
    rows = sparse_lookup(table, tf.constant([1, 2], tf.int64), modify_graph=True,
                         access_and_evict_config={"access_threshold": 1, "eviction_threshold": 5})
    if feed_stamp:
        tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", tf.constant(77, tf.int64))
    [observe] = [op for op in rows.graph.get_operations() if op.type == "MxRecObserve"]
    return rows, observe


@pytest.mark.parametrize("how", ["run", "callable", "partial"])
def test_admission_has_its_timestamp_however_the_first_step_is_run(dynamic, session, how):
    """A callable ran without: no key had a time, and nothing was ever evicted."""
    rows, observe = counted()
    sess = session()
    stamp = observe.inputs[3]
    if how == "run":
        seen = sess.run([rows, stamp])
    elif how == "callable":
        seen = sess.make_callable([rows, stamp])()
    else:
        seen = sess.partial_run(sess.partial_run_setup([rows, stamp]), [rows, stamp])
    assert seen[1] == 77


def test_a_lookup_that_is_built_after_the_first_run_has_its_timestamp(dynamic, session):
    """The session was looked at once, before its first run."""
    sess = session()
    assert sess.run(tf.constant(3)) == 3
    rows, observe = counted()
    assert sess.run([rows, observe.inputs[3]])[1] == 77


def test_a_lookup_that_is_built_after_the_first_run_and_lacks_its_timestamp_is_an_error(dynamic, session):
    sess = session()
    assert sess.run(tf.constant(3)) == 3
    rows, observe = counted(feed_stamp=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="'table'.*timestamp"):
            sess.run(rows)
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", tf.constant(78, tf.int64))
    assert sess.run([rows, observe.inputs[3]])[1] == 78


SCOPES = {
    "control_dependencies": lambda graph, other: graph.control_dependencies([other]),
    "device": lambda graph, other: graph.device("/device:CPU:1"),
    "colocate_with": lambda graph, other: graph.colocate_with(other),
    "attributes": lambda graph, other: graph._attr_scope({"_of": attr_value_pb2.AttrValue(b=True)}),
    "overrides": lambda graph, other: graph.gradient_override_map({"Identity": "Square"}),
    "branch": lambda graph, other: branch_of(tf.equal(other, 1.0)),
}


@contextlib.contextmanager
def branch_of(condition):
    """The branch of a tf.cond that is taken if the condition holds."""
    pivot = tf.identity(tf.compat.v1.raw_ops.Switch(data=condition, pred=condition)[1])
    context = control_flow_ops.CondContext(condition, pivot, 1)
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


@pytest.mark.parametrize("began,ended", [("outside", "inside"), ("inside", "built"), ("inside", "left"), ("outside", "left")])
@pytest.mark.parametrize("scope", sorted(SCOPES))
def test_a_thread_builds_in_its_scopes_while_a_run_of_another_one_changes_the_graph(dynamic, graph, monkeypatch, scope, began, ended):
    """The pass over a graph cleared what TensorFlow keeps once for all threads: ops that another thread made lost their
    control dependencies, devices and branches without a word."""
    assert "_control_dependencies_stack" not in graph.__dict__
    rows = sparse_lookup(support.make_table(), tf.constant([1, 2], tf.int64), modify_graph=True)
    pooled, other, value = tf.reduce_sum(rows, 1), tf.constant(1.0), tf.constant(2.0)
    is_changing, may_end, added = threading.Event(), threading.Event(), []

    def change(graph, first, stock=sessions.pass_over):
        with graph.device("/device:CPU:2"), graph.control_dependencies([value]), \
                graph.gradient_override_map({"Identity": "Exp"}):
            is_changing.set()
            # The other thread's op may wait for this one's end.
            may_end.wait(0.3)
            added.append(tf.identity(other).op)
        stock(graph, first)

    def run():
        with graph.as_default(), support.new_session(graph) as sess:
            sess.run(pooled)

    runner = threading.Thread(target=run)
    monkeypatch.setattr(sessions, "pass_over", change)

    def at(point):
        if point == began:
            runner.start()
            assert is_changing.wait(60)
        if point == ended:
            may_end.set()
            runner.join(60)

    def build(at):
        at("outside")
        with SCOPES[scope](graph, other):
            at("inside")
            made = tf.identity(value, name="made").op
            at("built")
        at("left")
        return [made, tf.identity(value, name="behind").op]

    def seen(ops):
        return [([one.type for one in op.control_inputs], op.device, len(op.colocation_groups()), sorted(op.node_def.attr),
                 op._get_control_flow_context() is None, op.inputs[0].op.type) for op in ops]

    during = seen(build(at))
    assert not runner.is_alive()
    assert during == seen(build(lambda point: None))
    assert seen(added) == [(["Const"], "/device:CPU:2", 1, ["T", "_gradient_op_type"], True, "Const")]


def test_threads_that_open_sessions_at_once_are_all_known(dynamic):
    """Two threads could make the state of a graph each; a session that only the lost one knew was not seen."""
    for _ in range(20):
        with tf.Graph().as_default() as graph:
            tf.constant(1)
            sessions = support.in_threads(lambda number: tf.compat.v1.Session(graph=graph), range(8))
            assert set(graph_state(graph).sessions()) == set(sessions)
            for one in sessions:
                one.close()


def test_threads_build_graphs_of_their_own_at_once(dynamic):
    """The present graph is that of the thread: tables, lookups and modification do not mix."""
    def work(number):
        with tf.Graph().as_default() as graph:
            ids, rows = modified_numbers(6)
            with tf.compat.v1.Session(graph=graph) as sess:
                values = [sess.run([ids, rows]) for _ in range(6)]
                (table,) = graph_state(graph).tables.values()
                assert table.size() == 6
            return [batch.tolist() for batch, _ in values], [row for _, row in values]

    results = support.in_threads(work, range(4))
    for seen, rows in results:
        assert seen == [[number] for number in range(6)]
        support.assert_same_bits(rows, results[0][1])


def test_an_evict_hook_serves_one_session_at_a_time(dynamic, graph):
    """The session that came first was never evicted again, without a word."""
    tf1 = tf.compat.v1
    rows, _ = counted()
    train = tf.group(rows, tf1.train.get_or_create_global_step().assign_add(1))
    hook = EvictHook(True, evict_step_interval=1)
    with tf1.train.MonitoredTrainingSession(hooks=[hook]) as first:
        first.run(train)
        with pytest.raises(RuntimeError, match="EvictHook for each session"):
            hook.after_create_session(tf1.Session(), None)
        first.run(train)
    sess = tf1.Session()
    sess.run(tf1.global_variables_initializer())
    hook.after_create_session(sess, None)
    sess.close()


def test_a_second_init_and_a_second_graph_begin_empty(graph, mx):
    mx(max_steps=3, use_dynamic_expansion=True)
    ConfigInitializer.get_instance().train_params_config.ascend_global_hashtable_collection = "mine"
    cases.Run(cases.STEP).table("first")
    terminate_config_initializer()
    with pytest.raises(EnvironmentError, match="init the environment"):
        ConfigInitializer.get_instance()
    tf.compat.v1.reset_default_graph()
    mx()
    config = ConfigInitializer.get_instance()
    assert config.max_steps == -1 and not config.use_dynamic_expansion and not config.modify_graph
    assert config.train_params_config.ascend_global_hashtable_collection == "ASCEND_GLOBAL_HASHTABLE_COLLECTION"
    state = graph_state()
    assert not state.tables and not state.frozen and not state.insertions and not state.initializers
    assert not config.sparse_embed_config.table_name_set


def test_a_run_of_a_graph_that_has_not_grown_prepares_nothing(graph, session, monkeypatch):
    """It is one comparison: programs without tables run it in each of their steps."""
    from mx_rec.graph import sessions

    prepared = []
    stock = sessions._prepare
    monkeypatch.setattr(sessions, "_prepare", lambda one: (prepared.append(one), stock(one)))
    fed = tf.compat.v1.placeholder(tf.float32, [])
    double, sess, other = fed * 2.0, session(), session()
    for one in (sess, other):
        assert [float(one.run(double, {fed: value})) for value in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert prepared == [sess, other]
    more = double + 1.0
    for one in (sess, other):
        assert [float(one.run(more, {fed: value})) for value in (1.0, 2.0)] == [3.0, 5.0]
    assert prepared == [sess, other] * 2
