"""An Estimator trains, evaluates, predicts and resumes on tables through its own checkpoints."""

import os

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.adagrad import create_hash_optimizer

COUNT = 64


def samples(seed=0):
    random = np.random.RandomState(seed)
    ids = random.randint(0, 20, [COUNT, 2]).astype(np.int64)
    truth = np.sin(np.arange(20))
    return ids, truth[ids].sum(axis=1).astype(np.float32)


def input_fn(repeat=1):
    def make():
        ids, labels = samples()
        return tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels)).repeat(repeat).batch(16).prefetch(2)

    return make


def model_fn(features, labels, mode):
    table = support.make_table("table", 1, 100)
    is_train = mode == tf.estimator.ModeKeys.TRAIN
    embedding = sparse_lookup(table, features["ids"], is_train=is_train, modify_graph=True)
    output = tf.reduce_sum(embedding, axis=[1, 2])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"output": output})
    loss = tf.reduce_mean(tf.square(output - labels))
    train = None
    if is_train:
        train = create_hash_optimizer(0.3, initial_accumulator_value=0.1).minimize(
            loss, global_step=tf.compat.v1.train.get_global_step(), var_list=[table.variable])
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


@pytest.fixture
def estimator(dynamic, tmp_path):
    run = tf.estimator.RunConfig(model_dir=os.path.realpath(str(tmp_path)) + "/model", save_checkpoints_steps=10,
                                 keep_checkpoint_max=2, log_step_count_steps=None, save_summary_steps=1000)
    return tf.estimator.Estimator(model_fn, config=run)


def test_evaluation_and_prediction_see_the_rows_that_training_made(estimator):
    estimator.train(input_fn(None), steps=25)
    trained = estimator.evaluate(input_fn())
    assert trained["global_step"] == 25 and trained["loss"] < 0.1
    outputs = [float(one["output"]) for one in estimator.predict(input_fn())]
    assert abs(np.mean(np.square(np.array(outputs) - samples()[1])) - trained["loss"]) < 1e-4
    kept = sorted(name for name in os.listdir(estimator.model_dir) if name.startswith("sparse-"))
    assert kept == ["sparse-model.ckpt-20", "sparse-model.ckpt-25"]


def test_training_goes_on_from_its_checkpoint(estimator):
    estimator.train(input_fn(None), steps=20)
    half = estimator.evaluate(input_fn())["loss"]
    estimator.train(input_fn(None), steps=20)
    whole = estimator.evaluate(input_fn())
    assert whole["global_step"] == 40 and whole["loss"] < half
    run = estimator.config.replace(model_dir=estimator.model_dir + "_at_once")
    at_once = tf.estimator.Estimator(model_fn, config=run)
    at_once.train(input_fn(None), steps=40)
    assert at_once.evaluate(input_fn())["loss"] == whole["loss"]


def test_train_and_evaluate_alternates(estimator):
    result, _ = tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(input_fn(None), max_steps=30),
        tf.estimator.EvalSpec(input_fn(), steps=None, start_delay_secs=0, throttle_secs=0))
    assert result["global_step"] == 30 and result["loss"] < 0.1
