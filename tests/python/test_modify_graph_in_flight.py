"""Rows of batches that the pipeline has prepared ahead never show, and whatever happens between steps, results are the same."""

import os
import time

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from modify_cases import AHEAD, STEP


def settle():
    """Gives the pipeline time to run as far ahead as it does."""
    time.sleep(0.03)


def fresh(batches, width=4, repeat=1):
    """Batches that share no key with any other, so that each brings new rows."""
    ids = np.arange(batches * width, dtype=np.int64).reshape(batches, width) * 3 - 20
    return tf.data.Dataset.from_tensor_slices({"ids": ids, "label": np.linspace(0, 1, batches, dtype=np.float32)}).repeat(
        repeat)


class Trained:
    """One table on one iterator."""

    def __init__(self, run, data, capacity=1000, saver=False, modify=True):
        self.iterator = cases.initializable(data)
        self.batch = self.iterator.get_next()
        self.table = run.table(capacity=capacity)
        self.model = cases.Model(run, [run.lookup(self.table, self.batch["ids"])], self.batch["label"])
        self.seen = self.model.seen
        self.saver = tf.compat.v1.train.Saver(max_to_keep=20) if saver else None
        if modify:
            run.modify()


@support.run_by(cases.alike, moves=1)
def test_size_and_export_never_show_rows_of_batches_that_no_step_took(run):
    trained = Trained(run, fresh(12))
    sess = run.begin(trained.iterator)
    for number in range(6):
        settle()
        assert run.raw(trained.table).size(sess) == 4 * number
        run.step(sess, trained.seen)
        settle()
        run.contents(sess)


@pytest.mark.parametrize("capacity", [4, 9, 16])
def test_a_full_table_is_an_error_of_the_step_that_needs_the_row(capacity):
    def script(run):
        trained = Trained(run, fresh(8), capacity=capacity)
        sess = run.begin(trained.iterator)
        settle()
        for _ in range(9):
            run.step(sess, trained.seen)
        run.contents(sess)
        run.start(sess, trained.iterator)
        run.steps(sess, trained.seen, 1)

    runs = cases.alike(script, moves=1)
    found = [kind for kind, _ in cases.errors(runs[AHEAD])]
    assert found == ["ResourceExhaustedError"] * (8 - capacity // 4) + ["OutOfRangeError"], found


@support.run_by(cases.alike, moves=1)
def test_a_table_that_the_whole_data_just_fill_is_enough(run):
    """What was prepared and dropped gives its rows back: twenty restarts ahead would otherwise need many times the rows."""
    trained = Trained(run, fresh(6), capacity=24)
    sess = run.session()
    for number in range(20):
        run.start(sess, trained.iterator)
        if number % 3 == 0:
            settle()
        run.steps(sess, trained.seen, number % 4)
    run.start(sess, trained.iterator)
    assert run.finish(sess, trained.seen) == 6


@support.run_by(cases.alike, moves=1)
def test_dropped_batches_do_not_take_rows_from_other_data(run):
    """Two datasets with distinct keys through one iterator, in a table that holds one of them only."""
    tf1 = tf.compat.v1
    first = fresh(5)
    second = first.map(lambda batch: dict(batch, ids=batch["ids"] + 10 ** 6))
    iterator = tf1.data.Iterator.from_structure(tf1.data.get_output_types(first), tf1.data.get_output_shapes(first))
    begin = [iterator.make_initializer(data) for data in (first, second)]
    batch = iterator.get_next()
    table = run.table(capacity=20)
    model = cases.Model(run, [run.lookup(table, batch["ids"])], batch["label"])
    run.modify()
    sess = run.session()
    for _ in range(5):
        sess.run(begin[0])
        settle()
    sess.run(begin[1])
    assert run.finish(sess, model.seen) == 5


def files(directory):
    """{path: bytes} of all files of tables below a directory."""
    found = {}
    for path, _, names in os.walk(directory):
        for name in names:
            if "sparse-" in path:
                with open(os.path.join(path, name), "rb") as file:
                    found[os.path.relpath(os.path.join(path, name), directory)] = file.read()
    return found


def test_a_checkpoint_saved_while_batches_wait_is_that_of_the_unmodified_graph(tmp_path):
    """Byte for byte: keys enter in the order of the steps, so that even the order of rows agrees."""
    saved = {}

    def script(run):
        trained = Trained(run, cases.slices(count=60, keys=200), saver=True)
        sess = run.begin(trained.iterator)
        for number in range(5):
            settle()
            run.step(sess, trained.seen)
            trained.saver.save(sess, os.path.join(run.directory, "model.ckpt"), global_step=number)
        saved[run.form] = files(run.directory)

    cases.alike(script, moves=1, tmp_path=tmp_path)
    tables = {form: {name: data for name, data in found.items() if name.endswith("slice.data")}
              for form, found in saved.items()}
    assert len(tables[STEP]) == 5 * 4, sorted(tables[STEP])
    assert sorted(tables[AHEAD]) == sorted(tables[STEP])
    for name, data in tables[STEP].items():
        assert tables[AHEAD][name] == data, name


@support.run_by(cases.alike, "tmp_path", moves=1)
def test_a_checkpoint_restored_while_batches_wait(run):
    trained = Trained(run, cases.slices(keys=15).repeat(4), saver=True)
    sess = run.session()
    path = os.path.join(run.directory, "model.ckpt")
    run.start(sess, trained.iterator)
    run.steps(sess, trained.seen, 2)
    trained.saver.save(sess, path)
    run.contents(sess)
    for _ in range(3):
        run.steps(sess, trained.seen, 2)
        settle()
        trained.saver.restore(sess, path)
        run.contents(sess)
        run.steps(sess, trained.seen, 1)
    run.contents(sess, ["LazyAdam_momentum"])


@support.run_by(cases.alike, "tmp_path", moves=1)
def test_a_new_session_of_the_modified_graph_restores_and_goes_on(run):
    trained = Trained(run, cases.slices(keys=15), saver=True)
    path = os.path.join(run.directory, "model.ckpt")
    sess = run.begin(trained.iterator)
    run.steps(sess, trained.seen, 3)
    trained.saver.save(sess, path)
    sess.close()
    again = support.new_session()
    trained.saver.restore(again, path)
    run.start(again, trained.iterator)
    run.epoch(again, trained.seen)
    run.contents(again, ["LazyAdam_momentum"])
    again.close()


@pytest.mark.long
@support.run_by(cases.alike, moves=1)
def test_sessions_closed_in_the_middle_leave_nothing_behind(run):
    trained = Trained(run, fresh(10), capacity=40)
    for _ in range(8):
        sess = run.begin(trained.iterator)
        run.steps(sess, trained.seen, 2)
        sess.close()
    sess = run.begin(trained.iterator)
    assert run.finish(sess, trained.seen) == 10


@support.run_by(cases.alike, moves=1)
def test_two_sessions_of_one_modified_graph_have_tables_of_their_own(run):
    trained = Trained(run, cases.slices(keys=15))
    sessions = [run.session() for _ in range(2)]
    for sess in sessions:
        run.start(sess, trained.iterator)
    for number in (0, 1, 1, 0, 1, 0, 0):
        run.step(sessions[number], trained.seen)
    for sess in sessions:
        run.contents(sess)


def test_a_step_that_fails_elsewhere_loses_its_batch_only():
    def script(run):
        bad = tf.compat.v1.placeholder_with_default(False, [])
        iterator = cases.initializable(fresh(8))
        batch = iterator.get_next()
        table = run.table()
        embedding = run.lookup(table, batch["ids"])
        # The assertion comes after the lookup, whose key work is always done, and before the update.
        with tf.control_dependencies([embedding]):
            check = tf.debugging.Assert(tf.logical_not(bad), ["told to fail"])
        with tf.control_dependencies([check]):
            model = cases.Model(run, [tf.identity(embedding)], batch["label"])
        sess = run.begin(iterator)
        for number in range(8):
            run.step(sess, model.seen, {bad: number in (2, 3, 6)})
        run.contents(sess)

    runs = cases.alike(script, moves=1)
    assert len(cases.errors(runs[AHEAD])) == 3


@pytest.mark.parametrize("seed", range(4))
@support.run_by(cases.alike, moves=1)
def test_a_random_history_of_steps_restarts_removals_and_writes(run, seed):
    trained = Trained(run, cases.slices(count=60, keys=30, batch=6), capacity=30)
    sess = run.session()
    raw = run.raw(trained.table)
    random = np.random.RandomState(seed)
    run.start(sess, trained.iterator)
    for _ in range(60):
        choice = random.rand()
        if choice < 0.65:
            run.step(sess, trained.seen)
        elif choice < 0.8:
            run.start(sess, trained.iterator)
        elif choice < 0.92:
            run.note("removed", raw.remove(sess, random.randint(0, 30, 8) * 7 - 50))
        else:
            keys = sorted(raw.rows(sess))[:3]
            if keys:
                raw.assign(sess, keys, random.rand(len(keys), 4))
    run.contents(sess)
