"""The work of P20 to P23, the same arrays in every process, and the protocol of a side.

Needs NumPy and nothing else: it is imported by the Pythons of all sides.
"""

import sys
import time

import numpy as np

PREFIX = "peers: "
ZIPF_EXPONENT = 1.05


class Sizes:
    """How much one run does.

    Attributes:
        rows: keys of the table of P21 to P23, all present before anything is measured.
        dim: float32 columns of an embedding.
        lookup: ids in a batch of P21.
        step: ids in a batch of P22 and P23, all distinct.
        tables: tables of P20.
        bag_rows: rows in each of them.
        bags: bags in a batch of P20, a table.
        length: ids in a bag.
        batches: different batches, used in turn.
        repetitions: measured repetitions of each side.
        warmup: repetitions before the measured ones.
    """

    def __init__(self, rows, lookup, step, bag_rows, bags, batches, repetitions, warmup):
        self.rows = rows
        self.dim = 32
        self.lookup = lookup
        self.step = step
        self.tables = 4
        self.bag_rows = bag_rows
        self.bags = bags
        self.length = 20
        self.batches = batches
        self.repetitions = repetitions
        self.warmup = warmup


STANDARD = Sizes(
    rows=1000000, lookup=131072, step=8192, bag_rows=200000, bags=4096, batches=16,
    repetitions=40, warmup=8,
)
SHORT = Sizes(
    rows=20000, lookup=2048, step=512, bag_rows=2000, bags=64, batches=4, repetitions=3, warmup=1,
)


def lookups(sizes):
    """P21: 80% of the ids come from 20% of the keys.

    Returns:
        int64 array of shape (batches, lookup), ids in [0, rows).
    """
    random = np.random.RandomState(11)
    shape = (sizes.batches, sizes.lookup)
    popular = random.random_sample(shape) < 0.8
    head = sizes.rows // 5
    rank = np.where(popular, random.randint(0, head, shape), random.randint(head, sizes.rows, shape))
    return np.random.RandomState(12).permutation(sizes.rows).astype(np.int64)[rank]


def known(sizes):
    """P22: distinct ids that the table has.

    Returns:
        int64 array of shape (batches, step), ids in [0, rows).
    """
    random = np.random.RandomState(13)
    return np.stack(
        [random.permutation(sizes.rows)[: sizes.step].astype(np.int64) for _ in range(sizes.batches)]
    )


def new(sizes):
    """P23: distinct ids that the table has not, a batch for every repetition.

    Returns:
        int64 array of shape (warmup + repetitions, step), ids from rows on, scattered.
    """
    count = (sizes.warmup + sizes.repetitions) * sizes.step
    order = np.random.RandomState(14).permutation(count).astype(np.int64)
    return (sizes.rows + order).reshape(-1, sizes.step)


def bags(sizes):
    """P20: bags of ids, Zipf 1.05 over the rows of each table, popular rows scattered.

    Returns:
        int64 array of shape (batches, tables, bags, length), ids in [0, bag_rows).
    """
    random = np.random.RandomState(15)
    weights = np.cumsum(np.arange(1, sizes.bag_rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    shape = (sizes.batches, sizes.tables, sizes.bags, sizes.length)
    rank = np.searchsorted(weights, random.random_sample(shape) * weights[-1])
    names = np.random.RandomState(16).permutation(sizes.bag_rows).astype(np.int64)
    return names[np.minimum(rank, sizes.bag_rows - 1)]


def initial(rows, dim):
    """Rows of a table before the measured work, the same on every side.

    Returns:
        float32 array of shape (rows, dim).
    """
    return np.random.RandomState(17).uniform(-0.05, 0.05, (rows, dim)).astype(np.float32)


def serve(step, value=None, floor=None):
    """Runs repetitions as they are asked for on standard input, until it ends.

    A line "step K" runs repetition K and is answered by its time in milliseconds, "floor K" the same
    without lookup and update; "value" is answered by numbers that the driver compares between the
    sides.

    Args:
        step: function of the repetition's number; it returns when its work is done.
        value: function without arguments that gives a flat list of floats.
        floor: function of the repetition's number that pays for a step and does none of its work.
    """
    answer("ready")
    for line in sys.stdin:
        words = line.split()
        if words[0] == "value":
            answer(" ".join("%.9g" % number for number in value()))
            continue
        run = floor if words[0] == "floor" else step
        begin = time.perf_counter()
        run(int(words[1]))
        answer("%.6f" % ((time.perf_counter() - begin) * 1e3))


def answer(text):
    """One line for the driver; other lines of standard output are noise of the libraries."""
    sys.stdout.write(PREFIX + text + "\n")
    sys.stdout.flush()
