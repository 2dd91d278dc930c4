"""Updates of many tables in one op: when that happens, and that no bit depends on it."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import OF_EACH_SIZE, ids_of
from test_fused_updates import loss_of, lookup, needed, sgd, untouched
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table
from mx_rec.optimizers.adagrad import create_hash_optimizer
from mx_rec.optimizers.gradient_descent_by_addr import create_hash_optimizer_by_addr


def make_table(name, dim=5, capacity=1000, **arguments):
    return create_table(key_dtype=tf.int64, dim=dim, name=name, device_vocabulary_size=capacity,
                        emb_initializer=tf.compat.v1.random_normal_initializer(seed=3), **arguments)


def updates_of(train):
    """The updates that a run of `train` runs: optimizer, what the gradients are of, and in how many tables."""
    found = []
    for op in needed(train).get("MxRecUpdate", []):
        handles = {tensor.op.name for tensor in op.inputs if tensor.op.type == "MxRecTable"}
        found.append((support.rule_of(op), support.form_of(op), len(handles)))
    return sorted(found)


def gradients_of(embeddings, tables):
    return tf.gradients(loss_of(embeddings), [table.variable for table in tables])


class Model:
    """Some tables with one lookup each or two, and the op that trains them.

    Args:
        dims: Floats per row of each table.
        make: Makes the optimizer.
        grouped: Whether the graph pass is on.
        change: What is done to the gradients of some tables: place -> function.
    """

    def __init__(self, monkeypatch, dims, make, grouped, change=None, twice=(0,)):
        prefix = "grouped" if grouped else "alone"
        support.switch_pass(monkeypatch, grouped)
        self.tables = [make_table("%s_%d" % (prefix, at), dim) for at, dim in enumerate(dims)]
        self.ids = [tf.compat.v1.placeholder(tf.int64, [None, None]) for _ in dims]
        embeddings = [lookup(table, ids) for table, ids in zip(self.tables, self.ids)]
        embeddings += [lookup(self.tables[at], self.ids[at] + 1) for at in twice]
        gradients = gradients_of(embeddings, self.tables)
        for at, made in (change or {}).items():
            gradients[at] = made(gradients[at])
        pairs = [(gradient, table.variable) for gradient, table in zip(gradients, self.tables)]
        self.train = make().apply_gradients(pairs)
        support.pass_over()
        self.raws = [support.Raw.of(table) for table in self.tables]

    def step(self, sess, batches):
        sess.run(self.train, dict(zip(self.ids, batches)))

    def begin(self, sess, keys=60):
        """Gives both models the same rows: new ones begin with values that depend on the table's name."""
        for at, raw in enumerate(self.raws):
            rows = np.random.RandomState(at).randn(keys, raw.dim).astype(np.float32)
            raw.assign(sess, np.arange(keys), rows)


def same(sess, model, other, slots=()):
    for raw, other_raw in zip(model.raws, other.raws):
        support.assert_same_tables(raw.rows(sess), other_raw.rows(sess))
        for name in slots:
            support.assert_same_tables(raw.slot_rows(sess, name), other_raw.slot_rows(sess, name))


def batches_of(random, tables):
    shapes = [(0, 3), (7, 3), (1, 1), (40, 2), (3, 0)]
    return [random.randint(-1, 50, size=shapes[random.randint(len(shapes))]) for _ in range(tables)]


@pytest.mark.parametrize("case", OF_EACH_SIZE, ids=ids_of(OF_EACH_SIZE))
def test_a_grouped_update_gives_the_bits_of_single_ones(graph, session, dynamic, monkeypatch, case):
    """Random tables and batches, empty ones too; some gradients fused, some not; a table looked up twice."""
    dims = [1, 16, 7, 70, 3]
    make = lambda: case.ours(tf.constant(0.1 * case.lr))  # noqa: E731
    change = {1: untouched, 3: untouched}
    models = [Model(monkeypatch, dims, make, grouped, change, twice=(0, 1)) for grouped in (True, False)]
    assert updates_of(models[0].train) == [(case.op, "ids", 3), (case.op, "rows", 2)]
    assert updates_of(models[1].train) == [(case.op, "rows", 1)] * 5
    slots = [name for name, _ in case.slots]
    for model in models:
        for raw in model.raws:
            for name in slots:
                raw.slot(name)
    sess = support.started(session())
    random = np.random.RandomState(4)
    for model in models:
        model.begin(sess)
    for _ in range(6):
        batches = batches_of(random, len(dims))
        for model in models:
            model.step(sess, batches)
        same(sess, *models)
    same(sess, *models, slots=slots)


@pytest.mark.long
def test_large_batches_and_many_tables_give_the_same_bits(graph, session, dynamic, monkeypatch):
    """So much work that all threads share it, and one table so large that it is split."""
    dims = [16] * 12 + [64, 64]
    models = [Model(monkeypatch, dims, lambda: sgd(0.1), grouped) for grouped in (True, False)]
    sess = session()
    random = np.random.RandomState(2)
    for model in models:
        model.begin(sess, 905)
    for _ in range(3):
        batches = [random.zipf(1.3, (2048, 1)) % 900 - 1 for _ in dims[:-1]]
        batches.append(random.zipf(1.2, (30000, 1)) % 900 - 1)
        for model in models:
            model.step(sess, batches)
        same(sess, *models)


def test_one_op_updates_all_tables_and_another_one_those_whose_gradients_were_changed(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2 + at) for at in range(6)]
    ids = tf.constant([4, 4, 6], tf.int64)
    gradients = gradients_of([lookup(table, ids) for table in tables], tables)
    gradients = [untouched(one) if at % 2 else one for at, one in enumerate(gradients)]
    train = sgd().apply_gradients(zip(gradients, [table.variable for table in tables]))
    assert updates_of(train) == [("sgd", "ids", 3), ("sgd", "rows", 3)]
    session().run(train)


def test_a_gradient_that_a_branch_may_leave_without_a_value_stops_no_other_table(graph, session, dynamic):
    """A gradient through a bare Switch: in a group, no table would be updated when it has no value."""
    from tensorflow.python.ops import control_flow_ops

    tables = [make_table("table_%d" % at, 2) for at in range(3)]
    ids = tf.constant([4, 6], tf.int64)
    on = tf.compat.v1.placeholder(tf.bool, [])
    embeddings = [lookup(table, ids) for table in tables]
    gradients = gradients_of(embeddings, tables)
    _, values = control_flow_ops.switch(gradients[1].values, on)
    gradients[1] = tf.IndexedSlices(values, gradients[1].indices)
    train = sgd().apply_gradients(zip(gradients, [table.variable for table in tables]))
    updates = needed(train)["MxRecUpdate"]
    assert sorted((support.form_of(op), op.get_attr("N")) for op in updates) == [("ids", 2), ("rows", 1)]
    update = [op for op in updates if op.get_attr("N") == 2]
    raws = [support.Raw.of(table) for table in tables]
    sess = session()
    sess.run(embeddings, {on: False})
    before = [raw.rows(sess) for raw in raws]
    # The whole train op has no value then, as without groups; the update of the others runs.
    sess.run(update, {on: False})
    changed = [not np.array_equal(raw.rows(sess)[4], rows[4]) for raw, rows in zip(raws, before)]
    assert changed == [True, False, True]
    sess.run(train, {on: True})
    assert not np.array_equal(raws[1].rows(sess)[4], before[1][4])


def test_a_gradient_of_a_branch_or_a_loop_joins_the_group(graph, session, dynamic, monkeypatch):
    """Lookups in a branch and in a loop: their gradients have a value in each run."""
    taken = tf.compat.v1.placeholder(tf.bool, [])
    results = []
    for grouped in (True, False):
        support.switch_pass(monkeypatch, grouped)
        tables = [make_table("table_%s_%d" % (grouped, at), 2) for at in range(3)]
        ids = tf.constant([4, 6], tf.int64)
        outside = lookup(tables[0], ids)
        branch = tf.cond(taken, lambda: tf.reduce_sum(lookup(tables[1], ids)), lambda: tf.constant(0.0))
        after = lookup(tables[2], ids)
        looped = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 1.5), [0, after])[1]
        loss = tf.reduce_sum(outside) * 2.0 + branch + tf.reduce_sum(looped)
        variables = [table.variable for table in tables]
        train = sgd().apply_gradients(zip(tf.gradients(loss, variables), variables))
        support.pass_over()
        results.append((train, [support.Raw.of(table) for table in tables]))
    assert len(updates_of(results[0][0])) < len(updates_of(results[1][0])) == 3
    sess = session()
    for raw in results[0][1] + results[1][1]:
        raw.assign(sess, [4, 6], np.ones([2, 2]))
    for feed in (True, False, True):
        for train, _ in results:
            sess.run(train, {taken: feed})
        for raw, other in zip(results[0][1], results[1][1]):
            support.assert_same_tables(raw.rows(sess), other.rows(sess))
    assert results[0][1][1].rows(sess)[4].tolist() == [-1.0, -1.0]


def test_a_table_whose_gradient_waits_for_the_update_of_another_is_updated_after_it(graph, session, dynamic):
    """Two calls of apply_gradients, the second one behind the first: groups within each, no circle."""
    tables = [make_table("table_%d" % at, 2) for at in range(4)]
    ids = tf.constant([4, 6], tf.int64)
    first = gradients_of([lookup(table, ids) for table in tables[:2]], tables[:2])
    variables = [table.variable for table in tables]
    train = sgd().apply_gradients(zip(first, variables[:2]))
    with tf.control_dependencies([train]):
        again = [lookup(tables[0], ids + 0)] + [lookup(table, ids) for table in tables[2:]]
        second = gradients_of(again, [tables[0]] + tables[2:])
        last = sgd().apply_gradients(zip(second, [variables[0]] + variables[2:]))
    assert updates_of(last) == [("sgd", "ids", 2), ("sgd", "ids", 3)]
    session().run(last)


@pytest.mark.parametrize("imported", [False, True])
def test_gradients_that_a_grouped_update_does_not_read_cannot_be_fed(graph, session, dynamic, imported):
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    ids = tf.constant([4, 6], tf.int64, name="ids")
    gradients = gradients_of([lookup(table, ids) for table in tables] + [lookup(tables[1], ids)], tables)
    train = sgd().apply_gradients(zip(gradients, [table.variable for table in tables]), name="train")
    assert updates_of(train) == [("sgd", "ids", 2)]
    names = [one.values.name for one in gradients] + [gradients[1].indices.name]
    if imported:
        meta = tf.compat.v1.train.export_meta_graph()
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.train.import_meta_graph(meta)
    graph = tf.compat.v1.get_default_graph()
    train = graph.get_operation_by_name("train")
    with support.new_session(graph) as sess:
        for name in names:
            tensor = graph.get_tensor_by_name(name)
            with pytest.raises(ValueError, match="may not be fed"):
                sess.run(train, {tensor: np.zeros([2, 2]) if tensor.dtype == tf.float32 else [1, 2]})
        sess.run(train)


def test_by_address_updates_are_grouped_too(graph, session, mx):
    mx(use_dynamic_expansion=True)
    tables = [make_table("table_%d" % at, 2) for at in range(3)]
    ids = tf.constant([1, 2, 1], tf.int64)
    loss = loss_of([lookup(table, ids) for table in tables])
    rows = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    offsets = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    train = create_hash_optimizer_by_addr(1.0).apply_gradients(zip(tf.gradients(loss, rows), offsets))
    assert updates_of(train) == [("sgd", "ids", 3)]
    session().run(train)


def test_slots_of_a_grouped_update_are_known_when_a_checkpoint_is_restored(graph, session, dynamic, tmp_path, caplog):
    """The log said nothing of missing slots: it looked for single updates."""
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    embeddings = [lookup(table, tf.constant([1], tf.int64)) for table in tables]
    saver = tf.compat.v1.train.Saver()
    sess = session()
    sess.run(embeddings)
    path = saver.save(sess, str(tmp_path / "model"), global_step=1)
    variables = [table.variable for table in tables]
    create_hash_optimizer(0.1).apply_gradients(zip(gradients_of(embeddings, tables), variables))
    caplog.clear()
    saver.restore(session(), path)
    said = [record.getMessage() for record in caplog.records if "without the slots" in record.getMessage()]
    assert len(said) == 2 and all("Adagrad_accumulator" in text for text in said)


@pytest.mark.parametrize("kind", ["GradientDescentOptimizer", "AdagradOptimizer", "AdamOptimizer"])
def test_optimizers_of_tensorflow_update_tables_in_groups(graph, session, dynamic, monkeypatch, kind):
    """Beside ordinary variables; each call of apply_gradients is a group of its own."""
    ids = tf.constant([[1, 2], [2, 5]], tf.int64)
    sides = []
    for grouped in (True, False):
        support.switch_pass(monkeypatch, grouped)
        tables = [make_table("table_%s_%d" % (grouped, at), 2 + at) for at in range(3)]
        weight = tf.compat.v1.Variable(3.0, name="weight_%s" % grouped)
        optimizer = getattr(tf.compat.v1.train, kind)(0.1)
        loss = loss_of([lookup(table, ids) for table in tables]) * weight
        variables = [table.variable for table in tables] + [weight]
        gradients = tf.gradients(loss, variables)
        gradients[1] = untouched(gradients[1])
        train = optimizer.apply_gradients(zip(gradients, variables))
        again = optimizer.apply_gradients(zip(gradients[:2], variables[:2]))
        support.pass_over()
        sides.append(([train, again], [support.Raw.of(table) for table in tables], weight))
    assert len(updates_of(sides[0][0][0])) == 2 and len(updates_of(sides[1][0][0])) == 3
    sess = support.started(session())
    for _, raws, _ in sides:
        for at, raw in enumerate(raws):
            raw.assign(sess, [1, 2, 5], np.random.RandomState(at).randn(3, raw.dim))
    for step in (0, 0, 1):
        for trains, _, _ in sides:
            sess.run(trains[step])
        for raw, other in zip(sides[0][1], sides[1][1]):
            support.assert_same_tables(raw.rows(sess), other.rows(sess))
    support.assert_same_bits(sess.run(sides[0][2]), sess.run(sides[1][2]))
