"""Ids without limits: hash buckets and sizes of identity columns fall away in the place of tables, and nowhere else."""

import json

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import stock_cases as cases
import support
from mx_rec.ops import library
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util import initialize
from mx_rec.util.stock_tables import StockTables

BUCKETS = 16
STEPS = 60


@pytest.fixture
def v1(mx):
    unlimited(mx)
    return tf.compat.v1


def unlimited(mx, names=True, **more):
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=names, **more))


def batches(steps=STEPS, seed=0):
    """Strings (b, 3), more than BUCKETS, and labels."""
    random = np.random.RandomState(seed)
    for _ in range(steps):
        ids = random.zipf(1.3, [cases.BATCH, 3]) % 50
        yield ids.astype(str), np.sin(ids.sum(1)).astype(np.float32)


def hashed(strings, buckets):
    return tf.strings.to_hash_bucket_fast(strings, buckets)


def look_up(how, w, strings, buckets):
    """(b, dim) out of a variable by strings (b, 3)."""
    ids = hashed(strings, buckets)
    if how == "gather":
        return tf.reduce_sum(tf.gather(w, ids), 1)
    if how == "modulo":
        wide = tf.strings.to_number(strings, tf.int64) * 1000003 + 5
        return tf.reduce_sum(tf.nn.embedding_lookup(w, tf.math.floormod(wide, buckets)), 1)
    if how == "reshaped":
        flat = tf.reshape(ids, [-1])
        return tf.reduce_sum(tf.reshape(tf.nn.embedding_lookup(w, flat), [-1, 3, w.shape[1]]), 1)
    sparse = tf.sparse.from_dense(ids + 1)
    sparse = tf.SparseTensor(sparse.indices, tf.reshape(ids, [-1]), sparse.dense_shape)
    if how == "sparse":
        return tf.nn.embedding_lookup_sparse(w, sparse, None, combiner="sqrtn")
    if how == "weighted":
        weights = tf.SparseTensor(sparse.indices, tf.cast(sparse.indices[:, 1] + 1, tf.float32), sparse.dense_shape)
        return tf.nn.safe_embedding_lookup_sparse(w, sparse, weights, combiner="mean")
    return tf.nn.safe_embedding_lookup_sparse(w, sparse, combiner=how)


def train(how, optimizer, is_converted, buckets, resource, steps=STEPS):
    """Losses of a model of one variable."""
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        strings, labels = v1.placeholder(tf.string, [None, 3]), v1.placeholder(tf.float32, [None])
        w = v1.get_variable("w", [buckets, 2], initializer=v1.constant_initializer(0.05), use_resource=resource)
        net = tf.reduce_sum(look_up(how, w, strings, buckets), 1)
        loss = tf.reduce_mean(tf.square(net - labels))
        op = cases.optimizers()[optimizer]().minimize(loss)
        support.keep_variables()
        if is_converted:
            plan, = convert_graph(graph, True)
            assert plan.converts and plan.ids.is_lifted and plan.ids.limits, plan
            assert "unlimited" in plan.table
        with support.started(support.new_session()) as sess:
            return np.array([sess.run([loss, op], {strings: text, labels: label})[0]
                             for text, label in batches(steps)])


def buckets_without_collisions(how):
    """A size by which a plain variable has a row for each id of the batches."""
    if how == "modulo":
        return 50021
    values = np.arange(50).astype(str)
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        for buckets in range(20000, 20050):
            if len(set(sess.run(hashed(tf.constant(values), buckets)))) == 50:
                return buckets
    raise AssertionError("no size is without collisions")


HOWS = ("gather", "modulo", "reshaped", "sparse", "weighted", "sum", "mean", "sqrtn")


@pytest.mark.parametrize("how, optimizer, resource", [
    (how, optimizer, place % 2 == 0) for place, (how, optimizer) in enumerate(
        [(how, "adagrad") for how in HOWS] + [("mean", name) for name in (
            "sgd", "momentum", "nesterov", "ftrl", "ftrl_shrinkage", "lazy_adam", "rmsprop", "centered_rmsprop")])])
def test_the_numbers_are_those_of_a_variable_of_many_more_rows(v1, how, optimizer, resource):
    size = buckets_without_collisions(how)
    expected = train(how, optimizer, False, size, resource)
    got = train(how, optimizer, True, BUCKETS, resource)
    with_collisions = train(how, optimizer, False, BUCKETS, resource, 20)
    np.testing.assert_allclose(got, expected, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    assert np.abs(with_collisions - expected[:20]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adagrad", "ftrl", "ftrl_shrinkage", "lazy_adam", "rmsprop",
                                       "centered_rmsprop"])
@pytest.mark.parametrize("how", HOWS)
def test_every_way_optimizer_and_kind_of_variable_gives_the_numbers_of_many_more_rows(v1, how, optimizer, resource):
    expected = train(how, optimizer, False, buckets_without_collisions(how), resource)
    got = train(how, optimizer, True, BUCKETS, resource)
    np.testing.assert_allclose(got, expected, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


def converted_plans(graph):
    return {plan.name: plan for plan in convert_graph(graph, True)}


def update(v1, *losses):
    return v1.train.AdagradOptimizer(0.1).minimize(v1.add_n([v1.reduce_sum(loss) for loss in losses]))


def variable(v1, name="w", rows=BUCKETS):
    return v1.get_variable(name, [rows, 2], initializer=v1.constant_initializer(0.5))


WORDS = [["a", "b", "c"], ["d", "e", "f"]]


@pytest.mark.parametrize("between", ["nothing", "reshape", "slice", "squeeze"])
def test_other_readers_of_hashed_ids_keep_the_modulo(v1, graph, between):
    """An indicator, a variable that stays, and what a run fetches."""
    strings = v1.constant(WORDS)
    hashed_ids = hashed(strings, BUCKETS)
    ids = {"nothing": lambda: hashed_ids, "reshape": lambda: v1.reshape(hashed_ids, [-1]),
           "slice": lambda: hashed_ids[:, 1:], "squeeze": lambda: v1.squeeze(v1.expand_dims(hashed_ids, 0), 0)}[between]()
    small = v1.get_variable("small", [BUCKETS, 2], initializer=v1.constant_initializer(0.5))
    indicator = v1.one_hot(ids, BUCKETS)
    op = update(v1, v1.gather(variable(v1), ids), v1.gather(small, ids), v1.nn.l2_loss(small))
    plans = converted_plans(graph)
    assert plans["w"].ids.is_lifted and not plans["small"].converts
    with support.started(support.new_session()) as sess:
        keys, shown, _ = sess.run([ids, indicator, op])
        assert keys.max() < BUCKETS and shown.sum() == keys.size
        rows = sess.run(small)
        met = np.isin(np.arange(BUCKETS), keys)
        assert len(set(rows[~met, 0])) == 1 and not np.isin(rows[met, 0], rows[~met, 0]).any()
        assert len(table_keys(sess, graph)) == len(set(np.array(WORDS)[:, 1:].ravel() if between == "slice"
                                                       else np.array(WORDS).ravel()))


def table_keys(sess, graph):
    """The keys of the one table of a graph."""
    with graph.as_default():
        return sess.run(library().mx_rec_export(converted(graph)[0].table.handle, []).keys)


def test_columns_that_share_an_embedding_lose_all_limits_or_none(v1, graph):
    """One column's ids are hashes, those of the other are computed from hashes."""
    first, second = hashed(v1.constant(["a", "b"]), BUCKETS), hashed(v1.constant(["c"]), BUCKETS - 1) + 1
    w = variable(v1)
    update(v1, v1.gather(w, first), v1.gather(w, second))
    plan = converted_plans(graph)["w"]
    assert plan.converts and not plan.ids.is_lifted
    assert support.re.search("keep their limits: add .*computes its ids from those of StringToHashBucketFast", plan.reason)
    assert "unlimited" not in plan.table


def by_two_variables_of_one_unique(v1, w):
    distinct, places = v1.unique(hashed(v1.constant(["a", "b"]), BUCKETS))
    other = v1.get_variable("other", [BUCKETS, 2])
    return [v1.gather(v1.gather(w, distinct), places), v1.gather(other, distinct), v1.nn.l2_loss(other)]


def of_another_remainder(v1, w):
    return [v1.gather(w, v1.floormod(v1.constant([40, 3], v1.int64), BUCKETS - 1))]


def of_parts(v1, w):
    parts = v1.get_variable("parts", [BUCKETS, 2], partitioner=v1.fixed_size_partitioner(2))
    return [v1.nn.embedding_lookup(parts, hashed(v1.constant(["a", "b"]), BUCKETS)), v1.gather(w, [1])]


def read_in_training(v1, w):
    return [v1.gather(w, hashed(v1.constant(["a", "b"]), BUCKETS)), v1.stop_gradient(w)]


KEPT = {by_two_variables_of_one_unique: ("w", "something else reads the ids of Unique"),
        of_another_remainder: ("w", "FloorMod"), of_parts: ("parts/part_0", "part of a partitioned variable")}


@pytest.mark.parametrize("case", list(KEPT), ids=lambda case: case.__name__)
def test_ids_that_cannot_lose_their_limits_keep_them_and_the_plan_says_why(v1, graph, case):
    op = update(v1, *case(v1, variable(v1)))
    plan = converted_plans(graph)[KEPT[case][0]]
    assert plan.converts and not plan.ids.is_lifted and KEPT[case][1] in plan.reason, plan.reason
    with support.started(support.new_session()) as sess:
        sess.run(op)


@pytest.mark.parametrize("join", ["stack", "concat", "where"])
def test_joined_ids_lose_their_limits_together(v1, graph, join):
    words = v1.constant(["a", "b", "c"])
    first, second = hashed(words, BUCKETS), hashed(words + "x", BUCKETS - 3)
    ids = {"stack": lambda: v1.stack([first, second], 1), "concat": lambda: v1.concat([first, second], 0),
           "where": lambda: v1.where(v1.equal(words, "b"), second, first)}[join]()
    op = update(v1, v1.gather(variable(v1), ids))
    plan = converted_plans(graph)["w"]
    assert plan.ids.is_lifted and len(plan.ids.limits) == 2
    with support.started(support.new_session()) as sess:
        sess.run(op)
        expected = sess.run(hashed(v1.constant({"where": ["a", "bx", "c"]}.get(
            join, ["a", "b", "c", "ax", "bx", "cx"])), 2 ** 63 - 1))
        assert sorted(table_keys(sess, graph)) == sorted(expected)


def test_an_evaluation_that_reads_one_of_two_variables_of_the_same_ids_keeps_the_limits_of_both(v1, graph):
    """The distinct ids of both are one tensor, and one variable is read as a whole."""
    distinct, places = v1.unique(hashed(v1.constant(["a", "b", "a"]), BUCKETS))
    pair = [variable(v1, "w"), variable(v1, "other")]
    rows = [v1.gather(v1.gather(w, distinct), places) for w in pair]
    whole = v1.reduce_max(pair[1])
    plans = {plan.name: plan for plan in convert_graph(graph, False)}
    assert plans["w"].converts and not plans["w"].ids.is_lifted and "Unique" in plans["w"].reason
    assert plans["other"].converts and "read as a whole" in plans["other"].ids.text
    with support.started(support.new_session()) as sess:
        assert sess.run(rows + [whole])[2] == 0.5


def test_an_empty_batch_makes_no_row(v1, graph):
    strings = v1.placeholder(v1.string, [None])
    op = update(v1, v1.gather(variable(v1), hashed(strings, BUCKETS)))
    converted_plans(graph)
    with support.started(support.new_session()) as sess:
        sess.run(op, {strings: []})
        assert not len(table_keys(sess, graph))


def test_ids_of_a_variable_that_is_read_as_a_whole_beside_the_training_keep_their_limits(v1, graph):
    update(v1, *read_in_training(v1, variable(v1)))
    plan = converted_plans(graph)["w"]
    assert plan.converts and not plan.ids.is_lifted and "read as a whole" in plan.ids.text


def test_names_choose_whose_ids_lose_their_limits(mx, graph):
    v1 = tf.compat.v1
    unlimited(mx, ["user"])
    ids = hashed(v1.constant(["a", "b", "c"]), BUCKETS)
    update(v1, v1.gather(variable(v1, "user"), ids), v1.gather(variable(v1, "item"), ids))
    plans = converted_plans(graph)
    assert plans["user"].ids.is_lifted and plans["item"].converts and not plans["item"].ids.text
    support.started(support.new_session()).close()


def test_numbers_that_are_no_row_of_the_variable_get_rows_and_negative_ones_an_error(v1, graph):
    ids = v1.placeholder(v1.int64, [None])
    op = update(v1, v1.gather(variable(v1), ids))
    assert converted_plans(graph)["w"].ids.is_lifted
    with support.started(support.new_session()) as sess:
        sess.run(op, {ids: [3, 2 ** 62, BUCKETS]})
        assert sorted(table_keys(sess, graph)) == [3, BUCKETS, 2 ** 62]
        with pytest.raises(tf.errors.InvalidArgumentError, match="-5 is not in"):
            sess.run(op, {ids: [-5]})


def test_feeding_hashed_ids_is_an_error_and_not_ignored(v1, graph):
    ids = hashed(v1.constant(["a"]), BUCKETS)
    op = update(v1, v1.gather(variable(v1), ids))
    converted_plans(graph)
    with support.started(support.new_session()) as sess:
        with pytest.raises(ValueError, match="may not be fed"):
            sess.run(op, {ids: [1]})


def save(v1, path, is_converted, lookup=lambda v1, w: v1.gather(w, hashed(v1.constant(["a", "b"]), BUCKETS)),
         restored=None):
    """Trains one step and saves, after a restore."""
    with tf.Graph().as_default() as graph:
        op = update(v1, lookup(v1, variable(v1)))
        support.keep_variables()
        if is_converted:
            converted_plans(graph)
        saver = v1.train.Saver()
        with support.started(support.new_session()) as sess:
            if restored:
                saver.restore(sess, restored)
            sess.run(op)
            return saver.save(sess, path)


def test_rows_by_other_ids_are_refused_by_every_restore(mx, tmp_path):
    v1 = tf.compat.v1
    dense = save(v1, str(tmp_path / "dense"), False)
    unlimited(mx, False)
    limited = save(v1, str(tmp_path / "limited"), True)
    initialize.terminate_config_initializer()
    unlimited(mx)
    without = save(v1, str(tmp_path / "without"), True)
    save(v1, str(tmp_path / "again"), True, restored=without)
    for old, text in ((dense, "has rows by ids with limits there"), (limited, "is the table 'w' by ids with limits there")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            save(v1, str(tmp_path / "x"), True, restored=old)
    initialize.terminate_config_initializer()
    unlimited(mx, False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="by ids without limits there"):
        save(v1, str(tmp_path / "x"), True, restored=without)
    with pytest.raises(ValueError, match="'w' cannot be restored.*by ids without limits"):
        save(v1, str(tmp_path / "x"), False, restored=without)


def test_rows_on_disk_take_ids_without_limits(mx, tmp_path):
    (tmp_path / "disk").mkdir()
    unlimited(mx, memory_rows=1024, ssd_data_path=[str(tmp_path / "disk")])
    got = train("mean", "adagrad", True, BUCKETS, True, 50)
    expected = train("mean", "adagrad", False, buckets_without_collisions("mean"), True, 50)
    np.testing.assert_allclose(got, expected, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


def test_two_models_of_one_process_have_ids_of_their_own(mx):
    unlimited(mx)
    first = train("gather", "adagrad", True, BUCKETS, True, 20)
    second = train("gather", "adagrad", True, BUCKETS + 1, False, 20)
    np.testing.assert_allclose(first, second, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)
    initialize.terminate_config_initializer()


@pytest.mark.parametrize("wrong", [3, "(", [1], {"a": 1}])
def test_wrong_names_of_unlimited_ids_are_refused_by_init(mx, wrong):
    with pytest.raises(ValueError, match="unlimited_ids"):
        unlimited(mx, wrong)


@pytest.mark.long
def test_the_command_says_which_ids_lose_their_limits(v1, graph, tmp_path):
    update(v1, v1.gather(variable(v1), hashed(v1.constant(["a"]), BUCKETS)))
    tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt")
    plan = converted_plans(graph)["w"]
    without, text, described = [preloaded.run_python(cases.COMMAND, tmp_path / "graph.pbtxt", "--variables", "1", *more)
                                for more in ([], ["--unlimited-ids", ".*"], ["--unlimited-ids", "w", "--json", "-"])]
    assert "ids" not in without.split("become")[1] and plan.reason in text
    assert "ids without a limit: the 16 buckets of StringToHashBucketFast fall away" in text
    entry, = json.loads(described)["variables"]
    assert entry["ids"] == {"unlimited": True, "reason": plan.ids.text} and entry["table"] == plan.table
