"""Tables with dynamic expansion: they grow past their sizes, and the by-address optimizers compute the same numbers."""

import numpy as np
import pytest
import tensorflow as tf

import support
from support import lookup
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.optimizers.gradient_descent_by_addr import create_hash_optimizer_by_addr
from mx_rec.util.initialize import terminate_config_initializer


def collections():
    """(looked-up rows, their offsets), as scripts take them."""
    return (tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB),
            tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET))


def make_table(name="table", dim=4, **arguments):
    return support.make_table(name, dim, 3, tf.compat.v1.random_normal_initializer(seed=1), **arguments)


def sgd(by_address):
    if by_address:
        return create_hash_optimizer_by_addr(0.1, weight_decay=0.0001)
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer
    return create_hash_optimizer(0.1, weight_decay=0.0001)


def adagrad(by_address):
    if by_address:
        from mx_rec.optimizers.adagrad_by_addr import create_hash_optimizer_by_address
        return create_hash_optimizer_by_address(0.1, initial_accumulator_value=0.5)
    from mx_rec.optimizers.adagrad import create_hash_optimizer
    return create_hash_optimizer(0.1, initial_accumulator_value=0.5)


def lazy_adam(by_address):
    if by_address:
        from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address
        return create_hash_optimizer_by_address(0.1)
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer
    return create_hash_optimizer(0.1)


def rmsprop(by_address):
    if by_address:
        from mx_rec.optimizers.rmsprop_by_addr import create_hash_optimizer_by_address
        return create_hash_optimizer_by_address(0.1, momentum=0.5, centered=True)
    from mx_rec.optimizers.rmsprop import create_hash_optimizer
    return create_hash_optimizer(0.1, momentum=0.5, centered=True)


def trained(session, mx, make, by_address, lookups):
    """Rows after ten steps of a model with `lookups` lookups of one table."""
    tf.compat.v1.reset_default_graph()
    terminate_config_initializer()
    mx(use_dynamic_expansion=by_address)
    if by_address:
        table = make_table()
    else:
        table = support.make_table("table", 4, 1000, tf.compat.v1.random_normal_initializer(seed=1))
    ids = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in range(lookups)]
    loss = tf.add_n([tf.reduce_sum(tf.square(lookup(table, one)) * (number + 1)) for number, one in enumerate(ids)])
    if by_address:
        rows, offsets = collections()
        assert len(rows) == len(offsets) == lookups
        update = make(True).apply_gradients(zip(tf.gradients(loss, rows), offsets))
    else:
        update = make(False).minimize(loss, var_list=[table.variable])
    raw = support.Raw.of(table)
    with support.started(support.new_session()) as sess:
        random = np.random.RandomState(0)
        for _ in range(10):
            sess.run(update, {one: random.randint(0, 40, 12) for one in ids})
        if by_address:
            assert table.capacity() >= table.size() == raw.size(sess)
        return raw.rows(sess)


@pytest.mark.parametrize("lookups", [1, 2])
@pytest.mark.parametrize("make", [sgd, adagrad, lazy_adam, rmsprop])
def test_by_address_optimizers_give_the_bits_of_the_others(graph, session, mx, make, lookups):
    expected = trained(session, mx, make, False, lookups)
    assert len(expected) > 30
    support.assert_same_tables(trained(session, mx, make, True, lookups), expected)


def test_a_table_grows_far_beyond_its_size(graph, session, mx):
    mx(use_dynamic_expansion=True)
    table = make_table()
    embedding = lookup(table, tf.range(50000, dtype=tf.int64))
    raw, sess = support.opened(table, session)
    assert sess.run(embedding).shape == (50000, 4)
    assert raw.size(sess) == 50000


def test_optimizers_of_the_other_mode_are_refused(graph, mx):
    for expansion in (True, False):
        terminate_config_initializer()
        mx(use_dynamic_expansion=expansion)
        for make in (sgd, adagrad, lazy_adam):
            with pytest.raises(ValueError) as error:
                make(not expansion)
            assert "The dynamic expansion mode is not compatible with the optimizer" in str(error.value)


def test_merged_tables_share_rows_and_train_apart(graph, session, mx):
    mx(use_dynamic_expansion=True)
    tables = [make_table(name, enable_merge=True) for name in ("first", "second")]
    other = make_table("third", dim=2, enable_merge=True)
    assert tables[0].variable is tables[1].variable and other.variable is not tables[0].variable
    embeddings = [lookup(tables[0], tf.constant([1, 2], tf.int64)), lookup(tables[1], tf.constant([101], tf.int64))]
    rows, offsets = collections()
    loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings])
    update = sgd(True).apply_gradients(zip(tf.gradients(loss, rows), offsets))
    raw = support.Raw.of(tables[0])
    sess = session()
    before = sess.run(embeddings)
    sess.run(update)
    after = raw.rows(sess)
    assert sorted(after) == [1, 2, 101]
    support.assert_rounding(after[101], before[1][0] - 0.1 * (1.0 + 0.0001 * before[1][0].astype(np.float64)), 4, 1.0)


def test_merging_without_expansion_is_a_runtime_error(graph, dynamic):
    with pytest.raises(RuntimeError) as error:
        make_table(enable_merge=True)
    assert "merge table function requires dynamic expansion mode" in str(error.value)


def lookups_of_two_tables():
    """(loss, ids to feed) of a model with two tables, three lookups and one embedding that is used twice."""
    tables = [support.make_table(name, dim, 1000, tf.compat.v1.random_normal_initializer(seed=seed))
              for name, dim, seed in (("users", 4, 1), ("items", 3, 2))]
    ids = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in range(3)]
    users, items, others = [lookup(table, one) for table, one in zip([tables[0], tables[1], tables[0]], ids)]
    loss = tf.reduce_sum(users * others) + tf.reduce_sum(tf.square(items))
    return tables, ids, loss + tf.reduce_sum(tf.sin(users)) * tf.reduce_mean(items)


@pytest.mark.parametrize("make", [sgd, adagrad, lazy_adam, rmsprop])
def test_pairs_in_the_order_of_the_collections_train_as_tables_do(graph, session, mx, make):
    trained_tables = []
    for expansion in (False, True):
        tf.compat.v1.reset_default_graph()
        terminate_config_initializer()
        mx(use_dynamic_expansion=expansion)
        tables, ids, loss = lookups_of_two_tables()
        optimizer = make(expansion)
        if expansion:
            rows, offsets = collections()
            assert [one.shape[-1].value for one in rows] == [4, 3, 4]
            update = optimizer.apply_gradients(list(zip(tf.gradients(loss, rows), offsets)))
        else:
            variables = [table.variable for table in tables]
            update = optimizer.apply_gradients(zip(tf.gradients(loss, variables), variables))
        raws = [support.Raw.of(table) for table in tables]
        with support.started(support.new_session()) as sess:
            random = np.random.RandomState(0)
            for _ in range(8):
                sess.run(update, {one: random.randint(-5, 25, 9) for one in ids})
            trained_tables.append([raw.rows(sess) for raw in raws])
    for expected, found in zip(*trained_tables):
        assert len(expected) > 20
        support.assert_same_tables(found, expected)


GROW_TO_THE_END = """
import resource, sys
import numpy as np
import tensorflow as tf
import support
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init

init(use_dynamic_expansion=True)
table = create_table(key_dtype=tf.int64, dim=256, name="endless", device_vocabulary_size=1,
                     emb_initializer=tf.compat.v1.random_normal_initializer(seed=1))
ids = tf.compat.v1.placeholder(tf.int64, [None])
embedding = sparse_lookup(table, ids, modify_graph=True)
total = tf.reduce_sum(embedding)
with support.new_session() as sess:
    first = sess.run(embedding, {ids: np.arange(100)})
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (400 << 20), size + (400 << 20)))
    for step in range(1, 1000):
        before = table.size()
        try:
            sess.run(total, {ids: np.arange(step * 20000, (step + 1) * 20000)})
        except tf.errors.ResourceExhaustedError as error:
            assert "endless" in str(error) and "memory" in str(error), str(error)
            break
    else:
        sys.exit("memory did not end")
    assert step > 3 and table.size() == before, (step, before, table.size())
    assert (sess.run(embedding, {ids: np.arange(100)}) == first).all()
    print("grown to", table.size(), "rows")
"""


@pytest.mark.long
def test_the_end_of_memory_is_an_error_and_the_table_stays():
    output = support.run_python(GROW_TO_THE_END)
    assert "grown to" in output


def test_tables_of_any_size_are_restored(graph, session, mx, tmp_path):
    mx(use_dynamic_expansion=True)
    table = make_table()
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    rows_of = lookup(table, ids, is_train=True)
    rows, offsets = collections()
    update = lazy_adam(True).apply_gradients(zip(tf.gradients(tf.reduce_sum(tf.square(rows_of)), rows), offsets))
    saver = tf.compat.v1.train.Saver()
    raw = support.Raw.of(table)
    prefix = str(tmp_path / "model")
    with support.started(support.new_session()) as sess:
        sess.run(update, {ids: np.arange(5000)})
        saver.save(sess, prefix)
        expected = raw.rows(sess)
    with support.restored(support.new_session(), saver, prefix) as sess:
        assert table.size() == table.capacity() == 5000
        support.assert_same_tables(raw.rows(sess), expected)
        sess.run(update, {ids: np.arange(4000, 9000)})
        assert table.size() == 9000
