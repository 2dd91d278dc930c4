"""TensorFlow's Estimators with feature columns, unchanged, on tables: numbers, checkpoints, exports."""

import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.util import initialize
from mx_rec.util.initialize import init
from mx_rec.util.stock_tables import StockTables

STEPS = 40
COLUMNS = ("hash", "identity", "vocabulary", "file", "crossed", "weighted", "bags", "shared")
TOLERANCE = 256 * support.EPS


def data(count=192, seed=1):
    random = np.random.RandomState(seed)
    features = {
        "hash": random.zipf(1.2, count).astype(str), "identity": random.randint(0, 50, count),
        "vocabulary": random.choice(list("abcdef"), count), "file": random.choice(list("klmnop"), count),
        "weighted": random.zipf(1.2, [count, 3]).astype(str),
        "weights": random.rand(count, 3).astype(np.float32) - 0.1,
        "bags": random.zipf(1.1, [count, 4]).astype(str), "one": random.randint(0, 70, count),
        "other": random.randint(0, 70, count)}
    features["bags"][::3, 2:] = ""
    features["bags"][::7] = ""
    return features, (random.rand(count) < 0.5).astype(np.int32)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(data()).repeat().batch(32)


def columns(names, directory):
    """Categorical columns and embeddings of them; combiners take turns."""
    column = tf.feature_column
    path = os.path.join(str(directory), "vocabulary.txt")
    support.write(path, "k\nl\nm\nn\n")
    identity = column.categorical_column_with_identity("identity", 50)
    made = {
        "hash": column.categorical_column_with_hash_bucket("hash", 1000), "identity": identity,
        "vocabulary": column.categorical_column_with_vocabulary_list("vocabulary", list("abc"), num_oov_buckets=2),
        "file": column.categorical_column_with_vocabulary_file("file", path, num_oov_buckets=1),
        "crossed": column.crossed_column(["hash", identity], 200),
        "weighted": column.weighted_categorical_column(
            column.categorical_column_with_hash_bucket("weighted", 60), "weights"),
        "bags": column.categorical_column_with_hash_bucket("bags", 300)}
    chosen = [made[name] for name in names if name in made]
    dense = [column.embedding_column(one, 3 + place, combiner=("mean", "sum", "sqrtn")[place % 3])
             for place, one in enumerate(chosen)]
    if "shared" in names:
        dense += column.shared_embedding_columns(
            [column.categorical_column_with_identity(name, 70) for name in ("one", "other")], 5, combiner="sqrtn")
    return chosen, dense


def estimator(kind, directory, names=COLUMNS, optimizer=None, parts=None, **config):
    v1 = tf.compat.v1.estimator
    partitioner = parts and tf.compat.v1.fixed_size_partitioner(parts)
    categorical, dense = columns(names, os.path.dirname(str(directory)))
    run = tf.estimator.RunConfig(
        tf_random_seed=3, save_summary_steps=20, log_step_count_steps=1000, session_config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1), **config)
    settings = {"model_dir": str(directory), "config": run}
    if kind == "dnn":
        return v1.DNNClassifier([8], dense, optimizer=optimizer or "Adagrad", input_layer_partitioner=partitioner, **settings)
    if kind == "linear":
        return v1.LinearClassifier(categorical, optimizer=optimizer or "Ftrl", partitioner=partitioner, **settings)
    if kind == "regressor":
        return v1.DNNRegressor([8], dense, optimizer=optimizer or "Adagrad", **settings)
    return v1.DNNLinearCombinedClassifier(
        linear_feature_columns=categorical, dnn_feature_columns=dense, dnn_hidden_units=[8],
        input_layer_partitioner=partitioner, **settings)


def train(made, steps=STEPS, source=input_fn, hooks=()):
    """Trains; returns the losses."""
    losses = []
    hook = support.fetching(lambda: tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[-1], losses.append)
    made.train(source, steps=steps, hooks=[hook] + list(hooks))
    return np.array(losses)


def figures(made, source=input_fn):
    """Loss of an evaluation, and predicted logits."""
    predictions = made.predict(source)
    name = "logits" if "Classifier" in type(made).__name__ else "predictions"
    values = [next(predictions)[name] for _ in range(60)]
    predictions.close()
    return made.evaluate(source, steps=3)["loss"], np.array(values)


def ops_of(directory):
    """Types and forms of the ops in the last graph that a training has saved."""
    graph = tf.compat.v1.MetaGraphDef.FromString(
        open(tf.train.latest_checkpoint(str(directory)) + ".meta", "rb").read()).graph_def
    return [support.kind_of(node) for node in graph.node]


def start(tmp_path, *arguments, **config):
    """Two directories with the same first step, saved by TensorFlow alone."""
    train(estimator(arguments[0], tmp_path / "stock", *arguments[1:], **config), 1)
    shutil.copytree(str(tmp_path / "stock"), str(tmp_path / "tables"))


def same_figures(found, expected):
    """Asserts that two models evaluate and predict the same."""
    np.testing.assert_allclose(found[0], expected[0], rtol=TOLERANCE)
    np.testing.assert_allclose(found[1], expected[1], rtol=TOLERANCE, atol=TOLERANCE)


def compare(tmp_path, mx, tables, *arguments, evaluates=False):
    """Continues both directories, one with tables, and compares the losses, and what they evaluate and predict."""
    start(tmp_path, *arguments)
    stock = estimator(arguments[0], tmp_path / "stock", *arguments[1:])
    losses = train(stock)
    expected = figures(stock) if evaluates else None
    mx(stock_tables=".*")
    made = estimator(arguments[0], tmp_path / "tables", *arguments[1:])
    np.testing.assert_allclose(train(made), losses, rtol=TOLERANCE, atol=TOLERANCE)
    assert ops_of(tmp_path / "tables").count("MxRecTable") == tables
    if evaluates:
        same_figures(figures(made), expected)


def stop():
    """Ends what `init` has begun."""
    initialize.terminate_config_initializer()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(directory, losses) of a new training of all columns on tables; its users copy it."""
    directory = tmp_path_factory.mktemp("trained") / "model"
    init(stock_tables=".*")
    losses = train(estimator("both", directory), STEPS // 2)
    stop()
    return directory, losses


@pytest.mark.long
@pytest.mark.parametrize("kind, tables", [
    ("dnn", 8), ("linear", 7), pytest.param("both", 15, marks=pytest.mark.slow),
    pytest.param("regressor", 8, marks=pytest.mark.slow)])
def test_an_old_directory_goes_on_with_tables_and_the_same_numbers(mx, tmp_path, kind, tables):
    compare(tmp_path, mx, tables, kind, evaluates=True)


@pytest.mark.parametrize("names, optimizer", [
    pytest.param(names, optimizer, id="-".join([names[0], optimizer]),
                 marks=[] if (names[0] == "hash") == (optimizer in ("ftrl", "warm-up")) else pytest.mark.slow)
    for names in (("hash", "bags"), ("weighted", "shared"))
    for optimizer in ("SGD", "momentum", "ftrl", "warm-up")])
def test_each_optimizer_of_an_estimator_gives_the_same_numbers(mx, tmp_path, names, optimizer):
    v1 = tf.compat.v1
    makers = {
        "SGD": lambda: v1.train.GradientDescentOptimizer(0.1),
        "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
        "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
        "warm-up": lambda: v1.train.AdagradOptimizer(
            0.2 * v1.minimum(1.0, v1.cast(v1.train.get_global_step(), v1.float32) / 30.0))}
    compare(tmp_path, mx, 2, "dnn", names, makers[optimizer])


@pytest.mark.long
def test_a_new_training_makes_rows_of_the_ids_that_it_meets(mx, trained):
    directory, losses = trained
    assert losses[-5:].mean() < losses[:5].mean()
    saved = glob.glob(str(directory / "sparse-model.ckpt-{}".format(len(losses))))[0]
    sizes = [os.path.getsize(path) // 8 for path in glob.glob(os.path.join(saved, "*", "key", "slice.data"))]
    assert len(sizes) == 15 and 0 < min(sizes) and max(sizes) < 1000
    mx(stock_tables=".*")
    assert estimator("both", directory).evaluate(input_fn, steps=6)["global_step"] == len(losses)


@pytest.mark.long
def test_small_variables_stay_and_evaluation_knows_which_ones(mx, tmp_path):
    names = ("hash", "identity", "bags")
    mx(stock_tables=StockTables(least_rows=200))
    made = estimator("both", tmp_path / "model", names)
    train(made, 20)
    loss, predicted = figures(made)
    assert ops_of(tmp_path / "model").count("MxRecTable") == 4
    stop()
    mx(stock_tables=StockTables(names=["nothing"]))
    again = figures(estimator("both", tmp_path / "model", names))
    assert again[0] == loss and (again[1] == predicted).all()


@pytest.mark.long
def test_a_training_goes_back_to_variables(mx, tmp_path, trained):
    for name in ("tables", "variables"):
        shutil.copytree(str(trained[0]), str(tmp_path / name))
    mx(stock_tables=".*")
    with_tables = train(estimator("both", tmp_path / "tables"), 30)
    stop()
    mx()
    without = train(estimator("both", tmp_path / "variables"), 30)
    assert "MxRecTable" not in ops_of(tmp_path / "variables")
    np.testing.assert_allclose(without, with_tables, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("kind, parts", [("linear", 3), ("dnn", 2), pytest.param("both", 3, marks=pytest.mark.slow)])
def test_partitioned_variables_become_tables_and_variables_by_turns(mx, tmp_path, kind, parts):
    """Trainings of LinearClassifier and DNNClassifier with a partitioner could not go on as tables: their optimizers
    give the slots of each part a name of their own, and "Does not have sufficient slices for partitioned tensor"."""
    names, epoch = ("bags",) if kind == "linear" else ("hash", "bags"), 6
    start(tmp_path, kind, names, parts=parts)
    # One training of three epochs sees the batches of three trainings.
    expected = train(estimator(kind, tmp_path / "stock", names, parts=parts), 3 * epoch).reshape(3, epoch)
    expected_figures = figures(estimator(kind, tmp_path / "stock", names, parts=parts))
    for turn, tables in enumerate([True, False, True]):
        if tables:
            mx(stock_tables=".*")
        made = estimator(kind, tmp_path / "tables", names, parts=parts)
        np.testing.assert_allclose(train(made, epoch), expected[turn], rtol=TOLERANCE, atol=TOLERANCE)
        assert ("MxRecTable" in ops_of(tmp_path / "tables")) == tables
        if tables:
            stop()
    mx()
    same_figures(figures(estimator(kind, tmp_path / "tables", names, parts=parts)), expected_figures)


@pytest.mark.long
def test_an_estimator_names_and_gives_variables_that_are_tables(mx, tmp_path):
    """get_variable_names and get_variable_value of an Estimator did not know its variables any more."""
    names, hashed = ("hash", "bags"), "linear/linear_model/hash/weights"
    start(tmp_path, "linear", names, parts=2)
    stock = estimator("linear", tmp_path / "stock", names, parts=2)
    train(stock, 5)
    mx(stock_tables=".*")
    made = estimator("linear", tmp_path / "tables", names, parts=2)
    train(made, 5)
    assert hashed not in support.variables_in(tmp_path / "tables")
    assert made.get_variable_names() == stock.get_variable_names()
    given = 0
    for name in stock.get_variable_names():
        try:
            expected = stock.get_variable_value(name)
        except tf.errors.InvalidArgumentError:
            # TensorFlow has the slots of parts under names of their own.
            with pytest.raises(tf.errors.InvalidArgumentError, match="of its .* rows under this name"):
                made.get_variable_value(name)
            continue
        np.testing.assert_allclose(made.get_variable_value(name), expected, rtol=TOLERANCE, atol=TOLERANCE)
        given += name == hashed
    assert given == 1 and made.get_variable_value(hashed + ":0").shape == (1000, 1)
    # Rows that were never made, too: a new training's, and what it evaluates with as variables.
    fresh = estimator("dnn", tmp_path / "fresh", names)
    train(fresh, 2)
    embedding = "dnn/input_from_feature_columns/input_layer/hash_embedding/embedding_weights"
    values = {name: fresh.get_variable_value(name) for name in (embedding, embedding + "/part_0/Adagrad")
              if name in fresh.get_variable_names()}
    stop()
    mx()
    train(fresh, 1)
    rows = fresh.get_variable_value(embedding)
    same = (rows == values[embedding]).all(axis=1)
    assert values[embedding].shape == rows.shape == (1000, 3) and 900 < same.sum() < 1000


@pytest.mark.long
def test_an_exported_model_has_variables_and_the_same_predictions(v1, tmp_path, trained):
    made = estimator("both", trained[0])
    categorical, dense = columns(COLUMNS, tmp_path)
    parse = tf.feature_column.make_parse_example_spec(categorical + dense)
    exported = made.export_saved_model(
        str(tmp_path / "export"), tf.estimator.export.build_parsing_serving_input_receiver_fn(parse))
    features, _ = data(8)
    examples = []
    for row in range(8):
        example = tf.train.Example()
        for name, values in features.items():
            field = example.features.feature[name]
            for value in np.atleast_1d(values[row]):
                if values.dtype.kind == "U":
                    if value:
                        field.bytes_list.value.append(value.encode())
                elif values.dtype.kind == "f":
                    field.float_list.value.append(value)
                else:
                    field.int64_list.value.append(value)
        examples.append(example.SerializeToString())
    predictions = made.predict(lambda: tf.data.Dataset.from_tensors(examples).map(
        lambda serialized: tf.io.parse_example(serialized, parse)))
    expected = np.array([one["probabilities"] for one in predictions])
    with tf.Graph().as_default() as graph, support.new_session() as sess:
        signature = tf.compat.v1.saved_model.load(sess, ["serve"], exported.decode()).signature_def["predict"]
        assert not [op.name for op in graph.get_operations() if op.type.startswith("MxRec")]
        got = sess.run(signature.outputs["probabilities"].name, {signature.inputs["examples"].name: examples})
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_train_and_evaluate_keeps_the_newest_checkpoints(v1, tmp_path):
    made = estimator("dnn", tmp_path / "model", ("hash", "bags"), save_checkpoints_steps=5, keep_checkpoint_max=2)
    best = tf.estimator.BestExporter(
        serving_input_receiver_fn=tf.estimator.export.build_raw_serving_input_receiver_fn(
            {name: tf.compat.v1.placeholder(value.dtype if value.dtype.kind != "U" else tf.string,
                                            [None] + list(value.shape[1:]), name)
             for name, value in data(1)[0].items()}))
    tf.estimator.train_and_evaluate(
        made, tf.estimator.TrainSpec(input_fn, max_steps=15),
        tf.estimator.EvalSpec(input_fn, steps=2, exporters=best, throttle_secs=0, start_delay_secs=0))
    left = sorted(os.path.basename(path) for path in glob.glob(str(tmp_path / "model" / "sparse-*")))
    assert left == ["sparse-model.ckpt-10", "sparse-model.ckpt-15"]
    assert glob.glob(str(tmp_path / "model" / "export" / "best_exporter" / "*" / "saved_model.pb"))
