"""Updates that the graph pass joins and fuses: runs of some of them, their order, and what may be fed."""

import numpy as np
import pytest
import tensorflow as tf

import support
from fused_cases import batches, loss_of, optimizer, total
from modify_cases import PASSED
from test_fused_updates import needed
from test_graph_pass import COUNT, alike, begun, lookups_by_an_iterator, model, tables_of
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import init, terminate_config_initializer


def updates_of(op):
    """How many gradients each update takes, of those that a run of `op` needs."""
    return sorted(one.get_attr("N") for one in needed(op)["MxRecUpdate"])


@support.run_by(alike)
def test_what_waits_for_joined_updates_runs_behind_them(run):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss, update = model(run, rows, label, tables)
    steps = tf.compat.v1.get_variable("steps", [], tf.int64, tf.compat.v1.zeros_initializer(), trainable=False)
    with tf.control_dependencies([update]):
        counted = tf.compat.v1.assign_add(steps, 1)
        after = [total(run.lookup(table, ids[:, at], is_train=False)) for at, table in enumerate(tables)]
    train = tf.group(update, counted)
    run.modify()
    sess = begun(run, source)
    for fetched in (train, [loss, after], update, [counted, after[1]], [train, loss]):
        run.step(sess, fetched)
    assert updates_of(train) == ([COUNT] if run.form == PASSED else [1] * COUNT)
    run.contents(sess)


@support.run_by(alike)
def test_updates_that_a_graph_gets_later_are_joined_and_those_that_ran_stay(run):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss = loss_of([total(one) for one in rows], label)
    one, variables = optimizer(), [table.variable for table in tables]
    update = one.minimize(loss, var_list=variables)
    run.modify()
    sess = begun(run, source)
    run.step(sess, [loss, update])
    other = one.minimize(loss * 2.0, var_list=variables)
    for fetched in (other, [loss, update], other):
        run.step(sess, fetched)
    joined = [COUNT] if run.form == PASSED else [1] * COUNT
    assert updates_of(update) == updates_of(other) == joined
    run.contents(sess)


def variables_of(tables):
    return [table.variable for table in tables]


@pytest.mark.long
@pytest.mark.parametrize("fetched", ["train op", "update"])
@support.run_by(alike)
def test_train_ops_of_a_table_each_that_one_op_joins_run_alone_as_well(run, fetched):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss, one = loss_of([total(each) for each in rows], label), optimizer("adagrad")
    trains = [one.minimize(loss, var_list=[table.variable]) for table in tables]
    updates = support.updates_in(tf.compat.v1.get_default_graph().get_operations())
    whole = tf.group(*updates)
    trains = updates if fetched == "update" else trains
    run.modify()
    sess = begun(run, source)
    assert updates_of(whole) == ([COUNT] if run.form == PASSED else [1] * COUNT)
    for some in (whole, trains[0], [trains[1], loss], trains[1:], whole):
        run.step(sess, some)
    later = tf.group(trains[2])
    for some in (later, whole, trains[0], later):
        run.step(sess, some)
    run.contents(sess)


def test_two_updates_of_a_table_that_the_same_op_waits_for_are_two_steps():
    """One op would add their gradients up, and Adagrad would square the sum."""
    found = []

    def script(run):
        ids = tf.compat.v1.placeholder(tf.int64, [None, 2])
        tables = [run.table("t%d" % at) for at in range(2)]
        rows = [run.lookup(table, ids) for table in tables]
        one, losses = optimizer("adagrad"), [tf.reduce_sum(tf.square(rows[0])), tf.reduce_sum(tf.sin(rows[0]) * rows[1])]
        pairs = [one.compute_gradients(loss, variables_of(tables)) for loss in losses]
        one.apply_gradients(pairs[0][:1])
        one.apply_gradients(pairs[1])
        whole = tf.group(*support.updates_in(tf.compat.v1.get_default_graph().get_operations()))
        run.modify()
        sess = run.session()
        assert updates_of(whole) == ([1, 2] if run.form == PASSED else [1, 1, 1])
        sess.run(whole, {ids: np.zeros([0, 2])})
        sess.run(whole, {ids: [[1, 2], [1, 3]]})
        found.append(run.raw(tables[0]).slot_rows(sess, "Adagrad_accumulator"))
        run.note("keys", sorted(found[-1]))

    alike(script)
    for key, row in found[0].items():
        # Which of the two comes first is left to the run.
        np.testing.assert_allclose(row, found[1][key], rtol=1e-5)


@pytest.mark.parametrize("waits", ["for the train op", "for its updates"])
@support.run_by(alike)
def test_two_train_ops_keep_their_order_and_share_no_op(run, waits):
    """What the sums of the second one wait for was the first one's updates as they were: these ran beside their joint op."""
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss, first = model(run, rows, label, tables)
    updates = support.updates_in(tf.compat.v1.get_default_graph().get_operations())
    with tf.control_dependencies([first] if waits == "for the train op" else updates):
        again = [run.lookup(table, ids[:, at] + 0) for at, table in enumerate(tables)]
        later = loss_of([total(one) for one in again], label)
        second = optimizer("adagrad").minimize(later, var_list=variables_of(tables))
        third = optimizer("adagrad").minimize(tf.identity(later) * 2.0, var_list=variables_of(tables[:2]))
    run.modify()
    sess = begun(run, source)
    if run.form == PASSED:
        assert updates_of(second) == [COUNT, COUNT] and updates_of(third) == [COUNT - 1, COUNT]
    for fetched in (second, [first, loss], [second, later, loss], third):
        run.step(sess, fetched)
    run.epoch(sess, [loss, later, second])
    run.contents(sess)


@support.run_by(alike)
def test_a_lookup_by_ids_that_wait_for_an_update_shares_no_op_with_the_one_that_the_update_is_of(run):
    """"Graph is invalid, contains a cycle": the update came to wait for the joint op, whose ids wait for the update."""
    ids = tf.constant([[1, 2, 3], [4, 5, 6]], tf.int64)
    tables = tables_of(run, 2)
    # The gradient is a constant: nothing but the pass orders the update behind the rows.
    loss = tf.reduce_sum(total(run.lookup(tables[0], ids)))
    update = optimizer("gradient_descent").minimize(loss, var_list=variables_of(tables[:1]))
    with tf.control_dependencies([update]):
        late = tf.identity(ids)
    whole = tf.reduce_sum(total(run.lookup(tables[1], late)))
    both = tf.stack([loss * 0.0, whole])
    run.modify()
    sess = run.session()
    for fetched in (both, [whole, update]):
        run.step(sess, fetched)
    run.contents(sess)


@pytest.mark.long
@support.run_by(alike)
def test_optimizers_of_two_kinds_update_parts_of_the_tables_by_an_op_each(run):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    loss = loss_of([total(one) for one in rows], label)
    dense = tf.compat.v1.get_variable("w", [], initializer=tf.compat.v1.ones_initializer())
    trains = [optimizer("adagrad").minimize(loss, var_list=variables_of(tables[:2])),
              optimizer().minimize(loss, var_list=variables_of(tables[2:])),
              tf.compat.v1.train.MomentumOptimizer(0.1, 0.5).minimize(tf.square(dense), var_list=[dense])]
    whole = tf.group(*trains)
    run.modify()
    sess = begun(run, source)
    assert updates_of(whole) == ([1, 2] if run.form == PASSED else [1] * COUNT)
    for fetched in (whole, trains[0], [trains[1], loss], whole, trains[2]):
        run.step(sess, fetched)
    run.epoch(sess, [loss, whole])
    run.contents(sess)


@pytest.mark.parametrize("where", ["cond", "while"])
@support.run_by(alike)
def test_a_train_op_in_a_branch_or_a_loop_updates_as_often_as_it_runs(run, where):
    source, ids, label = batches(True, features=COUNT)
    tables = tables_of(run)

    def train():
        rows = [run.lookup(table, ids[:, at]) for at, table in enumerate(tables)]
        with tf.control_dependencies([model(run, rows, label, tables)[1]]):
            return tf.constant(1)

    flag = tf.compat.v1.placeholder_with_default(True, [])
    if where == "cond":
        done = tf.cond(flag, train, lambda: tf.constant(0))
    else:
        done = tf.while_loop(lambda at: at < 2, lambda at: at + train(), [tf.constant(0)], parallel_iterations=1,
                               back_prop=False)
    run.modify()
    sess = begun(run, source)
    for value in (True, False, True):
        run.step(sess, done, {flag: value})
    run.contents(sess)


@support.run_by(alike)
def test_gradients_can_be_fetched_and_those_that_a_script_changes_can_be_fed(run):
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    wide = tf.concat([total(rows[0]), rows[1][:, 0], total(rows[2])], -1)
    loss = loss_of([wide], label)
    grads = tf.gradients(loss, variables_of(tables))
    clipped = [tf.IndexedSlices(tf.clip_by_value(one.values, -0.01, 0.01), tf.identity(one.indices)) for one in grads]
    update = optimizer("adagrad").apply_gradients(zip(grads, variables_of(tables)))
    other = optimizer().apply_gradients(zip(clipped, variables_of(tables)))
    run.modify()
    sess = begun(run, source)
    for fetched in ([one.values for one in grads], [grads[1].values, update], [clipped[0].values, other]):
        run.step(sess, fetched)
    given = sess.run([one.indices for one in grads])
    feed = {one.indices: rows for one, rows in zip(clipped, given)}
    feed.update({one.values: np.full([len(rows), table.emb_size], 0.25)
                 for one, rows, table in zip(clipped, given, tables)})
    sess.run(other, feed)
    run.contents(sess)
    if run.form == PASSED:
        with pytest.raises(ValueError, match="may not be fed"):
            sess.run(update, {grads[0].values: np.zeros([2, 4])})


@support.run_by(alike)
def test_of_copies_of_a_number_that_joined_updates_take_none_can_be_fed(run):
    """One op has one of them: a value that is fed for the other would have no effect."""
    source, ids, label, tables, rows = lookups_by_an_iterator(run)
    rate = tf.compat.v1.placeholder_with_default(0.1, [])
    copies = [tf.identity(rate) for _ in tables]
    loss = loss_of([total(one) for one in rows], label)
    whole = tf.group(*[create_hash_optimizer(copy).minimize(loss, var_list=[table.variable])
                         for copy, table in zip(copies, tables)])
    run.modify()
    sess = begun(run, source)
    run.step(sess, [loss, whole], {rate: 0.3})
    run.contents(sess)
    updates = needed(whole)["MxRecUpdate"]
    for copy in copies:
        if len(updates) == COUNT:
            sess.run(whole, {copy: 0.5})
        else:
            with pytest.raises(ValueError, match="may not be fed"):
                sess.run(whole, {copy: 0.5})


def estimator_rows(tmp_path, passes):
    """The rows of two tables that an Estimator has trained."""
    init(use_dynamic=True, graph_pass=passes)
    v1, found, seen = tf.compat.v1, [], {}

    def model_fn(features, labels, mode):
        tables = [create_table(key_dtype=tf.int64, dim=4 + at, name="t%d" % at, device_vocabulary_size=100,
                               emb_initializer=v1.random_normal_initializer(seed=at)) for at in range(2)]
        rows = [sparse_lookup(table, features, modify_graph=True) for table in tables]
        loss = loss_of([total(one) for one in rows], labels)
        train = optimizer("adagrad").minimize(loss, v1.train.get_global_step(), var_list=variables_of(tables))
        seen.update(train=train, raws=[support.Raw.of(table) for table in tables])
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    class Look(v1.train.SessionRunHook):
        def end(self, session):
            found.extend(raw.rows(session) for raw in seen["raws"])

    def batches():
        ids = np.random.RandomState(2).randint(-1, 20, [24, 3])
        return tf.data.Dataset.from_tensor_slices((ids, np.linspace(0, 1, 24).astype(np.float32))).batch(6)

    try:
        config = tf.estimator.RunConfig(save_checkpoints_secs=None, save_checkpoints_steps=None, tf_random_seed=1)
        tf.estimator.Estimator(model_fn, str(tmp_path), config).train(batches, hooks=[Look()])
        graph = seen["train"].graph
        return found, updates_of_graph(graph, seen["train"])
    finally:
        terminate_config_initializer()


def updates_of_graph(graph, train):
    with graph.as_default():
        return sorted(one.get_attr("N") for one in needed(train)["MxRecUpdate"])


def test_an_estimator_trains_its_tables_by_one_op_with_the_bits_of_an_op_each(tmp_path):
    (rows, taken), (others, apart) = [estimator_rows(tmp_path / str(passes), passes) for passes in (True, False)]
    assert taken == [2] and apart == [1, 1]
    for one, other in zip(rows, others):
        assert len(one) > 10
        support.assert_same_tables(one, other)
