"""The numbers that TensorFlow's own tests of its optimizers pin, restated: our ops have to land on them too."""

import numpy as np
import pytest
import tensorflow as tf

import support

# assertAllClose of those tests for float32.
TOLERANCE = 1e-6


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


class Table:
    """A table, a fed gradient and one update by ids."""

    def __init__(self, keys, rows, op, hyper, slots=()):
        self.keys = keys
        dim = len(rows[0])
        self.table = support.Raw.new(dim)
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.grads = tf.compat.v1.placeholder(tf.float32, [None, dim])
        self.step = tf.compat.v1.placeholder_with_default(np.float32(1), [])
        values = [tf.convert_to_tensor(value, tf.float32) for value in hyper(tf, self.step)]
        self.update = support.update_ids(op, self.table.handle, self.ids, self.grads, *values)
        for slot in slots:
            self.table.slot(slot)
        self.sess = support.new_session()
        self.table.assign(self.sess, keys, rows)

    def run(self, ids, grads, steps=1, first=1):
        for step in range(first, first + steps):
            self.sess.run(self.update, {self.ids: ids, self.grads: np.asarray(grads, np.float32), self.step: step})

    def rows(self):
        return support.as_array(self.table.rows(self.sess), self.keys)

    def slot(self, name):
        return support.as_array(self.table.slot_rows(self.sess, name), self.keys)


FTRL_GRADS = [[0.1, 0.2], [0.01, 0.02]]
FTRL_GOLDEN = [
    # start, steps, l1, l2, shrinkage, end; learning rate 3, power -0.5, accumulator from 0.1
    ("without regularizer from zero", [[0, 0], [0, 0]], 3, 0.0, 0.0, 0.0,
     [[-2.60260963, -4.29698515], [-0.28432083, -0.56694895]]),
    ("without regularizer", [[1, 2], [4, 3]], 3, 0.0, 0.0, 0.0,
     [[-2.55607247, -3.98729396], [-0.28232238, -0.56096673]]),
    ("with l1", [[1, 2], [4, 3]], 10, 0.001, 0.0, 0.0,
     [[-7.66718769, -10.91273689], [-0.93460727, -1.86147261]]),
    ("with l1 and l2", [[1, 2], [4, 3]], 10, 0.001, 2.0, 0.0,
     [[-0.24059935, -0.46829352], [-0.02406147, -0.04830509]]),
    ("with l1, l2 and shrinkage", [[1, 2], [4, 3]], 10, 0.001, 2.0, 0.1,
     [[-0.22578995, -0.44345796], [-0.14378493, -0.13229476]]),
]


@pytest.mark.parametrize("start, steps, l1, l2, shrinkage, end", [case[1:] for case in FTRL_GOLDEN],
                         ids=[case[0] for case in FTRL_GOLDEN])
def test_ftrl_lands_on_the_golden_numbers(graph, start, steps, l1, l2, shrinkage, end):
    table = Table([40, -50], start, "ftrl", lambda tf, step: [3.0, -0.5, 0.1, l1, l2, shrinkage])
    table.run([40, -50], FTRL_GRADS, steps)
    close(table.rows(), end)


def test_ftrl_with_shrinkage_on_sparse_gradients_lands_on_the_golden_numbers(graph):
    table = Table([0, 1, 2, 3], [[1], [2], [4], [3]], "ftrl", lambda tf, step: [3.0, -0.5, 0.1, 0.001, 2.0, 0.1])
    table.run([0, 3], [[0.1], [0.02]], 10)
    close(table.rows(), [[-0.22578995], [2], [4], [-0.13229476]])


def test_ftrl_shrinkage_does_not_change_the_accumulator(graph):
    slots = ["Ftrl_accum"]
    plain = Table([1], [[1, 2]], "ftrl", lambda tf, step: [3.0, -0.5, 0.1, 0.001, 2.0, 0.0], slots)
    shrunk = Table([1], [[1, 2]], "ftrl", lambda tf, step: [3.0, -0.5, 0.1, 0.001, 2.0, 0.1], slots)
    for table in (plain, shrunk):
        table.run([1], [[0.1, 0.2]], 10)
    assert np.all(np.abs(shrunk.rows()) < np.abs(plain.rows()))
    close(shrunk.slot("Ftrl_accum"), plain.slot("Ftrl_accum"))


@pytest.mark.parametrize("power, op, hyper", [
    (-0.5, "adagrad", lambda tf, step: [3.0, 0.1]),
    (0.0, "sgd", lambda tf, step: [3.0, 0.0]),
])
def test_ftrl_from_zero_without_regularizer_is_adagrad_or_gradient_descent(graph, power, op, hyper):
    zeros = [[0, 0], [0, 0]]
    ftrl = Table([1, 2], zeros, "ftrl", lambda tf, step: [3.0, power, 0.1, 0.0, 0.0, 0.0])
    other = Table([1, 2], zeros, op, hyper)
    for table in (ftrl, other):
        table.run([1, 2], FTRL_GRADS, 5)
    close(ftrl.rows(), other.rows())


def test_adagrad_lands_on_the_golden_numbers(graph):
    table = Table([0, 1], [[1, 2], [3, 4]], "adagrad", lambda tf, step: [3.0, 0.1])
    table.run([0, 1], [[0.1, 0.1], [0.01, 0.01]], 3)
    close(table.rows(), [[-1.6026098728179932, -0.6026098728179932], [2.715679168701172, 3.715679168701172]])


def test_adagrad_on_sparse_gradients_lands_on_the_golden_numbers(graph):
    table = Table([0, 1, 2, 3], [[1], [2], [3], [4]], "adagrad", lambda tf, step: [3.0, 0.1])
    table.run([0, 3], [[0.1], [0.01]], 3)
    close(table.rows(), [[-1.6026098728179932], [2], [3], [3.715679168701172]])


def test_adagrad_is_stable_for_tiny_gradients(graph):
    start = [[0.00872496, -0.106952, 0.110467, 0.226505, -0.0147257, -0.0105945]]
    grads = [[-5.91278e-05, 5.31673e-05, -2.5779e-06, 4.29153e-05, -8.4877e-05, -9.48906e-05]]
    table = Table([0], start, "adagrad", lambda tf, step: [1.0, 0.1], ["Adagrad_accumulator"])
    for _ in range(100):
        table.table.assign(table.sess, [0], start)
        table.run([0], grads)
        close(table.slot("Adagrad_accumulator"), [[0.1] * 6])
        close(table.rows(), [[0.00891194, -0.10712013, 0.11047515, 0.22636929, -0.0144573, -0.01029443]])


@pytest.mark.parametrize("op, hyper", [
    ("adagrad", lambda tf, step: [3.0, 0.1]),
    ("lazy_adam", lambda tf, step: [0.001, 0.9 ** step, 0.999 ** step, 0.9, 0.999, 1e-8]),
    ("momentum", lambda tf, step: [2.0, 0.9]),
    ("sgd", lambda tf, step: [2.0, 0.0]),
    ("ftrl", lambda tf, step: [3.0, -0.5, 0.1, 0.001, 2.0, 0.1]),
    ("rmsprop", lambda tf, step: [2.0, 0.9, 0.5, 1e-5, 1.0]),
    ("centered_rmsprop", lambda tf, step: [2.0, 0.9, 0.5, 1e-5, 1.0]),
])
def test_a_repeated_index_is_updated_once_with_the_sum(graph, op, hyper):
    repeated = Table([0, 1], [[1], [2]], op, hyper)
    summed = Table([0, 1], [[1], [2]], op, hyper)
    for step in range(1, 4):
        repeated.run([1, 1], [[0.1], [0.1]], first=step)
        summed.run([1], [[0.2]], first=step)
        support.assert_same_bits(repeated.rows(), summed.rows())
    assert repeated.rows()[1] != 2 and repeated.rows()[0] == 1


def test_lazy_adam_follows_the_reference_of_its_test_for_three_steps(graph):
    table = Table([0, 1, 2, 3], [[1], [2], [3], [4]], "lazy_adam",
                  lambda tf, step: [0.001, tf.pow(0.9, step), tf.pow(0.999, step), 0.9, 0.999, 1e-8],
                  ["LazyAdam_momentum", "LazyAdam_velocity"])
    weight = np.array([[1], [2], [3], [4]], np.float64)
    grad = np.array([[0.1], [0.1], [0.01], [0.01]], np.float64)
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for step in range(1, 4):
        rate = 0.001 * np.sqrt(1 - 0.999 ** step) / (1 - 0.9 ** step)
        first = 0.9 * first + 0.1 * grad
        second = 0.999 * second + 0.001 * grad * grad
        weight = weight - rate * first / (np.sqrt(second) + 1e-8)
        table.run([0, 1, 2, 3], grad, first=step)
        close(table.rows(), weight)
        close(table.slot("LazyAdam_momentum"), first)
        close(table.slot("LazyAdam_velocity"), second)


def test_momentum_on_sparse_gradients_lands_on_the_golden_numbers(graph):
    table = Table([1, 2, 3, 4], [[0, 0], [0, 0], [1, 1], [1, 1]], "momentum", lambda tf, step: [2.0, 0.9],
                  ["Momentum_momentum"])
    table.run([2, 3, 4], [[0.1, 0.1], [0.01, 0.01], [0.01, 0.01]])
    close(table.slot("Momentum_momentum"), [[0, 0], [0.1, 0.1], [0.01, 0.01], [0.01, 0.01]])
    close(table.rows(), [[0, 0], [-0.2, -0.2], [0.98, 0.98], [0.98, 0.98]])
    table.run([2, 3, 4], [[0.1, 0.1], [0.01, 0.01], [0.01, 0.01]])
    close(table.slot("Momentum_momentum"), [[0, 0], [0.19, 0.19], [0.019, 0.019], [0.019, 0.019]])
    close(table.rows(), [[0, 0], [-0.58, -0.58], [0.942, 0.942], [0.942, 0.942]])


# A parameter that starts at 0: learning rate 0.1, momentum 0.1, ten steps; two of the ten columns of the original.
MOMENTUM_STEPS = [
    # gradient, parameter after the step
    ([0.00096264342, 0.17914793], [-9.6264346e-05, -0.017914793]),
    ([0.17075552, 0.88821375], [-0.017181443, -0.10852765]),
    ([0.35077485, 0.47304362], [-0.053967446, -0.1648933]),
    ([0.9694621, 0.75035888], [-0.15459226, -0.24556576]),
    ([0.38578293, 0.8536852], [-0.20323303, -0.33900154]),
    ([0.27885768, 0.76100707], [-0.23598288, -0.42444581]),
    ([0.27233034, 0.056316052], [-0.26649091, -0.43862185]),
    ([0.58697265, 0.2494842], [-0.32823896, -0.46498787]),
    ([0.8215279, 0.41994119], [-0.41656655, -0.50961858]),
    ([0.68297005, 0.67758518], [-0.49369633, -0.58184016]),
]


def test_momentum_lands_on_the_golden_numbers_at_each_of_ten_steps(graph):
    table = Table([9], [[0, 0]], "momentum", lambda tf, step: [0.1, 0.1])
    for grad, expected in MOMENTUM_STEPS:
        table.run([9], [grad])
        close(table.rows(), [expected])


def test_nesterov_momentum_follows_the_reference_of_its_test(graph):
    """The gradient is that of 5 w^2 for the first row and of 3 w for the second."""
    start = np.array([[1.0, 2.0], [3.0, 4.0]])
    table = Table([0, 1], start, "nesterov", lambda tf, step: [2.0, 0.9])
    weight, velocity = start.copy(), np.zeros_like(start)
    for _ in range(4):
        grad = np.stack([10 * weight[0], np.full(2, 3.0)])
        table.run([0, 1], grad)
        weight = weight + velocity * 2.0 * 0.9
        velocity = velocity * 0.9 + grad
        weight = weight - 2.0 * velocity
        weight = weight - velocity * 2.0 * 0.9
        np.testing.assert_allclose(table.rows(), weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("momentum, epsilon", [(0.0, 1.0), (0.5, 1e-5)])
def test_rmsprop_lands_on_the_numbers_of_the_first_two_steps_written_out(graph, momentum, epsilon):
    table = Table([0, 1], [[1, 2], [3, 4]], "rmsprop", lambda tf, step: [2.0, 0.9, momentum, epsilon, 1.0],
                  ["RMSProp_rms", "RMSProp_momentum"])
    grads = np.array([[0.1, 0.1], [0.01, 0.01]])
    table.run([0, 1], grads)
    squares = np.array([[0.901, 0.901], [0.90001, 0.90001]])
    first = grads * 2 / np.sqrt(squares + epsilon)
    close(table.slot("RMSProp_rms"), squares)
    close(table.slot("RMSProp_momentum"), first)
    close(table.rows(), [[1, 2], [3, 4]] - first)
    table.run([0, 1], grads)
    squares = squares * 0.9 + [[0.001, 0.001], [1e-5, 1e-5]]
    second = momentum * first + grads * 2 / np.sqrt(squares + epsilon)
    close(table.slot("RMSProp_rms"), squares)
    close(table.slot("RMSProp_momentum"), second)
    close(table.rows(), [[1, 2], [3, 4]] - first - second)


@pytest.mark.parametrize("rate, decay, momentum, epsilon, centered", [
    (0.5, 0.9, 0.0, 1e-3, True), (0.5, 0.9, 0.0, 1e-3, False), (0.1, 0.9, 0.0, 1e-3, True),
    (0.5, 0.95, 0.0, 1e-3, False), (0.5, 0.95, 0.0, 1e-5, True), (0.5, 0.95, 0.9, 1e-5, True)])
def test_rmsprop_on_sparse_gradients_follows_the_reference_of_its_test_for_four_steps(graph, rate, decay, momentum,
                                                                                     epsilon, centered):
    slots = ["RMSProp_rms", "RMSProp_momentum"] + ["RMSProp_mg"] * centered
    table = Table([0, 1, 2, 3], [[1], [2], [3], [4]], "centered_rmsprop" if centered else "rmsprop",
                  lambda tf, step: [rate, decay, momentum, epsilon, 1.0], slots)
    weight = np.array([[1], [2], [3], [4]], np.float64)
    grad = np.array([[0.1], [0.01]])
    squares, mean, moved = np.ones([2, 1]), np.zeros([2, 1]), np.zeros([2, 1])
    for _ in range(4):
        squares = squares * decay + (1 - decay) * grad * grad
        mean = mean * decay + (1 - decay) * grad
        moved = momentum * moved + rate * grad / np.sqrt(squares + epsilon - centered * mean * mean)
        weight[[0, 3]] -= moved
        table.run([0, 3], grad)
        close(table.rows(), weight)
        close(table.slot("RMSProp_rms")[[0, 3]], squares)
        close(table.slot("RMSProp_momentum")[[0, 3]], moved)
        if centered:
            close(table.slot("RMSProp_mg")[[0, 3]], mean)


@pytest.mark.parametrize("centered", [False, True])
def test_a_row_of_the_batch_whose_gradient_is_zero_moves_on_by_its_momentum(graph, centered):
    table = Table([5, 6], [[1, 2], [3, 4]], "centered_rmsprop" if centered else "rmsprop",
                  lambda tf, step: [0.1, 0.8, 0.5, 1e-4, 1.0], ["RMSProp_rms", "RMSProp_momentum"])
    variable = tf.compat.v1.Variable([[1.0, 2.0], [3.0, 4.0]], use_resource=False)
    grads = tf.compat.v1.placeholder(tf.float32, [1, 2])
    optimizer = tf.compat.v1.train.RMSPropOptimizer(0.1, 0.8, 0.5, 1e-4, centered=centered)
    train = optimizer.apply_gradients([(tf.IndexedSlices(grads, tf.constant([1]), tf.constant([2, 2])), variable)])
    sess = table.sess
    sess.run(tf.compat.v1.global_variables_initializer())
    for grad in ([[0.5, -0.25]], [[0.0, 0.0]], [[0.0, 0.0]]):
        before = table.rows()
        table.run([6], grad)
        sess.run(train, {grads: grad})
        close(table.rows(), sess.run(variable))
        close(table.slot("RMSProp_rms"), sess.run(optimizer.get_slot(variable, "rms")))
        close(table.slot("RMSProp_momentum"), sess.run(optimizer.get_slot(variable, "momentum")))
        assert (table.rows()[1] != before[1]).all() and (table.rows()[0] == before[0]).all()
