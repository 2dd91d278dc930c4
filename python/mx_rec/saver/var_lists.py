"""Which tables a tf.train.Saver is for, by its var_list; and Savers made before there were tables.

Variables of an unchanged model become tables when the graph is complete. A Saver that was made for
them before is then built anew, in place: whoever holds it saves and restores the tables.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import tensorflow as tf

from mx_rec.checkpoint.nothing import Nothing
from mx_rec.checkpoint.table_ops import TableOps, distinct, table_ops
from mx_rec.edits.replacing import extensible
from mx_rec.graph.variables import convert_before_run
from mx_rec.state.graph_state import graph_state, outermost_graph, remember_session
from mx_rec.state.table_variable import is_table_variable
from mx_rec.stock.analysis import VARIABLES
from mx_rec.stock.convert import converted
from mx_rec.tensorflow.names import variables

# Attributes of a Saver: the names of its tables' ops, None where it has all of a graph; whether it
# has no variable, but the marker of a checkpoint of tables alone; whether it was given a var_list;
# and the names of its variables, None where it has all of a graph.
_TABLES = "_mx_rec_tables"
_MARKED = "_mx_rec_marked"
_EXPLICIT = "_mx_rec_explicit"
_VARIABLES = "_mx_rec_variables"
MARKER = "mx_rec_tables"


def patched_init(stock: Callable[..., None], self: Any, var_list: Any = None, *args: Any,
                 **kwargs: Any) -> None:
    """tf.train.Saver.__init__, which takes tables out of var_list."""
    setattr(self, _VARIABLES, _names_of(var_list))
    dense, tables = _split(var_list)
    setattr(self, _TABLES, tables)
    setattr(self, _EXPLICIT, var_list is not None)
    if not tf.executing_eagerly() and _has_tables():
        # A SavedModel of tables alone comes with an empty list and allow_empty.
        if not dense and (tables is not None or
                          (var_list is not None and kwargs.get("allow_empty"))):
            dense = [Nothing(MARKER)]
        elif var_list is None and "saver_def" not in kwargs and \
                not variables._all_saveable_objects():  # pylint: disable=protected-access
            if not kwargs.get("defer_build"):
                dense = [Nothing(MARKER)]
    setattr(self, _MARKED, isinstance(dense, list) and len(dense) == 1
            and isinstance(dense[0], Nothing))
    stock(self, dense, *args, **kwargs)


def patched_build(stock: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """tf.train.Saver._build, which notes the ops of the Saver."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or outermost_graph(graph) is not graph \
            or graph_state(graph).is_settled:
        stock(self, *args, **kwargs)
        if graph is not None:
            graph_state(graph).saved_since = True
        return
    first = len(graph.get_operations())
    stock(self, *args, **kwargs)
    operations = graph.get_operations()[first:]
    savers = graph_state(graph).savers
    # A Saver that is built already makes no op.
    if all(known.saver is not self for known in savers):
        savers.append(KnownSaver(self, operations))


class KnownSaver:
    """A tf.train.Saver that was made before it was settled which variables become tables.

    Attributes:
        saver: The Saver.
        operations: The ops that it made, in the order of the graph; none if its ops were there, and
            it was made from a description of them.
        variables: The names of the variables' ops that these take.
    """

    def __init__(self, saver: Any, operations: List[tf.Operation]) -> None:
        self.saver = saver
        self.operations = operations
        self.variables = {tensor.op.name for op in operations for tensor in op.inputs
                          if tensor.op.type in VARIABLES}

    def named(self) -> Set[str]:
        """Returns the names of the ops by which the Saver is run."""
        found = self.saver.saver_def
        return set() if found is None else {name.partition(":")[0] for name in (
            found.filename_tensor_name, found.save_tensor_name, found.restore_op_name)}

    def build_anew(self) -> None:
        """Gives the Saver ops for the variables that are left to it, and the tables of the others.

        What it made before cannot be run any more.
        """
        # pylint: disable=protected-access
        saver, graph = self.saver, self.operations[0].graph
        before = saver.saver_def
        device = graph.get_tensor_by_name(before.filename_tensor_name).op.device
        time_of_next = saver._next_checkpoint_time
        with extensible(graph), tf.device(None), tf.device(device or None):
            setattr(saver, _VARIABLES, _names_in(saver._var_list))
            dense, tables = _split(saver._var_list)
            if getattr(saver, _TABLES, None) is not None:
                # It was given tables of the API as well, and not all.
                setattr(saver, _TABLES, getattr(saver, _TABLES) + (tables or []))
            if not dense:
                dense = [Nothing(MARKER)]
                setattr(saver, _MARKED, True)
            saver._var_list = dense
            saver.saver_def, saver._is_built = None, False
            saver.build()
        saver._next_checkpoint_time = time_of_next
        # A script may have set these.
        saver.saver_def.max_to_keep = before.max_to_keep
        saver.saver_def.keep_checkpoint_every_n_hours = before.keep_checkpoint_every_n_hours
        for op in self.operations:
            graph.prevent_fetching(op)


def is_marked(saver: Any) -> bool:
    """Returns whether a Saver has no variable, but the marker of a checkpoint of tables alone."""
    return bool(getattr(saver, _MARKED, False))


def names_no_table(saver: Any, of_variables: Sequence[Any]) -> bool:
    """Returns whether a Saver was given a var_list without any table.

    Args:
        saver: The Saver.
        of_variables: Its variables that became tables.
    """
    return getattr(saver, _EXPLICIT, False) and getattr(saver, _TABLES, None) is None \
        and (getattr(saver, _VARIABLES, None) is None or not of_variables)


def _split(var_list: Any) -> Any:
    """Splits var_list into (list without tables, op names of tables or None)."""
    if var_list is None:
        return None, None
    # A table has the slots of its variable in it.
    became = {} if tf.executing_eagerly() else {
        name: one.table.variable.op.name
        for one in converted(tf.compat.v1.get_default_graph())
        for name in [one.plan.name] + [slot.variable for slot in one.plan.slots]}

    def table_of(variable: Any) -> Optional[str]:
        if is_table_variable(variable):
            return str(variable.op.name)
        return became.get(variable.op.name) if isinstance(variable, tf.Variable) and became \
            else None

    if isinstance(var_list, dict):
        renamed = _renamed(var_list)
        values = [var for key, var in var_list.items() if key not in renamed]
        dense = {key: var for key, var in var_list.items()
                 if key in renamed or table_of(var) is None}  # type: Any
    else:
        values = list(var_list)
        dense = [var for var in values if table_of(var) is None]
    tables = [table for table in map(table_of, values) if table is not None]
    return dense, (tables or None)


def _renamed(var_list: Any) -> Set[str]:
    """Returns the names by which a Saver is to know variables that became tables as variables.

    Under its own name such a variable is its table.
    """
    if not isinstance(var_list, dict) or tf.executing_eagerly():
        return set()
    own = {}  # type: Dict[str, Tuple[str, str]]
    for one in converted(tf.compat.v1.get_default_graph()):
        own[one.plan.name] = one.plan.name, one.saved.name
        own.update((slot.variable, (slot.variable, place.name))
                   for slot, place in zip(one.plan.slots, one.slots))
    return {key for key, variable in var_list.items() if isinstance(variable, tf.Variable)
            and not is_table_variable(variable)
            and key not in own.get(variable.op.name, (key,))}


def _names_of(var_list: Any) -> Optional[Set[str]]:
    """Returns the names of the variables of a Saver; None if it has all of the default graph.

    Variables that became tables are in no collection any more: a list of all others that are in
    the collection of global variables is one of all.
    """
    if var_list is None or tf.executing_eagerly():
        return None
    names, graph = _names_in(var_list), tf.compat.v1.get_default_graph()
    if not _renamed(var_list) and converted(graph) and names.issuperset(
            variable.op.name for variable in graph.get_collection("variables")
            if hasattr(variable, "op")):
        return None
    return names


def _names_in(var_list: Any) -> Set[str]:
    """Returns the names of the variables of a list or dict that a Saver knows by these names."""
    names, renamed = set(), _renamed(var_list)  # type: Set[str], Set[str]
    if isinstance(var_list, dict):
        var_list = [variable for key, variable in var_list.items() if key not in renamed]
    for one in var_list:
        # A variable in parts is a list of them.
        is_parts = isinstance(one, (list, tuple)) or hasattr(one, "_get_variable_list")
        for variable in one if is_parts else [one]:
            if hasattr(variable, "op"):
                names.add(variable.op.name)
    return names


def saver_ops(saver: Any, sess: Any, use: str) -> List[TableOps]:
    """Returns the ops of the tables that a tf.train.Saver is for, to be "saved" or "restored".

    Raises:
        ValueError: If two of the tables have one name.
    """
    graph = getattr(sess, "graph", None)
    if graph is None or tf.executing_eagerly():
        return []
    convert_before_run(sess)
    operations = distinct(table_ops(graph, getattr(saver, _TABLES, None)), use)
    names = getattr(saver, _VARIABLES, None)
    if names is not None:
        of_others = {one.table.variable.op.name for one in converted(graph)}.difference(
            one.table.variable.op.name for one in converted(graph) if one.plan.name in names)
        operations = [op for op in operations if op.table.name not in of_others]
    if operations:
        remember_session(sess)
    return operations


def _has_tables() -> bool:
    return bool(table_ops(tf.compat.v1.get_default_graph(), None))
