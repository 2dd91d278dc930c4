"""What the rule of Adam does to a recommender: MovieLens' test error by step, for some seeds.

One program of TensorFlow alone, a factorization with biases that tf.train.AdamOptimizer trains,
runs on variables, on tables with the same numbers, and on tables with lazy_adam. Prints a table and
draws the curves. Data: MovieLens' ratings.csv, or ml-100k.inter of the package recbole 1.2.1:

    python benches/adam_movielens.py --picture docs/adam_movielens.png DIR/ratings.csv ml-100k.inter
"""

import argparse
import csv
import itertools
import os
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
warnings.filterwarnings("ignore", category=FutureWarning)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf1 = tf.compat.v1

VARIABLES, TABLES, LAZY = "AdamOptimizer on variables", "on tables", "on tables, lazy_adam"
RULES = (VARIABLES, TABLES, LAZY)

# The first of a row's floats is its bias.
DIM, RATE, DECAY, BATCH, EPOCHS, EVERY = 17, 0.003, 0.05, 256, 10, 100


def main():
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="ratings.csv or ml-100k.inter")
    parser.add_argument("--picture", required=True, help="PNG to draw the curves into")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    found = {path: load(path) for path in arguments.data}
    curves = {}
    with tempfile.TemporaryDirectory() as starts:
        for rule, (number, (path, ratings)) in itertools.product(RULES, enumerate(found.items())):
            begin(rule)
            curves[path, rule] = np.array([
                train(rule, ratings, seed, arguments.epochs, "%s/%d-%d" % (starts, number, seed))
                for seed in range(arguments.seeds)])
            print("%s, %s: %s" % (path, rule, " ".join(
                "%.4f" % errors[-1] for errors in curves[path, rule])), flush=True)
    report(curves, list(found))
    draw(arguments.picture, curves, list(found))
    return 0


def load(path):
    """Returns users and items, counted from 0, and stars: int64, int64 and float32 arrays (n)."""
    is_csv = path.endswith(".csv")
    with open(path) as lines:
        rows = list(csv.reader(lines, delimiter="," if is_csv else "\t"))[1:]
    columns = [np.array([float(row[at]) for row in rows]) for at in range(3)]
    users, items = [np.unique(column, return_inverse=True)[1] for column in columns[:2]]
    return users.astype(np.int64), items.astype(np.int64), columns[2].astype(np.float32)


def begin(rule):
    """Decides what becomes of the program's variables."""
    from mx_rec.util.initialize import ConfigInitializer, init, terminate_config_initializer
    from mx_rec.util.stock_tables import StockTables

    if ConfigInitializer._single_instance is not None:
        terminate_config_initializer()
    if rule != VARIABLES:
        init(stock_tables=StockTables(least_rows=1, lazy_adam=rule == LAZY))


def train(rule, ratings, seed, epochs, start):
    """Trains once; returns the test RMSE before the first step, and after each EVERY steps."""
    users, items, stars = ratings
    random = np.random.RandomState(seed)
    order = random.permutation(len(stars))
    test, kept = np.split(order, [len(order) // 10])
    counts = [int(column.max()) + 1 for column in (users, items)]
    with tf.Graph().as_default():
        tf1.set_random_seed(seed)
        ids = [tf1.placeholder(tf.int64, [None]) for _ in range(2)]
        wanted = tf1.placeholder(tf.float32, [None])
        tables = [tf1.get_variable(name, [count, DIM], use_resource=False,
                                   initializer=tf1.truncated_normal_initializer(stddev=0.05))
                  for name, count in zip(("users", "items"), counts)]
        rows = [tf.nn.embedding_lookup(table, one) for table, one in zip(tables, ids)]
        scores = stars[kept].mean() + rows[0][:, 0] + rows[1][:, 0] + tf.reduce_sum(
            rows[0][:, 1:] * rows[1][:, 1:], 1)
        loss = tf.reduce_mean(tf.square(scores - wanted)) + DECAY * tf.add_n(
            [tf.reduce_mean(tf.reduce_sum(tf.square(one), 1)) for one in rows])
        update = tf1.train.AdamOptimizer(RATE).minimize(loss)
        saver = tf1.train.Saver()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            # Rows of tables are drawn by another generator: all start from a checkpoint.
            (saver.save if rule == VARIABLES else saver.restore)(session, start)

            def feed(places):
                return {ids[0]: users[places], ids[1]: items[places], wanted: stars[places]}

            def error():
                return np.sqrt(np.mean(np.square(session.run(scores, feed(test)) - stars[test])))

            step, errors = 0, [error()]
            for _ in range(epochs):
                mixed = random.permutation(kept)
                for first in range(0, len(mixed), BATCH):
                    session.run(update, feed(mixed[first:first + BATCH]))
                    step += 1
                    if step % EVERY == 0:
                        errors.append(error())
        expect(rule, tf1.get_default_graph())
    return errors


def expect(rule, graph):
    """Refuses a run whose variables did not become what `rule` says."""
    from mx_rec.stock.convert import converted

    found = [one.plan.name for one in converted(graph)]
    if len(found) != (0 if rule == VARIABLES else 2):
        raise RuntimeError("%s: the tables are %s" % (rule, found))


def report(curves, paths):
    """Prints the table of docs/performance.md."""
    print("| ratings | rule | test RMSE at the end, by seed | least on the way, mean | "
          "farthest from variables |\n|---|---|---|---|---|")
    for path in paths:
        for rule in RULES:
            runs = curves[path, rule]
            print("| %s | %s | %s | %.4f | %.1e |" % (
                os.path.basename(path), rule, ", ".join("%.4f" % value for value in runs[:, -1]),
                runs.min(1).mean(), np.abs(runs - curves[path, VARIABLES]).max()))


def draw(picture, curves, paths):
    """Draws the mean of the seeds, and their range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(paths), squeeze=False, figsize=(6.5 * len(paths), 4.5))
    styles = {VARIABLES: ("C0", "-", 4.0), TABLES: ("C1", "--", 1.5), LAZY: ("C2", "-", 1.5)}
    for axis, path in zip(axes[0], paths):
        for rule, (colour, style, width) in styles.items():
            runs = curves[path, rule]
            steps = np.arange(runs.shape[1]) * EVERY
            axis.plot(steps, runs.mean(0), style, color=colour, linewidth=width, label=rule)
            axis.fill_between(steps, runs.min(0), runs.max(0), color=colour, alpha=0.15)
        lowest = min(curves[path, rule].min() for rule in styles)
        axis.set_ylim(lowest - 0.01, lowest + 0.12)
        axis.set_xlabel("step")
        axis.set_ylabel("test RMSE in stars")
        axis.set_title("%s, %d seeds: mean and range" % (os.path.basename(path), len(runs)))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    sys.exit(main())
