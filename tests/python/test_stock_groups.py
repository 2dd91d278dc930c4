"""Converted variables share one op of each kind where they can, with the numbers of ops of their own."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.ops.optimizers import gradients_of
from test_fused_updates import needed
from mx_rec.state.graph_state import graph_state
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph


both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


def update_forms(train):
    """For each update that a run of `train` runs its optimizer, what its gradients are of, and how many lookups they are of."""
    return [(support.rule_of(op), support.form_of(op), op.get_attr("N")) for op in needed(train)["MxRecUpdate"]]


def types_of(train):
    """How many ops of the plugin a run of `train` runs of each type."""
    return collections.Counter({kind: len(ops) for kind, ops in needed(train).items()})


def variables(v1, use_resource, count=3, dim=cases.DIM):
    return [v1.get_variable("w{}".format(at), [cases.ROWS, dim], use_resource=use_resource,
                            initializer=v1.random_uniform_initializer(-0.1, 0.1)) for at in range(count)]


def made_optimizer(name):
    return dict(cases.optimizers(), adam=lambda: tf.compat.v1.train.AdamOptimizer(0.02))[name]()


def bag_of(ids, at):
    sparse = tf.sparse.from_dense(tf.where((ids + at) % 3 == 0, tf.zeros_like(ids), ids))
    return sparse


@both
def test_gathers_that_the_script_holds_give_the_rows_of_their_own_variable(mx, use_resource):
    """A held gather became the first output of the op that its lookup shares: its rows were the first variable's."""
    v1 = tf.compat.v1
    found = {}
    for tables in (False, True):
        tf.compat.v1.reset_default_graph()
        if tables:
            mx(stock_tables=".*")
        ids = v1.placeholder(tf.int64, [None])
        made = [v1.get_variable("w%d" % at, [cases.ROWS, 4], use_resource=use_resource,
                                initializer=v1.constant_initializer(at + 1.0)) for at in range(3)]
        held = [tf.gather(one, ids + at) for at, one in enumerate(made)]
        loss = tf.add_n([tf.reduce_sum(one * (at + 2.0)) for at, one in enumerate(held)])
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        with support.started(support.new_session()) as session:
            found[tables] = []
            for fetches in (held, held[1], held[::-1], [held[2], loss], [train, held[1]], held):
                found[tables].append(session.run(fetches, {ids: [1, 5, 1]}))
            kinds = types_of(train)
        assert bool(kinds) == tables
    for one, other in zip(found[True], found[False]):
        for ours, theirs in zip(one, other):
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@both
@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "momentum", "lazy_adam", "adam", "rmsprop", "centered_rmsprop"])
def test_lookups_and_updates_of_several_variables_are_one_op_each(v1, optimizer, use_resource):
    seen = []

    def build(ids, labels):
        made = variables(v1, use_resource)
        pooled = [tf.nn.safe_embedding_lookup_sparse(one, bag_of(ids, at), combiner=("sum", "mean", "sqrtn")[at])
                  for at, one in enumerate(made)]
        kept = [tf.reshape(tf.nn.embedding_lookup(one, ids * 7 % cases.ROWS), [-1, 12])[:, :cases.DIM] for one in made]
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.concat(pooled + kept, 1), 1) - labels))
        seen.append(made_optimizer(optimizer).minimize(loss))
        return loss, seen[-1], made

    plans = cases.expect_equal(build, ["w0", "w1", "w2"])
    assert all(len(plan.pieces) == 2 for plan in plans.values())
    types = types_of(seen[-1])
    assert types["MxRecSparseBagsMany"] == types["MxRecRead bags of many"] == types["MxRecRead of many"] == 1
    assert types["MxRecIdOffset of many"] == 1 and not {"MxRecRead", "MxRecRead bags"} & set(types)
    assert types["MxRecCheckedIds of many"] == 1 and "MxRecCheckedIds" not in types
    update, = needed(seen[-1])["MxRecUpdate"]
    assert (support.rule_of(update), support.form_of(update)) == (optimizer, "bags")
    # Gradients of the pooled vectors are read in that of the concatenation.
    columns = tf.get_static_value(gradients_of(update).columns[0])
    assert sorted(columns) == [-1] * 3 + [at * cases.DIM for at in range(3)]


@both
@pytest.mark.parametrize("wrong", [-1, 7])
def test_an_id_that_one_of_several_variables_has_not_is_refused_by_its_name_before_any_row_changes(mx, use_resource, wrong):
    """One op checks the ids of all; a gather that runs alone has those of its own variable checked, and no others."""
    mx(stock_tables=".*")
    v1 = tf.compat.v1
    ids = [v1.placeholder(tf.int64, [None]) for _ in range(3)]
    made = [v1.get_variable("w%d" % at, [6 + at, 4], use_resource=use_resource,
                            initializer=v1.constant_initializer(at + 1.0)) for at in range(3)]
    held = [tf.nn.embedding_lookup(one, of) for one, of in zip(made, ids)]
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.nn.l2_loss(tf.concat(held, 1)))
    given = dict(zip(ids, ([5, 0], [6, 6], [7, 1])))
    with support.started(support.new_session()) as session:
        session.run(train, given)
        before = session.run(made)
        assert types_of(train)["MxRecCheckedIds of many"] == 1
        # Each run needs this op or those of before, and would ignore what the other is fed.
        checks = [op for op in train.graph.get_operations() if op.type == "MxRecCheckedIds"]
        assert len(checks) == 4 and not any(train.graph.is_feedable(of) for op in checks for of in op.outputs)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1\] = %d is not in \[0, 7\).*of=w1" % wrong):
            session.run(train, {**given, ids[1]: [0, wrong]})
        for one, other in zip(session.run(made), before):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(session.run(held[2], {ids[2]: [7]}), before[2][7:])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0\] = 8 is not in \[0, 8\).*of=w2"):
            session.run(held[2], {ids[2]: [8]})


@pytest.mark.long
@both
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "lazy_adam"])
def test_updates_that_wait_for_batch_normalization_are_one_op(v1, optimizer, use_resource):
    """The op that tf.group makes of the ops of Adam waits for the moving averages as well: each update was an op."""
    seen = []

    def build(ids, labels):
        made = variables(v1, use_resource)
        rows = tf.concat([tf.reshape(tf.nn.embedding_lookup(one, ids * 7 % cases.ROWS), [-1, 12]) for one in made], 1)
        normal = v1.layers.batch_normalization(rows, training=True)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(normal * tf.linspace(-1.0, 1.0, 36), 1) - labels))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            seen.append(made_optimizer(optimizer).minimize(loss))
        return loss, seen[-1], made

    cases.expect_equal(build, ["w0", "w1", "w2"])
    assert [op.get_attr("N") for op in needed(seen[-1])["MxRecUpdate"]] == [3]


@pytest.mark.long
@both
@pytest.mark.parametrize("optimizer, max_norm", [("adam", None), ("ftrl", 0.4), ("momentum", None)])
def test_bags_that_nothing_fills_are_pooled_where_they_are_read(v1, optimizer, max_norm, use_resource):
    """tf.nn.embedding_lookup_sparse: a bag without ids is zeros, and there is none behind the last id."""
    seen = []

    def build(ids, labels):
        made = variables(v1, use_resource)
        # The last examples of each batch have no ids, those of some batches none at all.
        is_used = (tf.range(tf.shape(ids)[0]) < tf.cast(ids[0, 0] % 4, tf.int32) * 5)[:, None]
        pooled = [tf.nn.embedding_lookup_sparse(one, bag_of(tf.where(is_used & (ids >= 0), ids, tf.zeros_like(ids)), at),
                                                None, combiner=("sum", "mean", "sqrtn")[at], max_norm=max_norm)
                  for at, one in enumerate(made)]
        loss = tf.add_n([tf.reduce_sum(tf.square(one - 0.1)) for one in pooled]) + tf.reduce_mean(labels)
        seen.append(made_optimizer(optimizer).minimize(loss))
        return loss, seen[-1], made

    plans = cases.expect_equal(build, ["w0", "w1", "w2"])
    assert all(piece.bags and not piece.bags.fill for plan in plans.values() for piece in plan.pieces)
    types = types_of(seen[-1])
    assert types["MxRecRead bags of many"] == types["MxRecUpdate"] == types["MxRecSparseBagsMany"] == 1
    assert not any(op.type in ("Unique", "SparseSegmentMean") for op in cases.ops_of_run([seen[-1]]))


@both
@pytest.mark.parametrize("columns", [1, 3, None, "int32"])
def test_bags_are_told_by_the_first_column_of_any_matrix(v1, columns, use_resource):
    """TensorFlow reads no other: sparse ids of one and of three dimensions, of unknown ones, and rows by hand."""

    def build(ids, labels):
        made, = variables(v1, use_resource, 1)
        sparse = bag_of(ids, 0)
        bags = sparse.indices[:, :1]
        if columns == "int32":
            places, ids = tf.unique(sparse.values)[::-1]
            rows = tf.cast(sparse.indices, tf.int32)[:, 0]
            pooled = tf.compat.v1.sparse_segment_sum(tf.gather(made, ids), places, rows)
        else:
            wide = tf.tile(bags, [1, columns or 2])
            indices = v1.placeholder_with_default(wide, [None, None]) if columns is None else wide
            sparse = tf.SparseTensor(indices, sparse.values, tf.fill([columns or 2], tf.constant(99, tf.int64)))
            pooled = tf.nn.embedding_lookup_sparse(made, sparse, None, combiner="mean")
        loss = tf.reduce_sum(tf.square(pooled - 0.1)) + tf.reduce_mean(labels)
        return loss, v1.train.AdagradOptimizer(0.1).minimize(loss), [made]

    assert all(piece.bags for piece in cases.expect_equal(build, ["w0"])["w0"].pieces)


def clipped(pairs):
    grads, variables = zip(*pairs)
    return zip(tf.clip_by_global_norm(grads, 0.5)[0], variables)


def scaled(pairs):
    return [(tf.IndexedSlices(grad.values * 0.5, grad.indices, grad.dense_shape), variable) for grad, variable in pairs]


@pytest.mark.parametrize("change, lookup, optimizer, use_resource", [
    (list, "sparse", "adam", False), (list, "twice", "sgd", False), (list, "rows", "sgd", True),
    (list, "reshaped", "adam", True), (clipped, "rows", "adam", False), (clipped, "twice", "adam", True),
    (clipped, "sparse", "adam", True), (scaled, "reshaped", "sgd", True), (scaled, "sparse", "sgd", False)])
def test_gradients_that_something_changes_take_the_rows_of_their_lookups(v1, change, lookup, optimizer, use_resource):
    """Each variable had an update of its own, which looked its ids up again."""
    seen = []

    def rows_of(variable, ids):
        if lookup == "sparse":
            return tf.nn.embedding_lookup_sparse(variable, tf.sparse.from_dense(ids + 1), None, combiner="mean")
        if lookup == "reshaped":
            return tf.reduce_sum(tf.nn.embedding_lookup(variable, tf.reshape(ids, [-1, 1, 3])), [1, 2])
        rows = tf.reduce_sum(tf.nn.embedding_lookup(variable, ids), 1)
        return rows if lookup == "rows" else rows + tf.reduce_max(tf.nn.embedding_lookup(variable, ids), 1)

    def build(ids, labels):
        made = variables(v1, use_resource)
        rows = tf.concat([rows_of(one, ids * 7 % (cases.ROWS - 1)) for one in made], 1)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows * tf.linspace(-1.0, 1.0, 3 * cases.DIM), 1) - labels))
        chosen = made_optimizer(optimizer)
        seen.append(chosen.apply_gradients(change(chosen.compute_gradients(loss, made))))
        return loss, seen[-1], made

    cases.expect_equal(build, ["w0", "w1", "w2"])
    types = types_of(seen[-1])
    assert types["MxRecUpdate"] == types["MxRecIdOffset of many"] == 1 and "MxRecIdOffset" not in types


@pytest.mark.long
@both
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_variables_of_one_and_of_three_dimensions_share_the_ops_of_matrices(v1, optimizer, use_resource):
    """Such as biases of users and items: each looked its ids up again, for an update of its own."""
    seen = []

    def build(ids, labels):
        made = [v1.get_variable("w{}".format(at), shape, use_resource=use_resource) for at, shape in enumerate(
            [[cases.ROWS, 4], [cases.ROWS], [cases.ROWS, 2, 3]])]
        rows = [tf.reshape(tf.gather(one, ids), [tf.shape(ids)[0], 3 * size]) for one, size in zip(made, (4, 1, 6))]
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.concat(rows, 1) * tf.linspace(-1.0, 1.0, 33), 1) - labels))
        seen.append(made_optimizer(optimizer).minimize(loss))
        return loss, seen[-1], made

    cases.expect_equal(build, ["w0", "w1", "w2"])
    types = types_of(seen[-1])
    assert types["MxRecUpdate"] == types["MxRecIdOffset of many"] == 1 and "MxRecIdOffset" not in types


@both
def test_a_gather_that_an_update_does_not_need_makes_no_rows_for_it(v1, graph, use_resource):
    """By the ids of an update, before it and after it."""
    variable, = variables(v1, use_resource, 1)
    ids = v1.placeholder(tf.int64, [None])
    before = tf.gather(variable, ids)
    change = v1.scatter_sub(variable, ids, tf.ones([tf.size(ids), cases.DIM]))
    with tf.control_dependencies([change.op]):
        after = tf.gather(variable, ids)
    support.keep_variables()
    found, = convert_graph(graph, True)
    assert found.converts
    table = graph_state(graph).tables[found.table]
    with support.started(support.new_session()) as session:
        start = session.run(before, {ids: [1, 2, 1]})
        assert table.size() == 0
        np.testing.assert_allclose(session.run(after, {ids: [1, 2]}), start[:2] - 1.0, rtol=1e-5)
        np.testing.assert_allclose(session.run(before, {ids: [1, 2, 3]})[:2], start[:2] - 1.0, rtol=1e-5)
        assert table.size() == 2


@both
def test_what_waits_for_an_update_and_for_another_op_waits_for_both(v1, graph, use_resource):
    variable, = variables(v1, use_resource, 1)
    count = v1.get_variable("count", [], use_resource=use_resource, initializer=v1.zeros_initializer())
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(variable, [1, 2])))
    v1.train.AdamOptimizer(0.1).minimize(loss)
    gate = graph.get_operation_by_name("Adam/update_w0/group_deps")
    both_ops = tf.group(*list(gate.control_inputs) + [count.assign_add(1.0).op])
    with tf.control_dependencies([both_ops]):
        counted = tf.identity(count.read_value())
    with support.started(support.new_session()) as session:
        before = session.run(tf.gather(variable, [1, 2]))
        assert [session.run(counted) for _ in range(3)] == [1.0, 2.0, 3.0]
        session.run(both_ops)
        assert session.run(count) == 4.0 and (session.run(tf.gather(variable, [1, 2])) != before).all()
    ops = cases.ops_of_run([counted])
    assert needed(counted)["MxRecUpdate"] and any(op.type.startswith("AssignAdd") for op in ops)


@pytest.mark.long
@both
def test_parts_of_a_model_with_other_optimizers_find_their_rows_by_one_op(v1, use_resource):
    """FTRL touches the first row for a bag without ids, Adagrad does not: their bags are two ops."""
    seen = []

    def build(ids, labels):
        deep, wide, other = variables(v1, use_resource)
        # The same ids by ops of their own; some bags have none.
        bags = [tf.sparse.from_dense(tf.where(ids % 3 == 0, tf.zeros_like(ids), ids)) for _ in range(3)]
        rows = [tf.nn.safe_embedding_lookup_sparse(one, bag, combiner=combiner)
                for one, bag, combiner in zip((deep, wide, other), bags, ("mean", "sum", "sum"))]
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.concat(rows, 1), 1) - labels))
        optimizers = cases.optimizers()
        seen.append(tf.group(optimizers["adagrad"]().minimize(loss, var_list=[deep, other]),
                             optimizers["ftrl"]().minimize(loss, var_list=[wide])))
        return loss, seen[-1], [deep, wide, other]

    cases.expect_equal(build, ["w0", "w1", "w2"])
    types = types_of(seen[-1])
    assert types["MxRecIdOffset of many"] == types["MxRecRead bags of many"] == 1 and types["MxRecSparseBagsMany"] == 2
    assert "MxRecRead bags" not in types


@both
def test_optimizers_with_other_numbers_have_ops_of_their_own(v1, graph, use_resource):
    made = variables(v1, use_resource)
    loss = tf.add_n([tf.reduce_sum(tf.square(tf.nn.safe_embedding_lookup_sparse(
        one, bag_of(tf.constant([[1, 2], [4, 5]]), 0)))) for one in made])
    train = tf.group(*[v1.train.AdagradOptimizer(rate).minimize(loss, var_list=part)
                       for rate, part in ((0.1, made[:2]), (0.2, made[2:]))])
    assert all(plan.pieces for plan in convert_graph(graph, True))
    types = types_of(train)
    assert sorted(update_forms(train)) == [("adagrad", "bags", 1), ("adagrad", "bags", 2)]
    assert types["MxRecRead bags of many"] == 1


@both
def test_a_lookup_by_the_rows_of_another_is_not_together_with_it(v1, graph, use_resource):
    """One op for both would wait for itself."""
    first, second, third = variables(v1, use_resource)
    one = tf.nn.embedding_lookup(first, [1, 2])
    other = tf.nn.embedding_lookup(second, tf.cast(tf.reduce_max(tf.abs(one), 1) * 10, tf.int64))
    with tf.control_dependencies([other]):
        last = tf.nn.embedding_lookup(third, tf.identity(tf.constant([3, 4])))
    loss = tf.reduce_sum(one + other * 2.0 + last)
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    assert all(plan.pieces for plan in convert_graph(graph, True))
    assert "MxRecRead of many" not in types_of(loss.op) and types_of(loss.op)["MxRecRead"] == 3
    with support.started(support.new_session()) as sess:
        before = sess.run(loss)
        sess.run(train)
        assert sess.run(loss) < before


@both
def test_an_update_after_another_is_not_together_with_it(v1, graph, use_resource):
    first, second, _ = variables(v1, use_resource)
    optimizer = v1.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(tf.reduce_sum(tf.nn.embedding_lookup(first, [1]) ** 2)
                                        + tf.reduce_sum(tf.nn.embedding_lookup(second, [2]) ** 2), [first, second])
    begun = optimizer.apply_gradients(pairs[:1])
    with tf.control_dependencies([begun]):
        grad, variable = pairs[1]
        train = optimizer.apply_gradients([(tf.IndexedSlices(tf.identity(grad.values), tf.identity(grad.indices),
                                                             grad.dense_shape), variable)])
    init = v1.global_variables_initializer()
    assert sum(plan.converts for plan in convert_graph(graph, True)) == 2
    assert not [form for form in update_forms(train) if form[2] > 1]
    with support.started(support.new_session(), init) as sess:
        sess.run(train)


@both
@pytest.mark.parametrize("turned", [False, True], ids=["first", "last"])
def test_an_update_that_waits_for_the_op_of_another_waits_for_that_of_its_table(v1, graph, use_resource, turned):
    """What an update waits for may be an op that a table has replaced before."""
    first, second, _ = variables(v1, use_resource)
    if turned:
        first, second = second, first
    optimizer = v1.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(tf.reduce_sum(tf.nn.embedding_lookup(first, [1]) ** 2)
                                        + tf.reduce_sum(tf.nn.embedding_lookup(second, [2]) ** 2), [first, second])
    optimizer.apply_gradients(pairs[:1])
    update, = [op for op in graph.get_operations() if "SparseApplyAdagrad" in op.type]
    with tf.control_dependencies([update]):
        grad, variable = pairs[1]
        train = optimizer.apply_gradients([(tf.IndexedSlices(tf.identity(grad.values), tf.identity(grad.indices),
                                                             grad.dense_shape), variable)])
    init = v1.global_variables_initializer()
    assert sum(plan.converts for plan in convert_graph(graph, True)) == 2
    with support.started(support.new_session(), init) as sess:
        sess.run(train)
    above, waiting = set(), [train]
    while waiting:
        op = waiting.pop()
        if op not in above:
            above.add(op)
            waiting += list(op.control_inputs) + [tensor.op for tensor in op.inputs]
    assert [(support.rule_of(op), support.form_of(op)) for op in support.updates_in(above)] == [("adagrad", "ids")] * 2
    assert not [op for op in above if "SparseApply" in op.type]


@both
@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
def test_sparse_ids_in_any_order_train_as_in_tensorflow(v1, optimizer, use_resource):
    """SparseFillEmptyRows sorts; the op that took its place said that rows have to ascend."""

    def build(ids, labels):
        made, = variables(tf.compat.v1, use_resource, 1)
        rows = tf.cast(tf.shape(ids)[0], tf.int64)
        index = tf.stack([tf.tile(rows - 1 - tf.range(rows), [2]) // 2 * 2, tf.concat([tf.zeros([rows], tf.int64),
                                                                                  tf.ones([rows], tf.int64)], 0)], 1)
        sparse = tf.SparseTensor(index, tf.reshape(ids[:, :2], [-1]) - 2, tf.stack([rows, 2]))
        pooled = tf.nn.safe_embedding_lookup_sparse(made, sparse, combiner="mean")
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(pooled, 1) - labels))
        return loss, cases.optimizers()[optimizer]().minimize(loss), [made]

    assert cases.expect_equal(build, ["w0"])["w0"].pieces


@both
def test_ids_by_another_stride_are_no_bags(v1, graph, use_resource):
    """Which rows begin a segment was read from begin and masks alone."""
    made, = variables(v1, use_resource, 1)
    sparse = tf.SparseTensor([[0, 0], [1, 0], [2, 0], [3, 0]], tf.constant([1, 2, 3, 4], tf.int64), [4, 1])
    pooled = tf.nn.safe_embedding_lookup_sparse(made, sparse)
    v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(pooled))
    slice_op, = [op for op in graph.get_operations() if op.type == "StridedSlice" and op.get_attr("shrink_axis_mask") == 2
                 and op.inputs[0].op.type == "SparseFillEmptyRows"]
    slice_op._update_input(3, tf.constant([2, 1]))
    plan, = convert_graph(graph, True)
    assert plan.converts and plan.pieces is None


@both
def test_slots_are_reset_by_an_initializer_made_after_the_conversion(v1, graph, use_resource):
    made, = variables(v1, use_resource, 1)
    ids = v1.placeholder(tf.int64, [None])
    optimizer = v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.5)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(made, ids))
    train = optimizer.minimize(loss)
    init = v1.global_variables_initializer()
    convert_graph(graph, True)
    again = v1.variables_initializer(optimizer.variables())
    table, = converted(graph)
    slot = support.export(table.table.handle, "Adagrad_accumulator")
    rows = support.export(table.table.handle)
    with support.started(support.new_session(), init) as sess:
        sess.run(train, {ids: [1, 2]})
        keys, before = sess.run(rows)
        assert keys.tolist() == [1, 2] and (sess.run(slot)[-1] == 1.5).all()
        sess.run(again)
        assert (sess.run(slot)[-1] == 0.5).all() and (sess.run(rows)[1] == before).all()
        first = sess.run([loss, train], {ids: [1]})[0]
        assert abs(sess.run(loss, {ids: [1]}) - (first - cases.DIM * 0.1 / np.sqrt(1.5))) < 1e-5


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "rmsprop"])
def test_an_empty_batch_and_bags_without_ids_change_what_they_change_in_tensorflow(v1, graph, optimizer):
    made = variables(v1, True, 2)
    ids, rows = v1.placeholder(tf.int64, [None, 2]), v1.placeholder(tf.int64, [None])
    shape = v1.placeholder(tf.int64, [2])
    sparse = tf.SparseTensor(ids, rows, shape)
    pooled = [tf.nn.safe_embedding_lookup_sparse(one, sparse, combiner="sqrtn") for one in made]
    train = cases.optimizers()[optimizer]().minimize(tf.reduce_sum(tf.square(tf.concat(pooled, 1))))
    convert_graph(graph, True)
    sizes = [one.table for one in converted(graph)]
    with support.started(support.new_session()) as sess:
        feeds = {ids: np.zeros([0, 2], np.int64), rows: []}
        found = sess.run(pooled + [train], {shape: [0, 3], **feeds})
        assert found[0].shape == (0, cases.DIM) and [table.size() for table in sizes] == [0, 0]
        found = sess.run(pooled + [train], {shape: [4, 3], **feeds})
        assert found[0].shape == (4, cases.DIM) and not found[0].any()
        assert [table.size() for table in sizes] == ([0, 0] if optimizer == "adagrad" else [1, 1])
        with pytest.raises(tf.errors.InvalidArgumentError, match="MxRecSparseBagsMany.*lies outside"):
            sess.run(train, {ids: [[4, 0]], rows: [1], shape: [4, 3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 60 is not in \[0, 60\)"):
            sess.run(train, {ids: [[1, 0]], rows: [60], shape: [4, 3]})


@both
def test_a_graph_that_is_converted_again_keeps_its_tables(v1, graph, use_resource):
    """GraphModifierHook converts, too: an Estimator's variables became two tables of one name."""
    made, = variables(v1, use_resource, 1)
    v1.train.FtrlOptimizer(0.1).minimize(tf.reduce_sum(tf.nn.embedding_lookup(made, [1, 2])))
    assert [plan.converts for plan in convert_graph(graph, True)] == [True]
    before = graph.as_graph_def()
    assert convert_graph(graph, True) == [] and graph.as_graph_def() == before
    assert len(converted(graph)) == 1


@both
@pytest.mark.parametrize("optimizer", ["adagrad", "lazy_adam"])
@pytest.mark.parametrize("is_pooled", [False, True], ids=["rows", "bags"])
def test_a_training_op_that_runs_alone_trains_and_reads_its_own_variable_alone(v1, graph, is_pooled, optimizer,
                                                                               use_resource):
    """Updates with the same tensor of a rate were one op for all training ops, and lookups by any placeholders one."""
    made, rate = variables(v1, use_resource, 4), v1.placeholder_with_default(0.1, [])
    ids = [v1.placeholder(tf.int64, [None, 2]) for _ in range(2)]
    maker = {"adagrad": v1.train.AdagradOptimizer, "lazy_adam": tf.contrib.opt.LazyAdamOptimizer}[optimizer](rate)
    losses, trains = [], []
    for fed, part in zip(ids, (made[:2], made[2:])):
        rows = [tf.nn.safe_embedding_lookup_sparse(one, tf.sparse.from_dense(fed)) if is_pooled
                else tf.nn.embedding_lookup(one, fed) for one in part]
        losses.append(tf.reduce_sum(tf.square(tf.add_n(rows) - 1.0)))
        trains.append(maker.minimize(losses[-1], var_list=part))
    both_ops = tf.group(*trains)
    init = v1.global_variables_initializer()
    assert all(plan.pieces for plan in convert_graph(graph, True))
    with support.started(support.new_session(), init) as sess:
        feeds = [{ids[0]: [[1, 2]]}, {ids[1]: [[3, 4]]}]
        before = [sess.run(loss, feed) for loss, feed in zip(losses, feeds)]
        sess.run(trains[0], feeds[0])
        after = [sess.run(loss, feed) for loss, feed in zip(losses, feeds)]
        assert after[0] < before[0] and after[1] == before[1]
        sess.run(both_ops, {**feeds[0], **feeds[1]})
        assert sess.run(losses[1], feeds[1]) < before[1]
    types = types_of(both_ops)
    assert update_forms(both_ops) == [(optimizer, "bags" if is_pooled else "ids", 2)] * 2
    assert types["MxRecIdOffset of many"] == 2


def pooled_model(v1, made, ids, optimizer=None):
    """(the vectors of bags of each variable, a training op) by some dense ids, of which 0 is left out."""
    pooled = [tf.nn.safe_embedding_lookup_sparse(one, tf.sparse.from_dense(value), combiner="mean")
              for one, value in zip(made, ids)]
    loss = tf.add_n([tf.reduce_sum(tf.square(one - 1.0)) * (at + 1.0) for at, one in enumerate(pooled)])
    return pooled, (optimizer or v1.train.AdagradOptimizer(0.1)).minimize(loss)


def test_a_run_of_one_of_several_bags_needs_its_own_placeholder_and_makes_no_other_row(v1, monkeypatch, tmp_path):
    found = []
    for passes in (True, False):
        v1.reset_default_graph()
        support.switch_pass(monkeypatch, passes)
        graph = v1.get_default_graph()
        made = variables(v1, True)
        ids = [v1.placeholder(tf.int64, [None, 2]) for _ in made]
        pooled, train = pooled_model(v1, made, ids)
        names = [one.name for one in pooled]
        init = v1.global_variables_initializer()
        assert all(plan.pieces for plan in convert_graph(graph, True))
        sizes = [one.table for one in converted(graph)]
        feeds = [{one: [[1, 2], [0, at + 3]]} for at, one in enumerate(ids)]
        every = {one: value for feed in feeds for one, value in feed.items()}
        with support.started(support.new_session(), init) as sess:
            rows = [sess.run(pooled[1], feeds[1])]
            assert [table.size() for table in sizes] == [0, 3, 0]
            rows += [sess.run([names[0], train], every)[0], sess.run(pooled[2], feeds[2]), *sess.run(pooled, every)]
            # Some of what is joined can be fed; what follows from it is used.
            rows += sess.run(pooled[:2], {pooled[0]: rows[0], **feeds[1]})
            rows += [sess.run(part, every) for one in made for part in support.export(
                next(item for item in converted(graph) if item.plan.name == one.op.name).table.handle)[1:]]
            rows.append(sess.run(pooled[0] * 2.0, feeds[0]))
            # The graph grows: its new lookups are joined with each other.
            with v1.variable_scope("late"):
                late, train_late = pooled_model(v1, variables(v1, True, 2), ids[:2])
            start = v1.variables_initializer(v1.global_variables("late"))
            assert all(plan.pieces for plan in convert_graph(graph, True))
            sess.run(start)
            rows += sess.run([*late, train_late, pooled[2]], every)[:2] + sess.run(late, every)
        found.append(rows)
        # Elsewhere ops that were joined are joined once more, and a run of one needs no more than here.
        path = str(tmp_path / "graph.meta")
        v1.train.export_meta_graph(path, graph=graph)
        names = [one.name for one in pooled]
        with tf.Graph().as_default() as other:
            v1.train.import_meta_graph(path)
            with support.new_session(other) as sess:
                sess.run(init.name)
                for one, name in zip(feeds, names):
                    rows.append(sess.run(name, {fed.name: value for fed, value in one.items()}))
                sess.run([train.name], {fed.name: value for fed, value in every.items()})
                rows.append(sess.run(names[1], {ids[1].name: [[1, 2], [0, 4]]}))
            kinds = [op.get_attr("N") for op in needed(other.get_operation_by_name(train.name))["MxRecSparseBagsMany"]]
            assert kinds == ([3] if passes else [1, 1, 1])
        kinds = [[op.get_attr("N") for op in needed(one)["MxRecSparseBagsMany"]] for one in (train, train_late)]
        assert kinds == ([[3], [2]] if passes else [[1, 1, 1], [1, 1]])
    for one, other in zip(*found):
        support.assert_same_bits(one, other)


@pytest.mark.long
@both
def test_bags_by_the_vectors_of_others_and_behind_a_control_dependency_stay_alone(v1, use_resource):
    seen = []

    def build(ids, labels):
        first, second, third, last = variables(v1, use_resource, 4)
        one = tf.nn.safe_embedding_lookup_sparse(first, bag_of(ids, 0), combiner="sum")
        beside = tf.nn.safe_embedding_lookup_sparse(last, bag_of(ids, 1), combiner="sum")
        of_rows = tf.cast(tf.reshape(tf.reduce_max(tf.abs(one), 1), [-1, 1]) * 100, tf.int64) % cases.ROWS
        other = tf.nn.safe_embedding_lookup_sparse(second, tf.sparse.from_dense(of_rows), combiner="sum")
        with tf.control_dependencies([other]):
            waiting = bag_of(tf.identity(ids), 2)
            behind = tf.nn.safe_embedding_lookup_sparse(third, waiting, combiner="sum")
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.concat([one, beside, other, behind], 1), 1) - labels))
        seen.append(v1.train.AdagradOptimizer(0.1).minimize(loss))
        return loss, seen[-1], [first, second, third, last]

    cases.expect_equal(build, ["w0", "w1", "w2", "w3"])
    assert sorted(op.get_attr("N") for op in needed(seen[-1])["MxRecSparseBagsMany"]) == [1, 1, 2]


@pytest.mark.parametrize("how", ["as it is", "modified", "imported", "imported and modified", "passed and modified"])
def test_bags_of_an_iterator_have_the_bits_of_ops_of_their_own_wherever_they_are_made(v1, monkeypatch, tmp_path, how):
    """Where bags end was computed in the step of a modified graph, and all that their ids are computed from with it."""
    path = str(tmp_path / "graph.meta")

    def trained(passes, how):
        v1.reset_default_graph()
        support.switch_pass(monkeypatch, passes)
        graph = v1.get_default_graph()
        data = np.random.RandomState(3).randint(0, 40, [60, 3, 2]).astype(np.int64)
        data[::7] = 0
        batch = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data).repeat().batch(6)).get_next()
        made = variables(v1, True)
        texts = [tf.strings.to_hash_bucket_fast(tf.as_string(batch[:, at]), cases.ROWS - 1) for at in range(3)]
        texts = [tf.where(batch[:, at] > 0, one + 1, tf.zeros_like(one)) for at, one in enumerate(texts)]
        pooled, train = pooled_model(v1, made, texts, v1.train.FtrlOptimizer(0.1))
        total = tf.add_n([tf.reduce_sum(one) for one in pooled])
        init = v1.global_variables_initializer()
        convert_graph(graph, True)
        for name, one in (("train", train), ("total", total), ("init", init)):
            v1.add_to_collection(name, one)
        if how != "modified" and "modified" in how or how == "imported":
            with support.started(support.new_session(), init) as sess:
                sess.run(train)
        if "imported" in how:
            v1.train.export_meta_graph(path)
            v1.reset_default_graph()
            v1.train.import_meta_graph(path)
            train, total, init = [v1.get_collection(name)[0] for name in ("train", "total", "init")]
        if "modified" in how:
            modify_graph_and_start_emb_cache()
        with support.started(support.new_session(), init) as sess:
            return [sess.run([total, train])[0] for _ in range(8)], types_of(train)

    expected, plain = trained(False, "as it is")
    found, kinds = trained(True, how)
    support.assert_same_bits(np.array(found), np.array(expected))
    assert plain["MxRecSparseBagsMany"] == 3
    assert kinds["MxRecSparseBagsMany"] == (0 if "modified" in how else 1)
    assert kinds["MxRecRead bags of many"] == kinds["MxRecUpdate"] == 1


def step_of(v1, how, use_resource, tables):
    """(session, feeds, variable, train) of a model in a graph of its own, whose float tensors all take a feed in TensorFlow."""
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [20, 2], initializer=v1.constant_initializer(0.5), use_resource=use_resource)
        u = v1.get_variable("u", [], initializer=v1.constant_initializer(0.25), use_resource=use_resource)
        ids = v1.placeholder(tf.int64, [None, 2])
        rows = tf.nn.embedding_lookup(w, ids[:, 0]) if how != "bags" \
            else tf.nn.safe_embedding_lookup_sparse(w, tf.sparse.from_dense(ids), combiner="sum")
        # The gradient of one reads no value of the other, which its update may have changed.
        loss = tf.reduce_sum(tf.square(tf.reduce_sum(rows * [0.25, 0.5], 1) - 1.0)) + tf.square(u - 1.0)
        made = v1.train.AdagradOptimizer(0.1)
        pairs = made.compute_gradients(loss, [w, u])
        if how == "clipped":
            pairs = list(zip(tf.clip_by_global_norm([grad for grad, _ in pairs], 3.0)[0], [w, u]))
        train = made.apply_gradients(pairs)
        support.keep_variables()
        if tables:
            assert [plan.name for plan in convert_graph(graph, True) if plan.converts] == ["w"]
        init = v1.global_variables_initializer()
        session = support.new_session(graph)

    def run(name, fed):
        session.run(init)
        session.run(train, {ids: [[1, 2], [3, 1], [5, 0]], graph.get_tensor_by_name(name): fed})
        return cases.value_of(session, w)

    def value(name):
        session.run(init)
        return session.run(graph.get_tensor_by_name(name), {ids: [[1, 2], [3, 1], [5, 0]]})

    return graph, train, run, value


@pytest.mark.long
@both
@pytest.mark.parametrize("how", ["rows", "bags", "clipped"])
def test_a_feed_of_any_tensor_of_a_step_is_heeded_or_refused(v1, how, use_resource):
    """A fed gradient was ignored: the update took the one of the vectors of bags, past what was fed."""
    stock, train, run_stock, value = step_of(v1, how, use_resource, False)
    tables, _, run_tables, _ = step_of(v1, how, use_resource, True)
    names = sorted(output.name for op in cases.ops_of_run([train]) for output in op.outputs
                   if output.dtype == tf.float32 and stock.is_feedable(output))
    heeded, refused, told = [], [], {}
    for name in names:
        if not tables.is_feedable(tables.get_tensor_by_name(name)):
            refused.append(name)
            continue
        fed = value(name)
        fed = (fed + 0.125 * np.arange(1, fed.size + 1).reshape(fed.shape)).astype(np.float32)
        ours, theirs = run_tables(name, fed), run_stock(name, fed)
        heeded.append(name)
        if not np.allclose(ours, theirs, rtol=1e-5, atol=1e-6):
            told[name] = np.abs(ours - theirs).max()
    assert not told and len(heeded) > 8 and (refused or how == "clipped"), (told, refused)
