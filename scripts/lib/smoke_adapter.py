"""Trains one step with the installed stand-in for tf_adapter, and shows that it shadows nothing."""

import argparse
import os
import subprocess
import sys
import tempfile

import tensorflow as tf

import tf_adapter


def model_fn(features, labels, mode):
    """A model with one variable."""
    weight = tf.compat.v1.get_variable("weight", initializer=1.0)
    loss = tf.reduce_mean(tf.square(features * weight - 3 * features))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    train = optimizer.minimize(loss, global_step=tf.compat.v1.train.get_global_step())
    return tf_adapter.NPUEstimatorSpec(mode, loss=loss, train_op=train)


def main():
    """Returns 0 if the stand-in trains and gives way to the vendor's; 1 with a message if not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--below", help="fail unless the package lies below this directory")
    args = parser.parse_args()
    where = os.path.realpath(os.path.dirname(tf_adapter.__file__))
    if args.below and not where.startswith(os.path.realpath(args.below) + os.sep):
        print("tf_adapter was imported from {}, not from below {}".format(where, args.below))
        return 1
    tf.compat.v1.disable_eager_execution()
    with tempfile.TemporaryDirectory() as directory:
        config = tf_adapter.NPURunConfig(model_dir=directory)
        estimator = tf_adapter.NPUEstimator(model_fn=model_fn, config=config)
        estimator.train(lambda: tf.data.Dataset.from_tensors(tf.constant([1.0])), steps=1)
        weight = tf.train.load_variable(directory, "weight")
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(os.path.join(directory, "tf_adapter"))
        with open(os.path.join(directory, "tf_adapter", "__init__.py"), "w") as file:
            file.write("OWNER = 'vendor'\n")
        shadows = subprocess.call([sys.executable, "-c", "from tf_adapter import OWNER"],
                                  env=dict(os.environ, PYTHONPATH=directory)) != 0
    if abs(weight - 1.4) > 1e-6 or shadows:
        print("the weight should be 1.4 but is {}; shadows the vendor's: {}".format(
            weight, shadows))
        return 1
    print("tf_adapter in {} works".format(where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
