"""Warm start: tables and variables of a new model begin as those of earlier checkpoints.

The rules are those of docs/warm-start.md. TensorFlow warm-starts variables, by exchanging their
initializers; here the tables join, by a load that an initializer waits for. So both happen where a
session is initialised, and neither where it is restored.
"""

import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.contents import HISTORY, sound_table
from mx_rec.checkpoint.parts import name_of
from mx_rec.checkpoint.sources import Source, sources_of
from mx_rec.checkpoint.table_ops import refuse_namesake
from mx_rec.core.table import Table
from mx_rec.state.table_variable import (TABLE_OP, is_table_variable, refuse_shared_tables,
                                         table_config_of, table_ops)
from mx_rec.stock.convert import converted
from mx_rec.stock.warm_start import VariableStarts, load_table


class _Start(NamedTuple):
    """What one table starts with."""

    directory: str
    rows: int
    slots: List[str]


# What TensorFlow does in addition; see patches.py ----------------------------------------------


def patched_warm_start(stock: Callable[..., None], ckpt_to_initialize_from: Any,
                       vars_to_warm_start: Any = ".*", var_name_to_vocab_info: Any = None,
                       var_name_to_prev_var_name: Any = None) -> None:
    """warm_starting_util.warm_start, which Estimators call when their model is built.

    Args:
        ckpt_to_initialize_from: A checkpoint or a directory of some, or a list of such.
        vars_to_warm_start: An expression, a list of expressions, of table names or of
            variables, or None; for a list of checkpoints a list with one of these for each.
        var_name_to_vocab_info: As TensorFlow's; for a list of checkpoints a list of dicts, one
            dict being ignored.
        var_name_to_prev_var_name: As TensorFlow's; for a list of checkpoints a list of dicts.

    Raises:
        NotImplementedError: If the graph's tables are on parameter servers, or the
            checkpoint's were.
        ValueError: If the lists differ in length, nothing matches an expression, a table is
            in none of the checkpoints, has another dim or more rows than the budget, or is
            to be renamed; and what TensorFlow raises it for.
        FileNotFoundError: If there is no checkpoint at a path.
        tf.errors.DataLossError: If the files of a table do not fit together.
    """
    graph = tf.compat.v1.get_default_graph()
    refuse_shared_tables(graph, "a warm start")
    found = {}  # type: Dict[str, tf.Operation]
    of_variables = {one.table.table_name for one in converted(graph)}
    owners = [op for op in table_ops(graph, TABLE_OP)
              if table_config_of(op)["name"] not in of_variables]
    for op in owners:
        found.setdefault(table_config_of(op)["name"], op)
    settings = (ckpt_to_initialize_from, vars_to_warm_start, var_name_to_vocab_info,
                var_name_to_prev_var_name)
    try:
        sources = sources_of(graph, *settings)
    except FileNotFoundError:
        if found or isinstance(ckpt_to_initialize_from, (list, tuple)):
            raise
        sources = []
    if not sources:
        # TensorFlow says what is wrong.
        stock(*settings)
        return
    starts = _plan(graph, found, sources) if found else {}
    for op in owners:
        name = table_config_of(op)["name"]
        if name in starts:
            refuse_namesake(name, found[name], op, "warm-started")
    variables = VariableStarts(graph, stock)
    for source in sources:
        dense = _without_tables(source, found)
        if dense or source.vocabulary or source.previous or not found:
            variables.add(source._replace(variables=dense))
    loads = _loads(graph, found, starts) + variables.end()
    if loads:
        _run_when_initialised(graph, loads)


# What starts with what -----------------------------------------------------------------------


def _plan(graph: tf.Graph, found: Dict[str, tf.Operation],
          sources: List[Source]) -> Dict[str, _Start]:
    """Chooses what each table of the graph starts with; later checkpoints replace earlier ones.

    Raises:
        ValueError, tf.errors.DataLossError: As `warm_start` says.
    """
    starts = {}  # type: Dict[str, _Start]
    absent = {}  # type: Dict[str, List[str]]
    for source in sources:
        _refuse_renaming(graph, source, found)
        _refuse_unknown(graph, source, found)
        for name, op in found.items():
            directory = source.directories.get(name)
            slots = _saved_slots(name, directory)
            wanted = [slot for slot in slots if _covers_slot(source.variables, name, slot)]
            if not _covers(source.variables, name):
                if wanted:
                    raise ValueError(
                        "the slots {} of the table {!r} cannot be warm-started from {} without "
                        "its rows: name the table too.".format(", ".join(wanted), name,
                                                               source.checkpoint))
            elif directory is not None:
                starts[name] = _Start(directory, _checked_rows(op, directory), wanted)
            elif name in map(name_of, source.directories):
                raise NotImplementedError(
                    "the table {!r} cannot be warm-started from {}, where parameter servers saved "
                    "it in parts: restore that checkpoint in one process without a cluster, save "
                    "it there, and start from that.".format(name, source.checkpoint))
            elif name in _names(source.variables):
                raise ValueError("the table {!r} cannot be warm-started: it is not in the "
                                 "checkpoint {}, which has {}.".format(
                                     name, source.checkpoint, _listing(source.directories)))
            else:
                absent.setdefault(name, []).append(source.checkpoint)
    for name, checkpoints in absent.items():
        if name in starts:
            continue
        if not any(op.type == "MxRecSave" for op in found[name].outputs[1].consumers()):
            logger.info("the table %r has is_save=False and is in no checkpoint: it is not "
                        "warm-started.", name)
            continue
        raise ValueError(
            "the table {!r} cannot be warm-started: vars_to_warm_start matches it, but it is not "
            "in {}. Give expressions that do not match it, or another checkpoint.".format(
                name, " or ".join(checkpoints)))
    return starts


def _covers(variables: Any, name: str) -> bool:
    """Returns whether the rows of a table are wanted."""
    return name in _names(variables) or any(
        _matches(expression, name) for expression in _expressions(variables))


def _covers_slot(variables: Any, name: str, slot: str) -> bool:
    """Returns whether a slot is wanted: a single expression is for what is trained, no slots."""
    return isinstance(variables, list) and any(
        _matches(expression, "{}/{}".format(name, slot)) for expression in _expressions(variables))


def _matches(expression: str, name: str) -> bool:
    # TensorFlow matches names with the number of an output behind them.
    return bool(re.match(expression, name) or re.match(expression, name + ":0"))


def _expressions(variables: Any) -> List[str]:
    """Returns the strings of vars_to_warm_start."""
    return [one for one in (variables if isinstance(variables, list) else [variables])
            if isinstance(one, str)]


def _names(variables: Any) -> List[str]:
    """Returns the names of the tables that vars_to_warm_start may name one by one."""
    return _expressions(variables) + [
        name for name in map(_table_name, variables if isinstance(variables, list) else [])
        if name is not None]


def _table_name(one: Any) -> Optional[str]:
    """Returns the name of a table that is given as an object, None for anything else."""
    if isinstance(one, Table):
        return one.physical_name
    if is_table_variable(one):
        return str(table_config_of(one.op)["name"])
    return None


def _without_tables(source: Source, found: Dict[str, tf.Operation]) -> Any:
    """Returns vars_to_warm_start without what names a table."""
    def is_dense(one: Any) -> bool:
        return _table_name(one) is None and not (isinstance(one, str) and one in found)

    if isinstance(source.variables, list):
        return [one for one in source.variables if is_dense(one)]
    return source.variables if is_dense(source.variables) else None


def _saved_slots(name: str, directory: Optional[str]) -> List[str]:
    """Returns the names of the slots on disk, and that of the history if there is one.

    Raises:
        tf.errors.DataLossError: If the table's files do not fit together.
    """
    if directory is None:
        return []
    described = _described(name, directory)
    history = [] if described["history"] is None else [HISTORY]
    return [str(slot["name"]) for slot in described["slots"]] + history


def _checked_rows(op: tf.Operation, directory: str) -> int:
    """Returns the number of rows on disk.

    Raises:
        ValueError: If they do not fit the table.
    """
    config = table_config_of(op)
    described = _described(config["name"], directory)
    if described["dim"] != config["dim"]:
        raise ValueError("the table {!r} cannot be warm-started: it has dim {}, and {} has "
                         "{}.".format(config["name"], config["dim"], directory, described["dim"]))
    if not tables.has_room(config["capacity"], described):
        raise ValueError("the table {!r} cannot be warm-started: it has room for {} rows, and {} "
                         "has {}.".format(config["name"], config["capacity"], directory,
                                          described["rows"]))
    return int(described["rows"])


def _described(name: str, directory: str) -> Any:
    return sound_table(directory, "the table {!r} cannot be warm-started".format(name))


def _variables(graph: tf.Graph) -> Set[str]:
    """Returns the names of a graph's variables, also of those that became tables, and of those
    whose parts it has."""
    found = {variable.name.rsplit(":", 1)[0] for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)}
    found.update(variable.op.name for one in converted(graph)
                 for values in one.objects.values() for variable in values)
    return found | {re.sub(r"/part_\d+$", "", name) for name in found}


def _refuse_renaming(graph: tf.Graph, source: Source, found: Dict[str, tf.Operation]) -> None:
    """Raises ValueError for settings of variables that name a table."""
    variables = _variables(graph)
    for name, previous in source.previous.items():
        # The table of a simple variable's name may be that variable.
        if name in found or (name not in variables and (
                name in source.directories or previous in source.directories)):
            raise ValueError(
                "var_name_to_prev_var_name maps {!r} to {!r}, but a table cannot be renamed: it "
                "starts from the table of its own name in {}, which has {}.".format(
                    name, previous, source.checkpoint, _listing(source.directories)))
    for name in source.vocabulary:
        if name in found:
            raise ValueError("var_name_to_vocab_info names the table {!r}, but a table has no "
                             "vocabulary: its rows are found by key.".format(name))


def _refuse_unknown(graph: tf.Graph, source: Source, found: Dict[str, tf.Operation]) -> None:
    """Raises ValueError for what is neither in the graph nor in the checkpoint."""
    variables = _variables(graph)
    for one in _names(source.variables):
        if one in source.directories and one not in found and one not in variables:
            raise ValueError(
                "vars_to_warm_start names the table {!r} of {}, but the model has {}; a table "
                "cannot be renamed.".format(one, source.checkpoint, _listing(found)))
    known = set(source.names) | set(found) | set(source.directories)
    known.update(variables)
    for name, directory in source.directories.items():
        if any(expression not in known for expression in _expressions(source.variables)):
            known.update("{}/{}".format(name, slot) for slot in _saved_slots(name, directory))
    for expression in _expressions(source.variables):
        if not any(_matches(expression, name) for name in known):
            raise ValueError(
                "vars_to_warm_start has {!r}, but no table and no variable of that name is in the "
                "model or in {}; the model has {}.".format(expression, source.checkpoint,
                                                            _listing(found)))


def _listing(names: Any) -> str:
    """Returns the names of tables for the text of an error."""
    if not names:
        return "no table"
    return "the tables " + ", ".join(repr(name) for name in sorted(names))


# The load ------------------------------------------------------------------------------------


def _loads(graph: tf.Graph, found: Dict[str, tf.Operation],
           starts: Dict[str, _Start]) -> List[tf.Operation]:
    """Adds the ops that load tables."""
    loads = []  # type: List[tf.Operation]
    with graph.as_default(), graph.control_dependencies(None), tf.device("/cpu:0"), \
            tf.compat.v1.name_scope("mx_rec_warm_start"):
        for name, start in starts.items():
            loads.append(load_table(found[name].outputs[1], start.directory, start.slots))
            logger.info("the table %r starts with the %d rows of %s and %s, unless training goes "
                        "on from a checkpoint.", name, start.rows, start.directory,
                        "the slots " + ", ".join(start.slots) if start.slots else "fresh slots")
    return loads


def _run_when_initialised(graph: tf.Graph, loads: List[tf.Operation]) -> None:
    """Makes an initializer wait for the loads.

    Initializers run where a session starts without a checkpoint of its own, and nowhere else.

    Raises:
        ValueError: If the graph has no variable.
    """
    variable = tf.compat.v1.train.get_global_step(graph)
    if variable is None:
        variable = next(iter(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)), None)
    if variable is None:
        raise ValueError("the tables cannot be warm-started: the graph has no variable whose "
                         "initializer could load them; make a global step.")
    # By now TensorFlow has exchanged the initializer, if it does so at all.
    initializer = variable.initializer
    getattr(initializer, "op", initializer)._add_control_inputs(  # pylint: disable=protected-access
        loads)
