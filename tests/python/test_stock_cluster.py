"""An unchanged Estimator with `stock_tables` in a job with parameter servers: its variables stay on them."""

import json
import tempfile

import preloaded
import support
from cluster_cases import cluster_of

SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
from mx_rec.util.initialize import init
init(stock_tables=True)

column = tf.feature_column.categorical_column_with_identity("key", 5000)
columns = [tf.feature_column.embedding_column(column, 8), ]

def input_fn():
    keys = np.random.RandomState(7).randint(0, 5000, 4000)
    features = {"key": keys.astype(np.int64)}
    return tf.data.Dataset.from_tensor_slices((features, keys % 2)).repeat().batch(100)

config = tf.estimator.RunConfig(model_dir=sys.argv[1], save_checkpoints_steps=20)
made = tf.estimator.DNNLinearCombinedClassifier(
    linear_feature_columns=[column], dnn_feature_columns=columns, dnn_hidden_units=[8], config=config)
tf.estimator.train_and_evaluate(
    made, tf.estimator.TrainSpec(input_fn, max_steps=60),
    tf.estimator.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=1))
print("done")
"""


def test_an_estimator_with_parameter_servers_trains_variables_and_says_so(tmp_path):
    tf = support.tf()
    cluster = cluster_of(chief=1, ps=1)
    model = tmp_path / "model"
    with tempfile.TemporaryFile() as errors:
        processes = []
        try:
            for job in ("ps", "chief"):
                config = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
                processes.append(preloaded.Process(
                    SCRIPT, support.environment_of({"TF_CONFIG": config}), errors if job == "chief" else None, [model]))
            out, _ = processes[-1].communicate(timeout=150)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
    assert (out.decode().strip(), processes[-1].returncode) == ("done", 0), text[-4000:]
    assert text.count("all variables stay TensorFlow's: the job has parameter servers") == 1
    names = [name for name, _ in tf.train.list_variables(str(model))]
    assert any("embedding_weights" in name for name in names) and "global_step" in names
    assert not list(model.glob("sparse-*"))
