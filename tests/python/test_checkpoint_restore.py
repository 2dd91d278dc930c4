"""A checkpoint whose files are damaged, or that is of other tables, names what is wrong and changes nothing."""

import glob
import os

import pytest
import tensorflow as tf

import support
from saver_cases import Model


def state(model, sess):
    return [raw.rows(sess) for raw in model.raws], sess.run(model.dense).tolist()


@pytest.fixture
def saved(graph, session, dynamic, tmp_path):
    """(the model, a session with other rows, the checkpoint)"""
    model = Model(("first", "second"))
    sess, path = model.saved(session(), 1.0, prefix=os.path.realpath(str(tmp_path)) + "/model.ckpt")
    model.fill(sess, 2.0)
    return model, sess, path


@pytest.mark.parametrize("damage", ["gone", "short", "empty", "flipped"])
def test_each_file_of_the_second_table_is_named_and_nothing_changes(saved, damage):
    model, sess, path = saved
    root = os.path.dirname(path) + "/sparse-model.ckpt-1/second"
    files = sorted(name for name in glob.glob(root + "/**", recursive=True) if os.path.isfile(name))
    assert len(files) >= 5
    before = state(model, sess)
    for name in files:
        with open(name, "rb") as file:
            whole = file.read()
        if damage == "gone":
            os.remove(name)
        else:
            middle = len(whole) // 2
            flipped = whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1:]
            support.write(name, {"short": whole[:-1], "empty": b"", "flipped": flipped}[damage])
        with pytest.raises((tf.errors.OpError, OSError)) as refused:
            model.saver.restore(sess, path)
        assert os.path.relpath(name, root) in str(refused.value) and "second" in str(refused.value)
        rows, dense = state(model, sess)
        support.assert_same_each(rows, before[0])
        assert dense == before[1]
        support.write(name, whole)
        os.chmod(name, 0o640)
    model.saver.restore(sess, path)
    assert state(model, sess)[1] == [1.0, 1.0]


@pytest.mark.parametrize("change, error", [({"capacity": 4}, "ResourceExhaustedError"), ({"dim": 2}, "InvalidArgumentError")])
def test_another_budget_or_dim_is_refused_before_variables_change(saved, session, change, error):
    path = saved[2]
    tf.compat.v1.reset_default_graph()
    model = Model(("first", "second"), **change)
    with support.new_session() as sess:
        sess.run(model.dense.assign([7.0, 7.0]))
        with pytest.raises(getattr(tf.errors, error)) as refused:
            model.saver.restore(sess, path)
        assert "first" in str(refused.value) and sess.run(model.dense).tolist() == [7.0, 7.0]


def test_a_new_table_starts_empty_and_one_that_is_gone_is_left(saved, caplog):
    path = saved[2]
    tf.compat.v1.reset_default_graph()
    model = Model(names=("first", "third"))
    with support.restored(support.new_session(), model.saver, path) as sess:
        assert [raw.size(sess) for raw in model.raws] == [5, 0]
