"""Adam that moves all rows, with what else training does: other optimizers, numbers that change, eviction, admission, key work ahead."""

import numpy as np
import pytest
import tensorflow as tf

import fused_cases
import modify_cases
import stock_cases as cases
import support
from test_eviction import Trained, start
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import evict
from mx_rec.optimizers.adam import create_hash_optimizer

v1 = tf.compat.v1

RATE = 0.02


def adam(*arguments, **named):
    return tf.compat.v1.train.AdamOptimizer(*(arguments or (RATE,)), **named)


def variables_of(use_resource, names=("w", "v")):
    return [v1.get_variable(name, [cases.ROWS, cases.DIM], use_resource=use_resource) for name in names]


def loss_of(variables, ids, labels):
    return tf.reduce_mean(tf.square(tf.add_n(
        [tf.reduce_sum(tf.nn.embedding_lookup(one, ids) * (1.0 + at), [1, 2]) for at, one in enumerate(variables)]) - labels))


def one_of_each(variables, ids, labels):
    """Two Adams with other rates and betas, and Adagrad, in one step."""
    loss = loss_of(variables, ids, labels)
    first, second, third = variables
    return loss, tf.group(adam().minimize(loss, var_list=[first]),
                          adam(0.005, beta1=0.5, beta2=0.99, name="Slow").minimize(loss, var_list=[second]),
                          tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss, var_list=[third]))


def numbers_of_the_graph(variables, ids, labels):
    """The rate, both betas and epsilon change from step to step."""
    loss = loss_of(variables, ids, labels)
    step = tf.compat.v1.train.get_or_create_global_step()
    turn = tf.cast(step // 15 % 2, tf.float32)
    return loss, adam(RATE / (1.0 + turn), 0.9 - 0.2 * turn, 0.999 - 0.009 * turn, 1e-8 + 1e-3 * turn).minimize(loss, step)


def twice_a_step(variables, ids, labels):
    """A second update of the same rows by the same optimizer, after the first one in the same run."""
    loss, optimizer = loss_of(variables, ids, labels), adam()
    first = optimizer.minimize(loss)
    with tf.control_dependencies([first]):
        again = loss_of(variables, tf.identity(ids[:, :1]), labels)
        return loss, optimizer.minimize(again)


def accumulated(variables, ids, labels):
    """The gradients of two halves of a batch, which the script joins itself."""
    half = tf.shape(ids)[0] // 2
    losses = [loss_of(variables, ids[:half], labels[:half]), loss_of(variables, ids[half:], labels[half:])]
    joined = []
    for variable, one, other in zip(variables, *[tf.gradients(loss, variables) for loss in losses]):
        joined.append((tf.IndexedSlices(tf.concat([one.values, other.values], 0) * 0.5,
                                        tf.concat([one.indices, other.indices], 0), one.dense_shape), variable))
    return tf.add_n(losses), adam().apply_gradients(joined)


def global_norm(variables, ids, labels):
    loss, optimizer = loss_of(variables, ids, labels), adam()
    grads, chosen = zip(*optimizer.compute_gradients(loss))
    return loss, optimizer.apply_gradients(zip(tf.clip_by_global_norm(grads, 0.05)[0], chosen))


@pytest.mark.long
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("step, names", [
    (one_of_each, ("w", "v", "u")), (numbers_of_the_graph, ("w", "v")), (twice_a_step, ("w", "v")),
    (accumulated, ("w", "v")), (global_norm, ("w", "v", "u"))])
def test_unchanged_models_have_the_numbers_of_variables(v1, use_resource, step, names):
    def build(ids, labels):
        variables = variables_of(use_resource, names)
        return step(variables, ids, labels) + (variables,)

    stock, tables = [cases.run(build, converts, 90) for converts in (False, True)]
    assert sorted(name for name, plan in tables.plans.items() if plan.converts) == sorted(names), tables.plans
    assert {tables.plans["w"].kind, tables.plans["v"].kind} == {"adam"}
    np.testing.assert_allclose(tables.losses, stock.losses, rtol=1e-5, atol=1e-5)
    for name in names:
        np.testing.assert_allclose(tables.rows[name], stock.rows[name], rtol=1e-5, atol=1e-5)
    assert abs(stock.losses[0] - stock.losses[-1]) > 1e-3


class Dense:
    """Adam of all rows in NumPy, of which some may not be there.

    The formula is that of AdamOptimizer._apply_sparse.
    """

    def __init__(self, start, lr, beta1=0.9, beta2=0.999, epsilon=1e-8):
        self.lr, self.beta1, self.beta2, self.epsilon, self.start = lr, beta1, beta2, epsilon, start
        self.rows, self.steps = {}, 0

    def step(self, grads):
        """A step of all rows; those of `grads` that are not there are made."""
        self.steps += 1
        lr = self.lr * np.sqrt(1 - self.beta2 ** self.steps) / (1 - self.beta1 ** self.steps)
        for key in grads:
            self.rows.setdefault(key, [np.full(2, self.start), np.zeros(2), np.zeros(2)])
        for key, (w, m, v) in self.rows.items():
            g = grads.get(key, 0.0)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g ** 2
            self.rows[key] = [w - lr * m / (np.sqrt(v) + self.epsilon), m, v]

    def forget(self, key):
        del self.rows[key]


def expect_rows(raw, sess, dense):
    rows = raw.rows(sess)
    assert sorted(rows) == sorted(dense.rows)
    for key, (w, _, _) in dense.rows.items():
        np.testing.assert_allclose(rows[key], w, rtol=1e-5, atol=1e-5)


def test_an_evicted_key_comes_back_as_a_new_row_and_the_others_have_moved_on(graph, session, dynamic):
    one = Trained(create_hash_optimizer(0.1))
    start()
    sess = support.started(session())
    dense = Dense(1.0, 0.1)

    def step(keys, time):
        one.step(sess, keys, time)
        # The gradient of sum(2 w) is 2 for each time that a key occurs.
        dense.step({key: 2.0 * keys.count(key) for key in keys})

    for time in range(1, 5):
        step([1, 2, 3, 3], time)
    for time in range(5, 16):
        step([2], time)
    expect_rows(one.raw, sess, dense)
    assert evict()["table"].evicted == 2
    dense.forget(1)
    dense.forget(3)
    expect_rows(one.raw, sess, dense)
    for time in range(16, 21):
        step([3, 4] if time % 2 else [2], time)
        expect_rows(one.raw, sess, dense)


def test_a_key_that_is_admitted_late_begins_then(graph, session, dynamic):
    ids = v1.placeholder(tf.int64, [None])
    table = create_table(key_dtype=tf.int64, dim=2, name="late", device_vocabulary_size=50, emb_initializer=v1.ones_initializer())
    rows = sparse_lookup(table, ids, modify_graph=True, access_and_evict_config={"access_threshold": 3})
    update = create_hash_optimizer(0.1).minimize(tf.reduce_sum(rows * 2.0), var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    dense, counts = Dense(1.0, 0.1), {}
    for number in range(25):
        keys = [1, 2] if number % 5 else [1, 7, 8 + number // 10]
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        sess.run(update, {ids: keys})
        dense.step({key: 2.0 for key in keys if counts[key] >= 3})
        expect_rows(raw, sess, dense)
    assert set(dense.rows) == {1, 2, 7}


@support.run_by(modify_cases.alike, moves=2, use_dynamic=True)
def test_key_work_ahead_and_joined_updates_change_no_bit(run):
    source = fused_cases.iterator(True)
    ids, label = source.get_next()
    tables = [run.table("t%d" % at, dim=4) for at in range(2)]
    rows = [run.lookup(table, ids[:, at]) for at, table in enumerate(tables)]
    loss = fused_cases.loss_of([fused_cases.total(one) for one in rows], label)
    update = create_hash_optimizer(0.05).minimize(loss, var_list=[table.variable for table in tables])
    sess = run.begin(source)
    # A step that only looks is none of Adam.
    for fetches in ([loss, update], loss, [loss, update], [loss, update]):
        run.step(sess, fetches)
    run.finish(sess, [loss, update])
