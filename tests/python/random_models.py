"""Random models: what to look up in which tables, drawn from a seed; the same model as a graph and in NumPy.

A `Model` has tables of random widths, optimizers and admission thresholds, and features that look ids up in them: one
by one, in groups, in bags of every kind. `Oracle` trains it with dictionaries in float64. `train` builds its graph in
one of the FORMS and trains it, with removals and checkpoints between the steps, and holds every step against the oracle.
"""

import os

import numpy as np

import modify_cases
import support

# Groups as they are by default; nothing grouped or pooled; modified.
PLAIN, APART, AHEAD = modify_cases.STEP, "apart", modify_cases.AHEAD
FORMS = (PLAIN, APART, AHEAD)
OPTIMIZERS = ("sgd", "momentum", "adagrad", "lazy_adam", "ftrl", "rmsprop")
KINDS = ("single", "many", "sum", "mean", "pooled", "ragged", "sparse", "pooled_many")
# Whose ids are dense and may be looked up in several tables.
DENSE = ("single", "many", "sum", "pooled", "pooled_many")
COMBINERS = ("sum", "mean", "sqrtn")
RATE = 0.1
TOLERANCE = 2e-4


class Feature:
    """One lookup of a model.

    Attributes:
        kind: One of KINDS: "sum" and "mean" are a sparse_lookup with tf.reduce_sum or tf.reduce_mean over its bags;
            "many" and "pooled_many" are looked up together.
        source: Name of the feature whose ids it looks up: an earlier one or itself.
        table: Number of the table.
        combiner: Of bags.
        has_weights: Whether the ids of bags have weights.
        splits: Type of the row splits of ragged ids.
        noise: (dim,), a part of the gradient.
    """

    def __init__(self, random, name, dims, kinds, earlier):
        self.name = self.source = name
        self.kind = str(random.choice(kinds))
        others = [other.source for other in earlier if other.kind in DENSE]
        if others and self.kind in DENSE and random.rand() < 0.4:
            self.source = str(random.choice(others))
        self.table = int(random.randint(len(dims)))
        self.combiner = str(random.choice(COMBINERS)) if self.is_pooled else "sum"
        self.has_weights = self.is_pooled and random.rand() < 0.5
        self.splits = random.choice([np.int32, np.int64])
        self.noise = random.uniform(-1, 1, dims[self.table]).astype(np.float32)

    @property
    def is_pooled(self):
        return self.kind in ("pooled", "ragged", "sparse", "pooled_many")

    @property
    def is_single(self):
        return self.kind in ("single", "many")

    def batch(self, random, keys, most=6):
        """A batch: at most `most` bags in rows of ids, as the arrays that its tensors are fed from."""
        bags = 0 if random.rand() < 0.1 else int(random.randint(1, most + 1))
        longest = int(random.randint(1 if self.kind == "mean" else 0, 6))
        ids = keys[random.zipf(1.3, [bags, longest]) % len(keys)].astype(np.int64)
        ids[random.rand(bags, longest) < 0.2] = -1
        weights = random.choice([0.0, 0.25, 0.5, 1.0, 2.0, -0.75], [bags, longest]).astype(np.float32)
        if self.kind not in ("ragged", "sparse"):
            return {"ids": ids, "weights": weights}
        used = np.arange(longest) < random.randint(0, longest + 1, [bags, 1])
        used[random.rand(bags) < 0.2] = False
        splits = np.concatenate([[0], np.cumsum(used.sum(1))]).astype(self.splits)
        return {"ids": ids[used], "weights": weights[used], "splits": splits,
                "indices": np.argwhere(used).astype(np.int64).reshape(-1, 2),
                "shape": np.array([bags, longest], np.int64)}

    def occurrences(self, batch):
        """(ids, weights, numbers of their bags, bags, shape of the bags) of a batch, an id at a time."""
        ids = batch["ids"]
        if self.kind in ("ragged", "sparse"):
            bags = len(batch["splits"]) - 1
            bag, shape = np.repeat(np.arange(bags), np.diff(batch["splits"])), (bags,)
        else:
            shape = ids.shape if self.is_single else ids.shape[:1]
            bags = int(np.prod(shape))
            bag = np.arange(bags) if self.is_single else np.repeat(np.arange(bags), ids.shape[1])
        weights = batch["weights"] if self.has_weights else np.ones(ids.shape)
        return ids.reshape(-1), weights.reshape(-1).astype(np.float64), bag, bags, shape


class Model:
    """What a seed draws: tables, features, batches, and what happens between steps."""

    def __init__(self, seed, steps=7, kinds=KINDS):
        random = np.random.RandomState(seed)
        self.seed = seed
        self.dims = [int(random.choice([1, 2, 3, 8, 17, 40])) for _ in range(random.randint(1, 5))]
        self.optimizers = [str(random.choice(OPTIMIZERS)) for _ in range(random.randint(1, 3))]
        self.optimizer_of = [int(random.randint(len(self.optimizers))) for _ in self.dims]
        self.thresholds = [int(random.choice([0, 0, 0, 2, 3])) for _ in self.dims]
        self.features = []
        for at in range(random.randint(2, 7)):
            self.features.append(Feature(random, "f%d" % at, self.dims, kinds, self.features))
        self.keys = np.concatenate([np.arange(24) * 11 - 40, [2 ** 62, -2 ** 63, 2 ** 63 - 1, -2]])
        self.known = [random.choice(24, 12, replace=False) for _ in self.dims]
        self.start = [random.uniform(-1, 1, (12, dim)).astype(np.float32) for dim in self.dims]
        self.batches = [{feature.name: feature.batch(random, self.keys) for feature in self.features
                         if feature.source == feature.name} for _ in range(steps)]
        self.between = [str(random.choice(["", "", "remove", "save"])) for _ in range(steps)]
        self.removed = [random.choice(self.keys, 6) for _ in range(steps)]
        self.threads = int(random.randint(1, 4))

    def used(self):
        """Numbers of the tables that are looked up."""
        return sorted({feature.table for feature in self.features})

    def first(self, table):
        """What every column of a new row is."""
        return 0.25 * (table + 1)


class Rule:
    """An optimizer on a row: weight and slots are (dim,) in float64."""

    def __init__(self, name):
        self.name = name
        self.slots = {"sgd": [], "momentum": [0.0], "adagrad": [0.1], "lazy_adam": [0.0, 0.0], "ftrl": [0.1, 0.0],
                      "rmsprop": [1.0, 0.0, 0.0]}[name]

    def ours(self):
        if self.name == "sgd":
            from mx_rec.optimizers.gradient_descent import create_hash_optimizer
            return create_hash_optimizer(RATE)
        if self.name == "momentum":
            from mx_rec.optimizers.momentum import create_hash_optimizer
            return create_hash_optimizer(RATE, mom=0.8)
        if self.name == "adagrad":
            from mx_rec.optimizers.adagrad import create_hash_optimizer
            return create_hash_optimizer(RATE, initial_accumulator_value=0.1)
        if self.name == "lazy_adam":
            from mx_rec.optimizers.lazy_adam import create_hash_optimizer
            return create_hash_optimizer(RATE, beta1=0.8, beta2=0.9, epsilon=1e-2)
        if self.name == "rmsprop":
            from mx_rec.optimizers.rmsprop import create_hash_optimizer
            return create_hash_optimizer(RATE, decay=0.8, momentum=0.5, epsilon=1e-2, centered=True)
        from mx_rec.optimizers.ftrl import create_hash_optimizer
        return create_hash_optimizer(RATE, learning_rate_power=-0.5, initial_accumulator_value=0.1,
                                     l1_regularization_strength=0.0, l2_regularization_strength=0.2,
                                     l2_shrinkage_regularization_strength=0.0)

    def update(self, row, gradient, step):
        """Changes [weight, slots..] in place; `step` counts from 1."""
        if self.name == "sgd":
            row[0] -= RATE * gradient
        elif self.name == "momentum":
            row[1] = 0.8 * row[1] + gradient
            row[0] -= RATE * row[1]
        elif self.name == "adagrad":
            row[1] += gradient ** 2
            row[0] -= RATE * gradient / np.sqrt(row[1])
        elif self.name == "lazy_adam":
            row[1] = 0.8 * row[1] + 0.2 * gradient
            row[2] = 0.9 * row[2] + 0.1 * gradient ** 2
            rate = RATE * np.sqrt(1 - 0.9 ** step) / (1 - 0.8 ** step)
            row[0] -= rate * row[1] / (np.sqrt(row[2]) + 1e-2)
        elif self.name == "rmsprop":
            row[1] = 0.8 * row[1] + 0.2 * gradient ** 2
            row[2] = 0.8 * row[2] + 0.2 * gradient
            row[3] = 0.5 * row[3] + RATE * gradient / np.sqrt(row[1] - row[2] ** 2 + 1e-2)
            row[0] -= row[3]
        else:
            grown = row[1] + gradient ** 2
            row[2] += gradient - (np.sqrt(grown) - np.sqrt(row[1])) / RATE * row[0]
            row[1] = grown
            row[0] = -row[2] / (np.sqrt(grown) / RATE + 2 * 0.2)


class Oracle:
    """A model in NumPy.

    Attributes:
        rows: For each table a dictionary from keys to [weight, slots..].
    """

    def __init__(self, model):
        self.model = model
        self.rules = [Rule(model.optimizers[number]) for number in model.optimizer_of]
        self.rows = [{} for _ in model.dims]
        self.counts = [{} for _ in model.dims]
        self.steps = 0
        for table, threshold in enumerate(model.thresholds):
            if not threshold:
                for key, start in zip(model.known[table].tolist(), model.start[table]):
                    self.rows[table][key] = self._fresh(table)
                    self.rows[table][key][0] = start.astype(np.float64)

    def _fresh(self, table):
        dim = self.model.dims[table]
        return [np.full(dim, value) for value in [self.model.first(table)] + self.rules[table].slots]

    def _admits(self, table, key):
        return key != -1 and self.counts[table].get(key, 0) >= self.model.thresholds[table]

    def step(self, batch):
        """Trains a batch; returns what each feature has looked up."""
        self.steps += 1
        looked = [(feature,) + feature.occurrences(batch[feature.source]) for feature in self.model.features]
        for feature, ids, _, _, _, _ in looked:
            counts = self.counts[feature.table]
            for key in ids.tolist():
                counts[key] = counts.get(key, 0) + 1
        for feature, ids, _, _, _, _ in looked:
            for key in ids.tolist():
                if self._admits(feature.table, key):
                    self.rows[feature.table].setdefault(key, self._fresh(feature.table))
        found, gradients = [], [{} for _ in self.model.dims]
        for feature, ids, weights, bag, bags, shape in looked:
            dim, rows = self.model.dims[feature.table], self.rows[feature.table]
            real = ids != -1
            total, divisor = np.zeros((bags, dim)), np.zeros(bags)
            for key, weight, at in zip(ids[real].tolist(), weights[real], bag[real]):
                if key in rows:
                    total[at] += weight * rows[key][0]
                divisor[at] += weight if feature.combiner == "mean" else weight ** 2
            if feature.combiner == "sum":
                length = batch[feature.source]["ids"].shape[1] if feature.kind == "mean" else 1.0
                divisor = np.full(bags, float(length))
            elif feature.combiner == "sqrtn":
                divisor = np.sqrt(divisor)
            factor = np.divide(1.0, divisor, out=np.zeros(bags), where=divisor != 0)
            vectors = total * factor[:, None]
            ramp = 1 + 0.1 * (np.arange(bags) % 5)
            slope = (ramp[:, None] * feature.noise + 0.2 * vectors) * factor[:, None]
            sums = gradients[feature.table]
            for key, weight, at in zip(ids[real].tolist(), weights[real], bag[real]):
                if key in rows:
                    sums[key] = sums.get(key, 0.0) + weight * slope[at]
            found.append(vectors.reshape(shape + (dim,)))
        for table, sums in enumerate(gradients):
            for key, gradient in sums.items():
                self.rules[table].update(self.rows[table][key], gradient, self.steps)
        return found

    def remove(self, keys):
        for rows, counts in zip(self.rows, self.counts):
            for key in keys.tolist():
                rows.pop(key, None)
                counts.pop(key, None)


def _dataset(model):
    """The batches as dictionaries of tensors, from the placeholder's step on."""
    tf = support.tf()
    flat = [{"%s_%s" % (name, part): array for name, arrays in batch.items() for part, array in arrays.items()}
            for batch in model.batches]
    types = {name: tf.as_dtype(array.dtype) for name, array in flat[0].items()}
    shapes = {name: [2] if name.endswith("shape") else [None, 2] if name.endswith("indices") else [None] * array.ndim
              for name, array in flat[0].items()}
    return tf.data.Dataset.from_generator(lambda: iter(flat), types, shapes)


def _bags_of(feature, batch):
    """The ids of a pooled feature as its kind has them, and their weights or None."""
    tf = support.tf()
    ids, weights = batch[feature.source + "_ids"], batch[feature.source + "_weights"]
    if feature.kind == "ragged":
        splits = batch[feature.source + "_splits"]
        make = tf.RaggedTensor.from_row_splits
        ids, weights = make(ids, splits), make(weights, splits)
    elif feature.kind == "sparse":
        places, shape = batch[feature.source + "_indices"], batch[feature.source + "_shape"]
        ids, weights = tf.SparseTensor(places, ids, shape), tf.SparseTensor(places, weights, shape)
    return ids, weights if feature.has_weights else None


def _look_up(model, form, tables, batch):
    """What each feature looks up."""
    from mx_rec.core.embedding import (sparse_lookup, sparse_lookup_many, sparse_lookup_pooled,
                                       sparse_lookup_pooled_many)

    tf = support.tf()
    configs = [dict(access_threshold=threshold) if threshold else None for threshold in model.thresholds]
    found = {}
    groups = {}
    for feature in model.features:
        ids, config = batch[feature.source + "_ids"], configs[feature.table]
        arguments = dict(is_train=True, modify_graph=True, access_and_evict_config=config)
        table = tables[feature.table]
        if feature.kind in ("many", "pooled_many") and form != APART:
            groups.setdefault((feature.kind, model.thresholds[feature.table]), []).append(feature)
        elif feature.kind in ("pooled", "pooled_many") and form == APART:
            rows = sparse_lookup(table, ids, **arguments)
            weights = batch[feature.source + "_weights"] if feature.has_weights else tf.ones(tf.shape(ids))
            factors = tf.where(tf.equal(ids, -1), tf.zeros_like(weights), weights)
            total = tf.reduce_sum(rows * factors[:, :, None], 1)
            divisor = {"sum": tf.ones(tf.shape(ids)[:1]), "mean": tf.reduce_sum(factors, 1),
                       "sqrtn": tf.sqrt(tf.reduce_sum(factors * factors, 1))}[feature.combiner]
            found[feature.name] = tf.math.divide_no_nan(total, divisor[:, None])
        elif feature.is_pooled:
            bags, weights = _bags_of(feature, batch)
            found[feature.name] = sparse_lookup_pooled(table, bags, feature.combiner, weights=weights, **arguments)
        else:
            rows = sparse_lookup(table, ids, **arguments)
            reduced = {"sum": tf.reduce_sum, "mean": tf.reduce_mean}.get(feature.kind)
            found[feature.name] = rows if reduced is None else reduced(rows, 1)
    for (kind, threshold), features in groups.items():
        chosen = [tables[feature.table] for feature in features]
        arguments = dict(modify_graph=True,
                         access_and_evict_config=dict(access_threshold=threshold) if threshold else None)
        if kind == "many":
            rows = sparse_lookup_many(chosen, [batch[feature.source + "_ids"] for feature in features], **arguments)
        else:
            bags, weights = zip(*[_bags_of(feature, batch) for feature in features])
            rows = sparse_lookup_pooled_many(chosen, bags, [feature.combiner for feature in features], weights,
                                             **arguments)
        found.update(zip([feature.name for feature in features], rows))
    return [found[feature.name] for feature in model.features]


def _loss(model, found):
    tf = support.tf()
    parts = []
    for feature, one in zip(model.features, found):
        vectors = tf.reshape(one, [-1, model.dims[feature.table]])
        ramp = 1.0 + 0.1 * tf.cast(tf.range(tf.shape(vectors)[0]) % 5, tf.float32)
        parts.append(tf.reduce_sum(vectors * feature.noise * ramp[:, None]) + 0.1 * tf.reduce_sum(tf.square(vectors)))
    return tf.add_n(parts)


def close(actual, expected, what):
    """Asserts that float32 results are float64's to rounding."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    wrong = ~(np.abs(actual - expected) <= TOLERANCE * (1 + np.abs(expected)))
    assert not wrong.any(), "%s: %d of %d differ, the first at %s: %r, not %r" % (
        what, wrong.sum(), wrong.size, np.argwhere(wrong)[0], actual[wrong][0], expected[wrong][0])


def train(model, form, directory, **storage):
    """Trains a model in one form, each step against the oracle.

    Args:
        model: The Model.
        form: One of FORMS.
        directory: Of its checkpoints.
        storage: For create_table: how many rows are where.

    Returns:
        The run, whose notes hold every tensor and every row that was seen, and whose `stats` are the TableStats of
        the tables in the end.
    """
    from mx_rec.core.embedding import create_table
    from mx_rec.util.initialize import init, terminate_config_initializer
    from mx_rec.util.stats import table_stats

    tf = support.tf()
    tf1 = tf.compat.v1
    tf1.reset_default_graph()
    init(graph_pass=form != APART)
    run = modify_cases.Run(form)
    try:
        start_at = tf1.placeholder_with_default(tf.constant(0, tf.int64), [])
        iterator = modify_cases.initializable(_dataset(model).skip(start_at))
        batch = iterator.get_next()
        tables = [create_table(key_dtype=tf.int64, dim=dim, name="t%d" % at,
                               emb_initializer=tf1.constant_initializer(model.first(at)),
                               **dict({"device_vocabulary_size": 1000}, **storage))
                  for at, dim in enumerate(model.dims)]
        run.tables = {"t%d" % at: tables[at] for at in model.used()}
        found = _look_up(model, form, tables, batch)
        loss = _loss(model, found)
        updates = []
        for number, name in enumerate(model.optimizers):
            variables = [tables[at].variable for at in model.used() if model.optimizer_of[at] == number]
            if variables:
                updates.append(Rule(name).ours().minimize(loss, var_list=variables))
        saver = tf1.train.Saver()
        run.modify()
        _history(model, run, iterator, start_at, [found, tf.group(*updates)], saver, tables, directory)
        run.stats = [table_stats(table) for table in run.tables.values()]
    finally:
        run.close()
        terminate_config_initializer()
        tf1.reset_default_graph()
    return run


def _history(model, run, iterator, start_at, fetches, saver, tables, directory):
    tf1 = support.tf().compat.v1
    config = tf1.ConfigProto(intra_op_parallelism_threads=model.threads, inter_op_parallelism_threads=model.threads)

    def opened():
        sess = tf1.Session(config=config)
        run._sessions.append(sess)
        sess.run(tf1.global_variables_initializer())
        return sess

    oracle, sess = Oracle(model), opened()
    raws = {at: run.raw(tables[at]) for at in model.used()}
    for at, raw in raws.items():
        if not model.thresholds[at]:
            raw.assign(sess, model.known[at], model.start[at])
    sess.run(iterator.initializer)
    for step, batch in enumerate(model.batches):
        where = "seed %d, form %s, step %d" % (model.seed, run.form, step)
        found, _ = sess.run(fetches)
        run.note(where, found)
        for feature, mine, theirs in zip(model.features, found, oracle.step(batch)):
            close(mine, theirs, "%s, feature %s (%s)" % (where, feature.name, feature.kind))
        _compare(model, run, oracle, raws, sess, where)
        if model.between[step] == "remove":
            oracle.remove(model.removed[step])
            for raw in raws.values():
                raw.remove(sess, model.removed[step])
        elif model.between[step] == "save":
            path = saver.save(sess, os.path.join(directory, "model"), global_step=step)
            sess.close()
            sess = opened()
            saver.restore(sess, path)
            sess.run(iterator.initializer, {start_at: step + 1})
        else:
            continue
        _compare(model, run, oracle, raws, sess, where + ", after " + model.between[step])


def _compare(model, run, oracle, raws, sess, where):
    for at, raw in raws.items():
        rows = raw.rows(sess)
        run.note("%s, table %d" % (where, at), rows)
        assert sorted(rows) == sorted(oracle.rows[at]), "%s: keys of table %d" % (where, at)
        for key, row in rows.items():
            close(row, oracle.rows[at][key][0], "%s, table %d (%s), key %d" % (
                where, at, oracle.rules[at].name, key))
