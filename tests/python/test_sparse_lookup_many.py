"""sparse_lookup_many and sparse_lookup_pooled_many: which lookups of a call share ops; in modified graphs too."""

import numpy as np
import pytest
import tensorflow as tf

import support
from pooled_cases import one_by_one
from test_fused_updates import loss_of, lookup, needed
from test_grouped_updates import make_table, updates_of
from mx_rec.core.embedding import sparse_lookup_many, sparse_lookup_pooled_many
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.graph.__main__ import main
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.util.initialize import get_initializer


def many(tables, ids, **arguments):
    return sparse_lookup_many(tables, ids, modify_graph=True, **arguments)


def lazy_adam():
    return create_hash_optimizer(0.05)


def types_of(graph):
    found = {}
    for op in graph.get_operations():
        if op.type.startswith("MxRec"):
            kind = support.kind_of(op)
            found[kind] = found.get(kind, 0) + 1
    return found


def trained(tables, loss):
    variables = [table.variable for table in tables]
    return lazy_adam().apply_gradients(zip(tf.gradients(loss, variables), variables))


def filled(sess, raws):
    for at, raw in enumerate(raws):
        raw.assign(sess, np.arange(60), np.random.RandomState(at).randn(60, raw.dim))


def test_the_gradient_of_a_gradient_goes_through_columns(graph, session, dynamic):
    grad = tf.compat.v1.placeholder(tf.float32, [None, 2, 5])
    inverse, offsets = tf.constant([[0, 1], [0, -1]]), tf.constant([5, 6], tf.int64)
    rows = support.shaped_ops().mx_rec_reduce_columns(grad, inverse, offsets, first=1, dim=3)
    back = tf.gradients(tf.reduce_sum(rows * [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), grad)[0]
    value = np.arange(20, dtype=np.float32).reshape(2, 2, 5)
    summed, found = session().run([rows, back], {grad: value})
    assert summed.tolist() == (np.array([value[0, 0] + value[1, 0], value[0, 1]])[:, 1:4]).tolist()
    assert found.tolist() == [[[0, 1, 2, 3, 0], [0, 4, 5, 6, 0]], [[0, 1, 2, 3, 0], [0] * 5]]


def test_a_table_whose_embeddings_no_loss_reads_is_not_updated(graph, session, dynamic):
    """TensorFlow makes gradients of zeros for it: with momentum they would move its rows."""
    tables = [make_table("table_%d" % at, 2) for at in range(3)]
    found = many(tables, [tf.constant([1, 2], tf.int64)] * 3)
    variables = [table.variable for table in tables]
    gradients = tf.gradients(loss_of([found[0], found[2]]), variables)
    assert gradients[1] is None
    assert updates_of(lazy_adam().apply_gradients(zip(gradients, variables))) == [("lazy_adam", "ids", 2)]


@pytest.mark.parametrize("concat", [False, True])
def test_evaluation_finds_rows_and_makes_none(graph, session, dynamic, concat):
    tables = [make_table("table_%d" % at, 2 + at) for at in range(3)]
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    found = many(tables, [ids] * 3, is_train=False, concat=concat)
    raws, sess = support.opened(tables, session)
    filled(sess, raws)
    kinds = needed(*([found] if concat else found))
    assert len(kinds["MxRecFind of many"]) == 1 and "MxRecFind" not in kinds
    keys = [5, 99, -1, 5]
    expected = [raw.find(sess, keys) for raw in raws]
    values = sess.run(found, {ids: keys})
    if concat:
        support.assert_same_bits(values, np.concatenate(expected, 1))
    else:
        support.assert_same_each(values, expected)
    assert [raw.size(sess) for raw in raws] == [60] * 3


def test_ids_of_several_types_and_shapes(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2) for at in range(4)]
    ids = [tf.constant([[1, 2]], tf.int32), tf.constant([1, 2, 3], tf.int64), tf.constant(7, tf.int32),
           tf.constant([3.0, 4.0])]
    found = many(tables, ids)
    assert [one.shape.as_list() for one in found] == [[1, 2, 2], [3, 2], [2], [2, 2]]
    session().run(found)
    assert len(needed(*found)["MxRecIdOffset of many"]) == 2


def test_admission_and_default_rows_work_in_a_group(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    default = np.float32([7.0, 8.0])
    found = many(tables, [ids, ids + 1], access_and_evict_config={"access_threshold": 2},
                 serving_default_value=default, concat=True)
    train = trained(tables, tf.reduce_sum(found))
    sess = support.started(session())
    first, _ = sess.run([found, train], {ids: [1, 2]})
    assert first.tolist() == [[7, 8, 7, 8]] * 2
    assert [support.Raw.of(table).size(sess) for table in tables] == [0, 0]
    second, _ = sess.run([found, train], {ids: [1, 5]})
    assert second[1].tolist() == [7, 8, 7, 8] and not np.array_equal(second[0], [7, 8, 7, 8])
    assert [support.Raw.of(table).size(sess) for table in tables] == [1, 1]


def test_weights_with_gradients_have_ops_of_their_own_and_scaled_rows_share_one(graph, session, dynamic):
    ids = [tf.constant([[1, 2, 2], [3, -1, 1]], tf.int64)] * 3
    weights = tf.compat.v1.get_variable("weights", initializer=np.linspace(0.5, 2, 6).astype(np.float32).reshape(2, 3))
    tables = [make_table("table_%d" % at, 4) for at in range(3)]
    given = [weights, None, tf.constant(np.full([2, 3], 0.5, np.float32))]
    forms = [make(tables, ids, ["mean"] * 3, given, **more)
             for make in (sparse_lookup_pooled_many, one_by_one) for more in ({}, {"max_norm": 0.1})]
    wanted = [weights] + [table.variable for table in tables]
    gradients = [tf.gradients(loss_of(form), wanted) for form in forms]
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


@pytest.mark.parametrize("place", ["cond", "loop", "function", "expansion", "switch", "one"])
def test_elsewhere_each_lookup_reads_by_an_op_of_its_own(graph, session, mx, place):
    mx(use_dynamic_expansion=place == "expansion", graph_pass=place != "switch")
    tables = [make_table("table_%d" % at, 2) for at in range(1 if place == "one" else 3)]
    ids = [tf.constant([4, 6], tf.int64)] * len(tables)

    def total():
        return tf.reduce_sum(many(tables, ids, concat=True))

    if place == "cond":
        found = tf.cond(tf.constant(True), total, lambda: tf.constant(0.0))
    elif place == "loop":
        found = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x + total()), [0, 0.0])[1]
    elif place == "function":
        found = tf.function(total, autograph=False)()
    else:
        found = total()
    kinds = [kind for kind in needed(found) if "of many" in kind or "Concat" in kind]
    # With dynamic expansion gradients are those of distinct rows, which no other lookup has.
    assert kinds == (["MxRecIdOffset of many"] if place == "expansion" else [])
    assert np.isfinite(session().run(found))


def test_a_failing_table_names_itself_and_no_table_gets_a_row(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2, capacity=4 if at == 1 else 100) for at in range(3)]
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    found = many(tables, [ids] * 3)
    raws, sess = support.opened(tables, session)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="MxRecIdOffset on table 'table_1'"):
        sess.run(found, {ids: np.arange(9)})
    assert [raw.size(sess) for raw in raws] == [0, 0, 0]
    sess.run(found, {ids: [1, 2]})
    assert [raw.size(sess) for raw in raws] == [2, 2, 2]


def test_bags_and_offsets_that_are_wrong_in_one_table_change_no_table(graph, session, dynamic):
    """What is fed between the ops: the update checks all members before it changes the first."""
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    vectors = sparse_lookup_pooled_many(tables, [tf.constant([[1, 2], [2, 3]], tf.int64)] * 2)
    train = trained(tables, loss_of(vectors))
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
    ids, bags = tf.constant([1, 2], tf.int64), tf.constant([[1, 2]], tf.int64)
    before = len(graph.get_operations())
    for arguments, text in (
            (([], []), "at least one table"), ((tables, [ids]), "one entry for each of the 2 tables"),
            (([tables[0], 5], [ids, ids]), "hashtables"), ((tables[0], [ids]), "hashtables"), ((tables, [ids, 5]), "'ids'")):
        for make in (many, sparse_lookup_pooled_many):
            with pytest.raises(ValueError, match=text):
                make(*arguments)
    for arguments, text in (
            ((tables, [bags, tf.constant(1, tf.int64)]), "scalar"),
            ((tables, [bags, bags], ["sum"]), "'combiner' should have one entry"),
            ((tables, [bags, bags], ["sum", "max"]), "combiner"), ((tables, [bags, bags], 3), "combiner"),
            ((tables, [bags, bags], "sum", [None]), "'weights' should have one entry"),
            ((tables, [bags, bags], "sum", [None, tf.ones([1, 3])]), "'table_1' have the shape")):
        with pytest.raises(ValueError, match=text):
            sparse_lookup_pooled_many(*arguments)
    with pytest.raises(ValueError, match="SparseTensor"):
        many(tables, [ids, tf.SparseTensor([[0]], [1], [1])])
    with pytest.raises(ValueError, match="need modify_graph=True"):
        sparse_lookup_many(tables, [ids, ids])
    with pytest.raises(RuntimeError, match="'table_1' has 0 lookups for training already; 129 more are not possible"):
        many([tables[0]] + [tables[1]] * 129, [ids] * 130)
    assert not [op for op in graph.get_operations()[before:] if op.type.startswith("MxRec")]
    with pytest.raises(ValueError, match="'table_0' have the shape .2,. and those of the table 'table_1' .3,."):
        many(tables, [ids, tf.constant([1, 2, 3], tf.int64)], concat=True)
    assert [table.multi_lookup_times[True] for table in tables] == [0, 0]


def test_ids_of_different_shapes_are_refused_in_the_step(graph, session, dynamic):
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    ids = [tf.compat.v1.placeholder(tf.int64, None) for _ in tables]
    found = many(tables, ids, concat=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="MxRecRead on table 'table_1'.*one shape"):
        session().run(found, {ids[0]: [1, 2], ids[1]: [[1, 2]]})


@pytest.mark.parametrize("train", [False, True])
def test_a_copy_whose_ids_are_made_of_the_rows_of_the_first_is_not_joined_with_it(graph, session, dynamic, train):
    """Copies of lookups have the group of those, and joining all of them made a circle."""
    tables = [make_table("t%d" % at, 2) for at in range(2)]
    ids = [tf.compat.v1.placeholder(tf.int64, [None], name="ids%d" % at) for at in range(2)]
    whole = tf.concat(many(tables, ids), 1, name="whole")
    definition = graph.as_graph_def()
    later = [tf.cast(tf.abs(whole[:, at]) * 0, tf.int64) + 3 + at for at in range(2)]
    given = dict({"ids0:0": later[0], "ids1:0": later[1]}, **{
        tensor.name: tensor for table in tables for tensor in table.handle.op.outputs})
    copy, = tf.import_graph_def(definition, given, ["whole:0"], name="copy")
    update = trained(tables, tf.reduce_sum(whole) + tf.reduce_sum(copy)) if train else tf.no_op()
    raws, sess = support.opened(tables, session, True)
    for raw in raws:
        raw.assign(sess, np.arange(10), np.random.RandomState(1).randn(10, 2))
    before = [raw.rows(sess) for raw in raws]
    first, second, _ = sess.run([whole, copy, update], {one: [1, 2] for one in ids})
    for found, keys in ((first, ([1, 2], [1, 2])), (second, ([3, 3], [4, 4]))):
        rows = [[of_table[key] for key in of_one] for of_table, of_one in zip(before, keys)]
        support.assert_same_bits(found, np.concatenate(rows, 1))
    changed = [[key for key in range(10) if not np.array_equal(raw.rows(sess)[key], of_table[key])]
               for raw, of_table in zip(raws, before)]
    assert changed == ([[1, 2, 3], [1, 2, 4]] if train else [[], []])


# Graph modification.


def pipeline_model(grouped, modify, tables=3, batches=5):
    """A model fed by a dataset; returns the fetches, how to start it, and its tables."""
    random = np.random.RandomState(5)
    ids = random.randint(-1, 40, size=(batches, tables, 8, 2))
    dataset = tf.data.Dataset.from_tensor_slices(ids)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    made = [make_table("table_%d" % at, 3 + at) for at in range(tables)]
    columns = [batch[at] * 2 for at in range(tables)]
    if grouped:
        found = many(made, columns, concat=grouped == "concat")
    else:
        found = [lookup(table, one) for table, one in zip(made, columns)]
    fixed = many(made, [tf.constant([[1, 3]], tf.int64)] * tables)
    loss = loss_of(([found] if grouped == "concat" else list(found)) + fixed) \
        if grouped == "concat" else loss_of(list(found) + fixed)
    train = trained(made, loss)
    initializer = iterator.initializer
    if modify:
        modify_graph_and_start_emb_cache(dump_graph=False)
        initializer = get_initializer(True)
    rows = found if grouped == "concat" else tf.concat(found, -1)
    return rows, train, initializer, made


def run_model(grouped, modify):
    """Rows of each step and all tables at the end, in a graph of its own."""
    tf.compat.v1.reset_default_graph()
    rows, train, initializer, tables = pipeline_model(grouped, modify)
    raws = [support.Raw.of(table) for table in tables]
    graph = tf.compat.v1.get_default_graph()
    steps = []
    with support.new_session(graph) as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        sess.run(initializer)
        while True:
            try:
                steps.append(sess.run([rows, train])[0])
            except tf.errors.OutOfRangeError:
                break
        return steps, [raw.rows(sess) for raw in raws], needed(train)


@pytest.mark.parametrize("grouped", ["", "many", "concat"])
def test_a_modified_graph_claims_and_reads_all_tables_by_one_op_and_gives_the_same_bits(
        graph, dynamic, monkeypatch, grouped):
    expected = run_model(grouped, False)
    assert len(expected[0]) == 5 and "MxRecIdOffset prepared of many" not in expected[2]
    assert len(expected[2]["MxRecUpdate"]) == 1 and ("MxRecRead whole" in expected[2]) == (grouped == "concat")
    modified = run_model(grouped, True)
    ops = modified[2]
    assert len(ops["MxRecIdOffset prepared of many"]) == 1 and "MxRecIdOffset prepared" not in ops and "MxRecRead" not in ops
    # What cannot move is one op again.
    assert "MxRecIdOffset" not in ops and len(ops["MxRecIdOffset of many"]) == 1
    support.switch_pass(monkeypatch, False)
    alone = run_model("", True)
    assert "MxRecIdOffset prepared of many" not in alone[2] and len(alone[2]["MxRecIdOffset prepared"]) == 3
    for found in (modified, alone) if grouped == "" else (modified,):
        support.assert_same_each(found[0], expected[0])
        support.assert_same_each(found[1], expected[1])


def test_the_command_plans_each_lookup_of_a_group(graph, dynamic, tmp_path, capsys):
    pipeline_model("many", False)
    tf.io.write_graph(graph, str(tmp_path), "graph.pb", as_text=False)
    assert main([str(tmp_path / "graph.pb")]) == 0
    said = capsys.readouterr().out
    assert "6 lookups that may be moved: 3 move, 3 stay" in said


def test_a_group_that_was_evicted_between_preparation_and_claim_is_resolved_again(graph, dynamic):
    """Rows removed while batches are prepared ahead: the claim of these tables looks them up anew."""
    rows, train, initializer, tables = pipeline_model("many", True)
    raws = [support.Raw.of(table) for table in tables]
    with support.new_session(graph) as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        sess.run(initializer)
        sess.run([rows, train])
        raws[1].remove(sess, np.arange(0, 40, 2))
        for _ in range(3):
            sess.run([rows, train])
        assert all(raw.size(sess) > 5 for raw in raws)


def test_lookups_that_no_common_update_trains_are_claimed_one_by_one(graph, dynamic):
    """A run that needs one of them gives no key of the other table a row, as in a graph that is not modified."""
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(40).reshape(5, 2, 4))
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    tables = [make_table("table_%d" % at, 2) for at in range(2)]
    found = [lookup(table, batch[at]) for at, table in enumerate(tables)]
    trains = [trained([table], tf.reduce_sum(rows)) for table, rows in zip(tables, found)]
    raws = [support.Raw.of(table) for table in tables]
    modify_graph_and_start_emb_cache(dump_graph=False)
    assert "MxRecIdOffset prepared of many" not in types_of(graph) and types_of(graph)["MxRecIdOffset prepared"] == 2
    with support.new_session(graph) as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        sess.run(get_initializer(True))
        sess.run(trains[0])
        assert [raw.size(sess) for raw in raws] == [4, 0]
        sess.run(trains[1])
        assert [raw.size(sess) for raw in raws] == [4, 4]
