"""Trains a small table with the installed package: shows that package and plugin work together."""

import argparse
import os
import sys

import numpy as np
import tensorflow as tf

import mx_rec
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.util.initialize import init


def main():
    """Returns 0 if a table learns two values; 1 with a message otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--below", help="fail unless the package lies below this directory")
    args = parser.parse_args()
    where = os.path.realpath(os.path.dirname(mx_rec.__file__))
    if args.below and not where.startswith(os.path.realpath(args.below) + os.sep):
        print("mx_rec was imported from {}, not from below {}".format(where, args.below))
        return 1
    tf.compat.v1.disable_eager_execution()
    init()
    ids = tf.constant([7, -5, 7], tf.int64)
    target = tf.constant([[1.0], [2.0], [1.0]])
    table = create_table(key_dtype=tf.int64, dim=1, name="smoke", device_vocabulary_size=10,
                         emb_initializer=tf.compat.v1.zeros_initializer())
    rows = sparse_lookup(table, ids, is_train=True, modify_graph=True)
    loss = tf.reduce_mean(tf.square(rows - target))
    optimizer = create_hash_optimizer(learning_rate=0.1)
    gradients = tf.gradients(loss, [table.variable])
    train = optimizer.apply_gradients(zip(gradients, [table.variable]))
    with tf.compat.v1.Session() as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        for _ in range(200):
            sess.run(train)
        result = sess.run(rows)
    if not np.allclose(result, [[1.0], [2.0], [1.0]], atol=0.05):
        print("the table should have learned 1, 2, 1 but holds {}".format(result.ravel()))
        return 1
    print("mx_rec in {} works".format(where))
    return 0


if __name__ == "__main__":
    sys.exit(main())
