"""Numbers about tables: `table_stats`, and `TableStatsHook`, which writes them for TensorBoard."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from mx_rec.constants.constants import MAX_INT32
from mx_rec.core.table import Table
from mx_rec.state.graph_state import find_session, graph_state, outermost_graph
from mx_rec.state.table_variable import TABLE_OP, is_undone
from mx_rec.validator.validator import Int, Text, Type, checked


_STATS_OP = "MxRecTableStats"


class TableStats(NamedTuple):
    """What a table holds, and what it did since it was made in its session.

    Attributes:
        rows: Rows in use.
        capacity: The row budget.
        bytes_rows: Memory of rows and slots, in bytes.
        bytes_index: Memory of the index from keys to rows.
        bytes_history: Memory of the counts and times of keys.
        load: Share of the budget that is in use; more than 1 after a restore of a full table that
            was on parameter servers.
        hits: Keys of training batches that had a row, each once a batch.
        new: Keys that got a row.
        refused: Keys that were not admitted, each once a batch.
        evicted: Keys that were evicted.
        stale: Gradients that were dropped because their keys were removed between lookup and
            update, each offset once an update.
        rows_memory: Rows in memory; of a table without ssd_vocabulary_size all.
        rows_disk: Rows on disk.
        capacity_memory: The most rows in memory.
        found_memory: Rows that lookups and updates found in memory, each once a batch; 0 for a
            table without ssd_vocabulary_size, as are the numbers below.
        read_disk: Rows that were read from disk for a batch.
        bytes_read: Bytes read from the files in ssd_data_path, those of compaction included.
        bytes_written: Bytes written there.
        bytes_disk: Space that the files take, in bytes.
        wait_seconds: Time that steps waited for rows from disk. What the input pipeline brings in
            ahead of its step does not count.
        given_up: Batches ahead that left their rows to their steps, because memory had no room for
            them or a batch before them needed it.
        saturated: Finite values beyond the largest one of a row_dtype or slot_dtype of 2 bytes
            (65,504 of float16), which became that one. Counted since the table was made or
            restored.
        not_finite: Infinities and not-a-numbers that were written to values of 2 bytes, counted
            likewise.
    """

    rows: int
    capacity: int
    bytes_rows: int
    bytes_index: int
    bytes_history: int
    load: float
    hits: int
    new: int
    refused: int
    evicted: int
    stale: int
    rows_memory: int
    rows_disk: int
    capacity_memory: int
    found_memory: int
    read_disk: int
    bytes_read: int
    bytes_written: int
    bytes_disk: int
    wait_seconds: float
    given_up: int
    saturated: int
    not_finite: int


@checked(table=Type(Table, str, optional=True))
def table_stats(table: Union[None, str, Table] = None) -> Union[TableStats, Dict[str, TableStats]]:
    """Returns the numbers of one table, or of all, in the present session.

    The session is found as `table.size()` finds it. The call takes microseconds for tables of any
    size.

    Args:
        table: A table or its name; None is all tables of the present graph. A table of an imported
            graph has the name of its op.

    Returns:
        The numbers of the table; for None a dict of them by name.

    Raises:
        ValueError: If there is no table of that name.
        RuntimeError: If no session was opened on the graph.
    """
    graph = outermost_graph(None if not isinstance(table, Table) else table.variable.graph)
    if table is None:
        fetches = _stats_of(graph)
        numbers = find_session(graph).run(fetches) if fetches else {}
        return {name: _named(values) for name, values in numbers.items()}
    stats = _find(table, graph) if isinstance(table, str) else table.stats
    return _named(find_session(graph).run(stats))


class TableStatsHook(tf.compat.v1.train.SessionRunHook):
    """Writes the numbers of tables for TensorBoard every so many steps, and after the last one.

    Each number of TableStats becomes a scalar `<table>/<number>`.

    Args:
        output_dir: Directory of the event files, such as the model_dir of an Estimator: hooks that
            write to one directory share its writer.
        every_n_steps: Steps between two writings, in [1, 2147483647].
        tables: Names of tables; None is all.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type.
    """

    @checked(output_dir=Text(1, 1024), every_n_steps=Int(1, MAX_INT32),
             tables=Type(list, tuple, optional=True))
    def __init__(self, output_dir: str, every_n_steps: int = 100,
                 tables: Optional[Sequence[str]] = None) -> None:
        super().__init__()
        self._output_dir = output_dir
        self._interval = every_n_steps
        self._tables = None if tables is None else list(tables)
        self._fetches = {}  # type: Dict[str, tf.Tensor]
        self._step = None  # type: Any
        self._writer = None  # type: Any
        self._written = None  # type: Optional[int]

    def begin(self) -> None:
        """Finds the tables.

        Raises:
            ValueError: If the graph has no table of one of the names.
            RuntimeError: If the graph has no global step.
        """
        graph = tf.compat.v1.get_default_graph()
        names = list(_stats_of(graph)) if self._tables is None else self._tables
        self._fetches = {name: _find(name, graph) for name in names}
        self._step = tf.compat.v1.train.get_global_step(graph)
        if self._step is None:
            raise RuntimeError("TableStatsHook needs a global step: call "
                               "tf.compat.v1.train.get_or_create_global_step() and give it to the "
                               "training op.")
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._output_dir)
        self._written = None

    def before_run(self, run_context: Any) -> tf.compat.v1.train.SessionRunArgs:
        """Asks for the global step."""
        return tf.compat.v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes if it is time to."""
        # The step may have been read before the training op advanced it.
        if self._is_due(int(run_values.results) + 1):
            step = int(run_context.session.run(self._step))
            if self._is_due(step):
                self._write(run_context.session, step)

    def end(self, session: tf.compat.v1.Session) -> None:
        """Writes once more."""
        step = int(session.run(self._step))
        if self._written != step:
            self._write(session, step)
        self._writer.flush()

    def _is_due(self, step: int) -> bool:
        """Whether a multiple of the interval lies between the last writing and `step`."""
        return self._written is None or step // self._interval > self._written // self._interval

    def _write(self, session: tf.compat.v1.Session, step: int) -> None:
        numbers = session.run(self._fetches)
        values = [tf.compat.v1.Summary.Value(tag="{}/{}".format(name, field),
                                             simple_value=float(value))
                  for name, found in sorted(numbers.items())
                  for field, value in _named(found)._asdict().items()]
        self._writer.add_summary(tf.compat.v1.Summary(value=values), step)
        self._written = step


def _stats_of(graph: tf.Graph) -> Dict[str, tf.Tensor]:
    """Returns the numbers of each table: by its name, or by that of its op if it was imported."""
    found = {one.table_name: one.stats for one in graph_state(graph).tables.values()}
    known = {stats.op.inputs[0].op for stats in found.values()}
    for op in graph.get_operations():
        if op.type == _STATS_OP:
            table = op.inputs[0].op
            if table.type == TABLE_OP and table not in known and not is_undone(table):
                found.setdefault(table.name, op.outputs[0])
    return found


def _find(name: str, graph: tf.Graph) -> tf.Tensor:
    stats = _stats_of(graph)
    if name not in stats:
        raise ValueError("there is no table {!r} in this graph; tables are {}.".format(
            name, sorted(stats)))
    return stats[name]


def _named(values: np.ndarray) -> TableStats:
    """Names the numbers of MxRecTableStats, in whose order they come."""
    numbers = TableStats(*values.tolist())
    return numbers._replace(load=numbers.load / 1000.0, wait_seconds=numbers.wait_seconds / 1e9)
