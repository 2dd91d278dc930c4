"""The table object that scripts hold, and the ops that stand for it in the graph."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from mx_rec.base.global_env_conf import reads_past_page_cache
from mx_rec.base.log import logger
from mx_rec.base.ranks import get_rank_size
from mx_rec.cluster import tables as cluster_tables
from mx_rec.constants.constants import PADDING_KEY, All2allGradientsOp
from mx_rec.core.initializers import check_table
from mx_rec.core.rows import FLOAT32
from mx_rec.ops import library
from mx_rec.state.graph_state import find_session
from mx_rec.state.table_variable import TableVariable, table_variable


class PhysicalTable(NamedTuple):
    """One table of the engine, as the graph knows it.

    Attributes:
        name: Name of the table and of its checkpoint directory.
        variable: What gradients are taken with respect to, made by the op that owns the table.
        handle: int64 scalar by which the other ops find the table in their session; None for a
            table on parameter servers.
        stats: int64 vector, the numbers of mx_rec.util.stats.TableStats.
        capacity: The row budget.
    """

    name: str
    variable: TableVariable
    handle: Optional[tf.Tensor]
    stats: tf.Tensor
    capacity: int


class TableOptions(NamedTuple):
    """What `create_table` was asked for, checked; see there for the meaning of each field."""

    table_name: str
    key_dtype: tf.DType
    dim: int
    initializer: Any
    device_vocabulary_size: int
    host_vocabulary_size: int
    ssd_vocabulary_size: int
    is_save: bool
    is_dp: bool
    init_param: float
    all2all_gradients_op: str
    padding_keys: Optional[List[int]]
    padding_keys_mask: bool
    padding_keys_len: Optional[int]
    admission_sketch_bytes: int
    ssd_data_path: Tuple[str, ...] = ()
    row_storage: Optional[Dict[str, Any]] = None


class Table:
    """A table of embeddings: keys to rows of `emb_size` floats, made by `create_table`.

    Attributes:
        table_name: The name, cleaned.
        emb_size: Floats per row.
        embedding_size: The same as a TensorShape of rank 1.
        key_dtype: tf.int64 or tf.int32; ids of either type may be looked up.
        variable: What gradients are taken with respect to and optimizers update: a TableVariable,
            float32 of static shape (0, emb_size). It has no dense value: reading it is an error.
        handle: int64 scalar tensor by which ops find the table; None for a table on parameter
            servers, which they find by its name.
        is_hbm: Whether the table was given no host memory.
        is_dp, is_save, init_param, all2all_gradients_op: As given to `create_table`.
        is_grad: Whether some training lookup takes part in gradients.
        send_count: Sum of the send counts of all training lookups, None without any.
        multi_lookup_times: Number of lookups by mode, True for training.
        slice_device_vocabulary_size, slice_host_vocabulary_size, slice_ssd_vocabulary_size: The
            sizes divided by the rank count, rounded up.
        ssd_data_path: The absolute paths of the directories for rows on disk, none for a table
            that is all in memory.
        padding_keys: Keys whose rows are never updated, without duplicates, or None.
        padding_keys_mask, padding_keys_len, admission_sketch_bytes: As given to `create_table`.
        row_dtype: "float32", "bfloat16" or "float16", as what embeddings are stored.
        slot_dtype: "float32" or "bfloat16", as what slots of one value a column are stored.
        row_conversion: As given to `create_table`.
        optimizer: The optimizer that updates the table, once there is one.
        ext_emb_size: Floats per row with the optimizer's slots.
        thresholds: (access, eviction) threshold of the lookups of each mode.
        lookups: Lookups by FeatureSpec and their results, to be returned again.
    """

    def __init__(self, options: TableOptions, physical: PhysicalTable) -> None:
        self.table_name = options.table_name
        self.emb_size = options.dim
        self.embedding_size = tf.TensorShape([options.dim])
        self.key_dtype = options.key_dtype
        self.variable = physical.variable
        self.handle = physical.handle
        self.is_hbm = options.host_vocabulary_size == 0
        self.is_dp = options.is_dp
        self.is_save = options.is_save
        self.is_grad = False
        self.send_count = None  # type: Optional[int]
        self.multi_lookup_times = {True: 0, False: 0}  # type: Dict[bool, int]
        self.device_vocabulary_size = options.device_vocabulary_size
        self.host_vocabulary_size = options.host_vocabulary_size
        self.ssd_vocabulary_size = options.ssd_vocabulary_size
        self.ssd_data_path = list(options.ssd_data_path)
        ranks = 1 if options.is_dp else get_rank_size()
        self.slice_device_vocabulary_size = -(-options.device_vocabulary_size // ranks)
        self.slice_host_vocabulary_size = -(-options.host_vocabulary_size // ranks)
        self.slice_ssd_vocabulary_size = -(-options.ssd_vocabulary_size // ranks)
        self.emb_initializer = options.initializer
        self.init_param = options.init_param
        self.all2all_gradients_op = All2allGradientsOp.mapping(options.all2all_gradients_op)
        self.padding_keys = options.padding_keys
        self.padding_keys_mask = options.padding_keys_mask
        self.padding_keys_len = options.padding_keys_len
        self.admission_sketch_bytes = options.admission_sketch_bytes
        self.row_dtype = (options.row_storage or {}).get("dtype", FLOAT32)
        self.slot_dtype = (options.row_storage or {}).get("slot_dtype", FLOAT32)
        self.row_conversion = (options.row_storage or {}).get("conversion")
        self.optimizer = None  # type: Optional[tf.compat.v1.train.Optimizer]
        self.ext_emb_size = options.dim
        self.thresholds = {}  # type: Dict[bool, Tuple[int, int]]
        # Each with what was asked for (mx_rec.core.lookup.LookupRequest).
        self.lookups = []  # type: List[Tuple[Any, tf.Tensor]]
        self._physical = physical

    @property
    def physical_name(self) -> str:
        """Name of the engine's table: `table_name`, unless the table was merged with others."""
        return self._physical.name

    @property
    def stats(self) -> tf.Tensor:
        """int64 vector of the table's numbers; mx_rec.util.stats.table_stats names them."""
        return self._physical.stats

    def size(self) -> int:
        """Returns the number of rows in the present session.

        The session is the default session if it runs the table's graph, else the one that was
        opened last on that graph. Merged tables share their rows.

        Returns:
            The number of rows, slots not counted apart.

        Raises:
            RuntimeError: If no session was opened on the table's graph, or the last was closed.
        """
        session = find_session(self.variable.graph)
        return int(session.run(self.stats)[0])

    def capacity(self) -> int:
        """Returns the row budget: device, host and SSD vocabulary size together.

        With dynamic expansion there is no preset size, and the number is that of the rows
        that exist.

        Returns:
            The number of rows.

        Raises:
            RuntimeError: As `size`.
        """
        session = find_session(self.variable.graph)
        rows = int(session.run(self.stats)[0])
        preset = self.device_vocabulary_size + self.host_vocabulary_size \
            + self.ssd_vocabulary_size
        return rows if self._physical.capacity > preset else preset

    def __repr__(self) -> str:
        return "<mx_rec table {!r}, {} floats per row>".format(self.table_name, self.emb_size)


def scope_of(name: str) -> str:
    """Returns the scope of a table's ops: its name, with `table` before a leading underscore.

    Args:
        name: Name of a table.

    Returns:
        A name that begins with a letter or digit.
    """
    return name if name[0].isalnum() else "table" + name


def build_physical_table(name: str, options: TableOptions, initializer: Dict[str, Any],
                         seed: int, capacity: int, track_changes: bool,
                         servers: Sequence[str] = (), any_seed: bool = False) -> PhysicalTable:
    """Adds the ops of one table to the outermost graph.

    The ops that save and load are made here as well: they then exist when the graph is finalised.

    Args:
        name: Name of the table, free of characters that op names do not allow.
        options: The checked options.
        initializer: The engine's description of new rows.
        seed: Seed of new rows in [0, 2**64).
        capacity: The row budget in [1, 2e9].
        track_changes: Whether the table can be saved as a delta, if it is saved at all.
        servers: The devices of parameter servers that hold a part each; empty for a table of the
            session's own.
        any_seed: Whether nobody has chosen the seed: on parameter servers, workers take that of
            the chief.

    Returns:
        The table's tensors.

    Raises:
        ValueError: If the engine cannot make a table by these settings.
    """
    config = {
        "name": name,
        "dim": options.dim,
        "capacity": capacity,
        "seed": seed,
        "init_param": float(options.init_param),
        "padding_keys": [key for key in options.padding_keys or () if key != PADDING_KEY],
        "initializer": initializer,
    }
    if options.admission_sketch_bytes:
        config["admission_sketch_bytes"] = options.admission_sketch_bytes
    if options.row_storage:
        config["row_storage"] = options.row_storage
    if options.ssd_vocabulary_size:
        config["tier"] = {
            "ram_rows": options.device_vocabulary_size + options.host_vocabulary_size,
            "directories": list(options.ssd_data_path),
        }
        if reads_past_page_cache():
            config["tier"]["direct"] = True
    if servers and any_seed:
        config["any_seed"] = True
    track_changes = track_changes and options.is_save
    if track_changes:
        config["track_changes"] = True
    text = json.dumps(config, sort_keys=True).encode("utf-8")
    reads = check_table(options.table_name, initializer, text)
    if reads:
        logger.info("the table %r keeps %d rows in memory, further %d in files in %s, which are "
                    "read by %s", name, options.device_vocabulary_size
                    + options.host_vocabulary_size, options.ssd_vocabulary_size,
                    ", ".join(map(str, options.ssd_data_path)), reads)
    op_name = scope_of(name)
    with tf.init_scope(), tf.compat.v1.name_scope(None), tf.device("/cpu:0"):
        if servers:
            variable, stats = cluster_tables.build(
                op_name, op_name + "//table/", config, list(servers), options.is_save)
            return PhysicalTable(name, variable, None, stats, capacity)
        with tf.compat.v1.name_scope(op_name + "//table") as scope:
            config_tensor = tf.constant(np.frombuffer(text, np.uint8), name="config")
            like = tf.zeros([0, options.dim], name="like")
        variable, handle = library().mx_rec_table(config_tensor, like, name=op_name)
        with tf.compat.v1.name_scope(scope):
            stats = library().mx_rec_table_stats(handle, name="stats")
            if options.is_save:
                path = tf.compat.v1.placeholder(tf.uint8, [None], name="path")
                # Everything is saved, unless another epoch is fed.
                since, least = [tf.compat.v1.placeholder_with_default(
                    tf.constant(value, tf.int64), [], name=name)
                                for name, value in (("since", -1), ("least", 0))]
                library().mx_rec_save(handle, path, since, least, name="save")
                library().mx_rec_load(handle, path, [], name="load")
    return PhysicalTable(name, table_variable(variable.op), handle, stats, capacity)
