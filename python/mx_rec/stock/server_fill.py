"""Fills tables on parameter servers with the rows of variables of a checkpoint.

The chief writes a table as one process would save it, beside the checkpoint, and the servers read
their parts from there as from any checkpoint: what a worker waits for is then the same.
"""

import contextlib
import os
import shutil
import tempfile
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.contents import alone
from mx_rec.checkpoint.remote import is_remote
from mx_rec.core.rows import FLOAT32
from mx_rec.core.table import Table
from mx_rec.stock.convert import make_table


@contextlib.contextmanager
def tables_on_disk(found: Sequence[Any], checkpoint: str,
                   fill: Callable[[Any, Table], tf.Operation]) -> Iterator[str]:
    """Gives a directory with tables that are filled from variables.

    Args:
        found: Variables of tables on parameter servers (stock.convert.ConvertedVariable).
        checkpoint: Prefix of the checkpoint that has the variables.
        fill: Adds the ops that fill a table of the default graph from one of them.

    Yields:
        The directory, with one directory for each table; "" for no variable.

    Raises:
        NotImplementedError: If the checkpoint is not on a file system of the machine.
    """
    if not found:
        yield ""
        return
    if is_remote(checkpoint):
        raise NotImplementedError(
            "the tables {} on parameter servers cannot be filled from the variables of {}: the "
            "chief and all servers need a common file system under its path.".format(
                ", ".join(sorted({repr(one.plan.table) for one in found})), checkpoint))
    tables = OrderedDict()  # type: Dict[str, List[Any]]
    for one in found:
        tables.setdefault(one.plan.table, []).append(one)
    folder = tempfile.mkdtemp(prefix="mx_rec_filling_",
                              dir=os.path.dirname(os.path.abspath(checkpoint)))
    try:
        # Other users than the chief's may run the servers.
        os.chmod(folder, 0o755)
        for name, parts in tables.items():
            _write(parts, fill, os.path.join(folder, name))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(parts: List[Any], fill: Callable[[Any, Table], tf.Operation], path: str) -> None:
    """Saves a table that has the rows of the parts of a variable."""
    # It has what the variables have, and a load converts it.
    plan = parts[0].plan._replace(row_dtype=FLOAT32, slot_dtype=FLOAT32)
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        table = make_table(plan)
        save, = [op for op in graph.get_operations() if op.type == "MxRecSave"]
        filled = [fill(one, table) for one in parts]
        # It runs here, and takes no accelerator from the chief.
        with tf.compat.v1.Session("", config=alone()) as session:
            for done in filled:
                session.run(done)
            session.run(save, {save.inputs[1]: np.frombuffer(os.fsencode(path), np.uint8)})
