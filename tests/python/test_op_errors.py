"""Wrong arguments of an op that only show when it runs: an error that names op and table, and the process lives on."""

import json

import numpy as np
import pytest
import tensorflow as tf

import support

DIM = 4


def loose(tf, value, dtype):
    """A tensor whose shape the graph does not know, so that the kernel has to check it."""
    return tf.compat.v1.placeholder_with_default(np.asarray(value, dtype), None)


class Arguments:
    """Valid arguments for every op; another value may be fed for each."""

    def __init__(self, tf, table):
        for name in ("handle", "variable"):
            setattr(self, name, tf.compat.v1.placeholder_with_default(getattr(table, name), None))
        values = {
            "ids": ([1, 2], np.int64), "offsets": ([0, -1], np.int64), "grad": (np.ones([2, DIM]), np.float32),
            "rows": (np.ones([2, DIM]), np.float32), "restore": ([0, 1, -1], np.int32),
            "absent": (np.zeros([0, DIM]), np.float32), "lr": (0.1, np.float32), "zero": (0.0, np.float32),
            "half": (0.5, np.float32), "power": (-0.5, np.float32), "epsilon": (1e-8, np.float32),
            "accumulator": (0.1, np.float32), "wide": (np.ones([3, DIM]), np.float32),
            "beta": (0.9, np.float32), "name": (np.frombuffer(b"Adagrad_accumulator", np.uint8), np.uint8),
            "path": (np.frombuffer(b"/nowhere/at/all", np.uint8), np.uint8), "since": (-1, np.int64), "epoch": (0, np.int64),
            "embedding": (np.zeros(0), np.uint8), "initial": ([0.0, 0.5], np.float32),
            "weight": (1, np.int32), "timestamp": (1000, np.int64), "keys": ([1, 2], np.int64),
            "columns": ([-1, 0], np.int32), "ends": ([1, 3], np.int64), "weights": ([1.0, 2.0, 3.0], np.float32),
            "divisors": ([1.0, 2.0], np.float32), "in_bags": ([1, 2, 1], np.int64), "start": ([0.5], np.float32),
        }
        for name, (value, dtype) in values.items():
            setattr(self, name, loose(tf, value, dtype))


# The numbers of each optimizer, and the forms of an update.
HYPER = {
    "sgd": lambda a: [a.lr, a.zero], "momentum": lambda a: [a.lr, a.half], "nesterov": lambda a: [a.lr, a.half],
    "adagrad": lambda a: [a.lr, a.accumulator], "adagrad_v2": lambda a: [a.lr, a.epsilon, a.accumulator],
    "lazy_adam": lambda a: [a.lr, a.beta, a.beta, a.beta, a.beta, a.epsilon],
    "adam": lambda a: [a.lr, a.beta, a.beta, a.beta, a.beta, a.epsilon],
    "adamw": lambda a: [a.lr, a.beta, a.beta, a.beta, a.beta, a.epsilon, a.lr],
    "nadam": lambda a: [a.lr, a.beta, a.beta, a.beta, a.beta, a.epsilon],
    "scheduled_nadam": lambda a: [a.lr, a.beta, a.beta, a.epsilon] + [a.beta] * 5,
    "adamax": lambda a: [a.lr, a.beta, a.beta, a.beta, a.epsilon],
    "rowwise_adagrad": lambda a: [a.lr, a.accumulator, a.epsilon],
    "rowwise_adam": lambda a: [a.lr, a.beta, a.beta, a.beta, a.beta, a.epsilon],
    **{rule: lambda a: [a.lr, a.half] for rule in ("keras_momentum", "keras_nesterov")},
    "adadelta": lambda a: [a.lr, a.beta, a.epsilon], "proximal_sgd": lambda a: [a.lr, a.zero, a.zero],
    "proximal_adagrad": lambda a: [a.lr, a.accumulator, a.zero, a.zero],
    "ftrl": lambda a: [a.lr, a.power, a.accumulator, a.zero, a.zero, a.zero],
    **{rule: lambda a: [a.lr, a.beta, a.half, a.epsilon, a.accumulator] for rule in ("rmsprop", "centered_rmsprop")},
}
FORMS = {
    "rows": lambda a: ([a.handle], [a.offsets], [a.grad]),
    "group": lambda a: ([a.handle] * 2, [a.offsets] * 2, [a.grad] * 2),
    "ids": lambda a: ([a.handle] * 2, [a.offsets] * 2, [a.wide] * 2, [a.restore] * 2),
    "columns": lambda a: ([a.handle] * 2, [a.offsets] * 2, [a.wide] * 2, [a.restore] * 2, ((), (), ()), [a.columns]),
    "bags": lambda a: ([a.handle] * 2, [a.offsets] * 2, [a.grad] * 2, [a.restore] * 2,
                       ([a.ends] * 2, [a.weights] * 2, [a.divisors] * 2), [a.columns]),
}


def update(rule, form):
    def make(o, a):
        handles, offsets, grads, *more = FORMS[form](a)
        return support.update(rule, handles, offsets, grads, HYPER[rule](a), *more, ops=o)

    return make


CALLS = {
    "MxRecIdOffset": lambda o, a: o.resolve(a.handle, a.ids, create=1).offsets,
    "MxRecRead distinct": lambda o, a: o.lookup(a.handle, a.variable, a.offsets),
    "MxRecRestore": lambda o, a: o.mx_rec_restore(a.rows, a.restore),
    "MxRecRead": lambda o, a: o.embed(a.handle, a.variable, a.offsets, a.restore),
    "MxRecReduce": lambda o, a: o.mx_rec_reduce(a.wide, a.restore, a.offsets),
    "MxRecFind": lambda o, a: o.find(a.handle, a.variable, a.ids, a.absent),
    **{"MxRecUpdate %s rows" % rule: update(rule, "rows") for rule in HYPER},
    **{"MxRecUpdate %s %s" % (rule, form): update(rule, form)
       for rule in ("sgd", "lazy_adam") for form in FORMS if form != "rows"},
    "MxRecIdOffset of many": lambda o, a: o.mx_rec_id_offset(
        [a.handle] * 2, [a.ids] * 2, [], [], create=1).offsets[1],
    "MxRecIdOffset prepared of many": lambda o, a: o.mx_rec_id_offset(
        [a.handle] * 2, [a.ids] * 2, [a.offsets] * 2, [a.restore] * 2, create=1).offsets[1],
    "MxRecRead of many": lambda o, a: o.mx_rec_read(
        [a.handle] * 2, [a.variable] * 2, [a.offsets] * 2, [a.restore] * 2, [], [], [], [], M=2).rows[1],
    "MxRecRead whole": lambda o, a: o.mx_rec_read(
        [a.handle] * 2, [a.variable] * 2, [a.offsets] * 2, [a.restore] * 2, [], [], [], [], M=1).rows[0],
    "MxRecFind of many": lambda o, a: o.mx_rec_find(
        [a.handle] * 2, [a.variable] * 2, [a.ids] * 2, [a.absent] * 2, [], [], [], [])[1],
    "MxRecReduceColumns": lambda o, a: o.mx_rec_reduce_columns(a.wide, a.restore, a.offsets, first=1, dim=DIM - 1),
    "MxRecRead bags of many": lambda o, a: o.mx_rec_read(
        [a.handle] * 2, [a.variable] * 2, [a.offsets] * 2, [a.restore] * 2, [a.ends] * 2, [a.weights] * 2,
        [a.divisors] * 2, [], M=2).rows[1],
    "MxRecFind bags of many": lambda o, a: o.mx_rec_find(
        [a.handle] * 2, [a.variable] * 2, [a.in_bags] * 2, [a.absent] * 2, [a.ends] * 2, [a.weights] * 2,
        [a.divisors] * 2, [])[1],
    "MxRecReadRows": lambda o, a: o.mx_rec_read_rows(
        a.handle, a.offsets, a.grad, [a.embedding, a.name], a.initial).rows,
    "MxRecWriteRows": lambda o, a: o.mx_rec_write_rows(
        a.handle, a.offsets, [a.embedding, a.name], a.initial, [a.grad, a.rows], [a.rows, a.rows]),
    "MxRecObserve": lambda o, a: o.mx_rec_observe(
        a.handle, a.ids, a.weight, a.timestamp, access_threshold=1, eviction_threshold=60).keys,
    "MxRecAdmit": lambda o, a: o.mx_rec_admit(a.handle, a.keys, a.restore).offsets,
    "MxRecSetThreshold": lambda o, a: o.mx_rec_set_threshold(a.handle, a.weight),
    "MxRecEvict": lambda o, a: o.mx_rec_evict(a.handle),
    "MxRecTableStats": lambda o, a: o.mx_rec_table_stats(a.handle),
    "MxRecExport": lambda o, a: o.mx_rec_export(a.handle, [a.embedding, a.name]).keys,
    "MxRecAssign": lambda o, a: o.mx_rec_assign(a.handle, a.ids, a.rows, [], [], []),
    "MxRecAssign slots": lambda o, a: o.mx_rec_assign(a.handle, a.ids, a.rows, [a.name], a.start, [a.grad]),
    "MxRecRemove": lambda o, a: o.mx_rec_remove(a.handle, a.ids),
    "MxRecClear": lambda o, a: o.mx_rec_clear(a.handle, [], [], []),
    "MxRecSave": lambda o, a: o.mx_rec_save(a.handle, a.path, a.since, 0).rows,
    "MxRecSave delta": lambda o, a: o.mx_rec_save(a.handle, a.path, a.epoch, a.epoch).rows,
    "MxRecLoad": lambda o, a: o.mx_rec_load(a.handle, a.path, []).rows,
    "MxRecLoad slots": lambda o, a: o.mx_rec_load(a.handle, a.path, [a.name]).rows,
}


@pytest.fixture(scope="module")
def called():
    """For each of CALLS, made at its first use: a session, its table, its arguments and the tensor that runs it."""
    made = {}

    def of(op, name=""):
        # The variables of an op are looked at until a run has found them right: those of no other test.
        at = (op, len(made)) if name == "variable" else op
        if at not in made:
            with tf.Graph().as_default() as graph:
                table = support.Raw.new(DIM, name="checked_table")
                arguments = Arguments(tf, table)
                made[at] = support.new_session(graph), table, arguments, CALLS[op](support.ops(), arguments)
        return made[at]

    yield of
    for sess, *_ in made.values():
        sess.close()


NAN, INF = float("nan"), float("inf")
F, I, N = np.float32, np.int64, np.int32
UPDATES = [op for op in CALLS if op.startswith("MxRecUpdate")]
UNSUMMED = [op for op in UPDATES if op.endswith(("ids", "columns"))]
SUMMED = [op for op in UPDATES if op not in UNSUMMED]
GROUPED = [op for op in UPDATES if op.endswith(("columns", "bags"))]
POOLED = [op for op in CALLS if "Pooled" in op or "bags" in op]
HANDLES = [op for op in CALLS if op not in ("MxRecRestore", "MxRecReduce", "MxRecReduceColumns")]
FIELDS = ["MxRecReadRows", "MxRecWriteRows"]

WRONG = (
    [(op, "handle", value, I) for op in HANDLES for value in (0, 123456789, [1, 2])]
    + [("MxRecRead distinct", "offsets", value, I) for value in ([0, 5], [-2], [2 ** 40], [[0, 1]], 0)]
    + [("MxRecRead distinct", "variable", value, F) for value in (np.zeros([0, 3]), np.zeros([4]), np.zeros([0, 5]))]
    + [("MxRecRead", "offsets", value, I) for value in ([0, 5], [-2, 0], [2 ** 40, 0], [[0, 1]], 0, [0])]
    + [("MxRecRead", "restore", value, N) for value in ([2], [-2], [2 ** 31 - 1])]
    + [("MxRecRead", "variable", value, F) for value in (np.zeros([0, 3]), np.zeros([4]), np.zeros([0, 5]))]
    + [("MxRecFind", "absent", value, F) for value in (
        np.zeros([3, DIM]), np.zeros([1, 3]), np.zeros([DIM]), np.zeros([1, 1, DIM]))]
    + [("MxRecFind", "variable", np.zeros([0, 3]), F)]
    + [("MxRecRestore", "restore", value, N) for value in ([2], [-2], [2 ** 31 - 1])]
    + [("MxRecRestore", "rows", value, F) for value in (np.ones([DIM]), np.ones([1, 2, DIM]), 1.0)]
    + [("MxRecReduce", "restore", value, N) for value in ([0, 1], [0, 1, 2], [0, 1, -2], [[0, 1, 0]])]
    + [("MxRecReduce", "wide", value, F) for value in (np.ones([2, DIM]), np.ones([3]), 1.0)]
    + [(op, "wide", value, F) for op in UNSUMMED for value in (np.ones([2, DIM]), np.ones([3, 3]), np.ones([3]), 1.0)]
    + [(op, "restore", value, N) for op in UNSUMMED for value in ([0, 1], [0, 1, 2], [0, 1, -2], [[0, 1, 0]])]
    + [(op, "grad", value, F) for op in SUMMED for value in (np.ones([3, DIM]), np.ones([2, 3]), np.ones([8]), 1.0)]
    + [(op, "offsets", value, I) for op in UPDATES for value in ([0, 9], [0, -2], [[0, 1]])]
    + [(op, "lr", value, F) for op in UPDATES for value in (NAN, INF, -1.0, [0.1], [])]
    + [("MxRecUpdate sgd rows", "zero", value, F) for value in (NAN, INF, -1.0)]
    + [("MxRecUpdate %s rows" % rule, "half", value, F) for rule in ("momentum", "nesterov") for value in (NAN, INF)]
    + [("MxRecUpdate adagrad rows", "accumulator", value, F) for value in (NAN, INF, -1.0)]
    + [("MxRecUpdate %s rows" % rule, "beta", value, F) for rule in ("lazy_adam", "adam") for value in (NAN, INF, -0.5)]
    + [("MxRecUpdate %s rows" % rule, "epsilon", value, F)
       for rule in ("lazy_adam", "adam") for value in (NAN, INF, -1.0)]
    + [("MxRecUpdate adam rows", "epsilon", 0.0, F)]
    + [("MxRecUpdate ftrl rows", "power", value, F) for value in (NAN, 1.0, -INF)]
    + [("MxRecUpdate ftrl rows", "zero", value, F) for value in (NAN, INF, -1.0)]
    + [("MxRecUpdate ftrl rows", "accumulator", value, F) for value in (NAN, -1.0)]
    + [("MxRecUpdate %s rows" % rule, name, value, F) for rule in ("rmsprop", "centered_rmsprop") for name, wrong in (
        ("beta", (NAN, -0.5, 1.5)), ("half", (NAN, INF)), ("epsilon", (INF, -1.0)), ("accumulator", (NAN, -1.0)))
       for value in wrong]
    + [(op, "rows", value, F) for op in ("MxRecAssign", "MxRecAssign slots") for value in (np.ones([3, DIM]), np.ones([2, 3]), np.ones([8]))]
    + [("MxRecAssign slots", "grad", value, F) for value in (np.ones([3, DIM]), np.ones([2, 3]), np.ones([8]), 1.0)]
    + [("MxRecAssign slots", "start", value, F) for value in ([], [NAN], [-INF], 0.5, [0.5, 0.5], [[0.5]])]
    + [(op, "columns", value, N) for op in GROUPED for value in ([0], [0, 1], [0, 2 ** 31 - 1], [[0, 0]], [])]
    + [(op, "offsets", value, I) for op in ("MxRecRead of many", "MxRecRead whole") for value in ([0, 5], [[0, 1]])]
    + [(op, "restore", value, N) for op in ("MxRecRead of many", "MxRecRead whole") for value in ([2], [-2])]
    + [(op, "variable", value, F) for op in ("MxRecRead of many", "MxRecRead whole", "MxRecFind of many")
       for value in (np.zeros([0, 3]), np.zeros([4]))]
    + [(op, "ends", value, I) for op in POOLED for value in ([1, 2], [4, 3], [-1, 3], [3], [1, 2, 3], [])]
    + [(op, "weights", value, F) for op in POOLED for value in ([1.0], np.ones([2, 2]))]
    + [(op, "divisors", value, F) for op in POOLED for value in ([1.0], np.ones([3]))]
    + [(op, "restore", value, N) for op in POOLED if "Find" not in op
       for value in ([0, 1], [0, 1, 2], [0, 1, -2])]
    + [("MxRecRead bags of many", "offsets", value, I) for value in ([0, 5], [[0, 1]])]
    + [(op, "variable", value, F) for op in ("MxRecRead bags of many", "MxRecFind bags of many")
       for value in (np.zeros([0, 3]), np.zeros([4]))]
    + [("MxRecFind of many", "absent", value, F) for value in (np.zeros([3, DIM]), np.zeros([1, DIM + 1]), np.zeros([DIM]))]
    + [("MxRecFind bags of many", "absent", value, F) for value in (
        np.zeros([2, DIM]), np.zeros([1, DIM + 1]), np.zeros([DIM]))]
    + [("MxRecReduceColumns", "wide", value, F) for value in (np.ones([3, DIM - 1]), np.ones([2, DIM]), np.ones([3]))]
    + [(op, "offsets", value, I) for op in FIELDS for value in ([0, 9], [0, -2], [[0, 1]], 0, [0])]
    + [(op, "grad", value, F) for op in FIELDS for value in (np.ones([3, DIM]), np.ones([2, 3]), np.ones([8]), 1.0)]
    + [("MxRecWriteRows", "rows", value, F) for value in (np.ones([3, DIM]), np.ones([2, 3]), np.ones([8]), 1.0)]
    + [(op, "initial", value, F) for op in FIELDS for value in ([0.0], [0.0, NAN], [0.0, -INF], 0.5, [[0.0, 0.5]])]
    + [(op, "name", np.frombuffer(value, np.uint8), np.uint8) for op in FIELDS + ["MxRecAssign slots"] for value in (
        b"a/b", b"", b"\xff", b"key", b"..")]
    + [("MxRecObserve", "weight", value, N) for value in (-1, -2 ** 31, [1, 1])]
    + [("MxRecObserve", "timestamp", value, I) for value in (0, -1, 2 ** 32 - 1, 2 ** 62, [1, 2], [[1]], [])]
    + [("MxRecAdmit", "keys", value, I) for value in ([1], [-1, 2], [7, 7], [[1, 2]], 1)]
    + [("MxRecAdmit", "restore", value, N) for value in ([2], [-2], [2 ** 31 - 1])]
    + [("MxRecSetThreshold", "weight", value, N) for value in (-1, -2 ** 31, [1])]
    + [("MxRecExport", "name", np.frombuffer(value, np.uint8), np.uint8) for value in (b"no_such_slot", b"\xff")]
    + [(op, "path", np.frombuffer(value, np.uint8), np.uint8) for op in ("MxRecLoad", "MxRecLoad slots") for value in (
        b"/nowhere/at/all", b"", b"\xff\xfe", b"a\x00b")]
    + [(op, "path", np.frombuffer(value, np.uint8), np.uint8) for op in ("MxRecSave", "MxRecSave delta") for value in (
        b"/proc/no/such/place", b"", b"a\x00b")]
    + [("MxRecSave delta", "epoch", value, np.int64) for value in (-2, 2 ** 32, 3)]
    + [("MxRecSave", "since", value, np.int64) for value in ([-1], 0)]
)


def describe(case):
    value = case[2]
    if isinstance(value, np.ndarray):
        value = "x".join(map(str, value.shape)) if value.dtype != np.uint8 else "%d_bytes" % value.size
    return "%s-%s-%s" % (case[0].replace(" ", "_"), case[1], str(value).replace(" ", ""))


@pytest.mark.parametrize("op, name, value, dtype", WRONG, ids=[describe(case) for case in WRONG])
def test_a_wrong_argument_is_an_error_that_names_op_and_table_and_changes_nothing(called, op, name, value, dtype):
    """What is wrong of one op is told in one session: what follows an error works as before."""
    sess, table, arguments, run = called(op, name)
    table.assign(sess, [1, 2], np.arange(2 * DIM))
    before = table.export(sess)
    with pytest.raises(tf.errors.OpError) as error:
        sess.run(run, {getattr(arguments, name): np.asarray(value, dtype)})
    message = str(error.value.message)
    assert op.split()[0] in message
    if name != "handle" and op in HANDLES:
        assert "checked_table" in message
    assert "panic" not in message.lower()
    assert not isinstance(error.value, (tf.errors.InternalError, tf.errors.CancelledError))
    after = table.export(sess)
    assert sorted(before[0].tolist()) == [1, 2] and after[0].tolist() == before[0].tolist()
    support.assert_same_bits(after[1], before[1])
    if op.split()[0] not in ("MxRecExport", "MxRecLoad", "MxRecSave"):
        sess.run(run)
        table.remove(sess, [key for key in table.rows(sess) if key not in (1, 2)])


CONFIGS = [
    ("not json", "{"), ("empty", ""), ("an array", "[]"), ("no name", {"name": None}), ("dim 0", {"dim": 0}),
    ("dim too big", {"dim": 8193}), ("dim that is not the variable's", {"dim": DIM + 1}), ("capacity 0", {"capacity": 0}),
    ("capacity too big", {"capacity": 2 * 10 ** 9 + 1}), ("negative capacity", {"capacity": -1}),
    ("seed of the wrong type", {"seed": "seven"}), ("negative seed", {"seed": -1}),
    ("unknown initializer", {"initializer": {"kind": "orthogonal"}}), ("initializer without kind", {"initializer": {}}),
    ("uniform without bounds", {"initializer": {"kind": "random_uniform"}}),
    ("uniform upside down", {"initializer": {"kind": "random_uniform", "min": 1.0, "max": -1.0}}),
    ("negative stddev", {"initializer": {"kind": "random_normal", "mean": 0.0, "stddev": -1.0}}),
    ("padding key of the wrong type", {"padding_keys": ["a"]}), ("init_param of the wrong type", {"init_param": "x"}),
]


@pytest.mark.parametrize("change", [case[1] for case in CONFIGS], ids=[case[0] for case in CONFIGS])
def test_a_wrong_configuration_is_an_error_of_the_table_op(graph, session, change):
    text = change
    if isinstance(change, dict):
        config = json.loads(support.table_config("configured", DIM))
        config.update(change)
        text = json.dumps(config)
    made = support.ops().mx_rec_table(support.bytes_tensor(text), tf.zeros([0, DIM]))
    size = support.ops().mx_rec_table_stats(made.handle)
    sess = session()
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            sess.run(size)
        assert "MxRecTable" in str(error.value.message)


def test_non_finite_gradients_go_where_tensorflow_puts_them(graph, session):
    """They are the model's own numbers: the row becomes NaN as a variable would, and others stay clean."""
    table = support.Raw.new(2)
    update = support.update_ids(
        "sgd", table.handle, tf.constant([1, 2], tf.int64), tf.constant([[NAN, 1.0], [1.0, 1.0]]), 1.0, 0.0)
    sess = session()
    sess.run(update)
    rows = table.rows(sess)
    assert np.isnan(rows[1][0]) and rows[1][1] == -1 and rows[2].tolist() == [-1, -1]


def test_messages_of_names_with_quotes_and_unicode_are_readable(graph, session):
    table = support.Raw.new(1, name="caf\u00e9 \"t\" {0} %s", capacity=1)
    sess = session()
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        table.assign(sess, [1, 2], [[1], [2]])
    assert "caf" in str(error.value.message) and "%s" in str(error.value.message)


def test_every_optimizer_of_the_plugin_is_tried():
    assert set(HYPER) == set(support.optimizers())


@pytest.mark.parametrize("rule, slot", [("adagrad", "Adagrad_accumulator"), ("ftrl", "Ftrl_accum"),
                                        ("centered_rmsprop", "RMSProp_mg")])
def test_a_bad_hyperparameter_does_not_add_slots(graph, session, rule, slot):
    table = support.Raw.new(DIM)
    arguments = Arguments(tf, table)
    run = update(rule, "rows")(support.ops(), arguments)
    table.slot(slot)
    sess = session()
    table.assign(sess, [1, 2], np.zeros([2, DIM]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(run, {arguments.lr: NAN})
    with pytest.raises(tf.errors.OpError):
        table.slot_rows(sess, slot)
