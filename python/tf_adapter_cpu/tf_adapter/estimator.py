"""NPUEstimator and NPUEstimatorSpec: tf.estimator's Estimator and EstimatorSpec."""

import inspect

import tensorflow as tf

from . import _checks, _loops
from .hooks import HostCallHook, LoopHook


class NPUEstimatorSpec(tf.estimator.EstimatorSpec):
    """An EstimatorSpec with a `host_call`.

    Args:
        mode: And those that follow, as for `tf.estimator.EstimatorSpec`.
        host_call: A pair of a function and its tensors, a list (positional) or a dict (by
            keyword). The function is called once, while the graph is built; the ops that it
            returns run with every step of training and evaluation, for instance summaries of
            `tf.contrib.summary`, whose writers are initialised and flushed.

    Raises:
        ValueError: If `host_call` is no pair, or its tensors are no list or dict.
        TypeError: If the function of `host_call` cannot be called.
        RuntimeError: If the function does not take as many tensors.
    """

    def __new__(cls, mode, predictions=None, loss=None, train_op=None, eval_metric_ops=None,
                export_outputs=None, training_chief_hooks=None, training_hooks=None,
                scaffold=None, evaluation_hooks=None, prediction_hooks=None, host_call=None):
        if host_call is not None:
            _check_host_call(host_call)
            if mode == tf.estimator.ModeKeys.TRAIN:
                training_hooks = _with_host_call(training_hooks, host_call)
            elif mode == tf.estimator.ModeKeys.EVAL:
                evaluation_hooks = _with_host_call(evaluation_hooks, host_call)
        return super().__new__(
            cls, mode=mode, predictions=predictions, loss=loss, train_op=train_op,
            eval_metric_ops=eval_metric_ops, export_outputs=export_outputs,
            training_chief_hooks=training_chief_hooks, training_hooks=training_hooks,
            scaffold=scaffold, evaluation_hooks=evaluation_hooks,
            prediction_hooks=prediction_hooks)


class NPUEstimator(tf.estimator.Estimator):
    """An Estimator whose steps of training come in whole loops.

    With `iterations_per_loop` of an NPURunConfig above 1, one run of the training op is so many
    steps, and hooks see the global step advance by so many. The numbers are those of single steps.

    Args:
        model_fn: As for `tf.estimator.Estimator`; it returns an EstimatorSpec or an
            NPUEstimatorSpec.
        model_dir: As there.
        config: An NPURunConfig, a RunConfig or None.
        params: As there.
        job_start_file: A str, without effect.
        warm_start_from: As there.

    Raises:
        ValueError: As there, or if `job_start_file` is no str.
    """

    def __init__(self, model_fn=None, model_dir=None, config=None, params=None, job_start_file="",
                 warm_start_from=None):
        _checks.check("job_start_file", job_start_file, _checks.TEXT, optional=True)
        super().__init__(model_fn=model_fn, model_dir=model_dir, config=config, params=params,
                         warm_start_from=warm_start_from)
        if job_start_file:
            _checks.log_ignored("NPUEstimator", ["job_start_file"])
        _checks.log_ignored("NPUEstimator, session_config", _optimizer_settings(
            self._config.session_config))

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        """Trains, as `tf.estimator.Estimator.train` does.

        Raises:
            ValueError: As there, or before anything is trained if `iterations_per_loop` of an
                NPURunConfig does not divide the number of steps to do: `steps`, or `max_steps`
                minus the steps done. With neither, the input ends training, and nothing is
                checked.
        """
        self._check_whole_loops(steps, max_steps)
        return super().train(input_fn, hooks=hooks, steps=steps, max_steps=max_steps,
                             saving_listeners=saving_listeners)

    def _call_model_fn(self, features, labels, mode, config):
        """Calls model_fn; the training op of what it returns does all steps of a loop."""
        spec = super()._call_model_fn(features, labels, mode, config)
        count = getattr(self._config, "iterations_per_loop", 1)
        if mode != tf.estimator.ModeKeys.TRAIN or count == 1:
            return spec
        loop = _loops.guarded(spec.train_op)
        hooks = (LoopHook(loop, count),) + tuple(spec.training_hooks)
        return spec._replace(train_op=loop.op, training_hooks=hooks)

    def _check_whole_loops(self, steps, max_steps):
        """Raises ValueError if the steps to do are no whole number of loops."""
        loop = getattr(self._config, "iterations_per_loop", 1)
        if loop == 1 or (steps is None) == (max_steps is None):
            return
        if steps is not None:
            count, how = steps, "steps={}".format(steps)
        else:
            done = _steps_done(self.model_dir)
            count = max(0, max_steps - done)
            how = "max_steps={}".format(max_steps)
            if done:
                how += " minus the {} steps done".format(done)
        if count > 0 and count % loop:
            raise ValueError(
                "iterations_per_loop={} does not divide the number of steps to train, {} ({}). "
                "Choose a divisor of {}, or a multiple of {} steps.".format(
                    loop, count, how, count, loop))

    def _assert_members_are_not_overridden(self):
        """Checks nothing: `train` is overridden on purpose, and calls that of the base class."""


def _steps_done(model_dir):
    """Returns the global step of the latest checkpoint, 0 if there is none."""
    latest = tf.train.latest_checkpoint(model_dir)
    if latest is None:
        return 0
    reader = tf.train.load_checkpoint(latest)
    name = tf.compat.v1.GraphKeys.GLOBAL_STEP
    return int(reader.get_tensor(name)) if reader.has_tensor(name) else 0


def _optimizer_settings(session_config):
    """Names of the settings that a session's configuration has for the device's optimizer."""
    if session_config is None:
        return []
    return sorted(
        name for optimizer in session_config.graph_options.rewrite_options.custom_optimizers
        if optimizer.name == "NpuOptimizer" for name in optimizer.parameter_map)


def _check_host_call(host_call):
    """Raises what NPUEstimatorSpec says."""
    if not isinstance(host_call, (tuple, list)) or len(host_call) != 2:
        raise ValueError("host_call should be a pair of a function and its tensors, but is "
                         "{!r}".format(host_call))
    function, tensors = host_call
    if not callable(function):
        raise TypeError("host_call[0] should be callable, but is {!r}".format(function))
    if not isinstance(tensors, (tuple, list, dict)):
        raise ValueError("host_call[1] should be a list, tuple or dict of tensors, but is "
                         "{!r}".format(tensors))
    arguments = [] if isinstance(tensors, dict) else tensors
    keywords = tensors if isinstance(tensors, dict) else {}
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        raise RuntimeError("the function of host_call does not take the {} tensors of "
                           "host_call[1]: {}".format(len(tensors), error)) from error


def _with_host_call(hooks, host_call):
    """Calls the function of a `host_call`; returns the hooks and one that runs what it returned."""
    function, tensors = host_call
    if isinstance(tensors, dict):
        result = function(**tensors)
    else:
        result = function(*tensors)
    return list(hooks or ()) + [HostCallHook(result)]
