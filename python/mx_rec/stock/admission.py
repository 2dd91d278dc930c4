"""Admission and eviction of the tables of unchanged models: what is counted, and by which clock."""

import itertools
from typing import (AbstractSet, Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional,
                    Sequence, Tuple)

import tensorflow as tf

from mx_rec.base.log import logger
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.parts import directories_of
from mx_rec.core.admission import Counted, admission_of, count_and_admit
from mx_rec.core.table import Table
from mx_rec.edits.upstream import upstream
from mx_rec.edits.wiring import depends
from mx_rec.ops import library
from mx_rec.ops.lookups import mark_movable
from mx_rec.state.graph_state import graph_state
from mx_rec.state.settings import Settings
from mx_rec.stock.planned import StockVariable
from mx_rec.stock.options import STEPS, StockTables, thresholds_of

# The attribute of a graph that holds the time of a step.
_CLOCK = "_mx_rec_stock_clock"

# Times of steps lie below it, and times in seconds since 1970 above.
_FIRST_SECOND = 10 ** 9

# Ops that give the ids that they take, in their order.
_SAME_IDS = ("Identity", "Reshape", "Cast")

# Ops that make them distinct.
_DISTINCT = ("Unique", "UniqueV2")

# Ops that make one id of each, by one number.
_EACH_ID = ("Add", "AddV2", "FloorDiv", "FloorMod", "Sub")


class SavedHistory(NamedTuple):
    """The admission history that a checkpoint has of a table.

    Attributes:
        access: The access threshold.
        latest: The greatest time of a batch, 0 for none.
    """

    access: int
    latest: int


class RowRules(NamedTuple):
    """When the keys of a table get rows and lose them.

    Attributes:
        access: Occurrences from which on a key gets a row, -1: every key gets one.
        eviction: After which time without an occurrence it may lose the row, -1: never.
        refuses: Whether a key without a row may be one that training refuses: its vector is zeros
            then, in the place of its initial row.
        clock: The time of a step, int64 scalar; None without eviction.
    """

    access: int = -1
    eviction: int = -1
    refuses: bool = False
    clock: Optional[tf.Tensor] = None

    @property
    def counts(self) -> bool:
        """Whether training lookups count keys."""
        return self.access >= 0

    @property
    def is_by_steps(self) -> bool:
        """Whether the clock is the global step."""
        return self.clock is not None and self.clock.op.inputs[0].op.type != "Timestamp"

    def text(self, unit: str) -> str:
        """Returns what the log says of them, "" of none."""
        if not self.counts:
            return ""
        text = ", keys get rows from occurrence {} on".format(max(self.access, 1))
        return text if self.eviction < 0 else "{} and lose them after {} {}".format(
            text, self.eviction, unit)


def rules_of(graph: tf.Graph, plans: Sequence[StockVariable], options: StockTables, trains: bool,
             histories: Optional[Dict[str, SavedHistory]]) -> Dict[str, RowRules]:
    """Decides about the rows of variables that become tables.

    Args:
        graph: The graph.
        plans: The plan.
        options: The settings.
        trains: Whether the graph trains. Otherwise it goes by the checkpoint, if that is known.
        histories: The histories of the checkpoint that the graph restores by the names of the
            tables, None if it is not known.

    Returns:
        The rules by the name of the variable.

    Raises:
        ValueError: If a variable has an eviction threshold and no access threshold, tables with
            dynamic expansion would evict, there is no global step to count, or the checkpoint has
            times of another kind.
    """
    rules = {plan.name: _rules(plan, options, trains, histories)
             for plan in plans if plan.converts}
    evicting = [plan for plan in plans if plan.converts and rules[plan.name].eviction >= 0]
    if not evicting:
        return rules
    settings = Settings._single_instance  # pylint: disable=protected-access
    if settings is not None and settings.use_dynamic_expansion:
        raise ValueError(
            "'eviction_threshold' of stock_tables is not possible with dynamic expansion (variable "
            "{!r}): use init without use_dynamic_expansion.".format(evicting[0].name))
    for plan in evicting:
        latest = (histories or {}).get(plan.table, SavedHistory(0, 0)).latest
        in_steps = options.eviction_unit == STEPS
        if latest and (latest < _FIRST_SECOND) != in_steps:
            raise ValueError(
                "'eviction_unit' of stock_tables is {!r}, and the checkpoint has times of the "
                "table {!r} (variable {!r}) in {}: the latest is {}.".format(
                    options.eviction_unit, plan.table, plan.name,
                    "steps" if latest < _FIRST_SECOND else "seconds", latest))
    clock = _clock(graph, options.eviction_unit)
    return {name: one._replace(clock=clock) if one.eviction >= 0 else one
            for name, one in rules.items()}


def _rules(plan: StockVariable, options: StockTables, trains: bool,
           histories: Optional[Dict[str, SavedHistory]]) -> RowRules:
    access, eviction = thresholds_of(options, plan.name)
    saved = (histories or {}).get(plan.table)
    if not trains and histories is not None:
        # What the training that saved it gave such keys.
        return RowRules(refuses=saved is not None and saved.access > 1)
    if access < 0 and saved is not None:
        access = max(saved.access, 1)
        logger.warning(
            "the table %s goes on with the access_threshold %d of the checkpoint, since "
            "stock_tables has none for the variable %s; with 1 every key gets a row.",
            plan.table, access, plan.name)
    in_force = saved.access if access == 0 and saved is not None else access
    return RowRules(access, eviction, in_force > 1)


def _clock(graph: tf.Graph, unit: str) -> tf.Tensor:
    """Returns the time of a step in a graph, the same op for all of its tables."""
    found = getattr(graph, _CLOCK, None)
    if found is not None:
        return found
    with graph.as_default(), tf.init_scope(), tf.device("/cpu:0"), \
            tf.compat.v1.name_scope("mx_rec_clock/"):
        if unit == STEPS:
            step = tf.compat.v1.train.get_global_step(graph)
            if step is None:
                raise ValueError(
                    "'eviction_unit' of stock_tables is 'steps', but the graph has no global step: "
                    "give minimize() one, tf.compat.v1.train.get_or_create_global_step().")
            # The first time is 1: 0 is none.
            found = tf.cast(step.read_value(), tf.int64) + 1
        else:
            found = tf.cast(tf.timestamp(), tf.int64)
    setattr(graph, _CLOCK, found)
    return found


def started_clock(graph: tf.Graph) -> Callable[[RowRules], RowRules]:
    """Returns what gives rules the time that an initializer has: before the global step is there.

    Args:
        graph: The graph.
    """
    step = tf.compat.v1.train.get_global_step(graph)

    def at_start(rules: RowRules) -> RowRules:
        if step is None or not rules.is_by_steps:
            return rules
        return rules._replace(clock=tf.cast(step.initial_value, tf.int64) + 1)

    return at_start


def difference(rules: RowRules, saved: SavedHistory) -> str:
    """Returns why a graph would give keys of a checkpoint other rows than the training that saved
    it, "" if it would not.

    Args:
        rules: Those of the graph, which was converted without the checkpoint, maybe.
        saved: What the checkpoint has of the table.
    """
    if saved.access > 1 and not rules.refuses and rules.access != 1:
        return "it has an access_threshold of {} there, and {} in the graph: set the number (1 " \
            "gives every key a row)".format(
                saved.access, rules.access if rules.counts else "none")
    if rules.eviction >= 0 and saved.latest and (
            saved.latest < _FIRST_SECOND) != rules.is_by_steps:
        return "its times are {} there, of which the latest is {}, and {} in the graph: set " \
            "the eviction_unit".format(*(
                ("seconds", saved.latest, "steps") if rules.is_by_steps
                else ("steps", saved.latest, "seconds")))
    return ""


def history_of(path: str) -> Optional[SavedHistory]:
    """Returns the admission history of a saved table, None if it has none.

    Args:
        path: The table's directory.
    """
    try:
        history = tables.describe(path)["history"]
    except tables.TableError:
        # A load says what is wrong.
        return None
    return None if history is None else SavedHistory(history["access"], history["latest"])


def check_admission(converted: Sequence[Any], directory: str, checkpoint: str) -> None:
    """Compares the rules of tables with those of the training that saved a checkpoint.

    An Estimator's training goes by the checkpoint. A session's graph was made before it was known:
    another training is an error then, and of a graph that does not train the log warns.

    Args:
        converted: The variables that became tables (stock.convert.ConvertedVariable).
        directory: The checkpoint's directory of tables, which need not exist.
        checkpoint: Prefix of the checkpoint.

    Raises:
        tf.errors.InvalidArgumentError: If training would give keys other rows.
    """
    for one in converted:
        for path in directories_of(directory, one.table.table_name):
            history = history_of(path)
            text = "" if history is None else difference(one.rules, history)
            if not text:
                continue
            text = "the table {!r} (variable {!r}) of {}: {}.".format(
                one.table.table_name, one.plan.name, checkpoint, text)
            if one.plan.updates:
                raise tf.errors.InvalidArgumentError(
                    None, None, "training cannot go on with {} It is a setting of "
                    "StockTables.".format(text))
            logger.warning("keys may have other rows than those of %s", text)


def _observe(table: Table, rules: RowRules, ids: tf.Tensor, weight: int) -> Any:
    """Adds the op that counts ids, `weight` for each occurrence."""
    time = tf.zeros([0], tf.int64) if rules.clock is None else rules.clock
    # Also where no lookup counts, since gradients are of other runs, keys are evicted.
    admission_of(table, (rules.access, rules.eviction), time)
    return library().mx_rec_observe(
        table.handle, ids, tf.constant(weight, tf.int32, name="weight"), time,
        access_threshold=rules.access, eviction_threshold=rules.eviction, name="count")


def admit(table: Table, rules: RowRules, ids: tf.Tensor, counted: tf.Tensor,
          replaced: Sequence[tf.Operation], apart: AbstractSet[tf.Operation]
          ) -> Tuple[tf.Tensor, tf.Tensor]:
    """Adds the ops that count the keys of a training lookup and give them rows.

    Args:
        table: The table.
        rules: Its rules.
        ids: The ids of the lookup.
        counted: What is counted: ids with all of their occurrences.
        replaced: The ops in whose place the lookup and others will stand.
        apart: The ops that count for lookups of the table which runs without this one may need.

    Returns:
        offsets and their inverse index in the shape of ids, -1 for keys without a row.
    """
    waits = []  # type: List[tf.Operation]
    if counted is not ids:
        with tf.control_dependencies([ids]):
            waits = [_observe(table, rules, counted, 1).keys.op]
    known = graph_state().admissions.get(table.physical_name)
    others = []  # type: List[Counted]
    if known is not None:
        # Lookups whose ids will depend on the result of this one count after it.
        others = [one for one in known.lookups
                  if one.observe in apart or depends([one.observe], set(replaced))]
        known.lookups[:] = [one for one in known.lookups if one not in others]
    with tf.control_dependencies(waits):
        offsets, inverse = count_and_admit(
            table, ids, (rules.access, rules.eviction), 0 if waits else 1, rules.clock, 0)
    if others:
        graph_state().admissions[table.physical_name].lookups.extend(others)
    if not waits:
        mark_movable(offsets.op.inputs[1].op, True)
    table.thresholds[True] = (rules.access, rules.eviction)
    return offsets, inverse


def admitted(table: Table, rules: RowRules, ids: tf.Tensor, counted: Sequence[tf.Tensor]
             ) -> Tuple[tf.Tensor, tf.Tensor]:
    """Adds the ops that find the rows of ids for an update.

    Args:
        table: The table.
        rules: Its rules.
        ids: The ids.
        counted: Ids with all of their occurrences that are to be counted, since no lookup does.

    Returns:
        offsets and their inverse index, as `admit` does. The op that reads the counts is the one
        that makes the second input of theirs.
    """
    with tf.control_dependencies([ids]):
        waits = [_observe(table, rules, one, 1).keys.op for one in counted]
    with tf.control_dependencies(waits):
        keys, places = _observe(table, rules, ids, 0)
    return library().mx_rec_admit(table.handle, keys, places, limit=0, name="admitted")


def count_before(counting: Sequence[tf.Operation], read: tf.Operation) -> None:
    """Makes an update that looks keys up again wait for what its lookups count.

    Args:
        counting: The ops that count for them.
        read: The op of the update that reads counts.
    """
    # pylint: disable=protected-access
    for one in counting:
        if one._get_control_flow_context() is read._get_control_flow_context() \
                and not depends([one], {read}):
            read._add_control_input(one)


def users_of(graph: tf.Graph, plan: StockVariable) -> Dict[str, FrozenSet[str]]:
    """Returns which updates need each training lookup of a variable, before ops are replaced.

    Lookups that the same updates need run in the same steps, and count together. An update that
    needs no row, since its gradient is the same for all, needs the lookups of its ids.

    Args:
        graph: The graph.
        plan: The plan of the variable.

    Returns:
        The first ops of updates by the names of gathers.
    """
    lookups = [one.node for one in plan.lookups if one.trains]
    steps = [step.ops[0] for step in plan.updates]
    if len(steps) == 1:
        return dict.fromkeys(lookups, frozenset(steps))
    op = graph.get_operation_by_name
    needed = {name: frozenset(step.ops[0] for step in plan.updates
                              if depends([op(one) for one in step.ops], {op(name)}))
              for name in lookups}
    return {name: found or frozenset(
        step.ops[0] for step in plan.updates
        if depends([op(indices[0]) for _, indices in step.parts], {op(name).inputs[1].op}))
            for name, found in needed.items()}


def count_as_admitted(table: Table, rules: RowRules, ids: tf.Tensor) -> tf.Operation:
    """Adds the op that counts ids so often that training admits them."""
    return _observe(table, rules, ids, max(rules.access, 1)).keys.op


def _has_same_ids(op: tf.Operation) -> bool:
    """Whether an op gives the ids that it takes, in their order."""
    return op.type in _SAME_IDS and op.inputs[0].dtype in (tf.int32, tf.int64)


def _of_part(ids: tf.Tensor, has_fills: bool) -> Optional[tf.Tensor]:
    """Returns the ids of one part of a partitioned variable with all of their occurrences.

    Args:
        ids: What TensorFlow's partition of distinct ids gives to the part.
        has_fills: As of `occurrences`.

    Returns:
        The ids; None if the ids that were partitioned are not distinct ones.
    """
    partition, tensor = ids.op, ids.op.inputs[0]
    while tensor.op.type not in _DISTINCT:
        op = tensor.op
        if op.type in _EACH_ID and op.inputs[1].shape.rank == 0:
            tensor = op.inputs[0]
        elif op.type in ("Select", "SelectV2") and tensor.shape.rank == 1:
            tensor = op.inputs[1]
        elif tensor.shape.rank == 1 and _has_same_ids(op):
            tensor = op.inputs[0]
        else:
            return None
    if tensor.value_index != 0:
        return None
    distinct, places = tensor, tensor.op.outputs[1]
    is_id = tf.ones_like(places)
    all_ids = tensor.op.inputs[0]
    while _has_same_ids(all_ids.op):
        all_ids = all_ids.op.inputs[0]
    if all_ids.op.type == "SparseFillEmptyRows" and all_ids.value_index == 1 and not has_fills:
        indices, _, is_empty, _ = all_ids.op.outputs
        is_id = tf.cast(tf.logical_not(tf.gather(is_empty, indices[:, 0])), is_id.dtype)
    counts = tf.math.unsorted_segment_sum(is_id, places, tf.size(distinct))
    of_part = tf.dynamic_partition(counts, partition.inputs[1], partition.get_attr(
        "num_partitions"))[ids.value_index]
    return tf.repeat(ids, of_part)


def _sources(ids: tf.Tensor) -> List[tf.Tensor]:
    """Returns the tensors whose elements, all of them, are ids."""
    op = ids.op
    if op.type in ("ConcatV2", "Pack"):
        inputs = op.inputs[:op.get_attr("N")]
    elif _has_same_ids(op) or op.type in _DISTINCT and ids.value_index == 0:
        inputs = op.inputs[:1]
    else:
        return [ids]
    return [source for one in inputs for source in _sources(one)]


def uncounted(ids: tf.Tensor, gathers: Sequence[tf.Operation]) -> List[tf.Tensor]:
    """Returns the ids of an update that come from none of the lookups that count.

    Args:
        ids: The ids.
        gathers: The gathers of these lookups.

    Returns:
        Tensors of ids, with all of their occurrences.
    """
    known = [source for op in gathers for source in _sources(op.inputs[1])]
    return [one for one in _sources(ids) if not _is_computed_from(one, known)]


def _is_computed_from(tensor: tf.Tensor, sources: Sequence[tf.Tensor]) -> bool:
    """Returns whether a tensor is one of others or computed from one: other outputs of the same op,
    such as the rest of a batch, do not count."""
    taken = (one for op in upstream([tensor]) for one in op.inputs)
    return any(one is source for one in itertools.chain([tensor], taken) for source in sources)


def occurrences(ids: tf.Tensor, has_fills: bool) -> tf.Tensor:
    """Returns the ids that TensorFlow has made distinct before a gather.

    Args:
        ids: The ids of the gather.
        has_fills: Whether to count the ids that TensorFlow puts into rows of sparse ids without
            one, too.

    Returns:
        The ids with all of their occurrences, in any shape; `ids` itself if these are all.
    """
    found, tensor = ids, ids
    while True:
        op = tensor.op
        if op.type == "DynamicPartition":
            counted = _of_part(tensor, has_fills)
            return found if counted is None else counted
        if op.type in _DISTINCT and tensor.value_index == 0:
            tensor = found = op.inputs[0]
        elif op.type == "SparseFillEmptyRows" and tensor.value_index == 1 and not has_fills:
            tensor = found = op.inputs[1]
        elif _has_same_ids(op):
            tensor = op.inputs[0]
        else:
            return found
