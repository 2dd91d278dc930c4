"""An Estimator's life: rounds of training and evaluation, resuming, being killed, errors, neighbours in the process."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases as cases
import preloaded
import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph import GraphModifierHook
from mx_rec.optimizers.lazy_adam import create_hash_optimizer


def train_and_evaluate(case, max_steps, eval_steps):
    """Runs train_and_evaluate; returns (final metrics, steps of the rounds, a metric by round)."""
    train = tf.estimator.TrainSpec(case.input_fn(True, repeat=None), max_steps=max_steps, hooks=case.hooks())
    evaluate = tf.estimator.EvalSpec(case.input_fn(False), steps=eval_steps, hooks=case.hooks(), start_delay_secs=0,
                                     throttle_secs=0)
    metrics, _ = tf.estimator.train_and_evaluate(case.estimator, train, evaluate)
    return (metrics,) + cases.summary_values(case.directory + "/eval", "error")


@pytest.mark.long
@pytest.mark.parametrize("eval_steps", [None, 2])
def test_train_and_evaluate_takes_turns_for_three_rounds_and_goes_on_later(mx, tmp_path, eval_steps):
    mx(train_steps=10, eval_steps=eval_steps or -1, save_steps=10)
    results = {}
    forms = cases.FORMS if eval_steps is None else ("step", "ahead")
    for form in forms:
        case = cases.Case(form, tmp_path / form)
        results[form] = train_and_evaluate(case, 30, eval_steps)
        metrics, steps, errors = results[form]
        assert steps == [10, 20, 30] and metrics["global_step"] == 30
        assert errors[2] < errors[0] and errors[2] == metrics["error"]
        assert metrics == case.evaluate(steps=eval_steps)
    for form in forms[1:]:
        assert results[form] == results["step"], form
        cases.assert_same_checkpoints(str(tmp_path / form), str(tmp_path / "step"))
    if eval_steps is None:
        # What is trained is trained; more steps are more rounds.
        case = cases.Case("ahead", tmp_path / "ahead")
        assert train_and_evaluate(case, 30, eval_steps)[1] == [10, 20, 30]
        assert train_and_evaluate(case, 45, eval_steps)[1] == [10, 20, 30, 40, 45]


@pytest.mark.long
@pytest.mark.parametrize("form", ["ahead", "specs"])
def test_training_goes_on_from_the_directory_and_max_steps_counts_all_of_it(dynamic, tmp_path, form):
    """The parts end where the data end, so that the whole sees the same batches."""
    epoch = 6
    whole = cases.Case(form, tmp_path / "whole", save_checkpoints_steps=4, keep_checkpoint_max=2)
    expected = whole.train(max_steps=3 * epoch, repeat=3, make=same_epochs)
    parts = cases.Case(form, tmp_path / "parts", save_checkpoints_steps=4, keep_checkpoint_max=2)
    losses = parts.train(repeat=1, make=same_epochs)
    losses += parts.train(steps=epoch, repeat=None, make=same_epochs)
    again = cases.Case(form, tmp_path / "parts", save_checkpoints_steps=4, keep_checkpoint_max=2)
    losses += again.train(max_steps=3 * epoch, repeat=None, make=same_epochs)
    assert again.train(max_steps=3 * epoch) == []
    support.assert_same_bits(losses, expected, "losses")
    cases.assert_same_checkpoints(parts.directory, whole.directory)
    # keep_checkpoint_max is for variables and tables alike.
    assert cases.checkpoint_steps(whole.directory) == ([16, 18], [16, 18])
    assert cases.checkpoint_steps(parts.directory) == ([16, 18], [16, 18])


def same_epochs(data, repeat):
    """Batches of whole epochs: the last one of each is short."""
    return cases.dataset(data).repeat(repeat)


@pytest.mark.long
def test_max_steps_of_init_ends_the_training_input_and_no_other(mx, tmp_path):
    mx(max_steps=4)
    case = cases.Case("ahead", tmp_path)
    losses = case.train(repeat=None, steps=9)
    assert len(losses) == 4 and cases.latest_step(case.directory) == 4
    assert len(case.predict()["output"]) == len(cases.samples()[1])
    means = case.evaluate()["mean_user"]
    assert abs(means - np.mean(cases.samples()[0]["user"])) < 1e-3


@pytest.mark.long
def test_predictions_may_be_left_in_the_middle(dynamic, tmp_path):
    case = cases.Case("ahead", tmp_path)
    case.train(steps=6)
    expected = case.predict()["output"]
    for batches in (0, 1, 3):
        predictions = case.estimator.predict(case.input_fn(False, repeat=None), hooks=case.hooks(),
                                             yield_single_examples=False)
        for number in range(batches):
            output = next(predictions)["output"]
            support.assert_same_bits(output, expected[number * cases.BATCH:][:cases.BATCH])
        predictions.close()
    support.assert_same_bits(case.predict()["output"], expected)


KILLED = """
import os, signal, sys
import estimator_cases as cases
import support
from mx_rec.util.initialize import init
init()
tf = support.tf()

class Kill(tf.estimator.SessionRunHook):
    def after_run(self, run_context, run_values):
        step = int(run_context.session.run(tf.compat.v1.train.get_global_step(run_context.session.graph)))
        if step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

cases.Case(sys.argv[1], sys.argv[2]).train(max_steps=40, hooks=[Kill()])
"""


@pytest.mark.long
def test_a_killed_training_resumes_as_one_that_was_stopped_at_its_last_checkpoint(dynamic, tmp_path):
    killed, stopped = cases.Case("ahead", tmp_path / "killed"), cases.Case("step", tmp_path / "stopped")
    with pytest.raises(AssertionError, match="exit code -9"):
        preloaded.run_python(KILLED, killed.form, killed.directory, 17)
    assert cases.latest_step(killed.directory) == 10
    stopped.train(max_steps=10)
    cases.assert_same_checkpoints(killed.directory, stopped.directory)
    support.assert_same_bits(killed.train(max_steps=24), stopped.train(max_steps=24))
    cases.assert_same_checkpoints(killed.directory, stopped.directory)
    assert killed.evaluate() == stopped.evaluate()


def text_input(bad=None):
    """A dataset function for text ids: 12 batches, of which `bad` holds a user that is no number."""

    def make(data, repeat):
        features, labels = cases.samples(12 * cases.BATCH)
        user = features["user"].astype(str).astype("S")
        if bad is not None:
            user[bad * cases.BATCH + 3, 0] = b"no number"
        return tf.data.Dataset.from_tensor_slices((dict(features, user=user), labels)).batch(cases.BATCH)

    return make


class TextCase(cases.Case):
    """Users are text, parsed by the model: what the modification moves into the pipeline."""

    def model_fn(self, features, labels, mode, params):
        user = tf.strings.to_number(features["user"], tf.int64, name="parse_user")
        return super().model_fn(dict(features, user=user), labels, mode, params)


class TextInputCase(cases.Case):
    """Users are text, parsed by the input_fn."""

    def input_fn(self, is_training, data=None, repeat=1, make=cases.dataset):
        def parsed(*args):
            return make(*args).map(lambda features, labels: (
                dict(features, user=tf.strings.to_number(features["user"], tf.int64)), labels))

        return super().input_fn(is_training, data, repeat, parsed)


@pytest.mark.long
@pytest.mark.parametrize("kind, forms", [(TextCase, ("step", "ahead")), (TextInputCase, cases.FORMS)],
                         ids=["parsed in model_fn", "parsed in input_fn"])
def test_a_bad_record_fails_its_own_step_as_itself_and_training_goes_on_from_the_checkpoint(dynamic, tmp_path, kind, forms):
    for form in forms:
        case = kind(form, tmp_path / form, save_checkpoints_steps=2)
        losses = cases.Recorder("model_loss:0")
        with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
            case.train(make=text_input(bad=5), hooks=[losses.hook()])
        # The five batches before it were trained, however far ahead the pipeline had read.
        assert len(losses.values) == 5 and cases.latest_step(case.directory) == 4
        assert len(case.train(make=text_input(), max_steps=10)) == 6
        assert cases.latest_step(case.directory) == 10
        cases.assert_same_checkpoints(case.directory, str(tmp_path / "step"))


@pytest.mark.long
def test_a_full_table_fails_the_step_that_fills_it_with_its_name(dynamic, tmp_path):
    failed = {}
    for form in cases.FORMS:
        case = cases.Case(form, tmp_path / form, params={"capacity": 40}, save_checkpoints_steps=1)
        losses = cases.Recorder("model_loss:0")
        with pytest.raises(tf.errors.ResourceExhaustedError, match="item_table.*40|40.*item_table"):
            case.train(hooks=[losses.hook()])
        failed[form] = losses.values
        assert 1 < len(losses.values) and cases.latest_step(case.directory) == len(losses.values)
        larger = cases.Case(form, tmp_path / form)
        larger.train(max_steps=12)
        cases.assert_same_checkpoints(larger.directory, str(tmp_path / "step"))
    assert failed["ahead"] == failed["step"] and failed["specs"] == failed["step"]


STOCK = """
import json, os, sys
import numpy as np
import tensorflow as tf
how, directory = sys.argv[1:]
if how == "beside":
    import estimator_cases as cases
    from mx_rec.util.initialize import init
    init()
    ours = cases.Case("ahead", directory + "/ours")
    ours.train(steps=5)
random = np.random.RandomState(0)
features = {"x": random.randn(60, 3).astype(np.float32), "word": random.choice(["a", "b", "c", "d"], 60)}
labels = (features["x"][:, 0] > 0).astype(np.int32)
columns = [tf.feature_column.numeric_column("x", [3]), tf.feature_column.embedding_column(
    tf.feature_column.categorical_column_with_hash_bucket("word", 10), 4)]
config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
run = tf.estimator.RunConfig(tf_random_seed=5, session_config=config, save_checkpoints_steps=10, keep_checkpoint_max=2)
classifier = tf.estimator.DNNClassifier([8, 4], columns, directory + "/stock", config=run)
make = lambda: tf.data.Dataset.from_tensor_slices((features, labels)).repeat(4).batch(20)
metrics = classifier.train(make, max_steps=12).evaluate(make)
if how == "beside":
    before = ours.evaluate()
classifier.train(make, steps=7)
chances = [float(one["probabilities"][1]).hex() for one in classifier.predict(make)]
weights = {name: classifier.get_variable_value(name).tobytes().hex() for name in classifier.get_variable_names()}
files = sorted(name for name in os.listdir(classifier.model_dir) if "tfevents" not in name)
if how == "beside":
    assert ours.evaluate() == before and not [name for name in files if "sparse" in name]
    ours.train(steps=5)
print(json.dumps([sorted((name, float(value).hex()) for name, value in metrics.items()), chances, weights, files]))
"""


@pytest.mark.long
def test_a_dnn_classifier_in_the_same_process_gives_the_same_numbers(tmp_path):
    with ThreadPoolExecutor() as pool:
        alone, beside = (json.loads(out.strip().splitlines()[-1]) for out in pool.map(
            lambda how: preloaded.run_python(STOCK, how, str(tmp_path / how)), ["alone", "beside"]))
    assert len(alone[1]) == 240 and "global_step" in alone[2]
    for what, mine, theirs in zip(("metrics", "predictions", "weights", "files"), beside, alone):
        assert mine == theirs, what


def monitored(directory, kind, modify, steps, started=None):
    """Trains on a MonitoredTrainingSession; returns the losses, or what was trained until the data ended."""
    tf1 = tf.compat.v1
    tf1.reset_default_graph()
    (features, labels), ended = cases.samples(), []

    def generate():
        if started is not None:
            started.append(True)
        for place in range(len(labels)):
            yield features["user"][place], labels[place]

    data = tf.data.Dataset.from_generator(generate, (tf.int64, tf.float32), ([2], [])).batch(cases.BATCH).prefetch(1)
    scaffold = None
    if kind == "one_shot":
        batch = tf1.data.make_one_shot_iterator(data).get_next()
    else:
        iterator = tf1.data.make_initializable_iterator(data)
        batch = iterator.get_next()
        if kind == "collection":
            tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        elif kind == "scaffold":
            scaffold = tf1.train.Scaffold(local_init_op=tf.group(
                tf1.train.Scaffold.default_local_init_op(), iterator.initializer))
    table = support.make_table("user_table", 4, 1000, tf1.random_normal_initializer(stddev=0.3, seed=1))
    embedding = sparse_lookup(table, batch[0], modify_graph=True)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(embedding, axis=[1, 2]) - batch[1]))
    train = create_hash_optimizer(learning_rate=0.05).minimize(
        loss, global_step=tf1.train.get_or_create_global_step(), var_list=[table.variable])
    hooks = [tf1.train.StopAtStepHook(num_steps=steps)] if steps else []
    with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=str(directory), hooks=hooks + [GraphModifierHook()] * modify, save_checkpoint_steps=4,
            save_checkpoint_secs=None, save_summaries_steps=None, save_summaries_secs=None, scaffold=scaffold,
            log_step_count_steps=None) as sess:
        while not sess.should_stop():
            ended.append(sess.run([loss, train])[0])
    return ended


@pytest.mark.parametrize("kind", ["one_shot", "collection", "scaffold", "nobody"])
def test_a_monitored_session_with_the_hook_trains_as_without(dynamic, tmp_path, kind):
    """Whoever starts the iterator: itself, TensorFlow's collection, a Scaffold of the script, or the hook alone."""
    started = []
    expected = monitored(tmp_path / "step", "one_shot", False, None)
    expected += monitored(tmp_path / "step", "one_shot", False, 3)
    losses = monitored(tmp_path / "ahead", kind, True, None, started)
    assert len(losses) == 6 and len(started) == 1
    losses += monitored(tmp_path / "ahead", kind, True, 3, started)
    support.assert_same_bits(losses, expected)
    assert len(started) == 2 and cases.latest_step(str(tmp_path / "ahead")) == 9
    cases.assert_same_checkpoints(str(tmp_path / "ahead"), str(tmp_path / "step"))
