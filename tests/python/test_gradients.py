"""Gradients through sparse_lookup: against finite differences, with duplicates, several lookups, clipping and stops."""

import numpy as np
import pytest
import tensorflow as tf

import support
from support import lookup
from optimizer_cases import ONE_OF_EACH, ids_of


def summed(slices, offsets_to_keys):
    """IndexedSlices as numpy -> key -> summed gradient."""
    total = {}
    for offset, value in zip(slices.indices, slices.values):
        key = offsets_to_keys[support.row_of(int(offset))]
        total[key] = total.get(key, 0.0) + value.astype(np.float64)
    return total


def offsets_to_keys(sess, raw):
    """Row numbers are given out in the order of first occurrence."""
    return dict(enumerate(raw.export(sess)[0].tolist()))


def on_grid(random, shape):
    """Values that a step of 2^-10 changes exactly in float32."""
    return (random.randint(-900, 900, shape) / 1024.0).astype(np.float32)


LOSSES = {
    "one lookup with duplicates": lambda tf, looked: tf.reduce_sum(tf.tanh(looked(0)) * weights(tf, looked(0))),
    "two lookups of one table": lambda tf, looked: tf.reduce_sum(tf.sin(looked(0))) * tf.reduce_mean(
        tf.square(looked(1))),
    "three lookups of one table": lambda tf, looked: tf.reduce_sum(
        tf.matmul(looked(0), looked(1), transpose_b=True)) * tf.reduce_sum(tf.sigmoid(looked(2))),
    "one embedding used twice": lambda tf, looked: tf.reduce_sum(
        tf.square(looked(0))[:3] * tf.exp(looked(0))[2:5]) + tf.reduce_sum(looked(0)[0]),
    "gathered and reduced": lambda tf, looked: tf.reduce_sum(
        tf.square(tf.reduce_mean(tf.gather(looked(0), [0, 4, 4, 2]), axis=0))),
}


def weights(tf, embedding):
    return tf.cast(tf.reshape(tf.range(tf.size(embedding)), tf.shape(embedding)), tf.float64) * 0.1


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_analytic_gradients_are_the_numeric_ones(graph, session, dynamic, name):
    """Central differences of the loss over every float of the table, in float64 after the lookup."""
    dim = 3
    table = support.make_table(dim=dim)
    batch = [[5, 9, 5, -4, 7], [9, -1, 5, 7, 2, 2], [5, 5, -1, 2 ** 62]]
    cache = {}

    def looked(index):
        if index not in cache:
            cache[index] = tf.cast(lookup(table, tf.constant(batch[index], tf.int64)), tf.float64)
        return cache[index]

    loss = LOSSES[name](tf, looked)
    gradient = tf.gradients(loss, table.variable)[0]
    assert isinstance(gradient, tf.IndexedSlices)
    raw, sess = support.opened(table, session)
    keys = [5, 9, -4, 7, 2, 2 ** 62]
    rows = on_grid(np.random.RandomState(2), [len(keys), dim])
    raw.assign(sess, keys, rows)
    analytic = summed(sess.run(gradient), offsets_to_keys(sess, raw))

    step = 2.0 ** -10
    for row, key in enumerate(keys):
        numeric = np.zeros(dim)
        for column in range(dim):
            values = []
            for sign in (1, -1):
                moved = rows.copy()
                moved[row, column] += sign * step
                raw.assign(sess, keys, moved)
                values.append(sess.run(loss))
            numeric[column] = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose(analytic.get(key, np.zeros(dim)), numeric, rtol=2e-5, atol=2e-5, err_msg=str(key))
    assert raw.size(sess) == len(keys)


def test_the_gradient_of_one_lookup_has_each_key_once_in_order_of_first_occurrence(graph, session, dynamic):
    table = support.make_table(dim=2)
    ids = tf.constant([[8, 3], [8, -1], [1, 3]], tf.int64)
    embedding = lookup(table, ids)
    coefficient = tf.constant(np.arange(12).reshape(3, 2, 2), tf.float32)
    gradient = tf.gradients(tf.reduce_sum(embedding * coefficient), table.variable)[0]
    raw, sess = support.opened(table, session)
    got = sess.run(gradient)
    keys = offsets_to_keys(sess, raw)
    assert [keys[support.row_of(int(offset))] for offset in got.indices] == [8, 3, 1]
    support.assert_same_bits(got.values, [[4, 6], [12, 14], [8, 9]])


def dense_twin(tf, count, dim, initial):
    return tf.compat.v1.Variable(initial.reshape(count, dim), use_resource=False)


@pytest.mark.parametrize("lookups", [2, 3])
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=ids_of(ONE_OF_EACH))
def test_several_lookups_of_one_table_update_each_key_once_with_the_sum_over_all(graph, session, dynamic, case,
                                                                                  lookups):
    """As TensorFlow does for several gathers of one variable: one step of the optimizer per row, not one per lookup."""
    table = support.make_table(dim=3)
    feeds = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in range(lookups)]
    random = np.random.RandomState(4)
    initial = random.randn(20, 3).astype(np.float32)
    dense = dense_twin(tf, 20, 3, initial)

    def loss(look):
        return tf.add_n([tf.reduce_sum(tf.square(look(ids)) * (number + 0.5)) for number, ids in enumerate(feeds)])

    lr = tf.constant(0.5 * case.lr, tf.float32)
    update = case.ours(lr).minimize(loss(lambda ids: lookup(table, ids)), var_list=[table.variable])
    stock = case.stock(lr).minimize(loss(lambda ids: tf.gather(dense, ids)), var_list=[dense])
    raw, sess = support.opened(table, session, True)
    raw.assign(sess, np.arange(20), initial)
    for _ in range(10):
        feed = {ids: random.randint(0, 20, 8) for ids in feeds}
        sess.run(update, feed)
        sess.run(stock, feed)
    rows = support.as_array(raw.rows(sess), np.arange(20))
    support.assert_rounding(rows, sess.run(dense), 8 * case.ulps, scale=np.maximum(np.abs(initial), 0.5))


def test_a_lookup_with_is_grad_false_gives_rows_but_no_gradient(graph, session, dynamic):
    table = support.make_table(dim=2, start=1.0)
    ids = tf.constant([1, 2], tf.int64)
    trained = lookup(table, ids)
    frozen = lookup(table, tf.constant([2, 3], tf.int64), is_grad=False)
    gradient = tf.gradients(tf.reduce_sum(trained) + 100.0 * tf.reduce_sum(frozen), table.variable)[0]
    raw, sess = support.opened(table, session)
    got, rows = sess.run([gradient, frozen])
    support.assert_same_bits(rows, np.ones([2, 2]))
    total = summed(got, offsets_to_keys(sess, raw))
    assert sorted(total) == [1, 2]
    support.assert_same_bits(total[2], [1, 1])


def test_a_table_with_only_is_grad_false_lookups_has_no_gradient(graph, session, dynamic):
    table = support.make_table(dim=2)
    embedding = lookup(table, tf.constant([1], tf.int64), is_grad=False)
    assert tf.gradients(tf.reduce_sum(embedding), table.variable) == [None]
    assert session().run(embedding).shape == (1, 2)


def test_stop_gradient_on_an_embedding_stops_the_gradient(graph, session, dynamic):
    table = support.make_table(dim=2)
    embedding = lookup(table, tf.constant([4, 5], tf.int64))
    assert tf.gradients(tf.reduce_sum(tf.stop_gradient(embedding)), table.variable) == [None]
    loss = tf.reduce_sum(embedding[0] * 3.0) + tf.reduce_sum(tf.stop_gradient(embedding)[1])
    gradient = tf.gradients(loss, table.variable)[0]
    raw, sess = support.opened(table, session)
    got = sess.run(gradient)
    total = summed(got, offsets_to_keys(sess, raw))
    support.assert_same_bits(total[4], [3, 3])
    support.assert_same_bits(total.get(5, np.zeros(2)), [0, 0])


def test_clip_by_global_norm_takes_the_norm_of_the_summed_gradients(graph, session, dynamic):
    """Ids that repeat within a lookup count once with their sum, so that the norm is the mathematical one."""
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = support.make_table(dim=2)
    dense = tf.compat.v1.Variable(np.float32([3.0]), use_resource=False)
    embedding = lookup(table, tf.constant([1, 1, 2], tf.int64))
    loss = tf.reduce_sum(embedding * [[1.0, 0.0], [2.0, 0.0], [0.0, 4.0]]) + tf.reduce_sum(dense * 12.0)
    variables = [table.variable, dense]
    clipped, norm = tf.clip_by_global_norm(tf.gradients(loss, variables), 6.5)
    update = create_hash_optimizer(1.0).apply_gradients([(clipped[0], table.variable)])
    raw, sess = support.opened(table, session, True)
    assert sess.run(norm) == 13.0
    sess.run(update)
    rows = raw.rows(sess)
    support.assert_rounding(rows[1], [-1.5, 0.0], 2)
    support.assert_rounding(rows[2], [0.0, -2.0], 2)


def test_scaled_and_zeroed_gradients_go_through_apply_gradients(graph, session, dynamic):
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    first, second = support.make_table("first", dim=2), support.make_table("second", dim=2)
    ids = tf.constant([6], tf.int64)
    loss = tf.reduce_sum(lookup(first, ids)) + tf.reduce_sum(lookup(second, ids))
    optimizer = create_hash_optimizer(1.0)
    pairs = optimizer.compute_gradients(loss, [first.variable, second.variable])
    scaled = [(tf.IndexedSlices(gradient.values * (2.0 - 2.0 * number), gradient.indices), variable)
              for number, (gradient, variable) in enumerate(pairs)]
    update = optimizer.apply_gradients(scaled)
    raws = support.Raw.of(first), support.Raw.of(second)
    sess = support.started(session())
    sess.run(update)
    assert raws[0].rows(sess)[6].tolist() == [-2.0, -2.0]
    assert raws[1].rows(sess)[6].tolist() == [0.0, 0.0]


def test_padding_ids_give_zeros_and_take_no_gradient(graph, session, dynamic):
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    table = support.make_table(dim=2, start=1.0)
    ids = tf.constant([[-1, 7], [-1, -1]], tf.int64)
    embedding = lookup(table, ids)
    update = create_hash_optimizer(0.1).minimize(tf.reduce_sum(embedding), var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    first = sess.run(embedding)
    support.assert_same_bits(first, [[[0, 0], [1, 1]], [[0, 0], [0, 0]]])
    sess.run(update)
    rows = raw.rows(sess)
    assert sorted(rows) == [7]
    support.assert_rounding(rows[7], [0.9, 0.9], 4)


def test_a_batch_of_padding_only_trains_nothing(graph, session, dynamic):
    from mx_rec.optimizers.adagrad import create_hash_optimizer

    table = support.make_table(dim=2)
    embedding = lookup(table, tf.constant([-1, -1], tf.int64))
    gradient = tf.gradients(tf.reduce_sum(embedding), table.variable)[0]
    update = create_hash_optimizer(0.1).apply_gradients([(gradient, table.variable)])
    raw, sess = support.opened(table, session, True)
    sess.run(update)
    got = sess.run(gradient)
    assert got.values.shape == (0, 2) and got.indices.shape == (0,)
    assert raw.size(sess) == 0


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=ids_of(ONE_OF_EACH))
def test_padding_keys_of_a_table_are_looked_up_but_never_updated(graph, session, dynamic, case):
    table = support.make_table(dim=2, start=0.5, padding_keys=[0, 99],
                       padding_keys_mask=True, padding_keys_len=4)
    unpadded = support.make_table("unpadded", dim=2)
    embedding = lookup(table, tf.constant([0, 1, 99, 1], tf.int64))
    loss = tf.reduce_sum(embedding * 2.0) + tf.reduce_sum(lookup(unpadded, tf.constant([0], tf.int64)))
    update = case.ours(case.lr).minimize(loss, var_list=[table.variable, unpadded.variable])
    raws = support.Raw.of(table), support.Raw.of(unpadded)
    sess = support.started(session())
    for _ in range(3):
        looked = sess.run(embedding)
        support.assert_same_bits(looked[[0, 2]], np.full([2, 2], 0.5))
        sess.run(update)
    rows = raws[0].rows(sess)
    assert sorted(rows) == [0, 1, 99]
    support.assert_same_bits(rows[0], [0.5, 0.5])
    support.assert_same_bits(rows[99], [0.5, 0.5])
    assert np.all(rows[1] < 0.5)
    assert np.all(raws[1].rows(sess)[0] < 0.0)


def test_second_derivatives_through_a_lookup_exist(graph, session, dynamic):
    """The gradient of a gradient penalty: d/dx of |d(sum x^3)/dx|^2 = 36 x^3."""
    table = support.make_table(dim=1)
    embedding = lookup(table, tf.constant([3, 3], tf.int64))
    inner = tf.gradients(tf.reduce_sum(embedding ** 3), embedding)[0]
    outer = tf.gradients(tf.reduce_sum(tf.square(inner)), table.variable)[0]
    raw, sess = support.opened(table, session)
    raw.assign(sess, [3], [[0.5]])
    got = sess.run(outer)
    np.testing.assert_allclose(got.values, [[2 * 36 * 0.5 ** 3]], rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 8192])
def test_tables_of_the_smallest_and_the_largest_dimension_train(graph, session, dynamic, dim):
    from mx_rec.optimizers.adagrad import create_hash_optimizer

    table = support.make_table(dim=dim)
    ids = tf.constant([11, 12, 11], tf.int64)
    embedding = lookup(table, ids)
    coefficient = np.random.RandomState(0).randn(3, dim).astype(np.float32)
    update = create_hash_optimizer(0.5, initial_accumulator_value=0.1).minimize(
        tf.reduce_sum(embedding * coefficient), var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    sess.run(update)
    rows = raw.rows(sess)
    for key, gradient in ((11, coefficient[0] + coefficient[2]), (12, coefficient[1])):
        wide = gradient.astype(np.float64)
        support.assert_rounding(rows[key], -0.5 * wide / np.sqrt(0.1 + wide * wide), 8, what=str(key))
