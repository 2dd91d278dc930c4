"""Runs one script modified, unmodified and with FeatureSpecs, and compares everything that the script saw.

A script is a function that takes a `Run`: it builds a graph on it, trains, and notes what it sees. `alike` runs it once in
each form, each time in a fresh default graph, and asserts that the notes are the same, bit for bit.
"""

import re

import numpy as np
import tensorflow as tf

import support
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph import modifier
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

STEP, PASSED, AHEAD, SPECS = "step", "passed", "ahead", "specs"


class Run:
    """One run of a script.

    Attributes:
        form: "step" (tensors, each lookup by ops of its own), "passed" (tensors, with the graph pass before the first
            run), "ahead" (tensors, modified) or "specs" (FeatureSpecs).
        notes: (label, value) in the order in which the script saw them.
        plan: The plan of the modification; None if there was none.
    """

    def __init__(self, form, tmp_path=None):
        self.form = form
        self.notes = []
        self.plan = None
        self.directory = None if tmp_path is None else str(tmp_path)
        self.tables = {}
        self._is_built = False
        self._raws = {}
        self._specs = {}
        self._sessions = []

    @property
    def is_modified(self):
        return self.form == AHEAD

    def note(self, label, value):
        self.notes.append((label, frozen(value)))

    def table(self, name="table", dim=4, capacity=1000, **arguments):
        """A table whose new rows are random, so that a wrong key shows."""
        self.tables[name] = support.make_table(name, dim, capacity,
                                               tf.compat.v1.random_normal_initializer(stddev=0.3, seed=len(self.tables)),
                                               **arguments)
        return self.tables[name]

    def lookup(self, table, ids, is_train=True, batch=None, **arguments):
        """sparse_lookup of a tensor; or of an entry of `batch` by its key, which FeatureSpecs can do too."""
        if self.form == SPECS:
            return sparse_lookup(table, self._specs[ids], is_train=is_train, batch=batch, **arguments)
        tensor = ids if batch is None else batch[ids]
        return sparse_lookup(table, tensor, is_train=is_train, modify_graph=True, **arguments)

    def specs(self, **table_of):
        """The features that lookups by key will use, with their tables."""
        if self.form == SPECS:
            self._specs = {key: FeatureSpec(key, table_name=table, index_key=key) for key, table in table_of.items()}

    def insert(self, data, is_training=True):
        """Maps the insert function over a dataset if features need it."""
        if self.form != SPECS:
            return data

        return data.map(get_asc_insert_func(list(self._specs.values()), is_training=is_training))

    def modify(self, **arguments):
        """Ends the building of the graph, by modifying it or not; makes the ops that look at the tables."""
        self._is_built = True
        if self.form == AHEAD:
            make_plan = modifier.make_plan

            def recorded(*given, **named):
                self.plan = make_plan(*given, **named)
                return self.plan

            modifier.make_plan = recorded
            try:
                modifier.modify_graph_and_start_emb_cache(**arguments)
            finally:
                modifier.make_plan = make_plan
        else:
            start_asc_pipeline()
        self._raws = {name: support.Raw.of(table) for name, table in self.tables.items()}

    def session(self):
        """A new session with every variable initialised."""
        sess = support.new_session()
        sess.run(tf.compat.v1.global_variables_initializer())
        self._sessions.append(sess)
        return sess

    def start(self, sess, iterator, is_training=True, own=False):
        """Starts an iterator as a script does: by get_initializer of a modified graph, or by the iterator's own."""
        initializer = None if own else get_initializer(is_training)
        sess.run(iterator.initializer if initializer is None else initializer)

    def begin(self, iterator, is_training=True, own=False):
        """A new session in which an iterator has started; ends the building of the graph if that goes on."""
        if not self._is_built:
            self.modify()
        sess = self.session()
        self.start(sess, iterator, is_training, own)
        return sess

    def step(self, sess, fetches, feed=None, label="step"):
        """Runs, and notes the values or the error, and the size of each table; returns the values, None after an error."""
        values = None
        try:
            values = sess.run(fetches, feed)
            self.note(label, values)
        except tf.errors.OpError as error:
            self.note(label, (type(error).__name__, essence(error)))
        if self._raws and all(self._raws.values()):
            self.note("sizes", sess.run({name: raw.size_op for name, raw in self._raws.items()}))
        else:
            with sess.as_default():
                self.note("sizes", {name: table.size() for name, table in self.tables.items()})
        return values

    def steps(self, sess, fetches, count=None, label="step"):
        """Steps until the first error, which is noted too, or `count` times; returns the number of good ones."""
        done = 0
        while count is None or done < count:
            if self.step(sess, fetches, label=label) is None:
                break
            done += 1
            assert done < 1000, "a pipeline without an end"
        return done

    def epoch(self, sess, fetches):
        """Steps until the data end, and nothing but the end of the data may stop it; returns the number of steps."""
        done = self.steps(sess, fetches)
        error = self.notes[-2][1]
        assert error[0] == "OutOfRangeError", error
        return done

    def finish(self, sess, fetches):
        """An epoch, then the contents; returns the number of steps."""
        done = self.epoch(sess, fetches)
        self.contents(sess)
        return done

    def contents(self, sess, slots=()):
        """Notes all rows, by key, and all slots of these names."""
        found = sess.run({"{} of {}".format(field or "rows", name): raw.slot(field)
                          for name, raw in self._raws.items() for field in ("",) + tuple(slots)})
        for label, (keys, values) in found.items():
            self.note(label, dict(zip(keys.tolist(), values)))

    def raw(self, table):
        return self._raws[table.table_name]

    def close(self):
        for sess in self._sessions:
            sess.close()


class Model:
    """A loss on embeddings of any shapes, and its update of tables and of a dense weight.

    `seen` are the fetches of one training step.
    """

    def __init__(self, run, embeddings, label, optimizer=None, tables=None, others=()):
        tf1 = tf.compat.v1
        label = tf.reduce_mean(tf.cast(label, tf.float32))
        with tf1.variable_scope("dense", reuse=tf1.AUTO_REUSE):
            self.weight = tf1.get_variable("weight", [], initializer=tf1.constant_initializer(0.7), use_resource=True)
        joined = tf.add_n([tf.reduce_sum(one) for one in embeddings])
        self.loss = tf.square(self.weight * joined - label) * 0.01 + tf.add_n(
            [tf.reduce_sum(tf.square(one - label)) * (position + 1.0) for position, one in enumerate(embeddings)])
        tables = list(run.tables.values()) if tables is None else tables
        update = (optimizer or lazy_adam)(self.loss, [table.variable for table in tables]) if tables else tf.no_op()
        dense = tf1.train.GradientDescentOptimizer(0.001).minimize(self.loss, var_list=[self.weight])
        self.update = tf.group(update, dense)
        self.seen = [self.loss, list(embeddings), label, list(others), self.update]


def lazy_adam(loss, variables):
    return create_hash_optimizer(0.05).minimize(loss, var_list=variables)


def frozen(value):
    """A nest of values as something that == compares bit for bit."""
    if isinstance(value, dict):
        return {key: frozen(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(frozen(one) for one in value)
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
        return value.dtype.str, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    return value


def essence(error):
    """What an error says, without the names of nodes, which TensorFlow appends."""
    text = re.sub(r"\{\{.*?\}\}", "", support.message_of(error).split("\n")[0].split("[[")[0])
    return text.strip()


def alike(script, moves, forms=(STEP, PASSED, AHEAD), tmp_path=None, **config):
    """Runs a script in several forms and asserts that it saw the same in all.

    Args:
        script: Takes a Run.
        moves: How many lookups the modification has to move: a test whose lookups stay compares nothing.
        forms: The forms to compare.
        tmp_path: Each run gets a directory of its own below it.
        **config: Arguments of init.

    Returns:
        The runs by form.
    """
    runs = {}
    for form in forms:
        tf.compat.v1.reset_default_graph()
        init(**dict({"graph_pass": form != STEP}, **config))
        directory = None
        if tmp_path is not None:
            directory = tmp_path / form
            directory.mkdir()
        run = runs[form] = Run(form, directory)
        try:
            script(run)
        finally:
            run.close()
            terminate_config_initializer()
            tf.compat.v1.reset_default_graph()
    if AHEAD in runs:
        lookups = runs[AHEAD].plan.lookups
        assert sum(lookup.moves for lookup in lookups) == moves, [lookup.reason for lookup in lookups]
    first = runs[forms[0]]
    assert first.notes, "nothing was noted"
    for form in forms[1:]:
        compare(first, runs[form])
    return runs


def compare(expected, actual):
    """Asserts that two runs saw the same."""
    for number, (theirs, mine) in enumerate(zip(expected.notes, actual.notes)):
        assert mine == theirs, "note {} ({}) of the form {} differs from {}:\n{}\n{}".format(
            number, theirs[0], actual.form, expected.form, str(mine)[:600], str(theirs)[:600])
    assert len(actual.notes) == len(expected.notes)


def errors(run, label="step"):
    """(type, text) of the errors that a run noted."""
    return [value for name, value in run.notes if name == label and isinstance(value, tuple) and len(value) == 2
            and isinstance(value[0], str) and value[0].endswith("Error")]


def arrays(count=36, seed=0, width=3, keys=40):
    """(ids (n, width) with padding and negative keys, labels (n))."""
    random = np.random.RandomState(seed)
    ids = random.randint(0, keys, [count, width]).astype(np.int64) * 7 - 50
    if width > 1:
        ids[random.rand(count) < 0.3, -1] = -1
    return ids, random.rand(count).astype(np.float32)


def slices(count=36, seed=0, width=3, keys=40, batch=8):
    """A plain dataset {"ids", "label"} of batches, the last one short, without a prefetch."""
    ids, label = arrays(count, seed, width, keys)
    return tf.data.Dataset.from_tensor_slices({"ids": ids, "label": label}).batch(batch)


def initializable(data):
    return tf.compat.v1.data.make_initializable_iterator(data)


def one_shot(data):
    return tf.compat.v1.data.make_one_shot_iterator(data)


def reasons(caplog):
    """What was logged."""
    return [record.getMessage() for record in caplog.records]
