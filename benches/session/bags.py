"""P19: bags of ids of several tables, added up: the vectors alone, and whole sparse steps."""

import numpy as np
import tensorflow as tf

from session import limits, measure, workload
from session.sides import (
    Filling, Held, Ours, dense_variable, floor_of_lookups, floor_of_steps, session,
)

RATE = 0.01
TABLES = 4
PEER = "embedding_lookup + reduce_sum"


def pooled(sizes, draw):
    """P19: sparse_lookup_pooled and our LazyAdam beside dense variables, reduce_sum and contrib's.

    Args:
        sizes: the standard sizes, of which the repetitions are taken.
        draw: "z": Zipf 1.05 ids, of each table its own.
    """
    from mx_rec.core.embedding import sparse_lookup_pooled
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    bags, length, rows = (4096, 20, 200000) if sizes is workload.STANDARD else (64, 20, 4096)
    own = workload.Sizes(rows, 32, bags * length, min(sizes.batches, 32), sizes.repetitions,
                         sizes.warmup, sizes.calls)
    which = tf.compat.v1.placeholder(tf.int32, [])
    sides = {name: [] for name in ("ours", "found", "peer")}
    fillings, held, tables, variables, drawn = [], [], [], [], []
    for number in range(TABLES):
        variable = dense_variable(own, "dense_%d" % number)
        table = Ours(own, "bags_%d" % number)
        batches = workload.id_batches(own, draw, seed=2 + 10 * number)
        ids = Held(batches.reshape(-1, bags, length), "ids_%d" % number)
        fillings.append(Filling(variable, workload.key_order(own), table.assign))
        held.append(ids)
        drawn.append(batches)
        tables.append(table)
        variables.append(variable)
        batch = ids.value[which]
        sides["ours"].append(sparse_lookup_pooled(table.table, batch))
        sides["found"].append(sparse_lookup_pooled(table.table, batch, is_train=False))
        sides["peer"].append(tf.reduce_sum(tf.nn.embedding_lookup(variable, batch), axis=1))

    # The forms share one fetch each that needs every vector: a tf.group would be pruned.
    ends = {name: tf.add_n([tf.reduce_sum(one[-1]) for one in vectors])
            for name, vectors in sides.items()}
    losses = {name: tf.add_n([tf.nn.l2_loss(one) for one in sides[name]])
              for name in ("ours", "peer")}
    over = [table.variable for table in tables]
    steps = {
        "ours": create_hash_optimizer(RATE).apply_gradients(
            zip(tf.gradients(losses["ours"], over), over)),
        "peer": tf.contrib.opt.LazyAdamOptimizer(RATE).minimize(losses["peer"], var_list=variables),
    }
    floors = [floor_of_lookups(batch), floor_of_steps(batch, [[bags, 32]] * TABLES)]
    drawn = np.stack(drawn, axis=1)
    works = [limits.Limit(drawn, rows, 32, work, bag=length) for work in ("read", "read,update")]

    with session() as running, works[0], works[1]:
        running.run(tf.compat.v1.global_variables_initializer())
        for one in held:
            one.load(running)
        for one in fillings:
            one.run(running)

        def times(limit, *fetches):
            return measure.interleave(
                [_runner(running, fetch, which) for fetch in fetches] + limit.sides,
                own.batches, own.repetitions, own.warmup)

        alone = times(works[0], ends["found"], ends["ours"], ends["peer"], floors[0])
        whole = times(works[1], (losses["ours"], steps["ours"]), (losses["peer"], steps["peer"]),
                      floors[1])
        values = running.run([sides["ours"], sides["found"], sides["peer"]], {which: 0})
        for ours, found, peer in zip(*values):
            measure.agree("P19 " + draw, ours, peer, 4e-4)
            measure.agree("P19 " + draw, ours, found, 0)
    what = "4 tables, bags of 20 summed: "
    lookups = [
        measure.figure("P19 f", what + "evaluation", alone[0], alone[2], 4.0, True, PEER),
        measure.figure("P19 t", what + "training lookup", alone[1], alone[2], 4.0, True, PEER),
    ]
    step = measure.figure("P19 s", what + "whole step", whole[0], whole[1], 4.0, True,
                          PEER + ", LazyAdam")
    return [measure.with_limit(item, works[0], alone[3], alone[4:]) for item in lookups] + [
        measure.with_limit(step, works[1], whole[2], whole[3:])
    ]


def _runner(running, fetch, which):
    return lambda k: running.run(fetch, {which: k})
