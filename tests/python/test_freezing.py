"""Tools that turn variables into constants: with tables they say what to use instead, without any they work as before."""

import os

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from mx_rec.core.embedding import sparse_lookup


def make_model(tables=("items",), is_save=True):
    """Tables of ones, a dense part behind them, and one beside them that needs no table."""
    ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    weight = tf.compat.v1.get_variable("weight", initializer=[[2.0]] * 3)
    found = []
    for name in tables:
        table = support.make_table(name, 3, 100, 1.0, is_save=is_save)
        sparse_lookup(table, ids, modify_graph=True, name="train_" + name)
        found.append(sparse_lookup(table, ids, is_train=False, modify_graph=True))
    tf.identity(tf.matmul(tf.add_n(found), weight), name="score")
    features = tf.compat.v1.placeholder(tf.float32, [None, 3], name="features")
    tf.identity(tf.matmul(features, weight), name="dense_score")


def freeze(tf, sess, output, directory):
    return tf.compat.v1.graph_util.convert_variables_to_constants(sess, sess.graph_def, [output])


def freeze_by_implementation(tf, sess, output, directory):
    from tensorflow.python.framework import graph_util_impl

    return graph_util_impl.convert_variables_to_constants(sess, sess.graph_def, [output])


def freeze_from_checkpoint(tf, sess, output, directory):
    from tensorflow.python.tools import freeze_graph

    path = tf.compat.v1.train.Saver().save(sess, os.path.join(directory, "model.ckpt"))
    tf.io.write_graph(sess.graph_def, directory, "graph.pb", as_text=False)
    # It imports the graph into the default one, as the command of that name does in a process of its own.
    with tf.Graph().as_default():
        freeze_graph.freeze_graph(os.path.join(directory, "graph.pb"), "", True, path, output, "save/restore_all",
                                  "save/Const:0", os.path.join(directory, "frozen.pb"), True, "")
    with open(os.path.join(directory, "frozen.pb"), "rb") as file:
        return tf.compat.v1.GraphDef.FromString(file.read())


def optimize(tf, sess, output, directory):
    from tensorflow.python.tools import optimize_for_inference_lib

    frozen = tf.compat.v1.GraphDef()
    frozen.CopyFrom(sess.graph_def)
    return optimize_for_inference_lib.optimize_for_inference(
        frozen, ["ids" if output == "score" else "features"], [output],
        [tf.int64.as_datatype_enum if output == "score" else tf.float32.as_datatype_enum])


FREEZERS = [freeze, freeze_by_implementation, freeze_from_checkpoint, optimize]


@pytest.mark.parametrize("freezer", FREEZERS)
def test_a_graph_with_tables_cannot_be_frozen(graph, session, dynamic, tmp_path, freezer):
    """The frozen graph gave zeros for every row."""
    make_model(["items", "users"])
    sess = support.started(session())
    with pytest.raises(ValueError) as error:
        freezer(tf, sess, "score", os.path.realpath(str(tmp_path)))
    for part in ("'items', 'users'", "zeros", "mx_rec.saver.export_plain", "export_saved_model with plain=True",
                 "tf.compat.v1.train.Saver"):
        assert part in str(error.value)


@pytest.mark.parametrize("freezer", FREEZERS)
def test_what_needs_no_table_freezes_as_before(graph, session, dynamic, tmp_path, freezer):
    make_model()
    sess = support.started(session())
    frozen = freezer(tf, sess, "dense_score", os.path.realpath(str(tmp_path)))
    assert not [node.op for node in frozen.node if node.op.startswith("MxRec")]
    if freezer is optimize:
        return
    with tf.Graph().as_default() as other:
        tf.import_graph_def(frozen, name="")
        with support.new_session(other) as sess:
            assert sess.run("dense_score:0", {"features:0": np.ones([1, 3])}).tolist() == [[6.0]]


def test_a_sub_graph_that_can_load_its_tables_is_not_refused(graph, session, dynamic):
    make_model()
    sess = support.started(session())
    frozen = tf.compat.v1.graph_util.convert_variables_to_constants(
        sess, sess.graph_def, ["score", "items//table/load"])
    assert {"MxRecTable", "MxRecLoad"} <= {node.op for node in frozen.node}
    assert "MxRecTable" in {node.op for node in tf.compat.v1.graph_util.extract_sub_graph(
        sess.graph_def, ["score"]).node}


def test_an_imported_graph_whose_tables_nothing_fills_warns(graph, session, dynamic, caplog):
    """As frozen by a process without this package; nothing is said of graphs that train or load."""
    make_model(["left_alone"])
    whole = graph.as_graph_def()
    cut = tf.compat.v1.graph_util.extract_sub_graph(whole, ["score"])
    with tf.Graph().as_default():
        caplog.clear()
        tf.import_graph_def(whole, name="")
        assert "left_alone" not in caplog.text
        tf.import_graph_def(cut, name="cut")
    assert "the table 'left_alone'" in caplog.text and "every lookup gives zeros" in caplog.text


SAVE = """
import sys
import tensorflow as tf
import test_freezing
from mx_rec.util.initialize import init
init()
test_freezing.make_model()
graph = tf.compat.v1.get_default_graph()
with tf.compat.v1.Session() as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    sess.run("items//train_items/embedding:0", {"ids:0": [1, 2]})
    tf.compat.v1.saved_model.simple_save(sess, sys.argv[1], {"ids": graph.get_tensor_by_name("ids:0")},
                                         {"score": graph.get_tensor_by_name("score:0")})
"""

EAGER = """
import sys
import tensorflow as tf
tf.compat.v1.enable_eager_execution()
import mx_rec
from mx_rec.ops import library
library()
try:
    tf.compat.v2.saved_model.load(sys.argv[1], tags=["serve"])
except NotImplementedError as error:
    print(error)
with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    tf.compat.v1.saved_model.load(sess, ["serve"], sys.argv[1])
    print(sess.run("score:0", {"ids:0": [1, 2, 3]}).tolist())
"""


def test_eager_execution_cannot_load_a_model_with_tables(tmp_path):
    """The function that restores and the function that serves had a table each: all rows were zeros."""
    directory = os.path.join(os.path.realpath(str(tmp_path)), "saved")
    preloaded.run_python(SAVE, directory)
    said, scores = preloaded.run_python(EAGER, directory).splitlines()
    assert "the table 'items' cannot be imported" in said and "tf.compat.v1.saved_model.load" in said
    assert scores == "[[6.0], [6.0], [0.0]]"


def test_a_function_with_a_table_cannot_be_frozen(graph, session, dynamic):
    """convert_variables_to_constants_v2 takes functions."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    make_model()
    graph_def = graph.as_graph_def()

    def serve(ids):
        return tf.import_graph_def(graph_def, {"ids:0": ids}, ["score:0", "dense_score:0"], name="")

    with tf.Graph().as_default():
        function = tf.compat.v1.wrap_function(serve, [tf.TensorSpec([None], tf.int64)])
        with pytest.raises(ValueError, match="the rows of the table 'items' are no variables"):
            convert_variables_to_constants_v2(function)
