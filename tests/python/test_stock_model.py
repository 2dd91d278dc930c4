"""A model that uses none of our tables is the same, graph and numbers, with and without `import mx_rec`."""

import json

import pytest

import preloaded
import support

MODEL = """
import hashlib, json, os, sys
directory = sys.argv[2]
if sys.argv[1] == "import":
    import mx_rec
import numpy as np
import tensorflow as tf
v1 = tf.compat.v1
v1.set_random_seed(7)
random = np.random.RandomState(0)
ids, numbers, labels = random.randint(0, 50, [200, 3]), random.randn(200, 4), random.rand(200)
data = tf.data.Dataset.from_tensor_slices(
    (ids, numbers.astype(np.float32), labels.astype(np.float32))).shuffle(50, seed=1).repeat().batch(16).prefetch(2)
iterator = v1.data.make_initializable_iterator(data)
ids, numbers, labels = iterator.get_next()
embedding = v1.get_variable("embedding", [50, 8])
layer = tf.concat([tf.reshape(tf.nn.embedding_lookup(embedding, ids), [-1, 24]), numbers], 1)
for width in (16, 8):
    layer = v1.layers.dense(layer, width, tf.nn.relu)
layer = v1.layers.dropout(layer, 0.1, training=True, seed=3)
loss = tf.reduce_mean(tf.square(v1.layers.dense(layer, 1)[:, 0] - labels))
step = v1.train.get_or_create_global_step()
optimizer = v1.train.AdamOptimizer(0.01)
pairs = optimizer.compute_gradients(loss)
clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
update = optimizer.apply_gradients(zip(clipped, [variable for _, variable in pairs]), global_step=step)
tf.contrib.opt.LazyAdamOptimizer(0.01).minimize(loss)
v1.train.AdagradOptimizer(0.01).minimize(loss)
v1.summary.scalar("loss", loss)
saver = v1.train.Saver(max_to_keep=2)
graph = v1.get_default_graph().as_graph_def()
config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
losses = []
hooks = [v1.train.StopAtStepHook(last_step=20)]
with v1.Session(config=config) as sess:
    sess.run([v1.global_variables_initializer(), iterator.initializer])
    writer = v1.summary.FileWriter(directory + "/summary", sess.graph)
    for _ in range(20):
        losses.append(float(sess.run([loss, update])[0]))
    path = saver.save(sess, directory + "/model.ckpt", global_step=step)
    saved = sess.run(v1.trainable_variables())
    sess.run(update)
    saver.restore(sess, path)
    assert all(np.array_equal(a, b) for a, b in zip(saved, sess.run(v1.trainable_variables())))
    writer.close()

def model_fn(features, labels, mode):
    net = v1.layers.dense(features["x"], 4, tf.nn.relu)
    loss = tf.reduce_mean(tf.square(v1.layers.dense(net, 1)[:, 0] - labels))
    train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, predictions=net)

def input_fn():
    return tf.data.Dataset.from_tensor_slices(
        ({"x": random_x}, random_y)).repeat(3).batch(10)

random_x, random_y = random.randn(50, 3).astype(np.float32), random.rand(50).astype(np.float32)
run = tf.estimator.RunConfig(tf_random_seed=5, session_config=config, save_checkpoints_steps=5,
                             keep_checkpoint_max=2)
estimator = tf.estimator.Estimator(model_fn, directory + "/estimator", run)
estimator.train(input_fn, max_steps=12)
evaluated = estimator.evaluate(input_fn)
weights = hashlib.sha256(b"".join(estimator.get_variable_value(name).tobytes()
                                  for name in sorted(estimator.get_variable_names()))).hexdigest()
files = sorted(name for parent in ("", "/estimator") for name in os.listdir(directory + parent)
               if "tfevents" not in name)
print(json.dumps({
    "graph": hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest(),
    "losses": [loss.hex() for loss in losses],
    "weights": hashlib.sha256(b"".join(value.tobytes() for value in saved)).hexdigest(),
    "estimator": weights, "loss": float(evaluated["loss"]).hex(), "files": files,
}))
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What the model did without and with the import."""
    return [json.loads(support.run_python(MODEL, how, str(tmp_path_factory.mktemp(how))).strip().splitlines()[-1])
            for how in ("plain", "import")]


@pytest.mark.parametrize("what", ["graph", "losses", "weights", "estimator", "loss", "files"])
def test_a_stock_model_is_the_same_with_and_without_the_import(reports, what):
    plain, imported = reports
    assert plain[what] and imported[what] == plain[what]


def test_importing_twice_patches_once():
    out = preloaded.run_python("""
import importlib
import tensorflow as tf
import mx_rec
from mx_rec import patches
from tensorflow.python.training import optimizer
watched = lambda: [tf.compat.v1.train.Saver.__init__, tf.compat.v1.train.Saver.save, tf.compat.v1.train.Saver.restore,
                   tf.compat.v1.Session.run, tf.compat.v1.train.Optimizer.compute_gradients,
                   tf.compat.v1.train.Optimizer.apply_gradients, tf.compat.v1.train.Optimizer._zeros_slot,
                   optimizer._get_processor]
before = watched()
patches.apply()
importlib.reload(mx_rec)
assert [id(function) for function in watched()] == [id(function) for function in before]
print("once")
""")
    assert out.strip().endswith("once")


def test_the_plugin_installs_no_signal_handler_and_no_thread_before_it_is_used():
    """We are guests in the process of somebody else."""
    out = support.run_python("""
import signal, threading
import tensorflow as tf
def handlers():
    masks = {}
    for line in open("/proc/self/status"):
        if line.startswith(("SigCgt", "SigIgn")):
            masks[line.split()[0]] = line.split()[1]
        if line.startswith("Threads"):
            masks["threads"] = int(line.split()[1])
    return masks
before = handlers()
import mx_rec
after = handlers()
assert before == after, (before, after)
print("same")
""")
    assert out.strip().endswith("same")
