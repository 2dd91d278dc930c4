"""Updates of a served model: what lookups notice, how long they take, and from step to answer.

The server is examples/model_server.py, which stands for tensorflow_model_server; all processes are
on this machine. Prints one line a figure; docs/serving.md has those of one run.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List

import numpy as np
import tensorflow as tf

from mx_rec import serving
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.ops import library
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.saver import export_plain
from mx_rec.util.initialize import init

tf1 = tf.compat.v1
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIM, IDS, DELTA = 16, 4096, 10000


class Training:
    """A table whose rows lazy Adam trains."""

    def __init__(self, directory: str, rows: int) -> None:
        self.directory, self.step = directory, 0
        self.random = np.random.RandomState(1)
        self.keys = np.unique(self.random.randint(1, 2 ** 62, int(rows * 1.01)))[:rows]
        self.random.shuffle(self.keys)
        self.table = create_table(key_dtype=tf.int64, dim=DIM, name="items",
                                  device_vocabulary_size=2 * rows,
                                  emb_initializer=tf1.random_normal_initializer(seed=1))
        self.ids = tf1.placeholder(tf.int64, [None], "ids")
        rows_of = sparse_lookup(self.table, self.ids, modify_graph=True)
        self.train = create_hash_optimizer(0.01).minimize(
            tf.reduce_sum(tf.square(rows_of - 1.0)), var_list=[self.table.variable])
        self.found = sparse_lookup(self.table, self.ids, is_train=False, modify_graph=True)
        tf1.get_variable("weight", initializer=[1.0])
        self.saver = tf1.train.Saver(max_to_keep=1000)
        self.session = tf1.Session()
        self.session.run(tf1.global_variables_initializer())
        for start in range(0, rows, 200000):
            self.session.run(self.train, {self.ids: self.keys[start:start + 200000]})

    def change(self, count: int = DELTA) -> np.ndarray:
        """Trains rows, of which a tenth are new; returns their keys."""
        keys = np.concatenate([self.random.choice(self.keys, count - count // 10, replace=False),
                               self.random.randint(2 ** 61, 2 ** 62, count // 10)])
        self.session.run(self.train, {self.ids: keys})
        return keys

    def save(self, delta: bool = True) -> str:
        """Saves; returns the prefix."""
        self.step += 1
        return self.saver.save(self.session, self.directory + "/model.ckpt",
                               global_step=self.step, save_delta=delta)


class Process:
    """A model server in a process."""

    def __init__(self, directory: str) -> None:
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("MX_REC")}
        start = time.time()
        self.process = subprocess.Popen(
            [sys.executable, ROOT + "/examples/model_server.py", "--model_base_path", directory,
             "--model_name", "m"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment)
        ports = json.loads(self.process.stdout.readline().decode())
        self.seconds = time.time() - start
        self.rest = "http://127.0.0.1:{}/v1/models/m".format(ports["rest"])
        self.address = "127.0.0.1:{}/m".format(ports["grpc"]) if "grpc" in ports else self.rest

    def memory(self, name: str) -> float:
        """Returns VmRSS or VmHWM, in MB."""
        with open("/proc/{}/status".format(self.process.pid)) as file:
            line = next(one for one in file if one.startswith(name + ":"))
        return int(line.split()[1]) / 1e3


def size_of(directory: str) -> float:
    """Returns the bytes of all files, in MB."""
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(directory)
               for name in names) / 1e6


def say(text: str, *values: Any) -> None:
    """Prints a figure."""
    print(text.format(*values), flush=True)


def latencies(call: Any, queries: np.ndarray, seconds: float, pause: float) -> np.ndarray:
    """Returns milliseconds of lookups during some seconds, with pauses between them."""
    found = []  # type: List[float]
    end = time.time() + seconds
    while time.time() < end:
        start = time.perf_counter()
        call(queries[len(found) % len(queries)])
        found.append(time.perf_counter() - start)
        if pause:
            time.sleep(pause)
    return 1e3 * np.array(found)


def told(values: np.ndarray) -> str:
    """Returns a distribution as text."""
    return "median {:.2f} ms, p99 {:.2f}, greatest {:.2f} of {:,}".format(
        np.median(values), np.percentile(values, 99), values.max(), len(values))


def lookups(training: Training, directory: str, seconds: float) -> None:
    """Lookups in a session alone, beside a delta each second, and beside pushes without end."""
    config = tf1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
    graph = tf.Graph()
    with graph.as_default(), tf1.Session(graph=graph, config=config) as session:
        signatures = tf1.saved_model.loader.load(session, ["serve"], directory).signature_def
        one = signatures["serving_default"]
        call = session.make_callable([one.outputs["rows"].name], [one.inputs["ids"].name])
        server = serving.server_of((session, signatures))
        queries = np.random.RandomState(2).choice(training.keys, (64, IDS))
        first, = serving.push(training.save(delta=False), [server], pause=0)
        assert first.error is None, first.error
        changes = first.changes
        rows = sum(len(table.keys) for table in changes.tables.values())
        say("all {:,} rows by a full push in a session, without pauses: {:.2f} s", rows,
            first.seconds)
        prefixes = []
        for _ in range(int(2 * seconds) + 6):
            training.change()
            prefixes.append(training.save())
        outcome, = serving.push(prefixes[0], [server])
        assert outcome.error is None, outcome.error
        latencies(call, queries, 2, 0)
        alone = latencies(call, queries, seconds, 0.001)
        say("lookups of {:,} ids alone: {}", IDS, told(alone))
        for name, interval in (("a delta of {:,} rows each second".format(DELTA), 1.0),
                               ("deltas without end", 0.0)):
            found = []  # type: List[np.ndarray]
            reader = threading.Thread(target=lambda: found.append(
                latencies(call, queries, seconds, 0.001)))
            reader.start()
            pushed = []
            place = serving.version_of(server).name
            at = [os.path.basename(one) for one in prefixes].index(place) + 1
            while reader.is_alive() and at < len(prefixes):
                start = time.time()
                outcome, = serving.push(prefixes[at], [server])
                assert outcome.error is None, outcome.error
                pushed.append(time.time() - start)
                at += 1
                time.sleep(max(0.0, min(interval - (time.time() - start), interval)))
            reader.join()
            say("lookups beside {}: {}; p99 {:.2f} times that alone; {} pushes, median {:.0f} ms",
                name, told(found[0]), np.percentile(found[0], 99) / np.percentile(alone, 99),
                len(pushed), 1e3 * np.median(pushed))


class Recorder(serving.Server):
    """Passes requests on, and keeps them."""

    name = "recorder"

    def __init__(self, server: serving.Server) -> None:
        self._server = server
        self.requests = []  # type: List[Any]

    def predict(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, Any]:
        if signature != "version":
            self.requests.append((signature, inputs))
        return self._server.predict(signature, inputs)


def memory(training: Training, directory: str) -> None:
    """What a session grows by while it is pushed to, in a process of its own, beside readers."""
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        recorder = Recorder(serving.server_of(
            (session, tf1.saved_model.loader.load(session, ["serve"], directory))))
        for turn in range(4):
            training.change()
            outcome, = serving.push(training.save(delta=turn > 0), [recorder], pause=0)
            assert outcome.error is None, outcome.error
    path = directory + ".requests"
    with open(path, "wb") as file:
        pickle.dump((recorder.requests, training.keys[:IDS]), file, 4)
    subprocess.check_call([sys.executable, os.path.abspath(__file__), "--replay", directory, path])


def replay(directory: str, path: str) -> int:
    """Loads a model, and runs requests beside two threads that look keys up."""

    def resident(name: str) -> float:
        with open("/proc/self/status") as file:
            return int(next(one for one in file if one.startswith(name + ":")).split()[1]) / 1e3

    before = resident("VmRSS")
    with open(path, "rb") as file:
        requests, keys = pickle.load(file)
    requested = resident("VmRSS")
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        signatures = tf1.saved_model.loader.load(session, ["serve"], directory).signature_def
        server = serving.server_of((session, signatures))
        server.predict("serving_default", {"ids": keys})
        loaded = resident("VmRSS") - requested + before
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                server.predict("serving_default", {"ids": keys})

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        time.sleep(1.0)
        # From here on VmHWM is the most that there is while requests run.
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        start = resident("VmRSS")
        for signature, inputs in requests:
            server.predict(signature, inputs)
        most = resident("VmHWM")
        done.set()
        for reader in readers:
            reader.join()
    size = size_of(directory)
    say("a session with the model of {:.0f} MB: {:.0f} MB with TensorFlow; at most {:.0f} MB more "
        "while {} requests bring all rows and 3 deltas beside two readers: {:.2f} times the model",
        size, loaded, most - start, len(requests), (size + most - start) / size)
    return 0


def through_server(training: Training, directory: str, turns: int) -> None:
    """Memory of a server, and from a training step to its answer, with the command in between."""
    size = size_of(directory)
    server = Process(directory)
    say("server with the model of {:.0f} MB: ready after {:.1f} s, {:.0f} MB, at most {:.0f} MB",
        size, server.seconds, server.memory("VmRSS"), server.memory("VmHWM"))
    pusher = subprocess.Popen(
        [sys.executable, "-m", "mx_rec.serving", "push", training.directory, server.address,
         "--interval", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    asking = serving.server_of(server.address)
    try:
        # Until it holds what was saved last.
        wanted = os.path.basename(training.save())
        while serving.version_of(asking).name != wanted:
            time.sleep(0.1)
        delays, parts = [], {"train": [], "save": []}  # type: List[float], Dict[str, List[float]]
        for _ in range(turns):
            begun = time.time()
            keys = training.change()
            trained = time.time()
            training.save()
            parts["train"].append(trained - begun)
            parts["save"].append(time.time() - trained)
            expected = training.session.run(training.found, {training.ids: keys[-8:]})
            while True:
                found = asking.predict("serving_default", {"ids": keys[-8:]})["rows"]
                if np.array_equal(np.asarray(found, np.float32), expected):
                    break
                time.sleep(0.005)
            delays.append(time.time() - trained)
            time.sleep(max(0.0, begun + 1.0 - time.time()))
        say("from the end of a training step to the server's answer, a delta of {:,} rows each "
            "second: median {:.2f} s, greatest {:.2f} s of {} (of it the save {:.2f} s)", DELTA,
            np.median(delays), max(delays), turns, np.median(parts["save"]))
        say("server after all pushes: {:.0f} MB, at most {:.0f} MB", server.memory("VmRSS"),
            server.memory("VmHWM"))
    finally:
        asking.close()
        pusher.terminate()
        pusher.wait()
        server.process.kill()
        server.process.wait()


def main() -> int:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--seconds", type=float, default=15, help="of each kind of lookups")
    parser.add_argument("--turns", type=int, default=20, help="deltas through the server")
    parser.add_argument("--replay", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.replay:
        return replay(*arguments.replay)
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    init(is_incremental_checkpoint=True, save_checkpoint_due_time=10 ** 6,
         save_delta_checkpoints_secs=10 ** 6)
    with tempfile.TemporaryDirectory() as directory:
        directory = os.path.realpath(directory)
        training = Training(directory, arguments.rows)
        for rows_as in ("float32", "float16", "int8"):
            start = time.time()
            export_plain(training.session, "{}/{}".format(directory, rows_as),
                         {"ids": training.ids}, {"rows": training.found}, updates=True,
                         spare_rows=arguments.rows * 3 // 10, rows_as=rows_as)
            say("export of {:,} rows of {} as {}, 30 % spare: {:.1f} s, {:.0f} MB", arguments.rows,
                DIM, rows_as, time.time() - start, size_of("{}/{}".format(directory, rows_as)))
        lookups(training, directory + "/float32", arguments.seconds)
        memory(training, directory + "/float32")
        through_server(training, directory + "/float32", arguments.turns)
    return 0


if __name__ == "__main__":
    assert library() is not None
    sys.exit(main())
