"""tf.train.Saver and export check what they are given once the graph has tables."""

import os

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.saver.saver import Saver
from mx_rec.saver.sparse import export


@pytest.fixture
def saved(dynamic, session, tmp_path):
    """A session with one table of two rows, its saver and a directory."""
    table = create_table(tf.int64, 2, "t", tf.compat.v1.ones_initializer(), device_vocabulary_size=10)
    rows = sparse_lookup(table, tf.constant([1, -7], tf.int64), modify_graph=True)
    saver = tf.compat.v1.train.Saver()
    sess = session()
    sess.run(rows)
    return sess, saver, os.path.realpath(str(tmp_path)), table


@pytest.mark.parametrize("path, message", [
    ("", "'save_path' length is less than 1"), ("p" * 1025, "'save_path' length is bigger than 1024"),
    ("/tmp/a\nb", "control characters"), ("/tmp/../tmp/model", "must not contain '..'"), ("../model", "must not contain '..'"),
    ("/etc/model", "system directory"), ("/usr/local/share/model", "system directory"), (5, "is not str")])
def test_a_path_that_is_not_valid_is_a_value_error(saved, path, message):
    sess, saver, _, _ = saved
    with pytest.raises(ValueError) as caught:
        saver.save(sess, path)
    assert message in str(caught.value)


def test_a_path_through_a_link_into_the_system_is_refused(saved):
    sess, saver, directory, _ = saved
    os.symlink("/usr/lib", directory + "/link")
    with pytest.raises(ValueError, match="system directory /usr/lib"):
        saver.save(sess, directory + "/link/model")


@pytest.mark.parametrize("arguments, message", [
    ({"global_step": -1}, "'global_step' is less than 0"), ({"global_step": 2 ** 31}, "'global_step' is bigger than"),
    ({"global_step": 1.5}, "type of 'global_step' is not int"), ({"global_step": True}, "type of 'global_step'"),
    ({"latest_filename": ""}, "'latest_filename' length"), ({"latest_filename": "l" * 51}, "'latest_filename' length"),
    ({"meta_graph_suffix": ""}, "'meta_graph_suffix' length")])
def test_a_wrong_argument_of_save_is_a_value_error(saved, arguments, message):
    sess, saver, directory, _ = saved
    with pytest.raises(ValueError) as caught:
        saver.save(sess, directory + "/model", **arguments)
    assert message in str(caught.value)
    assert os.listdir(directory) == []


@pytest.mark.parametrize("keyword", ["is_incremental_checkpoint", "save_delta"])
def test_incremental_saves_need_their_setting(saved, keyword):
    sess, saver, directory, _ = saved
    with pytest.raises(ValueError, match="need init"):
        saver.save(sess, directory + "/model", **{keyword: True})


@pytest.mark.parametrize("step", [3, np.int64(3), np.int32(3)])
def test_steps_of_python_and_numpy_name_the_same_files(saved, step):
    sess, saver, directory, _ = saved
    assert saver.save(sess, directory + "/model", global_step=step) == directory + "/model-3"
    assert os.path.isdir(directory + "/sparse-model-3/t/key")


def test_padded_steps_name_the_tables_too(saved):
    sess, _, directory, _ = saved
    saver = tf.compat.v1.train.Saver(pad_step_number=True)
    path = saver.save(sess, directory + "/model", global_step=3)
    assert path.endswith("model-00000003") and os.path.isdir(directory + "/sparse-model-00000003/t")
    saver.restore(sess, path)


def test_an_imported_graph_saves_and_restores_its_tables(saved, session):
    sess, saver, directory, table = saved
    path = saver.save(sess, directory + "/model", global_step=1)
    tf.compat.v1.reset_default_graph()
    imported = tf.compat.v1.train.import_meta_graph(path + ".meta")
    fresh = support.new_session()
    imported.restore(fresh, path)
    assert fresh.run("t//table/stats:0")[0] == 2
    again = imported.save(fresh, directory + "/again")
    assert os.path.isdir(os.path.dirname(again) + "/sparse-again/t/embedding")
    fresh.close()


def test_the_saver_of_tables_alone_keeps_what_it_is_told(saved, session):
    sess, _, directory, table = saved
    saver = Saver(max_to_keep=1)
    assert saver.save(sess, directory + "/", global_step=1) == directory + "/sparse-checkpoint-1"
    assert saver.save(sess, directory + "/", global_step=2) == directory + "/sparse-checkpoint-2"
    assert os.listdir(directory) == ["sparse-checkpoint-2"]
    other = session()
    Saver(var_list=[table.variable]).restore(other, directory + "/checkpoint-2")
    assert other.run("t//table/stats:0")[0] == 2
    for arguments in ({"max_to_keep": -1}, {"prefix_name": ""}, {"var_list": [tf.zeros([])]}):
        with pytest.raises(ValueError):
            Saver(**arguments)


def test_export_writes_key_to_row_beside_the_last_save(saved):
    sess, saver, directory, _ = saved
    with pytest.raises(RuntimeError, match="nothing was saved yet"):
        export()
    saver.save(sess, directory + "/model", global_step=4)
    assert export() == 1 and export(["t", "unknown"]) == 1 and export(["unknown"]) == 0
    rows = np.load(directory + "/sparse-model-4/t/key-emb.npy", allow_pickle=True).item()
    assert sorted(rows) == [-7, 1] and rows[-7].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("names", ["t", [], [5], [""], ("t",)])
def test_export_checks_its_list(dynamic, names):
    with pytest.raises(ValueError, match="table_list"):
        export(names)


def test_export_without_tables_warns_and_returns_0(dynamic):
    assert export() == 0
