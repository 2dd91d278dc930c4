"""Slots of 2 bytes a value: a NumPy oracle's rows and slots after every step, files of either type, what refuses them."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import support
import test_half_stock as stock
from cluster_cases import RUN
from stock_cluster_cases import StockJob, run_alone
from test_half_rows import (DIM, HALVES, Model, Oracle, draws, initial_rows, make, mixed, rounded, seed_of, trained,
                            trained_on_servers_as_alone)
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.__main__ import main
from mx_rec.core.embedding import create_table
from mx_rec.launch.options import read_arguments
from mx_rec.util.stats import table_stats
from mx_rec.util.stock_tables import StockTables

BFLOAT16 = "bfloat16"


def stream(name):
    """What a slot adds to the seed: FNV-1a of its name, mixed."""
    found = 0xCBF29CE484222325
    for byte in name.encode("utf-8"):
        found = (found ^ byte) * 0x100000001B3 % 2 ** 64
    return mixed(found)


class SlotOracle(Oracle):
    """Slots by name, which start at values and are rounded after each step as rows are."""

    def __init__(self, seed, dtype, rounding, rows, optimizer, starts):
        super().__init__(seed, dtype, rounding, rows, optimizer)
        self.starts = starts

    def slots_of(self, key):
        dim = len(self.rows[key])
        return self.slots.get(key) or {name: rounded(np.full(dim, start, np.float32), BFLOAT16)
                                       for name, start in self.starts.items()}

    def step(self, grads):
        self.updates += 1
        for key, grad in grads.items():
            row, *slots = self.optimizer(self.rows[key], *self.slots_of(key).values(), grad, self.updates)

            def stored(values, dtype, seed):
                drawn = draws(seed, key, len(row), self.updates) if self.rounding == "stochastic" else None
                return rounded(values, dtype, drawn)

            self.rows[key] = stored(row, self.dtype, self.seed)
            self.slots[key] = {name: stored(values, BFLOAT16, self.seed ^ stream(name))
                               for name, values in zip(self.starts, slots)}


def adagrad(row, a, grad, step):
    a = a + grad * grad
    return row - np.float32(0.1) * grad / np.sqrt(a), a


def lazy_adam(row, m, v, grad, step):
    one, other = np.float32(0.9), np.float32(0.999)
    power = [np.float32(1.0), np.float32(1.0)]
    for _ in range(step):
        power = [power[0] * one, power[1] * other]
    lr = np.float32(0.1) * np.sqrt(np.float32(1) - power[1]) / (np.float32(1) - power[0])
    m = one * m + (np.float32(1) - one) * grad
    v = other * v + (np.float32(1) - other) * (grad * grad)
    return row - lr * m / (np.sqrt(np.abs(v)) + np.float32(1e-8)), m, v


def momentum(row, m, grad, step):
    m = m * np.float32(0.9) + grad
    return row - np.float32(0.1) * m, m


RULES = {"adagrad": (adagrad, {"Adagrad_accumulator": 0.3}),
         "lazy_adam": (lazy_adam, {"LazyAdam_momentum": 0.0, "LazyAdam_velocity": 0.0}),
         "momentum": (momentum, {"Momentum_momentum": 0.0})}


def made(name):
    from mx_rec.optimizers import adagrad, ftrl, lazy_adam, momentum, rowwise_adagrad

    return {"adagrad": lambda: adagrad.create_hash_optimizer(0.1, initial_accumulator_value=0.3),
            "ftrl": lambda: ftrl.create_hash_optimizer(0.1),
            "lazy_adam": lambda: lazy_adam.create_hash_optimizer(0.1),
            "momentum": lambda: momentum.create_hash_optimizer(0.1, 0.9),
            "rowwise_adagrad": lambda: rowwise_adagrad.create_hash_optimizer(0.1)}[name]()


def model_of(optimizer, dtype=BFLOAT16, slot_dtype=BFLOAT16, **more):
    return Model(made(optimizer), dtype, slot_dtype=slot_dtype, **more)


def slots_of(model, sess, names):
    return {name: model.raw.slot_rows(sess, name) for name in names}


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", sorted(RULES))
def test_rows_and_slots_are_the_oracles_bit_for_bit_after_every_step(graph, session, dynamic, optimizer, dtype, rounding):
    rows, (rule, starts) = initial_rows(), RULES[optimizer]
    model = model_of(optimizer, dtype, row_rounding=rounding)
    assert model.table.slot_dtype == BFLOAT16 and model.table.row_dtype == dtype
    sess = support.started(session(), model.init)
    oracle = SlotOracle(seed_of(model.table), dtype, rounding, rows, rule, starts)
    for number in range(20):
        oracle.step(model.step(sess, number))
        for key, row in model.raw.rows(sess).items():
            np.testing.assert_array_equal(row, oracle.rows[key], "%d after step %d" % (key, number))
        for name, found in slots_of(model, sess, starts).items():
            for key, slot in found.items():
                np.testing.assert_array_equal(slot, oracle.slots_of(key)[name], "%s of %d after step %d" % (name, key, number))


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "lazy_adam", "rowwise_adagrad"])
def test_training_goes_on_after_a_restore_and_deltas_as_if_nothing_had_been(graph, session, mx, place, optimizer):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    model = model_of(optimizer)
    sess = support.started(session(), model.init)
    for step in range(3):
        trained(model, sess, range(3 * step, 3 * step + 3))
        path = model.saver.save(sess, place + "/m", global_step=step, save_delta=step > 0)
    expected = trained(model, sess, range(9, 15))
    assert os.path.isdir(place + "/delta-sparse-m-2")
    other = support.restored(session(), model.saver, path)
    support.assert_same_tables(trained(model, other, range(9, 15)), expected)
    directory = place + "/sparse-m-0/t"
    manifest = support.json_of(directory + "/manifest.json")
    assert manifest["table"]["row_storage"]["slot_dtype"] == BFLOAT16 and manifest["version"] == 5
    for slot in manifest["slots"]:
        size = 4 if slot.get("per_row") else 2 * DIM
        assert os.path.getsize("%s/%s/slice.data" % (directory, slot["name"])) == size * manifest["rows"]


@pytest.mark.long
def test_a_checkpoint_of_other_slots_is_refused_or_converted_as_asked(graph, session, dynamic, place):
    names = RULES["lazy_adam"][1]
    model = model_of("lazy_adam", slot_dtype="float32")
    sess = support.started(session(), model.init)
    rows = trained(model, sess, range(4))
    wide, path = slots_of(model, sess, names), model.saver.save(sess, place + "/m")
    for conversion in (None, "nearest", "stochastic"):
        tf.compat.v1.reset_default_graph()
        other = model_of("lazy_adam", row_conversion=conversion)
        with support.new_session() as found:
            if conversion is None:
                with pytest.raises(Exception) as caught:
                    other.saver.restore(found, path)
                text = str(caught.value)
                for part in ("row_conversion", "table=t", "slot=LazyAdam_momentum", "checkpoint_slot_dtype=float32",
                             ", slot_dtype=bfloat16"):
                    assert part in text, text
                continue
            other.saver.restore(found, path)
            support.assert_same_tables(other.raw.rows(found), rows)
            seed = seed_of(other.table)
            for name, slots in slots_of(other, found, names).items():
                for key, slot in slots.items():
                    drawn = draws(seed ^ stream(name), key, DIM, 0) if conversion == "stochastic" else None
                    np.testing.assert_array_equal(slot, rounded(wide[name][key], BFLOAT16, drawn))
            halves = trained(other, found, range(4, 6))
            of_halves, back = slots_of(other, found, names), other.saver.save(found, place + "/back")
        tf.compat.v1.reset_default_graph()
        with support.new_session() as found:
            again = model_of("lazy_adam", slot_dtype="float32")
            with pytest.raises(Exception, match="checkpoint_slot_dtype=bfloat16"):
                again.saver.restore(found, back)
        tf.compat.v1.reset_default_graph()
        again = model_of("lazy_adam", "float32", "float32", row_conversion="nearest")
        with support.restored(support.new_session(), again.saver, back) as found:
            support.assert_same_tables(again.raw.rows(found), halves)
            for name, slots in slots_of(again, found, names).items():
                support.assert_same_tables(slots, of_halves[name])


def test_rows_on_disk_and_a_table_beside_it_have_the_bits_of_one_in_memory(graph, session, dynamic, tmp_path):
    found = []
    for more in ({}, dict(rows=2, host_vocabulary_size=2, ssd_vocabulary_size=100, ssd_data_path=[str(tmp_path)])):
        tf.compat.v1.reset_default_graph()
        model = model_of("adagrad", "float16", **more)
        with support.started(support.new_session(), model.init) as sess:
            for number in range(20):
                model.step(sess, number, 3)
            found.append((model.raw.rows(sess), model.raw.slot_rows(sess, "Adagrad_accumulator")))
            assert (table_stats(model.table).read_disk > 0) == bool(more)
    support.assert_same_each(*found)


def test_the_checkpoint_command_tells_of_it(graph, session, dynamic, place, capsys):
    model = model_of("lazy_adam")
    sess = support.started(session(), model.init)
    rows = trained(model, sess, range(4))
    slots = model.raw.slot_rows(sess, "LazyAdam_velocity")
    model.saver.save(sess, place + "/m")
    here = place + "/sparse-m/t"
    assert not tables.describe(here)["faults"] and not tables.verify(here)["faults"]
    key = sorted(rows)[0]
    parts = {part["name"]: np.array(part["values"], np.float32) for part in tables.find_row(here, key)["parts"]}
    np.testing.assert_array_equal(parts["embedding"], rows[key])
    np.testing.assert_array_equal(parts["LazyAdam_velocity"], slots[key])
    assert main([place]) == 0
    assert "bfloat16 slots bfloat16" in capsys.readouterr().out


def test_optimizers_of_users_have_slots_that_are_rounded(graph, session, dynamic):
    """The same numbers as the engine's momentum, whose slot has another name and so other random numbers, but for rounding."""

    class Plain(tf.compat.v1.train.Optimizer):
        """m = 0.9 m + g; w -= 0.1 m, written by a user."""

        def __init__(self):
            super().__init__(False, "Plain")

        def _create_slots(self, var_list):
            for var in var_list:
                self._zeros_slot(var, "m", self._name)

        def _apply_sparse(self, grad, var):
            m = self.get_slot(var, "m")
            now = 0.9 * tf.gather(m, grad.indices) + grad.values
            with tf.control_dependencies([tf.compat.v1.scatter_update(m, grad.indices, now)]):
                return tf.compat.v1.scatter_sub(var, grad.indices, 0.1 * now).op

        def _apply_dense(self, grad, var):
            raise NotImplementedError

    rows = initial_rows()
    model = Model(Plain(), BFLOAT16, slot_dtype=BFLOAT16)
    sess = support.started(session(), model.init)
    oracle = SlotOracle(seed_of(model.table), BFLOAT16, "stochastic", rows, momentum, {"Plain_m": 0.0})
    for number in range(10):
        oracle.step(model.step(sess, number))
        slots = model.raw.slot_rows(sess, "Plain_m")
        for key, row in model.raw.rows(sess).items():
            np.testing.assert_array_equal(row, oracle.rows[key])
            np.testing.assert_array_equal(slots[key], oracle.slots_of(key)["Plain_m"])


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("optimizer", ["adagrad", "lazy_adam"])
def test_parameter_servers_train_the_bits_of_one_process(servers, optimizer):
    alone = trained_on_servers_as_alone(servers, OPTIMIZER=optimizer, ROW_DTYPE=BFLOAT16, SLOT_DTYPE=BFLOAT16)
    wide = json.loads(support_alone(OPTIMIZER=optimizer, ROW_DTYPE=BFLOAT16))
    assert wide["rows"] != alone["rows"]


def support_alone(**variables):
    from cluster_cases import run_alone

    return run_alone(RUN, **variables).strip().splitlines()[-1]


def test_what_does_not_work_is_refused_by_name(graph, dynamic):
    for wrong in ("float16", "eight", tf.int32, None):
        with pytest.raises(ValueError, match="'slot_dtype' of the table 't' should be one of 'float32', 'bfloat16', but is"):
            make("t", slot_dtype=wrong)
    for arguments in ({}, dict(row_dtype="float32")):
        with pytest.raises(ValueError, match="'slot_dtype' of the table 't' is 'bfloat16', which needs.*'float32'"):
            create_table(tf.int64, 4, "t", tf.compat.v1.zeros_initializer(), slot_dtype=BFLOAT16, **arguments)
    table = make("t", tf.bfloat16, slot_dtype=tf.bfloat16)
    assert table.slot_dtype == BFLOAT16 and make("u").slot_dtype == "float32"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum"])
def test_slots_of_unchanged_models_are_the_oracles(graph, session, mx, dtype, optimizer):
    stock.settings(mx, dtype, slot_dtype=BFLOAT16)
    model = stock.Model(optimizer)
    plan = model.plans["w"]
    assert plan.converts and plan.reason.endswith("rows of %s, slots of bfloat16" % dtype)
    rule, start = {"adagrad": (lambda row, slot, grad, step: stock.adagrad(row, slot, grad, step), 0.3),
                   "momentum": (lambda row, slot, grad, step: stock.momentum(row, slot, grad, step), 0.0)}[optimizer]
    sess = support.started(session(), model.init)
    oracle = SlotOracle(stock.seed(model), dtype, "stochastic", dict(enumerate(stock.first_rows())), rule,
                        {plan.slots[0].name: start})
    for number in range(12):
        oracle.step(model.step(sess, number))
        expected = [oracle.rows[key] for key in range(stock.ROWS)]
        np.testing.assert_array_equal(model.value(sess), expected, "after step %d" % number)


def converted_slots(values, seed, name, conversion):
    """Slots of variables, by key, as a table has them."""
    return np.array([rounded(slot, BFLOAT16, draws(seed ^ stream(name), key, len(slot), 0) if conversion == "stochastic" else None)
                     for key, slot in enumerate(values)])


def where(directory, memory_rows):
    return dict(memory_rows=memory_rows, ssd_data_path=[str(directory)]) if memory_rows else {}


@pytest.mark.parametrize("memory_rows", [0, 12])
@pytest.mark.parametrize("conversion", ["nearest", "stochastic"])
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum"])
def test_slots_of_variables_are_rounded_as_rows_are_and_go_back_exactly(mx, place, tmp_path, optimizer, conversion, memory_rows):
    v1 = tf.compat.v1

    def run(path=None, steps=range(0), converts=True, **more):
        """The slot, and a checkpoint."""
        if converts:
            stock.settings(mx, more.pop("row_dtype", BFLOAT16), **dict(where(tmp_path, memory_rows), **more))
        with tf.Graph().as_default():
            model = stock.Model(optimizer, converts=converts)
            with support.started(support.new_session(), model.init) as sess:
                if path:
                    model.saver.restore(sess, path)
                for number in steps:
                    model.step(sess, number)
                if converts:
                    name = model.plans["w"].slots[0].name
                    one = support.Raw.of(model.converted[0].table).slot_rows(sess, name)
                    slot = np.array([one[key] for key in range(stock.ROWS)])
                else:
                    variable, = [one for one in v1.global_variables() if one.op.name.startswith("w/")]
                    slot = sess.run(variable)
                saved = model.saver.save(sess, place + "/m", global_step=len(os.listdir(place)))
        if converts:
            stock.stop()
        return slot, saved

    slot, path = run(converts=False, steps=range(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be filled.*'w'.*row_conversion"):
        run(path, slot_dtype=BFLOAT16)
    stock.stop()
    half, saved = run(path, slot_dtype=BFLOAT16, row_conversion=conversion)
    manifest = support.json_of("{}/sparse-{}/w/manifest.json".format(*os.path.split(saved)))
    name, = (slot["name"] for slot in manifest["slots"])
    expected = converted_slots(slot, manifest["table"]["seed"], name, conversion)
    np.testing.assert_array_equal(half, expected)
    assert np.array_equal(expected, rounded(slot, BFLOAT16)) == (conversion == "nearest")
    back, _ = run(saved, converts=False)
    np.testing.assert_array_equal(back, half)
    again, _ = run(saved, slot_dtype=BFLOAT16)
    np.testing.assert_array_equal(again, half)
    with pytest.raises(Exception, match="checkpoint_slot_dtype=bfloat16"):
        run(saved)
    stock.stop()
    wide, _ = run(saved, row_conversion=conversion)
    np.testing.assert_array_equal(wide, half)


def test_a_slot_that_variables_lack_starts_as_that_of_a_new_row(mx, place):
    """A checkpoint of gradient descent goes on with Adagrad."""
    with tf.Graph().as_default():
        model = stock.Model("sgd", converts=False)
        with support.started(support.new_session(), model.init) as sess:
            path = model.saver.save(sess, place + "/m")
    stock.settings(mx, slot_dtype=BFLOAT16, row_conversion="stochastic")
    with tf.Graph().as_default():
        model = stock.Model("adagrad")
        with support.started(support.new_session(), model.init) as sess:
            model.saver.restore(sess, path)
            model.step(sess, 1, 3)
            slots = support.Raw.of(model.converted[0].table).slot_rows(sess, model.plans["w"].slots[0].name)
    fresh = [key for key, slot in slots.items() if np.array_equal(slot, rounded(np.full(stock.DIM, 0.3), BFLOAT16))]
    assert len(slots) == stock.ROWS and len(fresh) >= stock.ROWS - 3


@pytest.mark.long
@pytest.mark.parametrize("memory_rows", [0, 45])
@pytest.mark.parametrize("conversion", ["nearest", "stochastic"])
def test_a_warm_start_from_variables_rounds_their_slots_as_asked(mx, tmp_path, conversion, memory_rows):
    stock.estimator_of(tmp_path / "plain").train(stock.estimator_input, steps=3)
    reader = tf.train.load_checkpoint(str(tmp_path / "plain"))
    plain = {"embedding": reader.get_tensor("w"), "Adagrad_accumulator": reader.get_tensor("w/Adagrad")}
    stock.settings(mx, slot_dtype=BFLOAT16, row_conversion=conversion, **where(tmp_path, memory_rows))
    stock.estimator_of(tmp_path / "started", tmp_path / "plain", [".*"]).train(stock.estimator_input, steps=1)
    # What was saved before the step.
    path = str(min((tmp_path / "started").glob("sparse-*/w")))
    seed = support.json_of(path + "/manifest.json")["table"]["seed"]
    for key in range(len(plain["embedding"])):
        parts = {part["name"]: np.array(part["values"], np.float32) for part in tables.find_row(path, key)["parts"]}
        for name, values in plain.items():
            of_slot = stream(name) if name != "embedding" else 0
            random = draws(seed ^ of_slot, key, len(values[key]), 0) if conversion == "stochastic" else None
            np.testing.assert_array_equal(parts[name], rounded(values[key], BFLOAT16, random), "%s of %d" % (name, key))


def test_a_type_for_each_name(graph, mx):
    stock.settings(mx, {"one": BFLOAT16, "two": "float16"}, slot_dtype={"one": BFLOAT16, "two": None})
    plans = {name: stock.Model("adagrad", name=name).plans[name] for name in ("one", "two", "three")}
    assert [plans[name].slot_dtype for name in ("one", "two", "three")] == [BFLOAT16, "float32", "float32"]
    stock.stop()
    tf.compat.v1.reset_default_graph()
    stock.settings(mx, {"one": BFLOAT16}, slot_dtype={".*": BFLOAT16})
    with pytest.raises(ValueError, match="'slot_dtype' of stock_tables, variable 'other', is 'bfloat16'.*'row_dtype' of 2 bytes"):
        stock.Model("adagrad", name="other")


@pytest.mark.long
def test_parameter_servers_keep_slots_of_unchanged_models():
    variables = dict(STOCK="StockTables(least_rows=1, row_dtype='bfloat16', slot_dtype={'items': 'bfloat16'})",
                     OPTIMIZER="adagrad", LAST="12")
    alone = run_alone(**variables)
    with StockJob(ps=3, **variables) as job:
        assert job.run()["rows"] == alone["rows"]
    wide = run_alone(**dict(variables, STOCK="StockTables(least_rows=1, row_dtype='bfloat16')"))
    assert wide["rows"][0] != alone["rows"][0]


@pytest.mark.parametrize("given, said", [
    (dict(slot_dtype="float16", row_dtype="float16"), "'slot_dtype' of stock_tables.*'float16'"),
    (dict(slot_dtype=BFLOAT16), "'slot_dtype' of stock_tables is 'bfloat16', which needs a 'row_dtype'.*'float32'"),
    (dict(slot_dtype={"(": BFLOAT16}), "slot_dtype.*no regular expression"),
    (dict(slot_dtype={"a": 3}), "'slot_dtype'.*3")])
def test_wrong_settings_are_refused_by_name(mx, given, said):
    with pytest.raises(ValueError, match=said):
        mx(stock_tables=StockTables(**given))


@pytest.mark.long
def test_the_command_line_and_its_file_take_it_and_the_report_says_it(tmp_path):
    import test_run as runs

    options = read_arguments(["--row-dtype", BFLOAT16, "--slot-dtype", "dnn/a=bfloat16", "a.py"]).launch
    assert options.options.slot_dtype == {"dnn/a": BFLOAT16}
    assert options.from_json(json.loads(options.to_json())).options == options.options
    with pytest.raises(ValueError, match="'slot_dtype' of stock_tables is 'bfloat16'"):
        read_arguments(["--slot-dtype", BFLOAT16, "a.py"])
    config = tmp_path / "run.toml"
    config.write_text('row_dtype = "float16"\nslot_dtype = "bfloat16"\n')
    script = runs.write(tmp_path, "program.py", runs.TRAINS)
    done = runs.ran(runs.command("--config", str(config), script))
    assert done.returncode == 0, done.stderr
    assert "users [20000, 4]: a table, adagrad, float16, slots bfloat16, 3 rows in " in done.stderr
