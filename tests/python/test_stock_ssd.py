"""Converted variables with rows on disk: the numbers of rows in memory, checkpoints, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1


def build(optimizer):
    def make(ids, labels):
        w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=True,
                            initializer=v1.random_uniform_initializer(-0.1, 0.1))
        pooled = tf.nn.safe_embedding_lookup_sparse(w, tf.sparse.from_dense(ids[:, :2]))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(pooled, 1) - labels))
        return loss, cases.optimizers()[optimizer]().minimize(loss), [w]

    return make


def with_disk(mx, path, rows=50):
    mx(stock_tables=StockTables(least_rows=1, memory_rows=rows, ssd_data_path=[str(path)]))


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "lazy_adam", "rmsprop"])
def test_rows_on_disk_give_the_numbers_of_the_variable(mx, tmp_path, optimizer):
    with_disk(mx, tmp_path)
    assert cases.expect_equal(build(optimizer), ["w"])["w"].pieces


@pytest.mark.long
def test_a_checkpoint_of_a_variable_fills_rows_on_disk_and_goes_on(mx, tmp_path):
    def run(steps, restored, is_converted):
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(1)
            ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
            loss, train, _ = build("adagrad")(ids, labels)
            support.keep_variables()
            if is_converted:
                convert_graph(graph, True)
                assert converted(graph)[0].table.ssd_vocabulary_size == cases.ROWS - 50
            saver = v1.train.Saver()
            with support.started(v1.Session()) as sess:
                if restored:
                    saver.restore(sess, restored)
                losses = [sess.run([loss, train], {ids: batch, labels: label})[0]
                          for batch, label in list(cases.batches(40))[steps]]
                return np.array(losses), saver.save(sess, str(tmp_path / str(steps.start)))

    disk = tmp_path / "disk"
    disk.mkdir()
    _, old = run(slice(0, 10), None, False)
    expected, _ = run(slice(10, 40), old, False)
    _, old = run(slice(0, 10), None, False)
    with_disk(mx, disk)
    losses, path = run(slice(10, 25), old, True)
    np.testing.assert_allclose(losses, expected[:15], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    losses, _ = run(slice(25, 40), path, True)
    np.testing.assert_allclose(losses, expected[15:], rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@pytest.mark.parametrize("settings, message", [
    (dict(memory_rows=50), "memory_rows.*go together"), (dict(ssd_data_path=["/tmp"]), "memory_rows.*go together"),
    (dict(memory_rows=-1, ssd_data_path=["/tmp"]), "memory_rows"), (dict(memory_rows=1, ssd_data_path=[3]), "ssd_data_path"),
    (dict(lazy_adam=1), "lazy_adam")])
def test_settings_that_do_not_go_together_are_refused_by_init(mx, settings, message):
    with pytest.raises(ValueError, match=message):
        mx(stock_tables=StockTables(**settings))


def test_a_directory_that_is_not_there_is_refused_when_the_table_is_made(mx, graph, tmp_path):
    with_disk(mx, tmp_path / "missing")
    w = tf.compat.v1.get_variable("w", [cases.ROWS, 2])
    tf.compat.v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [1])))
    with pytest.raises(ValueError, match="ssd_data_path.*missing"):
        convert_graph(graph, True)
