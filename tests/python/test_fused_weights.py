"""Weighted sums over bags of a sparse_lookup, which modified graphs fuse: the same numbers as unmodified, to rounding."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
from fused_cases import BATCH, LENGTH, batches, close, loss_of, train
from modify_cases import AHEAD
import support
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup_many
from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address
from mx_rec.util.variable import get_dense_and_sparse_variable


def mask_of(ids):
    return tf.cast(ids >= 0, tf.float32)


def fixed(ids):
    """A weight for each id that the batch does not tell."""
    del ids
    return tf.constant(np.linspace(-1.0, 2.0, BATCH * LENGTH, dtype=np.float32).reshape(BATCH, LENGTH))


def softened(ids):
    return tf.nn.softmax(tf.cast(tf.abs(ids), tf.float32) * 0.02)


WEIGHTS = {"mask": mask_of, "fixed": fixed, "softmax": softened,
           "ones": lambda ids: tf.ones([BATCH, LENGTH])}

FORMS = {
    "expand_dims": lambda rows, weights: tf.reduce_sum(rows * tf.expand_dims(weights, -1), 1),
    "dots": lambda rows, weights: tf.reduce_sum(weights[..., None] * rows, axis=-2),
    "colons": lambda rows, weights: tf.reduce_sum(tf.multiply(rows, weights[:, :, None]), 1),
    "mean": lambda rows, weights: tf.reduce_mean(rows * tf.expand_dims(weights, 2), 1),
    "kept": lambda rows, weights: tf.squeeze(tf.reduce_sum(rows * weights[..., None], 1, keepdims=True), [1]),
    "divided": lambda rows, weights: tf.reduce_sum(rows * weights[..., None], 1) / (
        tf.reduce_sum(tf.abs(weights), 1, keepdims=True) + 1.0),
    "matmul": lambda rows, weights: tf.squeeze(tf.matmul(weights[:, None, :], rows), [1]),
    "matmul and reshape": lambda rows, weights: tf.reshape(
        tf.matmul(tf.expand_dims(weights, 1), rows), [-1, rows.shape.as_list()[-1]]),
    "einsum": lambda rows, weights: tf.einsum("bl,bld->bd", weights, rows),
}


def fused(plan, count):
    assert sum(one.fuses for one in plan.sums) == count, plan.text()
    return plan.text()


@pytest.mark.parametrize("weights", [("mask", "fixed"), ("softmax", "ones")], ids="-".join)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_weighted_sum_is_fused_in_both_directions(form, weights):
    """Each of two tables has weights of its own."""
    def script(run):
        source, ids, label = batches(True)
        tables = [run.table("t{}".format(at), dim=4 * (at + 1)) for at in range(2)]
        sums = [FORMS[form](run.lookup(table, ids[:, at]), WEIGHTS[weights[at]](ids[:, at]))
                for at, table in enumerate(tables)]
        train(run, source, loss_of(sums, label), tables, others=sums)

    plan = close(script, use_dynamic=True).plan
    assert "weighted" in fused(plan, 2) and "multiplied and added up where they are read" in plan.text()
    assert [len(one.gradients) for one in plan.sums] == [1, 1]


@pytest.mark.parametrize("form", ["expand_dims", "dots", "colons", "mean", "divided", "matmul"])
def test_weights_that_are_computed_from_the_ids_are_fused_where_the_batch_may_have_any_length(form):
    def script(run):
        source, ids, label = batches(False)
        tables = [run.table("t{}".format(at), dim=4) for at in range(2)]
        columns = [ids[:, at] for at in range(2)]
        sums = [FORMS[form](run.lookup(table, one), mask_of(one)) for table, one in zip(tables, columns)]
        train(run, source, loss_of(sums, label), tables, others=sums)

    fused(close(script, use_dynamic=True).plan, 2)


@pytest.mark.parametrize("dim", [1, 3, 33])
@pytest.mark.parametrize("kind", ["lazy_adam", "adagrad", "gradient_descent"])
def test_one_table_of_any_width_with_an_update_of_its_own(kind, dim):
    def script(run):
        source, ids, label = batches(True, features=1)
        table = run.table(dim=dim)
        value = FORMS["dots"](run.lookup(table, ids[:, 0]), fixed(ids))
        train(run, source, loss_of([value], label), [table], kind=kind, others=[value])

    fused(close(script, use_dynamic=True).plan, 1)


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_that_the_script_clips(count):
    def changed(pairs):
        grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 0.05)
        return list(zip(grads, [variable for _, variable in pairs]))

    def script(run):
        source, ids, label = batches(True, features=count)
        tables = [run.table("t{}".format(at), dim=4) for at in range(count)]
        sums = [FORMS["expand_dims"](run.lookup(table, ids[:, at]), mask_of(ids[:, at])) for at, table in enumerate(tables)]
        train(run, source, loss_of(sums, label), tables, changed)

    fused(close(script, use_dynamic=True).plan, count)


def test_lookups_of_one_table_with_weights_with_sums_and_with_rows():
    def script(run):
        source, ids, label = batches(True, features=3)
        table, other = run.table("t", dim=4), run.table("other", dim=4)
        rows = run.lookup(table, ids[:, 2])
        sums = [FORMS["dots"](run.lookup(table, ids[:, 0]), fixed(ids)), tf.reduce_sum(run.lookup(table, ids[:, 1]), 1),
                tf.reshape(rows, [-1, LENGTH * 4]), FORMS["matmul"](run.lookup(other, ids[:, 2]), softened(ids[:, 2]))]
        train(run, source, loss_of(sums, label), [table, other], others=[rows], fused=None)

    fused(close(script, use_dynamic=True).plan, 3)


def test_members_of_a_group():
    def script(run):
        source, ids, label = batches(True, features=3)
        tables = [run.table("t{}".format(at), dim=4 * (at + 1)) for at in range(3)]
        rows = sparse_lookup_many(tables, [ids[:, at] for at in range(3)], modify_graph=True)
        sums = [FORMS["dots"](rows[0], fixed(ids)), tf.reduce_sum(rows[1], 1), FORMS["mean"](rows[2], mask_of(ids[:, 2]))]
        train(run, source, loss_of(sums, label), tables, others=sums)

    fused(close(script, use_dynamic=True).plan, 3)


def test_in_evaluation():
    def script(run):
        source, ids, label = batches(True, features=2)
        table = run.table(dim=4)
        rows = run.lookup(table, ids[:, 0])
        looked = [FORMS[form](run.lookup(table, ids[:, 1], is_train=False), fixed(ids)) for form in ("dots", "matmul", "mean")]
        train(run, source, loss_of([FORMS["dots"](rows, mask_of(ids[:, 0]))], label), [table])
        sess = run.begin(source)
        run.epoch(sess, looked)

    fused(close(script, use_dynamic=True).plan, 4)


def test_with_dynamic_expansion():
    def script(run):
        source, ids, label = batches(True)
        tables = [create_table(key_dtype=tf.int64, dim=4, name="t{}".format(at),
                               emb_initializer=tf.compat.v1.random_normal_initializer(stddev=0.3, seed=at))
                  for at in range(2)]
        run.tables.update({table.table_name: table for table in tables})
        sums = [FORMS[form](run.lookup(table, ids[:, at]), fixed(ids))
                for at, (form, table) in enumerate(zip(("dots", "matmul"), tables))]
        loss = loss_of(sums, label)
        get_dense_and_sparse_variable()
        grads = tf.gradients(loss, tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
        addresses = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        update = create_hash_optimizer_by_address(0.05).apply_gradients(list(zip(grads, addresses)))
        sess = run.begin(source)
        run.finish(sess, [loss, sums, update])

    plan = close(script, use_dynamic=True, use_dynamic_expansion=True).plan
    assert [len(one.gradients) for one in plan.sums if one.fuses] == [1, 1], plan.text()


def scale():
    return tf.compat.v1.get_variable("scale", [BATCH, LENGTH], initializer=tf.compat.v1.ones_initializer(),
                                         use_resource=True)


STAYS = {
    "a placeholder of any length": (
        lambda rows, ids: FORMS["dots"](rows, tf.compat.v1.placeholder_with_default(
            np.ones([BATCH, LENGTH], np.float32), [None, None])), "not known to be a weight for each id"),
    "a weight for each column": (
        lambda rows, ids: tf.reduce_sum(rows * tf.ones([BATCH, LENGTH, 4]), 1), "not known to be a weight"),
    "one weight for all": (
        lambda rows, ids: tf.reduce_sum(rows * tf.constant(0.5, shape=[1, 1, 1]), 1), "not known to be a weight"),
    "squares": (lambda rows, ids: tf.reduce_sum(rows * rows, 1), ""),
    "with and without": (
        lambda rows, ids: FORMS["dots"](rows, mask_of(ids)) + tf.reduce_sum(rows, 1), "with weights and without"),
    "two weights": (
        lambda rows, ids: FORMS["dots"](rows, mask_of(ids)) + FORMS["dots"](rows, fixed(ids)), "with other weights"),
    "weights of the shape of the rows": (
        lambda rows, ids: tf.reduce_sum(rows * tf.reshape(tf.ones(tf.raw_ops.Shape(input=rows)[:2]), [BATCH, LENGTH, 1]), 1),
        "its weights are computed from rows"),
    "weights of the rows": (
        lambda rows, ids: FORMS["dots"](rows, tf.stop_gradient(tf.nn.softmax(rows[:, :, 0]))), ""),
    "weights that are trained": (lambda rows, ids: FORMS["dots"](rows, scale()), "for a gradient of the weights"),
    "weights that are trained, in a product": (
        lambda rows, ids: FORMS["matmul"](rows, scale()), "for a gradient of the weights"),
    "attention": (
        lambda rows, ids: FORMS["matmul"](rows, tf.stop_gradient(tf.nn.softmax(tf.reduce_sum(
            tf.concat([rows, rows * 2.0], -1), -1)))), ""),
}


@pytest.mark.parametrize("name", sorted(STAYS))
def test_what_is_no_weighted_sum_for_certain_stays_and_gives_the_same_bits(name):
    make, reason = STAYS[name]

    def script(run):
        source, ids, label = batches(True, features=1)
        table = run.table(dim=4)
        value = make(run.lookup(table, ids[:, 0]), ids[:, 0])
        loss = loss_of([value], label)
        others = [value]
        dense = tf.compat.v1.global_variables("scale")
        if dense:
            others.append(tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=dense))
        train(run, source, loss, [table], others=others, fused=None)

    plan = cases.alike(script, moves=1, use_dynamic=True)[AHEAD].plan
    assert not any(one.fuses for one in plan.sums), plan.text()
    if reason is not None:
        assert [reason in one.reason for one in plan.sums] == [True], plan.text()


@support.run_by(close, use_dynamic=True)
def test_a_gradient_of_the_weights_that_is_fetched_is_the_same_also_beside_the_update(run):
    source, ids, label = batches(True, features=1)
    table = run.table(dim=4)
    weights = tf.identity(fixed(ids)[..., None])
    value = tf.reduce_sum(run.lookup(table, ids[:, 0]) * weights, 1)
    loss = loss_of([value], label)
    wanted, = tf.gradients(loss, weights)
    update = train(run, source, loss, [table])
    sess = run.begin(source)
    run.step(sess, [wanted])
    run.step(sess, [wanted, update])
    run.contents(sess)
