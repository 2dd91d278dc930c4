"""Weights of sparse ids in unchanged models: rows are multiplied and added up where they are read, with TensorFlow's
numbers."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from test_fused_updates import needed
from test_stock_groups import made_optimizer, types_of
from test_stock_max_norm import bags_of, loss_of, variables
from mx_rec.stock.select import convert_graph

v1 = tf.compat.v1

both = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
COMBINERS = ("sum", "mean", "sqrtn")
STEPS = 20


@pytest.fixture(autouse=True)
def everything(mx):
    mx(stock_tables=".*")


def weights_of(sparse, at=0, least=0.25):
    """A weight for each id, computed from the fed ids; below `least` for none."""
    values = tf.cast(tf.abs(sparse.values) * (at + 3) % 7, tf.float32) / 4.0 + least
    return tf.SparseTensor(sparse.indices, values, sparse.dense_shape)


def filled(ids, at=0):
    """Sparse ids of which each bag has some, repeated ones among them."""
    return tf.SparseTensor(*[getattr(tf.sparse.from_dense(tf.abs(ids + at) % (cases.ROWS - 1) + 1), name)
                             for name in ("indices", "values", "dense_shape")])


def fused(train, lookups=1):
    """Checks that rows are pooled where they are read, and that the update takes the gradients of bags."""
    types = types_of(train)
    reads = [op for kind, ops in needed(train).items() if kind.startswith("MxRecRead") for op in ops]
    assert sum(op.get_attr("B") for op in reads) == sum(op.get_attr("N") for op in reads) == lookups, types
    update, = needed(train)["MxRecUpdate"]
    assert support.form_of(update) == "bags"
    assert not any(op.type in ("Unique", "UnsortedSegmentSum") for op in cases.ops_of_run([train]))


def constant(ids, labels, at):
    """All sizes are known, which makes TensorFlow's gradients other ops."""
    count = cases.BATCH * 3
    places = np.stack([np.arange(count) // 3, np.arange(count) % 3], 1)
    values = np.cos(np.arange(count) + at).astype(np.float32) + 1.5
    return [tf.SparseTensor(tf.constant(places, tf.int64), one, [cases.BATCH, 3])
            for one in (tf.reshape((ids + at) % cases.ROWS, [count]), tf.constant(values))]


def fed(ids, labels, at):
    sparse = filled(ids, at)
    values = 1.5 + tf.gather(labels, sparse.indices[:, 0])
    return sparse, tf.SparseTensor(sparse.indices, tf.cast(values, tf.float64 if at else tf.float32), sparse.dense_shape)


def dataset(ids, labels, at):
    random = np.random.RandomState(at)
    drawn = random.rand(7, cases.BATCH * 3).astype(np.float32) + 0.1
    values = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(drawn).repeat()).get_next()
    sparse = filled(ids, at)
    return sparse, tf.SparseTensor(sparse.indices, values, sparse.dense_shape)


@pytest.mark.parametrize("source, optimizer, use_resource", support.by_turns(
    [constant, fed, dataset], ["adagrad", "ftrl", "adam", "lazy_adam"], [False, True]))
def test_weighted_lookups_and_their_updates_are_one_op_each(source, optimizer, use_resource):
    found = []

    def build(ids, labels):
        w = variables(3, use_resource)
        vectors = [tf.nn.embedding_lookup_sparse(one, *source(ids, labels, at), combiner=COMBINERS[at])
                   for at, one in enumerate(w)]
        loss = loss_of(vectors, labels)
        found.append(made_optimizer(optimizer).minimize(loss))
        return loss, found[-1], w

    plans = cases.expect_equal(build, ["w0", "w1", "w2"], STEPS)
    assert all(plan.pieces[0].bags.weights for plan in plans.values())
    fused(found[-1], 3)


@pytest.mark.parametrize("combiner, filled_with, form", support.by_turns(
    COMBINERS, [(None, None), (2, None), (None, 0.5)],
    [("adagrad", False), ("momentum", True), ("momentum", False), ("adagrad", True)]))
def test_the_safe_form_leaves_ids_and_weights_out_and_fills_bags(combiner, filled_with, form):
    """Ids below 0, weights of 0 and below, and bags without ids: row 0 takes part in an optimizer with momentum."""
    found, (default_id, max_norm), (optimizer, use_resource) = [], filled_with, form

    def build(ids, labels):
        w, = variables(1, use_resource)
        sparse = bags_of(ids)
        vectors = tf.nn.safe_embedding_lookup_sparse(
            [w], sparse, weights_of(sparse, least=-0.25), combiner=combiner, default_id=default_id, max_norm=max_norm)
        loss = loss_of([vectors], labels)
        found.append(cases.optimizers()[optimizer]().minimize(loss))
        return loss, found[-1], [w]

    cases.expect_equal(build, ["w0"], STEPS)
    fused(found[-1])


@both
def test_two_lookups_of_a_variable_one_without_weights(use_resource):
    found = []

    def build(ids, labels):
        w, = variables(1, use_resource)
        one, other = filled(ids), filled(ids, 5)
        vectors = [tf.nn.embedding_lookup_sparse(w, one, weights_of(one), combiner="mean"),
                   tf.nn.embedding_lookup_sparse(w, other, None, combiner="sqrtn"),
                   tf.nn.embedding_lookup_sparse(w, one, weights_of(one, 2), combiner="sum")]
        loss = loss_of(vectors, labels)
        found.append(made_optimizer("adam").minimize(loss))
        return loss, found[-1], [w]

    cases.expect_equal(build, ["w0"], STEPS)
    fused(found[-1], 3)


@pytest.mark.long
@both
def test_feature_columns_with_weights(use_resource):
    """Of an input layer and of a linear model, whose rows have one float."""
    found, column = [], tf.feature_column

    def build(ids, labels):
        features, made = {"ids": bags_of(ids)}, {}
        features["weights"] = weights_of(features["ids"], least=-0.25)
        key = column.weighted_categorical_column(
            column.categorical_column_with_identity("ids", cases.ROWS, default_value=0), "weights")
        with v1.variable_scope("model", use_resource=use_resource):
            vectors = v1.feature_column.input_layer(features, [column.embedding_column(key, 4, "mean")], cols_to_vars=made)
            linear = v1.feature_column.linear_model(features, [key], cols_to_vars=made, sparse_combiner="sqrtn")
        loss = loss_of([vectors, linear], labels)
        w = [one for several in made.values() for one in several if one.shape[0] == cases.ROWS]
        found.append(cases.optimizers()["ftrl"]().minimize(loss))
        return loss, found[-1], w

    plans = cases.run(build, True, 2).plans
    converts = [name for name, plan in plans.items() if plan.converts]
    assert len(converts) == 2
    cases.expect_equal(build, converts, STEPS)
    fused(found[-1], 2)


@both
@pytest.mark.parametrize("how", ["variable", "rows", "clipped"])
def test_what_needs_the_row_of_each_id_is_left_to_tensorflow(how, use_resource):
    """Weights with a gradient, weights computed from the rows, and gradients that something changes before the update."""
    found = []

    def build(ids, labels):
        w, = variables(1, use_resource)
        trained = [w]
        sparse, weights = fed(ids, labels, 0)
        if how == "variable":
            scale = v1.get_variable("scale", [2], initializer=v1.ones_initializer(), use_resource=use_resource)
            trained.append(scale)
            weights = tf.SparseTensor(weights.indices, weights.values * (1.0 + tf.reduce_sum(scale)), weights.dense_shape)
        if how == "rows":
            keys, places = tf.unique(sparse.values)
            rows = tf.gather(tf.nn.embedding_lookup(w, keys), places)
            values = tf.stop_gradient(tf.sigmoid(rows[:, :1]))
            vectors = v1.segment_sum(rows * values, sparse.indices[:, 0])
        else:
            vectors = tf.nn.embedding_lookup_sparse(w, sparse, weights, combiner="mean")
        loss = loss_of([vectors], labels)
        optimizer = cases.optimizers()["adagrad"]()
        pairs = optimizer.compute_gradients(loss, trained)
        if how == "clipped":
            pairs = zip(tf.clip_by_global_norm([grad for grad, _ in pairs], 0.1)[0], trained)
        found.append(optimizer.apply_gradients(pairs))
        return loss, found[-1], trained

    plans = cases.run(build, True, 2).plans
    cases.expect_equal(build, ["w0"], STEPS)
    assert plans["w0"].pieces is None and not {kind for kind in types_of(found[-1]) if "bags" in kind}


def test_a_bag_whose_weights_add_up_to_nothing_is_what_tensorflow_makes_of_it():
    """A bag in between without ids, weights that add up to 0, and weights that are no numbers: means are divided by
    TensorFlow."""
    def vectors(is_converted):
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", initializer=cases.start())
            values = tf.constant([1.0, 2.0, 1.0, -1.0, 0.0, np.inf, np.nan])
            sparse = [tf.SparseTensor(tf.constant([[0, 0], [0, 1], [2, 0], [2, 1], [3, 0], [4, 0], [5, 0]], tf.int64), one, [7, 2])
                      for one in (tf.constant([3, 3, 5, 5, 7, 9, 11], tf.int64), values)]
            found = [tf.nn.embedding_lookup_sparse(w, *sparse, combiner=one) for one in COMBINERS]
            v1.train.AdagradOptimizer(0.1).minimize(tf.add_n([tf.reduce_sum(one) for one in found]))
            if is_converted:
                assert [plan.converts for plan in convert_graph(graph, True)] == [True]
            with support.new_session(graph=graph) as session:
                session.run(v1.global_variables_initializer())
                cases.set_variable(session, w, cases.start())
                return session.run(found)

    for ours, theirs in zip(vectors(True), vectors(False)):
        assert ours.shape == theirs.shape == (6, cases.DIM)
        assert np.isnan(theirs).any()
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.long
@both
def test_a_training_goes_on_from_a_checkpoint_of_either_kind(tmp_path, use_resource):
    """Four steps, a checkpoint, and four more: with variables and with tables, before and behind it."""
    def steps(is_converted, path, begins):
        with tf.Graph().as_default() as graph:
            ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
            w, = variables(1, use_resource)
            sparse = bags_of(ids)
            loss = loss_of([tf.nn.safe_embedding_lookup_sparse([w], sparse, weights_of(sparse), combiner="mean")], labels)
            train = made_optimizer("adam").minimize(loss)
            if is_converted:
                convert_graph(graph, True)
            with support.new_session(graph=graph) as session:
                cases.train_half(session, path, begins, w, lambda batch, label: session.run(
                    train, {ids: batch, labels: label}), list(cases.batches(8)))
                return [cases.value_of(session, w)]

    cases.both_halves(tmp_path, steps)


@pytest.mark.long
@both
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_a_lookup_in_a_branch(optimizer, use_resource):
    def build(ids, labels):
        w, = variables(1, use_resource)
        sparse = filled(ids)

        def pooled():
            return tf.nn.embedding_lookup_sparse(w, sparse, weights_of(sparse), combiner="mean")

        vectors = tf.cond(ids[0, 0] % 2 > 0, pooled, lambda: tf.zeros([tf.shape(ids)[0], 4]))
        other = filled(ids, 3)
        vectors += tf.nn.embedding_lookup_sparse(w, other, weights_of(other), combiner="sum")
        loss = loss_of([vectors], labels)
        return loss, made_optimizer(optimizer).minimize(loss), [w]

    cases.expect_equal(build, ["w0"], STEPS)


def test_wrong_bags_and_weights_are_errors_and_change_nothing():
    ids, places = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [None, 2])
    values = v1.placeholder(tf.float32, [None])
    w, = variables(1)
    vectors = tf.nn.embedding_lookup_sparse(w, tf.SparseTensor(places, ids, [3, 3]), tf.SparseTensor(places, values, [3, 3]),
                                            combiner="sum")
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(vectors))
    right = {ids: [1, 2, 2], places: [[0, 0], [1, 0], [1, 1]], values: [1.0, 2.0, 3.0]}
    with support.new_session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train, right)
        before = cases.value_of(session, w)
        for wrong, text in (({ids: [1, 2, cases.ROWS]}, r"indices\[2\] = 60 is not in \[0, 60\)"),
                            ({ids: [1, -1, 2]}, r"indices\[1\] = -1 is not in \[0, 60\)"),
                            ({places: [[1, 0], [0, 0], [1, 1]]}, "row"),
                            ({values: [1.0, 2.0]}, "weights"), ({values: [1.0]}, "weights")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                session.run(train, {**right, **wrong})
            np.testing.assert_array_equal(cases.value_of(session, w), before)
        assert session.run(vectors, {ids: [], places: np.zeros([0, 2]), values: []}).shape == (0, 4)
        session.run(train, {ids: [], places: np.zeros([0, 2]), values: []})
        np.testing.assert_array_equal(cases.value_of(session, w), before)


@both
@pytest.mark.parametrize("gate", ["GATE_OP", "GATE_GRAPH"])
def test_a_step_gives_the_gradients_of_the_rows_as_well(gate, use_resource):
    """They waited for the gradient of the weights, which nobody asked for and which needs the row of each id: the run
    was refused. With GATE_GRAPH all updates wait for them."""
    def gradients(is_converted):
        with tf.Graph().as_default() as graph:
            ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
            w, other = variables(2, use_resource, (4, 4))
            sparse = filled(ids)
            vectors = [tf.nn.embedding_lookup_sparse(w, sparse, weights_of(sparse), combiner="mean"),
                       tf.nn.embedding_lookup_sparse(other, sparse, None, combiner="mean")]
            optimizer = v1.train.AdagradOptimizer(0.1)
            pairs = optimizer.compute_gradients(loss_of(vectors, labels), gate_gradients=getattr(optimizer, gate))
            train = optimizer.apply_gradients(pairs)
            if is_converted:
                assert all(plan.converts for plan in convert_graph(graph, True) if plan.name in ("w0", "w1"))
            with support.new_session(graph=graph) as session:
                session.run(v1.global_variables_initializer())
                for one in (w, other):
                    cases.set_variable(session, one, cases.start())
                return [session.run([[grad for grad, _ in pairs], train], {ids: batch, labels: label})[0]
                        for batch, label in cases.batches(3)]

    for ours, theirs in zip(gradients(True), gradients(False)):
        for one, expected in zip(ours, theirs):
            np.testing.assert_array_equal(one.indices, expected.indices)
            np.testing.assert_allclose(one.values, expected.values, rtol=1e-5, atol=1e-6)
