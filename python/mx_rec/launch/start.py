"""The command `python -m mx_rec run`: reads its options and becomes the program's process."""

import os
import subprocess
import sys
from typing import Dict, List, Optional

from mx_rec.launch.options import PROGRAM, Launch, read_arguments

_FAILED = 2


def run(argv: Optional[List[str]] = None) -> int:
    """Runs the command. It comes back only if the program could not be started.

    Args:
        argv: The arguments after `run`; None is those of the process.

    Returns:
        The exit code 2, after one line about the error on stderr.
    """
    try:
        wanted = read_arguments(argv)
        if sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site:
            raise ValueError("Python's options -I, -E and -S keep the program from finding mx_rec")
        flags = subprocess._args_from_interpreter_flags()  # pylint: disable=protected-access
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable] + flags + wanted.program,
                  environment(wanted.launch))
    except (OSError, ValueError) as error:
        print("{}: {}".format(PROGRAM, " ".join(str(error).split())), file=sys.stderr)
    return _FAILED


def environment(launch: Launch) -> Dict[str, str]:
    """Returns the environment in which a Python process runs a program on tables.

    Args:
        launch: What it is run with.
    """
    site = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "site")
    paths = [site] + [path for path in [os.environ.get("PYTHONPATH")] if path]
    return dict(os.environ, MXREC_RUN=launch.to_json(), PYTHONPATH=os.pathsep.join(paths))
