"""Layers of the device that TensorFlow's own ops stand for: the same numbers, gradients and states."""

import math

import numpy as np
import pytest
import tensorflow as tf

from npu_bridge.estimator.npu import npu_dynamic_rnn, npu_rnn
from npu_bridge.estimator.npu_unary_ops import npu_unary_ops


def test_gelu_is_the_approximation_with_tanh_and_so_is_its_gradient():
    x = np.linspace(-6, 6, 49)
    expected = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    given = tf.constant(x.reshape(7, 7))
    y = npu_unary_ops.gelu(given)
    seed = tf.constant(np.cos(x).reshape(7, 7))
    by_hand, by_tensorflow = npu_unary_ops.gelu_grad(seed, given, y), tf.gradients(y, given, seed)[0]
    with tf.compat.v1.Session() as sess:
        found, one, other = sess.run([y, by_hand, by_tensorflow])
    assert found.shape == (7, 7) and found.dtype == np.float64
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    exact = 0.5 * x * (1 + np.array([math.erf(value / math.sqrt(2)) for value in x]))
    assert np.abs(expected - exact).max() < 1e-3


@pytest.mark.parametrize("dtype", [tf.float16, tf.float32])
def test_gelu_keeps_the_type_of_what_it_is_given(dtype):
    y = npu_unary_ops.gelu(tf.constant([1.0, -1.0], dtype), name="activation")
    assert y.dtype == dtype and y.op.name.startswith("activation")


@pytest.mark.parametrize("lengths", [None, [5, 0, 3]])
def test_a_recurrent_network_has_the_numbers_of_an_unrolled_one(lengths):
    inputs = np.random.RandomState(4).rand(5, 3, 2).astype(np.float32)
    init = tf.compat.v1.random_uniform_initializer(seed=3)
    outputs, states = [], []
    for build in ("ours", "unrolled"):
        with tf.compat.v1.variable_scope("net", initializer=init, reuse=tf.compat.v1.AUTO_REUSE):
            cell = tf.compat.v1.nn.rnn_cell.LSTMCell(4)
            if build == "ours":
                output, state = npu_rnn.npu_dynamic_rnn(cell, tf.constant(inputs), dtype=tf.float32, sequence_length=lengths)
            else:
                output, state = tf.compat.v1.nn.static_rnn(cell, tf.unstack(tf.constant(inputs)), dtype=tf.float32,
                                                           sequence_length=lengths)
                output = tf.stack(output)
        outputs.append(output)
        states.append(tf.concat(state, axis=1))
    assert len(tf.compat.v1.trainable_variables()) == 2  # One kernel and one bias: the names are the same.
    with tf.compat.v1.Session() as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        ours, unrolled = sess.run([outputs[0], states[0]]), sess.run([outputs[1], states[1]])
    assert ours[0].shape == (5, 3, 4)
    for one, other in zip(ours, unrolled):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    if lengths:
        assert not ours[0][:, 1].any() and not ours[0][3:, 2].any() and ours[0][4, 0].any()


@pytest.mark.parametrize("name", ["DynamicRNN", "DynamicGRUV2"])
def test_a_layer_that_only_the_device_has_says_what_to_use(name):
    with pytest.raises(NotImplementedError, match=name + ".*dynamic_rnn"):
        getattr(npu_dynamic_rnn, name)(16, tf.float32)
