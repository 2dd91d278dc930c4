"""Restores on parameter servers that fail, and tables that no checkpoint has: what one process does."""

import json

import pytest

from cluster_cases import Job, run_alone
from test_cluster_attacks import in_both
from test_cluster_life import wait_for

FAILS = """
with tf.device(device):
    ids = tf.constant([1, 2, 3], tf.int64)
    table = create_table(tf.int64, 2, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
    scratch = create_table(tf.int64, 2, "scratch", tf.compat.v1.ones_initializer(), device_vocabulary_size=500,
                           is_save=False)
    dense = tf.compat.v1.get_variable("dense", [3], initializer=tf.compat.v1.zeros_initializer())
    both = [table, scratch]
    loss = tf.add_n([tf.reduce_sum(sparse_lookup(one, ids, modify_graph=True)) for one in both])
    train = gradient_descent.create_hash_optimizer(1.0).minimize(loss, var_list=[one.variable for one in both])
    train = tf.group(train, tf.compat.v1.assign_add(dense, [1.0, 2.0, 3.0]))
    look = [sparse_lookup(one, ids, is_train=False, modify_graph=True) for one in both]
    saver = tf.compat.v1.train.Saver()
    other = tf.compat.v1.train.Saver({"nowhere": dense})
def shown(sess):
    return [one.tolist() for one in sess.run(look)] + sess.run(dense).tolist()
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    sess.run(train)
    path = saver.save(sess, os.environ["PLACE"] + "/model")
    sess.run(train)
    print("variable", error_of(lambda: other.restore(sess, path)).split(":")[0], shown(sess))
    data = path + ".data-00000-of-00001"
    whole = open(data, "rb").read()
    open(data, "wb").write(whole[:-1] + bytes([whole[-1] ^ 1]))
    print("damaged", error_of(lambda: saver.restore(sess, path)).split(":")[0], shown(sess))
    sess.run(train)
    print("later", shown(sess))
    open(data, "wb").write(whole)
    saver.restore(sess, path)
    print("restored", shown(sess))
"""


CLOCK = """
from mx_rec.core.feature_process import evict
with tf.device(device):
    ids, time = tf.compat.v1.placeholder(tf.int64, [None]), tf.compat.v1.placeholder(tf.int64, [])
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", time)
    timed = create_table(tf.int64, 2, "timed", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
    few = create_table(tf.int64, 2, "few", tf.compat.v1.ones_initializer(), device_vocabulary_size=6)
    rows = sparse_lookup(timed, ids, modify_graph=True,
                         access_and_evict_config={"access_threshold": 1, "eviction_threshold": 10})
    counted = sparse_lookup(few, ids, modify_graph=True, access_and_evict_config={"access_threshold": 4})
    train = gradient_descent.create_hash_optimizer(1.0).minimize(tf.reduce_sum(rows), var_list=[timed.variable])
    saver = tf.compat.v1.train.Saver()
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    first = saver.save(sess, os.environ["PLACE"] + "/first")
    sess.run(train, {ids: [0, 9], time: 5000})
    saver.restore(sess, first)
    for key, seconds in ((7, 100), (8, 105)):
        sess.run(train, {ids: [key], time: seconds})
    print("fresh", evict(timed), timed.size())
    sess.run(train, {ids: [8], time: 110})
    print("stale", evict(timed), timed.size())
    for _ in range(4):
        print("full", error_of(lambda: sess.run(counted, {ids: np.tile(np.arange(10, 60), 4), time: 120})).split(":")[0])
    print("counts", [sess.run(counted, {ids: [11, 12], time: 120}).tolist() for _ in range(4)])
"""


@pytest.mark.long
def test_clocks_and_counts_of_restored_and_failed_steps_are_those_of_one_process(tmp_path):
    """A restore to before the first step kept the clock, and steps that failed for want of rows were counted."""
    found, alone = in_both(CLOCK, PLACE=str(tmp_path))
    assert found == alone
    assert found["fresh"].endswith(" 2") and found["stale"].endswith(" 1"), found
    assert found["counts"] == str([[[0.0, 0.0]] * 2] * 3 + [[[1.0, 1.0]] * 2]), found


def test_a_restore_that_fails_at_the_variables_leaves_tables_and_steps_as_they_were(tmp_path):
    """All rows of all tables were gone, and every later step was aborted."""
    found, alone = in_both(FAILS, PLACE=str(tmp_path))
    assert found == alone and len(found) == 4
    assert found["damaged"].startswith("DataLossError"), found


UNSAVED = """
import time
from mx_rec.optimizers import gradient_descent
with tf.device(device):
    step = tf.compat.v1.train.get_or_create_global_step()
    ids = tf.constant([1, 2, 3], tf.int64)
    tables = [create_table(tf.int64, 2, name, tf.compat.v1.zeros_initializer(), device_vocabulary_size=500, **more)
              for name, more in (("items", {}), ("scratch", {"is_save": False}))]
    loss = tf.add_n([tf.reduce_sum(sparse_lookup(table, ids, modify_graph=True)) for table in tables])
    train = gradient_descent.create_hash_optimizer(1.0).minimize(
        loss, var_list=[table.variable for table in tables], global_step=step)
    look = [sparse_lookup(table, ids, is_train=False, modify_graph=True) for table in tables]
with tf.compat.v1.train.MonitoredTrainingSession(
        target, is_chief=is_chief, config=config, checkpoint_dir=os.environ["CHECKPOINTS"], save_checkpoint_steps=5,
        save_summaries_steps=None, log_step_count_steps=None, stop_grace_period_secs=1) as sess:
    print("before", json.dumps([one[0, 0].item() for one in sess.run(look)]), flush=True)
    while True:
        sess.run(train)
        number = int(sess.run(step))
        print("step", number, flush=True)
        if number >= int(os.environ["LAST"]):
            break
        time.sleep(float(os.environ.get("PAUSE", 0)))
    print("after", json.dumps([one[0, 0].item() for one in sess.run(look)]), flush=True)
"""


def values(out, word):
    return [json.loads(line.split(" ", 1)[1]) for line in out.splitlines() if line.startswith(word)]


@pytest.mark.long
def test_a_table_that_is_not_saved_begins_anew_with_its_chief_and_survives_no_server(tmp_path):
    """After a restart of a server the chief's session never got ready: nobody opened the table's parts."""
    with Job(UNSAVED, ps=2, CHECKPOINTS=str(tmp_path / "model")) as job:
        first = job.worker(LAST="5")
        # The servers live on, and the chief is a new one, as a process that starts again.
        again = job.worker(LAST="10")
        chief = job.start("worker", 0, LAST="40", PAUSE="0.1")
        wait_for(chief, "step 15")
        job.kill("ps", 1)
        job.start("ps", 1)
        last = job.finish("worker", 0)
    assert values(first, "after") == [[-5.0, -5.0]]
    assert values(again, "before") == [[-5.0, 0.0]] and values(again, "after") == [[-10.0, -5.0]]
    (saved, scratch), = values(last, "after")
    assert saved == -40.0 and -40.0 < scratch < 0.0 and scratch == int(scratch)
    run_alone(UNSAVED, LAST="3", CHECKPOINTS=str(tmp_path / "alone"))
    alone = run_alone(UNSAVED, LAST="6", CHECKPOINTS=str(tmp_path / "alone"))
    assert values(alone, "before") == [[-3.0, 0.0]] and values(alone, "after") == [[-6.0, -3.0]]
