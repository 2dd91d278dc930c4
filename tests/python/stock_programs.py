"""Random programs that do not know mx_rec: what a seed draws, and the graph that it builds in the default graph.

A `Program` has variables of all shapes, lookups of all forms in blocks, branches and loops, optimizers, one or two training
ops, assignments, summaries and Savers. Each `build` of the same seed gives the same graph, so that program_runs.py can run it
on variables and on tables. What TensorFlow itself leaves open is not drawn: whatever a run reads and changes is ordered.
"""

import collections

import numpy as np

import stock_cases as cases
import support

PLACEHOLDERS, DATASET, DEFAULTS = "placeholders", "dataset", "defaults"
STOCK, TABLES, AHEAD = "stock", "tables", "ahead"
SESSION, MONITORED, ESTIMATOR = "session", "monitored", "estimator"
# What the training ops are: one; one for each of two losses, by one optimizer or two; the second after the first in one run;
# one optimizer for some variables and one for the others.
TRAININGS = ("one", "shared", "turns", "after", "lists")
KINDS = ("plain", "several", "gather", "ranks", "safe", "sparse", "weights", "identity", "read", "whole", "cond", "loop", "twice",
         "distinct", "nested", "stopped", "clipped", "constants", "function")
# What a session does between steps; "" is nothing.
VERBS = ("step", "evaluate", "save", "restore", "assign", "feed", "wrong", "reset", "exchange", "summary", "initialize",
         "late")
# What it does besides: it lists its variables, starts some of them again, reads one behind a training, and makes a training op.
MORE = ("list", "start", "behind", "train")
STEPS = 7
LONGEST, LEAST_ROWS = 24, 7


def optimizers():
    """Makers of optimizers by name: those of stock_cases, and others, of which some let variables stay."""
    tf = support.tf()
    train = tf.compat.v1.train

    def decayed():
        return train.AdagradOptimizer(train.exponential_decay(0.1, train.get_or_create_global_step(), 3, 0.5))

    def dual():
        return train.AdagradDAOptimizer(0.1, train.get_or_create_global_step())

    return dict(cases.optimizers(), decayed=decayed, adam=lambda: train.AdamOptimizer(0.02), dual=dual)


def lazy_adam_of(names):
    """An optimizer that does what StockTables(lazy_adam=True) makes of AdamOptimizer, by TensorFlow's own ops.

    Args:
        names: The variables that are tables: only rows of the batch move.
    """
    tf = support.tf()
    adam, lazy = tf.compat.v1.train.AdamOptimizer, tf.contrib.opt.LazyAdamOptimizer

    class Adam(lazy):
        def _apply_sparse(self, grad, var):
            return (lazy if var.op.name in names else adam)._apply_sparse(self, grad, var)

        def _resource_apply_sparse(self, grad, var, indices):
            return (lazy if var.op.name in names else adam)._resource_apply_sparse(self, grad, var, indices)

    return Adam(0.02, name="Adam")


class Graph:
    """What a built program can do.

    Attributes:
        losses: A loss for each training op.
        trains: The training ops.
        variables: Lists of the parts of each variable whose rows are looked up.
        slots: Variables of the optimizers, by name of the part that they belong to.
        dense: All other variables.
        seen: For each training op what a run of it may fetch besides.
        fed: Tensors by name that runs may feed.
        evaluated: Rows of each variable by the ids `asked`.
        asked: Placeholder of ids that all variables have, int64.
        rows: All rows of each variable.
        assigns: Ops that change variables, made before any conversion.
        summary: A merged summary, or None.
        resets: Optimizers.
        inputs: Placeholders of ids and labels, or the tensors of a batch.
        iterator: Of the dataset, or None.
        savers: Savers that were made by the program itself, and what makes those that come after the conversion.
    """

    def __init__(self):
        self.losses, self.trains, self.variables, self.dense, self.seen, self.evaluated = [], [], [], [], [], []
        self.rows, self.assigns, self.resets, self.savers = [], [], [], []
        self.slots, self.fed = collections.OrderedDict(), collections.OrderedDict()
        self.summary = self.iterator = None


class Program:
    """A random program.

    Args:
        seed: Draws everything.

    Attributes:
        kind: SESSION, MONITORED or ESTIMATOR.
        input: PLACEHOLDERS, DATASET, or DEFAULTS: placeholders whose default is a batch of a dataset.
        from_constants: Whether variables start with constants, and no checkpoint is needed for equal starts.
        training: One of TRAININGS.
        optimizers: Names of the optimizers.
        threads: Of sessions.
        is_rewritten: Whether TensorFlow's Grappler rewrites graphs, which takes most of the time of small ones.
        forms: What is compared with TensorFlow's variables.
        options: Of StockTables.
        batches: (ids (b, 3) in [0, cases.ROWS), labels (b)) of each step.
        trains_later: Whether training ops are made after a run that trains: its Savers come before the conversion then.
    """

    def __init__(self, seed):
        self.seed = seed
        self._random = np.random.RandomState(seed)
        self.kind = self.choose(*[SESSION] * 10 + [MONITORED, ESTIMATOR])
        self.input = self.choose(PLACEHOLDERS, PLACEHOLDERS, DATASET, DATASET, DEFAULTS)
        if self.kind != SESSION:
            self.input = DATASET
        self.from_constants = self.chance(0.25)
        self.training = self.choose("one", "one", "one", "one", *TRAININGS)
        names = sorted(cases.optimizers()) * 2 + ["decayed", "adam", "dual"] * 2
        self.optimizers = [self.choose(*names) for _ in range(2)]
        self.threads = self.choose(1, 1, 4)
        self.is_rewritten = self.chance(0.2)
        self.forms = self.choose((TABLES,), (AHEAD,)) if self.input == PLACEHOLDERS else self.choose(
            (TABLES,), (AHEAD,), (TABLES, AHEAD))
        self.options = {"names": self.choose([".*"], [".*"], [".*"], ["v0", "deep/.*"]),
                        "least_rows": self.choose(1, 1, 1, 50), "lazy_adam": self.chance(0.5)}
        if self.from_constants and self.kind == SESSION and self.chance(0.4):
            self.options["unlimited_ids"] = True
        elif self.chance(0.15):
            self.options["access_threshold"] = self.choose(0, 1) if self.from_constants else self.choose(0, 1, 3)
            if self.chance(0.5):
                self.options["eviction_threshold"] = 10 ** 6
        self._uniform = self.chance(0.3)
        self.batches = [self._batch() for _ in range(STEPS + 6)]
        self._drawn = self._random.randint(2 ** 31)
        self.history = self._history()
        self._draw_more()

    def choose(self, *options):
        return options[self._random.randint(len(options))]

    def chance(self, probability):
        return bool(self._random.rand() < probability)

    def _batch(self):
        count = LONGEST if self._uniform else 0 if self.chance(0.1) else self._random.randint(1, LONGEST + 1)
        ids = (self._random.zipf(1.3, [count, 3]) % cases.ROWS).astype(np.int64)
        return ids, np.sin(ids.sum(1)).astype(np.float32)

    def _history(self):
        """What a session does, as (verb, arguments..): a step most of the time."""
        found = []
        for number in range(STEPS):
            found.append(("step", self._random.randint(6), self.chance(0.5)))
            verb = self.choose("", "", *VERBS[1:-1])
            if verb in ("save", "restore", "exchange"):
                found.append((verb, self._random.randint(6), self.chance(0.4)))
            elif verb:
                found.append((verb, self._random.randint(2 ** 31), self._random.randint(6)))
        for at in range(1, len(found)):
            # Not on ids without limits: their keys are no rows of the variable.
            if not self.options.get("unlimited_ids") and self.chance(0.12):
                found.insert(at, ("late", self._random.randint(2 ** 31), self._random.randint(6)))
        return found

    def _draw_more(self):
        """Draws what comes to the history of a session, by numbers of its own: graphs of seeds stay what they are."""
        self._random = np.random.RandomState([self.seed, 1])
        # Counts, ids without limits, iterators and modified graphs keep tables from being variables again.
        self.trains_later = self.kind == SESSION and self.input == PLACEHOLDERS and self.chance(0.6) \
            and not {"unlimited_ids", "access_threshold"}.intersection(self.options)
        if self.trains_later:
            # Variables that two optimizers update stay, and are no lazy ones then.
            self.forms, self.options["lazy_adam"] = (TABLES,), False
        for _ in range(self._random.randint(5) if self.kind == SESSION else 0):
            verb = self.choose(*MORE) if self.trains_later else self.choose(*MORE[:-1])
            self.history.insert(self._random.randint(1, len(self.history) + 1),
                                (verb, self._random.randint(2 ** 31), self._random.randint(6)))

    def build(self, tables=(), batch=None, trains=True):
        """Builds the program in the default graph.

        Args:
            tables: The names of variables that are tables in a run that this one is compared with.
            batch: Of an Estimator: (ids, labels); None otherwise.
            trains: Whether it trains.

        Returns:
            The Graph.
        """
        self._random = np.random.RandomState(self._drawn)
        return _Build(self, frozenset(tables)).graph(batch, trains)


class _Build:
    """One build of a program."""

    def __init__(self, program, tables):
        self.program, self.tables = program, tables
        self.choose, self.chance, self.random = program.choose, program.chance, program._random
        self.tf = support.tf()
        self.v1 = self.tf.compat.v1
        self.made = Graph()
        self.is_unlimited = program.options.get("unlimited_ids", False)

    def graph(self, batch, trains):
        tf, v1, made = self.tf, self.v1, self.made
        v1.set_random_seed(self.program.seed)
        step = v1.train.get_or_create_global_step()
        ids, labels = self._inputs() if batch is None else batch
        made.inputs = ids, labels
        self.counter = made.counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer(), trainable=False,
                                       use_resource=self.chance(0.5))
        variables = [self._variable(number) for number in range(self.choose(1, 1, 2, 3))]
        self.bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer(), use_resource=self.chance(0.5))
        two = self.program.training in ("shared", "turns", "after")
        made.losses.append(self._loss(variables, ids, labels, "first"))
        if not trains:
            return made
        names = self.program.optimizers
        first = self._optimizer(names[0])
        made.resets.append(first)
        if self.program.training == "lists":
            second = self._optimizer(names[1])
            made.resets.append(second)
            rows = [part for at, parts in enumerate(made.variables) for part in parts if at % 2]
            others = [one for one in v1.trainable_variables() if all(one is not part for part in rows)]
            pairs = [self._gradients(first, made.losses[0], others)]
            pairs.append(self._gradients(second, made.losses[0], rows) if rows else [])
            waits = [grad for one in pairs for grad, _ in one] + made.losses
            with tf.control_dependencies([wait.values if isinstance(wait, tf.IndexedSlices) else wait for wait in waits]):
                made.trains.append(tf.group(v1.assign_add(step, 1), *[
                    optimizer.apply_gradients(one) for optimizer, one in zip((first, second), pairs) if one]))
        else:
            made.trains.append(self._train(first, made.losses[0], step))
        if two:
            second = first
            if self.program.training != "shared":
                second = self._optimizer(names[1])
                made.resets.append(second)
            with tf.control_dependencies(made.trains if self.program.training == "after" else []):
                made.losses.append(self._loss(variables, ids, labels, "second"))
            # StopAtStepHook stops a step sooner or later by when it reads a global step that goes up by two.
            made.trains.append(self._train(second, made.losses[1], None if self.program.training == "after" else step))
        self._rest(variables)
        return made

    def _inputs(self):
        tf, v1 = self.tf, self.v1
        if self.program.input == PLACEHOLDERS:
            return v1.placeholder(tf.int64, [None, 3], "ids"), v1.placeholder(tf.float32, [None], "labels")
        iterator = v1.data.make_initializable_iterator(dataset(self.program.batches).repeat())
        self.made.iterator = iterator
        ids, labels = iterator.get_next()
        if self.program.input == DEFAULTS:
            ids = v1.placeholder_with_default(ids, [None, 3])
            labels = v1.placeholder_with_default(labels, [None])
        return ids, labels

    def _initializer(self):
        v1 = self.v1
        if self.program.from_constants:
            return self.choose(v1.zeros_initializer(), v1.constant_initializer(0.2), v1.ones_initializer())
        return self.choose(v1.zeros_initializer(), v1.glorot_uniform_initializer(), v1.random_normal_initializer(stddev=0.3),
                           v1.truncated_normal_initializer(stddev=0.2), v1.random_uniform_initializer(-0.5, 0.5))

    def _variable(self, number):
        """(the variable as lookups take it, its rows, floats of a row)."""
        tf, v1 = self.tf, self.v1
        # Without limits, ids that a modulo makes one are two.
        rows = self.choose(cases.ROWS, cases.ROWS, cases.ROWS, 250 if self.is_unlimited else LEAST_ROWS, 250)
        tail = self.choose([cases.DIM], [cases.DIM], [cases.DIM], [1], [], [2, 2])
        name = "v{}".format(number)
        use_resource = self.chance(0.5)
        with v1.variable_scope(self.choose("deep", "wide", "") if number else ""):
            if self.chance(0.15):
                start = self._initializer()([rows] + tail, tf.float32)
                made = v1.Variable(start, name=name, use_resource=use_resource)
            else:
                parts = self.choose(None, None, None, None, 2, 3) if rows >= cases.ROWS else None
                made = v1.get_variable(
                    name, [rows] + tail, initializer=self._initializer(), use_resource=use_resource,
                    partitioner=None if parts is None else v1.fixed_size_partitioner(parts))
        parts = [made] if hasattr(made, "op") else list(made)
        self.made.variables.append(parts)
        return made, rows, int(np.prod(tail)), len(tail)

    def _loss(self, variables, ids, labels, name):
        """A loss of some lookups of each variable, and of a bias; everything that it reads is behind all its gradients."""
        tf = self.tf
        seen, total = [], 0.0
        chosen = variables if self.chance(0.7) else variables[:1]
        for variable, rows, dim, rank in chosen:
            for _ in range(self.choose(1, 1, 2)):
                found = self._block(lambda: self._rows(variable, rows, dim, rank, ids, seen), ids)
                scale = tf.constant(0.4 * self.random.randn(dim) / np.sqrt(dim), tf.float32)
                total += tf.tensordot(found, scale, 1)
        if self.chance(0.2):
            total += self._column(ids, name)
        total += self.bias
        self._feed(name + "_total", total)
        if self.chance(0.3):
            loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(logits=total, labels=tf.nn.sigmoid(labels))) / 8
        else:
            loss = tf.reduce_sum(tf.square(total - labels)) / 16
        if self.chance(0.1):
            loss += 0.01 * tf.nn.l2_loss(self.choose(*[part for one in self.made.variables for part in one]))
        self.made.seen.append(seen + [total])
        return loss

    def _block(self, make, ids):
        """What is made inside of a block that waits for something, or outside of any."""
        tf = self.tf
        how = self.choose("", "", "", "assert", "count", "scope")
        if how == "assert":
            waits = [self.v1.Assert(tf.reduce_all(ids >= 0), [ids])]
        elif how == "count":
            waits = [self.counter.assign_add(1.0).op]
        elif how == "scope":
            with self.v1.name_scope("scope"), tf.device("/cpu:0"):
                return make()
        else:
            return make()
        with tf.control_dependencies(waits):
            return make()

    def _column(self, ids, name):
        """(b) of an embedding column, whose variable it makes."""
        tf = self.tf
        column = tf.feature_column
        size = cases.ROWS if self.is_unlimited else self.choose(cases.ROWS, 20)
        values = ids if size == cases.ROWS else tf.strings.as_string(ids)
        one = column.categorical_column_with_identity("f", size) if size == cases.ROWS \
            else column.categorical_column_with_hash_bucket("f", size)
        before = len(self.v1.global_variables())
        combiner = self.choose("sum", "mean", "sqrtn")
        with self.v1.variable_scope("deep/" + name):
            if self.chance(0.5):
                made = self.v1.feature_column.input_layer({"f": values}, [column.embedding_column(
                    one, cases.DIM, combiner, initializer=self._initializer(),
                    max_norm=self.choose(None, None, None, 1.5))])
            else:
                made = self.v1.feature_column.linear_model({"f": values}, [one], sparse_combiner=combiner)
        new = self.v1.global_variables()[before:]
        self.made.variables.extend([part] for part in new if part.shape.rank == 2)
        return 0.3 * self.tf.reduce_sum(made, 1)

    def _ids(self, ids, rows):
        """(b, 3) ids in [0, rows), made where they are needed or taken as they are."""
        if rows == cases.ROWS and (self.is_unlimited or self.chance(0.5)):
            return ids
        tf = self.tf
        moved = tf.math.floormod(ids * (1 if self.is_unlimited else self.choose(1, 7)) + self.choose(0, 5), rows)
        if self.chance(0.3):
            moved = tf.cast(moved, tf.int32)
        self._feed("ids", moved)
        return moved

    def _rows(self, variable, rows, dim, rank, ids, seen):
        """(b, dim) out of a variable; `seen` gets what a training run may fetch."""
        tf = self.tf
        is_whole = hasattr(variable, "op")
        kind = self.choose(*KINDS)
        if kind in ("safe", "sparse", "weights") and rank != 1 or not is_whole and kind not in (
                "plain", "several", "ranks", "safe", "sparse", "weights", "twice", "stopped", "constants", "nested"):
            kind = "plain"
        ids = self._ids(ids, rows)
        column = ids[:, self.random.randint(3)]
        if kind in ("safe", "sparse", "weights"):
            found = self._pooled(variable, ids, kind)
            self._feed("pooled", found)
            seen.append(found)
            return found
        strategy = self.choose("mod", "div")

        def look_up(which):
            found = tf.nn.embedding_lookup(variable, which, partition_strategy=strategy)
            return found if rank == 1 else tf.reshape(found, tf.concat([tf.shape(which), [dim]], 0))

        if kind == "several":
            found = look_up(ids[:, :2])
            seen.append(found)
            return self.choose(lambda: tf.reduce_sum(found, 1), lambda: tf.reduce_mean(found, 1),
                               lambda: tf.reduce_max(found, 1), lambda: found[:, 0] * found[:, 1],
                               lambda: tf.reduce_sum(found * tf.constant([0.5, 2.0])[:, None], 1))()
        if kind == "ranks":
            return tf.reduce_sum(look_up(ids[:, None, :1]), [1, 2])
        if kind == "clipped" and rank == 1:
            return tf.nn.embedding_lookup(variable, column, max_norm=0.7)
        if kind == "constants":
            row = look_up(tf.constant([1, 2, 1], ids.dtype))
            return tf.zeros([tf.shape(ids)[0], dim]) + tf.reduce_sum(row, 0)
        if kind == "nested":
            # Through a vocabulary.
            column = tf.gather(tf.constant(np.random.RandomState(1).permutation(rows), ids.dtype), column)
        if kind == "distinct":
            different, where = tf.unique(column)
            return tf.reshape(tf.gather(tf.gather(variable, different), where), [-1, dim])
        if kind in ("gather", "identity", "read"):
            taken = {"gather": lambda: variable, "identity": lambda: tf.identity(variable),
                     "read": lambda: variable.read_value()}[kind]()
            found = tf.reshape(tf.gather(taken, column), [-1, dim])
        elif kind == "cond":
            def scaled(number):
                return tf.reshape(tf.gather(variable, column), [-1, dim]) * number

            return self.v1.cond(tf.reduce_sum(ids) % 2 > 0, lambda: scaled(1.0), lambda: scaled(2.0))
        elif kind == "loop":
            return self.v1.while_loop(
                lambda at, _: at < 2, lambda at, sums: (at + 1, sums + tf.reshape(tf.gather(variable, ids[:, at]), [-1, dim])),
                (0, tf.zeros([tf.shape(ids)[0], dim])), parallel_iterations=1)[1]
        elif kind == "function":
            rows_of = tf.reshape(tf.gather(variable, column), [-1, dim])
            return tf.map_fn(lambda row: row * 0.5, rows_of)
        else:
            found = look_up(column)
        if kind == "whole":
            found += 0.01 * tf.reduce_mean(variable)
        elif kind == "stopped":
            found = tf.stop_gradient(found) * 0.5 + look_up(ids[:, 0])
        elif kind == "twice":
            found += look_up(ids[:, 0]) * 0.5
        self._feed("rows", found)
        seen.append(found)
        return found

    def _pooled(self, variable, ids, kind):
        """(b, dim): bags of the ids of a row."""
        tf = self.tf
        combiner = self.choose("sum", "mean", "sqrtn")
        if kind == "safe":
            sparse = tf.sparse.from_dense(tf.where(ids % 4 == 0, tf.zeros_like(ids), ids))
            weights = None
            if self.chance(0.3):
                weights = tf.SparseTensor(sparse.indices, 0.5 + tf.cast(sparse.values % 3, tf.float32), sparse.dense_shape)
            return tf.nn.safe_embedding_lookup_sparse(variable, sparse, weights, combiner=combiner,
                                                      default_id=self.choose(None, None, 2))
        sparse = tf.sparse.from_dense(ids + 1)
        sparse = tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)
        weights = None
        if kind == "weights":
            weights = tf.SparseTensor(sparse.indices, 0.5 + tf.cast(sparse.values % 3, tf.float32), sparse.dense_shape)
        return self.v1.nn.embedding_lookup_sparse(
            variable, sparse, weights, combiner=combiner, partition_strategy=self.choose("mod", "div"),
            max_norm=self.choose(None, None, None, 0.8))

    def _feed(self, name, tensor):
        self.made.fed["{} {}".format(len(self.made.fed), name)] = tensor

    def _optimizer(self, name):
        if name == "adam" and self.program.options["lazy_adam"] and self.tables:
            return lazy_adam_of(self.tables)
        return optimizers()[name]()

    def _gradients(self, optimizer, loss, variables=None):
        """Pairs of gradients, as they are or changed, and variables."""
        tf = self.tf
        gate = self.choose(optimizer.GATE_OP, optimizer.GATE_OP, optimizer.GATE_GRAPH)
        try:
            pairs = [(grad, variable) for grad, variable in optimizer.compute_gradients(
                loss, variables, gate_gradients=gate) if grad is not None]
        except ValueError as error:
            # TensorFlow gates no graph without a gradient.
            assert gate == optimizer.GATE_GRAPH and "Must have at least one Tensor" in str(error), error
            pairs = []
        how = self.choose("", "", "", "global norm", "norm", "scaled", "value")
        if not pairs:
            return pairs
        grads, variables = zip(*pairs)
        if how == "global norm":
            grads = tf.clip_by_global_norm(grads, 0.3)[0]
        elif how == "norm":
            grads = [tf.clip_by_norm(grad, 0.2) for grad in grads]
        elif how in ("scaled", "value"):
            def changed(values):
                return values * 0.5 if how == "scaled" else tf.clip_by_value(values, -0.05, 0.05)

            grads = [tf.IndexedSlices(changed(grad.values), grad.indices, grad.dense_shape)
                     if isinstance(grad, tf.IndexedSlices) else changed(grad) for grad in grads]
        for grad in grads:
            if isinstance(grad, tf.IndexedSlices):
                self._feed("gradient", grad.values)
                self.made.seen[-1].append(tf.IndexedSlices(grad.values, grad.indices))
        return list(zip(grads, variables))

    def _train(self, optimizer, loss, step):
        """The training op of a loss."""
        tf = self.tf
        pairs = self._gradients(optimizer, loss)
        # Where a variable is read as a whole, a run that fetches the loss reads it before the update.
        waits = [loss]
        if self.chance(0.3):
            waits.append(self.counter.assign_add(0.5).op)
        with tf.control_dependencies(waits):
            return optimizer.apply_gradients(pairs, global_step=step)

    def _rest(self, variables):
        """Evaluation, assignments, summaries and Savers."""
        tf, v1, made = self.tf, self.v1, self.made
        parts = [part for one in made.variables for part in one]
        for optimizer in made.resets:
            for part in parts:
                for name in optimizer.get_slot_names():
                    slot = optimizer.get_slot(part, name)
                    if slot is not None:
                        made.slots.setdefault(part.op.name, []).append(slot)
        made.asked = v1.placeholder(tf.int64, [None], "asked")
        made.evaluated = [tf.nn.embedding_lookup(part, made.asked) for part in parts]
        made.rows = [tf.gather(part, np.arange(part.shape[0].value)) for part in parts]
        rows = {part.op.name for part in parts} | {slot.op.name for slots in made.slots.values() for slot in slots}
        made.dense = [one for one in v1.global_variables() if one.op.name not in rows]
        if self.chance(0.12):
            part = self.choose(*parts)
            made.assigns.append(self.choose(
                lambda: v1.assign(part, tf.ones_like(part)), lambda: v1.assign_add(part, tf.ones(part.shape) * 0.1),
                lambda: v1.scatter_add(part, [1, 2, 1], tf.ones([3] + part.shape.as_list()[1:])),
                lambda: v1.scatter_update(part, [1, 2], tf.zeros([2] + part.shape.as_list()[1:])))())
        made.assigns.append(v1.assign_add(self.bias, [0.25]))
        if self.chance(0.2):
            v1.summary.histogram("rows", self.choose(*parts))
            v1.summary.scalar("loss", made.losses[0])
            made.summary = v1.summary.merge_all()
        for _ in range(self.choose(0, 1, 1, 2)):
            is_before = self.chance(0.2)
            whole = [one for one, _, _, _ in variables]
            some = whole[:self.random.randint(len(whole) + 1)] + self.choose([], [self.bias])
            some = some or [self.counter]
            named = self.chance(0.3)
            of = self.choose("all", "list", "some", "some", "dense")

            def make(some=some, named=named, of=of):
                if of == "all":
                    return v1.train.Saver(max_to_keep=None)
                if of == "list":
                    return v1.train.Saver(everything, max_to_keep=None)
                # After a conversion, a list of all that are no tables is one of all, as tf.global_variables() gives it.
                chosen = [one for one in made.dense if one is not self.bias] if of == "dense" else list(some)
                if of == "some":
                    # A table has its slots in it.
                    for one in some:
                        for part in [one] if hasattr(one, "op") else list(one):
                            chosen += made.slots.get(part.op.name, [])
                if named:
                    chosen = {(one.op.name if hasattr(one, "op") else one.name): one for one in chosen}
                return v1.train.Saver(chosen, max_to_keep=None)

            everything = v1.global_variables()
            made.savers.append(make() if is_before else make)


def dataset(batches):
    """A dataset of batches of any length."""
    tf = support.tf()
    return tf.data.Dataset.from_generator(lambda: iter(batches), (tf.int64, tf.float32), ([None, 3], [None]))
