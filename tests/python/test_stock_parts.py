"""Partitioned variables of unchanged models between checkpoints of variables and of tables, there and back again."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph

STEPS = 3


def train(place, step, optimizer, use_resource, scope, tables):
    """Goes on from the last checkpoint of a directory for STEPS steps, saves, and returns the losses."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(3)
        with v1.variable_scope("deep", use_resource=use_resource, partitioner=v1.fixed_size_partitioner(3)):
            table = v1.get_variable("table", [cases.ROWS, cases.DIM])
            # Stays TensorFlow's, and its slots are those of parts as well.
            weights = v1.get_variable("weights", [cases.DIM, 1])
        ids = v1.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(table, ids)
        loss = tf.reduce_mean(tf.square(tf.matmul(rows, tf.convert_to_tensor(weights)) - 1.0))
        with v1.variable_scope(scope or v1.get_variable_scope()):
            update = dict(cases.optimizers(), adam=v1.train.AdamOptimizer)[optimizer]().minimize(loss)
        support.keep_variables()
        if tables:
            assert sum(plan.converts for plan in convert_graph(graph, True)) == 3
        saver = v1.train.Saver()
        with support.new_session() as sess:
            if step:
                saver.restore(sess, str(place / "model-{}".format(step - 1)))
            else:
                sess.run(v1.global_variables_initializer())
            losses = [sess.run([loss, update], {ids: np.arange(7 + 9 * step, 30 + 9 * step) % cases.ROWS})[0]
                      for _ in range(STEPS)]
            saver.save(sess, str(place / "model"), global_step=step)
    return losses


@pytest.mark.long
@pytest.mark.parametrize("use_resource, scope, optimizer", [
    (False, "deep", "ftrl"), (True, "deep", "momentum"), (True, "", "adagrad"), (False, "", "centered_rmsprop"),
    (True, "deep", "adam")])
def test_parts_go_from_variables_to_tables_and_back_and_forth(mx, tmp_path, use_resource, scope, optimizer):
    """Slots of an optimizer that is called inside of a variable scope, as in canned Estimators, have a name of their
    own for each part: "Does not have sufficient slices". Savers of TensorFlow 2.15 switch copies of resource variables
    off: tables were restored into variables without their slots, and "Key deep/table/Momentum not found"."""
    forms = [False, True, False, True]
    for name in ("stock", "tables"):
        (tmp_path / name).mkdir()
    stock = [train(tmp_path / "stock", step, optimizer, use_resource, scope, False) for step in range(len(forms))]
    mx(stock_tables="deep/table")
    found = [train(tmp_path / "tables", step, optimizer, use_resource, scope, form) for step, form in enumerate(forms)]
    np.testing.assert_allclose(found, stock, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
