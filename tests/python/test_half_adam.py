"""Optimizers that move rows without a gradient, on rows of 2 bytes a value: reads change nothing, and saves keep what reads show."""

import json

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from cluster_cases import RUN, Job, run_alone
from test_half_rows import DIM, HALVES, KEYS, Model, draws, rounded, seed_of, trained_on_servers_as_alone
from test_half_slots import BFLOAT16, stream
from test_half_stock import ROWS, settings, stop
from test_half_stock import Model as StockModel
from mx_rec.util.stock_tables import StockTables


def adam():
    from mx_rec.optimizers.adam import create_hash_optimizer

    return create_hash_optimizer(0.02)


def trained(model, sess, steps):
    # Few keys of a step, so that the others wait.
    for number in steps:
        model.step(sess, number, 2)
    return model.raw.find(sess, KEYS)


# The types of rows and of slots.
FORMS = pytest.mark.parametrize("dtype, slots", [(dtype, slots) for dtype in HALVES for slots in ("float32", "bfloat16")])


@FORMS
def test_rows_stay_near_those_of_float32_and_reads_change_nothing(graph, session, dynamic, dtype, slots):
    found = {}
    for name, row_dtype, reads in (("float32", "float32", False), ("quiet", dtype, False), ("read", dtype, True)):
        tf.compat.v1.reset_default_graph()
        model = Model(adam(), row_dtype, slot_dtype="float32" if name == "float32" else slots)
        seen = support.lookup(model.table, tf.constant(KEYS), is_train=False)
        with support.started(support.new_session(), model.init) as sess:
            trained(model, sess, range(1))
            for number in range(1, 60):
                trained(model, sess, [number])
                if reads:
                    rows = sess.run(seen)
                    np.testing.assert_array_equal(rows, rounded(rows, dtype))
            found[name] = model.raw.find(sess, KEYS)
            moments = [model.raw.slot_rows(sess, "LazyAdam_" + slot) for slot in ("momentum", "velocity")]
            found[name + " moments"] = np.array([[one[key] for key in KEYS] for one in moments])
    for what in ("", " moments"):
        np.testing.assert_array_equal(found["quiet" + what], found["read" + what])
    if slots != "float32":
        np.testing.assert_array_equal(found["read moments"], rounded(found["read moments"], slots))
    moved = np.abs(found["float32"] - found["quiet"])
    # Some tens of roundings of half the distance between neighbours, which are 2^-7 and 2^-10 apart below 2.
    assert 0 < moved.max() < (0.15 if dtype == "bfloat16" else 0.02)


@FORMS
@pytest.mark.parametrize("deltas", [False, True])
def test_a_restore_goes_on_as_the_training_that_saved(graph, session, mx, place, dtype, slots, deltas):
    if deltas:
        mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    else:
        mx()
    model = Model(adam(), dtype, slot_dtype=slots)
    with support.started(support.new_session(), model.init) as sess:
        for step in range(4):
            trained(model, sess, range(5 * step, 5 * step + 5))
            shown = model.raw.find(sess, KEYS)
            path = model.saver.save(sess, place + "/m", global_step=step, **(dict(save_delta=step > 0) if deltas else {}))
            np.testing.assert_array_equal(model.raw.find(sess, KEYS), shown)
        expected = trained(model, sess, range(20, 30))
    with support.restored(support.new_session(), model.saver, path) as sess:
        np.testing.assert_array_equal(model.raw.find(sess, KEYS), shown)
        np.testing.assert_array_equal(trained(model, sess, range(20, 30)), expected)


@pytest.mark.parametrize("memory_rows", [None, 4])
def test_deltas_of_rows_that_wait_are_rounded_once_they_are_merged(graph, session, mx, place, tmp_path, memory_rows):
    """Rows that a delta has not are moved in float32 and then rounded, as if the last save had been whole; and back they go exactly."""
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    names = ["", "LazyAdam_momentum", "LazyAdam_velocity"]
    more = {} if memory_rows is None else dict(rows=2, host_vocabulary_size=memory_rows - 2, ssd_vocabulary_size=100, ssd_data_path=[str(tmp_path)])

    def run(path, name, *types, **arguments):
        """Rows and slots by name, after a restore or steps, and a chain of saves."""
        tf.compat.v1.reset_default_graph()
        model = Model(adam(), types[0], slot_dtype=types[1], **arguments)
        with support.started(support.new_session(), model.init) as sess:
            found = {}
            if path:
                model.saver.restore(sess, path)
                found = {one: model.raw.slot_rows(sess, one) for one in names}
            for step in range(3):
                trained(model, sess, range(4 * step, 4 * step + 4))
                path = model.saver.save(sess, place + "/" + name, global_step=step, save_delta=step > 0)
            return found, {one: model.raw.slot_rows(sess, one) for one in names}, path, seed_of(model.table)

    _, wide, path, _ = run(None, "wide", "float32", "float32")
    found, half, path, seed = run(path, "half", "float16", BFLOAT16, row_conversion="stochastic", **more)
    for name in names:
        dtype, own = (BFLOAT16, seed ^ stream(name)) if name else ("float16", seed)
        support.assert_same_tables(found[name], {key: rounded(row, dtype, draws(own, key, DIM, 0)) for key, row in wide[name].items()})
    found, _, _, _ = run(path, "again", "float32", "float32", row_conversion="nearest")
    for name in names:
        support.assert_same_tables(found[name], half[name])


@FORMS
def test_rows_on_disk_have_the_bits_of_rows_in_memory(graph, session, dynamic, tmp_path, dtype, slots):
    found = []
    for more in ({}, dict(rows=2, host_vocabulary_size=2, ssd_vocabulary_size=100, ssd_data_path=[str(tmp_path)])):
        tf.compat.v1.reset_default_graph()
        model = Model(adam(), dtype, slot_dtype=slots, **more)
        with support.started(support.new_session(), model.init) as sess:
            for number in range(30):
                model.step(sess, number, 3)
                model.raw.find(sess, KEYS[number % 7:][:2])
            found.append(model.raw.rows(sess))
    support.assert_same_tables(found[1], found[0])


@FORMS
@pytest.mark.parametrize("servers", [1, 3])
def test_parameter_servers_train_the_bits_of_one_process(dtype, slots, servers):
    trained_on_servers_as_alone(servers, OPTIMIZER="adam", ROW_DTYPE=dtype, SLOT_DTYPE=slots)


@pytest.mark.long
def test_servers_of_other_numbers_go_on_from_each_others_checkpoints_as_one_process(tmp_path):
    variables = dict(OPTIMIZER="adam", ROW_DTYPE="float16", SLOT_DTYPE=BFLOAT16, SAVE=3)
    for first, servers in ((0, 2), (6, 3), (12, 1)):
        steps = dict(variables, FIRST=first, LAST=first + 6)
        alone = run_alone(RUN, CHECKPOINTS=tmp_path / "alone", **steps)
        with Job(RUN, ps=servers, **steps) as job:
            found = job.worker(CHECKPOINTS=tmp_path / "servers")
        found, alone = (json.loads(one.strip().splitlines()[-1]) for one in (found, alone))
        for name in ("loss", "step", "sizes", "rows"):
            assert found[name] == alone[name], (name, first)


@pytest.mark.parametrize("optimizer", ["AdamOptimizer", "AdamWOptimizer", "NadamOptimizer", "AdaMaxOptimizer"])
@FORMS
def test_unchanged_models_train_rows_near_those_of_variables(mx, dtype, slots, optimizer):
    found = {}
    for converts in (False, True):
        if converts:
            settings(mx, dtype, slot_dtype=slots)
        with tf.Graph().as_default():
            made = {"AdamOptimizer": lambda: tf.compat.v1.train.AdamOptimizer(0.02),
                    "AdamWOptimizer": lambda: tf.contrib.opt.AdamWOptimizer(0.001, 0.02),
                    "NadamOptimizer": lambda: tf.contrib.opt.NadamOptimizer(0.02),
                    "AdaMaxOptimizer": lambda: tf.contrib.opt.AdaMaxOptimizer(0.02)}[optimizer]()
            model = StockModel(made, converts=converts)
            assert not converts or (model.plans["w"].row_dtype, model.plans["w"].slot_dtype) == (dtype, slots)
            with support.started(support.new_session(), model.init) as sess:
                for number in range(40):
                    model.step(sess, number, 4)
                found[converts] = sess.run(model.rows, {model.ids: np.arange(ROWS)})
    np.testing.assert_array_equal(found[True], rounded(found[True], dtype))
    difference = np.abs(found[True] - found[False])
    assert difference.max() < (0.15 if dtype == "bfloat16" else 0.02) and difference.mean() < (0.02 if dtype == "bfloat16" else 0.003)


@FORMS
def test_rows_that_wait_go_to_variables_as_they_are_also_from_deltas(mx, place, dtype, slots):
    mx(stock_tables=StockTables(least_rows=1, row_dtype=dtype, slot_dtype=slots), is_incremental_checkpoint=True, save_checkpoint_due_time=3600,
       save_delta_checkpoints_secs=3600)
    with tf.Graph().as_default():
        model = StockModel(tf.compat.v1.train.AdamOptimizer(0.02))
        with support.started(support.new_session(), model.init) as sess:
            for step in range(3):
                for number in range(4):
                    model.step(sess, 4 * step + number, 3)
                path = model.saver.save(sess, place + "/m", global_step=step, save_delta=step > 0)
            rows = sess.run(model.rows, {model.ids: np.arange(ROWS)})
    stop()
    with tf.Graph().as_default():
        model = StockModel(tf.compat.v1.train.AdamOptimizer(0.02), converts=False)
        with support.restored(support.new_session(), model.saver, path) as sess:
            np.testing.assert_array_equal(sess.run(model.rows, {model.ids: np.arange(ROWS)}), rows)


def test_several_optimizers_of_one_table_take_turns(graph, session, dynamic, place):
    """Steps of Adam, of gradient descent and assignments, with saves in between: what is restored goes on with the same bits."""
    model = Model(adam(), "float16")
    loss = tf.reduce_sum(model.rows * model.factors)
    other = tf.gradients(loss, [model.table.variable])
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    descend = create_hash_optimizer(0.05).apply_gradients([(other[0], model.table.variable)])
    model.saver = tf.compat.v1.train.Saver(max_to_keep=99)
    trains = [model.train, model.train, descend]

    def run(sess, steps):
        for number in steps:
            model.train = trains[number % 3]
            model.step(sess, number, 2)
            if number % 5 == 4:
                model.raw.assign(sess, KEYS[:1], np.full([1, DIM], 0.3, np.float32))
        model.train = trains[0]
        return model.raw.find(sess, KEYS)

    with support.started(support.new_session()) as sess:
        run(sess, range(17))
        shown = model.raw.find(sess, KEYS)
        path = model.saver.save(sess, place + "/m")
        np.testing.assert_array_equal(model.raw.find(sess, KEYS), shown)
        expected = run(sess, range(17, 33))
    with support.restored(support.new_session(), model.saver, path) as sess:
        np.testing.assert_array_equal(run(sess, range(17, 33)), expected)


def test_the_optimizer_of_a_half_table_is_named_in_the_plan(graph, mx):
    settings(mx)
    model = StockModel(tf.compat.v1.train.AdamOptimizer(0.1))
    assert "updated by adam" in model.plans["w"].reason and model.plans["w"].reason.endswith("rows of bfloat16")
    assert cases.table_of(model.variable) is not None
