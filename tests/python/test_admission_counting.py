"""Occurrences of several lookups of one step, and of several steps at once, are counted exactly."""

import numpy as np
import pytest
import tensorflow as tf

import support
from test_admission import lookup, make_table, placeholder

LOOKUPS, KEYS = 4, 30000


def wide_session():
    """A session whose ops run on four threads at once."""
    return tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=LOOKUPS,
                                                                intra_op_parallelism_threads=2))


def expect_counted(sess, raw, change, value, keys, times):
    """Every one of `keys`, which have rows, was counted `times` times: neither more nor less."""
    for access, expected in ((times, len(keys)), (times + 1, 0)):
        sess.run(change, {value: access})
        found = np.count_nonzero(raw.find(sess, keys)[:, 0])
        assert found == expected, "%d keys counted %d times or more" % (found, access)


@pytest.mark.long
@pytest.mark.parametrize("keys, steps", [(200, 4000), (50000, 60)])
def test_lookups_of_a_step_that_count_at_once_lose_no_occurrence(graph, dynamic, keys, steps):
    """Two Observes of a table at once lost counts of rows: a key with rows was hidden again by the threshold it had reached."""
    table = make_table(capacity=2 * keys)
    ids = placeholder()
    embeddings = [lookup(table, ids, access=1, coefficient=1 + at % 2) for at in range(LOOKUPS)]
    raw = support.Raw.of(table)
    value = placeholder([], tf.int32)
    change = support.ops().mx_rec_set_threshold(raw.handle, value)
    once = sum(1 + at % 2 for at in range(LOOKUPS))
    batch = np.arange(keys) * 13 - 1000
    batch = batch[batch != -1]
    observes = [op for op in graph.get_operations() if op.type == "MxRecObserve"]
    assert len(observes) == LOOKUPS
    with wide_session() as sess:
        sess.run(embeddings, {ids: batch})
        # The other ops of a step would only take time.
        step = sess.make_callable(observes, feed_list=[ids])
        for _ in range(steps - 1):
            step(batch)
        expect_counted(sess, raw, change, value, batch, once * steps)


def test_steps_at_once_lose_no_occurrence_and_admit_at_the_very_one_that_is_due(graph, dynamic):
    threads, steps = 4, 40
    due = threads * steps * 2
    table = make_table(capacity=2 * KEYS)
    ids = placeholder()
    embeddings = [lookup(table, ids, access=due) for _ in range(2)]
    raw = support.Raw.of(table)
    value = placeholder([], tf.int32)
    change = support.ops().mx_rec_set_threshold(raw.handle, value)
    batch = np.arange(1000) * 7
    with wide_session() as sess:
        step = sess.make_callable(embeddings, feed_list=[ids])

        def train(steps):
            for _ in range(steps):
                assert not any(one.any() for one in step(batch)), "admitted too early"

        support.in_threads(lambda at: train(steps - (at == 0)), range(threads))
        assert raw.size(sess) == 0
        assert all(one.all() for one in step(batch)), "admitted too late"
        # Now they have rows.
        support.in_threads(lambda _: [step(batch) for _ in range(steps)], range(threads))
        expect_counted(sess, raw, change, value, batch, 2 * due)
