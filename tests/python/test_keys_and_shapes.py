"""Keys at the edges of int64, ids of every rank, empty batches, and what shape inference knows."""

import numpy as np
import pytest
import tensorflow as tf

import support
from support import lookup
from support import INT64_MAX, INT64_MIN
from mx_rec import plugin
from mx_rec.ops.shapes import definitions

EDGE_KEYS = [0, 1, -2, INT64_MIN, INT64_MAX, INT64_MIN + 1, INT64_MAX - 1, 2 ** 31, -2 ** 31, 2 ** 32, 2 ** 63 - 2 ** 32]


@pytest.mark.parametrize("train", [True, False])
def test_keys_at_the_edges_of_int64_are_ordinary_keys(graph, session, dynamic, train):
    table = support.make_table(dim=2)
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    embedding = lookup(table, ids, is_train=train)
    raw, sess = support.opened(table, session)
    rows = np.arange(2 * len(EDGE_KEYS), dtype=np.float32).reshape(-1, 2) + 1
    assert raw.assign(sess, EDGE_KEYS, rows) == len(EDGE_KEYS)
    support.assert_same_bits(sess.run(embedding, {ids: EDGE_KEYS}), rows)
    keys, values = raw.export(sess)
    assert keys.tolist() == EDGE_KEYS
    support.assert_same_bits(values, rows)


def test_edge_keys_are_made_trained_removed_and_made_again(graph, session, dynamic):
    from mx_rec.optimizers.gradient_descent import create_hash_optimizer

    table = support.make_table(dim=1)
    ids = tf.constant(EDGE_KEYS + [-1] + EDGE_KEYS, tf.int64)
    embedding = lookup(table, ids)
    count = len(EDGE_KEYS)
    weights = np.arange(2 * count + 1, dtype=np.float32).reshape(-1, 1)
    update = create_hash_optimizer(1.0).minimize(tf.reduce_sum(embedding * weights), var_list=[table.variable])
    raw, sess = support.opened(table, session, True)
    sess.run(update)
    rows = raw.rows(sess)
    assert sorted(rows) == sorted(EDGE_KEYS)
    for position, key in enumerate(EDGE_KEYS):
        assert rows[key].tolist() == [-(2.0 * position + count + 1)]
    assert raw.remove(sess, EDGE_KEYS + [-1, 12345]) == count
    assert raw.size(sess) == 0
    assert sess.run(embedding).max() == 0.0
    assert raw.size(sess) == count


def test_the_padding_key_never_gets_a_row_by_any_verb(graph, session):
    table = support.Raw.new(2, initializer={"kind": "ones"})
    minus = tf.constant([-1, -1], tf.int64)
    offsets, restore = support.ops().resolve(table.handle, minus, create=1)
    update = support.update_ids("sgd", table.handle, minus, tf.ones([2, 2]), 1.0, 0.0)
    absent = support.ops().find(table.handle, support.raw_variable(table), minus, tf.fill([1, 2], 9.0))
    sess = session()
    got = sess.run([offsets, restore])
    assert got[0].size == 0 and got[1].tolist() == [-1, -1]
    assert sess.run(update) == 0
    support.assert_same_bits(sess.run(absent), np.zeros([2, 2]))
    try:
        table.assign(sess, [-1], [[5, 5]])
    except tf.errors.InvalidArgumentError:
        pass
    assert table.size(sess) == 0
    assert table.remove(sess, [-1]) == 0


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
def test_int32_ids_are_the_same_keys_as_int64_ids(graph, session, dynamic, key_dtype):
    table = support.make_table(dim=2, key_dtype=getattr(tf, key_dtype))
    values = [0, 5, -1, -7, 2 ** 31 - 1, -2 ** 31]
    narrow = lookup(table, tf.constant(values, tf.int32))
    wide = lookup(table, tf.constant(values, tf.int64), is_train=False)
    raw, sess = support.opened(table, session)
    known = [0, 5, -7, 2 ** 31 - 1, -2 ** 31]
    rows = np.arange(10, dtype=np.float32).reshape(5, 2) + 1
    raw.assign(sess, known, rows)
    got = sess.run(narrow)
    support.assert_same_bits(got[[0, 1, 3, 4, 5]], rows)
    support.assert_same_bits(got[2], [0, 0])
    support.assert_same_bits(sess.run(wide), got)
    assert raw.size(sess) == 5


@pytest.mark.parametrize("op", ["id_offset", "find", "apply", "remove", "assign"])
def test_every_op_with_ids_takes_int32(graph, session, op):
    ops = support.ops()
    table = support.Raw.new(2)
    ids = tf.constant([-5, 3], tf.int32)
    made = {
        "id_offset": lambda: ops.resolve(table.handle, ids, create=0).offsets,
        "find": lambda: ops.find(table.handle, support.raw_variable(table), ids, tf.zeros([0, 2])),
        "apply": lambda: support.update_ids("sgd", table.handle, ids, tf.ones([2, 2]), 1.0, 0.0),
        "remove": lambda: ops.mx_rec_remove(table.handle, ids),
        "assign": lambda: ops.mx_rec_assign(table.handle, ids, tf.ones([2, 2]), [], [], []),
    }[op]()
    sess = session()
    table.assign(sess, [-5, 3], [[1, 2], [3, 4]])
    got = sess.run(made)
    rows = table.rows(sess)
    if op == "id_offset":
        assert support.row_of(got).tolist() == [0, 1]
    elif op == "find":
        support.assert_same_bits(got, [[1, 2], [3, 4]])
    elif op == "apply":
        assert got == 2 and rows[-5].tolist() == [0, 1] and rows[3].tolist() == [2, 3]
    elif op == "remove":
        assert got == 2 and not rows
    else:
        assert got == 2 and rows[-5].tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 1, 3)], ids=lambda shape: "rank%d" % len(shape))
@pytest.mark.parametrize("train", [True, False])
def test_ids_of_rank_0_to_4_give_embeddings_of_one_rank_more(graph, session, dynamic, shape, train):
    table = support.make_table(dim=2)
    values = np.random.RandomState(1).randint(0, 3, shape).astype(np.int64)
    embedding = lookup(table, tf.constant(values, tf.int64, shape=shape), is_train=train)
    assert embedding.shape.as_list() == list(shape) + [2]
    raw, sess = support.opened(table, session)
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    raw.assign(sess, [0, 1, 2], rows)
    support.assert_same_bits(sess.run(embedding), rows[values])
    if train:
        gradient = tf.gradients(tf.reduce_sum(embedding), table.variable)[0]
        got = sess.run(gradient)
        counts = {support.row_of(int(offset)): value for offset, value in zip(got.indices, got.values)}
        for key, count in zip(*np.unique(values, return_counts=True)):
            assert counts[int(key)].tolist() == [count, count]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("train", [True, False])
def test_empty_batches_give_empty_embeddings_and_updates_of_nothing(graph, session, dynamic, shape, train):
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer

    table = support.make_table(dim=2)
    ids = tf.compat.v1.placeholder(tf.int64, [None] * len(shape))
    embedding = lookup(table, ids, is_train=train)
    fetches = [embedding]
    if train:
        fetches.append(create_hash_optimizer(0.1).minimize(tf.reduce_sum(embedding), var_list=[table.variable]))
    raw, sess = support.opened(table, session, True)
    assert sess.run(fetches, {ids: np.zeros(shape, np.int64)})[0].shape == shape + (2,)
    assert raw.size(sess) == 0
    sess.run(fetches, {ids: np.full((1,) * len(shape), 8)})
    assert raw.size(sess) == (1 if train else 0)


def test_an_empty_table_exports_nothing_of_the_right_shape(graph, session):
    table = support.Raw.new(3)
    sess = session()
    keys, rows = table.export(sess)
    assert keys.shape == (0,) and rows.shape == (0, 3)
    assert keys.dtype == np.int64 and rows.dtype == np.float32


@pytest.mark.parametrize("ids_shape", [None, [None], [None, 3], [2, None], [4, 3], [], [None, 2, None, 1]])
@pytest.mark.parametrize("train", [True, False])
def test_static_shapes_go_through_sparse_lookup(graph, dynamic, ids_shape, train):
    table = support.make_table(dim=5)
    embedding = lookup(table, tf.compat.v1.placeholder(tf.int64, ids_shape), is_train=train)
    assert embedding.dtype == tf.float32
    if ids_shape is None:
        assert embedding.shape.ndims is None
    else:
        assert embedding.shape.as_list() == ids_shape + [5]
        # A layer that has to know its last dimension can be built on it.
        hidden = tf.compat.v1.layers.dense(embedding, 7) if ids_shape else embedding
        assert hidden.shape.as_list()[-1] == (7 if ids_shape else 5)


@pytest.mark.parametrize("train", [True, False])
def test_ids_of_unknown_rank_are_looked_up(graph, session, dynamic, train):
    table = support.make_table(dim=2)
    ids = tf.compat.v1.placeholder(tf.int64)
    embedding = lookup(table, ids, is_train=train)
    sess = session()
    for shape in [(), (2,), (1, 2, 1)]:
        assert sess.run(embedding, {ids: np.zeros(shape, np.int64)}).shape == shape + (2,)


def test_shapes_of_the_raw_ops_are_inferred(graph):
    ops = support.shaped_ops()
    table = support.Raw.new(4, ops=ops)
    ids = tf.compat.v1.placeholder(tf.int64, [None, 3])
    offsets, restore = ops.resolve(table.handle, ids, create=1)
    rows = ops.lookup(table.handle, support.raw_variable(table), offsets)
    embedding = ops.mx_rec_restore(rows, restore)
    keys, (exported,) = ops.mx_rec_export(table.handle, [support.bytes_tensor("")])
    expected = [
        (table.variable, [0, 4]), (table.handle, []), (offsets, [None]), (restore, [None, 3]), (rows, [None, 4]),
        (embedding, [None, 3, 4]), (ops.mx_rec_reduce(embedding, restore, offsets), [None, 4]),
        (ops.embed(table.handle, support.raw_variable(table), offsets, restore), [None, 3, 4]),
        (ops.find(table.handle, support.raw_variable(table), ids, tf.zeros([0, 4])), [None, 3, 4]),
        (support.update("sgd", [table.handle], [offsets], [embedding], [0.1, 0.0], [restore], ops=ops), []),
        (ops.mx_rec_table_stats(table.handle), [23]), (keys, [None]),
        (support.update("sgd", [table.handle], [offsets], [rows], [0.1, 0.0], ops=ops), []), (ops.mx_rec_clear(table.handle, [], [], []), []),
        (ops.mx_rec_remove(table.handle, ids), []), (ops.mx_rec_assign(table.handle, offsets, rows, [], [], []), []),
    ]
    for tensor, shape in expected:
        assert tensor.shape.as_list() == shape, tensor.op.type
    assert exported.shape.ndims == 2
    dtypes = [(table.variable, tf.float32), (table.handle, tf.int64), (offsets, tf.int64), (restore, tf.int32)]
    for tensor, dtype in dtypes:
        assert tensor.dtype == dtype


def test_an_export_gives_the_fields_that_are_asked_for_in_their_order_and_keys_alone(graph, session):
    ops, table = support.ops(), support.Raw.new(2)
    update = support.update_ids("adagrad", table.handle, [5, 3], tf.ones([2, 2]), 1.0, 0.5)
    slot, embedding = support.bytes_tensor("Adagrad_accumulator"), support.bytes_tensor("")
    sess = session()
    for fields in ([slot, embedding, slot], []):
        export = ops.mx_rec_export(table.handle, fields)
        sess.run(update)
        keys, values = sess.run([export.keys, export.values])
        assert keys.tolist() == [5, 3] and len(values) == len(fields)
        for field, found in zip(fields, values):
            expected = table.slot_rows(sess, "Adagrad_accumulator") if field is slot else table.rows(sess)
            support.assert_same_bits(found, support.as_array(expected, keys))


def wrong_shapes():
    """(name, function of (tf, ops, table) that must fail while the graph is built)."""
    def of(make):
        return make

    return [
        ("handle of rank 1", of(lambda tf, ops, t: ops.mx_rec_clear(tf.zeros([1], tf.int64), [], [], []))),
        ("offsets of rank 2", of(lambda tf, ops, t: ops.lookup(t.handle, support.raw_variable(t), tf.zeros([1, 1], tf.int64)))),
        ("variable of rank 1", of(lambda tf, ops, t: ops.lookup(t.handle, tf.zeros([4]), tf.zeros([1], tf.int64)))),
        ("offsets of rank 0", of(lambda tf, ops, t: ops.embed(
            t.handle, support.raw_variable(t), tf.zeros([], tf.int64), tf.zeros([1], tf.int32)))),
        ("second offsets of rank 2", of(lambda tf, ops, t: support.update(
            "sgd", [t.handle] * 2, [tf.zeros([1], tf.int64), tf.zeros([1, 1], tf.int64)], [tf.zeros([1, 4])] * 2,
            [0.1, 0.0], [tf.zeros([1], tf.int32)] * 2, ops=ops))),
        ("weight decay of rank 1 behind lists", of(lambda tf, ops, t: support.update(
            "sgd", [t.handle], [tf.zeros([1], tf.int64)], [tf.zeros([1, 4])], [0.1, [0.0]], [tf.zeros([1], tf.int32)],
            ops=ops))),
        ("no member", of(lambda tf, ops, t: support.update("sgd", [], [], [], [0.1, 0.0], ops=ops))),
        ("columns of rank 0", of(lambda tf, ops, t: support.update(
            "sgd", [t.handle], [tf.zeros([1], tf.int64)], [tf.zeros([1, 4])], [0.1, 0.0], [tf.zeros([1], tf.int32)],
            columns=[tf.constant(0)], ops=ops))),
        ("rows of rank 1", of(lambda tf, ops, t: ops.mx_rec_restore(tf.zeros([4]), tf.zeros([1], tf.int32)))),
        ("gradient of rank 0", of(lambda tf, ops, t: support.update(
            "sgd", [t.handle], [tf.zeros([4], tf.int64)], [tf.zeros([])], [0.1, 0.0], ops=ops))),
        ("learning rate of rank 1", of(lambda tf, ops, t: support.update(
            "sgd", [t.handle], [tf.zeros([1], tf.int64)], [tf.zeros([1, 4])], [[0.1], 0.0], ops=ops))),
        ("absent of rank 1", of(lambda tf, ops, t: ops.find(
            t.handle, support.raw_variable(t), tf.zeros([1], tf.int64), tf.zeros([4])))),
        ("config of rank 0", of(lambda tf, ops, t: ops.mx_rec_table(tf.constant(1, tf.uint8), tf.zeros([0, 4])))),
        ("dims that differ", of(lambda tf, ops, t: ops.find(
            t.handle, tf.zeros([0, 4]), tf.zeros([1], tf.int64), tf.zeros([1, 5])))),
        ("gradients of another shape than the ids", of(lambda tf, ops, t: ops.mx_rec_reduce(
            tf.zeros([2, 3, 4]), tf.zeros([3, 2], tf.int32), tf.zeros([1], tf.int64)))),
        ("two timestamps", of(lambda tf, ops, t: ops.mx_rec_observe(
            t.handle, [1], 1, [1, 2], access_threshold=1, eviction_threshold=-1))),
        ("ids of floats", of(lambda tf, ops, t: ops.resolve(t.handle, tf.zeros([1]), create=1))),
        ("handle of int32", of(lambda tf, ops, t: ops.mx_rec_clear(tf.constant(1, tf.int32), [], [], []))),
        ("gradient of doubles", of(lambda tf, ops, t: support.update(
            "sgd", [t.handle], [tf.zeros([1], tf.int64)], [tf.zeros([1, 4], tf.float64)], [0.1, 0.0], ops=ops))),
    ]


@pytest.mark.parametrize("make", [case[1] for case in wrong_shapes()], ids=[case[0] for case in wrong_shapes()])
def test_wrong_ranks_and_types_are_refused_while_the_graph_is_built(graph, make):
    with pytest.raises((ValueError, TypeError)):
        make(tf, support.shaped_ops(), support.Raw.new(4))


@pytest.mark.parametrize("way", ["op", "question"])
def test_a_map_function_that_autograph_converts_makes_ops(graph, session, way):
    """AutoGraph went into the calls of the plugin and read a result that was freed: the process ended."""
    inverse = tf.constant([0, 0, -1], tf.int32)

    def rows(value):
        if way == "question":
            status, answer = plugin.call("mx_rec_op_definitions")
            assert status == 0 and answer.startswith(b"[{"), answer[:80]
        return support.shaped_ops().mx_rec_restore(tf.fill([1, 2], value), inverse)

    data = tf.data.Dataset.from_tensors(np.float32(3)).map(rows)
    assert tf.compat.v1.data.get_output_shapes(data).as_list() == [3, 2]
    found = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    assert session().run(found).tolist() == [[3, 3], [3, 3], [0, 0]]


def test_gradients_are_registered_as_the_definitions_say(graph):
    from tensorflow.python.framework import ops as tf_ops

    with_gradient = {name for name, one in definitions().items() if one["differentiable"]}
    assert with_gradient == {"MxRecRead", "MxRecRestore", "MxRecReduce", "MxRecReduceColumns", "MxRecRestorePooled", "MxRecReducePooled", "MxRecBagWeights",
                             "MxRecBagDivisors", "MxRecPooledWeightGradient", "MxRecStitch"}
    for name in definitions():
        # TensorFlow keeps None for an op that has no gradient, and knows nothing of others.
        assert (tf_ops._gradient_registry.lookup(name) is not None) == (name in with_gradient), name


def test_registered_ops_are_what_the_definitions_say(graph):
    from tensorflow.python.framework import op_def_registry

    registered = {name: op for name, op in op_def_registry.get_registered_ops().items() if name.startswith("MxRec")}
    assert set(registered) == set(definitions())
    for name, one in definitions().items():
        assert [arg.name for arg in registered[name].input_arg] == [arg["name"] for arg in one["inputs"]]
        assert [arg.name for arg in registered[name].output_arg] == [arg["name"] for arg in one["outputs"]]
        assert registered[name].is_stateful == one["stateful"], name


def test_ops_on_tables_are_stateful_and_pure_ones_are_not(graph):
    """A stateful op is neither folded nor merged nor run twice."""
    from tensorflow.python.framework import op_def_registry

    support.ops()
    registered = {name: op for name, op in op_def_registry.get_registered_ops().items() if name.startswith("MxRec")}
    pure = {"MxRecRestore", "MxRecReduce", "MxRecReduceColumns", "MxRecRestorePooled", "MxRecReducePooled",
            "MxRecPooledWeightGradient", "MxRecBagEnds", "MxRecRaggedBagEnds", "MxRecSparseBagEnds", "MxRecSparseBagsMany", "MxRecBagWeights",
            "MxRecBagDivisors", "MxRecCheckedIds", "MxRecDistinctSplit", "MxRecStitch", "MxRecPackGradients"}
    expected = pure | {"MxRec" + name for name in (
        "Table", "IdOffset", "Prepare", "Read", "Find", "Export", "Assign", "Remove", "Clear",
        "Save", "Load", "Update", "Push")}
    assert expected <= set(registered)
    assert {name for name in registered if not registered[name].is_stateful} == pure
