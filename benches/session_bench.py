"""Runs the session benches, each in a process of its own, and appends their figures as JSON lines."""

import argparse
import importlib
import multiprocessing
import os
import subprocess
import sys

from session import workload

HERE = os.path.dirname(os.path.abspath(__file__))

# target -> benches "module.function.draw" (the model: form); each runs in a process of its own, ours
# and the peer together, so that memory and table names of one never meet another's.
BENCHES = {
    "A1": ["admission.counting.u", "admission.counting.z"],
    "P1": ["lookup.dense.u", "lookup.dense.z"],
    "P2": ["lookup.hash_table.u"],
    "P3": ["update.lazy_adam.u", "update.lazy_adam.z"],
    "P4": [
        "update.%s.%s" % (rule, draw)
        for rule in ("adagrad", "ftrl", "momentum", "sgd")
        for draw in "uz"
    ],
    "P5": ["step.lazy_adam.u", "step.lazy_adam.z"],
    "P12": ["model.dense.u", "model.dense.z"],
    "P14": ["ssd.tenth.z", "ssd.ahead.z", "ssd.fits.z", "ssd.cold.z", "ssd.cold_ahead.z"],
    "P15": ["lookup.smallest.u"],
    "P16": ["model.modified." + form for form in "uzsdk"],
    "P17": ["tables.forward.z", "tables.step.z"],
    "P18": ["tables.small.z"],
    "P19": ["bags.pooled.z"],
    "P25": ["bags.written.z"],
    "P24": ["deepfm.tables.u", "deepfm.tables.z"],
    "AD1": ["adam.dense.u", "adam.dense.z"],
    "AD2": ["adam.lazy.u", "adam.lazy.z"],
    "AD3": ["adam.forward.u", "adam.forward.z"],
    "AD4": ["adam.rows.u", "adam.rows.z"],
}


def main():
    """Runs what the command line asks for; the exit code is 0 when all of it ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="file to append figures to")
    parser.add_argument("--only", help="comma separated targets, e.g. P1,P5")
    parser.add_argument("--short", action="store_true", help="small sizes; not a measurement")
    parser.add_argument("--limit-bench", help="the built example limit_bench; inherited by --bench")
    parser.add_argument("--bench", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.limit_bench:
        os.environ[workload.LIMIT_BENCH] = os.path.abspath(options.limit_bench)
    if options.bench:
        run_one(options.bench, options.json, workload.STANDARD)
        return 0
    wanted = options.only.split(",") if options.only else list(BENCHES)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    run = run_forked if options.short else run_fresh
    failed = []
    for target in BENCHES:
        if target not in wanted:
            continue
        for name in names_of(target, options.short):
            if run(name, options.json):
                failed.append("%s (%s)" % (target, name))
    if failed:
        print("session benches that failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def names_of(target, is_short):
    """Returns the benches of a target.

    The short form, which measures nothing, leaves Zipf ids out where the same code runs with uniform ones.
    """
    names = BENCHES[target]
    return [name for name in names
            if not (is_short and name.endswith(".z") and name[:-1] + "u" in names)]


def run_fresh(name, json):
    """Measures a bench in a process that did nothing before; returns its exit code."""
    return subprocess.call([sys.executable, os.path.join(HERE, "session_bench.py"),
                            "--bench", name, "--json", json])


def run_forked(name, json):
    """Runs the short form of a bench in a process that has TensorFlow imported already, but no
    session or plugin yet; returns its exit code.
    """
    quiet_tensorflow()
    import tensorflow.contrib  # noqa: F401  (the peers' optimizers: seconds of importing)

    process = multiprocessing.get_context("fork").Process(
        target=run_one, args=(name, json, workload.SHORT))
    process.start()
    process.join()
    return process.exitcode


def quiet_tensorflow():
    """Imports TensorFlow without its warnings."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning)
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)


def run_one(name, json, sizes):
    """Runs one bench in this process."""
    quiet_tensorflow()
    from session import measure

    module, function, draw = name.split(".")
    bench = getattr(importlib.import_module("session." + module), function)
    measure.emit(bench(sizes, draw), json)


if __name__ == "__main__":
    sys.exit(main())
