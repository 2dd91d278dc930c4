"""Runs random programs (stock_programs.py) on variables, on tables, and on tables of a modified graph, step by step.

Each of these is a `Player` with its own graph and session. All do the same, and whatever they see is compared: tables against
variables to rounding, a modified graph against the unmodified one to the bit, and a program without tables against TensorFlow
to the bit. Variables and tables take turns with each other's checkpoints.
"""

import os
import re
import shutil
import zlib

import numpy as np
import pytest

import stock_programs as programs
import support
from stock_programs import AHEAD, STOCK, TABLES

# Units in the last place of the largest number of a tensor, or of 1.
ROUNDING = 64
# What TensorFlow's ops say of a batch without rows. Of several that fail in a step, any may be the first.
EMPTY = ("TensorArray has size zero", "missing input size for an empty tensor")
# What session.run refuses on tables by a message of its own, which docs/unchanged-estimators.md names.
REFUSED = ("nothing orders them before the update", "may not be fed")


class Player:
    """One form of a program: its graph, its session, and what it saw."""

    def __init__(self, program, form, directory, tables=()):
        tf = support.tf()
        v1 = tf.compat.v1
        self.program, self.form, self.directory = program, form, directory
        self.graph, self.session, self.start, self.at = tf.Graph(), None, None, 0
        self.paths = {}
        with self.graph.as_default():
            self.made = program.build(tables)
            is_early = program.seed % 2
            self.initializer = v1.global_variables_initializer() if is_early else None
            self.late = []
            if program.trains_later:
                self._make_savers()
            self.tables = convert(self.graph, form)
            self.initializer = self.initializer or v1.global_variables_initializer()
            if not program.trains_later:
                self._make_savers()

    def _make_savers(self):
        self.savers = [saver() if callable(saver) else saver for saver in self.made.savers]
        self.all = support.tf().compat.v1.train.Saver(max_to_keep=None)

    def open(self):
        """A new session in the place of the one before, with the variables' starts."""
        v1 = support.tf().compat.v1
        if self.session is not None:
            self.session.close()
        self.session = v1.Session(graph=self.graph, config=config_of(self.program))
        self.initialize()
        if self.made.iterator is not None:
            self.session.run(self.made.iterator.initializer)

    def initialize(self):
        self.session.run([self.initializer] + [variable.initializer for variable in self.late])
        if self.start is not None:
            self.all.restore(self.session, self.start)

    def save(self, saver, name):
        with self.graph.as_default():
            return saver.save(self.session, os.path.join(self.directory, self.form, name), write_meta_graph=False)

    def feeds(self, is_fed=True):
        """The next batch."""
        if self.program.input == programs.DATASET or self.program.input == programs.DEFAULTS and not is_fed:
            return {}
        self.at += 1
        return dict(zip(self.made.inputs, self.program.batches[self.at % len(self.program.batches)]))

    def fetches(self, which, is_all):
        """What a run of a training op fetches: (what is compared, what runs)."""
        made = self.made
        which %= len(made.trains)
        seen = [made.losses[which]] + (made.seen[which] if is_all else [])
        return seen, made.trains[which]

    def do(self, verb, first, second):
        """Does what a history says; returns arrays."""
        return getattr(self, "_" + verb)(first, second)

    def _step(self, which, is_all):
        return self.session.run(self.fetches(which, is_all), self.feeds(is_all))[0]

    def _evaluate(self, seed, which):
        random = np.random.RandomState(seed)
        asked = random.randint(0, programs.LEAST_ROWS, random.randint(0, 9))
        found = self.session.run(self.made.evaluated, {self.made.asked: asked})
        return found + [self.session.run(self.made.losses[which % len(self.made.losses)], self.feeds())]

    def _save(self, which, _):
        if self.savers:
            which %= len(self.savers)
            self.paths[which] = self.save(self.savers[which], "saver{}_{}".format(which, len(self.paths)))
        return []

    def _restore(self, which, is_new):
        if not self.paths:
            return []
        which = sorted(self.paths)[which % len(self.paths)]
        if is_new:
            self.open()
        self.savers[which].restore(self.session, self.paths[which])
        return self.values()

    def _assign(self, _, which):
        self.session.run(self.made.assigns[which % len(self.made.assigns)])
        return self.values()

    def _initialize(self, _, which):
        if which < 3:
            return []
        self.initialize()
        return self.values()

    def _reset(self, _, which):
        optimizer = self.made.resets[which % len(self.made.resets)]
        self.session.run([variable.initializer for variable in optimizer.variables()])
        return self.values()

    def _summary(self, _, which):
        if self.made.summary is None:
            return []
        text = self.session.run(self.made.summary, self.feeds())
        found = []
        for value in support.tf().compat.v1.Summary.FromString(text).value:
            histogram = value.histo
            found.append([histogram.num, histogram.sum, histogram.min, histogram.max]
                         if value.HasField("histo") else value.simple_value)
        return found

    def _feed(self, seed, which):
        """A training run in which a tensor in the middle has other values."""
        if self.program.input == programs.DATASET or not self.made.fed:
            return []
        random = np.random.RandomState(seed)
        name = sorted(self.made.fed)[random.randint(len(self.made.fed))]
        tensor = self.made.fed[name]
        if tensor.dtype.is_floating and "access_threshold" in self.program.options:
            # Updates wait until their ids are counted, and so for what a lookup waits for that TensorFlow would leave out.
            return []
        if not self.graph.is_feedable(tensor):
            # Before anything of the run counts.
            raise ValueError("{} may not be fed".format(tensor))
        feeds = self.feeds()
        # Its values are those that it has, changed in a way that keeps ids what they are for.
        value = self.session.run(tensor, feeds)
        if value.dtype == np.float32:
            value = (0.1 * random.randn(*value.shape)).astype(np.float32)
        elif value.size:
            value = value[random.permutation(len(value))]
        feeds[tensor] = value
        return self.session.run(self.fetches(which, False), feeds)[0]

    def _wrong(self, seed, which):
        """A training run with an id that variables do not have."""
        if self.program.input == programs.DATASET or self.program.options.get("unlimited_ids"):
            return []
        feeds = self.feeds()
        ids, labels = np.tile([[1, 2, 3]], [4, 1]), np.ones(4, np.float32)
        random = np.random.RandomState(seed)
        ids[random.randint(4), random.randint(3)] = -1 if random.rand() < 0.5 else 1000
        feeds.update(zip(self.made.inputs, (ids, labels)))
        return self.session.run(self.fetches(which, False), feeds)[0]

    def _late(self, seed, which):
        """Reads or changes a variable by an op that is made now."""
        tf = support.tf()
        v1 = tf.compat.v1
        random = np.random.RandomState(seed)
        parts = [part for one in self.made.variables for part in one]
        part = parts[random.randint(len(parts))]
        sizes = part.shape.as_list()
        ids = random.randint(0, sizes[0], 4)
        rows, whole = [0.1 * random.randn(*shape).astype(np.float32) for shape in ([4] + sizes[1:], sizes)]
        distinct = ids[:1] if ids[0] == ids[3] else ids[[0, 3]]
        slots = self.made.slots.get(part.op.name, [])
        if self.form == STOCK:
            # By numbers: the ops would keep the variable from taking the slots of a table in an exchange.
            now = self.session.run(part)
            if which == 0:
                return [now] + self.session.run(slots) + self.values()
            if which == 1:
                return [now[ids], now[ids], now] + self.values()
            if which == 4:
                now[distinct] = rows[:len(distinct)]
            elif which == 5:
                np.add.at(now, ids, rows)
            else:
                now = whole if which == 2 else now + whole
            part.load(now, self.session)
            return [now] + self.values()
        with self.graph.as_default():
            # A reference variable of 1.15 has no sparse_read.
            read = part.sparse_read if hasattr(part, "handle") else lambda ids: tf.nn.embedding_lookup(part, ids)
            made = [lambda: [part] + slots, lambda: [tf.gather(part, ids), read(ids), part.read_value()],
                    lambda: v1.assign(part, whole), lambda: v1.assign_add(part, whole),
                    lambda: v1.scatter_update(part, distinct, rows[:len(distinct)]),
                    lambda: v1.scatter_add(part, ids, rows)][which]()
        seen = self.session.run(made)
        return (seen if isinstance(seen, list) else [seen]) + self.values()

    def _list(self, seed, which):
        """The names, the values and the states of variables that the program finds."""
        v1 = support.tf().compat.v1
        scope = ("v0", "deep", ".*/", "b", None, None)[which]
        with self.graph.as_default():
            found = v1.global_variables(scope) + v1.trainable_variables(scope) + v1.local_variables(scope)
            missing = self.session.run(v1.report_uninitialized_variables())
        if seed % 2 or self.program.options.get("unlimited_ids"):
            return _numbers([variable.name for variable in found] + list(missing))
        return _numbers(missing) + self.session.run(found)

    def _start(self, seed, which):
        """Starts variables again, by an initializer that is made now: those of some of the program's, with or without slots."""
        v1 = support.tf().compat.v1
        random = np.random.RandomState(seed)
        with self.graph.as_default():
            known = v1.global_variables()
            slots = {slot.op.name for slots in self.made.slots.values() for slot in slots}
            parts = {part.op.name for one in self.made.variables for part in one}
            # Only what starts with its slots empties such tables.
            is_with_slots = bool({"unlimited_ids", "access_threshold"}.intersection(self.program.options))
            units = [[one.op.name] + [slot.op.name for slot in self.made.slots.get(one.op.name, [])] * (
                is_with_slots or random.randint(2)) for one in known
                     if one.op.name not in slots and (one.op.name not in parts or self.program.from_constants)]
            units += [[slot] for slot in sorted(slots)]
            chosen = {name for unit in units if random.rand() < (0.3, 0.8)[which % 2] for name in unit}
            op = v1.variables_initializer([one for one in known if one.op.name in chosen])
        self.session.run(op)
        return self.values()

    def _behind(self, seed, which):
        """Reads a variable behind a training run, by ops that are made now."""
        tf, made = support.tf(), self.made
        if self.program.options.get("unlimited_ids"):
            return []
        parts = [part for one in made.variables for part in one]
        part = parts[seed % len(parts)]
        with self.graph.as_default(), tf.control_dependencies([made.trains[which % len(made.trains)]]):
            reads = [tf.reduce_sum(part, 0), tf.gather(part, [1, 2]), tf.identity(part)]
        return self.session.run(reads, self.feeds())

    def _train(self, seed, which):
        """Makes a training op, by a new optimizer or one that the program has, and starts its variables."""
        tf = support.tf()
        v1, made = tf.compat.v1, self.made
        random = np.random.RandomState(seed)
        with self.graph.as_default():
            known = v1.global_variables()
            loss = made.losses[which % len(made.losses)] * (0.5 + random.rand())
            names = sorted(programs.optimizers())
            optimizer = made.resets[0] if which < 2 else programs.optimizers()[names[random.randint(len(names))]]()
            variables = [one for one in v1.trainable_variables() if which % 2 or random.rand() < 0.7]
            pairs = [(grad, variable) for grad, variable in optimizer.compute_gradients(loss, variables or None)
                     if grad is not None]
            if not pairs:
                return []
            with tf.control_dependencies([loss]):
                train = optimizer.apply_gradients(pairs, v1.train.get_global_step())
            new = [one for one in v1.global_variables() if all(one is not other for other in known)]
            self.late += new
            for variable in new:
                owner = next((part for one in made.variables for part in one
                              if variable.op.name.startswith(part.op.name + "/")), None)
                if owner is not None:
                    made.slots.setdefault(owner.op.name, []).append(variable)
            made.dense += [one for one in new if not any(one is slot for slots in made.slots.values() for slot in slots)]
            started = v1.variables_initializer(new)
        made.losses.append(loss)
        made.seen.append([])
        made.trains.append(train)
        self.session.run(started)
        return _numbers([one.name for one in new]) + self.values()

    def values(self):
        """All rows, and what else the program has as variables."""
        return self.session.run(self.made.rows + self.made.dense)

    def exchange(self, path, is_new):
        """Goes on from a checkpoint of another form."""
        if is_new:
            self.open()
        self.all.restore(self.session, path)
        return self.values()

    def take_late(self, other):
        """Takes over the variables of optimizers that were made later, which the Saver of all does not have."""
        if self.late:
            values = other.session.run(other.late)
            with self.graph.as_default():
                made = [support.tf().compat.v1.assign(*pair).op for pair in zip(self.late, values)]
            self.session.run(made)


def _numbers(names):
    """Names as numbers that can be compared, in their order."""
    return [zlib.crc32(name.encode() if isinstance(name, str) else name) for name in names]


def convert(graph, form):
    """Converts a graph; returns the names of the variables that are tables now."""
    from mx_rec.graph import modify_graph_and_start_emb_cache

    if form == STOCK:
        support.keep_variables(graph)
    elif form == AHEAD:
        try:
            modify_graph_and_start_emb_cache()
        except RuntimeError as error:
            assert "table" in str(error) and not converted_in(graph), error
    else:
        with support.tf().compat.v1.Session(graph=graph) as session:
            session.run([])
    return converted_in(graph)


def config_of(program):
    config = support.tf().compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=program.threads)
    config.graph_options.rewrite_options.disable_meta_optimizer = not program.is_rewritten
    return config


def _slices(found):
    """The values and the indices of gradients, which are IndexedSlicesValues.

    A branch that is not taken gives all rows of a variable zeros, and none of a table. Where that is the difference, rows of
    zeros are left out.
    """
    if len({one.values.shape for one in found}) > 1:
        kept = [np.any(one.values, axis=tuple(range(1, one.values.ndim))) for one in found]
        found = [one._replace(values=one.values[rows], indices=one.indices[rows]) for one, rows in zip(found, kept)]
    return [tuple(one.values for one in found), tuple(one.indices for one in found)]


def compare(program, where, seen, is_exact):
    """Asserts that players saw the same.

    Args:
        where: When they did.
        seen: Lists of arrays: those of variables, then those of tables, of one form or both.
        is_exact: Whether nothing is a table, so that bits are to be the same.
    """
    where = "seed {}, {}".format(program.seed, where)
    assert len({len(one) for one in seen}) == 1, where
    together = []  # What each of them saw, value by value.
    for values in zip(*seen):
        together.extend(_slices(values) if hasattr(values[0], "indices") else [values])
    for at, values in enumerate(together):
        what = "{}, value {}".format(where, at)
        stock, *others = [np.asarray(value, np.float64) for value in values]
        assert {other.shape for other in others} == {stock.shape}, what
        for other in others[1:]:
            np.testing.assert_array_equal(other, others[0], what + ": a modified graph has other bits")
        if is_exact:
            np.testing.assert_array_equal(others[0], stock, what + ": without tables, and other bits")
            continue
        finite = np.isfinite(stock)
        np.testing.assert_array_equal(others[0][~finite], stock[~finite], what)
        if finite.any():
            support.assert_rounding(others[0][finite], stock[finite], ROUNDING,
                                    scale=max(1.0, np.abs(stock[finite]).max()), what=what)


def outcome(player, verb, *arguments):
    """(arrays, "") of what a player does, (the type of the error, what it says) of a refusal, or what TensorFlow gives."""
    tf = support.tf()
    try:
        return getattr(player, verb)(*arguments), ""
    except tf.errors.OpError as error:
        # Nothing says how far a run gets that fails.
        player.made.counter.load(0.0, player.session)
        return [], "empty batch" if any(text in str(error) for text in EMPTY) else type(error).__name__
    except (ValueError, NotImplementedError) as error:
        if player.form == STOCK or not any(text in str(error) for text in REFUSED):
            raise
        return [], "refused: " + str(error)


def initialized(program):
    """mx_rec with the options of a program."""
    from mx_rec.util.stock_tables import StockTables

    return support.initialized(stock_tables=StockTables(**program.options))


def run(program, directory):
    """Runs a program in all its forms, and compares what they see.

    Args:
        program: The stock_programs.Program.
        directory: Of its checkpoints.

    Returns:
        A dict: "tables", the names of the variables that became tables; "done", the verbs that were compared; "refused", those
        that tables refuse.
    """
    if program.kind == programs.SESSION:
        with initialized(program):
            return run_session(program, directory)
    return run_alone(program, directory, {programs.MONITORED: monitored, programs.ESTIMATOR: estimated}[program.kind])


def run_session(program, directory):
    others = [Player(program, form, directory) for form in program.forms]
    tables = others[0].tables
    assert all(other.tables == tables for other in others)
    stock = Player(program, STOCK, directory, tables)
    players = [stock] + others
    report = {"tables": tables, "done": [], "refused": []}
    try:
        for player in players:
            os.makedirs(os.path.join(directory, player.form))
            player.open()
        if not program.from_constants:
            start = stock.save(stock.all, "start")
            for player in players:
                player.start = start
                player.initialize()
        for number, (verb, first, second) in enumerate(program.history):
            where = "action {} {}{}".format(number, verb, (first, second))
            if verb == "exchange":
                if program.options.get("unlimited_ids"):
                    continue
                paths = [player.save(player.all, "exchange{}".format(number)) for player in players]
                seen = [player.exchange(path, second) for player, path in zip(players, [paths[1]] + [paths[0]] * len(others))]
                error = ""
            else:
                seen, error = _together(players, verb, first, second)
                if error.startswith("refused"):
                    report["refused"].append((verb, error))
                    continue
            compare(program, where, seen, is_exact=not tables)
            report["done"].append(verb)
            if error and not program.options.get("unlimited_ids"):
                # Nothing says how far a run gets that fails: some moments of TensorFlow's Adam have decayed then, and the table
                # of that variable has not begun its step.
                path = stock.save(stock.all, "failed{}".format(number))
                seen = [stock.values()] + [one.exchange(path, False) for one in others]
                for one in others:
                    one.take_late(stock)
                compare(program, where + ", from variables", seen, is_exact=not tables)
        compare(program, "the end", [player.values() for player in players], is_exact=not tables)
        if not program.options.get("unlimited_ids"):
            _compare_slots(program, stock, others[0])
    finally:
        for player in players:
            if player.session is not None:
                player.session.close()
    return report


def _together(players, verb, first, second):
    """(what each player sees, the error that all give or ""); what tables refuse, variables do not do."""
    seen = []
    at = max(player.at for player in players)
    for player in reversed(players):
        player.at = at
        seen.append(outcome(player, "do", verb, first, second))
        if seen[-1][1].startswith("refused"):
            assert len(seen) == 1, "{}: one form refuses what another does: {}".format(verb, seen[-1][1])
            return [], seen[-1][1]
    errors = {error for _, error in seen}
    # An empty batch may be wrong in two places of a step: tf.map_fn has no gradient of no element (UnimplementedError).
    assert len(errors) == 1 or ("" not in errors and len(errors - {"UnimplementedError"}) == 1), (
        players[0].program.seed, verb, [error for _, error in reversed(seen)])
    return [values for values, _ in reversed(seen)], max(errors)


def _compare_slots(program, stock, tables):
    """Reads a checkpoint of tables into variables: rows and slots of all of them."""
    with stock.graph.as_default():
        variables = support.tf().compat.v1.global_variables()
    expected = stock.session.run(variables)
    stock.all.restore(stock.session, tables.save(tables.all, "end"))
    found = stock.session.run(variables)
    for variable, one, other in zip(variables, expected, found):
        compare(program, variable.op.name, [[one], [other]], not tables.tables)


def hook_of(values, fetches):
    """A hook that adds what each training run gives to a list."""
    return support.fetching(lambda: fetches, values.extend)


def modifies(program, form, tables=None):
    """The hooks with which a form runs a training, or what comes after one that had tables."""
    from mx_rec.graph import GraphModifierHook

    if form != AHEAD:
        return []
    with support.tf().Graph().as_default() as graph:
        # A graph without a table is an error of the hook.
        made = program.build(trains=tables is None)
        names = {part.op.name for parts in made.variables for part in parts}
        return [GraphModifierHook()] if names.intersection(convert(graph, TABLES) if tables is None else tables) else []


def monitored(program, form, directory, tables=(), steps=(3, 4)):
    """What hooks see in MonitoredTrainingSessions that follow each other, and the names of the tables."""
    tf = support.tf()
    v1 = tf.compat.v1
    values = []
    for count in steps:
        with tf.Graph().as_default() as graph:
            made = program.build(tables)
            which = count % len(made.trains)
            rows = made.rows + made.dense
            names = convert(graph, form) if form != AHEAD else []
            hooks = [hook_of(values, [made.losses[which]] + made.seen[which]), v1.train.NanTensorHook(made.losses[which]),
                     v1.train.FinalOpsHook(rows)] + modifies(program, form)
            scaffold = v1.train.Scaffold(
                local_init_op=v1.group(v1.local_variables_initializer(), made.iterator.initializer))
            with v1.train.MonitoredTrainingSession(
                    scaffold=scaffold, checkpoint_dir=directory, hooks=hooks, save_checkpoint_steps=2, save_checkpoint_secs=None,
                    save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None,
                    config=config_of(program)) as session:
                for _ in range(count):
                    session.run(made.trains[which])
            values.extend(hooks[2].final_ops_values)
            names = names or converted_in(graph)
    return values, names


def model_fn_of(program, values, tables, form):
    """The model_fn of a program."""
    tf = support.tf()
    modes = tf.estimator.ModeKeys

    def model_fn(features, labels, mode):
        is_training = mode == modes.TRAIN
        labels = tf.zeros([tf.shape(features)[0]]) if labels is None else labels
        made = program.build(tables, (features, labels), is_training)
        total = made.seen[0][-1]
        if mode == modes.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"total": total})
        if not is_training:
            return tf.estimator.EstimatorSpec(mode, loss=made.losses[0], eval_metric_ops={
                "total": tf.compat.v1.metrics.mean(total)})
        # A run reads what its training op waits for.
        hooks = [hook_of(values, [made.losses[-1]] + made.seen[-1])]
        return tf.estimator.EstimatorSpec(mode, loss=made.losses[-1], train_op=made.trains[-1], training_hooks=hooks)

    return model_fn


def estimated(program, form, directory, tables=()):
    """What an Estimator sees in trainings, evaluations and predictions, and the names of the tables of the last training."""
    tf = support.tf()
    values, names = [], []

    class Names(tf.estimator.SessionRunHook):
        def end(self, session):
            names[:] = converted_in(session.graph)

    estimator = tf.estimator.Estimator(
        model_fn_of(program, values, tables, form), str(directory),
        tf.estimator.RunConfig(tf_random_seed=program.seed, save_checkpoints_steps=3, log_step_count_steps=None,
                               save_summary_steps=1000, session_config=config_of(program)))

    def input_fn():
        return programs.dataset(program.batches)

    estimator.train(input_fn, steps=3, hooks=modifies(program, form) + [Names()])
    result = estimator.evaluate(input_fn, steps=3, hooks=modifies(program, form, names))
    estimator.train(input_fn, steps=2, hooks=modifies(program, form) + [Names()])
    values.extend([result["loss"], result["total"]])
    values.extend(one["total"] for one in estimator.predict(input_fn, hooks=modifies(program, form, names)))
    values.extend(estimator.get_variable_value(name) for name in ("bias", "counter"))
    return values, names


def converted_in(graph):
    """Names of the variables of a graph that are tables."""
    from mx_rec.stock.convert import converted

    return sorted(one.plan.name for one in converted(graph))


def run_alone(program, directory, runs):
    """Runs a program by what opens its own sessions, from a directory with TensorFlow's checkpoint, and compares in the end."""
    first = os.path.join(directory, "first")
    os.makedirs(first)
    if not program.from_constants:
        _first_checkpoint(program, first)
    places = {form: os.path.join(directory, form) for form in (STOCK,) + program.forms}
    for place in places.values():
        shutil.copytree(first, place)
    with initialized(program):
        try:
            others = [runs(program, form, places[form]) for form in program.forms]
        except (support.tf().errors.UnimplementedError, support.tf().errors.InvalidArgumentError) as error:
            # tf.map_fn has no gradient of an empty batch, and a linear column no shape of one: the program ends, on variables as well.
            with pytest.raises(type(error), match=re.escape(error.message.split("\n")[0].strip())):
                runs(program, STOCK, places[STOCK])
            return {"tables": [], "done": [], "refused": [(program.kind, "an empty batch")]}
        except ValueError as error:
            if not any(text in str(error) for text in REFUSED):
                raise
            return {"tables": [], "done": [], "refused": [(program.kind, str(error))]}
    names = others[0][1]
    assert all(other == names for _, other in others)
    stock, _ = runs(program, STOCK, places[STOCK], names)
    compare(program, program.kind, [stock] + [values for values, _ in others], is_exact=not names)
    return {"tables": names, "done": [program.kind], "refused": []}


def _first_checkpoint(program, directory):
    tf = support.tf()
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        program.build()
        saver = v1.train.Saver(save_relative_paths=True)
        with v1.Session(config=config_of(program)) as session:
            session.run(v1.global_variables_initializer())
            saver.save(session, os.path.join(directory, "model.ckpt"), global_step=0)
