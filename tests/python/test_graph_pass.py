"""The pass before a graph's first run: what shares an op, and runs that need less than the op does."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from fused_cases import batches, loss_of, optimizer, total
from modify_cases import AHEAD, PASSED, STEP
from test_fused_updates import needed
from mx_rec.graph import fuse, needs
from mx_rec.graph.together import Together
from mx_rec.graph.updates import Updating
from mx_rec.util.initialize import init, terminate_config_initializer

COUNT = 3


def alike(script, **config):
    """Runs a script without and with the pass; both see the same bits."""
    return cases.alike(script, moves=0, forms=(STEP, PASSED), use_dynamic=True, **config)


def tables_of(run, count=COUNT):
    return [run.table("t%d" % at, dim=(4, 16, 5)[at]) for at in range(count)]


def lookups_by_an_iterator(run):
    """(iterator, ids, label, tables, rows): a lookup a table by a feature each."""
    source, ids, label = batches(True, features=COUNT)
    tables = tables_of(run)
    return source, ids, label, tables, [run.lookup(table, ids[:, at]) for at, table in enumerate(tables)]


def model(run, rows, label, tables):
    """(loss, update) of sums over bags."""
    loss = loss_of([total(one) for one in rows], label)
    return loss, optimizer().minimize(loss, var_list=[table.variable for table in tables])


def lookups_of(op):
    """How many lookups each op does that resolves keys, of those that a run of `op` needs."""
    return sorted(one.get_attr("N") for kind, ops in needed(op).items() if kind.startswith("MxRecIdOffset") for one in ops)


def begun(run, source):
    sess = run.session()
    run.start(sess, source)
    return sess


@support.run_by(alike)
def test_a_lookup_a_table_is_one_op_and_a_run_of_one_looks_up_that_one_alone(run):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    sums = [total(one) for one in rows]
    loss = loss_of(sums, label)
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    predicted = tf.tanh(sums[1])
    run.modify()
    sess = begun(run, source)
    assert lookups_of(update) == ([COUNT] if run.form == PASSED else [1] * COUNT)
    # Each of these notes the number of rows of each table as well.
    for fetches in (sums[0], rows[2], predicted, [predicted, rows[0]], [loss, update], [sums[1], update], loss):
        run.step(sess, fetches)
    run.start(sess, source)
    run.note("callable", sess.make_callable([predicted])())
    run.note("partial", sess.partial_run(sess.partial_run_setup([predicted, sums[0]], []), [predicted, sums[0]]))
    run.epoch(sess, [loss, update])
    run.contents(sess)


@pytest.mark.long
@pytest.mark.parametrize("is_v2", [False, True], ids=["v1", "v2"])
@support.run_by(alike)
def test_a_run_that_needs_less_and_reads_through_a_loop_copies_the_loop_whole(run, is_v2):
    """Of a loop of control flow v1 a part was copied: "Cannot use 'map/while/Enter' as input" ended the run."""
    tf.compat.v1.enable_control_flow_v2() if is_v2 else None
    try:
        source, ids, label, tables, rows = lookups_by_an_iterator(run)
        mapped = [tf.map_fn(lambda one: one * tf.reduce_sum(label), tf.reduce_sum(one, 1)) for one in rows]
        turns = tf.while_loop(lambda at, _: at < 3, lambda at, sum: (at + 1, sum + mapped[0][0]),
                                (tf.constant(0), tf.zeros_like(rows[0][0, 0])))
        loss, update = model(run, rows, label, tables)
        run.modify()
        sess = begun(run, source)
        for fetches in (mapped[1], turns, [mapped[0], turns[1]], mapped, [update, loss], [mapped[2], update]):
            run.step(sess, fetches)
        run.contents(sess)
    finally:
        tf.compat.v1.disable_control_flow_v2() if is_v2 else None


@pytest.mark.long
@pytest.mark.parametrize("is_v2", [False, True], ids=["v1", "v2"])
@support.run_by(alike)
def test_a_loop_that_runs_beside_its_copy_has_arrays_and_stacks_of_its_own(run, is_v2):
    """Both read the arrays of the first: "Could not read index 9 twice" ended the run, and both pushed onto one stack."""
    tf.compat.v1.enable_control_flow_v2() if is_v2 else None
    try:
        source, ids, label, tables, rows = lookups_by_an_iterator(run)
        other = tf.cast(tf.reduce_sum(ids[:, 0], 1) % 7, tf.float32) + 1.0
        pairs = [tf.map_fn(lambda one: (tf.tanh(one[0] * one[1]), tf.square(one[1]) * one[1]),
                             (tf.reduce_sum(one, [1, 2]), other), dtype=(tf.float32, tf.float32)) for one in rows]
        slopes = [tf.gradients(pair[0], other)[0] for pair in pairs]
        plain = [tf.gradients(pair[1], other)[0] for pair in pairs]
        loss, update = model(run, rows, label, tables)
        run.modify()
        sess = begun(run, source)
        for fetches in (pairs[1], [slopes[1], plain[1]], [pairs[0], plain[0]], [slopes, plain, pairs[2]], [update, loss],
                        [slopes[2], plain[2], pairs[2][1]], [plain[1], update]):
            run.step(sess, fetches)
        run.contents(sess)
    finally:
        tf.compat.v1.disable_control_flow_v2() if is_v2 else None


@support.run_by(alike)
def test_the_parts_of_a_partial_run_compute_what_its_setup_decided(run):
    """A part fetches less than the setup: it was decided anew, and asked for ops that the setup did not know."""
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    sums = [total(one) for one in rows]
    scale = tf.compat.v1.placeholder(tf.float32, [])
    loss = loss_of(sums, label) * scale
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    with tf.control_dependencies([update]):
        trained = tf.identity(loss)
    with tf.control_dependencies(support.updates_in(tf.compat.v1.get_default_graph().get_operations())[1:2]):
        of_one = tf.identity(sums[1])
    run.modify()
    sess = begun(run, source)
    for fetches in ([sums[0], rows[1], trained], [sums[1], sums[0]], [sums[2], of_one], [rows[2], trained]):
        begin = sess.partial_run_setup(fetches, [scale])
        for one in fetches[:-1]:
            run.note("part", sess.partial_run(begin, one))
        run.note("rest", sess.partial_run(begin, fetches[-1], {scale: 0.5}))
        with sess.as_default():
            run.note("sizes", [table.size() for table in tables])
    run.contents(sess)


@support.run_by(alike)
def test_what_lies_between_can_be_fed(run):
    source, ids, label = batches(True, features=COUNT)
    tables = tables_of(run)
    rows = [run.lookup(table, ids[:, at, 0]) for at, table in enumerate(tables)]
    joined = [tf.square(one) for one in rows]
    loss = loss_of(joined, label)
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    run.modify()
    sess = begun(run, source)
    run.step(sess, [loss, update])
    for tensor, width in ((rows[0], 4), (joined[1], 16)):
        run.step(sess, [loss, rows[2]], {tensor: np.full([6, width], 0.5, np.float32)})
        run.step(sess, [loss, update], {tensor: np.full([6, width], 0.25, np.float32)})
    run.contents(sess)


@support.run_by(alike)
def test_lookups_by_a_placeholder_each_share_an_op_and_a_run_of_one_is_fed_that_one_alone(run):
    tables = tables_of(run)
    ids = [tf.compat.v1.placeholder(tf.int64, [None, 4]) for _ in tables]
    rows = [run.lookup(table, one) for table, one in zip(tables, ids)]
    sums = [total(one) for one in rows]
    predicted = tf.tanh(sums[1])
    loss = loss_of(sums, tf.constant(0.5))
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    run.modify()
    sess = run.session()
    given = np.arange(8).reshape(2, 4)
    feed = {one: given + at for at, one in enumerate(ids)}
    run.step(sess, rows[1], {ids[1]: given})
    run.step(sess, [loss, update], feed)
    assert lookups_of(update) == ([COUNT] if run.form == PASSED else [1] * COUNT)
    run.step(sess, sums[0], {ids[0]: given + 20})
    run.note("callable", sess.make_callable(predicted, [ids[1]])(given + 30))
    begin = sess.partial_run_setup([predicted, loss], ids)
    run.note("part", sess.partial_run(begin, predicted, {ids[1]: given}))
    run.note("rest", sess.partial_run(begin, loss, {ids[0]: given, ids[2]: given}))
    run.step(sess, [loss, update], {one: given[:0] for one in ids})
    # A value for the sums of one lookup in the place of its ids.
    run.step(sess, loss, {ids[0]: given, ids[2]: given, sums[1]: np.full([2, 16], 0.5, np.float32)})
    run.contents(sess)


@pytest.mark.parametrize("broken", ["fuse_sums", "fuse_concats", "_fused", "_join"])
def test_a_rule_that_fails_is_left_out_and_the_graph_runs_without_it(broken, monkeypatch, caplog):
    """Each fails behind the last of its changes, or the first of them."""
    owner = {"_join": Together, "_fused": Updating}.get(broken, fuse)
    real = getattr(owner, broken)

    def fail(*args):
        result = real(*args)
        if args[1]:
            raise ValueError("a fault behind " + broken)
        return result

    def script(run):
        source, ids, label, tables, rows = lookups_by_an_iterator(run)
        sums = [total(one) for one in rows[:2]]
        wide = tf.concat([total(rows[2]), run.lookup(tables[0], ids[:, 2, 0]), run.lookup(tables[1], ids[:, 2, 1])], -1)
        loss = loss_of(sums + [wide], label)
        update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
        run.modify()
        sess = begun(run, source)
        run.step(sess, [loss, update])
        run.step(sess, [sums[1], rows[0]])
        run.epoch(sess, [loss, update])
        run.contents(sess)

    monkeypatch.setattr(owner, broken, fail)
    alike(script)
    warned, = [record.getMessage() for record in caplog.records if record.levelname == "WARNING" and "runs without" in record.getMessage()]
    assert "a fault behind " + broken in warned


@support.run_by(alike)
def test_two_towers_that_train_by_turns_share_nothing(run):
    source, ids, label = batches(True)
    tables = tables_of(run, 2)
    updates = [model(run, [run.lookup(table, ids[:, at])], label, [table])[1] for at, table in enumerate(tables)]
    run.modify()
    sess = begun(run, source)
    for update in updates * 2:
        run.step(sess, update)
        assert lookups_of(update) == [1]
    run.contents(sess)


@support.run_by(alike)
def test_a_graph_that_grows_gets_its_new_lookups_passed_over(run):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss, update = model(run, rows, label, tables)
    run.modify()
    sess = begun(run, source)
    run.step(sess, [loss, update])
    later = [total(run.lookup(table, ids[:, at] + 1, is_train=False)) for at, table in enumerate(tables)]
    whole = tf.concat(later, 1)
    run.step(sess, whole)
    finds = [op.get_attr("N") for op in needed(whole.op).get("MxRecFind bags of many", [])]
    assert finds == ([COUNT] if run.form == PASSED else [])
    run.step(sess, [later[0], loss])
    # Another session, which runs all of it as it is.
    other = begun(run, source)
    run.epoch(other, [loss, whole, update])
    run.contents(other)


@support.run_by(alike)
def test_branches_and_ops_that_wait_keep_their_order(run):
    source, ids, label = batches(True, features=COUNT)
    tables = tables_of(run)
    flag = tf.compat.v1.placeholder_with_default(True, [])
    first = run.lookup(tables[0], ids[:, 0])
    with tf.control_dependencies([first]):
        second = run.lookup(tables[1], ids[:, 1])
    third = tf.cond(flag, lambda: total(run.lookup(tables[2], ids[:, 2])), lambda: tf.zeros([6, 5]))
    loss = loss_of([total(first), total(second), third], label)
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    run.modify()
    sess = begun(run, source)
    for value in (True, False, True):
        run.step(sess, [loss, update], {flag: value})
    run.contents(sess)


@support.run_by(alike, "tmp_path")
def test_a_checkpoint_and_a_meta_graph_go_on_alike(run, tmp_path):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss, update = model(run, rows, label, tables)
    saver = tf.compat.v1.train.Saver()
    run.modify()
    sess = begun(run, source)
    run.step(sess, [loss, update])
    path = saver.save(sess, str(tmp_path / run.form / "model"))
    run.step(sess, [loss, update])
    saver.restore(sess, path)
    run.step(sess, [total(rows[0]), loss])
    names = loss.name, update.name, rows[0].name
    run.contents(sess)
    with tf.Graph().as_default() as graph:
        again = tf.compat.v1.train.import_meta_graph(path + ".meta")
        with support.new_session(graph) as other:
            again.restore(other, path)
            other.run([op for op in graph.get_operations() if op.type == "MakeIterator"])
            for fetches in (names[:2], names[0]):
                run.note("imported", other.run([fetches])[0])


@pytest.mark.long
@support.run_by(alike, "tmp_path")
def test_a_run_of_an_imported_graph_is_fed_the_ids_alone_of_the_lookups_that_it_needs(run, tmp_path):
    """Rows that one op reads for several tables were read for all of them, whose ids had to be fed."""
    tables = tables_of(run)
    ids = [tf.compat.v1.placeholder(tf.int64, [None, 4]) for _ in tables]
    pooled = total(run.lookup(tables[0], ids[0] + 1))
    found = [tf.square(run.lookup(table, one)) for table, one in zip(tables, ids)] + [pooled]
    loss = loss_of([tf.reduce_sum(one, 1) for one in found[:-1]] + [pooled], tf.constant(0.5))
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    saver = tf.compat.v1.train.Saver()
    run.modify()
    sess = run.session()
    given = [np.arange(8).reshape(2, 4) + at for at in range(COUNT)]
    run.step(sess, [loss, update], dict(zip(ids, given)))
    path = saver.save(sess, str(tmp_path / run.form / "model"))
    names = [one.name for one in ids], [one.name for one in found], [loss.name, update.name]
    with tf.Graph().as_default() as graph:
        again = tf.compat.v1.train.import_meta_graph(path + ".meta")
        # A sum of rows that one op reads with others.
        rows = graph.get_tensor_by_name(found[2].op.inputs[0].name)
        later = total(rows)
        with support.new_session(graph) as other:
            again.restore(other, path)
            for fetched, fed in ((names[1][1], 1), (names[1][3], 0), (later, 2)):
                run.note("one", other.run(fetched, {names[0][fed]: given[fed] + 3}))
            run.note("all", other.run(names[2] + names[1], dict(zip(names[0], given)))[2:])
            run.note("one", other.run(names[1][2], {names[0][2]: given[0]}))


# Those move as well that the run of less has added.
@pytest.mark.long
@support.run_by(cases.alike, moves=3 * COUNT + 1 + 2, forms=(STEP, AHEAD), use_dynamic=True)
def test_a_graph_that_a_closed_session_ran_is_taken_apart_before_it_is_modified(run):
    """Rows of which some are fused by then, and whose ids move."""
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    flat = [run.lookup(table, ids[:, at, 0]) for at, table in enumerate(tables)]
    evaluated = [run.lookup(table, ids[:, at, 1], is_train=False) for at, table in enumerate(tables)]
    loss = loss_of([total(rows[0]), tf.reduce_sum(rows[1], 1), tf.reduce_max(rows[2], 1)] + flat, label)
    looked = tf.concat(evaluated, -1)
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    first = run.session()
    run.start(first, source, own=True)
    run.step(first, [loss, update])
    for fetches in (rows[1], evaluated[1:]):
        run.step(first, fetches)
    first.close()
    run.modify()
    sess = run.session()
    run.start(sess, source)
    for fetches in ([loss, update], [rows[2], flat[1]], evaluated[1], looked, [rows[0], loss, update]):
        run.step(sess, fetches)
    run.epoch(sess, [loss, update])
    run.contents(sess)
    if run.is_modified:
        assert lookups_of(update) == [2 * COUNT], lookups_of(update)


def test_a_graph_that_cannot_be_read_runs_as_it_is(graph, dynamic, monkeypatch, caplog):
    def fail(*_, **__):
        raise ValueError("no GraphDef")

    monkeypatch.setattr(fuse, "make_plan", fail)
    run = cases.Run(STEP)
    tables = tables_of(run, 2)
    loss = loss_of([total(run.lookup(table, tf.constant([[1, 2], [3, -1]], tf.int64))) for table in tables], tf.constant(1.0))
    run.modify()
    sess = run.session()
    assert np.isfinite(sess.run(loss))
    assert "runs as it is" in caplog.text
    assert lookups_of(loss.op) == [1, 1]
    run.close()


def test_threads_whose_runs_need_less_come_at_once(graph, dynamic, monkeypatch):
    """What the graph was is read when the first of them comes: the others found half of it, and had to be fed all ids."""
    below = needs._below
    monkeypatch.setattr(needs, "_below", lambda *given: (time.sleep(0.3), below(*given))[1])
    run = cases.Run(PASSED)
    tables = tables_of(run)
    ids = [tf.compat.v1.placeholder(tf.int64, [None, 6]) for _ in tables]
    rows = [run.lookup(table, one) for table, one in zip(tables, ids)]
    sums = [total(one) for one in rows]
    loss = loss_of(sums, tf.constant(0.5))
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    run.modify()
    sess = support.new_session(graph)
    sess.run(tf.compat.v1.variables_initializer(tf.compat.v1.global_variables()))
    given = np.arange(24).reshape(4, 6) % 7
    feed = {one: given + at for at, one in enumerate(ids)}
    sess.run([loss, update], feed)
    expected, found, start = sess.run(sums, feed), {}, threading.Barrier(COUNT)

    def work(at):
        start.wait()
        try:
            found[at] = sess.run(sums[at], {ids[at]: given + at})
        except Exception as error:  # pylint: disable=broad-except
            found[at] = error

    threads = [threading.Thread(target=work, args=(at,)) for at in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, value in enumerate(expected):
        np.testing.assert_array_equal(found[at], value)
    sess.close()


@pytest.mark.parametrize("joined", [True, False])
def test_the_pass_can_be_switched_off(graph, joined):
    with pytest.raises(ValueError, match="graph_pass"):
        init(graph_pass=1)
    init(use_dynamic=True, graph_pass=joined)
    try:
        run = cases.Run(STEP)
        tables = tables_of(run)
        ids = tf.constant([[1, 2], [3, 4]], tf.int64)
        loss, update = model(run, [run.lookup(table, ids) for table in tables], tf.constant(0.5), tables)
        run.modify()
        run.step(run.session(), [loss, update])
        assert lookups_of(update) == ([COUNT] if joined else [1] * COUNT)
        run.close()
    finally:
        terminate_config_initializer()
