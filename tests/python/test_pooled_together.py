"""Pooled lookups of several tables that a modified graph reads by one op: which ones, with the bits of one by one."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from fused_cases import LENGTH, batches, loss_of, optimizer
from modify_cases import AHEAD
from test_fused_updates import needed
from mx_rec.core.embedding import sparse_lookup_many, sparse_lookup_pooled, sparse_lookup_pooled_many

EMBED, EMBED_MANY = "MxRecRead bags", "MxRecRead bags of many"
FIND, FIND_MANY = "MxRecFind bags", "MxRecFind bags of many"
COMBINERS = ("sum", "mean", "sqrtn")


def pooled(table, ids, combiner="sum", **arguments):
    return sparse_lookup_pooled(table, ids, combiner, **arguments)


def tables_of(run, count=3):
    return [run.table("t%d" % at, dim=(4, 16, 33, 1, 7)[at]) for at in range(count)]


def counts(op):
    """How many pooled lookups each op does that a run of `op` needs, by type."""
    found = {}
    for kind, ops in needed(op).items():
        if kind in (EMBED, EMBED_MANY, FIND, FIND_MANY):
            found[kind] = sorted(one.get_attr("N") for one in ops)
    return found


def trained(run, source, tables, vectors, label, others=(), wanted=None, found=None):
    """Trains all batches, then evaluates them; what the modified graph joins is `wanted` in the update, `found` behind."""
    update = optimizer().minimize(loss_of(vectors, label), var_list=[table.variable for table in tables])
    joined = tf.concat(others, 1) if others else None
    run.modify()
    if run.is_modified:
        if wanted is not None:
            assert counts(update) == wanted
        if found is not None:
            assert counts(joined.op) == found
    sess = run.begin(source)
    run.finish(sess, [vectors, update])
    if others:
        run.start(sess, source)
        run.epoch(sess, [joined, others])
    return update


def sparse_of(dense):
    """The ids of dense bags that are not padding, as a SparseTensor."""
    kept = tf.compat.v1.where(tf.not_equal(dense, -1))
    return tf.SparseTensor(kept, tf.gather_nd(dense, kept), tf.shape(dense, out_type=tf.int64))


def ragged_of(dense):
    is_id = tf.not_equal(dense, -1)
    lengths = tf.reduce_sum(tf.cast(is_id, tf.int64), 1)
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(dense, is_id), lengths, validate=False)


@support.run_by(cases.alike, moves=7, use_dynamic=True)
def test_single_calls_of_all_kinds_share_an_op_in_training_and_in_evaluation(run):
    source, ids, label = batches(True, features=3)
    tables = tables_of(run)
    kinds = [ids[:, 0], sparse_of(ids[:, 1]), ragged_of(ids[:, 2])]
    weights = [tf.sin(tf.cast(ids[:, 0], tf.float32)), None, None]

    def looked(is_train):
        return [pooled(table, one, combiner, weights=weight, is_train=is_train)
                for table, one, combiner, weight in zip(tables, kinds, COMBINERS, weights)]

    vectors, others = looked(True), looked(False)
    # The second table twice.
    vectors.append(pooled(tables[1], ids[:, 0], "mean"))
    trained(run, source, tables, vectors, label, others, {EMBED_MANY: [4]}, {FIND_MANY: [3]})


@pytest.mark.long
@support.run_by(cases.alike, moves=8, use_dynamic=True)
def test_sums_that_are_fused_share_an_op(run):
    source, ids, label = batches(True, features=3)
    tables = [run.table("t%d" % at, dim=4 * at + 4) for at in range(4)]
    chosen = [ids[:, at % 3] for at in range(4)]
    rows = sparse_lookup_many(tables[:2], chosen[:2], modify_graph=True)
    rows += [run.lookup(table, one) for table, one in zip(tables[2:], chosen[2:])]
    vectors = [tf.reduce_sum(one, 1) for one in rows]
    rows = sparse_lookup_many(tables[:2], chosen[:2], modify_graph=True, is_train=False)
    rows += [run.lookup(table, one, is_train=False) for table, one in zip(tables[2:], chosen[2:])]
    others = [tf.reduce_sum(one, 1) for one in rows]
    # Two groups: those of one call, and those that one update changes or one end needs.
    trained(run, source, tables, vectors, label, others, {EMBED_MANY: [2, 2]}, {FIND_MANY: [2, 2]})


@pytest.mark.long
@support.run_by(cases.alike, moves=9, use_dynamic=True)
def test_a_group_of_evaluation_stays_one_op_in_a_modified_graph(run):
    source, ids, label = batches(True, features=3)
    tables = tables_of(run)
    chosen = [ids[:, at] for at in range(3)]
    vectors = sparse_lookup_pooled_many(tables, chosen, COMBINERS)
    others = sparse_lookup_pooled_many(tables, chosen, COMBINERS, is_train=False)
    clipped = sparse_lookup_pooled_many(tables, chosen, "mean", is_train=False, max_norm=0.4)
    trained(run, source, tables, vectors, label, others + clipped, {EMBED_MANY: [3]}, {FIND_MANY: [3, 3]})


@support.run_by(cases.alike, moves=5, use_dynamic=True)
def test_lookups_of_one_verb_that_depend_on_each_other_are_not_joined(run):
    """Weights from the vectors of another lookup, in both directions between training and evaluation."""
    source, ids, label = batches(True, features=3)
    tables = [run.table("t%d" % at, dim=4) for at in range(5)]

    def weights_of(vectors):
        return tf.stop_gradient(tf.nn.softmax(tf.tile(vectors[:, :1], [1, LENGTH]) * [[1.0, 2.0, 3.0, 4.0, 5.0]]))

    first = pooled(tables[0], ids[:, 0])
    evaluated = pooled(tables[3], ids[:, 1], is_train=False)
    second = pooled(tables[1], ids[:, 1], "mean", weights=weights_of(evaluated), is_weight_grad=False)
    another = pooled(tables[4], ids[:, 2], weights=weights_of(first), is_train=False)
    third = pooled(tables[2], ids[:, 2])
    update = optimizer().minimize(loss_of([first, second, third, another], label), var_list=[
        table.variable for table in tables[:3]])
    run.modify()
    if run.is_modified:
        assert counts(update) == {EMBED_MANY: [3], FIND: [1, 1]}
    sess = run.session()
    for table in tables[3:]:
        run.raw(table).assign(sess, np.arange(40) * 7 - 50, np.linspace(-1, 1, 160).reshape(40, 4))
    run.start(sess, source)
    run.finish(sess, [first, second, third, another, update])


@support.run_by(cases.alike, moves=6, use_dynamic=True)
def test_a_run_needs_to_feed_no_more_than_before_and_reads_no_more_tables_than_its_ends_need(run):
    """Weights that are fed, ids that are fed, and an end that needs one lookup alone."""
    source, ids, label = batches(True, features=3)
    tables = tables_of(run, 5)
    weights = tf.compat.v1.placeholder(tf.float32, [None, LENGTH])
    fed = tf.compat.v1.placeholder(tf.int64, [None, LENGTH])
    vectors = [pooled(table, ids[:, at]) for at, table in enumerate(tables[:2])]
    update = optimizer().minimize(loss_of(vectors, label), var_list=[table.variable for table in tables[:2]])
    weighted = pooled(tables[0], ids[:, 0], weights=weights, is_train=False)
    by_hand = pooled(tables[1], fed, is_train=False)
    both = [pooled(table, ids[:, at], is_train=False) for at, table in enumerate(tables[:2])]
    alone = pooled(tables[0], ids[:, 2], is_train=False)
    ends = [tf.negative(weighted), tf.negative(by_hand), tf.concat(both, 1), tf.concat([alone] + both, 1),
            tf.negative(alone)]
    run.modify()
    if run.is_modified:
        assert [counts(end.op) for end in ends] == [
            {FIND: [1]}, {FIND: [1]}, {FIND_MANY: [2]}, {FIND: [1], FIND_MANY: [2]}, {FIND: [1]}]
    sess = run.begin(source)
    run.step(sess, [vectors, update])
    run.step(sess, ends[2:])
    run.step(sess, ends[0], {weights: np.ones([6, LENGTH])})
    run.step(sess, ends[1], {fed: np.full([2, LENGTH], 13)})


@support.run_by(cases.alike, moves=2, use_dynamic=True)
def test_lookups_that_wait_for_an_update_read_what_it_wrote(run):
    source, ids, label = batches(True, features=2)
    tables = tables_of(run, 2)
    vectors = [pooled(table, ids[:, at]) for at, table in enumerate(tables)]
    update = optimizer().minimize(loss_of(vectors, label), var_list=[table.variable for table in tables])
    with tf.control_dependencies([update]):
        after = [pooled(table, ids[:, at], is_train=False) for at, table in enumerate(tables)]
        passed = tf.identity(ids)
    later = [pooled(table, passed[:, at], is_train=False) for at, table in enumerate(tables)]
    whole = tf.concat(after + later, 1)
    sess = run.begin(source)
    for values in iter(lambda: run.step(sess, [vectors, whole, update]), None):
        width = values[1].shape[1] // 2
        support.assert_same_bits(values[1][:, :width], values[1][:, width:])
        assert not np.allclose(values[1][:, :width], np.concatenate(values[0], 1))
    run.contents(sess)


@pytest.mark.parametrize("place", ["cond", "loop"])
@support.run_by(cases.alike, moves=2, use_dynamic=True)
def test_lookups_in_branches_and_loops_have_ops_of_their_own(run, place):
    source, ids, label = batches(True, features=2)
    tables = tables_of(run, 2)
    vectors = [pooled(table, ids[:, at]) for at, table in enumerate(tables)]

    def total():
        return tf.add_n([tf.reduce_sum(pooled(table, ids[:, at], is_train=False))
                           for at, table in enumerate(tables)])

    if place == "cond":
        inside = tf.cond(tf.reduce_sum(label) > 3.0, total, lambda: tf.constant(-1.0))
    else:
        inside = tf.while_loop(lambda at, x: at < 3, lambda at, x: (at + 1, x + total()), [0, 0.0])[1]
    update = optimizer().minimize(loss_of(vectors, label), var_list=[table.variable for table in tables])
    run.modify()
    if run.is_modified:
        assert counts(update) == {EMBED_MANY: [2]} and counts(inside.op) == {FIND: [1, 1]}
    sess = run.begin(source)
    run.epoch(sess, [vectors, update])
    run.start(sess, source)
    run.epoch(sess, inside)


def test_empty_batches_and_bags_and_fed_ids():
    """Batches of no bags and of bags without ids, and ids that are fed in the place of the batch's."""
    lengths = [(4, 3), (0, 3), (5, 0), (1, 1)]

    def script(run):
        random = np.random.RandomState(0)
        batches = [random.randint(-1, 9, (2,) + shape) for shape in lengths]
        data = tf.data.Dataset.from_generator(lambda: iter(batches), tf.int64, [2, None, None]).map(
            lambda both: (both[0], both[1]))
        source = cases.initializable(data)
        ids = source.get_next()
        tables = tables_of(run, 2)
        vectors = [pooled(table, one, "mean") for table, one in zip(tables, ids)]
        others = [pooled(table, one, is_train=False) for table, one in zip(tables, ids)]
        whole = tf.concat(others, 1)
        update = optimizer().minimize(loss_of(vectors, 0.5), var_list=[table.variable for table in tables])
        run.modify()
        if run.is_modified:
            assert counts(update) == {EMBED_MANY: [2]} and counts(whole.op) == {FIND_MANY: [2]}
        sess = run.begin(source)
        run.step(sess, [vectors, update], {ids[1]: [[3, 3], [100, -1], [5, 6], [7, 7]]})
        run.step(sess, whole, {ids[0]: np.zeros([0, 2]), ids[1]: np.full([0, 2], 3)})
        run.step(sess, [vectors, update])
        run.step(sess, [vectors, update])
        run.contents(sess)
        run.start(sess, source)
        run.epoch(sess, [vectors, update])
        run.start(sess, source)
        run.finish(sess, whole)

    cases.alike(script, moves=4, use_dynamic=True)


@pytest.mark.parametrize("wrong", [[0, 3, 2, 6], [0, 2, 4, 5], [1, 2, 3, 6]], ids=["falls", "ends early", "starts late"])
@pytest.mark.parametrize("form", [cases.STEP, AHEAD])
def test_wrong_row_splits_of_one_table_change_no_row_of_any(mx, dynamic, form, wrong):
    run = cases.Run(form)
    good = [0, 0, 4, 6]
    splits = np.array([[good, good], [good, wrong], [good, good]], np.int64)
    ids = np.arange(36).reshape(3, 2, 6) % 7
    source = cases.initializable(tf.data.Dataset.from_tensor_slices((ids, splits)))
    values, ends = source.get_next()
    tables = [run.table("t%d" % at) for at in range(2)]
    bags = [tf.RaggedTensor.from_row_splits(values[at], ends[at], validate=False) for at in range(2)]
    vectors = [pooled(table, one) for table, one in zip(tables, bags)]
    update = optimizer().minimize(loss_of(vectors, 0.5), var_list=[table.variable for table in tables])
    run.modify()
    if run.is_modified:
        assert counts(update) == {EMBED_MANY: [2]}
    sess = run.session()
    for table in tables:
        run.raw(table).assign(sess, np.arange(7), np.random.RandomState(1).randn(7, 4))
    run.start(sess, source)
    sess.run(update)
    before = [run.raw(table).rows(sess) for table in tables]
    with pytest.raises(tf.errors.InvalidArgumentError, match="row_splits|ends"):
        sess.run(update)
    for table, rows in zip(tables, before):
        support.assert_same_tables(run.raw(table).rows(sess), rows)
    sess.run(update)
    assert any(not np.array_equal(run.raw(tables[0]).rows(sess)[key], row) for key, row in before[0].items())
    run.close()


@support.run_by(cases.alike, "tmp_path", moves=4, use_dynamic=True)
def test_a_restore_between_steps_and_a_second_session_read_the_rows_of_the_checkpoint(run):
    source, ids, label = batches(True, features=2)
    tables = tables_of(run, 2)
    vectors = [pooled(table, ids[:, at]) for at, table in enumerate(tables)]
    others = [pooled(table, ids[:, at], is_train=False) for at, table in enumerate(tables)]
    whole = tf.concat(others, 1)
    update = optimizer().minimize(loss_of(vectors, label), var_list=[table.variable for table in tables])
    saver = tf.compat.v1.train.Saver()
    sess = run.begin(source)
    run.step(sess, [vectors, update])
    path = saver.save(sess, run.directory + "/model")
    run.step(sess, [vectors, update])
    saver.restore(sess, path)
    run.step(sess, whole)
    run.step(sess, [vectors, update])
    run.contents(sess)
    other = run.session()
    saver.restore(other, path)
    run.start(other, source)
    run.step(other, whole)
    run.step(sess, [vectors, update])
    run.contents(other)
    run.contents(sess)


@support.run_by(cases.alike, moves=8, use_dynamic=True)
def test_a_graph_that_is_modified_twice_is_the_same_as_once(run, caplog):
    """Groups of evaluation whose ids have moved do not move again."""
    source, ids, label = batches(True, features=2)
    tables = tables_of(run, 2)
    doubled = [ids[:, at] * 2 for at in range(2)]
    vectors = sparse_lookup_pooled_many(tables, doubled)
    others = sparse_lookup_pooled_many(tables, doubled, is_train=False)
    others += [tf.reshape(rows, [-1, LENGTH * dim]) for rows, dim in zip(
        sparse_lookup_many(tables, doubled, is_train=False, modify_graph=True), (4, 16))]
    others.append(pooled(tables[0], doubled[0], "mean", is_train=False))
    others.append(pooled(tables[1], doubled[1], "mean", is_train=False))
    update = optimizer().minimize(loss_of(vectors, label), var_list=[table.variable for table in tables])
    whole = tf.concat(others, 1)
    run.modify()
    if run.is_modified:
        plan = run.plan
        run.modify()
        assert run.plan is plan and "was modified before" in caplog.text
    sess = run.begin(source)
    run.epoch(sess, [vectors, update])
    run.start(sess, source)
    run.epoch(sess, whole)
