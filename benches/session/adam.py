"""AD1 to AD4: Adam with the numbers of tf.train.AdamOptimizer, at the cost of the batch's rows.

All rows have moments before anything is timed: each was in a batch once.
"""

import numpy as np
import tensorflow as tf

from session import measure, workload
from session.sides import CHUNK, Held, Ours, force, session

RATE = 0.001
WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}

ROWS, SHORT_ROWS = 1000000, 20000

# A block of one side: steps that are not timed, and steps that are. Dense steps are long.
SKIPPED, STEPS, BLOCKS = 3, 10, 12


def dense(sizes, draw):
    """AD1: an unchanged program with AdamOptimizer on a table beside the same on a variable."""
    sides = [
        Program(name, adam_optimizer, _sized(sizes), draw) for name in ("table", "variable")
    ]
    times = _timed(sizes, sides, agree=1e-4)
    return [
        measure.figure(
            "AD1 " + draw, "step with Adam, 1M rows, " + WORDS[draw], times[0], times[1], 20.0,
            True, "AdamOptimizer on a variable",
        )
    ]


def lazy(sizes, draw):
    """AD2: the same program beside itself with contrib's LazyAdamOptimizer, both on tables."""
    sides = [
        Program("table", adam_optimizer, _sized(sizes), draw),
        Program("lazy_table", lazy_adam_optimizer, _sized(sizes), draw),
    ]
    times = _timed(sizes, sides)
    return [
        measure.figure(
            "AD2 " + draw, "step with Adam, 1M rows, " + WORDS[draw], times[0], times[1], 1.5,
            False, "lazy_adam",
        )
    ]


def forward(sizes, draw):
    """AD3: lookups of rows that wait for steps beside lookups of rows that do not."""
    from mx_rec.optimizers import adam, lazy_adam

    small = _sized(sizes)
    which = tf.compat.v1.placeholder(tf.int32, [])
    held = Held(workload.id_batches(small, draw), "ids")
    ids = tf.compat.v1.placeholder_with_default(held.value[which], [None])
    tables = [Ours(small, name) for name in ("adam", "lazy_adam")]
    trained = [table.lookup(ids, True, "train") for table in tables]
    found = [table.lookup(ids, False, "evaluate") for table in tables]
    train = [
        module.create_hash_optimizer(RATE).minimize(_loss(rows), var_list=[table.variable])
        for module, rows, table in zip((adam, lazy_adam), trained, tables)
    ]
    fetches = [force(rows) for rows in trained + found]
    with session() as running:
        running.run(tf.compat.v1.global_variables_initializer())
        held.load(running)
        _warm(small, lambda some: running.run(train, {ids: some, which: 0}))
        for number in range(small.batches):
            running.run(train, {which: number})
        times = measure.interleave(
            [lambda k, fetch=fetch: running.run(fetch, {which: k}) for fetch in fetches],
            small.batches, small.repetitions, small.warmup,
        )
    return [
        measure.figure(
            "AD3 %s%s" % (draw, mark), "%s lookup with Adam, %s" % (what, WORDS[draw]), times[at],
            times[at + 1], 1.3, False, "lazy_adam",
        )
        for at, mark, what in ((0, " t", "training"), (2, "", "evaluation"))
    ]


def rows(sizes, draw):
    """AD4: the same step on tables of a tenth and of ten times as many rows."""
    factors = (("100k", 0.1), ("10M", 10), ("1M", 1))
    sides = [
        Program("table_" + name, adam_optimizer, _sized(sizes, factor), draw)
        for name, factor in factors
    ]
    times = _timed(sizes, sides)
    return [
        measure.figure(
            "AD4 %s %s" % (draw, name), "step with Adam, %s rows, %s" % (name, WORDS[draw]),
            times[at], times[-1], 1.3, False, "1M rows",
        )
        for at, (name, _) in enumerate(factors[:-1])
    ]


def adam_optimizer():
    """TensorFlow's own optimizer."""
    return tf.compat.v1.train.AdamOptimizer(RATE)


def lazy_adam_optimizer():
    """Contrib's."""
    return tf.contrib.opt.LazyAdamOptimizer(RATE)


class Program:
    """A program of TensorFlow alone: a variable, lookups, a loss and an optimizer.

    Its variable becomes a table if its name has "table" in it.
    """

    def __init__(self, name, optimizer, sizes, draw):
        from mx_rec.util.initialize import ConfigInitializer, init

        try:
            ConfigInitializer.get_instance()
        except EnvironmentError:
            init(stock_tables=".*table.*")
        self.name, self.sizes = name, sizes
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._which = tf.compat.v1.placeholder(tf.int32, [])
            self._held = Held(workload.id_batches(sizes, draw), "ids")
            self._ids = tf.compat.v1.placeholder_with_default(
                self._held.value[self._which], [None]
            )
            variable = tf.compat.v1.get_variable(
                name, [sizes.rows, sizes.dim],
                initializer=tf.compat.v1.constant_initializer(0.05),
            )
            loss = _loss(tf.nn.embedding_lookup(variable, self._ids))
            self._fetches = [loss, optimizer().minimize(loss)]
            self._initializer = tf.compat.v1.global_variables_initializer()
            self.session = session()

    def start(self):
        """Sets all up, and gives all rows moments."""
        from mx_rec.stock.convert import converted

        self.session.run(self._initializer)
        self._held.load(self.session)
        _warm(self.sizes, lambda some: self.session.run(
            self._fetches, {self._ids: some, self._which: 0}))
        names = [one.plan.name for one in converted(self._graph)]
        if names != [self.name] * ("table" in self.name):
            raise RuntimeError("%s: the tables are %s" % (self.name, names))

    def step(self, number):
        """One step; returns its loss."""
        return self.session.run(self._fetches, {self._which: number})[0]


def _timed(sizes, sides, agree=None):
    """Milliseconds of a step of each side by blocks: array of shape (sides, blocks).

    With `agree` the losses of all sides must be so close to each other, relative to them.
    """
    try:
        for side in sides:
            side.start()
        if agree is not None:
            losses = [[side.step(number) for number in range(4)] for side in sides]
            for side, found in zip(sides, losses):
                ratios = np.divide(found, losses[-1])
                measure.agree("losses of " + side.name, ratios, np.ones(len(found)), agree)
        is_short = sizes is workload.SHORT
        blocks, steps = (3, 2) if is_short else (BLOCKS, STEPS)
        runs = [side.step for side in sides]
        return measure.blocks(runs, sides[-1].sizes.batches, blocks, steps, SKIPPED)
    finally:
        for side in sides:
            side.session.close()


def _sized(sizes, factor=1.0):
    is_short = sizes is workload.SHORT
    return workload.Sizes(
        rows=int((SHORT_ROWS if is_short else ROWS) * factor), dim=16,
        batch=256 if is_short else 8192, batches=sizes.batches, repetitions=sizes.repetitions,
        warmup=sizes.warmup, calls=0,
    )


def _loss(found):
    """A gradient of its own for every id, which is not 0 for rows of zeros."""
    return tf.nn.l2_loss(found - 1.0)


def _warm(sizes, train):
    """Trains every row once."""
    order = workload.key_order(sizes)
    for begin in range(0, len(order), CHUNK):
        train(order[begin : begin + CHUNK])
