"""Says what belongs to a checkpoint; the plugin puts it into place (docs/checkpoint-format.md)."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import time
from typing import Any, Callable, Iterator, List, Optional, Set

import tensorflow as tf

from mx_rec import plugin
from mx_rec.base.log import logger
from mx_rec.checkpoint.chains import MANIFEST, is_delta, other_kind, read_manifest

# Is told of each step on the disk before it is taken, and what it is about; returns 0, or the
# number of an error with which the step then fails. include/mx_rec.h has the names of steps.
before_step = None  # type: Optional[Callable[[str, str], int]]

_STEP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t,
                         ctypes.c_void_p)


class Staging:
    """A hidden directory that becomes the directory of a checkpoint's tables.

    Attributes:
        path: Where the tables are to be written.

    Args:
        directory: `<dir>/sparse-<base>-<step>`; `<dir>` is made if it is missing.

    Raises:
        OSError: If the hidden directory cannot be made.
    """

    def __init__(self, directory: str) -> None:
        directory = os.path.abspath(directory)
        parent = os.path.dirname(directory)
        _call("clean", directory)
        begun = _call("begin", directory)
        self._commit = ctypes.c_uint64(begun["commit"])
        self.path = os.path.join(parent, begun["staging"])

    def commit(self, tables: List[Any], dense: bool, **more: Any) -> None:
        """Writes the manifest and makes the directory the checkpoint's.

        Args:
            tables: What the manifest says of each table beside its seal: at least the `name`.
            dense: Whether variables are saved beside the tables.
            **more: Further fields of the manifest.

        Raises:
            OSError: If the system refuses; what stood there before is there still, or comes back
                by `undo`.
            tf.errors.ResourceExhaustedError: If the disk is full; the same.
            ValueError: If a table is not sound.
        """
        _call("place", self._commit, json.dumps(dict(more, tables=tables, dense=dense)))

    def finish(self) -> None:
        """Removes what the commit replaced.

        Raises:
            tf.errors.AbortedError: If something has removed or replaced the tables meanwhile.
        """
        _call("finish", self._commit)

    def undo(self) -> None:
        """Puts back what stood there before; without a commit, removes what was written."""
        _call("undo", self._commit)


def manifest_text(directory: str, tables: List[Any], dense: bool, **more: Any) -> str:
    """Returns the manifest of tables that lie in a local directory, as `Staging.commit` writes it.

    Args:
        directory: With a directory for each table.
        tables: As of `Staging.commit`.
        dense: As of `Staging.commit`.
        **more: As of `Staging.commit`.

    Raises:
        OSError: If the system refuses.
        ValueError: If a table is not sound.
    """
    content = json.dumps(dict(more, tables=tables, dense=dense))
    return str(_call("manifest", os.path.abspath(directory), content))


def sync_dense(checkpoint: str) -> None:
    """Flushes the files of a checkpoint's variables, and their directory, to the disk.

    Args:
        checkpoint: Prefix of the checkpoint, with the step.
    """
    _call("flush", os.path.abspath(checkpoint))


def listed_tables(directory: str) -> Optional[List[str]]:
    """Returns the tables that a checkpoint was saved with, or None where no manifest tells.

    Raises:
        ValueError: If the manifest is damaged.
    """
    manifest = read_manifest(directory)
    try:
        return [str(table["name"]) for table in manifest["tables"]] if manifest else None
    except (KeyError, TypeError) as error:
        raise ValueError("{} is no manifest: {}".format(
            os.path.join(directory, MANIFEST), error)) from error


def recover(directory: str) -> None:
    """Puts back what an interrupted save over an earlier checkpoint had replaced.

    Args:
        directory: `<dir>/sparse-<base>-<step>`.
    """
    _call("recover", os.path.abspath(directory))


def recover_chain(directory: str) -> None:
    """`recover` of a directory of tables and, if it is a delta, of all that it follows."""
    parent = os.path.dirname(os.path.abspath(directory))
    done = set()  # type: Set[str]
    while directory not in done:
        done.add(directory)
        recover(directory)
        recover(other_kind(directory))
        try:
            previous = read_manifest(directory).get("previous") if is_delta(directory) else None
        except ValueError:
            # Reading the chain raises it, with both names.
            return
        if isinstance(previous, dict):
            directory = os.path.join(parent, os.path.basename(str(previous.get("directory"))))


@contextlib.contextmanager
def alone(directory: str) -> Iterator[None]:
    """Lets no other save begin, or clean up, in a directory of checkpoints in the meantime.

    The plugin takes the same lock. Where the file system has no locks, nothing is held, nor is it
    for longer than a minute waited for.

    Args:
        directory: A local directory.
    """
    number, until = os.open(directory, os.O_RDONLY), time.monotonic() + 60
    try:
        while time.monotonic() < until:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:
                break
        yield
    finally:
        with contextlib.suppress(OSError):
            # A process that was forked meanwhile has the file open, too.
            fcntl.flock(number, fcntl.LOCK_UN)
        os.close(number)


def is_owned(directory: str) -> bool:
    """Returns whether a save of these tables is under way, in this process or elsewhere.

    The mark of a dead process counts until the next save of that base name removes it.
    """
    parent, name = os.path.split(os.path.abspath(directory))
    return any(entry.startswith(".{}.owner-".format(name)) for entry in os.listdir(parent))


def discard(directory: str) -> None:
    """Removes a directory of tables: it is gone at once, though removing its files takes time."""
    _call("discard", os.path.abspath(directory))


def _call(name: str, *arguments: Any) -> Any:
    """Calls a function of the plugin and returns what it answers; str arguments are its texts.

    Raises:
        OSError: If the system refuses.
        ValueError: If what is to be committed is not sound.
    """
    tell = before_step
    raised = []  # type: List[BaseException]

    def told(step: bytes, path: int, size: int, _: Any) -> int:
        try:
            return tell(step.decode(), os.fsdecode(ctypes.string_at(path, size))) if tell else 0
        except BaseException as error:  # pylint: disable=broad-except
            # No exception crosses C: the step fails, and then it is raised.
            raised.append(error)
            return errno.EINTR

    passed = []  # type: List[Any]
    for one in arguments:
        text = os.fsencode(one) if isinstance(one, str) else None
        passed += [one] if text is None else [text, len(text)]
    # Held until the function has returned.
    callback = _STEP(told) if tell else None
    status, answer = plugin.call("mx_rec_commit_" + name, *passed, callback, None)
    if raised:
        raise raised[0]
    if status != 0:
        raise RuntimeError(answer.decode("utf-8", "replace"))
    content = json.loads(answer.decode("utf-8"))
    for level, text in content["notes"]:
        (logger.warning if level == "warning" else logger.info)("%s", text)
    if "error" in content:
        raise _error(content["error"])
    return content["value"]


def _error(told: Any) -> Exception:
    """Returns the exception that an error of the plugin is."""
    if "errno" in told:
        paths = told["paths"]
        return OSError(told["errno"], os.strerror(told["errno"]), paths[0], None, *paths[1:])
    of_tensorflow = {"Aborted": tf.errors.AbortedError,
                     "ResourceExhausted": tf.errors.ResourceExhaustedError}
    if told["kind"] in of_tensorflow:
        return of_tensorflow[told["kind"]](None, None, told["message"])
    kinds = {"NoDirectory": NotADirectoryError, "NotFound": FileNotFoundError, "Io": OSError}
    return kinds.get(told["kind"], ValueError)(told["message"])
