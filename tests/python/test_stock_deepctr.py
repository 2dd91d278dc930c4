"""DeepCTR's Estimator models, unchanged, on tables: the numbers of the same models on variables."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.stock.convert import converted
from mx_rec.util.stock_tables import StockTables

STEPS = 15
TOLERANCE = 1024 * support.EPS


@pytest.fixture(scope="module")
def models():
    """The module deepctr.estimator; importing it asks nobody for newer versions."""
    requests = pytest.importorskip("requests")
    with pytest.MonkeyPatch().context() as patch:
        def refuse(*args, **kwargs):
            raise OSError("no network in tests")

        patch.setattr(requests, "get", refuse)
        pytest.importorskip("deepctr")
        import deepctr.estimator

        yield deepctr.estimator


def input_fn():
    random = np.random.RandomState(1)
    features = {"user": random.zipf(1.2, 192).astype(str), "item": random.randint(0, 50, 192),
                "age": random.rand(192).astype(np.float32)}
    labels = (random.rand(192) < 0.5).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(32)


def estimator(models, name, directory, penalty):
    column = tf.feature_column
    user = column.categorical_column_with_hash_bucket("user", 500)
    item = column.categorical_column_with_identity("item", 50)
    age = column.numeric_column("age")
    linear = [user, item, age]
    dense = [column.embedding_column(user, 4), column.embedding_column(item, 4), age]
    run = tf.estimator.RunConfig(
        tf_random_seed=3, save_summary_steps=None, session_config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1))
    return getattr(models, name)(linear, dense, dnn_hidden_units=(8,), model_dir=str(directory), config=run,
                                 l2_reg_linear=penalty)


def train(made, steps):
    """Trains; returns the losses."""
    losses = []
    hook = support.fetching(lambda: tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[0], losses.append)
    made.train(input_fn, steps=steps, hooks=[hook])
    return np.array([np.sum(loss) for loss in losses])


def predicted(made):
    found = made.predict(input_fn)
    values = [next(found)["logits"] for _ in range(60)]
    found.close()
    return np.array(values)


@pytest.mark.long
@pytest.mark.parametrize("name, penalty, tables", [
    ("DeepFMEstimator", 0, 4), pytest.param("DeepFMEstimator", 1e-5, 2, marks=pytest.mark.slow),
    pytest.param("WDLEstimator", 0, 4, marks=pytest.mark.slow),
    pytest.param("NFMEstimator", 0, 4, marks=pytest.mark.slow)])
def test_a_model_on_tables_gives_the_numbers_of_its_variables(mx, tmp_path, models, name, penalty, tables):
    """A linear penalty is dense: it keeps the variables of the linear part TensorFlow's."""
    train(estimator(models, name, tmp_path / "stock", penalty), 1)
    shutil.copytree(str(tmp_path / "stock"), str(tmp_path / "tables"))
    stock = estimator(models, name, tmp_path / "stock", penalty)
    losses, logits = train(stock, STEPS), predicted(stock)
    mx(stock_tables=".*")
    made = estimator(models, name, tmp_path / "tables", penalty)
    np.testing.assert_allclose(train(made, STEPS), losses, rtol=TOLERANCE, atol=TOLERANCE)
    meta = tf.compat.v1.MetaGraphDef.FromString(
        open(tf.train.latest_checkpoint(str(tmp_path / "tables")) + ".meta", "rb").read())
    assert [node.op for node in meta.graph_def.node].count("MxRecTable") == tables
    np.testing.assert_allclose(predicted(made), logits, rtol=TOLERANCE, atol=TOLERANCE)
    assert abs(losses[0] - losses[-1]) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("penalty, tables", [(0, 4), pytest.param(1e-5, 2, marks=pytest.mark.slow)])
def test_a_model_without_limits_of_ids_gives_the_numbers_of_many_more_buckets(mx, tmp_path, models, penalty, tables):
    """The linear variables that a penalty keeps TensorFlow's take ids with the limit, beside the tables."""
    column = tf.feature_column

    def make(directory, size):
        user = column.categorical_column_with_hash_bucket("user", size)
        start = tf.compat.v1.constant_initializer(0.1)
        return models.DeepFMEstimator(
            [user, column.categorical_column_with_identity("item", 50)],
            [column.embedding_column(one, 4, initializer=start) for one in (
                user, column.categorical_column_with_identity("item", 50))],
            dnn_hidden_units=(8,), model_dir=str(directory), l2_reg_linear=penalty,
            config=tf.estimator.RunConfig(tf_random_seed=3, save_summary_steps=None))

    expected = train(make(tmp_path / "stock", 60001), STEPS)
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=True))
    made = make(tmp_path / "tables", 7)
    got = train(made, STEPS)
    names = [path.name for path in (tmp_path / "tables" / "sparse-model.ckpt-{}".format(STEPS)).iterdir() if path.is_dir()]
    assert len(names) == tables and all("unlimited" in name for name in names)
    if not penalty:
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert len(predicted(made)) == 60


def small_input_fn():
    """Each batch has all ids of both features."""
    random = np.random.RandomState(1)
    features = {"user": np.tile(np.arange(16), 12), "item": np.tile(np.arange(8), 24),
                "age": random.rand(192).astype(np.float32)}
    labels = (random.rand(192) < 0.5).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(32)


@pytest.mark.long
def test_the_penalty_of_the_linear_part_is_that_of_the_rows_of_a_batch_if_asked(mx, tmp_path, models, monkeypatch):
    """In training, evaluation and prediction; all rows are in each batch here, so that it is DeepCTR's."""
    monkeypatch.setitem(globals(), "input_fn", small_input_fn)
    column = tf.feature_column

    def make(directory):
        ids = [column.categorical_column_with_identity(name, size) for name, size in (("user", 16), ("item", 8))]
        return models.DeepFMEstimator(
            ids, [column.embedding_column(one, 4) for one in ids], dnn_hidden_units=(8,), model_dir=str(directory),
            l2_reg_linear=0.05, config=tf.estimator.RunConfig(tf_random_seed=3, save_summary_steps=None))

    train(make(tmp_path / "stock"), 1)
    shutil.copytree(str(tmp_path / "stock"), str(tmp_path / "tables"))
    losses, evaluated, logits = [], [], []
    for name in ("stock", "tables"):
        if name == "tables":
            mx(stock_tables=StockTables(least_rows=1, l2="rows of the batch"))
        made = make(tmp_path / name)
        losses.append(train(made, STEPS))
        evaluated.append(made.evaluate(input_fn, steps=3))
        logits.append(predicted(made))
    for stock, tables in (losses, logits, [[one["loss"], one["AUC"]] for one in evaluated]):
        np.testing.assert_allclose(tables, stock, rtol=TOLERANCE, atol=TOLERANCE)
    names = [path.name for path in (tmp_path / "tables" / "sparse-model.ckpt-{}".format(STEPS + 1)).iterdir() if path.is_dir()]
    assert len(names) == 4, names
    assert made.get_variable_value("linear/linear_model/user/weights").shape == (16, 1)


@pytest.mark.long
def test_a_keras_model_with_its_penalties_gives_the_numbers_of_its_variables(mx, models):
    """Its Adam is dense, by the penalties; all rows are in each batch."""
    from deepctr.feature_column import SparseFeat
    from deepctr.models import DeepFM

    del models
    keras = tf.keras
    ids = {"user": np.tile(np.arange(16), 12), "item": np.tile(np.arange(8), 24)}
    labels = (np.random.RandomState(1).rand(192) < 0.5).astype(np.int32)

    def train_and_ask():
        columns = [SparseFeat(name, size, 4, embeddings_initializer=keras.initializers.Constant(0.1))
                   for name, size in (("user", 16), ("item", 8))]
        with tf.Graph().as_default() as graph, support.new_session() as session:
            keras.backend.set_session(session)
            tf.compat.v1.set_random_seed(3)
            made = DeepFM(columns, columns, dnn_hidden_units=(8,), l2_reg_linear=0.02, l2_reg_embedding=0.05)
            made.compile("adam", "binary_crossentropy")
            losses = made.fit(ids, labels, 32, 3, verbose=0, shuffle=False).history["loss"]
            found = losses + [made.evaluate(ids, labels, 32, verbose=0)] + list(made.predict(ids, 32).ravel())
            names = [one.plan.name for one in converted(graph)]
            keras.backend.set_session(None)
        return np.array(found), names

    expected, names = train_and_ask()
    assert not names
    mx(stock_tables=StockTables(least_rows=1, l2="rows of the batch"))
    found, names = train_and_ask()
    assert len(names) == 4 and all("embeddings" in name for name in names), names
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
