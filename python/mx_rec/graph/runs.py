"""What the sessions of a graph have run: the attributes by which a session is marked."""

import threading
from typing import Any

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
