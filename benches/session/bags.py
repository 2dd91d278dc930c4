"""P19 and P25: bags of ids of several tables, added up: the vectors alone, and whole sparse steps."""

import numpy as np
import tensorflow as tf

from session import limits, measure, workload
from session.sides import (
    Filling, Held, Ours, dense_variable, floor_of_lookups, floor_of_steps, session,
)

RATE = 0.01
TABLES = 4

# Steps of a side in a row, those before them that are not timed, and how often each side comes.
BLOCK, BEFORE, BLOCKS = 20, 5, 10

PEER = "embedding_lookup + reduce_sum"


def pooled(sizes, draw):
    """P19: pooled lookups and our LazyAdam beside dense variables, reduce_sum and contrib's.

    Ours are a sparse_lookup_pooled a table and, with tables of its own, sparse_lookup_pooled_many.

    Args:
        sizes: the standard sizes, of which the repetitions are taken.
        draw: "z": Zipf 1.05 ids, of each table its own.
    """
    from mx_rec.core.embedding import sparse_lookup_pooled

    return _beside_dense(sizes, draw, "P19", sparse_lookup_pooled)


def written(sizes, draw):
    """P25: the same as programs write it, a sparse_lookup a table and a reduce_sum over each bag.

    Args:
        sizes: as of `pooled`.
        draw: as of `pooled`.
    """
    from mx_rec.core.embedding import sparse_lookup

    def summed(table, ids, is_train=True):
        return tf.reduce_sum(sparse_lookup(table, ids, is_train=is_train, modify_graph=True), 1)

    return _beside_dense(sizes, draw, "P25", summed)


def _beside_dense(sizes, draw, target, look_up):
    """Lookups of bags a table, made by `look_up`, and the same by sparse_lookup_pooled_many."""
    from mx_rec.core.embedding import sparse_lookup_pooled_many
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    bags, length, rows = (4096, 20, 200000) if sizes is workload.STANDARD else (64, 20, 4096)
    own = workload.Sizes(rows, 32, bags * length, min(sizes.batches, 32), sizes.repetitions,
                         sizes.warmup, sizes.calls)
    which = tf.compat.v1.placeholder(tf.int32, [])
    sides = {name: [] for name in ("ours", "found", "peer")}
    fillings, held, tables, grouped, variables, drawn = [], [], [], [], [], []
    chosen = []
    for number in range(TABLES):
        variable = dense_variable(own, "dense_%d" % number)
        table, other = Ours(own, "bags_%d" % number), Ours(own, "grouped_%d" % number)
        batches = workload.id_batches(own, draw, seed=2 + 10 * number)
        ids = Held(batches.reshape(-1, bags, length), "ids_%d" % number)
        fillings.append(Filling(variable, workload.key_order(own), table.assign))
        fillings.append(Filling(variable, workload.key_order(own), other.assign))
        held.append(ids)
        drawn.append(batches)
        tables.append(table)
        grouped.append(other.table)
        variables.append(variable)
        batch = ids.value[which]
        chosen.append(batch)
        sides["ours"].append(look_up(table.table, batch))
        sides["found"].append(look_up(table.table, batch, is_train=False))
        sides["peer"].append(tf.reduce_sum(tf.nn.embedding_lookup(variable, batch), axis=1))

    sides["many"] = sparse_lookup_pooled_many(grouped, chosen)
    sides["many found"] = sparse_lookup_pooled_many(grouped, chosen, is_train=False)

    # The forms share one fetch each that needs every vector: a tf.group would be pruned.
    ends = {name: tf.add_n([tf.reduce_sum(one[-1]) for one in vectors])
            for name, vectors in sides.items()}
    losses = {name: tf.add_n([tf.nn.l2_loss(one) for one in sides[name]])
              for name in ("ours", "many", "peer")}
    steps = {
        "peer": tf.contrib.opt.LazyAdamOptimizer(RATE).minimize(losses["peer"], var_list=variables),
    }
    for name, over in (("ours", [table.variable for table in tables]),
                       ("many", [table.variable for table in grouped])):
        steps[name] = create_hash_optimizer(RATE).apply_gradients(
            zip(tf.gradients(losses[name], over), over))
    floors = [floor_of_lookups(batch), floor_of_steps(batch, [[bags, 32]] * TABLES)]
    drawn = np.stack(drawn, axis=1)
    works = [limits.Limit(drawn, rows, 32, work, bag=length) for work in ("read", "read,update")]

    length, before, count = (BLOCK, BEFORE, BLOCKS) if sizes is workload.STANDARD else (2, 1, 2)

    with session() as running, works[0], works[1]:
        running.run(tf.compat.v1.global_variables_initializer())
        for one in held:
            one.load(running)
        for one in fillings:
            one.run(running)

        def runs(limit, *fetches):
            return [_runner(running, fetch, which) for fetch in fetches] + limit.sides

        def times(sides_):
            return measure.interleave(sides_, own.batches, own.repetitions, own.warmup)

        alone = times(runs(works[0], *[ends[name] for name in (
            "found", "ours", "many found", "many", "peer")], floors[0]))
        of_steps = runs(works[1], *[(losses[name], steps[name]) for name in (
            "ours", "many", "peer")], floors[1])
        whole = times(of_steps)
        names = ("ours", "found", "many", "many found", "peer")
        for ours, *found, peer in zip(*running.run([sides[name] for name in names], {which: 0})):
            measure.agree(target + " " + draw, ours, peer, 4e-4)
            for one in found:
                measure.agree(target + " " + draw, ours, one, 0)
        # After some hundred steps of Adam towards 0 the rounding of both sides has drifted apart.
        in_a_row = measure.blocks(of_steps, own.batches, count, length, before)
    how = " as written" if target == "P25" else ""
    what, many = "4 tables, bags of 20 summed%s: " % how, ", sparse_lookup_pooled_many"
    lookups = [
        measure.figure(target + number, what + words, ours, alone[4], 4.0, True, PEER)
        for number, words, ours in (
            (" f", "evaluation", alone[0]), (" t", "training lookup", alone[1]),
            (" f many", "evaluation" + many, alone[2]),
            (" t many", "training lookup" + many, alone[3]))
    ]
    found = [measure.with_limit(item, works[0], alone[5], alone[6:]) for item in lookups]
    for mark, words, taken in (("", "whole step", whole),
                               (" b", "whole step, %d in a row" % length, in_a_row)):
        for number, form, ours in ((" s", "", taken[0]), (" s many", many, taken[1])):
            item = measure.figure(target + number + mark, what + words + form, ours, taken[2], 4.0,
                                  True, PEER + ", LazyAdam")
            found.append(measure.with_limit(item, works[1], taken[3], taken[4:]))
    return found


def _runner(running, fetch, which):
    return lambda k: running.run(fetch, {which: k})
