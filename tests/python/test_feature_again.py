"""A feature that is looked up again with other arguments has a lookup of its own, or is refused.

It was given the tensor of its first lookup, whatever the arguments were.
"""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.embedding import sparse_lookup


def one_feature(**arguments):
    """(table whose new rows are 3, feature of three ids, its batch for training, for evaluation)."""
    spec = FeatureSpec("ids", table_name="table", **arguments)
    data = tf.data.Dataset.from_tensors({"ids": np.array([1, 2, 1], np.int64)}).repeat()
    batches = [tf.compat.v1.data.make_one_shot_iterator(
        data.map(get_asc_insert_func([spec], is_training=mode))).get_next()
               for mode in (True, False)]
    table = support.make_table("table", 2, 10, 3.0)
    return (table, spec) + tuple(batches)


def lookup(table, spec, batch, **arguments):
    return sparse_lookup(table, spec, batch=batch, **arguments)


def test_another_is_grad_is_another_lookup(graph, session, dynamic):
    table, spec, batch, _ = one_feature()
    still = lookup(table, spec, batch, is_grad=False)
    moving = lookup(table, spec, batch)
    assert tf.gradients(tf.reduce_sum(still), table.variable) == [None]
    assert tf.gradients(tf.reduce_sum(moving), table.variable) != [None]
    assert lookup(table, spec, batch, is_grad=False) is still
    assert lookup(table, spec, batch) is moving
    assert table.is_grad and table.multi_lookup_times[True] == 2
    support.assert_same_bits(*session().run([still, moving]))


def test_other_default_rows_are_another_lookup(graph, session, dynamic):
    table, spec, _, batch = one_feature()

    def evaluate(default=None, **arguments):
        return lookup(table, spec, batch, is_train=False, serving_default_value=default,
                      **arguments)

    array, tensor = np.full([1, 2], 5.0, np.float32), tf.fill([1, 2], 7.0)
    zeros, fives, sevens = evaluate(), evaluate(array), evaluate(tensor)
    assert evaluate() is zeros and evaluate(is_grad=False) is zeros and evaluate(tensor) is sevens
    assert evaluate(array) is evaluate(array.copy()) is fives
    array[:] = 6.0
    sixes = evaluate(array)
    found = session().run([zeros, fives, sevens, sixes])
    assert [one.tolist() for one in found] == [[[number] * 2] * 3
                                               for number in (0.0, 5.0, 7.0, 6.0)]


def test_default_rows_without_effect_are_the_same_lookup(graph, dynamic):
    table, spec, batch, _ = one_feature()
    rows = np.ones([1, 2], np.float32)
    assert lookup(table, spec, batch) is lookup(table, spec, batch, serving_default_value=rows)


@pytest.mark.parametrize("change", ["is_grad", "serving_default_value", "send_count",
                                    "faae_coefficient"])
def test_a_feature_that_admission_counts_has_one_set_of_arguments(graph, mx, change):
    """Two lookups would count its ids twice."""
    mx(use_dynamic=False)
    table, spec, batch, evaluated = one_feature(access_threshold=2)
    first = lookup(table, spec, batch, send_count=5)
    changes = {"is_grad": False, "serving_default_value": np.ones([1, 2], np.float32),
               "send_count": 6}
    arguments = {"send_count": 5}
    if change in changes:
        arguments[change] = changes[change]
    else:
        spec.faae_coefficient = 2
    before = len(graph.get_operations())
    expected = "'ids_.*'table'.*another '{}'.*count".format(change)
    with pytest.raises(ValueError, match=expected):
        lookup(table, spec, batch, **arguments)
    assert len(graph.get_operations()) == before
    spec.faae_coefficient = 1
    assert lookup(table, spec, batch, send_count=5) is first
    assert lookup(table, spec, evaluated, is_train=False, **arguments) is not first


def test_another_limit_is_another_lookup(graph, session, mx):
    mx(use_dynamic=False)
    table, spec, batch, _ = one_feature()
    narrow, wide = [lookup(table, spec, batch, send_count=count) for count in (1, 2)]
    sess = session()
    assert sess.run(wide).tolist() == [[3.0, 3.0]] * 3
    with pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(narrow)


def test_other_thresholds_are_refused(graph, dynamic):
    table, spec, batch, _ = one_feature(access_threshold=2)
    lookup(table, spec, batch)
    spec.thresholds = (3, -1)
    with pytest.raises(ValueError, match="must be same in one table.*'table'"):
        lookup(table, spec, batch)


@pytest.mark.parametrize("is_v2", [False, True])
def test_branches_have_lookups_of_their_own(graph, session, dynamic, is_v2):
    """The second branch had the tensor of the first one, which has no value when it is taken."""
    if is_v2:
        tf.compat.v1.enable_control_flow_v2()
    try:
        table, spec, batch, _ = one_feature()
        flag = tf.compat.v1.placeholder(tf.bool, [])
        chosen = tf.cond(flag, lambda: lookup(table, spec, batch) * 2.0,
                         lambda: lookup(table, spec, batch) * 5.0)
        outside = lookup(table, spec, batch)
        inside = tf.cond(flag, lambda: lookup(table, spec, batch) * 2.0,
                         lambda: tf.zeros([3, 2]))
    finally:
        tf.compat.v1.disable_control_flow_v2()
    assert table.multi_lookup_times[True] == 3
    sess = session()
    for value, factor in ((True, 2.0), (False, 5.0)):
        found = sess.run([chosen, outside, inside], {flag: value})
        assert [one[0, 0] for one in found] == [3.0 * factor, 3.0, 6.0 if value else 0.0]
