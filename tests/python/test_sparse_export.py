"""`mx_rec.saver.sparse.export`: several tables, damaged ones, and what an export that fails leaves."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.checkpoint.__main__ import main
from mx_rec.core.embedding import sparse_lookup
from mx_rec.export import sparse
from mx_rec.saver.sparse import export


@pytest.fixture
def saved(graph, session, dynamic, tmp_path):
    """The directory of two saved tables of one process: rows of ones and of twos."""
    v1 = tf.compat.v1
    lookups = []
    for number, name in enumerate(("a", "b"), 1):
        table = support.make_table(name, 3, 100, float(number))
        lookups.append(sparse_lookup(table, tf.constant([4, -10 - number], tf.int64), modify_graph=True))
    v1.get_variable("dense", initializer=1.0)
    sess = support.started(session())
    sess.run(lookups)
    v1.train.Saver().save(sess, str(tmp_path.resolve()) + "/m", global_step=2)
    return str(tmp_path.resolve()) + "/sparse-m-2"


def content(saved, table):
    return np.load("{}/{}/key-emb.npy".format(saved, table), allow_pickle=True).item()


def test_every_table_is_exported(saved):
    assert export() == 2
    for number, name in enumerate(("a", "b"), 1):
        found = content(saved, name)
        assert sorted(found) == [-10 - number, 4] and all(type(key) is int for key in found)
        assert all(row.dtype == np.float32 and row.tolist() == [number] * 3 for row in found.values())
        mode = os.stat("{}/{}/key-emb.npy".format(saved, name)).st_mode & 0o777
        assert mode == os.stat(saved + "/a/key/slice.data").st_mode & 0o777 == 0o640
    # What is already there is replaced, and an unknown name is passed over.
    assert export(table_list=["none", "b"]) == 1


def test_a_damaged_table_is_named_with_its_file_and_its_earlier_export_stays(saved):
    assert export() == 2
    before = content(saved, "b")
    os.truncate(saved + "/b/embedding/slice.data", 23)
    with pytest.raises(ValueError, match="'b' cannot be exported: .*/b/embedding/slice.data"):
        export()
    assert sorted(content(saved, "b")) == sorted(before)


def test_a_file_with_other_bytes_and_the_same_size_is_not_exported(saved):
    """An export looked at sizes alone, so that a file in which a byte had changed gave another row, without a word."""
    with open(saved + "/a/embedding/slice.data", "r+b") as file:
        file.seek(5)
        file.write(b"\x17")
    with pytest.raises(ValueError, match="'a' cannot be exported: .*embedding/slice.data"):
        export()
    assert not os.path.exists(saved + "/a/key-emb.npy")


def test_an_export_that_fails_leaves_the_earlier_one_and_no_scratch(saved, monkeypatch):
    assert sparse.export() == 2
    names = sorted(os.listdir(saved + "/a"))

    def full(file, *_, **__):
        file.write(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sparse.np, "save", full)
    with pytest.raises(OSError, match="No space"):
        sparse.export()
    assert sorted(os.listdir(saved + "/a")) == names
    assert sorted(content(saved, "a")) == [-11, 4]


def test_tables_of_a_save_that_was_removed_are_an_error(saved):
    shutil.rmtree(saved)
    with pytest.raises(FileNotFoundError, match="sparse-m-2"):
        export()


def test_an_exported_table_is_still_whole(saved, capsys):
    export()
    assert main([saved + "/a", "--verify"]) == 0
