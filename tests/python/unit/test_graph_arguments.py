"""The functions and hooks of mx_rec.graph refuse what they document."""

import pytest
import tensorflow as tf

from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph.acg_push_ops import ACGPushOpsToDatasetHook
from mx_rec.graph.slicers import LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook
from mx_rec.util.initialize import get_initializer, get_target_batch

FUNCTIONS = [
    ("modify_graph_and_start_emb_cache", {"full_graph": 1}, "full_graph"),
    ("modify_graph_and_start_emb_cache", {"full_graph": "graph"}, "full_graph"),
    ("modify_graph_and_start_emb_cache", {"dump_graph": 1}, "type of 'dump_graph' is not bool"),
    ("modify_graph_and_start_emb_cache", {"dump_graph": None}, "type of 'dump_graph' is not bool"),
    ("run", {"full_graph": 1}, "full_graph"),
    ("run", {"dump_graph": "yes"}, "type of 'dump_graph' is not bool"),
    ("GraphModifierHook", {"dump_graph": 1}, "type of 'dump_graph' is not bool"),
    ("GraphModifierHook", {"modify_graph": 0}, "type of 'modify_graph' is not bool"),
    ("GraphModifierHook", {"modify_graph": None}, "type of 'modify_graph' is not bool"),
    ("ACGPushOpsToDatasetHook", {"dump_graph": "no"}, "type of 'dump_graph' is not bool"),
    ("LookupSubgraphSlicerHook", {"op_types": "Mul"}, "type of 'op_types' is not list"),
    ("LookupSubgraphSlicerHook", {"op_types": ("Mul",)}, "type of 'op_types' is not list"),
    ("LookupSubgraphSlicerHook", {"op_types": None}, "type of 'op_types' is not list"),
    ("LookupSubgraphSlicerHook", {"op_types": []}, "'op_types' length is less than 1"),
    ("LookupSubgraphSlicerHook", {"op_types": ["Mul", 1]}, "type of 'op_types' is not str"),
    ("LookupSubgraphSlicerHook", {"op_types": [""]}, "'op_types' length is less than 1"),
    ("do_merge_lookup", {"is_train": 1}, "type of 'is_train' is not bool"),
    ("do_merge_lookup", {"is_train": None}, "type of 'is_train' is not bool"),
]


@pytest.mark.parametrize("name, arguments, message", FUNCTIONS)
def test_a_wrong_argument_is_a_value_error(dynamic, name, arguments, message):
    import mx_rec.graph

    with pytest.raises(ValueError) as caught:
        getattr(mx_rec.graph, name)(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("name, arguments", [
    ("GraphModifierHook", {}),
    ("GraphModifierHook", {"dump_graph": True, "modify_graph": False}),
    ("ACGPushOpsToDatasetHook", {}),
    ("LookupSubgraphSlicerHook", {"op_types": ["StringToHashBucketFast"]}),
    ("OrphanLookupKeySlicerHook", {}),
])
def test_hooks_are_session_run_hooks(name, arguments):
    import mx_rec.graph

    hook = getattr(mx_rec.graph, name)(**arguments)
    assert isinstance(hook, tf.compat.v1.train.SessionRunHook)


def test_all_that_scripts_import_is_there():
    import mx_rec.graph
    from mx_rec.graph.merge_lookup import do_merge_lookup
    from mx_rec.graph.modifier import GraphModifierHook, modify_graph_and_start_emb_cache

    for one in (ACGPushOpsToDatasetHook, do_merge_lookup, GraphModifierHook, modify_graph_and_start_emb_cache,
                LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook):
        assert getattr(mx_rec.graph, one.__name__) is one


@pytest.mark.parametrize("name", ["modify_graph_and_start_emb_cache", "run", "do_merge_lookup"])
def test_init_comes_first(graph, name):
    import mx_rec.graph

    with pytest.raises(EnvironmentError):
        getattr(mx_rec.graph, name)()


def test_the_hook_wants_init_and_a_table(mx):
    from mx_rec.graph import GraphModifierHook

    with pytest.raises(EnvironmentError):
        GraphModifierHook().begin()
    mx()
    with pytest.raises(RuntimeError, match="create_table"):
        GraphModifierHook().begin()


def test_do_merge_lookup_refuses_tables_without_gradients(dynamic):
    from mx_rec.graph import do_merge_lookup

    do_merge_lookup()
    table = create_table(key_dtype=tf.int64, dim=2, name="fixed", device_vocabulary_size=10,
                         emb_initializer=tf.compat.v1.zeros_initializer())
    sparse_lookup(table, tf.constant([1], tf.int64), is_grad=False, modify_graph=True)
    with pytest.raises(RuntimeError, match="No gradients provided for any variable.*fixed"):
        do_merge_lookup()
    do_merge_lookup(is_train=False)
    sparse_lookup(table, tf.constant([1], tf.int64), modify_graph=True)
    do_merge_lookup()


@pytest.mark.parametrize("arguments, message", [
    ({"channel_id": 2}, "'channel_id' is bigger than 1"),
    ({"channel_id": -1}, "'channel_id' is less than 0"),
    ({"channel_id": True}, "type of 'channel_id' is not int"),
    ({"max_train_steps": -2}, "'max_train_steps' is less than -1"),
    ({"max_eval_steps": 2 ** 31}, "'max_eval_steps' is bigger than"),
    ({"max_eval_steps": 1.0}, "type of 'max_eval_steps' is not int"),
])
def test_eos_map_checks_its_numbers(graph, arguments, message):
    import mx_rec  # noqa: F401, adds the method

    given = dict({"channel_id": 0}, **arguments)
    with pytest.raises(ValueError) as caught:
        tf.data.Dataset.range(3).eos_map(None, **given)
    assert message in str(caught.value)


@pytest.mark.parametrize("channel, train, evaluation, expected", [
    (0, -1, -1, 5), (0, 0, 3, 0), (0, 2, 3, 2), (1, 2, 3, 3), (1, 2, -1, 5), (0, 9, 1, 5)])
def test_eos_map_takes_the_number_of_its_channel(graph, session, channel, train, evaluation, expected):
    import mx_rec  # noqa: F401

    data = tf.data.Dataset.range(5).eos_map(None, channel, train, evaluation)
    value = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    sess, seen = session(), []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            seen.append(sess.run(value))
    assert seen == list(range(expected))


@pytest.mark.parametrize("mode", ["yes", None, 2])
def test_initializer_and_batch_want_a_bool(dynamic, mode):
    for function in (get_initializer, get_target_batch):
        with pytest.raises(ValueError, match="is_training"):
            function(mode)
