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
def test_early_stopping_reads_the_evaluations_of_converted_models(mx, tmp_path):
    mx(stock_tables=".*")
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
    v1 = tf.compat.v1

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
