"""The same file loads in TensorFlow 1.15.0 (in an environment of its own, downloaded once)."""

import os
import subprocess
import sys

import pytest

import support

SMOKE = """
import numpy as np
import tensorflow as tf
assert tf.__version__ == "1.15.0", tf.__version__
from mx_rec.util.initialize import init
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
init()
table = create_table(key_dtype=tf.int64, dim=8, name="table", device_vocabulary_size=100,
                     emb_initializer=tf.compat.v1.truncated_normal_initializer())
ids = tf.compat.v1.placeholder(tf.int64, [None])
embedding = sparse_lookup(table, ids, modify_graph=True)
loss = tf.reduce_sum(tf.square(embedding))
update = create_hash_optimizer(0.05).minimize(loss, var_list=[table.variable])
saver = tf.compat.v1.train.Saver()
import os, sys
path = os.path.realpath(sys.argv[1]) + "/model.ckpt"
with tf.compat.v1.Session() as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    losses = [sess.run([loss, update], {ids: [1, 2, 1, -1]})[0] for _ in range(50)]
    assert losses[-1] < 0.1 * losses[0], losses
    rows = sess.run(embedding, {ids: [1, 2]})
    saver.save(sess, path)
with tf.compat.v1.Session() as sess:
    saver.restore(sess, path)
    assert np.array_equal(rows, sess.run(embedding, {ids: [1, 2]}))
print("trained")
"""


@pytest.mark.slow
def test_the_plugin_loads_trains_and_saves_in_tensorflow_1_15_0(tmp_path):
    home = os.path.join(support.REPO, ".cache", "tensorflow-1.15.0")
    python = os.path.join(home, "bin", "python")
    if not os.path.exists(os.path.join(home, "ready")):
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "tensorflow==1.15.0", "protobuf==3.20.3", "numpy==1.18.5",
                        "h5py==2.10.0"], check=True)
        with open(os.path.join(home, "ready"), "w"):
            pass
    environment = dict(os.environ, PYTHONPATH=support.PACKAGES, TF_CPP_MIN_LOG_LEVEL="2")
    done = subprocess.run([python, "-c", SMOKE, str(tmp_path)], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert done.stdout.decode().strip().endswith("trained")
