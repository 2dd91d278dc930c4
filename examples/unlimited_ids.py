"""Two equal Estimators, one of them without its hash buckets: their AUC on ids that collide."""

import tempfile

import numpy as np
import tensorflow as tf

from mx_rec.util.initialize import init
from mx_rec.util.stock_tables import StockTables

COLUMNS, IDS, BUCKETS, BATCH, STEPS = 6, 5000, 500, 512, 200


def clicks(count, seed):
    """Categories with skewed ids, each with a weight of its own, and whether someone clicks."""
    weights = np.random.RandomState(0).randn(COLUMNS, IDS)
    random = np.random.RandomState(seed)
    cumulated = np.cumsum(1.0 / np.arange(1, IDS + 1) ** 0.8)
    ids = np.searchsorted(cumulated, random.rand(COLUMNS, count) * cumulated[-1])
    score = sum(weights[column, ids[column]] for column in range(COLUMNS))
    labels = random.rand(count) < 1.0 / (1.0 + np.exp(-score))
    return ids.astype(str), labels.astype(np.int32)


def input_fn(prefix, count, seed):
    """Batches of clicks, whose categories have a prefix in the names of the model's columns."""
    ids, labels = clicks(count, seed)
    features = {prefix + str(column): ids[column] for column in range(COLUMNS)}
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)


def auc_of(prefix):
    """Trains a model whose variables have the prefix in their names; returns its AUC."""
    columns = [tf.feature_column.categorical_column_with_hash_bucket(prefix + str(column), BUCKETS)
               for column in range(COLUMNS)]
    with tempfile.TemporaryDirectory() as directory:
        estimator = tf.estimator.LinearClassifier(
            columns, directory, optimizer=tf.compat.v1.train.AdagradOptimizer(0.2),
            config=tf.estimator.RunConfig(tf_random_seed=1))
        estimator.train(lambda: input_fn(prefix, BATCH * STEPS, 1))
        return float(estimator.evaluate(lambda: input_fn(prefix, BATCH * 40, 2))["auc"])


def main():
    init(stock_tables=StockTables(least_rows=1, unlimited_ids=["linear/linear_model/unlimited"]))
    hashed, unlimited = auc_of("hashed"), auc_of("unlimited")
    print("auc {:.4f} with {} buckets a column, {:.4f} without a limit".format(
        hashed, BUCKETS, unlimited))
    assert unlimited > hashed + 0.02, (hashed, unlimited)


if __name__ == "__main__":
    main()
