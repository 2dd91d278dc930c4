"""How the examples run and end: a directory for their files, a table of what they promised."""

import os
import sys
import tempfile
from typing import Any, Callable, List, Tuple

import tensorflow as tf

import movielens_data as data


def show(promises: List[Tuple[str, bool]]) -> int:
    """Prints each promise and whether it was kept.

    Args:
        promises: Text and whether it is true.

    Returns:
        The exit code: 0 if all were kept, else 1.
    """
    print("\npromises")
    for text, is_kept in promises:
        print("  {:8s}{}".format("kept" if is_kept else "BROKEN", text), flush=True)
    return 0 if all(is_kept for _, is_kept in promises) else 1


def run(example: Callable[[Any, str], int], args: Any, directory: str = "") -> int:
    """Runs an example in a directory.

    Args:
        example: Takes `args` and the directory, returns the exit code.
        args: Its arguments.
        directory: Where its files go; without it, they go to a temporary one.

    Returns:
        The exit code: 2 with the error printed if the data cannot be read.
    """
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    try:
        if directory:
            os.makedirs(directory, exist_ok=True)
            return example(args, os.path.realpath(directory))
        with tempfile.TemporaryDirectory() as scratch:
            return example(args, os.path.realpath(scratch))
    except data.DataError as error:
        print("error: {}".format(error), file=sys.stderr)
        return 2
