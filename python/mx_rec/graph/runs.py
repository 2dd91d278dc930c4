"""What the sessions of a graph have run: the attributes by which a session is marked."""

from typing import Any

# Attributes of a session: the rewritten iterators' initializers that it ran, and the version of
# the graph that it was prepared for.
RAN = "_mx_rec_initializers"
PREPARED = "_mx_rec_prepared"


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


__all__ = ["PREPARED", "RAN", "has_run", "has_seen"]
