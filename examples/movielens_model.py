"""One recommender on two kinds of storage: tables of mx_rec, and variables of TensorFlow."""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from lazy_adam import make_lazy_adam
from movielens_data import PADDING, Ratings, rmse
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1
# Graphs and sessions, which TensorFlow 2 has to be asked for.
if not tf.__version__.startswith("1."):
    tf1.disable_v2_behavior()

# The embeddings, by the entry of the batch that holds their ids.
FEATURES = ("user", "movie", "genres")
COLUMNS = FEATURES + ("stars",)


class Settings(NamedTuple):
    """What can be tuned; chosen with `--validate`, which never looks at the held-out ratings.

    Attributes:
        dim: Floats per row. The first of a user's and a movie's is its bias.
        hidden: Units of the dense layer.
        spread: Standard deviation of new rows.
        rate: Learning rate of rows and of dense kernels.
        decay: Weight of the squared rows in the loss: without it, ratings are learned by heart.
        kernel_decay: Weight of the squared dense kernels in the loss.
        batch: Ratings per step.
        epochs: Passes over the training ratings.
        seed: Of rows, kernels and of the order of ratings.
    """

    dim: int = 17
    hidden: int = 32
    spread: float = 0.05
    rate: float = 0.003
    decay: float = 0.1
    kernel_decay: float = 0.06
    batch: int = 1024
    epochs: int = 14
    seed: int = 7


class Model(NamedTuple):
    """A graph that learns and predicts.

    Attributes:
        name: For messages.
        graph: Where the ops are.
        columns: Placeholders of ratings by column, fed when a pipeline starts.
        start: Op that starts the pipeline, by is_training.
        batch: The ids that a step takes from the training pipeline; feed them to look up others.
        rows: Embeddings of `batch`, by feature.
        train: Op that learns from the next batch.
        loss: Mean squared error of the batch, a float scalar.
        prediction: (n) float32, for the next batch of the other pipeline.
        tables: Tables by feature; empty on variables.
        storage: Variables by feature; empty on tables.
        saver: Saves and restores all of it.
    """

    name: str
    graph: tf.Graph
    columns: Dict[str, tf.Tensor]
    start: Dict[bool, tf.Operation]
    batch: Dict[str, tf.Tensor]
    rows: Dict[str, tf.Tensor]
    train: tf.Operation
    loss: tf.Tensor
    prediction: tf.Tensor
    tables: Dict[str, Any]
    storage: Dict[str, tf.Variable]
    saver: tf1.train.Saver


def on_tables(mean: float, budget: int, settings: Settings) -> Model:
    """Builds the model on tables, as a script for Rec SDK TensorFlow does.

    Args:
        mean: Of the training ratings; predictions start from it.
        budget: Most rows of each table.
        settings: As they are.

    Returns:
        The model, in a new graph.
    """
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(settings.seed)
        specs = {name: FeatureSpec(name, table_name=name, index_key=name) for name in FEATURES}
        columns = _columns()
        start, batches = {}, {}
        for is_training in (True, False):
            insert = get_asc_insert_func(list(specs.values()), is_training=is_training)
            start[is_training], batches[is_training] = _pipeline(columns, settings.batch, insert)
        tables = {
            name: create_table(
                key_dtype=tf.int64, dim=settings.dim, name=name, device_vocabulary_size=budget,
                emb_initializer=tf1.truncated_normal_initializer(stddev=settings.spread))
            for name in FEATURES}

        rows, outcome = {}, {}
        for is_training in (True, False):
            batch = batches[is_training]
            rows[is_training] = {
                name: sparse_lookup(tables[name], specs[name], is_train=is_training, batch=batch)
                for name in FEATURES}
            outcome[is_training] = score(rows[is_training], batch["genres"], mean, settings)
        loss, total = losses(outcome[True], batches[True], rows[True], settings)

        dense, sparse = get_dense_and_sparse_variable()
        gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
        train = tf.group(
            tf1.train.AdamOptimizer(settings.rate).apply_gradients(
                zip(gradients[:len(dense)], dense)),
            create_hash_optimizer(learning_rate=settings.rate).apply_gradients(
                zip(gradients[len(dense):], sparse)))
        start_asc_pipeline()
        return Model("tables", graph, columns, start, batches[True], rows[True], train, loss,
                     outcome[False], tables, {}, tf1.train.Saver())


def on_variables(mean: float, counts: Dict[str, int], settings: Settings) -> Model:
    """Builds the same model on variables of TensorFlow, with LazyAdam as contrib has it.

    Args:
        mean: As `on_tables`.
        counts: Rows of the variable of each feature: one more than the greatest id.
        settings: As they are.

    Returns:
        The model, in a new graph. Rows start as zeros.
    """
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(settings.seed)
        columns = _columns()
        start, batches = {}, {}
        for is_training in (True, False):
            start[is_training], batches[is_training] = _pipeline(columns, settings.batch, None)
        storage = {name: tf1.get_variable("rows_of_" + name, [counts[name], settings.dim],
                                          initializer=tf1.zeros_initializer(), trainable=False)
                   for name in FEATURES}

        rows, outcome = {}, {}
        for is_training in (True, False):
            batch = batches[is_training]
            rows[is_training] = {name: _gather(storage[name], batch[name]) for name in FEATURES}
            outcome[is_training] = score(rows[is_training], batch["genres"], mean, settings)
        loss, total = losses(outcome[True], batches[True], rows[True], settings)

        dense, sparse = tf1.trainable_variables(), [storage[name] for name in FEATURES]
        gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
        lazy_adam = make_lazy_adam(settings.rate)
        train = tf.group(
            tf1.train.AdamOptimizer(settings.rate).apply_gradients(
                zip(gradients[:len(dense)], dense)),
            lazy_adam.apply_gradients(zip(gradients[len(dense):], sparse)))
        return Model("variables", graph, columns, start, batches[True], rows[True], train, loss,
                     outcome[False], {}, storage, tf1.train.Saver())


def _columns() -> Dict[str, tf.Tensor]:
    """Returns a placeholder for each column of the ratings."""
    kinds = {"genres": (tf.int64, [None, None]), "stars": (tf.float32, [None])}
    return {name: tf1.placeholder(*kinds.get(name, (tf.int64, [None])), name="all_" + name)
            for name in COLUMNS}


def _pipeline(columns: Dict[str, tf.Tensor], batch: int,
              insert: Optional[Callable]) -> Tuple[tf.Operation, Dict[str, tf.Tensor]]:
    """Cuts the ratings into batches, in the order in which they are fed."""
    count = tf.size(columns["stars"], out_type=tf.int64)
    dataset = tf.data.Dataset.range(0, count, batch).map(
        lambda first: {name: column[first:first + batch] for name, column in columns.items()})
    if insert is not None:
        dataset = dataset.map(insert)
    iterator = tf1.data.make_initializable_iterator(dataset.prefetch(4))
    return iterator.initializer, iterator.get_next()


def _gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Looks ids up in a variable; padding gives zeros, as it does in a table."""
    present = tf.not_equal(ids, PADDING)
    rows = tf.nn.embedding_lookup(variable, tf.where(present, ids, tf.zeros_like(ids)))
    return rows * tf.cast(present, tf.float32)[..., None]


def score(rows: Dict[str, tf.Tensor], genres: tf.Tensor, mean: float,
             settings: Settings) -> tf.Tensor:
    """The model: biases, products of factors, and a dense layer that looks at all of them.

    Args:
        rows: Embeddings: user and movie (n, dim), genres (n, k, dim) with zeros for padding.
        genres: (n, k) int64, padded with -1.
        mean: What a prediction starts from.
        settings: As they are.

    Returns:
        (n) float32.
    """
    present = tf.reduce_sum(tf.cast(tf.not_equal(genres, PADDING), tf.float32), axis=1)
    genre = tf.reduce_sum(rows["genres"], axis=1) / tf.maximum(present, 1.0)[:, None]
    user_bias, user = rows["user"][:, 0], rows["user"][:, 1:]
    movie_bias, movie = rows["movie"][:, 0], rows["movie"][:, 1:]
    genre_bias, genre = genre[:, 0], genre[:, 1:]
    by_movie, by_genre = user * movie, user * genre
    seen = tf.concat([user, movie, genre, by_movie, by_genre], axis=1)
    seen.set_shape([None, 5 * (settings.dim - 1)])
    with tf1.variable_scope("dense", reuse=tf1.AUTO_REUSE):
        hidden = tf.nn.relu(_dense(seen, settings.hidden, "hidden"))
        correction = _dense(hidden, 1, "correction")[:, 0]
    return (mean + user_bias + movie_bias + genre_bias + tf.reduce_sum(by_movie, axis=1)
            + tf.reduce_sum(by_genre, axis=1) + correction)


def _dense(values: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """A dense layer without activation: (n, k) to (n, units). Newer TensorFlow has no tf.layers."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [values.shape.as_list()[1], units])
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return tf.matmul(values, kernel) + bias


def losses(prediction: tf.Tensor, batch: Dict[str, tf.Tensor], rows: Dict[str, tf.Tensor],
          settings: Settings) -> Tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean squared error, and what is minimised: with the decay of rows."""
    loss = tf.reduce_mean(tf.square(prediction - batch["stars"]))
    squares = [tf.reduce_sum(tf.square(part)) for part in rows.values()]
    count = tf.cast(tf.size(batch["stars"]), tf.float32)
    kernels = [tf.reduce_sum(tf.square(variable)) for variable in tf1.trainable_variables()
               if variable.name.endswith("kernel:0")]
    return loss, (loss + settings.decay * tf.add_n(squares) / count
                  + settings.kernel_decay * tf.add_n(kernels))


class History(NamedTuple):
    """What training showed.

    Attributes:
        losses: Mean squared error, one per step.
        errors: Held-out RMSE, one per epoch.
        speed: Ratings per second of training steps: the median epoch's.
        batches: Sum over the steps of a number made from the batch: equal for equal batches in
            equal order.
    """

    losses: List[float]
    errors: List[float]
    speed: float
    batches: int


def feed(model: Model, ratings: Ratings) -> Dict[tf.Tensor, np.ndarray]:
    """Returns what to feed when a pipeline starts."""
    return {model.columns[name]: getattr(ratings, name) for name in COLUMNS}


def fit(session: tf1.Session, model: Model, train: Ratings, held_out: Ratings, settings: Settings,
        say: Callable[[str], None]) -> History:
    """Trains a model.

    Args:
        session: On the model's graph, initialised.
        model: What to train.
        train: Ratings to learn from; each epoch takes them in another order, which depends on
            the seed alone.
        held_out: Ratings to look at after each epoch; nothing depends on them.
        settings: As they are.
        say: Gets a line per epoch.

    Returns:
        The history.
    """
    losses, errors, speeds, batches = [], [], [], 0
    for epoch in range(settings.epochs):
        order = np.random.RandomState(settings.seed + epoch).permutation(len(train.stars))
        session.run(model.start[True], feed(model, train.take(order)))
        first, began = len(losses), time.perf_counter()
        while True:
            try:
                loss, users, _ = session.run([model.loss, model.batch["user"], model.train])
            except tf.errors.OutOfRangeError:
                break
            losses.append(float(loss))
            batches += len(losses) * int(users[0] * 31 + users[-1])
        took = time.perf_counter() - began
        speeds.append(len(train.stars) / took)
        errors.append(rmse(predict(session, model, held_out), held_out.stars))
        tables = ", ".join("{} {:,}".format(name, table.size())
                           for name, table in model.tables.items())
        line = "epoch {:2d}  step {:5d}  loss {:.4f}  held-out RMSE {:.4f}  {:9,.0f} ratings/s"
        say(line.format(epoch + 1, len(losses), float(np.mean(losses[first:])), errors[-1],
                        speeds[-1]) + ("  rows: " + tables if tables else ""))
    return History(losses, errors, float(np.median(speeds)), batches)


def predict(session: tf1.Session, model: Model, ratings: Ratings) -> np.ndarray:
    """Predicts ratings; no table gets a row by it.

    Args:
        session: On the model's graph.
        model: The model.
        ratings: Whose users and movies to look at.

    Returns:
        (n) float32.
    """
    session.run(model.start[False], feed(model, ratings))
    parts = []
    while True:
        try:
            parts.append(session.run(model.prediction))
        except tf.errors.OutOfRangeError:
            return np.concatenate(parts)


def first_rows(session: tf1.Session, model: Model,
               ratings: Ratings) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
    """Looks up the rows that training will start from: this gives each id its row.

    Args:
        session: On the graph of a model on tables; not the one that trains.
        model: The model.
        ratings: Whose ids to look up.

    Returns:
        By feature: ids (m) and their rows (m, dim).
    """
    found = {}
    for name in FEATURES:
        ids = np.unique(getattr(ratings, name))
        ids = ids[ids != PADDING]
        shape = (-1, 1) if name == "genres" else (-1,)
        rows = session.run(model.rows[name], {model.batch[name]: ids.reshape(shape)})
        found[name] = (ids, rows.reshape(len(ids), -1))
    return found


def copy_start(session: tf1.Session, model: Model, rows: Dict[str, Tuple[np.ndarray, np.ndarray]],
               kernels: Dict[str, np.ndarray]) -> None:
    """Gives a model on variables the values that the model on tables started from.

    Args:
        session: On the model's graph, initialised.
        model: A model on variables.
        rows: As `first_rows` returns them. Ids that are not there keep zeros, which is what a
            table shows for them.
        kernels: Values of the dense variables by name.
    """
    for name, (ids, values) in rows.items():
        start = np.zeros(model.storage[name].shape.as_list(), np.float32)
        start[ids] = values
        model.storage[name].load(start, session)
    with model.graph.as_default():
        for variable in tf1.trainable_variables():
            variable.load(kernels[variable.name], session)
