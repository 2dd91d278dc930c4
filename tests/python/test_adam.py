"""Adam for tables against tf.train.AdamOptimizer on variables, step by step."""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.grouped import sparse_lookup_many
from mx_rec.optimizers.adam import create_hash_optimizer
from mx_rec.optimizers.adam_by_addr import create_hash_optimizer_by_address
from mx_rec.util.stats import table_stats

v1 = tf.compat.v1

ROWS, DIM = 60, 4


def batches(steps, seed=3):
    """Ids of few rows, so that most of them wait for long; every seventh batch has none."""
    random = np.random.RandomState(seed)
    for step in range(steps):
        count = 0 if step % 7 == 6 else random.randint(1, 6)
        yield np.minimum(random.geometric(0.05, count) - 1, ROWS - 1), np.float32(0.01 / (1 + step % 5))


def scaled(pairs):
    """Gradients that something was done to: the update takes those of rows."""
    return [(tf.IndexedSlices(grad.values * 0.25, grad.indices, grad.dense_shape), variable) for grad, variable in pairs]


@pytest.mark.parametrize("changed", [None, scaled], ids=["fused", "scaled"])
def test_losses_evaluations_and_all_rows_are_those_of_adam_on_variables_at_every_step(graph, session, dynamic, changed):
    names = ["one", "other", "alone"]
    ids, lr = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [])
    every = tf.constant(np.arange(ROWS))
    tables = [support.make_table(name, DIM, ROWS) for name in names]
    initial = [np.random.RandomState(at).randn(ROWS, DIM).astype(np.float32) * 0.3 for at in range(3)]
    variables = [v1.Variable(value, name=name + "_dense", use_resource=False) for value, name in zip(initial, names)]

    def losses(rows):
        # Two train ops: the second one leaves the last table alone, which has no step then.
        parts = [tf.reduce_sum(tf.square(tf.tanh(one) - 0.1 * (1 + at))) for at, one in enumerate(rows)]
        return tf.add_n(parts), tf.add_n(parts[:2]) * 0.5

    def train_ops(optimizer, both, of):
        change = changed or (lambda pairs: pairs)
        return [optimizer.apply_gradients(change(optimizer.compute_gradients(loss, of[:count])))
                for loss, count in zip(both, (3, 2))]

    ours = losses([sparse_lookup(table, ids, modify_graph=True) for table in tables])
    theirs = losses([tf.nn.embedding_lookup(variable, ids) for variable in variables])
    seen = [sparse_lookup(table, every, is_train=False, modify_graph=True) for table in tables]
    our_steps = train_ops(create_hash_optimizer(lr), ours, [table.variable for table in tables])
    their_steps = train_ops(v1.train.AdamOptimizer(lr), theirs, variables)
    sess = support.started(session())
    for table, value in zip(tables, initial):
        support.Raw.of(table).assign(sess, np.arange(ROWS), value)
    for number, (batch, rate) in enumerate(batches(80)):
        feed, at = {ids: batch, lr: rate}, int(number % 3 == 2)
        np.testing.assert_allclose(*sess.run([ours[at], theirs[at]], feed), rtol=1e-5, atol=1e-5)
        sess.run([our_steps[at], their_steps[at]], feed)
        for found, expected in zip(*sess.run([seen, variables])):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    moved = np.abs(sess.run(variables[0]) - initial[0]).max(1)
    assert (moved > 1e-3).sum() > 20


@pytest.mark.parametrize("form", ["separate", "many", "bags"])
def test_several_lookups_of_a_table_are_one_step(graph, session, dynamic, form):
    ids = [v1.placeholder(tf.int64, [None, 2]) for _ in range(2)]
    table = support.make_table("twice", DIM, ROWS, 0.2)
    variable = v1.Variable(np.full([ROWS, DIM], 0.2, np.float32), use_resource=False)

    def loss_of(rows):
        if form == "bags":
            rows = [tf.reduce_mean(rows[0], 1), tf.reduce_sum(rows[1], 1)]
        return tf.reduce_sum(tf.square(rows[0])) + tf.reduce_sum(tf.sin(rows[1]))

    ours = loss_of(sparse_lookup_many([table, table], ids, modify_graph=True) if form == "many"
                   else [sparse_lookup(table, one, modify_graph=True) for one in ids])
    theirs = loss_of([tf.nn.embedding_lookup(variable, one) for one in ids])
    steps = [create_hash_optimizer(0.01).minimize(ours, var_list=[table.variable]),
             v1.train.AdamOptimizer(0.01).minimize(theirs, var_list=[variable])]
    sess = support.started(session())
    random = np.random.RandomState(1)
    for number in range(40):
        feed = {one: random.randint(0, ROWS, [random.randint(0, 3) if at or number % 5 else 0, 2])
                for at, one in enumerate(ids)}
        np.testing.assert_allclose(*sess.run([ours, theirs], feed), rtol=1e-5, atol=1e-5)
        sess.run(steps, feed)


def test_rows_on_disk_have_the_numbers_of_adam_on_variables_through_a_restore_of_an_earlier_step(graph, session, dynamic, tmp_path):
    """A table with rows on disk was refused."""
    ids, lr = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [])
    (tmp_path / "rows").mkdir()
    table = support.make_table("on_disk", DIM, 5, 0.3, host_vocabulary_size=5, ssd_vocabulary_size=ROWS,
                               ssd_data_path=[str(tmp_path / "rows")])
    variable = v1.Variable(np.full([ROWS, DIM], 0.3, np.float32), use_resource=False)
    ours, theirs = [tf.reduce_sum(tf.square(tf.tanh(rows) - 0.1)) for rows in (
        sparse_lookup(table, ids, modify_graph=True), tf.nn.embedding_lookup(variable, ids))]
    seen = sparse_lookup(table, tf.constant(np.arange(ROWS)), is_train=False, modify_graph=True)
    steps = [create_hash_optimizer(lr).minimize(ours, var_list=[table.variable]),
             v1.train.AdamOptimizer(lr).minimize(theirs, var_list=[variable])]
    saver = v1.train.Saver()
    sess = support.started(session())
    for start in range(0, ROWS, 10):
        sess.run(steps, {ids: np.arange(start, start + 10), lr: 0.01})
    fed = [{ids: batch, lr: rate} for batch, rate in batches(80)]
    losses, path = [], None
    for at in list(range(60)) + list(range(40, 80)):
        if at == 40 and path is None:
            path = saver.save(sess, str(tmp_path / "model"))
        elif at == 40:
            saver.restore(sess, path)
        losses.append(sess.run([ours, theirs], fed[at]))
        sess.run(steps, fed[at])
        if at % 5 == 0:
            np.testing.assert_allclose(*sess.run([seen, variable]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(*zip(*losses), rtol=1e-5, atol=1e-5)
    assert [one for one, _ in losses[40:60]] == [one for one, _ in losses[60:80]]
    stats = table_stats("on_disk")
    assert stats.rows_disk == ROWS - 10 and stats.read_disk > 50, stats


def test_rows_wait_by_address_as_well(graph, session, mx):
    mx(use_dynamic_expansion=True)
    table = create_table(key_dtype=tf.int64, dim=DIM, name="grows", emb_initializer=v1.ones_initializer())
    ids = v1.placeholder(tf.int64, [None])
    rows = sparse_lookup(table, ids, modify_graph=True)
    variable = v1.Variable(np.ones([ROWS, DIM], np.float32), use_resource=False)
    dense = tf.nn.embedding_lookup(variable, ids)
    embeddings = v1.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")
    offsets = v1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
    loss = tf.reduce_sum(tf.square(rows))
    update = create_hash_optimizer_by_address(0.01).apply_gradients(
        zip(tf.gradients(loss, embeddings), offsets))
    theirs = v1.train.AdamOptimizer(0.01).minimize(tf.reduce_sum(tf.square(dense)), var_list=[variable])
    seen = sparse_lookup(table, tf.constant(np.arange(5)), is_train=False, modify_graph=True)
    sess = support.started(session())
    sess.run([update, theirs], {ids: np.arange(5)})
    for batch in ([1], [], [2, 1], [1], [0]):
        sess.run([update, theirs], {ids: batch})
        found, expected = sess.run([seen, variable])
        np.testing.assert_allclose(found, expected[:5], rtol=1e-5, atol=1e-5)
