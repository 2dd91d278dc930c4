"""table_stats and TableStatsHook tell what the tables hold and what they did."""

import pytest
import tensorflow as tf

import estimator_cases
import support
from mx_rec.core.admission import evict
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.stats import TableStats, TableStatsHook, table_stats


def make(name="table", access=None, eviction=None, capacity=100):
    """(table, embedding, ids, time)."""
    table = create_table(tf.int64, 8, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=capacity)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    embedding = sparse_lookup(table, ids, modify_graph=True, access_and_evict_config={
        "access_threshold": access, "eviction_threshold": eviction})
    return table, embedding, ids


def test_the_numbers_follow_what_the_table_does(graph, session, dynamic):
    table, embedding, ids = make(access=2, eviction=10)
    time = tf.compat.v1.placeholder(tf.int64, [])
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", time)
    sess = session()
    start = table_stats(table)
    assert isinstance(start, TableStats)
    assert (start.rows, start.capacity, start.load, start.hits, start.new, start.refused, start.evicted) == \
        (0, 100, 0, 0, 0, 0, 0)
    sess.run(embedding, {ids: [1, 1, 2, -1], time: 100})
    first = table_stats("table")
    assert (first.rows, first.new, first.refused, first.hits) == (1, 1, 1, 0)
    sess.run(embedding, {ids: [1, 1, 2, 3], time: 105})
    second = table_stats(table)
    assert (second.rows, second.new, second.refused, second.hits) == (2, 2, 2, 1)
    assert second.load == pytest.approx(0.02, abs=0.002)
    assert min(second.bytes_rows, second.bytes_index, second.bytes_history) > 0
    sess.run(embedding, {ids: [4], time: 200})
    assert evict() == {"table": (3, 1)}
    third = table_stats(table)
    assert (third.rows, third.evicted) == (0, 3)
    assert third.bytes_history <= second.bytes_history


def test_a_table_without_admission_has_numbers_too(graph, session, dynamic):
    one, embedding, ids = make("one")
    make("two")
    sess = session()
    for _ in range(3):
        sess.run(embedding, {ids: [5, 6, 6]})
    graph.finalize()
    found = table_stats()
    assert sorted(found) == ["one", "two"]
    assert (found["one"].rows, found["one"].new, found["one"].hits, found["one"].refused) == (2, 2, 4, 0)
    assert (found["two"].rows, found["two"].bytes_history) == (0, 0)
    assert table_stats(one) == found["one"]
    with pytest.raises(ValueError, match="there is no table 'three'"):
        table_stats("three")
    with pytest.raises(ValueError, match="'table'"):
        table_stats(3)
    tf.compat.v1.reset_default_graph()
    assert table_stats.__module__ == "mx_rec.util.stats"


def test_tables_of_an_imported_graph_have_numbers(graph, dynamic, tmp_path):
    """There were none, and the hook wrote nothing, without a word."""
    path = str(tmp_path / "model.meta")
    with tf.Graph().as_default():
        for name in ("one", "two"):
            tf.identity(make(name)[1], name + "_rows")
        tf.compat.v1.train.export_meta_graph(path)
    own, embedding, ids = make("own")
    tf.compat.v1.train.import_meta_graph(path, import_scope="again")
    tf.compat.v1.train.get_or_create_global_step()
    for names in (None, ["own", "again/two"]):
        TableStatsHook(str(tmp_path / "events"), tables=names).begin()
    with pytest.raises(ValueError, match="no table 'two'.*again/one"):
        TableStatsHook(str(tmp_path / "events"), tables=["two"]).begin()
    with support.new_session() as sess:
        sess.run([embedding, "again/one_rows:0"], {ids: [5, 6], "again/Placeholder:0": [1, 2, 3]})
        found = table_stats()
        assert {name: one.rows for name, one in found.items()} == {"own": 2, "again/one": 3, "again/two": 0}
        assert table_stats("again/one") == found["again/one"] and table_stats(own) == found["own"]


def test_without_a_session_there_are_no_numbers(graph, dynamic):
    table, _, _ = make()
    with pytest.raises(RuntimeError, match="open a"):
        table_stats(table)


@pytest.mark.parametrize("form", estimator_cases.FORMS)
def test_the_hook_writes_scalars_beside_the_summaries_of_an_estimator(dynamic, tmp_path, form):
    case = estimator_cases.Case(form, tmp_path)
    case.train(repeat=3, hooks=[TableStatsHook(case.directory, every_n_steps=5)])
    last = estimator_cases.latest_step(case.directory)
    for table in estimator_cases.TABLES:
        for field in TableStats._fields:
            steps, values = estimator_cases.summary_values(case.directory, "{}/{}".format(table, field))
            assert steps == [1] + list(range(5, last + 1, 5)) + [last] * (last % 5 != 0), (field, steps)
            if field == "rows":
                assert values[-1] == len(estimator_cases.saved_tables(case.directory)[table]["embedding"])
            if field == "capacity":
                assert set(values) == {1000}


def test_the_hook_refuses_wrong_arguments(graph, dynamic, tmp_path):
    for arguments, message in ((dict(output_dir=""), "'output_dir' length"), (dict(output_dir=None), "'output_dir'"),
                               (dict(every_n_steps=0), "'every_n_steps' is less than 1"),
                               (dict(tables="table"), "Invalid parameter type of para 'tables'")):
        with pytest.raises(ValueError, match=message):
            TableStatsHook(**dict(dict(output_dir=str(tmp_path)), **arguments))
    make()
    with pytest.raises(RuntimeError, match="global step"):
        TableStatsHook(str(tmp_path)).begin()
    with pytest.raises(ValueError, match="there is no table 'other'"):
        TableStatsHook(str(tmp_path), tables=["other"]).begin()
