"""What works on tables works on those whose rows are mostly on disk, with the same bits."""

import json
import os
import time

import numpy as np
import pytest
import tensorflow as tf

import support
import test_ssd
from mx_rec.checkpoint.__main__ import main
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.embedding import sparse_lookup
from mx_rec.core.feature_process import evict
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.saver.sparse import export
from mx_rec.util.initialize import get_initializer
from mx_rec.util.stats import table_stats

KINDS = sorted(test_ssd.STORAGE)


def each_kind(tmp_path, run):
    """Runs a function of (kind, directory of rows, its own directory) with rows in memory and on disk; both results."""
    results = []
    for kind in KINDS:
        rows, own = tmp_path / (kind + "-rows"), tmp_path / kind
        rows.mkdir()
        own.mkdir()
        with tf.Graph().as_default():
            results.append(run(kind, rows, own))
    return results


class Model:
    """A table of LazyAdam with a step on it."""

    def __init__(self, kind, rows, times=None, config=None):
        self.table = test_ssd.make(kind, rows)
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.time = tf.compat.v1.placeholder(tf.int64, [])
        if times:
            tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, self.time)
        self.rows = sparse_lookup(self.table, self.ids, modify_graph=True, access_and_evict_config=config)
        self.train = test_ssd.train_op(self.rows)
        self.raw = support.Raw.of(self.table)
        self.raw.slot("LazyAdam_velocity")
        self.saver = tf.compat.v1.train.Saver()

    def step(self, sess, ids, time=0):
        return sess.run([self.rows, self.train], {self.ids: ids, self.time: time})[0]

    def content(self, sess):
        """Embedding and slot by key."""
        return self.raw.rows(sess), self.raw.slot_rows(sess, "LazyAdam_velocity")


def assert_same(one, other):
    for mine, theirs in zip(one, other):
        assert mine
        support.assert_same_tables(mine, theirs)


def on_disk(table):
    return table_stats(table).rows_disk


def test_keys_are_admitted_and_evicted_wherever_their_rows_are(graph, dynamic, tmp_path):
    def run(kind, rows, own):
        model = Model(kind, rows, times=True, config={"access_threshold": 2, "eviction_threshold": 30})
        seen, evicted = [], []
        with support.started(support.new_session()) as sess:
            for step, ids in enumerate(test_ssd.batches(steps=60)):
                seen.append(model.step(sess, ids, 100 + step).tobytes())
                if step % 20 == 19:
                    assert on_disk(model.table) > 0 or kind == "memory"
                    evicted.append(tuple(evict()["table"]))
            return seen, evicted, model.content(sess)

    (seen, evicted, content), (other_seen, other_evicted, other) = each_kind(tmp_path, run)
    assert seen == other_seen and evicted == other_evicted and sum(gone for gone, _ in evicted) > 20
    assert_same(content, other)


def test_deltas_hold_what_changed_on_disk_and_in_memory(mx, tmp_path):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)

    def run(kind, rows, own):
        states = []
        model = Model(kind, rows)
        batches = test_ssd.batches(steps=30)
        with support.started(support.new_session()) as sess:
            for number in range(3):
                for ids in batches[number * 10:number * 10 + 10]:
                    model.step(sess, ids)
                # Rows in memory and on disk go.
                model.raw.remove(sess, batches[number * 10][::3])
                model.saver.save(sess, str(own / "model"), global_step=number, save_delta=number > 0)
                states.append(model.content(sess))
        assert (own / "delta-sparse-model-2").is_dir()
        for number, state in enumerate(states):
            with support.restored(support.new_session(), model.saver, str(own / "model-{}".format(number))) as sess:
                assert_same(model.content(sess), state)
        return states

    for one, other in zip(*each_kind(tmp_path, run)):
        assert_same(one, other)


def test_exports_and_the_checkpoint_command_read_what_was_on_disk(graph, dynamic, tmp_path, capsys):
    import mx_rec.saver

    def run(kind, rows, own):
        model = Model(kind, rows)
        found = sparse_lookup(model.table, model.ids, is_train=False, modify_graph=True)
        with support.started(support.new_session()) as sess:
            for ids in test_ssd.batches():
                model.step(sess, ids)
            model.saver.save(sess, str(own / "model"), global_step=1)
            content = model.content(sess)
            mx_rec.saver.export_plain(sess, str(own / "plain"), {"ids": model.ids}, {"rows": found})
        assert export() == 1
        return content, np.load(str(own / "sparse-model-1" / "table" / "key-emb.npy"), allow_pickle=True).item()

    (content, exported), (other, other_exported) = each_kind(tmp_path, run)
    assert_same(content, other)
    support.assert_same_tables(exported, other_exported)
    support.assert_same_tables(exported, content[0])
    keys = np.array(sorted(content[0]) + [10 ** 12])
    told = []
    for kind in KINDS:
        capsys.readouterr()
        assert main([str(tmp_path / kind), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out.replace(str(tmp_path / kind), "")))
        assert main([str(tmp_path / kind), "--verify"]) == 0
        with tf.Graph().as_default(), support.new_session() as sess:
            meta = tf.compat.v1.saved_model.load(sess, ["serve"], str(tmp_path / kind / "plain"))
            names = meta.signature_def["serving_default"]
            rows = sess.run(names.outputs["rows"].name, {names.inputs["ids"].name: keys})
        assert rows[:-1].tobytes() == np.array([content[0][key] for key in keys[:-1]]).tobytes(), kind
    assert len(told[0]) == len(told[1])


@pytest.mark.parametrize("source, target", [("disk", "memory"), ("memory", "disk"), ("disk", "disk")])
def test_tables_start_from_those_of_other_splits(dynamic, tmp_path, source, target):
    rows = tmp_path / "rows"
    rows.mkdir()
    batches = np.stack(test_ssd.batches(steps=30))

    def model_fn(features, labels, mode, params):
        table = test_ssd.make(params["kind"], rows)
        looked = sparse_lookup(table, features, modify_graph=True)
        step = tf.compat.v1.train.get_or_create_global_step()
        with tf.control_dependencies([test_ssd.train_op(looked)]):
            train = step.assign_add(1)
        return tf.estimator.EstimatorSpec(mode, loss=tf.reduce_sum(looked), train_op=train)

    def train(kind, name, data, warm_start=None):
        config = tf.estimator.RunConfig(model_dir=str(tmp_path / name), save_checkpoints_steps=1000)
        estimator = tf.estimator.Estimator(model_fn, config=config, params={"kind": kind}, warm_start_from=warm_start)
        estimator.train(lambda: tf.data.Dataset.from_tensor_slices(data), steps=len(data))
        table = str(tmp_path / name / "sparse-model.ckpt-{}".format(len(data)) / "table")
        keys = np.fromfile(os.path.join(table, "key", "slice.data"), np.int64)
        values = np.fromfile(os.path.join(table, "embedding", "slice.data"), np.float32)
        return dict(zip(keys.tolist(), values.reshape(len(keys), -1)))

    before = train(source, "source", batches)
    settings = tf.estimator.WarmStartSettings(str(tmp_path / "source"), vars_to_warm_start=".*")
    # One step on a key that was not there: all others are what they were.
    after = train(target, "target", np.array([[10 ** 9]]), settings)
    assert len(before) > 300 and set(after) == set(before) | {10 ** 9}
    after.pop(10 ** 9)
    support.assert_same_tables(after, before)


def test_a_pipeline_for_whose_batches_memory_is_too_small_names_the_sizes_to_raise(graph, dynamic, session, tmp_path):
    table = test_ssd.make("disk", tmp_path)
    batches = np.arange(0, 600).reshape(12, 50)
    dataset = tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(3)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    rows = sparse_lookup(table, iterator.get_next(), modify_graph=True)
    # The step holds its rows until the pipeline, which goes on when a batch is taken, has tried the next one.
    held = tf.compat.v1.py_func(lambda _: np.float32(time.sleep(0.05) or 0), [rows], tf.float32)
    with tf.control_dependencies([held]):
        train = test_ssd.train_op(rows)
    modify_graph_and_start_emb_cache(dump_graph=False)
    sess = support.started(session())
    sess.run(get_initializer(True))
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
        for _ in range(400):
            sess.run([rows, train])
    message = raised.value.message
    for named in ("device_vocabulary_size", "host_vocabulary_size", "'table'", "rows_in_memory=60", "prefetch"):
        assert named in message, message
    assert table_stats(table).given_up > 0
    # Nothing is broken: the next step runs.
    assert np.isfinite(sess.run([rows, train])[0]).all()
