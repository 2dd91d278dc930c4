"""MonitoredTrainingSession saves tables with its checkpoints and resumes from them."""

import os

import numpy as np
import tensorflow as tf

import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.adagrad import create_hash_optimizer


def build():
    """A fresh graph with a table, its update and the global step."""
    table = support.make_table("table", 2, 100, 1.0)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    embedding = sparse_lookup(table, ids, modify_graph=True)
    step = tf.compat.v1.train.get_or_create_global_step()
    update = create_hash_optimizer(0.1, initial_accumulator_value=0.1).minimize(
        tf.reduce_sum(tf.square(embedding)), global_step=step, var_list=[table.variable])
    raw = support.Raw.of(table)
    raw.slot("Adagrad_accumulator")
    return ids, update, step, raw


def train(place, steps, last_step, every=None):
    """Runs `steps` steps in a MonitoredTrainingSession and returns (rows, slots, step at the start)."""
    ids, update, step, raw = build()
    hooks = [tf.compat.v1.train.StopAtStepHook(last_step=last_step)]
    with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=place, hooks=hooks, save_checkpoint_steps=every or 1000, save_checkpoint_secs=None,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None) as sess:
        first = int(sess.run_step_fn(lambda step_context: step_context.session.run(step)))
        for number in range(steps):
            if sess.should_stop():
                break
            sess.run(update, {ids: np.random.RandomState(first + number).randint(0, 20, 5)})
        rows = sess.run_step_fn(lambda step_context: raw.rows(step_context.session))
        slots = sess.run_step_fn(lambda step_context: raw.slot_rows(step_context.session, "Adagrad_accumulator"))
    return rows, slots, first


def test_a_monitored_session_saves_at_the_end_and_the_next_one_resumes(graph, dynamic, place):
    whole = train(place + "/whole", 10, 100)
    tf.compat.v1.reset_default_graph()
    part = train(place + "/parts", 4, 100)
    assert part[2] == 0
    assert [name for name in os.listdir(place + "/parts") if name.startswith("sparse-")]
    tf.compat.v1.reset_default_graph()
    rest = train(place + "/parts", 6, 100)
    assert rest[2] == 4
    support.assert_same_tables(rest[0], whole[0])
    support.assert_same_tables(rest[1], whole[1])


def test_a_monitored_session_saves_every_few_steps_with_the_tables_of_that_step(graph, dynamic, place):
    rows, _, _ = train(place, 9, 100, every=3)
    saved = sorted(name for name in os.listdir(place) if name.startswith("sparse-"))
    steps = sorted(int(name.rsplit("-", 1)[1]) for name in saved)
    assert steps[-1] == 9 and len(steps) >= 3
    dense = sorted(int(name[len("model.ckpt-"):-len(".index")]) for name in os.listdir(place)
                   if name.endswith(".index"))
    assert dense == steps
    latest = tf.train.latest_checkpoint(place)
    root = os.path.join(place, "sparse-" + os.path.basename(latest), "table")
    keys = np.fromfile(root + "/key/slice.data", "<i8")
    values = np.fromfile(root + "/embedding/slice.data", "<f4").reshape(-1, 2)
    support.assert_same_tables(dict(zip(keys.tolist(), values)), rows)


def test_a_singular_monitored_session_without_checkpoints_trains(graph, dynamic):
    ids, update, _, raw = build()
    with tf.compat.v1.train.SingularMonitoredSession() as sess:
        sess.run(update, {ids: [1, 2]})
        assert raw.size(sess.raw_session()) == 2
