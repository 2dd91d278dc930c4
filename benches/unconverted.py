"""What `python -m mx_rec run` costs a program none of whose variables becomes a table.

The program trains a small model, whose step takes about a millisecond, in a session or a
MonitoredTrainingSession. It is run plainly and by the command, in turns; each turn is a process of
its own, and its figures are of the steps behind the first tenth: wall time and the time of all
processors. The whole processes are compared as well, by the time of the processors.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

FORMS = ("session", "monitored")
MOST = 1.02


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="append figures to this file, one JSON object a line")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="few steps: no measurement")
    parser.add_argument("--form", choices=FORMS, help="this form alone")
    parser.add_argument("--program", choices=FORMS, help="be the program of a form")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.steps, arguments.pairs = 40, 1
    if arguments.program:
        print(json.dumps(program(arguments.program, arguments.steps)), flush=True)
        return
    for form in [arguments.form] if arguments.form else FORMS:
        report(arguments, form, [pair(form, arguments.steps, at % 2 == 1)
                                 for at in range(arguments.pairs)])


def pair(form, steps, is_converted_first):
    """Runs the program plainly and by the command; returns the figures of both, by these names."""
    found = {}
    for name in ("run", "plain") if is_converted_first else ("plain", "run"):
        command = [sys.executable]
        if name == "run":
            command += ["-m", "mx_rec", "run", "--least-rows", "10000000", "--quiet"]
        command += [os.path.abspath(__file__), "--program", form, "--steps", str(steps)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[name] = json.loads(done.stdout.decode().splitlines()[-1])
        found[name]["whole"] = sum(getattr(after, one) - getattr(before, one)
                                   for one in ("ru_utime", "ru_stime"))
    return found


def report(arguments, form, pairs):
    """Prints the medians of the ratios, by the command over plain, and their ranges."""
    for figure, text in (("wall", "wall time of a step"), ("cpu", "processor time of a step"),
                         ("whole", "processor time of the process")):
        ratios = [one["run"][figure] / one["plain"][figure] for one in pairs]
        median = statistics.median(ratios)
        scale = 1e6 / (0.9 * arguments.steps) if figure != "whole" else 1.0
        plain = scale * statistics.median(one["plain"][figure] for one in pairs)
        print("%-9s  %-30s %8.1f %s plain, by the command %.3f (%.3f to %.3f)%s" % (
            form, text, plain, "s " if figure == "whole" else "us", median, min(ratios),
            max(ratios), "" if figure == "whole" or median <= MOST else "  above %.2f" % MOST))
        if arguments.json:
            with open(arguments.json, "a") as file:
                file.write(json.dumps({"bench": "unconverted", "form": form, "figure": figure,
                                       "plain": plain, "ratios": ratios}) + "\n")


def program(form, steps):
    """Trains; returns the time of the steps behind the first tenth, seconds."""
    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1
    ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
    items = v1.get_variable("items", [20000, 16])
    rows = tf.reshape(tf.nn.embedding_lookup(items, ids), [-1, 48])
    loss = tf.reduce_mean(tf.square(v1.layers.dense(
        v1.layers.dense(rows, 64, tf.nn.relu), 1)[:, 0] - labels))
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    random = np.random.RandomState(1)
    feeds = [{ids: random.randint(0, 20000, [256, 3]), labels: random.rand(256)}
             for _ in range(16)]
    with tempfile.TemporaryDirectory() as directory:
        session = v1.train.MonitoredTrainingSession(
            checkpoint_dir=directory, save_checkpoint_secs=None, save_checkpoint_steps=10 ** 9,
            save_summaries_steps=None, save_summaries_secs=None,
            log_step_count_steps=None) if form == "monitored" else v1.Session()
        with session:
            if form == "session":
                session.run(v1.global_variables_initializer())
            for at in range(steps):
                if at == steps // 10:
                    wall, cpu = time.perf_counter(), time.process_time()
                session.run([loss, train], feeds[at % 16])
            return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


if __name__ == "__main__":
    main()
