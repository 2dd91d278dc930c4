"""Finds out which variables of a graph can become tables without changing what it computes.

It reads a GraphDef, and changes nothing: conversion (convert.py) and the command
`python -m mx_rec.graph` use the same plan. Everything that reads or writes a variable has to be
known; what is not known is the reason why a variable stays TensorFlow's.
"""

import re
from typing import Any, Dict, List, Optional, Set, Tuple

import tensorflow as tf

from mx_rec.constants.constants import MAX_EMBEDDING_SIZE, MAX_VOCABULARY_SIZE
from mx_rec.core.rows import FLOAT32
from mx_rec.ops.optimizers import optimizer_named
from mx_rec.stock import updates as forms
from mx_rec.stock.adam import adam_steps
from mx_rec.stock.dense_updates import SAME_AS_SPARSE, dense_updates
from mx_rec.stock.fused import gradients_of, pieces_of
from mx_rec.stock.id_limits import IdLimits, id_limits
from mx_rec.stock.nodes import VARIABLES, Nodes, Stays, shape_of
from mx_rec.stock.options import StockTables, dtypes_of, names_it, thresholds_of
from mx_rec.stock.parts import (Placement, SavedPlace, are_together, parts_of, placement_of,
                                with_parts)
from mx_rec.stock.patterns import Search, op
from mx_rec.stock.planned import Lookup, Slot, StockVariable, product, staying, table_name
from mx_rec.stock.uses import SUMMARIES, Uses, check_reads, check_snapshots, is_idle
from mx_rec.stock.values import Affine, affine_value, describe

# Begins the reason of a variable that another Saver would have made a table.
HAS_SAVER = "a Saver that cannot be built anew was made for it before"
_SEVERAL = "several optimizers update it"
_FUSED = " from the lookups' gradients"
_LAZY = {forms.ADAM: "; StockTables(lazy_adam=True) moves those of the batch"}
_OPTIMIZER_OP = re.compile(r"(Resource)?(Sparse)?Apply[A-Z]|(Resource)?Scatter(Sub|Add)$")


def plan_variables(graph_def: Any, options: StockTables, trains: bool,
                   known: Optional[Set[str]] = None, only_known: bool = False,
                   has_saver: bool = False,
                   dense: Optional[Set[str]] = None,
                   decides_ids: bool = True,
                   saved: Optional[Dict[str, SavedPlace]] = None,
                   was_run: bool = False) -> List[StockVariable]:
    """Decides about every variable of a graph that could be a table by its shape.

    Args:
        graph_def: The graph.
        options: Which variables are wanted.
        trains: Whether the graph trains: a variable without an update then stays TensorFlow's,
            because an optimizer may still come. Otherwise nothing updates tables.
        known: Names of the tables of a checkpoint; their variables convert whatever the options
            say, if they can.
        only_known: Whether all others stay, because the checkpoint has them as variables.
        has_saver: Whether a Saver may have been made for the variables: nothing is to be converted,
            but what a table would be is wanted.
        dense: Names of variables that a checkpoint has as such, whose ids stay what they are.
        decides_ids: Whether to say what becomes of the limits of ids.
        saved: Where variables stand in checkpoints, by the names of their ops; None if only their
            names tell which are parts of one.
        was_run: Whether a session has run the graph, which begins anew with the values of its
            variables.

    Returns:
        The variables that have two or more rows of floats, in the order of the graph, without
        those of optimizers that become slots.
    """
    nodes = Nodes(graph_def)
    found = [node for node in graph_def.node if node.op in VARIABLES and _is_candidate(node)]
    planned = []  # type: List[StockVariable]
    slots = set()  # type: Set[str]
    placement = placement_of([node for node in graph_def.node if node.op in VARIABLES],
                             options.servers)
    parts = parts_of({node.name: shape_of(node) for node in found}, saved)
    names = {node.name: table_name(node.name) for node in found}
    together = {name: part for name, part in parts.items()
                if are_together(part, known or set(), names, bool(placement.job))}
    known_parts = set(known or ()).union(
        names[name] for name, part in together.items()
        if part is not None and names[part.names[0]] in (known or ()))
    for node in found:
        shape = shape_of(node)
        try:
            _check_place(node, placement, node.name in parts and parts[node.name] is None)
            if only_known and not is_known(node.name, known_parts):
                raise Stays("the checkpoint has it as a variable")
            part = together.get(node.name)
            plan = _plan_variable(nodes, node, shape, options, trains, known_parts, has_saver,
                                  shape[0] if part is None else part.whole, was_run)
            _check_table(nodes, plan, bool(placement.job), part is not None, options)
            whole = node.name if part is None else part.names[0]
            plan = _with_dtypes(plan, *dtypes_of(options, whole))
            if placement.job:
                plan = _on_servers(plan)
            elif part is not None and plan.kind \
                    and optimizer_named(plan.kind).changes_all_rows:
                # Each part has its update, and the table would take each for a step of all rows.
                raise Stays("its optimizer ({}) changes all its rows in each step, which tables "
                            "that parts of a variable share do not{}".format(
                                plan.kind, _LAZY.get(plan.kind, "")))
            slots.update(slot.variable for slot in plan.slots)
        except Stays as why:
            plan = staying(node.name, shape, str(why))
        planned.append(plan)
    plans = with_parts(nodes, [plan for plan in planned if plan.name not in slots], parts, together,
                       {name for name in names if names[name] in known_parts})
    return _with_ids(nodes, plans, options, known or set(), dense or set(), only_known) \
        if decides_ids else plans


def _check_place(node: Any, placement: Placement, is_odd_part: bool) -> None:
    """Refuses variables whose tables would be where other tasks do not find them."""
    if placement.elsewhere:
        raise Stays("the graph has variables on {}, which other tasks share: a table would "
                    "belong to one process".format(placement.elsewhere))
    if placement.job and not placement.has(node.device):
        raise Stays("it is not on a parameter server, where others of the graph are: a table "
                    "would belong to one process")
    if placement.job and is_odd_part:
        raise Stays("its parts are not cut along the first dimension")


def _check_table(nodes: Nodes, plan: StockVariable, on_servers: bool, is_part: bool,
                 options: StockTables) -> None:
    """Refuses variables whose tables would be of a kind that cannot do what the graph does."""
    def counts() -> bool:
        return thresholds_of(options, plan.name)[0] >= 0

    if (on_servers or is_part) and counts():
        raise Stays("it has an access_threshold, " + (
            "which tables of unchanged models do not have on parameter servers" if on_servers
            else "and its parts share a table in the checkpoint"))
    if on_servers and (plan.penalties or any(step.decays for step in plan.updates)):
        raise Stays("a penalty on the rows of a batch is not there on parameter servers")
    if plan.is_in_branches and (on_servers or counts()):
        raise Stays("it is looked up inside of a branch, where tables do not {}".format(
            "ask parameter servers" if on_servers else "count keys"))
    if plan.sets_rows and (on_servers or is_part or counts()):
        raise Stays("its initial value ({}) cannot be drawn row by row{}".format(
            nodes.inputs[plan.assigns[0]][1][0], "" if on_servers or is_part
            else ", and keys with an access_threshold start with one"))
    if any(lookup.is_padded for lookup in plan.lookups) and (on_servers or counts()):
        raise Stays("{} reads zeros for its first row, which tables {} do not".format(
            plan.lookups[0].node, "on parameter servers" if on_servers
            else "with an access_threshold"))
    if len({step.kind for step in plan.updates}) > 1 and (on_servers or counts()):
        raise Stays(_SEVERAL)
    if on_servers and any(nodes.waiting.get(one) != nodes.waiting.get(plan.assigns[0])
                          for one in plan.assigns):
        raise Stays("an initializer sets it and not its optimizer's variables, or these alone, "
                    "which start together on parameter servers")
    if on_servers and plan.changes:
        raise Stays("{} sets rows of it, which tables on parameter servers do not know".format(
            plan.changes[0]))


def _with_dtypes(plan: StockVariable, row_dtype: str, slot_dtype: str) -> StockVariable:
    """Returns the plan of a variable whose table keeps its rows and slots as types say."""
    if row_dtype == FLOAT32:
        return plan
    reason = "{}, rows of {}".format(plan.reason, row_dtype)
    if slot_dtype != FLOAT32:
        reason += ", slots of {}".format(slot_dtype)
    return plan._replace(row_dtype=row_dtype, slot_dtype=slot_dtype, reason=reason)


def _on_servers(plan: StockVariable) -> StockVariable:
    """Returns the plan of a variable on parameter servers."""
    return plan._replace(on_servers=True, pieces=None, reason="{}, on parameter servers".format(
        plan.reason.replace(_FUSED, "")))


def is_known(variable: str, known: Set[str]) -> bool:
    """Returns whether a checkpoint's tables have that of a variable.

    Args:
        variable: Name of the variable's op.
        known: Names of the tables.
    """
    return table_name(variable) in known or table_name(variable, True) in known


def _with_ids(nodes: Nodes, plans: List[StockVariable], options: StockTables, known: Set[str],
              dense: Set[str], only_known: bool) -> List[StockVariable]:
    """Returns plans that say what becomes of the limits of ids."""
    asked = [plan for plan in plans if plan.converts and (
        table_name(plan.name, True) in known
        or (names_it(options.unlimited_ids, plan.name) and not only_known))]
    kept = {name: "the checkpoint has its rows by ids with limits"
            for name in dense if table_name(name, True) not in known}
    found = {}  # type: Dict[str, IdLimits]
    for plan in asked:
        if table_name(plan.name) in known:
            found[plan.name] = IdLimits(False, "the checkpoint has its rows by ids with limits")
        elif _is_read(nodes, plan):
            found[plan.name] = IdLimits(False, "it is also read as a whole")
        elif plan.on_servers and plan.reads:
            found[plan.name] = IdLimits(False, "a summary reads it as a whole, and its table is on "
                                               "parameter servers")
        elif plan.part is not None:
            found[plan.name] = IdLimits(False, "it is a part of a variable")
        elif plan.changes:
            found[plan.name] = IdLimits(False, "{} sets rows of it".format(plan.changes[0]))
        elif plan.sets_rows:
            found[plan.name] = IdLimits(False, "its initializer sets its rows")
    found.update(id_limits(nodes, [plan for plan in asked if plan.name not in found], kept))
    return [with_ids(plan, found[plan.name]) if plan.name in found else plan for plan in plans]


def _is_read(nodes: Nodes, plan: StockVariable) -> bool:
    """Whether something other than a summary may read a variable as a whole."""
    for name in plan.reads:
        last = [one for one in nodes.downstream([nodes.by_name[name]]).values()
                if not nodes.all_uses(one)]
        if any(one.op not in SUMMARIES and not is_idle(one) for one in last):
            return True
    return False


def with_ids(plan: StockVariable, ids: IdLimits) -> StockVariable:
    """Returns a plan that says what becomes of the limits of its ids."""
    if ids.is_lifted:
        plan = plan._replace(table=table_name(plan.name, True))
    return plan._replace(ids=ids, reason="{}; ids {}: {}".format(
        plan.reason, "without a limit" if ids.is_lifted else "keep their limits", ids.text))


def _is_candidate(node: Any) -> bool:
    """Whether a variable has rows of floats."""
    shape = shape_of(node)
    return shape is not None and len(shape) >= 1 and shape[0] >= 2 and \
        node.attr["dtype"].type == tf.float32.as_datatype_enum


def _plan_variable(nodes: Nodes, node: Any, shape: List[int], options: StockTables, trains: bool,
                   known: Set[str], has_saver: bool, rows: int, was_run: bool) -> StockVariable:
    dense = dense_updates(nodes, node, options, trains)
    uses = Uses(nodes, node, adam_steps(nodes, node, options.lazy_adam), dense, was_run)
    if not uses.gathers and not uses.enters:
        raise Stays("nothing gathers rows of it{}".format(
            ", but {} reads it as a whole".format(uses.whole[0].name) if uses.whole else ""))
    if not is_known(node.name, known):
        if not names_it(options.names, node.name):
            raise Stays("no name of stock_tables matches it")
        if rows < options.least_rows:
            raise Stays("it has {} rows, fewer than {}".format(rows, options.least_rows))
    if uses.padded and len(uses.padded) < len(uses.gathers):
        raise Stays("{} reads zeros for its first row, and {} the row".format(
            uses.padded[0].name, next(one.name for one in uses.gathers if one not in uses.padded)))
    if any({one.is_padded for one in step.slices} != {bool(uses.padded)} for step in uses.steps()
           if step.slices or uses.padded):
        raise Stays("{} reads zeros for its first row, and its gradient has that row".format(
            uses.padded[0].name) if uses.padded else "its gradient leaves its first row out")
    dim = product(shape[1:])
    if not 1 <= dim <= MAX_EMBEDDING_SIZE:
        raise Stays("a row has {} floats, and those of tables 1 to {}".format(
            dim, MAX_EMBEDDING_SIZE))
    if rows > MAX_VOCABULARY_SIZE:
        raise Stays("it has more than {} rows".format(MAX_VOCABULARY_SIZE))
    if uses.savers and not has_saver:
        raise Stays("{} ({})".format(HAS_SAVER, uses.savers[0].name))
    if trains:
        check_reads(uses)
    for node in uses.enters:
        raise Stays("it is used inside of a branch or loop, by {} ({})".format(node.name, node.op))
    initial = _initial_value(uses)
    initializer = describe(initial or Affine(None, 0.0, 0.0))
    if initializer is None:
        raise Stays("its initial value has no finite numbers")
    kind, slots, slot_assigns = _plan_updates(uses, shape, has_saver)
    check_snapshots(uses)
    if uses.zeros and kind not in SAME_AS_SPARSE and not (
            kind == forms.LAZY_ADAM and all(step.moves_all for step in uses.steps())):
        raise Stays("where a branch is not taken that looks it up, all of its rows have a gradient "
                    "of zeros ({}), and {} changes such rows".format(uses.zeros[0].name, kind))
    changes = [one.name for one in uses.changes]
    assigns = [one.name for one in uses.assigns]
    if was_run:
        assigns, changes = [], assigns + changes
    assigns += slot_assigns
    assigns = [one for one in assigns if one not in [slot.start for slot in slots]]
    if trains and not kind and not is_known(node.name, known):
        raise Stays("nothing updates it in this graph")
    steps = uses.steps()
    behind = nodes.needed([name for step in steps for name in step.ops],
                          [gather.name for gather in uses.gathers])
    pieces = pieces_of(nodes, steps[0], uses.gathers) \
        if len(steps) == 1 and not steps[0].decays else None
    gradients = gradients_of(
        nodes, steps[0], [gather for gather in uses.gathers if gather.name in behind]) \
        if len(steps) == 1 else None
    # An update that takes the same for all rows does not depend on them, and still makes them.
    behind.update(piece.gather for piece in pieces or ())
    lookups = [Lookup(gather.name, gather.name in behind, bool(uses.padded))
               for gather in uses.gathers]
    return StockVariable(
        name=node.name, shape=list(shape), converts=True, reason=_summary(
            uses, kind, initializer["kind"] if initial else "its initializer, which sets all",
            bool(pieces)),
        table=table_name(node.name), initializer=initializer, lookups=lookups,
        reads=[read.name for read in uses.reads], shapes=[one.name for one in uses.shapes],
        states=[one.name for one in uses.states],
        updates=steps, kind=kind, slots=slots,
        assigns=assigns, pieces=pieces,
        gradients=gradients, penalties=dense.penalties,
        changes=changes, slot_changes=[one.name for one in uses.slot_changes],
        is_in_branches=uses.is_in_branches,
        pivots=[one.name for one in uses.pivots], zeros=[one.name for one in uses.zeros],
        sets_rows=initial is None and not was_run, was_run=was_run)


def _initial_value(uses: Uses) -> Optional[Affine]:
    """Returns the distribution of a variable's initial value, None if it is set as a whole.

    What assigns the variable besides, for nobody else, is what scripts set it with.
    """
    if uses.starts:
        # The last one is the variable's initializer, and the one that it was made with is not.
        uses.changes = uses.changes + [one for one in uses.assigns if one is not uses.starts[-1]]
        uses.assigns = uses.starts[-1:]
    first = [one for one in uses.assigns if one.name == uses.variable.name + "/Assign"]
    others = [one for one in uses.assigns if one not in first]
    if len(first) == 1 and not any(uses.nodes.all_uses(one) for one in others):
        uses.assigns, uses.changes = first, uses.changes + others
    if len(uses.assigns) != 1:
        raise Stays("it is assigned by {} ops".format(len(uses.assigns)) if uses.assigns else
                    "it has no initializer")
    return affine_value(uses.nodes, *uses.nodes.inputs[uses.assigns[0].name][1],
                        shape=shape_of(uses.variable))


def _plan_updates(uses: Uses, shape: List[int],
                  has_saver: bool) -> Tuple[str, List[Slot], List[str]]:
    """Returns the kind of a variable's updates, its slots, and the slots' initializers."""
    for update, position in uses.updates:
        form = forms.form_of(update.op)
        assert form is not None
        if position != 0:
            raise Stays("it is a variable of an optimizer")
        if form.sums and _is_scalar(uses.nodes.source(update.name, form.grad)[0]):
            raise Stays("{} adds one number to whole rows".format(update.name))
        if forms.has_wrong_attribute(form, update):
            raise Stays("{} has {}, which tables do not".format(
                update.name, forms.has_wrong_attribute(form, update)))
        if uses.nodes.all_uses(update):
            raise Stays("the result of the update {} is used".format(update.name))
    steps = uses.steps()
    for step in steps:
        if not step.sums and not Search(uses.nodes).fits(step.indices, op("Unique UniqueV2")):
            raise Stays("the rows of the update {} may repeat, and TensorFlow would update each "
                        "of them several times".format(step.ops[0]))
    if not steps:
        return "", [], []
    optimizers = {(step.kind, step.slots) for step in steps}
    others = {one for one in optimizers if one[0] != forms.ADD}
    if len(others) == 1 and not any(optimizer_named(kind).changes_all_rows for kind, _ in others):
        # Sums with rows, such as their decay before an update, leave slots what they are.
        optimizers = others
    if len(optimizers) > 1:
        raise Stays(_SEVERAL)
    (kind, variables), = optimizers
    if len(set(variables)) != len(variables):
        raise Stays("its optimizer uses one variable twice")
    slots, assigns = [], []
    for variable, of_engine in zip(variables, optimizer_named(kind).slots):
        slot, made_by = _plan_slot(uses, variable, of_engine.name, shape, has_saver)
        if not of_engine.may_start_at(slot.initial):
            raise Stays("its optimizer's variable {} starts at {}".format(variable, slot.initial))
        slots.append(slot)
        assigns.extend(made_by)
    return kind, slots, assigns


def _is_scalar(node: Any) -> bool:
    """Whether a node is a constant of no dimension."""
    return node is not None and node.op == "Const" and \
        not node.attr["value"].tensor.tensor_shape.dim


def _plan_slot(uses: Uses, variable: str, name: str, shape: List[int],
               has_saver: bool) -> Tuple[Slot, List[str]]:
    """Returns the slot that an optimizer's variable becomes."""
    node = uses.nodes.by_name.get(variable)
    if node is None or node.op not in VARIABLES or shape_of(node) != shape \
            or node.attr["dtype"].type != tf.float32.as_datatype_enum:
        raise Stays("the optimizer's {} is no variable of its shape".format(variable))
    updates = {update.name for update, _ in uses.updates}
    try:
        own = Uses(uses.nodes, node, uses.adam, uses.dense, uses.was_run)
        if own.gathers or own.reads or own.shapes or own.enters:
            raise Stays("something else reads it")
        if own.savers and not has_saver:
            raise Stays(HAS_SAVER)
        if any(update.name not in updates for update, _ in own.updates):
            raise Stays("it belongs to another variable, too")
        # Beside the initializer that it was made with, which a start of a checkpoint leaves there.
        others = list(own.changes)
        initial = _initial_value(own)
        start = ""
        if uses.starts and own.starts and not uses.was_run:
            # The initializer that it was made with says what slots of new rows are.
            start = own.assigns[0].name
            initial = _constant_of(uses.nodes, variable + "/Assign")
        if initial is None or initial.kind is not None:
            raise Stays("it does not start as a constant")
        if (others if start else own.changes) and not uses.was_run:
            raise Stays("something else sets it")
        uses.slot_changes.extend(own.assigns * (uses.was_run or bool(start)) + own.changes)
        uses.states.extend(own.states)
    except Stays as why:
        raise Stays("its optimizer's variable {} cannot be a slot: {}".format(variable, why))
    return Slot(variable, name, initial.shift, start), [
        one.name for one in own.assigns if not uses.was_run]


def _constant_of(nodes: Nodes, assign: str) -> Optional[Affine]:
    """Returns what an op of a name sets, None if there is none or it is no constant."""
    return affine_value(nodes, *nodes.inputs[assign][1]) if assign in nodes.by_name else None


def _summary(uses: Uses, kind: str, start: str, is_fused: bool) -> str:
    parts = ["{} gather{}".format(len(uses.gathers), "" if len(uses.gathers) == 1 else "s")]
    parts.append("updated by {}".format(kind) if kind else "not updated")
    if any(step.moves_all for step in uses.steps()):
        parts[1] += " in the place of AdamOptimizer, as lazy_adam asks: rows outside of a batch " \
                    "stay as they are,"
    parts.append("new rows by {}".format(start))
    if is_fused:
        parts[1] += _FUSED
    if uses.changes:
        parts.append("rows set by {}".format(" and ".join(one.name for one in uses.changes)))
    if uses.dense.decays or uses.dense.penalties:
        parts.append("its penalty is that of the rows of a batch, as l2 asks: rows outside of it "
                     "have none")
    if uses.padded:
        parts.append("row 0 reads as zeros")
    elif uses.reads:
        parts.append("read as a whole {} time{}".format(
            len(uses.reads), "" if len(uses.reads) == 1 else "s"))
    return ", ".join(parts)


def is_update(kind: str) -> bool:
    """Returns whether ops of a type are those of optimizers."""
    return _OPTIMIZER_OP.match(kind) is not None


def is_training(graph_def: Any) -> bool:
    """Returns whether a graph has an op of an optimizer: it was made to train."""
    return any(is_update(node.op) for node in graph_def.node)
