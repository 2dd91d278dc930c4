"""Trains recommenders on ratings in the order of their times, with tables that stay small.

The model is that of movielens.py. It learns online: before each period of time it predicts the
ratings that will come in it, then it trains on them, once. Four models do so side by side, whose
tables of users and of films

    all        give a row to every key, for ever
    admission  give a row to keys that have occurred a few times
    eviction   give a row to every key, and take it back when the key was long not seen
    both       do both

Prints the error of the predictions and the rows of the tables, and plots both over time. Ends with
a table of promises and exits with 0 only if all were kept.
"""

import argparse
import os
import sys
import time
import warnings
from typing import Any, Dict, List, NamedTuple, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Every eviction logs a line for each table; INFO shows them.
os.environ.setdefault("MXREC_LOG_LEVEL", "WARNING")
warnings.filterwarnings("ignore", category=FutureWarning)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import movielens_data as data  # noqa: E402
import movielens_model as model  # noqa: E402
import outcome  # noqa: E402
from mx_rec.constants.constants import ASCEND_TIMESTAMP  # noqa: E402
from mx_rec.core.admission import evict  # noqa: E402
from mx_rec.core.embedding import create_table, sparse_lookup  # noqa: E402
from mx_rec.core.feature_process import EvictHook  # noqa: E402
from mx_rec.graph import GraphModifierHook  # noqa: E402
from mx_rec.optimizers.lazy_adam import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import init, terminate_config_initializer  # noqa: E402
from mx_rec.util.stats import TableStatsHook, table_stats  # noqa: E402
from mx_rec.util.variable import get_dense_and_sparse_variable  # noqa: E402

tf1 = tf.compat.v1

DAY = 24 * 60 * 60
# The tables whose keys are counted; there are few genres, and all of them matter.
COUNTED = ("user", "movie")


class Shown(NamedTuple):
    """What one model showed.

    Attributes:
        errors: RMSE of the predictions of each period.
        rows: Rows of both tables after each period.
        stats: Numbers of the tables at the end, by name.
    """

    errors: List[float]
    rows: List[int]
    stats: Dict[str, Any]


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--access", type=int, default=3, metavar="N", help="occurrences after "
                        "which a user or film gets a row (default %(default)s)")
    parser.add_argument("--days", type=int, default=365, metavar="N", help="days after which a "
                        "user or film that was not seen is evicted (default %(default)s)")
    parser.add_argument("--periods", type=int, metavar="N", help="periods of equally many ratings "
                        "(default 40, with --quick 10)")
    parser.add_argument("--batch", type=int, default=64, metavar="N",
                        help="ratings per step (default %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="where the plot and the numbers for "
                        "TensorBoard go; without it, to a temporary directory, which is removed at "
                        "the end")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings: shows in seconds that everything runs")
    args = parser.parse_args()
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    if args.periods is None:
        args.periods = 10 if args.quick else 40
    if min(args.access, args.days, args.periods, args.batch) < 1:
        parser.error("--access, --days, --periods and --batch should be at least 1")
    return args


def say(text=""):
    """Prints at once, so that progress shows."""
    print(text, flush=True)


def prepare(args) -> Tuple[data.Ratings, np.ndarray]:
    """Loads or generates the ratings.

    Returns:
        The ratings in the order of their times, and the times.
    """
    if args.data:
        ratings, times = data.load(args.data), data.load_times(args.data)
    else:
        size = dict(count=12000, users=300, movies=1500) if args.quick else {}
        ratings = data.generate(**size)
        times = data.generate_times(ratings)
    if len(times) < args.periods:
        raise data.DataError("{} ratings are too few for {} periods.".format(
            len(times), args.periods))
    order = np.argsort(times, kind="stable")
    ratings, times = ratings.take(order), times[order]
    say("{}: {:,} ratings of {:,} films by {:,} users in {:.1f} years".format(
        "ratings of " + args.data if args.data else "generated ratings", len(times),
        len(np.unique(ratings.movie)), len(np.unique(ratings.user)),
        (times[-1] - times[0]) / (365.0 * DAY)))
    return ratings, times


class Script:
    """The graph of one model.

    Args:
        ratings: All ratings, in the order of their times.
        times: The times, (n) int64 seconds.
        access, eviction: Thresholds of the lookups of users and films; None is none.
        batch: Ratings per step.
    """

    def __init__(self, ratings, times, access, eviction, batch):
        settings = model.Settings(rate=0.01, decay=0.05, kernel_decay=0.001, batch=batch)
        tf1.set_random_seed(settings.seed)
        columns = {name: tf.constant(getattr(ratings, name)) for name in model.COLUMNS}
        columns["time"] = tf.constant(times)
        self.bounds = {mode: [tf1.placeholder_with_default(tf.constant(0, tf.int64), [])
                              for _ in range(2)] for mode in (True, False)}
        self.start, batches = {}, {}
        for mode, (first, last) in self.bounds.items():
            self.start[mode], batches[mode] = pipeline(columns, first, last, batch)
        self.tables = {
            name: create_table(
                key_dtype=tf.int64, dim=settings.dim, name=name, device_vocabulary_size=200000,
                emb_initializer=tf1.truncated_normal_initializer(stddev=settings.spread,
                                                                 seed=place))
            for place, name in enumerate(model.FEATURES)}
        outcome, rows = {}, {}
        for mode in (True, False):
            rows[mode] = {}
            for name, table in self.tables.items():
                config = dict(access_threshold=access, eviction_threshold=eviction)
                rows[mode][name] = sparse_lookup(
                    table, batches[mode][name], is_train=mode, modify_graph=True,
                    access_and_evict_config=config if name in COUNTED else None)
            outcome[mode] = model.score(rows[mode], batches[mode]["genres"], 3.5, settings)
        # The time of a batch is that of its last rating.
        tf1.add_to_collection(ASCEND_TIMESTAMP, batches[True]["time"][-1])
        _, total = model.losses(outcome[True], batches[True], rows[True], settings)
        self.prediction = outcome[False]
        dense, sparse = get_dense_and_sparse_variable()
        gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
        self.train = tf.group(
            tf1.train.AdamOptimizer(settings.rate).apply_gradients(
                zip(gradients[:len(dense)], dense),
                global_step=tf1.train.get_or_create_global_step()),
            create_hash_optimizer(learning_rate=settings.rate).apply_gradients(
                zip(gradients[len(dense):], sparse)))

    def go_to(self, sess, mode, first, last):
        """Lets the pipeline of a mode begin with a range of the ratings."""
        sess.run(self.start[mode], dict(zip(self.bounds[mode], (first, last))))


def pipeline(columns, first, last, batch):
    """Cuts a range of the ratings into batches; returns what starts it, and a batch."""
    dataset = tf.data.Dataset.range(first, last, batch).map(
        lambda at: {name: column[at:tf.minimum(at + batch, last)]
                    for name, column in columns.items()})
    iterator = tf1.data.make_initializable_iterator(dataset.prefetch(4))
    return iterator.initializer, iterator.get_next()


def learn(name, ratings, times, args, access, eviction, out) -> Shown:
    """Trains one model on all ratings, period by period."""
    edges = np.linspace(0, len(times), args.periods + 1).astype(int)
    errors, rows = [], []
    init()
    try:
        with tf.Graph().as_default() as graph:
            script = Script(ratings, times, access, eviction, args.batch)
            steps = -(-int(edges[1]) // args.batch)
            hooks = [GraphModifierHook(), TableStatsHook(os.path.join(out, name), steps),
                     EvictHook(evict_enable=eviction is not None, evict_step_interval=steps)]
            with tf1.train.MonitoredTrainingSession(hooks=hooks, save_checkpoint_secs=None,
                                                    log_step_count_steps=None) as sess:
                for first, last in zip(edges, edges[1:]):
                    script.go_to(sess, False, first, last)
                    found = [sess.run(script.prediction) for _ in range(first, last, args.batch)]
                    errors.append(data.rmse(np.concatenate(found), ratings.stars[first:last]))
                    script.go_to(sess, True, first, last)
                    for _ in range(first, last, args.batch):
                        sess.run(script.train)
                    rows.append(sum(script.tables[one].size() for one in COUNTED))
                if eviction is not None:
                    # Whatever the hook has begun: what is stale now goes now.
                    with graph.as_default():
                        evict()
                    rows[-1] = sum(script.tables[one].size() for one in COUNTED)
                stats = {one: table_stats(script.tables[one]) for one in COUNTED}
    finally:
        terminate_config_initializer()
    return Shown(errors, rows, stats)


def expected_rows(ratings, times, args):
    """Counts the rows that the first three models should end with, from the ratings alone.

    Returns:
        By model, rows of both tables.
    """
    edges = np.linspace(0, len(times), args.periods + 1).astype(int)
    of_batch = np.zeros(len(times), np.int64)
    for first, last in zip(edges, edges[1:]):
        for at in range(first, last, args.batch):
            end = min(at + args.batch, last)
            of_batch[at:end] = times[end - 1]
    found = {"all": 0, "admission": 0, "eviction": 0}
    for name in COUNTED:
        keys, place, counts = np.unique(getattr(ratings, name), return_inverse=True,
                                        return_counts=True)
        seen = np.zeros(len(keys), np.int64)
        np.maximum.at(seen, place, of_batch)
        found["all"] += len(keys)
        found["admission"] += int(np.sum(counts >= args.access))
        found["eviction"] += int(np.sum(of_batch.max() - seen < args.days * DAY))
    return found


def draw(path, times, args, shown):
    """Draws rows and errors over time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    edges = np.linspace(0, len(times), args.periods + 1).astype(int)
    years = (times[edges[1:] - 1] - times[0]) / (365.0 * DAY)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 8), sharex=True)
    styles = ("-", "--", "-.", ":")
    for (name, one), style in zip(shown.items(), styles):
        upper.plot(years, one.rows, style, marker=".", label=name)
        lower.plot(years, one.errors, style, marker=".", label=name)
    upper.set_ylabel("rows of users and films")
    upper.set_title("A row after {} occurrences, taken back after {} days".format(
        args.access, args.days))
    lower.set_ylabel("RMSE of the coming period, in stars")
    lower.set_xlabel("years since the first rating")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def run(args, out):
    """Trains the four models; returns the exit code."""
    ratings, times = prepare(args)
    edges = np.linspace(0, len(times), args.periods + 1).astype(int)
    thresholds = {"all": (None, None), "admission": (args.access, None),
                  "eviction": (1, args.days * DAY), "both": (args.access, args.days * DAY)}
    shown = {}
    say("\n{:10s} {:>8s} {:>9s} {:>9s} {:>10s} {:>8s} {:>9s} {:>8s}".format(
        "model", "RMSE", "rows", "most", "row bytes", "refused", "history", "evicted"))
    for name, (access, eviction) in thresholds.items():
        began = time.time()
        shown[name] = one = learn(name, ratings, times, args, access, eviction, out)
        say("{:10s} {:8.4f} {:9,d} {:9,d} {:10,d} {:8,d} {:9,d} {:8,d}   {:.0f} s".format(
            name, mean_error(one, edges), one.rows[-1], max(one.rows),
            total(one, "bytes_rows"), total(one, "refused"), total(one, "bytes_history"),
            total(one, "evicted"), time.time() - began))
    constant = data.rmse(np.full(len(times), 3.5), ratings.stars)
    say("a constant guess of 3.5: RMSE {:.4f}".format(constant))
    plot = os.path.join(out, "admission_eviction.png")
    draw(plot, times, args, shown)
    if args.out:
        say("\nplot: {}\nnumbers: tensorboard --logdir {}".format(
            os.path.relpath(plot), os.path.relpath(out)))

    wanted = expected_rows(ratings, times, args)
    error = {name: mean_error(one, edges) for name, one in shown.items()}
    promises = [
        ("{}: {:,} rows at the end, as counted from the ratings".format(name, rows),
         shown[name].rows[-1] == rows) for name, rows in wanted.items()]
    promises += [
        ("both: fewer rows than with either alone",
         shown["both"].rows[-1] <= min(wanted["admission"], wanted["eviction"])),
        ("keys were refused and evicted where they should, and nowhere else",
         all((total(one, "refused") > 0) == (name in ("admission", "both"))
             and (total(one, "evicted") > 0) == (name in ("eviction", "both"))
             for name, one in shown.items())),
        ("each model is better than the constant", max(error.values()) < constant),
        ("both: the RMSE is at most 0.02 above that of all rows ({:+.4f})".format(
            error["both"] - error["all"]), error["both"] < error["all"] + 0.02),
    ]
    return outcome.show(promises)


def total(one, number):
    """A number of TableStats, of both tables together."""
    return sum(getattr(stats, number) for stats in one.stats.values())


def mean_error(one, edges):
    """The RMSE over all periods but the first, before which nothing was learned."""
    counts = np.diff(edges)[1:]
    return float(np.sqrt(np.sum(np.square(one.errors[1:]) * counts) / counts.sum()))


def main():
    """Runs the example; returns the exit code."""
    args = parse()
    return outcome.run(run, args, args.out or "")


if __name__ == "__main__":
    sys.exit(main())
