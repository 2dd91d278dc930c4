"""Unchanged Estimators on tables with graph modification, early stopping, and scripts that set nothing afterwards."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
import test_stock_estimators as estimators
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.stock.select import convert_graph
from mx_rec.util import initialize

v1 = tf.compat.v1

NAMES = ("hash", "bags")


def ops_of(directory):
    return estimators.ops_of(directory)


@pytest.mark.long
def test_graph_modification_moves_key_work_of_converted_lookups_and_keeps_the_numbers(mx, tmp_path):
    mx(stock_tables=".*", use_dynamic=True)
    estimators.train(estimators.estimator("dnn", tmp_path / "plain", NAMES), 2)
    shutil.copytree(str(tmp_path / "plain"), str(tmp_path / "moved"))
    make = [estimators.estimator("dnn", tmp_path / name, NAMES) for name in ("plain", "moved")]
    expected = estimators.train(make[0], 20)
    losses = estimators.train(make[1], 20, hooks=[GraphModifierHook(modify_graph=True)])
    types = ops_of(tmp_path / "moved")
    assert any("prepared" in one for one in types)
    np.testing.assert_allclose(losses, expected, rtol=estimators.TOLERANCE, atol=estimators.TOLERANCE)
    np.testing.assert_allclose(estimators.figures(make[1])[0], estimators.figures(make[0])[0],
                               rtol=estimators.TOLERANCE)


@pytest.mark.long
def test_early_stopping_reads_the_evaluations_of_converted_models(v1, tmp_path):
    made = estimators.estimator("dnn", tmp_path / "model", NAMES, save_checkpoints_steps=5)
    os.makedirs(made.eval_dir())
    limit = tf.estimator.experimental.stop_if_higher_hook(
        made, "loss", threshold=0.0, run_every_secs=None, run_every_steps=5)
    tf.estimator.train_and_evaluate(
        made, tf.estimator.TrainSpec(estimators.input_fn, max_steps=100, hooks=[limit]),
        tf.estimator.EvalSpec(estimators.input_fn, steps=1, throttle_secs=0, start_delay_secs=0))
    assert 5 <= made.get_variable_value("global_step") < 60
    assert ops_of(tmp_path / "model").count("MxRecTable") == 2


def test_a_script_that_sets_nothing_goes_on_in_a_session(mx, tmp_path):
    """Its Saver gets the rows and slots of tables as variables."""

    def script(is_converted, steps, restored):
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(4)
            ids = v1.placeholder(tf.int64, [None])
            w = v1.get_variable("w", [40, 3], initializer=v1.random_uniform_initializer())
            loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, ids)))
            train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
            support.keep_variables()
            if is_converted:
                assert convert_graph(graph, True)[0].converts
            saver = v1.train.Saver()
            with support.started(v1.Session()) as sess:
                if restored:
                    saver.restore(sess, restored)
                losses = [sess.run([loss, train], {ids: [step % 7, 3, 39]})[0] for step in steps]
                return losses, saver.save(sess, str(tmp_path / "model"), global_step=steps[-1])

    mx(stock_tables=".*")
    _, path = script(True, range(10), None)
    expected, _ = script(True, range(10, 20), path)
    initialize.terminate_config_initializer()
    mx()
    losses, _ = script(False, range(10, 20), path)
    np.testing.assert_allclose(losses, expected, rtol=estimators.TOLERANCE)


def test_an_evaluation_in_memory_has_the_rows_of_the_training(mx, tmp_path):
    """It takes what tf.get_collection lists from one graph to the other: tables were not in it, and it evaluated initial rows."""

    def input_fn():
        ids = np.random.RandomState(1).zipf(1.3, [8, 20]) % 40
        return tf.data.Dataset.from_tensor_slices((ids, np.sin(ids).astype(np.float32))).repeat()

    def model_fn(features, labels, mode):
        w = v1.get_variable("w", [40, 3], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(w, features), -1) - labels))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step()) \
            if mode == tf.estimator.ModeKeys.TRAIN else None
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    seen = []
    for is_on in (False, True):
        mx(**({"stock_tables": ".*"} if is_on else {}))
        made = tf.estimator.Estimator(model_fn, str(tmp_path / str(is_on)), tf.estimator.RunConfig(log_step_count_steps=None))
        # The second training begins from tables, and its evaluation has one, too.
        for _ in range(2):
            hook = tf.estimator.experimental.InMemoryEvaluatorHook(made, input_fn, steps=2, every_n_iter=2)
            made.train(input_fn, hooks=[hook], steps=4)
        assert ("MxRecTable" in ops_of(tmp_path / str(is_on))) == is_on
        initialize.terminate_config_initializer()
        files = sorted(os.listdir(made.eval_dir()))
        seen.append([value.simple_value for name in files for event in v1.train.summary_iterator(
            os.path.join(made.eval_dir(), name)) for value in event.summary.value if value.tag == "loss"])
    assert len(seen[0]) >= 4 and len(set(seen[0])) > 2
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5)


def test_collections_keep_variables_that_are_tables_and_a_saver_of_all_saves_tables(v1, tmp_path):
    """A list of its own that a program keeps by tf.add_to_collection was empty behind the first run."""
    with tf.Graph().as_default(), support.new_session() as session:
        keys = [v1.GraphKeys.GLOBAL_VARIABLES, v1.GraphKeys.TRAINABLE_VARIABLES, v1.GraphKeys.MODEL_VARIABLES, "mine"]
        w = v1.get_variable("scope/w", [40, 3], initializer=v1.ones_initializer(), collections=keys)
        other = v1.get_variable("other", [], initializer=v1.ones_initializer())
        optimizer = v1.train.AdagradOptimizer(0.1)
        train = optimizer.minimize(tf.reduce_sum(tf.square(tf.gather(w, [1, 2]))) + other)

        def lists():
            return [v1.get_collection(key, scope) for key in keys for scope in (None, "scope")] + [
                v1.global_variables(), v1.trainable_variables("s"), v1.model_variables()]

        before = lists()
        assert before[1] == [w, optimizer.get_slot(w, "accumulator")]
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert lists() == before
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
        assert support.variables_in(path) == ["other", "other/Adagrad"]
