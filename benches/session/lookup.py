"""P1, P2 and P15: lookups through a session."""

import tensorflow as tf

from session import limits, measure, workload
from session.sides import Filling, Held, Ours, dense_variable, floor_of_lookups, force, session

WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}


def dense(sizes, draw):
    """P1: evaluation and training lookup beside tf.nn.embedding_lookup on a dense variable."""
    number = tf.compat.v1.placeholder(tf.int32, [])
    table = dense_variable(sizes, "dense")
    ours = Ours(sizes, "lookup_dense")
    filling = Filling(table, workload.key_order(sizes), ours.assign)
    batches = workload.id_batches(sizes, draw)
    held = Held(batches, "ids")
    ids = held.value[number]
    rows = [
        ours.lookup(ids, False, "evaluate"),
        ours.lookup(ids, True, "train"),
        tf.nn.embedding_lookup(table, ids),
    ]
    fetches = [force(row) for row in rows] + [floor_of_lookups(ids)]
    limit = limits.Limit(batches, sizes.rows, sizes.dim, "read")
    with session() as running, limit:
        running.run(tf.compat.v1.global_variables_initializer())
        held.load(running)
        filling.run(running)
        values = running.run(rows, {number: 0})
        measure.agree("P1 evaluation", values[0], values[2], 0)
        measure.agree("P1 training", values[1], values[2], 0)
        del values
        times = measure.interleave(
            [_runner(running, fetch, number) for fetch in fetches] + limit.sides,
            sizes.batches,
            sizes.repetitions,
            sizes.warmup,
        )
    return [
        measure.with_limit(
            measure.figure(
                "P1 %s%s" % (draw, mark),
                "%s lookup, %s" % (what, WORDS[draw]),
                times[side],
                times[2],
                2.0,
                True,
                "tf.nn.embedding_lookup, dense variable",
            ),
            limit,
            times[3],
            times[4:],
        )
        for side, (mark, what) in enumerate((("", "evaluation"), (" t", "training")))
    ]


def hash_table(sizes, draw):
    """P2: lookup beside tf.contrib.lookup.MutableHashTable."""
    number = tf.compat.v1.placeholder(tf.int32, [])
    source = dense_variable(sizes, "dense")
    ours = Ours(sizes, "lookup_hash")
    peer = tf.contrib.lookup.MutableHashTable(
        tf.int64, tf.float32, tf.zeros([sizes.dim]), name="peer", checkpoint=False
    )
    order = workload.key_order(sizes)
    fillings = [Filling(source, order, ours.assign), Filling(source, order, peer.insert)]
    held = Held(workload.id_batches(sizes, draw), "ids")
    ids = held.value[number]
    rows = [ours.lookup(ids, False, "evaluate"), peer.lookup(ids)]
    fetches = [force(row) for row in rows]
    with session() as running:
        running.run(tf.compat.v1.global_variables_initializer())
        held.load(running)
        for filling in fillings:
            filling.run(running)
        values = running.run(rows, {number: 0})
        measure.agree("P2", values[0], values[1], 0)
        times = measure.interleave(
            [_runner(running, fetch, number) for fetch in fetches],
            sizes.batches,
            sizes.repetitions,
            sizes.warmup,
        )
    return [
        measure.figure(
            "P2 " + draw,
            "evaluation lookup, " + WORDS[draw],
            times[0],
            times[1],
            15.0,
            True,
            "tf.contrib.lookup.MutableHashTable",
        )
    ]


def smallest(sizes, draw):
    """P15: a batch of one id, fed, the row fetched: one whole session.run."""
    ids = tf.compat.v1.placeholder(tf.int64, [1])
    table = dense_variable(sizes, "dense")
    ours = Ours(sizes, "lookup_smallest")
    filling = Filling(table, workload.key_order(sizes), ours.assign)
    rows = [ours.lookup(ids, False, "evaluate"), tf.gather(table, ids)]
    batch = workload.id_batches(sizes, draw)[0]
    with session() as running:
        running.run(tf.compat.v1.global_variables_initializer())
        filling.run(running)
        values = running.run(rows, {ids: batch[:1]})
        measure.agree("P15", values[0], values[1], 0)

        def side(fetch):
            return lambda k: running.run(fetch, {ids: batch[k : k + 1]})

        times = measure.interleave(
            [side(row) for row in rows], sizes.batch, sizes.calls, sizes.calls // 10
        )
    return [
        measure.figure(
            "P15", "batch of one id, whole session.run", times[0], times[1], 1.1, False, "tf.gather"
        )
    ]


def _runner(running, fetch, number):
    return lambda k: running.run(fetch, {number: k})
