"""Pooled lookups in the forward pass and in updates, beside embeddings that TensorFlow adds up."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import OF_EACH_SIZE, ids_of
from pooled_cases import DIM, batch_of, lookup, make_table, pooled, start_of, unfused
from test_fused_updates import needed

COMBINERS = ["sum", "mean", "sqrtn"]


def loss_of(vector):
    """A loss whose gradient differs from bag to bag, over several orders of magnitude."""
    place = tf.cast(tf.reshape(tf.range(tf.size(vector)), tf.shape(vector)), tf.float32)
    return tf.reduce_sum(tf.sin(vector + place) * tf.exp(place % 17.0 - 8.0))


def updates(train):
    """Types of the plugin's ops by which a step reads and changes rows."""
    return {name for name in needed(train) if "Update" in name or "Reduce" in name or "MxRecRead" in name}


@pytest.mark.parametrize("case", OF_EACH_SIZE, ids=ids_of(OF_EACH_SIZE))
def test_sums_of_dense_ids_have_the_bits_of_the_unfused_model_over_several_steps(graph, session, dynamic, case):
    """Forward those of tf.reduce_sum, and after each step in every row and slot."""
    ids = tf.compat.v1.placeholder(tf.int64, [None, 7])
    tables = [make_table("pooled"), make_table("unfused")]
    vectors = [pooled(tables[0], ids), tf.reduce_sum(lookup(tables[1], ids), 1)]
    trains = []
    for table, vector in zip(tables, vectors):
        gradient = tf.gradients(loss_of(vector), table.variable)[0]
        trains.append(case.ours(tf.constant(0.1 * case.lr)).apply_gradients([(gradient, table.variable)]))
    assert updates(trains[0]) == {"MxRecRead bags", "MxRecUpdate"}
    assert list(map(support.form_of, needed(trains[0])["MxRecUpdate"])) == ["bags"]
    raws = [support.Raw.of(table) for table in tables]
    slots = [[raw.slot(name) for name, _ in case.slots] for raw in raws]
    sess = support.started(session())
    for raw in raws:
        raw.assign(sess, *start_of(40))
    random = np.random.RandomState(5)
    for bags in (4, 1, 0, 300, 30):
        batch = batch_of(random, bags, 7)
        ours, theirs = sess.run(vectors, {ids: batch})
        support.assert_same_bits(ours, theirs)
        for train in trains:
            sess.run(train, {ids: batch})
        support.assert_same_tables(*[raw.rows(sess) for raw in raws])
    for ours, theirs in zip(*slots):
        (keys, values), (other_keys, other_values) = sess.run([ours, theirs])
        support.assert_same_tables(dict(zip(keys.tolist(), values)), dict(zip(other_keys.tolist(), other_values)))


# Each pair of two values once at least.
@pytest.mark.parametrize("dim, combiner, weighted, key_dtype", [
    (dim, combiner, (place + turn) % 2 == 1, ["int32", "int64"][(place // 2 + turn) % 2])
    for place, dim in enumerate([1, 16, 33, 64]) for turn, combiner in enumerate(COMBINERS)])
def test_every_combiner_agrees_with_ops_of_tensorflow_in_values_and_gradients(graph, session, dynamic, dim, combiner,
                                                                              weighted, key_dtype):
    ids = tf.compat.v1.placeholder(key_dtype, [None, None])
    weights = tf.compat.v1.placeholder(tf.float32, [None, None]) if weighted else None
    table = make_table("table", dim)
    forms = [pooled(table, ids, combiner, weights=weights), unfused(table, ids, combiner, weights)]
    evaluated = pooled(table, ids, combiner, weights=weights, is_train=False)
    gradients = [tf.gradients(loss_of(form), table.variable)[0] for form in forms]
    raw, sess = support.opened(table, session)
    random = np.random.RandomState(dim)
    for bags, length in ((6, 5), (3, 0), (0, 4), (200, 9)):
        batch = batch_of(random, bags, length)
        feed = {ids: batch}
        if weighted:
            feed[weights] = random.random_sample(batch.shape).astype(np.float32) + 0.1
        (ours, theirs), again = sess.run(forms, feed), sess.run(evaluated, feed)
        assert ours.shape == (bags, dim)
        support.assert_rounding(ours, theirs, 20, scale=3.0)
        support.assert_same_bits(ours, again)
        sums = []
        for slices in sess.run(gradients, feed):
            by_row = {}
            for row, value in zip(support.row_of(slices.indices), slices.values):
                by_row[row] = by_row.get(row, 0) + value
            sums.append(by_row)
        assert sorted(sums[0]) == sorted(sums[1]) and (not batch.size or sums[0])
        for row in sums[0]:
            support.assert_rounding(sums[0][row], sums[1][row], 60, scale=float(np.exp(8)))
    assert raw.size(sess) <= 40


def test_ids_of_rank_1_and_3_are_pooled_along_the_last_dimension(graph, session, dynamic):
    table = make_table("table")
    batch = np.array([[[1, 2, 2], [-1, -1, -1]], [[4, 1, 9], [2, -1, 2]]])
    cube, line = [tf.constant(ids, tf.int64) for ids in (batch, batch[0, 0])]
    forms = [pooled(table, cube, "mean"), unfused(table, cube, "mean"), pooled(table, line), unfused(table, line)]
    assert [form.shape.as_list() for form in forms[::2]] == [[2, 2, DIM], [DIM]]
    values = session().run(forms)
    support.assert_rounding(values[0], values[1], 4)
    support.assert_same_bits(values[2], values[3])
    assert not values[0][0, 1].any()


def test_several_lookups_of_a_table_pooled_and_not_make_one_update(graph, session, dynamic):
    """A row that occurs in all of them moves once, by the sum of its gradients."""
    ids = tf.compat.v1.placeholder(tf.int64, [None, 4])
    tables = [make_table("pooled"), make_table("unfused")]
    trains = []
    for table in tables:
        form = pooled if table is tables[0] else unfused
        vectors = [form(table, ids, "sum"), lookup(table, ids[:, 0]), form(table, ids[:, 1:], "sum")]
        loss = tf.add_n([loss_of(vector) for vector in vectors])
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer

        gradient = tf.gradients(loss, table.variable)[0]
        trains.append(create_hash_optimizer(0.1).apply_gradients([(gradient, table.variable)]))
    assert [(op.get_attr("N"), support.form_of(op)) for op in needed(trains[0])["MxRecUpdate"]] == [(3, "bags")]
    raws, sess = support.opened(tables, session, True)
    for raw in raws:
        raw.assign(sess, *start_of(40))
    for step in range(3):
        batch = batch_of(np.random.RandomState(step), 20, 4)
        for train in trains:
            sess.run(train, {ids: batch})
        support.assert_same_tables(*[raw.rows(sess) for raw in raws])


def test_a_changed_gradient_goes_through_its_sums(graph, session, dynamic):
    """Clipped, so that nothing is fused: the rows become what the clipped sums say."""
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = make_table("table")
    vector = pooled(table, tf.constant([[3, 8, 3], [8, 8, 1]], tf.int64), "mean")
    gradient = tf.clip_by_global_norm([tf.gradients(loss_of(vector), table.variable)[0]], 0.5)[0][0]
    train = create_hash_optimizer(1.0).apply_gradients([(gradient, table.variable)])
    assert updates(train) == {"MxRecRead bags", "MxRecReducePooled", "MxRecUpdate"}
    raw, sess = support.opened(table, session)
    sess.run(vector)
    before = raw.rows(sess)
    with tf.control_dependencies([train]):
        done = tf.no_op()
    got, _ = sess.run([gradient, done])
    keys = raw.export(sess)[0]
    after = raw.rows(sess)
    for offset, value in zip(got.indices, got.values):
        key = int(keys[support.row_of(offset)])
        support.assert_same_bits(after[key], before[key] - value)


def test_a_sum_that_a_fused_update_leaves_out_cannot_be_fed(graph, session, dynamic):
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = make_table("table")
    vector = pooled(table, tf.constant([[3, 8]], tf.int64))
    gradient = tf.gradients(loss_of(vector), table.variable)[0]
    train = create_hash_optimizer(1.0).apply_gradients([(gradient, table.variable)])
    with pytest.raises(ValueError, match="may not be fed"):
        session().run(train, {gradient.values: np.ones([2, DIM])})


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_the_weight_of_padding_is_not_looked_at(graph, session, dynamic, combiner):
    """NaN and infinity are what a script may leave there: they reach no vector and no row."""
    table = make_table("table")
    ids = tf.constant([[3, -1, 3], [-1, -1, -1], [-1, 4, -1]], tf.int64)
    weights = tf.compat.v1.placeholder(tf.float32, [3, 3])
    vectors = [pooled(table, ids, combiner, weights=weights, is_train=is_train) for is_train in (True, False)]
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    # The gradient does not read the vectors: the update is told to wait for them.
    with tf.control_dependencies([vectors[0]]):
        train = create_hash_optimizer(0.5).minimize(tf.reduce_sum(vectors[0]), var_list=[table.variable])
    raw = support.Raw.of(table)
    found = []
    for nothing in (1.0, np.nan, np.inf):
        sess = support.started(session())
        feed = {weights: [[2.0, nothing, 1.0], [nothing, nothing, nothing], [nothing, 0.5, nothing]]}
        trained, _ = sess.run([vectors[0], train], feed)
        found.append([trained, sess.run(vectors[1], feed), raw.rows(sess)])
    assert np.isfinite(found[0][0]).all() and not found[0][0][1].any()
    for trained, evaluated, rows in found[1:]:
        support.assert_same_bits(trained, found[0][0])
        support.assert_same_bits(evaluated, found[0][1])
        support.assert_same_tables(rows, found[0][2])


def test_padding_keys_are_added_and_never_change(graph, session, dynamic):
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = make_table("table", padding_keys=[3], padding_keys_mask=True, padding_keys_len=10)
    ids = tf.constant([[3, 3, 5]], tf.int64)
    vector = pooled(table, ids, "mean")
    train = create_hash_optimizer(1.0).minimize(loss_of(vector), var_list=[table.variable])
    raw, sess = support.opened(table, session)
    first = sess.run(vector)
    before = raw.rows(sess)
    support.assert_rounding(first[0], (2 * before[3] + before[5]) / 3, 4)
    sess.run(train)
    after = raw.rows(sess)
    support.assert_same_bits(after[3], before[3])
    assert not np.array_equal(after[5], before[5])


@pytest.mark.parametrize("threads", [1, 2])
def test_large_batches_do_not_depend_on_threads(graph, dynamic, threads):
    """Beside the embeddings of all ids, which are restored and reduced by other kernels."""
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    ids = tf.compat.v1.placeholder(tf.int64, [None, 20])
    tables = [make_table("pooled", 32), make_table("unfused", 32)]
    vectors = [pooled(tables[0], ids), tf.reduce_sum(lookup(tables[1], ids), 1)]
    trains = [create_hash_optimizer(0.1).minimize(loss_of(vector), var_list=[table.variable])
              for table, vector in zip(tables, vectors)]
    raws = [support.Raw.of(table) for table in tables]
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with tf.compat.v1.Session(config=config) as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        for raw in raws:
            raw.assign(sess, *start_of(3000, 32))
        batch = np.random.RandomState(3).zipf(1.2, (2000, 20)) % 3000 - 1
        for train in trains:
            sess.run(train, {ids: batch})
        support.assert_same_tables(*[raw.rows(sess) for raw in raws])
        support.assert_same_bits(*sess.run(vectors, {ids: batch}))


def test_second_order_gradients_are_refused(graph, dynamic):
    table = make_table("table")
    vector = pooled(table, tf.constant([[3, 8]], tf.int64))
    gradient = tf.gradients(tf.reduce_sum(tf.square(vector)), table.variable)[0]
    with pytest.raises(NotImplementedError, match="second order"):
        tf.gradients(tf.reduce_sum(tf.square(gradient.values)), table.variable)
