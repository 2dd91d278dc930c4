"""Unchanged Estimators on tables, on dense variables and without lookups: steps and memory.

Each side is a process of its own: `init(stock_tables=...)` holds for a whole process. The third one
hashes the ids and gives zeros for their rows: no step can be faster than that by faster lookups and
updates. With --servers each side has a chief and so many parameter servers, and the third is left
out.
"""

import argparse
import contextlib
import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

COLUMNS, NUMBERS = 26, 13
SIDES = ("variables", "tables", "zeros")
MODELS = ("DNNLinearCombinedClassifier", "DeepFM", "DeepFM, no linear penalty")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="append figures to this file, one JSON object a line")
    parser.add_argument("--ids", type=int, default=10000000, help="buckets of all columns together")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=60, help="measured steps of a side")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--short", action="store_true", help="small sizes: no measurement")
    parser.add_argument("--model", choices=MODELS, help="this model alone")
    parser.add_argument("--side", choices=SIDES, help="run one side here")
    parser.add_argument("--data", help="directory of the TFRecords; made if there are none")
    parser.add_argument("--hook", action="store_true",
                        help="move the key work of tables into the input pipeline")
    parser.add_argument("--servers", type=int, default=0, help="parameter servers; 0: one process")
    parser.add_argument("--timeline", help="write a trace of one late step of a side to this file")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.ids, arguments.batch, arguments.steps, arguments.warm_up = 26000, 128, 4, 2
    if arguments.side:
        print(json.dumps(run(arguments)), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        arguments.data = arguments.data or directory
        return compare(arguments)


def compare(arguments):
    """Runs all models on both sides, each in a process, and prints figures."""
    make_records(arguments)
    for model in [arguments.model] if arguments.model else MODELS:
        found = {}
        sides = SIDES[:2] if arguments.servers else SIDES
        # There and back: what drifts meets all.
        for side in sides + sides[::-1]:
            command = [sys.executable, __file__, "--side", side, "--model", model, "--data",
                       arguments.data, "--ids", str(arguments.ids), "--batch",
                       str(arguments.batch), "--steps", str(arguments.steps), "--warm-up",
                       str(arguments.warm_up)] + ["--hook"] * arguments.hook
            with parameter_servers(command, arguments.servers) as environment:
                done = subprocess.run(command, stdout=subprocess.PIPE, env=environment)
            if done.returncode == 3:
                print("left out: %s (DeepCTR is not installed)" % model)
                break
            if done.returncode != 0:
                return done.returncode
            found.setdefault(side, []).append(json.loads(done.stdout.decode().splitlines()[-1]))
        if len(found) < len(sides):
            continue
        report(arguments, model, found)
    return 0


@contextlib.contextmanager
def parameter_servers(command, count):
    """Runs so many parameter servers; gives the environment of the chief."""
    if not count:
        yield None
        return
    sockets = [socket.socket() for _ in range(count + 1)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = ["%s:%d" % one.getsockname() for one in sockets]
    for one in sockets:
        one.close()
    cluster = {"ps": addresses[:count], "chief": addresses[count:]}

    def environment(job, index):
        task = {"cluster": cluster, "task": {"type": job, "index": index}}
        return dict(os.environ, TF_CONFIG=json.dumps(task))

    servers = [subprocess.Popen(command, env=environment("ps", at)) for at in range(count)]
    try:
        yield environment("chief", 0)
    finally:
        for server in servers:
            server.kill()
            server.wait()


def join_cluster(tf):
    """Starts the server of this task; that of a parameter server does not end."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    if not config:
        return
    task = config["task"]
    server = tf.distribute.Server(config["cluster"], task["type"], task["index"])
    if task["type"] == "ps":
        server.join()


def report(arguments, model, found):
    """Prints the figures of a model, and keeps them."""
    best = {side: min(one["seconds"] for one in ones) for side, ones in found.items()}
    memory = {side: min(one["memory"] for one in ones) for side, ones in found.items()}
    cpu = {side: min(one["cpu"] for one in ones) for side, ones in found.items()}
    line = {
        "model": model, "ids": arguments.ids, "batch": arguments.batch,
        "ratio": best["variables"] / best["tables"],
        "seconds": best, "cpu_seconds": cpu, "servers": arguments.servers,
        "memory": memory,
        "tables": found["tables"][0]["tables"],
        "losses": {side: ones[0]["loss"] for side, ones in found.items()},
    }
    without = ""
    if "zeros" in best:
        line["limit"] = best["variables"] / best["zeros"]
        without = "; %.1f without lookups and updates, %.2f times" % (
            best["zeros"] * 1e3, line["limit"])
    print("%s: %.1f ms a step with tables, %.1f with variables: %.2f times as fast%s; processor "
          "time %.1f and %.1f ms; memory %.0f and %.0f MB; %d tables" % (
              model, best["tables"] * 1e3, best["variables"] * 1e3, line["ratio"], without,
              cpu["tables"] * 1e3, cpu["variables"] * 1e3, memory["tables"] / 1e6,
              memory["variables"] / 1e6, line["tables"]), flush=True)
    if arguments.json:
        with open(arguments.json, "a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")


def make_records(arguments):
    """Writes TFRecords like Criteo's: 26 columns of strings, Zipf 1.05, and 13 numbers."""
    import numpy as np
    import tensorflow as tf

    os.makedirs(arguments.data, exist_ok=True)
    path = os.path.join(arguments.data, "train.tfrecord")
    if os.path.exists(path):
        return
    rows = arguments.batch * 16
    random = np.random.RandomState(0)
    values = arguments.ids // COLUMNS
    weights = 1.0 / np.arange(1, values + 1) ** 1.05
    cumulated = np.cumsum(weights)
    ids = np.searchsorted(cumulated, random.rand(rows, COLUMNS) * cumulated[-1])
    numbers = random.rand(rows, NUMBERS)
    labels = (random.rand(rows) < 0.25 + 0.5 * (ids[:, 0] % 2)).astype(int)
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(rows):
            example = tf.train.Example()
            field = example.features.feature
            for column in range(COLUMNS):
                # Scattered, so that hot ids do not lie beside each other.
                text = "%08x" % (int(ids[row, column]) * 2654435761 % 2 ** 32)
                field["c%d" % column].bytes_list.value.append(text.encode())
            for column in range(NUMBERS):
                field["n%d" % column].float_list.value.append(numbers[row, column])
            field["label"].int64_list.value.append(int(labels[row]))
            writer.write(example.SerializeToString())


def run(arguments):
    """Trains a model; returns the median seconds of a step and the memory of the process."""
    if arguments.model != MODELS[0]:
        try:
            import deepctr  # noqa: F401  pylint: disable=unused-import
        except ImportError:
            sys.exit(3)
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity("ERROR")
    if arguments.side == "zeros":
        look_up_nothing(tf)
    if arguments.side == "tables":
        from mx_rec.util.initialize import init

        init(stock_tables=True if arguments.ids >= 1000000 else ".*")
    join_cluster(tf)
    column = tf.feature_column
    buckets = arguments.ids // COLUMNS
    categorical = [column.categorical_column_with_hash_bucket("c%d" % at, buckets)
                   for at in range(COLUMNS)]
    numeric = [column.numeric_column("n%d" % at) for at in range(NUMBERS)]
    dense = [column.embedding_column(one, 16) for one in categorical] + numeric
    spec = column.make_parse_example_spec(dense)
    spec["label"] = tf.io.FixedLenFeature([1], tf.int64)

    def parse(serialized):
        features = tf.io.parse_example(serialized, spec)
        return features, features.pop("label")

    def input_fn():
        data = tf.data.TFRecordDataset(os.path.join(arguments.data, "train.tfrecord"))
        return data.repeat().batch(arguments.batch, drop_remainder=True).map(parse).prefetch(2)

    with tempfile.TemporaryDirectory() as directory:
        config = tf.estimator.RunConfig(model_dir=directory, tf_random_seed=1,
                                        save_checkpoints_steps=None, save_checkpoints_secs=None,
                                        save_summary_steps=None, log_step_count_steps=None)
        made = make_estimator(tf, arguments.model, categorical, dense, numeric, config)
        watch = make_watch(tf, arguments)
        hooks = [watch]
        if arguments.hook and arguments.side == "tables":
            from mx_rec.graph.modifier import GraphModifierHook

            hooks.insert(0, GraphModifierHook(modify_graph=True))
        made.train(input_fn, steps=arguments.warm_up + arguments.steps, hooks=hooks)
    return {"seconds": statistics.median(watch.seconds[arguments.warm_up:]),
            "cpu": statistics.median(watch.cpu[arguments.warm_up:]),
            "loss": watch.losses[-1], "memory": watch.memory, "tables": watch.tables, "ops": watch.ops}


def look_up_nothing(tf):
    """Makes feature columns take zeros for the rows of their ids, which are hashed nevertheless.

    The gradient of the zeros is computed as that of rows would be: a variable of each column, a
    single number, is trained by one number of it.
    """
    from tensorflow.python.ops import embedding_ops

    numbers = itertools.count()

    def zeros(embedding_weights, sparse_ids, *_, **__):
        weights = embedding_weights
        if not hasattr(weights, "shape"):
            weights = list(weights)[0]
        # Buckets are not negative. TensorFlow leaves out an op that is only waited for.
        nothing = tf.minimum(tf.cast(tf.reduce_min(sparse_ids.values), tf.int64), 0)
        shape = [sparse_ids.dense_shape[0] + nothing, int(weights.shape[-1])]

        @tf.custom_gradient
        def rows(_):
            return tf.zeros(shape), lambda gradient: gradient[0, 0]

        name = "trained_%d" % next(numbers)
        return rows(tf.compat.v1.get_variable(name, [], initializer=tf.zeros_initializer()))

    embedding_ops.safe_embedding_lookup_sparse = zeros


def make_estimator(tf, model, categorical, dense, numeric, config):
    """The Estimator as its documentation makes it."""
    if model == MODELS[0]:
        return tf.estimator.DNNLinearCombinedClassifier(
            linear_feature_columns=categorical, dnn_feature_columns=dense,
            dnn_hidden_units=[128, 128], config=config)
    from deepctr.estimator import DeepFMEstimator

    penalty = {} if model == MODELS[1] else {"l2_reg_linear": 0}
    return DeepFMEstimator(categorical + numeric, dense, dnn_hidden_units=(128, 128),
                           config=config, **penalty)


def cpu_seconds():
    """Seconds of all threads of this process on processors."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_watch(tf, arguments):
    """A hook that times steps."""

    class Watch(tf.estimator.SessionRunHook):
        """Seconds, losses and memory."""

        def begin(self):
            graph = tf.compat.v1.get_default_graph()
            self.seconds, self.cpu, self.losses, self.memory = [], [], [], 0
            self.loss = graph.get_collection(tf.compat.v1.GraphKeys.LOSSES)[0]
            types = [op.type for op in graph.get_operations()]
            self.tables = types.count("MxRecTable") or types.count("MxRecClusterTable")
            self.ops = len(types)

        def before_run(self, context):
            options = None
            if arguments.timeline and len(self.seconds) == arguments.warm_up + 2:
                options = tf.compat.v1.RunOptions(
                    trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
            self.begun, self.begun_cpu = time.perf_counter(), cpu_seconds()
            return tf.estimator.SessionRunArgs(self.loss,
                                               options=options)

        def after_run(self, context, values):
            self.seconds.append(time.perf_counter() - self.begun)
            self.cpu.append(cpu_seconds() - self.begun_cpu)
            self.losses.append(float(sum(values.results.ravel())))
            with open("/proc/self/statm") as file:
                self.memory = max(self.memory,
                                  int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            if values.run_metadata.ByteSize():
                self.write(values.run_metadata)

        def write(self, metadata):
            from tensorflow.python.client import timeline

            with open(arguments.timeline, "w") as file:
                file.write(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format())

    return Watch()


if __name__ == "__main__":
    sys.exit(main())
