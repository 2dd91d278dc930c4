"""A1: training lookups with admission beside the same lookups without, through a session."""

import numpy as np
import tensorflow as tf

from session import measure, workload
from session.sides import Filling, Held, Ours, dense_variable, force, session

WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}

# No key is counted so often.
NEVER = 2 ** 30


def counting(sizes, draw):
    """A1: all keys known and admitted, and half of them refused."""
    number = tf.compat.v1.placeholder(tf.int32, [])
    dense = dense_variable(sizes, "dense")
    plain, known, mixed = [Ours(sizes, "admission_" + name) for name in ("off", "all", "half")]
    order = workload.key_order(sizes)
    fillings = [
        Filling(dense, order, plain.assign),
        Filling(dense, order, known.assign),
        Filling(dense, order[: len(order) // 2], mixed.assign),
    ]
    held = Held(workload.id_batches(sizes, draw), "ids")
    ids = held.value[number]
    rows = [
        known.lookup(ids, True, "train", access_threshold=1),
        mixed.lookup(ids, True, "train", access_threshold=NEVER),
        plain.lookup(ids, True, "train"),
    ]
    fetches = [force(row) for row in rows]
    with session() as running:
        running.run(tf.compat.v1.global_variables_initializer())
        held.load(running)
        for filling in fillings:
            filling.run(running)
        # Now the rows there are count as admitted, and no other key ever is. After this every key of
        # the batches has been counted once.
        for batch in range(sizes.batches):
            running.run(fetches, {number: batch})
        values = running.run(rows, {number: 0})
        measure.agree("A1 all admitted", values[0], values[2], 0)
        refused = np.all(values[1] == 0.0, axis=-1)
        measure.agree("A1 half refused", values[1][~refused], values[2][~refused], 0)
        if not 0.1 < np.mean(refused) < 0.9:
            raise RuntimeError("A1: %g of all ids are refused" % np.mean(refused))
        del values
        times = measure.interleave(
            [lambda k, fetch=fetch: running.run(fetch, {number: k}) for fetch in fetches],
            sizes.batches,
            sizes.repetitions,
            sizes.warmup,
        )
    return [
        measure.figure(
            "A1 %s%s" % (draw, mark),
            "training lookup with admission, %s, %s" % (what, WORDS[draw]),
            times[side],
            times[2],
            1.3,
            False,
            "the same lookup without",
        )
        for side, (mark, what) in enumerate((("", "all admitted"), (" r", "half refused")))
    ]
