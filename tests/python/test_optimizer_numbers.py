"""The optimizers give the numbers of TensorFlow's own on dense variables, over many steps with duplicate ids."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import CASES, OF_NUMPY, OF_UNCHANGED_MODELS, ONE_OF_EACH, ids_of
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.variable import get_dense_and_sparse_variable

ROWS = 50
STEPS = 30


def key_of(row):
    """Row numbers of the dense variable as keys that no array could be indexed with; odd rows are negative."""
    row = np.asarray(row, np.int64)
    return np.where(row % 2 == 0, 1, -1) * (row * 1000003 + 10 ** 12)


def batches(dim, seed):
    """(rows of the dense variable, gradients, learning rate factor): duplicates, absent rows, uneven sizes."""
    random = np.random.RandomState(seed)
    for step in range(STEPS):
        count = [12, 1, 40, 7][step % 4]
        rows = random.randint(0, [ROWS, ROWS, 6, ROWS][step % 4], count)
        if step % 5 == 0:
            rows[: count // 2] = rows[0]
        yield rows, random.randn(count, dim).astype(np.float32), np.float32(1.0 / (1 + step % 3))


class Stock:
    """TensorFlow's optimizer on a dense variable, fed with the same gradients."""

    def __init__(self, case, dim, initial):
        self.rows = tf.compat.v1.placeholder(tf.int64, [None])
        self.grads = tf.compat.v1.placeholder(tf.float32, [None, dim])
        self.lr = tf.compat.v1.placeholder(tf.float32, [])
        self.variable = tf.compat.v1.Variable(initial, name="dense", use_resource=case.use_resource)
        optimizer = case.stock(self.lr)
        slices = tf.IndexedSlices(self.grads, self.rows, tf.shape(self.variable, out_type=tf.int64))
        self.update = optimizer.apply_gradients([(slices, self.variable)])
        self.slots = [optimizer.get_slot(self.variable, name) for _, name in case.slots]


def scale_of(history):
    """The biggest number each element ever was: where terms cancel, its unit is what rounding is measured in."""
    return np.maximum.reduce([np.abs(values) for values in history] + [np.full_like(history[0], 0.1)])


def test_every_optimizer_of_the_plugin_has_a_case():
    assert {case.op for case in CASES + OF_UNCHANGED_MODELS} | set(OF_NUMPY) == set(support.optimizers())


# All widths for each optimizer, and two of them for its other numbers.
@pytest.mark.parametrize("case, dim", [
    pytest.param(case, dim, id="{}-{}".format(case.name, dim)) for case in CASES + OF_UNCHANGED_MODELS
    for dim in ([1, 3, 8, 64, 100] if case in ONE_OF_EACH else [3, 64])])
def test_raw_apply_ops_give_the_numbers_of_tensorflow_whichever_way_the_gradients_come(graph, session, case, dim):
    initial = np.random.RandomState(1).randn(ROWS, dim).astype(np.float32)
    keys = key_of(np.arange(ROWS))
    tables = {way: support.Raw.new(dim, name=way) for way in ("by_ids", "occurrences", "distinct")}
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    step = tf.compat.v1.placeholder(tf.float32, [])
    stock = Stock(case, dim, initial)
    updates = []
    for way, table in tables.items():
        if way == "by_ids":
            updates.append(case.apply(table.handle, ids, stock.grads, stock.lr, step, by_ids=True))
            continue
        offsets, restore = support.ops().resolve(table.handle, ids, create=0)
        if way == "occurrences":
            target, grad = tf.gather(offsets, restore), stock.grads
        else:
            target, grad = offsets, support.ops().mx_rec_reduce(stock.grads, restore, offsets)
        updates.append(case.apply(table.handle, target, grad, stock.lr, step))
    for table in tables.values():
        table.make_slots(case)
    sess = support.started(session())
    for table in tables.values():
        table.assign(sess, keys, initial)

    history = [initial]
    slot_history = [[] for _ in case.slots]
    for number, (rows, grads, factor) in enumerate(batches(dim, seed=dim)):
        lr = np.float32(case.lr) * factor
        sess.run(stock.update, {stock.rows: rows, stock.grads: grads, stock.lr: lr})
        updated = sess.run(updates, {ids: key_of(rows), stock.grads: grads, stock.lr: lr, step: number + 1.0})
        assert updated == [len(set(rows.tolist()))] * 3
        history.append(sess.run(stock.variable))
        for slot, past in zip(stock.slots, slot_history):
            past.append(sess.run(slot))

    # What FTRL adds to its linear slot is a difference of two such numbers, which may cancel.
    terms = {"Ftrl_linear": [np.power(accumulator, -case.power) / (case.lr / 3.0) * np.abs(weight)
                             for accumulator, weight in zip(slot_history[0], history)]} if case.op == "ftrl" else {}
    for way, table in tables.items():
        support.assert_rounding(support.as_array(table.rows(sess), keys), history[-1], case.ulps,
                                scale_of(history), way)
        for (name, _), past in zip(case.slots, slot_history):
            support.assert_rounding(support.as_array(table.slot_rows(sess, name), keys), past[-1], case.ulps,
                                    scale_of(past + terms.get(name, [])), way + " " + name)
    reference = tables["by_ids"].rows(sess)
    for way in ("occurrences", "distinct"):
        support.assert_same_tables(tables[way].rows(sess), reference, way)
        for name, _ in case.slots:
            support.assert_same_tables(tables[way].slot_rows(sess, name), tables["by_ids"].slot_rows(sess, name), way)


def model_loss(tf, embedding, weights):
    """A loss whose gradient depends on the rows and differs for each occurrence."""
    return tf.reduce_sum(tf.square(tf.tanh(embedding)) * weights + 0.3 * embedding * tf.reverse(weights, [0]))


def train_op(tf, how, optimizer, loss, variables):
    """The three ways a script writes one step."""
    if how == "tf.gradients":
        return optimizer.apply_gradients(zip(tf.gradients(loss, variables), variables))
    if how == "compute_gradients":
        return optimizer.apply_gradients(optimizer.compute_gradients(loss, variables))
    return optimizer.minimize(loss, var_list=variables)


WAYS = ["tf.gradients", "compute_gradients", "minimize"]


# All ways for each optimizer, and one of them for its other numbers.
@pytest.mark.parametrize("case, how", [
    pytest.param(case, how, id="{}-{}".format(case.name, how)) for place, case in enumerate(CASES)
    for how in (WAYS if case in ONE_OF_EACH else [WAYS[place % 3]])])
def test_a_model_on_sparse_lookup_trains_to_the_numbers_of_the_same_model_on_a_variable(graph, session, dynamic, case,
                                                                                         how):
    dim = 8
    table = support.make_table("table", dim, ROWS)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    weights = tf.compat.v1.placeholder(tf.float32, [None, dim])
    lr = tf.compat.v1.placeholder(tf.float32, [])
    ours = model_loss(tf, sparse_lookup(table, ids, modify_graph=True), weights)
    sparse = get_dense_and_sparse_variable()[1]
    assert len(sparse) == 1 and sparse[0] is table.variable
    update = train_op(tf, how, case.ours(lr), ours, sparse)

    initial = np.random.RandomState(3).randn(ROWS, dim).astype(np.float32) * 0.5
    dense = tf.compat.v1.Variable(initial, use_resource=False)
    rows = tf.compat.v1.placeholder(tf.int64, [None])
    stock_loss = model_loss(tf, tf.nn.embedding_lookup(dense, rows), weights)
    optimizer = case.stock(lr)
    stock_update = optimizer.minimize(stock_loss, var_list=[dense])
    slots = [optimizer.get_slot(dense, name) for _, name in case.slots]

    raw = support.Raw.of(table)
    raw.make_slots(case)
    sess = support.started(session())
    keys = key_of(np.arange(ROWS))
    raw.assign(sess, keys, initial)
    history = [initial]
    for batch, grads, factor in batches(dim, seed=11):
        feed = {ids: key_of(batch), rows: batch, weights: grads, lr: np.float32(0.5 * case.lr) * factor}
        mine, theirs = sess.run([ours, stock_loss], feed)
        assert abs(mine - theirs) <= 1e-4 * max(1.0, abs(theirs))
        sess.run([update, stock_update], feed)
        history.append(sess.run(dense))
    # The gradient is a function of the rows here, so that what one step rounds the next ones carry on.
    support.assert_rounding(support.as_array(raw.rows(sess), keys), history[-1], 8 * case.ulps, scale_of(history))
    for (name, _), slot in zip(case.slots, slots):
        theirs = sess.run(slot)
        support.assert_rounding(support.as_array(raw.slot_rows(sess, name), keys), theirs, 8 * case.ulps,
                                np.maximum(np.abs(theirs), 0.5), name)


# Adam moves all rows: test_adam.py.
OF_THE_BATCH = [case for case in CASES if case.op != "adam"]


@pytest.mark.parametrize("case", OF_THE_BATCH, ids=ids_of(OF_THE_BATCH))
def test_rows_that_are_not_in_a_batch_keep_their_bits(graph, session, case):
    table = support.Raw.new(5)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.compat.v1.placeholder(tf.float32, [None, 5])
    step = tf.compat.v1.placeholder(tf.float32, [])
    update = case.apply(table.handle, ids, grads, tf.constant(case.lr), step, by_ids=True)
    table.make_slots(case)
    sess = session()
    random = np.random.RandomState(5)
    table.assign(sess, np.arange(40), random.randn(40, 5))
    sess.run(update, {ids: np.arange(40), grads: random.randn(40, 5), step: 1})

    def everything():
        return [table.rows(sess)] + [table.slot_rows(sess, name) for name, _ in case.slots]

    before = everything()
    sess.run(update, {ids: [3, 17, 3], grads: random.randn(3, 5), step: 2})
    for now, then in zip(everything(), before):
        for key in then:
            if key not in (3, 17):
                support.assert_same_bits(now[key], then[key])
    assert not np.array_equal(everything()[0][17], before[0][17])


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=ids_of(ONE_OF_EACH))
def test_new_rows_start_with_the_initial_slots_of_the_optimizer(graph, session, case):
    """Rows assigned before the first step, keys created by the step and rows assigned again all start alike."""
    table = support.Raw.new(4)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.compat.v1.placeholder(tf.float32, [None, 4])
    update = case.apply(table.handle, ids, grads, tf.constant(case.lr), tf.constant(1.0), by_ids=True)
    table.make_slots(case)
    sess = session()
    grad = np.array([[0.5, -1.0, 2.0, -0.25]], np.float32)
    table.assign(sess, [1], np.zeros([1, 4]))
    sess.run(update, {ids: [1], grads: grad})
    sess.run(update, {ids: [2], grads: grad})
    table.assign(sess, [1, 3], np.zeros([2, 4]))
    sess.run(update, {ids: [3, 1], grads: np.repeat(grad, 2, axis=0)})
    table.remove(sess, [2])
    sess.run(update, {ids: [2], grads: grad})
    for values in [table.rows(sess)] + [table.slot_rows(sess, name) for name, _ in case.slots]:
        assert sorted(values) == [1, 2, 3]
        support.assert_same_bits(values[1], values[2])
        support.assert_same_bits(values[1], values[3])


def test_weight_decay_of_sgd_pulls_the_rows_of_the_batch_to_zero(graph, session, dynamic):
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = support.make_table("table", 2, 10)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(sparse_lookup(table, ids, modify_graph=True))
    update = create_hash_optimizer(0.5, weight_decay=0.01).minimize(loss, var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    start = np.array([[4.0, -2.0], [1.0, 8.0]], np.float32)
    raw.assign(sess, [5, 6], start)
    sess.run(update, {ids: [5, 5]})
    rows = raw.rows(sess)
    support.assert_rounding(rows[5], start[0] - 0.5 * (2.0 + 0.01 * start[0]), 2)
    support.assert_same_bits(rows[6], start[1])


def test_a_learning_rate_that_is_a_variable_is_read_at_every_step(graph, session, dynamic):
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = support.make_table("table", 1, 10)
    step = tf.compat.v1.train.get_or_create_global_step()
    lr = tf.compat.v1.train.piecewise_constant(step, [0, 1], [1.0, 0.5, 0.25])
    loss = tf.reduce_sum(sparse_lookup(table, tf.constant([7], tf.int64), modify_graph=True))
    update = create_hash_optimizer(lr).minimize(loss, global_step=step, var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    seen = []
    for _ in range(4):
        sess.run(update)
        seen.append(float(raw.rows(sess)[7][0]))
    assert seen == [-1.0, -1.5, -1.75, -2.0]
    assert sess.run(step) == 4


def test_one_optimizer_advances_its_adam_powers_once_a_step_for_all_tables(graph, session, dynamic):
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    tables = [support.make_table(name, 2, 10, 1.0) for name in ("first", "second")]
    one = tf.constant([1], tf.int64)
    loss = tf.add_n([tf.reduce_sum(tf.square(sparse_lookup(table, one, modify_graph=True))) for table in tables])
    update = create_hash_optimizer(0.1).minimize(loss, var_list=[table.variable for table in tables])

    from tensorflow.contrib.opt import LazyAdamOptimizer
    dense = [tf.compat.v1.Variable(np.ones([2, 2], np.float32), use_resource=False) for _ in tables]
    stock_loss = tf.add_n([tf.reduce_sum(tf.square(tf.gather(variable, one))) for variable in dense])
    stock_update = LazyAdamOptimizer(0.1).minimize(stock_loss, var_list=dense)

    raws, sess = support.opened(tables, session, True)
    for _ in range(5):
        sess.run([update, stock_update])
    for raw, variable in zip(raws, dense):
        support.assert_rounding(raw.rows(sess)[1], sess.run(variable)[1], 16, scale=1.0)
