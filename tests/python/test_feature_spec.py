"""FeatureSpec mode trains, bit for bit, what tensor ids train on the same batches, whatever the pipeline does."""

import numpy as np
import pytest
import tensorflow as tf

import pipeline
import support
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.adagrad import create_hash_optimizer
from mx_rec.util.initialize import ConfigInitializer


def insert(specs, is_training=True, **arguments):
    return get_asc_insert_func(specs, is_training=is_training, **arguments)


def start():
    start_asc_pipeline()


def dataset_of(kind, specs_and_keys, count=40, seed=1, batch_size=8, before=None, after=None, is_training=True):
    """Samples -> batches -> (before) -> insert function -> (after) -> prefetch."""
    data, user_key, item_key = pipeline.elements(kind, *pipeline.arrays(count, seed))
    specs = specs_and_keys or pipeline.specs_of(user_key, item_key)
    data = data.batch(batch_size)
    if before:
        data = before(data)
    data = data.map(insert(specs, is_training))
    if after:
        data = after(data)
    return data.prefetch(4), specs


def build(kind, **arguments):
    """A training graph on an initializable iterator: (iterator, fetches, model)."""
    data, specs = dataset_of(kind, None, **arguments)
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    batch = iterator.get_next()
    tables = pipeline.make_tables()
    users, items, label = pipeline.parts_of(kind, batch)
    model = pipeline.Model(*pipeline.lookups(tables, specs, True, batch, kind=kind), label, tables)
    start()
    return iterator, [[users, items, label], model.loss, model.update], model


def train_and_compare(sess, iterator, fetches, model, epochs=1):
    sess.run(tf.compat.v1.global_variables_initializer())
    steps, losses = [], []
    for _ in range(epochs):
        sess.run(iterator.initializer)
        for batch, loss, _ in pipeline.run_until_end(sess, fetches):
            steps.append(batch)
            losses.append(loss)
    pipeline.assert_trained_alike(model, sess, steps, losses)
    return steps


@pytest.mark.parametrize("kind", ["dict", "tuple", "list", "nested"])
def test_each_form_of_a_batch_trains_as_tensor_ids_do(graph, session, dynamic, kind):
    steps = train_and_compare(session(), *build(kind))
    assert len(steps) == 5


def test_the_insert_function_adds_an_int32_entry_and_leaves_the_rest(graph, session, dynamic):
    for kind in ("dict", "tuple"):
        data, _ = dataset_of(kind, None, count=8)
        batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
        if kind == "dict":
            assert sorted(batch) == ["items", "label", "users", "users_read_emb_key"]
            extra = batch["users_read_emb_key"]
        else:
            assert len(batch) == 4
            extra = batch[3]
        assert extra.dtype == tf.int32 and extra.shape.as_list() == []
        users, items, labels = session().run(list(pipeline.parts_of(kind, batch)))
        expected = pipeline.arrays(8, 1)
        for got, want in zip((users, items, labels), expected):
            assert np.array_equal(got, want)


PIPELINES = {
    "shuffle before the insert function": dict(before=lambda data: data.shuffle(5, seed=2)),
    "shuffle after the insert function": dict(after=lambda data: data.shuffle(5, seed=2)),
    "shuffle anew in each epoch": dict(after=lambda data: data.shuffle(5, seed=2, reshuffle_each_iteration=True)),
    "parallel map before": dict(before=lambda data: data.map(lambda batch: dict(batch), num_parallel_calls=2)),
    "parallel map after": dict(after=lambda data: data.map(lambda batch: dict(batch), num_parallel_calls=2)),
    "repeat": dict(after=lambda data: data.repeat(3)),
    "cache": dict(after=lambda data: data.cache()),
    "skip and take": dict(after=lambda data: data.skip(1).take(3)),
    "filter": dict(after=lambda data: data.filter(
        lambda batch: tf.math.reduce_sum(batch["label"]) < 4.0)),
    "two prefetches": dict(before=lambda data: data.prefetch(2), after=lambda data: data.prefetch(3)),
    "a map that adds an entry": dict(after=lambda data: data.map(
        lambda batch: dict(batch, another=batch["label"] * 2.0))),
    "a map that shuffles the rows of a batch": dict(after=lambda data: data.map(
        lambda batch: {key: (tf.reverse(value, [0]) if value.shape.ndims else value)
                       for key, value in batch.items()})),
    "batches cut again": dict(after=lambda data: data.map(
        lambda batch: {key: batch[key] for key in ("users", "items", "label")}).apply(
            tf.data.experimental.unbatch()).batch(3)),
}


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_whatever_the_pipeline_does_the_ids_stay_with_their_batch(graph, session, dynamic, name):
    sess = session()
    steps = train_and_compare(sess, *build("dict", **PIPELINES[name]), epochs=2)
    assert len(steps) >= 3


def test_an_iterator_that_is_restarted_in_mid_epoch_keeps_ids_and_batches_together(graph, session, dynamic):
    iterator, fetches, model = build("dict", after=lambda data: data.shuffle(5, seed=3))
    sess = support.started(session())
    steps, losses = [], []
    for limit in (2, 1, 3, None, 2):
        sess.run(iterator.initializer)
        for batch, loss, _ in pipeline.run_until_end(sess, fetches, limit):
            steps.append(batch)
            losses.append(loss)
    assert len(steps) == 13
    pipeline.assert_trained_alike(model, sess, steps, losses)


def test_a_step_that_fails_in_between_does_not_move_ids_to_another_batch(graph, session, dynamic):
    """A queue of keys would be one ahead after it."""
    iterator, fetches, model = build("dict")
    bad = tf.compat.v1.placeholder(tf.float32, [])
    failing = tf.debugging.check_numerics(model.loss * bad, "asked for")
    sess = session()
    sess.run([tf.compat.v1.global_variables_initializer(), iterator.initializer])
    steps, losses = [], []
    for number in range(5):
        if number == 2:
            with pytest.raises(tf.errors.InvalidArgumentError):
                sess.run(failing, {bad: np.nan})
            continue
        batch, loss, _ = sess.run(fetches)
        steps.append(batch)
        losses.append(loss)
    # The lookups of the failed step made its new rows; values of new rows do not depend on when they are made.
    expected, expected_losses, _ = pipeline.replay(steps)
    support.assert_same_bits(losses, expected_losses)
    for mine, theirs in zip(model.tables(sess), expected):
        for key in theirs:
            support.assert_same_bits(mine[key], theirs[key])


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_evaluation_between_training_steps_takes_its_own_batches_and_changes_nothing(graph, session, dynamic, kind):
    training, specs = dataset_of(kind, None)
    evaluation, _ = dataset_of(kind, specs, count=12, seed=9, batch_size=4, is_training=False)
    iterators = [tf.compat.v1.data.make_initializable_iterator(data) for data in (training, evaluation)]
    batches = [iterator.get_next() for iterator in iterators]
    tables = pipeline.make_tables()
    users, items, label = pipeline.parts_of(kind, batches[0])
    model = pipeline.Model(*pipeline.lookups(tables, specs, True, batches[0]), label, tables)
    looked = pipeline.lookups(tables, specs, False, batches[1])
    eval_parts = list(pipeline.parts_of(kind, batches[1]))
    start()
    sess = session()
    sess.run([tf.compat.v1.global_variables_initializer(), iterators[0].initializer])
    steps, losses = [], []
    for limit in (1, 3, None):
        for batch, loss, _ in pipeline.run_until_end(sess, [[users, items, label], model.loss, model.update], limit):
            steps.append(batch)
            losses.append(loss)
        sizes = [raw.size(sess) for raw in model.raws]
        sess.run(iterators[1].initializer)
        evaluated = pipeline.run_until_end(sess, [eval_parts, looked])
        assert len(evaluated) == 3
        _, _, expected = pipeline.replay(steps, [batch for batch, _ in evaluated])
        for (_, got), want in zip(evaluated, expected):
            support.assert_same_bits(got[0], want[0])
            support.assert_same_bits(got[1], want[1])
        assert [raw.size(sess) for raw in model.raws] == sizes
    assert len(steps) == 5
    pipeline.assert_trained_alike(model, sess, steps, losses)


def one_shot(tf, data):
    iterator = tf.compat.v1.data.make_one_shot_iterator(data)
    return iterator.get_next(), tf.no_op()


def initializable(tf, data):
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    return iterator.get_next(), iterator.initializer


def from_structure(tf, data):
    iterator = tf.compat.v1.data.Iterator.from_structure(
        tf.compat.v1.data.get_output_types(data), tf.compat.v1.data.get_output_shapes(data))
    return iterator.get_next(), iterator.make_initializer(data)


ITERATORS = {"one_shot": one_shot, "initializable": initializable, "from_structure": from_structure}


@pytest.mark.parametrize("kind", ["dict", "tuple"])
@pytest.mark.parametrize("name", sorted(ITERATORS))
def test_every_kind_of_iterator_can_feed_a_lookup(graph, session, dynamic, name, kind):
    data, specs = dataset_of(kind, None)
    batch, initializer = ITERATORS[name](tf, data)
    tables = pipeline.make_tables()
    users, items, label = pipeline.parts_of(kind, batch)
    model = pipeline.Model(*pipeline.lookups(tables, specs, True, batch), label, tables)
    start()
    sess = session()
    sess.run([tf.compat.v1.global_variables_initializer(), initializer])
    done = pipeline.run_until_end(sess, [[users, items, label], model.loss, model.update])
    assert len(done) == 5
    pipeline.assert_trained_alike(model, sess, [step[0] for step in done], [step[1] for step in done])


def test_one_reinitializable_iterator_over_two_datasets_trains_both(graph, session, dynamic):
    """Two data sources with the same structure feed one training lookup in turns."""
    first, specs = dataset_of("dict", None, seed=1)
    second, _ = dataset_of("dict", specs, seed=2, count=24)
    iterator = tf.compat.v1.data.Iterator.from_structure(
        tf.compat.v1.data.get_output_types(first), tf.compat.v1.data.get_output_shapes(first))
    batch = iterator.get_next()
    initializers = [iterator.make_initializer(data) for data in (first, second)]
    tables = pipeline.make_tables()
    parts = list(pipeline.parts_of("dict", batch))
    model = pipeline.Model(*pipeline.lookups(tables, specs, True, batch), parts[2], tables)
    start()
    sess = support.started(session())
    done = []
    for choice, limit in ((0, 2), (1, None), (0, None)):
        sess.run(initializers[choice])
        done.extend(pipeline.run_until_end(sess, [parts, model.loss, model.update], limit))
    assert len(done) == 2 + 3 + 5
    pipeline.assert_trained_alike(model, sess, [step[0] for step in done], [step[1] for step in done])


@pytest.mark.parametrize("with_batch", [True, False])
@pytest.mark.parametrize("kind", ["dict", "tuple", "nested"])
def test_static_shape_needs_no_batch_argument(graph, session, mx, kind, with_batch):
    mx(use_dynamic=False)
    data, user_key, item_key = pipeline.elements(kind, *pipeline.arrays(40, 1))
    specs = pipeline.specs_of(user_key, item_key)
    data = data.batch(8, drop_remainder=True).map(insert(specs)).shuffle(4, seed=1).prefetch(2)
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    batch = iterator.get_next()
    tables = pipeline.make_tables()
    embeddings = pipeline.lookups(tables, specs, True, batch if with_batch else None, send_count=16)
    assert [embedding.shape.as_list() for embedding in embeddings] == [[8, 2, 4], [8, 4]]
    parts = list(pipeline.parts_of(kind, batch))
    model = pipeline.Model(*embeddings, parts[2], tables)
    start()
    sess = support.started(session())
    done = []
    for limit in (2, None):
        sess.run(iterator.initializer)
        done.extend(pipeline.run_until_end(sess, [parts, model.loss, model.update], limit))
    mx_steps = [step[0] for step in done]
    assert len(mx_steps) == 7
    assert_static_alike(model, sess, done)


def assert_static_alike(model, sess, done):
    """The replay runs in static shape too, where a lookup by tensor wants a send_count."""
    config = ConfigInitializer.get_instance()
    config.use_static = False
    pipeline.assert_trained_alike(model, sess, [step[0] for step in done], [step[1] for step in done])


def test_the_default_index_key_is_the_name_of_the_feature(graph, session, dynamic):
    from mx_rec.core.asc.feature_spec import FeatureSpec

    spec = FeatureSpec("users", table_name="user_table")
    data = tf.data.Dataset.from_tensor_slices({"users": np.array([[5], [6]]), "other": np.array([[1], [2]])})
    data = data.map(insert(spec)).prefetch(1)
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    table = support.make_table("user_table", 2, 10, 1.0)
    embedding = sparse_lookup(table, spec, is_train=True, batch=batch)
    start()
    raw, sess = support.opened(table, session)
    sess.run(embedding)
    sess.run(embedding)
    assert sorted(raw.rows(sess)) == [5, 6]


def test_a_feature_tells_its_ids_per_sample_once_it_was_read(graph, session, dynamic):
    from mx_rec.core.asc.helper import FeatureSpec

    specs = [FeatureSpec(name) for name in ("flat", "wide", "deep", "unknown")] + [FeatureSpec("time", is_timestamp=True)]
    assert [spec.feat_cnt for spec in specs] == [None] * 5
    batch = {"flat": tf.zeros([4], tf.int64), "wide": tf.zeros([4, 3], tf.int64), "deep": tf.zeros([4, 3, 2], tf.int64),
             "unknown": tf.compat.v1.placeholder(tf.int64, [4, None]), "time": tf.constant(1, tf.int64)}
    insert(specs)(batch)
    assert [spec.feat_cnt for spec in specs] == [1, 3, 6, None, None]


def test_positions_and_table_names_describe_features_too(graph, session, dynamic):
    data = tf.data.Dataset.from_tensor_slices((np.arange(6).reshape(3, 2), np.arange(3) + 100))
    data = data.map(get_asc_insert_func(args_index_list=[0, 1], table_names=["user_table", "item_table"],
                                        is_training=True)).prefetch(1)
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    assert len(batch) == 3
    first, second, extra = session().run(batch)
    assert first.tolist() == [0, 1] and second == 100 and extra.dtype == np.int32


def test_int32_ids_of_a_batch_are_looked_up(graph, session, dynamic):
    from mx_rec.core.asc.feature_spec import FeatureSpec

    spec = FeatureSpec("ids", table_name="table")
    data = tf.data.Dataset.from_tensors({"ids": np.array([3, -1, 2 ** 31 - 1], np.int32)}).map(insert(spec)).prefetch(1)
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    table = support.make_table("table", 1, 10, 1.0, key_dtype=tf.int32)
    embedding = sparse_lookup(table, spec, is_train=True, batch=batch)
    start()
    raw, sess = support.opened(table, session)
    support.assert_same_bits(sess.run(embedding), [[1], [0], [1]])
    assert sorted(raw.rows(sess)) == [3, 2 ** 31 - 1]


def test_two_features_of_one_table_give_each_key_one_summed_gradient(graph, session, dynamic):
    from mx_rec.core.asc.feature_spec import FeatureSpec

    specs = [FeatureSpec(name, table_name="table") for name in ("seen", "bought")]
    data = tf.data.Dataset.from_tensors({"seen": np.array([1, 2, 1]), "bought": np.array([2, 3])})
    batch = tf.compat.v1.data.make_one_shot_iterator(data.map(insert(specs)).prefetch(1)).get_next()
    table = support.make_table("table", 1, 10)
    seen, bought = [sparse_lookup(table, spec, is_train=True, batch=batch) for spec in specs]
    loss = tf.reduce_sum(seen) + 2.0 * tf.reduce_sum(bought)
    update = create_hash_optimizer(1.0, initial_accumulator_value=1.0).minimize(loss, var_list=[table.variable])
    start()
    raw, sess = support.opened(table, session, True)
    sess.run(update)
    rows = raw.rows(sess)
    for key, gradient in ((1, 2.0), (2, 3.0), (3, 2.0)):
        support.assert_rounding(rows[key], [-gradient / np.sqrt(1.0 + gradient ** 2)], 4, what=str(key))


def test_looking_up_the_same_feature_twice_returns_the_same_tensor(graph, session, dynamic):
    data, specs = dataset_of("dict", None)
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    tables = pipeline.make_tables()
    assert pipeline.lookups(tables, specs, True, batch)[0] is pipeline.lookups(tables, specs, True, batch)[0]
