"""Thresholds and evictions of a graph that was built elsewhere and imported.

They failed: "no training lookup of this graph has an 'eviction_threshold'", although it had one.
"""

import os
from time import sleep

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.admission import set_threshold
from mx_rec.core.embedding import sparse_lookup
from mx_rec.core.feature_process import EvictHook, evict
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import get_host_pipeline_ops
from mx_rec.util.log import logger

tf1 = tf.compat.v1


@pytest.fixture
def exported(dynamic, tmp_path):
    """A function that exports the meta graph of a training with admission and gives its path."""

    def export(access=2, eviction=10, is_train=True, name="table"):
        path = os.path.join(str(tmp_path), "model.meta")
        config = {"access_threshold": access, "eviction_threshold": eviction}
        with tf.Graph().as_default():
            ids = tf1.placeholder(tf.int64, [None], name="ids")
            time = tf1.placeholder(tf.int64, [], name="time")
            tf1.add_to_collection("ASCEND_TIMESTAMP", time)
            table = support.make_table(name, 2, 50, 1.0)
            found = sparse_lookup(table, ids, is_train=is_train, modify_graph=True,
                                  access_and_evict_config=config if access else None)
            tf.identity(found, "found")
            if is_train:
                step = tf1.train.get_or_create_global_step()
                update = create_hash_optimizer(0.125).minimize(
                    tf.reduce_sum(found), step, var_list=[table.variable])
                tf.group(update, name="update")
            tf1.train.export_meta_graph(path)
        return path

    return export


def train(sess, keys, time, scope=""):
    """One step; returns the keys that had a row in it."""
    names = [scope + name for name in ("found:0", "update", "ids:0", "time:0")]
    found, _ = sess.run(names[:2], {names[2]: keys, names[3]: time})
    return [key for key, row in zip(keys, found) if row.any()]


def started(graph):
    sess = support.new_session(graph)
    sess.run(tf.compat.v1.global_variables_initializer())
    return sess


@pytest.mark.parametrize("scope", ["", "again/here"])
def test_evict_and_set_threshold_work_on_an_imported_graph(graph, exported, scope):
    tf.compat.v1.train.import_meta_graph(exported(), import_scope=scope or None)
    prefix = scope + "/" if scope else ""
    with started(graph) as sess:
        graph.finalize()
        assert train(sess, [1, 2], 100, prefix) == []
        assert train(sess, [1, 2], 101, prefix) == [1, 2]
        assert train(sess, [3, 3], 115, prefix) == [3, 3]
        assert evict() == {"table": (2, 1)}
        assert train(sess, [4], 116, prefix) == []
        set_threshold(1, "table")
        assert train(sess, [4], 117, prefix) == [4]
        set_threshold(5)
        assert train(sess, [4, 4], 118, prefix) == []
        assert train(sess, [4], 140, prefix) == [4]
        assert evict(prefix + "table") == {"table": (1, 1)}


def test_an_op_that_sets_the_threshold_is_made_on_an_imported_graph(graph, exported):
    tf.compat.v1.train.import_meta_graph(exported())
    changed = get_host_pipeline_ops().set_threshold(1, "table")
    with started(graph) as sess:
        assert train(sess, [1], 100) == []
        sess.run(changed)
        assert train(sess, [2], 101) == [2]


def test_the_hook_evicts_from_an_imported_graph(graph, exported):
    tf1.train.import_meta_graph(exported(access=1))
    step = tf1.train.get_or_create_global_step()
    hook = EvictHook(True, None, evict_step_interval=4)
    with tf1.train.MonitoredSession(hooks=[hook]) as sess:
        for number, (key, time) in enumerate([(1, 100), (2, 104), (3, 110), (3, 111)], 1):
            assert train(sess, [key], time) == [key]
            assert sess.run(step) == number
        while hook.is_evicting:
            sleep(0.01)
        [summary] = [op for op in graph.get_operations() if op.name == "evict/table/done"]
        stats = [op for op in graph.get_operations() if op.type == "MxRecTableStats"]
        assert summary.outputs[0].shape.as_list() in ([2], None)
        assert sess.run(stats[0].outputs[0])[0] == 2


def test_two_imports_of_one_graph_are_told_apart_by_their_ops(graph, exported):
    path = exported(access=1)
    for scope in ("one", "two"):
        tf.compat.v1.train.import_meta_graph(path, import_scope=scope)
    stamps = graph.get_collection_ref("ASCEND_TIMESTAMP")
    for op in graph.get_operations():
        if op.type == "MxRecObserve":
            op._update_input(3, graph.get_tensor_by_name(op.name.split("/")[0] + "/time:0"))
    del stamps[1:]
    with started(graph) as sess:
        for scope, keys in (("one/", [1, 2]), ("two/", [7])):
            other = "two/" if scope == "one/" else "one/"
            for stale, time in ((keys, 100), ([9], 120)):
                names = [scope + "found:0", scope + "update"]
                feed = {scope + "ids:0": stale, scope + "time:0": time, other + "time:0": 1}
                sess.run(names, feed)
        with pytest.raises(ValueError, match="several tables 'table'.*'one/table', 'two/table'"):
            evict("table")
        with pytest.raises(ValueError, match="several tables 'table'"):
            set_threshold(3, "table")
        assert evict("two/table") == {"two/table": (1, 1)}
        assert evict() == {"one/table": (2, 1), "two/table": (0, 1)}


@pytest.mark.parametrize("access, eviction, name, message", [
    (2, -1, None, "no training lookup of this graph has an 'eviction_threshold'"),
    (2, -1, "table", "the lookups of the table 'table' have no 'eviction_threshold'"),
    (0, -1, None, "no training lookup of this graph has an 'eviction_threshold'"),
    (0, -1, "table", "no training lookup of the table 'table' has an 'access_threshold'"),
    (2, 10, "other", r"no table 'other' in this graph; tables are \['table'\]"),
])
def test_what_an_imported_graph_cannot_evict_is_an_error(graph, exported, access, eviction, name,
                                                         message):
    tf.compat.v1.train.import_meta_graph(exported(access=access, eviction=eviction))
    with started(graph), pytest.raises(ValueError, match=message):
        evict(name)


def test_a_graph_that_was_cut_says_so(graph, exported):
    meta = tf.compat.v1.MetaGraphDef()
    with open(exported(), "rb") as file:
        meta.ParseFromString(file.read())
    kept = [node for node in meta.graph_def.node if "//admission/" not in node.name]
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(kept)
    tf.compat.v1.train.import_meta_graph(meta)
    with started(graph):
        for call in (evict, lambda: evict("table"), lambda: set_threshold(3),
                     lambda: set_threshold(3, "table"), EvictHook(True).begin):
            with pytest.raises(ValueError, match="observe' of the table 'table'.*was cut"):
                call()


def test_the_hook_leaves_an_imported_evaluation_alone(graph, exported, caplog):
    tf.compat.v1.train.import_meta_graph(exported(is_train=False, access=0))
    logger.addHandler(caplog.handler)
    try:
        EvictHook(True).begin()
    finally:
        logger.removeHandler(caplog.handler)
    assert "no training lookup, and nothing will be evicted" in caplog.text


def test_a_table_made_here_and_an_imported_one_are_both_evicted(graph, exported):
    tf.compat.v1.train.import_meta_graph(exported(access=1), import_scope="there")
    time = graph.get_tensor_by_name("there/time:0")
    table = support.make_table("table", 2, 50, 1.0)
    here = sparse_lookup(table, tf.constant([1, 2, 3], tf.int64), modify_graph=True,
                         access_and_evict_config={"access_threshold": 1, "eviction_threshold": 5})
    with started(graph) as sess:
        assert np.all(sess.run(here, {time: 10}) == 1.0)
        assert train(sess, [7], 10, "there/") == [7]
        assert evict() == {"table": (0, 3), "there/table": (0, 1)}
        assert evict(table) == evict("table") == {"table": (0, 3)}
        assert evict("there/table") == {"there/table": (0, 1)}
