"""What commands share: what they print, and whether this process is `python -m mx_rec run`."""

import ctypes
import sys
from typing import List, Union


def print_text(text: str) -> None:
    """Prints a text with names that need not fit the encoding of the terminal."""
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def sentence(error: BaseException) -> str:
    """Returns what a command says of an error, in one line."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return "{}: {}".format(error.filename, error.strerror)
    return " ".join(str(error).split()) or type(error).__name__


def counted(number: Union[int, str], what: str) -> str:
    """Returns a number of things, or "no" of them, in words."""
    return "{} {}{}".format(number, what, "" if number == 1 else "s")


def is_run_command() -> bool:
    """Returns whether Python was started as `python [options] -m mx_rec run ...`.

    That process reads its options and starts the program: it needs neither TensorFlow nor the
    plugin. It has to be known while the package is imported, where Python has only put "-m" into
    the place of the module.
    """
    given = sys.argv[1:]
    if sys.argv[:1] != ["-m"] or given[:1] != ["run"]:
        return False
    before = _arguments_of_process()[:-len(given)]
    return before[-2:] == ["-m", "mx_rec"] or before[-1:] == ["-mmx_rec"]


def _arguments_of_process() -> List[str]:
    """Returns all arguments, those of Python as well, which `sys.orig_argv` is from 3.10 on."""
    count, arguments = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
    ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(arguments))
    return [arguments[at] or "" for at in range(count.value)]
