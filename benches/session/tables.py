"""P17 and P18: a table a feature, one id each, forward and whole sparse step."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from session import limits, measure, workload
from session.sides import (
    Filling, Ours, dense_variable, floor_of_lookups, floor_of_steps, force, session,
)

RATE = 0.01

# Steps of a side in a row, those before them that are not timed, and how often each side comes.
BLOCK, BEFORE, BLOCKS = 20, 5, 20

WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}
PEER = "26 embedding_lookup on dense variables"


class Features(NamedTuple):
    """How many tables there are, and of what size.

    Attributes:
        tables: features, each with a table.
        rows: keys of a table, all present before anything is measured.
        dim: columns of an embedding.
        batch: samples in a batch, one id of each feature.
        batches: different batches.
        repetitions: measured repetitions of each side.
        warmup: repetitions before them.
    """

    tables: int = 26
    rows: int = 200000
    dim: int = 16
    batch: int = 2048
    batches: int = 64
    repetitions: int = 120
    warmup: int = 24


def forward(sizes, draw):
    """P17: embeddings of all features side by side."""
    features = _features(sizes, 2048)
    sides = _Sides(features, draw)
    names = ("many", "single", "evaluated", "peer")
    rows = dict(zip(names, sides.rows[:2] + [sides.evaluated()] + sides.rows[2:]))
    fetches = [force(rows[name]) for name in names] + [
        floor_of_lookups(sides.ids[-1]), force(sides.one_id_each())
    ]
    limit = limits.Limit(sides.batches, features.rows, features.dim, "read")
    with session() as running, limit:
        sides.start(running)
        values = running.run(rows, {sides.number: 0})
        for name in names:
            measure.agree("P17 forward, " + name, values[name], values["peer"], 0)
        del values
        times = measure.interleave(
            [_runner(running, fetch, sides.number) for fetch in fetches] + limit.sides,
            features.batches,
            features.repetitions,
            features.warmup,
        )
    number = "P17 %s f" % draw
    figures = _figures(number, "forward", draw, (times[0], times[1], times[3]), 3.0, PEER)
    figures.append(
        measure.figure(
            number + " e", "forward, evaluation, sparse_lookup_many, " + WORDS[draw], times[2],
            times[3], 3.0, True, PEER
        )
    )
    # The peer at its best: its ops with next to no work, and its rows at memory's speed.
    ops = float(np.median(times[5]))
    best = {
        "peer_limit": round(ops + float(np.median(times[7])), 4),
        "peer_op_us": round((ops - float(np.median(times[4]))) * 1e3 / features.tables, 2),
    }
    return [
        dict(measure.with_limit(item, limit, times[4], times[6:]), **best) for item in figures
    ]


def step(sizes, draw):
    """P17: the whole sparse step, batch 2,048."""
    return _step(_features(sizes, 2048), "P17 " + draw, draw)


def small(sizes, draw):
    """P18: the whole sparse step, batch 256."""
    return _step(_features(sizes, 256), "P18 " + draw, draw)


def _step(features, number, draw):
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    sides = _Sides(features, draw)
    # Of each side the lightest loss that has a gradient for every id.
    losses = [tf.nn.l2_loss(rows) for rows in sides.rows]
    trains = []
    for loss, tables in zip(losses, sides.ours):
        variables = [table.variable for table in tables]
        gradients = tf.gradients(loss, variables)
        trains.append(create_hash_optimizer(RATE).apply_gradients(zip(gradients, variables)))
    peer = tf.contrib.opt.LazyAdamOptimizer(RATE)
    trains.append(peer.minimize(losses[-1], var_list=sides.dense))
    shape = [features.batch, features.tables * features.dim]
    fetches = list(zip(losses, trains)) + [floor_of_steps(sides.ids[-1], [shape])]
    last = sides.ids[features.tables - 1]
    probes = [tables[-1].find(last) for tables in sides.ours] + [tf.gather(sides.dense[-1], last)]
    limit = limits.Limit(sides.batches, features.rows, features.dim, "read,update")
    length, before, count = (2, 1, 2) if features.repetitions < BLOCK else (BLOCK, BEFORE, BLOCKS)
    with session() as running, limit:
        sides.start(running)
        runs = [_runner(running, fetch, sides.number) for fetch in fetches] + limit.sides
        times = measure.interleave(
            runs, features.batches, features.repetitions, features.warmup
        )
        # After some hundred steps of Adam towards 0 the rounding of both sides has drifted apart.
        values = running.run(probes, {sides.number: 0})
        for value in values[:-1]:
            measure.agree(number, value, values[-1], 2e-5)
        in_a_row = measure.blocks(runs, features.batches, count, length, before)
    found = []
    for mark, what, taken in (("", "whole sparse step", times),
                              (" b", "whole sparse step, %d in a row" % length, in_a_row)):
        figures = _figures(number, what, draw, taken[:3], 4.0, PEER + ", LazyAdam")
        found += [
            dict(measure.with_limit(item, limit, taken[3], taken[4:]), id=item["id"] + mark)
            for item in figures
        ]
    return found


def _features(sizes, batch):
    if sizes is workload.SHORT:
        return Features(4, 2000, 16, 64, 4, 3, 2)
    return Features(batch=batch)


def _figures(number, what, draw, times, target, peer):
    forms = (("", "sparse_lookup_many"), (" one", "a sparse_lookup a table"))
    return [
        measure.figure(
            number + mark, "%s, %s, %s" % (what, words, WORDS[draw]), ours, times[-1], target, True,
            peer
        )
        for (mark, words), ours in zip(forms, times)
    ]


def _runner(running, fetch, number):
    return lambda k: running.run(fetch, {number: k})


class _Sides:
    """Tables of ours looked up together, tables of ours looked up one by one, dense variables.

    Attributes:
        number: placeholder of the batch's number.
        ids: int64 (tables, batch), those of the batch.
        batches: those ids, int64 (batches, tables, batch).
        ours: for each of our two sides its tables.
        dense: the variables of the peer.
        rows: for each side float32 (batch, tables * dim).
    """

    def __init__(self, features, draw):
        from mx_rec.core.embedding import sparse_lookup_many

        self.number = tf.compat.v1.placeholder(tf.int32, [])
        self.batches = _batches(features, draw)
        # A resource variable: what reads it needs no copy on either side.
        self._fed = tf.compat.v1.placeholder(tf.int64, self.batches.shape)
        held = tf.Variable(
            tf.zeros(self.batches.shape, tf.int64), trainable=False, name="ids", use_resource=True
        )
        self._load = held.assign(self._fed).op
        self.ids = tf.unstack(held[self.number])
        names = ["feature_%d" % at for at in range(features.tables)]
        self.dense = [dense_variable(features, name) for name in names]
        self.ours = [[Ours(features, side + name) for name in names] for side in ("many_", "one_")]
        many, single = self.ours
        self.rows = [
            sparse_lookup_many(
                [table.table for table in many], self.ids, modify_graph=True, concat=True
            ),
            tf.concat(
                [table.lookup(ids, True, "train") for table, ids in zip(single, self.ids)], 1
            ),
            tf.concat(
                [tf.nn.embedding_lookup(table, ids) for table, ids in zip(self.dense, self.ids)], 1
            ),
        ]
        order = workload.key_order(features)
        self._fillings = [
            Filling(dense, order, table.assign)
            for tables in self.ours
            for dense, table in zip(self.dense, tables)
        ]

    def evaluated(self):
        """The rows of the tables that are looked up together, without making any."""
        from mx_rec.core.embedding import sparse_lookup_many

        tables = [table.table for table in self.ours[0]]
        return sparse_lookup_many(
            tables, self.ids, is_train=False, modify_graph=True, concat=True
        )

    def one_id_each(self):
        """The peer's ops with a batch of one id."""
        held = tf.Variable(self.batches[:, :, :1], trainable=False, name="one", use_resource=True)
        rows = [tf.nn.embedding_lookup(table, ids)
                for table, ids in zip(self.dense, tf.unstack(held[self.number]))]
        return tf.concat(rows, 1)

    def start(self, running):
        """Gives every side the same rows."""
        running.run(tf.compat.v1.global_variables_initializer())
        running.run(self._load, {self._fed: self.batches})
        for filling in self._fillings:
            filling.run(running)


def _batches(features, draw):
    """Ids: int64 (batches, tables, batch), drawn anew for each table."""
    count = features.batches * features.tables
    sizes = workload.Sizes(features.rows, 0, features.batch, count, 0, 0, 0)
    ids = workload.id_batches(sizes, draw)
    return np.ascontiguousarray(ids.reshape(features.batches, features.tables, features.batch))
