"""Tables with rows on disk where several things meet: two tables in one directory, odd sizes, look-ahead, ends."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer
from mx_rec.util.stats import table_stats

STEPS = 14


def tables_of(kind, directory, memory, dims):
    """Tables of other dims in one directory."""
    storage = {"device_vocabulary_size": 1000}
    if kind == "disk":
        storage = {"device_vocabulary_size": 1, "host_vocabulary_size": memory - 1, "ssd_vocabulary_size": 1000,
                   "ssd_data_path": str(directory)}
    initializer = tf.compat.v1.random_normal_initializer(seed=3)
    return [create_table(tf.int64, dim, "table_{}".format(number), initializer, **storage)
            for number, dim in enumerate(dims)]


def trained(kind, directory, memory, dims, feeds, lookups=1, is_modified=False):
    """Trains on `feeds`, int64 (steps, lookups, n); the losses, and the content of all tables with a slot."""
    with tf.Graph().as_default():
        tables = tables_of(kind, directory, memory, dims)
        dataset = tf.data.Dataset.from_tensor_slices(feeds).repeat().prefetch(2)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        ids = iterator.get_next()
        looked = [sparse_lookup(table, ids[at], name="lookup_{}".format(at), modify_graph=True)
                  for table in tables for at in range(lookups)]
        # Evaluation reads beside training, rows on disk too, and brings none in.
        evaluated = tf.compat.v1.placeholder(tf.int64, [None])
        found = [sparse_lookup(table, evaluated, is_train=False, modify_graph=True) for table in tables]
        loss = tf.add_n([tf.reduce_sum(tf.square(rows - 1.5)) for rows in looked])
        from mx_rec.optimizers import lazy_adam

        variables = [table.variable for table in tables]
        train = lazy_adam.create_hash_optimizer(0.1).apply_gradients(zip(tf.gradients(loss, variables), variables))
        if is_modified:
            modify_graph_and_start_emb_cache(dump_graph=False)
        else:
            start_asc_pipeline()
        raws = [support.Raw.of(table) for table in tables]
        for raw in raws:
            raw.slot("LazyAdam_velocity")
        saver = tf.compat.v1.train.Saver()
        checkpoint = os.path.join(str(directory), "checkpoint", "model.ckpt")
        with support.started(support.new_session()) as sess:
            sess.run(get_initializer(True) if is_modified else iterator.initializer)
            seen = []
            for step in range(STEPS):
                seen.append(sess.run([loss, train])[0])
                seen.extend(sess.run(found, {evaluated: np.arange(step, 300, 7)}))
                if step == STEPS // 2:
                    saver.save(sess, checkpoint)
                if step == STEPS // 2 + 3:
                    # With batches on their way.
                    saver.restore(sess, checkpoint)
            content = [(raw.rows(sess), raw.slot_rows(sess, "LazyAdam_velocity")) for raw in raws]
            disk = [table_stats(table).rows_disk for table in tables]
    return seen, content, disk


def expect_same(tmp_path, memory, dims, feeds, **more):
    """Asserts that rows on disk change no bit, and returns how many rows were there at the end."""
    results = []
    for kind in ("memory", "disk"):
        directory = tmp_path / kind
        directory.mkdir()
        results.append(trained(kind, directory, memory, dims, feeds, **more))
        assert os.listdir(str(directory)) == ["checkpoint"]
    (seen, content, _), (other_seen, other_content, disk) = results
    assert all(np.asarray(one).tobytes() == np.asarray(other).tobytes() for one, other in zip(seen, other_seen))
    for one, other in zip(content, other_content):
        support.assert_same_each(one, other)
    return disk


def draws(lookups, size, keys=300, seed=7):
    return np.random.RandomState(seed).randint(0, keys, (STEPS, lookups, size))


@pytest.mark.parametrize("is_modified", [False, True])
def test_two_tables_in_one_directory_with_two_lookups_each_and_a_restore_between(dynamic, tmp_path, is_modified):
    disk = expect_same(tmp_path, 300 if is_modified else 90, [4, 9], draws(2, 40), lookups=2, is_modified=is_modified)
    assert is_modified or min(disk) > 50


@pytest.mark.parametrize("is_direct", [False, True])
def test_records_longer_than_a_page(dynamic, tmp_path, monkeypatch, is_direct):
    monkeypatch.setenv("MXREC_SSD_DIRECT", str(int(is_direct)))
    assert expect_same(tmp_path, 30, [1500], draws(1, 25))[0] > 100


def test_two_rows_in_memory_are_the_fewest(dynamic, tmp_path):
    feeds = draws(1, 2, keys=12)
    feeds[3] = -1
    assert expect_same(tmp_path, 2, [3], feeds)[0] >= 4
    with pytest.raises(ValueError, match="'host_vocabulary_size' greater than 0"):
        tables_of("disk", tmp_path, 1, [3])


@pytest.mark.parametrize("is_modified", [False, True])
def test_empty_batches(dynamic, tmp_path, is_modified):
    expect_same(tmp_path, 20, [3], np.zeros([STEPS, 1, 0], np.int64), is_modified=is_modified)


def test_the_log_and_the_numbers_of_reads_past_the_page_cache(dynamic, tmp_path, monkeypatch, caplog):
    import logging

    monkeypatch.setenv("MXREC_SSD_DIRECT", "1")
    monkeypatch.setattr(logging.getLogger("mx_rec"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="mx_rec"):
        assert expect_same(tmp_path, 60, [5], draws(1, 50))[0] > 100
    said = [one.getMessage() for one in caplog.records if "are read by" in one.getMessage()]
    assert said and all("past the page cache" in one for one in said)
    monkeypatch.setenv("MXREC_SSD_DIRECT", "yes")
    with pytest.raises(ValueError, match="MXREC_SSD_DIRECT is 'yes'"):
        tables_of("disk", tmp_path, 5, [2])


def test_a_session_that_closes_while_its_steps_read_rows(graph, dynamic, session, tmp_path):
    table = tables_of("disk", tmp_path, 60, [64])[0]
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    rows = sparse_lookup(table, ids, modify_graph=True)
    found = sparse_lookup(table, ids, is_train=False, modify_graph=True)
    for _ in range(5):
        sess = support.started(session())
        for batch in np.arange(800).reshape(-1, 40):
            sess.run(rows, {ids: batch})
        ended, started = [], threading.Barrier(3)

        def read(fetch, seed):
            random = np.random.RandomState(seed)
            started.wait()
            try:
                while True:
                    sess.run(fetch, {ids: random.randint(0, 800, 40)})
            except (RuntimeError, tf.errors.CancelledError, tf.errors.OpError) as error:
                ended.append(error)

        threads = [threading.Thread(target=read, args=one) for one in ((rows, 1), (found, 2))]
        for thread in threads:
            thread.start()
        started.wait()
        sess.run(found, {ids: np.arange(300)})
        sess.close()
        for thread in threads:
            thread.join(300)
        assert len(ended) == 2 and not any(thread.is_alive() for thread in threads)
    assert os.listdir(str(tmp_path)) == []
