"""Clusters of real processes on the loopback interface, for the tests of what tables say to them."""

import contextlib
import json
import os
import random
import socket
import tempfile

import preloaded
import support

# A worker's script begins so: a server of the cluster in CLUSTER (JSON), as the task JOB:INDEX.
SERVER = """
import json, os, sys
import tensorflow as tf
import mx_rec
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import init
init()
cluster = tf.train.ClusterSpec(json.loads(os.environ["CLUSTER"]))
server = tf.compat.v1.train.Server(cluster, os.environ["JOB"], int(os.environ["INDEX"]))

def table_of(name="items"):
    return create_table(tf.int64, 4, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=100)

def train_op(table):
    step = tf.compat.v1.train.get_or_create_global_step()
    loss = tf.reduce_sum(sparse_lookup(table, tf.constant([1, 2, 1], tf.int64), modify_graph=True))
    train = create_hash_optimizer(0.5).minimize(loss, var_list=[table.variable])
    return tf.group(train, tf.compat.v1.assign_add(step, 1))

def said(call):
    try:
        call()
    except NotImplementedError as error:
        return str(error)
    return "nothing"
"""


_given = set()


def free_addresses(count):
    """Addresses on the loopback interface that nobody uses now, and that no other connection gets before they are used.

    Below 32,768, since Linux gives higher ports to connections; at random, since other processes look for some, too.
    """
    addresses = []
    while len(addresses) < count:
        port = random.SystemRandom().randrange(10000, 32768)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                addresses.append("127.0.0.1:%d" % port)
    return addresses


def cluster_of(**jobs):
    """A cluster description with so many tasks of each job."""
    addresses = free_addresses(sum(jobs.values()))
    return {job: [addresses.pop() for _ in range(count)] for job, count in jobs.items()}


def run_task(cluster, job, index, code):
    """Runs `code` behind SERVER as one task of the cluster; returns what it printed."""
    return preloaded.run_python(SERVER + code, CLUSTER=json.dumps(cluster), JOB=job, INDEX=index)


@contextlib.contextmanager
def idle_task(cluster, job, index):
    """A task of the cluster that only serves, in a process of its own until the end of the block."""
    # It needs the ops of the plugin, and ends by itself if the test does not end it.
    code = SERVER + "print('serves', flush=True)\nimport time\ntime.sleep(120)\n"
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", PYTHONPATH=support.PACKAGES,
                       CLUSTER=json.dumps(cluster), JOB=job, INDEX=str(index))
    process = preloaded.Process(code, environment)
    try:
        assert process.stdout.readline().strip() == b"serves"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# How a task initializes mx_rec.
INIT = """
init(graph_pass=bool(os.environ.get("PASSES", "yes")))
"""

# A task of a cluster with parameter servers begins so; a ps serves until it is ended.
TASK = """
import json, os, sys
import numpy as np
import tensorflow as tf
job, index = os.environ["JOB"], int(os.environ["INDEX"])
if os.environ.get("WITHOUT_MX_REC") != job:
    import mx_rec
# For a cluster within this process.
addresses = json.loads(os.environ.get("ADDRESSES", "[]"))
text = os.environ.get("CLUSTER")
cluster = tf.train.ClusterSpec(json.loads(text)) if text else None
server = None
# A py_func that runs a session holds a thread meanwhile: with one processor it would have none.
threads = {"inter_op_parallelism_threads": 4}
if cluster is not None:
    server = tf.compat.v1.train.Server(cluster, job, index, config=tf.compat.v1.ConfigProto(**threads))
if job == "ps":
    print("serves", flush=True)
    server.join()
# Sessions that are not ready are asked again soon: TensorFlow's own waits are 30 seconds.
from tensorflow.python.training import session_manager
stock = session_manager.SessionManager.__init__
def quick(self, *args, **kwargs):
    kwargs["recovery_wait_secs"] = 0.3
    stock(self, *args, **kwargs)
session_manager.SessionManager.__init__ = quick
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.grouped import sparse_lookup_many
from mx_rec.util.initialize import init
from mx_rec.util.stats import table_stats""" + INIT + """target = server.target if server is not None else ""
is_chief = job == "chief" or (job == "worker" and index == 0 and os.environ.get("HAS_CHIEF") != "1")
device = "/cpu:0"
# As Estimators have it: a session waits for no other worker.
config = tf.compat.v1.ConfigProto(
    device_filters=["/job:ps", "/job:%s/task:%d" % (job, index)] if cluster is not None else [], **threads)
if cluster is not None:
    device = tf.compat.v1.train.replica_device_setter(
        worker_device="/job:%s/task:%d" % (job, index), cluster=cluster)
"""


class Job:
    """The processes of one cluster; whatever still runs is killed at the end of the block.

    Args:
        code: What workers run behind TASK.
        ps, worker: How many tasks.
        variables: Environment of all processes.
    """

    task = TASK

    def __init__(self, code, ps=2, worker=1, **variables):
        self.cluster = cluster_of(ps=ps, worker=worker)
        self.code = code
        self.variables = variables
        self.processes = {}

    def __enter__(self):
        try:
            for index in range(len(self.cluster["ps"])):
                self.start("ps", index)
            for index in range(len(self.cluster["ps"])):
                assert self.processes["ps", index].stdout.readline().strip() == b"serves", self.failure("ps", index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, job, index, **variables):
        """Starts a task; its output can be read line by line."""
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", PYTHONPATH=support.PACKAGES, PYTHONWARNINGS="ignore",
                           CLUSTER=json.dumps(self.cluster), JOB=job, INDEX=str(index))
        environment.pop("TF_CONFIG", None)
        for name, value in dict(self.variables, **variables).items():
            environment[name] = str(value)
        errors = tempfile.TemporaryFile()
        process = preloaded.Process(self.task + self.code, environment, errors)
        process.errors_file = errors
        self.processes[job, index] = process
        return process

    def kill(self, job, index):
        """Kills a task as a crash would."""
        process = self.processes.pop((job, index))
        process.kill()
        process.wait()
        process.stdout.close()

    def worker(self, index=0, seconds=300, **variables):
        """Runs a worker to its end; returns what it printed."""
        self.start("worker", index, **variables)
        return self.finish("worker", index, seconds)

    def finish(self, job, index, seconds=300):
        """Waits for a task; returns what it printed since."""
        process = self.processes[job, index]
        try:
            out, _ = process.communicate(timeout=seconds)
        except preloaded.TimeoutExpired:
            raise AssertionError("%s:%d does not end: %s" % (job, index, self.failure(job, index)))
        assert process.returncode == 0, self.failure(job, index)
        return out.decode()

    def failure(self, job, index):
        """The end of what a task wrote to stderr."""
        file = self.processes[job, index].errors_file
        file.seek(0)
        return file.read().decode("utf-8", "replace")[-6000:]

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()
            process.stdout.close()
        self.processes = {}


def run_alone(code, **variables):
    """Runs a worker's code without a cluster; returns what it printed."""
    return preloaded.run_python(TASK + code, JOB="worker", INDEX="0", ADDRESSES=json.dumps(free_addresses(9)), **variables)


# A model of two tables and a dense layer, whose batches depend on their numbers alone. MODEL makes it; RUN trains it
# from batch FIRST to LAST under a MonitoredTrainingSession, and prints what all keys look up afterwards.
MODEL = """
import time
from mx_rec.optimizers import adagrad, adam, ftrl, gradient_descent, lazy_adam, momentum, rmsprop, rowwise_adagrad
OPTIMIZERS = {
    "adagrad": lambda: adagrad.create_hash_optimizer(0.1),
    "ftrl": lambda: ftrl.create_hash_optimizer(0.1),
    "sgd": lambda: gradient_descent.create_hash_optimizer(0.1),
    "lazy_adam": lambda: lazy_adam.create_hash_optimizer(0.05),
    "decayed": lambda: lazy_adam.create_hash_optimizer(
        tf.compat.v1.train.exponential_decay(0.05, step, 5, 0.5)),
    "adam": lambda: adam.create_hash_optimizer(tf.compat.v1.train.exponential_decay(0.05, step, 5, 0.5)),
    "momentum": lambda: momentum.create_hash_optimizer(0.1, 0.9, enable_nesterov=True),
    "rmsprop": lambda: rmsprop.create_hash_optimizer(0.05, momentum=0.5),
    "rowwise": lambda: rowwise_adagrad.create_hash_optimizer(0.1),
    "centered": lambda: rmsprop.create_hash_optimizer(0.05, momentum=0.5, epsilon=1e-3, centered=True),
}
KEYS = np.arange(-5, 60, dtype=np.int64) * 977

def batch(number, size=40):
    random = np.random.RandomState(number)
    return KEYS[random.randint(0, len(KEYS), size)], random.rand(size).astype(np.float32)

with tf.device(device):
    step = tf.compat.v1.train.get_or_create_global_step()
    ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    labels = tf.compat.v1.placeholder(tf.float32, [None], name="labels")
    uniform = lambda seed: tf.compat.v1.random_uniform_initializer(-1, 1, seed=seed)
    dtype = os.environ.get("ROW_DTYPE", "float32")
    items = create_table(tf.int64, 4, "items", uniform(3), device_vocabulary_size=500, row_dtype=dtype,
                         slot_dtype=os.environ.get("SLOT_DTYPE", "float32"))
    users = create_table(tf.int64, 8, "users", uniform(int(os.environ.get("SEED", 4))), device_vocabulary_size=500,
                         row_dtype=dtype, slot_dtype=os.environ.get("SLOT_DTYPE", "float32"), padding_keys=[977], padding_keys_mask=True, padding_keys_len=1)
    if os.environ.get("MANY"):
        found = sparse_lookup_many([items, users, items], [ids, ids // 2, ids + 977], modify_graph=True)
    else:
        found = [sparse_lookup(items, ids, modify_graph=True), sparse_lookup(users, ids // 2, modify_graph=True),
                 sparse_lookup(items, ids + 977, modify_graph=True)]
    joined = tf.concat(found, -1)
    weights = tf.compat.v1.get_variable("weights", [joined.shape[-1], 1],
                                        initializer=tf.compat.v1.constant_initializer(0.3))
    loss = tf.reduce_mean(tf.square(tf.squeeze(tf.matmul(joined, weights), 1) - labels))
    tables = [items.variable, users.variable]
    slices = tf.gradients(loss, tables)
    if os.environ.get("CLIP"):
        slices, _ = tf.clip_by_global_norm(slices, 0.5)
    optimizer = OPTIMIZERS[os.environ.get("OPTIMIZER", "lazy_adam")]()
    dense = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    hooks = []
    if os.environ.get("SYNC"):
        workers = int(os.environ["SYNC"])
        optimizer = tf.compat.v1.train.SyncReplicasOptimizer(optimizer, workers, workers)
        # Without tokens from the start no step begins before the update of the one before.
        hooks.append(optimizer.make_session_run_hook(is_chief, num_tokens=0))
    train = optimizer.apply_gradients(zip(slices, tables), global_step=step)
    if not os.environ.get("SYNC"):
        slope = tf.gradients(loss, [weights])
        # No gradient is computed from weights that changed already.
        with tf.control_dependencies(slope + [one.values for one in slices]):
            train = tf.group(train, dense.apply_gradients(zip(slope, [weights])))
    every = [sparse_lookup(items, tf.constant(KEYS), is_train=False, modify_graph=True),
             sparse_lookup(users, tf.constant(KEYS // 2), is_train=False, modify_graph=True)]
"""

RUN = MODEL + """
first, last = int(os.environ.get("FIRST", 0)), int(os.environ.get("LAST", 12))
with tf.compat.v1.train.MonitoredTrainingSession(
        target, is_chief=is_chief, config=config, checkpoint_dir=os.environ.get("CHECKPOINTS"), hooks=hooks, log_step_count_steps=None,
        save_checkpoint_steps=int(os.environ.get("SAVE", 1000)), save_summaries_steps=None,
        stop_grace_period_secs=1) as sess:
    before = [value.tolist() for value in sess.run(every)] if os.environ.get("BEFORE") else None
    for number in range(first, last):
        lost, _ = sess.run([loss, train], dict(zip([ids, labels], batch(number))))
        if os.environ.get("BARRIER"):
            # Who is ahead would take a token of the others, and give an update two batches of its own.
            places = [os.path.join(os.environ["BARRIER"], "%d-%d" % (one, number))
                      for one in range(cluster.num_tasks("worker"))]
            open(places[index], "w").close()
            while not all(map(os.path.exists, places)):
                time.sleep(0.01)
    # Of all servers: where one has started again meanwhile, so does this session, which sizes need.
    rows = [value.tolist() for value in sess.run(every)]
    print(json.dumps({"loss": float(lost) if last > first else None, "step": int(sess.run(step)),
                      "sizes": [items.size(), users.size()], "before": before,
                      "stats": table_stats("users")._asdict(), "rows": rows}))
"""
