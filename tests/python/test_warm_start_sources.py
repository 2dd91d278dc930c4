"""Warm start from what else holds tables, and of models that hold none."""

import gc
import os
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases as cases
import support
from mx_rec import patches
from mx_rec.optimizers.adagrad import create_hash_optimizer

USER, ITEM = cases.TABLES


@pytest.fixture
def old(dynamic, tmp_path):
    """The directory of a trained model."""
    case = cases.Case("step", tmp_path / "old", keep_checkpoint_max=9)
    case.train(steps=6)
    return case.directory


def start(directory, warm_start, **kwargs):
    """Trains a step from `warm_start`; returns the tables that it started with."""
    case = cases.Case("step", directory, warm_start=warm_start, keep_checkpoint_max=9, **kwargs)
    case.train(steps=1)
    return cases.saved_tables(case.directory, 0)


def assert_rows(tables, old, names=cases.TABLES):
    theirs = cases.saved_tables(old)
    for name in names:
        assert theirs[name]["embedding"]
        support.assert_same_tables(tables[name]["embedding"], theirs[name]["embedding"], name)


def test_files_of_the_original_have_no_manifest(old, tmp_path):
    sparse = old + "/sparse-model.ckpt-6/"
    for name in ("", USER + "/", ITEM + "/"):
        os.remove(sparse + name + "manifest.json")
    assert_rows(start(tmp_path / "rows", old), old)
    tables = start(tmp_path / "slots", tf.estimator.WarmStartSettings(old, ["user_table"]))
    assert_rows(tables, old, [USER])
    assert set(tables[USER]) == {"embedding", "LazyAdam_momentum", "LazyAdam_velocity"}


@pytest.mark.long
def test_a_path_may_be_relative_and_have_spaces_and_other_letters(old, tmp_path, monkeypatch):
    os.rename(old, str(tmp_path / "ein \u00e4lteres Modell"))
    monkeypatch.chdir(str(tmp_path))
    for number, path in enumerate(["ein \u00e4lteres Modell", "./ein \u00e4lteres Modell/", "ein \u00e4lteres Modell/model.ckpt-6"]):
        assert_rows(start(tmp_path / str(number), path), str(tmp_path / "ein \u00e4lteres Modell"))


@pytest.mark.long
def test_a_path_may_be_of_another_file_system(old, tmp_path, monkeypatch):
    """file:// is the one that is here; the local copies go with the graph."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for number, path in enumerate(["file://" + old, "file://" + old + "/model.ckpt-6"]):
        assert_rows(start(tmp_path / str(number), path), old)
    tf.compat.v1.reset_default_graph()
    gc.collect()
    # Something may still hold the last graph.
    assert len(list(scratch.iterdir())) < 2


def test_an_interrupted_replacement_of_the_tables_is_put_back(old, tmp_path):
    """The process that renamed them is dead, and its second rename never came."""
    os.rename(old + "/sparse-model.ckpt-6", old + "/.sparse-model.ckpt-6.old-999999999-0")
    tables = start(tmp_path / "new", old)
    assert_rows(tables, old)


@pytest.mark.long
def test_a_saved_model_is_a_source_as_in_tensorflow(old, tmp_path):
    def receiver():
        features = {"user": tf.compat.v1.placeholder(tf.int64, [None, 2]),
                    "item": tf.compat.v1.placeholder(tf.int64, [None]),
                    "price": tf.compat.v1.placeholder(tf.float32, [None])}
        return tf.estimator.export.ServingInputReceiver(features, features)

    class Exported(cases.Case):
        def model_fn(self, features, labels, mode, params):
            spec = super().model_fn(features, labels, mode, params)
            if mode == tf.estimator.ModeKeys.PREDICT:
                output = tf.estimator.export.PredictOutput(spec.predictions["output"])
                spec = spec._replace(export_outputs={"serving_default": output})
            return spec

    exported = Exported("step", old).estimator.export_saved_model(str(tmp_path / "exported"), receiver)
    shutil.move(exported.decode(), str(tmp_path / "saved model"))
    assert_rows(start(tmp_path / "new", str(tmp_path / "saved model")), old)


def model_without_tables(directory, warm_start):
    """Trains a step of a model of two variables; returns the values that it started with."""
    def model_fn(features, labels, mode):
        del labels
        values = [tf.compat.v1.get_variable(name, [2], initializer=tf.compat.v1.random_normal_initializer())
                  for name in ("first", "second")]
        loss = tf.reduce_mean(tf.square(values[0] * features + values[1]))
        step = tf.compat.v1.train.get_global_step()
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, step))

    config = tf.estimator.RunConfig(str(directory), log_step_count_steps=None)
    tf.estimator.Estimator(model_fn, config=config, warm_start_from=warm_start).train(
        lambda: tf.data.Dataset.from_tensor_slices(np.ones([8, 2], np.float32)), steps=1)
    return cases.saved_variables(str(directory), 0)


def test_a_model_without_tables_has_tensorflows_warm_start_and_several_paths(mx, tmp_path):
    settings = tf.estimator.WarmStartSettings
    paths = [str(tmp_path / name) for name in ("one", "two")]
    one, two = [(model_without_tables(path, None), cases.saved_variables(path))[1] for path in paths]
    assert not np.array_equal(one["first"], two["first"])
    found = model_without_tables(tmp_path / "a", paths[0])
    assert np.array_equal(found["first"], one["first"]) and np.array_equal(found["second"], one["second"])
    found = model_without_tables(tmp_path / "b", settings(paths, [".*", ["second"]], None, [None, None]))
    assert np.array_equal(found["first"], one["first"]) and np.array_equal(found["second"], two["second"])
    # TensorFlow passes over an expression that matches nothing, and has its own words for what is not there.
    found = model_without_tables(tmp_path / "c", settings(paths[0], ["no_such"]))
    assert not np.array_equal(found["first"], one["first"])
    with pytest.raises((ValueError, tf.errors.OpError)) as stock:
        model_without_tables(tmp_path / "d", str(tmp_path / "nowhere"))
    assert not isinstance(stock.value, FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        model_without_tables(tmp_path / "e", settings([str(tmp_path / "nowhere")], [".*"]))


@pytest.mark.long
@pytest.mark.parametrize("slots", [False, True], ids=["rows", "rows and slots"])
def test_another_optimizer_starts_with_its_own_fresh_slots(old, tmp_path, slots):
    """The slots of the earlier one do no harm: after a step the tables are those of a start without them."""
    ends = {}
    for name, wanted in (("alone", ".*"), ("new", [".*_table", "dense/bias[^/]"] if slots else ".*")):
        case = cases.Case("step", tmp_path / name, warm_start=tf.estimator.WarmStartSettings(
            [old, old], [".*", wanted]), params={"optimizer": create_hash_optimizer}, keep_checkpoint_max=9)
        case.train(steps=3)
        assert_rows(cases.saved_tables(case.directory, 0), old)
        ends[name] = cases.saved_tables(case.directory)
    for table in cases.TABLES:
        mine, theirs = ends["new"][table], ends["alone"][table]
        assert set(theirs) == {"embedding", "Adagrad_accumulator"} <= set(mine)
        assert ("LazyAdam_momentum" in mine) == slots
        for part in theirs:
            support.assert_same_tables(mine[part], theirs[part], part)


def test_merged_tables_are_chosen_by_the_name_of_what_they_share(mx, session, tmp_path):
    from tensorflow.python.training import warm_starting_util

    mx(use_dynamic_expansion=True)

    def tables():
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.train.get_or_create_global_step()
        return [support.Raw.of(support.make_table(name, 2, 10, enable_merge=True)) for name in ("one", "two")]

    one, two = tables()
    sess = support.started(session())
    one.assign(sess, [1, 2], np.ones([2, 2]))
    tf.compat.v1.train.Saver().save(sess, str(tmp_path / "model.ckpt"))
    one, two = tables()
    with pytest.raises(ValueError, match="'one', but no table .* 'mergeable_table_0'"):
        warm_starting_util.warm_start(str(tmp_path), ["one"])
    warm_starting_util.warm_start(str(tmp_path), ["mergeable_table_0"])
    sess = support.started(session())
    assert two.rows(sess).keys() == {1, 2} and np.all(one.find(sess, [1, 2]) == 1)


def test_patches_are_applied_once():
    from tensorflow.python.training import warm_starting_util
    from tensorflow_estimator.python.estimator import estimator

    functions = [(warm_starting_util, "warm_start"), (estimator, "_get_default_warm_start_settings")]
    before = [getattr(*function) for function in functions]
    patches.apply()
    assert [getattr(*function) for function in functions] == before
    # And a function that is TensorFlow's own lies right under each.
    assert all(function.__wrapped__.__module__ == owner.__name__ and not hasattr(function.__wrapped__, "__wrapped__")
               for function, (owner, _) in zip(before, functions))
