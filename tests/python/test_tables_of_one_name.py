"""Two tables of one name in a graph: they cannot share a directory of a checkpoint.

A graph that was imported twice has them. One Saver wrote both into one directory, where the later
one stayed, and a restore gave both tables its rows. Now that is refused before anything is written.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.saver.saver import Saver
from mx_rec.util.initialize import init, terminate_config_initializer


def exported(name="users"):
    """A graph with one table, as a meta graph."""
    init()
    with tf.Graph().as_default() as graph:
        table = support.make_table(name, 2, 100)
        tf.compat.v1.get_variable("dense", initializer=1.0)
        found = tf.compat.v1.train.export_meta_graph(graph=graph), table.variable.name
    terminate_config_initializer()
    return found


class Twice:
    """A graph that was imported twice, and its tables."""

    def __init__(self, imported="meta"):
        meta, variable = exported()
        self.raws = []
        for scope in ("one", "two"):
            if imported == "meta":
                tf.compat.v1.train.import_meta_graph(meta, import_scope=scope)
            else:
                tf.import_graph_def(meta.graph_def, name=scope)
            op = tf.compat.v1.get_default_graph().get_tensor_by_name(scope + "/" + variable).op
            self.raws.append(support.Raw(op.outputs[0], op.outputs[1], 2))
        self.variables = [raw.variable for raw in self.raws]

    def fill(self, sess):
        for raw, count in zip(self.raws, (9, 4)):
            raw.assign(sess, np.arange(count), np.full([count, 2], count))

    def assert_refused(self, call):
        with pytest.raises(ValueError) as refused:
            call()
        text = str(refused.value)
        assert "'users'" in text and all(repr(one.op.name) in text for one in self.variables), text


@pytest.mark.parametrize("imported", ["meta", "graph_def"])
def test_a_save_and_a_restore_are_refused_by_both_savers(graph, session, place, imported):
    model = Twice(imported)
    tf.compat.v1.get_variable("more", initializer=2.0)
    sess = support.started(session())
    model.fill(sess)
    stock = tf.compat.v1.train.Saver()
    for save in (stock.save, Saver().save):
        model.assert_refused(lambda: save(sess, place + "/m", global_step=1))
    assert os.listdir(place) == []
    # One of them is saved, and comes back to it alone.
    ours = Saver([model.variables[1]])
    ours.save(sess, place + "/m", global_step=1)
    tf.compat.v1.train.Saver(tf.compat.v1.global_variables() + [model.variables[1]]).save(sess, place + "/n", global_step=1)
    for restore, prefix in ((stock.restore, "/n-1"), (Saver().restore, "/m-1")):
        model.assert_refused(lambda: restore(sess, place + prefix))
    assert [raw.size(sess) for raw in model.raws] == [9, 4]
    model.raws[1].remove(sess, [0])
    ours.restore(sess, place + "/m-1")
    assert [raw.size(sess) for raw in model.raws] == [9, 4]


def test_a_saved_model_and_a_warm_start_are_refused(graph, session, place):
    from tensorflow.python.training import warm_starting_util

    model = Twice()
    tf.compat.v1.train.get_or_create_global_step()
    sess = support.started(session())
    model.fill(sess)
    model.assert_refused(lambda: tf.compat.v1.saved_model.simple_save(
        sess, place + "/saved", {"in": model.variables[0]}, {"out": model.variables[1]}))
    assert not [name for _, _, names in os.walk(place) for name in names]
    tf.compat.v1.train.Saver([model.variables[0]]).save(sess, place + "/m", global_step=1)
    model.assert_refused(lambda: warm_starting_util.warm_start(place + "/m-1", ["users"]))


def test_a_table_that_an_import_was_given_is_saved_once(graph, session, mx, place):
    """The imported graph has save and load ops of its own for it."""
    meta, variable = exported("items")
    mx()

    table = support.make_table("items", 2, 100)
    op = table.variable.op
    tf.import_graph_def(meta.graph_def, name="again", input_map={
        output.name: output for output in op.outputs})
    raw, sess = support.opened(table, session)
    raw.assign(sess, [1, 2], np.ones([2, 2]))
    saver = tf.compat.v1.train.Saver([table.variable])
    path = saver.save(sess, place + "/m", global_step=1)
    raw.remove(sess, [1])
    saver.restore(sess, path)
    assert raw.size(sess) == 2 and variable == table.variable.name
