"""An Estimator gives the same numbers modified, unmodified and with FeatureSpecs, and whatever its input_fn returns."""

import os

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases as cases
import support
from mx_rec.graph import LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook

STEPS = 23
INPUTS = ("dataset", "one_shot", "initializable")


def run(form, directory):
    """Trains, evaluates and predicts once; returns everything that can be compared."""
    case = cases.Case(form, directory, save_checkpoints_steps=4, keep_checkpoint_max=20)
    losses = case.train(steps=STEPS)
    other = cases.samples(40, seed=1, users=2 * cases.USERS)
    assert not set(np.unique(other[0]["user"])) <= set(np.unique(cases.samples()[0]["user"])), "unknown users wanted"
    return {"directory": case.directory, "losses": losses, "metrics": case.evaluate(other),
            "prediction": case.predict(other), "features": other[0]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The results of a form, made at its first use."""
    done = {}

    def run_once(form):
        if form not in done:
            with support.initialized():
                done[form] = run(form, tmp_path_factory.mktemp(form))
        return done[form]

    return run_once


def test_training_learns_and_prediction_returns_the_features_beside_the_output(runs):
    ahead = runs("ahead")
    assert np.mean(ahead["losses"][-5:]) < 0.5 * np.mean(ahead["losses"][:5])
    assert ahead["metrics"]["global_step"] == STEPS
    for name in ("user", "item", "price"):
        assert ahead["prediction"][name].tobytes() == ahead["features"][name].tobytes(), name


@pytest.mark.parametrize("form", ["ahead", "specs"])
def test_losses_metrics_and_predictions_are_those_of_the_unmodified_graph(runs, form):
    mine, theirs = runs(form), runs("step")
    assert len(theirs["losses"]) == STEPS
    support.assert_same_bits(mine["losses"], theirs["losses"], "losses")
    assert mine["metrics"] == theirs["metrics"]
    assert sorted(mine["prediction"]) == sorted(theirs["prediction"])
    for name, values in theirs["prediction"].items():
        assert mine["prediction"][name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("form", ["ahead", "specs"])
@pytest.mark.parametrize("step", [4, 12, STEPS])
def test_saved_tables_are_those_of_the_unmodified_graph_while_batches_wait_ahead(runs, form, step):
    """Also early, when waiting batches hold keys that no step has seen: these are in no checkpoint."""
    if step == 4:
        early, late = (len(cases.saved_tables(runs("step")["directory"], one)["item_table"]["embedding"])
                       for one in (step, STEPS))
        assert early < late, "all keys were there"
    cases.assert_same_checkpoints(runs(form)["directory"], runs("step")["directory"], step)


def test_the_hook_does_move_the_lookups(dynamic, tmp_path):
    """In the step the marked ops are gone from the way of the loss: else the other tests compare a thing with itself."""
    kinds = {}

    class Look(tf.estimator.SessionRunHook):
        def end(self, session):
            seen, waiting = set(), [session.graph.get_tensor_by_name("model_loss:0").op]
            while waiting:
                op = waiting.pop()
                if op not in seen:
                    seen.add(op)
                    waiting.extend(tensor.op for tensor in op.inputs)
            kinds[case.form] = {support.kind_of(op) for op in seen}

    for form in ("step", "ahead"):
        case = cases.Case(form, tmp_path / form)
        case.train(steps=2, hooks=[Look()])
    claims = {"MxRecIdOffset prepared", "MxRecIdOffset prepared of many"}
    lookups = {"MxRecIdOffset", "MxRecIdOffset of many"}
    assert lookups & kinds["step"] and not claims & kinds["step"]
    assert claims & kinds["ahead"] and not lookups & kinds["ahead"]


def returning(kind, input_fn):
    """The input_fn that returns what `kind` says, from one that returns a dataset."""

    def one_shot():
        return tf.compat.v1.data.make_one_shot_iterator(input_fn()).get_next()

    def initializable():
        tf1 = tf.compat.v1
        iterator = tf1.data.make_initializable_iterator(input_fn())
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()

    return {"dataset": input_fn, "one_shot": one_shot, "initializable": initializable}[kind]


@pytest.fixture(scope="module")
def by_input(tmp_path_factory):
    """The results for each kind of input_fn, modified and not."""
    done = {}

    def run_once(form, kind):
        if (form, kind) not in done:
            with support.initialized():
                case = cases.Case(form, tmp_path_factory.mktemp(form + kind))
                losses = cases.Recorder("model_loss:0")
                # The data end the training: no step may be lost or added.
                case.estimator.train(returning(kind, case.input_fn(True, repeat=2)), hooks=case.hooks(losses.hook()))
                metrics = case.estimator.evaluate(returning(kind, case.input_fn(False)), hooks=case.hooks())
                output = [one["output"] for one in case.estimator.predict(
                    returning(kind, case.input_fn(False)), hooks=case.hooks())]
                done[form, kind] = case.directory, losses.values, metrics, output
        return done[form, kind]

    return run_once


@pytest.mark.long
@pytest.mark.parametrize("form, kind", [(form, kind) for form in cases.FORMS for kind in INPUTS
                                        if (form, kind) != ("step", "dataset")])
def test_it_does_not_matter_what_the_input_fn_returns(by_input, form, kind):
    directory, losses, metrics, output = by_input(form, kind)
    expected = by_input("step", "dataset")
    assert len(losses) == len(expected[1]) == 11 and len(output) == len(cases.samples()[1])
    support.assert_same_bits(losses, expected[1], "losses")
    assert metrics == expected[2]
    support.assert_same_bits(output, expected[3], "predictions")
    cases.assert_same_checkpoints(directory, expected[0])


@pytest.mark.long
@pytest.mark.parametrize("kind", INPUTS)
def test_a_generator_is_started_once(dynamic, tmp_path, kind):
    """One that reads a socket cannot be started again."""
    started = []

    def from_generator(data, repeat):
        features, labels = cases.samples()
        types = ({name: value.dtype.type for name, value in features.items()}, np.float32)
        shapes = ({name: value.shape[1:] for name, value in features.items()}, [])

        def generate():
            started.append(True)
            for place in range(len(labels)):
                yield {name: value[place] for name, value in features.items()}, labels[place]

        return tf.data.Dataset.from_generator(generate, types, shapes).batch(cases.BATCH)

    case = cases.Case("ahead", tmp_path)
    expected = cases.Case("step", tmp_path / "expected").train(repeat=1)
    losses = cases.Recorder("model_loss:0")
    input_fn = case.input_fn(True, make=from_generator)
    case.estimator.train(returning(kind, input_fn), hooks=case.hooks(losses.hook()))
    assert len(started) == 1
    support.assert_same_bits(losses.values, expected)
    case.estimator.evaluate(returning(kind, case.input_fn(False, make=from_generator)), hooks=case.hooks())
    assert len(started) == 2


@pytest.mark.long
def test_features_of_a_queue_stay_in_the_step(dynamic, tmp_path):
    """numpy_input_fn is older than tf.data: there is no pipeline to move to, and nothing changes."""
    inputs = tf.compat.v1.estimator.inputs
    found = {}
    for form in ("step", "ahead"):
        case = cases.Case(form, tmp_path / form)
        losses = cases.Recorder("model_loss:0")
        case.estimator.train(inputs.numpy_input_fn(*cases.samples(), batch_size=cases.BATCH, num_epochs=2, shuffle=False),
                             hooks=case.hooks(losses.hook()))
        found[form] = losses.values, case.evaluate()
    assert len(found["step"][0]) == 11 and found["ahead"] == found["step"]
    cases.assert_same_checkpoints(str(tmp_path / "ahead"), str(tmp_path / "step"))


def test_the_slicer_hooks_of_the_original_stand_before_the_modification(dynamic, tmp_path):
    case = cases.Case("ahead", tmp_path / "ahead")
    slicers = [LookupSubgraphSlicerHook(["StringToHashBucketFast"]), OrphanLookupKeySlicerHook()]
    case.estimator.train(case.input_fn(True, repeat=None), hooks=slicers + case.hooks(), steps=8)
    cases.Case("step", tmp_path / "step").train(steps=8)
    cases.assert_same_checkpoints(case.directory, str(tmp_path / "step"))


@pytest.mark.long
def test_the_meta_graph_of_a_modified_training_runs_elsewhere(dynamic, tmp_path):
    """The pipeline with the key work is part of it, and finds the tables of the session it runs in."""
    case = cases.Case("ahead", tmp_path, save_checkpoints_steps=6)
    losses = case.train(steps=9)
    with tf.Graph().as_default() as graph:
        saver = tf.compat.v1.train.import_meta_graph(case.directory + "/model.ckpt-6.meta")
        with support.restored(support.new_session(graph), saver, case.directory + "/model.ckpt-6") as sess:
            sess.run([op for op in graph.get_operations() if op.type == "MakeIterator"])
            train = graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP)
            # Six batches are an epoch less five samples; the new iterator starts at the first batch again.
            first = sess.run(["model_loss:0", train])[0]
    expected = cases.Case("step", tmp_path / "again", save_checkpoints_steps=6)
    expected.train(steps=6)
    support.assert_same_bits([first], expected.train(steps=1))
    assert first != losses[6]


@pytest.mark.parametrize("form", cases.FORMS)
def test_logging_hooks_see_the_batch_of_the_step_by_object_and_by_name(dynamic, tmp_path, form):
    seen = {"object": [], "name": [], "given": []}

    def keep(kind):
        return lambda tensors: seen[kind].append({name: np.array(value) for name, value in tensors.items()}) or kind

    def hooks(features):
        name = features["user"].name
        given[0] = name
        return [tf.estimator.LoggingTensorHook({"user": features["user"]}, every_n_iter=1, formatter=keep("object")),
                tf.estimator.LoggingTensorHook({"user": name}, every_n_iter=1, formatter=keep("name"))]

    given = [None]
    case = cases.Case(form, tmp_path, params={"hooks": hooks})
    # Made in the script, by the name that the tensor has in the graph that model_fn saw.
    case.train(repeat=1, hooks=[tf.estimator.LoggingTensorHook({"user": "IteratorGetNext:2"}, every_n_iter=1,
                                                               formatter=keep("given"))])
    features, _ = cases.samples()
    for kind, values in seen.items():
        together = np.concatenate([one["user"] for one in values])
        assert together.tobytes() == features["user"].tobytes(), kind


@pytest.mark.parametrize("form", cases.FORMS)
def test_summaries_of_the_estimator_and_of_a_hook_hold_the_values_of_their_step(dynamic, tmp_path, form, monkeypatch):
    from tensorflow.python.training import basic_session_run_hooks

    stock = basic_session_run_hooks.SummarySaverHook.after_run

    def after_run(self, run_context, run_values):
        # TensorFlow reads the step beside its increment: which of the two comes first is left to chance.
        run_values.results["global_step"] = run_context.session.run(self._global_step_tensor) - 1
        stock(self, run_context, run_values)

    monkeypatch.setattr(basic_session_run_hooks.SummarySaverHook, "after_run", after_run)
    own = os.path.realpath(str(tmp_path / "own"))

    def hooks(features):
        tf.compat.v1.summary.scalar("first_price", features["price"][0])
        return [tf.estimator.SummarySaverHook(save_steps=2, output_dir=own, summary_op=tf.compat.v1.summary.merge_all())]

    case = cases.Case(form, tmp_path / "model", params={"hooks": hooks}, save_summary_steps=3)
    losses = case.train(steps=5)
    prices = cases.samples()[0]["price"][::cases.BATCH]

    for directory, every in ((case.directory, 3), (own, 2)):
        for tag, expected in (("squared_error", losses), ("first_price", prices)):
            steps, values = cases.summary_values(directory, tag)
            assert steps == list(range(1, 6, every))
            support.assert_same_bits(values, [expected[step - 1] for step in steps], tag)
