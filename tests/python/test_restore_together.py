"""A restore reads each file once, and changes all tables and variables or none."""

import os
import shutil

import pytest
import tensorflow as tf

import support
from saver_cases import Model
from mx_rec.checkpoint.loads import StagedLoads, tables_to_load
from mx_rec.checkpoint.table_ops import table_ops
from mx_rec.saver.saver import Saver

ROWS, DIM = 20000, 16


def values(model, sess):
    """The value of each table and of the variable, which have one each."""
    found = [set(raw.export(sess)[1].ravel().tolist()) for raw in model.raws] + [set(sess.run(model.dense).tolist())]
    assert all(len(one) == 1 for one in found), found
    return [one.pop() for one in found]


@pytest.fixture
def model(graph, dynamic):
    """Two tables of about 1.3 MB beside a variable."""
    return Model(rows=(ROWS, ROWS), dim=DIM, capacity=ROWS, shape=[1000])


def bytes_read():
    """What this process has read from files so far."""
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


def size_below(place):
    return sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(place) for name in names)


def test_every_file_is_read_once(model, session, place):
    """They were read twice: to verify them all, and to load them."""
    sess, path = model.saved(session(), 1.0, prefix=place + "/m")
    model.saver.restore(sess, path)
    tables = size_below(place + "/sparse-m-1")
    before = bytes_read()
    model.saver.restore(sess, path)
    read = bytes_read() - before
    assert tables > 2 * ROWS * DIM * 4 and tables <= read < 1.5 * tables, (tables, read)


def damage(path):
    with open(path, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)
        file.seek(-9, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damaged", ["sparse-m-1/items/embedding/slice.data", "sparse-m-1/users/key/slice.data",
                                     "m-1.data-00000-of-00001"])
def test_what_cannot_be_restored_changes_neither_tables_nor_variables(model, session, place, damaged):
    """Of the variables TensorFlow says so when the tables are read already: these are forgotten."""
    sess, path = model.saved(session(), 1.0, prefix=place + "/m")
    model.fill(sess, 2.0)
    damage(os.path.join(place, damaged))
    for _ in range(2):
        with pytest.raises(tf.errors.DataLossError) as refused:
            model.saver.restore(sess, path)
        assert "items" in str(refused.value) or "items" not in damaged
        assert values(model, sess) == [2.0, 2.0, 2.0]
    damage(os.path.join(place, damaged))
    model.saver.restore(sess, path)
    assert values(model, sess) == [1.0, 1.0, 1.0]


def test_restores_at_once_leave_the_tables_of_one_of_them(model, session, place):
    sess = session()
    for step in (1, 2):
        model.fill(sess, float(step), 2000)
        model.saver.save(sess, place + "/m", global_step=step)

    def restore(step):
        for _ in range(15):
            Saver([raw.variable for raw in model.raws]).restore(sess, "%s/m-%d" % (place, step))

    for _ in range(3):
        support.in_threads(restore, (1, 2))
        users, items, _ = values(model, sess)
        assert users == items, (users, items)


def test_tables_of_another_copy_of_the_plugin_are_loaded_by_their_ops(model, session, place, monkeypatch):
    """As those of another process are: the functions of this copy know no such handle."""
    sess, path = model.saved(session(), 1.0, prefix=place + "/m")
    model.fill(sess, 2.0)
    copy = place + "/libmx_rec_copy.so"
    shutil.copy(support.library_path(), copy)
    monkeypatch.setenv("MX_REC_LIBRARY", copy)
    damage(place + "/sparse-m-1/items/embedding/slice.data")
    with pytest.raises(tf.errors.DataLossError) as refused:
        model.saver.restore(sess, path)
    assert place + "/sparse-m-1/items/embedding/slice.data" in refused.value.message
    assert values(model, sess) == [2.0, 2.0, 2.0]
    damage(place + "/sparse-m-1/items/embedding/slice.data")
    model.saver.restore(sess, path)
    assert values(model, sess) == [1.0, 1.0, 1.0]


def test_a_step_between_reading_and_swapping_is_replaced_with_the_rest(model, session, place):
    """Training that runs beside a restore changes the old contents, never the new ones."""
    sess = model.fill(session(), 1.0, 2000)
    model.saver.save(sess, place + "/m", global_step=1)
    operations = tables_to_load(table_ops(sess.graph, None), place + "/sparse-m-1")
    with StagedLoads(sess, operations, place + "/sparse-m-1"):
        pass
    with StagedLoads(sess, operations, place + "/sparse-m-1") as loads:
        model.fill(sess, 5.0, 3000)
        assert values(model, sess) == [5.0, 5.0, 5.0]
        loads.publish()
    assert values(model, sess)[:2] == [1.0, 1.0] and [raw.size(sess) for raw in model.raws] == [2000, 2000]
