"""`EvictHook`: evicts stale keys while a model trains."""

import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.constants.constants import DEFAULT_EVICT_TIME_INTERVAL, MAX_INT32
from mx_rec.core.admission import (Evicted, evict, evicting_tables, has_tables, may_evict,
                                   run_beside, settle_timestamp, trains)
from mx_rec.validator.validator import Bool, Int, checked


class EvictHook(tf.compat.v1.train.SessionRunHook):
    """Evicts stale keys every so many seconds, every so many steps, or whichever comes first.

    For training, in a MonitoredSession, a MonitoredTrainingSession or an Estimator; in another
    graph it does nothing. An eviction runs in a thread of its own while training goes on. When one
    is due while the last one still runs, it begins when that one ends. Each eviction logs a line
    for each table and sets two scalar summaries, `evict/<table>/evicted` and
    `evict/<table>/kept`, which belong to the graph's summaries.

    A key is stale when its last timestamp lies at least the table's eviction threshold behind the
    latest timestamp of the table: time is that of the data, intervals are those of the clock.

    Args:
        evict_enable: Whether to evict; False makes the hook do nothing.
        evict_time_interval: Seconds between evictions, in [1, 2147483647]; None is steps alone.
        evict_step_interval: Steps between evictions, in [1, 2147483647]: one is due when the global
            step reaches a multiple of it. None is time alone.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, or both intervals of an
            enabled hook are None.
    """

    @checked(evict_enable=Bool(), evict_time_interval=Int(1, MAX_INT32, optional=True),
             evict_step_interval=Int(1, MAX_INT32, optional=True))
    def __init__(self, evict_enable: bool = False,
                 evict_time_interval: Optional[int] = DEFAULT_EVICT_TIME_INTERVAL,
                 evict_step_interval: Optional[int] = None) -> None:
        super().__init__()
        if evict_enable and evict_time_interval is None and evict_step_interval is None:
            raise ValueError("'evict_time_interval' and 'evict_step_interval' are both None: give "
                             "one of them, or leave 'evict_enable' at False.")
        self._enabled = evict_enable
        self._time_interval = evict_time_interval
        self._step_interval = evict_step_interval
        self._fetches = None  # type: Optional[Dict[str, tf.Tensor]]
        self._start_values = []  # type: List[tf.Operation]
        self._step = None  # type: Any
        self._session = None  # type: Optional[tf.compat.v1.Session]
        self._eviction = None  # type: Optional[_Eviction]
        self._began = 0.0
        self._seen = 0

    def begin(self) -> None:
        """Adds the summaries to the graph, and a global step if it has none.

        A graph whose lookups have no eviction threshold, or that has no training lookup, gets a
        warning: nothing will be evicted.

        Raises:
            ValueError: If an eviction threshold comes with dynamic expansion or without a
                timestamp.
        """
        self._fetches = None
        if not self._enabled:
            return
        graph = tf.compat.v1.get_default_graph()
        if has_tables(graph) and not trains(graph):
            logger.warning("EvictHook is for training; this graph has no training lookup, and "
                           "nothing will be evicted.")
            return
        if not may_evict(graph):
            logger.warning("no training lookup of this graph has an 'eviction_threshold', and "
                           "EvictHook will evict nothing. Give lookups an access_threshold (1 "
                           "admits every key, which is eviction alone) and an "
                           "eviction_threshold in seconds.")
            return
        evicting = evicting_tables(graph)
        settle_timestamp(graph)
        self._step = tf.compat.v1.train.get_global_step(graph)
        if self._step is None:
            logger.warning("the graph has no global step, and EvictHook made one, which nothing "
                           "advances: %s", "it evicts by 'evict_time_interval' alone."
                           if self._time_interval is not None else
                           "without 'evict_time_interval' it will evict nothing.")
            self._step = tf.compat.v1.train.create_global_step(graph)
        self._fetches, self._start_values = {}, []
        for name, one in evicting.items():
            self._fetches[name], initializer = _with_summaries(name, one.evict)
            self._start_values.append(initializer)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        """Begins to count time and steps.

        Args:
            session: The new session.
            coord: Its coordinator, which waits for an eviction before the session is closed.

        Raises:
            RuntimeError: If the hook serves another session that is still open.
        """
        if self._fetches is None:
            return
        if self._session is not None and self._session is not session \
                and not getattr(self._session, "_closed", True):
            raise RuntimeError("this EvictHook serves a session that is still open: only one of "
                               "them would evict. Make an EvictHook for each session.")
        self._session = session
        self._eviction = None
        if coord is not None:
            coord.register_thread(_Latest(self))
        self._began = time.monotonic()
        session.run(self._start_values)
        self._seen = int(session.run(self._step))

    def before_run(self, run_context: Any) -> Optional[tf.compat.v1.train.SessionRunArgs]:
        """Asks for the global step."""
        if self._fetches is None:
            return None
        return tf.compat.v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Begins an eviction if one is due, and ends one that is done.

        Args:
            run_context: Of the step.
            run_values: The global step.

        Raises:
            tf.errors.OpError: If the last eviction failed.
        """
        if self._fetches is None:
            return
        if self.is_evicting:
            return
        self._finish()
        # The step may have been read before the training op advanced it.
        step = int(run_values.results)
        if self._crosses(step + 1):
            step = int(run_context.session.run(self._step))
        if self._is_due(step):
            self._start(step)

    @property
    def is_evicting(self) -> bool:
        """Whether an eviction runs now."""
        return self._eviction is not None and self._eviction.is_alive()

    def end(self, session: tf.compat.v1.Session) -> None:
        """Waits for an eviction that still runs.

        Args:
            session: The session, which is closed next.

        Raises:
            tf.errors.OpError: If it failed.
        """
        if self._eviction is not None:
            self._eviction.join()
            self._finish()

    def _crosses(self, step: int) -> bool:
        """Whether a multiple of the interval lies between the last step seen and `step`."""
        interval = self._step_interval
        return interval is not None and step // interval > self._seen // interval

    def _is_due(self, step: int) -> bool:
        is_due = self._crosses(step)
        self._seen = max(step, self._seen)
        # No clock that somebody sets.
        interval = self._time_interval
        if interval is not None and time.monotonic() - self._began >= interval:
            is_due = True
        return is_due

    def _start(self, step: int) -> None:
        self._began = time.monotonic()
        self._eviction = _Eviction(self._session, self._fetches, step)
        self._eviction.start()

    def _finish(self) -> None:
        """Raises what went wrong in an eviction that is done."""
        eviction, self._eviction = self._eviction, None
        if eviction is not None and eviction.error is not None:
            raise eviction.error


class _Latest:
    """Stands for the running eviction of a hook where a coordinator expects a thread.

    A coordinator keeps every thread that it is given, so that one for each eviction would pile up.
    """

    name = "mx_rec_evict"

    def __init__(self, hook: EvictHook) -> None:
        self._hook = hook

    def is_alive(self) -> bool:
        """Whether there is something to wait for."""
        return self._hook.is_evicting


class _Eviction(threading.Thread):
    """One eviction.

    Attributes:
        error: What went wrong, once the thread has ended.
    """

    def __init__(self, session: tf.compat.v1.Session, fetches: Dict[str, tf.Tensor],
                 step: int) -> None:
        # A process that ends on an error does not wait for it.
        super().__init__(name="mx_rec_evict", daemon=True)
        self.error = None  # type: Optional[Exception]
        self._session = session
        self._fetches = fetches
        self._step = step

    def run(self) -> None:
        """Evicts, and says in the log what became of it."""
        began = time.monotonic()
        try:
            numbers = run_beside(self._session, self._fetches)
        except Exception as error:  # pylint: disable=broad-except
            logger.error("the eviction at step %d failed: %s", self._step, error)
            self.error = error
            return
        took = time.monotonic() - began
        for name, (evicted, kept) in sorted(numbers.items()):
            logger.info("step %d: evicted %d keys of the table %r, kept %d, in %.3f s.", self._step,
                        evicted, name, kept, took)


def _with_summaries(name: str, evicted: tf.Tensor) -> Tuple[tf.Tensor, tf.Operation]:
    """Returns (evicted, kept) of a table, which two summaries then show, and what they start by."""
    kinds = ("evicted", "kept")
    with tf.init_scope(), tf.compat.v1.name_scope(None), tf.device("/cpu:0"):
        with tf.compat.v1.name_scope("evict/" + name + "/"):
            last = tf.compat.v1.Variable(
                tf.zeros([len(kinds)], tf.int64), trainable=False, use_resource=True, name="last",
                collections=[])
            shown = last.read_value()
            with tf.control_dependencies([last.assign(evicted)]):
                result = tf.identity(evicted, name="done")
        for place, kind in enumerate(kinds):
            tf.compat.v1.summary.scalar("evict/{}/{}".format(name, kind), shown[place])
    return result, last.initializer


__all__ = [
    "Evicted",
    "EvictHook",
    "evict",
]  # type: List[str]
