"""Lookups of many tables and pooled lookups predict the same bits as SavedModels of TensorFlow's own ops, without this package."""

import os

import numpy as np
import pytest
import tensorflow as tf

import plain_cases as cases
import support
from plain_cases import predicted  # noqa: F401  a fixture
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.embedding import (
    embedding_lookup_sparse, safe_embedding_lookup_sparse, sparse_lookup, sparse_lookup_many, sparse_lookup_pooled,
    sparse_lookup_pooled_many)
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.util.initialize import get_initializer, init, terminate_config_initializer

# Ids of bags: a bag of padding alone, of absent keys alone, duplicates, the key with a NaN in its row.
DENSE = np.array([[1, 2, 1, -1], [-1, -1, -1, -1], [3, 5 << 41 | 1, 3, 3], [0, 7, -2, 1 << 40], [2, 2, -1, 7]], np.int64)


def find_many(tables, ids, **arguments):
    return sparse_lookup_many(tables, ids, modify_graph=True, **dict({"is_train": False}, **arguments))


def pooled_many(tables, ids, combiners, **arguments):
    return sparse_lookup_pooled_many(tables, ids, combiners, **dict({"is_train": False}, **arguments))


def pooled(table, ids, combiner="sum", **arguments):
    return sparse_lookup_pooled(table, ids, combiner, modify_graph=True, **dict({"is_train": False}, **arguments))


def sparse(name):
    """Fed parts of sparse ids, and their tensor."""
    parts = {name + "_indices": cases.placeholder([None, 2], name=name + "_indices"),
             name + "_values": cases.placeholder([None], name=name + "_values"),
             name + "_shape": cases.placeholder([2], name=name + "_shape")}
    return parts, tf.SparseTensor(*[parts[name + end] for end in ("_indices", "_values", "_shape")])


def sparse_feed(name, counts, seed):
    """Ids of so many of each row, as `sparse` takes them."""
    values = cases.queries(sum(counts), seed)
    indices = [(row, at) for row, count in enumerate(counts) for at in range(count)]
    return {name + "_indices": np.array(indices, np.int64).reshape(-1, 2), name + "_values": values,
            name + "_shape": np.array([len(counts), max(list(counts) + [0])], np.int64)}


def group(tf):
    """Tables of two widths, one twice, ids of both types."""
    items, users = cases.make_table(), cases.make_table("users", 5)
    ids, more, small = cases.placeholder([None]), cases.placeholder([None, 2], name="more"), cases.placeholder(
        None, tf.int32, "small")
    rows = find_many([items, users, items, users, users], [ids, ids + 1, more, small, small])
    outputs = {str(place): one for place, one in enumerate(rows)}
    feeds = [{"ids": cases.queries(count, 1), "more": cases.queries(2 * count, 2).reshape(-1, 2),
              "small": np.array([[1, -1], [3, 7]], np.int32)} for count in (300, 0)]
    return cases.Model([items, users], {"ids": ids, "more": more, "small": small}, outputs, feeds)


def group_with_default(tf):
    """Rows of keys without one, and embeddings side by side."""
    items, users = cases.make_table(), cases.make_table("users")
    ids = cases.placeholder([None])
    rows = find_many([items, users], [ids, ids + 1], serving_default_value=tf.constant([1.0, 2.0, 3.0]))
    whole = find_many([items, users, items], [ids, ids + 1, ids + 2], concat=True)
    return cases.Model([items, users], {"ids": ids}, {"first": rows[0], "second": rows[1] * 2.0, "whole": whole},
                       [{"ids": cases.queries(40, 3)}])


def one_of_group(tf):
    """One lookup of a group alone is asked for."""
    items, users = cases.make_table(), cases.make_table("users", 5)
    ids = cases.placeholder([None])
    return cases.Model([items, users], {"ids": ids}, {"rows": find_many([items, users], [ids, ids])[1]},
                       [{"ids": cases.queries(9, 4)}])


COMBINERS = ("sum", "mean", "sqrtn")


def dense_bags(weighted=False):
    """A case of bags along the last dimension, of rank 2 and 3 and of a vector, by every combiner."""

    def case(tf):
        table = cases.make_table()
        ids, small = cases.placeholder([None, None]), cases.placeholder(None, tf.int32, "small")
        inputs = {"ids": ids, "small": small}
        weights = None
        if weighted:
            inputs["weights"] = weights = cases.placeholder([None, None], tf.float32, "weights")
        outputs = {}
        for combiner in COMBINERS:
            outputs["pooled " + combiner] = pooled(table, ids, combiner, weights=weights)
            if not weighted:
                outputs["small " + combiner] = pooled(table, small, combiner)
        random = np.random.RandomState(5)
        feeds = []
        for values, little in ((DENSE, np.array([1, -1, 2, 3, 7])), (cases.queries(2000, 6).reshape(8, 250), DENSE[:1, None]),
                               (np.zeros([0, 4]), np.zeros([2, 3, 0])), (np.zeros([3, 0]), np.zeros([0]))):
            feed = {"ids": values.astype(np.int64), "small": np.clip(little, -9, 9).astype(np.int32)}
            if weighted:
                feed["weights"] = random.randn(*values.shape).astype(np.float32)
                # A bag whose weights add up to 0, and what padding and absent keys must not turn into a NaN.
                if values is DENSE:
                    feed["weights"][0, :3], feed["weights"][2, 0] = [1.5, -3.0, 1.5], np.inf
                    feed["weights"][1, 0] = np.nan
            feeds.append(feed)
        return cases.Model([table], inputs, outputs, feeds)

    return case


def default_of_bags(rows):
    """Bags of keys without a row, which get one for all, one for each, or an unknown number of them."""

    def case(tf):
        table, ids = cases.make_table(), cases.placeholder([None, 4])
        inputs, values = {"ids": ids}, {}
        if rows == "one":
            default = tf.constant([1.0, 2.0, 3.0])
        else:
            inputs["default"] = default = cases.placeholder([None, cases.DIM], tf.float32, "default")
            values["default"] = np.random.RandomState(7).randn(DENSE.size, cases.DIM).astype(np.float32)
        weights = tf.constant(np.linspace(-1, 2, 4), tf.float32) + tf.zeros(tf.shape(ids))
        outputs = {"mean": pooled(table, ids, "mean", serving_default_value=default),
                   "sum": pooled(table, ids, "sum", weights=weights, serving_default_value=default)}
        return cases.Model([table], inputs, outputs, [dict(values, ids=DENSE)])

    return case


def sparse_bags(*combiners):
    """Sparse and ragged ids, with and without weights, through the forms of TensorFlow too."""

    def case(tf):
        table, users = cases.make_table(), cases.make_table("users", 16)
        inputs, ids = sparse("ids")
        weights = inputs["weights"] = cases.placeholder([None], tf.float32, "weights")
        splits = inputs["splits"] = cases.placeholder([None], name="splits")
        ragged = tf.RaggedTensor.from_row_splits(ids.values, splits, validate=False)
        short = tf.RaggedTensor.from_row_splits(ids.values, tf.cast(splits, tf.int32))
        sparse_weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
        outputs = {}
        for combiner in combiners:
            made = {"sparse": pooled(users, ids, combiner), "weighted": pooled(table, ids, combiner, weights=sparse_weights),
                    "ragged": pooled(users, ragged, combiner), "short": pooled(table, short, combiner, weights=weights),
                    "stock": embedding_lookup_sparse(table, ids, sparse_weights, combiner=combiner, is_train=False,
                                                     modify_graph=True),
                    "safe": safe_embedding_lookup_sparse(table, ids, None, combiner, default_id=7, is_train=False,
                                                         modify_graph=True)}
            outputs.update({" ".join([name, combiner]): one for name, one in made.items()})
        random = np.random.RandomState(8)
        feeds = []
        for counts in ([3, 0, 1, 900, 5, 0], [0, 0], [1] * 300):
            feeds.append(dict(sparse_feed("ids", counts, 9), splits=np.cumsum([0] + counts).astype(np.int64),
                              weights=random.rand(sum(counts)).astype(np.float32)))
        return cases.Model([table, users], inputs, outputs, feeds)

    return case


def clipped(tf):
    """Rows of a greatest norm, dense and sparse."""
    table, ids = cases.make_table(), cases.placeholder([None, 4])
    parts, matrix = sparse("matrix")
    outputs = {combiner: pooled(table, ids, combiner, max_norm=0.75) for combiner in ("sum", "mean", "sqrtn")}
    outputs["sparse"] = pooled(table, matrix, "mean", max_norm=1.5)
    return cases.Model([table], dict(parts, ids=ids), outputs, [
        dict(sparse_feed("matrix", [2, 0, 7], 10), ids=DENSE), dict(sparse_feed("matrix", [0], 11), ids=DENSE[:0])])


def in_control_flow(tf):
    """Bags in a branch and in a loop."""
    table, ids, flag = cases.make_table(), cases.placeholder([None, 4]), cases.placeholder([], tf.bool, "flag")
    bags = tf.shape(ids)[0]
    branch = tf.cond(flag, lambda: pooled(table, ids, "mean"), lambda: pooled(table, ids + 1, "sqrtn") * 2.0)
    loop = tf.while_loop(
        lambda i, _: i < 3, lambda i, total: (i + 1, total + pooled(
            table, ids + tf.cast(i, tf.int64), "mean", weights=tf.ones(tf.shape(ids)) * 0.3)),
        (tf.constant(0), tf.zeros([bags, cases.DIM])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, cases.DIM])))[1]
    return cases.Model([table], {"ids": ids, "flag": flag}, {"branch": branch, "loop": loop},
                       [{"ids": DENSE, "flag": flag} for flag in (True, False)])


def sparse_in_loop(tf):
    """Sparse bags that are made in a loop."""
    table = cases.make_table()
    parts, ids = sparse("ids")

    def turn(i, total):
        shifted = tf.SparseTensor(ids.indices, ids.values + tf.cast(i, tf.int64), ids.dense_shape)
        return i + 1, total + pooled(table, shifted, "sqrtn") + pooled(table, shifted, "sum", max_norm=1.0)

    total = tf.while_loop(lambda i, _: i < 3, turn, (tf.constant(0), tf.zeros([ids.dense_shape[0], cases.DIM])),
                          shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, cases.DIM])))[1]
    return cases.Model([table], parts, {"total": total}, [sparse_feed("ids", [2, 0, 5], 12)])


def nothing_known(tf):
    """Tables without rows."""
    table, users, ids = cases.make_table(), cases.make_table("users"), cases.placeholder([None, 4])
    rows = find_many([table, users], [ids, ids])
    return cases.Model([table, users], {"ids": ids}, {"first": rows[0], "second": rows[1],
                                                      "mean": pooled(table, ids, "mean")}, [{"ids": DENSE}], keys=cases.KNOWN[:0])


CASES = {
    "a group": group, "a group with defaults": group_with_default, "one of a group": one_of_group,
    "dense bags": dense_bags(), "weighted bags": dense_bags(True), "sparse bags": sparse_bags(*COMBINERS),
    "bags with a default row": default_of_bags("one"), "bags with default rows": default_of_bags("each"),
    "clipped": clipped, "bags in control flow": in_control_flow, "sparse bags in a loop": sparse_in_loop,
    "tables without rows": nothing_known,
}

# With max_norm: tf.clip_by_norm rounds otherwise than the plugin.
ROUNDED = ("clipped", "sparse bags in a loop")


@pytest.fixture(scope="module")
def models(request, tmp_path_factory):
    """name -> (directory, expected outputs) of each case that this run has."""
    # Every second model has tables of several variables.
    limits = {name: (1000, 240, 17) for name in sorted(CASES)[1::2]}
    return cases.exported(CASES, cases.named_in(request), limits, tmp_path_factory)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("way", sorted(cases.WAYS))
def test_a_process_without_the_package_pools_and_groups_to_the_same_bits(models, predicted, way, name):  # noqa: F811
    expected, found = models[name][1], predicted(way)[name]
    assert len(found) == len(expected)
    for turn, outputs in enumerate(expected):
        assert sorted(found[turn]) == sorted(outputs)
        for key, value in outputs.items():
            if name in ROUNDED:
                np.testing.assert_allclose(found[turn][key], value, rtol=1e-6, atol=1e-7, err_msg=key)
            else:
                support.assert_same_bits(found[turn][key], value, "{}, feed {}".format(key, turn))


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_op_of_groups_and_bags_is_left(models, name):
    ops, content = cases.ops_of(models[name][0])
    assert not [op for op in ops if op.startswith("MxRec")]
    for word in (b"MxRec", b"mx_rec", b"ASCEND"):
        assert word not in content, word


def export(sess, directory, inputs, outputs, **arguments):
    import mx_rec.saver

    return mx_rec.saver.export_plain(sess, str(directory), inputs, outputs, **arguments)


def predict(directory, feed):
    """What a process without the package predicts for one feed."""
    cases.save_feeds(str(directory), [feed])
    return cases.load_in("1.15 in a session", [str(directory)], str(directory) + ".out.npz")[0][0]


def trained(tables, ids, weights, **arguments):
    """Training lookups of all kinds that are grouped or pooled, and the lookups without training of the same."""
    items, users = tables
    outputs = {}
    for place, one in enumerate(find_many([items, users, items], [ids, ids, ids + 1], **arguments)):
        outputs["many {}".format(place)] = one
    outputs["concat"] = find_many([items, users], [ids, ids + 1], concat=True, **arguments)
    for place, one in enumerate(pooled_many([items, users], [ids, ids + 1], ["sum", "mean"], **arguments)):
        outputs["pooled many {}".format(place)] = one
    outputs["sum"] = pooled(items, ids, **arguments)
    for combiner in ("mean", "sqrtn"):
        outputs[combiner] = pooled(users, ids, combiner, weights=weights, **arguments)
    outputs["clipped"] = pooled(items, ids, "mean", max_norm=0.8, **arguments)
    row_splits = tf.constant([0, 3, 3, DENSE.size], tf.int64)
    outputs["ragged"] = pooled(items, tf.RaggedTensor.from_row_splits(tf.reshape(ids, [-1]), row_splits), "mean", **arguments)
    return outputs


@pytest.mark.long
@pytest.mark.parametrize("expansion", [False, True])
def test_training_lookups_of_groups_and_bags_are_refused_or_find(mx, graph, session, tmp_path, expansion):
    mx(use_dynamic=True, use_dynamic_expansion=expansion)
    if expansion:
        tables = [cases.make_table(sizeless=True), cases.make_table("users", 5, sizeless=True)]
    else:
        tables = [cases.make_table(), cases.make_table("users", 5)]
    ids = cases.placeholder(DENSE.shape)
    # A variable gives the weights a gradient, for which rows are a tensor.
    weights = tf.compat.v1.get_variable("weights", initializer=np.linspace(0.5, 2, DENSE.size).astype(np.float32).reshape(
        DENSE.shape))
    training = trained(tables, ids, weights, is_train=True)
    plain = trained(tables, ids, weights, is_train=False)
    training["without gradient"] = pooled(tables[0], ids, is_train=True, is_grad=False)
    plain["without gradient"] = plain["sum"]
    kinds = {support.kind_of(op) for op in graph.get_operations()}
    assert {"MxRecRestorePooled", "MxRecBagDivisors", "MxRecBagWeights", "MxRecRaggedBagEnds"} <= kinds
    sess = support.started(session())
    for table in tables:
        cases.fill(table, sess)
    for name, output in sorted(training.items()):
        with pytest.raises(ValueError, match="training lookup '.*training_lookups='find'"):
            export(sess, tmp_path / "model", {"ids": ids}, {name: output})
    assert not os.listdir(str(tmp_path))
    export(sess, tmp_path / "model", {"ids": ids}, training, training_lookups="find")
    for number, queries in enumerate((DENSE, np.full_like(DENSE, -1))):
        found = predict(tmp_path / "model", {"ids": queries})
        expected = sess.run(plain, {ids: queries})
        for name in training:
            if name in ROUNDED:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-7)
            else:
                support.assert_same_bits(found[name], expected[name], "{}, feed {}".format(name, number))


def test_counted_training_lookups_of_groups_and_bags_are_refused(graph, session, dynamic, tmp_path):
    tables = [cases.make_table(), cases.make_table("users")]
    ids, config = cases.placeholder([None, 4]), dict(access_threshold=2)
    outputs = [find_many(tables, [ids, ids], is_train=True, access_and_evict_config=config)[1],
               pooled(tables[0], ids, "mean", is_train=True, access_and_evict_config=config),
               pooled(tables[1], ids, max_norm=1.0, is_train=True, access_and_evict_config=config)]
    sess = session()
    for output in outputs:
        with pytest.raises(ValueError, match="'.*of type MxRec(Read|Admit).*part of a training"):
            export(sess, tmp_path / "model", {"ids": ids}, {"a": output}, training_lookups="find")
    assert not os.listdir(str(tmp_path))


def test_an_op_without_a_form_is_named(graph, session, dynamic, tmp_path):
    """A gradient of pooled rows is nothing that predicts."""
    table, ids = cases.make_table(), cases.placeholder([None, 4])
    rows = pooled(table, ids, is_train=True)
    gradient = tf.gradients(rows, table.variable.op.outputs[0])[0]
    sess = session()
    with pytest.raises(ValueError, match="of type MxRecReducePooled, which TensorFlow does not have"):
        export(sess, tmp_path / "model", {"ids": ids}, {"a": tf.convert_to_tensor(gradient.values)}, training_lookups="find")
    assert not os.listdir(str(tmp_path))


@pytest.mark.long
def test_groups_with_prepared_keys_are_exported_by_their_batch_or_refused(graph, session, dynamic, tmp_path):
    """Key work that was moved into the pipeline reads an iterator; lookups of placeholders in that graph do not."""
    iterator = tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(np.arange(40)).batch(4))
    batch, ids = iterator.get_next(), cases.placeholder([None, 4])
    tables = [cases.make_table(), cases.make_table("users")]
    moved = find_many(tables, [batch, batch + 1], is_train=True)
    bag = pooled(tables[0], tf.reshape(batch, [-1, 2]), "mean", is_train=True)
    outputs = dict(zip("ab", find_many(tables, [ids, ids])), c=pooled(tables[0], ids, "mean"))
    modify_graph_and_start_emb_cache()
    sess = support.started(session(), get_initializer(True))
    sess.run([moved, bag])
    export(sess, tmp_path / "model", {"ids": ids}, outputs)
    found, expected = predict(tmp_path / "model", {"ids": DENSE}), sess.run(outputs, {ids: DENSE})
    for name in outputs:
        support.assert_same_bits(found[name], expected[name], name)
    # The ids of the first are the batch as it is.
    export(sess, tmp_path / "first", {"batch": batch}, {"score": moved[0]}, training_lookups="find")
    given = {"batch": np.arange(3, 7)}
    wanted = sess.run(outputs["a"], {ids: given["batch"].reshape(1, 4)})
    support.assert_same_bits(predict(tmp_path / "first", given)["score"], wanted[0])
    for output in moved[1:] + [bag]:
        with pytest.raises(ValueError, match="iterator.*modified|may not be fed"):
            export(sess, tmp_path / "batch", {"batch": batch}, {"score": output}, training_lookups="find")


def good_feed():
    return dict(sparse_feed("ids", [2, 1, 0], 13), weights=np.ones(3, np.float32), splits=np.array([0, 2, 3]))


@pytest.fixture(scope="module")
def checked_model(tmp_path_factory):
    """A loaded model in a session: what runs it by feeds, for one output."""
    import mx_rec.saver

    tf.compat.v1.disable_control_flow_v2()
    init()
    directory = str(tmp_path_factory.mktemp("checked")) + "/model"
    with tf.Graph().as_default(), support.new_session() as sess:
        model = sparse_bags("mean")(tf)
        sess.run(tf.compat.v1.global_variables_initializer())
        mx_rec.saver.export_plain(sess, directory, model.inputs, model.outputs)
    terminate_config_initializer()
    loaded = tf.compat.v1.Session(graph=tf.Graph())
    with loaded.graph.as_default():
        signature = tf.compat.v1.saved_model.loader.load(loaded, ["serve"], directory).signature_def["serving_default"]

    def run(output, feed):
        return loaded.run(signature.outputs[output + " mean"].name,
                          {signature.inputs[name].name: value for name, value in feed.items()})

    yield run
    loaded.close()


@pytest.mark.parametrize("output, changed, text", [
    ("sparse", {"ids_indices": np.array([[1, 0], [0, 0], [2, 0]])}, "must ascend and lie inside"),
    ("sparse", {"ids_indices": np.array([[0, 0], [1, 0], [3, 0]])}, "must ascend and lie inside"),
    ("sparse", {"ids_indices": np.array([[-1, 0], [1, 0], [2, 0]])}, "must ascend and lie inside"),
    ("sparse", {"ids_indices": np.array([[0, 0], [1, 0]])}, "ends of bags must ascend"),
    ("sparse", {"ids_values": np.array([1, 2, 3, 4])}, "ends of bags must ascend"),
    ("weighted", {"weights": np.ones(1, np.float32)}, "weights must have the shape"),
    ("weighted", {"weights": np.ones(4, np.float32)}, "weights must have the shape"),
    ("ragged", {"splits": np.array([1, 2, 3])}, "must begin with 0"),
    ("ragged", {"splits": np.zeros([0], np.int64)}, "must begin with 0"),
    ("ragged", {"splits": np.array([0, 3, 2, 3])}, "ends of bags must ascend"),
    ("ragged", {"splits": np.array([0, 2])}, "ends of bags must ascend"),
    ("ragged", {"splits": np.array([0, 4])}, "ends of bags must ascend"),
])
def test_a_model_refuses_bags_that_do_not_fit(checked_model, output, changed, text):
    assert checked_model(output, good_feed()).shape == (3 if output in ("sparse", "weighted") else 2,
                                                        16 if output in ("sparse", "ragged") else 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        checked_model(output, dict(good_feed(), **changed))


@pytest.mark.long
def test_keys_below_the_threshold_count_as_absent_in_groups_and_bags(graph, session, dynamic, tmp_path):
    tables, ids = [cases.make_table(), cases.make_table("users")], cases.placeholder([None, 3])
    config = dict(access_threshold=2)
    rows = [sparse_lookup(table, ids, modify_graph=True, access_and_evict_config=config) for table in tables]
    default = tf.constant([1.0, 2.0, 3.0])
    outputs = dict(zip("ab", find_many(tables, [ids, ids], serving_default_value=default)),
                   zeros=pooled(tables[0], ids, "mean"), default=pooled(tables[0], ids, "sqrtn", serving_default_value=default))
    sess = support.started(session())
    for batch in ([[1, 2, 3]], [[2, 3, 4]], [[3, -1, 5]]):
        sess.run(rows, {ids: batch})
    queries = np.array([[1, 2, 3], [4, 5, -1], [3, 3, 6]])
    expected = sess.run(outputs, {ids: queries})
    assert expected["zeros"].any(axis=1).tolist() == [True, False, True]
    export(sess, tmp_path / "model", {"ids": ids}, outputs)
    found = predict(tmp_path / "model", {"ids": queries})
    for name in outputs:
        support.assert_same_bits(found[name], expected[name], name)


@pytest.mark.long
def test_an_imported_graph_of_groups_and_bags_is_exported(graph, session, dynamic, tmp_path):
    model = sparse_bags("mean")(tf)
    items, users = model.tables
    ids = cases.placeholder([None, 4], name="dense")
    outputs = dict(model.outputs, **dict(zip("ab", find_many([items, users], [ids, ids]))))
    outputs["sum"] = pooled(items, ids)
    feed = dict(model.feeds[0], dense=DENSE)
    sess = support.started(session())
    for table in model.tables:
        cases.fill(table, sess)
    inputs = dict(model.inputs, dense=ids)
    expected = sess.run(outputs, {inputs[name]: value for name, value in feed.items()})
    saver = tf.compat.v1.train.Saver()
    saver.save(sess, str(tmp_path / "saved"))
    with tf.Graph().as_default() as other, support.new_session() as sess:
        tf.compat.v1.train.import_meta_graph(str(tmp_path / "saved.meta")).restore(sess, str(tmp_path / "saved"))
        same = [{name: other.get_tensor_by_name(one.name) for name, one in some.items()} for some in (inputs, outputs)]
        export(sess, tmp_path / "model", *same)
    found = predict(tmp_path / "model", feed)
    for name in outputs:
        support.assert_same_bits(found[name], expected[name], name)


def test_lookups_of_groups_and_bags_by_feature_spec_are_exported(graph, session, dynamic, tmp_path):
    tables = [cases.make_table(), cases.make_table("users")]
    specs = [FeatureSpec("one", table_name="items"), FeatureSpec("two", table_name="users")]
    data = {"one": DENSE, "two": DENSE[:, ::-1].copy()}
    iterator = tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(data).batch(3).map(
        get_asc_insert_func(tgt_key_specs=specs, is_training=False, dump_graph=False)))
    batch = iterator.get_next()

    outputs = dict(zip("ab", sparse_lookup_many(tables, specs, is_train=False, batch=batch)))
    outputs["c"] = sparse_lookup_pooled(tables[0], specs[0], "mean", is_train=False, batch=batch)
    sess = support.started(session())
    for table in tables:
        cases.fill(table, sess)
    inputs = {name: batch[name] for name in data}
    expected = sess.run(outputs, {inputs[name]: data[name] for name in data})
    export(sess, tmp_path / "model", inputs, outputs)
    found = predict(tmp_path / "model", data)
    for name in outputs:
        support.assert_same_bits(found[name], expected[name], name)
