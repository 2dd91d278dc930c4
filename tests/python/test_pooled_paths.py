"""Pooled lookups on every path of a lookup: modified graphs, features, admission and eviction, expansion, imports."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from modify_cases import AHEAD, SPECS, STEP
from pooled_cases import DIM, batch_of, lookup, make_table, pooled, start_of, unfused
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ASCEND_TIMESTAMP
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.embedding import sparse_lookup
from mx_rec.core.feature_process import evict
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address

COMBINERS = ["sum", "mean", "sqrtn"]


def sgd(rate=0.5):
    return create_hash_optimizer(rate)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_modified_graphs_pool_what_the_pipeline_has_prepared(graph, combiner):
    """In training and evaluation, also by features; rows are made for some keys in every batch."""
    def script(run):
        random = np.random.RandomState(2)
        ids = batch_of(random, 96, 5, keys=300)
        data = tf.data.Dataset.from_tensor_slices({"ids": ids, "label": random.rand(96).astype(np.float32)}).batch(8)
        run.specs(ids="table")
        iterators = [tf.compat.v1.data.make_initializable_iterator(run.insert(data, mode)) for mode in (True, False)]
        train, evaluation = [iterator.get_next() for iterator in iterators]
        table = run.table(dim=16)
        find = run._specs["ids"] if run.form == SPECS else None
        vector = pooled(table, find or train["ids"], combiner, batch=train)
        found = pooled(table, find or evaluation["ids"], combiner, batch=evaluation, is_train=False)
        model = cases.Model(run, [vector], train["label"])
        run.modify()
        sess = run.session()
        for iterator, is_training in zip(iterators, (True, False)):
            run.start(sess, iterator, is_training)
        for _ in range(4):
            run.steps(sess, model.seen, 3)
            run.step(sess, found, label="evaluation")
        run.contents(sess, ["LazyAdam_momentum"])

    cases.alike(script, 2, forms=(STEP, AHEAD, SPECS))


def test_sparse_ids_of_a_modified_graph(graph):
    def script(run):
        random = np.random.RandomState(2)
        dense = batch_of(random, 60, 5, keys=200)
        data = tf.data.Dataset.from_tensor_slices(dense).batch(6).map(
            lambda ids: tf.SparseTensor(tf.where(tf.not_equal(ids, -1)), tf.boolean_mask(ids, tf.not_equal(ids, -1)),
                                        tf.shape(ids, out_type=tf.int64)))
        iterator = tf.compat.v1.data.make_initializable_iterator(data)
        sparse = iterator.get_next()
        table = run.table(dim=8)
        vector = pooled(table, sparse, "mean", weights=tf.cast(sparse.values % 5 + 1, tf.float32))
        model = cases.Model(run, [vector], tf.constant([0.5]))
        sess = run.begin(iterator)
        assert run.finish(sess, model.seen) == 10

    cases.alike(script, 1)


def test_a_feature_is_pooled_once_for_equal_arguments(graph, session, dynamic):
    spec = FeatureSpec("ids", table_name="table")
    data = tf.data.Dataset.from_tensors({"ids": np.array([[1, 2, 1]], np.int64)}).repeat()
    batch = tf.compat.v1.data.make_one_shot_iterator(data.map(get_asc_insert_func([spec]))).get_next()
    table = make_table("table")
    rows = sparse_lookup(table, spec, batch=batch)
    total = pooled(table, spec, batch=batch)
    mean = pooled(table, spec, "mean", batch=batch)
    assert pooled(table, spec, batch=batch) is total and sparse_lookup(table, spec, batch=batch) is rows
    values = session().run([rows, total, mean])
    support.assert_same_bits(values[1], (values[0][:, 0] + values[0][:, 1]) + values[0][:, 2])
    support.assert_same_bits(values[2], values[1] / np.float32(3))


@pytest.mark.parametrize("combiner", COMBINERS)
def test_admission_and_eviction_between_steps_give_what_unpooled_lookups_give(graph, session, dynamic, combiner):
    """Ids that are not admitted count in means and add zeros; evicted keys come back from their first values."""
    ids = tf.compat.v1.placeholder(tf.int64, [None, 6])
    time = tf.compat.v1.placeholder(tf.int64, [])
    config = {"access_threshold": 3, "eviction_threshold": 4}
    tables = [make_table(name, first=0.5) for name in ("pooled", "unpooled")]
    vectors = [pooled(tables[0], ids, combiner, access_and_evict_config=config),
               unfused(tables[1], ids, combiner, access_and_evict_config=config)]
    evaluations = [pooled(tables[0], ids, combiner, is_train=False),
                   unfused(tables[1], ids, combiner, is_train=False)]
    tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, time)
    place = tf.reshape(tf.range(4.0 * DIM), [4, DIM]) / 10
    trains = [sgd(0.1).minimize(tf.reduce_sum(tf.square(vector - place)), var_list=[table.variable])
              for vector, table in zip(vectors, tables)]
    raws, sess = support.opened(tables, session)
    random = np.random.RandomState(7)
    refused = evicted = 0
    for step in range(1, 30):
        feed = {ids: batch_of(random, 4, 6, keys=60), time: step}
        ours, theirs, _, _ = sess.run(vectors + trains, feed)
        support.assert_rounding(ours, theirs, 8, scale=2.0)
        refused += np.count_nonzero(~ours.any(axis=1))
        support.assert_rounding(*sess.run(evaluations, feed), ulps=8, scale=2.0)
        if step % 5 == 0:
            with sess.as_default():
                found = evict()
            assert found["pooled"] == found["unpooled"]
            evicted += found["pooled"][0]
        rows = [raw.rows(sess) for raw in raws]
        assert sorted(rows[0]) == sorted(rows[1])
        for key in rows[0]:
            support.assert_rounding(rows[0][key], rows[1][key], 200, scale=2.0)
    assert refused and evicted and rows[0]


@pytest.mark.parametrize("per_id", [False, True])
@pytest.mark.parametrize("is_train", [False, True])
def test_default_rows_of_ids_without_a_row_are_pooled_too(graph, session, dynamic, is_train, per_id):
    batch = np.array([[1, 2, -1], [3, 3, 4]])
    ids = tf.constant(batch)
    default = np.arange(6 * DIM, dtype=np.float32).reshape(6, DIM) if per_id else np.full([1, DIM], 7, np.float32)
    weights = tf.constant([[1.0, 2.0, 9.0], [0.5, 0.25, 1.0]])
    config = {"access_threshold": 2} if is_train else None
    table = make_table("table")
    vector = pooled(table, ids, "mean", weights=weights, is_train=is_train, access_and_evict_config=config,
                    serving_default_value=tf.constant(default))
    raw, sess = support.opened(table, session)
    if not is_train:
        raw.assign(sess, [3], np.ones([1, DIM]))
    value = sess.run(vector)
    rows = raw.rows(sess)
    assert sorted(rows) == [3]
    each = np.broadcast_to(default, [6, DIM])
    first = (each[0] * 1 + each[1] * 2) / 3
    second = (rows[3] * 0.75 + each[5]) / 1.75
    support.assert_rounding(value, np.stack([first, second]), 8, scale=10.0)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_by_address_updates_of_pooled_lookups_are_those_of_unpooled_ones(graph, session, mx, combiner):
    """With dynamic expansion gradients are taken of the distinct rows; the table grows past its size."""
    from test_fused_updates import needed

    mx(use_dynamic_expansion=True)
    ids = tf.compat.v1.placeholder(tf.int64, [None, 6])
    tables = [make_table(name, first=0.5, device_vocabulary_size=3) for name in ("pooled", "unpooled")]
    vectors = [pooled(tables[0], ids, combiner), unfused(tables[1], ids, combiner)]
    rows = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    offsets = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    trains = [create_hash_optimizer_by_address(0.1).apply_gradients(
        [(tf.gradients(tf.reduce_sum(tf.sin(vector * 3)), row)[0], offset)])
        for vector, row, offset in zip(vectors, rows, offsets)]
    assert list(map(support.form_of, needed(trains[0])["MxRecUpdate"])) == ["bags"]
    assert "MxRecReducePooled" not in needed(trains[0])
    raws, sess = support.opened(tables, session, True)
    random = np.random.RandomState(7)
    for _ in range(5):
        feed = {ids: batch_of(random, 9, 6, keys=60)}
        ours, theirs, _, _ = sess.run(vectors + trains, feed)
        support.assert_rounding(ours, theirs, 8, scale=2.0)
    found = [raw.rows(sess) for raw in raws]
    assert sorted(found[0]) == sorted(found[1]) and len(found[0]) > 30
    for key in found[0]:
        support.assert_rounding(found[0][key], found[1][key], 400, scale=2.0)


def test_an_imported_graph_trains_and_refuses_fed_sums(graph, session, dynamic):
    ids = tf.compat.v1.placeholder(tf.int64, [None, 3], name="ids")
    table = make_table("table")
    vector = pooled(table, ids, "mean")
    gradient = tf.gradients(tf.reduce_sum(vector), table.variable)[0]
    train = sgd(1.0).apply_gradients([(gradient, table.variable)], name="train")
    names = vector.name, gradient.values.name, train.name
    meta = tf.compat.v1.train.export_meta_graph()
    tf.compat.v1.reset_default_graph()
    tf.compat.v1.train.import_meta_graph(meta)
    graph = tf.compat.v1.get_default_graph()
    raw = support.Raw(*graph.get_operation_by_name("table").outputs, dim=DIM)
    with support.new_session(graph) as sess:
        first = sess.run(names[0], {"ids:0": [[4, 4, 5]]})
        before = raw.rows(sess)
        sess.run(names[2], {"ids:0": [[4, 4, 5]]})
        after = raw.rows(sess)
        support.assert_rounding(first[0], (2 * before[4] + before[5]) / 3, 4)
        support.assert_rounding(before[4] - after[4], np.full(DIM, 2 / 3), 16, scale=1.0)
        with pytest.raises(ValueError, match="may not be fed"):
            sess.run(names[2], {"ids:0": [[4, 4, 5]], names[1]: np.ones([2, DIM])})


def test_branches_and_loops_pool_as_straight_graphs_do(graph, session, dynamic):
    table = make_table("table")
    ids = tf.constant([[1, 2, 2], [5, -1, 1]], tf.int64)
    wanted = tf.compat.v1.placeholder(tf.bool, [])
    straight = pooled(table, ids)
    branch = tf.cond(wanted, lambda: pooled(table, ids), lambda: tf.zeros([2, DIM]))
    total = tf.while_loop(lambda step, _: step < 2,
                          lambda step, sums: (step + 1, sums + pooled(table, tf.reshape(ids[step], [1, 3]))),
                          (0, tf.zeros([1, DIM])))[1]
    gradients = [tf.gradients(tf.reduce_sum(tf.square(one)), table.variable)[0] for one in (straight, branch, total)]
    sess = session()
    one, other, looped = sess.run([straight, branch, total], {wanted: True})
    support.assert_same_bits(one, other)
    support.assert_rounding(looped[0], one.sum(axis=0), 4, scale=2.0)
    assert not sess.run(branch, {wanted: False}).any()
    slices = sess.run(gradients, {wanted: True})
    support.assert_same_bits(slices[0].values, slices[1].values)
    sums = {}
    for offset, value in zip(slices[2].indices, slices[2].values):
        sums[offset] = sums.get(offset, 0) + value
    assert set(slices[0].indices) <= set(sums)
    assert not len(sess.run(gradients[1], {wanted: False}).indices)


def test_an_unknown_rank_is_pooled_when_it_is_known(graph, session, dynamic):
    table = make_table("table")
    ids = tf.compat.v1.placeholder(tf.int64)
    vector, each = pooled(table, ids, "sum"), lookup(table, ids)
    raw, sess = support.opened(table, session)
    raw.assign(sess, *start_of(40))
    for shape in ((4,), (2, 3), (2, 2, 2), (0, 3), (3, 0)):
        batch = np.random.RandomState(1).randint(0, 40, shape)
        ours, rows = sess.run([vector, each], {ids: batch})
        support.assert_rounding(ours, rows.sum(axis=-2), 8, scale=4.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1 or more|scalar"):
        sess.run(vector, {ids: 3})


def test_steps_evaluations_and_removals_at_once_see_whole_rows(graph, session, dynamic):
    """Every row is one number in all columns, whoever reads it: pooled vectors are so too."""
    import threading

    ids = tf.compat.v1.placeholder(tf.int64, [None, 8])
    table = make_table("table", 33, first=1.0)
    vector = pooled(table, ids)
    found = pooled(table, ids, "mean", is_train=False)
    train = sgd(0.01).minimize(tf.reduce_sum(tf.square(vector)), var_list=[table.variable])
    raw, sess = support.opened(table, session)
    errors, stop = [], threading.Event()

    def repeat(work, seed):
        random = np.random.RandomState(seed)
        try:
            while not stop.is_set():
                work(random)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    def check(values):
        assert np.all(values == values[:, :1])

    workers = [threading.Thread(target=repeat, args=pair) for pair in (
        (lambda random: check(sess.run([vector, train], {ids: batch_of(random, 60, 8, keys=400)})[0]), 1),
        (lambda random: check(sess.run([vector, train], {ids: batch_of(random, 60, 8, keys=400)})[0]), 2),
        (lambda random: check(sess.run(found, {ids: batch_of(random, 60, 8, keys=400)})), 3),
        (lambda random: raw.remove(sess, random.randint(0, 400, 20)), 4))]
    for worker in workers:
        worker.start()
    stop.wait(3)
    stop.set()
    for worker in workers:
        worker.join()
    assert not errors, errors[0]
    check(np.stack(list(raw.rows(sess).values())))


def test_a_restore_between_lookup_and_update_ends_the_step_and_changes_nothing(graph, session, dynamic):
    """The offsets and the vectors of a step, fed after the table was cleared."""
    ids = tf.constant([[1, 2, 2]], tf.int64)
    table = make_table("table")
    vector = pooled(table, ids)
    train = sgd().minimize(tf.reduce_sum(vector), var_list=[table.variable])
    clear = support.ops().mx_rec_clear(table.handle, [], [], [])
    offsets, inverse = vector.op.inputs[2], vector.op.inputs[3]
    raw, sess = support.opened(table, session)
    old = sess.run([offsets, inverse, vector])
    sess.run(clear)
    sess.run(vector)
    before = raw.rows(sess)
    for fetch in (train, vector):
        with pytest.raises(tf.errors.AbortedError, match="replaced"):
            sess.run(fetch, {offsets: old[0], inverse: old[1]})
    support.assert_same_tables(raw.rows(sess), before)
