"""A SavedModel has its tables wherever its variables are restored: also where only the plugin is known.

Without that, a server that loads the plugin and not the Python package predicts from empty tables, and nothing says so.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(directory of a SavedModel, what it predicts for keys 0..19)."""
    from mx_rec.core.embedding import sparse_lookup
    from mx_rec.util.initialize import init, terminate_config_initializer

    init()
    directory = os.path.realpath(str(tmp_path_factory.mktemp("serving"))) + "/with space"
    with tf.Graph().as_default(), support.new_session() as sess:
        tables = [support.make_table(name, 3, 100, tf.compat.v1.random_normal_initializer(seed=5),
                                     is_save=name != "scratch")
                  for name in ("user_table", "item_table", "scratch")]
        keys = tf.compat.v1.placeholder(tf.int64, [None], name="keys")
        made = [sparse_lookup(table, keys, is_train=True, modify_graph=True) for table in tables]
        weight = tf.compat.v1.get_variable("weight", initializer=2.0)
        found = [sparse_lookup(table, keys, is_train=False, modify_graph=True) for table in tables[:2]]
        output = weight * tf.add_n(found)
        sess.run(tf.compat.v1.global_variables_initializer())
        sess.run(made, {keys: np.arange(10)})
        tf.compat.v1.saved_model.simple_save(sess, directory, {"keys": keys}, {"output": output})
        predicted = sess.run(output, {keys: np.arange(20)})
    terminate_config_initializer()
    assert np.abs(predicted[:10]).min() > 0 and not predicted[10:].any()
    return directory, predicted


LOAD = """
import sys
import numpy as np
import tensorflow as tf
how, plugin, directory, out = sys.argv[1:]
if how == "package":
    import mx_rec
else:
    tf.load_op_library(plugin)
    assert "mx_rec" not in sys.modules
with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    signature = tf.compat.v1.saved_model.load(sess, ["serve"], directory).signature_def["serving_default"]
    np.save(out, sess.run(signature.outputs["output"].name, {signature.inputs["keys"].name: np.arange(20)}))
"""


@pytest.mark.parametrize("how", ["plugin", "package"])
def test_a_fresh_process_predicts_the_same(model, tmp_path, how):
    directory, predicted = model
    out = str(tmp_path / "out.npy")
    preloaded.run_python(LOAD, how, support.library_path(), directory, out)
    support.assert_same_bits(np.load(out), predicted)


def test_a_model_without_the_files_of_a_table_is_not_loaded_at_all(model, tmp_path):
    import shutil

    moved = str(tmp_path / "model")
    shutil.copytree(model[0], moved)
    shutil.rmtree(moved + "/variables/sparse-variables/item_table")
    with pytest.raises(AssertionError) as refused:
        preloaded.run_python(LOAD, "plugin", support.library_path(), moved, str(tmp_path / "out.npy"))
    assert "NotFoundError" in str(refused.value) and "item_table" in str(refused.value)


def test_the_command_line_of_the_package_runs_it(model, tmp_path):
    directory, predicted = model
    inputs = str(tmp_path / "keys.npy")
    np.save(inputs, np.arange(20))
    preloaded.run_python("import runpy; runpy.run_module('mx_rec.saved_model_cli', run_name='__main__')", "run", "--dir", directory,
                       "--tag_set", "serve", "--signature_def", "serving_default", "--inputs", "keys=" + inputs,
                       "--outdir", str(tmp_path))
    support.assert_same_bits(np.load(str(tmp_path / "output.npy")), predicted)
