"""What surrounds lookups in a plain export: Estimators, assets, hash tables, admission, modified graphs, refusals."""

import glob
import os

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases
import plain_cases as cases
import support
from mx_rec.core.admission import set_threshold
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.ops import library
from mx_rec.saver import export_plain, plain_exports
from mx_rec.stock.select import convert_graph
from mx_rec.util.initialize import get_initializer


def export(sess, directory, inputs, outputs, **arguments):
    return export_plain(sess, str(directory), inputs, outputs, **arguments)


def predict(directory, feed, tags=("serve",), signature="serving_default"):
    """What a model predicts, loaded in a session of this process."""
    with tf.Graph().as_default() as graph, support.new_session(graph) as sess:
        signature = tf.compat.v1.saved_model.loader.load(sess, list(tags), str(directory)).signature_def[signature]
        assert not [op for op in graph.get_operations() if op.type.startswith("MxRec")]
        return sess.run({name: one.name for name, one in signature.outputs.items()},
                        {signature.inputs[name].name: value for name, value in feed.items()})


class Estimator:
    """A trained Estimator, its export by the argument `plain`, and what it predicts itself."""

    def __init__(self, directory):
        self.case = estimator_cases.Case("ahead", directory + "/model")
        self.case.train(steps=12)
        self.features, self.labels = estimator_cases.samples(40, seed=3, users=2 * estimator_cases.USERS)
        self.expected = self.predict()
        self.directory = self.case.estimator.export_saved_model(directory + "/raw", self.receiver, plain=True).decode()
        cases.save_feeds(self.directory, [self.features])

    def predict(self):
        # In one batch, as the export has them.
        return self.case.predict((self.features, self.labels), 40)["output"]

    def receiver(self):
        inputs = {name: tf.compat.v1.placeholder(value.dtype.type, [None] + list(value.shape[1:]), name=name)
                  for name, value in self.features.items()}
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    with support.initialized():
        return Estimator(os.path.realpath(str(tmp_path_factory.mktemp("estimator"))))


@pytest.mark.parametrize("way", sorted(cases.WAYS))
def test_an_estimator_exports_with_plain(estimator, tmp_path, way):
    assert not [op for op in cases.ops_of(estimator.directory)[0] if op.startswith("MxRec")]
    found = cases.load_in(way, [estimator.directory], str(tmp_path / "out.npz"))[0][0]
    # Other versions of TensorFlow have other kernels for the dense layers behind the embeddings.
    ulps = 16 if cases.WAYS[way][0] else 0
    support.assert_rounding(found["output"], estimator.expected, ulps, 1.0, way)


def test_an_estimator_exports_with_the_plugin_without_the_argument(dynamic, estimator, tmp_path):
    stock = estimator.case.estimator.export_saved_model(str(tmp_path), estimator.receiver).decode()
    assert "MxRecFind" in cases.ops_of(stock)[0]


@pytest.mark.long
def test_exporters_in_the_block_are_plain(dynamic, estimator):
    case = estimator.case
    exporter = tf.estimator.LatestExporter("latest", estimator.receiver)
    with plain_exports():
        tf.estimator.train_and_evaluate(
            case.estimator, tf.estimator.TrainSpec(case.input_fn(True, repeat=None), 20, case.hooks()),
            tf.estimator.EvalSpec(case.input_fn(False), None, hooks=case.hooks(), exporters=exporter,
                                  start_delay_secs=0, throttle_secs=0))
    newest = sorted(glob.glob("{}/export/latest/*".format(case.directory)))[-1]
    support.assert_same_bits(predict(newest, estimator.features)["output"], estimator.predict())


def test_an_export_of_several_modes_is_refused(dynamic, tmp_path):
    with tf.Graph().as_default(), support.new_session() as sess:
        ids = cases.placeholder([None])
        rows = cases.find(cases.make_table(), ids)
        builder = tf.compat.v1.saved_model.builder.SavedModelBuilder(str(tmp_path / "model"))
        with plain_exports():
            builder.add_meta_graph_and_variables(sess, ["serve"], {
                "one": tf.compat.v1.saved_model.predict_signature_def({"ids": ids}, {"rows": rows})})
            with pytest.raises(NotImplementedError, match="has one graph"):
                builder.add_meta_graph(["other"])


def test_simple_save_in_the_block_is_plain(graph, session, dynamic, tmp_path):
    table, ids = cases.make_table(), cases.placeholder([None])
    rows = cases.find(table, ids)
    sess = session()
    cases.fill(table, sess)
    with plain_exports():
        tf.compat.v1.saved_model.simple_save(sess, str(tmp_path / "model"), {"ids": ids}, {"rows": rows})
    queries = cases.queries(50, 1)
    support.assert_same_bits(predict(tmp_path / "model", {"ids": queries})["rows"], sess.run(rows, {ids: queries}))


@pytest.mark.long
@pytest.mark.parametrize("way", sorted(cases.WAYS))
def test_assets_vocabularies_and_mutable_tables_of_tensorflow_are_kept(graph, session, dynamic, tmp_path, way):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text(u"a\nb\nc\n")
    words = tf.compat.v1.placeholder(tf.string, [None], name="words")
    index = tf.contrib.lookup.index_table_from_file(str(vocabulary), default_value=9)
    mutable = tf.contrib.lookup.MutableHashTable(tf.string, tf.int64, -1)
    unused = tf.contrib.lookup.index_table_from_tensor(tf.constant(["x"]))
    table = cases.make_table()
    rows = cases.find(table, index.lookup(words))
    del unused
    sess = support.started(session(), tf.compat.v1.tables_initializer())
    sess.run(mutable.insert(tf.constant(["a", "z"]), tf.constant([5, 6], tf.int64)))
    cases.fill(table, sess)
    outputs = {"rows": rows, "numbers": mutable.lookup(words)}
    directory = os.path.realpath(str(tmp_path / "model"))
    export(sess, directory, {"words": words}, outputs, main_op=tf.compat.v1.tables_initializer())
    fed = np.array(["a", "c", "z", "?"])
    expected = sess.run(outputs, {words: fed})
    assert os.listdir(directory + "/assets") == ["words.txt"]
    vocabulary.write_text(u"moved\n")
    cases.save_feeds(directory, [{"words": fed}])
    found = cases.load_in(way, [directory], str(tmp_path / "out.npz"))[0][0]
    support.assert_same_bits(found["rows"], expected["rows"])
    assert found["numbers"].tolist() == expected["numbers"].tolist() == [5, -1, 6, -1]


@pytest.mark.parametrize("use_dynamic", [True, False])
def test_lookups_by_feature_spec_are_exported(mx, graph, session, tmp_path, use_dynamic):
    mx(use_dynamic=use_dynamic)
    batch = {"users": cases.placeholder([4, 2], name="users"), "price": cases.placeholder([4], tf.float32, "price")}
    table = cases.make_table("users")
    rows = sparse_lookup(table, FeatureSpec("users", table_name="users"), 64, is_train=False, batch=batch)
    output = tf.reduce_sum(rows, [1, 2]) + batch["price"]
    sess = session()
    cases.fill(table, sess)
    feed = {"users": cases.queries(8, 4).reshape(4, 2), "price": np.arange(4, dtype=np.float32)}
    export(sess, tmp_path / "model", batch, {"output": output})
    support.assert_same_bits(predict(tmp_path / "model", feed)["output"],
                             sess.run(output, {batch[key]: value for key, value in feed.items()}))


@pytest.mark.parametrize("enable_merge", [False, True])
def test_tables_with_dynamic_expansion_are_exported(mx, graph, session, tmp_path, enable_merge):
    mx(use_dynamic_expansion=True)

    tables = [create_table(tf.int64, cases.DIM, name, tf.compat.v1.random_normal_initializer(seed=3),
                           **(dict(enable_merge=True) if enable_merge else {})) for name in ("one", "two")]
    ids = cases.placeholder([None])
    rows = {table.table_name: cases.find(table, ids) for table in tables}
    sess = session()
    cases.fill(tables[0], sess)
    queries = cases.queries(60, 4)
    export(sess, tmp_path / "model", {"ids": ids}, rows)
    expected = sess.run(rows, {ids: queries})
    for name, found in predict(tmp_path / "model", {"ids": queries}).items():
        support.assert_same_bits(found, expected[name], name)


@pytest.mark.parametrize("by_copy", [False, True])
def test_keys_below_the_threshold_get_what_absent_keys_get(mx, graph, session, tmp_path, by_copy):
    """They have rows after the threshold was raised, and lookups hide these."""
    mx(**(dict(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=60)
          if by_copy else {}))
    table, ids = cases.make_table(), cases.placeholder([None])
    train = sparse_lookup(table, ids, is_train=True, modify_graph=True, access_and_evict_config=dict(access_threshold=2))
    default = tf.constant([1.0, 2.0, 3.0])
    rows = {"zeros": cases.find(table, ids), "default": cases.find(table, ids, serving_default_value=default)}
    sess = session()
    sess.run(train, {ids: [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]})
    set_threshold(4, table)
    assert table.size() == 3
    queries = np.array([1, 2, 3, 4, 5, -1])
    expected = sess.run(rows, {ids: queries})
    assert expected["zeros"].any(axis=1).tolist() == [False, False, False, True, False, False]
    export(sess, tmp_path / "model", {"ids": ids}, rows)
    found = predict(tmp_path / "model", {"ids": queries})
    for name in rows:
        support.assert_same_bits(found[name], expected[name], name)


def test_training_lookups_are_refused_or_become_lookups_that_find(graph, session, dynamic, tmp_path):
    table, ids = cases.make_table(), cases.placeholder([None])
    outputs = {"a": sparse_lookup(table, ids, modify_graph=True, name="first"),
               "b": sparse_lookup(table, tf.reshape(ids, [-1, 1]), modify_graph=True, is_grad=False)}
    found = cases.find(table, ids)
    sess = session()
    cases.fill(table, sess)
    for output in outputs.values():
        with pytest.raises(ValueError, match="training lookup 'items//.*training_lookups='find'"):
            export(sess, tmp_path / "model", {"ids": ids}, {"a": output})
    assert not os.listdir(str(tmp_path))
    export(sess, tmp_path / "model", {"ids": ids}, outputs, training_lookups="find")
    queries = cases.queries(40, 1)
    expected = sess.run(found, {ids: queries})
    result = predict(tmp_path / "model", {"ids": queries})
    support.assert_same_bits(result["a"], expected)
    support.assert_same_bits(result["b"], expected[:, None])
    counted = sparse_lookup(cases.make_table("users"), ids, modify_graph=True,
                            access_and_evict_config=dict(access_threshold=2))
    with pytest.raises(ValueError, match="'users//.*part of a training lookup, of a kind"):
        export(sess, tmp_path / "other", {"ids": ids}, {"a": counted}, training_lookups="find")
    with pytest.raises(ValueError, match="'training_lookups' should be"):
        export(sess, tmp_path / "other", {"ids": ids}, outputs, training_lookups="train")


def test_what_a_modified_graph_predicts_by_placeholders_is_exported(graph, session, dynamic, tmp_path):
    """Its prepared lookups read the pipeline: an export of the batch itself says so, or finds the rows of fed batches."""
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(40)).batch(4)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    table = cases.make_table()
    trained = sparse_lookup(table, batch, modify_graph=True)
    shifted = sparse_lookup(table, batch + 1, modify_graph=True)
    score, ids = tf.reduce_sum(trained, 1) + tf.reduce_sum(shifted, 1), cases.placeholder([None])
    rows = cases.find(table, ids)
    modify_graph_and_start_emb_cache()
    sess = support.started(session(), get_initializer(True))
    sess.run(score)
    queries = np.arange(12) - 1
    export(sess, tmp_path / "model", {"ids": ids}, {"rows": rows})
    support.assert_same_bits(predict(tmp_path / "model", {"ids": queries})["rows"], sess.run(rows, {ids: queries}))
    with pytest.raises(ValueError, match="iterator.*modified|may not be fed"):
        export(sess, tmp_path / "batch", {"batch": batch}, {"score": score}, training_lookups="find")


def test_a_fed_batch_of_an_iterator_becomes_an_input(graph, session, dynamic, tmp_path):
    batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(
        {"ids": np.arange(40), "price": np.ones(40, np.float32)}).batch(4)).get_next()
    table = cases.make_table()
    output = tf.reduce_sum(cases.find(table, batch["ids"]), 1) * batch["price"]
    sess = session()
    cases.fill(table, sess)
    export(sess, tmp_path / "model", batch, {"output": output})
    feed = {"ids": np.array([1, 2, -1]), "price": np.array([1, 2, 3], np.float32)}
    support.assert_same_bits(predict(tmp_path / "model", feed)["output"],
                             sess.run(output, {batch[key]: value for key, value in feed.items()}))
    assert not [op for op in cases.ops_of(str(tmp_path / "model"))[0] if "Iterator" in op or "Dataset" in op]
    with pytest.raises(ValueError, match="depend on the iterator"):
        export(sess, tmp_path / "half", {"ids": batch["ids"]}, {"output": output})


def test_what_cannot_be_exported_is_named_and_nothing_is_written(graph, session, dynamic, tmp_path):
    table, ids = cases.make_table(), cases.placeholder([None])
    stats = library().mx_rec_table_stats(table.handle, name="how_many")
    in_function = tf.function(lambda: cases.find(table, tf.constant([1], tf.int64)), autograph=False)()
    rows = cases.find(table, ids)
    sess = session()
    for output, text in ((tf.cast(stats, tf.float32), "'how_many' of type MxRecTableStats"),
                         (in_function, "in the function '.*of type MxRecFind.*control flow v2")):
        with pytest.raises(ValueError, match=text):
            export(sess, tmp_path / "model", {"ids": ids}, {"rows": rows, "other": output})
    with pytest.raises(ValueError, match="'how_many'"):
        export(sess, tmp_path / "model", {"ids": ids}, {"rows": rows}, main_op=stats.op)
    with pytest.raises(ValueError, match="either 'inputs' and 'outputs' or 'signature_def_map'"):
        export(sess, tmp_path / "model", None, None)
    assert not os.listdir(str(tmp_path))


def test_several_signatures_and_tags_are_kept(graph, session, dynamic, tmp_path):
    table, ids, other = cases.make_table(), cases.placeholder([None]), cases.placeholder([2], name="other")
    first, second = cases.find(table, ids), cases.find(table, other)
    sess = session()
    cases.fill(table, sess)
    make = tf.compat.v1.saved_model.predict_signature_def
    export(sess, tmp_path / "model", None, None, tags=["serve", "cpu"], as_text=True, clear_devices=False,
           signature_def_map={"a": make({"ids": ids}, {"rows": first}), "b": make({"ids": other}, {"rows": second})})
    assert sorted(os.listdir(str(tmp_path / "model"))) == ["saved_model.pbtxt", "variables"]
    for name, tensor, result in (("a", ids, first), ("b", other, second)):
        support.assert_same_bits(predict(tmp_path / "model", {"ids": [1, 3]}, ("serve", "cpu"), name)["rows"],
                                 sess.run(result, {tensor: [1, 3]}))


def test_two_imported_tables_of_one_name_are_both_exported(graph, session, dynamic, tmp_path):
    ids = cases.placeholder([None])
    cases.find(cases.make_table(), ids)
    definition = graph.as_graph_def()
    outputs = {}
    with tf.Graph().as_default(), support.new_session() as sess:
        for scope in ("left", "right"):
            tf.import_graph_def(definition, name=scope)
            graph = tf.compat.v1.get_default_graph()
            outputs[scope] = [op.outputs[0] for op in graph.get_operations()
                              if op.type == "MxRecFind" and op.name.startswith(scope)][0]
            handle = [op for op in graph.get_operations() if op.type == "MxRecTable" and op.name.startswith(scope)][0]
            raw = support.Raw(handle.outputs[0], handle.outputs[1], cases.DIM)
            raw.assign(sess, [1, 2], np.full([2, cases.DIM], len(scope)))
        inputs = {scope: graph.get_tensor_by_name(scope + "/ids:0") for scope in outputs}
        export(sess, tmp_path / "model", inputs, outputs)
    found = predict(tmp_path / "model", {"left": [1, 3], "right": [2, 3]})
    assert found["left"][:, 0].tolist() == [4, 0] and found["right"][:, 0].tolist() == [5, 0]


def test_the_training_graph_of_an_unchanged_model_is_exported_as_its_refusal_says(v1, graph, tmp_path):
    """The error of such an export recommends training_lookups='find', which failed on MxRecSparseBagsMany."""
    feeds, vectors = {}, []
    for place, (combiner, is_safe) in enumerate([("mean", True), ("sqrtn", True), ("sum", True), ("mean", False)]):
        parts = [v1.placeholder(tf.int64, shape, "%s_%d" % (part, place))
                 for part, shape in (("indices", [None, 2]), ("values", [None]), ("shape", [2]))]
        # Bags in no order, bags of nothing, and negative ids, where TensorFlow takes such.
        rows = np.array([4, 0, 2, 4, 0, 2, 4] if is_safe else [0, 0, 1, 2, 2, 2, 3])
        ids = np.array([3, -1, 7, 3, 5, -2, 12] if is_safe else [3, 19, 3, 0, 7, 11, 4])
        feeds.update(zip(parts, [np.stack([rows, np.arange(7)], 1), ids, [rows.max() + 1 if is_safe else 4, 7]]))
        variable = v1.get_variable("w%d" % place, [20, 3], initializer=v1.random_normal_initializer(seed=place))
        look_up = tf.nn.safe_embedding_lookup_sparse if is_safe else tf.nn.embedding_lookup_sparse
        vectors.append(look_up(variable, tf.SparseTensor(*parts), None, combiner=combiner))
    loss = tf.add_n([tf.reduce_sum(tf.square(one - 1.0)) for one in vectors])
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)

    assert all(plan.converts for plan in convert_graph(graph, True))
    assert any(op.type == "MxRecSparseBagsMany" for op in graph.get_operations())
    inputs = {tensor.op.name: tensor for tensor in feeds}
    outputs = {"vectors_%d" % place: one for place, one in enumerate(vectors)}
    with support.started(support.new_session()) as sess:
        for _ in range(3):
            sess.run(train, feeds)
        with pytest.raises(ValueError, match="training_lookups='find'"):
            export(sess, tmp_path / "refused", inputs, outputs)
        export(sess, tmp_path / "found", inputs, outputs, training_lookups="find")
        expected = sess.run(outputs, feeds)
    found = predict(tmp_path / "found", {tensor.op.name: value for tensor, value in feeds.items()})
    for name, value in expected.items():
        assert np.abs(value).sum() > 1
        support.assert_same_bits(found[name], value)
