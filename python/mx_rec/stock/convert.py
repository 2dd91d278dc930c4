"""Applies the plan of stock/analysis.py to a graph: tables in the place of variables."""

import json
from typing import (AbstractSet, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set,
                    Tuple)

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.constants.constants import MAX_ROW_BUDGET, MAX_VOCABULARY_SIZE
from mx_rec.core.embedding import ssd_directories
from mx_rec.core.initializers import table_seed
from mx_rec.core.rows import row_storage
from mx_rec.core.table import PhysicalTable, Table, TableOptions, build_physical_table
from mx_rec.edits.replacing import replace_waiting
from mx_rec.edits.wiring import forbid_dropped_feeds, forget_variables, gate_of, on_device
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.stock.admission import RowRules, SavedHistory, rules_of
from mx_rec.stock.analysis import VARIABLES, plan_variables, with_ids
from mx_rec.stock.planned import StockVariable, table_name
from mx_rec.stock.changes import change
from mx_rec.stock.dense import clear_op
from mx_rec.stock.late import late_ops
from mx_rec.stock.lift import lift
from mx_rec.stock.nodes import Nodes
from mx_rec.stock.options import StockTables, sketch_of
from mx_rec.stock.parts import SavedPlace
from mx_rec.stock.pieces import fuse
from mx_rec.stock.retired import refuse_retired, retired_ops
from mx_rec.stock.rows import Rows, SlotRows
from mx_rec.stock.savers import ops_of, renewable_savers
from mx_rec.stock.server_rows import (ServerRows, bring_to_worker, clear_parts,
                                      update_together)
from mx_rec.stock.servers import HERE, Servers
from mx_rec.stock.starts import replace_initializers
from mx_rec.tensorflow.graph_def import without_nodes

# The collection of a graph, also of one that was imported, that has what manifests say of variables
# that became tables, as JSON. Those by ids without limits are left out: no variable has such.
DESCRIBED = "mx_rec_variables"

# The attribute of a graph that holds what was converted.
CONVERTED = "_mx_rec_stock_tables"


class Needs(NamedTuple):
    """What a checkpoint that a graph starts from asks of its conversion.

    Attributes:
        known: Names of its tables, as the graph has them, whose variables convert if they can.
        only_known: Whether all others stay as they are.
        dense: Names of the variables that it has as such, whose rows a table takes over.
        histories: The admission histories of the tables, by their names; None if not known.
    """

    known: AbstractSet[str] = frozenset()
    only_known: bool = False
    dense: AbstractSet[str] = frozenset()
    histories: Optional[Dict[str, SavedHistory]] = None


class ConvertedVariable(NamedTuple):
    """A variable that is a table now.

    Attributes:
        plan: What was planned for it.
        table: The table.
        saved: Where its values stand in a checkpoint of variables.
        slots: The same for each of `plan.slots`.
        rules: When keys get rows and lose them.
        clear: The op that starts the table with its slots.
        objects: The variable and its slots as objects of Python, by the collections that had them.
    """

    plan: StockVariable
    table: Table
    saved: SavedPlace
    slots: List[SavedPlace]
    rules: RowRules
    clear: tf.Operation
    objects: Dict[str, List[Any]]

    @property
    def rules_of_values(self) -> RowRules:
        """When keys get rows that are set: training counts them as admitted."""
        return self.rules if self.plan.trains else RowRules()


def converted(graph: tf.Graph, operations: Any = None) -> List[ConvertedVariable]:
    """Returns the variables of a graph that were converted.

    Args:
        graph: The graph.
        operations: None, or what saves and loads tables (checkpoint.table_ops.TableOps): of these
            alone.
    """
    found = list(getattr(graph, CONVERTED, ()))
    if operations is None:
        return found
    tables = [op.table for op in operations]
    return [one for one in found if any(one.table.variable.op is op for op in tables)]


def start_by(graph: tf.Graph, one: ConvertedVariable, started: tf.Operation) -> None:
    """Makes another op what starts a table with its slots: initializers made from now on run it.

    Args:
        graph: The graph.
        one: The variable.
        started: The op.
    """
    setattr(graph, CONVERTED, [other._replace(clear=started) if other is one else other
                               for other in converted(graph)])


def convert(graph: tf.Graph, options: StockTables, trains: bool, needs: Needs = Needs(),
            servers: Servers = HERE, settled: int = 0) -> List[StockVariable]:
    """Makes tables of the variables of a graph that qualify. No session may have run them.

    Args:
        graph: The graph, complete: gradients, updates, evaluation.
        options: Which variables.
        trains: See `plan_variables`.
        needs: What a checkpoint asks for.
        servers: The parameter servers on which the tables are to be, if any.
        settled: How many of its first ops have variables that stay what they are.

    Returns:
        The plan, with the variables that stay and why; without those that were converted before.

    Raises:
        ValueError: If the checkpoint has a table by ids without limits, and the ids of its variable
            cannot lose theirs; or as of `rules_of`.
        NotImplementedError: If the checkpoint has admission counts of a table that is to be on
            parameter servers.
    """
    # Ops of variables that are tables already are still there, and nothing runs them.
    gone = _names(converted(graph)).union(
        op.name for op in graph.get_operations()[:settled] if op.type in VARIABLES)
    savers = renewable_savers(graph)
    retired = retired_ops(graph)
    plans = _without_limits(graph, options, trains, needs, gone, savers, retired)
    rules = rules_of(graph, plans, options, trains, needs.histories)
    _check_rules(plans, rules)
    objects, places = _variable_objects(graph), saved_places(graph)
    found = []  # type: List[Rows]
    tables = {}  # type: Dict[str, Table]
    for plan in plans:
        if not plan.converts:
            continue
        with graph.as_default(), graph.control_dependencies(None):
            if plan.table not in tables:
                # Parts of one variable share it.
                tables[plan.table] = _table_of(plan, options, servers)
            table = tables[plan.table]
            rows = ServerRows(graph, plan, table, servers) if plan.on_servers \
                else Rows(graph, plan, table, rules[plan.name])
            found.append(rows)
        logger.info("the variable %s of shape %s is the table %s: %s%s.", plan.name, plan.shape,
                    plan.table, plan.reason, rows.rules.text(options.eviction_unit))
    on_servers = [rows for rows in found if isinstance(rows, ServerRows)]
    for rows in on_servers:
        # Later ones are replaced in the order of the graph, as they may need earlier ones.
        for lookup in rows.plan.lookups:
            rows.look_up(rows.op(lookup.node), lookup.trains)
    update_together(graph, on_servers)
    fused = fuse(graph, [rows for rows in found if not isinstance(rows, ServerRows)])
    done = converted(graph)
    cleared = {}  # type: Dict[str, tf.Operation]
    done.extend(_convert(graph, rows, fused, objects, places, cleared, servers) for rows in found)
    bring_to_worker(on_servers, servers)
    forbid_dropped_feeds(graph)
    setattr(graph, CONVERTED, done)
    if found:
        refuse_retired(found, retired)
        late_ops(graph).add(found)
        for saver in savers:
            if not _names(done).isdisjoint(saver.variables):
                saver.build_anew()
    state = graph_state(graph)
    state.savers, state.saved_since = [], False
    return plans


def _names(found: Iterable[ConvertedVariable]) -> Set[str]:
    """Returns the names of variables that became tables, and of those that became their slots."""
    return {name for one in found
            for name in [one.plan.name] + [slot.variable for slot in one.plan.slots]}


def _check_rules(plans: List[StockVariable], rules: Dict[str, RowRules]) -> None:
    """Refuses tables on parameter servers that a checkpoint has with admission."""
    for plan in plans:
        if plan.converts and plan.on_servers and (rules[plan.name].counts
                                                  or rules[plan.name].refuses):
            raise NotImplementedError(
                "the checkpoint has the table {!r} (variable {!r}) with an access_threshold, which "
                "tables of unchanged models do not have on parameter servers: go on in one "
                "process, or begin in another directory.".format(plan.table, plan.name))


def _table_of(plan: StockVariable, options: StockTables, servers: Servers) -> Table:
    """Makes a table in the default graph."""
    if not plan.on_servers:
        return make_table(plan, options)
    with on_device(servers.worker):
        return make_table(plan, options, servers.devices)


def _without_limits(graph: tf.Graph, options: StockTables, trains: bool, needs: Needs,
                    gone: Set[str], savers: List[Any], retired: Set[str]) -> List[StockVariable]:
    """Plans a graph, after the limits of ids that are to fall away have done so.

    Savers that are built anew keep no variable from becoming a table. Those that cannot be are
    taken out of `savers`. Nor do ops that were given up.
    """
    saved, was_run = saved_places(graph), graph_state(graph).was_run

    def planned(graph_def: Any, decides_ids: bool) -> List[StockVariable]:
        return [plan for plan in plan_variables(
            graph_def, options, trains, needs.known, needs.only_known, dense=needs.dense,
            decides_ids=decides_ids, saved=saved, was_run=was_run) if plan.name not in gone]

    while True:
        graph_def = without_nodes(graph.as_graph_def(), ops_of(savers) | retired)
        plans = planned(graph_def, True)
        others = [saver for saver in savers if not _has_slots_alone(saver, plans)]
        if len(others) == len(savers):
            break
        savers[:] = others
    for plan in plans:
        if not plan.ids.is_lifted and table_name(plan.name, True) in needs.known:
            raise ValueError(
                "the checkpoint has the variable {!r} as the table {!r} of ids without a limit, "
                "which this graph cannot use: {}.".format(
                    plan.name, table_name(plan.name, True), plan.ids.text or plan.reason))
        if plan.ids.text and not plan.ids.is_lifted:
            logger.warning("the ids of the variable %s keep their limits: %s.", plan.name,
                           plan.ids.text)
    lifted = {plan.name: plan for plan in plans if plan.ids.is_lifted}
    if not any(plan.ids.limits for plan in lifted.values()):
        return plans
    lift(graph, Nodes(graph_def), lifted.values(),
         [limit for plan in lifted.values() for limit in plan.ids.limits])
    # Its ops have other inputs now.
    again = planned(without_nodes(graph.as_graph_def(), ops_of(savers) | retired), False)
    return [with_ids(plan, lifted[plan.name].ids) if plan.name in lifted else plan
            for plan in again]


def _has_slots_alone(saver: Any, plans: List[StockVariable]) -> bool:
    """Whether a Saver has the slots of a variable that becomes a table, and not the variable."""
    return any(plan.name not in saver.variables and slot.variable in saver.variables
               for plan in plans for slot in plan.slots)


def _variable_objects(graph: tf.Graph) -> Dict[str, Any]:
    """Returns the variables of Python by the name of their op."""
    found = {}  # type: Dict[str, Any]
    for key in (tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.LOCAL_VARIABLES):
        for variable in graph.get_collection(key):
            if isinstance(variable, tf.Variable) and hasattr(variable, "op"):
                found[variable.op.name] = variable
    return found


def saved_places(graph: tf.Graph) -> Dict[str, SavedPlace]:
    """Returns where parts of partitioned variables stand in checkpoints, by their ops' names."""
    found = {}  # type: Dict[str, SavedPlace]
    for name, variable in _variable_objects(graph).items():
        info = getattr(variable, "_save_slice_info", None)
        if info is not None:
            found[name] = SavedPlace(info.full_name, [int(one) for one in info.var_offset],
                                     [int(one) for one in info.full_shape], info.spec)
    return found


def places_of(places: Dict[str, SavedPlace],
              plan: StockVariable) -> Tuple[SavedPlace, List[SavedPlace]]:
    """Returns where a variable and its slots stand in a checkpoint of variables.

    Args:
        places: From `saved_places`.
        plan: The plan of the variable.
    """
    first, *slots = [places.get(name, SavedPlace(name, [0], plan.shape))
                     for name in [plan.name] + [slot.variable for slot in plan.slots]]
    return first, slots


def _convert(graph: tf.Graph, rows: Rows, fused: Dict[str, Set[str]],
             objects: Dict[str, Any], places: Dict[str, SavedPlace],
             cleared: Dict[str, tf.Operation], servers: Servers) -> ConvertedVariable:
    """Replaces the ops of a variable that are not fused yet."""
    plan, table = rows.plan, rows.table
    for step in () if plan.name in fused or plan.on_servers else plan.updates:
        rows.update(step)
    for name in plan.changes:
        change(rows, rows.op(name))
    of_slots = {slot.variable: SlotRows(rows, slot) for slot in plan.slots}
    for restore in map(rows.op, plan.slot_changes):
        change(of_slots[restore.inputs[0].op.name], restore)
    for pivot in map(rows.op, plan.pivots):
        replace_waiting(pivot, [gate_of(pivot.inputs[0])])
    for name in plan.shapes:
        rows.shape(rows.op(name))
    for name in plan.zeros:
        rows.shape(rows.op(name), 0)
    for name in plan.states:
        rows.state(rows.op(name))
    for lookup in () if plan.on_servers else plan.lookups:
        if lookup.node not in fused.get(plan.name, ()):
            rows.look_up(rows.op(lookup.node), lookup.trains)
    for penalty in plan.penalties:
        rows.penalize(penalty)
    rows.end()
    for read in map(rows.op, plan.reads):
        rows.read(read)
    if plan.table not in cleared:
        with graph.as_default(), graph.control_dependencies(None):
            cleared[plan.table] = clear_parts(table, servers) if plan.on_servers \
                else clear_op(table)
    clear = replace_initializers(rows, cleared[plan.table], objects, servers)
    made = ConvertedVariable(plan, table, *places_of(places, plan), rows.rules, clear, {})
    made.objects.update(forget_variables(
        graph, [plan.name] + [slot.variable for slot in plan.slots]))
    if not plan.ids.is_lifted:
        graph.add_to_collection(DESCRIBED, json.dumps(_described(made)))
    return made


def _described(one: ConvertedVariable) -> List[Dict[str, Any]]:
    """Returns what a manifest says of a variable that became a table (docs/checkpoint-format.md):
    an entry for it, and for each slot."""
    places = [(one.saved, "", 0.0)] + [
        (place, slot.name, slot.initial) for place, slot in zip(one.slots, one.plan.slots)]
    return [{
        "name": place.name, "whole": [place.whole] + one.plan.shape[1:], "first": place.first,
        "rows": one.plan.shape[0], "table": one.table.table_name, "key": one.plan.first,
        "slot": slot, "initial": initial} for place, slot, initial in places]


def make_table(plan: StockVariable, options: StockTables = StockTables(),
               servers: Sequence[str] = ()) -> Table:
    """Makes the table of a planned variable in the default graph, with a key for each row.

    Args:
        plan: The plan.
        options: Where its rows are, and how they round.
        servers: The devices of the parameter servers that hold it, if any.

    Returns:
        The table.

    Raises:
        ValueError: If a directory for rows on disk is none.
    """
    rows, dim = plan.rows, plan.dim
    if plan.ids.is_lifted:
        rows = MAX_VOCABULARY_SIZE if options.memory_rows else MAX_ROW_BUDGET
    on_disk = max(rows - options.memory_rows, 0) if options.memory_rows else 0
    directories = ssd_directories(options.ssd_data_path, bool(servers)) if on_disk else ()
    settings_of_table = TableOptions(
        table_name=plan.table, key_dtype=tf.int64, dim=dim, initializer=None,
        device_vocabulary_size=rows - on_disk, host_vocabulary_size=0,
        ssd_vocabulary_size=on_disk, ssd_data_path=directories, is_save=True, is_dp=False,
        init_param=1.0, all2all_gradients_op="sum_gradients", padding_keys=None,
        padding_keys_mask=False, padding_keys_len=None,
        row_storage=row_storage(plan.table, plan.row_dtype, plan.slot_dtype, options.row_rounding,
                                options.row_conversion),
        admission_sketch_bytes=0 if servers else sketch_of(options, plan.name))
    settings = Settings._single_instance  # pylint: disable=protected-access
    physical = build_physical_table(
        plan.table, settings_of_table, plan.initializer, table_seed(None, plan.table), rows,
        settings is not None and settings.is_incremental_checkpoint,
        servers, any_seed=True)  # type: PhysicalTable
    table = Table(settings_of_table, physical)
    table.ext_emb_size = dim * (1 + len(plan.slots))
    graph_state().tables[plan.table] = table
    return table
