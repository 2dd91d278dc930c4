"""Models whose lookups are exported in TensorFlow's own ops, and a loader that knows nothing of this package."""

import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

import support

DIM = 3

# Keys that share their low bits, neighbours, and the ends of int64.
KNOWN = np.array([0, 1, 2, 7, -2, -3, 2 ** 62, -2 ** 63, 2 ** 63 - 1] + [one << 40 for one in range(1, 200)]
                 + [one << 50 for one in range(1, 200)], np.int64)
UNKNOWN = np.array([3, -1, -4, 5 << 41 | 1, 2 ** 61, -2 ** 62], np.int64)


def queries(count, seed):
    """Known keys, unknown ones and padding."""
    random = np.random.RandomState(seed)
    return random.choice(np.concatenate([KNOWN, UNKNOWN, UNKNOWN, UNKNOWN]), count)


def make_table(name="items", dim=DIM, **arguments):
    """A table of random rows."""
    from mx_rec.core.embedding import create_table

    tf = support.tf()
    if not arguments.get("sizeless"):
        arguments.setdefault("device_vocabulary_size", 5000)
    arguments.pop("sizeless", None)
    return create_table(key_dtype=tf.int64, dim=dim, name=name,
                        emb_initializer=tf.compat.v1.random_normal_initializer(seed=len(name)), **arguments)


def find(table, ids, **arguments):
    """A lookup of the part that predicts."""
    from mx_rec.core.embedding import sparse_lookup

    return sparse_lookup(table, ids, is_train=False, modify_graph=True, **arguments)


def placeholder(shape, dtype=None, name="ids"):
    tf = support.tf()
    return tf.compat.v1.placeholder(dtype or tf.int64, shape, name=name)


def fill(table, sess, keys=KNOWN):
    """Gives keys rows by a training lookup."""
    raw = support.Raw.of(table)
    rows = np.random.RandomState(len(keys)).randn(len(keys), table.emb_size).astype(np.float32)
    # Bits that arithmetic would change: of a NaN, of a negative zero, of a denormal number.
    rows.view(np.uint32)[:3, 0] = np.array([0x7fa00001, 0x80000000, 1], np.uint32)[:len(keys)]
    raw.assign(sess, keys, rows)


class Model:
    """What a case returns: its tables, inputs and outputs, and what is fed."""

    def __init__(self, tables, inputs, outputs, feeds, keys=KNOWN):
        self.tables, self.inputs, self.outputs, self.feeds, self.keys = tables, inputs, outputs, feeds, keys


def one_lookup(shape, values, dtype=None, **arguments):
    """A case of one lookup."""

    def case(tf):
        table, ids = make_table(), placeholder(shape, dtype)
        return Model([table], {"ids": ids}, {"rows": find(table, ids, **arguments)},
                     [{"ids": value} for value in values])

    return case


def several(tf):
    """Two lookups of one table by other ids, a table by shared ids, a variable of each kind."""
    items, users = make_table(), make_table("users", 5)
    ids, more = placeholder([None]), placeholder([None, 2], tf.int32, "more")
    first, second, third = find(items, ids), find(items, more), find(users, ids)
    weight = tf.compat.v1.get_variable("weight", initializer=[2.5, 0.5, 1.5])
    bias = tf.compat.v1.get_variable("bias", initializer=[0.25] * 5, use_resource=True)
    parts = tf.compat.v1.get_variable("parts", [4], partitioner=tf.compat.v1.fixed_size_partitioner(2))
    return Model([items, users], {"ids": ids, "more": more}, {
        "first": first * weight, "second": second, "third": third + bias,
        "parts": tf.convert_to_tensor(parts)},
        [{"ids": queries(9, 1), "more": np.array([[1, 2], [-1, 3]], np.int32)}])


def default_of_shape(rows):
    """A case with a row for keys without one, for a row or for each id."""

    def case(tf):
        table, ids = make_table(), placeholder([None])
        default = {"one": tf.constant([1.0, 2.0, 3.0]), "scalar": tf.constant(7.5),
                   "each": tf.compat.v1.placeholder_with_default(
                       np.arange(60, dtype=np.float32).reshape(20, DIM), [None, DIM])}[rows]
        return Model([table], {"ids": ids}, {"rows": find(table, ids, serving_default_value=default)},
                     [{"ids": queries(20, 2)}])

    return case


def default_of_unknown_size(tf):
    """Whether there are default rows is known when it runs."""
    table, ids = make_table(), placeholder([None])
    default = placeholder([None, DIM], tf.float32, "default")
    from mx_rec.ops.lookups import find_rows

    rows, = find_rows([table.handle], [table.variable.op.outputs[0]], [ids], [default])
    values = [np.zeros([0, DIM]), np.full([1, DIM], 4.0), np.arange(8.0 * DIM).reshape(8, DIM)]
    return Model([table], {"ids": ids, "default": default}, {"rows": rows},
                 [{"ids": queries(8, 3), "default": value.astype(np.float32)} for value in values])


def branches(tf):
    """Lookups in both branches, one of ids from outside."""
    table, other = make_table(), make_table("users")
    ids, flag = placeholder([None]), placeholder([], tf.bool, "flag")
    rows = tf.cond(flag, lambda: find(table, ids) * 2.0, lambda: find(other, ids + 1))
    return Model([table, other], {"ids": ids, "flag": flag}, {"rows": rows},
                 [{"ids": queries(7, 4), "flag": flag} for flag in (True, False)])


def loops(tf):
    """Lookups in a loop, in a branch in a loop, and in a loop in a loop."""
    table, ids = make_table(), placeholder([None])
    wide = tf.constant([[0.5, 1.0, 2.0]])

    def turn(i, so_far):
        rows = find(table, ids + tf.cast(i, tf.int64))
        rows += tf.cond(tf.equal(i, 1), lambda: find(table, ids, serving_default_value=wide), lambda: rows * 3.0)
        inner = tf.while_loop(lambda j, _: j < 2, lambda j, sums: (
            j + 1, sums + find(table, tf.constant([1, 2, -1], tf.int64))), (tf.constant(0), tf.zeros([3, DIM])))[1]
        return i + 1, so_far + rows + tf.reduce_sum(inner)

    rows = tf.while_loop(lambda i, _: i < 3, turn, (tf.constant(0), tf.zeros([tf.size(ids), DIM])),
                         shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, DIM])))[1]
    return Model([table], {"ids": ids}, {"rows": rows}, [{"ids": np.array([3, 4, 1 << 40, -1])}])


def empty(tf):
    """A table without rows."""
    table, ids = make_table(), placeholder([None])
    rows = find(table, ids, serving_default_value=tf.constant([1.0, 2.0, 3.0]))
    return Model([table], {"ids": ids}, {"rows": rows, "zeros": find(table, ids)},
                 [{"ids": queries(6, 5)}, {"ids": np.zeros([0], np.int64)}], keys=KNOWN[:0])


CASES = {
    "a vector": one_lookup([None], [queries(300, 6), np.zeros([0], np.int64)]),
    "a scalar": one_lookup([], [np.int64(7), np.int64(-1), np.int64(3)]),
    "rank 3": one_lookup([None, 2, 3], [queries(24, 7).reshape(4, 2, 3), np.zeros([0, 2, 3], np.int64)]),
    "unknown rank": one_lookup(None, [queries(6, 8), queries(6, 9).reshape(2, 3)]),
    "int32": one_lookup([None], [np.array([0, 1, -2, -1, 3, 7], np.int32)], "int32"),
    "float": one_lookup([None], [np.array([0, 1, -2, -1, 3, 7], np.float32)], "float32"),
    "int16": one_lookup([None], [np.array([0, 1, -2, -1, 3, 7], np.int16)], "int16"),
    "several": several,
    "one default row": default_of_shape("one"),
    "a scalar default": default_of_shape("scalar"),
    "a default row for each id": default_of_shape("each"),
    "default rows of unknown size": default_of_unknown_size,
    "branches": branches,
    "loops": loops,
    "an empty table": empty,
}


def named_in(request):
    """The values of the parameter `name` in the tests of a fixture's module that this run has."""
    return {item.callspec.params["name"] for item in request.session.items
            if item.module is request.module and "name" in getattr(getattr(item, "callspec", None), "params", ())}


# What a process runs that has TensorFlow and nothing else: models in, predictions out.
LOADER = """
import sys
import numpy as np
import tensorflow as tf
how, out = sys.argv[1:3]
results = {}
for place, directory in enumerate(sys.argv[3:]):
    fed = np.load(directory + ".feeds.npz")
    names = sorted({name.split("|", 1)[0] for name in fed.files}, key=int)
    feeds = [{name.split("|", 1)[1]: fed[name] for name in fed.files if name.startswith(turn + "|")} for turn in names]
    if how == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
            signature = tf.compat.v1.saved_model.loader.load(sess, ["serve"], directory).signature_def["serving_default"]
            found = [sess.run({name: one.name for name, one in signature.outputs.items()},
                              {signature.inputs[name].name: value for name, value in feed.items()}) for feed in feeds]
    elif how == "predictor":
        predictor = tf.contrib.predictor.from_saved_model(directory)
        found = [predictor(feed) for feed in feeds]
    else:
        function = tf.saved_model.load(directory).signatures["serving_default"]
        inputs = {one.name.split(":")[0]: one.dtype for one in function.inputs}
        types = function.structured_input_signature[1]
        found = [{name: value.numpy() for name, value in function(**{
            name: tf.constant(value, types[name].dtype) for name, value in feed.items()}).items()} for feed in feeds]
    for turn, one in enumerate(found):
        for name, value in one.items():
            results["%d|%d|%s" % (place, turn, name)] = value
assert not [name for name in sys.modules if "mx_rec" in name]
np.savez(out, **results)
"""


def save_feeds(directory, feeds):
    """Writes what `load` feeds into the model of a directory."""
    np.savez(directory + ".feeds.npz", **{"{}|{}".format(turn, name): value for turn, feed in enumerate(feeds)
                                          for name, value in feed.items()})


def load(how, directories, out, python):
    """Runs models in a process without this package.

    Args:
        how: "session", "predictor" or "eager".
        directories: Of the models, with what `save_feeds` wrote.
        out: A path for the results.
        python: The interpreter.

    Returns:
        For each model and each of its feeds a dict of outputs.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "MX_REC"))}
    environment.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
    # Isolated, it has neither the working directory nor the user's packages.
    done = subprocess.run([python, "-I", "-c", LOADER, how, out] + list(directories), env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-6000:]
    results = np.load(out)
    found = [{} for _ in directories]
    for key in results.files:
        place, turn, name = key.split("|", 2)
        found[int(place)].setdefault(int(turn), {})[name] = results[key]
    return [[model[turn] for turn in sorted(model)] for model in found]


# Ways to load a model: whether in TensorFlow 2.x, and how.
WAYS = {"1.15 in a session": (False, "session"), "1.15 predictor": (False, "predictor"),
        "2.x in a session": (True, "session"), "2.x eager": (True, "eager")}


def load_in(way, directories, out):
    """Runs models in one of WAYS; the test is skipped if nobody says where TensorFlow 2.x is."""
    in_2x, how = WAYS[way]
    python = os.environ.get("MX_REC_TF2_PYTHON") if in_2x else sys.executable
    if not python:
        pytest.skip("NOT TESTED: plain models in TensorFlow 2.x; MX_REC_TF2_PYTHON names no interpreter")
    return load(how, directories, out, python)


def exported(models, names, limits, tmp_path_factory):
    """Exports models.

    Args:
        models: Cases by name.
        names: Which of them.
        limits: The numbers of `plain_rows.Limits` by name, of those that have not the usual ones.

    Returns:
        name -> (directory, expected outputs).
    """
    from mx_rec.export import plain, plain_rows
    from mx_rec.util.initialize import init, terminate_config_initializer

    tf = support.tf()
    tf.compat.v1.disable_control_flow_v2()
    init()
    parent = os.path.realpath(str(tmp_path_factory.mktemp("plain")))
    made = {}
    for number, name in enumerate(sorted(names)):
        with tf.Graph().as_default(), support.new_session() as sess:
            model = models[name](tf)
            sess.run(tf.compat.v1.global_variables_initializer())
            for table in model.tables:
                fill(table, sess, model.keys)
            directory = "{}/model {}".format(parent, number)
            with mock.patch.object(plain_rows, "LIMITS", plain_rows.Limits(*limits.get(name, ()))):
                assert plain.export_plain(sess, directory, model.inputs, model.outputs) == directory
            expected = [sess.run(model.outputs, {model.inputs[key]: value for key, value in feed.items()})
                        for feed in model.feeds]
            save_feeds(directory, model.feeds)
            made[name] = directory, expected
    terminate_config_initializer()
    return made


@pytest.fixture(scope="module")
def predicted(models, tmp_path_factory):
    """A function that gives what all models predict in one way; each is run once."""
    results = {}
    names = sorted(models)

    def run(way):
        if way not in results:
            out = str(tmp_path_factory.mktemp("out")) + "/out.npz"
            results[way] = dict(zip(names, load_in(way, [models[name][0] for name in names], out)))
        return results[way]

    return run


def ops_of(directory):
    """The types of all ops of a SavedModel, those in functions too, and its bytes."""
    from tensorflow.core.protobuf import saved_model_pb2

    with open(os.path.join(directory, "saved_model.pb"), "rb") as file:
        content = file.read()
    graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def
    nodes = list(graph.node) + [node for function in graph.library.function for node in function.node_def]
    return {node.op for node in nodes}, content
