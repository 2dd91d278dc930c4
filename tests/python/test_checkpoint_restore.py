"""A checkpoint whose files are damaged, or that is of other tables, names what is wrong and changes nothing."""

import glob
import os

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import create_table


class Model:
    """Tables beside a dense variable, all with the same value in each row."""

    def __init__(self, names=("first", "second"), dim=3, capacity=100):
        self.raws = {name: support.Raw.of(create_table(
            key_dtype=tf.int64, dim=dim, name=name, device_vocabulary_size=capacity,
            emb_initializer=tf.compat.v1.zeros_initializer())) for name in names}
        self.dense = tf.compat.v1.get_variable("dense", initializer=np.float32([1.0, 2.0]))
        self.saver = tf.compat.v1.train.Saver()

    def fill(self, sess, value):
        for raw in self.raws.values():
            raw.assign(sess, np.arange(5), np.full([5, 3], value))
        sess.run(self.dense.assign([value, value]))

    def state(self, sess):
        return [raw.rows(sess) for raw in self.raws.values()], sess.run(self.dense).tolist()


@pytest.fixture
def saved(graph, session, dynamic, tmp_path):
    """(the model, a session with other rows, the checkpoint)"""
    model = Model()
    sess = session()
    model.fill(sess, 1.0)
    path = model.saver.save(sess, os.path.realpath(str(tmp_path)) + "/model.ckpt", global_step=1)
    model.fill(sess, 2.0)
    return model, sess, path


@pytest.mark.parametrize("damage", ["gone", "short", "empty", "flipped"])
def test_each_file_of_the_second_table_is_named_and_nothing_changes(saved, damage):
    model, sess, path = saved
    root = os.path.dirname(path) + "/sparse-model.ckpt-1/second"
    files = sorted(name for name in glob.glob(root + "/**", recursive=True) if os.path.isfile(name))
    assert len(files) >= 5
    before = model.state(sess)
    for name in files:
        with open(name, "rb") as file:
            whole = file.read()
        if damage == "gone":
            os.remove(name)
        else:
            middle = len(whole) // 2
            flipped = whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1:]
            with open(name, "wb") as file:
                file.write({"short": whole[:-1], "empty": b"", "flipped": flipped}[damage])
        with pytest.raises((tf.errors.OpError, OSError)) as refused:
            model.saver.restore(sess, path)
        assert os.path.relpath(name, root) in str(refused.value) and "second" in str(refused.value)
        rows, dense = model.state(sess)
        for now, then in zip(rows, before[0]):
            support.assert_same_tables(now, then)
        assert dense == before[1]
        with open(name, "wb") as file:
            file.write(whole)
        os.chmod(name, 0o640)
    model.saver.restore(sess, path)
    assert model.state(sess)[1] == [1.0, 1.0]


@pytest.mark.parametrize("change, error", [({"capacity": 4}, "ResourceExhaustedError"), ({"dim": 2}, "InvalidArgumentError")])
def test_another_budget_or_dim_is_refused_before_variables_change(saved, session, change, error):
    path = saved[2]
    tf.compat.v1.reset_default_graph()
    model = Model(**change)
    with support.new_session() as sess:
        sess.run(model.dense.assign([7.0, 7.0]))
        with pytest.raises(getattr(tf.errors, error)) as refused:
            model.saver.restore(sess, path)
        assert "first" in str(refused.value) and sess.run(model.dense).tolist() == [7.0, 7.0]


def test_a_new_table_starts_empty_and_one_that_is_gone_is_left(saved, caplog):
    path = saved[2]
    tf.compat.v1.reset_default_graph()
    model = Model(names=("first", "third"))
    with support.new_session() as sess:
        model.saver.restore(sess, path)
        assert model.raws["first"].size(sess) == 5 and model.raws["third"].size(sess) == 0
