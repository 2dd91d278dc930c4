"""Kills trainings while they save, and checks what the next one finds; see scripts/crash."""

import argparse
import hashlib
import json
import logging
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback

import numpy as np
import tensorflow as tf

import mx_rec  # noqa: F401
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.ops import library
from mx_rec.optimizers import adagrad, ftrl, lazy_adam
from mx_rec.checkpoint import chains, commit
from mx_rec.util.initialize import init

KEEP = 3
ROWS = 4000
BATCH = 1500
# Calls of these modules change what is on the disk, or tell where a save is.
MODULES = ("posix", "io", "_pywrap_tensorflow_internal")
PATIENCE = 60.0


class Journal:
    """What trainings did, in a file that only grows: it outlives them.

    Lines are `at STEP DIGEST`, before a save, and `saved STEP`, after it returned.
    """

    def __init__(self, path):
        self._path = path

    def add(self, *words):
        """Appends a line."""
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (" ".join(str(word) for word in words) + "\n").encode())
        os.close(handle)

    def read(self):
        """Returns ({step: its digests, the newest one last}, [steps that were saved])."""
        digests, saved = {}, []
        if os.path.exists(self._path):
            with open(self._path) as file:
                for line in file:
                    words = line.split()
                    if words[0] == "at":
                        digests.setdefault(int(words[1]), []).append(words[2])
                    else:
                        saved.append(int(words[1]))
        return digests, saved


def dense(values, units, name):
    """A dense layer without activation, (n, k) to (n, units). Newer TensorFlow has no tf.layers."""
    with tf.compat.v1.variable_scope(name):
        kernel = tf.compat.v1.get_variable("kernel", [values.shape.as_list()[1], units])
        bias = tf.compat.v1.get_variable("bias", [units],
                                         initializer=tf.compat.v1.zeros_initializer())
    return tf.matmul(values, kernel) + bias


class Model:
    """Tables with slots beside variables, one with admission, the others mostly on disk.

    Step n trains the batch n.
    """

    def __init__(self, directory):
        if not tf.__version__.startswith("1."):
            tf.compat.v1.disable_v2_behavior()
        tf.compat.v1.set_random_seed(1)
        # Deltas are saved where they are asked for, and not by a clock.
        init(is_incremental_checkpoint=True, save_checkpoint_due_time=10 ** 6,
             save_delta_checkpoints_secs=10 ** 6)
        self._ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.step = tf.compat.v1.train.get_or_create_global_step()
        optimizers = [("adam", lazy_adam), ("adagrad", adagrad), ("ftrl", ftrl)]
        # Hardly more rows in memory than a batch has.
        os.makedirs(directory, exist_ok=True)
        sizes = {"adam": {"host_vocabulary_size": 2 * ROWS}}
        on_disk = {"host_vocabulary_size": BATCH + 100, "ssd_vocabulary_size": 2 * ROWS,
                   "ssd_data_path": [directory]}
        tables = [create_table(
            key_dtype=tf.int64, dim=8, name=name, device_vocabulary_size=1,
            emb_initializer=tf.compat.v1.random_normal_initializer(seed=3),
            **sizes.get(name, on_disk)) for name, _ in optimizers]
        tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, tf.cast(self.step, tf.int64) + 1)
        admission = {"access_threshold": 2, "eviction_threshold": 100}
        looked = tf.concat([sparse_lookup(
            table, self._ids, modify_graph=True,
            access_and_evict_config=admission if table is tables[0] else None)
            for table in tables], 1)
        output = dense(dense(looked, 64, "hidden"), 1, "output")
        loss = tf.reduce_mean(tf.square(output - 1.0))
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.gradients(loss, variables + [table.variable for table in tables])
        with tf.control_dependencies([getattr(one, "values", one) for one in gradients]):
            updates = [tf.compat.v1.train.AdamOptimizer(0.01).apply_gradients(
                zip(gradients, variables), global_step=self.step)]
            for (_, module), table, gradient in zip(optimizers, tables, gradients[len(variables):]):
                updates.append(module.create_hash_optimizer(0.05).apply_gradients(
                    [(gradient, table.variable)]))
        self._update = tf.group(*updates)
        self._exports = []
        for table, slots in zip(tables, (["LazyAdam_momentum", "LazyAdam_velocity"],
                                         ["Adagrad_accumulator"], ["Ftrl_accum", "Ftrl_linear"])):
            fields = [tf.constant(np.frombuffer(name.encode(), np.uint8)) for name in [""] + slots]
            export = library().mx_rec_export(table.variable.op.outputs[1], fields)
            self._exports.append([export.keys] + export.values)

    def train(self, sess, number):
        """Trains one batch, which `number` tells."""
        ids = np.random.RandomState(number).randint(-ROWS // 2, ROWS // 2, BATCH)
        sess.run(self._update, {self._ids: ids})

    def digest(self, sess):
        """Returns a checksum of all tables, slots and variables."""
        found = hashlib.sha256()
        for keys, *values in sess.run(self._exports):
            order = np.argsort(keys)
            for part in [keys] + values:
                found.update(part[order].tobytes())
        for variable in sorted(tf.compat.v1.global_variables(), key=lambda one: one.name):
            found.update(sess.run(variable).tobytes())
        return found.hexdigest()


class Calls:
    """Kills this process before a certain call of system or TensorFlow, or step of the commit."""

    def __init__(self, deadly=None):
        self.count = 0
        self._deadly = deadly

    def __enter__(self):
        commit.before_step = self._stepped
        sys.setprofile(self._called)
        return self

    def __exit__(self, *unused):
        sys.setprofile(None)
        commit.before_step = None

    def _called(self, frame, event, function):
        del frame
        if event in ("c_call", "c_return") and getattr(function, "__module__", "") in MODULES:
            self._count()

    def _stepped(self, step, path):
        del step, path
        self._count()
        return 0

    def _count(self):
        self.count += 1
        if self.count == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def leftovers(directory):
    """Returns the files and directories that belong to no complete checkpoint."""
    found = []
    chained = chains.needed(directory, "model.ckpt")
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name in ("checkpoint", "model_index.json", "delta_export_time_ms.json") \
                or path in chained:
            continue
        base = name if "sparse-" in name else os.path.splitext(name)[0]
        base = base[base.rfind("sparse-") + len("sparse-"):] if "sparse-" in base else base
        checkpoint = os.path.join(directory, base)
        if name.startswith(".") or "temp" in name or ".tmp" in name \
                or not os.path.isfile(checkpoint + ".index") \
                or not os.path.isdir(chains.tables_directory(checkpoint)):
            found.append(name)
    return found


def run(directory, journal, plan, tell):
    """One training: restores and compares, then trains and saves until it is killed.

    Args:
        directory: Of the checkpoints.
        journal: What this and earlier trainings did.
        plan: `save`, the number of the save at which it is killed; `call`, before which call, or
            None; `over`, which saves replace the one before; `delta`, which are deltas.
        tell: Is called with a word and numbers: found STEP, saving NUMBER, saved NUMBER CALLS.
    """
    np.random.seed(plan["seed"])
    # The files of rows have no names, or the next training removes what a killed one left.
    rows = os.path.join(os.path.dirname(directory), "rows")
    model = Model(rows)
    saver = tf.compat.v1.train.Saver(max_to_keep=KEEP, sharded=plan["sharded"])
    digests, saved = journal.read()
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1,
                                      inter_op_parallelism_threads=2)
    with tf.compat.v1.Session(config=config) as sess:
        sess.run(tf.compat.v1.global_variables_initializer())
        newest = tf.train.latest_checkpoint(directory)
        step = 0
        if newest is None:
            assert not saved, "saved up to step {}, and no checkpoint is named".format(saved[-1])
        else:
            saver.restore(sess, newest)
            saver.recover_last_checkpoints(
                tf.train.get_checkpoint_state(directory).all_model_checkpoint_paths)
            step = int(sess.run(model.step))
            assert newest.endswith("-{}".format(step)), "{} holds step {}".format(newest, step)
            assert not saved or step >= saved[-1], "step {} was saved, and {} is the newest".format(
                saved[-1], newest)
            assert model.digest(sess) in digests[step], "{} is not what was saved".format(newest)
        assert not os.listdir(rows), "left over of rows on disk: {}".format(os.listdir(rows))
        tell("found", step)
        number = 0
        while True:
            if number not in plan["over"] or step == 0:
                step += 1
                model.train(sess, step)
            else:
                # Other rows and variables under the same step.
                model.train(sess, step + 10 ** 6 + number)
                sess.run(model.step.assign(step))
            journal.add("at", step, model.digest(sess))
            tell("saving", number)
            with Calls(plan["call"] if number == plan["save"] else None) as calls:
                path = saver.save(sess, directory + "/model.ckpt", global_step=step,
                                  save_delta=number in plan["delta"])
            journal.add("saved", step)
            assert path == tf.train.latest_checkpoint(directory)
            left = leftovers(directory)
            assert not left, "left over after a save: {}".format(left)
            tell("saved", number, calls.count)
            number += 1


def start(directory, journal, plan):
    """Forks a training; returns its process and what it tells.

    No session exists before the fork, so TensorFlow has no threads that it would lose.
    """
    ours, theirs = os.pipe()
    process = os.fork()
    if process:
        os.close(theirs)
        return process, ours
    os.close(ours)
    try:
        run(directory, journal, plan,
            lambda *words: os.write(theirs, (" ".join(map(str, words)) + "\n").encode()))
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)  # pylint: disable=protected-access


def lines(handle):
    """Yields the lines that come out of a pipe, each with the time of its coming."""
    rest = b""
    while True:
        if not select.select([handle], [], [], PATIENCE)[0]:
            raise TimeoutError("the training said nothing for {} s".format(PATIENCE))
        data = os.read(handle, 4096)
        if not data:
            return
        whole, separator, rest = (rest + data).rpartition(b"\n")
        for line in (whole + separator).decode().splitlines():
            yield line.split()


def one_kill(directory, journal, plan, known):
    """Runs a training and kills it.

    Args:
        directory: Of the checkpoints.
        journal: Of the trainings.
        plan: See `run`; `moment` is the part of a save's time after which it is killed.
        known: `seconds` and `calls` of a save, kept up to date.

    Returns:
        Where it was killed, in words; None if the training failed by itself.
    """
    # The system counts the starts of processes in hundredths of a second, and what is older than a
    # process is what it takes for left over.
    time.sleep(0.05)
    process, pipe = start(directory, journal, plan)
    began, last, killed = 0.0, "before it restored", False
    try:
        for words in lines(pipe):
            last = " ".join(words[:2])
            if words[0] == "saving":
                began = time.time()
                if plan["call"] is None and int(words[1]) == plan["save"]:
                    time.sleep(plan["moment"] * known["seconds"])
                    os.kill(process, signal.SIGKILL)
                    killed = True
            elif words[0] == "saved" and not killed:
                known["seconds"] = 0.5 * (known["seconds"] + time.time() - began)
                known["calls"] = int(words[2])
                if int(words[1]) > plan["save"]:
                    # It made fewer calls than the plan has.
                    os.kill(process, signal.SIGKILL)
                    killed = True
    finally:
        os.close(pipe)
        if not killed and last == "before it restored":
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
    if not os.WIFSIGNALED(status) or last == "before it restored":
        return None
    return last


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
    os.makedirs(directory + "/checkpoints")
    journal = Journal(directory + "/journal")
    logging.disable(logging.WARNING)
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    library()
    print("{} kills, seed {}".format(args.count, seed), flush=True)
    known = {"seconds": 0.1, "calls": 100}
    where = {}
    began = time.time()
    # One more: what the last kill left is looked at as well.
    for number in range(args.count + 1):
        plan = {"seed": number, "save": choose.randrange(4), "sharded": choose.random() < 0.3,
                "over": [save for save in range(8) if choose.random() < 0.3],
                "delta": [save for save in range(8) if choose.random() < 0.6],
                "moment": 1.2 * choose.random(),
                "call": choose.randrange(1, known["calls"] + 2) if choose.random() < 0.5 else None}
        last = one_kill(directory + "/checkpoints", journal, plan, known)
        if last is None:
            print("the training after kill {} of {} failed, with the seed {}: its plan was {}, and "
                  "{} holds what it found".format(number, args.count, seed, json.dumps(plan),
                                                  directory), flush=True)
            return 1
        kind = ("between calls" if plan["call"] else "at a random time") + ", while " + \
            last.split()[0]
        where[kind] = where.get(kind, 0) + 1
    digests, saved = journal.read()
    print("no loss after {} kills in {:.0f} s: {} saves returned, {} were begun, up to step {}"
          .format(args.count, time.time() - began, len(saved), sum(map(len, digests.values())),
                  max(digests)))
    for kind in sorted(where):
        print("  {:4d} {}".format(where[kind], kind))
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
