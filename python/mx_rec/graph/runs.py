"""What the sessions of a graph have run: the attributes by which a session is marked."""

import contextlib
import threading
import time
from typing import Any, Iterator

from mx_rec.tensorflow.names import session as sessions

# Attributes of a session: the rewritten iterators' initializers that it ran, and the version of
# the graph that it was prepared for.
RAN = "_mx_rec_initializers"
PREPARED = "_mx_rec_prepared"

# Further ones: the version of the graph for which nothing is left to do before a run, and that it
# ran the initializers of all rewritten iterators.
READY = "_mx_rec_ready"
SETTLED = "_mx_rec_settled"

# Those that a session does not have before its first run.
FRESH = (RAN, PREPARED, READY, SETTLED)

# The lock that is held while it is prepared.
_LOCK = "_mx_rec_lock"

# The lock that is held while values are set that nothing is to run without, and whether they are.
_SETTING = "_mx_rec_setting"
_IS_SETTING = "_mx_rec_is_setting"

# A list that is as long as the number of runs that go on, and whether none may begin.
_GOING_ON = "_mx_rec_going_on"
_IS_CLOSED = "_mx_rec_is_closed"

# For so many seconds the end of runs is waited for: one may itself wait for what waits for it.
_LONGEST = 30.0

# TensorFlow's own: patches.py imports this before it replaces anything.
_STOCK_RUN = sessions.BaseSession.run


def stock_run(session: Any, fetches: Any) -> Any:
    """Runs a session as TensorFlow does, without preparing it.

    Args:
        session: The session.
        fetches: As of session.run.
    """
    return _STOCK_RUN(session, fetches)


def preparation(session: Any) -> threading.Lock:
    """Returns the lock that is held while a session is prepared for a run.

    Args:
        session: The session.
    """
    return session.__dict__.setdefault(_LOCK, threading.Lock())


@contextlib.contextmanager
def setting(session: Any) -> Iterator[bool]:
    """A context in which one thread sets values, by runs; tells whether it is no such run itself.

    Others wait. The lock comes before that of `preparation`.

    Args:
        session: The session.
    """
    marks = session.__dict__
    with marks.setdefault(_SETTING, threading.RLock()):
        is_first = _IS_SETTING not in marks
        marks[_IS_SETTING] = True
        try:
            yield is_first
        finally:
            if is_first:
                del marks[_IS_SETTING]


def note_ready(session: Any) -> None:
    """Notes that nothing is left to do before runs of a session as its graph is.

    A run that sets values does not say so for the others.

    Args:
        session: A session that is prepared.
    """
    marks = session.__dict__
    if _IS_SETTING not in marks:
        marks[READY] = marks[PREPARED]


def begin_run(session: Any) -> bool:
    """Notes a run of a prepared session, which `end_run` ends; returns whether it may begin.

    If not, nothing is noted: the session has to be prepared again.

    Args:
        session: The session.
    """
    marks = session.__dict__
    marks.setdefault(_GOING_ON, []).append(None)
    if _IS_CLOSED not in marks:
        return True
    end_run(session)
    with preparation(session):
        return False


def end_run(session: Any) -> None:
    """Notes the end of a run.

    Args:
        session: The session.
    """
    session.__dict__[_GOING_ON].pop()


@contextlib.contextmanager
def alone(session: Any) -> Iterator[bool]:
    """A context in which no run of a session begins; tells whether none goes on.

    Others get their time before that. They may change the graph, so that `extending` is not to be
    held.

    Args:
        session: The session, whose `preparation` this thread holds.
    """
    marks = session.__dict__
    marks[_IS_CLOSED] = True
    try:
        end = time.time() + _LONGEST
        while marks.get(_GOING_ON) and time.time() < end:
            time.sleep(0.001)
        yield not marks.get(_GOING_ON)
    finally:
        del marks[_IS_CLOSED]


def has_run(session: Any) -> bool:
    """Returns whether an open session has run something."""
    return RAN in session.__dict__ and not getattr(session, "_closed", False)


def has_seen(session: Any, position: int) -> bool:
    """Returns whether an open session has run the graph when it had a certain op.

    Args:
        session: The session.
        position: The place of the op among all of the graph, from 1 on.
    """
    return has_run(session) and position <= session.__dict__.get(PREPARED, 0)
