"""Lookups of many tables and pooled lookups predict the same bits as SavedModels of TensorFlow's own ops, without this package."""

import os

import numpy as np
import pytest

import plain_cases as cases
import support

# Ids of bags: a bag of padding alone, of absent keys alone, duplicates, the key with a NaN in its row.
DENSE = np.array([[1, 2, 1, -1], [-1, -1, -1, -1], [3, 5 << 41 | 1, 3, 3], [0, 7, -2, 1 << 40], [2, 2, -1, 7]], np.int64)


def find_many(tables, ids, **arguments):
    from mx_rec.core.embedding import sparse_lookup_many

    return sparse_lookup_many(tables, ids, modify_graph=True, **dict({"is_train": False}, **arguments))


def pooled(table, ids, combiner="sum", **arguments):
    from mx_rec.core.embedding import sparse_lookup_pooled

    return sparse_lookup_pooled(table, ids, combiner, modify_graph=True, **dict({"is_train": False}, **arguments))


def sparse(name):
    """Fed parts of sparse ids, and their tensor."""
    tf = support.tf()
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


def dense_bags(combiner, weighted=False, **arguments):
    """A case of bags along the last dimension, of rank 2 and 3 and of a vector."""

    def case(tf):
        table = cases.make_table()
        ids, small = cases.placeholder([None, None]), cases.placeholder(None, tf.int32, "small")
        inputs = {"ids": ids, "small": small}
        weights = None
        if weighted:
            inputs["weights"] = weights = cases.placeholder([None, None], tf.float32, "weights")
        outputs = {"pooled": pooled(table, ids, combiner, weights=weights, **arguments),
                   "small": pooled(table, small, combiner, **arguments)}
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


def sparse_bags(combiner):
    """Sparse and ragged ids, with and without weights, through the forms of TensorFlow too."""

    def case(tf):
        from mx_rec.core.embedding import embedding_lookup_sparse, safe_embedding_lookup_sparse

        table, users = cases.make_table(), cases.make_table("users", 16)
        inputs, ids = sparse("ids")
        weights = inputs["weights"] = cases.placeholder([None], tf.float32, "weights")
        splits = inputs["splits"] = cases.placeholder([None], name="splits")
        ragged = tf.RaggedTensor.from_row_splits(ids.values, splits)
        short = tf.RaggedTensor.from_row_splits(ids.values, tf.cast(splits, tf.int32))
        sparse_weights = tf.SparseTensor(ids.indices, weights, ids.dense_shape)
        outputs = {"sparse": pooled(users, ids, combiner), "weighted": pooled(table, ids, combiner, weights=sparse_weights),
                   "ragged": pooled(users, ragged, combiner), "short": pooled(table, short, combiner, weights=weights),
                   "stock": embedding_lookup_sparse(table, ids, sparse_weights, combiner=combiner, is_train=False,
                                                    modify_graph=True),
                   "safe": safe_embedding_lookup_sparse(table, ids, None, combiner, default_id=7, is_train=False,
                                                        modify_graph=True)}
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
    "dense sums": dense_bags("sum"), "dense means": dense_bags("mean"), "dense roots": dense_bags("sqrtn"),
    "weighted sums": dense_bags("sum", True), "weighted means": dense_bags("mean", True),
    "weighted roots": dense_bags("sqrtn", True),
    "bags with a default row": default_of_bags("one"), "bags with default rows": default_of_bags("each"),
    "sparse sums": sparse_bags("sum"), "sparse means": sparse_bags("mean"), "sparse roots": sparse_bags("sqrtn"),
    "clipped": clipped, "bags in control flow": in_control_flow, "sparse bags in a loop": sparse_in_loop,
    "tables without rows": nothing_known,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """name -> (directory, expected outputs) of each case."""
    from mx_rec.saver import plain, plain_rows
    from mx_rec.util.initialize import init, terminate_config_initializer

    tf = support.tf()
    tf.compat.v1.disable_control_flow_v2()
    init()
    parent = os.path.realpath(str(tmp_path_factory.mktemp("groups")))
    made = {}
    for number, (name, case) in enumerate(sorted(CASES.items())):
        with tf.Graph().as_default(), support.new_session() as sess:
            model = case(tf)
            sess.run(tf.compat.v1.global_variables_initializer())
            for table in model.tables:
                cases.fill(table, sess, model.keys)
            directory = "{}/model {}".format(parent, number)
            # Every second model has tables of several variables.
            limits = plain_rows.Limits(1000, 240, 17) if number % 2 else plain_rows.Limits()
            plain._export(sess, directory, model.inputs, model.outputs, None, ("serve",), None, None, True, False,
                          "refuse", limits)
            expected = [sess.run(model.outputs, {model.inputs[key]: value for key, value in feed.items()})
                        for feed in model.feeds]
            cases.save_feeds(directory, model.feeds)
            made[name] = directory, expected
    terminate_config_initializer()
    return made


@pytest.fixture(scope="module")
def predicted(models, tmp_path_factory):
    """A function that gives what all models predict in one way; each is run once."""
    results = {}
    names = sorted(models)

    def run(way):
        if way not in results:
            out = str(tmp_path_factory.mktemp("out")) + "/out.npz"
            found = cases.load_in(way, [models[name][0] for name in names], out)
            results[way] = dict(zip(names, found))
        return results[way]

    return run


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("way", sorted(cases.WAYS))
def test_a_process_without_the_package_pools_and_groups_to_the_same_bits(models, predicted, way, name):
    expected, found = models[name][1], predicted(way)[name]
    assert len(found) == len(expected)
    for turn, outputs in enumerate(expected):
        assert sorted(found[turn]) == sorted(outputs)
        for key, value in outputs.items():
            support.assert_same_bits(found[turn][key], value, "{}, feed {}".format(key, turn))


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_op_of_groups_and_bags_is_left(models, name):
    ops, content = cases.ops_of(models[name][0])
    assert not [op for op in ops if op.startswith("MxRec")]
    for word in (b"MxRec", b"mx_rec", b"ASCEND"):
        assert word not in content, word
