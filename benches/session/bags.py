"""P19: bags of ids of several tables, added up: the vectors alone, and whole sparse steps."""

import tensorflow as tf

from session import measure, workload
from session.sides import Filling, Held, Ours, dense_variable, session

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
    fillings, held, tables, variables = [], [], [], []
    for number in range(TABLES):
        variable = dense_variable(own, "dense_%d" % number)
        table = Ours(own, "bags_%d" % number)
        batches = workload.id_batches(own, draw, seed=2 + 10 * number)
        ids = Held(batches.reshape(-1, bags, length), "ids_%d" % number)
        fillings.append(Filling(variable, workload.key_order(own), table.assign))
        held.append(ids)
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
    with session() as running:
        running.run(tf.compat.v1.global_variables_initializer())
        for one in held:
            one.load(running)
        for one in fillings:
            one.run(running)

        def times(*fetches):
            return measure.interleave(
                [_runner(running, fetch, which) for fetch in fetches],
                own.batches, own.repetitions, own.warmup)

        alone = times(ends["found"], ends["ours"], ends["peer"])
        whole = times((losses["ours"], steps["ours"]), (losses["peer"], steps["peer"]))
        values = running.run([sides["ours"], sides["found"], sides["peer"]], {which: 0})
        for ours, found, peer in zip(*values):
            measure.agree("P19 " + draw, ours, peer, 4e-4)
            measure.agree("P19 " + draw, ours, found, 0)
    what = "4 tables, bags of 20 summed: "
    return [
        measure.figure("P19 f", what + "evaluation", alone[0], alone[2], 4.0, True, PEER),
        measure.figure("P19 t", what + "training lookup", alone[1], alone[2], 4.0, True, PEER),
        measure.figure("P19 s", what + "whole step", whole[0], whole[1], 4.0, True,
                       PEER + ", LazyAdam"),
    ]


def _runner(running, fetch, which):
    return lambda k: running.run(fetch, {which: k})
