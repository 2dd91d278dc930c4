"""What rows of 2 bytes do to a recommender: MovieLens' test AUC by type of rows, for some seeds.

A factorization with biases tells ratings of 4 and more from the others. All types of one seed have
the same first rows, before rounding, and the same batches. Prints a table. Data: MovieLens'
ratings.csv, or ml-100k.inter of the package recbole 1.2.1:

    python benches/half_movielens.py --optimizer sgd DIR/ratings.csv

With --slots rows of 2 bytes have their slots of that type, too.
"""

import argparse
import csv
import importlib
import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
warnings.filterwarnings("ignore", category=FutureWarning)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf1 = tf.compat.v1

FLOAT32 = ("float32", "stochastic")
FORMS = (FLOAT32, ("float16", "stochastic"), ("float16", "nearest"), ("bfloat16", "stochastic"),
         ("bfloat16", "nearest"))

# The first of a row's floats is its bias.
DIM, DECAY, BATCH, EPOCHS = 17, 0.02, 256, 12


def main():
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="ratings.csv or ml-100k.inter")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--slots", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    print("| ratings | optimizer | rows | test AUC, by seed | mean | from float32, mean | "
          "largest |")
    print("|---|---|---|---|---|---|---|")
    for path in arguments.data:
        ratings = load(path)
        found = {}
        for form in FORMS:
            slots = FLOAT32[0] if form == FLOAT32 else arguments.slots
            found[form] = np.array([train(form + (slots,), arguments.optimizer, ratings, seed,
                                          arguments.epochs) for seed in range(arguments.seeds)])
            away = found[form] - found[FLOAT32]
            print("| %s | %s | %s | %s | %.5f | %+.5f | %.5f |" % (
                os.path.basename(path), arguments.optimizer,
                ", ".join(form[:1] if form == FLOAT32 else form + (
                    (("slots " + slots),) if slots != FLOAT32[0] else ())),
                " ".join("%.4f" % value for value in found[form]), found[form].mean(),
                away.mean(), np.abs(away).max()), flush=True)
    return 0


# The modules of optimizers and what each gets; those of TensorFlow train what becomes tables.
OPTIMIZERS = {"sgd": ("gradient_descent", (0.01,)),
              "rowwise_adagrad": ("rowwise_adagrad", (0.02, 0.1)),
              "lazy_adam": ("lazy_adam", (0.001,)), "adam": ("adam", (0.001,)),
              "adagrad": ("adagrad", (0.02,)), "momentum": ("momentum", (0.001, 0.9)),
              "ftrl": ("ftrl", (0.05,)), "rmsprop": ("rmsprop", (0.001,)),
              "rowwise_adam": ("rowwise_adam", (0.001,)),
              "adamw": ("AdamWOptimizer", (0.0001, 0.001)), "nadam": ("NadamOptimizer", (0.001,))}
FROM_TENSORFLOW = ("adamw", "nadam")


def load(path):
    """Returns users and items, counted from 0, and whether stars are 4 or more: arrays (n)."""
    is_csv = path.endswith(".csv")
    with open(path) as lines:
        rows = list(csv.reader(lines, delimiter="," if is_csv else "\t"))[1:]
    columns = [np.array([float(row[at]) for row in rows]) for at in range(3)]
    users, items = [np.unique(column, return_inverse=True)[1] for column in columns[:2]]
    return users.astype(np.int64), items.astype(np.int64), columns[2] >= 4


def auc(scores, labels):
    """The area under the curve of a ranking, ties counted half."""
    values, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    del values
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[places]
    positive = int(labels.sum())
    return (ranks[labels].sum() - positive * (positive + 1) / 2.0) / (
        positive * (len(labels) - positive))


def train(form, optimizer, ratings, seed, epochs):
    """Trains once; returns the test AUC at the end."""
    from mx_rec.stock.convert import converted

    users, items, likes = ratings
    random = np.random.RandomState(seed)
    test, kept = np.split(random.permutation(len(likes)), [len(likes) // 10])
    tf1.reset_default_graph()
    tf1.set_random_seed(seed)
    ids = [tf1.placeholder(tf.int64, [None]) for _ in range(2)]
    wanted = tf1.placeholder(tf.float32, [None])
    from_tensorflow = optimizer in FROM_TENSORFLOW
    begin(form, from_tensorflow)
    initializer = tf1.truncated_normal_initializer(stddev=0.05, seed=seed)
    names, counts = ("users", "items"), [int(column.max()) + 1 for column in (users, items)]
    if from_tensorflow:
        tables = [tf1.get_variable(name, [count, DIM], initializer=initializer)
                  for name, count in zip(names, counts)]
        rows = [tf.nn.embedding_lookup(table, one) for table, one in zip(tables, ids)]
    else:
        from mx_rec.core.embedding import create_table, sparse_lookup

        tables = [create_table(tf.int64, DIM, name, initializer, device_vocabulary_size=20000,
                               row_dtype=form[0], row_rounding=form[1], slot_dtype=form[2])
                  for name in names]
        rows = [sparse_lookup(table, one, modify_graph=True) for table, one in zip(tables, ids)]
    share = likes[kept].mean()
    scores = np.log(share / (1 - share)) + rows[0][:, 0] + rows[1][:, 0] + tf.reduce_sum(
        rows[0][:, 1:] * rows[1][:, 1:], 1)
    loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=scores)) \
        + DECAY * tf.add_n([tf.reduce_sum(tf.square(one)) for one in rows])
    module, settings = OPTIMIZERS[optimizer]
    if from_tensorflow:
        update = getattr(tf.contrib.opt, module)(*settings).minimize(loss)
    else:
        made = importlib.import_module("mx_rec.optimizers." + module)
        update = made.create_hash_optimizer(*settings).minimize(
            loss, var_list=[one.variable for one in tables])
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())

        def feed(places):
            return {ids[0]: users[places], ids[1]: items[places], wanted: likes[places]}

        for _ in range(epochs):
            mixed = random.permutation(kept)
            for first in range(0, len(mixed), BATCH):
                session.run(update, feed(mixed[first:first + BATCH]))
        if from_tensorflow and len(converted(tf1.get_default_graph())) != len(tables):
            raise RuntimeError("%s: not all variables are tables" % optimizer)
        return auc(session.run(scores, feed(test)), likes[test])


def begin(form, from_tensorflow):
    """Decides what becomes of variables: tables with rows of a form, of TensorFlow's optimizers."""
    from mx_rec.util.initialize import ConfigInitializer, init, terminate_config_initializer
    from mx_rec.util.stock_tables import StockTables

    if ConfigInitializer._single_instance is not None:
        terminate_config_initializer()
    init(stock_tables=StockTables(least_rows=1, row_dtype=form[0], row_rounding=form[1],
                                  slot_dtype=form[2]) if from_tensorflow else None)


if __name__ == "__main__":
    sys.exit(main())
