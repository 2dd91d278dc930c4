"""Converted models after training: imported graphs, early stopping, exporters, sparse ids in any order, and rows
that are set by indices."""

import glob

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
import test_stock_admission as admissions
import test_stock_built_later as later
import test_stock_unlimited_estimators as unlimited
from mx_rec.core.feature_process import evict
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1


@pytest.mark.parametrize("access", [None, 3])
@pytest.mark.parametrize("how, optimizer, clips", [("bags", "adagrad", False), ("rows", "momentum", True)])
def test_an_imported_meta_graph_trains_on_where_the_checkpoint_ends(mx, tmp_path, access, how, optimizer, clips):
    admissions.admission(mx, access, None if access is None else 4, eviction_unit="steps")
    model = admissions.Model(how, optimizer, clips)
    batches = list(admissions.batches(how))
    for ids in batches[:8]:
        model.step(ids)
    path = model.saver.save(model.sess, str(tmp_path / "model"))
    names = [tensor.name for tensor in (model.ids, model.seen, model.asked, model.found)] + [model.train.name]
    expected = [model.step(ids) for ids in batches[8:]] + [model.find()]
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(path + ".meta")
        assert "w" in {one.op.name for one in model.graph.get_collection("trainable_variables")}
        assert "w" not in {one.op.name for one in v1.trainable_variables()}
        ids, seen, asked, found = [graph.get_tensor_by_name(name) for name in names[:4]]
        with v1.Session() as sess:
            saver.restore(sess, path)
            got = [sess.run([seen, names[4]], {ids: batch})[0] for batch in batches[8:]]
            got.append(sess.run(found, {asked: np.arange(cases.ROWS)}))
            if access is not None:
                evicted = evict()["w"]
    np.testing.assert_array_equal(np.concatenate(got), np.concatenate(expected))
    if access is not None:
        with model.graph.as_default():
            assert evict()["w"] == evicted and evicted.evicted > 0


def unordered(ids, count):
    """SparseTensor of ids (n, 3) whose entries stand in the order of a permutation."""
    order = tf.constant(np.random.RandomState(3).permutation(count), tf.int64)
    sparse = tf.sparse.from_dense(ids + 1)
    return tf.SparseTensor(tf.gather(sparse.indices, order), tf.gather(sparse.values - 1, order), sparse.dense_shape)


@pytest.mark.parametrize("how", ["safe", "sparse"])
@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
def test_sparse_ids_in_any_order_give_the_numbers_of_the_ordered_ones(v1, how, optimizer):
    """Those of tf.nn.embedding_lookup_sparse are an error on a variable."""
    def model(ordered):
        def build(ids, labels):
            w = v1.get_variable("w", [cases.ROWS, cases.DIM], initializer=v1.random_uniform_initializer(-0.1, 0.1))
            sparse = ordered(unordered(ids, 3 * cases.BATCH))
            if how == "safe":
                pooled = tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner="mean")
            else:
                pooled = tf.nn.embedding_lookup_sparse(w, sparse, None, combiner="mean")
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(pooled, 1) - labels))
            return loss, cases.optimizers()[optimizer]().minimize(loss), [w]

        return build

    as_it_is = model(lambda sparse: sparse)
    assert cases.expect_equal(as_it_is, ["w"], 40, model(tf.sparse.reorder))["w"].pieces
    if how == "sparse":
        with pytest.raises(tf.errors.InvalidArgumentError, match="segment ids are not increasing"):
            cases.run(as_it_is, False, 1)


def receiver():
    return tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"hash": tf.compat.v1.placeholder(tf.string, [None], "hash")})


def loaded(directory, strings):
    """Logits of an exported model, and the types of its ops."""
    with tf.Graph().as_default() as graph, support.new_session() as sess:
        signature = tf.compat.v1.saved_model.load(sess, ["serve"], directory).signature_def["predict"]
        return sess.run(signature.outputs["logits"].name, {signature.inputs["hash"].name: strings}), \
            {support.kind_of(op) for op in graph.get_operations()}


def settings(mx, access):
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=True, access_threshold=access))


@pytest.mark.long
@pytest.mark.parametrize("access", [None, 3])
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_best_exporter_and_plain_exports_have_the_ids_without_limits(mx, tmp_path, access, is_plain):
    import mx_rec.saver

    settings(mx, access)
    made = unlimited.linear(tmp_path / "model", unlimited.SMALL, save_checkpoints_steps=5)
    best = tf.estimator.BestExporter(serving_input_receiver_fn=receiver())
    spec = tf.estimator.EvalSpec(unlimited.input_fn, steps=2, exporters=best, throttle_secs=0, start_delay_secs=0)
    train = tf.estimator.TrainSpec(unlimited.input_fn, max_steps=10)
    if is_plain:
        with mx_rec.saver.plain_exports():
            tf.estimator.train_and_evaluate(made, train, spec)
    else:
        tf.estimator.train_and_evaluate(made, train, spec)
    strings = np.concatenate([unlimited.features()[0]["hash"][:40], ["never", "met"]])
    expected = np.array([one["logits"] for one in made.predict(
        lambda: tf.data.Dataset.from_tensors({"hash": tf.constant(strings)}))])
    newest = sorted(glob.glob(str(tmp_path / "model/export/best_exporter/*")))[-1]
    paths = [newest, made.export_saved_model(str(tmp_path / "export"), receiver(),
                                             **({"plain": True} if is_plain else {})).decode()]
    for path in paths:
        got, types = loaded(path, strings)
        assert is_plain != ("MxRecTable" in types), types
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["stop_if_no_decrease_hook", "stop_if_no_increase_hook", "stop_if_lower_hook"])
def test_early_stopping_reads_the_evaluations_of_ids_without_limits_and_admission(mx, tmp_path, name):
    import os

    settings(mx, 2)
    made = unlimited.linear(tmp_path / "model", unlimited.SMALL, save_checkpoints_steps=4)
    os.makedirs(made.eval_dir())
    hook = getattr(tf.estimator.experimental, name)
    if name == "stop_if_lower_hook":
        stop = hook(made, "loss", threshold=1e6, run_every_secs=None, run_every_steps=4)
    else:
        # Nothing is ever so much better than what was.
        stop = hook(made, "accuracy" if "increase" in name else "accuracy_baseline", 4, run_every_secs=None,
                    run_every_steps=4)
    tf.estimator.train_and_evaluate(
        made, tf.estimator.TrainSpec(unlimited.input_fn, max_steps=100, hooks=[stop]),
        tf.estimator.EvalSpec(unlimited.input_fn, steps=1, throttle_secs=0, start_delay_secs=0))
    step = made.get_variable_value("global_step")
    assert 4 <= step < 100
    if name == "stop_if_lower_hook":
        # A training that goes on finds its tables.
        made.train(unlimited.input_fn, max_steps=int(step) + 3)
        assert made.evaluate(unlimited.input_fn, steps=1)["global_step"] == step + 3


@pytest.mark.long
def test_a_plain_export_of_rows_that_start_at_random_says_what_to_do(mx, tmp_path):
    settings(mx, None)
    column = tf.feature_column.categorical_column_with_hash_bucket("hash", unlimited.SMALL)
    made = tf.estimator.DNNClassifier([4], [tf.feature_column.embedding_column(column, 3)], str(tmp_path / "model"))
    made.train(unlimited.input_fn, steps=2)
    with pytest.raises(ValueError, match="MxRecFind.*drawn by key.*access_threshold"):
        made.export_saved_model(str(tmp_path / "export"), receiver(), plain=True)


def test_a_plain_export_refuses_the_ids_that_the_table_refuses(mx, tmp_path):
    import mx_rec.saver

    admissions.admission(mx, 2)
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None])
        w = v1.get_variable("w", [20, 2], initializer=v1.random_uniform_initializer())
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, ids)))
        asked = v1.placeholder(tf.int32, [None])
        found = tf.gather(w, asked)
        assert convert_graph(graph, True)[0].converts
        with support.started(support.new_session()) as sess:
            sess.run(train, {ids: [3, 3, 4]})
            expected = sess.run(found, {asked: [3, 4, 19]})
            path = mx_rec.saver.export_plain(sess, str(tmp_path / "export"), {"ids": asked}, {"rows": found})
    assert expected[0].all() and not expected[1:].any()
    with tf.Graph().as_default(), support.new_session() as sess:
        signature = v1.saved_model.load(sess, ["serve"], path).signature_def["serving_default"]
        rows, given = signature.outputs["rows"].name, signature.inputs["ids"].name
        np.testing.assert_array_equal(sess.run(rows, {given: [3, 4, 19]}), expected)
        for wrong in (20, -1):
            with pytest.raises(tf.errors.InvalidArgumentError, match="rows"):
                sess.run(rows, {given: [3, wrong]})


@later.KINDS
def test_indices_of_one_dimension_change_rows(v1, use_resource):
    """A program that ends its training so, as LibRecommender does for ids that it does not know, ended with an error."""

    def run(model):
        indices = np.array([[5], [3], [59]])
        for change in (v1.scatter_nd_update, v1.scatter_nd_add, v1.scatter_nd_sub):
            model.sess.run(change(model.w, indices, later.NEW[:3]))
            yield "rows", model.rows()
            yield "step", model.step()
        mean = tf.reduce_mean(tf.gather(model.w, tf.range(7)), 0, keepdims=True)
        model.sess.run([model.w.scatter_nd_update([[7]], mean)])
        model.sess.run(v1.scatter_nd_add(model.w, indices.reshape(1, 3, 1), later.NEW[None, :3]))

    later.same(v1, use_resource, run)
