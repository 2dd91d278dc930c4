"""What the tests of pooled lookups share."""

import numpy as np
import tensorflow as tf

from support import lookup
from mx_rec.core.embedding import create_table, sparse_lookup_pooled

DIM = 5


def make_table(name, dim=DIM, key_dtype=None, first=None, **arguments):
    """New rows are random, or `first` in all columns: those of tables of two names differ."""
    initializer = tf.compat.v1.random_uniform_initializer(-1.0, 1.0, seed=11)
    if first is not None:
        initializer = tf.compat.v1.constant_initializer(first)
    return create_table(key_dtype=key_dtype or tf.int64, dim=dim, name=name, emb_initializer=initializer,
                        **dict({"device_vocabulary_size": 5000}, **arguments))


def pooled(table, ids, combiner="sum", **arguments):
    return sparse_lookup_pooled(table, ids, combiner, **arguments)


def one_by_one(tables, ids, combiners, weights=None, **named):
    """A pooled lookup of each table."""
    weights = weights or [None] * len(tables)
    return [pooled(*single[:3], weights=single[3], **named) for single in zip(tables, ids, combiners, weights)]


def start_of(keys, dim=DIM):
    """The first keys, and rows to begin with."""
    return np.arange(keys), np.random.RandomState(4).randn(keys, dim).astype(np.float32)


def batch_of(random, bags, length, keys=40, padding=0.2):
    """Dense ids with duplicates within bags, and padding."""
    ids = random.randint(0, keys, size=(bags, length))
    return np.where(random.random_sample((bags, length)) < padding, -1, ids).astype(np.int64)


def unfused(table, ids, combiner="sum", weights=None, **arguments):
    """The same from an embedding for each id, by ops of TensorFlow."""
    embedding = lookup(table, ids, **arguments)
    factors = tf.cast(tf.not_equal(ids, -1), tf.float32)
    if weights is not None:
        factors *= weights
        embedding *= tf.expand_dims(weights, -1)
    total = tf.reduce_sum(embedding, axis=-2)
    if combiner == "sum":
        return total
    divisor = tf.reduce_sum(factors if combiner == "mean" else tf.square(factors), -1)
    if combiner == "sqrtn":
        divisor = tf.sqrt(divisor)
    return tf.math.divide_no_nan(total, tf.expand_dims(divisor, -1))
