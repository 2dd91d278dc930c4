"""Our side: `python ours_side.py CASE [--short]`, in the project's environment.

CASE is one of tfra_side.py, or bags or bags-train: a pooled lookup in evaluation or in training.
"""

import os
import sys
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from peers import work  # noqa: E402
from session.sides import Held, floor_of_lookups, floor_of_steps  # noqa: E402

RATE = 0.01
CHUNK = 50000


def main():
    """Fills the tables and serves."""
    from mx_rec.util.initialize import init

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    case, sizes = sys.argv[1], work.SHORT if "--short" in sys.argv else work.STANDARD
    kind, _, rule = case.partition("-")
    init(use_dynamic=True)
    if kind == "bags":
        bags(sizes, rule == "train")
    else:
        table_work(sizes, kind, rule)


def create(name, rows, dim):
    """A table with room for `rows` rows, and the function (session) that fills it."""
    from mx_rec.core.embedding import create_table
    from mx_rec.util.ops import import_host_pipeline_ops

    table = create_table(
        key_dtype=tf.int64, dim=dim, name=name, device_vocabulary_size=2 * rows,
        emb_initializer=tf.compat.v1.constant_initializer(0.01),
    )
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    values = tf.compat.v1.placeholder(tf.float32, [None, dim])
    put = import_host_pipeline_ops().mx_rec_assign(table.variable.op.outputs[1], ids, values, [], [], [])
    initial = work.initial(rows, dim)

    def fill(session):
        for begin in range(0, rows, CHUNK):
            end = min(begin + CHUNK, rows)
            session.run(put, {ids: np.arange(begin, end), values: initial[begin:end]})

    return table, fill


def table_work(sizes, kind, rule):
    """P21, P22 and P23: one table."""
    from mx_rec.core.embedding import sparse_lookup

    table, fill = create("peers", sizes.rows, sizes.dim)
    make = {"lookup": work.lookups, "known": work.known, "new": work.new}[kind]
    held = Held(make(sizes), "ids")
    number = tf.compat.v1.placeholder(tf.int32, [])
    ids = held.value[number]
    rows = sparse_lookup(table, ids, is_train=kind != "lookup", name="rows", modify_graph=True)
    if kind == "lookup":
        fetch = tf.reduce_sum(rows[-1])
        floor = floor_of_lookups(ids)
    else:
        loss = tf.nn.l2_loss(rows)
        gradient = tf.gradients(loss, [table.variable])
        fetch = (loss, optimizer(rule).apply_gradients(zip(gradient, [table.variable])))
        floor = floor_of_steps(ids, [[sizes.step, sizes.dim]])
    first = make(sizes)[0][:64]
    probe_ids = tf.compat.v1.placeholder(tf.int64, [None])
    probe = sparse_lookup(table, probe_ids, is_train=False, name="probe", modify_graph=True)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        held.load(session)
        fill(session)
        count = len(make(sizes))
        work.serve(
            lambda k: session.run(fetch, {number: k % count}),
            lambda: session.run(probe, {probe_ids: first}).reshape(-1).tolist(),
            lambda k: session.run(floor, {number: k % count}),
        )


def optimizer(rule):
    """Our optimizer of that name."""
    if rule == "sgd":
        from mx_rec.optimizers.gradient_descent import create_hash_optimizer
    elif rule == "adagrad":
        from mx_rec.optimizers.adagrad import create_hash_optimizer

        # What Keras starts at.
        return create_hash_optimizer(learning_rate=RATE, initial_accumulator_value=0.1)
    else:
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer
    return create_hash_optimizer(learning_rate=RATE)


def bags(sizes, is_train):
    """P20: four tables, the ids of each bag summed."""
    from mx_rec.core.embedding import sparse_lookup_pooled

    tables = [create("bags%d" % at, sizes.bag_rows, sizes.dim) for at in range(sizes.tables)]
    held = Held(work.bags(sizes), "ids")
    number = tf.compat.v1.placeholder(tf.int32, [])
    pooled = tf.concat(
        [
            sparse_lookup_pooled(table, held.value[number][at], "sum", is_train=is_train)
            for at, (table, _) in enumerate(tables)
        ],
        axis=1,
    )
    fetch = tf.reduce_sum(pooled[-1])
    floor = floor_of_lookups(held.value[number])
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        held.load(session)
        for _, fill in tables:
            fill(session)
        work.serve(
            lambda k: session.run(fetch, {number: k % sizes.batches}),
            lambda: session.run(pooled, {number: 0})[:4].reshape(-1).tolist(),
            lambda k: session.run(floor, {number: k % sizes.batches}),
        )


if __name__ == "__main__":
    main()
