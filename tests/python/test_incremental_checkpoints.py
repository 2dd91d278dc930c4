"""Incremental checkpoints: a whole save and its deltas restore what a whole save of that moment would."""

import contextlib
import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from mx_rec.checkpoint.chains import checked_manifest
from mx_rec.checkpoint.chains import chain_of, tables_directory
from mx_rec.checkpoint.commit import Staging
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.saver.saver import Saver
from mx_rec.saver.sparse import export
from mx_rec.util.initialize import ConfigInitializer, terminate_config_initializer


@pytest.fixture
def incremental(mx):
    """Initialises mx_rec for incremental checkpoints."""
    def start(**arguments):
        if ConfigInitializer._single_instance is not None:
            terminate_config_initializer()
        settings = dict(is_incremental_checkpoint=True, save_checkpoint_due_time=3600,
                        save_delta_checkpoints_secs=3600)
        settings.update(arguments)
        mx(**settings)

    return start


class Model:
    """Two tables with LazyAdam beside a dense variable."""

    def __init__(self, max_to_keep=100):
        self.tables = [support.make_table(name, dim, 1000, tf.compat.v1.random_normal_initializer(seed=dim))
                       for name, dim in (("users", 3), ("items", 2))]
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.dense = tf.compat.v1.get_variable("dense", initializer=np.float32(0.5))
        loss = self.dense * tf.add_n([tf.reduce_sum(tf.square(sparse_lookup(table, self.ids, modify_graph=True)))
                                      for table in self.tables])
        step = tf.compat.v1.train.get_or_create_global_step()
        update = create_hash_optimizer(0.1).minimize(loss, var_list=[table.variable for table in self.tables])
        with tf.control_dependencies([update]):
            self.train = tf.group(step.assign_add(1), self.dense.assign_add(0.25))
        self.raws = [support.Raw.of(table) for table in self.tables]
        self.slots = [raw.slot("LazyAdam_momentum") for raw in self.raws]
        self.saver = tf.compat.v1.train.Saver(max_to_keep=max_to_keep)

    def state(self, sess):
        rows = [raw.rows(sess) for raw in self.raws]
        slots = [raw.slot_rows(sess, "LazyAdam_momentum") for raw in self.raws]
        return rows + slots, float(sess.run(self.dense))

    def train_and_save(self, sess, keys, prefix, step, delta=True):
        sess.run(self.train, {self.ids: keys})
        return self.save(sess, prefix, step, delta)

    def save(self, sess, prefix, step, delta=True):
        return self.saver.save(sess, prefix, global_step=step, save_delta=delta)


@contextlib.contextmanager
def training(incremental, max_to_keep=100, **settings):
    """(a model with incremental checkpoints, a session of it)"""
    incremental(**settings)
    model = Model(max_to_keep)
    with support.started(support.new_session()) as sess:
        yield model, sess


def assert_same(found, expected):
    support.assert_same_each(found[0], expected[0])
    assert found[1] == expected[1]


def change_manifest(directory, **fields):
    """Changes fields of a checkpoint's manifest, with its checksum."""
    manifest = checked_manifest(support.text_of(directory + "/manifest.json"))
    support.write(directory + "/manifest.json", support.sealed(dict(manifest, **fields)))


def directories(place):
    return sorted(name for name in os.listdir(place) if "sparse-" in name)


def rebuilt(**arguments):
    tf.compat.v1.reset_default_graph()
    return Model(**arguments)


def test_each_version_is_restored_bit_for_bit(graph, session, incremental, place):
    prefix, states = place + "/model", {}
    random = np.random.RandomState(3)
    with training(incremental) as (model, sess):
        for step in range(8):
            for _ in range(3):
                sess.run(model.train, {model.ids: random.randint(0, 60, 10)})
            if step in (2, 5):
                model.raws[0].remove(sess, list(range(step * 5, step * 5 + 9)))
            model.save(sess, prefix, step, delta=step > 0)
            states[step] = model.state(sess)
    assert directories(place) == ["delta-sparse-model-%d" % step for step in range(1, 8)] + ["sparse-model-0"]
    for init in (incremental, lambda: incremental(is_incremental_checkpoint=False)):
        # A training without incremental checkpoints restores them, too.
        init()
        model = rebuilt()
        for step, expected in states.items():
            with support.restored(support.new_session(), model.saver, "%s-%d" % (prefix, step)) as sess:
                assert_same(model.state(sess), expected)
    index = support.json_of(place + "/model_index.json")
    assert [(entry["type"], entry["export_tag"], entry["global_step"]) for entry in index] == \
        [("base", "DueTime", 0)] + [("delta", "Seconds", step) for step in range(1, 8)]
    assert all(entry["cost_ms"] >= 0 and entry["timestamp"] > 1.5e9 for entry in index)
    assert support.json_of(place + "/delta_export_time_ms.json")["global_step"] == 7


def test_an_export_after_a_delta_holds_the_whole_table(graph, session, incremental, place):
    with training(incremental) as (model, sess):
        for step in range(3):
            sess.run(model.train, {model.ids: np.arange(step, 30, step + 1)})
            if step:
                model.raws[0].remove(sess, [4, 6, 100])
            model.save(sess, place + "/m", step, delta=step > 0)
        expected = model.raws[0].rows(sess)
    assert export() == 2
    exported = np.load(place + "/delta-sparse-m-2/users/key-emb.npy", allow_pickle=True).item()
    support.assert_same_tables(exported, expected)


def test_the_saver_of_tables_restores_deltas(graph, session, incremental, place):
    with training(incremental) as (model, sess):
        for step in range(2):
            model.train_and_save(sess, np.arange(step, 30, step + 1), place + "/m", step, delta=step > 0)
        expected = model.state(sess)[0]
        sess.run(model.train, {model.ids: np.arange(50)})
        Saver().restore(sess, place + "/m-1")
        support.assert_same_tables(model.state(sess)[0][0], expected[0])


def test_a_base_that_a_killed_save_had_taken_away_is_put_back_for_its_delta(graph, session, incremental, place):
    with training(incremental) as (model, sess):
        for step in range(2):
            model.train_and_save(sess, np.arange(step, 30, step + 1), place + "/m", step, delta=step > 0)
        expected = model.state(sess)
        # What a save over the base leaves where directories cannot be exchanged, of a process that is gone.
        os.rename(place + "/sparse-m-0", place + "/.sparse-m-0.old-999999999-0")
        model.saver.restore(sess, place + "/m-1")
        assert_same(model.state(sess), expected)


@pytest.mark.parametrize("kinds", [(False, True), (True, False), (True, True)])
def test_saves_of_one_step_leave_one_checkpoint_whatever_their_kinds(graph, session, incremental, place, kinds):
    with training(incremental) as (model, sess):
        model.train_and_save(sess, np.arange(20), place + "/m", 1, delta=False)
        for delta in kinds:
            model.train_and_save(sess, np.arange(5, 30), place + "/m", 2, delta=delta)
        expected = model.state(sess)
        sess.run(model.train, {model.ids: np.arange(40)})
        model.saver.restore(sess, place + "/m-2")
        assert_same(model.state(sess), expected)
    # A delta cannot follow what it takes the place of.
    assert directories(place) == ["sparse-m-1", "sparse-m-2"]


@pytest.mark.parametrize("first", [False, True])
def test_a_failed_save_of_the_other_kind_leaves_the_step_as_it_was(graph, session, incremental, place, first,
                                                                   monkeypatch):
    with training(incremental) as (model, sess):
        for step in (1, 2):
            model.train_and_save(sess, np.arange(20 * step), place + "/m", step, delta=step == 2 and first)
        expected, before = model.state(sess), directories(place)
        sess.run(model.train, {model.ids: np.arange(9)})
        if not first:
            # So that a delta of step 2 has something to follow.
            model.saver.restore(sess, place + "/m-1")
        with monkeypatch.context() as patch:
            patch.setattr("mx_rec.saver.saver.sync_dense", lambda path: (_ for _ in ()).throw(OSError("no disk")))
            patch.setattr("mx_rec.saver.saver._has_fresh_index", lambda path, stamp: False)
            with pytest.raises(OSError, match="no disk"):
                model.save(sess, place + "/m", 2, delta=not first)
        assert directories(place) == before
        model.saver.restore(sess, place + "/m-2")
        assert_same(model.state(sess), expected)


def test_a_delta_is_as_large_as_what_changed(graph, session, incremental, place):
    with training(incremental) as (model, sess):
        model.train_and_save(sess, np.arange(900), place + "/m", 1, delta=False)
        model.train_and_save(sess, [5, 7, 5], place + "/m", 2)
    keys = np.fromfile(place + "/delta-sparse-m-2/users/key/slice.data", "<i8")
    assert sorted(keys) == [5, 7]


def test_training_goes_on_with_deltas_after_a_restore(graph, session, incremental, place):
    prefix = place + "/model"
    with training(incremental) as (model, sess):
        model.train_and_save(sess, np.arange(20), prefix, 1, delta=False)
        model.train_and_save(sess, np.arange(5), prefix, 2)
    model = rebuilt()
    with support.restored(support.new_session(), model.saver, prefix + "-2") as sess:
        model.train_and_save(sess, np.arange(3, 30), prefix, 3)
        expected = model.state(sess)
    assert directories(place) == ["delta-sparse-model-2", "delta-sparse-model-3", "sparse-model-1"]
    with support.restored(support.new_session(), model.saver, prefix + "-3") as sess:
        assert_same(model.state(sess), expected)


def test_what_a_delta_cannot_follow_is_saved_whole_and_the_log_says_why(graph, session, incremental, place, caplog):
    with training(incremental) as (model, sess):
        model.train_and_save(sess, [1, 2], place + "/one/model", 1)
        assert "nothing was saved or restored" in caplog.text
        model.save(sess, place + "/two/model", 2)
        assert "the last save went to" in caplog.text
        sess.run(support.ops().mx_rec_clear(model.raws[0].handle, [], [], []))
        model.save(sess, place + "/two/model", 3)
        assert "is saved whole" in caplog.text
    assert directories(place + "/one") == ["sparse-model-1"]
    assert directories(place + "/two") == ["sparse-model-2", "sparse-model-3"]


def test_save_delta_needs_the_setting(graph, session, dynamic, place):
    model = Model()
    with support.started(support.new_session()) as sess:
        with pytest.raises(ValueError, match="is_incremental_checkpoint=True"):
            model.saver.save(sess, place + "/model", save_delta=True)
    assert not os.listdir(place)


def test_a_gap_and_a_foreign_delta_are_refused_by_name_and_nothing_changes(graph, session, incremental, place):
    prefix = place + "/model"
    with training(incremental) as (model, sess):
        for step in range(4):
            model.train_and_save(sess, np.arange(step, step + 5), prefix, step, delta=step > 0)
        before = model.state(sess)
        for damage in ("gone", "other", "silent"):
            middle = place + "/delta-sparse-model-2"
            shutil.copytree(middle, place + "/kept")
            if damage == "gone":
                shutil.rmtree(middle)
            else:
                change_manifest(middle, **({"id": "another"} if damage == "other" else {"previous": None}))
            with pytest.raises(tf.errors.DataLossError) as refused:
                model.saver.restore(sess, prefix + "-3")
            assert "delta-sparse-model-2" in str(refused.value)
            assert_same(model.state(sess), before)
            shutil.rmtree(middle, ignore_errors=True)
            os.rename(place + "/kept", middle)
        name = glob.glob(place + "/delta-sparse-model-1/items/embedding/slice.data")[0]
        with open(name, "r+b") as file:
            file.seek(3)
            file.write(b"\x99")
        with pytest.raises(tf.errors.DataLossError) as refused:
            model.saver.restore(sess, prefix + "-3")
        assert name in str(refused.value) and "items" in str(refused.value)
        assert_same(model.state(sess), before)


def test_a_save_that_fails_loses_nothing(graph, session, incremental, place):
    prefix = place + "/model"
    with training(incremental) as (model, sess):
        model.train_and_save(sess, np.arange(9), prefix, 1, delta=False)
        sess.run(model.train, {model.ids: [3]})
        model.raws[1].remove(sess, [8])
        good = model.saver.saver_def.save_tensor_name
        model.saver.saver_def.save_tensor_name = "no_such_tensor:0"
        with pytest.raises(ValueError, match="no_such_tensor"):
            model.save(sess, prefix, 2)
        model.saver.saver_def.save_tensor_name = good
        assert directories(place) == ["sparse-model-1"]
        model.train_and_save(sess, [4], prefix, 3)
        expected = model.state(sess)
    with support.restored(support.new_session(), model.saver, prefix + "-3") as sess:
        assert_same(model.state(sess), expected)


def test_what_a_kept_delta_needs_stays_and_a_whole_save_ends_the_deltas(graph, session, incremental, place):
    prefix = place + "/model"
    with training(incremental, max_to_keep=2) as (model, sess):
        for step in range(5):
            model.train_and_save(sess, np.arange(step, step + 5), prefix, step, delta=step > 0)
        expected = model.state(sess)
    assert model.saver.last_checkpoints == [prefix + "-3", prefix + "-4"]
    assert directories(place) == ["delta-sparse-model-%d" % step for step in range(1, 5)] + ["sparse-model-0"]
    # As if the process that saved were dead: its tables without variables are no leftovers.
    for name in directories(place):
        change_manifest(place + "/" + name, process=2 ** 22 + 1)
    for name in ("sparse-model-9", "delta-sparse-model-9"):
        Staging(place + "/" + name).undo()
    model = rebuilt(max_to_keep=2)
    with support.restored(support.new_session(), model.saver, tf.train.latest_checkpoint(place)) as sess:
        assert_same(model.state(sess), expected)
        sess.run(model.train, {model.ids: [1]})
        model.saver.recover_last_checkpoints([prefix + "-3", prefix + "-4"])
        model.save(sess, prefix, 5, delta=False)
        expected = model.state(sess)
    assert directories(place) == ["sparse-model-5"]
    state = tf.train.get_checkpoint_state(place)
    assert list(state.all_model_checkpoint_paths) == [state.model_checkpoint_path] == [prefix + "-5"]
    assert sorted(os.path.basename(name) for name in glob.glob(place + "/*.index")) == ["model-5.index"]
    assert [entry["global_step"] for entry in support.json_of(place + "/model_index.json")] == [5]
    with support.restored(support.new_session(), model.saver, prefix + "-5") as sess:
        assert_same(model.state(sess), expected)


def test_restore_model_version_chooses_a_step_until_this_process_saves(graph, session, incremental, place):
    prefix, states = place + "/model", {}
    with training(incremental) as (model, sess):
        for step in range(4):
            model.train_and_save(sess, np.arange(step, step + 5), prefix, step, delta=step > 0)
            states[step] = model.state(sess)
    code = """
import sys
import numpy as np
import support
from mx_rec.util.initialize import init
init(is_incremental_checkpoint=True, save_checkpoint_due_time=9, save_delta_checkpoints_secs=9,
     restore_model_version=int(sys.argv[2]))
from test_incremental_checkpoints import Model
model = Model()
with support.restored(support.new_session(), model.saver, sys.argv[1] + "-3") as sess:
    print("dense", model.state(sess)[1], len(model.state(sess)[0][0]))
    model.train_and_save(sess, [77], sys.argv[1], 10)
    model.saver.restore(sess, sys.argv[1] + "-10")
    print("then", model.state(sess)[1])
"""
    printed = preloaded.run_python(code, prefix, 2)
    assert "dense %s %d" % (states[2][1], len(states[2][0][0])) in printed
    assert "then %s" % (states[2][1] + 0.25) in printed
    assert "delta-sparse-model-10" in directories(place)
    with pytest.raises(AssertionError, match=r"no version 8 .* the steps are 0, 1, 2, 3, 10"):
        preloaded.run_python(code, prefix, 8)


def test_rows_that_were_trained_rarely_are_left_out_and_come_later(graph, session, incremental, place):
    keys = lambda step: sorted(np.fromfile(  # noqa: E731
        place + "/delta-sparse-m-%d/users/key/slice.data" % step, "<i8").tolist())
    with training(incremental, recent_key_count_threshold=2) as (model, sess):
        model.train_and_save(sess, np.arange(9), place + "/m", 1, delta=False)
        sess.run(model.train, {model.ids: [1, 2]})
        model.train_and_save(sess, [2, 3], place + "/m", 2)
        model.train_and_save(sess, [3], place + "/m", 3)
    assert (keys(2), keys(3)) == ([2], [3])


def test_the_making_of_a_row_is_no_gradient_that_reached_it(graph, session, incremental, place):
    """A row that was made and trained once counted as trained twice, and was in the delta."""
    keys = lambda step: sorted(np.fromfile(  # noqa: E731
        place + "/delta-sparse-m-%d/users/key/slice.data" % step, "<i8").tolist())
    with training(incremental, recent_key_count_threshold=2) as (model, sess):
        model.train_and_save(sess, [1], place + "/m", 1, delta=False)
        sess.run(model.train, {model.ids: [5]})
        sess.run(model.train, {model.ids: [6]})
        model.train_and_save(sess, [6], place + "/m", 2)
        model.train_and_save(sess, [5], place + "/m", 3)
    assert (keys(2), keys(3)) == ([6], [5])


ESTIMATOR = """
import sys, time
import numpy as np
import support
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.util.initialize import init

tf = support.tf()
place, steps, modified = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "modified"
init(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=1)


def input_fn():
    ids = np.random.RandomState(1).randint(0, 200, [400, 16])
    return tf.data.Dataset.from_tensor_slices({"ids": ids}).skip(int(sys.argv[4]))


def wait(loss):
    time.sleep(0.25)
    return loss


def model_fn(features, mode):
    table = create_table(key_dtype=tf.int64, dim=4, name="users", device_vocabulary_size=1000,
                         emb_initializer=tf.compat.v1.random_normal_initializer(seed=3))
    train = mode == tf.estimator.ModeKeys.TRAIN
    embedding = sparse_lookup(table, features["ids"], modify_graph=True, is_train=train)
    loss = tf.reduce_mean(tf.square(embedding))
    if not train:
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    update = create_hash_optimizer(0.1).minimize(loss, var_list=[table.variable],
                                                 global_step=tf.compat.v1.train.get_global_step())
    slow = tf.compat.v1.py_func(wait, [loss], tf.float32)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(update, slow))


config = tf.estimator.RunConfig(model_dir=place, save_checkpoints_steps=1000, keep_checkpoint_max=50)
estimator = tf.estimator.Estimator(model_fn, config=config)
estimator.train(input_fn, steps=steps, hooks=[GraphModifierHook(modify_graph=modified)])
from mx_rec.util.initialize import terminate_config_initializer
print("loss", repr(estimator.evaluate(input_fn, steps=3)["loss"]))
"""


@pytest.mark.long
@pytest.mark.parametrize("modified", ["modified", pytest.param("as it is", marks=pytest.mark.slow)])
def test_an_estimator_saves_deltas_by_time_and_goes_on_from_them(place, modified):
    preloaded.run_python(ESTIMATOR, place + "/two", 12, modified, 0)
    found = directories(place + "/two")
    assert "sparse-model.ckpt-0" in found
    assert len([name for name in found if name.startswith("delta-")]) >= 3, found
    assert tf.train.latest_checkpoint(place + "/two").endswith("-12")
    assert [entry["type"] for entry in support.json_of(place + "/two/model_index.json")][:2] == ["base", "delta"]
    preloaded.run_python(ESTIMATOR, place + "/two", 4, modified, 12)
    # The second training began with a whole save.
    assert "sparse-model.ckpt-12" in directories(place + "/two")
    preloaded.run_python(ESTIMATOR, place + "/one", 16, modified, 0)
    rows = [_rows(tf.train.latest_checkpoint(place + "/" + name)) for name in ("one", "two")]
    support.assert_same_tables(*rows)


def _rows(checkpoint):
    """The table `users` of a checkpoint, from its chain."""
    with tf.Graph().as_default():
        raw = support.Raw.new(4, name="users")
        load = support.ops().mx_rec_load(raw.handle, support.bytes_tensor("\0".join(
            link + "/users" for link in chain_of(tables_directory(checkpoint)))), [])
        with support.new_session() as sess:
            sess.run(load)
            return raw.rows(sess)
