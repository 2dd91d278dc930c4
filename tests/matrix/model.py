"""A small fixed model and its batches: the same floats in the same order on every TensorFlow.

Between a lookup and its loss stand elementwise ops only, so that no gradient depends on the order
in which a release of TensorFlow adds numbers up.
"""

import contextlib
import hashlib

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

DIM = 4
STEPS = 12
BATCH = 32


def batches():
    """{"ids": (steps, batch) int64 with padding, "label": (steps, batch) float32}."""
    random = np.random.RandomState(7)
    ids = random.randint(0, 60, [STEPS, BATCH]).astype(np.int64) * 10 ** 12 - 3 * 10 ** 13
    ids[random.rand(STEPS, BATCH) < 0.1] = -1
    return {"ids": ids, "label": random.rand(STEPS, BATCH).astype(np.float32)}


def lazy_adam():
    """The optimizer of most rows of the table."""
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    return create_hash_optimizer(learning_rate=0.05)


def features(data=None):
    """The dataset of these batches."""
    return tf.data.Dataset.from_tensor_slices(data or batches())


@contextlib.contextmanager
def started(**settings):
    """mx_rec initialised, and a fresh graph."""
    from mx_rec.util.initialize import init, terminate_config_initializer

    init(**settings)
    try:
        with tf.Graph().as_default():
            yield
    finally:
        terminate_config_initializer()


def session():
    """A session with two threads of each kind."""
    return tf1.Session(config=tf1.ConfigProto(intra_op_parallelism_threads=2,
                                              inter_op_parallelism_threads=2))


def initialized():
    """A session in which the variables of the default graph are initialized."""
    sess = session()
    sess.run(tf1.global_variables_initializer())
    return sess


def make_table(name="items", **options):
    """A table whose new rows are random, so that a wrong key shows."""
    from mx_rec.core.embedding import create_table

    options.setdefault("emb_initializer", tf1.random_normal_initializer(stddev=0.3, seed=3))
    return create_table(key_dtype=tf.int64, dim=DIM, name=name,
                        device_vocabulary_size=options.pop("rows", 1000), **options)


def loss_of(rows, label):
    """A scalar."""
    return tf.reduce_sum(tf.square(rows * 0.5 - label[:, None]))


class Training:
    """Placeholders, one table, one optimizer, and the steps over `batches()`."""

    def __init__(self, make_optimizer, by_address=False, **options):
        from mx_rec.core.embedding import sparse_lookup

        self.ids = tf1.placeholder(tf.int64, [None], name="ids")
        self.label = tf1.placeholder(tf.float32, [None], name="label")
        self.table = make_table(**options)
        self.rows = sparse_lookup(self.table, self.ids, is_train=True, modify_graph=True)
        self.found = sparse_lookup(self.table, self.ids, is_train=False, modify_graph=True)
        self.loss = loss_of(self.rows, self.label)
        optimizer = make_optimizer()
        if by_address:
            from mx_rec.constants.constants import (ASCEND_SPARSE_LOOKUP_ID_OFFSET,
                                                    ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
            local = tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
            offsets = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
            gradients = tf.gradients(self.loss, local)
            self.update = optimizer.apply_gradients(zip(gradients, offsets))
        else:
            self.update = optimizer.minimize(self.loss, var_list=[self.table.variable])
        self.contents = Contents(self.table)

    def run(self, sess, steps=range(STEPS)):
        """Trains the batches of some steps."""
        data = batches()
        for step in steps:
            sess.run(self.update, {self.ids: data["ids"][step], self.label: data["label"][step]})

    def trained(self):
        """The digest of the table after all steps in a session of its own."""
        with initialized() as sess:
            self.run(sess)
            return self.contents.digest(sess)


class Contents:
    """All keys and rows of tables, with the slots that the plugin has."""

    def __init__(self, *tables):
        from mx_rec.ops import library

        embedding = tf.zeros([0], tf.uint8)
        self._exports = [library().mx_rec_export(table.handle, [embedding]) for table in tables]

    def read(self, sess):
        """[(keys (n), rows (n, dim))], in the order of the keys."""
        found = []
        for keys, (rows,) in sess.run([tuple(one) for one in self._exports]):
            order = np.argsort(keys)
            found.append((keys[order], rows[order]))
        return found

    def digest(self, sess):
        """A text that is the same if and only if all keys and bits are."""
        return digest(*[array for pair in self.read(sess) for array in pair])


def digest(*values):
    """The first 12 hexadecimal digits of the SHA-256 of arrays: dtypes, shapes and bytes."""
    told = hashlib.sha256()
    for value in values:
        array = np.ascontiguousarray(value)
        told.update("{} {} ".format(array.dtype.str, array.shape).encode("ascii"))
        told.update(array.tobytes())
    return told.hexdigest()[:12]
