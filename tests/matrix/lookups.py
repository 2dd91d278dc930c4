"""Rows of the table of docs/compatibility.md about bags, groups, own optimizers and plain exports."""

import os

import numpy as np
import tensorflow as tf

import model
from model import Contents, Training, batches, initialized, lazy_adam, make_table, session, started

tf1 = tf.compat.v1


def _trained(update, tables, feeds):
    """The digest of tables after a step for each feed."""
    contents = Contents(*tables)
    with initialized() as sess:
        for feed in feeds:
            sess.run(update, feed)
        return contents.digest(sess)


def pooled_lookups(place):
    """Bags of dense ids, with weights; sum, mean and sqrtn."""
    del place
    from mx_rec.core.embedding import sparse_lookup_pooled

    with started():
        table = make_table()
        ids = tf1.placeholder(tf.int64, [None, 4])
        weights = tf1.placeholder(tf.float32, [None, 4])
        pooled = [sparse_lookup_pooled(table, ids, combiner, weights=weights, modify_graph=True)
                  for combiner in ("sum", "mean", "sqrtn")]
        loss = tf.add_n([tf.reduce_sum(tf.square(one * 0.5 - 0.25)) for one in pooled])
        update = lazy_adam().minimize(loss, var_list=[table.variable])
        data = batches()
        feeds = [{ids: data["ids"][step].reshape(-1, 4),
                  weights: 0.5 + data["label"][step].reshape(-1, 4)} for step in range(model.STEPS)]
        return _trained(update, [table], feeds)


def sparse_bags(place):
    """Bags of a SparseTensor, one of them empty."""
    del place
    from mx_rec.core.embedding import safe_embedding_lookup_sparse

    with started():
        table = make_table()
        ids = tf1.sparse_placeholder(tf.int64, [None, None])
        pooled = safe_embedding_lookup_sparse(table, ids, combiner="sum", modify_graph=True)
        update = lazy_adam().minimize(tf.reduce_sum(tf.square(pooled * 0.5 - 0.25)),
                                       var_list=[table.variable])
        places = np.array([[0, 0], [0, 1], [2, 0]])
        feeds = [{ids: tf1.SparseTensorValue(places, np.array(values), [4, 2])}
                 for values in ([5, 6, 5], [6, 7, 8])]
        return _trained(update, [table], feeds)


def many_tables(place):
    """sparse_lookup_many, side by side, and the update of two tables in one op."""
    del place
    from mx_rec.core.embedding import sparse_lookup_many

    with started():
        tables = [make_table("items"), make_table("users")]
        ids = [tf1.placeholder(tf.int64, [None]) for _ in tables]
        rows = sparse_lookup_many(tables, ids, modify_graph=True, concat=True)
        variables = [table.variable for table in tables]
        update = lazy_adam().minimize(tf.reduce_sum(tf.square(rows * 0.5 - 0.25)),
                                       var_list=variables)
        data = batches()["ids"]
        feeds = [{ids[0]: data[step], ids[1]: data[step][::-1]} for step in range(model.STEPS)]
        return _trained(update, tables, feeds)


class _OwnMomentum(tf1.train.Optimizer):
    """An optimizer that a script might have."""

    def __init__(self):
        super().__init__(False, "OwnMomentum")

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "trace", self._name)

    def _apply_sparse(self, grad, var):
        trace = self.get_slot(var, "trace")
        new = 0.9 * tf.gather(trace, grad.indices) + grad.values
        write = tf1.scatter_update(trace, grad.indices, new)
        return tf.group(write, tf1.scatter_sub(var, grad.indices, 0.05 * new))


def own_optimizer(place):
    """A subclass of tf.train.Optimizer with a slot."""
    del place
    with started():
        return Training(_OwnMomentum).trained()


def plain_export(place):
    """export_plain, loaded without tables' ops."""
    from mx_rec.saver import export_plain

    with started():
        training = Training(lazy_adam)
        asked = np.array([-3 * 10 ** 13, 5, -1])
        with initialized() as sess:
            training.run(sess)
            expected = sess.run(training.found, {training.ids: asked})
            export_plain(sess, os.path.join(place, "plain"), {"ids": training.ids},
                         {"rows": training.found})
    with tf.Graph().as_default() as graph:
        with session() as sess:
            loaded = tf1.saved_model.load(sess, ["serve"], os.path.join(place, "plain"))
            assert not [op for op in graph.get_operations() if op.type.startswith("MxRec")]
            signature = loaded.signature_def["serving_default"]
            rows = sess.run(signature.outputs["rows"].name, {signature.inputs["ids"].name: asked})
    assert expected[0].any() and rows.tobytes() == expected.tobytes()
    return model.digest(rows)
