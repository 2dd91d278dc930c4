"""Random graphs on random histories: modified and unmodified, a script sees the same bits."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
from modify_cases import AHEAD

GRAPHS = 30


class Plan:
    """The random choices of one graph, drawn before it is built, so that both forms get the same."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.columns = self.draw(1, 4)
        self.width = self.draw(1, 4)
        self.count = self.draw(20, 60)
        self.batch = self.draw(3, 9)
        self.dims = [self.draw(1, 9) for _ in range(self.draw(1, 3))]
        self.lookups = [(self.draw(0, len(self.dims) - 1), self.paths()) for _ in range(self.draw(1, 4))]
        self.evaluations = [(self.draw(0, len(self.dims) - 1), self.paths()) for _ in range(self.draw(0, 2))]
        # Sometimes too few rows: the tables fill up in mid-training.
        self.capacity = self.draw(60, 120) if self.random.rand() < 0.2 else 3000
        if self.capacity < 3000:
            # Of two lookups in a step that fails, it is open whether the other one has run.
            self.lookups = self.lookups[:1]
        self.shuffled, self.repeated, self.prefetched = [self.random.rand() < 0.5 for _ in range(3)]
        self.one_shot = self.random.rand() < 0.25
        self.history = self.random.choice(["step", "step", "step", "evaluate", "start", "remove", "look"], 25)

    def draw(self, low, high):
        return int(self.random.randint(low, high + 1))

    def paths(self):
        """What happens to a column on its way: names of steps, and a number for each."""
        kinds = ["add", "modulo", "cast", "hash", "slice", "stack", "mask", "reshape", "stay"]
        weights = np.array([2, 2, 2, 2, 2, 2, 1, 2, 0.5])
        names = self.random.choice(kinds, self.draw(0, 3), p=weights / weights.sum())
        return self.draw(0, self.columns - 1), [(str(name), self.draw(1, 5)) for name in names]

    def arrays(self, seed):
        random = np.random.RandomState(seed)
        columns = {}
        for column in range(self.columns):
            ids = random.randint(0, 50, [self.count, self.width]) * 13 - 60
            ids[random.rand(*ids.shape) < 0.1] = -1
            columns["c%d" % column] = ids.astype(np.int64 if column % 2 == 0 else np.int32)
        columns["label"] = random.rand(self.count).astype(np.float32)
        return columns

    def data(self, seed):
        data = tf.data.Dataset.from_tensor_slices(self.arrays(seed))
        if self.shuffled:
            data = data.shuffle(10, seed=seed)
        data = data.batch(self.batch)
        if self.repeated:
            data = data.repeat(2)
        return data.prefetch(2) if self.prefetched else data


def walk(ids, steps):
    """Applies the steps of a path."""
    for name, number in steps:
        if name == "add":
            ids = ids + tf.cast(number, ids.dtype)
        elif name == "modulo":
            ids = tf.math.floormod(ids, tf.cast(20 * number, ids.dtype))
        elif name == "cast":
            ids = tf.cast(ids, tf.int32 if ids.dtype == tf.int64 else tf.int64)
        elif name == "hash":
            ids = tf.strings.to_hash_bucket_fast(tf.as_string(ids), 40 * number)
        elif name == "slice":
            ids = ids[number % 2:]
        elif name == "stack":
            ids = tf.stack([ids, ids + 1], axis=-1)
        elif name == "mask":
            ids = tf.boolean_mask(ids, ids > number)
        elif name == "reshape":
            ids = tf.reshape(ids, [-1])
        else:
            shape = ids.shape
            ids = tf.compat.v1.py_func(lambda values: values, [ids], ids.dtype)
            ids.set_shape(shape)
    return ids


def stays(path):
    return any(name == "stay" for name, _ in path[1])


def script_of(plan):
    def script(run):
        make = cases.one_shot if plan.one_shot else cases.initializable
        iterators = [make(plan.data(seed)) for seed in (1, 2)]
        batch, evaluation = [iterator.get_next() for iterator in iterators]
        tables = [run.table("table_%d" % number, dim, capacity=plan.capacity) for number, dim in enumerate(plan.dims)]

        def embeddings(source, lookups, is_train):
            found = []
            for table, (column, steps) in lookups:
                ids = source["c%d" % column]
                found.append(run.lookup(tables[table], walk(ids, steps), is_train=is_train))
            return found

        used = sorted({table for table, _ in plan.lookups})
        model = cases.Model(run, embeddings(batch, plan.lookups, True), batch["label"],
                            tables=[tables[table] for table in used])
        looked = [embeddings(evaluation, plan.evaluations, False), evaluation["label"]]
        run.modify()
        sess = run.session()

        def start(which):
            if not plan.one_shot:
                run.start(sess, iterators[which], which == 0, own=True)

        start(0)
        start(1)
        for what in plan.history:
            if what == "step":
                run.step(sess, model.seen)
            elif what == "evaluate":
                run.step(sess, looked)
            elif what == "start":
                start(0)
                start(1)
            elif what == "remove":
                run.note("removed", run.raw(tables[0]).remove(sess, np.arange(-60, 60)))
            else:
                run.contents(sess)
        run.contents(sess)

    return script


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_a_random_graph(seed):
    plan = Plan(seed)
    moves = sum(not stays(path) for _, path in plan.lookups + plan.evaluations)
    runs = cases.alike(script_of(plan), moves=moves)
    steps = [value for label, value in runs[AHEAD].notes if label == "step"]
    assert steps, "nothing was trained"


def test_the_random_graphs_are_not_all_of_one_kind():
    plans = [Plan(seed) for seed in range(GRAPHS)]
    paths = [path for plan in plans for _, path in plan.lookups + plan.evaluations]
    assert 1 <= sum(map(stays, paths)) <= len(paths) // 2
    assert {name for _, steps in paths for name, _ in steps} == {
        "add", "modulo", "cast", "hash", "slice", "stack", "mask", "reshape", "stay"}
    assert 3 <= sum(plan.one_shot for plan in plans) <= 20
    assert sum(plan.capacity < 200 for plan in plans) >= 2
