"""Trains a recommender whose rows are ten times what memory may hold, and loses not a bit by it.

The model is that of movielens.py. It is trained three times on the same ratings:

    memory    all rows in memory
    disk      a tenth of the rows of users and movies in memory, the others in files
    modified  the same, with the graph modified: rows are read in the input pipeline, batches ahead

Prints, for each, the loss, the error on held-out ratings, and what table_stats tells of rows in
memory and on disk. Saves each, and restores the one from memory to disk. Ends with a table of
promises and exits with 0 only if all were kept: the losses, predictions and saved rows are the same
bits.
"""

import argparse
import os
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
warnings.filterwarnings("ignore", category=FutureWarning)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import movielens_data as data  # noqa: E402
import movielens_model as model  # noqa: E402
import outcome  # noqa: E402
from mx_rec.core.asc.manager import start_asc_pipeline  # noqa: E402
from mx_rec.core.embedding import create_table, sparse_lookup  # noqa: E402
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache  # noqa: E402
from mx_rec.optimizers.lazy_adam import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import (get_initializer, init,  # noqa: E402
                                    terminate_config_initializer)
from mx_rec.util.stats import table_stats  # noqa: E402
from mx_rec.util.variable import get_dense_and_sparse_variable  # noqa: E402

tf1 = tf.compat.v1

# So many times more rows than memory may hold. Genres are few: their table has no disk.
TIMES = 10
ON_DISK = ("user", "movie")


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--ssd", metavar="DIR", action="append", help="where rows go; may be given "
                        "several times (default: a temporary directory)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N",
                        help="passes over the training ratings (default 3, with --quick 1)")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings: shows in seconds that everything runs")
    args = parser.parse_args()
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    if args.epochs < 1:
        parser.error("--epochs should be at least 1")
    args.epochs = 1 if args.quick else args.epochs
    return args


def say(text=""):
    """Prints at once, so that progress shows."""
    print(text, flush=True)


def load(args):
    """Returns the ratings to train with and those held out."""
    if args.data:
        return data.load_and_split(args.data, False)
    # Many users: a batch should not need all rows that memory may hold.
    ratings = data.generate(20000 if args.quick else 200000, users=3000 if args.quick else 20000)
    kept, held_out = data.split(len(ratings.stars), 0.1, seed=3)
    return ratings.take(kept), ratings.take(held_out)


def make_iterator(ratings, batch, shuffle_seed=None):
    """Returns an initializable iterator of dicts with an entry for each column."""
    dataset = tf.data.Dataset.from_tensor_slices(
        {name: getattr(ratings, name) for name in model.COLUMNS})
    if shuffle_seed is not None:
        dataset = dataset.shuffle(len(ratings.stars), seed=shuffle_seed)
    return tf1.data.make_initializable_iterator(dataset.batch(batch).prefetch(2))


class Recommender:
    """The graph of one training.

    Args:
        name: For messages, and for its checkpoint.
        ratings: (training, held out).
        settings: Of the model.
        directories: Where rows go, None for tables that are all in memory.
        is_modified: Whether the graph is modified.
    """

    def __init__(self, name, ratings, settings, directories=None, is_modified=False):
        self.name = name
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._build(ratings, settings, directories, is_modified)

    def _build(self, ratings, settings, directories, is_modified):
        train, held_out = ratings
        self._epoch = tf1.placeholder_with_default(np.int64(0), [], name="epoch")
        iterators = {True: make_iterator(train, settings.batch, self._epoch + settings.seed),
                     False: make_iterator(held_out, settings.batch)}
        batches = {mode: iterator.get_next() for mode, iterator in iterators.items()}
        self.tables = {}
        for place, name in enumerate(model.FEATURES):
            rows = len(np.unique(getattr(train, name)))
            storage = {"device_vocabulary_size": rows}
            if directories and name in ON_DISK:
                # Of two parts of memory, which are one here.
                memory = max(rows // TIMES, 2)
                storage = {"device_vocabulary_size": 1, "host_vocabulary_size": memory - 1,
                           "ssd_vocabulary_size": rows - memory, "ssd_data_path": directories}
            self.tables[name] = create_table(
                key_dtype=tf.int64, dim=settings.dim, name=name,
                emb_initializer=tf1.truncated_normal_initializer(
                    stddev=settings.spread, seed=settings.seed + place), **storage)
        mean = float(np.mean(train.stars))
        outcomes = {}
        for mode, batch in batches.items():
            rows = {name: sparse_lookup(table, batch[name], is_train=mode, modify_graph=True)
                    for name, table in self.tables.items()}
            with tf1.variable_scope("", reuse=tf1.AUTO_REUSE,
                                    initializer=tf1.glorot_uniform_initializer(seed=settings.seed)):
                outcomes[mode] = rows, model.score(rows, batch["genres"], mean, settings)
        rows, stars = outcomes[True]
        self._loss, total = model.losses(stars, batches[True], rows, settings)
        self._prediction = outcomes[False][1]
        dense, sparse = get_dense_and_sparse_variable()
        gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
        self._train = tf.group(
            tf1.train.AdamOptimizer(settings.rate).apply_gradients(
                zip(gradients[:len(dense)], dense)),
            create_hash_optimizer(learning_rate=settings.rate).apply_gradients(
                zip(gradients[len(dense):], sparse)))
        if is_modified:
            modify_graph_and_start_emb_cache()
            self._start = {mode: get_initializer(mode) for mode in (True, False)}
        else:
            start_asc_pipeline()
            self._start = {mode: iterator.initializer for mode, iterator in iterators.items()}
        self.saver = tf1.train.Saver()

    def train(self, sess, epochs):
        """Trains; returns the loss of each step."""
        losses = []
        for epoch in range(epochs):
            sess.run(self._start[True], {self._epoch: epoch})
            while True:
                try:
                    losses.append(sess.run([self._loss, self._train])[0])
                except tf.errors.OutOfRangeError:
                    break
        return np.array(losses)

    def predict(self, sess):
        """Returns the predictions for the held-out ratings, in their order."""
        sess.run(self._start[False])
        predictions = []
        while True:
            try:
                predictions.append(sess.run(self._prediction))
            except tf.errors.OutOfRangeError:
                return np.concatenate(predictions)


def saved_rows(directory, table):
    """Returns what a checkpoint has of a table: by file, the bytes of each key's part."""
    folder = os.path.join(directory, "sparse-model.ckpt", table)
    keys = np.fromfile(os.path.join(folder, "key", "slice.data"), np.int64)
    order = np.argsort(keys)
    found = {"key": keys[order].tobytes()}
    for part in sorted(os.listdir(folder)):
        path = os.path.join(folder, part, "slice.data")
        if part != "key" and os.path.exists(path):
            floats = np.fromfile(path, np.float32).reshape(len(keys), -1)
            found[part] = floats[order].tobytes()
    return found


def run(args, out):
    """Trains three times and compares; returns the exit code."""
    ratings = load(args)
    # Memory has to hold the ids of the batches ahead: four of them with prefetch(2).
    settings = model.Settings(batch=64 if args.quick else 256)
    directories = args.ssd or [os.path.join(out, "ssd")]
    if not args.ssd:
        os.makedirs(directories[0])
    init()
    kinds = {"memory": {}, "disk": {"directories": directories},
             "modified": {"directories": directories, "is_modified": True}}
    losses, predictions, rows, stats, restored = {}, {}, {}, {}, None
    for name, options in kinds.items():
        recommender = Recommender(name, ratings, settings, **options)
        folder = os.path.join(out, name)
        os.makedirs(folder)
        with recommender.graph.as_default(), tf1.Session() as sess:
            sess.run(tf1.global_variables_initializer())
            began = time.perf_counter()
            losses[name] = recommender.train(sess, args.epochs)
            seconds = time.perf_counter() - began
            predictions[name] = recommender.predict(sess)
            stats[name] = table_stats()
            recommender.saver.save(sess, os.path.join(folder, "model.ckpt"))
            say("{:9s} loss {:.6f}, held-out RMSE {:.4f}, {:.0f} steps/s".format(
                name, losses[name][-1], data.rmse(predictions[name], ratings[1].stars),
                len(losses[name]) / seconds))
            for table in ON_DISK:
                one = stats[name][table]
                say("  {:6s} {:,} rows in memory, {:,} on disk; {:,} found in memory, {:,} read, "
                    "{:.2f} s waited".format(table, one.rows_memory, one.rows_disk,
                                             one.found_memory, one.read_disk, one.wait_seconds))
            if name == "disk":
                recommender.saver.restore(sess, os.path.join(out, "memory", "model.ckpt"))
                restored = recommender.predict(sess)
        rows[name] = {table: saved_rows(folder, table) for table in model.FEATURES}
    terminate_config_initializer()

    def are_same(by_name, same):
        return all(same(by_name["memory"], by_name[name]) for name in kinds)

    return outcome.show([
        ("a tenth of the rows is in memory",
         all(stats["disk"][table].rows_memory * TIMES <= stats["disk"][table].rows
             and stats["disk"][table].rows_disk > 0 for table in ON_DISK)),
        ("the losses of all steps are the same bits",
         are_same(losses, np.array_equal)),
        ("so are the predictions", are_same(predictions, np.array_equal)),
        ("so are all saved rows and slots", are_same(rows, lambda one, other: one == other)),
        ("a checkpoint from memory restores to disk",
         np.array_equal(restored, predictions["memory"])),
        ("no file is left in {}".format(" and ".join(directories)),
         not any(os.listdir(directory) for directory in directories)),
    ])


def main():
    """Runs the example; returns the exit code."""
    return outcome.run(run, parse())


if __name__ == "__main__":
    sys.exit(main())
