"""The rules of admission and eviction as a plain Python model, and a training script that is held against it."""

import numpy as np

import modify_cases
import support

DIM = 2
FIRST = 0.5
RATE = 0.25
STEPS, BATCH = 24, 6


class Rules:
    """What a table with admission should hold, told by dictionaries.

    Attributes:
        counts: Occurrences of each key, times their coefficients.
        last: The last timestamp of each key.
        rows: The row of each key that has one, float64.
        latest: The latest timestamp.
    """

    def __init__(self, threshold, eviction=-1):
        self.threshold, self.eviction = threshold, eviction
        self.is_counting = threshold != 0
        self.counts, self.last, self.rows = {}, {}, {}
        self.latest = 0
        self.refused = self.evicted = 0

    def is_admitted(self, key):
        return key != -1 and self.counts.get(key, 0) >= self.threshold

    def step(self, lookups, time=None):
        """Trains one batch: (ids, coefficient, gradients of the embeddings) of each lookup; returns the embeddings."""
        for ids, coefficient, _ in lookups:
            for key in ids.reshape(-1).tolist():
                if key != -1:
                    if self.is_counting:
                        self.counts[key] = self.counts.get(key, 0) + coefficient
                    if time is not None and (self.is_counting or key in self.counts):
                        self.last[key] = max(self.last.get(key, 0), time)
        self.latest = max(self.latest, time or 0)
        for ids, _, _ in lookups:
            distinct = set(ids.reshape(-1).tolist()) - {-1}
            for key in distinct:
                if self.is_admitted(key):
                    self.rows.setdefault(key, np.full(DIM, FIRST))
            self.refused += sum(not self.is_admitted(key) for key in distinct)
        found = [self.find(ids) for ids, _, _ in lookups]
        for ids, _, gradients in lookups:
            for key, gradient in zip(ids.reshape(-1).tolist(), gradients.reshape(-1, DIM)):
                if self.is_admitted(key):
                    self.rows[key] = self.rows[key] - RATE * gradient
        return found

    def find(self, ids):
        """The embeddings of a lookup."""
        nothing = np.zeros(DIM)
        found = [self.rows.get(key, nothing) if self.is_admitted(key) else nothing for key in ids.reshape(-1).tolist()]
        return np.array(found, np.float32).reshape(ids.shape + (DIM,))

    def evict(self):
        """Returns (evicted, kept)."""
        stale = [key for key, time in self.last.items() if self.latest - time >= self.eviction]
        for key in stale:
            for part in (self.counts, self.last, self.rows):
                part.pop(key, None)
        self.evicted += len(stale)
        return len(stale), len(self.counts)

    def set_threshold(self, value):
        if value > 0:
            self.threshold, self.is_counting = value, True
        else:
            self.is_counting = False


def batches(seed, steps=STEPS):
    """Arrays whose first dimension is the step: ids, more ids, whole gradients of both, times that mostly go up."""
    random = np.random.RandomState(seed)
    keys = np.concatenate([[-1], np.arange(12) * 7 - 20, [2 ** 40, -2 ** 63, 2 ** 63 - 1]])
    weight = 1.0 / np.arange(1, len(keys) + 1) ** 0.7
    weight[0] = 0.3

    def draw(*shape):
        return random.choice(keys, [steps] + list(shape), p=weight / weight.sum()).astype(np.int64)

    time = 1000 + np.cumsum(random.randint(0, 9, steps)) - random.randint(0, 3, steps)
    return {"ids": draw(BATCH, 2), "more": draw(3), "time": time.astype(np.int64),
            "slope": random.randint(-3, 4, [steps, BATCH, 2, DIM]).astype(np.float32),
            "slope_more": random.randint(-3, 4, [steps, 3, DIM]).astype(np.float32)}


class Script:
    """A graph that trains one table by two lookups, in one of the forms of modify_cases.

    Args:
        run: A modify_cases.Run.
        data: What `batches` gives.
        config: access_threshold, eviction_threshold.
        coefficients: Of the two lookups.
        has_time: Whether batches carry their timestamp.
        time_first: Whether the collection is filled before the lookups are made.
        capacity, more: Rows of the table, and further arguments of create_table.
    """

    def __init__(self, run, data, config, coefficients=(1, 3), has_time=True, time_first=False, capacity=1000,
                 **more):
        from mx_rec.constants.constants import ASCEND_TIMESTAMP
        from mx_rec.core.asc.feature_spec import FeatureSpec
        from mx_rec.core.asc.helper import get_asc_insert_func
        from mx_rec.core.embedding import sparse_lookup
        from mx_rec.optimizers.gradient_descent import create_hash_optimizer

        tf = support.tf()
        tf1 = tf.compat.v1
        self.run, self.data = run, data
        self.start_at = tf1.placeholder_with_default(tf.constant(0, tf.int64), [], "start_at")
        dataset = tf.data.Dataset.from_tensor_slices(data).skip(self.start_at)
        specs = {}
        if run.form == modify_cases.SPECS:
            specs = {name: FeatureSpec(name, table_name="table", index_key=name, faae_coefficient=coefficient, **config)
                     for name, coefficient in zip(("ids", "more"), coefficients)}
            inserted = list(specs.values())
            if has_time:
                inserted.append(FeatureSpec("time", is_timestamp=True))
            dataset = dataset.map(get_asc_insert_func(inserted, is_training=True))
        self.iterator = tf1.data.make_initializable_iterator(dataset)
        batch = self.iterator.get_next()
        self.table = run.tables["table"] = support.make_table("table", DIM, capacity, FIRST, **more)

        def add_time():
            if has_time and not specs:
                tf1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])

        if time_first:
            add_time()
        self.embeddings = []
        for name, coefficient in zip(("ids", "more"), coefficients):
            if specs:
                one = sparse_lookup(self.table, specs[name], is_train=True, batch=batch)
            else:
                one = sparse_lookup(self.table, batch[name], is_train=True, modify_graph=True,
                                    access_and_evict_config=dict(config, faae_coefficient=coefficient))
            self.embeddings.append(one)
        loss = (tf.reduce_sum(self.embeddings[0] * batch["slope"])
                + tf.reduce_sum(self.embeddings[1] * batch["slope_more"]))
        # The gradient does not depend on the embeddings: without this the update may come before they are read.
        with tf.control_dependencies(self.embeddings):
            update = create_hash_optimizer(RATE).minimize(loss, var_list=[self.table.variable])
        self.seen = [self.embeddings, update]
        self.eval_ids = tf1.placeholder(tf.int64, [None])
        self.found = sparse_lookup(self.table, self.eval_ids, is_train=False, modify_graph=True)
        self.saver = tf1.train.Saver()
        if not time_first:
            add_time()
        self.coefficients, self.has_time = coefficients, has_time
        run.modify()

    def start(self, sess, step=0):
        sess.run(self.iterator.initializer, {self.start_at: step})

    def lookups(self, step):
        """What Rules.step takes."""
        return [(self.data["ids"][step], self.coefficients[0], self.data["slope"][step]),
                (self.data["more"][step], self.coefficients[1], self.data["slope_more"][step])]

    def step(self, sess, step, rules):
        """Trains one step, and holds it against the rules."""
        found = self.run.step(sess, self.seen)
        expected = rules.step(self.lookups(step), int(self.data["time"][step]) if self.has_time else None)
        assert found is not None, self.run.notes[-2:]
        for mine, theirs in zip(found[0], expected):
            support.assert_same_bits(mine, theirs, "embeddings of step {}".format(step))
        self.compare(sess, rules)

    def compare(self, sess, rules):
        """Holds the table, and what evaluation sees of it, against the rules."""
        rows = self.run.raw(self.table).rows(sess)
        assert sorted(rows) == sorted(rules.rows)
        for key, row in rules.rows.items():
            support.assert_same_bits(rows[key], row, key)
        keys = np.unique(np.concatenate([self.data["ids"].reshape(-1), self.data["more"].reshape(-1), [123456]]))
        support.assert_same_bits(sess.run(self.found, {self.eval_ids: keys}), rules.find(keys), "evaluation")
