"""The same run gives the same bits: twice, on one thread and on two, whatever the order and size of batches."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import CASES, ONE_OF_EACH, ids_of

TRAIN = """
import hashlib, json, sys
import numpy as np
import support
from optimizer_cases import ONE_OF_EACH
from mx_rec.util.initialize import init
from mx_rec.core.embedding import create_table, sparse_lookup

init()
tf = support.tf()
dims = [3, 8, 16, 64, 100]
ids = tf.compat.v1.placeholder(tf.int64, [None])
noise = tf.compat.v1.placeholder(tf.float32, [None, 100])
updates, raws = [], {}
for case, dim in zip(ONE_OF_EACH, dims):
    table = create_table(key_dtype=tf.int64, dim=dim, name=case.op, device_vocabulary_size=300000,
                         emb_initializer=tf.compat.v1.random_normal_initializer(stddev=0.1, seed=5))
    wide = sparse_lookup(table, tf.reshape(ids, [-1, 2]), modify_graph=True)
    again = sparse_lookup(table, ids[::3], modify_graph=True)
    loss = tf.reduce_sum(tf.reshape(wide, [-1, dim]) * noise[:, :dim]) + tf.reduce_sum(again) * 0.25
    updates.append(case.ours(case.lr).minimize(loss, var_list=[table.variable]))
    raws[case.op] = support.Raw.of(table)
    by_ids = support.Raw.new(dim, name="raw_" + case.op, capacity=300000,
                             initializer={"kind": "truncated_normal", "mean": 0.0, "stddev": 1.0})
    with tf.control_dependencies([case.apply(by_ids.handle, ids, noise[:, :dim], tf.constant(case.lr),
                                             tf.constant(2.0), by_ids=True)]):
        updates.append(tf.no_op())
    raws["raw_" + case.op] = by_ids
    for raw in (raws[case.op], by_ids):
        raw.make_slots(case)
sess = tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1))
sess.run(tf.compat.v1.global_variables_initializer())
random = np.random.RandomState(0)
for step in range(6):
    count = 40000 if step % 2 == 0 else 64
    keys = (random.zipf(1.2, count) % 30000) * 2654435761 - 10 ** 12
    keys[:: 17] = -1
    feed = {ids: keys, noise: random.randn(count, 100).astype(np.float32)}
    for update in updates:
        sess.run(update, feed)
report = {}
for name, raw in sorted(raws.items()):
    digest = hashlib.sha256()
    # A step that makes rows through two lookups runs them in TensorFlow's order, so rows are compared by key there.
    for fetch in [raw.slot(slot) for slot in sorted(raw._slots)]:
        keys, values = sess.run(fetch)
        order = slice(None) if name.startswith("raw_") else np.argsort(keys)
        for array in (keys[order], values[order]):
            digest.update(np.ascontiguousarray(array).tobytes())
    report[name] = [raw.size(sess), digest.hexdigest()]
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def one_thread():
    return support.run_python(TRAIN, TF_NUM_INTRAOP_THREADS=1).strip().splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tables_are_bit_identical_in_another_process_and_on_any_number_of_threads(one_thread, threads):
    """Keys, rows and slots of ten tables, five optimizers each by ids and through two lookups, in the same order."""
    assert "sgd" in one_thread
    assert support.run_python(TRAIN, TF_NUM_INTRAOP_THREADS=threads).strip().splitlines()[-1] == one_thread


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=ids_of(ONE_OF_EACH))
def test_two_sessions_of_one_process_train_to_the_same_bits(graph, session, case):
    table = support.Raw.new(24, capacity=50000, initializer={"kind": "random_uniform", "min": -1.0, "max": 1.0})
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.compat.v1.placeholder(tf.float32, [None, 24])
    update = case.apply(table.handle, ids, grads, tf.constant(case.lr), tf.constant(3.0), by_ids=True)
    results = []
    for _ in range(2):
        sess = session()
        random = np.random.RandomState(1)
        for _ in range(4):
            sess.run(update, {ids: random.randint(0, 9000, 20000), grads: random.randn(20000, 24)})
        results.append(table.export(sess))
    assert results[0][0].tolist() == results[1][0].tolist()
    support.assert_same_bits(results[0][1], results[1][1])


def test_export_is_in_the_order_of_first_occurrence(graph, session):
    table = support.Raw.new(1, capacity=50000)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    offsets, _ = support.ops().resolve(table.handle, ids, create=1)
    sess = session()
    random = np.random.RandomState(2)
    batches = [random.randint(-10 ** 15, 10 ** 15, count) for count in (3, 20000, 1, 5000)]
    batches = [np.concatenate([batch, batch[: len(batch) // 2], [-1]]) for batch in batches]
    for batch in batches:
        sess.run(offsets, {ids: batch})
    expected = []
    seen = {-1}
    for key in np.concatenate(batches).tolist():
        if key not in seen:
            seen.add(key)
            expected.append(key)
    assert table.export(sess)[0].tolist() == expected


NORMAL = {"kind": "random_normal", "mean": 0.0, "stddev": 1.0}


@pytest.mark.parametrize("dim", [1, 3, 8, 64, 100])
def test_new_rows_do_not_depend_on_the_order_or_size_of_batches(graph, session, dim):
    table = support.Raw.new(dim, capacity=10000, initializer=NORMAL)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    offsets, _ = support.ops().resolve(table.handle, ids, create=1)
    keys = np.concatenate([np.arange(-3000, 3000), [support.INT64_MIN, support.INT64_MAX]])
    keys = keys[keys != -1]
    random = np.random.RandomState(3)
    whole = session()
    whole.run(offsets, {ids: keys})
    reference = table.rows(whole)
    for parts in (1, 7, 900):
        sess = session()
        for part in np.array_split(random.permutation(keys), parts):
            sess.run(offsets, {ids: np.concatenate([part, part[:3]])})
        support.assert_same_tables(table.rows(sess), reference)


@pytest.mark.parametrize("way", ["id_offset", "apply", "removed before"])
def test_a_new_row_is_the_same_by_whichever_verb_it_is_made(graph, session, way):
    ops = support.ops()
    table = support.Raw.new(5, initializer=NORMAL)
    ids = tf.constant([3, 99, 3, -7], tf.int64)
    create = ops.resolve(table.handle, ids, create=1).offsets
    nothing = support.update_ids("adagrad", table.handle, ids, tf.zeros([4, 5]), 0.5, 0.1)
    plain = session()
    plain.run(create)
    sess = session()
    if way == "apply":
        sess.run(nothing)
    else:
        if way == "removed before":
            table.assign(sess, [1, 3, 2], np.full([3, 5], 9.0))
            table.remove(sess, [3, 1])
        sess.run(create)
        table.remove(sess, [2])
    support.assert_same_tables(table.rows(sess), table.rows(plain))


def test_the_same_gradients_in_another_order_of_rows_give_each_row_the_same_bits(graph, session):
    """What a row becomes depends on the order of its own gradients only, not on the rows around it."""
    case = [case for case in CASES if case.name.startswith("lazy_adam")][0]
    table = support.Raw.new(16, initializer=NORMAL)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    grads = tf.compat.v1.placeholder(tf.float32, [None, 16])
    update = case.apply(table.handle, ids, grads, tf.constant(0.1), tf.constant(1.0), by_ids=True)
    random = np.random.RandomState(4)
    keys = random.randint(0, 300, 2000)
    values = random.randn(2000, 16).astype(np.float32)
    stable = np.argsort(keys, kind="stable")
    results = []
    for order in (np.arange(2000), stable):
        sess = session()
        sess.run(update, {ids: keys[order], grads: values[order]})
        results.append(table.rows(sess))
    support.assert_same_tables(*results)
