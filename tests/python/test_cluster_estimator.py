"""The same model_fn under TF_CONFIG: chief, worker, parameter servers and evaluator, each a process."""

import json
import os
import tempfile

import pytest

import preloaded
import support
from cluster_cases import cluster_of

SCRIPT = """
import json, os, sys
import numpy as np
import tensorflow as tf
import mx_rec
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad
from mx_rec.util.initialize import init
# Workers that are not the first start later in TensorFlow, and ask every 30 seconds.
import time
from tensorflow.python.training import session_manager
stock = session_manager.SessionManager.__init__
def quick(self, *args, **kwargs):
    kwargs["recovery_wait_secs"] = 0.5
    stock(self, *args, **kwargs)
session_manager.SessionManager.__init__ = quick
init()

def input_fn(is_train):
    random = np.random.RandomState(7)
    keys = random.randint(0, 200, 4000).astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices((keys, (keys % 2).astype(np.float32)))
    return data.repeat().batch(100) if is_train else data.batch(100)

def model_fn(features, labels, mode):
    is_train = mode == tf.estimator.ModeKeys.TRAIN
    table = create_table(tf.int64, 4, "items", tf.compat.v1.random_uniform_initializer(-0.1, 0.1, seed=3),
                         device_vocabulary_size=1000)
    rows = sparse_lookup(table, features, is_train=is_train, modify_graph=True)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, -1) - labels))
    train = None
    if is_train:
        train = adagrad.create_hash_optimizer(0.2).minimize(
            loss, var_list=[table.variable], global_step=tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

config = tf.estimator.RunConfig(model_dir=sys.argv[1], save_checkpoints_steps=100, keep_checkpoint_max=4)
estimator = tf.estimator.Estimator(model_fn, config=config)
tf.estimator.train_and_evaluate(
    estimator, tf.estimator.TrainSpec(lambda: input_fn(True), max_steps=400),
    tf.estimator.EvalSpec(lambda: input_fn(False), steps=None, start_delay_secs=0, throttle_secs=1))
print("done")
"""


@pytest.mark.long
def test_train_and_evaluate_with_chief_worker_servers_and_evaluator(tmp_path):
    cluster = cluster_of(chief=1, worker=1, ps=2)
    processes = {}
    errors = {}

    def start(job, index=0):
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        errors[job, index] = tempfile.TemporaryFile()
        processes[job, index] = preloaded.Process(
            SCRIPT, support.environment_of({"PYTHONWARNINGS": "ignore", "TF_CONFIG": config}), errors[job, index],
            [tmp_path / "model"])

    def end(job, index=0, seconds=150):
        out, _ = processes[job, index].communicate(timeout=seconds)
        errors[job, index].seek(0)
        assert processes[job, index].returncode == 0, errors[job, index].read().decode()[-5000:]
        return out.decode()

    try:
        for job, index in (("ps", 0), ("ps", 1), ("chief", 0), ("worker", 0), ("evaluator", 0)):
            start(job, index)
        assert end("chief").strip() == "done"
        assert end("worker").strip() == "done"
        assert end("evaluator").strip() == "done"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            process.stdout.close()
    directories = [name for name in os.listdir(str(tmp_path / "model")) if name.startswith("sparse-model.ckpt")]
    assert len(directories) == 4
    parts = sorted(os.listdir(str(tmp_path / "model" / directories[0])))
    assert parts == ["items-part-%05d-of-00004" % part for part in range(4)] + ["manifest.json"]
    summaries = list((tmp_path / "model" / "eval").iterdir())
    assert summaries
    losses = json.loads(preloaded.run_python("""
import json, sys
import tensorflow as tf
values = []
for path in tf.io.gfile.glob(sys.argv[1] + "/*"):
    for event in tf.compat.v1.train.summary_iterator(path):
        values += [(event.step, value.simple_value) for value in event.summary.value if value.tag == "loss"]
print(json.dumps(sorted(values)))
""", tmp_path / "model" / "eval"))
    # A guess of the mean has a loss of 0.25.
    assert losses[-1][0] >= 400 and losses[-1][1] < 0.02, losses
