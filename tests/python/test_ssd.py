"""Tables with rows on disk give the numbers of tables that are all in memory, and say what they cannot do."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.stats import TableStatsHook, table_stats
from mx_rec.util.variable import get_dense_and_sparse_variable

DIM = 4
KEYS = 600
STORAGE = {"memory": {}, "disk": {"device_vocabulary_size": 20, "host_vocabulary_size": 40,
                                  "ssd_vocabulary_size": KEYS}}


def make(kind, directory, name="table", **more):
    """A table of KEYS rows and more."""
    options = dict(device_vocabulary_size=KEYS + 60, **more)
    if kind != "memory":
        options.update(STORAGE[kind], ssd_data_path=str(directory))
    # A checkpoint of dense variables, whichever graph makes it.
    tf.compat.v1.get_variable("dense", [])
    return create_table(tf.int64, DIM, name, tf.compat.v1.random_normal_initializer(seed=3), **options)


def train_op(rows, optimizer="lazy_adam"):
    """Updates the tables of the graph by a loss of `rows`."""
    import importlib

    module = importlib.import_module("mx_rec.optimizers." + optimizer)
    _, tables = get_dense_and_sparse_variable()
    loss = tf.reduce_sum(tf.square(rows - 1.5))
    return module.create_hash_optimizer(0.1).apply_gradients(
        zip(tf.gradients(loss, tables), tables))


def batches(steps=40, size=50, seed=5):
    """Batches of ids with repetitions, of few hot and many cold keys."""
    random = np.random.RandomState(seed)
    hot = random.randint(0, 20, (steps, size // 2))
    return [np.concatenate([one, random.randint(0, KEYS, size - size // 2)]) * 7919 - 5 for one in hot]


def trained(kind, directory, optimizer, checkpoint):
    """Trains; (embeddings of each step, those of evaluation, TableStats), and saves."""
    with tf.Graph().as_default():
        table = make(kind, directory)
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        rows = sparse_lookup(table, ids, modify_graph=True)
        found = sparse_lookup(table, ids, is_train=False, modify_graph=True)
        train = train_op(rows, optimizer)
        start_asc_pipeline()
        saver = tf.compat.v1.train.Saver()
        with support.started(support.new_session()) as sess:
            seen = [sess.run([rows, train], {ids: batch})[0] for batch in batches()]
            # All keys, more than memory holds, and some that have no row.
            everything = sess.run(found, {ids: np.arange(-3, KEYS + 3) * 7919 - 5})
            stats = table_stats(table)
            saver.save(sess, str(checkpoint / "model.ckpt"))
            assert os.listdir(str(directory)) == []
    return seen, everything, stats


@pytest.mark.parametrize("optimizer", ["lazy_adam", "adagrad", "ftrl", "gradient_descent", "momentum", "rmsprop"])
def test_every_optimizer_computes_the_same_bits(graph, dynamic, tmp_path, optimizer):
    results = {}
    for kind in STORAGE:
        (tmp_path / kind).mkdir()
        directory = tmp_path / (kind + "-rows")
        directory.mkdir()
        results[kind] = trained(kind, directory, optimizer, tmp_path / kind)
    (seen, found, memory), (other_seen, other_found, disk) = results["memory"], results["disk"]
    for step, (one, other) in enumerate(zip(seen, other_seen)):
        assert one.tobytes() == other.tobytes(), step
    assert found.tobytes() == other_found.tobytes()
    assert (memory.rows_memory, memory.rows_disk, memory.read_disk) == (memory.rows, 0, 0)
    assert disk.rows == memory.rows > 300 and disk.rows_memory <= disk.capacity_memory == 60
    assert disk.rows_memory + disk.rows_disk == disk.rows and disk.capacity == KEYS + 60
    assert min(disk.found_memory, disk.read_disk, disk.bytes_read, disk.bytes_written, disk.bytes_disk) > 0
    assert disk.wait_seconds > 0


def restored(kind, directory, checkpoint):
    """The rows of all keys after a restore, as an evaluation finds them."""
    with tf.Graph().as_default():
        table = make(kind, directory)
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        found = sparse_lookup(table, ids, is_train=False, modify_graph=True)
        start_asc_pipeline()
        saver = tf.compat.v1.train.Saver()
        with support.restored(support.new_session(), saver, str(checkpoint / "model.ckpt")) as sess:
            return sess.run(found, {ids: np.arange(-3, KEYS + 3) * 7919 - 5}), table_stats(table)


@pytest.mark.parametrize("source, target", [("disk", "memory"), ("memory", "disk"), ("disk", "disk")])
def test_checkpoints_restore_to_tables_of_other_splits(graph, dynamic, tmp_path, source, target):
    for name in ("rows", "checkpoint"):
        (tmp_path / name).mkdir()
    _, found, before = trained(source, tmp_path / "rows", "lazy_adam", tmp_path / "checkpoint")
    again, after = restored(target, tmp_path / "rows", tmp_path / "checkpoint")
    assert found.tobytes() == again.tobytes()
    assert after.rows == before.rows and (after.rows_disk > 0) == (target == "disk")


def test_a_batch_that_memory_cannot_hold_names_the_sizes_to_raise(graph, dynamic, session, tmp_path):
    table = make("disk", tmp_path)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    rows = sparse_lookup(table, ids, modify_graph=True)
    sess = session()
    sess.run(rows, {ids: np.arange(60)})
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
        sess.run(rows, {ids: np.arange(100, 161)})
    assert "device_vocabulary_size" in raised.value.message and "host_vocabulary_size" in raised.value.message
    assert table_stats(table).rows == 60
    # It goes on.
    assert np.isfinite(sess.run(rows, {ids: np.arange(30, 90)})).all()
    assert table_stats(table).rows == 90


def test_the_capacity_is_that_of_memory_and_disk(graph, dynamic, session, tmp_path):
    table = make("disk", tmp_path)
    session()
    assert table.capacity() == 20 + 40 + KEYS


def test_a_directory_that_went_is_named_when_the_session_starts(graph, dynamic, session, tmp_path):
    directory = tmp_path / "gone"
    directory.mkdir()
    rows = sparse_lookup(make("disk", directory), tf.constant([1, 2], tf.int64), modify_graph=True)
    directory.rmdir()
    with pytest.raises(tf.errors.NotFoundError, match="{}|gone".format(directory)):
        session().run(rows)


def test_numbers_of_rows_on_disk_go_to_tensorboard(graph, dynamic, tmp_path):
    rows_directory = tmp_path / "rows"
    rows_directory.mkdir()
    events = str(tmp_path / "events")
    rows = sparse_lookup(make("disk", rows_directory), tf.constant(np.arange(50), tf.int64), modify_graph=True)
    step = tf.compat.v1.train.get_or_create_global_step()
    advance = tf.group(rows, tf.compat.v1.assign_add(step, 1))
    with tf.compat.v1.train.MonitoredSession(hooks=[TableStatsHook(events, every_n_steps=1)]) as sess:
        sess.run(advance)
    found = {}
    for name in os.listdir(events):
        for event in tf.compat.v1.train.summary_iterator(os.path.join(events, name)):
            found.update({value.tag: value.simple_value for value in event.summary.value})
    assert found["table/rows_memory"] == 50 and found["table/rows_disk"] == 0
    assert {"table/read_disk", "table/wait_seconds", "table/bytes_disk"} <= set(found)


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
import support
import test_ssd
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.initialize import init

support.turn_graph_mode_on()
tf = support.tf()
init()
table = test_ssd.make("disk", {directory!r})
ids = tf.compat.v1.placeholder(tf.int64, [None])
rows = sparse_lookup(table, ids, modify_graph=True)
with tf.compat.v1.Session() as sess:
    for batch in test_ssd.batches():
        sess.run(rows, {{ids: batch}})
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_killed_training_leaves_nothing_in_its_directories(tmp_path):
    script = SCRIPT.format(here=os.path.dirname(os.path.abspath(__file__)), directory=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, universal_newlines=True)
    try:
        assert any("ready" in line for line in process.stdout)
        assert os.listdir(str(tmp_path)) == []
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert os.listdir(str(tmp_path)) == []
