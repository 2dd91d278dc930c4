"""Tables on parameter servers under unkind models and jobs: the numbers of one process, or an error that says why."""

import json

import pytest

from cluster_cases import MODEL, RUN, Job, run_alone
from test_cluster_life import LONG, wait_for
from test_cluster_tables import assert_same, trained

# A session of the chief of a job, with what Scaffold would initialize.
PLAIN = """
from tensorflow.python.ops import resources
from mx_rec.optimizers import adagrad, gradient_descent, lazy_adam
def initialize(sess):
    sess.run([tf.compat.v1.global_variables_initializer()]
             + [one.create for one in resources.shared_resources()])
def error_of(call):
    try:
        call()
    except (tf.errors.OpError, ValueError, NotImplementedError) as error:
        return "%s: %s" % (type(error).__name__, str(error).replace("\\n", " "))
    return "nothing"
EXTREMES = np.array([-2**63, -2**63 + 1, -2, 0, 1, 2**62, 2**63 - 1, -1], np.int64)
"""


def in_both(code, ps=2, **variables):
    """What the chief of a job prints, and what one process does, each line by its first word."""
    alone = run_alone(PLAIN + code, **variables)
    with Job(PLAIN + code, ps=ps, **variables) as job:
        found = job.worker()
    return [dict(line.split(" ", 1) for line in out.strip().splitlines()) for out in (found, alone)]


UNKIND = """
with tf.device(device):
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    small = tf.compat.v1.placeholder(tf.int32, [None, None])
    uniform = tf.compat.v1.random_uniform_initializer(-1, 1, seed=3)
    items = create_table(tf.int64, 4, "items", uniform, device_vocabulary_size=500)
    users = create_table(tf.int32, 8, "users", uniform, device_vocabulary_size=500)
    many = sparse_lookup_many([items, users], [ids, small], modify_graph=True)
    single = [sparse_lookup(items, ids, modify_graph=True), sparse_lookup(users, small, modify_graph=True)]
    loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in many + single])
    variables = [items.variable, users.variable]
    train = lazy_adam.create_hash_optimizer(0.1).apply_gradients(zip(tf.gradients(loss, variables), variables))
    look = [sparse_lookup(items, tf.constant(EXTREMES), is_train=False, modify_graph=True),
            sparse_lookup(users, tf.constant([[5, -7], [-2**31, 2**31 - 1]], tf.int32), is_train=False, modify_graph=True)]
# Keys that all live in one part of two: found as the servers hold them.
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    batches = [(EXTREMES, [[5, -7], [-2**31, 2**31 - 1]]), ([], [[]]), ([7] * 1000, [[3] * 100] * 10), ([], [[1]]),
               ([-1, -1], [[-1]]), ([42], [[]]), (EXTREMES[::-1], [[1, 1]] * 3)]
    for number, (some, others) in enumerate(batches):
        feed = {ids: some, small: np.array(others, np.int32).reshape(len(others), -1)}
        shapes = [one.shape for one in sess.run(many, feed)]
        sess.run(train, feed)
        print("batch%d" % number, shapes, [one.tolist() for one in sess.run(look)], items.size(), users.size())
"""


@pytest.mark.parametrize("ps", [1, 3])
def test_empty_batches_equal_keys_extreme_keys_and_int32_train_the_bits_of_one_process(ps):
    """With three servers some get no key of a batch."""
    found, alone = in_both(UNKIND, ps)
    assert found == alone and len(found) == 7


OUTSIDE = """
with tf.device(device):
    uniform = tf.compat.v1.random_uniform_initializer(-1, 1, seed=3)
    tables = [create_table(tf.int64, 4, name, uniform, device_vocabulary_size=500) for name in ("items", "users")]
    data = tf.data.Dataset.from_tensor_slices(np.arange(60, dtype=np.int64) % 23).repeat().batch(7)
    ids = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    rows = [sparse_lookup(table, ids, modify_graph=True) for table in tables]
    looped = tf.while_loop(lambda i, _: i < 3, lambda i, sums: (i + 1, sums + rows[0] * tf.cast(i, tf.float32)),
                           (0, tf.zeros_like(rows[0])), back_prop=True)[1]
    taken = tf.cond(tf.reduce_sum(ids) % 2 > 0, lambda: rows[1] * 2.0, lambda: rows[1])
    loss = tf.reduce_sum(tf.square(looped)) + tf.reduce_sum(tf.square(taken))
    variables = [table.variable for table in tables]
    slices = tf.gradients(loss, variables)
    # In another order, and halved: not as the lookup made them.
    last = tf.range(tf.shape(slices[1].indices)[0] - 1, -1, -1)
    turned = tf.IndexedSlices(tf.gather(slices[1].values, last), tf.gather(slices[1].indices, last))
    first = adagrad.create_hash_optimizer(0.1).apply_gradients([(slices[0], variables[0]), (turned, variables[1])])
    with tf.control_dependencies([first]):
        half = tf.IndexedSlices(slices[0].values * 0.5, tf.identity(slices[0].indices))
        train = gradient_descent.create_hash_optimizer(0.1).apply_gradients([(half, variables[0])])
    look = [sparse_lookup(table, tf.range(23, dtype=tf.int64), is_train=False, modify_graph=True) for table in tables]
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    for _ in range(12):
        sess.run(train)
    print("rows", [one.tolist() for one in sess.run(look)])
"""


def test_loops_and_branches_behind_lookups_iterators_and_reordered_gradients_give_the_bits_of_one_process():
    found, alone = in_both(OUTSIDE)
    assert found == alone and "rows" in found


FED = """
with tf.device(device):
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    items = create_table(tf.int64, 4, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
    rows = sparse_lookup(items, ids, modify_graph=True)
    slices, = tf.gradients(tf.reduce_sum(rows), [items.variable])
    train = gradient_descent.create_hash_optimizer(1.0).apply_gradients([(slices, items.variable)])
    look = sparse_lookup(items, tf.range(8, dtype=tf.int64), is_train=False, modify_graph=True)
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    sess.run(train, {ids: range(8)})
    print("values", error_of(lambda: sess.run(train, {ids: [1], slices.values: np.full([1, 4], 5.0)})))
    print("rows", error_of(lambda: sess.run(train, {ids: [2], rows: np.full([1, 4], 5.0)})))
    print("indices", error_of(lambda: sess.run(train, {ids: [3], slices.indices: [4]})))
    print("short", error_of(lambda: sess.run(train, {ids: [3, 4], slices.values: np.full([1, 4], 5.0)})))
    print("table", sess.run(look)[:, 0].tolist())
"""


def test_what_is_fed_between_a_lookup_and_its_update_is_used_or_refused():
    with Job(PLAIN + FED, ps=2) as job:
        found = dict(line.split(" ", 1) for line in job.worker().strip().splitlines())
    assert found["values"] == found["rows"] == "nothing"
    assert "may not be fed" in found["indices"], found
    assert "InvalidArgumentError" in found["short"], found
    assert json.loads(found["table"]) == [0.0, -5.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
