"""`create_table` and `sparse_lookup`: what a model script calls."""

import functools
import json
import os
import re
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import tensorflow as tf

from mx_rec.base.global_env_conf import global_env
from mx_rec.base.log import logger
from mx_rec.constants import constants
from mx_rec.constants.constants import (MAX_DEVICE_VOCABULARY_SIZE, MAX_EMBEDDING_SIZE, MAX_INT32,
                                        MAX_INT64, MAX_VOCABULARY_SIZE, MIN_INT64)
from mx_rec.core.clusters import check_graph
from mx_rec.core.grouped import sparse_lookup_many  # noqa: F401  scripts import it here
from mx_rec.core.initializers import describe_initializer, seed_of, table_seed
from mx_rec.core.lookup import sparse_lookup
from mx_rec.core.pooled import (embedding_lookup_sparse, safe_embedding_lookup_sparse,
                                sparse_lookup_pooled, sparse_lookup_pooled_many)
from mx_rec.core.rows import ROUNDINGS, check_sketch, row_storage
from mx_rec.core.table import PhysicalTable, Table, TableOptions, build_physical_table
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.tensorflow.names import require_graph_mode
from mx_rec.validator.validator import Bool, Float, Int, Option, Text, Type, checked, is_int

MERGED_PREFIX = "mergeable_table"

# The default of SSD_SAVE_COMPACT_LEVEL.
_COMPACT_LEVEL = 2

# What an optimizer_list may be.
_OPTIMIZERS = (list, tuple, tf.compat.v1.train.Optimizer)

# create_table's parameters by position in older releases, whose fifth was optimizer_list.
_OLDER_ORDER = ("key_dtype", "dim", "name", "emb_initializer", "optimizer_list",
                "device_vocabulary_size", "host_vocabulary_size", "ssd_vocabulary_size",
                "ssd_data_path", "is_save", "init_param", "all2all_gradients_op", "value_dtype",
                "shard_num", "fusion_optimizer_var", "hashtable_threshold")


def clean_name(name: str) -> str:
    """Removes the characters that names of tables cannot have.

    Args:
        name: Any str.

    Returns:
        The letters, digits and underscores of `name`.

    Raises:
        ValueError: If nothing is left.
    """
    cleaned = re.sub(r"[^0-9A-Za-z_]", "", name)
    if not cleaned:
        raise ValueError("the table name {!r} has no letter, digit or underscore".format(name))
    if cleaned != name:
        logger.warning("the table name %r has characters other than letters, digits and "
                       "underscores; the table is named %r.", name, cleaned)
    return cleaned


def _taking_older_order(function: Callable[..., Table]) -> Callable[..., Table]:
    """Makes create_table, which takes arguments in the order of older releases as well.

    A fifth argument that is a list, a tuple, an optimizer or None is an optimizer_list: the number
    of rows, which is fifth now, is none of these.
    """

    @functools.wraps(function)
    def create_table(*args: Any, **kwargs: Any) -> Table:
        if len(args) > 4 and (args[4] is None or isinstance(args[4], _OPTIMIZERS)):
            if len(args) > len(_OLDER_ORDER):
                raise TypeError("create_table takes {} arguments by position if the fifth is an "
                                "optimizer_list, but {} were given".format(
                                    len(_OLDER_ORDER), len(args)))
            older = dict(zip(_OLDER_ORDER, args))
            twice = sorted(set(older) & set(kwargs))
            if twice:
                raise TypeError("create_table got multiple values for the argument {!r}, the fifth "
                                "being an optimizer_list".format(twice[0]))
            return function(**older, **kwargs)
        return function(*args, **kwargs)

    return create_table


@_taking_older_order
@checked(key_dtype=Option((tf.int64, tf.int32)), name=Text(1, 100),
         device_vocabulary_size=Int(1, MAX_DEVICE_VOCABULARY_SIZE),
         host_vocabulary_size=Int(0, MAX_VOCABULARY_SIZE),
         ssd_vocabulary_size=Int(0, MAX_VOCABULARY_SIZE),
         ssd_data_path=Type(list, tuple, str), is_save=Bool(), is_dp=Bool(),
         init_param=Float(-10, 10),
         all2all_gradients_op=Option(constants.All2allGradientsOp.values()), enable_merge=Bool(),
         padding_keys_mask=Bool(), padding_keys_len=Int(1, MAX_INT32, optional=True),
         value_dtype=Option((tf.float32,)), shard_num=Int(1, 8192), fusion_optimizer_var=Bool(),
         hashtable_threshold=Int(0, MAX_INT32), row_rounding=Option(ROUNDINGS),
         row_conversion=Option(ROUNDINGS, optional=True),
         optimizer_list=Type(*_OPTIMIZERS, optional=True))
def create_table(key_dtype: tf.DType, dim: Union[int, tf.TensorShape], name: str,
                 emb_initializer: Any, device_vocabulary_size: int = 1,
                 host_vocabulary_size: int = 0, ssd_vocabulary_size: int = 0,
                 ssd_data_path: Union[str, Sequence[str]] = (os.getcwd(),), is_save: bool = True,
                 is_dp: bool = False, init_param: float = 1.0,
                 all2all_gradients_op: str = "sum_gradients", enable_merge: bool = False,
                 padding_keys: Union[None, int, List[int]] = None,
                 padding_keys_mask: bool = False, padding_keys_len: Optional[int] = None,
                 value_dtype: tf.DType = tf.float32, shard_num: int = 1,
                 fusion_optimizer_var: bool = True, hashtable_threshold: int = 0,
                 admission_sketch_bytes: int = 0, row_dtype: Union[str, tf.DType] = "float32",
                 row_rounding: str = "stochastic", row_conversion: Optional[str] = None,
                 slot_dtype: Union[str, tf.DType] = "float32",
                 optimizer_list: Union[None, Sequence[Any],
                                       tf.compat.v1.train.Optimizer] = None) -> Table:
    """Creates a table of embeddings in the present default graph.

    The table itself comes to life in each session that runs the graph, and goes with it.

    Args:
        key_dtype: tf.int64 or tf.int32.
        dim: Floats per row, in [1, 8192]: an int or a TensorShape of rank 1. As everywhere, numbers
            of NumPy are as good as those of Python.
        name: 1-100 characters, unique in the graph. Characters other than letters, digits and
            underscores are removed with a warning. Names that start with `mergeable_table` are
            taken.
        emb_initializer: What new rows are filled with; a TensorFlow v1, v2 or Keras initializer:
            zeros, ones, constant, random_uniform, random_normal, truncated_normal or
            variance_scaling (glorot, he, lecun). A new row depends on the seed, the key and the
            column alone.
        device_vocabulary_size: Rows, in [1, 1e9].
        host_vocabulary_size: Further rows, in [0, 1e9]. Both are kept in memory; their sum is the
            row budget in memory.
        ssd_vocabulary_size: Further rows, in [0, 1e9], which are on disk; needs
            host_vocabulary_size. The three sizes are at most 2e9 together. Rows move between
            memory and disk by themselves: docs/ssd-tier.md.
        ssd_data_path: Existing directories for these rows, no symbolic links and no ".."; of a
            table on parameter servers those of each server. Their
            files are scratch: checkpoints do not need them, and nothing is left of them when the
            session ends, however it ends.
        is_save: Whether checkpoints contain the table.
        is_dp: Whether every rank holds the whole table.
        init_param: Factor of new rows, a float in [-10, 10].
        all2all_gradients_op: "sum_gradients" or "sum_gradients_and_div_by_ranksize". A table is
            trained by one process, so that both are the sum of its own gradients.
        enable_merge: Whether the table shares one physical table, `mergeable_table_<n>`, with all
            others that have equal configuration. Their ids must be disjoint. Needs dynamic
            expansion.
        padding_keys: Keys in int64 range whose rows are never updated: an int or a non-empty list.
        padding_keys_mask: Must be True with padding_keys and False without.
        padding_keys_len: Batch size times ids per sample, in [1, 2147483647]; required with
            padding_keys. It is the send_count of the table's lookups in static shape.
        value_dtype: tf.float32.
        shard_num: In [1, 8192]; without effect.
        fusion_optimizer_var: Without effect.
        hashtable_threshold: In [0, 2147483647]; without effect.
        admission_sketch_bytes: 0, or in [1024, 2**40]. Of a table whose lookups have an
            access_threshold: with 0, keys that have no row yet are counted exactly, in at most 24
            bytes each. Otherwise they share so many bytes, a multiple of 32 after rounding down; a
            key is never admitted later than with exact counters, but may be admitted earlier, and
            evictions report keys with rows only. docs/admission-eviction.md has the error.
        row_dtype: "float32", "bfloat16" or "float16", or the same as a tf.DType: as what embeddings
            are kept in memory, on disk and in checkpoints. Lookups and gradients are float32
            whatever it is. docs/half-rows.md says when to use which.
        row_rounding: How an update rounds to a row_dtype of 2 bytes: "stochastic", by random
            numbers that depend on the seed, the key, the column and the number of the update
            alone, or "nearest", which loses small updates.
        row_conversion: How a restore or warm start rounds the embeddings of a checkpoint whose
            row_dtype is another, and slots whose slot_dtype is: "nearest" or "stochastic"; None
            refuses such a checkpoint.
        slot_dtype: "float32" or "bfloat16", or the same as a tf.DType: as what the optimizer's
            slots of one value a column are kept, read and rounded as rows are. "bfloat16" needs a
            row_dtype of 2 bytes; docs/half-rows.md says which optimizers lose nothing by it.
        optimizer_list: Of older releases, without effect: a row has the slots of the optimizer that
            updates it. It may also be fifth by position, before device_vocabulary_size, where
            older releases have it; is_dp, enable_merge and the padding keys, which they lack, are
            then given by keyword.

    Returns:
        The table.

    Raises:
        ValueError: If an argument is out of its range or of a wrong type, the name is taken, the
            initializer is not supported, or sizes do not go together.
        TypeError: If padding_keys is neither an int nor a list of int, or an argument is given
            twice.
        EnvironmentError: If `init` was not called, or the pipeline of this graph was started.
        RuntimeError: If enable_merge is True without dynamic expansion, or eager execution is on,
            also outside of the tf.function that calls this.
        NotImplementedError: If the table would be made in a job of several tasks without parameter
            servers under whose device function it is (tf.compat.v1.train.replica_device_setter),
            or it would be on parameter servers and uses what does not work there yet
            (docs/cluster.md).
    """
    config = Settings.get_instance()
    _report_idle(name, shard_num=(shard_num, 1), fusion_optimizer_var=(fusion_optimizer_var, True),
                 hashtable_threshold=(hashtable_threshold, 0),
                 optimizer_list=(optimizer_list, None))
    require_graph_mode("create_table", "table {!r}".format(name))
    size = _check_dim(dim)
    table_name = clean_name(name)
    if table_name.startswith(MERGED_PREFIX):
        raise ValueError("the table name {!r} starts with {!r}, which is kept for merged "
                         "tables".format(table_name, MERGED_PREFIX))
    servers = check_graph(table_name)
    options = TableOptions(
        table_name=table_name, key_dtype=key_dtype, dim=size, initializer=emb_initializer,
        device_vocabulary_size=int(device_vocabulary_size),
        host_vocabulary_size=int(host_vocabulary_size),
        ssd_vocabulary_size=int(ssd_vocabulary_size), is_save=bool(is_save), is_dp=bool(is_dp),
        init_param=float(init_param), all2all_gradients_op=all2all_gradients_op,
        padding_keys=_check_padding(padding_keys, padding_keys_mask, padding_keys_len),
        padding_keys_mask=padding_keys_mask,
        padding_keys_len=None if padding_keys_len is None else int(padding_keys_len),
        row_storage=row_storage(table_name, row_dtype, slot_dtype, row_rounding, row_conversion),
        admission_sketch_bytes=check_sketch(
            "the table {!r}".format(table_name), admission_sketch_bytes),
        ssd_data_path=_directories(ssd_data_path) if ssd_vocabulary_size > 0 else ())
    _check_storage(options, config.use_dynamic_expansion, is_shared=bool(servers))
    if servers:
        _check_shared(table_name, enable_merge, admission_sketch_bytes, config)
    if enable_merge and not config.use_dynamic_expansion:
        raise RuntimeError("merge table function requires dynamic expansion mode: call "
                           "init(use_dynamic_expansion=True).")
    rows = options.device_vocabulary_size + options.host_vocabulary_size \
        + options.ssd_vocabulary_size
    initializer = describe_initializer(emb_initializer, rows, size, table_name)
    state = graph_state()
    if table_name in state.tables:
        raise ValueError("Duplicated hashtable name {!r}: this graph has a table of that name "
                         "already".format(table_name))
    if state.frozen:
        raise EnvironmentError("Emb cache management has been established, you cannot build new "
                               "hash table. Create the table {!r} before start_asc_pipeline."
                               .format(table_name))

    capacity = constants.MAX_ROW_BUDGET if config.use_dynamic_expansion else rows
    if enable_merge:
        physical, is_new = _merged_table(options, initializer, capacity)
    else:
        physical, is_new = build_physical_table(
            table_name, options, initializer, table_seed(emb_initializer, table_name),
            capacity, config.is_incremental_checkpoint, servers,
            seed_of(emb_initializer, table_name) is None), True
    table = Table(options, physical)
    state.tables[table_name] = table
    if is_new:
        tf.compat.v1.add_to_collection(
            config.train_params_config.ascend_global_hashtable_collection, physical.variable)
    return table


def _report_idle(name: str, **arguments: Tuple[Any, Any]) -> None:
    """Says which arguments, given as (value, default), have no effect."""
    idle = sorted(argument for argument, (value, default) in arguments.items() if value != default)
    if idle:
        logger.info("create_table of %r: accepted without effect: %s.", name, ", ".join(idle))


def _check_dim(dim: Union[int, tf.TensorShape]) -> int:
    """Returns the number of floats per row."""
    if isinstance(dim, tf.TensorShape):
        if dim.rank != 1 or dim.as_list()[0] is None:
            raise ValueError("'dim' should be an int or a TensorShape with one known dimension, "
                             "but is {}".format(dim))
        dim = dim.as_list()[0]
    elif not isinstance(dim, bool) and not is_int(dim):
        Type(int, tf.TensorShape)("dim", dim)
    Int(1, MAX_EMBEDDING_SIZE)("dim", dim)
    return int(dim)


def _check_padding(keys: Any, mask: bool, length: Optional[int]) -> Optional[List[int]]:
    """Returns the padding keys without duplicates, in the given order."""
    if keys is None:
        if mask:
            raise ValueError("'padding_keys_mask' is True, but there are no 'padding_keys'")
        return None
    if is_int(keys):
        keys = [keys]
    if not isinstance(keys, list) or not all(is_int(key) for key in keys):
        raise TypeError("'padding_keys' should be None, an int or a list of int, but is "
                        "{!r}".format(keys))
    if not 1 <= len(keys) <= MAX_INT32:
        raise ValueError("the length of the padding keys should be between 1 and {}, but is "
                         "{}".format(MAX_INT32, len(keys)))
    for key in keys:
        if not MIN_INT64 <= key <= MAX_INT64:
            raise ValueError("the padding keys should be between {} and {}, but one is {}".format(
                MIN_INT64, MAX_INT64, key))
    if not mask:
        raise ValueError("'padding_keys_mask' should be True when there are 'padding_keys'")
    if length is None:
        raise ValueError("'padding_keys_len' is required when there are 'padding_keys': batch size "
                         "times ids per sample")
    return list(dict.fromkeys(int(key) for key in keys))


def _check_shared(table_name: str, enable_merge: bool, sketch_bytes: int, config: Any) -> None:
    """Refuses what tables on parameter servers cannot do yet."""
    refused = [what for what, is_there in (
        ("init(use_dynamic_expansion=True)", config.use_dynamic_expansion),
        ("init(is_incremental_checkpoint=True)", config.is_incremental_checkpoint),
        ("enable_merge", enable_merge), ("admission_sketch_bytes", sketch_bytes > 0),
    ) if is_there]
    if refused:
        raise NotImplementedError(
            "the table {!r} would be on parameter servers, which do not support {} yet "
            "(docs/cluster.md).".format(table_name, " and ".join(refused)))


def _check_storage(options: TableOptions, use_dynamic_expansion: bool, is_shared: bool) -> None:
    """Checks that the sizes go together. Directories of parameter servers they check themselves."""
    if options.ssd_vocabulary_size > 0:
        if options.host_vocabulary_size == 0:
            raise ValueError("'ssd_vocabulary_size' of the table {!r} needs a "
                             "'host_vocabulary_size' greater than 0".format(options.table_name))
        _check_directories(options.ssd_data_path, is_shared)
        sizes = (options.device_vocabulary_size, options.host_vocabulary_size,
                 options.ssd_vocabulary_size)
        if sum(sizes) > constants.MAX_ROW_BUDGET:
            raise ValueError(
                "'device_vocabulary_size', 'host_vocabulary_size' and 'ssd_vocabulary_size' of "
                "the table {!r} are {}, {} and {}, together more than {}".format(
                    options.table_name, *sizes, constants.MAX_ROW_BUDGET))
    if use_dynamic_expansion and options.host_vocabulary_size > 0:
        raise ValueError("the table {!r} has a 'host_vocabulary_size', but with dynamic expansion "
                         "tables have no preset size: leave host and ssd sizes at 0".format(
                             options.table_name))
    if options.ssd_vocabulary_size > 0 and global_env.ssd_save_compact_level != _COMPACT_LEVEL:
        logger.info("create_table of %r: SSD_SAVE_COMPACT_LEVEL has no effect: a save writes "
                    "files of its own, and those of rows on disk are compacted as rows are "
                    "written.", options.table_name)


def ssd_directories(paths: Any, is_shared: bool) -> Tuple[str, ...]:
    """Checks directories for rows on disk.

    Args:
        paths: A directory or several.
        is_shared: Whether they are those of parameter servers, which check them themselves.

    Returns:
        Their absolute paths.

    Raises:
        ValueError: If one is no directory that this process may write to, or a symbolic link.
    """
    found = _directories(paths)
    _check_directories(found, is_shared)
    return found


def _directories(paths: Any) -> Tuple[str, ...]:
    """Returns directories as they are, absolute if they may be: others are refused later."""
    paths = [paths] if isinstance(paths, str) else list(paths)
    for path in paths:
        Text(1, 1024)("ssd_data_path", path)
        if os.pardir in path.split(os.sep):
            raise ValueError("'ssd_data_path' must not contain '..', but is {!r}".format(path))
    return tuple(os.path.abspath(path) for path in paths)


def _check_directories(paths: Sequence[str], is_shared: bool) -> None:
    """Checks directories for rows on disk."""
    if not paths:
        raise ValueError("'ssd_data_path' length is less than 1")
    for path in () if is_shared else paths:
        if not os.path.isdir(path):
            raise ValueError("'ssd_data_path' should be an existing directory, but {!r} is "
                             "not".format(path))
        if os.path.islink(path):
            raise ValueError("'ssd_data_path' must not be a symbolic link, but {!r} is one".format(
                path))
        if not os.access(path, os.W_OK | os.X_OK):
            raise ValueError("'ssd_data_path' should be a directory that this process may write "
                             "to, but {!r} is not".format(path))


def _merged_table(options: TableOptions, initializer: Any, capacity: int) -> Any:
    """Returns the physical table for this configuration, and whether it is new."""
    configuration = json.dumps([
        options.key_dtype.name, options.dim, initializer,
        seed_of(options.initializer, options.table_name), options.is_save, options.is_dp,
        options.init_param, options.all2all_gradients_op, options.padding_keys,
        options.admission_sketch_bytes, options.row_storage], sort_keys=True)
    merged = graph_state().merged
    if configuration in merged:
        physical = merged[configuration]  # type: PhysicalTable
        logger.info("the table %r shares the rows of %r.", options.table_name, physical.name)
        return physical, False
    name = "{}_{}".format(MERGED_PREFIX, len(merged))
    physical = build_physical_table(
        name, options, initializer, table_seed(options.initializer, name), capacity,
        Settings.get_instance().is_incremental_checkpoint)
    merged[configuration] = physical
    return physical, True


__all__ = [
    "clean_name",
    "create_table",
    "embedding_lookup_sparse",
    "safe_embedding_lookup_sparse",
    "sparse_lookup",
    "sparse_lookup_pooled",
    "sparse_lookup_pooled_many",
]
