"""What happens on parameter servers between the pull and the push of a step: the numbers of one process."""

import pytest

from test_cluster_attacks import in_both

# A step waits between its lookup and its update until `between` has done something in the same session.
HELD = """
from mx_rec.core.feature_process import evict
from mx_rec.optimizers import ftrl, momentum
OPTIMIZERS = {"sgd": lambda: gradient_descent.create_hash_optimizer(1.0),
              "adagrad": lambda: adagrad.create_hash_optimizer(1.0),
              "momentum": lambda: momentum.create_hash_optimizer(1.0, 0.5),
              "ftrl": lambda: ftrl.create_hash_optimizer(1.0),
              "lazy_adam": lambda: lazy_adam.create_hash_optimizer(1.0)}
happens = []
def between(*values):
    while happens:
        happens.pop(0)()
    return values
def config_of(access, eviction):
    return {"access_threshold": access, "eviction_threshold": eviction}
with tf.device(device):
    ids, time = tf.compat.v1.placeholder(tf.int64, [None]), tf.compat.v1.placeholder(tf.int64, [])
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", time)
    counted = create_table(tf.int64, 2, "counted", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
    plain = create_table(tf.int64, 2, "plain", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
    rows = [sparse_lookup(counted, ids, modify_graph=True, access_and_evict_config=config_of(2, 10)),
            sparse_lookup(plain, ids, modify_graph=True)]
    variables = [counted.variable, plain.variable]
    slices = tf.gradients([-100.0 * one for one in rows], variables)
    held = tf.compat.v1.py_func(between, [one.values for one in slices], [tf.float32] * 2)
    slices = [tf.IndexedSlices(tf.reshape(value, [-1, 2]), one.indices) for one, value in zip(slices, held)]
    train = OPTIMIZERS[os.environ["OPTIMIZER"]]().apply_gradients(zip(slices, variables))
    look = [sparse_lookup(table, tf.range(12, dtype=tf.int64), is_train=False, modify_graph=True)
            for table in (counted, plain)]
    saver = tf.compat.v1.train.Saver()
def step(keys, seconds, op=train):
    return lambda: sess.run(op, {ids: keys, time: seconds})
def shown(number):
    found = sess.run(look)
    # A restored part counts anew.
    stale = [table_stats(one).stale for one in ("counted", "plain")] if number < 4 else []
    print("rows%d" % number, [[round(float(value), 4) for value in one[:, 0]] for one in found], stale)
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    for _ in range(2):
        step([7, 7], 100)()
    shown(0)
    # The key is evicted, and comes back as a new one.
    happens += [step([8, 8], 200, rows), lambda: print("evicted", evict(counted)), step([7, 7], 200, rows)]
    step([7], 101)()
    shown(1)
    # The key was refused when the step looked it up, and has a row when it is updated.
    happens += [step([9], 200, rows)]
    step([9], 200)()
    shown(2)
    # The key is there as it was.
    happens += [step([10, 10], 200, rows)]
    step([7], 200)()
    shown(3)
    path = saver.save(sess, os.environ["PLACE"] + "/model")
    step([7, 7], 200)()
    happens += [lambda: saver.restore(sess, path)]
    print("restored", error_of(step([7], 200)).split(":")[0])
    shown(4)
    step([7], 200)()
    shown(5)
"""


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "momentum", "ftrl", "lazy_adam"])
def test_a_gradient_reaches_the_row_that_it_is_of_or_none(optimizer, tmp_path):
    """A step between pull and push wrote to a key's new row after an eviction, to a key that it had seen refused, and
    over rows that were restored meanwhile."""
    found, alone = in_both(HELD, OPTIMIZER=optimizer, PLACE=str(tmp_path))
    assert found == alone
    assert found["restored"] == "AbortedError" and len(found) == 8
    assert found["rows1"].endswith("[1, 0]"), found


POWERS = """
with tf.device(device):
    ids = tf.constant([1, 2, 3, 1], tf.int64)
    tables = [create_table(tf.int64, 2, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
              for name in ("one", "two")]
    losses = [tf.reduce_sum(tf.square(sparse_lookup(table, ids, modify_graph=True))) for table in tables]
    optimizer = lazy_adam.create_hash_optimizer(0.1)
    trains = [optimizer.minimize(loss, var_list=[table.variable]) for loss, table in zip(losses, tables)]
    look = [sparse_lookup(table, ids, is_train=False, modify_graph=True) for table in tables]
    saver = tf.compat.v1.train.Saver()
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    for number in range(12):
        sess.run(trains[number % 2])
        if number == 6:
            saver.restore(sess, saver.save(sess, os.environ["PLACE"] + "/model"))
    print("turns", [one.tolist() for one in sess.run(look)])
    for number in range(6):
        sess.run(trains[0])
    print("one", [one.tolist() for one in sess.run(look)])
"""


def test_train_ops_of_one_lazy_adam_by_turns_share_its_powers(tmp_path):
    """Each part of a table counted steps of its own: other numbers than in one process, and others after a restore."""
    found, alone = in_both(POWERS, PLACE=str(tmp_path))
    assert found == alone and len(found) == 2
