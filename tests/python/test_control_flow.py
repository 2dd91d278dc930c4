"""Training lookups in branches, loops and functions: the gradients of the same model on a dense variable, or an error."""

import numpy as np
import pytest
import tensorflow as tf

import support
from support import lookup
from test_fused_updates import needed
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address

DIM = 3
KEYS = list(range(10))
# LazyAdam would move a row whose gradient is zero; gradient descent shows gradients.
FLAGS = [(True, True), (True, False), (False, True), (False, False)]


def i64(values):
    return tf.constant(values, tf.int64)


def total(embedding, factor=1.0):
    return tf.reduce_sum(embedding * [1.0, 2.0, 3.0]) * factor


def none():
    return tf.constant(0.0)


def loop(turn, times=3):
    """The sum of turn(i) for i below `times`."""
    return tf.while_loop(lambda i, _: i < times, lambda i, so_far: (i + 1, so_far + turn(i)),
                         (tf.constant(0), tf.constant(0.0)))[1]


def function(body):
    return tf.function(body, autograph=False)()


def weight(i):
    return tf.cast(i + 1, tf.float32)


def moving(i):
    """Two ids that depend on the turn."""
    return tf.stack([tf.cast(i, tf.int64) + 1, i64(1)])


# name -> the loss, from how to look up and two flags.
BRANCHES = {
    "both branches": lambda tf, look, p, q: tf.cond(
        p, lambda: total(look(i64([1, 2, 1])), 2.0), lambda: total(look(i64([2, 3])), 5.0)),
    "one branch": lambda tf, look, p, q: tf.cond(p, lambda: total(look(i64([1, 2, 1])), 2.0), none),
    "one branch and outside": lambda tf, look, p, q: tf.cond(
        p, lambda: total(look(i64([1, 2, 1])), 2.0), none) + total(look(i64([1, 4]))),
    "looked up outside, used in branches": lambda tf, look, p, q: (lambda rows: tf.cond(
        p, lambda: total(rows, 2.0), lambda: total(rows[0], 7.0)))(look(i64([1, 2]))),
    "nested branches": lambda tf, look, p, q: tf.cond(
        p, lambda: tf.cond(q, lambda: total(look(i64([1])), 2.0), lambda: total(look(i64([2])), 3.0)),
        lambda: total(look(i64([3])), 5.0)),
    "case": lambda tf, look, p, q: tf.case(
        [(p, lambda: total(look(i64([1])), 2.0)), (q, lambda: total(look(i64([2, 2])), 3.0))],
        default=lambda: total(look(i64([3])), 5.0)),
    "two conditions": lambda tf, look, p, q: tf.cond(p, lambda: total(look(i64([1, 2]))), none) + tf.cond(
        q, lambda: total(look(i64([2, 3])), 5.0), none),
    "padding and no ids": lambda tf, look, p, q: tf.cond(
        p, lambda: total(look(i64([-1, 2, -1])), 2.0), lambda: total(look(tf.zeros([0], tf.int64)))),
    "a function": lambda tf, look, p, q: function(lambda: total(look(i64([1, 2, 1])), 2.0)),
    "branches in a function": lambda tf, look, p, q: function(lambda: tf.cond(
        p, lambda: total(look(i64([1, 2, 1])), 2.0), lambda: total(look(i64([2, 3])), 5.0))),
    "a function in a branch": lambda tf, look, p, q: tf.cond(
        p, lambda: function(lambda: total(look(i64([1, 2, 1])), 2.0)), none),
    "looked up outside, used in a loop": lambda tf, look, p, q: (lambda rows: loop(
        lambda i: total(rows[i], weight(i))))(look(i64([1, 2, 3]))),
}
LOOPS = {
    "a loop": lambda tf, look, p, q: loop(lambda i: total(look(moving(i)), weight(i))),
    "a branch in a loop": lambda tf, look, p, q: loop(lambda i: weight(i) * tf.cond(
        tf.equal(i, 1), lambda: total(look(i64([1, 2])), 2.0), lambda: total(look(i64([3]))))),
    "one branch in a loop": lambda tf, look, p, q: loop(lambda i: weight(i) * tf.cond(
        tf.equal(i, 1), lambda: total(look(i64([1, 2])), 2.0), none)),
    "a loop in a branch": lambda tf, look, p, q: tf.cond(
        p, lambda: loop(lambda i: total(look(moving(i)), weight(i))), none),
    "nested loops": lambda tf, look, p, q: loop(lambda i: loop(
        lambda j: total(look(tf.stack([tf.cast(i, tf.int64) + 1, tf.cast(j, tf.int64) + 2])), weight(j)), 2), 2),
    "map_fn": lambda tf, look, p, q: total(tf.map_fn(
        lambda key: look(tf.stack([key, i64(2)])) * 2.0, i64([1, 2, 3]), dtype=tf.float32)),
    "scan": lambda tf, look, p, q: total(tf.scan(
        lambda so_far, key: so_far + look(key), i64([1, 2, 3]), initializer=tf.zeros([DIM]))),
}


@pytest.fixture(params=["v1", "v2"])
def control_flow(request, graph):
    """Both kinds of control flow."""
    if request.param == "v2":
        tf.compat.v1.enable_control_flow_v2()
    yield request.param
    tf.compat.v1.disable_control_flow_v2()


def make_table(name="items"):
    return support.make_table(name, DIM, 100)


def sgd():
    return create_hash_optimizer(1.0)


class Both:
    """One model on a table and on a dense variable, of which rows are chosen by a product with one-hot vectors."""

    def __init__(self, make, divided=False):
        self.flags = [tf.compat.v1.placeholder(tf.bool, []) for _ in range(2)]
        self.table = make_table()
        loss = make(tf, lambda ids: lookup(self.table, ids), *self.flags)
        self.update = sgd().minimize(loss, var_list=[self.table.variable])
        self.found = lookup(self.table, i64(KEYS), is_train=False)
        self.weights = tf.compat.v1.get_variable("dense", [len(KEYS), DIM],
                                                 initializer=tf.compat.v1.zeros_initializer())
        dense = make(tf, lambda ids: tf.tensordot(tf.one_hot(ids, len(KEYS)), self.weights, 1), *self.flags)
        self.dense_update = tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(dense)

    def check(self, sess, flags):
        """One step of both, which then are the same."""
        feed = dict(zip(self.flags, flags))
        sess.run(self.update, feed)
        sess.run(self.dense_update, feed)
        found, expected = sess.run([self.found, self.weights])
        support.assert_same_bits(found, expected, str(flags))
        return found


@pytest.mark.parametrize("name", sorted(BRANCHES))
def test_branches_and_functions_have_the_gradients_of_a_dense_variable(graph, session, dynamic, control_flow, name):
    """TensorFlow could not join the gradient of one branch with the zeros of the other: graphs failed to build."""
    both = Both(BRANCHES[name])
    sess = support.started(session())
    for flags in FLAGS + FLAGS:
        found = both.check(sess, flags)
    assert found.any()


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_loops_of_v1_have_the_gradients_of_a_dense_variable(graph, session, dynamic, name):
    both = Both(LOOPS[name])
    sess = support.started(session())
    for flags in [(True, True), (True, False)]:
        found = both.check(sess, flags)
    assert found.any()


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_lookup_in_a_loop_of_v2_has_no_gradient_and_says_so(graph, dynamic, name):
    """Such loops, also those of tf.function, add up gradients in dense tensors."""
    table = make_table()
    flags = [tf.compat.v1.placeholder_with_default(True, []) for _ in range(2)]
    loss = function(lambda: LOOPS[name](tf, lambda ids: lookup(table, ids), *flags))
    with pytest.raises(NotImplementedError, match="items.*control flow v2.*before the loop"):
        tf.gradients(loss, table.variable)


def test_evaluation_lookups_work_in_loops_of_both_kinds(graph, session, dynamic, control_flow):
    table = make_table()
    looked = loop(lambda i: tf.reduce_sum(lookup(table, moving(i), is_train=False)))
    assert tf.gradients(looked, table.variable) == [None]
    raw, sess = support.opened(table, session)
    raw.assign(sess, [1, 2], np.ones([2, DIM]))
    assert sess.run(looked) == 5.0 * DIM


def test_lookups_without_gradient_in_loops_leave_the_gradient_of_others_alone(graph, session, dynamic, control_flow):
    """With v2 a loop that read the variable gave a dense gradient of zeros, which cannot be added to slices."""
    table = make_table()
    still = loop(lambda i: total(lookup(table, moving(i), is_grad=False)) + total(lookup(table, moving(i), is_train=False)))
    update = sgd().minimize(still + total(lookup(table, i64([1, 2]))), var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    sess.run(update)
    assert raw.rows(sess)[1].tolist() == raw.rows(sess)[2].tolist() == [-1.0, -2.0, -3.0]


def test_an_update_in_a_branch_or_a_loop_sums_as_one_outside(graph, session, dynamic):
    """Gradients that are taken and applied in one place may be fused there; those of a loop are joined first."""
    tables = [make_table("t%d" % number) for number in range(3)]

    def update(table, ids):
        gradient = tf.gradients(total(lookup(table, ids)), table.variable)
        with tf.control_dependencies([sgd().apply_gradients(zip(gradient, [table.variable]))]):
            return tf.constant(1.0)

    flag = tf.compat.v1.placeholder(tf.bool, [])
    branch = tf.cond(flag, lambda: update(tables[0], i64([1, 1, 2])), none)
    turns = loop(lambda i: update(tables[1], i64([1, 1, 2])), 2)
    inside = function(lambda: update(tables[2], i64([1, 1, 2])))
    support.pass_over()
    assert not [op for op in support.updates_in(graph.get_operations()) if
                "while" in op.name and op._get_control_flow_context() is None]
    raws, sess = support.opened(tables, session, True)
    sess.run(branch, {flag: False})
    assert raws[0].rows(sess) == {}
    sess.run([branch, turns, inside], {flag: True})
    once = {1: [-2.0, -4.0, -6.0], 2: [-1.0, -2.0, -3.0]}
    for raw, times in zip(raws, (1.0, 2.0, 1.0)):
        support.assert_same_tables(raw.rows(sess), {key: np.float32(row) * np.float32(times)
                                                    for key, row in once.items()})


def test_a_gradient_in_a_branch_is_no_dense_tensor(graph, session, dynamic, control_flow):
    table = make_table()
    flag = tf.compat.v1.placeholder(tf.bool, [])
    loss = tf.cond(flag, lambda: total(lookup(table, i64([1, 2]))), none)
    dense = tf.convert_to_tensor(tf.gradients(loss, table.variable)[0])
    sess = session()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is out of range \[0, 0\)"):
        sess.run(dense, {flag: True})


@pytest.mark.parametrize("enclosing", ["branch", "function"])
def test_offsets_inside_of_a_branch_cannot_be_applied_outside(graph, mx, enclosing):
    """The update would be skipped with its branch, and with it the step counters that wait for it."""
    mx(use_dynamic_expansion=True)
    table = make_table()
    flag = tf.compat.v1.placeholder(tf.bool, [])
    found = []

    def body():
        loss = total(lookup(table, i64([1, 2])))
        rows = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)[-1]
        found.append((rows, tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)[-1]))
        return loss

    loss = tf.cond(flag, body, none) if enclosing == "branch" else function(body)
    rows, offsets = found[0]
    gradient = tf.gradients(loss, rows)[0] if enclosing == "branch" else tf.zeros([2, DIM])
    with pytest.raises(ValueError, match="the gradient of the table 'items' cannot be applied here"):
        create_hash_optimizer_by_address(0.1).apply_gradients([(gradient, offsets)])


@pytest.mark.parametrize("optimizer", ["lazy_adam", "adagrad", "ftrl", "momentum", "gradient_descent", "rmsprop"])
def test_a_loop_updates_the_rows_of_its_keys_as_a_lookup_outside_does(graph, session, dynamic, optimizer):
    """TensorFlow begins the sum of a loop with a gradient of zeros for offset 0, which is no key's row."""
    import importlib

    module = importlib.import_module("mx_rec.optimizers." + optimizer)
    tables = [make_table("looped"), make_table("plain")]
    keys = tf.compat.v1.placeholder(tf.int64, [3])
    losses = [loop(lambda i: total(lookup(tables[0], keys[i:i + 1]))), total(lookup(tables[1], keys))]
    updates = [module.create_hash_optimizer(0.1).minimize(loss, var_list=[table.variable])
               for loss, table in zip(losses, tables)]
    # A loop's gradient is joined first, and never taken from one turn.
    assert [support.form_of(op) for update in updates for op in needed(update)["MxRecUpdate"]] == ["rows", "ids"]
    raws, sess = support.opened(tables, session, True)
    for batch in ([1, 2, 1], [3, 3, 3], [1, 2, 2]):
        sess.run(updates, {keys: batch})
    looped, plain = [raw.rows(sess) for raw in raws]
    assert sorted(looped) == sorted(plain) == [1, 2, 3]
    # LazyAdam moves every row of its batch, also by a gradient of zeros, and momentum every row that moved before.
    for key in (1, 2, 3):
        support.assert_rounding(looped[key], plain[key], 4, what=str(key))


PADDED_LOOPS = {
    "while_loop": lambda tf, look, keys: loop(lambda i: total(look(keys[i]), weight(i)), 3),
    "map_fn": lambda tf, look, keys: total(tf.map_fn(look, keys, dtype=tf.float32)),
    "scan": lambda tf, look, keys: total(tf.scan(lambda so_far, some: so_far + look(some), keys,
                                                 initializer=tf.zeros([2, DIM]))),
}


@pytest.mark.parametrize("optimizer", ["lazy_adam", "adagrad", "ftrl", "momentum", "gradient_descent", "rmsprop"])
@pytest.mark.parametrize("name", sorted(PADDED_LOOPS))
def test_a_first_batch_of_padding_in_a_loop_updates_no_row(graph, session, dynamic, name, optimizer):
    """The gradient of zeros for offset 0 failed while the table had no row: "offset=0, rows=0"."""
    import importlib

    module = importlib.import_module("mx_rec.optimizers." + optimizer)
    tables = [make_table("looped"), make_table("plain")]
    keys = tf.compat.v1.placeholder(tf.int64, [3, 2])
    looped = PADDED_LOOPS[name](tf, lambda ids: lookup(tables[0], ids), keys)
    factors = {"while_loop": [1.0, 2.0, 3.0], "map_fn": [1.0, 1.0, 1.0], "scan": [3.0, 2.0, 1.0]}[name]
    plain = total(lookup(tables[1], keys), tf.constant(1.0)) if name == "map_fn" else tf.add_n(
        [total(lookup(tables[1], keys[i]), factor) for i, factor in enumerate(factors)])
    updates = [module.create_hash_optimizer(0.1).minimize(loss, var_list=[table.variable])
               for loss, table in zip((looped, plain), tables)]
    raws, sess = support.opened(tables, session, True)
    sess.run(updates, {keys: [[-1, -1]] * 3})
    assert [raw.rows(sess) for raw in raws] == [{}, {}]
    for batch in ([[-1, -1], [5, -1], [6, 5]], [[-1, -1]] * 3, [[6, 6], [-1, -1], [7, 5]]):
        sess.run(updates, {keys: batch})
    found, expected = [raw.rows(sess) for raw in raws]
    assert sorted(found) == sorted(expected) == [5, 6, 7]
    for key in expected:
        support.assert_rounding(found[key], expected[key], 8, what=str(key))
