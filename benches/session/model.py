"""P12 and P16: a whole deep-and-wide model, steps of training from its own input pipeline.

The model: 26 categorical columns and 13 numbers a sample, batches of 4096, 10M ids in all columns
together. Deep part: embeddings of dim 16, beside the numbers the input of layers of 256, 128 and
64. Wide part: one weight an id. Adam for the layers, LazyAdam for both kinds of embeddings.

A raw id is any int64. The model brings each column's into the column's own range and stacks them,
column by column, as scripts written for tables of fixed size do: `floormod` or, in the form with
strings, `to_hash_bucket_fast` of the id written as text.
"""

import time
from typing import NamedTuple, Tuple

import numpy as np
import tensorflow as tf

from session import measure, traced, workload
from session.sides import CHUNK

NUMBERS = 13
RATE = 0.001
PEER, STEP, AHEAD = "peer", "step", "ahead"


class Model(NamedTuple):
    """What is trained and how much of it.

    Attributes:
        rows: ids of all columns together.
        dim: columns of the deep embedding; the wide one has 1.
        columns: categorical columns.
        batch: samples in a batch.
        batches: different batches.
        layers: widths of the deep part.
        raw: "mod", "text" or "plain": how the model makes ids of raw ids.
        draw: "u" or "z".
        skipped: steps at the start of a block that are not timed.
        steps: timed steps of a block.
        blocks: blocks of each side.
    """

    rows: int = 10000000
    dim: int = 16
    columns: int = 26
    batch: int = 4096
    batches: int = 64
    layers: Tuple[int, ...] = (256, 128, 64)
    raw: str = "mod"
    draw: str = "z"
    skipped: int = 8
    steps: int = 10
    blocks: int = 20

    @property
    def range(self):
        """Ids of one column."""
        return self.rows // self.columns

    def short(self):
        """The same, too small to measure anything."""
        return self._replace(rows=52000, batch=256, batches=8, skipped=2, steps=2, blocks=3)


# What P16 measures: the model of P12, and cases that ought to gain more, less or nothing.
FORMS = {
    "u": (Model(draw="u"), "uniform ids"),
    "z": (Model(), "Zipf 1.05 ids"),
    "s": (Model(raw="text"), "Zipf, ids hashed as strings"),
    "d": (Model(layers=(1024, 512, 256)), "Zipf, layers 1024-512-256"),
    "k": (Model(columns=2, raw="plain"), "Zipf, 2 columns, ids as they are"),
}


def dense(sizes, draw):
    """P12: our tables beside dense variables, without and with graph modification."""
    model, words = _form(sizes, draw)
    times = _compare(model, [STEP, AHEAD, PEER])
    peer = "embedding_lookup, LazyAdam on dense variables"
    return [
        measure.figure("P12 " + draw, "model step, " + words, times[0], times[2], 2.0, True, peer),
        measure.figure(
            "P12 %s m" % draw, "modified model step, " + words, times[1], times[2], 2.0, True, peer
        ),
    ]


def modified(sizes, draw):
    """P16: the model with graph modification beside itself without."""
    model, words = _form(sizes, draw)
    left = []
    times = _compare(model, [AHEAD, STEP], lambda sides: left.extend(_key_work(sides[0])))
    what = "modified model step, " + words
    return [
        measure.figure("P16 " + draw, what, times[0], times[1], 0.98, True, "the same, unmodified"),
        measure.figure(
            "P16 %s left" % draw, "ops of key work left in it, " + words, left, times[0], 0.02, False,
            "the modified model's step",
        ),
    ]


def _key_work(side):
    """Milliseconds of the ops of key work in some traced steps, one each."""
    steps = [traced.run(side) for _ in range(13)]
    return np.array([traced.stages_of(step)[traced.KEYS] for step in steps[1:]])


def _form(sizes, draw):
    model, words = FORMS[draw]
    return (model.short() if sizes is workload.SHORT else model), words


def _compare(model, kinds, after=None):
    """Milliseconds a step: array of shape (len(kinds), blocks). The sides must agree on losses.

    `after` is called with the sides when they have been timed.
    """
    arrays = make_arrays(model)
    sides = [Side(model, kind) for kind in kinds]
    try:
        for side in sides:
            side.start(arrays)
        losses = np.array([[side.step() for _ in range(4)] for side in sides])
        for side, found in zip(sides, losses):
            measure.agree("losses of %s and %s" % (side.kind, kinds[-1]), found, losses[-1], 2e-6)
        times = blocks(model, sides)
        if after:
            after(sides)
        return times
    finally:
        for side in sides:
            side.session.close()


def blocks(model, sides):
    """Times blocks of steps, side after side; the side that goes first changes each time.

    Steps cannot take turns one by one here: a pipeline works ahead, and would do so in the other
    side's time. So every block starts with the pipelines of all sides full and at rest, and its
    first steps, which find batches made earlier, are not timed.
    """
    times = np.zeros((len(sides), model.blocks))
    for block in range(model.blocks):
        for turn in range(len(sides)):
            number = (block + turn) % len(sides)
            side = sides[number]
            for _ in range(model.skipped):
                side.step()
            begin = time.perf_counter()
            for _ in range(model.steps):
                side.step()
            times[number, block] = (time.perf_counter() - begin) * 1e3 / model.steps
            time.sleep(0.3)
    return times


def make_arrays(model):
    """Batches: raw ids int64 (batches, batch, columns), numbers float32, labels float32."""
    random = np.random.RandomState(11)
    count = model.batches * model.columns
    sizes = workload.Sizes(model.range, 0, model.batch, count, 0, 0, 0)
    ids = workload.id_batches(sizes, model.draw)
    ids = ids.reshape(model.batches, model.columns, model.batch).transpose(0, 2, 1)
    if model.raw == "plain":
        ids = ids + np.arange(model.columns, dtype=np.int64) * model.range
    else:
        ids = ids + model.range * random.randint(0, 1000, size=ids.shape)
    numbers = random.standard_normal((model.batches, model.batch, NUMBERS)).astype(np.float32)
    labels = (random.random_sample((model.batches, model.batch)) < 0.3).astype(np.float32)
    return np.ascontiguousarray(ids), numbers, labels


class Side:
    """The model in a graph and a session of its own.

    Args:
        model: a Model.
        kind: PEER: dense variables; STEP: our tables; AHEAD: our tables, graph modified.
    """

    def __init__(self, model, kind):
        self.kind = kind
        self.session = None
        self._model = model
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._build()

    def start(self, arrays):
        """Opens the session, fills the tables and starts the pipeline."""
        with self.graph.as_default():
            self.session = tf.compat.v1.Session()
            self.session.run(tf.compat.v1.global_variables_initializer())
        order = np.random.RandomState(1).permutation(self._model.rows).astype(np.int64)
        for begin in range(0, len(order), CHUNK):
            self.session.run(self._fill, {self._filled: order[begin : begin + CHUNK]})
        self.session.run(self._initializer, dict(zip(self._fed, arrays)))

    def step(self, options=None, metadata=None):
        """One step of training: its loss."""
        return self.session.run(self._fetches, options=options, run_metadata=metadata)[0]

    def _build(self):
        model = self._model
        ids, numbers, labels = self._pipeline()
        ids = _prepared(model, ids)
        self._filled = tf.compat.v1.placeholder(tf.int64, [None])
        if self.kind == PEER:
            tables, embeddings = self._dense_tables(ids)
            sparse = tf.contrib.opt.LazyAdamOptimizer(RATE)
        else:
            from mx_rec.optimizers.lazy_adam import create_hash_optimizer

            tables, embeddings = self._our_tables(ids)
            sparse = create_hash_optimizer(RATE)
        deep, wide = embeddings
        logits, variables = _layers(model, deep, numbers)
        logits += tf.reduce_sum(wide, [1, 2])
        loss = tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        gradients = tf.gradients(loss, tables + variables)
        train = [
            sparse.apply_gradients(zip(gradients[:2], tables)),
            tf.compat.v1.train.AdamOptimizer(RATE).apply_gradients(zip(gradients[2:], variables)),
        ]
        self._fetches = [loss] + train
        if self.kind == AHEAD:
            from mx_rec.graph import modify_graph_and_start_emb_cache
            from mx_rec.util.initialize import get_initializer

            modify_graph_and_start_emb_cache(dump_graph=False)
            self._initializer = get_initializer(True)

    def _pipeline(self):
        model = self._model
        shapes = [
            (tf.int64, [model.batches, model.batch, model.columns]),
            (tf.float32, [model.batches, model.batch, NUMBERS]),
            (tf.float32, [model.batches, model.batch]),
        ]
        self._fed = [tf.compat.v1.placeholder(*shape) for shape in shapes]
        dataset = tf.data.Dataset.from_tensor_slices(tuple(self._fed)).repeat().prefetch(2)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        self._initializer = iterator.initializer
        return iterator.get_next()

    def _dense_tables(self, ids):
        tables = [
            tf.Variable(tf.zeros([self._model.rows, dim]), name=name, use_resource=False)
            for name, dim in (("deep", self._model.dim), ("wide", 1))
        ]
        self._fill = [
            tf.compat.v1.scatter_update(
                table, self._filled, _first_rows(self._filled, int(table.shape[1]))
            ).op
            for table in tables
        ]
        return tables, [tf.nn.embedding_lookup(table, ids) for table in tables]

    def _our_tables(self, ids):
        from mx_rec.core.embedding import create_table, sparse_lookup
        from mx_rec.util.initialize import ConfigInitializer, init
        from mx_rec.util.ops import import_host_pipeline_ops

        try:
            ConfigInitializer.get_instance()
        except EnvironmentError:
            init(use_dynamic=True)
        ops = import_host_pipeline_ops()
        variables, rows, self._fill = [], [], []
        for name, dim in (("deep", self._model.dim), ("wide", 1)):
            table = create_table(
                key_dtype=tf.int64,
                dim=dim,
                name=name,
                emb_initializer=tf.compat.v1.constant_initializer(0.0),
                device_vocabulary_size=self._model.rows + self._model.rows // 16,
            )
            handle = table.variable.op.outputs[1]
            first = _first_rows(self._filled, dim)
            self._fill.append(ops.mx_rec_assign(handle, self._filled, first, [], [], []))
            variables.append(table.variable)
            rows.append(
                sparse_lookup(table, ids, is_train=True, name=name + "_train", modify_graph=True)
            )
        return variables, rows


def _prepared(model, raw):
    """Ids in [0, rows) of raw ids, the k-th column's in the k-th range."""
    if model.raw == "plain":
        return raw
    columns = []
    for number, column in enumerate(tf.unstack(raw, axis=1)):
        if model.raw == "text":
            within = tf.strings.to_hash_bucket_fast(tf.strings.as_string(column), model.range)
        else:
            within = tf.math.floormod(column, tf.constant(model.range, tf.int64))
        columns.append(within + tf.constant(number * model.range, tf.int64))
    return tf.stack(columns, axis=1)


def _layers(model, embeddings, numbers):
    """Logits of the deep part, and its variables."""
    variables = []

    def variable(name, initial):
        # Resource variables: an update of the other sort may overtake the backward pass that reads
        # the old value, and then no two runs have the same losses.
        variables.append(tf.Variable(initial, name=name, use_resource=True))
        return variables[-1]

    width = model.columns * model.dim
    values = tf.concat([tf.reshape(embeddings, [model.batch, width]), numbers], axis=1)
    width += NUMBERS
    for number, units in enumerate(model.layers + (1,)):
        spread = (6.0 / (width + units)) ** 0.5
        initial = tf.random.uniform([width, units], -spread, spread, seed=number + 1)
        weights = variable("weights_%d" % number, initial)
        values = tf.nn.bias_add(
            tf.matmul(values, weights), variable("bias_%d" % number, tf.zeros([units]))
        )
        if number < len(model.layers):
            values = tf.nn.relu(values)
        width = units
    return tf.squeeze(values, axis=1), variables


def _first_rows(ids, dim):
    """What the row of an id is before training: small values that differ from id to id."""
    phase = tf.cast(ids, tf.float32)[:, None] * 0.37 + tf.range(dim, dtype=tf.float32)
    return 0.05 * tf.sin(phase)
