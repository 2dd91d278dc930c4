"""Pooled lookups in the forward pass and in updates, beside embeddings that TensorFlow adds up."""

import numpy as np
import pytest

import support
from optimizer_cases import ONE_OF_EACH, ids_of
from pooled_cases import batch_of, lookup, make_table, pooled, unfused
from test_fused_updates import needed

COMBINERS = ["sum", "mean", "sqrtn"]


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=ids_of(ONE_OF_EACH))
def test_sums_of_dense_ids_have_the_bits_of_the_unfused_model_over_several_steps(graph, session, dynamic, case):
    tf = support.tf()
    ids = tf.compat.v1.placeholder(tf.int64, [None, 7])
    tables = [make_table("pooled"), make_table("unfused")]
    vectors = [pooled(tables[0], ids), tf.reduce_sum(lookup(tables[1], ids), 1)]
    trains = []
    for table, vector in zip(tables, vectors):
        place = tf.cast(tf.reshape(tf.range(tf.size(vector)), tf.shape(vector)), tf.float32)
        loss = tf.reduce_sum(tf.sin(vector + place) * tf.exp(place % 17.0 - 8.0))
        gradient = tf.gradients(loss, table.variable)[0]
        trains.append(case.ours(tf.constant(0.1 * case.lr)).apply_gradients([(gradient, table.variable)]))
    types = needed(trains[0])
    assert [name for name in types if name.endswith("Pooled") and "Apply" in name]
    assert not {"MxRecReduce", "MxRecReducePooled", "MxRecEmbed"} & set(types)
    raws = [support.Raw.of(table) for table in tables]
    sess = session()
    sess.run(tf.compat.v1.global_variables_initializer())
    start = np.random.RandomState(4).randn(40, 5).astype(np.float32)
    for raw in raws:
        raw.assign(sess, np.arange(40), start)
    random = np.random.RandomState(5)
    for bags in (4, 1, 0, 300, 30):
        batch = batch_of(random, bags, 7)
        ours, theirs = sess.run(vectors, {ids: batch})
        support.assert_same_bits(ours, theirs)
        for train in trains:
            sess.run(train, {ids: batch})
        support.assert_same_tables(*[raw.rows(sess) for raw in raws])
