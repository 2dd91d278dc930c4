"""A gradient reaches the row of its own key or none, whatever happens between its lookup and its update."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import preloaded
import support
from support import lookup
from mx_rec.optimizers import gradient_descent, lazy_adam, momentum
from mx_rec.util.stats import table_stats

DIM = 2


def make_table(name="table", capacity=100, initializer=None):
    return support.make_table(name, DIM, capacity, initializer or tf.compat.v1.zeros_initializer())


def optimizer(kind="sgd"):
    return {"sgd": lambda: gradient_descent.create_hash_optimizer(1.0),
            "momentum": lambda: momentum.create_hash_optimizer(1.0, 0.5),
            "adam": lambda: lazy_adam.create_hash_optimizer(0.1)}[kind]()


def keys(*values):
    return tf.constant(values, tf.int64)


def after(first, make):
    """What `make` gives, made after `first`."""
    with tf.control_dependencies(first if isinstance(first, list) else [first]):
        return make()


def between(embedding, disturb):
    """The embedding, after the ops of `disturb`, which run after the lookup; its gradient comes after them, too."""
    done = after(embedding, disturb)
    return embedding * after(done, lambda: tf.compat.v1.placeholder_with_default(1.0, []) + 0.0)


def checkpoint(tmp_path, order):
    """A directory with the rows of a table that got its keys in this order; zeros."""
    path = tempfile.mkdtemp(dir=str(tmp_path)) + "/saved"
    with tf.Graph().as_default():
        saved = support.Raw.new(DIM, name="table")
        save = support.ops().mx_rec_save(saved.handle, support.bytes_tensor(path), -1, 0)
        with support.new_session() as sess:
            saved.assign(sess, order, np.zeros([len(order), DIM]))
            sess.run(save)  # All outputs.
    return path


def replace(kind, raw, tmp_path):
    """A function that makes the op which puts keys 10 and 20 in this order into the table."""
    ops = support.ops()
    if kind == "restore":
        path = checkpoint(tmp_path, [10, 20])
        return lambda: list(ops.mx_rec_load(raw.handle, support.bytes_tensor(path), []))
    return lambda: [after(ops.mx_rec_clear(raw.handle, [], [], []), lambda: ops.mx_rec_assign(
        raw.handle, keys(10, 20), tf.zeros([2, DIM]), [], [], []))]


@pytest.mark.parametrize("how", ["fused", "sums", "by address"])
@pytest.mark.parametrize("kind", ["restore", "clear"])
@pytest.mark.parametrize("rule", ["sgd", "momentum"])
def test_a_step_whose_table_was_replaced_after_its_lookup_is_aborted(graph, session, dynamic, tmp_path, how, kind, rule):
    """The table had its keys in row order (20, 10), the checkpoint in order (10, 20): the step on key 20 moved key 10."""
    table = make_table()
    raw = support.Raw.of(table)
    rule = optimizer(rule)
    first = rule.minimize(tf.reduce_sum(lookup(table, keys(20, 10))), var_list=[table.variable])
    embedding = between(lookup(table, keys(20)), replace(kind, raw, tmp_path))
    loss = tf.reduce_sum(embedding)
    if how == "fused":
        step = rule.minimize(loss, var_list=[table.variable])
        support.pass_over()
        assert "ids" in map(support.form_of, support.updates_in(graph.get_operations()))
    else:
        slices = tf.gradients(loss, table.variable)[0]
        if how == "sums":
            slices = tf.IndexedSlices(tf.identity(slices.values), slices.indices)
        else:
            slices = tf.IndexedSlices(tf.concat([slices.values], 0), tf.concat([slices.indices], 0))
        step = rule.apply_gradients([(slices, table.variable)])
    sess = support.started(session())
    sess.run(first)
    with pytest.raises(tf.errors.AbortedError) as error:
        sess.run(step)
    assert "table" in error.value.message and "replaced" in error.value.message
    support.assert_same_tables(raw.rows(sess), {10: np.zeros(DIM), 20: np.zeros(DIM)})
    sess.run(first)
    support.assert_same_tables(raw.rows(sess), {10: np.full(DIM, -1), 20: np.full(DIM, -1)})


@pytest.mark.parametrize("kind", ["restore", "clear"])
@support.run_by(cases.alike, moves=1)
def test_a_claimed_batch_whose_table_was_replaced_is_aborted(run, tmp_path, kind):
    """As above, where the input pipeline has looked the keys up."""
    data = tf.data.Dataset.from_tensor_slices({
        "ids": np.array([[20, 10], [20, 20], [20, 10]], np.int64), "replace": [False, True, False]})
    iterator = cases.initializable(data)
    batch = iterator.get_next()
    table = run.table(dim=DIM)
    raw = support.Raw.of(table)
    found = run.lookup(table, batch["ids"])
    disturb = replace(kind, raw, tmp_path)
    embedding = between(found, lambda: [tf.cond(
        batch["replace"], lambda: tf.group(*disturb()), tf.no_op)])
    step = optimizer().minimize(tf.reduce_sum(embedding), var_list=[table.variable])
    sess = run.begin(iterator)
    sess.run(step)
    with pytest.raises(tf.errors.AbortedError, match="replaced"):
        sess.run(step)
    support.assert_same_tables(raw.rows(sess), {10: np.zeros(DIM), 20: np.zeros(DIM)})
    sess.run(step)
    run.contents(sess)
    support.assert_same_tables(raw.rows(sess), {10: np.full(DIM, -1), 20: np.full(DIM, -1)})


def test_a_monitored_session_recovers_from_a_replaced_table(graph, dynamic, tmp_path):
    """It goes back to its last checkpoint and on from there: no step is lost, none counts twice."""
    table = make_table()
    raw = support.Raw.of(table)
    calls = []

    def is_time():
        calls.append(True)
        return len(calls) == 4

    def disturb():
        wanted = tf.compat.v1.py_func(is_time, [], tf.bool)
        return [tf.cond(wanted, lambda: tf.group(support.ops().mx_rec_clear(raw.handle, [], [], [])), tf.no_op)]

    embedding = between(lookup(table, keys(1, 2, 2)), disturb)
    count = tf.compat.v1.train.get_or_create_global_step()
    step = optimizer().minimize(tf.reduce_sum(embedding), global_step=count, var_list=[table.variable])
    with tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=1, save_checkpoint_secs=None, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None) as sess:
        for _ in range(6):
            sess.run(step)
        rows, steps = sess.run_step_fn(lambda step_context: (
            raw.rows(step_context.session), step_context.session.run(count)))
    assert (len(calls), steps) == (7, 6)
    support.assert_same_tables(rows, {1: np.full(DIM, -6), 2: np.full(DIM, -12)})


def give_away(raw, gone, new):
    """A function that makes the ops which remove a key and give its row to a new one."""
    return lambda: [after(support.ops().mx_rec_remove(raw.handle, keys(gone)), lambda: support.ops().mx_rec_assign(
        raw.handle, keys(new), tf.zeros([1, DIM]), [], [], []))]


def rows_of_keys(raw):
    return support.ops().resolve(raw.handle, keys(1, 2, 3), create=0).offsets


def test_joined_gradients_of_two_lookups_do_not_move_the_key_that_got_an_evicted_row(graph, session, dynamic):
    """Clipping joins the gradients of both lookups into tensors of its own: nothing holds the rows any more."""
    table = make_table()
    raw = support.Raw.of(table)
    loss = tf.reduce_sum(lookup(table, keys(1, 2))) + tf.reduce_sum(lookup(table, keys(2, 3)))
    gradient = tf.gradients(loss, table.variable)[0]
    (clipped,), _ = tf.clip_by_global_norm([gradient], 100.0)
    done = after([clipped.values, clipped.indices], give_away(raw, 2, 7))
    late = after(done, lambda: tf.IndexedSlices(tf.identity(clipped.values), tf.identity(clipped.indices)))
    step = optimizer().apply_gradients([(late, table.variable)])
    sess = session()
    raw.assign(sess, [1, 2, 3], np.zeros([3, DIM]))
    before = sess.run(rows_of_keys(raw))
    sess.run(step)
    support.assert_same_tables(raw.rows(sess), {1: np.full(DIM, -1), 3: np.full(DIM, -1), 7: np.zeros(DIM)})
    new = sess.run(support.ops().resolve(raw.handle, keys(7), create=0).offsets)
    assert support.row_of(new[0]) == support.row_of(before[1]), "the row was not given away"
    assert table_stats(table).stale == 1


def test_an_accumulator_of_gradients_does_not_move_the_key_that_got_an_evicted_row(graph, session, dynamic):
    table = make_table()
    raw = support.Raw.of(table)
    gradient = tf.gradients(tf.reduce_sum(lookup(table, keys(1, 2))), table.variable)[0]
    sums = tf.compat.v1.SparseConditionalAccumulator(tf.float32, shape=[None, DIM])
    put = sums.apply_grad(gradient.indices, gradient.values)
    indices, values, _ = sums.take_grad(2)
    step = optimizer().apply_gradients([(tf.IndexedSlices(values, indices), table.variable)])
    sess = session()
    sess.run(put)
    raw.remove(sess, [2])
    raw.assign(sess, [7], np.zeros([1, DIM]))
    sess.run(put)
    # Key 2 is back, in a row of its own; the mean is over both gradients.
    sess.run(step)
    support.assert_same_tables(raw.rows(sess), {
        1: np.full(DIM, -1), 2: np.full(DIM, -1), 7: np.zeros(DIM)})
    assert table_stats(table).stale == 1


class Fed:
    """An update and a lookup whose offsets are fed."""

    def __init__(self, raw):
        self.raw = raw
        self.offsets = tf.compat.v1.placeholder(tf.int64, [None])
        ones = tf.ones([tf.size(self.offsets), DIM])
        self.update = support.update_rows("sgd", raw.handle, self.offsets, ones, 1.0, 0.0)
        self.read = support.ops().lookup(raw.handle, raw.variable, self.offsets)


def test_offsets_that_were_fetched_are_good_until_their_keys_are_removed(graph, session):
    raw = support.Raw.new(DIM, name="fed")
    fed = Fed(raw)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    find = support.ops().resolve(raw.handle, ids, create=1).offsets
    sess = session()
    kept = np.array(sess.run(find, {ids: [1, 2, 3]}))
    assert sess.run(fed.update, {fed.offsets: kept}) == 3
    raw.remove(sess, [2])
    assert support.row_of(sess.run(find, {ids: [7]})[0]) == support.row_of(kept[1])
    assert sess.run(fed.update, {fed.offsets: np.concatenate([kept, kept, [0, -1]])}) == 2
    support.assert_same_tables(raw.rows(sess), {1: np.full(DIM, -3), 3: np.full(DIM, -3), 7: np.zeros(DIM)})
    support.assert_same_bits(sess.run(fed.read, {fed.offsets: [kept[0], 0, -1]}), [[-3, -3], [0, 0], [0, 0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="removed"):
        sess.run(fed.read, {fed.offsets: kept})


OTHER = """
import support
raw = support.Raw.new(2, name="fed")
with support.new_session() as sess:
    raw.assign(sess, [1], [[0, 0]])
    print(sess.run(support.ops().resolve(raw.handle, [1], create=0).offsets)[0])
"""


@pytest.mark.parametrize("where", ["session", "process", "table"])
def test_offsets_of_another_table_are_refused(graph, session, where):
    raw = support.Raw.new(DIM, name="fed")
    other = support.Raw.new(DIM, name="other")
    fed = Fed(raw)
    found = [support.ops().resolve(table.handle, keys(1), create=1).offsets for table in (raw, other)]
    sess = session()
    own = sess.run(found[0])[0]
    if where == "process":
        foreign = int(preloaded.run_python(OTHER))
    else:
        foreign = (session() if where == "session" else sess).run(found[where == "table"])[0]
    assert support.row_of(foreign) == support.row_of(own) and foreign != own
    for use in (fed.update, fed.read):
        with pytest.raises(tf.errors.InvalidArgumentError, match="never given out by this table"):
            sess.run(use, {fed.offsets: [own, foreign]})
    support.assert_same_tables(raw.rows(sess), {1: np.zeros(DIM)})


def looped(kind, table, ids):
    """Looks the rows of `ids` (3, 2) up, one row of ids each turn of a loop: (3, 2, DIM)."""
    shape = [3, 2, DIM]
    if kind == "map_fn":
        return tf.map_fn(lambda some: lookup(table, some), ids, dtype=tf.float32)
    if kind == "scan":
        return tf.scan(lambda before, some: before + lookup(table, some), ids, initializer=tf.zeros(shape[1:]))
    turns = tf.while_loop(
        lambda turn, _: turn < 3,
        lambda turn, rows: (turn + 1, rows.write(turn, lookup(table, ids[turn]))),
        (tf.constant(0), tf.TensorArray(tf.float32, 3)))
    return turns[1].stack()


@pytest.mark.parametrize("kind", ["while_loop", "map_fn", "scan"])
def test_the_gradient_of_a_loop_moves_its_own_keys_alone(graph, session, dynamic, kind):
    """TensorFlow begins the sum of a loop's gradients with index 0 and value 0: Adam moved the row of whoever came first."""
    table = make_table(initializer=tf.compat.v1.ones_initializer())
    raw = support.Raw.of(table)
    ids = tf.compat.v1.placeholder(tf.int64, [3, 2])
    rule = optimizer("adam")
    first = rule.minimize(tf.reduce_sum(lookup(table, keys(5, 6))), var_list=[table.variable])
    step = rule.minimize(tf.reduce_sum(looped(kind, table, ids)), var_list=[table.variable])
    sess = support.started(session())
    # Padding alone, in a table without a row.
    sess.run(step, {ids: np.full([3, 2], -1)})
    assert raw.size(sess) == 0
    sess.run(first)
    before = raw.rows(sess)
    assert not np.allclose(before[5], 1.0)
    sess.run(step, {ids: [[7, 8], [-1, 7], [9, 9]]})
    after_step = raw.rows(sess)
    assert sorted(after_step) == [5, 6, 7, 8, 9]
    for key in (5, 6):
        support.assert_same_bits(after_step[key], before[key], str(key))
    for key in (7, 8, 9):
        assert np.all(after_step[key] < 1.0), key
