"""NPURunConfig takes what the vendor's takes: checks it, names what has no effect, ignores it."""

import copy
import inspect

import pytest
import tensorflow as tf

from tf_adapter import (DumpConfig, DynamicInputConfig, ExperimentalConfig, GraphMemoryOptimizeConfig, MemoryConfig,
                        NPURunConfig, ProfilingConfig)
from tf_adapter import _checks, config as config_module

PARAMETERS = inspect.signature(NPURunConfig.__init__).parameters


def sample(name):
    """(A value other than the default, a wrong one) for a setting that has no effect."""
    kind = config_module._IGNORED[name]
    if kind is _checks.BOOL:
        return not PARAMETERS[name].default, 1
    if kind is _checks.TEXT:
        return "other", 5
    if kind is _checks.TEXT_OR_INTEGER:
        return "28", 1.5
    if kind in (_checks.NATURAL, _checks.INTEGER):
        return (0 if name == "graph_run_mode" else 1), "1"
    made = kind("ids:-1", "1;2", 0) if kind is DynamicInputConfig else kind()
    return made, {}


def test_defaults_name_nothing(caplog):
    config = NPURunConfig()
    assert isinstance(config, tf.estimator.RunConfig)
    assert (config.iterations_per_loop, config.save_checkpoints_steps, config.save_checkpoints_secs) == (1, 100, None)
    assert (config.save_summary_steps, config.keep_checkpoint_max, config.log_step_count_steps) == (0, 5, 100)
    assert "tf_adapter" not in caplog.text


@pytest.mark.parametrize("name", sorted(config_module._IGNORED))
def test_a_setting_for_npus_is_accepted_named_once_and_kept(name, caplog):
    value, _ = sample(name)
    config = NPURunConfig(**{name: value})
    lines = [one.getMessage() for one in caplog.records if "without effect" in one.getMessage()]
    assert len(lines) == 1 and lines[0].endswith(": " + name)
    assert config.npu_settings[name] is value
    assert copy.deepcopy(config).replace(model_dir="elsewhere").npu_settings.keys() == config.npu_settings.keys()


@pytest.mark.parametrize("name", sorted(config_module._IGNORED))
def test_a_setting_of_a_wrong_type_is_refused_by_name(name):
    with pytest.raises(ValueError, match="^{} should be".format(name)):
        NPURunConfig(**{name: sample(name)[1]})
    if PARAMETERS[name].default is not None:
        with pytest.raises(ValueError, match="^{} should be".format(name)):
            NPURunConfig(**{name: None})


def test_every_parameter_is_of_one_of_the_three_kinds():
    own = set(inspect.signature(tf.estimator.RunConfig.__init__).parameters)
    assert own < set(PARAMETERS)
    assert set(PARAMETERS) - own == set(config_module._IGNORED) | {"iterations_per_loop", "distribute"}


def test_many_settings_are_one_line(caplog):
    NPURunConfig(precision_mode="allow_mix_precision", op_precision_mode="a.ini", hcom_parallel=False)
    lines = [one.getMessage() for one in caplog.records if "without effect" in one.getMessage()]
    assert len(lines) == 1 and lines[0].endswith("hcom_parallel, op_precision_mode, precision_mode")


def test_the_arguments_of_run_config_reach_it(tmp_path):
    session = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=3)
    given = dict(model_dir=str(tmp_path), tf_random_seed=3, save_summary_steps=4, save_checkpoints_secs=50,
                 session_config=session, keep_checkpoint_max=6, keep_checkpoint_every_n_hours=7, log_step_count_steps=8,
                 protocol="grpc", experimental_max_worker_delay_secs=9, session_creation_timeout_secs=10,
                 device_fn=lambda op: None, train_distribute=None, eval_distribute=None)
    config = NPURunConfig(**given)
    assert {name: getattr(config, name if "distribute" not in name else "_" + name) for name in given} == given
    assert config.save_checkpoints_steps is None
    assert NPURunConfig(model_dir=tmp_path).model_dir == str(tmp_path)


def test_the_first_arguments_may_be_given_by_position():
    config = NPURunConfig(2, None, "directory", 5, 6, 20)
    assert (config.iterations_per_loop, config.model_dir, config.tf_random_seed) == (2, "directory", 5)
    assert (config.save_summary_steps, config.save_checkpoints_steps) == (6, 20)


@pytest.mark.parametrize("given", [
    {"iterations_per_loop": 0}, {"iterations_per_loop": True}, {"iterations_per_loop": 1.0},
    {"iterations_per_loop": None}, {"model_dir": 5}, {"tf_random_seed": "1"}, {"save_summary_steps": "1"},
    {"save_checkpoints_steps": "1"}, {"save_checkpoints_secs": "1"}, {"session_config": {}},
    {"keep_checkpoint_max": "1"}, {"keep_checkpoint_every_n_hours": "1"}, {"log_step_count_steps": 0},
    {"graph_run_mode": 2}, {"session_creation_timeout_secs": "1"}, {"protocol": "carrier pigeon"}, {"device_fn": 1}])
def test_wrong_arguments_are_refused_by_name(given):
    with pytest.raises(ValueError, match=list(given)[0].split("_fn")[0]):
        NPURunConfig(**given)


def test_arguments_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="iterations_per_loop should be 1 with mix_compile_mode"):
        NPURunConfig(iterations_per_loop=2, mix_compile_mode=True)
    with pytest.raises(NotImplementedError, match="train_distribute"):
        NPURunConfig(distribute=object())
    with pytest.raises(ValueError, match="save_checkpoints"):
        NPURunConfig(save_checkpoints_steps=5, save_checkpoints_secs=5)
    with pytest.raises(TypeError, match="presicion_mode"):
        NPURunConfig(presicion_mode="allow_mix_precision")


@pytest.mark.parametrize("make, name", [
    (lambda: DumpConfig(enable_dump=1), "enable_dump"),
    (lambda: DumpConfig(dump_step=5), "dump_step"),
    (lambda: ProfilingConfig(profiling_options=1), "profiling_options"),
    (lambda: MemoryConfig(static_memory_policy="2"), "static_memory_policy"),
    (lambda: GraphMemoryOptimizeConfig(recompute="yes"), "recompute"),
    (lambda: ExperimentalConfig(graph_memory_optimize_config=1), "graph_memory_optimize_config"),
    (lambda: DynamicInputConfig(1, "1", 0), "input_shape")])
def test_the_parts_of_a_configuration_check_their_types(make, name):
    with pytest.raises(ValueError, match=name):
        make()
