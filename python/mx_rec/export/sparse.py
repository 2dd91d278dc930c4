"""Export of saved tables as NumPy files of key -> embedding."""

import os
import shutil
import tempfile
from typing import List, Optional

import numpy as np
import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import chains, tables
from mx_rec.checkpoint.contents import read_table
from mx_rec.constants.constants import MAX_INT32
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.validator.validator import Text, Type, checked

EXPORT_FILE = "key-emb.npy"


@checked(table_list=Type(list, optional=True))
def export(table_list: Optional[List[str]] = None) -> int:
    """Writes `key-emb.npy` into each table's directory of the last save.

    After a delta it holds what a restore of it gives: the whole table, not the delta alone.

    The file holds one pickled dict, int key -> float32 vector of shape (dim):
    `numpy.load(path, allow_pickle=True).item()`. It is written beside an earlier one and replaces
    that when it is whole. Pickling needs many times the table's size in memory: about 1.2 KB a
    row of dim 16.

    Args:
        table_list: Names of tables, at least one; None is every saved table.

    Returns:
        The number of tables that were written; 0, with a warning, if there was none.

    Raises:
        ValueError: If `table_list` is not a non-empty list of str, or files of a table are damaged;
            tables before it are written then.
        OSError: If the directory is gone, or a file cannot be written.
        RuntimeError: If nothing was saved in this process, or tables grow dynamically.
        EnvironmentError: If `init` was not called.
    """
    if table_list is not None:
        if not 1 <= len(table_list) <= MAX_INT32:
            raise ValueError("'table_list' length is less than 1")
        for name in table_list:
            Text(1, 255)("table_list", name)
    config = Settings.get_instance()
    if config.use_dynamic_expansion:
        raise RuntimeError("tables with dynamic expansion cannot be exported.")
    directory = config.train_params_config.sparse_dir
    if directory is None:
        if not graph_state().tables:
            logger.warning("there is no table to export.")
            return 0
        raise RuntimeError("nothing was saved yet: call tf.compat.v1.train.Saver().save before "
                           "export.")
    chain = chains.chain_of(directory)
    saved = sorted(name for name in os.listdir(directory)
                   if os.path.isdir(os.path.join(directory, name, "key")))
    wanted = saved if table_list is None else table_list
    written = 0
    for number, name in enumerate(wanted):
        if name not in saved:
            logger.warning("the table %r is not in %s; it is not exported.", name, directory)
            continue
        rows = _export_table(name, chain)
        logger.info("exported the table %r, %d rows (%d of %d).", name, rows, number + 1,
                    len(wanted))
        written += 1
    if not written:
        logger.warning("no table was exported from %s.", directory)
    return written


def _export_table(name: str, chain: List[str]) -> int:
    """Writes the file of one table, a whole save and its deltas in order; returns its rows."""
    directory = os.path.join(chain[-1], name)
    try:
        described = [tables.sound(path, tables.describe(path))
                     for path in [os.path.join(link, name) for link in chain]]
        logger.info("exporting the table %r, %d rows.", name, described[-1]["rows"])
        found = read_table(chain, name, described)
    except (tables.TableError, tf.errors.OpError) as error:
        raise ValueError("the table {!r} cannot be exported: {}".format(
            name, getattr(error, "message", error))) from error
    content = dict(zip(found.keys.tolist(), found.rows))
    # numpy.save adds no ending to the name of an open file.
    handle, scratch = tempfile.mkstemp(prefix="." + EXPORT_FILE + ".", dir=directory)
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, np.array(content, dtype=object), allow_pickle=True)
        shutil.copymode(os.path.join(directory, "key", "slice.data"), scratch)
        os.replace(scratch, os.path.join(directory, EXPORT_FILE))
    except BaseException:
        os.remove(scratch)
        raise
    return len(content)
