"""One task of a cluster: trains the recommender of the demo by tf.estimator.train_and_evaluate.

TF_CONFIG says which task it is: chief, worker, ps or evaluator. Without TF_CONFIG the same program
trains in one process. examples/cluster.py starts all tasks; to start them yourself, see
docs/cluster.md.
"""

import argparse
import json
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
from mx_rec.core.embedding import create_table  # noqa: E402
from mx_rec.core.grouped import sparse_lookup_many  # noqa: E402
from mx_rec.optimizers.lazy_adam import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import init  # noqa: E402
from mx_rec.util.variable import get_dense_and_sparse_variable  # noqa: E402

tf1 = tf.compat.v1


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", required=True, help="for checkpoints, on a file system that "
                        "the chief, the parameter servers and the evaluator see")
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--quick", action="store_true", help="generate few ratings")
    parser.add_argument("--steps", type=int, default=1200,
                        help="steps of all workers together (default %(default)s)")
    parser.add_argument("--save-steps", type=int, default=100,
                        help="steps from one checkpoint to the next (default %(default)s)")
    parser.add_argument("--batch", type=int, default=model.Settings().batch,
                        help="ratings of a step (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.0,
                        help="seconds that a worker waits after each step (default %(default)s)")
    parser.add_argument("--recovery-wait", type=float, default=30.0,
                        help="seconds after which a worker asks again whether the parameter "
                        "servers are ready (default %(default)s, as TensorFlow has it)")
    parser.add_argument("--result", action="store_true",
                        help="evaluate the newest checkpoint at the end and print the result")
    return parser.parse_args()


def ask_every(seconds):
    """Lets workers ask more often whether a session is ready; Estimators have no option for it."""
    stock = tf1.train.SessionManager.__init__

    def patched(self, *args, **kwargs):
        kwargs["recovery_wait_secs"] = seconds
        stock(self, *args, **kwargs)

    tf1.train.SessionManager.__init__ = patched


def batches(ratings, size, seed):
    """Returns an input_fn.

    Args:
        ratings: What to read.
        size: Ratings of a batch.
        seed: Of the order: ratings come again and again, each time in another order, "random" for
            one that nobody knows. None: once, as they are.
    """
    def generate():
        random = np.random.RandomState(None if seed == "random" else seed)
        count = len(ratings.stars)
        while True:
            order = np.arange(count) if seed is None else random.permutation(count)
            for first in range(0, count, size):
                part = ratings.take(order[first:first + size])
                yield {name: getattr(part, name) for name in model.COLUMNS}
            if seed is None:
                return

    def input_fn():
        kinds = {"stars": (tf.float32, [None]), "genres": (tf.int64, [None, None])}
        both = {name: kinds.get(name, (tf.int64, [None])) for name in model.COLUMNS}
        return tf.data.Dataset.from_generator(
            generate, {name: kind for name, (kind, _) in both.items()},
            {name: tf.TensorShape(shape) for name, (_, shape) in both.items()}).prefetch(4)

    return input_fn


def make_model_fn(mean, budget, settings):
    """Returns the model_fn: nothing in it speaks of a cluster.

    Args:
        mean: Of the training ratings; predictions start from it.
        budget: Most rows of each table.
        settings: Those of movielens_model.
    """
    def model_fn(features, mode):
        is_train = mode == tf.estimator.ModeKeys.TRAIN
        tables = [create_table(
            key_dtype=tf.int64, dim=settings.dim, name=name, device_vocabulary_size=budget,
            emb_initializer=tf1.truncated_normal_initializer(stddev=settings.spread))
            for name in model.FEATURES]
        # One request and one push for each parameter server and step, whatever the tables.
        looked = sparse_lookup_many(tables, [features[name] for name in model.FEATURES],
                                    is_train=is_train, modify_graph=True)
        rows = dict(zip(model.FEATURES, looked))
        prediction = model.score(rows, features["genres"], mean, settings)
        loss, total = model.losses(prediction, features, rows, settings)
        if not is_train:
            error = tf1.metrics.root_mean_squared_error(features["stars"], prediction)
            return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"rmse": error})
        dense, sparse = get_dense_and_sparse_variable()
        gradients = tf.gradients(total, dense + sparse, gate_gradients=True)
        train = tf.group(
            tf1.train.AdamOptimizer(settings.rate).apply_gradients(
                zip(gradients[:len(dense)], dense), global_step=tf1.train.get_global_step()),
            create_hash_optimizer(learning_rate=settings.rate).apply_gradients(
                zip(gradients[len(dense):], sparse)))
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    return model_fn


class Progress(tf1.train.SessionRunHook):
    """Prints the step of all workers now and then.

    Args:
        every: Steps from one line to the next.
        pause: Seconds to wait after each step.
    """

    def __init__(self, every, pause):
        self._every, self._pause, self._told = every, pause, None

    def after_create_session(self, session, coord):
        """Tells where a session begins: at 0, or where a checkpoint was."""
        self._told = int(session.run(tf1.train.get_global_step()))
        print("begins at step {}".format(self._told), flush=True)

    def before_run(self, run_context):
        """Asks for the step beside what is run."""
        return tf1.train.SessionRunArgs(tf1.train.get_global_step())

    def after_run(self, run_context, run_values):
        """Prints the step."""
        if run_values.results - self._told >= self._every:
            self._told = int(run_values.results)
            print("step {}".format(self._told), flush=True)
        time.sleep(self._pause)


def run(args, _):
    """Runs the task that TF_CONFIG names; returns the exit code."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    task = config.get("task", {}).get("type")
    if args.recovery_wait != 30.0:
        ask_every(args.recovery_wait)
    init()
    settings = model.Settings(batch=args.batch)
    # Each worker reads all ratings, in an order of its own.
    train, held_out = data.load_and_split(args.data, args.quick)
    budget = 2 * max(len(np.unique(getattr(train, name))) for name in model.FEATURES)
    estimator = tf.estimator.Estimator(
        make_model_fn(float(np.mean(train.stars)), budget, settings),
        config=tf.estimator.RunConfig(
            model_dir=args.model_dir, tf_random_seed=settings.seed, log_step_count_steps=None,
            save_checkpoints_steps=args.save_steps, experimental_max_worker_delay_secs=0))
    every_rating = batches(held_out, 4096, None)
    seed = "random" if task == "worker" else settings.seed
    # Where all steps are done already, nothing is trained.
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(batches(train, settings.batch, seed), max_steps=args.steps,
                               hooks=[Progress(args.save_steps, args.pause)]),
        tf.estimator.EvalSpec(every_rating, steps=None, start_delay_secs=0, throttle_secs=1))
    print("has ended", flush=True)
    if args.result:
        found = estimator.evaluate(every_rating)
        print("result " + json.dumps({"rmse": float(found["rmse"]),
                                      "step": int(found["global_step"])}), flush=True)
    return 0


if __name__ == "__main__":
    ARGS = parse()
    # The checkpoints go to --model-dir; the directory is not used.
    sys.exit(outcome.run(run, ARGS))
