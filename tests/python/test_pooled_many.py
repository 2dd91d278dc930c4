"""sparse_lookup_pooled_many: the numbers of single pooled lookups, by one op of each kind; in modified graphs too."""

import numpy as np
import pytest
import tensorflow as tf

import support
from optimizer_cases import OF_EACH_SIZE, ids_of
from test_fused_updates import needed
from test_grouped_updates import make_table, updates_of
from test_pooled import loss_of
from test_sparse_lookup_many import filled, lazy_adam, trained
from mx_rec.core.embedding import sparse_lookup, sparse_lookup_pooled, sparse_lookup_pooled_many
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer


def many(tables, ids, *arguments, **named):
    return sparse_lookup_pooled_many(tables, ids, *arguments, **named)


def one_by_one(tables, ids, combiners, weights=None, **named):
    weights = weights or [None] * len(tables)
    return [sparse_lookup_pooled(*single[:3], weights=single[3], **named)
            for single in zip(tables, ids, combiners, weights)]


def loss_of_all(vectors):
    return tf.add_n([loss_of(vector) * (at + 1.0) for at, vector in enumerate(vectors)])


DIMS = [4, 16, 32, 33]
COMBINERS = ["sum", "mean", "sqrtn", "mean", "sum"]


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
def test_training_gives_the_bits_of_single_lookups_over_several_steps(graph, session, dynamic, case, monkeypatch):
    """Vectors, rows and slots; small batches, empty ones, and one that needs all threads."""
    batches = Batches()
    sides = []
    for grouped in (True, False):
        tables = [make_table("%s_%d" % ("many" if grouped else "one", at), dim) for at, dim in enumerate(DIMS)]
        chosen = tables + tables[1:2]
        support.switch_pass(monkeypatch, grouped)
        make = many if grouped else one_by_one
        vectors = make(chosen, batches.ids, COMBINERS, batches.weights)
        variables = [table.variable for table in tables]
        gradients = tf.gradients(loss_of_all(vectors), variables)
        train = case.ours(tf.constant(0.1 * case.lr)).apply_gradients(zip(gradients, variables))
        support.pass_over()
        sides.append((vectors, train, [support.Raw.of(table) for table in tables]))
    ops = needed(sides[0][1])
    assert [len(ops[kind]) for kind in ("MxRecIdOffset of many", "MxRecRead bags of many")] == [1, 1]
    assert not {"MxRecReducePooled", "MxRecRead bags", "MxRecIdOffset"} & set(ops)
    assert updates_of(sides[0][1]) == [(case.op, "bags", 4)]
    assert [vector.shape.as_list()[-1] for vector in sides[0][0]] == DIMS + DIMS[1:2]
    slots = [[raw.slot(name) for raw in raws for name, _ in case.slots] for _, _, raws in sides]
    sess = support.started(session())
    for _, _, raws in sides:
        filled(sess, raws)
    random = np.random.RandomState(3)
    for shape in ((5, 3), (1, 1), (0, 3), (3, 0), (70, 2), (900, 5)):
        feed = batches.feed(random, *shape)
        feed = {one: np.minimum(values, 59) for one, values in feed.items()}
        support.assert_same_each(*[sess.run([vectors, train], feed)[0] for vectors, train, _ in sides])
        support.assert_same_rows(sess, sides[0][2], sides[1][2])
    for ours, theirs in zip(*slots):
        (keys, values), (other_keys, other_values) = sess.run([ours, theirs])
        support.assert_same_tables(dict(zip(keys.tolist(), values)), dict(zip(other_keys.tolist(), other_values)))


def test_an_evaluation_makes_no_rows_and_gives_the_bits_of_single_lookups(graph, session, dynamic):
    tables = [make_table("table_%d" % at, dim) for at, dim in enumerate(DIMS)]
    batches = Batches()
    chosen = tables + tables[1:2]
    forms = [make(chosen, batches.ids, COMBINERS, batches.weights, is_train=False) for make in (many, one_by_one)]
    raws, sess = support.opened(tables, session)
    sess.run(forms, batches.feed(np.random.RandomState(2), 40, 6))
    grouped, single = [needed(*form) for form in forms]
    assert len(grouped["MxRecFind bags of many"]) == 1 and "MxRecFind bags" not in grouped
    assert len(single["MxRecFind bags"]) == 5
    for raw in raws:
        raw.assign(sess, np.arange(30), np.random.RandomState(7).randn(30, raw.dim))
    support.assert_same_each(*sess.run(forms, batches.feed(np.random.RandomState(2), 40, 6)))
    assert [raw.size(sess) for raw in raws] == [30] * 4


def test_weights_with_gradients_have_ops_of_their_own_and_scaled_rows_share_one(graph, session, dynamic):
    ids = [tf.constant([[1, 2, 2], [3, -1, 1]], tf.int64)] * 3
    weights = tf.compat.v1.get_variable("weights", initializer=np.linspace(0.5, 2, 6).astype(np.float32).reshape(2, 3))
    tables = [make_table("table_%d" % at, 4) for at in range(3)]
    given = [weights, None, tf.constant(np.full([2, 3], 0.5, np.float32))]
    forms = [make(tables, ids, ["mean"] * 3, given, **more)
             for make in (many, one_by_one) for more in ({}, {"max_norm": 0.1})]
    wanted = [weights] + [table.variable for table in tables]
    gradients = [tf.gradients(loss_of_all(form), wanted) for form in forms]
    sess = support.started(session())
    for raw in [support.Raw.of(table) for table in tables]:
        raw.assign(sess, np.arange(6), np.random.RandomState(1).randn(6, 4))
    found, slopes = sess.run([forms, gradients])
    kinds = [needed(*form) for form in forms[:2]]
    assert all(len(one["MxRecIdOffset of many"]) == 1 for one in kinds)
    # The two without weights that have gradients.
    assert [[op.get_attr("N") for op in one["MxRecRead bags of many"]] for one in kinds] == [[2], [2]]
    for ours, theirs in zip(found[:2], found[2:]):
        support.assert_same_each(ours, theirs)
    for ours, theirs in zip(slopes[:2], slopes[2:]):
        for one, other in zip(ours, theirs):
            support.assert_same_bits(getattr(one, "values", one), getattr(other, "values", other))


def test_clipped_gradients_and_vectors_that_no_loss_reads(graph, session, dynamic):
    """TensorFlow makes gradients of zeros for the latter: with momentum they would move its rows."""
    ids = [tf.constant([[1, 2], [1, 3]], tf.int64), tf.constant([[7, 7], [7, -1]], tf.int64)]
    sides = []
    for make in (many, one_by_one):
        tables = [make_table("%s_%d" % (make.__name__, at), 2 + at) for at in range(2)]
        vectors = make(tables, ids, ["sum"] * 2)
        variables = [table.variable for table in tables]
        gradients = [tf.IndexedSlices(tf.clip_by_norm(one.values, 0.5), one.indices)
                     for one in tf.gradients(loss_of_all(vectors), variables)]
        train = lazy_adam().apply_gradients(zip(gradients, variables))
        sides.append((train, [support.Raw.of(table) for table in tables]))
    assert len(needed(sides[0][0])["MxRecReducePooled"]) == 2
    assert tf.gradients(loss_of(vectors[1]), variables)[0] is None
    unread = many(tables, ids)
    assert [one is None for one in tf.gradients(loss_of(unread[1]), variables)] == [True, False]
    sess = support.started(session())
    for _, raws in sides:
        filled(sess, raws)
    for _ in range(3):
        for train, _ in sides:
            sess.run(train)
        support.assert_same_rows(sess, sides[0][1], sides[1][1])


def test_pooled_and_plain_lookups_of_one_table_and_of_several_are_updated_by_one_op(graph, session, dynamic):
    ids = tf.compat.v1.placeholder(tf.int64, [None, 3])
    sides = []
    for make in (many, one_by_one):
        tables = [make_table("%s_%d" % (make.__name__, at), 3) for at in range(4)]
        vectors = make(tables[:2], [ids, ids], ["sum", "mean"])
        vectors += [sparse_lookup(table, ids, modify_graph=True) for table in tables[1:]]
        sides.append((trained(tables, loss_of_all(vectors)), [support.Raw.of(table) for table in tables]))
    assert updates_of(sides[0][0]) == [("lazy_adam", "bags", 4)]
    sess = support.started(session())
    for _, raws in sides:
        filled(sess, raws)
    random = np.random.RandomState(9)
    for bags in (4, 0, 50):
        batch = random.randint(-1, 60, size=(bags, 3))
        for train, _ in sides:
            sess.run(train, {ids: batch})
        support.assert_same_rows(sess, sides[0][1], sides[1][1])


def test_sums_that_a_grouped_update_leaves_out_cannot_be_fed(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    variables = [table.variable for table in tables]
    gradients = tf.gradients(loss_of_all(many(tables, [tf.constant([[1, 2]], tf.int64)] * 2)), variables)
    train = lazy_adam().apply_gradients(zip(gradients, variables))
    sess = support.started(session())
    with pytest.raises(ValueError, match="may not be fed"):
        sess.run(train, {gradients[1].values: np.zeros([2, 2], np.float32)})


@pytest.mark.parametrize("place", ["cond", "loop", "function", "graph_pass=False", "one table"])
def test_elsewhere_each_lookup_has_ops_of_its_own(graph, session, dynamic, monkeypatch, place):
    support.switch_pass(monkeypatch, place != "graph_pass=False")
    tables = [make_table("table_%d" % at, 2) for at in range(1 if place == "one table" else 2)]
    ids = [tf.constant([[1, 2]], tf.int64)] * len(tables)

    def total():
        return tf.add_n([tf.reduce_sum(one) for one in many(tables, ids)])

    if place == "cond":
        found = tf.cond(tf.constant(True), total, lambda: tf.constant(0.0))
    elif place == "loop":
        found = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + total()), [0, 0.0])[1]
    elif place == "function":
        found = tf.function(total, autograph=False)()
    else:
        found = total()
    assert not [kind for kind in needed(found) if "of many" in kind]
    assert np.isfinite(session().run(found))


def test_an_update_in_a_branch_changes_each_table_by_its_own_op(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    taken = tf.compat.v1.placeholder(tf.bool, [])
    vectors = many(tables, [tf.constant([[4, 4, 6]], tf.int64)] * 2)
    variables = [table.variable for table in tables]
    pairs = list(zip(tf.gradients(loss_of_all(vectors), variables), variables))
    train = tf.cond(taken, lambda: tf.group(lazy_adam().apply_gradients(pairs)), tf.no_op)
    assert [op.get_attr("N") for op in support.updates_in(graph.get_operations())] == [1] * 2
    raws, sess = support.opened(tables, session, True)
    filled(sess, raws)
    before = [raw.rows(sess) for raw in raws]
    for value in (False, True):
        sess.run(train, {taken: value})
        for raw, rows in zip(raws, before):
            assert [np.array_equal(row, rows[key]) for key, row in sorted(raw.rows(sess).items())] == [
                not (value and key in (4, 6)) for key in range(60)]


def test_a_failing_table_names_itself_and_no_table_gets_a_row(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2, capacity=4 if at == 1 else 100) for at in range(3)]
    ids = tf.compat.v1.placeholder(tf.int64, [None, None])
    found = many(tables, [ids] * 3)
    raws, sess = support.opened(tables, session)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="MxRecIdOffset on table 'table_1'"):
        sess.run(found, {ids: [np.arange(9)]})
    assert [raw.size(sess) for raw in raws] == [0, 0, 0]
    sess.run(found, {ids: [[1, 2]]})
    assert [raw.size(sess) for raw in raws] == [2, 2, 2]


def test_bags_and_offsets_that_are_wrong_in_one_table_change_no_table(graph, session, dynamic):
    """What is fed between the ops: the update checks all members before it changes the first."""
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    vectors = many(tables, [tf.constant([[1, 2], [2, 3]], tf.int64)] * 2)
    train = trained(tables, loss_of_all(vectors))
    update, = needed(train)["MxRecUpdate"]
    grads = [np.ones([2, 2], np.float32)] * 2
    handed = {update.inputs[6 + at]: grads[at] for at in range(2)}
    raws, sess = support.opened(tables, session, True)
    filled(sess, raws)
    before = [raw.rows(sess) for raw in raws]
    embed = vectors[0].op
    for op, place, value, text in (
            (update, 3, [5, 6, 7], "table_1"), (update, 5, [[0, 1], [1, 9]], "table_1"),
            (embed, 5, [5, 6, 7], "table_1"), (embed, 9, [1, 9], "table_1"), (embed, 9, [3, 2], "table_1")):
        wanted = train if op is update else vectors
        feed = dict(handed) if op is update else {}
        feed[op.inputs[place]] = value
        with pytest.raises(tf.errors.InvalidArgumentError, match="%s.*%s" % (op.type, text)):
            sess.run(wanted, feed)
    support.assert_same_each([one.rows(sess) for one in raws], before)


def test_bad_arguments_are_refused_before_anything_is_made(graph, dynamic):
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    ids = tf.constant([[1, 2]], tf.int64)
    before = len(graph.get_operations())
    for arguments, text in (
            (([], []), "at least one table"), ((tables, [ids]), "one entry for each of the 2 tables"),
            (([tables[0], 5], [ids, ids]), "hashtables"), ((tables[0], [ids]), "hashtables"),
            ((tables, [ids, 5]), "'ids'"), ((tables, [ids, tf.constant(1, tf.int64)]), "scalar"),
            ((tables, [ids, ids], ["sum"]), "'combiner' should have one entry"),
            ((tables, [ids, ids], ["sum", "max"]), "combiner"), ((tables, [ids, ids], 3), "combiner"),
            ((tables, [ids, ids], "sum", [None]), "'weights' should have one entry"),
            ((tables, [ids, ids], "sum", [None, tf.ones([1, 3])]), "'table_1' have the shape")):
        with pytest.raises(ValueError, match=text):
            sparse_lookup_pooled_many(*arguments)
    assert not [op for op in graph.get_operations()[before:] if op.type.startswith("MxRec")]
    assert [table.multi_lookup_times[True] for table in tables] == [0, 0]


def test_keys_that_are_not_admitted_add_their_default_rows(graph, session, dynamic):
    ids = tf.compat.v1.placeholder(tf.int64, [None, None])
    forms = []
    for make in (many, one_by_one):
        tables = [make_table("%s_%d" % (make.__name__, at), 2) for at in range(2)]
        forms.append(make(tables, [ids] * 2, ["sum", "mean"], access_and_evict_config={"access_threshold": 3},
                          serving_default_value=tf.constant([[10.0, 20.0]])))
    sess = session()
    for step in range(4):
        ours, theirs = sess.run(forms, {ids: [[1, 2, -1], [2, 3, 3]]})
        if step == 0:
            assert ours[0].tolist() == [[20.0, 40.0], [30.0, 60.0]] and ours[1].tolist() == [[10.0, 20.0]] * 2
            support.assert_same_each(ours, theirs)
    assert not np.any(ours[0] == 10.0)
    assert len(needed(*forms[0])["MxRecRead bags of many"]) == 1


# Graph modification.


def run_model(make, modify, batches=5):
    """Vectors of each step and all tables at the end, in a graph of its own."""
    tf.compat.v1.reset_default_graph()
    ids = np.random.RandomState(5).randint(-1, 40, size=(batches, 3, 8, 4))
    dataset = tf.data.Dataset.from_tensor_slices(ids)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    tables = [make_table("table_%d" % at, 3 + at) for at in range(3)]
    vectors = make(tables, [batch[at] * 2 for at in range(3)], ["sum", "mean", "sqrtn"])
    train = trained(tables, loss_of_all(vectors))
    raws = [support.Raw.of(table) for table in tables]
    initializer = iterator.initializer
    if modify:
        modify_graph_and_start_emb_cache(dump_graph=False)
        initializer = get_initializer(True)
    steps = []
    with support.new_session(tf.compat.v1.get_default_graph()) as sess:
        sess.run([tf.compat.v1.global_variables_initializer(), initializer])
        while True:
            try:
                steps.append(sess.run([vectors, train])[0])
            except tf.errors.OutOfRangeError:
                break
        return steps, [raw.rows(sess) for raw in raws], needed(train)


def test_a_modified_graph_claims_all_tables_by_one_op_and_gives_the_same_bits(graph, dynamic):
    expected = run_model(one_by_one, False)
    assert len(expected[0]) == 5
    for make, modify in ((many, False), (many, True), (one_by_one, True)):
        found = run_model(make, modify)
        ops = found[2]
        assert len(ops.get("MxRecIdOffset prepared of many", ())) == modify and "MxRecIdOffset" not in ops or not modify
        assert len(ops["MxRecRead bags of many"]) == 1 and "MxRecRead bags" not in ops
        for ours, theirs in zip(found[0], expected[0]):
            support.assert_same_each(ours, theirs)
        support.assert_same_each(found[1], expected[1])
