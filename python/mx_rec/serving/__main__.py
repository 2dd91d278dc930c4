"""The command `python -m mx_rec.serving push`: a training's checkpoints go into served models."""

import argparse
import queue
import sys
import threading
import time
from typing import List, Optional

import tensorflow as tf

from mx_rec.serving.changes import Contents
from mx_rec.serving.push import Options, Outcome, Pusher, checked, newest
from mx_rec.serving.servers import ServerError, server_of

_PROGRAM = "python -m mx_rec.serving"
_FAILED = 1
_WRONG = 2
# As of a process that SIGINT ended.
_INTERRUPTED = 130
_DESCRIPTION = """\
Follows the checkpoints of a training, whole ones and deltas, and brings what is new into models
that serve. They were exported with mx_rec.saver.export_plain(..., updates=True)."""
_EPILOG = """\
SERVER is HOST:PORT/MODEL for gRPC, http://HOST:PORT/v1/models/MODEL for REST.

A server that was away or was restarted is brought to the newest checkpoint from what it says that
it holds. A push that was cut off is gone on with, by whoever comes next.

examples:
  python -m mx_rec.serving push model/ localhost:8500/ranker http://other:8501/v1/models/ranker
  python -m mx_rec.serving push model/ localhost:8500/ranker --once --dry-run

exit code: 0 if all servers hold the newest checkpoint (--once); 1 if one does not; 2 if an argument
is wrong or there is no checkpoint; without --once it runs until it is interrupted: 130."""


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command.

    Args:
        argv: The arguments after the program's name; None is those of the process.

    Returns:
        The exit code, as the help says.
    """
    arguments = _parser().parse_args(argv)
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    try:
        options = checked(Options(arguments.rows, arguments.pause, arguments.retries,
                                  arguments.timeout, arguments.dry_run))
        if arguments.interval <= 0:
            raise ValueError("'interval' should be more than 0, but is {!r}".format(
                arguments.interval))
        servers = [server_of(server, arguments.timeout) for server in arguments.server]
    except (ServerError, ValueError) as error:
        print("{}: {}".format(_PROGRAM, error), file=sys.stderr)
        return _WRONG
    try:
        if arguments.once:
            return _once(Pusher(servers, options, _say), arguments.checkpoint_dir)
        # Each for itself: one that is away does not hold the others up. Nobody waits for them at
        # the end, since what a push has not sent yet is sent by the next one.
        contents, failed = Contents(), queue.Queue()  # type: Contents, queue.Queue[BaseException]
        for server in servers:
            threading.Thread(daemon=True, target=_follow, args=(
                Pusher([server], options, _say, contents), arguments.checkpoint_dir,
                arguments.interval, failed)).start()
        raise failed.get()
    except KeyboardInterrupt:
        print("{}: interrupted".format(_PROGRAM), file=sys.stderr)
        return _INTERRUPTED


def _once(pusher: Pusher, directory: str) -> int:
    prefix = newest(directory)
    if prefix is None:
        print("{}: there is no checkpoint at {}".format(_PROGRAM, directory), file=sys.stderr)
        return _WRONG
    outcomes = pusher.bring(prefix)
    for outcome in outcomes:
        _say(_line(outcome))
    return _FAILED if any(outcome.error for outcome in outcomes) else 0


def _follow(pusher: Pusher, directory: str, interval: float,
            failed: "queue.Queue[BaseException]") -> None:
    """Looks for a newer checkpoint, and whether the server lacks it, again and again."""
    told = ""
    try:
        while True:
            start = time.time()
            prefix = newest(directory)
            if prefix is None:
                line, is_news = "waiting for a checkpoint in {}".format(directory), False
            else:
                outcome, = pusher.bring(prefix)
                line, is_news = _line(outcome), outcome.changes is not None
            # What does not change is said once.
            if is_news or line != told:
                _say(line)
            told = line
            time.sleep(max(0.0, start + interval - time.time()))
    except BaseException as error:  # pylint: disable=broad-except
        failed.put(error)


def _line(outcome: Outcome) -> str:
    if outcome.error is not None:
        return "{}: FAILED: {}".format(outcome.server, outcome.error)
    if outcome.changes is None:
        return "{}: holds {}".format(outcome.server, outcome.held)
    return "{}: holds {}, after {:.2f} s".format(outcome.server, outcome.held, outcome.seconds)


def _say(line: str) -> None:
    print("{} {}".format(time.strftime("%H:%M:%S"), line), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    push = commands.add_parser(
        "push", help="bring a training's checkpoints into served models",
        description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    push.add_argument("checkpoint_dir", metavar="CHECKPOINT_DIR",
                      help="the training's directory, or a checkpoint's prefix")
    push.add_argument("server", metavar="SERVER", nargs="+", help="where a model is served")
    push.add_argument("--once", action="store_true", help="end when the newest one is there")
    push.add_argument("--dry-run", action="store_true",
                      help="say what would be sent, and change nothing")
    push.add_argument("--interval", type=float, default=0.5, metavar="SECONDS",
                      help="how often to look for a checkpoint (default: %(default)s)")
    push.add_argument("--rows", type=int, default=Options().rows, metavar="N",
                      help="rows of a piece at most (default: %(default)s)")
    push.add_argument("--pause", type=float, default=Options().pause, metavar="SECONDS",
                      help="between pieces, for lookups (default: %(default)s)")
    push.add_argument("--retries", type=int, default=Options().retries, metavar="N",
                      help="for requests without an answer (default: %(default)s)")
    push.add_argument("--timeout", type=float, default=Options().timeout, metavar="SECONDS",
                      help="that an answer may take (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
