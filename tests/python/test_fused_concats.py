"""Concatenations of sparse_lookups, which modified graphs fuse in both directions: the same bits as unmodified."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from fused_cases import BATCH, LENGTH, batches, loss_of, needed, train
from modify_cases import AHEAD
from mx_rec.core.embedding import sparse_lookup_many


def tables_of(run, count):
    return [run.table("t{}".format(at), dim=2 + 3 * (at % 3)) for at in range(count)]


def loss_on(joined, label):
    """A loss whose gradients differ from column to column."""
    width = joined.shape.as_list()[-1]
    weights = tf.constant(np.linspace(-1.0, 1.0, width).astype(np.float32))
    return loss_of([tf.reshape(joined * weights, [-1, int(np.prod(joined.shape.as_list()[1:]))])], label)


def copied(update):
    """Whether rows or gradients of single tables are left on the way to an update."""
    types = needed(update)
    return types & {"MxRecRead", "MxRecRead of many", "Slice", "Split", "SplitV"}


@pytest.mark.long
@pytest.mark.parametrize("count, static, axis", support.by_turns([2, 3, 18], [True, False], [2, -1]))
def test_concatenations_of_lookups_give_the_same_bits(static, axis, count):
    def script(run):
        source, ids, label = batches(static, features=count)
        tables = tables_of(run, count)
        joined = tf.concat([run.lookup(table, ids[:, at]) for at, table in enumerate(tables)], axis=axis)
        update = train(run, source, loss_on(joined, label), tables, others=[joined])
        if run.is_modified:
            assert "MxRecRead whole" in needed(update) and not copied(update), needed(update)

    plan = cases.alike(script, moves=count, use_dynamic=True)[AHEAD].plan
    assert [len(one.gradients) for one in plan.concats] == [count]
    assert "  fuses  concat of {} lookups".format(count) in plan.text()


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@support.run_by(cases.alike, moves=3, use_dynamic=True)
def test_one_id_each_and_several_lookups_of_a_table_give_the_same_bits(run, static):
    source, ids, label = batches(static, features=3)
    tables = tables_of(run, 2)
    joined = tf.concat([run.lookup(table, ids[:, at, 0]) for at, table in enumerate(tables + tables[:1])], axis=1)
    update = train(run, source, loss_on(joined, label), tables, others=[joined])
    if run.is_modified:
        assert not copied(update), needed(update)


@pytest.mark.long
def test_gradients_that_the_script_clips_give_the_same_bits():
    def clipped(pairs):
        grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 0.05)
        return list(zip(grads, [variable for _, variable in pairs]))

    def script(run):
        source, ids, label = batches(False, features=3)
        tables = tables_of(run, 3)
        joined = tf.concat([run.lookup(table, ids[:, at]) for at, table in enumerate(tables)], axis=-1)
        update = train(run, source, loss_on(joined, label), tables, clipped, others=[joined])
        if run.is_modified:
            assert not copied(update), needed(update)

    cases.alike(script, moves=3, use_dynamic=True)


def test_an_update_of_one_table_reads_the_gradient_of_the_whole():
    def script(run):
        source, ids, label = batches(True)
        table = run.table(dim=4)
        joined = tf.concat([run.lookup(table, ids[:, at]) for at in range(2)], axis=-1)
        train(run, source, loss_on(joined, label), [table], others=[joined])

    plan = cases.alike(script, moves=2, use_dynamic=True)[AHEAD].plan
    assert [len(one.gradients) for one in plan.concats] == [2] and "as before" not in plan.text()


@pytest.mark.long
def test_lookups_of_a_group_and_without_gradient_give_the_same_bits():
    def script(run):
        source, ids, label = batches(True, features=4)
        tables = tables_of(run, 4)
        rows = sparse_lookup_many(tables[:3], [ids[:, at] for at in range(3)], modify_graph=True)
        last = run.lookup(tables[3], ids[:, 3], is_grad=False)
        joined = tf.concat([rows[2], last, rows[0]], axis=-1)
        loss = loss_on(joined, label) + tf.reduce_mean(tf.square(rows[1]))
        train(run, source, loss, tables[:3], others=[joined, rows[1]], fused=None)

    plan = cases.alike(script, moves=4, use_dynamic=True)[AHEAD].plan
    assert [one.fuses for one in plan.concats] == [True]


def test_sums_that_are_concatenated_are_fused_as_sums():
    def script(run):
        source, ids, label = batches(False, features=2)
        tables = tables_of(run, 2)
        sums = [tf.reduce_sum(run.lookup(table, ids[:, at]), axis=1) for at, table in enumerate(tables)]
        train(run, source, loss_on(tf.concat(sums, axis=1), label), tables)

    plan = cases.alike(script, moves=2, use_dynamic=True)[AHEAD].plan
    assert [one.fuses for one in plan.sums] == [True, True] and not plan.concats


@pytest.mark.long
def test_concatenations_that_something_else_needs_stay():
    def script(run):
        source, ids, label = batches(True, features=4)
        table, other = tables_of(run, 2)
        rows = [run.lookup(table, ids[:, at]) for at in range(4)] + [run.lookup(other, ids[:, 0])]
        dense = tf.ones([BATCH, LENGTH, 1])
        joined = [tf.concat([rows[0], rows[4], dense], -1), tf.concat([rows[1], rows[2]], 1),
                  tf.concat([rows[2], rows[3]], -1)]
        loss = tf.add_n([loss_on(one, label) for one in joined])
        train(run, source, loss, [table, other], others=joined, fused=False)

    reasons = [one.reason for one in cases.alike(script, moves=5, use_dynamic=True)[AHEAD].plan.concats]
    assert "is no lookup" in reasons[0] and "last dimension" in reasons[1] and "too" in reasons[2]


@pytest.mark.long
@support.run_by(cases.alike, moves=2, use_dynamic=True)
def test_concatenations_wait_for_what_they_waited_for(run):
    source, ids, label = batches(False)
    tables = tables_of(run, 2)
    count = tf.compat.v1.get_variable("count", [], tf.int32, tf.compat.v1.zeros_initializer(), use_resource=True)
    rows = [run.lookup(table, ids[:, at]) for at, table in enumerate(tables)]
    with tf.control_dependencies([count.assign_add(1)]):
        joined = tf.concat(rows, -1)
    later = count.assign_add(100)

    def gradients(pairs):
        with tf.control_dependencies([later]):
            grads = tf.gradients(loss_on(joined, label), [variable for _, variable in pairs])
        return [(grad, variable) for grad, (_, variable) in zip(grads, pairs)]

    train(run, source, loss_on(joined, label), tables, gradients, others=[joined])
    run.note("count", run._sessions[-1].run(count))


@support.run_by(cases.alike, moves=2, use_dynamic=True)
def test_parts_cannot_be_fed_and_are_fetched_as_before_beside_their_update(run):
    source, ids, label = batches(True)
    tables = tables_of(run, 2)
    rows = [run.lookup(table, ids[:, at]) for at, table in enumerate(tables)]
    loss = loss_on(tf.concat(rows, -1), label)
    update = train(run, source, loss, tables)
    sess = run.begin(source)
    run.step(sess, [rows, loss])
    run.step(sess, [rows[1], update])
    run.step(sess, [rows[0], loss, update])
    run.contents(sess)
    if run.is_modified:
        with pytest.raises(ValueError, match="may not be fed"):
            sess.run(loss, {rows[0]: np.ones([BATCH, LENGTH, 2], np.float32)})
