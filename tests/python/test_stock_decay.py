"""Rows that are decayed, or moved by gradient descent, beside the updates of an optimizer with slots."""

import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


def decayed(name):
    """An optimizer that decays the rows of a batch before its own step."""
    contrib, train = tf.contrib.opt, tf.compat.v1.train
    if name == "momentum":
        return contrib.MomentumWOptimizer(0.02, 0.05, 0.9)
    base, numbers = {"adagrad": (train.AdagradOptimizer, {}), "ftrl": (train.FtrlOptimizer, {}),
                     "rmsprop": (train.RMSPropOptimizer, {"momentum": 0.5})}[name]
    return contrib.extend_with_decoupled_weight_decay(base)(0.02, learning_rate=0.05, **numbers)


def model(use_resource):
    """Builds a model of one variable: what `cases.run` takes, of what makes its training op."""
    def of(train_by):
        def build(ids, labels):
            v1 = tf.compat.v1
            w = v1.get_variable("w", [cases.ROWS, cases.DIM], use_resource=use_resource)
            scores = tf.reduce_sum(tf.nn.embedding_lookup(w, ids), [1, 2])
            loss = tf.reduce_mean(tf.square(scores - labels))
            return loss, train_by(loss, w), [w]

        return build

    return of


def behind_gradients(optimizer):
    """Training by an optimizer whose step waits for the gradients.

    TensorFlow does not say whether rows decay before or after the lookups of their step.
    """
    def train(loss, w):
        grad, = tf.gradients(loss, [w])
        with tf.control_dependencies([grad.values]):
            return optimizer().apply_gradients([(grad, w)])

    return train


@pytest.mark.parametrize("name", ["momentum", "adagrad", "ftrl", "rmsprop"])
def test_rows_decay_before_the_step_of_an_optimizer_with_slots(mx, name):
    """Such variables stayed TensorFlow's: the decay was taken for another optimizer."""
    mx(stock_tables="w")
    plans = cases.expect_equal(model(False)(behind_gradients(lambda: decayed(name))), ["w"])
    assert plans["w"].kind == name and len(plans["w"].updates) == 2
    assert sorted(step.kind for step in plans["w"].updates) == sorted(["sgd", name])


@both
def test_gradient_descent_by_turns_with_another_optimizer_leaves_its_slots(mx, use_resource):
    def train(loss, w):
        optimizers = tf.compat.v1.train
        one = optimizers.MomentumOptimizer(0.05, 0.9).minimize(loss)
        with tf.control_dependencies([one]):
            again = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(w, [1, 2, 1])))
            return optimizers.GradientDescentOptimizer(0.1).minimize(again)

    mx(stock_tables="w")
    assert cases.expect_equal(model(use_resource)(train), ["w"])["w"].kind == "momentum"


@pytest.mark.parametrize("case, reason", [
    ("counted", "several optimizers"), ("all rows change", "several optimizers"),
    ("resource", "shows what it was before")])
def test_other_variables_with_such_updates_stay(mx, graph, case, reason):
    """Lookups of decays would count their ids, and the decay of a resource variable ends with a read of all rows."""
    mx(stock_tables=StockTables(names=["w"], least_rows=1, access_threshold=2 if case == "counted" else None))
    ids, labels = tf.compat.v1.placeholder(tf.int64, [None, 3]), tf.compat.v1.placeholder(tf.float32, [None])

    def adam_and_descent(loss, w):
        return [one(0.1).minimize(loss) for one in (tf.compat.v1.train.AdamOptimizer,
                                                    tf.compat.v1.train.GradientDescentOptimizer)]

    train = adam_and_descent if case == "all rows change" else behind_gradients(lambda: decayed("momentum"))
    model(case == "resource")(train)(ids, labels)
    plan, = [plan for plan in convert_graph(graph, True) if plan.name == "w"]
    assert not plan.converts and support.re.search(reason, plan.reason)
