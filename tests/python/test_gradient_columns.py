"""Updates read gradients where the gradient of a concatenation has them: the bits of sliced ones, no op that slices."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import OF_EACH_SIZE, ids_of
from pooled_cases import one_by_one
from test_fused_updates import lookup, needed, sgd, untouched
from test_grouped_updates import make_table, updates_of
from test_sparse_lookup_many import filled
from mx_rec.core.embedding import sparse_lookup_pooled_many
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.ops.optimizers import gradients_of
from mx_rec.tensorflow.names import tensor_util

SLICES = {"Slice", "Split", "SplitV"}


def read(op):
    """Types of all ops that a run of `op` needs."""
    found, waiting = set(), [op]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting.extend([tensor.op for tensor in one.inputs] + list(one.control_inputs))
    return {support.kind_of(one) for one in found}


def columns_of(train):
    """What the one update that a run of `train` needs says of columns."""
    update, = needed(train)["MxRecUpdate"]
    if not update.get_attr("C"):
        return [-1] * update.get_attr("N")
    return list(tensor_util.constant_value(gradients_of(update).columns[0]))


def loss_of(joined):
    return tf.reduce_sum(tf.sin(joined * tf.cast(1 + tf.range(tf.shape(joined)[-1]), tf.float32)))


def tables_of(name, dims):
    return [make_table("%s_%d" % (name, at), dim) for at, dim in enumerate(dims)]


def train_on(loss, tables, optimizer, in_place=True):
    """Updates tables, by gradients where they are or by tensors of their own."""
    variables = [table.variable for table in tables]
    gradients = tf.gradients(loss, variables)
    return optimizer.apply_gradients(zip(gradients if in_place else map(untouched, gradients), variables))


def same_rows(sess, sides):
    support.assert_same_rows(sess, *[[support.Raw.of(table) for table in tables] for tables in sides])


FEW, LOTS = [4, 16, 1, 33], [16, 1, 3, 8] * 4 + [5]


@pytest.mark.long
@pytest.mark.parametrize("dims, axis, rank", [
    (FEW, 1, 1), (FEW, -1, 2), (FEW, 2, 2), (LOTS, -1, 1), (LOTS, 2, 2)], ids=str)
def test_separate_lookups_that_are_concatenated(graph, session, dynamic, monkeypatch, dims, axis, rank):
    """tf.gradients slices for up to 16 inputs, and splits for more; ids of one and of two dimensions, by turns."""
    fed = [tf.compat.v1.placeholder(tf.int64, [None] * rank) for _ in dims]
    sides, trains = [], []
    for grouped in (True, False):
        support.switch_pass(monkeypatch, grouped)
        tables = tables_of("many" if grouped else "one", dims)
        joined = tf.concat([lookup(table, ids) for table, ids in zip(tables, fed)], axis)
        trains.append(train_on(loss_of(joined), tables, sgd(0.1), grouped))
        support.pass_over()
        sides.append(tables)
    assert updates_of(trains[0]) == [("sgd", "ids", len(dims))]
    assert columns_of(trains[0]) == list(np.cumsum([0] + dims[:-1]))
    # What is left are slices of shapes.
    assert not {"Split", "SplitV"} & read(trains[0]) and SLICES & read(trains[1])
    sess = support.started(session())
    for tables in sides:
        filled(sess, [support.Raw.of(table) for table in tables])
    random = np.random.RandomState(4)
    for shape in ((5,), (0,), (1,), (300,)):
        shape += (3,) * (rank - 1)
        # All inputs of a concatenation are of one shape.
        sess.run(trains, {ids: random.randint(-1, 60, shape) for ids in fed})
        same_rows(sess, sides)


class Batches:
    """Ids of every kind for five members: dense, sparse, ragged and weighted ones; the last share a table."""

    def __init__(self):
        self._fed = [tf.compat.v1.placeholder(tf.int64, [None, None]) for _ in range(5)]
        dense = self._fed
        sparse = tf.sparse.from_dense(dense[1] + 1)
        sparse = tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)
        ragged = tf.RaggedTensor.from_tensor(dense[2])
        self.weights = [None, None, None, tf.sin(tf.cast(dense[3], tf.float32)), None]
        self.ids = [dense[0], sparse, ragged, dense[3], dense[4]]

    def feed(self, random, bags, length):
        return {one: random.randint(-1, 60, size=(bags, length)) for one in self._fed}


@pytest.mark.parametrize("case", OF_EACH_SIZE, ids=ids_of(OF_EACH_SIZE))
def test_pooled_lookups_that_are_concatenated(graph, session, dynamic, case, monkeypatch):
    """Vectors, rows and slots of sparse, ragged and weighted ids, with all combiners; one table comes twice."""
    batches = Batches()
    dims, combiners = [4, 16, 32, 33], ["sum", "mean", "sqrtn", "mean", "sum"]
    sides, trains, vectors = [], [], []
    for grouped in (True, False):
        support.switch_pass(monkeypatch, grouped)
        tables = tables_of("many" if grouped else "one", dims)
        make = sparse_lookup_pooled_many if grouped else one_by_one
        vectors.append(make(tables + tables[1:2], batches.ids, combiners, batches.weights))
        joined = tf.concat(vectors[-1] + [tf.ones([tf.shape(vectors[-1][0])[0], 5])], 1)
        trains.append(train_on(loss_of(joined), tables, case.ours(tf.constant(0.1 * case.lr)), grouped))
        support.pass_over()
        sides.append([support.Raw.of(table) for table in tables])
    assert columns_of(trains[0]) == [0, 4, 85, 20, 52] and updates_of(trains[0]) == [(case.op, "bags", 4)]
    ops = needed(trains[0])
    assert [len(ops[kind]) for kind in ("MxRecIdOffset of many", "MxRecRead bags of many")] == [1, 1]
    assert not {"MxRecReducePooled", "MxRecRead bags", "MxRecIdOffset"} & set(ops)
    assert [vector.shape.as_list()[-1] for vector in vectors[0]] == dims + dims[1:2]
    for raws in sides:
        for raw in raws:
            raw.make_slots(case)
    sess = support.started(session())
    for raws in sides:
        filled(sess, raws)
    random = np.random.RandomState(3)
    for shape in ((5, 3), (1, 1), (0, 3), (3, 0), (900, 5)):
        feed = {one: np.minimum(values, 59) for one, values in batches.feed(random, *shape).items()}
        support.assert_same_each(*[sess.run([found, train], feed)[0] for found, train in zip(vectors, trains)])
        support.assert_same_rows(sess, *sides)
    for name, _ in case.slots:
        support.assert_same_each(*[[raw.slot_rows(sess, name) for raw in raws] for raws in sides])


def unequal_shapes(tf, rows):
    """The gradient of a reshape that changes sizes is none of columns."""
    return tf.concat([tf.reshape(row, [-1, 8]) for row in rows], 1)


def first_dimension(tf, rows):
    return tf.concat(rows, 0)


def scaled(tf, rows):
    return tf.concat([row * 2.0 for row in rows], 1)


def stacked(tf, rows):
    return tf.reshape(tf.stack(rows, 1), [-1, 8])


def same_shape(tf, rows):
    return tf.concat([tf.reshape(row, [-1, 4]) for row in rows], 1)


@pytest.mark.parametrize("join, columns", [
    (unequal_shapes, [-1, -1]), (first_dimension, [-1, -1]), (scaled, [-1, -1]), (stacked, [-1, -1]),
    (same_shape, [0, 4])])
def test_only_columns_of_a_concatenation_are_read_there(graph, session, dynamic, monkeypatch, join, columns):
    ids = tf.constant([3, 1, 4, 1], tf.int64)
    sides, trains = [], []
    for grouped in (True, False):
        support.switch_pass(monkeypatch, grouped)
        tables = tables_of("many" if grouped else "one", [4, 4])
        trains.append(train_on(loss_of(join(tf, [lookup(table, ids) for table in tables])), tables, sgd(0.1), grouped))
        support.pass_over()
        sides.append(tables)
    assert columns_of(trains[0]) == columns
    sess = session()
    for tables in sides:
        filled(sess, [support.Raw.of(table) for table in tables])
    sess.run(trains)
    same_rows(sess, sides)


@pytest.mark.parametrize("split", ["sizes", "number", "wrong axis", "part"])
def test_gradients_that_a_script_splits_by_itself(graph, session, dynamic, split):
    """tf.split of a gradient along its last dimension is read in place; a slice of some of its rows is not."""
    tables = tables_of("table", [4, 4])
    ids = tf.constant([1, 2, 3, 4], tf.int64)
    rows = [lookup(table, ids) for table in tables]
    whole = tf.constant(np.random.RandomState(1).randn(4, 8).astype(np.float32))
    if split == "sizes":
        parts = tf.split(whole, [4, 4], 1)
    elif split == "number":
        parts = tf.split(whole, 2, -1)
    elif split == "wrong axis":
        parts = tf.split(tf.reshape(whole, [8, 4]), 2, 0)
    else:
        parts = [tf.slice(whole, [0, 0], [4, 4]), tf.slice(whole, [0, 4], [-1, 4])]
    gradients = [tf.gradients(row, table.variable, part)[0] for row, table, part in zip(rows, tables, parts)]
    train = sgd(1.0).apply_gradients(zip(gradients, [table.variable for table in tables]))
    assert columns_of(train) == ([0, 4] if split in ("sizes", "number") else [-1, -1])
    sess = session()
    raws = [support.Raw.of(table) for table in tables]
    for raw in raws:
        raw.assign(sess, np.arange(1, 5), np.zeros([4, 4]))
    expected = sess.run(parts)
    sess.run(train)
    for raw, part in zip(raws, expected):
        support.assert_same_tables(raw.rows(sess), dict(zip(range(1, 5), -part)))


@pytest.mark.parametrize("count", [3, 20])
def test_the_update_waits_for_what_the_slices_would_have_waited_for(graph, session, dynamic, count):
    tables = tables_of("table", [4] * count)
    ids = tf.constant([1, 2], tf.int64)
    rows = [lookup(table, ids) for table in tables]
    counter = tf.compat.v1.get_variable("counter", initializer=0, use_resource=True)
    with tf.control_dependencies([counter.assign_add(1)]):
        copies = [tf.identity(row) for row in rows]
    joined = tf.concat(copies, 1)
    whole, = tf.gradients(loss_of(joined), [joined])
    with tf.control_dependencies([counter.assign_add(10)]):
        parts = tf.split(whole, count, 1)
    gradients = [tf.gradients(row, table.variable, part)[0] for row, table, part in zip(rows, tables, parts)]
    train = sgd(1.0).apply_gradients(zip(gradients, [table.variable for table in tables]))
    assert columns_of(train) == [4 * at for at in range(count)]
    sess = support.started(session())
    sess.run(train)
    assert sess.run(counter) == 11


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("dims", [FEW, LOTS], ids=["slices", "split"])
def test_a_slice_that_the_update_does_not_read_can_be_fetched_but_not_fed(graph, session, dynamic, dims, imported):
    tables = tables_of("table", dims)
    fed = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    joined = tf.concat([lookup(table, fed) for table in tables], 1)
    whole, = tf.gradients(loss_of(joined), [joined])
    train = train_on(loss_of(joined), tables, sgd(1.0))
    tf.compat.v1.add_to_collection("train", train)
    reduces = [op.inputs[0].name for op in graph.get_operations() if op.type == "MxRecReduce"]
    assert len(reduces) == len(dims)
    if imported:
        meta = tf.compat.v1.train.export_meta_graph()
        with tf.Graph().as_default() as graph:
            tf.compat.v1.train.import_meta_graph(meta)
            check_feeds(tf, graph, reduces, dims, session)
    else:
        check_feeds(tf, graph, reduces, dims, session)


def check_feeds(tf, graph, reduces, dims, session):
    train, = graph.get_collection("train")
    ids = graph.get_tensor_by_name("ids:0")
    sess = support.started(session())
    batch = np.array([1, 2, 1])
    slices = [graph.get_tensor_by_name(name) for name in reduces]
    fetched = sess.run(slices, {ids: batch})
    assert sorted(one.shape[1] for one in fetched) == sorted(dims)
    for tensor, value in zip(slices, fetched):
        with pytest.raises(ValueError, match="may not be fed"):
            sess.run(train, {ids: batch, tensor: value})
    sess.run(train, {ids: batch})


@pytest.mark.parametrize("dims", [FEW, LOTS], ids=["slices", "split"])
def test_a_graph_that_is_modified_afterwards_gives_the_same_bits(graph, session, dynamic, dims):
    """Rows are then copied straight to their places, too."""
    found = []
    for modify in (False, True):
        with tf.Graph().as_default():
            random = np.random.RandomState(5)
            data = tf.data.Dataset.from_tensor_slices(random.randint(0, 50, (8, len(dims), 6)))
            batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
            tables = tables_of("modified" if modify else "kept", dims)
            joined = tf.concat([lookup(table, batch[at]) for at, table in enumerate(tables)], -1)
            train = train_on(loss_of(joined), tables, sgd(0.1))
            if modify:
                modify_graph_and_start_emb_cache()
                assert "MxRecRead whole" in read(train)
            assert columns_of(train) == list(np.cumsum([0] + dims[:-1]))
            raws, sess = support.opened(tables, session)
            filled(sess, raws)
            for _ in range(8):
                sess.run(train)
            found.append([raw.rows(sess) for raw in raws])
    support.assert_same_each(*found)
