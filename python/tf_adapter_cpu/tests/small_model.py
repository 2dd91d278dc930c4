"""A small dense model, its data, and an Estimator of any class on it."""

import numpy as np
import tensorflow as tf

COUNT, BATCH = 48, 8


def session_config():
    """One thread, so that two runs give the same bits."""
    return tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def data():
    random = np.random.RandomState(3)
    x = random.rand(COUNT, 4).astype(np.float32)
    return x, (x @ np.array([1, -2, 3, 0.5], np.float32)).astype(np.float32)


def input_fn(repeat=None):
    def make():
        x, y = data()
        return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat(repeat).batch(BATCH)

    return make


def model(features, labels, mode, spec=tf.estimator.EstimatorSpec, optimizer=None, **more):
    hidden = tf.compat.v1.layers.dense(features["x"], 5, activation=tf.nn.relu)
    output = tf.compat.v1.layers.dense(hidden, 1)[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return spec(mode, predictions={"output": output})
    loss = tf.reduce_mean(tf.square(output - labels), name="model_loss")
    train = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = optimizer or tf.compat.v1.train.AdamOptimizer(0.05)
        train = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    return spec(mode, loss=loss, train_op=train, **more)


def model_fn(features, labels, mode):
    return model(features, labels, mode)


def variables(directory):
    reader = tf.train.load_checkpoint(str(directory))
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}
