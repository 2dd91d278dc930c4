"""The callers of graph modification: `modify_graph_and_start_emb_cache` and `GraphModifierHook`."""

import os
from typing import Any, Dict, List, Optional

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from mx_rec.base.log import logger
from mx_rec.cluster import modified as clusters
from mx_rec.cluster.around import is_training
from mx_rec.constants.constants import ASCEND_CUTTING_POINT_INITIALIZER
from mx_rec.core.admission import has_tables, settle_timestamp
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.edits.upstream import upstream
from mx_rec.graph.drawing import draw_dot
from mx_rec.graph.fuse import Fusing
from mx_rec.graph.iterators import nested_batch
from mx_rec.graph.plan import ADMIT, EVAL, ONE_SHOT, SPLIT, TRAIN, Plan, Record, make_plan
from mx_rec.graph.rewrite import Rewritten, rewrite
from mx_rec.graph.runs import has_run
from mx_rec.graph.sessions import adopt_initializers, start_iterators
from mx_rec.graph.together import take_apart
from mx_rec.graph.variables import convert_variables
from mx_rec.ops.lookups import may_move
from mx_rec.state.graph_state import GraphState, graph_state
from mx_rec.state.settings import Settings
from mx_rec.tensorflow.graph_def import serialized
from mx_rec.validator.validator import Bool, Type, checked

DUMP_DIRECTORY = "./export_graph"

_MODES = {TRAIN: True, ADMIT: True, EVAL: False}


@checked(full_graph=Type(tf.Graph, optional=True), dump_graph=Bool(), pull_ahead=Bool())
def modify_graph_and_start_emb_cache(full_graph: Optional[tf.Graph] = None,
                                     dump_graph: bool = False, *, pull_ahead: bool = False) -> None:
    """Moves the key work of lookups by tensor into the input pipelines, and closes the building.

    To be called in session mode, once the whole graph (gradients, evaluation) is there and before
    the first session runs it. The graph may be one that was imported (`import_meta_graph`,
    `import_graph_def`); of its batches `get_target_batch` then gives a flat tuple. Lookups whose
    ids cannot be computed in the input pipeline stay in the step and work as before; the log says
    why. Results do not change.

    Variables that `init(stock_tables=...)` chooses become tables at this call; without it they do
    before the first run.

    Args:
        full_graph: The graph; None is the present default graph.
        dump_graph: Whether the graph before and after, the plan and its drawing are written to
            `./export_graph`.
        pull_ahead: Whether the rows of training lookups of tables on parameter servers are pulled
            one step before the step that needs them, beside the work of that step: they are one
            update old, and so are results. It has no effect on tables of this process and on
            evaluation.

    Raises:
        ValueError: If an argument has a wrong type.
        RuntimeError: If the graph has no table, and `init(stock_tables=...)` was not asked to make
            some of its variables.
        NotImplementedError: If `pull_ahead` is set and the rows of a training lookup with gradients
            cannot be pulled ahead; the text names it and says why.
        EnvironmentError: If `init` was not called.
        OSError: If the dump cannot be written.
    """
    convert_variables(full_graph or tf.compat.v1.get_default_graph())
    run(full_graph, dump_graph, pull_ahead=pull_ahead)
    with (full_graph or tf.compat.v1.get_default_graph()).as_default():
        start_asc_pipeline()


@checked(full_graph=Type(tf.Graph, optional=True), dump_graph=Bool(), pull_ahead=Bool())
def run(full_graph: Optional[tf.Graph] = None, dump_graph: bool = False, *,
        pull_ahead: bool = False) -> None:
    """As `modify_graph_and_start_emb_cache`, but leaves the graph open for more tables.

    Args:
        full_graph: The graph; None is the present default graph.
        dump_graph: Whether the graphs, the plan and its drawing are written.
        pull_ahead: As for `modify_graph_and_start_emb_cache`.

    Raises:
        ValueError: If an argument has a wrong type.
        NotImplementedError: As of `modify_graph_and_start_emb_cache`.
        EnvironmentError: If `init` was not called.
        OSError: If the dump cannot be written.
    """
    config = Settings.get_instance()
    graph = full_graph or tf.compat.v1.get_default_graph()
    state = graph_state(graph)
    state.is_planned = True
    adopt_initializers(graph)
    if not any(may_move(op) for op in graph.get_operations()):
        if pull_ahead:
            clusters.check_ahead(graph, [])
        if state.started_by:
            logger.info("the graph was modified before: nothing to modify.")
        elif has_tables(graph) or config.stock_tables is None:
            logger.warning("the graph has no lookup with modify_graph=True: nothing to modify.")
        return
    if any(has_run(session) for session in state.sessions()):
        logger.warning("a session has run this graph already, and would not see a change: the "
                       "graph stays as it is. Modify it before the first session.run.")
        return
    settle_timestamp(graph)
    take_apart(graph.get_operations())
    before = serialized(graph)
    plan = make_plan(before, graph=graph)
    plan = plan._replace(lookups=[
        Record(lookup, table=clusters.table_of(graph, lookup)) if lookup.kind == SPLIT
        else lookup for lookup in plan.lookups])
    if pull_ahead:
        clusters.check_ahead(graph, [one for one in plan.lookups if one.kind == SPLIT])
    for lookup in plan.lookups:
        if not lookup.moves:
            logger.info("the lookup %s of the table %r stays in the step: %s", lookup.node,
                        lookup.table, lookup.reason)
    fusing = Fusing(graph, plan, before)
    fusing.join_pushes()
    by_mode = {True: [], False: []}  # type: Dict[bool, List[Any]]
    for number, iterator in enumerate(plan.iterators):
        lookups = [plan.lookups[position] for position in iterator.lookups]
        modes = {_is_training(graph, lookup) for lookup in lookups}
        steps = config.max_steps if modes == {True} and config.max_steps > 0 else -1
        requests = [one for one in plan.requests if one.iterator == number]
        rewritten = rewrite(graph, iterator, lookups, requests, steps, pull_ahead)
        for mode in modes:
            by_mode[mode].append((iterator.iterator, rewritten))
        _remember(state, graph, rewritten, iterator.kind == ONE_SHOT)
        config.train_params_config.iterator_type = graph.get_operation_by_name(
            iterator.iterator).type
        config.train_params_config.dataset_element_spec = state.element_specs.get(
            iterator.iterator)
    fusing.apply()
    state.passed = graph.version
    with graph.as_default(), graph.control_dependencies(None):
        for mode, found in by_mode.items():
            _set_mode(state, mode, found, by_mode[not mode])
        for mode, moved_there in by_mode.items():
            if not moved_there:
                _set_unmoved(state, graph, mode, [lookup.ids for lookup in plan.lookups
                                                  if _is_training(graph, lookup) == mode])
    moved = sum(lookup.moves for lookup in plan.lookups)
    logger.info("graph modification: %d of %d lookups moved into %d input pipelines.", moved,
                len(plan.lookups), len(plan.iterators))
    if dump_graph:
        _dump(graph_pb2.GraphDef.FromString(before), graph, plan)


class GraphModifierHook(tf.compat.v1.train.SessionRunHook):
    """Modifies the graph of an Estimator or a MonitoredSession before its session is made.

    Args:
        dump_graph: As for `modify_graph_and_start_emb_cache`.
        modify_graph: Whether to modify; False only closes the building of the graph.
        pull_ahead: As for `modify_graph_and_start_emb_cache`.

    Raises:
        ValueError: If an argument is not a bool, or if `pull_ahead` is set without `modify_graph`.
    """

    @checked(dump_graph=Bool(), modify_graph=Bool(), pull_ahead=Bool())
    def __init__(self, dump_graph: bool = False, modify_graph: bool = True, *,
                 pull_ahead: bool = False) -> None:
        super().__init__()
        if pull_ahead and not modify_graph:
            raise ValueError("'pull_ahead' needs 'modify_graph': requests are made in the input "
                             "pipeline of a modified graph")
        self._pull_ahead = pull_ahead
        self._dump_graph = dump_graph
        self._modify_graph = modify_graph

    def begin(self) -> None:
        """Modifies the default graph.

        Raises:
            RuntimeError: As of `modify_graph_and_start_emb_cache`.
            NotImplementedError: As of `modify_graph_and_start_emb_cache`.
            EnvironmentError: If `init` was not called.
            OSError: If the dump cannot be written.
        """
        if self._modify_graph:
            modify_graph_and_start_emb_cache(dump_graph=self._dump_graph,
                                             pull_ahead=self._pull_ahead)
        else:
            convert_variables(tf.compat.v1.get_default_graph())
            start_asc_pipeline()

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        """Starts the modified iterators that nobody else has started in this session.

        Args:
            session: The new session.
            coord: Its coordinator; unused.
        """
        del coord
        start_iterators(session)


def _is_training(graph: tf.Graph, lookup: Record) -> bool:
    """Whether a lookup is one of training."""
    if lookup.kind == SPLIT:
        return is_training(graph.get_operation_by_name(lookup.node))
    return _MODES[lookup.kind]


def _remember(state: GraphState, graph: tf.Graph, rewritten: Rewritten, is_one_shot: bool) -> None:
    state.started_by.extend(rewritten.initializers)
    if is_one_shot:
        state.started_first.extend(rewritten.initializers)
    for initializer in rewritten.initializers:
        graph.add_to_collection(ASCEND_CUTTING_POINT_INITIALIZER, initializer)


def _set_mode(state: GraphState, mode: bool, found: List[Any], others: List[Any]) -> None:
    """Stores what get_initializer and get_target_batch return for a mode with moved lookups."""
    if not found:
        return
    shared = [pair for pair in found if any(pair[0] == other[0] for other in others)]
    initializers = []
    for pair in found:
        own = pair[1].initializers
        # A reinitializable iterator: the first dataset is that of training. If both modes read
        # it, the second one is that of evaluation.
        initializers.append(own[-1] if pair in shared and not mode else own[0])
    state.initializers[mode] = initializers[0] if len(initializers) == 1 else tf.group(
        *initializers, name="mx_rec_pipeline/initializers")
    state.target_batches[mode] = nested_batch(state, found[0][0], found[0][1].components)


def _set_unmoved(state: GraphState, graph: tf.Graph, mode: bool, ids: List[str]) -> None:
    """The same for a mode whose lookups all stay, so that a script need not tell them apart."""
    for name in ids:
        above = upstream([graph.get_tensor_by_name(name)])
        get_next = next((op for op in above if op.type.startswith("IteratorGetNext")), None)
        if get_next is None:
            continue
        resource = get_next.inputs[0]
        initializers = [op for op in resource.consumers() if op.type == "MakeIterator"]
        state.initializers[mode] = initializers[0] if initializers else tf.no_op(
            name="mx_rec_pipeline/no_initializer")
        state.target_batches[mode] = nested_batch(state, resource.op.name, get_next.outputs)
        return


def _dump(before: Any, graph: tf.Graph, plan: Plan) -> None:
    os.makedirs(DUMP_DIRECTORY, exist_ok=True)
    tf.io.write_graph(before, DUMP_DIRECTORY, "old_graph.pbtxt")
    for number, iterator in enumerate(plan.iterators):
        tf.io.write_graph(iterator.graph, DUMP_DIRECTORY, "moved_graph_{}.pbtxt".format(number))
    tf.io.write_graph(graph, DUMP_DIRECTORY, "new_graph.pbtxt")
    for name, text in (("plan.txt", plan.text()), ("plan.dot", draw_dot(plan))):
        with open(os.path.join(DUMP_DIRECTORY, name), "w", encoding="utf-8") as file:
            file.write(text)
    logger.info("the graphs and the plan are in %s.", os.path.abspath(DUMP_DIRECTORY))
