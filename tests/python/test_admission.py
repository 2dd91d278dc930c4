"""Admission in sessions: the worked example, several lookups, defaults, gradients, optimizers, thresholds, refusals."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases
import preloaded
import support
from test_fused_updates import needed
from mx_rec.core.admission import set_threshold
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph.drawing import draw_dot
from mx_rec.graph.plan import make_plan
from mx_rec.optimizers.gradient_descent_by_addr import create_hash_optimizer_by_addr
from mx_rec.util.initialize import get_host_pipeline_ops
from mx_rec.util.ops import import_host_pipeline_ops
from mx_rec.util.stats import table_stats


def make_table(name="table", dim=2, capacity=100, **arguments):
    return support.make_table(name, dim, capacity, 1.0, **arguments)


def lookup(table, ids, access=2, coefficient=None, **arguments):
    config = {"access_threshold": access}
    if coefficient is not None:
        config["faae_coefficient"] = coefficient
    return sparse_lookup(table, ids, modify_graph=True, access_and_evict_config=config, **arguments)


def placeholder(shape=(None,), dtype=None):
    return tf.compat.v1.placeholder(dtype or tf.int64, shape)


def test_the_worked_example_refuses_33_alone(graph, session, dynamic):
    table = make_table()
    ids = placeholder()
    embedding = lookup(table, ids)
    batch = [key for key, count in ((11, 1), (11, 2), (33, 1), (44, 3), (11, 1), (55, 1), (88, 4), (55, 1))
             for _ in range(count)]
    raw, sess = support.opened(table, session)
    found = sess.run(embedding, {ids: batch})
    assert [key for key, row in zip(batch, found) if not row.any()] == [33]
    assert all(row.tolist() == [1, 1] for key, row in zip(batch, found) if key != 33)
    assert sorted(raw.rows(sess)) == [11, 44, 55, 88]
    assert sess.run(embedding, {ids: [33]}).tolist() == [[1, 1]]


@pytest.mark.parametrize("sketch", [0, 1 << 16], ids=["exact", "sketch"])
def test_a_step_that_fails_has_counted_nothing_however_often_it_is_tried(graph, session, dynamic, sketch):
    """A full table let the step fail, but its keys were counted: after some tries the next step gave them rows."""
    full = make_table(capacity=1, admission_sketch_bytes=sketch)
    beside = make_table("beside", admission_sketch_bytes=sketch)
    ids = placeholder()
    embeddings = [lookup(full, ids, access=3), lookup(full, ids[:1], access=3), lookup(beside, ids, access=3)]
    sess = session()
    assert sess.run(embeddings, {ids: [1, 1, 1]})[0].all()
    for _ in range(4):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="table"):
            sess.run(embeddings, {ids: [6, 5, 5, 5, 1]})
    # Key 6 was counted twice in each of these steps, and once with the last one of all.
    found = sess.run(embeddings, {ids: [1, 6]})
    assert [one.any(axis=1).tolist() for one in found] == [[True, False], [True], [True, False]]
    assert [one.any(axis=1).tolist() for one in sess.run(embeddings, {ids: [1, 1]})] == [[True, True], [True], [True, True]]
    assert not sess.run(embeddings[2], {ids: [6]}).any()
    assert sess.run(embeddings[2], {ids: [6]}).all()


@pytest.mark.parametrize("coefficient, admitted", [(1, 5), (2, 3), (4, 2), (5, 1), (2 ** 31 - 1, 1)])
def test_the_coefficient_multiplies_occurrences(graph, session, dynamic, coefficient, admitted):
    table = make_table()
    ids = placeholder()
    embedding = lookup(table, ids, access=5, coefficient=coefficient)
    sess = session()
    found = [bool(sess.run(embedding, {ids: [3]}).any()) for _ in range(6)]
    assert found == [step + 1 >= admitted for step in range(6)]


def test_all_lookups_of_a_table_count_before_any_decides(graph, session, dynamic):
    table, other = make_table(), make_table("other")
    ids = [placeholder() for _ in range(3)]
    embeddings = [lookup(table, one, access=3) for one in ids]
    apart = lookup(other, ids[0], access=3)
    found = session().run(embeddings + [apart], dict(zip(ids, ([5, 6], [5], [5, 6]))))
    assert [one.any(axis=1).tolist() for one in found] == [[True, False], [True], [True, False], [False, False]]
    # One of them alone is counted with all the others as well.
    sess = session()
    alone = sess.run(embeddings[0], dict(zip(ids, ([5, 6], [5], [5, 6]))))
    assert alone.any(axis=1).tolist() == [True, False]
    with pytest.raises(tf.errors.InvalidArgumentError, match="feed"):
        sess.run(embeddings[0], {ids[0]: [1]})


def test_ids_that_depend_on_another_lookup_are_counted_after_it(graph, session, dynamic, caplog):
    table = make_table()
    ids = placeholder()
    with caplog.at_level("INFO", logger="mx_rec"):
        first = lookup(table, ids, access=3)
        more = tf.cast(first[:, 0], tf.int64) * 0 + ids
        second = lookup(table, more, access=3)
        third = lookup(table, ids, access=3)
    assert any("depend on the result" in reason for reason in modify_cases.reasons(caplog))
    found = session().run([first, second, third], {ids: [5]})
    assert [bool(one.any()) for one in found] == [False, True, found[2].any()]
    assert session().run([first, second, third], {ids: [5, 5]})[0].all()


def test_lookups_in_branches_decide_for_themselves(graph, session, dynamic):
    table = make_table()
    ids, choice = placeholder(), placeholder([], tf.bool)
    outside = lookup(table, ids, access=2)
    branch = tf.compat.v1.cond(choice, lambda: lookup(table, ids, access=2), lambda: tf.zeros([1, 2]))
    sess = session()
    assert not sess.run([outside, branch], {ids: [4], choice: False})[0].any()
    found = sess.run([outside, branch], {ids: [4], choice: True})
    assert found[0].all() and found[1].all()


def test_refused_ids_get_zeros_or_the_default_and_padding_gets_zeros(graph, session, dynamic):
    table = make_table()
    ids = placeholder((None, 2))
    plain = lookup(table, ids)
    row = lookup(table, ids, serving_default_value=np.float32([7, 8]))
    each = lookup(table, ids, serving_default_value=tf.reshape(tf.range(8, dtype=tf.float32), [4, 2]))
    nan = lookup(table, ids, serving_default_value=np.float32([np.nan, 1]))
    assert row.shape.as_list() == [None, 2, 2]
    loss = tf.add_n([tf.reduce_sum(one) for one in (plain, row, each, nan)])
    gradient = tf.gradients(loss, table.variable)[0]
    found, values, offsets = session().run([[plain, row, each, nan], gradient.values, gradient.indices],
                                           {ids: [[5, -1], [9, 5]]})
    # Every lookup counts: 5 and 9 would be admitted. So ask for more.
    assert found[0].tolist() == [[[1, 1], [0, 0]], [[1, 1], [1, 1]]]
    assert len(offsets) == 8 and np.isfinite(values).all()
    tf.compat.v1.reset_default_graph()
    table = make_table()
    ids = placeholder((None, 2))
    plain = lookup(table, ids, access=5)
    row = lookup(table, ids, access=5, serving_default_value=np.float32([7, 8]))
    each = lookup(table, ids, access=5, serving_default_value=tf.reshape(tf.range(8, dtype=tf.float32), [4, 2]))
    gradient = tf.gradients(tf.add_n([tf.reduce_sum(one) for one in (plain, row, each)]), table.variable)[0]
    with support.new_session() as sess:
        found, offsets = sess.run([[plain, row, each], gradient.indices], {ids: [[5, -1], [9, 5]]})
    assert found[0].tolist() == [[[1, 1], [0, 0]], [[0, 0], [1, 1]]]
    assert found[1].tolist() == [[[1, 1], [0, 0]], [[7, 8], [1, 1]]]
    assert found[2].tolist() == [[[1, 1], [0, 0]], [[4, 5], [1, 1]]]
    assert len(offsets) == 3


def test_evaluation_counts_nothing_and_makes_no_row(graph, session, dynamic):
    table = make_table()
    ids = placeholder()
    train = lookup(table, ids, access=2)
    reads = [lookup(table, ids, access=2, is_train=False), sparse_lookup(table, ids, is_train=False, modify_graph=True),
             lookup(table, ids, access=2, is_train=False, serving_default_value=np.float32([3, 4]))]
    sess = session()
    for _ in range(3):
        assert [one.tolist() for one in sess.run(reads, {ids: [1]})] == [[[0, 0]], [[0, 0]], [[3, 4]]]
    assert not sess.run(train, {ids: [1]}).any()
    assert [one.tolist() for one in sess.run(reads, {ids: [1]})] == [[[0, 0]], [[0, 0]], [[3, 4]]]
    assert sess.run(train, {ids: [1]}).all()
    assert [one.tolist() for one in sess.run(reads, {ids: [1]})] == [[[1, 1]]] * 3


OPTIMIZERS = {
    "lazy_adam": lambda: __import__("mx_rec.optimizers.lazy_adam", fromlist=["x"]).create_hash_optimizer(0.1),
    "adagrad": lambda: __import__("mx_rec.optimizers.adagrad", fromlist=["x"]).create_hash_optimizer(0.1),
    "ftrl": lambda: __import__("mx_rec.optimizers.ftrl", fromlist=["x"]).create_hash_optimizer(0.1),
    "sgd": lambda: __import__("mx_rec.optimizers.gradient_descent", fromlist=["x"]).create_hash_optimizer(0.1),
    "momentum": lambda: __import__("mx_rec.optimizers.momentum", fromlist=["x"]).create_hash_optimizer(0.1),
    "rmsprop": lambda: __import__("mx_rec.optimizers.rmsprop", fromlist=["x"]).create_hash_optimizer(0.1, momentum=0.5),
}


@pytest.mark.parametrize("way", ["minimize", "clipped"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_gradients_of_refused_ids_reach_no_row_by_any_optimizer(graph, session, dynamic, name, way):
    """The table is what it is if refused ids had been padding, on the fused path and on the other."""
    random = np.random.RandomState(5)
    steps = [random.randint(0, 9, [8, 2]).astype(np.int64) for _ in range(12)]
    tables, wholes, updates = [], [], []
    ids, masked = placeholder((None, 2)), placeholder((None, 2))

    for table, embedding in (("counted", lambda table: lookup(table, ids, access=6)),
                             ("masked", lambda table: sparse_lookup(table, masked, modify_graph=True))):
        tables.append(make_table(table))
        looked = embedding(tables[-1])
        slope = tf.reshape(tf.range(32, dtype=tf.float32) - 7.5, [8, 2, 2]) / 9.0
        loss = tf.reduce_sum(looked * slope + tf.square(looked))
        optimizer = OPTIMIZERS[name]()
        pairs = optimizer.compute_gradients(loss, [tables[-1].variable])
        if way == "clipped":
            pairs = [(tf.clip_by_norm(gradient, 0.7), variable) for gradient, variable in pairs]
        updates.append(optimizer.apply_gradients(pairs))
        wholes.append(support.Raw.of(tables[-1]))
    applied = [op for update in updates for op in needed(update)["MxRecUpdate"]]
    assert {support.form_of(op) for op in applied} == {"ids" if way == "minimize" else "rows"}
    sess = support.started(session())
    counts = {}
    refused = 0
    for step in steps:
        for key in step.reshape(-1).tolist():
            counts[key] = counts.get(key, 0) + 1
        shown = np.array([key if counts[key] >= 6 else -1 for key in step.reshape(-1).tolist()]).reshape(step.shape)
        refused += int((shown == -1).sum())
        sess.run(updates, {ids: step, masked: shown})
    assert refused > 10
    support.assert_same_tables(wholes[0].rows(sess), wholes[1].rows(sess), name)


def test_threshold_zero_counts_nothing(graph, session, dynamic):
    table = make_table()
    ids = placeholder()
    embedding = lookup(table, ids, access=0)
    sess = session()
    assert sess.run(embedding, {ids: [1, 2]}).all()
    with sess.as_default():
        assert table_stats(table).rows == 2


def test_one_merged_history_with_dynamic_expansion(graph, session, mx):
    """Tables that share rows share counts; admission works by address too."""
    mx(use_dynamic_expansion=True)
    tables = [make_table(name, capacity=1, enable_merge=True) for name in ("one", "two")]
    ids = [placeholder(), placeholder()]
    embeddings = [lookup(table, one, access=2) for table, one in zip(tables, ids)]
    rows = tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")
    offsets = tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
    loss = tf.add_n([tf.reduce_sum(one) for one in embeddings])
    update = create_hash_optimizer_by_addr(0.5, weight_decay=0.0).apply_gradients(
        list(zip(tf.gradients(loss, rows), offsets)))
    sess = session()
    first = sess.run([embeddings, update], {ids[0]: [1, 1, 2], ids[1]: [3]})[0]
    assert first[0].any(axis=1).tolist() == [True, True, False] and not first[1].any()
    second = sess.run([embeddings, update], {ids[0]: [1], ids[1]: [3]})[0]
    assert second[0].tolist() == [[0, 0]] and second[1].tolist() == [[1, 1]]
    with pytest.raises(ValueError, match="must be same in one table"):
        lookup(tables[1], ids[0], access=3)


def test_the_plan_of_a_modification_tells_that_keys_are_counted_in_the_step(graph, dynamic):
    """Lookups with and without admission share an iterator; of the former only the ids move."""
    data = tf.data.Dataset.from_tensors({"ids": np.int64([1, 2])})
    batch = tf.compat.v1.data.make_initializable_iterator(data).get_next()
    tables = [make_table(name) for name in ("counted", "plain")]
    lookup(tables[0], batch["ids"])
    lookup(tables[0], batch["ids"] * 2)
    sparse_lookup(tables[1], batch["ids"], modify_graph=True)
    lookup(tables[0], tf.constant([3], tf.int64))
    plan = make_plan(graph.as_graph_def().SerializeToString())
    assert [(one.kind, one.moves) for one in plan.lookups] == [("admit", True), ("admit", True), ("train", True),
                                                              ("admit", False)]
    text = plan.text()
    assert "training lookup counted//" in text and "keys are counted in the step" in text
    drawing = draw_dot(plan)
    assert "MxRecObserve" in drawing and "MxRecIdOffset" in drawing and "evaluation" not in drawing


# Changing the threshold ----------------------------------------------------------------------


def test_the_op_set_threshold_changes_one_table_or_all(graph, session, dynamic):
    tables = [make_table(name) for name in ("user_table", "item_table", "plain")]
    ids, value = placeholder(), placeholder([], tf.int32)
    embeddings = [lookup(table, ids, access=2) for table in tables[:2]]
    ops = import_host_pipeline_ops()
    one = ops.set_threshold(value, emb_name="user_table", ids_name="user_ids")
    both = get_host_pipeline_ops().set_threshold(value)
    listed = ops.set_threshold(value, emb_name=["user_table", "item_table"])
    constant = ops.set_threshold(tf.constant(5, tf.int32), emb_name="item_table")
    sess = session()

    def seen(key):
        return [bool(found.any()) for found in sess.run(embeddings, {ids: [key]})]

    sess.run(embeddings, {ids: [0]})
    assert sess.run(one, {value: 1}) == 1
    assert seen(1) == [True, False]
    assert sess.run(both, {value: 3}) == 3
    assert [seen(1) for _ in range(2)] == [[False, False], [True, True]]
    assert sess.run(listed, {value: 1}) == 1
    assert seen(2) == [True, True]
    assert sess.run(constant) == 5
    assert seen(3) == [True, False]
    with pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(one, {value: -1})
    assert seen(4) == [True, False]
    # 0 stops the counting; what was counted still decides.
    sess.run(both, {value: 0})
    assert [seen(4) for _ in range(6)] == [[True, False]] * 6
    for wrong, message in (("nobody", "there is no table 'nobody'"), ("plain", "'access_threshold'"),
                           (["user_table", "nobody"], "there is no table 'nobody'")):
        with pytest.raises(ValueError, match=message):
            ops.set_threshold(value, emb_name=wrong)
    with pytest.raises(ValueError, match="type of 'emb_name' is not str"):
        ops.set_threshold(value, emb_name=[3])


def test_the_function_set_threshold_needs_a_table_with_admission(graph, session, dynamic):
    table = make_table()
    with pytest.raises(ValueError, match="no admission"):
        set_threshold(2)
    ids = placeholder()
    embedding = lookup(table, ids, access=3)
    with pytest.raises(RuntimeError, match="open a"):
        set_threshold(2)
    sess = session()
    sess.run(embedding, {ids: [8]})
    graph.finalize()
    set_threshold(2, table)
    assert sess.run(embedding, {ids: [8]}).all()
    set_threshold(9)
    assert not sess.run(embedding, {ids: [8]}).any()
    for value in (-1, 2 ** 31, 1.5, True, None):
        with pytest.raises(ValueError, match="'threshold'"):
            set_threshold(value)
    with pytest.raises(ValueError, match="there is no table 'other'"):
        set_threshold(1, "other")


# Refusals ------------------------------------------------------------------------------------


def test_lookups_of_one_table_must_agree_on_thresholds(graph, dynamic):
    table = make_table()
    ids = placeholder()
    lookup(table, ids, access=2)
    for access in (3, 0, -1, None):
        with pytest.raises(ValueError, match="must be same in one table when multi lookup"):
            lookup(table, ids, access=access)
    with pytest.raises(ValueError, match="must be same in one table when multi lookup"):
        lookup(table, ids, access=3, is_train=False)
    lookup(table, ids, access=2, coefficient=7)
    lookup(table, ids, access=2, is_train=False)
    lookup(make_table("other"), ids, access=3)


def test_a_refused_lookup_leaves_no_threshold_behind(graph, dynamic):
    table = make_table()
    with pytest.raises(ValueError, match="serving_default_value"):
        lookup(table, placeholder(), access=2, serving_default_value=np.ones([5], np.float32))
    lookup(table, placeholder(), access=3)


def test_eviction_wants_an_access_threshold_and_no_dynamic_expansion(graph, mx):
    mx(use_dynamic_expansion=True)
    table = make_table(capacity=1)
    with pytest.raises(ValueError, match="access_threshold=1 admits every key"):
        sparse_lookup(table, placeholder(), modify_graph=True, access_and_evict_config={"eviction_threshold": 5})
    with pytest.raises(ValueError, match="not possible with dynamic expansion"):
        sparse_lookup(table, placeholder(), modify_graph=True,
                      access_and_evict_config={"access_threshold": 1, "eviction_threshold": 5})


def test_a_combined_history_is_not_there_and_says_so():
    warned = preloaded.run_python("""
import tensorflow as tf
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import init

init()
table = create_table(tf.int64, 2, "t", tf.compat.v1.ones_initializer(), device_vocabulary_size=9)
import logging
class Handler(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
from mx_rec.util.log import logger
logger.addHandler(Handler())
sparse_lookup(table, tf.constant([1], tf.int64), modify_graph=True, access_and_evict_config={"access_threshold": 2})
""", USE_COMBINE_FAAE=1)
    assert "USE_COMBINE_FAAE has no effect" in warned
