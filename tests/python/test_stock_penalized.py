"""Features of public programs together, in models of Keras and of Estimators: penalties, hashed words, weights, padding.

Small enough that the short form of the tests has all of it. Each batch has all rows, and so the penalties of tables are
TensorFlow's.
"""

import numpy as np
import tensorflow as tf

import support
from mx_rec.stock.convert import converted
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1
keras = tf.keras

USERS, WORDS, DIM, BATCH, BATCHES = 12, 5, 4, 48, 4
TOLERANCE = 256 * support.EPS


def data():
    """Users, words of which "0" is padding, a weight for each word, and labels."""
    random = np.random.RandomState(2)
    count = BATCHES * BATCH
    words = np.array(["word%d" % one for one in random.randint(0, 90, count * 3)], object).reshape(count, 3)
    words[np.arange(3)[None] >= random.randint(1, 4, count)[:, None]] = "0"
    features = {"user": np.arange(count) % USERS, "words": words,
                "weights": random.rand(count, 3).astype(np.float32) + 0.25}
    return features, (np.sin(features["user"]) + features["weights"][:, 0]).astype(np.float32)


def hashed(words):
    """Buckets of words from 1 on; that of padding is 0."""
    return (tf.strings.to_hash_bucket_fast(words, WORDS - 1) + 1) * tf.cast(tf.not_equal(words, "0"), tf.int64)


def weighted(rows_and_weights, mask):
    """Sums of rows by the weights of those that are no padding, which add up to 1."""
    rows, weights = rows_and_weights
    weights = weights * tf.cast(mask[0], tf.float32)
    return tf.reduce_sum(rows * tf.expand_dims(weights / tf.reduce_sum(weights, 1, keepdims=True), 2), 1)


def keras_model(optimizer, penalty):
    """Two embeddings each of which has a linear part beside it, as models of click rates have them."""
    user, words = keras.layers.Input((1,), name="user", dtype="int64"), keras.layers.Input((3,), name="words", dtype="string")
    weights = keras.layers.Input((3,), name="weights")
    buckets = keras.layers.Lambda(hashed)(words)

    def embedded(name, rows, dim, ids, **more):
        return keras.layers.Embedding(rows, dim, name=name, embeddings_initializer=keras.initializers.Constant(0.1),
                                      embeddings_regularizer=keras.regularizers.l2(penalty), **more)(ids)

    def sums(rows):
        return keras.layers.Lambda(weighted, mask=lambda *_: None)([rows, weights])

    deep = keras.layers.Concatenate()([keras.layers.Flatten()(embedded("user_rows", USERS, DIM, user)),
                                       sums(embedded("word_rows", WORDS, DIM, buckets, mask_zero=True))])
    deep = keras.layers.Dense(6, activation="tanh", kernel_initializer=keras.initializers.Constant(0.3))(deep)
    wide = [keras.layers.Flatten()(embedded("user_linear", USERS, 1, user)),
            sums(embedded("word_linear", WORDS, 1, buckets, mask_zero=True))]
    deep = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.2))(deep)
    made = keras.Model([user, words, weights], keras.layers.Add()(wide + [deep]))
    made.compile(optimizer, "mse")
    return made


def fitted(optimizer, penalty, tables):
    """Losses, an evaluation, predictions and weights of a training; `tables` gets the names of its tables."""
    features, labels = data()
    with tf.Graph().as_default() as graph, support.new_session() as session:
        keras.backend.set_session(session)
        made = keras_model(optimizer, penalty)
        losses = made.fit(features, labels, BATCH, 2, verbose=0, shuffle=False).history["loss"]
        found = [np.array(losses), made.evaluate(features, labels, BATCH, verbose=0), made.predict(features, BATCH)]
        tables.extend(sorted(one.plan.name for one in converted(graph)))
        found += made.get_weights()
        keras.backend.set_session(None)
    return found


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def check_keras(mx, optimizer, penalty):
    tables = []
    expected = fitted(optimizer, penalty, tables)
    assert not tables and expected[0][1] < expected[0][0]
    mx(stock_tables=StockTables(names=["user_.*", "word_.*"], least_rows=1, l2="rows of the batch"))
    found = fitted(optimizer, penalty, tables)
    assert tables == ["user_linear/embeddings", "user_rows/embeddings", "word_linear/embeddings", "word_rows/embeddings"]
    same(found, expected)


def test_a_keras_model_with_penalties_is_on_tables(mx, graph):
    """Once such variables stayed TensorFlow's, and no test of the short form had one."""
    check_keras(mx, "adam", 0.02)


def test_a_keras_model_of_hashed_words_and_weights_is_on_tables(mx, graph):
    check_keras(mx, "adagrad", 0.0)


def model_fn(features, labels, mode):
    """A linear and a deep part of the same columns, an optimizer for each, and a penalty on all variables of both."""
    column = tf.feature_column
    start = v1.constant_initializer(0.1)
    user = column.categorical_column_with_identity("user", USERS)
    words = column.weighted_categorical_column(column.categorical_column_with_hash_bucket("words", WORDS), "weights")
    with v1.variable_scope("linear"):
        logits = v1.feature_column.linear_model(features, [user, words])
    with v1.variable_scope("deep"):
        rows = v1.feature_column.input_layer(features, [
            column.embedding_column(user, DIM, initializer=start), column.embedding_column(words, DIM, initializer=start)])
        logits += v1.layers.dense(v1.layers.dense(rows, 6, tf.nn.tanh, kernel_initializer=start), 1, kernel_initializer=start)
    linear, deep = [v1.trainable_variables(scope) for scope in ("linear", "deep")]
    loss = tf.reduce_mean(tf.square(tf.squeeze(logits, 1) - labels))
    loss += v1.add_n([0.02 * tf.nn.l2_loss(one) for one in linear + deep if "weights" in one.name])
    loss = tf.identity(loss, "total")
    train = tf.group(v1.train.FtrlOptimizer(0.05).minimize(loss, v1.train.get_global_step(), linear),
                     v1.train.AdamOptimizer(0.01).minimize(loss, var_list=deep))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops={"mean": v1.metrics.mean(logits)})


def estimated(directory, tables):
    """Losses of a training, an evaluation, and the values of embeddings; `tables` gets the names of its tables."""
    losses = []

    class Names(tf.estimator.SessionRunHook):
        def end(self, session):
            tables.extend(sorted(one.plan.name for one in converted(session.graph)))

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)

    made = tf.estimator.Estimator(model_fn, str(directory), tf.estimator.RunConfig(
        tf_random_seed=3, save_summary_steps=None, log_step_count_steps=None))
    made.train(input_fn, hooks=[Names(), support.fetching(lambda: v1.get_default_graph().get_tensor_by_name("total:0"),
                                                          losses.append)])
    seen = made.evaluate(input_fn)
    return [np.array(losses), seen["loss"], seen["mean"]] + [
        made.get_variable_value(name) for name in made.get_variable_names() if name.endswith("weights")]


def test_an_estimator_with_penalties_hashed_words_and_weights_is_on_tables(mx, tmp_path):
    tables = []
    expected = estimated(tmp_path / "stock", tables)
    assert not tables
    mx(stock_tables=StockTables(least_rows=1, names=[".*weights.*"], l2="rows of the batch"))
    found = estimated(tmp_path / "tables", tables)
    assert len(tables) == 4 and all("weights" in name for name in tables), tables
    same(found, expected)
