"""Workers wait for their tables on parameter servers, and say if these were made by other settings.

TensorFlow's wait asks every half minute whether a session is ready. It cannot tell a table that is
not there yet from one that will never do, because the chief has made it by another configuration.
"""

import time
from typing import Any, Callable, Dict, List

import tensorflow as tf

from mx_rec.base.global_env_conf import cluster_wait_seconds
from mx_rec.base.log import warn_once

_PART = "MxRecPart"

# The most seconds between two questions.
_PAUSE = 5.0

# So many seconds a chief may take before its workers say what they wait for.
_QUIET = 10.0


def patched_wait(stock: Callable[..., Any], self: Any, master: str, config: Any = None,
                 max_wait_secs: Any = float("Inf")) -> Any:
    """SessionManager.wait_for_session, which waits for the parts of tables first.

    Args:
        master: As TensorFlow's.
        config: As TensorFlow's.
        max_wait_secs: As TensorFlow's.

    Returns:
        A session.

    Raises:
        tf.errors.InvalidArgumentError: If a table was made by another configuration, for as
            long as `cluster_wait_seconds` says.
        tf.errors.DeadlineExceededError: If the session is not ready after `max_wait_secs`.
    """
    # pylint: disable=protected-access
    graph = self._graph
    ready = [op for op in graph.get_operations() if op.type == _PART]
    if ready:
        started = time.time()
        longest = float("Inf") if max_wait_secs is None else max_wait_secs
        _wait(graph, ready, master, config, longest, min(self._recovery_wait_secs, _PAUSE))
        max_wait_secs = max(longest - (time.time() - started), 0)
    return stock(self, master, config, max_wait_secs)


def _wait(graph: tf.Graph, ready: List[tf.Operation], master: str, config: Any, longest: float,
          pause: float) -> None:
    """Waits until the parameter servers have all parts of the tables of a graph."""
    limit = cluster_wait_seconds()
    started, since = time.time(), None
    while True:
        with tf.compat.v1.Session(master, graph=graph, config=config) as sess:
            found = sess.run([list(op.outputs[1:]) for op in ready])
        if all(is_ready for is_ready, _ in found):
            return
        now = time.time()
        # One part of each table is enough.
        differences, missing = {}, {}  # type: Dict[str, str], Dict[str, str]
        for op, (is_ready, text) in zip(ready, found):
            scope = op.name.rpartition("/part_")[0]
            if text.size:
                differences.setdefault(scope, text.tobytes().decode("utf-8", "replace"))
            elif not is_ready:
                missing.setdefault(scope, scope.partition("//")[0])
        since = None if not differences else now if since is None else since
        for text in differences.values():
            warn_once("this worker cannot use a table of the parameter servers: %s. It waits %d "
                      "seconds (MXREC_CLUSTER_WAIT_SECS) for the chief to make it anew. Every "
                      "process has to create the table by the same settings.", text, limit)
        if missing and now - started >= _QUIET:
            warn_once("this worker waits for the tables %s, which the parameter servers have not "
                      "got: the chief initializes or restores them, or it has not started, or its "
                      "graph does not have them. Every process has to build the same tables.",
                      ", ".join(map(repr, missing.values())))
        if since is not None and now - since >= limit:
            raise tf.errors.InvalidArgumentError(
                None, None, "this worker has waited {} seconds (MXREC_CLUSTER_WAIT_SECS) for "
                "tables of the parameter servers that it cannot use: {}. Every process has to "
                "create a table by the same settings: change those of this worker, or start the "
                "chief again with them.".format(limit, "; ".join(differences.values())))
        if now - started + pause > longest:
            raise tf.errors.DeadlineExceededError(
                None, None, "Session was not ready after waiting %d secs." % longest)
        time.sleep(pause)
