"""The tables of a checkpoint belong to it: those of another save are refused where they are read.

A table's directory of another step, copied into a checkpoint, was sound by itself. It was loaded
beside the variables and tables of that checkpoint, and training went on from a mixture.
"""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
from saver_cases import Model
from mx_rec.checkpoint.chains import checked_manifest
from mx_rec.checkpoint.__main__ import main
from mx_rec.saver.sparse import export


def saved(model, sess, prefix, steps=(1, 2), **arguments):
    """Saves the model at each step with that as its value."""
    for step in steps:
        model.saver.save(model.fill(sess, float(step)), prefix, global_step=step, **arguments)


@pytest.fixture
def model(graph, dynamic):
    return Model(shape=(), max_to_keep=9)


def exchange(place, source, target):
    """Puts the directory of a table in the place of another."""
    shutil.rmtree(os.path.join(place, target))
    shutil.copytree(os.path.join(place, source), os.path.join(place, target))


def assert_named(text, place, target):
    assert os.path.join(place, target) in text and repr(os.path.basename(target)) in text, text
    assert "another checkpoint" in text and os.path.dirname(os.path.join(place, target)) in text


@pytest.mark.parametrize("source, target", [
    ("sparse-m-1/users", "sparse-m-2/users"), ("sparse-m-2/items", "sparse-m-1/items"), ("sparse-m-2/users", "sparse-m-2/items")])
def test_a_table_of_another_save_is_refused_before_anything_changes(model, session, place, source, target):
    """Of an earlier step, of a later one, and another table of the same save."""
    sess = session()
    saved(model, sess, place + "/m")
    if source.split("/")[0] == target.split("/")[0]:
        # The same rows would make the same files.
        model.raws[0].assign(sess, [7], np.full([1, 3], 7.0))
        model.saver.save(sess, place + "/m", global_step=2)
    exchange(place, source, target)
    model.fill(sess, 9.0)
    before = [raw.rows(sess) for raw in model.raws]
    with pytest.raises(tf.errors.DataLossError) as refused:
        model.saver.restore(sess, place + "/m-" + target[9])
    assert_named(refused.value.message, place, target)
    support.assert_same_each([one.rows(sess) for one in model.raws], before)
    assert sess.run(model.dense) == 9.0


def test_it_is_a_fault_for_the_command(model, session, place, capsys):
    saved(model, session(), place + "/m")
    assert main([place, "--verify"]) == 0
    exchange(place, "sparse-m-1/users", "sparse-m-2/users")
    capsys.readouterr()
    assert main([place, "--verify"]) == 1
    said = capsys.readouterr().out
    assert place + "/sparse-m-2/users/manifest.json: the table was saved with another checkpoint" in said
    assert "1 fault in" in said
    assert main([place]) == 0 and "another checkpoint" in capsys.readouterr().out


def test_a_table_without_a_manifest_is_refused_as_well(model, session, place, capsys):
    sess = session()
    saved(model, sess, place + "/m")
    os.remove(place + "/sparse-m-2/users/manifest.json")
    with pytest.raises(tf.errors.DataLossError) as refused:
        model.saver.restore(sess, place + "/m-2")
    assert place + "/sparse-m-2/users/manifest.json" in refused.value.message
    assert main([place, "--verify"]) == 1


def test_a_remote_copy_is_compared_as_well(model, session, place):
    sess = session()
    saved(model, sess, "file://" + place + "/m")
    model.saver.restore(sess, "file://" + place + "/m-1")
    model.assert_filled(sess, 1.0)
    exchange(place, "sparse-m-1/users", "sparse-m-2/users")
    with pytest.raises(tf.errors.DataLossError) as refused:
        model.saver.restore(sess, "file://" + place + "/m-2")
    assert "file://" + place + "/sparse-m-2/users" in refused.value.message
    model.assert_filled(sess, 1.0)


def test_an_export_and_a_warm_start_refuse_it(model, session, place):
    from tensorflow.python.training import warm_starting_util

    saved(model, session(), place + "/m")
    exchange(place, "sparse-m-1/users", "sparse-m-2/users")
    with pytest.raises(ValueError) as refused:
        export(table_list=["users"])
    assert_named(str(refused.value), place, "sparse-m-2/users")
    with pytest.raises(tf.errors.DataLossError) as refused:
        tf.compat.v1.train.get_or_create_global_step()
        warm_starting_util.warm_start(place + "/m-2", ["users"])
    assert_named(refused.value.message, place, "sparse-m-2/users")


def test_the_op_alone_refuses_it(model, session, place):
    """As in a SavedModel, where no Python looks at the files."""
    sess = session()
    saved(model, sess, place + "/m")
    exchange(place, "sparse-m-1/users", "sparse-m-2/users")
    for step, refusal in ((1, None), (2, tf.errors.DataLossError)):
        load = support.ops().mx_rec_load(model.raws[0].handle, support.bytes_tensor("%s/sparse-m-%d/users" % (place, step)), [])
        if refusal is None:
            assert sess.run(load).rows == 5
            continue
        with pytest.raises(refusal) as refused:
            sess.run(load)
        assert "sparse-m-2" in refused.value.message and "users" in refused.value.message
    support.assert_same_tables(model.raws[0].rows(sess), {key: np.ones(3, np.float32) for key in range(5)})


def test_a_delta_of_another_step_is_refused(graph, session, mx, place):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    model = Model(shape=(), max_to_keep=9)
    sess = session()
    saved(model, sess, place + "/m", steps=(1,))
    saved(model, sess, place + "/m", steps=(2, 3, 4), save_delta=True)
    model.saver.restore(sess, place + "/m-4")
    model.assert_filled(sess, 4.0)
    exchange(place, "delta-sparse-m-2/items", "delta-sparse-m-3/items")
    with pytest.raises(tf.errors.DataLossError) as refused:
        model.saver.restore(sess, place + "/m-4")
    assert_named(refused.value.message, place, "delta-sparse-m-3/items")
    model.saver.restore(sess, place + "/m-2")
    model.assert_filled(sess, 2.0)


def test_a_checkpoint_of_before_is_restored(model, session, place, capsys):
    """Its manifest says nothing of those of its tables."""
    sess = session()
    saved(model, sess, place + "/m")
    path = place + "/sparse-m-1/manifest.json"
    content = checked_manifest(support.text_of(path))
    assert all(len(table.pop("manifest")["crc32c"]) == 8 for table in content["tables"])
    support.write(path, support.sealed(content))
    model.saver.restore(sess, place + "/m-1")
    model.assert_filled(sess, 1.0)
    assert main([place, "--verify"]) == 0
