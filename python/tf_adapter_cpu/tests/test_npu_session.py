"""Scripts without an Estimator: sessions with the device's settings, optimizers, ranks."""

import os
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from tf_adapter import (NPUBroadcastGlobalVariablesHook, NPUCheckpointSaverHook, NPUDistributedOptimizer, NPUOptimizer,
                        NPUOutputTensorHook, RewriterConfig, hccl_ops, npu_config_proto, npu_ops, npu_plugin, npu_scope,
                        util)

tf1 = tf.compat.v1


def vendor_config():
    """A configuration as scripts make it."""
    config = tf1.ConfigProto(allow_soft_placement=False, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
    custom_op.name = "NpuOptimizer"
    custom_op.parameter_map["use_off_line"].b = True
    custom_op.parameter_map["iterations_per_loop"].i = 1
    custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")
    return config


def stock_config():
    return tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def losses(optimizer, config, steps=6, is_sparse=False):
    """The losses of a small model that is trained in a fresh graph."""
    with tf.Graph().as_default():
        weights = tf1.get_variable("w", initializer=np.arange(1, 9, dtype=np.float32).reshape(4, 2))
        rows = tf.gather(weights, [0, 2, 2]) if is_sparse else weights
        loss = tf.reduce_mean(tf.square(tf.matmul(rows, [[1.0], [2.0]]) - 1))
        train = optimizer().minimize(loss)
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            return [session.run([loss, train])[0] for _ in range(steps)]


def adam():
    return tf1.train.AdamOptimizer(0.1)


def test_a_session_configured_for_npus_runs_on_stock_tensorflow_with_the_same_numbers():
    assert losses(adam, vendor_config()) == losses(adam, stock_config())


def test_the_switches_that_scripts_set_beside_it_run_too():
    config = vendor_config()
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
    np.testing.assert_allclose(losses(adam, config), losses(adam, stock_config()), rtol=1e-6)


def test_npu_config_proto_changes_placement_only():
    given = vendor_config()
    assert npu_config_proto(given) is given
    expected = vendor_config()
    expected.allow_soft_placement = True
    assert given == expected
    assert npu_config_proto() == npu_config_proto(5) == tf1.ConfigProto(allow_soft_placement=True)
    run = tf.estimator.RunConfig(tf_random_seed=3)
    assert tf_adapter.npu_run_config_init(run) is run
    assert isinstance(tf_adapter.npu_run_config_init(), tf.estimator.RunConfig)
    options = tf1.GraphOptions(build_cost_model=3)
    assert tf_adapter.npu_graph_options(options) is options
    assert tf_adapter.npu_optimizer_options() == tf1.OptimizerOptions()


def test_resources_are_opened_and_shut_down():
    value = tf.constant(3)
    session, shutdown = tf_adapter.init_resource(vendor_config())
    assert session.run(value) == 3
    tf_adapter.shutdown_resource(session, shutdown)
    tf_adapter.close_session(session)
    with pytest.raises(RuntimeError, match="closed"):
        session.run(value)


@pytest.mark.parametrize("wrap", [
    NPUDistributedOptimizer, tf_adapter.npu_tf_optimizer, tf_adapter.npu_distributed_optimizer_wrapper, NPUOptimizer,
    lambda one: NPUOptimizer(one, is_distributed=True)])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_wrapped_optimizers_give_the_numbers_of_the_one_inside(wrap, is_sparse):
    wrapped = losses(lambda: wrap(adam()), stock_config(), is_sparse=is_sparse)
    assert wrapped == losses(adam, stock_config(), is_sparse=is_sparse)


def test_a_wrapped_optimizer_shows_the_slots_of_the_one_inside():
    variable = tf1.get_variable("v", [2])
    inner = adam()
    outer = NPUDistributedOptimizer(inner)
    outer.minimize(tf.reduce_sum(variable))
    assert outer.get_slot_names() == ["m", "v"] and outer.variables() == inner.variables()
    assert outer.get_slot(variable, "m") is inner.get_slot(variable, "m")
    assert outer.get_name() == "DistributedAdamOptimizer"


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("check", [False, True])
def test_a_loss_scale_of_a_power_of_two_changes_nothing(is_sparse, check):
    from tf_adapter import FixedLossScaleManager, NPULossScaleOptimizer

    def sgd():
        return tf1.train.GradientDescentOptimizer(0.01)

    expected = losses(sgd, stock_config(), is_sparse=is_sparse)
    for make in (lambda: NPULossScaleOptimizer(sgd(), FixedLossScaleManager(1024, check)),
                 lambda: NPUOptimizer(sgd(), FixedLossScaleManager(1024, check), is_loss_scale=True)):
        assert losses(make, stock_config(), is_sparse=is_sparse) == expected


def test_a_step_whose_gradients_overflow_is_left_out_and_lowers_the_scale():
    from tf_adapter import ExponentialUpdateLossScaleManager, NPULossScaleOptimizer

    manager = ExponentialUpdateLossScaleManager(64, 100, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
    variable, unused = tf1.get_variable("v", initializer=[1.0, 2.0]), tf1.get_variable("unused", [1])
    slope = tf1.placeholder(tf.float32, [])
    optimizer = NPULossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), manager)
    step = tf1.train.get_or_create_global_step()
    train = optimizer.minimize(tf.reduce_sum(variable) * slope, var_list=[variable, unused], global_step=step)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        session.run(train, {slope: np.inf})
        assert session.run([variable, step])[0].tolist() == [1.0, 2.0]
        assert session.run([manager.get_loss_scale(), step]) == [32.0, 0]
        session.run(train, {slope: 1})
        assert session.run(variable).tolist() == [0.0, 1.0] and session.run(step) == 1


def test_a_loss_scale_needs_its_manager():
    with pytest.raises(ValueError, match="loss_scale_manager"):
        NPUOptimizer(adam(), is_loss_scale=True)


def test_collectives_of_one_rank_return_what_they_are_given():
    value = tf.constant([[1.5, -2.0]])
    results = [hccl_ops.allreduce(value, "sum"), hccl_ops.allgather(value, 1), hccl_ops.reduce(value, "max", 0),
               hccl_ops.reduce_scatter(value, "min", 1), hccl_ops.broadcast([value], 0)[0],
               tf_adapter.allreduce(value), tf_adapter.npu_allreduce(value)]
    with tf1.Session() as session:
        assert all(one.tolist() == [[1.5, -2.0]] for one in session.run(results))
    for call in (lambda: hccl_ops.allreduce(value, "mean"), lambda: hccl_ops.allgather(value, 8),
                 lambda: hccl_ops.broadcast([value], 1)):
        with pytest.raises(ValueError):
            call()


def test_ranks_are_those_of_the_cluster(monkeypatch):
    assert (tf_adapter.get_rank_size(), tf_adapter.get_rank_id()) == (1, 0)
    assert (tf_adapter.get_local_rank_size(), tf_adapter.get_local_rank_id()) == (1, 0)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, '
                                    '"task": {"type": "worker", "index": 1}}')
    assert (tf_adapter.get_rank_size(), tf_adapter.get_rank_id()) == (3, 2)
    assert (tf_adapter.get_npu_rank_size(), tf_adapter.get_npu_rank_id()) == (3, 2)


@pytest.mark.parametrize("variable, value", [("RANK_SIZE", "8"), (
    "TF_CONFIG", '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}}')])
@pytest.mark.parametrize("call", [
    lambda: hccl_ops.allreduce(tf.constant(1.0), "sum"), lambda: NPUDistributedOptimizer(adam()),
    lambda: tf_adapter.npu_distributed_optimizer_wrapper(adam()), lambda: NPUOptimizer(adam(), is_distributed=True)])
def test_several_ranks_are_refused_instead_of_training_apart(monkeypatch, variable, value, call):
    monkeypatch.setenv(variable, value)
    with pytest.raises(NotImplementedError, match="ranks"):
        call()


def test_a_job_of_many_processes_is_refused_when_it_would_broadcast(monkeypatch):
    hook = NPUBroadcastGlobalVariablesHook(0, 0)
    hook.begin()
    monkeypatch.setenv("RANK_SIZE", "8")
    with pytest.raises(NotImplementedError, match="RANK_SIZE is 8"):
        hook.begin()
    monkeypatch.setenv("RANK_SIZE", "many")
    with pytest.raises(ValueError, match="RANK_SIZE"):
        hook.begin()


def test_loops_of_one_step_are_the_step():
    train = tf.no_op()
    assert util.set_iteration_per_loop(None, train) is train


def test_scopes_and_the_plugin_change_nothing():
    before = len(tf1.get_default_graph().get_operations())
    for scope in (npu_scope.without_npu_compile_scope(), npu_scope.keep_dtype_scope(), npu_scope.npu_stage_scope(1),
                  npu_scope.npu_variable_scope(), npu_scope.npu_mem_type_scope(),
                  npu_scope.npu_weight_prefetch_scope(), npu_scope.op_specified_engine_scope("a", "b")):
        with scope:
            assert set(tf.constant(1).op.node_def.attr) == {"dtype", "value"}
    assert len(tf1.get_default_graph().get_operations()) == before + 7
    npu_plugin.npu_resource_init(precision_mode="allow_mix_precision")
    npu_plugin.npu_resource_shutdown()
    npu_plugin.npu_close()
    assert npu_plugin.is_inf_nan_enabled()


def test_the_overflow_mode_is_named_if_it_is_another(caplog):
    npu_plugin.set_device_sat_mode(1)
    assert "without effect" not in caplog.text
    npu_plugin.set_device_sat_mode(0)
    assert "set_device_sat_mode" in caplog.text
    with pytest.raises(ValueError, match="mode"):
        npu_plugin.set_device_sat_mode(7)


def test_dropout_is_that_of_tensorflow():
    value = tf.ones([100])
    with tf1.Session() as session:
        ours, theirs = session.run([npu_ops.dropout(value, 0.75, seed=4), tf1.nn.dropout(value, rate=0.25, seed=4)])
    assert ours.tolist() == theirs.tolist() and 0 < (ours == 0).sum() < 60


def test_checkpoints_are_saved_by_the_hook(tmp_path):
    step = tf1.train.get_or_create_global_step()
    train = step.assign_add(1)
    hook = NPUCheckpointSaverHook(str(tmp_path), save_steps=2)
    with tf1.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            session.run(train)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-5")


def test_outputs_are_read_after_their_dependencies_and_the_rest_is_handed_over_at_the_end():
    counter = tf1.get_variable("counter", initializer=0, use_resource=True)
    added = counter.assign_add(1)
    seen = []
    hook = NPUOutputTensorHook({"now": counter}, added, seen.append, 0)
    with tf1.train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(3):
            session.run(tf1.get_default_graph().get_tensor_by_name("counter/Initializer/initial_value:0"))
    assert seen == [[{"now": 1}, {"now": 2}, {"now": 3}]]
    with pytest.raises(ValueError, match="output_fn"):
        NPUOutputTensorHook({"now": counter})
    with pytest.raises(ValueError, match="output_every_n_steps"):
        NPUOutputTensorHook({"now": counter}, None, print, -1)


@pytest.mark.parametrize("name", [
    "KerasDistributeOptimizer", "NPUBroadcastGlobalVariablesCallback", "NPUStrategy", "create_group", "destroy_group",
    "model_to_npu_estimator", "npu_callbacks_append", "npu_clear_session", "npu_keras_optimizer",
    "set_keras_session_npu_config"])
def test_what_is_not_possible_says_so_when_it_is_called(name):
    with pytest.raises(NotImplementedError, match="tf_adapter." + name):
        getattr(tf_adapter, name)()
    for call in (lambda: hccl_ops.send(1, 0, 1), lambda: hccl_ops.receive([1], tf.float32, 0, 1)):
        with pytest.raises(NotImplementedError, match="rank"):
            call()


def test_a_star_import_brings_every_name():
    names = {}
    exec("from tf_adapter import *", names)
    assert set(tf_adapter.__all__) <= set(names)
    assert sorted(tf_adapter.__all__) == tf_adapter.__all__
    assert not hasattr(tf_adapter, "NPUEstimater")


def test_the_page_lists_every_name():
    room = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(room, "..", "..", "docs", "tf_adapter.md")) as file:
        rows = [line for line in file if line.startswith("| `")]
    listed = set(re.findall(r"`(\w+)[.`]", "".join(row.split("|")[1] for row in rows)))
    assert set(tf_adapter.__all__) <= listed
