"""Initializers of a variable, and of its optimizer's, that run again: each sets what is its own, as TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.edits.upstream import upstream
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

ROWS, DIM = 24, 3
VALUES = (0.3 * np.random.RandomState(5).randn(ROWS, DIM)).astype(np.float32)
BATCHES = np.random.RandomState(6).randint(0, ROWS, [12, 8])
KINDS = pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
OPTIMIZERS = {
    "adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.1), "adam": lambda: tf.compat.v1.train.AdamOptimizer(0.05),
    "nesterov": lambda: tf.compat.v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
}


def rows_of(v1, start, use_resource):
    """A variable; its parts, if it has several."""
    if start == "parts":
        made = v1.get_variable("w", [ROWS, DIM], initializer=v1.constant_initializer(0.25), use_resource=use_resource,
                               partitioner=v1.fixed_size_partitioner(3))
        return made, list(made)
    made = v1.get_variable("w", [ROWS, DIM], use_resource=use_resource, initializer=v1.constant_initializer(
        0.25 if start == "constant" else VALUES))
    return made, [made]


class Model:
    """A model whose graph has all initializers that a program may have made."""

    def __init__(self, v1, start, optimizer, use_resource):
        self.graph = tf.compat.v1.get_default_graph()
        self.w, self.parts = rows_of(v1, start, use_resource)
        self.ids = v1.placeholder(tf.int64, [None])
        made = OPTIMIZERS[optimizer]()
        rows = tf.nn.embedding_lookup(self.w, self.ids, partition_strategy="div")
        self.loss = tf.reduce_sum(tf.square(rows - 1.0))
        self.train = made.minimize(self.loss)
        self.others = [one for one in v1.global_variables() if one not in self.parts]
        # As a program that has made them before the first run holds them.
        self.held = {
            "w": self.parts[0].initializer, "slots": [one.initializer for one in self.others],
            "group of w": v1.variables_initializer(self.parts, name="first"),
            "group of slots": v1.variables_initializer(self.others), "all": v1.global_variables_initializer(),
            "each": [one.initializer for one in v1.global_variables()],
            "two groups": tf.group(tf.group(*[one.initializer for one in self.parts]),
                                   tf.group(*[one.initializer for one in self.others])),
        }

    def made_now(self, v1):
        """The same, made behind the first run."""
        return {
            "w, later": self.parts[-1].initializer, "slots, later": [one.initializer for one in self.others],
            "group of w, later": v1.variables_initializer(self.parts, name="later"), "all, later":
                v1.global_variables_initializer(), "group of slots, later": v1.variables_initializer(self.others),
            "by name": ["later", "first"],
        }


def numbers(v1, tables, start, optimizer, use_resource, tmp_path):
    """What a program sees that runs one initializer after the other, between steps and a restore."""
    seen = []
    with tf.Graph().as_default() as graph:
        if not tables:
            support.keep_variables()
        model = Model(v1, start, optimizer, use_resource)
        saver = v1.train.Saver()
        with support.new_session() as sess:
            def look(name):
                seen.append((name, sess.run(v1.global_variables()), sess.run(model.loss, {model.ids: BATCHES[0]})))

            def steps():
                for batch in BATCHES[:3]:
                    sess.run(model.train, {model.ids: batch})

            sess.run(model.held["all"])
            steps()
            saved = saver.save(sess, str(tmp_path / "at"))
            assert len(converted(graph)) == (len(model.parts) if tables else 0)
            for name, op in list(model.held.items()) + list(model.made_now(v1).items()):
                steps()
                sess.run(op)
                look(name)
                steps()
                look(name + ", and steps")
            saver.restore(sess, saved)
            sess.run(model.held["w"])
            look("restored")
            sess.run([model.held["w"], model.held["all"], model.held["slots"]])
            look("at once")
            sess.run(model.train, {model.ids: []})
            look("an empty batch")
    return seen


@KINDS
@pytest.mark.parametrize("start", ["constant", "array", "parts"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_initializer_sets_what_is_its_own(v1, tmp_path, optimizer, start, use_resource):
    """An initializer of rows that ran again reset the slots of the optimizer with them."""
    stock, own = [numbers(v1, tables, start, optimizer, use_resource, tmp_path) for tables in (False, True)]
    assert len(stock) == len(own) > 20
    for (name, expected, loss), (_, found, own_loss) in zip(stock, own):
        for one, other in zip(expected, found):
            np.testing.assert_allclose(other, one, rtol=2e-6, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(own_loss, loss, rtol=1e-5, err_msg=name)


@KINDS
@pytest.mark.parametrize("setting", [
    {"access_threshold": 2}, {"unlimited_ids": True}, {"memory_rows": 12}, {"row_dtype": "bfloat16"}],
    ids=lambda setting: next(iter(setting)))
def test_rows_that_are_drawn_start_again_and_keep_their_keys_and_slots(mx, graph, tmp_path, setting, use_resource):
    more = {"ssd_data_path": [str(tmp_path)]} if "memory_rows" in setting else {}
    mx(stock_tables=StockTables(least_rows=1, **setting, **more))
    w = v1.get_variable("w", [ROWS, DIM], initializer=v1.random_normal_initializer(0.5), use_resource=use_resource)
    ids = v1.placeholder(tf.int64, [None])
    rows = tf.nn.embedding_lookup(w, ids % (2 ** 40) if setting.get("unlimited_ids") else ids)
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(rows - 1.0)))
    init, own = v1.global_variables_initializer(), w.initializer
    with support.new_session() as sess:
        sess.run(init)
        one, = converted(graph)
        sess.run(train, {ids: [3, 4]})
        sess.run(train, {ids: [3, 4, 5]})
        # With a threshold 5 came once and has no row.
        there = [3, 4] if setting.get("access_threshold") else [3, 4, 5]
        with graph.as_default():
            content = support.export(one.table.handle), support.export(one.table.handle, "Adagrad_accumulator")
        before = sess.run(content)
        assert before[0][0].tolist() == there
        sess.run(own)
        (keys, found), (_, slots) = sess.run(content)
        assert keys.tolist() == there
        np.testing.assert_array_equal(slots, before[1][1])
        drawn = cases.dense_value(sess, one, ROWS)[there]
        np.testing.assert_array_equal(drawn, found)
        assert not np.isclose(found, before[0][1]).any() and len(np.unique(found)) == found.size
        sess.run(init)
        assert one.table.size() == 0
        # What new rows are.
        for _ in range(2):
            sess.run(train, {ids: there})
        sess.run(own)
        np.testing.assert_array_equal(sess.run(content[0])[1], found)


@KINDS
def test_more_rows_than_memory_has_start_again(mx, graph, tmp_path, use_resource):
    """It was an error: all rows were brought into memory at once."""
    mx(stock_tables=StockTables(least_rows=1, memory_rows=7, ssd_data_path=[str(tmp_path)]))
    w = v1.get_variable("w", [ROWS, DIM], initializer=v1.constant_initializer(0.25), use_resource=use_resource)
    ids = v1.placeholder(tf.int64, [None])
    optimizer = v1.train.AdagradOptimizer(0.1)
    train = optimizer.minimize(tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, ids) - 1.0)))
    init, of_slots = v1.global_variables_initializer(), v1.variables_initializer(optimizer.variables())
    slot = optimizer.get_slot(w, "accumulator")
    with support.new_session() as sess:
        sess.run(init)
        for first in range(0, ROWS, 6):
            sess.run(train, {ids: range(first, first + 6)})
        rows, sums = sess.run(w), sess.run(slot)
        assert converted(graph) and (rows != 0.25).all() and (sums > 0.5).all()
        sess.run(w.initializer)
        assert (sess.run(w) == 0.25).all()
        np.testing.assert_array_equal(sess.run(slot), sums)
        sess.run(of_slots)
        np.testing.assert_allclose(sess.run(slot), 0.1, rtol=1e-6)


@KINDS
@pytest.mark.parametrize("start", ["constant", "parts"])
def test_a_warm_start_comes_after_the_initializers_of_slots_that_run_with_it(v1, tmp_path, start, use_resource):
    """Each was started while the table was loaded: what was loaded of it could be lost."""
    saved, expected = str(tmp_path / "at"), {}
    for has_tables in (False, True):
        with tf.Graph().as_default() as graph:
            v1.train.get_or_create_global_step()
            model = Model(v1, start, "adagrad", use_resource)
            if not has_tables:
                support.keep_variables()
            else:
                assert all(plan.converts for plan in convert_graph(graph, True))
                v1.train.warm_start(saved, vars_to_warm_start=["w.*"])
                for one in converted(graph):
                    needed = upstream([variable.initializer for variable in model.parts
                                       if variable.op.name == one.plan.name], control_inputs=True)
                    assert all(slot.initializer in needed for slot in model.others if slot.op.name.startswith(
                        one.plan.name + "/"))
            with support.new_session() as sess:
                sess.run([one.initializer for one in v1.global_variables()])
                if not has_tables:
                    sess.run(model.train, {model.ids: range(ROWS)})
                    v1.train.Saver().save(sess, saved)
                values = {one.op.name: sess.run(one) for one in model.parts + model.others if "w" in one.op.name}
                for name, value in values.items():
                    np.testing.assert_array_equal(value, expected.setdefault(name, value), err_msg=name)
    assert len(expected) == 2 * len(model.parts)
