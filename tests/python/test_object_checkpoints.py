"""tf.train.Checkpoint in a graph with tables.

It saved the variables and left the tables out without a word: after a restore every row was new.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

import support


def table(name="users", **options):
    return support.make_table(name, 2, 100, **options)


def checkpoints():
    return [tf.train.Checkpoint, tf.compat.v2.train.Checkpoint]


@pytest.mark.parametrize("at", range(2))
def test_a_save_is_refused_and_says_what_to_use(graph, session, dynamic, place, at):
    table()
    dense = tf.compat.v1.get_variable("dense", initializer=1.0, use_resource=True)
    sess = support.started(session())
    one = checkpoints()[at](dense=dense)
    with sess.as_default():
        for save in (lambda: one.save(place + "/m"), lambda: one.write(place + "/m"),
                     tf.train.CheckpointManager(one, place, max_to_keep=2).save):
            with pytest.raises(NotImplementedError) as refused:
                save()
            assert "'users'" in str(refused.value) and "tf.compat.v1.train.Saver" in str(refused.value)
    assert os.listdir(place) == []


@pytest.mark.parametrize("at", range(2))
def test_a_restore_of_what_a_saver_saved_is_refused(graph, session, dynamic, place, at):
    raw = support.Raw.of(table())
    dense = tf.compat.v1.get_variable("dense", initializer=1.0, use_resource=True)
    sess = support.started(session())
    raw.assign(sess, [1, 2], np.ones([2, 2]))
    path = tf.compat.v1.train.Saver().save(sess, place + "/m", global_step=1)
    with sess.as_default():
        with pytest.raises(NotImplementedError) as refused:
            checkpoints()[at](dense=dense).restore(path)
    assert place + "/sparse-m-1" in str(refused.value) and "'users'" in str(refused.value)


@pytest.mark.parametrize("at", range(2))
def test_graphs_without_tables_to_save_are_tensorflows_own(graph, session, dynamic, place, at):
    table(is_save=False)
    dense = tf.compat.v1.get_variable("dense", initializer=1.0, use_resource=True)
    sess = support.started(session())
    with sess.as_default():
        one = checkpoints()[at](dense=dense)
        path = one.save(place + "/m")
        sess.run(dense.assign(5.0))
        one.restore(path).run_restore_ops()
        assert sess.run(dense) == 1.0
        # The dense part of another model, beside a table that keeps its rows.
        table("items")
        one.restore(path).run_restore_ops()
    with tf.Graph().as_default(), support.new_session() as other:
        dense = tf.compat.v1.get_variable("dense", initializer=1.0, use_resource=True)
        other.run(dense.initializer)
        with other.as_default():
            assert os.path.exists(checkpoints()[at](dense=dense).save(place + "/n") + ".index")


def test_a_warm_start_by_hand_brings_the_tables(graph, session, dynamic, place):
    """tf.train.warm_start took the variables and left the tables as they were."""
    raw = support.Raw.of(table())
    sess = session()
    tf.compat.v1.train.get_or_create_global_step()
    sess.run(tf.compat.v1.global_variables_initializer())
    raw.assign(sess, [1, 2], np.ones([2, 2]))
    path = tf.compat.v1.train.Saver().save(sess, place + "/m", global_step=1)
    for module in (tf.compat.v1.train, tf.train):
        fresh = session()
        assert raw.size(fresh) == 0
        module.warm_start(path, [".*"])
        fresh.run(tf.compat.v1.global_variables_initializer())
        assert raw.size(fresh) == 2
