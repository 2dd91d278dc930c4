"""Eviction: what goes, what stays, timestamps of all kinds, and what is refused."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import sparse_lookup
from mx_rec.saver.saver import Saver
from mx_rec.util.initialize import ConfigInitializer


def make_table(name="table", dim=2, capacity=100, initializer=None, **arguments):
    return support.make_table(name, dim, capacity, initializer or tf.compat.v1.ones_initializer(), **arguments)


def lookup(table, ids, access=1, eviction=10, **arguments):
    return sparse_lookup(table, ids, modify_graph=True, access_and_evict_config={
        "access_threshold": access, "eviction_threshold": eviction}, **arguments)


def placeholder(shape=(None,), dtype=None):
    return tf.compat.v1.placeholder(dtype or tf.int64, shape)


def add_time(tensor):
    tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, tensor)


def start():
    start_asc_pipeline()


class Trained:
    """A table, its lookup and an update, with ids and time that are fed."""

    def __init__(self, optimizer=None, **arguments):
        self.ids, self.time = placeholder(), placeholder([])
        self.table = make_table(**arguments)
        self.embedding = lookup(self.table, self.ids)
        add_time(self.time)
        self.raw = support.Raw.of(self.table)
        optimizer = optimizer or __import__("mx_rec.optimizers.adagrad", fromlist=["x"]).create_hash_optimizer(
            0.5, initial_accumulator_value=0.25)
        self.update = optimizer.minimize(tf.reduce_sum(self.embedding * 2.0), var_list=[self.table.variable])

    def step(self, sess, keys, time):
        return sess.run([self.embedding, self.update], {self.ids: keys, self.time: time})[0]


@pytest.mark.parametrize("rows", [0, 3], ids=["before_the_first_row", "before_the_first_time"])
def test_a_restore_brings_the_clock_of_what_was_saved(graph, session, dynamic, rows, tmp_path):
    """After a restore of a checkpoint without times, the clock stayed that of the rows before, and rows that had
    just been seen were evicted."""
    from mx_rec.core.feature_process import evict

    one, saver = Trained(), Saver()
    sess = session()
    if rows:
        one.raw.assign(sess, list(range(rows)), np.ones([rows, 2]))
    saver.save(sess, str(tmp_path / "first"))
    one.step(sess, [0, 9], 5000)
    saver.restore(sess, str(tmp_path / "first"))
    for key, time in ((7, 100), (8, 105)):
        one.step(sess, [key], time)
    assert evict()["table"].evicted == 0
    # Rows that came without a time count as seen with the first batch that has one.
    one.step(sess, [8], 110)
    found = evict()["table"]
    assert (found.evicted, sorted(one.raw.rows(sess))) == (1 + rows, [8])


def test_stale_keys_lose_row_slots_and_history(graph, session, dynamic):
    from mx_rec.core.feature_process import evict

    one = Trained()
    sess = session()
    for key, time in ((1, 100), (2, 104), (3, 110), (1, 101)):
        one.step(sess, [key], time)
    slot = "Adagrad_accumulator"
    before = one.raw.rows(sess)
    # The latest time is 110: key 1 was seen at 101, 9 seconds before.
    assert evict() == {"table": (0, 3)}
    support.assert_same_tables(one.raw.rows(sess), before)
    one.step(sess, [3], 111)
    found = evict(one.table)["table"]
    assert (found.evicted, found.kept) == (1, 2)
    rows, slots = one.raw.rows(sess), one.raw.slot_rows(sess, slot)
    assert sorted(rows) == sorted(slots) == [2, 3]
    support.assert_same_bits(rows[2], before[2])
    # It comes back from its first values, and its accumulator from 0.25.
    assert one.step(sess, [1], 112).tolist() == [[1, 1]]
    assert one.raw.slot_rows(sess, slot)[1].tolist() == [4.25, 4.25]
    assert evict("table") == {"table": (0, 3)}


def test_a_key_that_comes_back_is_counted_from_nothing(graph, session, dynamic):
    from mx_rec.core.admission import evict

    table, ids, time = make_table(), placeholder(), placeholder([])
    embedding = lookup(table, ids, access=2, eviction=5)
    add_time(time)
    sess = session()

    def is_admitted(key, at):
        return bool(sess.run(embedding, {ids: [key], time: at}).any())

    assert [is_admitted(1, 10), is_admitted(1, 11), is_admitted(2, 20)] == [False, True, False]
    assert evict() == {"table": (1, 1)}
    assert [is_admitted(1, 21), is_admitted(1, 22)] == [False, True]
    # A key without a row is forgotten as well.
    is_admitted(3, 40)
    assert evict() == {"table": (2, 1)}
    assert [is_admitted(2, 41), is_admitted(2, 42)] == [False, True]


def test_rows_of_evicted_keys_are_used_again(graph, session, dynamic):
    from mx_rec.core.admission import evict

    one = Trained(capacity=8)
    sess = session()
    for round_ in range(20):
        assert one.step(sess, np.arange(8) + 8 * round_, 100 + 20 * round_).tolist() == [[1, 1]] * 8
        if round_:
            with pytest.raises(tf.errors.ResourceExhaustedError):
                one.step(sess, [10 ** 6], 100 + 20 * round_)
        one.step(sess, [8 * round_], 115 + 20 * round_)
        found = evict()["table"]
        assert found.evicted >= 7
        one.raw.remove(sess, [8 * round_])
        assert one.raw.size(sess) == 0


def test_time_that_goes_back_evicts_nothing_that_was_seen_later(graph, session, dynamic):
    from mx_rec.core.admission import evict

    one = Trained()
    sess = session()
    for time in (100, 50, 1):
        one.step(sess, [7], time)
    assert evict() == {"table": (0, 1)}
    one.step(sess, [8], 109)
    assert evict() == {"table": (0, 2)}
    one.step(sess, [8], 2 ** 32 - 2)
    assert evict() == {"table": (1, 1)}


@pytest.mark.parametrize("time", [0, -5, -2 ** 63])
def test_a_time_that_is_not_greater_than_0_changes_nothing(graph, session, dynamic, time):
    one = Trained()
    sess = session()
    one.step(sess, [1], 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="timestamp"):
        one.step(sess, [2], time)
    assert sorted(one.raw.rows(sess)) == [1]


@pytest.mark.long
def test_steps_go_on_during_an_eviction_in_a_session_of_one_thread(graph, dynamic):
    from mx_rec.core.admission import evict

    one = Trained(capacity=2 * 10 ** 6)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    with tf.compat.v1.Session(config=config) as sess:
        one.step(sess, np.arange(10 ** 6), 1)
        one.step(sess, [10 ** 6], 100)
        evicted = []
        thread = threading.Thread(target=lambda: evicted.append(evict(one.table)))
        thread.start()
        steps = 0
        while thread.is_alive():
            one.step(sess, [10 ** 6], 100)
            steps += 1
        thread.join()
        assert evicted == [{"table": (10 ** 6, 1)}]
    assert steps > 8


def test_tables_evict_on_their_own(graph, session, dynamic):
    from mx_rec.core.admission import evict

    ids, time = [placeholder(), placeholder(), placeholder()], placeholder([])
    tables = [make_table(name) for name in ("short", "long", "never")]
    looked = [lookup(table, one, eviction=eviction) for table, one, eviction in zip(tables, ids, (5, 50, -1))]
    add_time(time)
    sess = session()
    for at, key in ((10, 1), (20, 2), (62, 3)):
        feed = {one: [key] for one in ids}
        feed[time] = at
        sess.run(looked, feed)
    with sess.as_default():
        assert evict("short") == {"short": (2, 1)}
        assert evict() == {"short": (0, 1), "long": (1, 2)}
        assert [table.size() for table in tables] == [1, 2, 3]
        with pytest.raises(ValueError, match="no 'eviction_threshold'"):
            evict("never")
        with pytest.raises(ValueError, match="there is no table 'other'"):
            evict("other")


def test_trigger_evict_of_the_configuration_evicts(graph, session, dynamic):
    one = Trained()
    sess = session()
    one.step(sess, [1], 5)
    one.step(sess, [2], 50)
    assert ConfigInitializer.get_instance().hybrid_manager_config.trigger_evict()
    assert sorted(one.raw.rows(sess)) == [2]


# Where the time comes from -------------------------------------------------------------------


def evicts_the_first(sess, embedding, feeds):
    """Whether the time arrives: key 1 is seen at 10, key 2 at 100."""
    from mx_rec.core.admission import evict

    for feed in feeds:
        sess.run(embedding, feed)
    with sess.as_default():
        return evict()["table"] == (1, 1)


@pytest.mark.parametrize("end", ["start_asc_pipeline", "first run"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_the_collection_may_be_filled_before_or_after_the_lookup(graph, session, dynamic, order, dtype, end):
    ids, time = placeholder(), placeholder([], tf.as_dtype(dtype))
    if order == "before":
        add_time(time)
    embedding = lookup(make_table(), ids)
    if order == "after":
        add_time(time)
    add_time(time)
    if end == "start_asc_pipeline":
        start()
        graph.finalize()
    assert evicts_the_first(session(), embedding, [{ids: [1], time: 10}, {ids: [2], time: 100}])


def test_a_graph_that_was_finalised_early_asks_for_int64(graph, session, dynamic):
    ids, time = placeholder(), placeholder([], tf.int32)
    embedding = lookup(make_table(), ids)
    add_time(time)
    graph.finalize()
    sess = session()
    for _ in range(2):
        with pytest.raises(ValueError, match="tf.cast"):
            sess.run(embedding, {ids: [1], time: 10})


def test_lookups_in_loops_see_the_time(graph, session, dynamic):
    """The op that stands for the time is outside of the loop; the collection is filled when the loop is closed."""
    ids, time = placeholder((2,)), placeholder([])
    table = make_table()

    def body(at, total):
        return at + 1, total + tf.reduce_sum(lookup(table, ids[at:at + 1]))

    total = tf.while_loop(lambda at, _: at < 2, body, [0, 0.0])[1]
    add_time(time)
    start()
    assert evicts_the_first(session(), total, [{ids: [1, 2], time: 10}, {ids: [2, 2], time: 100}])


@pytest.mark.parametrize("make, message", [
    (lambda: add_time(tf.constant([5], tf.int64)), "should be a scalar"),
    (lambda: add_time(tf.constant(5.0)), "should be int64 seconds"),
    (lambda: add_time(5), "should be a Tensor"),
    (lambda: (add_time(placeholder([])), add_time(placeholder([]))), "holds 2 timestamps"),
    (lambda: None, "there is no timestamp"),
])
def test_a_wrong_or_missing_timestamp_is_refused(graph, session, dynamic, make, message):
    embedding = lookup(make_table(), tf.constant([1], tf.int64))
    make()
    for call in (start, lambda: session().run(embedding)):
        with pytest.raises(ValueError, match=message):
            call()


def test_evaluation_needs_no_timestamp(graph, session, dynamic):
    found = lookup(make_table(), tf.constant([1], tf.int64), is_train=False)
    start()
    assert session().run(found).tolist() == [[0, 0]]


def test_a_feature_can_be_the_timestamp(graph, session, dynamic):
    """Of a dict, a tuple, int32, and of two pipelines with times of their own."""
    time = FeatureSpec("time", is_timestamp=True)
    table = make_table()
    embeddings = []
    for first in (10, 100):
        spec = FeatureSpec("ids", table_name="table", access_threshold=1, eviction_threshold=20)
        data = tf.data.Dataset.from_tensor_slices({"ids": np.int64([[first], [first + 1]]),
                                                   "time": np.int32([first, first + 5])})
        batch = tf.compat.v1.data.make_one_shot_iterator(
            data.map(get_asc_insert_func([spec, time], is_training=True))).get_next()
        embeddings.append(sparse_lookup(table, spec, is_train=True, batch=batch))
    start()
    from mx_rec.core.admission import evict

    sess = session()
    sess.run(embeddings)
    sess.run(embeddings)
    assert evict() == {"table": (2, 2)}
    assert sorted(support.Raw.of(table).rows(sess)) == [100, 101]


def test_static_shape_finds_the_timestamp_without_a_batch(graph, session, mx):
    mx(use_dynamic=False)
    specs = [FeatureSpec("ids", table_name="table", access_threshold=1, eviction_threshold=20),
             FeatureSpec("time", is_timestamp=True)]
    data = tf.data.Dataset.from_tensor_slices({"ids": np.int64([[1], [2]]), "time": np.int64([10, 100])})
    data = data.map(get_asc_insert_func(specs, is_training=True)).prefetch(1)
    tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    embedding = sparse_lookup(make_table(), specs[0], 4, is_train=True)
    assert evicts_the_first(session(), embedding, [{}, {}])


def test_a_timestamp_that_is_no_number_of_seconds_is_refused_by_the_insert_function(graph, dynamic):
    insert = get_asc_insert_func(FeatureSpec("time", is_timestamp=True))
    with pytest.raises(ValueError, match="should be int64 seconds"):
        insert({"time": tf.constant(5.0)})


def test_a_thread_without_the_graph_is_told_to_bring_it(graph, session, dynamic):
    """It was told to give lookups an eviction threshold, which they had."""
    from mx_rec.core.admission import evict, set_threshold

    add_time(placeholder([]))
    table = make_table("in_thread")
    lookup(table, placeholder())
    support.started(session())
    graph = tf.compat.v1.get_default_graph()
    results = []

    def run(call):
        try:
            results.append(call())
        except ValueError as error:
            results.append(str(error))

    def inside():
        with graph.as_default():
            return evict()

    calls = [evict, lambda: evict("in_thread"), lambda: set_threshold(2), lambda: evict(table), inside]
    for call in calls:
        thread = threading.Thread(target=run, args=(call,), name="other")
        thread.start()
        thread.join()
    for name, text in zip(("evict", "evict", "set_threshold"), results):
        assert name + "() finds no table in the default graph of the thread 'other'" in text and "as_default" in text
    assert results[3] == results[4] == {"in_thread": (0, 0)}


def test_evict_by_hand_wants_something_to_evict(graph, session, dynamic):
    from mx_rec.core.admission import evict

    ids = placeholder()
    with pytest.raises(ValueError, match="1 admits every key"):
        evict()
    lookup(make_table(), ids, eviction=None)
    with pytest.raises(ValueError, match="1 admits every key"):
        evict()
    add_time(placeholder([]))
    lookup(make_table("other"), ids)
    with pytest.raises(RuntimeError, match="open a"):
        evict()
    with pytest.raises(ValueError, match="'table'"):
        evict(5)
