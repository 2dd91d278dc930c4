"""FeatureSpec, get_asc_insert_func and start_asc_pipeline refuse what they document."""

import numpy as np
import pytest
import tensorflow as tf

from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.state.graph_state import graph_state


def spec_of(*args, **kwargs):
    from mx_rec.core.asc.helper import FeatureSpec

    return FeatureSpec(*args, **kwargs)


def insert_func(*args, **kwargs):
    return get_asc_insert_func(*args, **kwargs)


@pytest.mark.parametrize("changes, message", [
    ({"name": ""}, "'name' length is less than 1"),
    ({"name": "n" * 256}, "'name' length is bigger than 255"),
    ({"name": 1}, "type of 'name' is not str"),
    ({"name": "-"}, "has no letter"),
    ({"table_name": ""}, "'table_name' length is less than 1"),
    ({"table_name": 1}, "type of 'table_name' is not str"),
    ({"index_key": ""}, "'index_key' length is less than 1"),
    ({"index_key": -1}, "'index_key' is less than 0"),
    ({"index_key": 256}, "'index_key' is bigger than 255"),
    ({"index_key": 1.0}, "Invalid parameter type of para 'index_key'"),
    ({"index_key": True}, "Invalid parameter type of para 'index_key'"),
    ({"access_threshold": -2}, "'access_threshold' is less than -1"),
    ({"access_threshold": 2 ** 31}, "'access_threshold' is bigger than"),
    ({"eviction_threshold": -2}, "'eviction_threshold' is less than -1"),
    ({"eviction_threshold": 0}, "needs an 'access_threshold'"),
    ({"eviction_threshold": 9, "access_threshold": -1}, "access_threshold=1 admits every key"),
    ({"is_timestamp": 1}, "type of 'is_timestamp' is not bool"),
    ({"batch_size": 0}, "'batch_size' is less than 1"),
    ({"faae_coefficient": 0}, "'faae_coefficient' is less than 1"),
    ({"faae_coefficient": None}, "type of 'faae_coefficient' is not int"),
])
def test_a_wrong_argument_of_a_feature_is_a_value_error(changes, message):
    arguments = dict(name="ids")
    arguments.update(changes)
    with pytest.raises(ValueError) as caught:
        spec_of(**arguments)
    assert message in str(caught.value)


def test_a_feature_has_defaults_and_a_unique_name():
    from mx_rec.core.asc.feature_spec import FeatureSpec

    one, two = FeatureSpec("user.ids", feat_count=3), spec_of("user.ids", table_name="user table")
    assert one.name != two.name and one.name.startswith("user.ids_")
    assert (one.table_name, one.index_key) == ("userids", "user.ids")
    assert two.table_name == "usertable"
    assert spec_of("a", index_key=0).index_key == 0


@pytest.mark.parametrize("arguments, kind", [
    ({}, RuntimeError),
    ({"tgt_key_specs": []}, ValueError),
    ({"tgt_key_specs": ["ids"]}, ValueError),
    ({"tgt_key_specs": "ids"}, ValueError),
    ({"args_index_list": [0]}, ValueError),
    ({"table_names": ["t"]}, ValueError),
    ({"args_index_list": [], "table_names": []}, ValueError),
    ({"args_index_list": [0, 1], "table_names": ["t"]}, ValueError),
    ({"args_index_list": ["0"], "table_names": ["t"]}, ValueError),
    ({"args_index_list": [256], "table_names": ["t"]}, ValueError),
    ({"args_index_list": [0], "table_names": [0]}, ValueError),
    ({"args_index_list": [0], "table_names": ["t"], "is_training": 1}, ValueError),
    ({"args_index_list": [0], "table_names": ["t"], "dump_graph": None}, ValueError),
])
def test_wrong_arguments_of_the_insert_function_are_refused(dynamic, arguments, kind):
    with pytest.raises(kind):
        insert_func(**arguments)


def test_both_kinds_of_description_at_once_are_refused(dynamic):
    with pytest.raises(RuntimeError, match="not both"):
        insert_func(spec_of("ids"), args_index_list=[0], table_names=["t"])


def ids(shape=(4, 2), dtype=tf.int64):
    return tf.zeros(shape, dtype)


def test_a_dict_gets_the_entry_after_its_last_key(dynamic, session):
    batch = {"b": ids(), "a": ids([4]), "label": tf.zeros([4])}
    result = insert_func([spec_of("a"), spec_of("b"), spec_of("missing")])(batch)
    assert sorted(result) == ["a", "b", "label", "label_read_emb_key"]
    assert all(result[key] is batch[key] for key in batch)
    extra = result["label_read_emb_key"]
    assert extra.dtype == tf.int32 and session().run(extra) == 12


@pytest.mark.parametrize("make", [lambda a, b: (a, b), lambda a, b: ((a, b),), lambda a, b: ([a, b],)],
                         ids=["components", "tuple", "list"])
def test_a_tuple_or_list_gets_one_more_element(dynamic, session, make):
    first, second = ids(), tf.zeros([4])
    result = insert_func(args_index_list=[0], table_names=["t"])(*make(first, second))
    assert result[0] is first and result[1] is second and len(result) == 3
    assert session().run(result[2]) == 8


def test_a_dict_inside_a_tuple_gets_the_entry(dynamic):
    features, label = {"ids": ids()}, tf.zeros([4])
    result = insert_func(spec_of("ids"))(features, label)
    assert len(result) == 2 and result[1] is label
    assert sorted(result[0]) == ["ids", "ids_read_emb_key"]


def test_entries_that_are_no_ids_are_refused(dynamic):
    with pytest.raises(ValueError, match="should be of an integer or float type"):
        insert_func(spec_of("ids"))({"ids": tf.constant(["a"])})
    sparse = tf.SparseTensor(indices=[[0, 0]], values=np.int64([1]), dense_shape=[1, 1])
    with pytest.raises(ValueError, match="tf.sparse.to_dense"):
        insert_func(spec_of("ids"))({"ids": sparse})


def test_static_shape_refuses_scalar_ids(mx):
    mx(use_dynamic=False)
    with pytest.raises(ValueError, match="cannot be a scalar"):
        insert_func(spec_of("ids"))({"ids": ids([])})


def test_the_timestamp_is_a_scalar_and_there_is_one_for_training(dynamic):
    first, second = spec_of("t", is_timestamp=True), spec_of("t", is_timestamp=True)
    with pytest.raises(ValueError, match="should be a scalar"):
        insert_func(first)({"t": ids([2])})
    insert_func(first)({"t": ids([])})
    insert_func(first)({"t": ids([])})
    with pytest.raises(EnvironmentError, match="there is a training timestamp already"):
        insert_func(second)({"t": ids([])})
    insert_func(second, is_training=False)({"t": ids([])})


def test_dump_graph_writes_the_traced_function(dynamic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = tf.data.Dataset.from_tensors({"ids": np.int64([1, 2])})
    dataset.map(insert_func(spec_of("ids"), dump_graph=True))
    content = tf.compat.v1.GraphDef.FromString((tmp_path / "export_graph" / "pipeline_graph.pb").read_bytes())
    assert any(node.name.startswith("mx_rec_insert_") for node in content.node)


class TestLookup:
    """sparse_lookup with a FeatureSpec."""

    def lookup(self, spec, **arguments):
        table = graph_state().tables.get("t") or create_table(
            tf.int64, 4, "t", tf.compat.v1.zeros_initializer(), device_vocabulary_size=100)
        return sparse_lookup(table, spec, **arguments)

    def test_of_another_table_is_refused(self, dynamic):
        spec = spec_of("ids", table_name="other")
        batch = insert_func(spec)({"ids": ids()})
        with pytest.raises(ValueError, match="is for the table 'other'"):
            self.lookup(spec, batch=batch)

    def test_without_batch_in_dynamic_shape_is_refused(self, dynamic):
        spec = spec_of("ids", table_name="t")
        insert_func(spec)({"ids": ids()})
        with pytest.raises(RuntimeError, match="needs batch= in dynamic shape"):
            self.lookup(spec)

    def test_that_no_insert_function_of_the_mode_has_read_is_refused(self, dynamic):
        spec = spec_of("ids", table_name="t")
        with pytest.raises(RuntimeError, match="was not read by an insert function"):
            self.lookup(spec, batch={"ids": ids()})
        batch = insert_func(spec, is_training=False)({"ids": ids()})
        with pytest.raises(RuntimeError, match="by one of the other mode"):
            self.lookup(spec, batch=batch)
        self.lookup(spec, batch=batch, is_train=False)

    def test_whose_key_the_batch_lacks_is_a_key_error(self, dynamic):
        spec = spec_of("ids", table_name="t")
        insert_func(spec)({"ids": ids()})
        with pytest.raises(KeyError, match="it has"):
            self.lookup(spec, batch={"idz": ids()})
        with pytest.raises(KeyError, match="it has"):
            self.lookup(spec, batch=({"idz": ids()}, ids()))

    def test_again_in_one_mode_returns_the_first_result(self, dynamic):
        spec = spec_of("ids", table_name="t")
        batch = insert_func(spec)({"ids": ids()})
        first = self.lookup(spec, batch=batch)
        assert self.lookup([spec], batch=batch) is first
        insert_func(spec, is_training=False)({"ids": ids()})
        assert self.lookup(spec, batch=batch, is_train=False) is not first

    def test_without_batch_in_static_shape_says_why_it_finds_nothing(self, mx):
        mx(use_dynamic=False)
        spec = spec_of("ids", table_name="t")
        dataset = tf.data.Dataset.from_tensors({"ids": np.int64([1, 2])}).map(insert_func(spec))
        with pytest.raises(RuntimeError, match="no iterator"):
            self.lookup(spec, send_count=9)
        changed = tf.compat.v1.data.make_initializable_iterator(dataset.map(lambda batch: (batch["ids"], 1)))
        changed.get_next()
        with pytest.raises(RuntimeError, match="changes its batches"):
            self.lookup(spec, send_count=9)

    def test_of_a_batch_that_is_yielded_twice_needs_batch(self, mx):
        mx(use_dynamic=False)
        spec = spec_of("ids", table_name="t")
        dataset = tf.data.Dataset.from_tensors({"ids": np.int64([1, 2])}).map(insert_func(spec))
        iterator = tf.compat.v1.data.make_one_shot_iterator(dataset)
        iterator.get_next()
        second = iterator.get_next()
        with pytest.raises(RuntimeError, match="several places"):
            self.lookup(spec, send_count=9)
        self.lookup(spec, send_count=9, batch=second)


def test_the_pipeline_needs_init_and_a_table(graph):
    with pytest.raises(EnvironmentError, match="Please init"):
        start_asc_pipeline()


def test_the_pipeline_needs_a_table(dynamic):
    with pytest.raises(RuntimeError, match="table_info_list is empty!"):
        start_asc_pipeline()


@pytest.mark.parametrize("is_dp, is_grad, message", [(True, True, "is_dp"), (False, False, "is_grad=False")])
def test_padding_keys_must_be_able_to_mean_something(dynamic, is_dp, is_grad, message):
    table = create_table(tf.int64, 4, "t", tf.compat.v1.zeros_initializer(), is_dp=is_dp, padding_keys=1,
                         padding_keys_mask=True, padding_keys_len=2)
    sparse_lookup(table, ids([2]), modify_graph=True, is_grad=is_grad)
    with pytest.raises(RuntimeError, match=message):
        start_asc_pipeline()
