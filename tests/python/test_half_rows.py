"""Rows of 2 bytes a value: the numbers of a NumPy oracle after every step, through every way in which rows are read, updated and saved."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from cluster_cases import RUN, Job, run_alone
from mx_rec.checkpoint import tables
from mx_rec.core.embedding import create_table, sparse_lookup_many, sparse_lookup_pooled
from mx_rec.optimizers import gradient_descent, rowwise_adagrad as adagrad, rowwise_adam as adam
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.saver.sparse import export
from mx_rec.state.table_variable import table_config_of
from mx_rec.util.stats import table_stats

HALVES = ["bfloat16", "float16"]
KEYS = np.array([0, 1, -1 - 2 ** 40, 5, 2 ** 33 + 5, 11, 977], np.int64)
DIM = 21


def mixed(number):
    """The second half of a step of SplitMix64, of an integer of any size."""
    number %= 2 ** 64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2 ** 64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2 ** 64
    return number ^ number >> 31


def draws(seed, key, dim, update):
    """The 16 random bits of each column of a row, as docs/half-rows.md has them."""
    golden, words = 0x9E3779B97F4A7C15, -(-dim // 2)
    row = mixed(mixed(seed ^ mixed(update * golden)) + (int(key) * golden % 2 ** 64 >> 32) * golden)
    found = []
    for word in range(words):
        bits = (row + word * 0x9E3779B9) % 2 ** 32
        bits = (bits ^ bits >> 16) * 0x21F0AAAD % 2 ** 32
        bits = (bits ^ bits >> 15 ^ row >> 32) * 0x735A2D97 % 2 ** 32
        found.append(bits ^ bits >> 15)
    return np.array([found[c % words] >> 16 * (c // words) & 0xFFFF for c in range(dim)], np.uint32)


def rounded(values, dtype, random=None):
    """float32 as values of 2 bytes hold it, in float64: `random` of 16 bits, or to the nearest even."""
    bits, least, largest = (7, -126, 3.3895314e38) if dtype == "bfloat16" else (10, -14, 65504.0)
    size = np.abs(np.asarray(values, np.float64))
    exponent = np.maximum(np.frexp(size)[1] - 1, least)
    step = np.exp2(exponent - bits)
    if random is None:
        parts = np.rint(size / step)
    else:
        small = size < 2.0 ** least
        count = np.where(small | (dtype == "bfloat16"), 2 ** 16, 2 ** 13)
        parts = np.floor(size / step + (random % count) / count)
    return np.copysign(np.minimum(parts * step, largest), values).astype(np.float32)


class Oracle:
    """Rows of one table that a NumPy optimizer updates in float32, rounded after each step."""

    def __init__(self, seed, dtype, rounding, rows, optimizer):
        self.seed, self.dtype, self.rounding, self.optimizer = seed, dtype, rounding, optimizer
        self.rows = {key: rounded(row, dtype) for key, row in rows.items()}
        self.slots, self.updates = {}, 0

    def step(self, grads):
        """Updates by `key -> gradient`."""
        self.updates += 1
        for key, grad in grads.items():
            row, self.slots[key] = self.optimizer(self.rows[key], self.slots.get(key), grad, self.updates)
            random = draws(self.seed, key, len(row), self.updates) if self.rounding == "stochastic" else None
            self.rows[key] = rounded(row, self.dtype, random)


def sgd(row, slot, grad, step):
    return row - np.float32(0.1) * grad, None


def mean_square(grad):
    """The mean of squares of a float32 gradient: 16 sums by column, added in halves."""
    sums = np.zeros(16, np.float32)
    for at, value in enumerate(grad):
        sums[at % 16] += value * value
    for width in (8, 4, 2, 1):
        sums[:width] += sums[width:2 * width]
    return sums[0] / np.float32(len(grad))


def rowwise_adagrad(row, slot, grad, step):
    """EXACT_ROWWISE_ADAGRAD of FBGEMM."""
    slot = (np.float32(0.0) if slot is None else slot) + mean_square(grad)
    return row - np.float32(0.1) * grad / (np.sqrt(slot) + np.float32(1e-8)), slot


def rowwise_adam(row, slot, grad, step):
    m, v = (np.zeros_like(row), np.float32(0.0)) if slot is None else slot
    one, other = np.float32(0.9), np.float32(0.999)
    power = [np.float32(1.0), np.float32(1.0)]
    for _ in range(step):
        power = [power[0] * one, power[1] * other]
    lr = np.float32(0.1) * np.sqrt(np.float32(1) - power[1]) / (np.float32(1) - power[0])
    v = other * v + (np.float32(1) - other) * mean_square(grad)
    m = one * m + (np.float32(1) - one) * grad
    return row - lr * m / (np.sqrt(v) + np.float32(1e-8)), (m, v)


def optimizer_named(name):
    return {"sgd": gradient_descent, "rowwise_adagrad": adagrad, "rowwise_adam": adam}[name].create_hash_optimizer(0.1)


def make(name="t", dtype="bfloat16", dim=DIM, rows=1000, **arguments):
    return support.make_table(name, dim, rows, tf.compat.v1.random_uniform_initializer(-1, 1, seed=3),
                              row_dtype=dtype, **arguments)


def seed_of(table):
    return table_config_of(table.variable.op)["seed"]


class Model:
    """A table that is trained by gradients that are fed: the sum of rows times what is fed."""

    def __init__(self, optimizer="sgd", dtype="bfloat16", look=None, **arguments):
        v1 = tf.compat.v1
        self.table = make(dtype=dtype, **arguments)
        self.ids, self.factors = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, DIM])
        self.rows = support.lookup(self.table, self.ids) if look is None else look(self.table, self.ids)
        made = optimizer_named(optimizer) if isinstance(optimizer, str) else optimizer
        loss = tf.reduce_sum(self.rows * self.factors)
        self.train = made.minimize(loss, var_list=[self.table.variable])
        self.raw = support.Raw.of(self.table)
        self.init, self.saver = v1.global_variables_initializer(), v1.train.Saver(max_to_keep=99)

    def step(self, sess, number, size=9):
        """Step `number`; returns the gradient of each key."""
        random = np.random.RandomState(number)
        ids = KEYS[random.randint(0, len(KEYS), size)]
        factors = random.uniform(-1, 1, [size, DIM]).astype(np.float32)
        sess.run(self.train, {self.ids: ids, self.factors: factors})
        return grads_by_key(ids, factors)


def grads_by_key(ids, grads):
    """The sum of the gradients of each key, in the order of the batch."""
    found = {}
    for key, grad in zip(ids.tolist(), grads):
        found[key] = found[key] + grad if key in found else grad
    return found


def initial_rows():
    """What the keys of a table of this name start with in float32; the default graph is another one afterwards."""
    rows = support.lookup(make("t", "float32"), tf.constant(KEYS))
    with support.started(support.new_session()) as sess:
        found = dict(zip(KEYS.tolist(), sess.run(rows)))
    tf.compat.v1.reset_default_graph()
    return found


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", [sgd, rowwise_adagrad, rowwise_adam], ids=lambda one: one.__name__)
def test_rows_are_the_oracles_bit_for_bit_after_every_step(graph, session, dynamic, optimizer, dtype, rounding):
    rows = initial_rows()
    model = Model(optimizer.__name__, dtype, row_rounding=rounding)
    sess = support.started(session(), model.init)
    oracle = Oracle(seed_of(model.table), dtype, rounding, rows, optimizer)
    for number in range(25):
        oracle.step(model.step(sess, number))
        for key, row in model.raw.rows(sess).items():
            np.testing.assert_array_equal(row, oracle.rows[key], "%d after step %d" % (key, number))
    assert set(model.raw.rows(sess)) == set(KEYS.tolist())
    found = model.raw.find(sess, KEYS)
    np.testing.assert_array_equal(found, [oracle.rows[key] for key in KEYS.tolist()])
    if optimizer is rowwise_adagrad:
        assert model.table.ext_emb_size == DIM + 1
        slots = model.raw.slot_rows(sess, "RowwiseAdagrad_accumulator")
        assert {key: slot.tolist() for key, slot in slots.items()} == \
            {key: [float(slot)] for key, slot in oracle.slots.items()}


@pytest.mark.parametrize("optimizer", [rowwise_adagrad, rowwise_adam], ids=lambda one: one.__name__)
def test_rowwise_optimizers_of_float32_rows_are_the_oracles(graph, session, dynamic, optimizer):
    rows, state = initial_rows(), {}
    model = Model(optimizer.__name__, "float32")
    sess = support.started(session(), model.init)
    for number in range(30):
        for key, grad in model.step(sess, number).items():
            rows[key], state[key] = optimizer(rows[key], state.get(key), grad, number + 1)
        for key, row in model.raw.rows(sess).items():
            np.testing.assert_array_equal(row, rows[key])


@pytest.mark.parametrize("dtype", HALVES)
def test_every_lookup_gives_the_rows_that_the_table_has(graph, session, dynamic, dtype):
    one, other = make("one", dtype), make("other", "float32", 6)
    ids = tf.constant(KEYS)
    bags = tf.RaggedTensor.from_row_splits(ids, [0, 3, 3, len(KEYS)])
    plain = support.lookup(one, ids)
    pooled = [sparse_lookup_pooled(one, bags, is_train=is_train, combiner="sum", modify_graph=True)
              for is_train in (True, False)]
    many = sparse_lookup_many([one, other, one], [ids, ids, ids[:3]], modify_graph=True)
    joined = tf.concat([support.lookup(one, ids), support.lookup(other, ids)], 1)
    found = support.Raw.of(one)
    sess = support.started(session())
    rows = sess.run(plain)
    np.testing.assert_array_equal(rows, rounded(rows, dtype))
    assert len(set(rows.ravel().tolist())) > 60
    for bag in sess.run(pooled):
        expected = np.zeros([3, DIM], np.float32)
        for at, row in enumerate(rows):
            expected[0 if at < 3 else 2] += row
        np.testing.assert_array_equal(bag, expected)
    many_rows = sess.run(many)
    np.testing.assert_array_equal(many_rows[0], rows)
    np.testing.assert_array_equal(many_rows[2], rows[:3])
    np.testing.assert_array_equal(sess.run(joined)[:, :DIM], rows)
    np.testing.assert_array_equal(found.find(sess, KEYS), rows)


def trained(model, sess, steps):
    for number in steps:
        model.step(sess, number)
    return model.raw.rows(sess)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_training_goes_on_after_a_restore_as_if_nothing_had_been(graph, session, dynamic, place, dtype, optimizer):
    model = Model(optimizer, dtype)
    sess = support.started(session(), model.init)
    trained(model, sess, range(6))
    path = model.saver.save(sess, place + "/m", global_step=6)
    expected = trained(model, sess, range(6, 14))
    other = support.restored(session(), model.saver, path)
    support.assert_same_tables(trained(model, other, range(6, 14)), expected)
    directory = place + "/sparse-m-6/t"
    manifest = support.json_of(directory + "/manifest.json")
    assert manifest["table"]["row_storage"]["dtype"] == dtype and manifest["updates"] == 6 and manifest["version"] == 4
    assert os.path.getsize(directory + "/embedding/slice.data") == 2 * DIM * manifest["rows"]


def test_files_of_float32_tables_say_nothing_of_it(graph, session, dynamic, place):
    model = Model("sgd", "float32")
    sess = support.started(session(), model.init)
    trained(model, sess, range(3))
    model.saver.save(sess, place + "/m")
    manifest = support.json_of(place + "/sparse-m/t/manifest.json")
    assert manifest["version"] == 2 and "updates" not in manifest and "row_storage" not in manifest["table"]


def test_a_checkpoint_of_another_type_is_refused_or_converted_as_asked(graph, session, dynamic, place):
    model = Model("rowwise_adagrad", "float32")
    sess = support.started(session(), model.init)
    rows = trained(model, sess, range(4))
    path = model.saver.save(sess, place + "/m")
    for dtype in HALVES:
        for conversion in (None, "nearest", "stochastic"):
            tf.compat.v1.reset_default_graph()
            other = Model("rowwise_adagrad", dtype, row_conversion=conversion)
            with support.new_session() as found:
                if conversion is None:
                    with pytest.raises(Exception) as caught:
                        other.saver.restore(found, path)
                    text = str(caught.value)
                    assert "row_conversion" in text and "checkpoint_row_dtype=float32" in text, text
                    assert "table=t" in text and "row_dtype=%s" % dtype in text, text
                    continue
                other.saver.restore(found, path)
                seed = seed_of(other.table)
                for key, row in other.raw.rows(found).items():
                    random = draws(seed, key, DIM, 0) if conversion == "stochastic" else None
                    np.testing.assert_array_equal(row, rounded(rows[key], dtype, random))
                halves = trained(other, found, range(4, 6))
                back = other.saver.save(found, place + "/back-" + dtype)
            tf.compat.v1.reset_default_graph()
            wide = Model("rowwise_adagrad", "float32", row_conversion="nearest")
            with support.restored(support.new_session(), wide.saver, back) as found:
                support.assert_same_tables(wide.raw.rows(found), halves)


@pytest.mark.parametrize("dtype", HALVES)
def test_deltas_restore_what_a_whole_save_would_and_training_goes_on(graph, session, mx, place, dtype):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    model = Model("rowwise_adam", dtype)
    with support.started(support.new_session(), model.init) as sess:
        for step in range(4):
            trained(model, sess, range(3 * step, 3 * step + 3))
            path = model.saver.save(sess, place + "/m", global_step=step, save_delta=step > 0)
        powers = sess.run(tf.compat.v1.global_variables())
        expected = trained(model, sess, range(20, 24))
    assert os.path.isdir(place + "/delta-sparse-m-3")
    with support.restored(support.new_session(), model.saver, path) as sess:
        assert sess.run(tf.compat.v1.global_variables()) == powers
        support.assert_same_tables(trained(model, sess, range(20, 24)), expected)


def trained_on_servers_as_alone(servers, **variables):
    """Trains in one process and on servers, and expects the same bits of both; returns what one process found."""
    alone = json.loads(run_alone(RUN, **variables).strip().splitlines()[-1])
    with Job(RUN, ps=servers, **variables) as job:
        found = json.loads(job.worker().strip().splitlines()[-1])
    for name in ("loss", "step", "sizes", "rows"):
        assert found[name] == alone[name], name
    return alone


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("servers", [1, 3])
def test_parameter_servers_train_the_bits_of_one_process(dtype, servers):
    alone = trained_on_servers_as_alone(servers, OPTIMIZER="rowwise", ROW_DTYPE=dtype)
    plain = json.loads(run_alone(RUN, OPTIMIZER="rowwise").strip().splitlines()[-1])
    assert plain["rows"] != alone["rows"]


@pytest.mark.parametrize("dtype", HALVES)
def test_exports_have_the_rows(graph, session, dynamic, place, dtype):
    import mx_rec.saver

    model = Model("rowwise_adagrad", dtype)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    found = support.lookup(model.table, ids, is_train=False)
    sess = support.started(session(), model.init)
    rows = trained(model, sess, range(5))
    model.saver.save(sess, place + "/m", global_step=1)
    assert export() == 1
    content = np.load(place + "/sparse-m-1/t/key-emb.npy", allow_pickle=True).item()
    support.assert_same_tables(content, rows)
    directory = place + "/plain"
    mx_rec.saver.export_plain(sess, directory, {"ids": ids}, {"rows": found})
    code = """
import json, sys
import numpy as np
import tensorflow as tf
with tf.compat.v1.Session(graph=tf.Graph()) as sess:
    signature = tf.compat.v1.saved_model.load(sess, ["serve"], sys.argv[1]).signature_def["serving_default"]
    print(json.dumps(sess.run(signature.outputs["rows"].name, {signature.inputs["ids"].name: json.loads(sys.argv[2])}).tolist()))
"""
    out = preloaded.run_python(code, directory, json.dumps(sorted(rows)))
    np.testing.assert_array_equal(np.array(json.loads(out.strip().splitlines()[-1]), np.float32),
                                  [rows[key] for key in sorted(rows)])


@pytest.mark.parametrize("dtype", HALVES)
def test_the_checkpoint_command_shows_the_values(graph, session, dynamic, place, dtype):
    model = Model("rowwise_adagrad", dtype)
    sess = support.started(session(), model.init)
    rows = trained(model, sess, range(5))
    model.saver.save(sess, place + "/m")
    later = trained(model, sess, range(5, 6))
    model.saver.save(sess, place + "/n")
    here, there = place + "/sparse-m/t", place + "/sparse-n/t"
    described = tables.describe(here)
    assert not described["faults"] and described["dim"] == DIM
    assert not tables.verify(here)["faults"]
    key = sorted(rows)[0]
    embedding, slot = tables.find_row(here, key)["parts"]
    np.testing.assert_array_equal(np.array(embedding["values"], np.float32), rows[key])
    assert len(slot["values"]) == 1
    found = tables.diff(here, there)
    changed = [key for key in rows if not np.array_equal(rows[key], later[key])]
    assert found["differing"]["count"] == len(changed) > 0
    largest = max(float(np.abs(rows[key].astype(float) - later[key]).max()) for key in rows)
    assert found["parts"][0]["largest"] == largest


def test_admission_eviction_and_new_rows_in_the_places_of_others(graph, session, dynamic):
    """A row that takes the place of another key's is rounded by its own key."""
    model = Model("sgd", "bfloat16")
    sess = support.started(session(), model.init)
    trained(model, sess, range(4))
    assert model.raw.remove(sess, KEYS[:4]) > 0
    rows = trained(model, sess, range(4, 5))
    # The same in a table that never had another key in the places of these.
    seed, number = seed_of(model.table), 5
    for step in range(5, 9):
        before = model.raw.rows(sess)
        grads = model.step(sess, step)
        number += 1
        after = model.raw.rows(sess)
        for key, grad in grads.items():
            if key in before:
                expected = rounded(before[key] - np.float32(0.1) * grad, "bfloat16", draws(seed, key, DIM, number))
                np.testing.assert_array_equal(after[key], expected)
    assert rows


def test_optimizers_of_users_read_floats_and_are_rounded(graph, session, dynamic):
    class Plain(tf.compat.v1.train.Optimizer):
        """w -= 0.1 g, written by a user."""

        def __init__(self):
            super().__init__(False, "Plain")

        def _apply_sparse(self, grad, var):
            return tf.compat.v1.scatter_sub(var, grad.indices, 0.1 * grad.values).op

        def _apply_dense(self, grad, var):
            return var.assign_sub(0.1 * grad).op

    found = []
    for optimizer in ("sgd", Plain()):
        tf.compat.v1.reset_default_graph()
        model = Model(optimizer, "float16")
        with support.started(support.new_session(), model.init) as sess:
            found.append(trained(model, sess, range(6)))
    support.assert_same_tables(found[1], found[0])


def test_what_does_not_work_is_refused_by_name(graph, dynamic):
    for wrong in ("float64", "eight", tf.int32, None):
        with pytest.raises(ValueError, match="'row_dtype' of the table 't'.*{}".format(
                "None" if wrong is None else getattr(wrong, "name", wrong))):
            make("t", wrong)
    for name in ("row_rounding", "row_conversion"):
        with pytest.raises(ValueError, match=name):
            make("t", **{name: "up"})
    table = make("t", tf.bfloat16)
    assert table.row_dtype == "bfloat16"
    with pytest.raises(Exception, match="must fit float16.*table=large"):
        create_table(tf.int64, 4, "large", tf.compat.v1.constant_initializer(7e4), row_dtype="float16")


def test_values_that_do_not_fit_saturate_and_are_counted(graph, session, dynamic):
    model = Model("sgd", "float16")
    sess = support.started(session(), model.init)
    factors = np.zeros([1, DIM], np.float32)
    factors[0, :4] = 1e7, -1e7, np.inf, np.nan
    sess.run(model.train, {model.ids: [5], model.factors: factors})
    row = model.raw.find(sess, [5])[0]
    assert row[0] == -65504.0 and row[1] == 65504.0 and row[2] == -np.inf and np.isnan(row[3])
    assert np.isfinite(row[4:]).all()
    with sess.as_default():
        stats = table_stats(model.table)
    assert (stats.saturated, stats.not_finite) == (2, 2)


def test_small_steps_move_the_mean_and_are_lost_with_rounding_to_nearest(graph, session, dynamic):
    """With rounding to nearest a row stands still where steps are small; stochastically it goes where float32 goes."""
    ids = tf.constant(np.arange(400, dtype=np.int64))
    found = {}
    for name, dtype, rounding in (("plain", "float32", "stochastic"), ("nearest", "bfloat16", "nearest"),
                                  ("stochastic", "bfloat16", "stochastic")):
        table = make(name, dtype, 8, row_rounding=rounding)
        rows = support.lookup(table, ids)
        found[name] = rows, create_hash_optimizer(1e-4).minimize(tf.reduce_sum(rows), var_list=[table.variable])
    sess = support.started(session())
    first = sess.run({name: rows for name, (rows, _) in found.items()})
    for _ in range(100):
        sess.run([train for _, train in found.values()])
    moved = {name: float((first[name] - rows).mean())
             for name, rows in sess.run({name: rows for name, (rows, _) in found.items()}).items()}
    assert moved["plain"] == pytest.approx(0.01, rel=1e-3)
    assert moved["stochastic"] == pytest.approx(0.01, rel=0.05)
    assert moved["nearest"] < 0.003
