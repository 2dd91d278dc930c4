"""Trains a recommender on a cluster of this machine, kills two tasks on the way, and compares.

Two parameter servers, two workers (one is the chief) and an evaluator are processes of
cluster_task.py that talk on the loopback interface. A parameter server and a worker are killed and
started again. Then one process trains as many steps, and the errors on held-out ratings are held
against each other. Ends with a table of promises and exits with 0 only if all were kept.
scripts/demo-cluster runs this.
"""

import argparse
import ctypes
import glob
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import outcome
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST_DIFFERENCE = 0.02
# Of a task's error output, when something failed.
SHOWN_LINES = 25
PR_SET_PDEATHSIG = 1


class ClusterError(Exception):
    """A task ended that should not have, or something took too long."""


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="directory with MovieLens' ratings.csv and "
                        "movies.csv; without it, ratings are generated")
    parser.add_argument("--steps", type=int, default=1200,
                        help="steps of all workers together (default %(default)s)")
    parser.add_argument("--out", default="out/demo-cluster",
                        help="where checkpoints and logs go; emptied (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=420.0,
                        help="give up after so long (default %(default)s)")
    parser.add_argument("--quick", action="store_true",
                        help="few generated ratings and few steps: shows that everything runs")
    parser.add_argument("--relative-to", default=".", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick and args.data:
        parser.error("--quick generates its ratings: leave --data out")
    if args.quick:
        args.steps = min(args.steps, 240)
    if args.steps < 60:
        parser.error("--steps should be at least 60: a checkpoint is saved each twelfth of them")
    if args.data:
        args.data = os.path.abspath(os.path.join(args.relative_to, args.data))
    return args


def say(text=""):
    """Prints at once, so that progress shows."""
    print(text, flush=True)


def free_addresses(count):
    """Returns addresses on the loopback interface that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = ["127.0.0.1:{}".format(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def end_with_parent():
    """Runs in a new process: the system ends it when the process that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """The processes of one cluster; all of them end with the block.

    Args:
        arguments: Those of cluster_task.py.
        logs: Directory for what tasks write to stderr.
        deadline: time.time() at which to give up.
    """

    JOBS = (("ps", 2), ("chief", 1), ("worker", 1), ("evaluator", 1))

    def __init__(self, arguments, logs, deadline):
        addresses = free_addresses(4)
        self._cluster = {job: [addresses.pop() for _ in range(count)]
                         for job, count in self.JOBS if job != "evaluator"}
        self._arguments, self._logs, self._deadline = arguments, logs, deadline
        self._processes, self._lines = {}, queue.Queue()

    def __enter__(self):
        try:
            for job, count in self.JOBS:
                for index in range(count):
                    self.start(job, index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start(self, job, index):
        """Starts a task; what it prints is shown, and `wait_for` sees it."""
        task = json.dumps({"cluster": self._cluster, "task": {"type": job, "index": index}})
        environment = dict(os.environ, TF_CONFIG=task)
        log = open(self._log(job, index), "ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "cluster_task.py")] + self._arguments,
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                preexec_fn=end_with_parent)
        self._processes[job, index] = process
        threading.Thread(target=self._read, args=(job, index, process), daemon=True).start()

    def kill(self, job, index):
        """Ends a task as a crash of its machine would."""
        process = self._processes.pop((job, index))
        process.kill()
        process.wait()

    def wait_for(self, job, what):
        """Waits until a task of a job prints a line that `what` takes; returns that line."""
        while True:
            name, line = self._next()
            if name == job and what(line):
                return line
            if name is None and all(process.poll() is not None for (one, _), process
                                    in self._processes.items() if one == job):
                raise ClusterError("all tasks of the job {} have ended{}".format(
                    job, self._ends()))

    def wait_for_ends(self, jobs):
        """Waits until all tasks of some jobs have ended by themselves."""
        while any(process.poll() is None for (job, _), process in self._processes.items()
                  if job in jobs):
            self._next()
        while self._next()[0]:
            pass

    def _next(self):
        """The next line of a task, or (None, "") after a moment without one."""
        if time.time() > self._deadline:
            raise ClusterError("this takes too long" + self._ends())
        for (job, index), process in self._processes.items():
            if process.poll() not in (None, 0) or job == "ps" and process.poll() is not None:
                raise ClusterError("{} {} ended with code {}{}".format(
                    job, index, process.returncode, self._ends()))
        try:
            job, index, line = self._lines.get(timeout=0.2)
        except queue.Empty:
            return None, ""
        say("  [{} {}] {}".format(job, index, line))
        return job, line

    def _read(self, job, index, process):
        """Passes on what a task prints, until it ends."""
        with process.stdout as lines:
            for line in lines:
                self._lines.put((job, index, line.decode("utf-8", "replace").rstrip()))

    def _log(self, job, index):
        return os.path.join(self._logs, "{}-{}.log".format(job, index))

    def _ends(self):
        """The last lines that each task wrote to stderr."""
        text = []
        for path in sorted(glob.glob(os.path.join(self._logs, "*.log"))):
            with open(path, errors="replace") as lines:
                text += ["\n--- end of " + path + "\n"] + lines.readlines()[-SHOWN_LINES:]
        return "".join(text)


def on_cluster(arguments, steps, logs, deadline):
    """Trains on a cluster, and kills a parameter server and a worker on the way.

    Returns:
        The steps at which the chief and the killed worker went on.
    """
    def reached(step):
        return lambda line: line.startswith("step ") and int(line.split()[1]) >= step

    def begins(line):
        return line.startswith("begins at step ")

    with Cluster(arguments, logs, deadline) as cluster:
        cluster.wait_for("chief", reached(steps // 4))
        say("  ** ps 1 is killed, and started again")
        cluster.kill("ps", 1)
        cluster.start("ps", 1)
        after_server = int(cluster.wait_for("chief", begins).split()[-1])
        cluster.wait_for("chief", reached(steps // 2))
        say("  ** worker 0 is killed, and started again")
        cluster.kill("worker", 0)
        cluster.start("worker", 0)
        after_worker = int(cluster.wait_for("worker", begins).split()[-1])
        cluster.wait_for_ends(("chief", "worker", "evaluator"))
    return after_server, after_worker


def in_one_process(arguments, logs, deadline):
    """Runs cluster_task.py without a cluster, which trains what is not trained yet.

    Returns:
        Its newest checkpoint's {"rmse": .., "step": ..}.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    path = os.path.join(logs, "one-process.log")
    with open(path, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "cluster_task.py")] + arguments + ["--result"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            preexec_fn=end_with_parent)
    try:
        out, _ = process.communicate(timeout=max(1.0, deadline - time.time()))
    except subprocess.TimeoutExpired:
        raise ClusterError("one process takes too long; see " + path) from None
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        with open(path, errors="replace") as lines:
            raise ClusterError("one process ended with code {}\n{}".format(
                process.returncode, "".join(lines.readlines()[-SHOWN_LINES:])))
    results = [line for line in out.decode().splitlines() if line.startswith("result ")]
    return json.loads(results[-1][len("result "):])


def errors_of_evaluator(model_dir):
    """Returns what the evaluator wrote: [(step, RMSE)], in the order of steps."""
    found = {}
    for path in glob.glob(os.path.join(model_dir, "eval", "*")):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "rmse":
                    found[event.step] = value.simple_value
    return sorted(found.items())


def example(args, out):
    """Runs the demo; returns the exit code."""
    began, deadline = time.time(), time.time() + args.seconds
    shutil.rmtree(out, ignore_errors=True)
    logs = os.path.join(out, "log")
    os.makedirs(logs)

    def arguments(name):
        more = ["--data", args.data] if args.data else []
        return ["--model-dir", os.path.join(out, name), "--steps", str(args.steps), "--save-steps",
                str(args.steps // 12), "--recovery-wait", "1"] + more + ["--quick"] * args.quick

    # Steps of generated ratings take a moment: without a pause all would be done before a killed
    # task is back.
    pause = ["--pause", "0.03" if args.quick else "0.02"]
    say("2 parameter servers, 2 workers (the chief is one) and an evaluator, {} steps:".format(
        args.steps))
    after_server, after_worker = on_cluster(arguments("cluster") + pause, args.steps, logs,
                                            deadline)
    cluster_seconds = time.time() - began
    evaluated = errors_of_evaluator(os.path.join(out, "cluster"))
    of_cluster = in_one_process(arguments("cluster"), logs, deadline)
    say("one process, {} steps".format(args.steps))
    of_one = in_one_process(arguments("alone"), logs, deadline)

    say("\nRMSE on the held-out ratings")
    for step, error in evaluated:
        say("  evaluator, step {:5d}        {:.4f}".format(step, error))
    say("  cluster, step {:5d}          {:.4f}   {:.0f} s with two kills".format(
        of_cluster["step"], of_cluster["rmse"], cluster_seconds))
    say("  one process, step {:5d}      {:.4f}".format(of_one["step"], of_one["rmse"]))
    difference = abs(of_cluster["rmse"] - of_one["rmse"])
    say("\ncheckpoints and logs: {}\n{:.0f} seconds".format(
        os.path.relpath(out), time.time() - began))
    return outcome.show([
        ("all steps were trained, though a parameter server and a worker were killed",
         of_cluster["step"] >= args.steps and of_one["step"] >= args.steps),
        ("after the server's end, training went on from a checkpoint (step {})".format(
            after_server), after_server > 0),
        ("the worker that was started again joined the others (step {})".format(after_worker),
         after_worker > 0),
        ("the evaluator saw checkpoints, also the last one",
         len(evaluated) > 1 and evaluated[-1][0] == of_cluster["step"]),
        ("one process restores the parts and computes the evaluator's error",
         abs(evaluated[-1][1] - of_cluster["rmse"]) < 1e-5),
        ("RMSE of cluster and one process differ by at most {} ({:.4f})".format(
            LARGEST_DIFFERENCE, difference), difference <= LARGEST_DIFFERENCE),
    ])


def main():
    """Runs the demo and ends all of its processes; returns the exit code."""
    args = parse()
    # As Ctrl-C: the tasks end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return outcome.run(example, args, os.path.abspath(args.out))
    except ClusterError as error:
        print("error: {}".format(error), file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; all tasks have ended", file=sys.stderr)
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
