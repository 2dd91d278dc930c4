"""P24: a DeepFM-like model with a table a feature, steps of training from its own pipeline."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from session import limits, measure, workload
from session.model import (PEER, RATE, STEP, Model, Side, _first_rows, _layers, blocks,
                           make_arrays)
from session.sides import CHUNK

# Our tables, looked up by one op.
MANY = "many"
# The same model on embeddings that lie ready: no lookup, no update.
FLOOR = "floor"

# Repetitions of the work that memory has, for each dim.
REPETITIONS = 40

WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}


def tables(sizes, draw):
    """P24: 26 tables of dim 16 and 26 of dim 1 beside dense variables."""
    features = Model(rows=26 * 200000, raw="plain", draw=draw)
    if sizes is workload.SHORT:
        features = features.short()
    arrays = make_arrays(features)
    # Each column counts from 0: it has tables of its own.
    first = np.arange(features.columns, dtype=np.int64) * features.range
    arrays = (arrays[0] - first,) + arrays[1:]
    kinds = [MANY, STEP, PEER]
    sides = [_Side(features, kind) for kind in kinds]
    floor = _Side(features, FLOOR)
    try:
        for side in sides + [floor]:
            side.start(arrays)
        losses = np.array([[side.step() for _ in range(4)] for side in sides])
        for side, found in zip(sides, losses):
            measure.agree("losses of %s and %s" % (side.kind, kinds[-1]), found, losses[-1], 2e-6)
        times = blocks(features, sides + [floor])
    finally:
        floor.session.close()
        for side in sides:
            side.session.close()
    peer = "52 embedding_lookup, LazyAdam on dense variables"
    forms = (("", "sparse_lookup_many"), (" one", "a sparse_lookup a table"))
    figures = [
        measure.figure(
            "P24 %s%s" % (draw, mark), "DeepFM step, %s, %s" % (words, WORDS[draw]), ours, times[2],
            2.5, True, peer
        )
        for (mark, words), ours in zip(forms, times)
    ]
    works = [_Work(arrays[0], features.range, dim) for dim in (features.dim, 1)]
    memory = sum(work.times for work in works)
    whole = _Whole(sum(work.lines for work in works), sum(work.bytes for work in works))
    return [measure.with_limit(item, whole, times[3], memory) for item in figures]


class _Whole(NamedTuple):
    """What the lookups and updates of a step move: cache lines at random places, and bytes."""

    lines: int
    bytes: int


class _Work:
    """The lookups and updates of one part of the model at places that need no search.

    Args:
        ids: int64 (batches, batch, columns).
        rows: ids of a column.
        dim: columns of an embedding.

    Attributes:
        times: milliseconds (2, REPETITIONS): with an index, and as if ids were places.
        lines, bytes: what a step moves, as in `limits.Limit`.
    """

    def __init__(self, ids, rows, dim):
        with limits.Limit(ids.transpose(0, 2, 1), rows, dim, "read,update") as limit:
            self.lines, self.bytes = limit.lines, limit.bytes
            found = [
                [float(side(at % len(ids))) for side in limit.sides]
                for at in range(REPETITIONS)
            ]
        self.times = np.array(found).T


class _Side(Side):
    """The model in a graph and a session of its own.

    Args:
        model: a Model.
        kind: PEER: dense variables; STEP: our tables; MANY: our tables, looked up together.
    """

    def start(self, arrays):
        """Opens the session, fills the tables and starts the pipeline."""
        with self.graph.as_default():
            self.session = tf.compat.v1.Session()
            self.session.run(tf.compat.v1.global_variables_initializer())
        order = np.random.RandomState(1).permutation(self._model.range).astype(np.int64)
        for begin in range(0, len(order), CHUNK):
            self.session.run(self._fill, {self._filled: order[begin : begin + CHUNK]})
        self.session.run(self._initializer, dict(zip(self._fed, arrays)))

    def _build(self):
        model = self._model
        ids, numbers, labels = self._pipeline()
        columns = tf.unstack(ids, axis=1)
        self._filled = tf.compat.v1.placeholder(tf.int64, [None])
        if self.kind == PEER:
            found = self._dense_features(columns)
            sparse = tf.contrib.opt.LazyAdamOptimizer(RATE)
        elif self.kind == FLOOR:
            found = self._ready_features(columns)
            sparse = _NoUpdate()
        else:
            from mx_rec.optimizers.lazy_adam import create_hash_optimizer

            found = self._our_features(columns)
            sparse = create_hash_optimizer(RATE)
        sparse_variables, deep, wide = found
        logits, variables = _layers(model, deep, numbers)
        vectors = tf.reshape(deep, [model.batch, model.columns, model.dim])
        pairs = tf.square(tf.reduce_sum(vectors, 1)) - tf.reduce_sum(tf.square(vectors), 1)
        logits += 0.5 * tf.reduce_sum(pairs, 1) + tf.reduce_sum(wide, 1)
        loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        gradients = tf.gradients(loss, sparse_variables + variables)
        count = len(sparse_variables)
        dense = tf.compat.v1.train.AdamOptimizer(RATE)
        self._fetches = [
            loss,
            sparse.apply_gradients(zip(gradients[:count], sparse_variables)),
            dense.apply_gradients(zip(gradients[count:], variables)),
        ]

    def _ready_features(self, columns):
        """Embeddings of both parts that no id decides about; a step reads the ids."""
        self._fill = [tf.no_op()]
        variables = [
            tf.Variable(tf.zeros([self._model.batch, len(columns) * dim]), use_resource=True)
            for dim in (self._model.dim, 1)
        ]
        with tf.control_dependencies([tf.add_n(columns)]):
            parts = [variable.read_value() for variable in variables]
        return parts, parts[0], parts[1]

    def _dense_features(self, columns):
        """Variables, and the embeddings of both parts side by side."""
        variables, parts = [], []
        self._fill = []
        for name, dim in (("deep", self._model.dim), ("wide", 1)):
            own = [
                tf.Variable(
                    tf.zeros([self._model.range, dim]), name="%s_%d" % (name, at),
                    use_resource=False
                )
                for at in range(len(columns))
            ]
            first = _first_rows(self._filled, dim)
            self._fill += [
                tf.compat.v1.scatter_update(one, self._filled, first).op for one in own
            ]
            rows = [tf.nn.embedding_lookup(one, ids) for one, ids in zip(own, columns)]
            variables += own
            parts.append(tf.concat(rows, 1))
        return variables, parts[0], parts[1]

    def _our_features(self, columns):
        """The same of our tables."""
        from mx_rec.core.embedding import create_table, sparse_lookup, sparse_lookup_many
        from mx_rec.util.initialize import ConfigInitializer, init
        from mx_rec.util.ops import import_host_pipeline_ops

        try:
            ConfigInitializer.get_instance()
        except EnvironmentError:
            init(use_dynamic=True)
        ops = import_host_pipeline_ops()
        variables, parts = [], []
        self._fill = []
        for name, dim in (("deep", self._model.dim), ("wide", 1)):
            own = [
                create_table(
                    key_dtype=tf.int64,
                    dim=dim,
                    name="%s_%d" % (name, at),
                    emb_initializer=tf.compat.v1.constant_initializer(0.0),
                    device_vocabulary_size=self._model.range + self._model.range // 16,
                )
                for at in range(len(columns))
            ]
            first = _first_rows(self._filled, dim)
            self._fill += [ops.mx_rec_assign(one.handle, self._filled, first, [], [], []) for one in own]
            if self.kind == MANY:
                parts.append(sparse_lookup_many(own, columns, modify_graph=True, concat=True))
            else:
                rows = [
                    sparse_lookup(one, ids, modify_graph=True) for one, ids in zip(own, columns)
                ]
                parts.append(tf.concat(rows, 1))
            variables += [one.variable for one in own]
        return variables, parts[0], parts[1]


class _NoUpdate:
    """An optimizer that computes gradients and does nothing with them."""

    def apply_gradients(self, pairs):
        """A number that needs the gradients of all pairs: of a group of ops the graph optimizer drops
        what computes them."""
        return tf.add_n([tf.reduce_sum(gradient[-1]) for gradient, _ in pairs])
