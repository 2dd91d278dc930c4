"""A parameter server or a worker of the bench of clusters; the driver tells workers what to run.

A worker has three models, each with a session of its own: tables of mx_rec that are looked up
together, such that are looked up one by one, and TensorFlow's partitioned variables. For each
(side, first, count) that the driver sends it runs so many steps.
"""

import os
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from session import workload  # noqa: E402
from mx_rec.core.embedding import create_table, sparse_lookup  # noqa: E402
from mx_rec.core.grouped import sparse_lookup_many  # noqa: E402
from mx_rec.optimizers.lazy_adam import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import init  # noqa: E402

SIDES = ("ours", "separate", "peer")
RATE = 0.01
tf1 = tf.compat.v1


class Side:
    """A model in a graph of its own.

    Args:
        make: Makes the embeddings: takes ids, int64 (tables, batch), and the sizes, and returns
            the variables, a tensor (tables, batch, dim) as a list, and an optimizer.
        ids: int64 (batches, tables, batch).
        device: The device function.
        sizes: What the driver gave.
        worker: Device of this worker.
    """

    def __init__(self, make, ids, device, sizes, worker):
        self.graph = tf.Graph()
        self._ids = ids
        # The servers know variables by container and name: both sides have beta1_power.
        with self.graph.as_default(), tf.device(device), self.graph.container(make.__name__):
            self._number = tf1.placeholder(tf.int32, [])
            self._fed = tf1.placeholder(tf.int64, ids.shape)
            with tf.device(worker):
                # All batches lie in the worker before anything is measured.
                held = tf.Variable(tf.zeros(ids.shape, tf.int64), trainable=False, name="ids",
                                   use_resource=True, collections=[tf1.GraphKeys.LOCAL_VARIABLES])
                self._load = held.assign(self._fed).op
                batch = held[self._number]
            variables, rows, optimizer = make(batch, sizes)
            self._rows = rows
            loss = tf.add_n([tf.nn.l2_loss(one) for one in rows])
            self._train = optimizer.apply_gradients(zip(tf.gradients(loss, variables), variables))
            from tensorflow.python.ops import resources

            self._init = tf.group(tf1.global_variables_initializer(),
                                  *[one.create for one in resources.shared_resources()])
            self._local = held.initializer

    def open(self, target, config, is_chief):
        """Opens the session and gives it the batches; the chief initializes."""
        self._session = tf1.Session(target, graph=self.graph, config=config)
        if is_chief:
            self._session.run(self._init)
        self._session.run(self._local)
        self._session.run(self._load, {self._fed: self._ids})

    def run(self, first, count):
        """Trains batches, one step for each."""
        for number in range(first, first + count):
            self._session.run(self._train, {self._number: number % len(self._ids)})

    def rows(self, number):
        """Returns the embeddings of a batch."""
        return self._session.run(self._rows, {self._number: number})


def create_tables(side, sizes):
    """Tables of mx_rec, one for each feature; servers know them by their names alone."""
    return [create_table(tf.int64, sizes["dim"], "%s_%d" % (side, at), tf1.zeros_initializer(),
                         device_vocabulary_size=sizes["rows"],
                         row_dtype=sizes.get("row_dtype", "float32"))
            for at in range(sizes["tables"])]


def ours(batch, sizes):
    """Tables of mx_rec, looked up together."""
    tables = create_tables("ours", sizes)
    rows = sparse_lookup_many(tables, tf.unstack(batch), modify_graph=True)
    rows = [one + 1.0 for one in rows]
    return [table.variable for table in tables], rows, create_hash_optimizer(RATE)


def separate(batch, sizes):
    """The same, looked up one by one."""
    tables = create_tables("separate", sizes)
    rows = [sparse_lookup(table, ids, modify_graph=True) + 1.0
            for table, ids in zip(tables, tf.unstack(batch))]
    return [table.variable for table in tables], rows, create_hash_optimizer(RATE)


def peer(batch, sizes):
    """TensorFlow's partitioned variables; ids are made distinct on the worker as well."""
    variables, rows = [], []
    for at, ids in enumerate(tf.unstack(batch)):
        with tf1.variable_scope("peer", partitioner=tf1.fixed_size_partitioner(sizes["ps"])):
            variable = tf1.get_variable("feature_%d" % at, [sizes["rows"], sizes["dim"]],
                                        initializer=tf1.zeros_initializer())
        distinct, places = tf.unique(ids)
        rows.append(tf.gather(tf.nn.embedding_lookup(variable, distinct), places) + 1.0)
        variables += list(variable)
    return variables, rows, tf.contrib.opt.LazyAdamOptimizer(RATE)


def serve_driver(sides, driver):
    """Does what the driver says until it ends this process."""
    while True:
        name, first, count = driver.recv()
        if name == "sum":
            values = [sides[side].rows(first) for side in SIDES]
            driver.send({
                "gap": max(float(np.max(np.abs(one - other)))
                           for side in values[1:] for one, other in zip(values[0], side)),
                "size": float(max(np.max(np.abs(one)) for one in values[0]))})
            continue
        sides[name].run(first, count)
        driver.send({})


def run(cluster, job, index, sizes, driver):
    """Runs a task.

    Args:
        cluster: The addresses of each job.
        job, index: The task.
        sizes: How much it does.
        driver: The connection to the driver.
    """
    os.environ.pop("TF_CONFIG", None)
    cluster = tf.train.ClusterSpec(cluster)
    server = tf1.train.Server(cluster, job, index)
    if job == "ps":
        driver.send({})
        server.join()
    init()
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    worker = "/job:worker/task:%d" % index
    numbers = workload.Sizes(sizes["rows"], 0, sizes["batch"], sizes["batches"] * sizes["tables"],
                             0, 0, 0)
    ids = workload.id_batches(numbers, "z", seed=2 + index)
    ids = ids.reshape(sizes["batches"], sizes["tables"], sizes["batch"])
    device = tf1.train.replica_device_setter(worker_device=worker, cluster=cluster)
    config = tf1.ConfigProto(device_filters=["/job:ps", worker])
    sides = {make.__name__: Side(make, ids, device, dict(sizes, ps=cluster.num_tasks("ps")), worker)
             for make in (ours, separate, peer)}
    for side in sides.values():
        side.open(server.target, config, index == 0)
    distinct = np.mean([sum(len(np.unique(one)) for one in batch) for batch in ids])
    driver.send({"distinct": float(distinct)})
    serve_driver(sides, driver)
