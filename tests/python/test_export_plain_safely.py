"""Plain exports beside training and eviction, of finalized graphs, into directories that exist, and killed ones."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import plain_cases as cases
import support
from test_export_plain_models import export, predict
from mx_rec.core.embedding import sparse_lookup
from mx_rec.export import plain_rows
from mx_rec.optimizers.lazy_adam import create_hash_optimizer


def test_an_export_beside_training_and_removal_has_whole_rows_of_one_moment(graph, session, dynamic, tmp_path):
    """Each step writes its number to all columns of all rows, so that a torn row or two steps would show."""
    table, ids = cases.make_table(dim=8, device_vocabulary_size=60000), cases.placeholder([None])
    found = cases.find(table, ids)
    sess = session()
    raw = support.Raw.of(table)
    keys = np.arange(30000, dtype=np.int64)
    extra = np.arange(40000, 50000, dtype=np.int64)
    raw.assign(sess, keys, np.zeros([len(keys), 8]))
    done, failed = threading.Event(), []

    def train():
        try:
            step = 0
            while not done.is_set():
                step += 1
                raw.assign(sess, keys, np.full([len(keys), 8], step))
                raw.assign(sess, extra, np.full([len(extra), 8], step))
                raw.remove(sess, extra)
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        for number in range(3):
            export(sess, tmp_path / str(number), {"ids": ids}, {"rows": found})
    finally:
        done.set()
        trainer.join()
    assert not failed
    for number in range(3):
        rows = predict(tmp_path / str(number), {"ids": np.concatenate([keys, extra])})["rows"]
        assert len(np.unique(rows[:len(keys)])) == 1, "rows of several steps, or torn ones"
        assert len(np.unique(rows[len(keys):])) == 1


def test_a_finalized_graph_is_exported_and_grows_once(graph, session, dynamic, tmp_path):
    table, ids = cases.make_table(is_save=False), cases.placeholder([None])
    weight = tf.compat.v1.get_variable("weight", initializer=2.0)
    rows = cases.find(table, ids) * weight
    sess = support.started(session())
    cases.fill(table, sess)
    graph.finalize()
    export(sess, tmp_path / "first", {"ids": ids}, {"rows": rows})
    ops = len(graph.get_operations())
    export(sess, tmp_path / "second", {"ids": ids}, {"rows": rows})
    assert graph.finalized and len(graph.get_operations()) == ops
    queries = cases.queries(30, 1)
    for name in ("first", "second"):
        support.assert_same_bits(predict(tmp_path / name, {"ids": queries})["rows"], sess.run(rows, {ids: queries}))


def test_a_directory_that_is_not_empty_is_refused_as_tensorflow_does(graph, session, dynamic, tmp_path):
    table, ids = cases.make_table(), cases.placeholder([None])
    rows = cases.find(table, ids)
    sess = session()
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "file").write_text(u"mine")
    with pytest.raises(AssertionError, match="already exists, and isn't empty"):
        export(sess, directory, {"ids": ids}, {"rows": rows})
    assert os.listdir(str(tmp_path)) == ["model"] and os.listdir(str(directory)) == ["file"]
    (directory / "file").unlink()
    export(sess, directory, {"ids": ids}, {"rows": rows})
    assert not predict(directory, {"ids": [1]})["rows"].any()
    with pytest.raises(AssertionError, match="already exists"):
        export(sess, directory, {"ids": ids}, {"rows": rows})


def test_a_file_system_that_only_tensorflow_reaches_is_written(graph, session, dynamic, tmp_path):
    table, ids = cases.make_table(), cases.placeholder([None])
    rows = cases.find(table, ids)
    sess = session()
    cases.fill(table, sess)
    export(sess, "file://{}/deep/model".format(tmp_path), {"ids": ids}, {"rows": rows})
    queries = cases.queries(30, 1)
    support.assert_same_bits(predict(tmp_path / "deep" / "model", {"ids": queries})["rows"], sess.run(rows, {ids: queries}))
    assert os.listdir(str(tmp_path / "deep")) == ["model"]


def test_an_export_that_fails_leaves_nothing(graph, session, dynamic, tmp_path, monkeypatch):
    table, ids = cases.make_table(), cases.placeholder([None])
    rows = cases.find(table, ids)
    sess = session()
    cases.fill(table, sess)

    def fail(self, prefix):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(plain_rows.BundleWriter, "finish", fail)
        with pytest.raises(OSError, match="no room"):
            export(sess, tmp_path / "model", {"ids": ids}, {"rows": rows})
    assert not os.listdir(str(tmp_path))


def test_an_export_does_not_count_for_incremental_checkpoints(mx, graph, session, tmp_path):
    """A delta leaves out rows with few gradients since they were last written: an export is no such writing."""
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600,
       recent_key_count_threshold=2)
    table, ids = cases.make_table(), cases.placeholder([None])
    loss = tf.reduce_sum(tf.square(sparse_lookup(table, ids, modify_graph=True)))
    tf.compat.v1.get_variable("weight", initializer=2.0)
    train = create_hash_optimizer(0.1).minimize(loss, var_list=[table.variable])
    rows = cases.find(table, ids)
    saver = tf.compat.v1.train.Saver()
    sess = support.started(session())
    directory = os.path.realpath(str(tmp_path))
    sess.run(train, {ids: [1, 2, 3]})
    saver.save(sess, directory + "/m", global_step=1)
    sess.run(train, {ids: [2, 3]})
    sess.run(train, {ids: [2]})
    export(sess, directory + "/export", {"ids": ids}, {"rows": rows})
    saver.save(sess, directory + "/m", global_step=2, save_delta=True)
    assert np.fromfile(directory + "/delta-sparse-m-2/items/key/slice.data", "<i8").tolist() == [2]
    sess.run(train, {ids: [3]})
    saver.save(sess, directory + "/m", global_step=3, save_delta=True)
    assert np.fromfile(directory + "/delta-sparse-m-3/items/key/slice.data", "<i8").tolist() == [3]
    assert predict(directory + "/export", {"ids": [1, 2, 3, 4]})["rows"].any(axis=1).tolist() == [True] * 3 + [False]


KILLED = """
import os, sys, threading, signal, time
import numpy as np
import plain_cases as cases, support
import mx_rec.saver
from mx_rec.util.initialize import init
init()
tf = support.tf()
table, ids = cases.make_table(dim=64, device_vocabulary_size=400000), cases.placeholder([None])
rows = cases.find(table, ids)
with support.new_session() as sess:
    cases.fill(table, sess, np.arange(200000))
    mx_rec.saver.export_plain(sess, sys.argv[1] + "/warm", {"ids": ids}, {"rows": rows})
    print("ready", flush=True)
    mx_rec.saver.export_plain(sess, sys.argv[1] + "/model", {"ids": ids}, {"rows": rows})
    print("done", flush=True)
    time.sleep(60)
"""


@pytest.mark.long
def test_a_process_killed_at_any_moment_leaves_a_whole_model_or_none(tmp_path):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([support.PACKAGES, os.path.dirname(__file__)]),
                       TF_CPP_MIN_LOG_LEVEL="2")
    whole = []
    for number, delay in enumerate((0.05, 0.2, 0.4, 0.8)):
        directory = str(tmp_path / str(number))
        os.mkdir(directory)
        process = subprocess.Popen([sys.executable, "-c", KILLED, directory], env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        whole.append(os.path.exists(directory + "/model"))
        if whole[-1]:
            found = predict(directory + "/model", {"ids": [5]})["rows"]
            support.assert_same_bits(found, predict(directory + "/warm", {"ids": [5]})["rows"])
    assert not all(whole), "no kill came in time"
