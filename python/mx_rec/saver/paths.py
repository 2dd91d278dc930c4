"""Names and checks of checkpoint paths."""

import errno
import os
import re
from typing import Any, List

from mx_rec.validator.validator import Text

SPARSE_PREFIX = "sparse-"
DELTA_PREFIX = "delta-"

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
_SYSTEM_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/etc", "/usr/lib", "/usr/lib64", "/usr/local")


def check_save_path(save_path: Any) -> str:
    """Checks a checkpoint prefix, given by a caller.

    It may lead through symbolic links, and have several slashes in a row.

    Args:
        save_path: Path and base name of the checkpoint files, 1-1024 characters.

    Returns:
        The path with single slashes.

    Raises:
        ValueError: If it is not a str of that length, has control characters or "..", or lies in a
            directory of the system.
    """
    Text(1, 1024)("save_path", save_path)
    if any(not character.isprintable() for character in save_path):
        raise ValueError("'save_path' must not contain control characters: {!r}".format(save_path))
    if ".." in save_path.split("/"):
        raise ValueError("'save_path' must not contain '..': {!r}".format(save_path))
    if is_remote(save_path):
        return save_path
    for full in (os.path.abspath(save_path), os.path.realpath(save_path)):
        # Some file systems of the root are links themselves, as /lib is to /usr/lib.
        for directory in _SYSTEM_DIRECTORIES:
            if (full + os.sep).startswith(directory + os.sep):
                raise ValueError("'save_path' must not be in the system directory {}: {!r} is "
                                 "{!r}".format(directory, save_path, full))
    return single_slashes(save_path)


def single_slashes(path: str) -> str:
    """Returns a local path with one slash where it has several: TensorFlow finds no files else."""
    return path if is_remote(path) else re.sub(os.sep + "+", os.sep, path)


def check_free(checkpoint: str, files: List[str]) -> None:
    """Checks that nothing stands where a save would put its directories and files.

    Args:
        checkpoint: `<dir>/<base>-<step>`, of local files.
        files: Paths of files that are written after the tables are in place.

    Raises:
        OSError: If a file stands where a directory goes, or the other way round.
    """
    directory = sparse_directory(checkpoint)
    parent, name = os.path.split(directory)
    for path in (directory, os.path.join(parent, DELTA_PREFIX + name)):
        if os.path.lexists(path) and not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, "a file stands where the tables go", path)
    for path in files:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "a directory stands where a file goes", path)
        holder = os.path.dirname(path)
        if os.path.lexists(holder) and not os.path.isdir(holder):
            raise NotADirectoryError(errno.ENOTDIR, "a file stands where a directory goes", holder)


def same_directory(one: str, other: str) -> bool:
    """Returns whether two paths of directories mean the same one, through links or not."""
    return os.path.realpath(one) == os.path.realpath(other)


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
