"""Export of saved tables as NumPy files of key -> embedding."""

import os
from typing import List, Optional

import numpy as np

from mx_rec.constants.constants import MAX_INT32
from mx_rec.util.initialize import ConfigInitializer
from mx_rec.util.log import logger
from mx_rec.validator.validator import Text, Type, checked

EXPORT_FILE = "key-emb.npy"


@checked(table_list=Type(list, optional=True))
def export(table_list: Optional[List[str]] = None) -> int:
    """Writes `key-emb.npy` into each table's directory of the last save.

    The file holds one pickled dict, int key -> float32 vector of shape (dim):
    `numpy.load(path, allow_pickle=True).item()`.

    Args:
        table_list: Names of tables, at least one; None is every saved table.

    Returns:
        The number of tables that were written; 0, with a warning, if there was none.

    Raises:
        ValueError: If `table_list` is not a non-empty list of str.
        RuntimeError: If nothing was saved in this process, or tables grow dynamically.
        EnvironmentError: If `init` was not called.
    """
    if table_list is not None:
        if not 1 <= len(table_list) <= MAX_INT32:
            raise ValueError("'table_list' length is less than 1")
        for name in table_list:
            Text(1, 255)("table_list", name)
    config = ConfigInitializer.get_instance()
    if config.use_dynamic_expansion:
        raise RuntimeError("tables with dynamic expansion cannot be exported.")
    directory = config.train_params_config.sparse_dir
    if directory is None:
        if not config.sparse_embed_config.table_name_set:
            logger.warning("there is no table to export.")
            return 0
        raise RuntimeError("nothing was saved yet: call tf.compat.v1.train.Saver().save before "
                           "export.")
    saved = sorted(name for name in os.listdir(directory)
                   if os.path.isdir(os.path.join(directory, name, "key")))
    wanted = saved if table_list is None else table_list
    written = 0
    for name in wanted:
        if name not in saved:
            logger.warning("the table %r is not in %s; it is not exported.", name, directory)
            continue
        _export_table(os.path.join(directory, name))
        written += 1
    if not written:
        logger.warning("no table was exported from %s.", directory)
    return written


def _export_table(directory: str) -> None:
    keys = np.fromfile(os.path.join(directory, "key", "slice.data"), "<i8")
    shape = np.fromfile(os.path.join(directory, "embedding", "slice.attribute"), "<i8")
    rows = np.fromfile(os.path.join(directory, "embedding", "slice.data"), "<f4")
    rows = rows.reshape(int(shape[0]), int(shape[1]))
    content = {int(key): row for key, row in zip(keys, rows)}
    np.save(os.path.join(directory, EXPORT_FILE), np.array(content, dtype=object),
            allow_pickle=True)
