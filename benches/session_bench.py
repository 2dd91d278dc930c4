"""Runs the session benches, each in a fresh process, and appends their figures as JSON lines."""

import argparse
import importlib
import os
import subprocess
import sys

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
    "P15": ["lookup.smallest.u"],
    "P16": ["model.modified." + form for form in "uzsdk"],
    "P17": ["tables.forward.z", "tables.step.z"],
    "P18": ["tables.small.z"],
    "P24": ["deepfm.tables.u", "deepfm.tables.z"],
}


def main():
    """Runs what the command line asks for; the exit code is 0 when all of it ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="file to append figures to")
    parser.add_argument("--only", help="comma separated targets, e.g. P1,P5")
    parser.add_argument("--short", action="store_true", help="small sizes; not a measurement")
    parser.add_argument("--bench", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bench:
        run_one(options)
        return 0
    wanted = options.only.split(",") if options.only else list(BENCHES)
    failed = []
    for target in BENCHES:
        if target not in wanted:
            continue
        for name in BENCHES[target]:
            command = [sys.executable, os.path.join(HERE, "session_bench.py"), "--bench", name]
            command += ["--json", options.json] + (["--short"] if options.short else [])
            environment = dict(os.environ)
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
            if subprocess.call(command, env=environment):
                failed.append("%s (%s)" % (target, name))
    if failed:
        print("session benches that failed: " + ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


def run_one(options):
    """Runs one bench in this process."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning)
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    from session import measure, workload

    module, function, draw = options.bench.split(".")
    bench = getattr(importlib.import_module("session." + module), function)
    sizes = workload.SHORT if options.short else workload.STANDARD
    measure.emit(bench(sizes, draw), options.json)


if __name__ == "__main__":
    sys.exit(main())
