"""Estimators whose columns lose their buckets and sizes: equal to columns of far more, in training and after it."""

import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
import test_stock_estimators as estimators
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.util import initialize
from mx_rec.util.stock_tables import StockTables

STEPS = 200
TOLERANCE = 512 * support.EPS
# The strings 0 to 399 have different hashes modulo the larger one.
SMALL, LARGE = 20, 60001


def features(count=256, seed=1):
    random = np.random.RandomState(seed)
    made = {"hash": (random.zipf(1.2, count) % 400).astype(str), "identity": random.zipf(1.2, count) % 1000,
            "default": random.zipf(1.3, count) % 1000 - 1, "bags": (random.zipf(1.1, [count, 4]) % 300).astype(str),
            "weighted": (random.zipf(1.2, [count, 3]) % 300).astype(str),
            "weights": random.rand(count, 3).astype(np.float32) + 0.1,
            "one": random.randint(0, 300, count), "other": random.randint(0, 300, count)}
    made["bags"][::3, 2:] = ""
    made["bags"][::7] = ""
    return made, (random.rand(count) < 0.5).astype(np.int32)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(features()).repeat().batch(32)


def columns(size):
    column = tf.feature_column
    start = tf.compat.v1.constant_initializer(0.05)
    hashed = column.categorical_column_with_hash_bucket("hash", size)
    made = [
        hashed, column.categorical_column_with_identity("identity", size),
        column.categorical_column_with_identity("default", size, default_value=3),
        column.categorical_column_with_hash_bucket("bags", size),
        column.weighted_categorical_column(column.categorical_column_with_hash_bucket("weighted", size), "weights"),
        column.crossed_column(["hash", "identity"], 100 * size)]
    dense = [column.embedding_column(one, 3, combiner=("mean", "sum", "sqrtn")[place % 3], initializer=start)
             for place, one in enumerate(made)]
    dense += column.shared_embedding_columns(
        [column.categorical_column_with_identity(name, size) for name in ("one", "other")], 3, initializer=start)
    return made, dense


def estimator(directory, size, **config):
    categorical, dense = columns(size)
    run = tf.estimator.RunConfig(
        model_dir=str(directory), tf_random_seed=3, save_summary_steps=50, log_step_count_steps=1000,
        session_config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1), **config)
    return tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=categorical, dnn_feature_columns=dense, dnn_hidden_units=[8], config=run)


def train(made, steps=STEPS):
    return estimators.train(made, steps, input_fn)


def figures(made):
    return estimators.figures(made, input_fn)


def unlimited(mx, names=True):
    mx(stock_tables=StockTables(least_rows=1, names=["dnn/input", "linear/"], unlimited_ids=names))


def again(mx, **arguments):
    """The settings of a new process."""
    initialize.terminate_config_initializer()
    mx(**arguments)


def tables(directory):
    paths = glob.glob(str(directory / "sparse-*" / "*"))
    return sorted({os.path.basename(path) for path in paths if os.path.isdir(path)})


@pytest.mark.slow
def test_training_evaluation_and_restarts_are_those_of_columns_of_many_more_buckets(mx, tmp_path):
    stock = estimator(tmp_path / "stock", LARGE)
    losses = [train(stock, STEPS // 2), train(stock, STEPS // 2)]
    loss, predicted = figures(stock)
    unlimited(mx)
    first = train(estimator(tmp_path / "tables", SMALL), STEPS // 2)
    assert len(tables(tmp_path / "tables")) == 13
    assert all("unlimited" in name for name in tables(tmp_path / "tables"))
    # A process that says nothing of ids goes on with them as they are, and so do evaluations.
    again(mx, stock_tables=["nothing"])
    second = train(estimator(tmp_path / "tables", SMALL), STEPS // 2)
    np.testing.assert_allclose([first, second], losses, rtol=TOLERANCE, atol=TOLERANCE)
    got = figures(estimator(tmp_path / "tables", SMALL))
    np.testing.assert_allclose(got[0], loss, rtol=TOLERANCE)
    np.testing.assert_allclose(got[1], predicted, rtol=TOLERANCE, atol=TOLERANCE)


def linear(directory, size, key="hash", **config):
    """A linear model of one column, whose ids are strings or numbers."""
    column = tf.feature_column
    make = {"hash": column.categorical_column_with_hash_bucket, "identity": column.categorical_column_with_identity}
    return tf.estimator.LinearClassifier(
        [make[key](key, size)], model_dir=str(directory), config=tf.estimator.RunConfig(tf_random_seed=1, **config))


@pytest.mark.long
def test_an_old_directory_keeps_the_buckets_of_its_variables_and_says_so(mx, tmp_path, caplog):
    train(linear(tmp_path / "old", SMALL), 20)
    shutil.copytree(str(tmp_path / "old"), str(tmp_path / "tables"))
    expected = train(linear(tmp_path / "old", SMALL), 20)
    unlimited(mx)
    with caplog.at_level("WARNING"):
        got = train(linear(tmp_path / "tables", SMALL), 20)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert "keep their limits: the checkpoint has its rows by ids with limits" in caplog.text
    assert not any("unlimited" in name for name in tables(tmp_path / "tables"))
    # The next training finds the table.
    train(linear(tmp_path / "tables", SMALL), 5)
    assert not any("unlimited" in name for name in tables(tmp_path / "tables"))


@pytest.mark.long
def test_an_identity_column_grows_beyond_the_rows_of_an_old_directory(mx, tmp_path):
    train(linear(tmp_path / "large", 1000, "identity"), 20)
    shutil.copytree(str(tmp_path / "large"), str(tmp_path / "tables"))
    expected = train(linear(tmp_path / "large", 1000, "identity"), 20)
    unlimited(mx)
    got = train(linear(tmp_path / "tables", 1000, "identity"), 20)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert any("unlimited" in name for name in tables(tmp_path / "tables"))

    def beyond():
        return tf.data.Dataset.from_tensors(({"identity": tf.constant([5, 2 ** 40])}, tf.constant([0, 1]))).repeat(5)

    made = linear(tmp_path / "tables", 1000, "identity")
    made.train(beyond, steps=5)
    assert made.evaluate(beyond, steps=1)["global_step"] == 45


def test_a_directory_of_ids_without_limits_does_not_go_back_to_variables(mx, tmp_path):
    unlimited(mx)
    train(linear(tmp_path / "tables", SMALL), 5)
    again(mx, stock_tables=None)
    with pytest.raises(ValueError, match="weights/part_0' cannot be restored.*ids without limits"):
        train(linear(tmp_path / "tables", SMALL), 5)


@pytest.mark.long
def test_an_export_has_tables_of_the_ids_without_limits_and_the_same_predictions(mx, tmp_path):
    unlimited(mx, ["linear"])
    made = estimator(tmp_path / "model", 1000)
    train(made, 20)
    values, _ = features(6)
    inputs = {name: values[name] for name in values}
    expected = [one["logits"] for one in made.predict(lambda: tf.data.Dataset.from_tensors(inputs))]
    exported = made.export_saved_model(
        str(tmp_path / "export"), tf.estimator.export.build_raw_serving_input_receiver_fn(
            {name: tf.compat.v1.placeholder(value.dtype if value.dtype.kind != "U" else tf.string,
                                            [None] + list(value.shape[1:]), name) for name, value in values.items()}))
    with tf.Graph().as_default() as graph, support.new_session() as sess:
        signature = tf.compat.v1.saved_model.load(sess, ["serve"], exported.decode()).signature_def["predict"]
        names = [op.name for op in graph.get_operations() if op.type == "MxRecTable"]
        assert len(names) == 6 and all("unlimited" in name for name in names)
        got = sess.run(signature.outputs["logits"].name,
                       {signature.inputs[name].name: value for name, value in inputs.items()})
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_the_input_pipeline_and_a_best_exporter_take_ids_without_limits(mx, tmp_path):
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=True), use_dynamic=True)
    expected = train(linear(tmp_path / "plain", SMALL), 20)
    made = linear(tmp_path / "moved", SMALL, save_checkpoints_steps=10)
    best = tf.estimator.BestExporter(
        serving_input_receiver_fn=tf.estimator.export.build_raw_serving_input_receiver_fn(
            {"hash": tf.compat.v1.placeholder(tf.string, [None], "hash")}))
    tf.estimator.train_and_evaluate(
        made, tf.estimator.TrainSpec(input_fn, max_steps=20, hooks=[GraphModifierHook(modify_graph=True)]),
        tf.estimator.EvalSpec(input_fn, steps=2, exporters=best, throttle_secs=0, start_delay_secs=0))
    np.testing.assert_allclose(made.evaluate(input_fn, steps=3)["loss"],
                               linear(tmp_path / "plain", SMALL).evaluate(input_fn, steps=3)["loss"], rtol=TOLERANCE)
    assert len(expected) == 20 and glob.glob(str(tmp_path / "moved/export/best_exporter/*/saved_model.pb"))
