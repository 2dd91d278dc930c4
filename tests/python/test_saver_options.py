"""Every option of tf.train.Saver, looked at in both parts of the checkpoints on disk."""

import glob
import logging
import os

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import CASES
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.initialize import init, terminate_config_initializer


class Model:
    """Two tables, one with LazyAdam's slots, beside two variables."""

    def __init__(self, optimizer="lazy_adam_0.9_0.999_1e-08", capacity=100, **arguments):
        self.case = [case for case in CASES if case.name == optimizer][0]
        self.first, self.second = [support.make_table(name, 3, capacity,
                                                      tf.compat.v1.random_normal_initializer(seed=2),
                                                      **arguments) for name in ("first", "second")]
        self.a = tf.compat.v1.get_variable("a", initializer=np.float32([1.0, 2.0]))
        self.b = tf.compat.v1.get_variable("b", initializer=np.float32(5.0))
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.square(sparse_lookup(self.first, self.ids, modify_graph=True) - 1.0))
        self.update = self.case.ours(self.case.lr).minimize(loss, var_list=[self.first.variable])
        self.raws = [support.Raw.of(table) for table in (self.first, self.second)]
        self.raws[0].make_slots(self.case)

    def fill(self, sess, value):
        sess.run(tf.compat.v1.global_variables_initializer())
        sess.run(self.update, {self.ids: np.arange(int(value) + 3)})
        self.raws[1].assign(sess, np.arange(4), np.full([4, 3], value))
        sess.run([self.a.assign([value, value]), self.b.assign(value)])

    def tables(self, sess):
        return [raw.rows(sess) for raw in self.raws] + [self.raws[0].slot_rows(sess, slot) for slot, _ in self.case.slots]


@pytest.fixture
def model(graph, dynamic):
    return Model()


def saver_of(*args, **kwargs):
    return tf.compat.v1.train.Saver(*args, **kwargs)


def on_disk(place):
    """(names of the dense checkpoints, names of those of the tables), and nothing hidden may be there."""
    assert not [name for name in os.listdir(place) if name.startswith(".")]
    dense = sorted(os.path.basename(name)[:-len(".index")] for name in glob.glob(place + "/*.index"))
    sparse = sorted(os.path.basename(name)[len("sparse-"):] for name in glob.glob(place + "/sparse-*"))
    return dense, sparse


def assert_restores(model, session, saver, path, expected):
    fresh = support.started(session())
    saver.restore(fresh, path)
    support.assert_same_each(model.tables(fresh), expected)
    return fresh


@pytest.mark.parametrize("keep, left", [(1, ["m-4"]), (3, ["m-2", "m-3", "m-4"]), (0, ["m-1", "m-2", "m-3", "m-4"]),
                                        (None, ["m-1", "m-2", "m-3", "m-4"])])
def test_max_to_keep(model, session, place, keep, left):
    saver, sess, expected = saver_of(max_to_keep=keep), session(), {}
    for step in range(1, 5):
        model.fill(sess, step)
        expected["m-%d" % step] = model.tables(sess)
        saver.save(sess, place + "/m", global_step=step)
    assert on_disk(place) == (left, left)
    for name in left:
        assert_restores(model, session, saver, place + "/" + name, expected[name])


def test_keep_checkpoint_every_n_hours_keeps_both_parts(model, session, place, monkeypatch):
    from tensorflow.python.training import saver as stock

    now = [1e9]
    monkeypatch.setattr(stock.time, "time", lambda: now[0])
    saver, sess = saver_of(max_to_keep=2, keep_checkpoint_every_n_hours=1.0), session()
    model.fill(sess, 1)
    for step in range(8):
        now[0] += 1800.0
        saver.save(sess, place + "/m", global_step=step)
    dense, sparse = on_disk(place)
    assert dense == sparse and dense[-2:] == ["m-6", "m-7"] and 3 <= len(dense) < 8


def test_the_forms_of_global_step(model, session, place):
    step = tf.compat.v1.train.get_or_create_global_step()
    saver, sess = saver_of(max_to_keep=None), session()
    model.fill(sess, 1)
    sess.run(step.assign(7))
    for form, name in ((None, "m"), (3, "m-3"), (np.int64(4), "m-4"), (np.int32(5), "m-5"), (step, "m-7"), (step + 1, "m-8"),
                       (0, "m-0"), (2 ** 31 - 1, "m-2147483647")):
        assert saver.save(sess, place + "/m", global_step=form) == place + "/" + name
        assert all(name in names for names in on_disk(place))
    padded = saver_of(pad_step_number=True)
    assert padded.save(sess, place + "/m", global_step=12) == place + "/m-00000012"
    assert all("m-00000012" in names for names in on_disk(place))


def test_latest_filename_and_write_state(model, session, place):
    saver, sess = saver_of(), session()
    model.fill(sess, 1)
    saver.save(sess, place + "/m", global_step=1, latest_filename="mine")
    assert tf.train.latest_checkpoint(place, "mine") == place + "/m-1" and tf.train.latest_checkpoint(place) is None
    saver.save(sess, place + "/m", global_step=2, write_state=False)
    assert tf.train.latest_checkpoint(place, "mine") == place + "/m-1" and not os.path.exists(place + "/checkpoint")
    assert on_disk(place) == (["m-1", "m-2"], ["m-1", "m-2"])
    # Never named, never removed.
    for step in range(3, 9):
        saver.save(sess, place + "/m", global_step=step)
    left = ["m-2", "m-4", "m-5", "m-6", "m-7", "m-8"]
    assert on_disk(place) == (left, left)


@pytest.mark.parametrize("form", ["list", "dict", "list with a table", "dict with a table", "tables only"])
def test_the_forms_of_var_list(model, session, place, form):
    variables = {"list": [model.a], "dict": {"other": model.a}, "list with a table": [model.a, model.first.variable],
                 "dict with a table": {"other": model.a, "t": model.first.variable}, "tables only": [model.first.variable]}[form]
    saver, sess = saver_of(variables), session()
    model.fill(sess, 3)
    path = saver.save(sess, place + "/m", global_step=1)
    assert on_disk(place) == (["m-1"], ["m-1"])
    both = "table" not in form
    assert sorted(name for name in os.listdir(place + "/sparse-m-1") if name != "manifest.json") == \
        (["first", "second"] if both else ["first"])
    names = [name for name, _ in tf.train.list_variables(path)]
    assert names == {"l": ["a"], "d": ["other"], "t": ["mx_rec_tables"]}[form[0]]
    fresh = support.started(session())
    saver.restore(fresh, path)
    support.assert_same_tables(model.tables(fresh)[0], model.tables(sess)[0])
    assert (model.raws[1].size(fresh) == 4) is both
    assert fresh.run(model.a).tolist() == ([1.0, 2.0] if form == "tables only" else [3.0, 3.0]) and fresh.run(model.b) == 5.0


def test_sharded_checkpoints_carry_the_tables(model, session, place):
    saver, sess = saver_of(sharded=True, max_to_keep=2), session()
    for step in (1, 2, 2, 3):
        model.fill(sess, step)
        path = saver.save(sess, place + "/m", global_step=step)
    assert on_disk(place) == (["m-2", "m-3"], ["m-2", "m-3"])
    fresh = assert_restores(model, session, saver, path, model.tables(sess))
    assert fresh.run(model.b) == 3.0


def test_two_savers_of_one_graph_keep_their_own(model, session, place):
    one, two, sess = saver_of(max_to_keep=1), saver_of(max_to_keep=2), session()
    expected = {}
    for step in (1, 2, 3):
        model.fill(sess, step)
        expected[step] = model.tables(sess)
        one.save(sess, place + "/one", global_step=step)
        two.save(sess, place + "/one-more", global_step=step, latest_filename="two")
    left = ["one-3", "one-more-2", "one-more-3"]
    assert on_disk(place) == (left, left)
    assert_restores(model, session, one, place + "/one-more-2", expected[2])
    assert_restores(model, session, two, place + "/one-3", expected[3])


@pytest.mark.parametrize("way", ["recover_last_checkpoints", "set_last_checkpoints", "set_last_checkpoints_with_time"])
def test_a_new_saver_prunes_what_it_is_told_of(model, session, place, way):
    sess = session()
    model.fill(sess, 1)
    first = saver_of(max_to_keep=2)
    for step in (1, 2):
        first.save(sess, place + "/m", global_step=step)
    second = saver_of(max_to_keep=2)
    paths = list(first.last_checkpoints)
    getattr(second, way)([(path, 1.0) for path in paths] if way.endswith("time") else paths)
    second.save(sess, place + "/m", global_step=3)
    # TensorFlow knows no time of these, and removes none of them.
    left = ["m-1", "m-2", "m-3"] if way == "set_last_checkpoints" else ["m-2", "m-3"]
    assert on_disk(place) == (left, left)


def test_a_saver_from_a_meta_graph_restores_and_saves_the_tables(model, session, place):
    saver, sess = saver_of(), session()
    model.fill(sess, 2)
    path = saver.save(sess, place + "/m", global_step=1)
    expected = model.raws[0].rows(sess)
    with tf.Graph().as_default() as graph:
        again = tf.compat.v1.train.import_meta_graph(path + ".meta")
        with support.new_session(graph) as other:
            again.restore(other, path)
            again.save(other, place + "/n", global_step=2)
    assert on_disk(place) == (["m-1", "n-2"], ["m-1", "n-2"])
    fresh = support.restored(session(), saver, place + "/n-2")
    support.assert_same_tables(model.raws[0].rows(fresh), expected)


def test_a_table_that_alone_has_changed_is_the_only_difference_of_two_saves(model, session, place):
    saver, sess = saver_of(), session()
    model.fill(sess, 1)
    saver.save(sess, place + "/m", global_step=1)
    model.raws[1].assign(sess, [2], [[9.0, 9.0, 9.0]])
    saver.save(sess, place + "/m", global_step=2)

    def content(step, table):
        return {os.path.relpath(name, place + "/sparse-m-%d" % step): open(name, "rb").read()
                for name in glob.glob("%s/sparse-m-%d/%s/**/*" % (place, step, table), recursive=True) if os.path.isfile(name)}

    assert content(1, "first") == content(2, "first") != {} and content(1, "second") != content(2, "second")


def test_without_is_save_no_table_is_in_either_part(graph, dynamic, session, place):
    model = Model(is_save=False)
    saver, sess = saver_of(), session()
    model.fill(sess, 1)
    path = saver.save(sess, place + "/m", global_step=1)
    assert on_disk(place) == (["m-1"], [])
    fresh = support.restored(session(), saver, path)
    assert fresh.run(model.b) == 1.0 and model.raws[0].size(fresh) == 0


@pytest.mark.parametrize("capacity", [6, 100000])
def test_another_optimizer_and_budget_start_missing_slots_and_leave_others(model, session, place, caplog, capacity):
    saver, sess = saver_of(var_list=[model.a, model.first.variable, model.second.variable]), session()
    model.fill(sess, 3)
    path = saver.save(sess, place + "/m", global_step=1)
    rows = model.tables(sess)[:2]
    tf.compat.v1.reset_default_graph()
    terminate_config_initializer()
    init()
    changed = Model("adagrad_from_0.1", capacity=capacity)
    saver = saver_of(var_list=[changed.a, changed.first.variable, changed.second.variable])
    with support.new_session() as fresh, caplog.at_level(logging.INFO):
        saver.restore(fresh, path)
        support.assert_same_each([raw.rows(fresh) for raw in changed.raws], rows)
        fresh.run(tf.compat.v1.global_variables_initializer())
        fresh.run(changed.update, {changed.ids: [0]})
        accumulator = changed.raws[0].slot_rows(fresh, "Adagrad_accumulator")
        assert np.all(accumulator[1] == np.float32(0.1)) and np.all(accumulator[0] > np.float32(0.1))
    logged = "\n".join(record.getMessage() for record in caplog.records)
    for slot in ("Adagrad_accumulator", "LazyAdam_momentum", "LazyAdam_velocity"):
        assert slot in logged and "'first'" in logged, logged
