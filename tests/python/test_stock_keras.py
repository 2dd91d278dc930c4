"""Models of tf.keras in graph mode, unchanged, on tables: fit, evaluate, predict, weights in files."""

import os

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.stock.convert import converted
from mx_rec.util.stock_tables import StockTables

ROWS, DIM, BATCH, BATCHES = 40, 4, 64, 5
TOLERANCE = 256 * support.EPS


@pytest.fixture
def session(graph):
    keras = tf.keras
    with support.new_session() as made:
        keras.backend.set_session(made)
        yield made
        keras.backend.set_session(None)


def model(optimizer, penalty=0.0, **arguments):
    keras = tf.keras
    ids = keras.layers.Input((3,), dtype="int64")
    arguments.setdefault("embeddings_initializer", keras.initializers.Constant(0.1))
    rows = keras.layers.Embedding(
        ROWS, DIM, name="items", embeddings_regularizer=keras.regularizers.l2(penalty) if penalty else None, **arguments)(ids)
    deep = keras.layers.Dense(6, activation="tanh", kernel_initializer=keras.initializers.Constant(0.3))
    made = keras.Model(ids, keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.2))(
        deep(keras.layers.Flatten()(rows))))
    made.compile(optimizer(), "mse")
    return made


def data():
    """Ids of which each batch has all."""
    random = np.random.RandomState(3)
    ids = random.randint(0, ROWS, [BATCHES * BATCH, 3])
    ids.reshape(BATCHES, -1)[:, :ROWS] = np.arange(ROWS)
    return ids, np.sin(ids.sum(1)).astype(np.float32)


def optimizers():
    keras = tf.keras.optimizers
    keras = getattr(keras, "legacy", keras)
    return {"sgd": lambda: keras.SGD(0.1), "rmsprop": lambda: keras.RMSprop(0.01),
            "rmsprop with momentum": lambda: keras.RMSprop(0.01, momentum=0.5),
            "adam": lambda: keras.Adam(0.01), "adagrad": lambda: keras.Adagrad(0.1),
            "adagrad from 0": lambda: keras.get("adagrad"), "momentum": lambda: keras.SGD(0.05, 0.9),
            "nesterov": lambda: keras.SGD(0.05, 0.9, True), "adadelta": lambda: keras.Adadelta(0.5)}


def program(name, penalty, directory):
    """What a program sees of its training: numbers by name."""
    ids, labels = data()
    found = {}
    made = model(optimizers()[name], penalty)
    found["losses"] = made.fit(ids, labels, BATCH, 2, verbose=0, shuffle=False,
                               validation_data=(ids[:BATCH], labels[:BATCH])).history
    found["evaluated"] = made.evaluate(ids, labels, BATCH, verbose=0)
    found["predicted"] = made.predict(ids[:9])
    weights = made.get_weights()
    for file in ("weights.h5", os.path.join("tf", "weights")):
        path = os.path.join(directory, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        made.save_weights(path)
        made.fit(ids, labels, BATCH, 1, verbose=0, shuffle=False)
        assert np.abs(made.get_weights()[0] - weights[0]).max() > 1e-3
        made.load_weights(path)
        for one, other in zip(made.get_weights(), weights):
            np.testing.assert_array_equal(one, other)
    found["after"] = made.fit(ids, labels, BATCH, 1, verbose=0, shuffle=False).history
    found["slots"] = [one for one in tf.keras.backend.batch_get_value(made.optimizer.weights)
                      if np.shape(one) == (ROWS, DIM)]
    found["weights"] = made.get_weights()
    return found


def leaves(value):
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in leaves(value[name])]
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [np.asarray(value)]


@pytest.mark.parametrize("name, penalty", [("sgd", 0.0), ("rmsprop", 0.0), ("rmsprop with momentum", 0.0),
                                           ("sgd", 0.01), ("adam", 0.01), ("adagrad", 0.0), ("adagrad from 0", 0.0),
                                           ("momentum", 0.0), ("nesterov", 0.0), ("adadelta", 0.0)])
def test_a_model_gives_the_numbers_of_its_variables(mx, graph, session, tmp_path, name, penalty):
    """Each batch has all rows, and so the penalty is TensorFlow's."""
    expected = program(name, penalty, str(tmp_path / "stock"))
    mx(stock_tables=StockTables(names=["items"], least_rows=1, l2="rows of the batch"))
    with tf.Graph().as_default() as own, support.new_session() as other:
        tf.keras.backend.set_session(other)
        found = program(name, penalty, str(tmp_path / "tables"))
        assert [one.plan.name for one in converted(own)] == ["items/embeddings"]
    for one, other in zip(leaves(found), leaves(expected)):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    assert len(leaves(found)) == len(leaves(expected)) and sorted(found) == sorted(expected)


@pytest.mark.parametrize("file", ["weights.h5", "weights"])
def test_weights_of_variables_are_loaded_into_a_table_and_back(mx, graph, session, tmp_path, file):
    """What a program saved before it ran on tables is good for it, and the other way round."""
    ids, labels = data()
    path = str(tmp_path / file)
    stock = model(optimizers()["sgd"])
    stock.fit(ids, labels, BATCH, 1, verbose=0)
    stock.save_weights(path)
    saved = stock.get_weights()
    mx(stock_tables=["items"])
    with tf.Graph().as_default(), support.new_session() as other:
        tf.keras.backend.set_session(other)
        made = model(optimizers()["sgd"])
        made.train_on_batch(ids[:BATCH], labels[:BATCH])
        made.load_weights(path)
        for one, wanted in zip(made.get_weights(), saved):
            np.testing.assert_array_equal(one, wanted)
        made.train_on_batch(ids[:BATCH], labels[:BATCH])
        made.save_weights(path)
        saved = made.get_weights()
    tf.keras.backend.set_session(session)
    stock.load_weights(path)
    for one, wanted in zip(stock.get_weights(), saved):
        np.testing.assert_array_equal(one, wanted)


def test_a_whole_model_is_saved_by_a_callback_and_loaded_as_variables(mx, graph, session, tmp_path):
    """A second model in one graph: its variables stay."""
    mx(stock_tables=["items"])
    ids, labels = data()
    made = model(optimizers()["rmsprop with momentum"])
    path = str(tmp_path / "model.h5")
    made.fit(ids, labels, BATCH, 1, verbose=0, callbacks=[
        tf.keras.callbacks.ModelCheckpoint(path), tf.keras.callbacks.EarlyStopping("loss", restore_best_weights=True)])
    expected = made.predict(ids[:9])
    loaded = tf.keras.models.load_model(path)
    np.testing.assert_allclose(loaded.predict(ids[:9]), expected, rtol=TOLERANCE, atol=TOLERANCE)


def start():
    return [np.random.RandomState(1).randn(ROWS, DIM).astype(np.float32)]


def loaded(path):
    made = model(optimizers()["sgd"])
    made.load_weights(path)
    return made


def set_twice(path):
    """The second values count."""
    made = model(optimizers()["sgd"])
    tf.keras.backend.set_value(made.weights[0], np.zeros([ROWS, DIM]))
    tf.keras.backend.batch_set_value([(made.weights[0], start()[0])])
    return made


WAYS = {
    "h5": lambda path: loaded(path), "set_value": set_twice,
    "weights": lambda path: model(optimizers()["sgd"], weights=start()),
    "initializer": lambda path: model(optimizers()["sgd"],
                                      embeddings_initializer=tf.keras.initializers.Constant(start()[0])),
    "load_model": lambda path: tf.keras.models.load_model(path + ".model"),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_weights_of_before_the_first_fit_are_those_of_a_table(mx, graph, session, tmp_path, way):
    ids, labels = data()
    path = str(tmp_path / "weights.h5")
    made = model(optimizers()["rmsprop with momentum" if way == "load_model" else "sgd"], weights=start())
    if way == "load_model":
        made.train_on_batch(ids[:BATCH], labels[:BATCH])
        made.save(path + ".model")
    made.save_weights(path)

    def program():
        made = WAYS[way](path)
        losses = made.fit(ids, labels, BATCH, 2, verbose=0, shuffle=False).history["loss"]
        return [losses, made.predict(ids[:9])] + made.get_weights()

    with tf.Graph().as_default(), support.new_session() as other:
        tf.keras.backend.set_session(other)
        expected = program()
    mx(stock_tables=["items"])
    with tf.Graph().as_default() as own, support.new_session() as other:
        tf.keras.backend.set_session(other)
        found = program()
        assert [one.plan.name for one in converted(own)] == ["items/embeddings"]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_weights_are_there_for_a_first_run_that_does_not_train(mx, graph, session):
    """Weights that waited for it are those of the table that the first fit makes."""
    ids, labels = data()
    mx(stock_tables=["items"])
    with tf.Graph().as_default() as own, support.new_session() as other:
        tf.keras.backend.set_session(other)
        made = model(optimizers()["sgd"])
        values = start()[0]
        tf.keras.backend.set_value(made.weights[0], values)
        # What becomes of an array that was set does not matter.
        values[:] = 7.0
        np.testing.assert_array_equal(other.run(made.weights[0]), start()[0])
        # Behind the first run nothing waits: a function that was made does not know of it.
        made.predict(ids[:9])
        before = made.predict(ids[:9])
        made.set_weights([2.0 * one for one in made.get_weights()])
        assert np.abs(made.predict(ids[:9]) - before).max() > 0.1
        made.fit(ids, labels, BATCH, 1, verbose=0)
        assert [one.plan.name for one in converted(own)] == ["items/embeddings"]


def test_a_model_that_is_fitted_to_datasets_is_on_tables(mx, graph, session):
    """fit initializes the iterators of datasets and asks how large they are before it has a training op: once the
    variables stayed TensorFlow's then."""
    ids, labels = data()

    def program():
        found = []
        for steps in (None, BATCHES):
            with tf.Graph().as_default() as own, support.new_session() as other:
                tf.keras.backend.set_session(other)
                dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).map(lambda *one: one).batch(BATCH)
                dataset = dataset if steps is None else dataset.repeat()
                made = model(optimizers()["adam"], embeddings_initializer=tf.keras.initializers.Constant(start()[0]))
                history = made.fit(dataset, epochs=2, steps_per_epoch=steps, verbose=0, validation_data=dataset,
                                   validation_steps=steps and 2).history
                found += [history["loss"], history["val_loss"]] + made.get_weights()
                names.append([one.plan.name for one in converted(own)])
        return found

    names = []
    expected = program()
    mx(stock_tables=["items"])
    found = program()
    assert names == [[], [], ["items/embeddings"], ["items/embeddings"]]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


class BuiltByABatch(tf.keras.Model):
    """Makes its layers' variables when it sees its first batch."""

    def __init__(self):
        super().__init__()
        keras = tf.keras
        self.rows = keras.layers.Embedding(ROWS, DIM, name="items", embeddings_initializer=keras.initializers.Constant(0.1))
        self.dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.2))

    def call(self, ids):
        return self.dense(tf.tanh(tf.reduce_mean(self.rows(ids), 1)))


def test_a_model_that_its_first_batch_builds_is_on_tables(mx, graph, session):
    """fit initializes the iterator of its dataset before there are variables: once that was a run of the session, and
    the variables stayed TensorFlow's."""
    ids, labels = data()

    def program():
        with tf.Graph().as_default() as own, support.new_session() as other:
            tf.keras.backend.set_session(other)
            dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH)
            made = BuiltByABatch()
            made.compile(optimizers()["adam"](), "mse")
            history = made.fit(dataset, epochs=2, verbose=0, validation_data=dataset).history
            names.append([one.plan.name.split("/")[-2] for one in converted(own)])
            return [history["loss"], history["val_loss"], made.evaluate(dataset, verbose=0)] + made.get_weights()

    names = []
    expected = program()
    mx(stock_tables=[".*items.*"])
    found = program()
    assert names == [[], ["items"]]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_callbacks_see_and_restore_the_weights_of_variables(mx, graph, session, tmp_path):
    """The rate grows until the loss does, and the best weights come back, also from the file."""
    callbacks = tf.keras.callbacks
    ids, labels = data()

    def program(name):
        made = model(optimizers()["adam"], embeddings_initializer=tf.keras.initializers.Constant(start()[0]))
        path = str(tmp_path / name) + ".h5"
        history = made.fit(ids, labels, BATCH, 8, verbose=0, shuffle=False, validation_split=0.2, callbacks=[
            callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True),
            callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            callbacks.LearningRateScheduler(lambda epoch: 0.01 * 8.0 ** epoch),
            callbacks.TensorBoard(str(tmp_path / name), profile_batch=0)]).history
        best = made.get_weights()
        made.load_weights(path)
        for one, other in zip(made.get_weights(), best):
            np.testing.assert_array_equal(one, other)
        return [history["loss"], history["val_loss"]] + best

    expected = program("stock")
    assert 1 < len(expected[0]) < 8 and expected[1][-1] > min(expected[1])
    mx(stock_tables=["items"])
    with tf.Graph().as_default() as own, support.new_session() as other:
        tf.keras.backend.set_session(other)
        found = program("tables")
        assert [one.plan.name for one in converted(own)] == ["items/embeddings"]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_weights_that_are_read_one_by_one_grow_the_graph_twice(mx, graph, session):
    """Keras reads those of each layer by a run of its own."""
    keras = tf.keras
    mx(stock_tables=["e."])
    ids = keras.layers.Input((2,), dtype="int64")
    layers = [keras.layers.Embedding(ROWS + at, DIM, name="e%d" % at) for at in range(5)]
    made = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Add()([one(ids) for one in layers]))))
    made.compile(optimizers()["sgd"](), "mse")
    made.train_on_batch(np.array([[1, 2]]), np.ones(1))
    sizes, rows = [], []
    for layer in layers:
        rows.append(layer.get_weights()[0])
        sizes.append(len(graph.get_operations()))
    assert sizes[0] < sizes[1] and len(set(sizes[1:])) == 1, sizes
    assert [one.shape for one in rows] == [(ROWS + at, DIM) for at in range(5)]
    made.train_on_batch(np.array([[1, 2]]), np.ones(1))
    for layer, before in zip(layers, rows):
        after = layer.get_weights()[0]
        assert (np.abs(after - before).max(1) > 0).nonzero()[0].tolist() == [1, 2]


def test_tables_by_ids_without_limits_are_no_weights(mx, graph, session, tmp_path):
    keras = tf.keras
    mx(stock_tables=StockTables(names=["items"], least_rows=1, unlimited_ids=True))
    words = keras.layers.Input((2,), dtype="string")
    ids = keras.layers.Lambda(lambda one: tf.strings.to_hash_bucket_fast(one, ROWS))(words)
    rows = keras.layers.Embedding(ROWS, DIM, name="items")(ids)
    made = keras.Model(words, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    made.compile(optimizers()["sgd"](), "mse")
    made.fit(np.array([["a", "b"], ["c", "d"]], object), np.ones([2, 1]), verbose=0)
    with pytest.raises(NotImplementedError, match="do not save tables"):
        made.save_weights(str(tmp_path / "weights"))
