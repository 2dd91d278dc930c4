"""Python processes that begin with TensorFlow imported: tests that start many of them end sooner.

A process is forked by the standard library's fork server, which has imported TensorFlow and nothing of this
project, and has made no session. Tests of imports, of the plugin's loading or of what is equal in any process
start a fresh interpreter (`support.run_python`).
"""

import atexit
import gc
import io
import multiprocessing
import os
import sys
import tempfile
import threading
import types
from multiprocessing import reduction
from subprocess import TimeoutExpired

import support
import unread

_forks = []


def _context():
    """The fork server of this process, which starts with the first process that it forks."""
    if not _forks:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "tensorflow"])
        _forks.append(context)
    return _forks[0]


def _run(code, arguments, environment, out, errors):
    """Runs `code` as `python -c` does: as `__main__`, with exit functions and the end of its objects.

    What the fork server has imported is no garbage: to look through it takes a tenth of a second, and a copy of its memory.
    """
    unread.collect_seldom()
    unread.leave_out()
    for file, number in ((out, 1), (errors, 2)):
        received = file.detach()
        os.dup2(received, number)
        os.close(received)
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), write_through=True)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [""] + [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv[:] = ["-c"] + arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)  # pylint: disable=exec-used
    except Exception:  # pylint: disable=broad-except
        # As an interpreter does; multiprocessing would print the error past the program's hook.
        sys.excepthook(*sys.exc_info())
        raise SystemExit(1)
    finally:
        sys.stdout.flush()
        atexit._run_exitfuncs()  # pylint: disable=protected-access
    main.__dict__.clear()
    gc.collect()


class Process:
    """A process that runs `code`; the part of `subprocess.Popen` that tests use.

    Args:
        code: A program.
        environment: All of its environment variables.
        errors: An open file for its standard error, or None for none of it.
        arguments: Its `sys.argv[1:]`.

    Attributes:
        stdout: The reading end of its standard output.
        returncode: None while it runs, then its exit code, negative for a signal.
    """

    def __init__(self, code, environment, errors=None, arguments=()):
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            self._process = _context().Process(
                target=_run, daemon=True,
                args=(code, [str(one) for one in arguments], dict(environment), _Descriptor(writing),
                      _Descriptor(nothing if errors is None else errors.fileno())))
            self._process.start()
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
            os.close(nothing)
        self.stdout = os.fdopen(reading, "rb")
        self.pid = self._process.pid
        self.returncode = None

    def poll(self):
        """Its exit code if it has ended, else None."""
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout=None):
        """Its exit code once it has ended; TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if self.poll() is None:
            raise TimeoutExpired("python", timeout)
        return self.returncode

    def send_signal(self, number):
        """Sends it a signal if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Kills it as a crash would, if it runs."""
        if self.poll() is None:
            self._process.kill()

    def communicate(self, timeout=None):
        """What it prints until its end, and None; TimeoutExpired after `timeout` seconds."""
        texts = []
        reader = threading.Thread(target=lambda: texts.append(self.stdout.read()), daemon=True)
        reader.start()
        reader.join(timeout)
        if not texts:
            raise TimeoutExpired("python", timeout)
        self.wait(timeout)
        self.stdout.close()
        return texts[0], None


def ended(code, arguments=(), env=()):
    """Runs `code` to its end: its exit code, standard output and standard error."""
    with tempfile.TemporaryFile() as errors:
        process = Process(code, support.environment_of(dict(env)), errors, arguments)
        try:
            out, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        errors.seek(0)
        return process.returncode, out.decode("utf-8", "replace"), errors.read().decode("utf-8", "replace")


def run_python(code, *arguments, **env):
    """What `support.run_python` does, in a process that begins with TensorFlow imported."""
    returned, out, errors = ended(code, arguments, env)
    assert returned == 0, "exit code %d\n%s" % (returned, errors[-6000:])
    return out


def code_of(path):
    """A program that runs a script as `python path` does."""
    return "import runpy, sys; sys.path[0] = {!r}; runpy.run_path({!r}, run_name='__main__')".format(
        os.path.dirname(path), path)


def run_script(path, *arguments, expected=0, **env):
    """Runs a script that ends with the code `expected`; returns all that it wrote."""
    returned, out, errors = ended(code_of(path), arguments, env)
    assert returned == expected, "exit code %d\n%s" % (returned, (out + errors)[-6000:])
    return out + errors


class _Descriptor:
    """A file descriptor on its way to the process that the fork server forks."""

    def __init__(self, number):
        self._number = number

    def __getstate__(self):
        return reduction.DupFd(self._number)

    def __setstate__(self, state):
        self._received = state

    def detach(self):
        """The descriptor in the process that got it."""
        return self._received.detach()
