"""Names and checks of checkpoint paths."""

import os
import re
from typing import Any

from mx_rec.validator.validator import Text

SPARSE_PREFIX = "sparse-"

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
_SYSTEM_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/etc", "/usr/lib", "/usr/lib64", "/usr/local")


def check_save_path(save_path: Any) -> str:
    """Checks a checkpoint prefix, given by a caller.

    Args:
        save_path: Path and base name of the checkpoint files, 1-1024 characters.

    Returns:
        The same path.

    Raises:
        ValueError: If it is not a str of that length, has control characters, leads through a
            symbolic link or "..", or lies in a directory of the system.
    """
    Text(1, 1024)("save_path", save_path)
    if any(not character.isprintable() for character in save_path):
        raise ValueError("'save_path' must not contain control characters: {!r}".format(save_path))
    if is_remote(save_path):
        if ".." in save_path.split("/"):
            raise ValueError("'save_path' should be a real path, without '..': {!r}".format(
                save_path))
        return save_path
    # A relative path starts at the working directory, whose own links are not the caller's.
    full = os.path.join(os.getcwd(), re.sub(r"^(\./+)+", "", save_path).rstrip(os.sep))
    if full != os.path.normpath(full) or \
            (os.path.isabs(save_path) and full != os.path.realpath(full)):
        raise ValueError("'save_path' should be a real path, without symbolic links and '..': "
                         "{!r} is {!r}".format(save_path, os.path.realpath(full)))
    for directory in _SYSTEM_DIRECTORIES:
        if full == directory or full.startswith(directory + os.sep):
            raise ValueError("'save_path' must not be in the system directory {}: {!r}".format(
                directory, save_path))
    return save_path


def is_remote(path: str) -> bool:
    """Returns whether a path is of a file system that only TensorFlow reaches, as hdfs://host/x."""
    return _SCHEME.match(path) is not None


def sparse_directory(checkpoint: str) -> str:
    """Returns the directory of the tables that belong to a checkpoint.

    Args:
        checkpoint: The dense checkpoint's prefix, with the step: `<dir>/<base>-<step>`.

    Returns:
        `<dir>/sparse-<base>-<step>`.
    """
    directory, base = os.path.split(checkpoint)
    return os.path.join(directory, SPARSE_PREFIX + base)
