"""Names and checks of checkpoint paths."""

import errno
import os
import re
import stat
from typing import Any, List

import tensorflow as tf

from mx_rec.validator.validator import Text

SPARSE_PREFIX = "sparse-"
DELTA_PREFIX = "delta-"

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
_MOST_BYTES = 500 * 1024 ** 3
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SYSTEM_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/etc", "/usr/lib", "/usr/lib64", "/usr/local")


def validate_read_file(read_file_path: str) -> None:
    """Checks a file before a script reads it.

    Of a file that only TensorFlow reaches, as hdfs://host/x, the size alone is checked.

    Args:
        read_file_path: Path of the file, 1-1024 characters.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the path is no str of that length; if it is a symbolic link, a directory or
            another thing than a file; if the file is empty or larger than 500 GiB; if neither the
            user nor the group of this process owns it; or if others than its owner may write it.
    """
    Text(1, 1024)("read_file_path", read_file_path)
    if is_remote(read_file_path):
        try:
            _check_size(read_file_path, tf.io.gfile.stat(read_file_path).length)
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT),
                                    read_file_path) from error
        return
    found = os.lstat(read_file_path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("'read_file_path' should be a file, but {!r} is {}".format(
            read_file_path, "a symbolic link" if stat.S_ISLNK(found.st_mode) else
            "a directory" if stat.S_ISDIR(found.st_mode) else "none"))
    _check_size(read_file_path, found.st_size)
    if found.st_uid != os.geteuid() and found.st_gid != os.getegid():
        raise ValueError("'read_file_path': {!r} belongs to user {} and group {}, and this process "
                         "to user {} and group {}".format(read_file_path, found.st_uid,
                                                          found.st_gid, os.geteuid(), os.getegid()))
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise ValueError("'read_file_path': others than its owner may write {!r}, whose mode is "
                         "{:04o}; chmod go-w takes that away".format(
                             read_file_path, stat.S_IMODE(found.st_mode)))


def _check_size(path: str, size: int) -> None:
    if not 1 <= size <= _MOST_BYTES:
        raise ValueError("'read_file_path': {!r} has {} bytes, which is not in [1, {}]".format(
            path, size, _MOST_BYTES))


def validate_save_path(save_path: str) -> None:
    """Checks a path before a script writes there.

    Args:
        save_path: Path of a file or directory, there or not, 1-1024 characters.

    Raises:
        ValueError: If it is no str of that length, has control characters or "..", or lies in a
            directory of the system.
        NotADirectoryError: If a part of it that should be a directory is a file.
        PermissionError: If this process must not write there.
    """
    path = check_save_path(save_path)
    if is_remote(path):
        return
    present = os.path.abspath(path)
    while not os.path.lexists(present):
        present = os.path.dirname(present)
    if present != os.path.abspath(path) and not os.path.isdir(present):
        raise NotADirectoryError(errno.ENOTDIR, "a file stands where a directory goes", present)
    needed = os.W_OK | os.X_OK if os.path.isdir(present) else os.W_OK
    if not os.access(present, needed):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), present)


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
