"""Names, host ops and import paths that programs of the original use, apart from tables and optimizers."""

import os
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.constants import constants
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph import hooks
from mx_rec.optimizers.base import CustomizedOptimizer
from mx_rec.util import tf_version_adapter
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.ops import import_host_pipeline_ops
from mx_rec.util.tf_version_adapter import hccl_ops, npu_ops

# At the end, where an installed copy of the stand-in would be, too.
sys.path.append(os.path.join(support.PACKAGES, "tf_adapter_cpu"))


def test_ranks_are_reached_as_attributes_of_the_packages():
    import rec_sdk_common

    info = rec_sdk_common.communication.hccl.hccl_info
    assert (info.get_rank_id(), info.get_rank_size(), info.get_local_rank_size()) == (0, 1, 1)
    import mx_rec.util as util

    assert util.communication.hccl_ops.get_rank_size() == 1


def test_collective_ops_are_those_of_npu_bridge():
    from npu_bridge.hccl import hccl_ops as bridge
    from rec_sdk_common.util import tf_adapter

    assert hccl_ops is bridge and tf_adapter.hccl_ops is hccl_ops and tf_adapter.npu_ops is npu_ops
    assert callable(hccl_ops.allreduce) and callable(npu_ops.dropout)


def test_without_npu_bridge_the_names_can_be_imported_and_a_use_says_what_to_install():
    absent = tf_version_adapter._module("npu_bridge.no_such_module")
    with pytest.raises(ImportError, match="npu_bridge.no_such_module.allreduce.*mx-rec-tf-adapter"):
        absent.allreduce(1, "sum")


def test_hooks_have_a_path_of_their_own():
    from mx_rec import graph

    for name in hooks.__all__:
        assert getattr(hooks, name) is getattr(graph, name)


def test_every_name_of_an_op_library_means_the_plugin():
    for name in ("LIBASC_OPS_SO", "LIBREC_CPU_SO", "LIBREC_EOS_OPS_SO", "LIBREC_TF_REC_V1_CPU_SO"):
        assert import_host_pipeline_ops(getattr(constants, name)) is import_host_pipeline_ops()


def test_clear_channel_is_an_op_that_runs_and_names_a_wrong_channel(graph, session):
    ops = import_host_pipeline_ops()
    op = ops.clear_channel(1)
    assert isinstance(op, tf.Operation) and session().run(op) is None
    with pytest.raises(ValueError, match="channel_id"):
        ops.clear_channel(2)


def test_return_timestamp_tells_the_time_of_each_batch(graph, session):
    ops = import_host_pipeline_ops()
    dataset = tf.data.Dataset.range(3).map(lambda n: (n, ops.return_timestamp(tf.expand_dims(n, 0))))
    stamp = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()[1]
    assert stamp.dtype == tf.int64 and stamp.shape == []
    sess = session()
    before = int(time.time())
    first = sess.run(stamp)
    assert before <= first <= time.time()
    time.sleep(1.1)
    assert sess.run(stamp) > first
    with pytest.raises(ValueError, match="int64.*float32"):
        ops.return_timestamp(tf.constant(1.0))


@pytest.mark.parametrize("channel, train, evaluation, expected",
                         [(0, 2, 3, 2), (1, 2, 3, 3), (0, -1, 3, 5), (1, 1, -1, 5)])
def test_eos_dataset_ends_after_the_steps_of_its_channel(graph, session, channel, train, evaluation, expected):
    from tensorflow.python.data.ops import dataset_ops

    dataset = tf.data.Dataset.range(5)
    variant = import_host_pipeline_ops().eos_dataset(
        dataset._variant_tensor, channel, train, evaluation, output_types=[tf.int64], output_shapes=[[]])
    ended = dataset_ops._VariantDataset(variant, dataset.element_spec)
    batch = tf.compat.v1.data.make_one_shot_iterator(ended).get_next()
    sess = session()
    seen = []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            seen.append(sess.run(batch))
    assert seen == list(range(expected))


@pytest.mark.parametrize("name", ["read_emb_key_v2", "read_emb_key_v2_dynamic"])
def test_ops_that_feed_a_queue_say_what_to_do_instead(graph, name):
    with pytest.raises(NotImplementedError, match=name + ".*get_asc_insert_func"):
        getattr(import_host_pipeline_ops(), name)(tf.constant([1, 2], tf.int64), channel_id=0, splits=[2],
                                                  emb_name=["t"], timestamp=False)


def test_host_data_are_the_tables_of_the_present_session(dynamic, session, tmp_path):
    manager = ConfigInitializer.get_instance().hybrid_manager_config
    table = support.make_table("host_data", 4, 10, tf.compat.v1.random_normal_initializer(seed=3))
    keys = tf.compat.v1.placeholder(tf.int64, [None])
    made = sparse_lookup(table, keys, modify_graph=True)
    first = session()
    rows = first.run(made, {keys: [5, 6, 7]})
    manager.fetch_device_emb()
    directory = str(tmp_path / "sparse-model-3")
    manager.save_host_data(directory)
    assert (tmp_path / "sparse-model-3" / "host_data" / "key" / "slice.data").exists()
    first.run(made, {keys: [8]})
    manager.restore_host_data(directory)
    assert table.size() == 3
    np.testing.assert_array_equal(first.run(made, {keys: [5, 6, 7]}), rows)
    with pytest.raises(FileExistsError, match="sparse-model-4"):
        manager.restore_host_data(str(tmp_path / "sparse-model-4"))


def test_the_base_of_user_written_optimizers_counts_names(monkeypatch):
    monkeypatch.setattr(CustomizedOptimizer, "MAX_COUNTER_COUNT", 2)
    made = [CustomizedOptimizer() for _ in range(3)]
    for one in made[:2]:
        one._get_name("a_name_of_this_test")
    assert [one.unique_name for one in made[:2]] == ["a_name_of_this_test_0", "a_name_of_this_test_1"]
    assert made[0].base_name == "a_name_of_this_test" and made[0].slot_num == 0 and made[0].derivative == 1
    with pytest.raises(ValueError, match="a_name_of_this_test"):
        made[2]._get_name("a_name_of_this_test")
    with pytest.raises(NotImplementedError, match="get_slot_init_values"):
        made[0].get_slot_init_values()
