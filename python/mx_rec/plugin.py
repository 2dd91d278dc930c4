"""Finds the plugin, loads it into TensorFlow and checks that it is ours and works."""

import ctypes
import functools
import os
import re
import struct
from types import ModuleType
from typing import Any, Optional, Tuple

from mx_rec._version import VERSION

PLUGIN_NAME = "libmx_rec.so"
LIBRARY_VARIABLE = "MX_REC_LIBRARY"
OLDEST = (1, 15)
SUPPORTED = "1.15 or newer, also 2.x"

_loaded = None  # type: Optional[ModuleType]


def plugin_path() -> str:
    """Returns the path of the plugin: $MX_REC_LIBRARY, or the file beside this package."""
    given = os.environ.get(LIBRARY_VARIABLE)
    if given:
        return os.path.abspath(given)
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), PLUGIN_NAME)


def check_tensorflow() -> None:
    """Checks that a TensorFlow is installed that this package works with.

    Raises:
        ImportError: If TensorFlow is missing, cannot be imported or is older than 1.15.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            "mx_rec needs TensorFlow {0}, but `import tensorflow` failed: {1}. Install it into "
            "the environment that runs this script, for example with `pip install "
            "tensorflow==1.15.5 protobuf==3.20.3` for Python 3.7 or `pip install tensorflow` for "
            "a newer one, and import mx_rec again.".format(SUPPORTED, error)) from error
    found = str(getattr(tf, "__version__", "unknown"))
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST:
        raise ImportError(
            "mx_rec works with TensorFlow {0}, but the TensorFlow that Python found is {1} (in "
            "{2}). Install another one, for example with `pip install tensorflow==1.15.5 "
            "protobuf==3.20.3` for Python 3.7 or `pip install tensorflow` for a newer one, or run "
            "this script in an environment that has it.".format(
                SUPPORTED, found, os.path.dirname(getattr(tf, "__file__", "") or
                                                  "an unknown place")))


def call(name: str, *arguments: Any) -> Tuple[int, bytes]:
    """Calls a function of the plugin that gives bytes (include/mx_rec.h).

    TensorFlow need not be there; if it is to use the ops, `load` has to come first.

    Args:
        name: The function.
        arguments: Its arguments but for the last two; int is a size.

    Returns:
        0 and its result, or 1 and the text of an error.

    Raises:
        ImportError: If the plugin cannot be loaded or has no such function.
    """
    path = plugin_path()
    try:
        library = _library(path)
        function, free = getattr(library, name), library.mx_rec_free
    except (AttributeError, OSError) as error:
        raise ImportError("mx_rec's plugin {} cannot be loaded: {}".format(path, error)) from error
    function.restype = ctypes.c_int
    free.restype = None
    free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    result, size = ctypes.c_void_p(), ctypes.c_size_t()
    passed = [ctypes.c_size_t(one) if isinstance(one, int) else one for one in arguments]
    status = function(*passed, ctypes.byref(result), ctypes.byref(size))
    try:
        return int(status), ctypes.string_at(result, size.value) if size.value else b""
    finally:
        free(result, size)


@functools.lru_cache(maxsize=None)
def _library(path: str) -> ctypes.CDLL:
    """Returns the library of a path, opened once: a class of Python is made of each."""
    return ctypes.CDLL(path)


# AutoGraph, which goes into what a map function calls, would read the result after it is freed.
setattr(call, "__ag_compiled", True)


def load() -> ModuleType:
    """Loads the plugin once per process.

    Returns:
        The module with the Python function of each op.

    Raises:
        ImportError: If the file is missing, is not a shared library, is not our plugin or
            another version of it, or could not register its ops with this TensorFlow.
    """
    global _loaded
    if _loaded is None:
        path = plugin_path()
        _loaded = _load(path)
    return _loaded


def _load(path: str) -> ModuleType:
    import tensorflow as tf

    if not os.path.isfile(path):
        raise ImportError(
            "mx_rec's plugin {0} does not exist. It holds the embedding tables and belongs beside "
            "the Python package. Build it with `cargo build --release` and copy "
            "target/release/{1} there, install a wheel that contains it, or point the environment "
            "variable {2} to the file.".format(path, PLUGIN_NAME, LIBRARY_VARIABLE))
    try:
        _check_complete(path)
        # This call comes before ctypes opens the file: TensorFlow sees only the ops that are
        # registered while it loads the library itself.
        module = tf.load_op_library(path)
    except Exception as error:  # pylint: disable=broad-except
        raise ImportError(
            "mx_rec's plugin {0} could not be loaded: {1} The file is damaged, is not a shared "
            "library, or was built for another system. Build it again on this machine with "
            "`cargo build --release`, or point the environment variable {2} to a good file."
            .format(path, _sentence(error), LIBRARY_VARIABLE)) from error
    status, message, version = _describe(path)
    if status != 0:
        raise ImportError(
            "mx_rec's plugin {0} was loaded, but could not register its ops with TensorFlow {1}: "
            "{2} (code {3}). Check that this Python process imports only one TensorFlow, that it "
            "is from the official wheel, and that the plugin is version {4}."
            .format(path, tf.__version__, message.rstrip(".") or "no reason was given", status,
                    VERSION))
    if version.split("+")[0].split(" ")[0] != VERSION:
        raise ImportError(
            "mx_rec's plugin {0} is version {1}, but the Python package beside it is version {2}. "
            "They belong together: install both from one wheel, or build the plugin again with "
            "`cargo build --release`.".format(path, version or "unknown", VERSION))
    return module


def _check_complete(path: str) -> None:
    """Refuses a file that was cut off: opening it as a library would end the process.

    The last part of a shared library is its table of sections, whose place the header tells.
    """
    with open(path, "rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        raise OSError("it is not a 64-bit shared library")
    (table,) = struct.unpack_from("<Q", header, 0x28)
    width, count = struct.unpack_from("<HH", header, 0x3A)
    if os.path.getsize(path) < table + width * count:
        raise OSError("it is cut off: {} of {} bytes".format(
            os.path.getsize(path), table + width * count))


def _describe(path: str) -> Tuple[int, str, str]:
    """Asks the library for (status, message, version)."""
    try:
        library = ctypes.CDLL(path)
        for name in ("mx_rec_load_message", "mx_rec_version"):
            getattr(library, name).restype = ctypes.c_char_p
            getattr(library, name).argtypes = []
        library.mx_rec_load_status.restype = ctypes.c_int
        library.mx_rec_load_status.argtypes = []
    except (AttributeError, OSError) as error:
        raise ImportError(
            "{0} is a shared library, but not mx_rec's plugin ({1}). Point the environment "
            "variable {2} to {3}, or unset it to use the file beside the Python package."
            .format(path, _sentence(error), LIBRARY_VARIABLE, PLUGIN_NAME)) from error
    message = (library.mx_rec_load_message() or b"").decode("utf-8", "replace")
    version = (library.mx_rec_version() or b"").decode("utf-8", "replace")
    return int(library.mx_rec_load_status()), message, version


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else text + "."
