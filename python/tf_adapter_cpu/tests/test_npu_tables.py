"""NPUEstimator on tables of mx_rec: the numbers of tf.estimator's Estimator."""

import numpy as np
import pytest
import tensorflow as tf

import small_model
from tf_adapter import NPUEstimator, NPURunConfig, npu_hooks_append

pytest.importorskip("mx_rec")

SETTINGS = dict(tf_random_seed=5, save_checkpoints_steps=10, log_step_count_steps=None)


@pytest.fixture(autouse=True)
def mx_rec():
    from mx_rec.util.initialize import init, terminate_config_initializer

    init(max_steps=-1, train_steps=20, eval_steps=-1)
    yield
    terminate_config_initializer()


class Case:
    """An Estimator on one table, by FeatureSpec or by tensors whose graph is modified."""

    def __init__(self, form, kind, directory, warm_start=None):
        self.form, self.specs = form, []
        if kind == "npu":
            config = NPURunConfig(model_dir=str(directory), session_config=small_model.session_config(),
                                  iterations_per_loop=2, precision_mode="allow_mix_precision", **SETTINGS)
            self.estimator = NPUEstimator(model_fn=self.model_fn, config=config, warm_start_from=warm_start)
        else:
            config = tf.estimator.RunConfig(model_dir=str(directory), session_config=small_model.session_config(),
                                            **SETTINGS)
            self.estimator = tf.estimator.Estimator(self.model_fn, config=config, warm_start_from=warm_start)

    def hooks(self):
        from mx_rec.graph import GraphModifierHook

        return npu_hooks_append([GraphModifierHook(modify_graph=self.form == "tensors")])

    def input_fn(self, is_training):
        def make():
            from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func

            random = np.random.RandomState(2)
            ids = random.randint(0, 30, [64, 3]).astype(np.int64)
            labels = np.sin(ids).sum(axis=1).astype(np.float32)
            batches = tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels))
            batches = batches.repeat(None if is_training else 1).batch(16)
            if self.form == "specs":
                self.specs = [FeatureSpec("ids", table_name="table")]
                batches = batches.map(get_asc_insert_func(self.specs, is_training=is_training))
            return batches.prefetch(2)

        return make

    def model_fn(self, features, labels, mode):
        from mx_rec.core.embedding import create_table, sparse_lookup
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer

        is_train = mode == tf.estimator.ModeKeys.TRAIN
        table = create_table(key_dtype=tf.int64, dim=4, name="table", device_vocabulary_size=100,
                             emb_initializer=tf.compat.v1.random_normal_initializer(stddev=0.3, seed=1))
        if self.form == "specs":
            rows = sparse_lookup(table, self.specs[0], is_train=is_train, batch=features)
        else:
            rows = sparse_lookup(table, features["ids"], is_train=is_train, modify_graph=True)
        output = tf.reduce_sum(rows, axis=[1, 2])
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"output": output})
        loss = tf.reduce_mean(tf.square(output - labels))
        train = None
        if is_train:
            gradients = tf.gradients(loss, [table.variable])
            step = tf.compat.v1.assign_add(tf.compat.v1.train.get_global_step(), 1)
            train = tf.group(step, create_hash_optimizer(0.05).apply_gradients(zip(gradients, [table.variable])))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def life(self):
        """What a life of training, evaluation, prediction and rounds of them gives."""
        estimator = self.estimator
        estimator.train(self.input_fn(True), hooks=self.hooks(), steps=20)
        first = estimator.evaluate(self.input_fn(False), hooks=self.hooks())
        outputs = [float(one["output"]) for one in estimator.predict(self.input_fn(False), hooks=self.hooks())]
        last, _ = tf.estimator.train_and_evaluate(
            estimator, tf.estimator.TrainSpec(self.input_fn(True), max_steps=40, hooks=self.hooks()),
            tf.estimator.EvalSpec(self.input_fn(False), steps=None, hooks=self.hooks(), start_delay_secs=0,
                                  throttle_secs=0))
        return first, outputs, last


@pytest.mark.parametrize("form", ["specs", "tensors"])
def test_tables_train_to_the_numbers_of_a_plain_estimator(form, tmp_path):
    npu = Case(form, "npu", tmp_path / "npu").life()
    stock = Case(form, "stock", tmp_path / "stock").life()
    assert npu == stock
    assert npu[0]["global_step"] == 20 and npu[2]["global_step"] == 40 and npu[2]["loss"] < npu[0]["loss"]


def test_steps_that_are_no_whole_loops_are_refused_before_a_table_is_made(tmp_path):
    with pytest.raises(ValueError, match="iterations_per_loop=2 does not divide .* 21 "):
        Case("specs", "npu", tmp_path).estimator.train(lambda: pytest.fail("the input was made"), steps=21)


@pytest.mark.parametrize("form", ["specs", "tensors"])
def test_tables_are_warm_started_from_one_path_and_from_several(form, tmp_path):
    for kind in ("npu", "stock"):
        old = Case(form, kind, tmp_path / kind / "old")
        old.estimator.train(old.input_fn(True), hooks=old.hooks(), steps=20)
        expected = old.estimator.evaluate(old.input_fn(False), hooks=old.hooks())["loss"]
        path = old.estimator.model_dir
        for number, warm_start in enumerate([path, tf.estimator.WarmStartSettings(
                [path + "/model.ckpt-10", path], [".*", ["table"]], None, [None, None])]):
            warm = Case(form, kind, tmp_path / kind / str(number), warm_start)
            assert warm.estimator.evaluate(warm.input_fn(False), hooks=warm.hooks())["loss"] == expected
            warm.estimator.train(warm.input_fn(True), hooks=warm.hooks(), steps=2)
            assert warm.estimator.evaluate(warm.input_fn(False), hooks=warm.hooks())["loss"] < expected
    with pytest.raises(ValueError, match="vars_to_warm_start"):
        Case(form, "npu", tmp_path / "wrong", tf.estimator.WarmStartSettings([path, path], [".*"]))
