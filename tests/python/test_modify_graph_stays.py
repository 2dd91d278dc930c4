"""Lookups that cannot move stay in the step, work as before beside those that move, and the log says why."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
from modify_cases import AHEAD
import support
from mx_rec.util.initialize import get_initializer, get_target_batch


def vocabulary(ids):
    """A vocabulary table: text -> place, with a bucket for other text."""
    words = tf.constant(["a", "b", "c"])
    index = tf.lookup.KeyValueTensorInitializer(words, tf.constant([10, 20, 30], tf.int64))
    return tf.lookup.StaticVocabularyTable(index, 5).lookup(tf.as_string(ids))


def _cond(batch):
    return tf.cond(tf.reduce_sum(batch["label"]) > 4.0, lambda: batch["ids"] * 2, lambda: batch["ids"] + 5)


def _while(batch):
    return tf.while_loop(lambda number, _: number < 3, lambda number, ids: (number + 1, ids * 2 + 1),
                           [tf.constant(0), batch["ids"]])[1]


def _asserted(batch):
    check = tf.debugging.Assert(tf.reduce_all(batch["ids"] > -1000), [batch["ids"]])
    with tf.control_dependencies([check]):
        return tf.identity(batch["ids"])


def _py_func(batch):
    ids = tf.compat.v1.py_func(lambda ids: ids * 3, [batch["ids"]], tf.int64)
    ids.set_shape(batch["ids"].shape)
    return ids


def _variable(batch):
    bias = tf.compat.v1.get_variable("bias", [], tf.int64, trainable=False,
                                       initializer=tf.compat.v1.constant_initializer(3, tf.int64))
    return batch["ids"] + bias


def _random(batch):
    return batch["ids"] + tf.random.uniform([], 0, 5, tf.int64, seed=4)


def _stateless_random(batch):
    return batch["ids"] + tf.random.stateless_uniform([], [1, 2], 0, 5, tf.int64)


STAYS = {
    "constant": (lambda batch: tf.constant([1, 2, 3, 2], tf.int64), "iterator"),
    "variable": (_variable, "bias"),
    "cond": (_cond, "cond"),
    "while": (_while, "while"),
    "assert": (_asserted, "control"),
    "py_func": (_py_func, "PyFunc"),
    "random": (_random, "random_uniform"),
    "vocabulary": (lambda batch: vocabulary(batch["ids"]), "hash_table"),
}


def trained(run, ids, moving=True, feed=None, iterator=None, batch=None):
    """Trains one lookup of the given ids and, beside it, one that moves."""
    if iterator is None:
        iterator = cases.initializable(cases.slices())
        batch = iterator.get_next()
    embeddings = [run.lookup(run.table(), ids(batch))]
    if moving:
        embeddings.append(run.lookup(run.table("moving"), batch["ids"]))
    tf.compat.v1.set_random_seed(1)
    model = cases.Model(run, embeddings, batch["label"])
    run.modify()
    sess = run.session()
    sess.run(tf.compat.v1.tables_initializer())
    for _ in range(2):
        run.start(sess, iterator)
        for _ in range(5):
            assert run.step(sess, model.seen, feed and feed()) is not None
    run.contents(sess)
    return model


@pytest.mark.parametrize("name", sorted(STAYS))
def test_a_lookup_stays_beside_one_that_moves(name, caplog):
    ids, word = STAYS[name]
    caplog.set_level("INFO", "mx_rec")
    runs = cases.alike(lambda run: trained(run, ids), moves=1)
    lookups = runs[AHEAD].plan.lookups
    assert [lookup.moves for lookup in lookups] == [False, True]
    assert word.lower() in lookups[0].reason.lower(), lookups[0].reason
    said = [line for line in cases.reasons(caplog) if "stays in the step" in line]
    assert len(said) == 1 and lookups[0].reason in said[0] and lookups[0].node in said[0], said


def test_a_stateless_random_op_moves():
    cases.alike(lambda run: trained(run, _stateless_random), moves=2)


def test_a_placeholder_stays():
    def script(run):
        random = np.random.RandomState(5)
        fed = tf.compat.v1.placeholder(tf.int64, [None])
        trained(run, lambda batch: fed, feed=lambda: {fed: random.randint(0, 30, 6)})

    lookups = cases.alike(script, moves=1)[AHEAD].plan.lookups
    assert "placeholder" in lookups[0].reason.lower(), lookups[0].reason


@support.run_by(cases.alike, moves=0)
def test_a_placeholder_alone_needs_no_iterator(run):
    fed = tf.compat.v1.placeholder(tf.int64, [None])
    model = cases.Model(run, [run.lookup(run.table(), fed)], tf.constant(0.5))
    run.modify()
    sess = run.session()
    for number in range(4):
        run.step(sess, model.seen, {fed: [number, number + 1, -1]})
    assert get_initializer(True) is None and get_target_batch(True) is None
    run.contents(sess)


def test_two_get_next_of_one_iterator_stay():
    def script(run):
        iterator = cases.initializable(cases.slices().repeat(4))
        first, second = iterator.get_next(), iterator.get_next()
        table = run.table()
        model = cases.Model(run, [run.lookup(table, first["ids"])], first["label"])
        looked = run.lookup(table, second["ids"], is_train=False)
        sess = run.begin(iterator, own=True)
        for _ in range(6):
            run.step(sess, model.seen)
            run.step(sess, [looked, second["label"]])
        run.contents(sess)

    lookups = cases.alike(script, moves=0)[AHEAD].plan.lookups
    assert all("get_next" in lookup.reason.lower() or "IteratorGetNext" in lookup.reason for lookup in lookups), lookups


def test_a_feedable_iterator_stays_and_its_iterators_work():
    def script(run):
        train, test = cases.slices(), cases.slices(count=20, seed=5, keys=60)
        iterators = [cases.initializable(data) for data in (train, test)]
        handle = tf.compat.v1.placeholder(tf.string, [])
        batch = tf.compat.v1.data.Iterator.from_string_handle(
            handle, tf.compat.v1.data.get_output_types(train), tf.compat.v1.data.get_output_shapes(train)).get_next()
        table = run.table()
        model = cases.Model(run, [run.lookup(table, batch["ids"])], batch["label"])
        looked = run.lookup(table, batch["ids"], is_train=False)
        handles = [iterator.string_handle() for iterator in iterators]
        run.modify()
        sess = run.session()
        handles = sess.run(handles)
        for _ in range(2):
            sess.run([iterator.initializer for iterator in iterators])
            for _ in range(3):
                assert run.step(sess, model.seen, {handle: handles[0]}) is not None
                assert run.step(sess, looked, {handle: handles[1]}) is not None
        run.contents(sess)

    lookups = cases.alike(script, moves=0)[AHEAD].plan.lookups
    assert all("handle" in lookup.reason.lower() for lookup in lookups), lookups


@support.run_by(cases.alike, moves=0)
def test_an_iterator_whose_string_handle_is_used_stays(run):
    iterator = cases.initializable(cases.slices())
    handle = iterator.string_handle()
    kept = tf.identity(handle)
    batch = iterator.get_next()
    model = trained(run, lambda batch: batch["ids"], moving=False, iterator=iterator, batch=batch)
    assert model is not None and kept is not None


@support.run_by(cases.alike, moves=0)
def test_ids_of_two_iterators_joined_stay(run):
    iterators = [cases.initializable(cases.slices(seed=seed, count=40)) for seed in (0, 1)]
    first, second = [iterator.get_next() for iterator in iterators]
    joined = tf.concat([first["ids"], second["ids"]], axis=1)
    model = cases.Model(run, [run.lookup(run.table(), joined)], first["label"])
    run.modify()
    sess = run.session()
    sess.run([iterator.initializer for iterator in iterators])
    assert run.finish(sess, model.seen) == 5


@support.run_by(cases.alike, moves=1)
def test_a_lookup_whose_evaluation_stays_gives_the_script_its_initializer_and_batch(run):
    """Training moves, evaluation has ids of a py_func: get_initializer(False) is then the iterator's own."""
    iterator, other = cases.initializable(cases.slices()), cases.initializable(cases.slices(seed=9))
    batch, evaluation = iterator.get_next(), other.get_next()
    table = run.table()
    model = cases.Model(run, [run.lookup(table, batch["ids"])], batch["label"])
    looked = run.lookup(table, _py_func(evaluation), is_train=False)
    sess = run.begin(iterator)
    run.steps(sess, model.seen, 3)
    run.start(sess, other, False)
    if run.is_modified:
        assert get_initializer(False) is other.initializer
        label = get_target_batch(False)["label"]
    else:
        label = evaluation["label"]
    assert run.epoch(sess, [looked, label]) == 5
