"""The FTRL of older releases against its formula in float64, for every kind of variable and gradient."""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.optimizers.ftrl_t import create_hash_optimizer

START = np.linspace(-1, 1, 12).reshape(4, 3)
CASES = [{}, {"alpha": 0.2, "beta": 0.5, "lambda1": 0.05, "lambda2": 0.1, "epsilon": 0.1, "grad_factor": 0.3}]


def naive(rows, grads, start, keeps_weights, alpha=0.06, beta=1.0, lambda1=0.0, lambda2=0.0, epsilon=0.0, grad_factor=0.0):
    weights, z, n, g = start.copy(), np.zeros_like(start), np.zeros_like(start), np.zeros_like(start)
    last = np.zeros_like(start) if keeps_weights else weights
    for at, grad in zip(rows, grads):
        g[at] = grad_factor * g[at] + (1 - grad_factor) * grad
        rate = (np.sqrt(n[at] + g[at] ** 2) - np.sqrt(n[at])) / alpha
        z[at] = (1 - epsilon) * z[at] + g[at] - rate * last[at]
        n[at] = (1 - epsilon) * n[at] + g[at] ** 2
        divisor = (beta + np.sqrt(n[at])) / alpha + lambda2
        new = -z[at] / divisor
        if lambda1 > 0:
            new = np.where(np.abs(z[at]) > lambda1, (lambda1 * np.sign(z[at]) - z[at]) / divisor, 0)
        weights[at] = last[at] = new
    return weights


@pytest.mark.parametrize("settings", CASES)
@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("module", ["ftrl_t", "ftrl_t_dense"])
def test_updates_follow_the_formula(graph, session, module, is_sparse, use_resource, settings):
    import importlib

    made = importlib.import_module("mx_rec.optimizers." + module)
    optimizer = made.create_hash_optimizer(learning_rate=0.1, **settings)
    variable = tf.compat.v1.get_variable("v", initializer=START.astype(np.float32), use_resource=use_resource)
    random = np.random.RandomState(2)
    rows = [[0, 2], [2, 3], [0, 1], [2, 0]] if is_sparse else [[0, 1, 2, 3]] * 4
    grads = [random.randn(len(at), 3) for at in rows]
    at = tf.compat.v1.placeholder(tf.int64, [None])
    grad = tf.compat.v1.placeholder(tf.float32, [None, 3])
    given = tf.IndexedSlices(grad, at, dense_shape=[4, 3]) if is_sparse else tf.ensure_shape(grad, [4, 3])
    train = optimizer.apply_gradients([(given, variable)])
    sess = support.started(session())
    for part, values in zip(rows, grads):
        sess.run(train, {at: part, grad: values})
    np.testing.assert_allclose(sess.run(variable), naive(rows, grads, START, module == "ftrl_t", **settings),
                               rtol=2e-5, atol=1e-6)


def test_a_repeated_row_gets_one_update_by_its_sum(graph, session):
    results = []
    for name, rows, values in (("a", [1, 1], [[1.0], [2.0]]), ("b", [1], [[3.0]])):
        variable = tf.compat.v1.get_variable(name, initializer=np.zeros([3, 1], np.float32))
        grad = tf.IndexedSlices(tf.constant(values), tf.constant(rows, tf.int64), dense_shape=[3, 1])
        results.append((create_hash_optimizer(0.1).apply_gradients([(grad, variable)]), variable))
    sess = support.started(session())
    sess.run([train for train, _ in results])
    support.assert_same_bits(*sess.run([variable for _, variable in results]))


def test_wrong_numbers_are_refused(dynamic):
    for wrong in ({"alpha": 0.0}, {"beta": -1.0}, {"epsilon": 2.0}, {"name": ""}):
        with pytest.raises(ValueError, match=list(wrong)[0]):
            create_hash_optimizer(0.1, **wrong)
