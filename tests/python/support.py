"""What the end-to-end tests share: raw ops without the Python package, exports as numpy, tolerances, subprocesses."""

import contextlib
import functools
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from collections import namedtuple

import numpy as np

REPO = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
PACKAGES = os.path.join(REPO, "python")
if PACKAGES not in sys.path:
    sys.path.insert(0, PACKAGES)

EPS = float(np.finfo(np.float32).eps)
INT64_MIN = -2 ** 63
INT64_MAX = 2 ** 63 - 1

_OPS = []

Resolved = namedtuple("Resolved", "offsets inverse")


def load_script(path):
    """A script of the project that is no part of a package, as a module; those beside it can be imported."""
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    name = os.path.basename(path)[:-len(".py")] + "_script"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def turn_graph_mode_on():
    """Runs this process and those that it starts in graph mode, where TensorFlow 2.x is installed."""
    if importlib.util.find_spec("tensorflow_core") is not None:
        return
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "graph_mode")
    paths = [folder] + [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    tf().compat.v1.disable_v2_behavior()


def message_of(error):
    """The message of an op's error as 1.15 gives it; 2.x tells before it where the op was made."""
    header, text = "Graph execution error:", error.message
    if not text.startswith(header):
        return text
    return re.split(r"^Node: .*\n", text[len(header):], flags=re.MULTILINE)[-1].lstrip()


def tf():
    """TensorFlow, for modules that are imported before `turn_graph_mode_on`; test files import it themselves."""
    import tensorflow

    return tensorflow


def lookup(table, ids, **arguments):
    """sparse_lookup of a tensor, which may be modified."""
    from mx_rec.core.embedding import sparse_lookup

    return sparse_lookup(table, ids, modify_graph=True, **arguments)


def library_path():
    """The plugin under test."""
    return os.environ.get("MX_REC_LIBRARY") or os.path.join(PACKAGES, "mx_rec", "libmx_rec.so")


class OneTable:
    """Op wrappers, and for the ops that take lists of tables what they do for one table."""

    def __init__(self, wrappers):
        self._wrappers = wrappers

    def __getattr__(self, name):
        return getattr(self._wrappers, name)

    def resolve(self, handle, ids, create=1, prepared=(), **attributes):
        """Offsets and inverse of one table's ids; `prepared`: what a pipeline has made of them."""
        offsets, inverse = [[one] for one in prepared] or [[], []]
        made = self._wrappers.mx_rec_id_offset([handle], [ids], offsets, inverse, create=create, **attributes)
        return Resolved(made.offsets[0], made.inverse[0])

    def prepare(self, handles, ids, **attributes):
        """Offsets of each table, and the inverse, of ids that all of them are looked up by."""
        made = self._wrappers.mx_rec_prepare(handles, [ids], **attributes)
        return Resolved(made.offsets, made.inverse[0])

    def lookup(self, handle, variable, offsets):
        """The rows of one table's offsets."""
        return self._read([handle], [variable], [offsets])

    def embed(self, handle, variable, offsets, inverse):
        """A row for each id of one table."""
        return self._read([handle], [variable], [offsets], [inverse])

    def embed_pooled(self, handle, variable, offsets, inverse, *bags):
        """A vector for each bag of one table's ids: ends, weights, divisors."""
        return self._read([handle], [variable], [offsets], [inverse], *[[one] for one in bags])

    def find(self, handle, variable, ids, absent):
        """A row for each id of one table, by key."""
        return self._find([handle], [variable], [ids], [absent])

    def find_pooled(self, handle, variable, ids, ends, weights, divisors, absent):
        """A vector for each bag of one table's ids, by key."""
        return self._find([handle], [variable], [ids], [absent], [ends], [weights], [divisors])

    def find_initial(self, handle, variable, ids):
        """A row for each id of one table, or what it would start with."""
        return self._find([handle], [variable], [ids], initial=1)

    def _find(self, *lists, **attributes):
        return self._wrappers.mx_rec_find(*(list(lists) + [[]] * (8 - len(lists))), **attributes)[0]

    def _read(self, *lists):
        return self._wrappers.mx_rec_read(*(list(lists) + [[]] * (8 - len(lists))), M=1).rows[0]


def ops():
    """The generated op wrappers, loaded with plain `tf.load_op_library`."""
    if not _OPS:
        _OPS.append(OneTable(tf().load_op_library(library_path())))
    return _OPS[0]


def shaped_ops():
    """The package's op wrappers: they add the static shapes that TensorFlow 1.15's C API keeps from shape functions."""
    from mx_rec.ops import library

    return OneTable(library())


def variables_in(path):
    """The names of the variables that a checkpoint has as such, without those that are tables there."""
    from mx_rec.tensorflow.names import NewCheckpointReader

    path = str(path)
    return sorted(NewCheckpointReader(tf().train.latest_checkpoint(path) if os.path.isdir(path) else path)
                  .get_variable_to_shape_map())


def new_session(graph=None):
    """A session with two threads of each kind."""
    config = tf().compat.v1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
    return tf().compat.v1.Session(graph=graph, config=config)


def started(session, first=None):
    """A session in which all variables of the default graph are initialized, or that has run what is first."""
    session.run(tf().compat.v1.global_variables_initializer() if first is None else first)
    return session


def restored(session, saver, path):
    """A session with the state of a checkpoint."""
    saver.restore(session, path)
    return session


def make_table(name="table", dim=2, rows=1000, start=0.0, key_dtype=None, **arguments):
    """A table of int64 keys.

    Args:
        start: What new rows hold: a number, the same in all columns, or an initializer.
        **arguments: More of create_table.
    """
    from mx_rec.core.embedding import create_table

    initializer = start if callable(start) else tf().compat.v1.constant_initializer(start)
    return create_table(key_dtype or tf().int64, dim, name, initializer, device_vocabulary_size=rows, **arguments)


@contextlib.contextmanager
def initialized(**settings):
    """mx_rec with the keywords of `init`, undone at the end."""
    from mx_rec.util.initialize import init, terminate_config_initializer

    init(**settings)
    try:
        yield
    finally:
        terminate_config_initializer()


def keep_variables(graph=None):
    """Has the sessions of a graph leave it on TensorFlow's variables, whatever `init(stock_tables=...)` says.

    Args:
        graph: The graph; None is the default graph.
    """
    from mx_rec.state.graph_state import graph_state

    graph_state(graph).is_settled = True


def by_turns(first, second, third):
    """Parameters of three kinds: each value of the first with each of the second, and those of the third by turns.

    Each pair of values of two kinds occurs where `third` has no more values than the others.
    """
    return [(one, other, third[(place + turn) % len(third)])
            for place, one in enumerate(first) for turn, other in enumerate(second)]


def bytes_tensor(text):
    """A uint8 tensor with the bytes of `text`."""
    return tf().constant(np.frombuffer(text.encode("utf-8"), np.uint8))


def table_config(name, dim, capacity=1000, seed=7, initializer=None, init_param=1.0, padding_keys=()):
    """The JSON that MxRecTable takes."""
    return json.dumps({
        "name": name, "dim": dim, "capacity": capacity, "seed": seed, "init_param": init_param,
        "padding_keys": list(padding_keys), "initializer": initializer or {"kind": "zeros"},
    })


def prepared(result):
    """What MxRecPrepare gives, as one tuple: offsets for each table, then the inverse index."""
    return tuple(result.offsets) + (result.inverse,)


def update(rule, handles, offsets, grads, hyper, inverses=(), bags=((), (), ()), columns=(), ops=None):
    """The op that updates rows, as it is: for each member a handle, offsets, a gradient and more."""
    from mx_rec.ops.optimizers import optimizer_named

    return (ops or globals()["ops"]()).mx_rec_update(
        handles, offsets, inverses, grads, *bags, [], [], columns, list(hyper), optimizer=optimizer_named(rule).place)


def update_rows(rule, handle, offsets, grad, *hyper):
    """The op that updates rows of one table by their gradients."""
    return update(rule, [handle], [offsets], [grad], hyper)


def update_ids(rule, handle, ids, grad, *hyper, ops=None):
    """The ops that update the rows of ids by gradients of these; unknown ones get rows first."""
    found = (ops or globals()["ops"]()).resolve(handle, ids)
    return update(rule, [handle], [found.offsets], [grad], hyper, [found.inverse], ops=ops)


def kind_of(op):
    """The type of an op or a NodeDef, and which of its forms it is: prepared, of bags, of many tables, and so on."""
    type_, number = (op.op, lambda name: op.attr[name].i) if hasattr(op, "attr") else (op.type, op.get_attr)
    forms = {"MxRecIdOffset": ["prepared"] * (number("P") > 0) if type_ == "MxRecIdOffset" else [],
             "MxRecPrepare": [], "MxRecCheckedIds": []}
    if type_ == "MxRecRead":
        forms[type_] = ["distinct"] * (number("R") == 0) + ["bags"] * (number("B") > 0)
        if number("M") != number("N"):
            return "MxRecRead whole"
    if type_ == "MxRecFind":
        forms[type_] = ["initial"] * (number("initial") > 0) + ["bags"] * (number("B") > 0)
    if type_ not in forms:
        return type_
    many = "M" if type_ == "MxRecPrepare" else "N"
    return " ".join([type_] + forms[type_] + ["of many"] * (number(many) > 1))


def optimizers():
    """The names of the plugin's optimizers."""
    from mx_rec import plugin

    return [one["name"] for one in json.loads(plugin.call("mx_rec_optimizers")[1].decode("utf-8"))]


def pass_over(graph=None):
    """Does what comes before the first run of a graph, the present one without any."""
    from mx_rec.graph.fuse import pass_over

    pass_over(graph or tf().compat.v1.get_default_graph())


def switch_pass(monkeypatch, is_on):
    """From here to the end of the test, or to the next switch, it is as after `init(graph_pass=is_on)`."""
    from mx_rec.state.settings import Settings

    monkeypatch.setitem(vars(Settings.get_instance()), "graph_pass", is_on)


def updates_in(ops):
    """The ops among some that update rows of tables of this process."""
    return [op for op in ops if op.type == "MxRecUpdate"]


def rule_of(op):
    """The optimizer of an update or push, by its name."""
    from mx_rec.ops.optimizers import optimizer_of

    return optimizer_of(op).name


def form_of(op):
    """What the gradients of an update are of: "rows", "ids", or "bags" if some lookups are pooled."""
    return "rows" if op.get_attr("R") == 0 else "bags" if op.get_attr("B") else "ids"


def raw_variable(table):
    """The tensor that raw ops take for a table's variable."""
    return table.variable.op.outputs[0]


def row_of(offset):
    """The row number in an offset, or in each of an array of them; the rest of it is the generation."""
    return offset & (2 ** 31 - 1)


def export(handle, field=""):
    """The keys and one field of all rows: a slot's name, or the embedding."""
    found = ops().mx_rec_export(handle, [bytes_tensor(field)])
    return found.keys, found.values[0]


class Raw:
    """A table reached by its ops alone: made by MxRecTable, or taken from a table's variable."""

    def __init__(self, variable, handle, dim):
        self.variable, self.handle, self.dim = variable, handle, dim
        tf1 = tf().compat.v1
        self._ids = tf1.placeholder(tf().int64, [None])
        self._rows = tf1.placeholder(tf().float32, [None, dim])
        self._assign = ops().mx_rec_assign(handle, self._ids, self._rows, [], [], [])
        self._remove = ops().mx_rec_remove(handle, self._ids)
        self._find = ops().find(handle, variable, self._ids, tf().zeros([0, dim]))
        self.size_op = ops().mx_rec_table_stats(handle)[0]
        self._slots = {"": export(handle)}

    @classmethod
    def new(cls, dim, name="raw", ops=None, **config):
        """A new table made by MxRecTable, by the generated wrappers unless others are given."""
        wrappers = ops or globals()["ops"]()
        made = wrappers.mx_rec_table(bytes_tensor(table_config(name, dim, **config)), tf().zeros([0, dim]))
        return cls(made.variable, made.handle, dim)

    @classmethod
    def of(cls, table):
        """The ops of a table made by `create_table`."""
        outputs = table.variable.op.outputs
        return cls(outputs[0], outputs[1], table.emb_size)

    def slot(self, name):
        """The export op of one slot, or of the embedding for ""; make it before the session runs in threads."""
        if name not in self._slots:
            self._slots[name] = export(self.handle, name)
        return self._slots[name]

    def make_slots(self, case):
        """Makes the export op of each slot of an optimizer's case."""
        for name, _ in case.slots:
            self.slot(name)

    def assign(self, sess, keys, rows):
        """Creates or overwrites rows; returns the size."""
        rows = np.asarray(rows, np.float32).reshape(len(keys), self.dim)
        return sess.run(self._assign, {self._ids: np.asarray(keys, np.int64), self._rows: rows})

    def remove(self, sess, keys):
        """Removes keys; returns how many had a row."""
        return sess.run(self._remove, {self._ids: np.asarray(keys, np.int64)})

    def find(self, sess, keys):
        """Rows of `keys` (n, dim), zeros for unknown ones."""
        return sess.run(self._find, {self._ids: np.asarray(keys, np.int64)})

    def size(self, sess):
        """Rows in use."""
        return int(sess.run(self.size_op))

    def export(self, sess):
        """`(keys, embedding)` in the table's own order."""
        return sess.run(self.slot(""))

    def rows(self, sess):
        """key -> row."""
        keys, values = self.export(sess)
        return dict(zip(keys.tolist(), values))

    def slot_rows(self, sess, name):
        """key -> slot."""
        keys, values = sess.run(self.slot(name))
        return dict(zip(keys.tolist(), values))


def opened(tables, session, is_started=False):
    """(a table or several, reached by their ops alone; a new session)

    Args:
        session: Opens sessions.
        is_started: Whether all variables are to be initialized.
    """
    raws = [Raw.of(table) for table in tables] if isinstance(tables, list) else Raw.of(tables)
    return raws, started(session()) if is_started else session()


def as_array(by_key, keys):
    """Rows of a key -> row dictionary in the order of `keys`."""
    return np.array([by_key[int(key)] for key in keys], np.float32)


def assert_rounding(actual, expected, ulps, scale=None, what=""):
    """Asserts equality to `ulps` units in the last place of the larger of the value and `scale`.

    `scale` is the size of the numbers that were added to get the value: where they cancel, the units of the
    result are too fine a measure.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    assert np.all(np.isfinite(actual)), what
    size = np.abs(expected)
    if scale is not None:
        size = np.maximum(size, scale)
    unit = np.maximum(size, 1e-30) * EPS
    worst = float(np.max(np.abs(actual - expected) / unit)) if actual.size else 0.0
    assert worst <= ulps, "%s: %.2f units in the last place, at most %s are rounding" % (what, worst, ulps)


def assert_same_bits(actual, expected, what=""):
    """Asserts that two float arrays are the same bit for bit."""
    actual, expected = np.asarray(actual, np.float32), np.asarray(expected, np.float32)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    different = np.flatnonzero(actual.view(np.uint32) != expected.view(np.uint32))
    assert different.size == 0, "%s: %d of %d floats differ, the first at %s: %r != %r" % (
        what, different.size, actual.size, different[0], actual.flat[different[0]], expected.flat[different[0]])


def assert_same_tables(actual, expected, what=""):
    """Asserts that two key -> row dictionaries hold the same keys and the same bits."""
    assert sorted(actual) == sorted(expected), what
    keys = sorted(actual)
    if keys:
        assert_same_bits(as_array(actual, keys), as_array(expected, keys), what)


def assert_same_each(actual, expected, what=""):
    """Asserts that each of some float arrays, or dictionaries of rows, is that of others bit for bit."""
    actual, expected = list(actual), list(expected)
    assert len(actual) == len(expected), what
    for one, other in zip(actual, expected):
        (assert_same_tables if isinstance(other, dict) else assert_same_bits)(one, other, what)


def assert_same_rows(sess, raws, others):
    """Asserts that tables hold the same rows as others."""
    assert_same_each([raw.rows(sess) for raw in raws], [raw.rows(sess) for raw in others])


def text_of(path):
    """What a file holds."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def json_of(path):
    """What a file of JSON holds."""
    return json.loads(text_of(path))


def write(path, content):
    """Writes a file of text or bytes."""
    with open(path, "wb") as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def environment_of(env):
    """The environment of a Python process with the packages on its path, and further variables."""
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2")
    environment["PYTHONPATH"] = os.pathsep.join(
        [PACKAGES, os.path.dirname(__file__), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment.update({key: str(value) for key, value in env.items()})
    return environment


def run_python(code, *arguments, **env):
    """Runs `code` in a new Python process with the packages on its path and returns its standard output.

    Keyword arguments are environment variables.
    """
    environment = environment_of(env)
    done = subprocess.run([sys.executable, "-c", code] + [str(argument) for argument in arguments],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    errors = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 0, "exit code %d\n%s" % (done.returncode, errors[-6000:])
    return done.stdout.decode("utf-8")


def fetching(fetches, seen):
    """A hook that has each run of a session fetch what `fetches()` gives, and gives the values to `seen`."""
    class Hook(tf().estimator.SessionRunHook):
        def before_run(self, context):
            return tf().estimator.SessionRunArgs(fetches())

        def after_run(self, context, values):
            seen(values.results)

    return Hook()


def run_by(check, *passed, **arguments):
    """Makes a test of a function whose first parameter is not a fixture but what `check` calls it with.

    Args:
        check: What the test does with the function: `check(function, **arguments)`.
        *passed: Names of fixtures that `check` takes as well.
    """
    def made(function):
        @functools.wraps(function)
        def test(**fixtures):
            given = {name: fixtures[name] if name in names else fixtures.pop(name) for name in passed}
            check(functools.partial(function, **fixtures), **given, **arguments)

        signature = inspect.signature(function)
        names = list(signature.parameters)[1:]
        test.__signature__ = signature.replace(parameters=[
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in names + [name for name in passed if name not in names]])
        return test

    return made


def in_threads(work, arguments, seconds=600):
    """Runs `work(argument)` in a thread for each argument, all at once.

    Returns:
        The results in the order of the arguments; the first error is raised.
    """
    arguments, errors = list(arguments), []
    barrier, results = threading.Barrier(len(arguments)), [None] * len(arguments)

    def run(number):
        try:
            barrier.wait()
            results[number] = work(arguments[number])
        except BaseException as error:  # A thread's error is that of the test.
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def resident_bytes():
    """The resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sealed(content):
    """Returns the text of a checkpoint's manifest with its checksum, made without the plugin."""
    def text(content):
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    content = dict(content, format_version=3)
    return text(dict(content, crc32=zlib.crc32(text(content).encode("utf-8"))))


def saved_table(path):
    """Makes the directory of a sound table, with 2 rows or more, at a path."""
    shutil.copytree(os.path.join(REPO, "tests", "fixtures", "checkpoints", "version_2", "users"), path)
