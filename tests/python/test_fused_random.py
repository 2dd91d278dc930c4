"""Random models of sums, concatenations and single rows on random histories: fused and unmodified give the same bits."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
from fused_cases import close, optimizer
from modify_cases import AHEAD
from mx_rec.core.embedding import sparse_lookup_many

MODELS = 24
USES = ["sum", "sum", "kept", "two sums", "rows", "square", "concat", "concat"]
WEIGHTED = ["masked", "masked mean", "matmul", "fixed", "mixed"]


class Model:
    """The random choices of one model, drawn before it is built, so that both forms get the same."""

    def __init__(self, seed, uses=tuple(USES)):
        self.random = np.random.RandomState(seed)
        self.length, self.batch = self.draw(1, 5), self.draw(2, 6)
        self.dims = [self.draw(1, 9) for _ in range(self.draw(1, 4))]
        self.lookups = [(self.draw(0, len(self.dims) - 1), str(self.random.choice(uses)))
                        for _ in range(self.draw(1, 6))]
        self.is_static, self.is_group, self.is_clipped = [self.random.rand() < chance for chance in (0.5, 0.4, 0.3)]
        self.kind = str(self.random.choice(["lazy_adam", "adagrad", "gradient_descent"]))
        self.history = self.random.choice(["step", "step", "step", "start", "remove", "look"], 14)
        self.capacity = 60 if self.random.rand() < 0.1 and len(self.lookups) == 1 else 3000

    def draw(self, low, high):
        return int(self.random.randint(low, high + 1))

    def fuses(self, use):
        """Whether lookups of this use are fused with sums."""
        # Weights that are no function of the ids are known to be one for each where all sizes are known.
        return use in ("sum", "kept", "two sums", "masked", "masked mean") or use in ("matmul", "fixed") and self.is_static

    def data(self):
        random = np.random.RandomState(self.length)
        ids = random.randint(0, 40, [4 * self.batch + 1, len(self.lookups), self.length]).astype(np.int64) * 11 - 70
        ids[random.rand(*ids.shape) < 0.15] = -1
        labels = random.rand(len(ids)).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(self.batch, drop_remainder=self.is_static)


def weighted(model, rows, ids, use):
    """Weighted sums of the rows of a lookup."""
    mask = tf.cast(ids >= 0, tf.float32)
    fixed = tf.tile(tf.constant(np.linspace(0.25, 1.5, model.length).astype(np.float32))[None, :], [tf.shape(ids)[0], 1])
    if model.is_static:
        fixed.set_shape([model.batch, model.length])
    if use == "masked":
        return [tf.reduce_sum(rows * mask[..., None], axis=1)]
    if use == "masked mean":
        return [tf.reduce_sum(tf.expand_dims(mask, -1) * rows, axis=1) / (tf.reduce_sum(mask, 1, keepdims=True) + 1.0)]
    if use == "matmul":
        return [tf.squeeze(tf.matmul(fixed[:, None, :], rows), [1])]
    if use == "fixed":
        return [tf.reduce_mean(rows * fixed[:, :, None], axis=-2)]
    return [tf.reduce_sum(rows * mask[..., None], axis=1), tf.reduce_sum(rows, axis=1)]


def used(rows, use):
    """What a model makes of the rows of a lookup, all of it of rank 2."""
    flat = [-1, int(np.prod(rows.shape.as_list()[1:]))]
    if use == "sum":
        return [tf.reduce_sum(rows, axis=1)]
    if use == "kept":
        return [tf.squeeze(tf.reduce_sum(rows, axis=-2, keepdims=True), 1)]
    if use == "two sums":
        return [tf.reduce_sum(rows, axis=1), tf.reduce_sum(rows, axis=-2) * 0.5]
    if use == "square":
        return [tf.reduce_sum(rows, axis=1), tf.reduce_sum(tf.square(rows), axis=1)]
    return [tf.reshape(rows, flat)]


def script_of(model):
    def script(run):
        source = tf.compat.v1.data.make_initializable_iterator(model.data())
        ids, label = source.get_next()
        tables = [run.table("table_%d" % at, dim, capacity=model.capacity) for at, dim in enumerate(model.dims)]
        of = [tables[table] for table, _ in model.lookups]
        columns = [ids[:, at] for at in range(len(of))]
        if model.is_group:
            rows = sparse_lookup_many(of, columns, modify_graph=True)
        else:
            rows = [run.lookup(table, column) for table, column in zip(of, columns)]
        parts = [one for one, (_, use) in zip(rows, model.lookups) if use == "concat"]
        made = []
        if parts:
            made += used(tf.concat(parts, axis=-1), "rows")
        for one, column, (_, use) in zip(rows, columns, model.lookups):
            if use in WEIGHTED:
                made += weighted(model, one, column, use)
            elif use != "concat":
                made += used(one, use)
        weights = [tf.constant(np.linspace(-1.0, 1.0, one.shape.as_list()[-1]).astype(np.float32)) for one in made]
        total = tf.add_n([tf.reduce_sum(tf.tanh(one * weight), axis=1) for one, weight in zip(made, weights)])
        loss = tf.reduce_mean(tf.square(total - label))
        trained = sorted({table for table, _ in model.lookups})
        variables = [tables[table].variable for table in trained]
        grads = tf.gradients(loss, variables)
        if model.is_clipped:
            grads, _ = tf.clip_by_global_norm(grads, 0.05)
        update = optimizer(model.kind).apply_gradients(list(zip(grads, variables)))
        sess = run.begin(source, own=True)
        for what in model.history:
            if what == "step":
                run.step(sess, [loss, made, update])
            elif what == "start":
                run.start(sess, source, own=True)
            elif what == "remove":
                run.note("removed", run.raw(tables[0]).remove(sess, np.arange(-70, 70)))
            else:
                run.contents(sess)
        run.contents(sess)

    return script


@pytest.mark.parametrize("seed", range(MODELS))
def test_random_models_see_the_same_bits(seed):
    model = Model(seed)
    runs = cases.alike(script_of(model), moves=len(model.lookups), use_dynamic=True)
    plan = runs[AHEAD].plan
    summed = sum(use in ("sum", "kept", "two sums") for _, use in model.lookups)
    assert sum(one.fuses for one in plan.sums) == summed
    parts = sum(use == "concat" for _, use in model.lookups)
    assert [len(one.parts) for one in plan.concats if one.fuses] == ([parts] if parts > 1 else [])


@pytest.mark.parametrize("seed", range(MODELS // 2))
def test_random_models_with_weighted_sums_see_the_same_numbers(seed):
    model = Model(seed, tuple(WEIGHTED + ["sum", "rows", "concat"]))
    plan = close(script_of(model), use_dynamic=True).plan
    assert sum(one.fuses for one in plan.sums) == sum(model.fuses(use) for _, use in model.lookups), plan.text()


def test_the_models_with_weighted_sums_are_of_many_kinds():
    models = [Model(seed, tuple(WEIGHTED + ["sum", "rows", "concat"])) for seed in range(MODELS // 2)]
    assert set(WEIGHTED) <= {use for model in models for _, use in model.lookups}
    assert {model.is_static for model in models} == {model.is_group for model in models} == {True, False}


def test_the_models_are_of_many_kinds():
    models = [Model(seed) for seed in range(MODELS)]
    assert {use for model in models for _, use in model.lookups} == set(USES)
    assert {model.kind for model in models} == {"lazy_adam", "adagrad", "gradient_descent"}
    for choice in ("is_static", "is_group", "is_clipped"):
        assert len({getattr(model, choice) for model in models}) == 2, choice
    assert any(len(model.lookups) > len(model.dims) for model in models)
