"""A recommender that learns while it serves: a second's ratings are in the next one's answers.

Ratings come in the order of their times. Three models serve them, which were exported half way:
one takes the training's deltas each second, one each minute, one never. The first is in a server of
its own process (model_server.py, which stands for tensorflow_model_server). Each model is asked
about the ratings of a second before the training has seen them.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

import movielens_data as data
import outcome
from mx_rec import serving
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.adagrad import create_hash_optimizer
from mx_rec.saver import export_plain
from mx_rec.util.initialize import init

tf1 = tf.compat.v1
if not tf.__version__.startswith("1."):
    tf1.disable_v2_behavior()

DIM, RATE, EPOCHS, TENTHS = 9, 0.05, 3, 10
LIKED = 4.0


class Training:
    """Who likes which film: biases and a product of rows, of users and of films."""

    def __init__(self, directory):
        self.directory, self.step = directory, 0
        self.user = tf1.placeholder(tf.int64, [None], "user")
        self.movie = tf1.placeholder(tf.int64, [None], "movie")
        self.liked = tf1.placeholder(tf.float32, [None], "liked")
        self.tables = [create_table(key_dtype=tf.int64, dim=DIM, name=name,
                                    device_vocabulary_size=200000,
                                    emb_initializer=tf1.random_normal_initializer(0.0, 0.1, seed=1))
                       for name in ("users", "movies")]
        self.bias = tf1.get_variable("bias", initializer=0.0)
        loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(
            labels=self.liked, logits=self._score(True)))
        self.score = self._score(False)
        rows = create_hash_optimizer(RATE).minimize(
            loss, var_list=[table.variable for table in self.tables])
        dense = tf1.train.AdagradOptimizer(RATE).minimize(loss, var_list=[self.bias])
        self.train_op = tf.group(rows, dense)
        self.saver = tf1.train.Saver(max_to_keep=3)
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())

    def _score(self, is_train):
        users, movies = [sparse_lookup(table, ids, is_train=is_train, modify_graph=True)
                         for table, ids in zip(self.tables, (self.user, self.movie))]
        return self.bias + users[:, 0] + movies[:, 0] + tf.reduce_sum(
            users[:, 1:] * movies[:, 1:], 1)

    def train(self, ratings):
        """Learns from ratings in one step."""
        feed = self.feed(ratings)
        feed[self.liked] = (ratings.stars >= LIKED).astype(np.float32)
        self.session.run(self.train_op, feed)

    def feed(self, ratings):
        """What a lookup of the ratings' users and films is fed."""
        return {self.user: ratings.user, self.movie: ratings.movie}

    def save(self, delta=True):
        """Saves what has changed, or all."""
        self.step += 1
        return self.saver.save(self.session, self.directory + "/model.ckpt",
                               global_step=self.step, save_delta=delta)

    def export(self, name, **options):
        """Exports a model that takes updates."""
        return export_plain(self.session, "{}/{}".format(self.directory, name),
                            {"user": self.user, "movie": self.movie}, {"score": self.score},
                            **options)


class Model:
    """A served model: in a server, or in a session of this process."""

    def __init__(self, directory, in_process):
        self._process = None
        self.scores = []
        if in_process:
            session = tf1.Session(graph=tf.Graph())
            with session.graph.as_default():
                loaded = tf1.saved_model.loader.load(session, [tf1.saved_model.SERVING], directory)
            self.server = serving.server_of((session, loaded))
            return
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model_server.py")
        self._process = subprocess.Popen(
            [sys.executable, script, "--model_base_path", directory, "--model_name", "likes"],
            stdout=subprocess.PIPE)
        ports = json.loads(self._process.stdout.readline().decode())
        self.server = serving.server_of(
            "http://127.0.0.1:{}/v1/models/likes".format(ports["rest"]))

    def ask(self, ratings):
        """Returns the scores of ratings, float32 (n)."""
        scores, = self.server.predict("serving_default", {
            "user": ratings.user, "movie": ratings.movie}).values()
        return np.asarray(scores, np.float32)

    def push(self, prefix):
        """Brings a checkpoint into the model."""
        told, = serving.push(prefix, [self.server])
        assert told.error is None, told.error

    def close(self):
        """Ends the server."""
        self.server.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def auc_of(scores, liked):
    """Returns the area under the ROC curve: how often a liked film is above another one."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = np.cumsum(count) - (count - 1) / 2.0
    good = int(liked.sum())
    return (rank[place][liked].sum() - good * (good + 1) / 2.0) / (good * (len(liked) - good))


def in_order(args):
    """Returns the ratings in the order of their times."""
    if args.data:
        ratings, times = data.load(args.data), data.load_times(args.data)
    else:
        ratings = data.generate(count=20000, users=200, movies=500) if args.quick \
            else data.generate()
        times = data.generate_times(ratings)
    print("{}: {:,}".format("ratings of " + args.data if args.data else "generated ratings",
                            len(times)), flush=True)
    return ratings.take(np.argsort(times, kind="stable"))


def run(args, directory):
    """Trains, serves, and says what updates are worth; returns the exit code."""
    init(is_incremental_checkpoint=True, save_checkpoint_due_time=10 ** 6,
         save_delta_checkpoints_secs=10 ** 6)
    ratings = in_order(args)
    half = len(ratings.stars) // 2
    training = Training(directory)
    random = np.random.RandomState(1)
    for _ in range(EPOCHS):
        order = random.permutation(half)
        for start in range(0, half, 256):
            training.train(ratings.take(order[start:start + 256]))
    exported = training.export("export", updates=True, spare_rows=100000)
    prefix = training.save(delta=False)
    models = {"each second": Model(exported, False), "each minute": Model(exported, True),
              "never": Model(exported, True)}
    delays, same = [], True
    try:
        for model in models.values():
            model.push(prefix)
        stream = range(half, len(ratings.stars) - args.rate + 1, args.rate)
        for second, start in enumerate(stream):
            now = ratings.take(np.arange(start, start + args.rate))
            for model in models.values():
                model.scores.append(model.ask(now))
            training.train(now)
            trained = time.time()
            models["each second"].push(training.save())
            answer = models["each second"].ask(now)
            delays.append(time.time() - trained)
            same = same and np.allclose(
                answer, training.session.run(training.score, training.feed(now)), atol=1e-5)
            if second % 60 == 59:
                models["each minute"].push(serving.newest(directory))
    finally:
        for model in models.values():
            model.close()
    return tell(training, ratings.take(np.arange(half, stream[-1] + args.rate)), models, delays,
                same)


def tell(training, streamed, models, delays, same):
    """Prints AUC over time, delays, and what other forms of rows cost; returns the exit code."""
    liked = streamed.stars >= LIKED
    scores = {name: np.concatenate(model.scores) for name, model in models.items()}
    print("\nAUC of the answers, by tenths of {:,} ratings of {:,} seconds, and their mean".format(
        len(liked), len(delays)))
    auc = {}
    for name, found in scores.items():
        tenths = [auc_of(*part) for part in zip(np.array_split(found, TENTHS),
                                                np.array_split(liked, TENTHS))]
        auc[name] = float(np.mean(tenths))
        print("  {:12s} {}   {:.4f}".format(name, " ".join(
            "{:.3f}".format(one) for one in tenths), auc[name]))
    print("gained by updates each second: {:+.4f}, each minute: {:+.4f}".format(
        auc["each second"] - auc["never"], auc["each minute"] - auc["never"]))
    print("from the end of a training step to an answer with it: median {:.2f} s, greatest "
          "{:.2f} s".format(np.median(delays), max(delays)))

    forms = {}
    for rows_as in ("float32", "float16", "int8"):
        path = training.export(rows_as, rows_as=rows_as)
        model = Model(path, True)
        size = os.path.getsize(path + "/variables/variables.index") + sum(
            os.path.getsize(os.path.join(path, "variables", name))
            for name in os.listdir(path + "/variables"))
        forms[rows_as] = auc_of(model.ask(streamed), liked)
        print("rows as {:8s} {:8.1f} KB, AUC of the whole stream after it {:.4f}".format(
            rows_as, size / 1e3, forms[rows_as]))
        model.close()
    return outcome.show([
        ("the server's answers are the training's after each push", same),
        ("a step is in the answers in less than 2 s (median)", np.median(delays) < 2.0),
        ("updates each second gain over none", auc["each second"] > auc["never"]),
        ("rows of float16 change the AUC by less than 0.0005",
         abs(forms["float16"] - forms["float32"]) < 0.0005),
        ("rows of int8 change it by less than 0.002",
         abs(forms["int8"] - forms["float32"]) < 0.002)])


def main(argv=None):
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it ratings are generated")
    parser.add_argument("--rate", type=int, metavar="N", help="ratings a second (default 100, "
                        "with --quick 160)")
    parser.add_argument("--quick", action="store_true", help="generate few ratings")
    args = parser.parse_args(argv)
    args.rate = args.rate or (160 if args.quick else 100)
    if args.rate < 1:
        parser.error("--rate should be at least 1")
    return outcome.run(run, args)


if __name__ == "__main__":
    sys.exit(main())
