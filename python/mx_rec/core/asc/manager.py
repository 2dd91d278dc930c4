"""`start_asc_pipeline`: the point after which no table and no training lookup is added."""

from mx_rec.base.log import logger
from mx_rec.core.admission import settle_timestamp
from mx_rec.state.graph_state import GraphState, graph_state, outermost_graph
from mx_rec.state.settings import Settings
from mx_rec.state.table_variable import table_ops


def start_asc_pipeline() -> None:
    """Closes the building of the present default graph, before its first session run.

    To be called once all tables, lookups and optimizers are built; further calls do nothing.
    No thread is started: key work runs where the graph says.

    Raises:
        RuntimeError: If the graph has no table ("table_info_list is empty!") and
            `init(stock_tables=...)` was not asked to make some of its variables, or a table with
            padding keys is data-parallel or has no training lookup with is_grad=True.
        ValueError: If a table has an eviction threshold and training batches no timestamp.
        EnvironmentError: If `init` was not called.
    """
    settings = Settings.get_instance()
    state = graph_state()
    if state.frozen:
        return
    # An imported graph has tables without knowing their names.
    tables = list(state.tables) or [op.name for op in table_ops(outermost_graph())]
    if not tables and settings.stock_tables is not None:
        # A model that does not know tables trains on its variables.
        state.frozen = True
        return
    if not tables:
        raise RuntimeError("table_info_list is empty! Create a table with create_table before the "
                           "pipeline is started.")
    _check_padding(state)
    settle_timestamp()
    state.frozen = True
    logger.info("the pipeline of %d tables is built: %s.", len(tables), ", ".join(tables))


def _check_padding(state: GraphState) -> None:
    """Checks that padding keys can mean something."""
    for table in state.tables.values():
        if table.padding_keys is None:
            continue
        if table.is_dp:
            raise RuntimeError("the table {!r} has padding keys, which is not possible with "
                               "is_dp=True.".format(table.table_name))
        if table.multi_lookup_times[True] and not table.is_grad:
            raise RuntimeError("the table {!r} has padding keys, but all its lookups have "
                               "is_grad=False: nothing would be masked.".format(table.table_name))
