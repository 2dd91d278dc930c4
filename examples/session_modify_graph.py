"""Trains a recommender in a tf.Session on plain tensors, and lets the graph be modified for speed.

The model is that of movielens.py: user, movie and genre tables under dense layers predict how many
stars a user gives a film. Prints the error on held-out ratings after each epoch, beside that of a
constant guess, and saves the tables. Ends with a table of promises and exits with 0 only if all
were kept.

With USE_MODIFY_GRAPH=1 (the default) or --modify-graph 1, ids are plain tensors of the batch, and
modify_graph_and_start_emb_cache moves the key work into the input pipeline. With 0, FeatureSpecs
read the ids. The saved tables are the same, byte for byte.
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
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func  # noqa: E402
from mx_rec.core.asc.manager import start_asc_pipeline  # noqa: E402
from mx_rec.core.embedding import create_table, sparse_lookup  # noqa: E402
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache  # noqa: E402
from mx_rec.optimizers.lazy_adam import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import (clear_channel, get_initializer, get_target_batch,  # noqa: E402
                                    init, terminate_config_initializer)
from mx_rec.util.variable import get_dense_and_sparse_variable  # noqa: E402

tf1 = tf.compat.v1


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--modify-graph", type=int, choices=(0, 1),
                        default=int(os.environ.get("USE_MODIFY_GRAPH", "1")), help="1: look up "
                        "tensors and modify the graph; 0: FeatureSpecs (default: the environment "
                        "variable USE_MODIFY_GRAPH, else 1)")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the training ratings "
                        "(default {}, with --quick 3)".format(model.Settings().epochs))
    parser.add_argument("--batch", type=int, metavar="N", help="ratings per step (default {}, with "
                        "--quick 128)".format(model.Settings().batch))
    parser.add_argument("--out", metavar="DIR", help="where the checkpoint goes; without it, to a "
                        "temporary directory, which is removed at the end")
    parser.add_argument("--dump-graph", action="store_true", help="write the graphs before and "
                        "after the modification to ./export_graph, with the plan")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings: shows in seconds that everything runs")
    args = parser.parse_args()
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    if args.epochs is None:
        args.epochs = 3 if args.quick else model.Settings().epochs
    if args.batch is None:
        args.batch = 128 if args.quick else model.Settings().batch
    if args.epochs < 1 or args.batch < 1:
        parser.error("--epochs and --batch should be at least 1")
    return args


def say(text=""):
    """Prints at once, so that progress shows."""
    print(text, flush=True)


def make_iterator(ratings, batch, specs, shuffle_seed=None):
    """Makes the input pipeline of one mode.

    Args:
        ratings: What to read.
        batch: Ratings per step.
        specs: FeatureSpecs by feature; empty if tensors are looked up.
        shuffle_seed: int64 scalar tensor for training, None for the order that ratings have.

    Returns:
        An initializable iterator of dicts with an entry per feature, and "stars".
    """
    columns = {name: getattr(ratings, name) for name in model.COLUMNS}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    if shuffle_seed is not None:
        dataset = dataset.shuffle(len(ratings.stars), seed=shuffle_seed)
    dataset = dataset.batch(batch)
    if specs:
        dataset = dataset.map(get_asc_insert_func(list(specs.values()),
                                                  is_training=shuffle_seed is not None))
    return tf1.data.make_initializable_iterator(dataset.prefetch(4))


def forward(tables, specs, batch, mean, settings, is_train):
    """Looks the ids of a batch up and scores them; returns the rows by feature and the score."""
    rows = {
        name: sparse_lookup(table, specs[name], is_train=is_train, batch=batch)
        if specs else sparse_lookup(table, batch[name], is_train=is_train, modify_graph=True)
        for name, table in tables.items()}
    # Seeds of their own: those that TensorFlow derives depend on how many ops the graph has.
    with tf1.variable_scope("", reuse=tf1.AUTO_REUSE,
                            initializer=tf1.glorot_uniform_initializer(seed=settings.seed)):
        return rows, model.score(rows, batch["genres"], mean, settings)


class Script:
    """The graph of this script, and what its session runs.

    Attributes:
        tables: By feature.
        start: Ops that start the pipelines, by is_training.
        saver: Of dense variables and tables.
    """

    def __init__(self, args, train, held_out, settings):
        self._epoch = tf1.placeholder_with_default(np.int64(0), [], name="epoch")
        specs = {} if args.modify_graph else {
            name: FeatureSpec(name, table_name=name, index_key=name) for name in model.FEATURES}
        iterator = make_iterator(train, args.batch, specs, self._epoch + settings.seed)
        eval_iterator = make_iterator(held_out, args.batch, specs)
        batch, eval_batch = iterator.get_next(), eval_iterator.get_next()

        budget = max(len(np.unique(getattr(train, name))) for name in model.FEATURES) + 1
        self.tables = {
            name: create_table(
                key_dtype=tf.int64, dim=tf.TensorShape([settings.dim]), name=name,
                device_vocabulary_size=budget, emb_initializer=tf1.truncated_normal_initializer(
                    stddev=settings.spread, seed=settings.seed + place))
            for place, name in enumerate(model.FEATURES)}
        mean = float(np.mean(train.stars))
        rows, stars = forward(self.tables, specs, batch, mean, settings, True)
        self._loss, total = model.losses(stars, batch, rows, settings)
        _, self._prediction = forward(self.tables, specs, eval_batch, mean, settings, False)

        dense, sparse = get_dense_and_sparse_variable()
        # Gated, so that no kernel is updated before all gradients that read it are there.
        gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
        self._train = tf.group(
            tf1.train.AdamOptimizer(settings.rate).apply_gradients(
                zip(gradients[:len(dense)], dense)),
            create_hash_optimizer(learning_rate=settings.rate).apply_gradients(
                zip(gradients[len(dense):], sparse)))

        if args.modify_graph:
            modify_graph_and_start_emb_cache(dump_graph=args.dump_graph)
            self.start = {mode: get_initializer(mode) for mode in (True, False)}
            self._label = get_target_batch(False)["stars"]
        else:
            start_asc_pipeline()
            self.start = {True: iterator.initializer, False: eval_iterator.initializer}
            self._label = eval_batch["stars"]
        self._clear = clear_channel(is_train_channel=False)
        self.saver = tf1.train.Saver()

    def train_epoch(self, sess, epoch):
        """Trains until the data end; returns the mean of the losses and the number of steps."""
        sess.run(self.start[True], {self._epoch: epoch})
        losses = []
        while True:
            try:
                losses.append(sess.run([self._loss, self._train])[0])
            except tf.errors.OutOfRangeError:
                return float(np.mean(losses)), len(losses)
            # Here, between two steps, is where a script without hooks evicts, by
            # mx_rec.core.admission.evict; admission_eviction.py does it by an EvictHook.

    def evaluate(self, sess):
        """Predicts the held-out ratings; returns predictions and labels in the data's order."""
        sess.run([self.start[False], self._clear])
        predictions, labels = [], []
        while True:
            try:
                prediction, label = sess.run([self._prediction, self._label])
            except tf.errors.OutOfRangeError:
                return np.concatenate(predictions), np.concatenate(labels)
            predictions.append(prediction)
            labels.append(label)


def run(args, out):
    """Trains, evaluates, saves and restores; returns the exit code."""
    train, held_out = data.load_and_split(args.data, args.quick)
    settings = model.Settings(epochs=args.epochs, batch=args.batch)
    constant = data.rmse(np.mean(train.stars), held_out.stars)
    say("{}; constant: held-out RMSE {:.4f}\n".format(
        "graph modified" if args.modify_graph else "FeatureSpecs", constant))
    init()
    script = Script(args, train, held_out, settings)
    path = os.path.join(out, "model.ckpt")
    errors, done, speeds = [], 0, []
    with tf1.Session() as sess:
        sess.run(tf1.global_variables_initializer())
        for epoch in range(args.epochs):
            began = time.perf_counter()
            loss, steps = script.train_epoch(sess, epoch)
            speeds.append(len(train.stars) / (time.perf_counter() - began))
            done += steps
            prediction, label = script.evaluate(sess)
            errors.append(data.rmse(prediction, label))
            say("  epoch {:2d}  step {:5d}  loss {:.4f}  held-out RMSE {:.4f}  {:9,.0f} ratings/s"
                .format(epoch + 1, done, loss, errors[-1], speeds[-1]))
        script.saver.save(sess, path, global_step=done)
        sizes = {name: table.size() for name, table in script.tables.items()}
    with tf1.Session() as sess:
        script.saver.restore(sess, "{}-{}".format(path, done))
        again, _ = script.evaluate(sess)
    terminate_config_initializer()

    wanted = {name: len(np.unique(part[part != data.PADDING]))
              for name, part in ((name, getattr(train, name)) for name in model.FEATURES)}
    promises = [
        ("{} steps were trained ({})".format(-(-len(train.stars) // args.batch) * args.epochs,
                                             done),
         done == -(-len(train.stars) // args.batch) * args.epochs),
        ("the model is better than the constant ({:.4f} < {:.4f})".format(errors[-1], constant),
         errors[-1] < constant),
        ("predictions came beside their own labels", np.array_equal(label, held_out.stars)),
        ("each id of the training ratings has a row, and no other ({})".format(
            ", ".join("{} {:,}".format(name, size) for name, size in sizes.items())),
         sizes == wanted),
        ("a new session restores the checkpoint and predicts the same bits",
         again.tobytes() == prediction.tobytes()),
    ]
    say("\nmedian speed: {:,.0f} ratings/s".format(np.median(speeds)))
    return outcome.show(promises)


def main():
    """Runs the example; returns the exit code."""
    args = parse()
    return outcome.run(run, args, args.out or "")


if __name__ == "__main__":
    sys.exit(main())
