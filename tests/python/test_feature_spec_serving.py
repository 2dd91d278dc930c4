"""Features of FeatureSpec are looked up where no insert function reads the batch: exports, and graphs for prediction."""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer

USERS = 50


def samples(count, seed):
    random = np.random.RandomState(seed)
    users = random.randint(0, USERS, [count, 3])
    return {"users": users, "label": (users.sum(axis=1) % 2).astype(np.float32)}


def model_fn_of(specs):
    """A model whose lookups are by FeatureSpec; `specs` are those of training and of the rest."""

    def model_fn(features, labels, mode, params):
        is_train = mode == tf.estimator.ModeKeys.TRAIN
        table = support.make_table("users", 4, 100, tf.compat.v1.random_normal_initializer(seed=4))
        rows = sparse_lookup(table, specs[0 if is_train else 1], 64, is_train=is_train, batch=features)
        output = tf.reduce_sum(rows, [1, 2])
        if mode == tf.estimator.ModeKeys.PREDICT:
            return tf.estimator.EstimatorSpec(mode, predictions={"output": output})
        loss = tf.reduce_mean(tf.square(output - features["label"]))
        train = None
        if is_train:
            update = create_hash_optimizer(0.05).minimize(loss, var_list=[table.variable])
            train = tf.group(update, tf.compat.v1.assign_add(tf.compat.v1.train.get_global_step(), 1))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    return model_fn


def input_fn(data, insert=None):
    def make():
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(20, drop_remainder=True)
        if insert is not None:
            dataset = dataset.map(get_asc_insert_func(tgt_key_specs=insert[0], is_training=insert[1]))
        return dataset.prefetch(2)

    return make


@pytest.fixture(params=[True, False], ids=["dynamic", "static"])
def trained(request, mx, tmp_path):
    """(estimator, its specs), trained for a few steps."""
    mx(use_dynamic=request.param)
    specs = [FeatureSpec("users", table_name="users"), FeatureSpec("users", table_name="users")]
    estimator = tf.estimator.Estimator(model_fn_of(specs), str(tmp_path / "model"))
    estimator.train(input_fn(samples(200, 1), ([specs[0]], True)))
    return estimator, specs


def predictions(estimator, make):
    return np.array([one["output"] for one in estimator.predict(make)])


def test_predict_in_a_graph_without_an_insert_function_has_the_same_numbers(trained):
    estimator, specs = trained
    data = samples(40, 2)
    with_insert = predictions(estimator, input_fn(data, ([specs[1]], False)))
    assert len(set(with_insert)) > 30
    support.assert_same_bits(predictions(estimator, input_fn(data)), with_insert)


def test_an_export_whose_batch_is_placeholders_has_the_same_numbers(trained, tmp_path):
    estimator, specs = trained
    data = samples(40, 3)
    expected = predictions(estimator, input_fn(data, ([specs[1]], False)))

    def receiver():
        inputs = {"users": tf.compat.v1.placeholder(tf.int64, [None, 3], name="users"),
                  "label": tf.compat.v1.placeholder(tf.float32, [None], name="label")}
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)

    directory = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    served = tf.contrib.predictor.from_saved_model(directory)
    found = [served({"users": data["users"][at:at + 20], "label": data["label"][at:at + 20]})["output"]
             for at in (0, 20)]
    support.assert_same_bits(np.concatenate(found), expected)


def test_a_feature_that_an_insert_function_of_the_other_mode_read_is_refused(dynamic):
    spec = FeatureSpec("users", table_name="users")
    dataset = tf.data.Dataset.from_tensor_slices(samples(20, 1)).batch(5).map(get_asc_insert_func([spec], is_training=True))
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    table = create_table(tf.int64, 4, "users", tf.compat.v1.zeros_initializer(), device_vocabulary_size=100)
    with pytest.raises(RuntimeError, match="by one of the other mode"):
        sparse_lookup(table, spec, is_train=False, batch=batch)


def test_a_training_lookup_needs_the_insert_function(dynamic):
    table = create_table(tf.int64, 4, "users", tf.compat.v1.zeros_initializer(), device_vocabulary_size=100)
    with pytest.raises(RuntimeError, match="was not read by an insert function for training"):
        sparse_lookup(table, FeatureSpec("users", table_name="users"), is_train=True,
                      batch={"users": tf.constant([[1, 2]], tf.int64)})
