"""Trains a recommender on tables, and holds it against the same model on variables of TensorFlow.

User, movie and genre tables under dense layers predict how many stars a user gives a film. Ends
with a table of promises and exits with 0 only if all were kept. scripts/demo runs this.
"""

import argparse
import os
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
warnings.filterwarnings("ignore", category=FutureWarning)

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import movielens_data as data  # noqa: E402
import movielens_model as model  # noqa: E402
import outcome  # noqa: E402
from mx_rec.util.initialize import init, terminate_config_initializer  # noqa: E402

tf1 = tf.compat.v1

HELD_OUT = 0.1
SPLIT_SEED = 3
# On MovieLens' small set.
LARGEST_ERROR = 0.92
LARGEST_DIFFERENCE = 0.005


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--epochs", type=int, default=model.Settings().epochs,
                        help="passes over the training ratings (default %(default)s)")
    parser.add_argument("--batch", type=int, default=model.Settings().batch,
                        help="ratings per step (default %(default)s)")
    parser.add_argument("--out", default="out/demo", help="where the plot and the checkpoint go "
                        "(default %(default)s)")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings and few epochs: shows that everything runs")
    parser.add_argument("--validate", action="store_true", help="hold out a part of the training "
                        "ratings instead: for choosing settings without looking at the others")
    parser.add_argument("--relative-to", default=".", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.epochs < 1 or args.batch < 1:
        parser.error("--epochs and --batch should be at least 1")
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    if args.data:
        args.data = os.path.join(args.relative_to, args.data)
    return args


def say(text=""):
    """Prints at once, so that progress shows."""
    print(text, flush=True)


def prepare(args):
    """Loads or generates the ratings, and splits them.

    Returns:
        The training ratings and the held-out ones.
    """
    if args.data:
        ratings = data.load(args.data)
        say("ratings of {}:".format(args.data))
    elif args.quick:
        ratings = data.generate(count=20000, users=200, movies=1500)
        say("generated ratings, few:")
    else:
        ratings = data.generate()
        say("generated ratings (--data DIR for real ones):")
    if len(ratings.stars) < 20:
        raise data.DataError("{} ratings are too few to learn from: give at least 20.".format(
            len(ratings.stars)))
    say("  {:,} ratings, {:,} users, {:,} movies, {} genres".format(
        len(ratings.stars), len(np.unique(ratings.user)), len(np.unique(ratings.movie)),
        len(np.unique(ratings.genres[ratings.genres != data.PADDING]))))
    kept, held_out = data.split(len(ratings.stars), HELD_OUT, SPLIT_SEED)
    if args.validate:
        ratings = ratings.take(kept)
        kept, held_out = data.split(len(ratings.stars), HELD_OUT, SPLIT_SEED + 1)
    say("  {:,} to learn from, {:,} held out, chosen at random".format(len(kept), len(held_out)))
    return ratings.take(kept), ratings.take(held_out)


def open_session(graph):
    """Returns a session with every variable of the graph initialised; tables start empty."""
    session = tf1.Session(graph=graph)
    with graph.as_default():
        session.run(tf1.global_variables_initializer())
    return session


def train_tables(train, held_out, settings, path):
    """Trains on tables and writes a checkpoint.

    Returns:
        The history, the held-out predictions, the first rows by feature and the first kernels by
        name.
    """
    say("\non tables of mx_rec:")
    built = model.on_tables(float(np.mean(train.stars)), budget(train), settings)
    with built.graph.as_default():
        dense = tf1.trainable_variables()
    # A table's first rows depend on nothing but its seed, so a session of their own shows them.
    with open_session(built.graph) as session:
        rows = model.first_rows(session, built, train)
    with open_session(built.graph) as session:
        kernels = dict(zip((variable.name for variable in dense), session.run(dense)))
        history = model.fit(session, built, train, held_out, settings, say)
        prediction = model.predict(session, built, held_out)
        built.saver.save(session, path)
    return history, prediction, rows, kernels


def train_variables(train, held_out, settings, rows, kernels):
    """Trains the same model on variables, from the same start.

    Returns:
        The history.
    """
    say("\non variables of TensorFlow, LazyAdam as tf.contrib has it:")
    counts = {name: int(max(getattr(part, name).max() for part in (train, held_out))) + 1
              for name in model.FEATURES}
    built = model.on_variables(float(np.mean(train.stars)), counts, settings)
    with open_session(built.graph) as session:
        model.copy_start(session, built, rows, kernels)
        return model.fit(session, built, train, held_out, settings, say)


def restored(train, held_out, settings, path):
    """Predicts with a new model whose session restored the checkpoint.

    Returns:
        The held-out predictions.
    """
    # As a new process would: nothing of mx_rec's state is kept, and all that the model knows must
    # come from the checkpoint: its own start is another one.
    terminate_config_initializer()
    init()
    built = model.on_tables(float(np.mean(train.stars)), budget(train),
                            settings._replace(seed=settings.seed + 1))
    with tf1.Session(graph=built.graph) as session:
        built.saver.restore(session, path)
        return model.predict(session, built, held_out)


def budget(train):
    """Returns the most rows that a table can need."""
    return max(len(np.unique(getattr(train, name))) for name in model.FEATURES) + 1


def draw(path, train, settings, histories, constant):
    """Draws the losses of both models, and their held-out errors."""
    figure, axes = plt.subplots(figsize=(8, 5))
    steps_per_epoch = -(-len(train.stars) // settings.batch)
    styles = (("C0", "-", 9, "none"), ("C1", "--", 4, "C1"))
    for (name, history), (colour, style, size, fill) in zip(histories.items(), styles):
        width = min(25, len(history.losses))
        mean = np.convolve(history.losses, np.ones(width) / width, mode="valid")
        axes.plot(np.arange(len(mean)) + width, np.sqrt(mean), style, color=colour, alpha=0.7,
                  label="{}: training batches (mean of {} steps)".format(name, width))
        at = steps_per_epoch * (1 + np.arange(len(history.errors)))
        axes.plot(at, history.errors, style, color=colour, marker="o", markersize=size,
                  markerfacecolor=fill, label=name + ": held-out")
    axes.axhline(constant, color="grey", linestyle=":", label="constant: held-out")
    axes.set_xlabel("step")
    axes.set_ylabel("RMSE in stars")
    axes.set_title("The same model on tables and on variables")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    """Runs the demo; returns the exit code."""
    args = parse()
    began = time.time()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    settings = model.Settings(epochs=4 if args.quick else args.epochs, batch=args.batch)
    try:
        train, held_out = prepare(args)
    except data.DataError as error:
        print("error: {}".format(error), file=sys.stderr)
        return 2
    out = os.path.abspath(args.out)
    os.makedirs(out, exist_ok=True)
    checkpoint = os.path.join(out, "checkpoint", "model.ckpt")
    os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
    plot = os.path.join(out, "loss.png")

    init()
    tables, prediction, rows, kernels = train_tables(train, held_out, settings, checkpoint)
    variables = train_variables(train, held_out, settings, rows, kernels)
    again = restored(train, held_out, settings, checkpoint)
    constant = data.rmse(np.mean(train.stars), held_out.stars)
    draw(plot, train, settings, {"tables": tables, "variables": variables}, constant)

    error, peer = tables.errors[-1], variables.errors[-1]
    say("\nheld-out RMSE after {} epochs".format(settings.epochs))
    say("  constant (mean of the training ratings)   {:.4f}".format(constant))
    say("  model on tables                           {:.4f}   {:9,.0f} ratings/s".format(
        error, tables.speed))
    say("  model on variables                        {:.4f}   {:9,.0f} ratings/s".format(
        peer, variables.speed))
    floor = None
    if held_out.expected is not None:
        floor = data.rmse(held_out.expected, held_out.stars)
        say("  best possible (the structure is known)    {:.4f}".format(floor))

    promises = [("better than the constant", error < constant)]
    if not args.quick and not args.validate and args.epochs >= model.Settings().epochs:
        if floor is None:
            promises.append(("held-out RMSE at most {}".format(LARGEST_ERROR),
                             error <= LARGEST_ERROR))
        else:
            share = (constant ** 2 - error ** 2) / (constant ** 2 - floor ** 2)
            promises.append(("explains more than half of what can be explained ({:.0%})".format(
                share), share > 0.5))
    promises += [
        ("tables and variables saw the same batches", tables.batches == variables.batches),
        ("their RMSE differ by at most {} ({:.6f})".format(LARGEST_DIFFERENCE, abs(error - peer)),
         abs(error - peer) <= LARGEST_DIFFERENCE),
        ("a new session restores the checkpoint and predicts the same bits",
         prediction.tobytes() == again.tobytes()),
    ]
    say("\nloss curves: {}\ncheckpoint:  {}\n{:.0f} seconds".format(
        os.path.relpath(plot), os.path.relpath(checkpoint), time.time() - began))
    return outcome.show(promises)


if __name__ == "__main__":
    sys.exit(main())
