"""Trains a recommender with an Estimator: rounds of training and evaluation, then predictions.

The model is that of movielens.py: user, movie and genre tables under dense layers predict how many
stars a user gives a film. After each round the error on held-out ratings is printed beside that of
a constant guess. Ends with a table of promises and exits with 0 only if all were kept.

With USE_MODIFY_GRAPH=1, which is the default, tensors are looked up and GraphModifierHook moves the
key work into the input pipeline; with USE_MODIFY_GRAPH=0 FeatureSpecs do. The numbers are the same.
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
from mx_rec.core.embedding import create_table, sparse_lookup  # noqa: E402
from mx_rec.graph.modifier import GraphModifierHook  # noqa: E402
from mx_rec.optimizers.lazy_adam import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import init, terminate_config_initializer  # noqa: E402
from mx_rec.util.variable import get_dense_and_sparse_variable  # noqa: E402

try:
    from tf_adapter import NPUEstimator, NPURunConfig
except ImportError:
    NPUEstimator, NPURunConfig = tf.estimator.Estimator, tf.estimator.RunConfig

tf1 = tf.compat.v1
ModeKeys = tf.estimator.ModeKeys

USE_MODIFY_GRAPH = bool(int(os.environ.get("USE_MODIFY_GRAPH", "1")))


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--model-dir", metavar="DIR", help="where checkpoints and summaries go; a "
                        "directory of an earlier run is continued. Without it, they go to a "
                        "temporary directory, which is removed at the end")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often to train and then "
                        "evaluate (default 8, with --quick 3)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of training per round "
                        "(default: one pass over the training ratings)")
    parser.add_argument("--batch", type=int, metavar="N", help="ratings per step (default {}, with "
                        "--quick 128)".format(model.Settings().batch))
    parser.add_argument("--dump-graph", action="store_true", help="write the graphs before and "
                        "after their modification to ./export_graph, with the plan")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings: shows in seconds that everything runs")
    args = parser.parse_args()
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    args.rounds = args.rounds if args.rounds is not None else 3 if args.quick else 8
    args.batch = args.batch if args.batch is not None else \
        128 if args.quick else model.Settings().batch
    for name in ("rounds", "steps", "batch"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error("--{} should be at least 1".format(name))
    return args


def say(text=""):
    """Prints at once, so that progress shows."""
    print(text, flush=True)


def make_input_fn(ratings, settings, specs, is_training):
    """Makes the input_fn of one mode.

    Args:
        ratings: What to read; in training over and over, each time in another order.
        settings: The model's: batch and seed.
        specs: FeatureSpecs by feature; empty if tensors are looked up.
        is_training: Whether this is for training.

    Returns:
        A function that returns a dataset of (features, stars).
    """
    columns = {name: getattr(ratings, name) for name in model.FEATURES}

    def batches():
        count, epoch = len(ratings.stars), 0
        while is_training or epoch == 0:
            order = np.arange(count)
            if is_training:
                order = np.random.RandomState(settings.seed + epoch).permutation(count)
            for first in range(0, count, settings.batch):
                places = order[first:first + settings.batch]
                yield ({name: column[places] for name, column in columns.items()},
                       ratings.stars[places])
            epoch += 1

    def input_fn():
        dataset = tf.data.Dataset.from_generator(
            batches, ({name: tf.int64 for name in columns}, tf.float32),
            ({name: [None] * column.ndim for name, column in columns.items()}, [None]))
        if specs:
            dataset = dataset.map(get_asc_insert_func(list(specs.values()),
                                                      is_training=is_training))
        return dataset.prefetch(4)

    return input_fn


def model_fn(features, labels, mode, params):
    """The model of all three modes; tables are made here, in the Estimator's graph."""
    is_train = mode == ModeKeys.TRAIN
    settings, specs = params["settings"], params["specs"]
    tables = {
        name: create_table(
            key_dtype=tf.int64, dim=settings.dim, name=name,
            device_vocabulary_size=params["budget"],
            emb_initializer=tf1.truncated_normal_initializer(stddev=settings.spread,
                                                             seed=settings.seed + place))
        for place, name in enumerate(model.FEATURES)}
    rows = {
        name: sparse_lookup(table, specs[name], is_train=is_train, batch=features)
        if specs else sparse_lookup(table, features[name], is_train=is_train, modify_graph=True)
        for name, table in tables.items()}
    # Seeds of their own: those that TensorFlow derives depend on how many ops the graph has.
    with tf1.variable_scope("", initializer=tf1.glorot_uniform_initializer(seed=settings.seed)):
        stars = model.score(rows, features["genres"], params["mean"], settings)
    if mode == ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={
            "stars": stars, "user": features["user"], "movie": features["movie"]})

    loss, total = model.losses(stars, {"stars": labels}, rows, settings)
    if mode == ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={
            "rmse": tf1.metrics.root_mean_squared_error(labels, stars)})

    tf1.summary.scalar("mean_squared_error", loss)
    dense, sparse = get_dense_and_sparse_variable()
    # Gated, so that no kernel is updated before all gradients that read it are there.
    gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
    train = tf.group(
        tf1.train.AdamOptimizer(settings.rate).apply_gradients(
            zip(gradients[:len(dense)], dense), global_step=tf1.train.get_global_step()),
        create_hash_optimizer(learning_rate=settings.rate).apply_gradients(
            zip(gradients[len(dense):], sparse)))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def make_hooks(mode, dump_graph):
    """Makes the hooks of one mode: what changes the graph first, what looks at tables behind it."""
    is_train = mode == ModeKeys.TRAIN
    hooks = [GraphModifierHook(dump_graph=dump_graph and is_train, modify_graph=USE_MODIFY_GRAPH)]
    # In training an EvictHook may be appended here, behind the hook that changes the graph.
    return hooks


class Report(tf.estimator.Exporter):
    """Prints a line after each evaluation, and keeps its numbers."""

    def __init__(self, constant):
        self._constant = constant
        self.errors = []

    @property
    def name(self):
        """Name of the directory of exports; none is made."""
        return "report"

    def export(self, estimator, export_path, checkpoint_path, eval_result,
               is_the_final_export):
        """Called by train_and_evaluate with the metrics of a round."""
        if self.errors and self.errors[-1][0] == eval_result["global_step"]:
            return
        self.errors.append((eval_result["global_step"], float(eval_result["rmse"])))
        say("  round {:2d}  step {:6d}  held-out RMSE {:.4f}  (constant {:.4f})".format(
            len(self.errors), eval_result["global_step"], eval_result["rmse"], self._constant))


def run(args, model_dir):
    """Trains, evaluates and predicts; returns the exit code."""
    train, held_out = data.load_and_split(args.data, args.quick)
    settings = model.Settings(batch=args.batch)
    steps = args.steps or -(-len(train.stars) // args.batch)
    init(max_steps=args.rounds * steps, train_steps=steps, eval_steps=-1, save_steps=steps)

    specs = {} if USE_MODIFY_GRAPH else {
        name: FeatureSpec(name, table_name=name, index_key=name) for name in model.FEATURES}
    config = NPURunConfig(model_dir=model_dir, tf_random_seed=settings.seed,
                          save_checkpoints_steps=steps, save_summary_steps=steps,
                          log_step_count_steps=None, keep_checkpoint_max=2)
    budget = max(len(np.unique(getattr(train, name))) for name in model.FEATURES) + 1
    estimator = NPUEstimator(model_fn=model_fn, config=config, params={
        "settings": settings, "specs": specs, "mean": float(np.mean(train.stars)),
        "budget": budget})
    done = int(estimator.get_variable_value("global_step")) if estimator.latest_checkpoint() else 0
    say("{}: {} steps done before, {} rounds of {} steps to do\n".format(
        "modified graphs" if USE_MODIFY_GRAPH else "FeatureSpecs", done, args.rounds, steps))

    constant = data.rmse(np.mean(train.stars), held_out.stars)
    report = Report(constant)
    train_spec = tf.estimator.TrainSpec(
        input_fn=make_input_fn(train, settings, specs, is_training=True),
        max_steps=done + args.rounds * steps, hooks=make_hooks(ModeKeys.TRAIN, args.dump_graph))
    eval_spec = tf.estimator.EvalSpec(
        input_fn=make_input_fn(held_out, settings, specs, is_training=False), steps=None,
        hooks=make_hooks(ModeKeys.EVAL, args.dump_graph), exporters=report, start_delay_secs=0,
        throttle_secs=0)
    began = time.time()
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    took = time.time() - began

    predictions = list(estimator.predict(
        make_input_fn(held_out, settings, specs, is_training=False),
        hooks=make_hooks(ModeKeys.PREDICT, args.dump_graph)))
    stars = np.array([one["stars"] for one in predictions])
    users = np.array([one["user"] for one in predictions])
    terminate_config_initializer()
    return judge(report.errors, constant, args.rounds, data.rmse(stars, held_out.stars),
                 np.array_equal(users, held_out.user), took)


def judge(errors, constant, rounds, predicted, in_order, took):
    """Prints what was promised and whether it was kept; returns the exit code."""
    last = errors[-1][1] if errors else float("nan")
    promises = [
        ("{} rounds were evaluated ({})".format(rounds, len(errors)), len(errors) == rounds),
        ("the last round is better than the constant ({:.4f} < {:.4f})".format(last, constant),
         last < constant),
        ("predictions have the error of the last evaluation ({:.4f})".format(predicted),
         abs(predicted - last) < 1e-3),
        ("each prediction came beside its own user", in_order),
    ]
    say("\n{:.0f} seconds of training and evaluation".format(took))
    return outcome.show(promises)


def main():
    """Runs the example; returns the exit code."""
    args = parse()
    return outcome.run(run, args, args.model_dir or "")


if __name__ == "__main__":
    sys.exit(main())
