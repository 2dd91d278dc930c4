"""Tables of checkpoints on file systems that only TensorFlow knows, such as hdfs://.

The engine reads and writes local files. Here the tables are staged in a local temporary directory
($TMPDIR) and copied by tf.io.gfile; docs/checkpoint-format.md says what that promises.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import uuid
from typing import Any, Iterator, List, Optional, Union

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import commit
from mx_rec.checkpoint.chains import tables_directory
from mx_rec.checkpoint.paths import is_remote, sparse_directory

_HIDDEN = re.compile(r"^\.((?:delta-)?sparse-.+)\.(saving|old)-[0-9a-f]{32}$")


class RemoteStaging:
    """As `commit.Staging`, for a directory on a remote file system.

    One process at a time may save checkpoints with one base name in a directory: processes of other
    hosts cannot be told dead from alive.

    Attributes:
        path: The local directory where the tables are to be written.

    Args:
        directory: `<dir>/sparse-<base>-<step>`; `<dir>` is made if it is missing.

    Raises:
        OSError: If the file system refuses, or TensorFlow does not know it.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._parent, self._name = os.path.split(directory)
        with _named(directory):
            tf.io.gfile.makedirs(self._parent)
            if tf.io.gfile.exists(directory) and not tf.io.gfile.isdir(directory):
                raise NotADirectoryError("the tables cannot be saved: {} exists and is no "
                                         "directory".format(directory))
            _clean(self._parent, self._name)
        token = uuid.uuid4().hex
        self._hidden = "{}/.{}.saving-{}".format(self._parent, self._name, token)
        self._old = "{}/.{}.old-{}".format(self._parent, self._name, token)
        self._committed = False
        self.path = tempfile.mkdtemp(prefix="mx_rec.saving-")

    def commit(self, tables: List[Any], dense: bool, **more: Any) -> None:
        """Copies the tables and then the manifest, and renames the directory.

        Args:
            tables: What the manifest says of each table beside its seal: at least the `name`.
            dense: Whether variables are saved beside the tables.
            **more: Further fields of the manifest.

        Raises:
            OSError: If the file system refuses; what stood there before is there still.
            ValueError: If a table is not sound.
        """
        text = commit.manifest_text(self.path, tables, dense, **more)
        with _named(self._directory):
            _copy_tree(self.path, self._hidden)
            with tf.io.gfile.GFile(self._hidden + "/" + commit.MANIFEST, "w") as file:
                file.write(text)
            if tf.io.gfile.isdir(self._directory):
                tf.io.gfile.rename(self._directory, self._old)
            tf.io.gfile.rename(self._hidden, self._directory)
        self._committed = True

    def finish(self) -> None:
        """Removes what the commit replaced, and the local copy."""
        shutil.rmtree(self.path, ignore_errors=True)
        for path in (self._hidden, self._old):
            _remove(path)

    def undo(self) -> None:
        """Puts back what stood there before."""
        try:
            if self._committed:
                _remove(self._directory)
            if tf.io.gfile.isdir(self._old):
                tf.io.gfile.rename(self._old, self._directory)
        except tf.errors.OpError as error:
            logger.warning("%s could not be put back: %s", self._directory, error.message)
        self.finish()


def staging_of(directory: str) -> Union[commit.Staging, RemoteStaging]:
    """Returns where the tables of a checkpoint are to be written.

    Args:
        directory: `<dir>/sparse-<base>-<step>`.
    """
    return RemoteStaging(directory) if is_remote(directory) else commit.Staging(directory)


def discard(directory: str) -> None:
    """Removes a directory of tables, if it is there."""
    if is_remote(directory):
        _remove(directory)
    else:
        commit.discard(directory)


def directory_of(checkpoint: str) -> str:
    """Returns the directory of a checkpoint's tables; what interrupted saves left is put right.

    Args:
        checkpoint: `<dir>/<base>-<step>`.
    """
    if not is_remote(checkpoint):
        commit.recover_chain(sparse_directory(checkpoint))
        commit.recover_chain(tables_directory(checkpoint))
    return tables_directory(checkpoint)


@contextlib.contextmanager
def local_copy(directory: str) -> Iterator[str]:
    """Gives the tables of a checkpoint as a local directory.

    What an interrupted save left in a remote one is put right before. Errors inside that name the
    local copy name the remote directory instead.

    Args:
        directory: From `directory_of`; it need not be there.

    Raises:
        OSError: If the file system refuses.
    """
    if not is_remote(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="mx_rec.restoring-") as scratch:
        here = os.path.join(scratch, os.path.basename(directory))
        with _named(directory):
            _recover(*os.path.split(directory))
            if tf.io.gfile.isdir(directory):
                _copy_tree(directory, here)
        try:
            yield here
        except tf.errors.OpError as error:
            text = str(error.message).replace(here, directory)
            raise type(error)(error.node_def, error.op, text) from error
        except FileExistsError as error:
            raise FileExistsError(str(error).replace(here, directory)) from error
        except ValueError as error:
            raise ValueError(str(error).replace(here, directory)) from error


def index_stamp(checkpoint: str) -> Optional[Any]:
    """Returns what tells one dense index file from the next of the same name, or None."""
    try:
        if is_remote(checkpoint):
            found = tf.io.gfile.stat(checkpoint + ".index")
            return found.length, found.mtime_nsec
        local = os.stat(checkpoint + ".index")
    except (OSError, tf.errors.OpError):
        return None
    return local.st_ino, local.st_mtime_ns


def _clean(parent: str, name: str) -> None:
    """Removes what interrupted saves with the prefix of `name` left."""
    mine = re.compile(re.escape(re.sub(r"-\d+$", "", name)) + r"(-\d+)?$")
    for entry in _entries(parent):
        match = _HIDDEN.match(entry)
        if match and mine.match(match.group(1)):
            if match.group(2) == "old":
                _recover(parent, match.group(1))
            _remove(parent + "/" + entry)
        elif mine.match(entry) and entry != name and _is_orphan(parent, entry):
            _remove(parent + "/" + entry)


def _is_orphan(parent: str, name: str) -> bool:
    base = name[name.index("sparse-") + len("sparse-"):]
    if tf.io.gfile.exists("{}/{}.index".format(parent, base)):
        return False
    try:
        with tf.io.gfile.GFile("{}/{}/{}".format(parent, name, commit.MANIFEST)) as file:
            return bool(json.loads(file.read())["dense"])
    except (tf.errors.OpError, KeyError, TypeError, ValueError):
        return False


def _recover(parent: str, name: str) -> None:
    directory = parent + "/" + name
    if not tf.io.gfile.isdir(parent) or tf.io.gfile.exists(directory):
        return
    for entry in _entries(parent):
        match = _HIDDEN.match(entry)
        if match and match.group(1) == name and match.group(2) == "old":
            tf.io.gfile.rename(parent + "/" + entry, directory)
            logger.warning("put %s back, which an interrupted save had renamed.", directory)
            return


def _entries(directory: str) -> List[str]:
    # Some file systems end the names of directories with a slash.
    return sorted(entry.rstrip("/") for entry in tf.io.gfile.listdir(directory))


def _copy_tree(source: str, target: str) -> None:
    """Copies a directory; its manifest goes last, so that a copy with one is whole."""
    tf.io.gfile.makedirs(target)
    entries = _entries(source)
    for entry in sorted(entries, key=lambda one: (one == commit.MANIFEST, one)):
        path = source + "/" + entry
        if tf.io.gfile.isdir(path):
            _copy_tree(path, target + "/" + entry)
        else:
            tf.io.gfile.copy(path, target + "/" + entry, overwrite=True)
            length = tf.io.gfile.stat(path).length
            copied = tf.io.gfile.stat(target + "/" + entry).length
            if copied != length:
                raise OSError("{} has {} bytes after the copy of {}, which has {}.".format(
                    target + "/" + entry, copied, path, length))


def _remove(path: str) -> None:
    try:
        if tf.io.gfile.isdir(path):
            tf.io.gfile.rmtree(path)
    except tf.errors.OpError as error:
        logger.warning("%s could not be removed: %s", path, error.message)


@contextlib.contextmanager
def _named(directory: str) -> Iterator[None]:
    """Makes errors of tf.io.gfile ones of the system that name the directory."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError("the file system refused {}: {}".format(directory, error.message)) from error
