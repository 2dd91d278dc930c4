"""Converts the graph of a script as `init(stock_tables=...)` says."""

from typing import Any, Dict, List, Optional, Set

import tensorflow as tf

from mx_rec.stock.admission import SavedHistory
from mx_rec.stock.analysis import StockVariable
from mx_rec.stock.convert import convert
from mx_rec.stock.servers import servers_of
from mx_rec.util.settings import Settings
from mx_rec.util.log import logger, warn_once


def convert_graph(graph: tf.Graph, trains: bool,
                  known: Optional[Set[str]] = None, only_known: bool = False,
                  dense: Optional[Set[str]] = None,
                  histories: Optional[Dict[str, SavedHistory]] = None) -> List[StockVariable]:
    """Converts a graph as `init(stock_tables=...)` says.

    Args:
        graph: The graph, complete; no session has run it.
        trains: Whether it trains.
        known: Names of the tables of a checkpoint, whose variables convert if they can.
        only_known: Whether all others stay as they are.
        dense: Names of variables that the checkpoint has as such, whose rows a table takes over.
        histories: The admission histories of the checkpoint by table, None if not known.

    Returns:
        The plan; empty without stock_tables, and in jobs of several processes without parameter
        servers, which cannot share a table.

    Raises:
        ValueError: If the checkpoint has a table by ids without limits that the graph cannot use,
            or settings of eviction do not go together (stock.admission.rules_of).
        NotImplementedError: If the checkpoint has a table with admission that would be on
            parameter servers.
    """
    options = options_of_process()
    if options is None:
        return []
    if tf.distribute.has_strategy():
        warn_once("stock_tables: variables of a distribution strategy stay TensorFlow's.")
        return []
    try:
        servers = servers_of(graph)
    except NotImplementedError as error:
        warn_once("stock_tables: all variables stay TensorFlow's: %s", error)
        return []
    if servers.devices and _refused_on_servers(options):
        warn_once("stock_tables: all variables stay TensorFlow's: the job has parameter servers, "
                  "whose tables do not support %s.", _refused_on_servers(options))
        return []
    plans = convert(graph, options, trains, known, only_known, dense, histories, servers)
    tables = sum(plan.converts for plan in plans)
    logger.info("stock_tables: %d of %d variables with rows are tables.", tables, len(plans))
    return plans


def _refused_on_servers(options: Any) -> str:
    """Returns the setting that tables on parameter servers do not support, "" without one."""
    if not options.servers:
        return "StockTables(servers=False)"
    settings = Settings._single_instance  # pylint: disable=protected-access
    if settings.use_dynamic_expansion:
        return "init(use_dynamic_expansion=True)"
    return "init(is_incremental_checkpoint=True)" if settings.is_incremental_checkpoint else ""


def options_of_process() -> Any:
    """Returns what `init(stock_tables=...)` was given, None without it."""
    instance = Settings._single_instance  # pylint: disable=protected-access
    return None if instance is None else instance.stock_tables


__all__ = ["convert_graph", "options_of_process"]
