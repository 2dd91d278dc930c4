"""What the plugin finds in the directory of a saved table; no TensorFlow is needed."""

import ctypes
import json
import os
from typing import Any, Callable, List, Optional

from mx_rec import plugin

# Is told (bytes done, bytes in all) while files are read.
Tell = Callable[[int, int], None]

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)


class TableError(Exception):
    """A table cannot be read; the text names the file."""


def describe(directory: str) -> Any:
    """Describes a table by its manifest, its attribute files and its sizes.

    Args:
        directory: The table's directory.

    Returns:
        A dict of version, rows, removed, dim, slots, parts, bytes, history, config and faults, as
        include/mx_rec.h has it.

    Raises:
        TableError: If it is no directory, or cannot be read.
        ImportError: If the plugin cannot be loaded.
    """
    path = os.fsencode(directory)
    return _call("mx_rec_checkpoint_describe", [path, len(path)])


def has_room(capacity: int, described: Any) -> bool:
    """Returns whether a table takes the rows of a saved one.

    What a table of the same budget has saved is taken whole: parts have more rows than it, in all.

    Args:
        capacity: The row budget.
        described: What `describe` says of the saved table.
    """
    config = described["config"] or {}
    return bool(described["rows"] <= capacity or config.get("capacity", capacity + 1) <= capacity)


def verify(directory: str, tell: Optional[Tell] = None) -> Any:
    """Reads every file of a table.

    Args:
        directory: The table's directory.
        tell: Is told how far it is, or None.

    Returns:
        A dict of version, rows, files, bytes, checksums and faults, as include/mx_rec.h has it.

    Raises:
        TableError: If it is no directory, or cannot be read.
        ImportError: If the plugin cannot be loaded.
    """
    path = os.fsencode(directory)
    return _call("mx_rec_checkpoint_verify", [path, len(path)], tell, True)


def sound(directory: str, found: Any) -> Any:
    """Returns what `describe` or `verify` has found, if no file of the table has a fault.

    Args:
        directory: The table's directory.
        found: What one of them says of it.

    Raises:
        TableError: If one has; the text tells each fault and the path of its file.
    """
    if found["faults"]:
        raise TableError("; ".join("{}: {}".format(
            os.path.join(directory, fault["file"]), fault["message"]) for fault in found["faults"]))
    return found


def find_row(directory: str, key: int, tell: Optional[Tell] = None) -> Any:
    """Finds the row of a key, and what the table's history knows of it.

    Args:
        directory: The table's directory.
        key: The key, a signed 64-bit number.
        tell: Is told how far it is, or None.

    Returns:
        None if there is neither, or a dict of position, parts and seen, as include/mx_rec.h has it.

    Raises:
        TableError: If the table is not sound.
        ImportError: If the plugin cannot be loaded.
    """
    path = os.fsencode(directory)
    return _call("mx_rec_checkpoint_row", [path, len(path), ctypes.c_int64(key)], tell, True)


def diff(here: str, there: str, tell: Optional[Tell] = None) -> Any:
    """Compares two tables by key.

    Args:
        here: Directory of the first table.
        there: Directory of the second table.
        tell: Is told how far it is, or None.

    Returns:
        A dict of equal, rows, dims, only_here, only_there, differing, parts, parts_only_here,
        parts_only_there and history, as include/mx_rec.h has it.

    Raises:
        TableError: If one of them is not sound.
        ImportError: If the plugin cannot be loaded.
    """
    first, second = os.fsencode(here), os.fsencode(there)
    return _call("mx_rec_checkpoint_diff", [first, len(first), second, len(second)], tell, True)


def _call(name: str, arguments: List[Any], tell: Optional[Tell] = None,
          has_progress: bool = False) -> Any:
    """Calls a function of the plugin and returns what its JSON says."""
    raised = []  # type: List[BaseException]

    def progress(done: int, total: int, _: Any) -> int:
        try:
            if tell is not None:
                tell(done, total)
        except BaseException as error:  # pylint: disable=broad-except
            # No exception crosses C: the work is stopped, and then it is raised.
            raised.append(error)
            return 0
        return 1

    # Held until the function has returned; it also lets Ctrl-C through.
    callback = _CALLBACK(progress)
    status, answer = plugin.call(name, *arguments, *([callback, None] if has_progress else []))
    if raised:
        raise raised[0]
    if status != 0:
        raise TableError(answer.decode("utf-8", "replace"))
    return json.loads(answer.decode("utf-8", "replace"))
