"""Clusters of real processes on the loopback interface, for the tests of what tables say to them."""

import contextlib
import json
import os
import socket
import subprocess
import sys

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


def free_addresses(count):
    """Addresses on the loopback interface that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = ["127.0.0.1:%d" % one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def cluster_of(**jobs):
    """A cluster description with so many tasks of each job."""
    addresses = free_addresses(sum(jobs.values()))
    return {job: [addresses.pop() for _ in range(count)] for job, count in jobs.items()}


def run_task(cluster, job, index, code):
    """Runs `code` behind SERVER as one task of the cluster; returns what it printed."""
    return support.run_python(SERVER + code, CLUSTER=json.dumps(cluster), JOB=job, INDEX=index)


@contextlib.contextmanager
def idle_task(cluster, job, index):
    """A task of the cluster that only serves, in a process of its own until the end of the block."""
    # It needs the ops of the plugin, and ends by itself if the test does not end it.
    code = SERVER + "print('serves', flush=True)\nimport time\ntime.sleep(120)\n"
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", PYTHONPATH=support.PACKAGES,
                       CLUSTER=json.dumps(cluster), JOB=job, INDEX=str(index))
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
    try:
        assert process.stdout.readline().strip() == b"serves"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
