"""Warm-starts recommenders from earlier ones: from a path, and from two paths at once.

The model is that of estimator_train_and_evaluate.py. The ratings come in two parts: an earlier one,
on which a first model was trained, and a later, smaller one.

    earlier   trained on the earlier ratings
    cold      trained on the later ratings, from nothing
    warm      the same, but warm-started: warm_start_from=<directory of earlier>
    mixed     dense layers and genres of `earlier`, users and movies of `warm`: two paths at once,
              and not a step of training

Prints the error on held-out ratings after each pass over the later ones, and what the warm start
saved. Ends with a table of promises and exits with 0 only if all were kept.
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
from estimator_train_and_evaluate import make_hooks, make_input_fn, model_fn, say  # noqa: E402
from mx_rec.util.initialize import init, terminate_config_initializer  # noqa: E402

try:
    from tf_adapter import NPUEstimator, NPURunConfig
except ImportError:
    NPUEstimator, NPURunConfig = tf.estimator.Estimator, tf.estimator.RunConfig

tf1 = tf.compat.v1
ModeKeys = tf.estimator.ModeKeys

LATER_SHARE = 0.3


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--passes", type=int, metavar="N", help="passes over the later ratings "
                        "(default 8, with --quick 3); the earlier ones get as many")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings: shows in seconds that everything runs")
    args = parser.parse_args()
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    args.passes = args.passes if args.passes is not None else 3 if args.quick else 8
    if args.passes < 1:
        parser.error("--passes should be at least 1")
    args.batch = 128 if args.quick else model.Settings().batch
    return args


class Recommender:
    """An Estimator in a directory of its own, which may be warm-started.

    Args:
        name: Name of the directory.
        directory: Where that is made.
        params: Those of model_fn.
        warm_start_from: As the Estimator takes it.
    """

    def __init__(self, name, directory, params, warm_start_from=None):
        self.name = name
        self._params = params
        config = NPURunConfig(model_dir=os.path.join(directory, name),
                              tf_random_seed=params["settings"].seed, keep_checkpoint_max=2,
                              save_summary_steps=1000, log_step_count_steps=None)
        self.estimator = NPUEstimator(model_fn=model_fn, config=config, params=params,
                                      warm_start_from=warm_start_from)
        self.errors = []
        self.seconds = 0.0

    @property
    def directory(self):
        """Where the checkpoints are."""
        return self.estimator.model_dir

    def evaluate(self, held_out):
        """Returns the error on held-out ratings."""
        metrics = self.estimator.evaluate(
            make_input_fn(held_out, self._params["settings"], {}, is_training=False),
            hooks=make_hooks(ModeKeys.EVAL, False))
        return float(metrics["rmse"])

    def train(self, ratings, held_out, passes):
        """Trains, and keeps the error after each pass over the ratings."""
        settings = self._params["settings"]
        steps = -(-len(ratings.stars) // settings.batch)
        for _ in range(passes):
            began = time.time()
            self.estimator.train(make_input_fn(ratings, settings, {}, is_training=True),
                                 steps=steps, hooks=make_hooks(ModeKeys.TRAIN, False))
            self.seconds += time.time() - began
            self.errors.append(self.evaluate(held_out))
        say("  {:8s} {}  {:4.0f} seconds".format(
            self.name, "  ".join("{:.4f}".format(error) for error in self.errors), self.seconds))


def part(ratings, is_later):
    """Parts the ratings at a place, as if they had come one after the other."""
    cut = int(len(ratings.stars) * (1 - LATER_SHARE))
    order = np.random.RandomState(1).permutation(len(ratings.stars))
    return ratings.take(np.sort(order[cut:] if is_later else order[:cut]))


def run(args, directory):
    """Trains the recommenders; returns the exit code."""
    ratings, held_out = data.load_and_split(args.data, args.quick)
    earlier_ratings, later_ratings = part(ratings, False), part(ratings, True)
    settings = model.Settings(batch=args.batch)
    init(max_steps=-1, train_steps=-1, eval_steps=-1)
    params = {"settings": settings, "specs": {}, "mean": float(np.mean(earlier_ratings.stars)),
              "budget": max(len(np.unique(getattr(ratings, name))) for name in model.FEATURES) + 1}
    constant = data.rmse(params["mean"], held_out.stars)
    say("{:,} earlier ratings, {:,} later ones; a constant guess has an error of {:.4f}\n".format(
        len(earlier_ratings.stars), len(later_ratings.stars), constant))
    say("held-out RMSE after each pass")

    earlier = Recommender("earlier", directory, params)
    earlier.train(earlier_ratings, held_out, args.passes)
    cold = Recommender("cold", directory, params)
    cold.train(later_ratings, held_out, args.passes)
    warm = Recommender("warm", directory, params, warm_start_from=earlier.directory)
    start = warm.evaluate(held_out)
    warm.train(later_ratings, held_out, args.passes)

    # Later paths replace what earlier ones brought: everything of `earlier`, then two tables.
    mixed = Recommender("mixed", directory, params, tf.estimator.WarmStartSettings(
        ckpt_to_initialize_from=[earlier.directory, warm.directory],
        vars_to_warm_start=[".*", ["user", "movie"]],
        var_name_to_prev_var_name=[None, None]))
    mixed_error = mixed.evaluate(held_out)
    say("  {:8s} {:.4f}  without a step".format(mixed.name, mixed_error))
    terminate_config_initializer()
    return judge(earlier, cold, warm, start, mixed_error)


def judge(earlier, cold, warm, start, mixed_error):
    """Prints what was saved and what was promised; returns the exit code."""
    reached = [place + 1 for place, error in enumerate(warm.errors) if error <= cold.errors[-1]]
    needed = reached[0] if reached else len(warm.errors)
    say("\nsaved: {:.0f}% of the error of the first pass; the warm start needs {} pass{} for what "
        "the cold one reaches in {}".format(
            100 * (1 - warm.errors[0] / cold.errors[0]), needed, "es" if needed > 1 else "",
            len(cold.errors)))
    steps = int(warm.estimator.get_variable_value("global_step"))
    promises = [
        ("before its first step, the warm model is the earlier one ({:.4f})".format(start),
         start == earlier.errors[-1]),
        ("after one pass it is better than the cold one ({:.4f} < {:.4f})".format(
            warm.errors[0], cold.errors[0]), warm.errors[0] < cold.errors[0]),
        ("it reaches what the cold one reaches in the end ({:.4f})".format(cold.errors[-1]),
         bool(reached)),
        ("its steps are counted from 0, and passes after the first go on ({})".format(steps),
         steps == int(cold.estimator.get_variable_value("global_step"))),
        ("two paths make another model than either ({:.4f})".format(mixed_error),
         mixed_error not in (earlier.errors[-1], warm.errors[-1])
         and mixed_error < cold.errors[0]),
    ]
    return outcome.show(promises)


def main():
    """Runs the example; returns the exit code."""
    return outcome.run(run, parse())


if __name__ == "__main__":
    sys.exit(main())
