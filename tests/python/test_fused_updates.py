"""Gradients that are summed in the op that applies them: when that happens, and that no bit depends on it."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import OF_EACH_SIZE, ids_of
from support import lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import terminate_config_initializer


def make_table(name, dim=5, **arguments):
    return support.make_table(name, dim, 1000, **arguments)


def sgd(rate=1.0):
    return create_hash_optimizer(rate)


def loss_of(embeddings):
    """A loss whose gradient differs from occurrence to occurrence, over several orders of magnitude."""
    losses = []
    for number, embedding in enumerate(embeddings):
        place = tf.cast(tf.reshape(tf.range(tf.size(embedding)), tf.shape(embedding)), tf.float32)
        losses.append(tf.reduce_sum(tf.sin(embedding + place) * tf.exp(place % 17.0 - 8.0 + number)))
    return tf.add_n(losses)


def untouched(gradient):
    """The same gradient, but no output of MxRecReduce: an update that is not fused."""
    return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices)


def needed(*fetches):
    """The plugin's ops that a run of ops and tensors runs, a first one too: type -> ops."""
    support.pass_over(fetches[0].graph)
    found, waiting = {}, [getattr(one, "op", one) for one in fetches]
    seen = set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type.startswith("MxRec"):
            found.setdefault(support.kind_of(op), []).append(op)
        waiting.extend([tensor.op for tensor in op.inputs] + list(op.control_inputs))
    return found


def fused_lookups(train):
    """For each table how many lookups its fused update takes; empty if nothing is fused."""
    return [op.get_attr("N") for op in needed(train).get("MxRecUpdate", []) if support.form_of(op) == "ids"]


def is_plain(train):
    """Whether every update takes sums that MxRecReduce has made."""
    types = needed(train)
    return not fused_lookups(train) and "MxRecReduce" in types


BATCHES = [
    [[[3, 3, -1], [7, 3, 9]], [[9, 9, 1, 3]]],
    [[[-1, -1, -1]], [[5, 3, 5, 7], [5, 5, -1, 0]]],
    [np.zeros([0, 3]), [[3, -1, 3, 11]]],
    [np.zeros([2, 0]), np.zeros([0, 4])],
    [[[0, 1, 2]] * 40, [[2, 1, 0, 2]] * 30],
]


@pytest.mark.parametrize("lookups", [1, 2])
@pytest.mark.parametrize("case", OF_EACH_SIZE, ids=ids_of(OF_EACH_SIZE))
def test_a_fused_update_gives_the_bits_of_one_that_is_not(graph, session, dynamic, case, lookups):
    """Duplicates within and across lookups, padding, batches without ids."""
    feeds = [tf.compat.v1.placeholder(tf.int64, [None, None]) for _ in range(lookups)]
    tables = [make_table("fused"), make_table("plain")]
    trains = []
    for table in tables:
        optimizer = case.ours(tf.constant(0.1 * case.lr))
        loss = loss_of([lookup(table, ids) for ids in feeds])
        gradient = tf.gradients(loss, table.variable)[0]
        if table is tables[1]:
            gradient = untouched(gradient)
        trains.append(optimizer.apply_gradients([(gradient, table.variable)]))
    assert fused_lookups(trains[0]) == [lookups] and "MxRecReduce" not in needed(trains[0])
    assert is_plain(trains[1])
    raws = [support.Raw.of(table) for table in tables]
    slots = [[raw.slot(name) for name, _ in case.slots] for raw in raws]
    sess = support.started(session())
    initial = np.random.RandomState(1).randn(12, 5).astype(np.float32)
    for raw in raws:
        raw.assign(sess, np.arange(12), initial)
    for batch in BATCHES:
        feed = {ids: np.asarray(values, np.int64) for ids, values in zip(feeds, batch)}
        for train in trains:
            sess.run(train, feed)
        rows = [raw.rows(sess) for raw in raws]
        support.assert_same_tables(*rows)
    assert not np.array_equal(rows[0][3], initial[3])
    for ours, theirs in zip(*slots):
        (keys, values), (other_keys, other_values) = sess.run([ours, theirs])
        support.assert_same_tables(dict(zip(keys.tolist(), values)), dict(zip(other_keys.tolist(), other_values)))


def test_several_pairs_of_one_table_and_several_tables_are_fused(graph, session, dynamic):
    tables = [make_table("first"), make_table("second")]
    ids = tf.constant([4, 4, 6], tf.int64)
    embeddings = [lookup(tables[0], ids), lookup(tables[0], ids[:2]), lookup(tables[1], ids)]
    pairs = [(tf.gradients(loss_of([embedding]), table.variable)[0], table.variable)
             for embedding, table in zip(embeddings, [tables[0], tables[0], tables[1]])]
    train = sgd().apply_gradients(pairs)
    assert fused_lookups(train) == [3] and "MxRecReduce" not in needed(train)
    sess = session()
    sess.run(train)
    assert support.Raw.of(tables[0]).size(sess) == 2


def clipped(tf, gradient):
    return tf.clip_by_global_norm([gradient], 0.5)[0][0]


def clipped_by_value(tf, gradient):
    return tf.IndexedSlices(tf.clip_by_value(gradient.values, -0.1, 0.1), gradient.indices)


def scaled(tf, gradient):
    return tf.IndexedSlices(gradient.values * 0.5, gradient.indices)


def moved(tf, gradient):
    return tf.IndexedSlices(gradient.values, tf.reverse(gradient.indices, [0]))


def doubled(tf, gradient):
    return tf.IndexedSlices(tf.concat([gradient.values] * 2, 0), tf.concat([gradient.indices] * 2, 0))


def swapped(tf, gradient):
    """Sums of one lookup with the offsets of another."""
    first, second = list(gradient.values.op.inputs)[:2]
    offsets = list(gradient.indices.op.inputs)[:2]
    return tf.IndexedSlices(tf.concat([second, first], 0), tf.concat(offsets, 0))


CHANGES = [(clipped, 1), (clipped_by_value, 1), (scaled, 1), (moved, 1), (clipped, 2), (scaled, 2), (swapped, 2)]


@pytest.mark.parametrize("change, lookups", CHANGES, ids=["%s-%d" % (change.__name__, n) for change, n in CHANGES])
def test_a_gradient_that_something_changes_is_not_fused(graph, session, dynamic, change, lookups):
    """And is applied as it is: rows of the rate 1 become the negative of what the gradient says."""
    table = make_table("table", 2)
    ids = tf.constant([3, 8, 3], tf.int64)
    embeddings = [lookup(table, ids), lookup(table, ids + 1)][:lookups]
    gradient = change(tf, tf.gradients(loss_of(embeddings), table.variable)[0])
    train = sgd().apply_gradients([(gradient, table.variable)])
    assert is_plain(train)
    raw = support.Raw.of(table)
    with tf.control_dependencies([train]):
        done = tf.no_op()
    sess = session()
    got, _ = sess.run([gradient, done])
    keys = raw.export(sess)[0]
    expected = {}
    for offset, value in zip(got.indices, got.values):
        key = int(keys[support.row_of(offset)])
        expected[key] = expected.get(key, np.float32(0)) + value
    support.assert_same_tables(raw.rows(sess), {key: 0 - value for key, value in expected.items()})


def test_sums_that_occur_twice_are_added_twice(graph, session, dynamic):
    table = make_table("table", 2)
    embedding = lookup(table, tf.constant([3, 8, 3], tf.int64))
    gradient = tf.gradients(tf.reduce_sum(embedding), table.variable)[0]
    train = sgd().apply_gradients([(doubled(tf, gradient), table.variable)])
    assert fused_lookups(train) == [2]
    raw, sess = support.opened(table, session)
    sess.run(train)
    rows = raw.rows(sess)
    assert rows[3].tolist() == [-4.0, -4.0] and rows[8].tolist() == [-2.0, -2.0]


def test_one_changed_gradient_of_a_table_keeps_all_of_them_as_they_are(graph, session, dynamic):
    table, other = make_table("table", 2), make_table("other", 2)
    ids = tf.constant([3, 8, 3], tf.int64)
    first, second = [tf.gradients(tf.reduce_sum(lookup(table, ids)), table.variable)[0] for _ in range(2)]
    third = tf.gradients(tf.reduce_sum(lookup(other, ids)), other.variable)[0]
    train = sgd().apply_gradients([(first, table.variable), (scaled(tf, second), table.variable),
                                   (third, other.variable)])
    types = needed(train)
    assert sorted(map(support.form_of, types["MxRecUpdate"])) == ["ids", "rows"] and len(types["MxRecReduce"]) == 2
    assert fused_lookups(train) == [1]
    raws = support.Raw.of(table), support.Raw.of(other)
    sess = session()
    sess.run(train)
    assert raws[0].rows(sess)[3].tolist() == [-3.0, -3.0] and raws[1].rows(sess)[3].tolist() == [-2.0, -2.0]


def test_lookups_without_gradient_take_no_part(graph, session, dynamic):
    table = make_table("table", 2)
    frozen = lookup(table, tf.constant([3, 5], tf.int64), is_grad=False)
    loss = tf.reduce_sum(lookup(table, tf.constant([3, 4], tf.int64))) + tf.reduce_sum(frozen * frozen)
    train = sgd().minimize(loss, var_list=[table.variable])
    assert fused_lookups(train) == [1]
    raw, sess = support.opened(table, session)
    sess.run([train, frozen])
    rows = raw.rows(sess)
    assert [rows[key].tolist() for key in (3, 4, 5)] == [[-1, -1], [-1, -1], [0, 0]]


@pytest.mark.parametrize("where", ["reduce", "concat of sums", "concat of offsets", "minimize"])
def test_a_fused_update_waits_for_what_the_sums_would_have_waited_for(graph, session, dynamic, where):
    table = make_table("table", 2)
    count = tf.compat.v1.Variable(0, use_resource=False)
    before = tf.compat.v1.assign_add(count, 1).op
    embeddings = [lookup(table, tf.constant([3, 4, 3], tf.int64)) for _ in range(2)]
    loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings])
    if where == "minimize":
        with tf.control_dependencies([before]):
            train = sgd().minimize(loss, var_list=[table.variable])
    else:
        ones, sums, offsets = tf.ones([3, 2]), [], []
        for embedding in embeddings:
            restore = embedding.op.inputs[3]
            offsets.append(embedding.op.inputs[2])
            with tf.control_dependencies([before] if where == "reduce" else []):
                sums.append(support.shaped_ops().mx_rec_reduce(ones, restore, offsets[-1]))
        with tf.control_dependencies([before] if where == "concat of sums" else []):
            values = tf.concat(sums, 0)
        with tf.control_dependencies([before] if where == "concat of offsets" else []):
            indices = tf.concat(offsets, 0)
        train = sgd().apply_gradients([(tf.IndexedSlices(values, indices), table.variable)])
    assert fused_lookups(train) == [2]
    sess = support.started(session())
    sess.run(train)
    assert sess.run(count) == 1


def test_colocated_gradients_are_fused(graph, session, dynamic):
    table = make_table("table", 2)
    loss = tf.reduce_sum(lookup(table, tf.constant([3, 4, 3], tf.int64)))
    train = sgd().minimize(loss, var_list=[table.variable], colocate_gradients_with_ops=True)
    assert fused_lookups(train) == [1]
    raw, sess = support.opened(table, session)
    sess.run(train)
    assert raw.rows(sess)[3].tolist() == [-2.0, -2.0]


def test_an_update_under_a_condition_takes_the_sums_made_outside(graph, session, dynamic):
    table = make_table("table", 2)
    wanted = tf.compat.v1.placeholder(tf.bool, [])
    loss = tf.reduce_sum(lookup(table, tf.constant([3, 4, 3], tf.int64)))
    gradient = tf.gradients(loss, table.variable)[0]

    def update():
        with tf.control_dependencies([sgd().apply_gradients([(gradient, table.variable)])]):
            return tf.constant(True)

    done = tf.cond(wanted, update, lambda: tf.constant(False))
    assert is_plain(done.op)
    raw, sess = support.opened(table, session)
    assert not sess.run(done, {wanted: False})
    assert raw.rows(sess)[3].tolist() == [0.0, 0.0]
    assert sess.run(done, {wanted: True})
    assert raw.rows(sess)[3].tolist() == [-2.0, -2.0]


def test_one_op_embeds_what_lookup_and_restore_do(graph, session):
    ops = support.ops()
    table = support.Raw.new(5, capacity=10000, initializer={"kind": "random_normal", "mean": 0.0, "stddev": 1.0})
    ids = tf.compat.v1.placeholder(tf.int64)
    offsets, restore = ops.resolve(table.handle, ids, create=1)
    rows = ops.lookup(table.handle, support.raw_variable(table), offsets)
    both = [ops.embed(table.handle, support.raw_variable(table), offsets, restore), ops.mx_rec_restore(rows, restore)]
    sess = session()
    for batch in (7, [], [-1, -1], [[1, 2, 1], [-1, 1, 9]], np.zeros([3, 0, 2]), np.arange(40000) % 7001 - 1):
        one, two = sess.run(both, {ids: np.asarray(batch, np.int64)})
        assert one.shape == np.shape(batch) + (5,)
        support.assert_same_bits(one, two)


def test_the_distinct_rows_are_a_tensor_where_they_are_asked_for(graph, mx):
    """With dynamic expansion gradients are taken of them."""
    ids = tf.constant([1, 2], tf.int64)
    for expansion in (False, True):
        terminate_config_initializer()
        mx(use_dynamic_expansion=expansion)
        found = needed(lookup(make_table("expansion_%d" % expansion), ids).op)
        assert ("MxRecRead" in found) != expansion and ("MxRecRead distinct" in found) == expansion
        found = needed(lookup(make_table("still_%d" % expansion), ids, is_grad=False).op)
        assert "MxRecRead" in found and "MxRecRead distinct" not in found


def fed(sess, train, feed):
    """The error of a step with a fed gradient; None if the step ran."""
    try:
        sess.run(train, feed)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("imported", [None, "before its first run", "fused"])
@pytest.mark.parametrize("lookups", [1, 2])
def test_a_gradient_that_a_fused_update_does_not_read_cannot_be_fed(graph, session, dynamic, lookups, imported):
    """The fed gradient was ignored: rows moved by the one that the step computed."""
    ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    table = make_table("table", 2)
    gradient = tf.gradients(loss_of([lookup(table, ids) for _ in range(lookups)]), table.variable)[0]
    train = sgd().apply_gradients([(gradient, table.variable)], name="train")
    if imported == "fused":
        assert fused_lookups(train) == [lookups]
    names = [gradient.values.name] + [gradient.indices.name] * (lookups > 1)
    if imported:
        meta = tf.compat.v1.train.export_meta_graph()
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.train.import_meta_graph(meta)
    graph = tf.compat.v1.get_default_graph()
    raw = support.Raw(*graph.get_operation_by_name("table").outputs, dim=2)
    train = graph.get_operation_by_name("train")
    assert fused_lookups(train) == [lookups]
    values, indices = graph.get_tensor_by_name(names[0]), graph.get_tensor_by_name(names[-1])
    reduced = [op.outputs[0] for op in graph.get_operations() if op.type == "MxRecReduce"]
    assert len(reduced) == lookups
    with support.new_session(graph) as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        feeds = [{values: np.full([2, 2], 9.0)}] + [{one: np.full([2, 2], 9.0)} for one in reduced]
        if lookups > 1:
            feeds.append({indices: [0, 1, 0, 1]})
            feeds.extend({tensor.op.inputs[-1]: 1} for tensor in (values, indices))
        for feed in feeds:
            assert "may not be fed" in str(fed(sess, train, {**feed, graph.get_tensor_by_name("ids:0"): [3, 4]}))
        assert raw.rows(sess) == {}
        # Fetches stay right.
        found = sess.run([values, train], {graph.get_tensor_by_name("ids:0"): [3, 4]})[0]
        assert found.shape == (2 * lookups, 2) and found.any()


def test_a_gradient_that_is_fed_between_is_the_one_that_is_applied(graph, session, dynamic):
    """What is read may be fed: values of an update that is not fused, offsets, restore, embeddings, ids."""
    ids = tf.compat.v1.placeholder_with_default(tf.constant([3, 4, 3], tf.int64), [None])
    tables = [make_table(name, 2) for name in ("fused", "plain")]
    embeddings = [lookup(table, ids) for table in tables]
    gradients = [tf.gradients(tf.reduce_sum(tf.square(embedding) + embedding), table.variable)[0]
                 for embedding, table in zip(embeddings, tables)]
    gradients[1] = untouched(gradients[1])
    trains = [sgd().apply_gradients([(gradient, table.variable)]) for gradient, table in zip(gradients, tables)]
    assert fused_lookups(trains[0]) == [1] and is_plain(trains[1])
    raws = [support.Raw.of(table) for table in tables]
    restores = [embedding.op.inputs[3] for embedding in embeddings]
    sess = support.started(session())
    sess.run(trains[1], {gradients[1].values: [[1.0, 2.0], [5.0, 6.0]]})
    assert raws[1].rows(sess)[3].tolist() == [-1.0, -2.0] and raws[1].rows(sess)[4].tolist() == [-5.0, -6.0]
    for raw in raws:
        raw.assign(sess, [3, 4, 5], np.zeros([3, 2]))
    for kind in range(4):
        for train, gradient, embedding, restore in zip(trains, gradients, embeddings, restores):
            offsets = sess.run(gradient.indices)
            sess.run(train, [{embedding: np.full([3, 2], 2.0)}, {restore: [1, 1, -1]}, {ids: [5, 5, 4]},
                             {gradient.indices: offsets[::-1].copy()}][kind])
        rows = [raw.rows(sess) for raw in raws]
        support.assert_same_tables(*rows)
    # Embeddings of 2 have gradients of 5; then restore gives two of three to key 4.
    assert rows[0][5].any() and not np.array_equal(rows[0][3], rows[0][4])
