"""An Estimator of TensorFlow with feature columns, on tables by a line that is not part of it."""

import os
import tempfile

import numpy as np
import tensorflow as tf

from mx_rec.util.initialize import init

USERS, ITEMS, BATCH = 200000, 50000, 256


def input_fn():
    """Clicks: users with an odd number click, and odd items are clicked."""
    random = np.random.RandomState(0)
    users, items = random.zipf(1.3, 20000) % USERS, random.zipf(1.3, 20000) % ITEMS
    features = {"user": users.astype(str), "item": items}
    labels = (users % 2 + items % 2 > 0).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return data.shuffle(1000, seed=1).repeat().batch(BATCH)


def make_estimator(directory):
    """A wide and deep model as TensorFlow's documentation has it."""
    column = tf.feature_column
    user = column.categorical_column_with_hash_bucket("user", USERS)
    item = column.categorical_column_with_identity("item", ITEMS)
    return tf.estimator.DNNLinearCombinedClassifier(
        model_dir=directory, config=tf.estimator.RunConfig(tf_random_seed=1),
        linear_feature_columns=[user, item],
        dnn_feature_columns=[column.embedding_column(user, 16), column.embedding_column(item, 16)],
        dnn_hidden_units=[32], dnn_optimizer="Adagrad", linear_optimizer="Ftrl")


def main():
    init(stock_tables=True)
    with tempfile.TemporaryDirectory() as directory:
        estimator = make_estimator(directory)
        estimator.train(input_fn, steps=1000)
        result = estimator.evaluate(input_fn, steps=20)
        print("auc {:.3f} after {} steps".format(result["auc"], result["global_step"]))
        assert result["auc"] > 0.9, result
        saved = os.listdir(os.path.join(directory, "sparse-model.ckpt-1000"))
        assert len([name for name in saved if "weights" in name]) == 4, saved


if __name__ == "__main__":
    main()
