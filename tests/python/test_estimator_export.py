"""A model that an Estimator exported gives its predictions in other processes.

Whoever loads it needs the ops and nothing else: `import mx_rec` without `init`, or `tf.load_op_library` of the plugin. TensorFlow's
`saved_model_cli` has no option for op libraries, so they are loaded before its `main`:

    python -c "import mx_rec; from tensorflow.python.tools import saved_model_cli; saved_model_cli.main()" run --dir ...
"""

import glob
import os

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases as cases
import preloaded
import support

# How a process gets the ops: by the package, or by the plugin alone.
OPS = {"package": "import mx_rec", "plugin": "import tensorflow as tf; tf.load_op_library({!r})".format(support.library_path())}
CLI = "; from tensorflow.python.tools import saved_model_cli; saved_model_cli.main()"


class Exported:
    """A trained Estimator's export for raw tensors, one for serialized examples, and what it predicts itself."""

    def __init__(self, directory):
        case = cases.Case("ahead", directory + "/model")
        case.train(steps=12)
        # Half of these users are unknown to the table.
        self.features, labels = cases.samples(40, seed=3, users=2 * cases.USERS)
        # In batches as the exports have them.
        self.prediction, self.by_sevens = (case.predict((self.features, labels), batch)["output"] for batch in (40, 7))
        assert len(set(self.prediction)) > 30
        self.raw = case.estimator.export_saved_model(directory + "/raw", self.placeholders).decode()
        parse = tf.estimator.export.build_parsing_serving_input_receiver_fn({
            "user": tf.io.FixedLenFeature([2], tf.int64), "item": tf.io.FixedLenFeature([], tf.int64),
            "price": tf.io.FixedLenFeature([], tf.float32)})
        self.parsing = case.estimator.export_saved_model(directory + "/parsing", parse).decode()
        self.inputs = directory + "/inputs.npz"
        np.savez(self.inputs, examples=np.array([self._example(place) for place in range(len(labels))]), **self.features)

    def placeholders(self):
        features = {name: tf.compat.v1.placeholder(value.dtype.type, [None] + list(value.shape[1:]), name=name)
                    for name, value in self.features.items()}
        return tf.estimator.export.ServingInputReceiver(features, features)

    def _example(self, place):
        train = tf.train
        user, item, price = (np.ravel(self.features[name][place]) for name in ("user", "item", "price"))
        return train.Example(features=train.Features(feature={
            "user": train.Feature(int64_list=train.Int64List(value=user)),
            "item": train.Feature(int64_list=train.Int64List(value=item)),
            "price": train.Feature(float_list=train.FloatList(value=price))})).SerializeToString()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    with support.initialized():
        yield Exported(os.path.realpath(str(tmp_path_factory.mktemp("export"))))


def run_cli(ops, directory, inputs, out):
    preloaded.run_python(OPS[ops] + CLI, "run", "--dir", directory, "--tag_set", "serve", "--signature_def", "serving_default",
                       "--inputs", inputs, "--outdir", out)
    return np.load(out + "/output.npy")


def test_saved_model_cli_runs_it(exported, tmp_path):
    inputs = ";".join("{0}={1}[{0}]".format(name, exported.inputs) for name in exported.features)
    output = run_cli("package", exported.raw, inputs, str(tmp_path))
    support.assert_same_bits(output, exported.prediction)
    assert np.load(str(tmp_path) + "/user.npy").tobytes() == exported.features["user"].tobytes()


def test_saved_model_cli_runs_it_on_serialized_examples(exported, tmp_path):
    output = run_cli("plugin", exported.parsing, "examples={}[examples]".format(exported.inputs), str(tmp_path))
    support.assert_same_bits(output, exported.prediction)


LOAD = """; import sys
import numpy as np
import tensorflow as tf
raw, parsing, inputs, out = sys.argv[1:]
fed = dict(np.load(inputs))
with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    signature = tf.saved_model.load(sess, ["serve"], raw).signature_def["serving_default"]
    loaded = sess.run(signature.outputs["output"].name, {one.name: fed[name] for name, one in signature.inputs.items()})
predictor = tf.contrib.predictor.from_saved_model(parsing)
parts = [predictor({"examples": fed["examples"][first:first + 7]})["output"] for first in range(0, len(loaded), 7)]
np.savez(out, loaded=loaded, predicted=np.concatenate(parts))
"""


@pytest.mark.long
@pytest.mark.parametrize("ops", sorted(OPS))
def test_tf_saved_model_load_and_a_predictor_run_it_in_a_fresh_process(exported, tmp_path, ops):
    out = str(tmp_path / "out.npz")
    preloaded.run_python(OPS[ops] + LOAD, exported.raw, exported.parsing, exported.inputs, out)
    found = np.load(out)
    support.assert_same_bits(found["loaded"], exported.prediction, "tf.saved_model.load")
    support.assert_same_bits(found["predicted"], exported.by_sevens, "predictor")


def test_a_moved_export_still_has_its_tables(exported, tmp_path):
    """Servers copy models: nothing in one may point to where it was made."""
    moved = str(tmp_path / "elsewhere")
    os.rename(exported.raw, moved)
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
            signature = tf.saved_model.load(sess, ["serve"], moved).signature_def["serving_default"]
            feed = {one.name: exported.features[name] for name, one in signature.inputs.items()}
            support.assert_same_bits(sess.run(signature.outputs["output"].name, feed), exported.prediction)
    finally:
        os.rename(moved, exported.raw)


@pytest.mark.long
def test_exporters_of_an_eval_spec_write_what_predicts_like_the_estimator(exported, tmp_path):
    """The exporters run inside a round of evaluation, while the training's session is open."""
    case = cases.Case("ahead", tmp_path)
    exporters = [tf.estimator.LatestExporter("latest", exported.placeholders),
                 tf.estimator.BestExporter("best", exported.placeholders)]
    tf.estimator.train_and_evaluate(
        case.estimator, tf.estimator.TrainSpec(case.input_fn(True, repeat=None), 20, case.hooks()),
        tf.estimator.EvalSpec(case.input_fn(False), None, hooks=case.hooks(), exporters=exporters, start_delay_secs=0,
                              throttle_secs=0))
    expected = case.predict((exported.features, np.zeros(len(exported.prediction), np.float32)), 40)["output"]
    for name in ("latest", "best"):
        newest = sorted(glob.glob("{}/export/{}/*".format(case.directory, name)))[-1]
        predictor = tf.contrib.predictor.from_saved_model(newest)
        support.assert_same_bits(predictor(exported.features)["output"], expected, name)
