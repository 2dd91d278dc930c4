"""Bags of ids that the input pipeline computes: where they end is computed there as well, and the bits stay."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from fused_cases import needed as types_of_all, optimizer
from modify_cases import AHEAD
from test_fused_updates import needed
from test_pooled_together import pooled
from mx_rec.core.embedding import safe_embedding_lookup_sparse
from mx_rec.util.initialize import get_initializer

# Sparse ids of so many rows; some rows and a whole batch have none.
ROWS = (4, 1, 0, 6, 3, 5)


def safe(table, ids, weights=None, **arguments):
    return safe_embedding_lookup_sparse(table, ids, weights, **arguments)


def batches():
    """Parts of SparseTensors with weights, row lengths of the same ids, and labels."""
    random = np.random.RandomState(2)
    for rows in ROWS:
        used = random.rand(rows, 4) < 0.6
        used[rows // 2:rows // 2 + 1] = False
        values = np.where(random.rand(used.sum()) < 0.2, -5, random.randint(0, 30, used.sum()))
        yield (np.argwhere(used).reshape(-1, 2), values, np.array([rows, 4]),
               random.choice([-0.5, 0.0, 0.5, 2.0], used.sum()).astype(np.float32), used.sum(1))


def source_of():
    types = (tf.int64, tf.int64, tf.int64, tf.float32, tf.int64)
    shapes = ([None, 2], [None], [2], [None], [None])
    return cases.initializable(tf.data.Dataset.from_generator(batches, types, shapes))


def trained(run, make, moved, wanted, left=(), config=None):
    """Trains and evaluates lookups of two tables; `wanted` bag ops are left in the modified step, `left` others."""
    source = source_of()
    indices, values, shape, factors, lengths = source.get_next()
    ids, weights = tf.SparseTensor(indices, values, shape), tf.SparseTensor(indices, factors, shape)
    tables = [run.table("t%d" % at, dim=4 + 3 * at) for at in range(2)]
    vectors = make(tables, ids, weights, lengths, True)
    others = make(tables, ids, weights, lengths, False)
    loss = tf.add_n([tf.reduce_sum(tf.sin(one)) for one in vectors])
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    whole = tf.concat(others, 1)
    run.modify()
    if run.is_modified:
        assert [len(iterator.bags) for iterator in run.plan.iterators] == [moved], run.plan.text()
        for end in (update, whole.op):
            ops = needed(end)
            assert {kind for kind in ops if "Bag" in kind} == wanted[end is whole.op], sorted(ops)
            assert {"Where", "GatherV2"} & types_of_all(end) == set(left)
    sess = run.begin(source)
    run.epoch(sess, [vectors, update])
    run.start(sess, source)
    run.finish(sess, [whole, others])


FORMS = {
    "safe": (lambda tables, ids, weights, lengths, is_train: [
        safe(tables[0], ids, is_train=is_train), safe(tables[1], ids, combiner="sum", is_train=is_train)],
             5, [{"MxRecBagDivisors"}, set()], ()),
    "safe with a default id": (lambda tables, ids, weights, lengths, is_train: [
        safe(table, ids, combiner=combiner, default_id=7, is_train=is_train)
        for table, combiner in zip(tables, ("sqrtn", "sum"))], 5, [{"MxRecBagDivisors"}, set()], ()),
    "safe with weights": (lambda tables, ids, weights, lengths, is_train: [
        safe(table, ids, weights, is_train=is_train) for table in tables],
             4, [{"MxRecBagDivisors", "MxRecBagWeights"}] * 2, ("Where", "GatherV2")),
    "ragged": (lambda tables, ids, weights, lengths, is_train: [
        pooled(table, tf.RaggedTensor.from_row_lengths(ids.values * 3, lengths, validate=False), combiner,
               is_train=is_train) for table, combiner in zip(tables, ("mean", "sum"))],
               5, [{"MxRecBagDivisors"}, set()], ()),
    "scaled rows": (lambda tables, ids, weights, lengths, is_train: [
        safe(table, ids, combiner="sum", is_train=is_train, max_norm=0.3 if is_train else None) for table in tables],
                    4, [set()] * 2, ()),
    "with admission": (lambda tables, ids, weights, lengths, is_train: [
        safe(table, ids, is_train=is_train, access_and_evict_config=dict(access_threshold=2) if is_train else None)
        for table in tables], 8, [set()] * 2, ()),
}


@pytest.mark.parametrize("name", sorted(FORMS))
def test_bags_move_with_their_ids_and_the_bits_stay(name):
    make, moved, wanted, left = FORMS[name]
    cases.alike(lambda run: trained(run, make, moved, wanted, left), moves=4, use_dynamic=True)


@support.run_by(cases.alike, moves=2, use_dynamic=True)
def test_ids_that_are_ready_made_can_be_fed_with_their_bags(run):
    source = source_of()
    indices, values, shape, _, lengths = source.get_next()
    ids = tf.SparseTensor(indices, values, shape)
    tables = [run.table("t%d" % at) for at in range(2)]
    vectors = [pooled(table, ids, "mean") for table in tables]
    loss = tf.add_n([tf.reduce_sum(tf.sin(one)) for one in vectors])
    update = optimizer().minimize(loss, var_list=[table.variable for table in tables])
    sess = run.begin(source)
    run.step(sess, [vectors, lengths, update])
    fed = tf.compat.v1.SparseTensorValue([[0, 0], [2, 0], [2, 1]], [5, 6, 7], [3, 2])
    run.step(sess, [vectors, lengths, update], {ids: fed})
    run.step(sess, [vectors, lengths, update])
    run.contents(sess)


def test_what_moved_bags_are_computed_from_cannot_be_fed(graph, dynamic):
    run = cases.Run(AHEAD)
    source = source_of()
    indices, values, shape, _, _ = source.get_next()
    vectors = safe(run.table("t"), tf.SparseTensor(indices, values, shape))
    sess = run.begin(source)
    for tensor, value in ((indices, np.zeros([0, 2])), (values, []), (shape, [1, 1])):
        with pytest.raises(ValueError, match="may not be fed"):
            sess.run(vectors, {tensor: value})
    run.close()


@pytest.mark.parametrize("is_train", [True, False])
def test_wrong_bags_in_the_pipeline_are_an_error_of_their_step_and_the_next_one_goes_on(graph, dynamic, is_train):
    run = cases.Run(AHEAD)
    good = [[0, 0], [1, 0], [1, 1]]
    data = np.array([good, [[1, 0], [0, 0], [1, 1]], good])
    source = cases.initializable(tf.data.Dataset.from_tensor_slices((data, np.array([[1, 2, 3]] * 3))))
    indices, values = source.get_next()
    table = run.table("t")
    vectors = pooled(table, tf.SparseTensor(indices, values * 2, [2, 2]), is_train=is_train)
    run.modify()
    assert [len(iterator.bags) for iterator in run.plan.iterators] == [1]
    sess = run.begin(source)
    sess.run(vectors)
    size = run.raw(table).size(sess)
    with pytest.raises(tf.errors.InvalidArgumentError, match="MxRecSparseBagEnds"):
        sess.run(vectors)
    assert run.raw(table).size(sess) == size == (3 if is_train else 0)
    assert sess.run(vectors).shape == (2, 4)
    run.close()


def test_a_graph_whose_bags_moved_trains_the_same_where_it_is_imported(graph, session, dynamic, tmp_path):
    run = cases.Run(AHEAD)
    source = source_of()
    indices, values, shape, _, _ = source.get_next()
    table = run.table("t")
    vectors = tf.identity(safe(table, tf.SparseTensor(indices, values, shape)), name="vectors")
    update = optimizer().minimize(tf.reduce_sum(tf.sin(vectors)), var_list=[table.variable])
    tf.group(update, name="update")
    saver = tf.compat.v1.train.Saver()
    sess = run.begin(source)
    path = saver.save(sess, str(tmp_path / "model"))
    expected = [sess.run(["vectors:0", "update"])[0] for _ in ROWS]
    initializer = get_initializer(True).name
    run.close()
    tf.compat.v1.reset_default_graph()
    saver = tf.compat.v1.train.import_meta_graph(path + ".meta")
    sess = support.restored(session(), saver, path)
    sess.run(initializer)
    for value in expected:
        support.assert_same_bits(sess.run(["vectors:0", "update"])[0], value)
