"""Savers that were made before the variables of their graph became tables.

They are left out when the graph is looked at, and built anew when it is converted.
"""

from typing import Any, List, Set

import tensorflow as tf

from mx_rec.state.graph_state import graph_state


def renewable_savers(graph: tf.Graph) -> List[Any]:
    """Returns the Savers of a graph that can be built anew (mx_rec.saver.var_lists.KnownSaver).

    Args:
        graph: The graph. Nothing outside of these Savers needs or names their ops.
    """
    known = graph_state(graph).savers
    named = set()  # type: Set[str]
    for one in known:
        if not _is_own(one):
            named.update(one.named())
    return [one for one in known if _is_own(one) and _is_alone(one.operations)
            and named.isdisjoint(op.name for op in one.operations)]


def ops_of(savers: List[Any]) -> Set[str]:
    """Returns the names of the ops of Savers.

    Args:
        savers: From `renewable_savers`.
    """
    return {op.name for one in savers for op in one.operations}


def _is_own(known: Any) -> bool:
    """Whether a Saver made the ops by which it is run."""
    return bool(known.operations) and known.named() <= {op.name for op in known.operations}


def _is_alone(operations: List[tf.Operation]) -> bool:
    """Whether no other ops need some, or wait for them."""
    own = set(operations)
    return all(own.issuperset(op._control_outputs)  # pylint: disable=protected-access
               and all(own.issuperset(output.consumers()) for output in op.outputs)
               for op in operations)
