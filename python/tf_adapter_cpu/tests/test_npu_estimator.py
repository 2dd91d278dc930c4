"""NPUEstimator is tf.estimator's Estimator, whose training comes in whole loops."""

import glob

import numpy as np
import pytest
import tensorflow as tf

import small_model
from tf_adapter import (NPUEstimator, NPUEstimatorSpec, NPUOutputTensorHook, NPURunConfig,
                        npu_hooks_append)

SETTINGS = dict(tf_random_seed=7, save_checkpoints_steps=10, log_step_count_steps=None)


def npu(directory, model_fn=small_model.model_fn, **config):
    settings = dict(SETTINGS, session_config=small_model.session_config(),
                    precision_mode="allow_mix_precision", HCCL_algorithm="level0:pairwise")
    settings.update(config)
    return NPUEstimator(model_fn=model_fn, config=NPURunConfig(model_dir=str(directory), **settings))


def stock(directory):
    return tf.estimator.Estimator(small_model.model_fn, config=tf.estimator.RunConfig(
        model_dir=str(directory), session_config=small_model.session_config(), **SETTINGS))


def outputs(estimator):
    return np.array([one["output"] for one in estimator.predict(small_model.input_fn(1))])


def test_training_evaluation_and_prediction_are_those_of_tf_estimator_bit_for_bit(tmp_path):
    ours, theirs = npu(tmp_path / "ours", iterations_per_loop=5), stock(tmp_path / "theirs")
    assert isinstance(ours, tf.estimator.Estimator)
    for estimator in (ours, theirs):
        assert estimator.train(small_model.input_fn(), steps=25) is estimator
    assert small_model.variables(tmp_path / "ours") == small_model.variables(tmp_path / "theirs")
    assert ours.evaluate(small_model.input_fn(1)) == theirs.evaluate(small_model.input_fn(1))
    assert outputs(ours).tobytes() == outputs(theirs).tobytes()


def test_train_and_evaluate_is_that_of_tf_estimator(tmp_path):
    results = []
    for estimator in (npu(tmp_path / "ours", iterations_per_loop=10), stock(tmp_path / "theirs")):
        results.append(tf.estimator.train_and_evaluate(
            estimator, tf.estimator.TrainSpec(small_model.input_fn(), max_steps=30),
            tf.estimator.EvalSpec(small_model.input_fn(1), steps=None, start_delay_secs=0, throttle_secs=0)))
    assert results[0] == results[1] and results[0][0]["global_step"] == 30
    assert small_model.variables(tmp_path / "ours") == small_model.variables(tmp_path / "theirs")


class Steps(tf.estimator.SessionRunHook):
    """Notes the global step and the loss of each run."""

    def __init__(self):
        self.steps, self.losses = [], []

    def before_run(self, run_context):
        return tf.estimator.SessionRunArgs("model_loss:0")

    def after_run(self, run_context, run_values):
        self.steps.append(int(run_context.session.run(tf.compat.v1.train.get_global_step())))
        self.losses.append(run_values.results)


def test_hooks_see_the_global_step_advance_by_a_loop_and_the_last_loss_of_it(tmp_path):
    ours, theirs, saved = Steps(), Steps(), []

    class Listener(tf.estimator.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(int(global_step_value))

    npu(tmp_path / "ours", iterations_per_loop=5).train(
        small_model.input_fn(), [ours], steps=25, saving_listeners=[Listener()])
    npu(tmp_path / "theirs").train(small_model.input_fn(), [theirs], steps=25)
    assert ours.steps == [5, 10, 15, 20, 25] and theirs.steps == list(range(1, 26))
    assert ours.losses == theirs.losses[4::5]
    assert saved == [0, 10, 20, 25]


def test_the_end_of_the_input_within_a_loop_keeps_the_steps_before_it(tmp_path):
    hook = Steps()
    npu(tmp_path / "ours", iterations_per_loop=4).train(small_model.input_fn(1), [hook])
    stock(tmp_path / "theirs").train(small_model.input_fn(1))
    assert hook.steps == [4]
    assert small_model.variables(tmp_path / "ours") == small_model.variables(tmp_path / "theirs")


def test_a_training_op_may_be_a_tensor(tmp_path):
    def model_fn(features, labels, mode):
        spec = small_model.model(features, labels, mode)
        if mode == tf.estimator.ModeKeys.TRAIN:
            with tf.control_dependencies([spec.train_op]):
                return spec._replace(train_op=tf.identity(spec.loss))
        return spec

    npu(tmp_path / "ours", model_fn, iterations_per_loop=5).train(small_model.input_fn(), steps=10)
    stock(tmp_path / "theirs").train(small_model.input_fn(), steps=10)
    assert small_model.variables(tmp_path / "ours") == small_model.variables(tmp_path / "theirs")


def test_a_session_that_replaces_a_lost_one_loops_as_well(tmp_path):
    class Losing(Steps):
        def after_run(self, run_context, run_values):
            super().after_run(run_context, run_values)
            if len(self.steps) == 2:
                raise tf.errors.AbortedError(None, None, "lost")

    hook = Losing()
    npu(tmp_path, iterations_per_loop=5).train(small_model.input_fn(), [hook], steps=20)
    assert hook.steps == [5, 10, 15, 20]  # The checkpoint of step 10 was there.
    assert tf.train.load_variable(str(tmp_path), "global_step") == 20


@pytest.mark.parametrize("config", [None, tf.estimator.RunConfig()])
def test_a_plain_run_config_or_none_is_enough(tmp_path, config):
    estimator = NPUEstimator(small_model.model_fn, str(tmp_path), config)
    estimator.train(small_model.input_fn(), steps=3)
    assert estimator.evaluate(small_model.input_fn(1))["global_step"] == 3


def test_another_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match="config"):
        NPUEstimator(small_model.model_fn, str(tmp_path), {"iterations_per_loop": 1})


def test_params_reach_model_fn_and_input_fn_also_when_they_are_no_dict(tmp_path):
    class Params:
        scale = 3

    seen = []

    def model_fn(features, labels, mode, params, config):
        seen.append((params.scale, config.iterations_per_loop))
        return small_model.model(features, labels, mode)

    estimator = NPUEstimator(model_fn=model_fn, params=Params(), model_dir=str(tmp_path), config=NPURunConfig())
    estimator.train(small_model.input_fn(), steps=1)
    assert seen == [(3, 1)]


@pytest.mark.parametrize("steps, numbers", [
    (dict(steps=10), ("4", "10")), (dict(steps=3), ("4", "3")), (dict(max_steps=9), ("4", "9"))])
def test_a_number_of_steps_that_is_no_whole_number_of_loops_is_refused_before_training(tmp_path, steps, numbers):
    estimator = npu(tmp_path / "model", iterations_per_loop=4)
    with pytest.raises(ValueError, match="iterations_per_loop={} does not divide .* {} ".format(*numbers)):
        estimator.train(small_model.input_fn(), **steps)
    assert tf.train.latest_checkpoint(estimator.model_dir) is None
    assert not glob.glob(str(tmp_path / "model" / "*"))


def test_max_steps_counts_from_the_steps_done(tmp_path):
    estimator = npu(tmp_path, iterations_per_loop=4)
    npu(tmp_path).train(small_model.input_fn(), steps=6)
    with pytest.raises(ValueError, match="iterations_per_loop=4 .* 6 .*max_steps=12 minus the 6 steps done"):
        estimator.train(small_model.input_fn(), max_steps=12)
    estimator.train(small_model.input_fn(), max_steps=14)
    assert estimator.evaluate(small_model.input_fn(1))["global_step"] == 14
    estimator.train(small_model.input_fn(), max_steps=13)
    assert estimator.evaluate(small_model.input_fn(1))["global_step"] == 14


def test_train_and_evaluate_refuses_it_too(tmp_path):
    with pytest.raises(ValueError, match="iterations_per_loop=7 does not divide .* 30 "):
        tf.estimator.train_and_evaluate(
            npu(tmp_path, iterations_per_loop=7), tf.estimator.TrainSpec(small_model.input_fn(), max_steps=30),
            tf.estimator.EvalSpec(small_model.input_fn(1)))
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


def test_the_end_of_the_input_may_end_training_anywhere(tmp_path):
    estimator = npu(tmp_path, iterations_per_loop=4)
    estimator.train(small_model.input_fn(1))
    assert estimator.evaluate(small_model.input_fn(1))["global_step"] == 6


@pytest.mark.parametrize("steps, error", [
    (dict(steps=0), "steps > 0"), (dict(max_steps=-1), "max_steps > 0"), (dict(steps=4, max_steps=8), "both")])
def test_errors_of_the_base_class_stay_as_they_are(tmp_path, steps, error):
    with pytest.raises(ValueError, match=error):
        npu(tmp_path, iterations_per_loop=4).train(small_model.input_fn(), **steps)


def test_hooks_and_listeners_are_passed_on(tmp_path):
    saved, seen = [], []

    class Listener(tf.estimator.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            saved.append(global_step_value)

    hook = NPUOutputTensorHook(["model_loss:0"], output_fn=seen.append, output_every_n_steps=2)
    hooks = [hook]
    assert npu_hooks_append(hooks) is hooks and len(hooks) == 2
    npu(tmp_path).train(small_model.input_fn(), hooks, 5, saving_listeners=[Listener()])
    assert 5 in saved
    assert [len(one) for one in seen] == [2, 2, 1] and list(seen[0][0]) == ["model_loss:0"]


@pytest.mark.parametrize("given, count", [(None, 1), ((), 1), (("a", "b"), 3), ([], 1)])
def test_hooks_append_takes_what_scripts_give_and_drops_nothing(given, count):
    assert len(npu_hooks_append(given)) == count
    assert len(npu_hooks_append()) == 1


def test_settings_of_the_estimator_without_effect_are_named(tmp_path, caplog):
    config = tf.compat.v1.ConfigProto()
    added = config.graph_options.rewrite_options.custom_optimizers.add()
    added.name = "NpuOptimizer"
    added.parameter_map["use_off_line"].b = True
    run = NPURunConfig(model_dir=str(tmp_path), session_config=config)
    estimator = NPUEstimator(small_model.model_fn, config=run, job_start_file="job.json")
    assert "job_start_file" in caplog.text and "use_off_line" in caplog.text
    estimator.train(small_model.input_fn(), steps=2)
    with pytest.raises(ValueError, match="job_start_file"):
        NPUEstimator(small_model.model_fn, config=run, job_start_file=1)


def test_variables_are_warm_started(tmp_path):
    npu(tmp_path / "first").train(small_model.input_fn(), steps=20)
    warm = NPUEstimator(small_model.model_fn, str(tmp_path / "second"), NPURunConfig(),
                        warm_start_from=tf.estimator.WarmStartSettings(str(tmp_path / "first"), ".*kernel|.*bias"))
    started = NPUOutputTensorHook({"loss": "model_loss:0"}, output_fn=lambda values: None)
    warm.train(small_model.input_fn(), [started], steps=1)
    cold = npu(tmp_path / "third")
    cold.train(small_model.input_fn(), steps=1)
    assert warm.evaluate(small_model.input_fn(1))["loss"] < cold.evaluate(small_model.input_fn(1))["loss"] / 2


def counted(name):
    """A host_call that counts its steps in a variable, and whose tensors are given by keyword."""
    def function(step):
        with tf.control_dependencies([step]):
            return [tf.compat.v1.assign_add(tf.compat.v1.get_variable(name, initializer=0, trainable=False), 1)]

    return function, {"step": tf.convert_to_tensor(tf.compat.v1.train.get_global_step())}


def test_the_ops_of_a_host_call_run_with_every_step(tmp_path):
    def model_fn(features, labels, mode):
        return small_model.model(features, labels, mode, NPUEstimatorSpec, host_call=counted("calls"))

    npu(tmp_path, model_fn).train(small_model.input_fn(), steps=7)
    assert tf.train.load_variable(str(tmp_path), "calls") == 7


def test_summaries_of_a_host_call_are_written(tmp_path):
    from tensorflow.contrib import summary

    def function(step, loss):
        writer = summary.create_file_writer(str(tmp_path / "host"))
        with writer.as_default(), summary.always_record_summaries():
            summary.scalar("host_loss", loss, step=step)
            return summary.all_summary_ops()

    def model_fn(features, labels, mode):
        spec = small_model.model(features, labels, mode)
        step = tf.convert_to_tensor(tf.compat.v1.train.get_global_step())
        return NPUEstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op, host_call=(function, [step, spec.loss]))

    npu(tmp_path / "model", model_fn).train(small_model.input_fn(), steps=4)
    values = [value.tag for name in glob.glob(str(tmp_path / "host" / "*tfevents*"))
              for event in tf.compat.v1.train.summary_iterator(name) for value in event.summary.value]
    assert values == ["host_loss"] * 4


def two(a, b):
    return None


@pytest.mark.parametrize("host_call, error", [
    (two, ValueError), ((two,), ValueError), (("two", []), TypeError), ((two, 1), ValueError),
    ((two, [1]), RuntimeError), ((two, {"a": 1, "c": 2}), RuntimeError)])
def test_a_host_call_of_another_form_is_refused(host_call, error):
    with pytest.raises(error, match="host_call"):
        NPUEstimatorSpec(tf.estimator.ModeKeys.PREDICT, predictions=tf.constant(1), host_call=host_call)


def test_a_spec_is_an_estimator_spec(tmp_path):
    spec = NPUEstimatorSpec(tf.estimator.ModeKeys.PREDICT, predictions={"a": tf.constant(1)}, host_call=(two, [1, 2]))
    assert isinstance(spec, tf.estimator.EstimatorSpec) and list(spec.predictions) == ["a"]
