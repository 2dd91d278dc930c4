"""P5: a whole sparse training step, lookup to update, through the package's own names."""

import tensorflow as tf

from session import limits, measure, workload
from session.sides import Filling, Held, Ours, dense_variable, floor_of_steps, session

RATE = 0.01
WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}


def lazy_adam(sizes, draw):
    """P5: sparse_lookup and our LazyAdam beside embedding_lookup and contrib's."""
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    which = tf.compat.v1.placeholder(tf.int32, [])
    table = dense_variable(sizes, "dense")
    ours = Ours(sizes, "step_" + draw)
    filling = Filling(table, workload.key_order(sizes), ours.assign)
    batches = workload.id_batches(sizes, draw)
    held = Held(batches, "ids")
    ids = held.value[which]

    # l2_loss is one pass forward and one multiplication backward: the lightest loss that has a
    # gradient of its own for every id, so that the step measured is the sparse part.
    our_loss = tf.nn.l2_loss(ours.lookup(ids, True, "train"))
    gradient = tf.gradients(our_loss, [ours.variable])
    ours_train = create_hash_optimizer(RATE).apply_gradients(zip(gradient, [ours.variable]))
    peer_loss = tf.nn.l2_loss(tf.nn.embedding_lookup(table, ids))
    peer_train = tf.contrib.opt.LazyAdamOptimizer(RATE).minimize(peer_loss, var_list=[table])
    floor = floor_of_steps(ids, [[sizes.batch, sizes.dim]])
    fetches = [(our_loss, ours_train), (peer_loss, peer_train), floor]
    probe = [ours.find(ids), tf.gather(table, ids)]

    limit = limits.Limit(batches, sizes.rows, sizes.dim, "read,update")

    with session() as running, limit:
        running.run(tf.compat.v1.global_variables_initializer())
        held.load(running)
        filling.run(running)
        times = measure.interleave(
            [_runner(running, fetch, which) for fetch in fetches] + limit.sides,
            sizes.batches,
            sizes.repetitions,
            sizes.warmup,
        )
        values = running.run(probe, {which: 0})
        measure.agree("P5 " + draw, values[0], values[1], 2e-5)
    figure = measure.figure(
        "P5 " + draw,
        "whole sparse step, LazyAdam, " + WORDS[draw],
        times[0],
        times[1],
        6.0,
        True,
        "embedding_lookup + contrib LazyAdam",
    )
    return [measure.with_limit(figure, limit, times[2], times[3:])]


def _runner(running, fetch, which):
    return lambda k: running.run(fetch, {which: k})
