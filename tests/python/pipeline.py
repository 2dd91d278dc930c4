"""Feature pipelines for the tests of FeatureSpec mode, and the same batches trained again by tensor ids."""

import numpy as np
import tensorflow as tf

import support
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers import adagrad, lazy_adam

VOCABULARY = 60


class Model:
    """Two tables (users and items), one update by LazyAdam and Adagrad, and what each step saw."""

    def __init__(self, user_embedding, item_embedding, label, tables):
        score = tf.reduce_sum(tf.reduce_sum(user_embedding, axis=1) * item_embedding, axis=1)
        self.loss = tf.reduce_sum(tf.square(score - label))
        users, items = tables
        self.update = tf.group(
            lazy_adam.create_hash_optimizer(0.05).minimize(self.loss, var_list=[users.variable]),
            adagrad.create_hash_optimizer(0.1).minimize(self.loss, var_list=[items.variable]))
        self.raws = [support.Raw.of(table) for table in tables]

    def tables(self, sess):
        return [raw.rows(sess) for raw in self.raws]


def make_tables():
    """The two tables; new rows are random, so that a wrong key shows."""
    return [support.make_table(name, dim, 1000, tf.compat.v1.random_normal_initializer(stddev=0.3, seed=3))
            for name, dim in (("user_table", 4), ("item_table", 4))]


def arrays(count, seed):
    """(users (n, 2) with padding, items (n), labels (n))."""
    random = np.random.RandomState(seed)
    users = random.randint(0, VOCABULARY, [count, 2]).astype(np.int64) * 7 - 50
    users[random.rand(count) < 0.3, 1] = -1
    items = random.randint(0, VOCABULARY, count).astype(np.int64) * 10 ** 9
    return users, items, random.rand(count).astype(np.float32)


def elements(kind, users, items, labels):
    """A dataset of single samples in one of the forms of a batch, and the index keys of users and items.

    `kind` is dict, tuple, list (tf.data has no lists; the script makes one of a tuple) or nested (features, labels).
    """
    if kind == "dict":
        return tf.data.Dataset.from_tensor_slices({"users": users, "items": items, "label": labels}), "users", "items"
    if kind == "nested":
        data = tf.data.Dataset.from_tensor_slices(({"users": users, "items": items}, labels))
        return data, "users", "items"
    return tf.data.Dataset.from_tensor_slices((labels, users, items)), 1, 2


def parts_of(kind, batch):
    """(users, items, label) of a batch."""
    if kind == "dict":
        return batch["users"], batch["items"], batch["label"]
    if kind == "nested":
        return batch[0]["users"], batch[0]["items"], batch[1]
    return batch[1], batch[2], batch[0]


def specs_of(user_key, item_key):
    """The features of both tables."""
    return [FeatureSpec("user_ids", table_name="user_table", index_key=user_key),
            FeatureSpec("item_ids", table_name="item_table", index_key=item_key)]


def lookups(tables, specs, is_train, batch, send_count=None, kind=None):
    if kind == "list":
        batch = list(batch)
    return [sparse_lookup(table, spec, send_count, is_train=is_train, batch=batch)
            for table, spec in zip(tables, specs)]


def replay(steps, evaluations=()):
    """Trains the recorded batches by tensor ids in a graph of its own.

    Args:
        steps: List of (users, items, label) as numpy.
        evaluations: Batches to look up at the end without training.

    Returns:
        (tables, losses, embeddings of the evaluations).
    """
    with tf.Graph().as_default() as graph:
        users = tf.compat.v1.placeholder(tf.int64, [None, 2])
        items = tf.compat.v1.placeholder(tf.int64, [None])
        label = tf.compat.v1.placeholder(tf.float32, [None])
        tables = make_tables()
        model = Model(sparse_lookup(tables[0], users, modify_graph=True),
                      sparse_lookup(tables[1], items, modify_graph=True), label, tables)
        evaluate = [sparse_lookup(table, ids, is_train=False, modify_graph=True)
                    for table, ids in zip(tables, (users, items))]
        with support.new_session(graph) as sess:
            sess.run(tf.compat.v1.global_variables_initializer())
            losses = [sess.run([model.loss, model.update], dict(zip((users, items, label), step)))[0]
                      for step in steps]
            looked = [sess.run(evaluate, {users: batch[0], items: batch[1]}) for batch in evaluations]
            return model.tables(sess), losses, looked


def assert_trained_alike(model, sess, steps, losses):
    """Asserts that the pipeline's tables are those of the same batches by tensor ids, bit for bit."""
    assert steps
    expected, expected_losses, _ = replay(steps)
    support.assert_same_bits(losses, expected_losses, "losses")
    for mine, theirs, name in zip(model.tables(sess), expected, ("user_table", "item_table")):
        support.assert_same_tables(mine, theirs, name)


def run_until_end(sess, fetches, limit=None):
    """Runs until the data end, or `limit` times."""
    results = []
    while limit is None or len(results) < limit:
        try:
            results.append(sess.run(fetches))
        except tf.errors.OutOfRangeError:
            break
    return results
