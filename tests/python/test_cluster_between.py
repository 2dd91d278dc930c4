"""What happens on parameter servers between the pull and the push of a step: the numbers of one process."""

import pytest

from test_cluster_attacks import in_both

# A step waits between its lookup and its update until `between` has done something in the same session.
HELD = """
from mx_rec.core.feature_process import evict
from mx_rec.optimizers import adam, ftrl, momentum, rmsprop, rowwise_adagrad, rowwise_adam
OPTIMIZERS = {"sgd": lambda: gradient_descent.create_hash_optimizer(1.0),
              "adagrad": lambda: adagrad.create_hash_optimizer(1.0),
              "momentum": lambda: momentum.create_hash_optimizer(1.0, 0.5),
              "ftrl": lambda: ftrl.create_hash_optimizer(1.0),
              "rmsprop": lambda: rmsprop.create_hash_optimizer(1.0, momentum=0.5),
              "adam": lambda: adam.create_hash_optimizer(1.0),
              "rowwise_adagrad": lambda: rowwise_adagrad.create_hash_optimizer(1.0),
              "rowwise_adam": lambda: rowwise_adam.create_hash_optimizer(1.0),
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
    counted, plain = [create_table(tf.int64, 2, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=500,
                                   row_dtype=os.environ["ROWS"]) for name in ("counted", "plain")]
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
    stale = [table_stats(one).stale for one in ("counted", "plain")] if number not in (4, 5) else []
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
    # The key's row is another one's then, and its new row is one that nobody had before.
    step([5, 5], 200)()
    happens += [step([8, 8], 300, rows), lambda: print("again", evict(counted)),
                step(list(range(20, 90)) * 2 + [5, 5], 300, rows)]
    step([5], 201)()
    shown(6)
    step([7, 7], 300)()
    # The key was refused when the step looked it up, and has a row when it is updated.
    happens += [step([9], 300, rows)]
    step([9], 300)()
    shown(2)
    # The key is there as it was.
    happens += [step([10, 10], 300, rows)]
    step([7], 300)()
    shown(3)
    path = saver.save(sess, os.environ["PLACE"] + "/model")
    step([7, 7], 300)()
    happens += [lambda: saver.restore(sess, path)]
    print("restored", error_of(step([7], 300)).split(":")[0])
    shown(4)
    step([7], 300)()
    shown(5)
"""


@pytest.mark.parametrize("optimizer, rows", [(one, "float32") for one in (
    "sgd", "adagrad", "momentum", "ftrl", "lazy_adam", "rmsprop", "adam", "rowwise_adagrad", "rowwise_adam")] + [
        ("sgd", "bfloat16"), ("adam", "float16")])
def test_a_gradient_reaches_the_row_that_it_is_of_or_none(optimizer, rows, tmp_path):
    """A step between pull and push wrote to a key's new row after an eviction, to a key that it had seen refused, and
    over rows that were restored meanwhile. Later it still wrote to a key's new row if that had the number of another
    removal, which is so where other keys got rows first."""
    found, alone = in_both(HELD, OPTIMIZER=optimizer, ROWS=rows, PLACE=str(tmp_path))
    assert found == alone
    assert found["restored"] == "AbortedError" and len(found) == 10
    assert found["rows1"].endswith("[1, 0]") and found["rows6"].endswith("[2, 0]"), found


MOVED = """
from mx_rec.core.feature_process import evict
happens = []
def between(values):
    while happens:
        happens.pop(0)()
    return values
with tf.device(device):
    ids, time = tf.compat.v1.placeholder(tf.int64, [None]), tf.compat.v1.placeholder(tf.int64, [])
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", time)
    table = create_table(tf.int64, 64, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=50000)
    rows = sparse_lookup(table, ids, modify_graph=True,
                         access_and_evict_config={"access_threshold": 1, "eviction_threshold": 10})
    slices, = tf.gradients(-rows, [table.variable])
    values, = tf.compat.v1.py_func(between, [slices.values], [tf.float32])
    slices = tf.IndexedSlices(tf.reshape(values, [-1, 64]), slices.indices)
    train = gradient_descent.create_hash_optimizer(1.0).apply_gradients([(slices, table.variable)])
    look = tf.reduce_sum(sparse_lookup(table, ids, is_train=False, modify_graph=True), 1)
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    sess.run(rows, {ids: np.arange(20000), time: 100})
    late = np.arange(30000, 30100)
    sess.run(train, {ids: late, time: 200})
    # Nearly all rows go, and those at the end move to the front.
    happens.append(lambda: print("evicted", evict(table)))
    sess.run(train, {ids: late, time: 200})
    sess.run(train, {ids: late, time: 200})
    print("rows", np.unique(sess.run(look, {ids: late, time: 200})).tolist(), table_stats("items").stale, table.size())
"""


@pytest.mark.long
def test_a_gradient_reaches_a_row_that_an_eviction_has_moved():
    """Gradients of keys that were there all the time were dropped."""
    found, alone = in_both(MOVED)
    assert found == alone
    assert found["rows"] == "[256.0] 0 100", found


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


@pytest.mark.long
def test_train_ops_of_one_lazy_adam_by_turns_share_its_powers(tmp_path):
    """Each part of a table counted steps of its own: other numbers than in one process, and others after a restore."""
    found, alone = in_both(POWERS, PLACE=str(tmp_path))
    assert found == alone and len(found) == 2
