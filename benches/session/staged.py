"""The models of benches/stages.py: P17, P18 and P19 trained from a pipeline, and P24."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from session import deepfm, workload
from session.model import AHEAD, PEER, STEP, Model, Side, _first_rows, make_arrays
from session.sides import CHUNK

RATE = 0.01
KINDS = [("dense variables", PEER), ("a lookup a table", STEP), ("one op", deepfm.MANY),
         ("modified", AHEAD)]


class Sparse(NamedTuple):
    """Lookups and a loss of their rows.

    Attributes:
        tables: tables of a feature each.
        rows: keys of a table.
        dim: columns of an embedding.
        batch: samples of a batch.
        bag: ids of a sample in a table, whose rows are added up.
        batches: different batches.
    """

    tables: int
    rows: int
    dim: int
    batch: int
    bag: int = 1
    batches: int = 16


def cases(short):
    """(title, function of a kind that gives a side, arrays of its start) of each case."""
    size = 2000 if short else 200000
    works = [
        ("P17: 26 tables, batch 2,048", Sparse(26, size, 16, 64 if short else 2048)),
        ("P18: 26 tables, batch 256", Sparse(26, size, 16, 16 if short else 256)),
        ("P19: bags of 20, 4 tables", Sparse(4, size, 32, 64 if short else 4096, bag=20)),
    ]
    for title, work in works:
        ids = _ids(work)
        yield title, lambda kind, work=work: _Sparse(work, kind), (ids,)
    features = Model(rows=26 * size, raw="plain", draw="z", batches=16)
    features = features.short() if short else features
    arrays = make_arrays(features)
    first = np.arange(features.columns, dtype=np.int64) * features.range
    arrays = (arrays[0] - first,) + arrays[1:]
    yield "P24: DeepFM, batch 4,096", lambda kind: _DeepFm(features, kind), arrays


def _ids(work):
    count = work.batches * work.tables
    sizes = workload.Sizes(work.rows, 0, work.batch * work.bag, count, 0, 0, 0)
    ids = workload.id_batches(sizes, "z")
    return np.ascontiguousarray(ids.reshape(work.batches, work.tables, work.batch, work.bag))


class _DeepFm(deepfm._Side):
    """The model of P24, also with its graph modified."""

    def _build(self):
        super()._build()
        if self.kind == AHEAD:
            self._initializer = _modified()


class _Sparse(Side):
    """Tables, their rows and the lightest loss that has a gradient for every id."""

    def start(self, arrays):
        """Opens the session, fills the tables and starts the pipeline."""
        with self.graph.as_default():
            self.session = tf.compat.v1.Session()
            self.session.run(tf.compat.v1.global_variables_initializer())
        order = np.random.RandomState(1).permutation(self._model.rows).astype(np.int64)
        for begin in range(0, len(order), CHUNK):
            self.session.run(self._fill, {self._filled: order[begin : begin + CHUNK]})
        self.session.run(self._initializer, dict(zip(self._fed, arrays)))

    def _build(self):
        work = self._model
        shape = [work.batches, work.tables, work.batch, work.bag]
        self._fed = [tf.compat.v1.placeholder(tf.int64, shape)]
        dataset = tf.data.Dataset.from_tensor_slices(self._fed[0]).repeat().prefetch(2)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        self._initializer = iterator.initializer
        ids = tf.unstack(iterator.get_next())
        if work.bag == 1:
            ids = [tf.reshape(one, [work.batch]) for one in ids]
        self._filled = tf.compat.v1.placeholder(tf.int64, [None])
        self._first = _first_rows(self._filled, work.dim)
        if self.kind == PEER:
            variables, rows = self._dense(ids)
            optimizer = tf.contrib.opt.LazyAdamOptimizer(RATE)
        else:
            from mx_rec.optimizers.lazy_adam import create_hash_optimizer

            variables, rows = self._ours(ids)
            optimizer = create_hash_optimizer(RATE)
        loss = tf.add_n([tf.nn.l2_loss(one) for one in rows])
        gradients = tf.gradients(loss, variables)
        self._fetches = [loss, optimizer.apply_gradients(zip(gradients, variables))]
        if self.kind == AHEAD:
            self._initializer = _modified()

    def _dense(self, ids):
        work = self._model
        variables = [
            tf.Variable(tf.zeros([work.rows, work.dim]), name="table_%d" % at, use_resource=False)
            for at in range(work.tables)
        ]
        self._fill = [
            tf.compat.v1.scatter_update(one, self._filled, self._first).op for one in variables
        ]
        rows = [tf.nn.embedding_lookup(one, batch) for one, batch in zip(variables, ids)]
        if work.bag > 1:
            return variables, [tf.reduce_sum(one, 1, name="bag_sum") for one in rows]
        return variables, [tf.concat(rows, 1)]

    def _ours(self, ids):
        from mx_rec.core.embedding import (create_table, sparse_lookup, sparse_lookup_many,
                                           sparse_lookup_pooled, sparse_lookup_pooled_many)
        from mx_rec.util.initialize import ConfigInitializer, init
        from mx_rec.util.ops import import_host_pipeline_ops

        try:
            ConfigInitializer.get_instance()
        except EnvironmentError:
            init(use_dynamic=True)
        work, ops = self._model, import_host_pipeline_ops()
        tables = [
            create_table(
                key_dtype=tf.int64,
                dim=work.dim,
                name="table_%d" % at,
                emb_initializer=tf.compat.v1.constant_initializer(0.0),
                device_vocabulary_size=work.rows + work.rows // 16,
            )
            for at in range(work.tables)
        ]
        self._fill = [ops.mx_rec_assign(one.handle, self._filled, self._first, [], [], []) for one in tables]
        variables = [one.variable for one in tables]
        if work.bag > 1 and self.kind == AHEAD:
            # As scripts write it: modification fuses the sum with the lookup.
            rows = [sparse_lookup(one, batch, modify_graph=True)
                    for one, batch in zip(tables, ids)]
            return variables, [tf.reduce_sum(one, 1, name="bag_sum") for one in rows]
        if work.bag > 1 and self.kind == deepfm.MANY:
            return variables, sparse_lookup_pooled_many(tables, ids)
        if work.bag > 1:
            return variables, [sparse_lookup_pooled(one, batch) for one, batch in zip(tables, ids)]
        if self.kind == deepfm.MANY:
            return variables, [sparse_lookup_many(tables, ids, modify_graph=True, concat=True)]
        rows = [sparse_lookup(one, batch, modify_graph=True) for one, batch in zip(tables, ids)]
        return variables, [tf.concat(rows, 1)]


def _modified():
    """Modifies the default graph; returns the op that starts its pipeline."""
    from mx_rec.graph import modify_graph_and_start_emb_cache
    from mx_rec.util.initialize import get_initializer

    modify_graph_and_start_emb_cache(dump_graph=False)
    return get_initializer(True)
