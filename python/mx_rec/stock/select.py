"""Converts the graph of a script as `init(stock_tables=...)` says, and tells what stays."""

from typing import Any, Dict, List

import tensorflow as tf

from mx_rec.base.log import logger, warn_once
from mx_rec.edits.replacing import making_many
from mx_rec.edits.wiring import variable_name
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.stock.analysis import HAS_SAVER, plan_variables
from mx_rec.stock.planned import StockVariable
from mx_rec.stock.convert import Needs, convert, saved_places
from mx_rec.stock.options import StockTables, names_it
from mx_rec.stock.savers import ops_of, renewable_savers
from mx_rec.stock.servers import HERE, Servers, servers_of
from mx_rec.stock.undo import undone_by_error
from mx_rec.tensorflow.graph_def import serialized, without_nodes


# What became of variables in the graphs of this process, by their names.
_decided = {}  # type: Dict[str, StockVariable]


def decisions() -> List[StockVariable]:
    """Returns what became of the variables that the options chose, by their names."""
    return [_decided[name] for name in sorted(_decided)]


def _note(chosen: List[StockVariable]) -> None:
    """Notes what became of variables; graphs with a table, and those that train it, say more."""
    for plan in chosen:
        before = _decided.get(plan.name)
        if before is None or not (before.table and not plan.table or before.kind and not plan.kind):
            _decided[plan.name] = plan


def convert_graph(graph: tf.Graph, trains: bool, needs: Needs = Needs(),
                  settled: int = 0) -> List[StockVariable]:
    """Converts a graph as `init(stock_tables=...)` says.

    Args:
        graph: The graph, complete; no session has run it.
        trains: Whether it trains.
        needs: What a checkpoint asks for.
        settled: How many of its first ops have variables that stay what they are.

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
    graph_state(graph).is_settled = True
    if _has_strategy(graph):
        warn_once("stock_tables: variables of a distribution strategy stay TensorFlow's.")
        return []
    try:
        servers = servers_of(graph)
    except NotImplementedError as error:
        warn_once("stock_tables: all variables stay TensorFlow's: %s", error)
        return []
    if servers.devices and settled:
        return []
    if servers.devices and _refused_on_servers(options):
        warn_once("stock_tables: all variables stay TensorFlow's: the job has parameter servers, "
                  "whose tables do not support %s.", _refused_on_servers(options))
        return []
    with making_many(), undone_by_error(graph, serialized(graph)) as before:
        plans = convert(graph, options, trains, needs, servers, settled)
        if any(plan.converts for plan in plans):
            before.keep()
            graph_state(graph).before.append(before)
    _tell(graph, options, plans, servers)
    if trains:
        _warn_of_savers(graph, options, plans)
    return plans


def has_tables(graph: tf.Graph) -> bool:
    """Returns whether the conversion of a graph that a session has run would make a table.

    Args:
        graph: The graph, which trains. If not, the log says why its variables stay.
    """
    options, savers = options_of_process(), renewable_savers(graph)
    plans = plan_variables(without_nodes(graph.as_graph_def(), ops_of(savers)), options, True,
                           saved=saved_places(graph), was_run=True)
    if any(plan.converts for plan in plans) and not _has_strategy(graph) \
            and not servers_of(graph).devices:
        return True
    _tell(graph, options, [plan.staying(plan.reason) for plan in plans], HERE)
    return False


def candidates(graph: tf.Graph, options: StockTables, settled: int = 0) -> List[int]:
    """Returns the places of the variables of a graph that the options choose by name and rows.

    Args:
        graph: The graph.
        options: Which variables.
        settled: How many of its first ops have variables that do not count. Of those behind them
            only such count as are to be trained: others are an optimizer's.

    Returns:
        The places of their ops among all of the graph, from 1 on.
    """
    # pylint: disable=protected-access
    trained = {id(one) for one in graph.get_collection(
        tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)} if settled else set()
    return [variable.op._id for variable in _variables(graph)
            if _is_chosen(variable, options)
            and (not settled or variable.op._id > settled and id(variable) in trained)]


def _is_chosen(variable: Any, options: StockTables) -> bool:
    if variable.dtype.base_dtype != tf.float32 or variable.shape.rank in (None, 0):
        return False
    part = getattr(variable, "_save_slice_info", None)
    rows = variable.shape.as_list()[0] if part is None else part.full_shape[0]
    return rows is not None and rows >= max(options.least_rows, 2) \
        and names_it(options.names, variable.op.name)


def _variables(graph: tf.Graph) -> List[Any]:
    """Returns the variables of a graph that it saves."""
    return [variable for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.GLOBAL_VARIABLES) if variable_name(variable) is not None]


def _has_strategy(graph: tf.Graph) -> bool:
    """Whether variables of a graph are those of a distribution strategy."""
    return tf.distribute.has_strategy() or any(
        getattr(variable, "_distribute_strategy", None) is not None
        for variable in _variables(graph))


def _tell(graph: tf.Graph, options: StockTables, plans: List[StockVariable],
          servers: Servers) -> None:
    """Logs which of the variables that the options choose stay, and why."""
    places = saved_places(graph) if servers.devices else {}
    shapes = {plan.name: plan.shape for plan in plans}
    trained = {variable.op.name for variable in graph.get_collection(
        tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES) if hasattr(variable, "op")}

    def belongs_to_optimizer(name: str) -> bool:
        # TensorFlow names a slot after its variable.
        return name not in trained and any(
            "/{}/".format(other) in "/" + name and shape == shapes[name]
            for other, shape in shapes.items())

    def has_rows(plan: StockVariable) -> bool:
        place = places.get(plan.name)
        return (plan.shape if place is None else place.shape)[0] >= options.least_rows

    chosen = [plan for plan in plans if plan.converts or (
        names_it(options.names, plan.name) and has_rows(plan)
        and not belongs_to_optimizer(plan.name))]
    _note(chosen)
    stays = [plan for plan in chosen if not plan.converts]
    for plan in stays:
        logger.info("the variable %s of shape %s stays TensorFlow's: %s.", plan.name, plan.shape,
                    plan.reason)
    words = ["with {:,} rows and more".format(options.least_rows)] \
        if options.least_rows > 1 else []
    if list(options.names) != [".*"]:
        words.append("whose names match " + " or ".join(map(repr, options.names)))
    what = " ".join(["variables"] + (words or ["with rows"]))
    if not chosen:
        logger.info("stock_tables: the graph has no %s: none is a table.", what)
        return
    logger.info("stock_tables: %d of %d %s are tables%s.", len(chosen) - len(stays), len(chosen),
                what, "" if not stays else "; {} stay{} TensorFlow's: {}".format(
                    len(stays), "s" if len(stays) == 1 else "",
                    ", ".join(plan.name for plan in stays)))


def _warn_of_savers(graph: tf.Graph, options: StockTables, plans: List[StockVariable]) -> None:
    """Warns of variables that stay for no other reason than that a Saver has them."""
    if not any(op.type == "SaveV2" for op in graph.get_operations()):
        return
    stays = {plan.name for plan in plans if not plan.converts and HAS_SAVER in plan.reason}
    found = plan_variables(graph.as_graph_def(), options, True, has_saver=True,
                           saved=saved_places(graph)) if stays else []
    names = sorted(stays.intersection(plan.name for plan in found if plan.converts))
    if names:
        logger.warning(
            "stock_tables: the variables %s stay TensorFlow's, because a Saver was made for them "
            "before that cannot be built anew: it was made from a saver_def, or came with an "
            "imported graph, or has slots without their variable, or other ops need its ops. Make "
            "it after the first session.run, or give tf.train.Saver the variables.",
            ", ".join(names))


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
