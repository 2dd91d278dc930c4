"""Tries every feature on the TensorFlow that this Python has: `python tests/matrix/run.py --help`.

Needs nothing but TensorFlow, NumPy and the package; scripts/stress matrix runs it on all versions.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MXREC_LOG_LEVEL", "ERROR")
# One order of float operations on all versions.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
sys.path[:0] = [HERE, PACKAGES]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [PACKAGES] + [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path])


def main():
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="only features that take no minutes")
    parser.add_argument("--mode", choices=["v1", "graph"], default="v1",
                        help="how 2.x is put into graph mode: disable_v2_behavior, or only "
                             "tf.Graph().as_default()")
    parser.add_argument("--only", help="only features whose title contains this")
    parser.add_argument("--out", help="a file for the results, JSON")
    parser.add_argument("--exchange", help="a directory: leaves a checkpoint for other versions "
                                           "there, and restores those that they left")
    arguments = parser.parse_args()

    import tensorflow as tf

    if arguments.mode == "v1" and not tf.__version__.startswith("1."):
        tf.compat.v1.disable_v2_behavior()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    import exchange
    import features
    from mx_rec.tensorflow import versions

    results = {"tensorflow": tf.__version__, "python": "{}.{}".format(*sys.version_info),
               "mode": arguments.mode, "missing": versions.missing(), "features": []}
    wanted = [(title, run) for title, run, is_short in features.FEATURES
              if (is_short or not arguments.short) and (arguments.only or "") in title]
    if arguments.exchange:
        wanted += exchange.features(arguments.exchange)
    for title, run in wanted:
        results["features"].append(_tried(title, run, features.Lacking))
        if arguments.out:
            _write(arguments.out, results)
    failed = [one["title"] for one in results["features"] if one["state"] == "failed"]
    print("TensorFlow {}, Python {}: {} features, {} failed{}".format(
        results["tensorflow"], results["python"], len(wanted), len(failed),
        ": " + ", ".join(failed) if failed else ""), flush=True)
    return 1 if failed else 0


def _tried(title, run, lacking):
    """Runs one feature in a directory of its own and says how it went."""
    started, place = time.time(), os.path.realpath(tempfile.mkdtemp(prefix="mx-rec-matrix-"))
    try:
        found = {"state": "ok", "digest": run(place)}
    except lacking as reason:
        found = {"state": "lacking", "reason": str(reason)}
    except Exception as error:  # pylint: disable=broad-except
        traceback.print_exc()
        found = {"state": "failed", "reason": "{}: {}".format(
            type(error).__name__, (str(error).strip().splitlines() or [""])[-1])}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print("{:8} {:5.1f} s  {}  {}".format(found["state"], time.time() - started, title,
                                          found.get("digest") or found["reason"]), flush=True)
    return dict(found, title=title)


def _write(path, results):
    with open(path + ".new", "w") as file:
        json.dump(results, file, indent=1, sort_keys=True)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main())
