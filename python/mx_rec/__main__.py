"""The command `python -m mx_rec`."""

import sys

from mx_rec.launch.start import run

_USAGE = """\
usage: python -m mx_rec run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]

Runs a TensorFlow program that knows nothing of mx_rec on tables: python -m mx_rec run --help.
Further commands: python -m mx_rec.graph, python -m mx_rec.checkpoint.
"""

if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        sys.exit(run(sys.argv[2:]))
    asked = sys.argv[1:] in (["-h"], ["--help"])
    print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
    sys.exit(0 if asked else 2)
