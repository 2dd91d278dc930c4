"""Kills tasks of a cluster while it trains and saves, and checks what is left; see scripts/crash.

Two parameter servers, the chief and a worker train three tables. Keys with even numbers are the
chief's, the others the worker's, and each counts its own steps in a variable. The optimizers of the
tables have no state but the rows', so the chief's rows are a function of its own count, whatever
the worker does and whoever was killed: for each count, one digest. The rows of the first table are
multiples of a vector that belongs to the key: a row of another key, or one that was written half,
is none.
"""

import argparse
import ctypes
import hashlib
import json
import logging
import os
import random
import select
import shutil
import signal
import socket
import sys
import time
import traceback

import numpy as np
import tensorflow as tf

import crash
from mx_rec.core.embedding import create_table
from mx_rec.core.grouped import sparse_lookup_many
from mx_rec.ops import library
from mx_rec.optimizers import adagrad, ftrl, gradient_descent
from mx_rec.util.initialize import init

tf1 = tf.compat.v1

KEYS = 2000
BATCH = 300
# Steps of both workers from one save to the next.
SAVE_STEPS = 30
# Steps of each worker after a kill, before the next one.
STEPS_BETWEEN = 5
PATIENCE = 90.0
SERVERS = [("ps", 0), ("ps", 1)]
WORKERS = [("worker", 0), ("worker", 1)]


def vector_of(keys):
    """What a step adds to the row of each key: (n) int64 to (n, 4) float32, small integers."""
    return np.stack([keys % prime + 1 for prime in (7, 11, 13, 17)], 1).astype(np.float32)


class Model:
    """Three tables and a count for each worker.

    Args:
        index: Number of the worker.
    """

    def __init__(self, index):
        init()
        self._own = np.arange(index, KEYS, 2, dtype=np.int64)
        self.all_keys = np.arange(KEYS, dtype=np.int64)
        self.step = tf1.train.get_or_create_global_step()
        counts = [tf1.get_variable("count_{}".format(number), [], tf.int64, trainable=False,
                                   initializer=tf1.zeros_initializer()) for number in range(2)]
        self.count = counts[index]
        # The step itself reads its number: a session that recovers runs the step again that failed,
        # but from an earlier count.
        ids, vectors = tf1.py_func(self._batch, [tf.identity(self.count)], [tf.int64, tf.float32])
        ids.set_shape([None])
        vectors.set_shape([None, 4])
        start = tf1.random_uniform_initializer(-1, 1, seed=3)
        tables = [create_table(tf.int64, dim, name, values, device_vocabulary_size=2 * KEYS)
                  for name, dim, values in (("counts", 4, tf1.zeros_initializer()),
                                            ("adagrad", 8, start), ("ftrl", 8, start))]
        optimizers = [gradient_descent.create_hash_optimizer(1.0),
                      adagrad.create_hash_optimizer(0.05), ftrl.create_hash_optimizer(0.05)]
        rows = sparse_lookup_many(tables, [ids] * 3, modify_graph=True)
        loss = tf.add_n([-tf.reduce_sum(rows[0] * vectors)] + [
            tf.reduce_sum(tf.square(one - 1.0)) for one in rows[1:]])
        variables = [table.variable for table in tables]
        updates = [optimizer.apply_gradients([pair]) for optimizer, pair in zip(
            optimizers, zip(tf.gradients(loss, variables), variables))]
        with tf.control_dependencies(updates):
            self.train = tf.group(tf1.assign_add(self.count, 1, use_locking=True),
                                   tf1.assign_add(self.step, 1, use_locking=True))
        self._look = sparse_lookup_many(tables, [tf.constant(self.all_keys)] * 3, is_train=False,
                                        modify_graph=True)

    def _batch(self, count):
        """The ids of the batch after `count` others, and what they add."""
        ids = self._own[np.random.RandomState(count).randint(0, len(self._own), BATCH)]
        return ids, vector_of(ids)

    def digest(self, sess):
        """Checks the rows of all keys.

        Returns:
            (this worker's count, a checksum of its rows).
        """
        count, rows = sess.run([self.count, self._look])
        vectors = vector_of(self.all_keys)
        times = rows[0][:, :1] / vectors[:, :1]
        assert np.array_equal(times, np.round(times)) and (times >= 0).all() \
            and np.array_equal(times * vectors, rows[0]), "a row of another key, or half a one: " \
            "keys {}".format(np.flatnonzero((times * vectors != rows[0]).any(1))[:10])
        assert all(np.isfinite(one).all() for one in rows)
        found = hashlib.sha256()
        for one in rows:
            found.update(np.ascontiguousarray(one[self._own]).tobytes())
        return int(count), found.hexdigest()


class Watch(tf1.train.SessionRunHook, tf1.train.CheckpointSaverListener):
    """Compares what a session of the chief begins with and saves with what was there before.

    Args:
        model: The chief's.
        directory: Of the checkpoints.
        journal: What this and earlier chiefs did.
        tell: Is called with words.
    """

    def __init__(self, model, directory, journal, tell):
        self._model, self._directory = model, directory
        self._journal, self._tell = journal, tell

    def after_create_session(self, session, coord):
        """Compares what was restored."""
        _, saved = self._journal.read()
        count = self._compare(session)
        assert not saved or count >= saved[-1], \
            "{} steps of the chief were saved, and a session begins with {}".format(
                saved[-1], count)
        self._tell("found", count)

    def before_save(self, session, global_step_value):
        """Notes what is about to be saved."""
        count = self._compare(session)
        self._count = count
        self._tell("saving", count)

    def after_save(self, session, global_step_value):
        """Notes that it was saved, and looks for what should not be there."""
        self._journal.add("saved", self._count)
        left = [name for name in crash.leftovers(self._directory)
                if not name.startswith(("events.out.", "graph.pbtxt"))]
        assert not left, "left over after a save: {}".format(left)
        self._tell("saved", self._count)

    def end(self, session, global_step_value=None):
        """Both a hook and a listener end: the first without, the second with a step."""

    def _compare(self, session):
        count, digest = self._model.digest(session)
        known = self._journal.read()[0].get(count, [digest])
        assert digest == known[0], "rows after {} steps are not what they were".format(count)
        self._journal.add("at", count, digest)
        return count


def ask_often():
    """Workers ask whether a session is ready each 0.2 seconds, instead of 30."""
    stock = tf1.train.SessionManager.__init__

    def patched(self, *args, **kwargs):
        kwargs["recovery_wait_secs"] = 0.2
        stock(self, *args, **kwargs)

    tf1.train.SessionManager.__init__ = patched


def run(cluster, job, index, directory, tell):
    """One task; a worker trains until there is a file `stop`."""
    spec = tf.train.ClusterSpec(cluster)
    server = tf1.train.Server(
        spec, job, index, config=tf1.ConfigProto(intra_op_parallelism_threads=1))
    if job == "ps":
        tell("serves")
        server.join()
    ask_often()
    checkpoints = os.path.join(directory, "checkpoints")
    with tf1.device(tf1.train.replica_device_setter(
            worker_device="/job:worker/task:{}".format(index), cluster=spec)):
        model = Model(index)
    hooks, chief_hooks = [], []
    if index == 0:
        watch = Watch(model, checkpoints, crash.Journal(os.path.join(directory, "journal")), tell)
        hooks = [watch]
        chief_hooks = [tf1.train.CheckpointSaverHook(
            checkpoints, save_steps=SAVE_STEPS, saver=tf1.train.Saver(max_to_keep=crash.KEEP),
            listeners=[watch])]
    filters = ["/job:ps", "/job:worker/task:{}".format(index)]
    with tf1.train.MonitoredTrainingSession(
            server.target, is_chief=index == 0, checkpoint_dir=checkpoints, hooks=hooks,
            chief_only_hooks=chief_hooks, save_checkpoint_secs=None, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None, stop_grace_period_secs=1,
            config=tf1.ConfigProto(device_filters=filters)) as sess:
        number = 0
        while not os.path.exists(os.path.join(directory, "stop")):
            sess.run(model.train)
            number += 1
            if index == 1 and number % 10 == 0:
                model.digest(sess)
            tell("step", number)


def check_end(directory):
    """Restores the newest checkpoint of the cluster in this process alone, and trains as much."""
    digests, saved = crash.Journal(os.path.join(directory, "journal")).read()
    model = Model(0)
    newest = tf.train.latest_checkpoint(os.path.join(directory, "checkpoints"))
    with tf1.Session() as sess:
        tf1.train.Saver().restore(sess, newest)
        count, digest = model.digest(sess)
    assert count >= saved[-1] and digest == digests[count][0], newest
    with tf1.Session() as sess:
        sess.run(tf1.global_variables_initializer())
        for _ in range(count):
            sess.run(model.train)
        assert model.digest(sess) == (count, digest), \
            "one process has other rows after {} steps of the chief".format(count)


class Task:
    """A process that says what it does through a pipe.

    Args:
        work: Is called with `tell` in a process of its own, which then ends.
    """

    def __init__(self, work):
        self.pipe, theirs = os.pipe()
        # No session and no server exists in this process, so TensorFlow has no threads here.
        self.process = os.fork()
        if self.process:
            os.close(theirs)
            self._rest = b""
            return
        code = 1
        try:
            end_with_parent()
            work(lambda *words: os.write(theirs, (" ".join(map(str, words)) + "\n").encode()))
            code = 0
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)  # pylint: disable=protected-access

    def lines(self):
        """What it said since; call it when the pipe can be read. None if it has ended."""
        data = os.read(self.pipe, 65536)
        if not data:
            return None
        whole, separator, self._rest = (self._rest + data).rpartition(b"\n")
        return (whole + separator).decode().splitlines()

    def kill(self):
        """Ends it as a crash would, if it still runs."""
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            self.wait()

    def wait(self):
        """Waits for its end; returns its code, -n if signal n ended it."""
        status = os.waitpid(self.process, 0)[1]
        self.process = 0
        os.close(self.pipe)
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def end_with_parent():
    """The system ends this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Failure(Exception):
    """Something was lost, wrong or dead."""


class Cluster:
    """The tasks, and how far they are.

    Args:
        directory: For checkpoints and the journal.
    """

    def __init__(self, directory):
        sockets = [socket.socket() for _ in range(4)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = ["127.0.0.1:{}".format(one.getsockname()[1]) for one in sockets]
        for one in sockets:
            one.close()
        self._cluster = {"ps": addresses[:2], "worker": addresses[2:]}
        self._directory = directory
        self._tasks, self._steps = {}, {}
        self.saves = 0

    def start(self, name):
        """Starts a task."""
        self._tasks[name] = Task(
            lambda tell: run(self._cluster, name[0], name[1], self._directory, tell))
        self._steps[name] = 0

    def kill(self, name):
        """Kills a task."""
        self._tasks.pop(name).kill()

    def kill_all(self):
        """Kills all tasks that are left."""
        for name in list(self._tasks):
            self.kill(name)

    def until(self, done, what):
        """Follows the tasks until `done(name, words)` is true for a line, or each 0.05 s for None.

        Raises:
            Failure: If a task ends by itself or nothing comes of it for too long.
        """
        end = time.time() + PATIENCE
        while time.time() < end:
            by_pipe = {task.pipe: name for name, task in self._tasks.items()}
            ready = select.select(list(by_pipe), [], [], 0.05)[0]
            if not ready and done(None, []):
                return
            for pipe in ready:
                name = by_pipe[pipe]
                found = self._tasks[name].lines()
                if found is None:
                    code = self._tasks.pop(name).wait()
                    raise Failure("{} {} has ended by itself, with {}".format(*name, code))
                for words in map(str.split, found):
                    self._steps[name] += words[0] == "step"
                    self.saves += words[0] == "saved"
                    if done(name, words):
                        return
        raise Failure("{} did not come within {} s".format(what, PATIENCE))

    def until_all_go_on(self):
        """Waits until each worker has done some steps more."""
        goals = {name: self._steps[name] + STEPS_BETWEEN for name in WORKERS}
        self.until(lambda name, words: all(self._steps[one] >= goals[one] for one in WORKERS),
                   "steps of both workers")

    def finish(self):
        """Lets the workers end, and waits for it."""
        open(os.path.join(self._directory, "stop"), "w").close()
        end = time.time() + PATIENCE
        for name in WORKERS:
            task = self._tasks[name]
            while True:
                if not select.select([task.pipe], [], [], max(0.0, end - time.time()))[0]:
                    raise Failure("{} {} does not end".format(*name))
                if task.lines() is None:
                    break
            code = self._tasks.pop(name).wait()
            if code:
                raise Failure("{} {} ended with {}".format(*name, code))


def one_kill(cluster, plan):
    """Kills a task at the moment that the plan has, starts it again, and waits for both workers."""
    victim = tuple(plan["victim"])
    if plan["in_save"]:
        cluster.until(lambda name, words: words[:1] == ["saving"], "a save")
    end = time.time() + plan["moment"]
    cluster.until(lambda name, words: time.time() >= end, "a moment")
    cluster.kill(victim)
    end = time.time() + plan["gone"]
    cluster.until(lambda name, words: time.time() >= end, "a moment")
    cluster.start(victim)
    cluster.until_all_go_on()


def main():
    """Returns 0 if no kill cost anything; 1 with a message otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="how many kills")
    parser.add_argument("--directory", required=True, help="for the checkpoints; emptied")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
    choose = random.Random(seed)
    directory = os.path.realpath(args.directory)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(os.path.join(directory, "checkpoints"))
    if not tf.__version__.startswith("1."):
        tf1.disable_v2_behavior()
    logging.disable(logging.WARNING)
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    library()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("{} kills of tasks of a cluster, seed {}".format(args.count, seed), flush=True)
    began, where = time.time(), {}
    cluster = Cluster(directory)
    number, plan = 0, {}
    # Each kind of task in turn, so that few kills take each, too.
    order = SERVERS[1:] + WORKERS[1:] + WORKERS[:1] + SERVERS[:1]
    try:
        for name in SERVERS + WORKERS:
            cluster.start(name)
        cluster.until_all_go_on()
        for number in range(1, args.count + 1):
            in_save = choose.random() < 0.5
            plan = {"victim": order[number % 4 - 1], "in_save": in_save,
                    "moment": choose.random() * (0.1 if in_save else 1.0),
                    "gone": choose.choice((0.0, 1.0)) * choose.random()}
            one_kill(cluster, plan)
            kind = "{} {}{}".format(*plan["victim"], ", while the chief saves" * in_save)
            where[kind] = where.get(kind, 0) + 1
        cluster.finish()
        cluster.kill_all()
        checked = Task(lambda tell: check_end(directory))
        if checked.wait():
            raise Failure("the last checkpoint is not what was saved")
    except Failure as failure:
        print("kill {} of {} failed, with the seed {}: {}. Its plan was {}, and {} holds what is "
              "left".format(number, args.count, seed, failure, json.dumps(plan), directory),
              flush=True)
        return 1
    finally:
        cluster.kill_all()
    digests, _ = crash.Journal(os.path.join(directory, "journal")).read()
    print("no loss after {} kills in {:.0f} s: {} saves returned, the chief's rows were compared "
          "{} times, up to its step {}".format(
              args.count, time.time() - began, cluster.saves, sum(map(len, digests.values())),
              max(digests)))
    for kind in sorted(where):
        print("  {:4d} {}".format(where[kind], kind))
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
