"""Takes the part of a graph that predicts, with TensorFlow's own ops in the place of lookups."""

import collections
from functools import partial
from typing import Any, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Set, Tuple

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2, node_def_pb2

from mx_rec.checkpoint.nothing import Nothing
from mx_rec.edits.replacing import extensible, kept
from mx_rec.export import plain_pool
from mx_rec.export.plain_lookup import (PASSING, Make, Replaced, Source, TableUse, finding,
                                        replacing_nodes)
from mx_rec.export.plain_rows import PlainTable
from mx_rec.ops.lookups import CHECKED_IDS, FIND, ID_OFFSET, READ, reads_distinct
from mx_rec.state.table_variable import TABLE_OP, described_name
from mx_rec.tensorflow.names import ops as tf_ops

# How the types of the plugin's ops, and the attributes that the package gives to ops, begin.
_OURS = "MxRec"
_OUR_ATTRIBUTES = "_mx_rec_"

_RESTORE, _RESTORE_POOLED = "MxRecRestore", "MxRecRestorePooled"
_WEIGHTS, _DIVISORS = "MxRecBagWeights", "MxRecBagDivisors"
_SPARSE_BAGS = "MxRecSparseBagsMany"

# Ops that say where bags end.
_ENDS = {"MxRecBagEnds": plain_pool.dense_ends, "MxRecRaggedBagEnds": plain_pool.ragged_ends,
         "MxRecSparseBagEnds": plain_pool.sparse_ends}  # type: Dict[str, Make]

# Ops of training lookups; those with an access threshold have the last two.
_TRAINING = (READ, ID_OFFSET, _RESTORE, "MxRecObserve", "MxRecAdmit")

_ITERATOR = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")

_SAVERS = "_mx_rec_plain_savers"

# Collections that builders of SavedModels fill themselves.
_OF_BUILDERS = ("saved_model_main_op", "legacy_init_op", "saved_model_assets",
                "saved_model_train_op")


class Wanted(NamedTuple):
    """What a SavedModel names of a graph.

    Attributes:
        inputs: Names of tensors that are fed.
        outputs: Names of tensors that are fetched.
        others: Names of ops and tensors that have to be there: of initialization and assets.
    """

    inputs: List[str]
    outputs: List[str]
    others: List[str]


class Cut:
    """The part of a graph that outputs need, without lookups' tables.

    Attributes:
        tables: Ops of type MxRecTable whose rows are looked up.
        fed: New placeholders by the names of fed tensors that an iterator yields.

    Args:
        graph: The session's graph.
        wanted: What is to be kept.
        training: Whether training lookups become lookups without training; else they are refused.

    Raises:
        ValueError: If an op of the plugin would be left, or a fed tensor cannot be fed.
    """

    def __init__(self, graph: tf.Graph, wanted: Wanted, training: bool) -> None:
        self.graph = graph
        self.fed = {}  # type: Dict[str, str]
        self._wanted = wanted
        self._training = training
        self._replaced = collections.OrderedDict()  # type: Dict[str, Replaced]
        self._checked = set()  # type: Set[str]
        self._roots = [_op_name(name) for name in wanted.outputs + wanted.others]
        self._read()
        self._cut_inputs()
        self._keep()
        self.tables = [graph.get_operation_by_name(name) for name in collections.OrderedDict(
            (use.table, None) for replaced in self._replaced.values()
            for use in replaced.tables)]

    def add(self, names: Iterable[str]) -> None:
        """Keeps ops more, which may be newer than this object.

        Args:
            names: Names of ops or tensors.
        """
        self._roots += [_op_name(name) for name in names]
        self._read()
        self._keep()

    def saveables(self) -> List[Any]:
        """Returns the variables of the part that a Saver saves, and other saveable objects."""
        found = [one for one in self.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
                 if _is_variable(one) and one.op.name in self._kept]
        for one in self.graph.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS):
            ops = [spec.tensor.op for spec in one.specs if isinstance(spec.tensor, tf.Tensor)]
            ops += [source.op for op in ops for source in op.inputs]
            if any(op.name in self._kept for op in ops):
                found.append(one)
        return found

    def build(self, tables: Dict[str, PlainTable]) -> None:
        """Imports the part into the default graph, with lookups in TensorFlow's own ops.

        Args:
            tables: By the name of the table's op, in the same graph.
        """
        resources = {}  # type: Dict[str, tf.Tensor]
        names = {}  # type: Dict[str, List[str]]
        for table, plain in tables.items():
            tensors = [plain.index] + [chunk.handle for chunk in plain.chunks]
            names[table] = [tensor.name for tensor in tensors]
            resources.update(zip(names[table], tensors))
        result = graph_pb2.GraphDef(versions=self._graph_def.versions)
        for name in sorted(self._kept, key=self._order.__getitem__):
            replaced = self._replaced.get(name)
            if replaced is None:
                result.node.extend([self._plain_node(self._nodes[name])])
            else:
                result.node.extend(replacing_nodes(
                    replaced, [tables[use.table] for use in replaced.tables],
                    [names[use.table] for use in replaced.tables]))
        result.library.CopyFrom(self._called_functions(result.node))
        used = {name for node in result.node for name in node.input}
        tf.import_graph_def(result, name="", input_map={
            name: tensor for name, tensor in resources.items()
            if name in used or name[:-2] in used})
        self._copy_collections()

    def scope(self, scope: str = "tables") -> str:
        """Returns a name scope that no op of the graph is in, a name with underscores behind it."""
        while any(name.split("/")[0].lower() == scope for name in self._nodes):
            scope += "_"
        return scope

    def _read(self) -> None:
        self._graph_def = self.graph.as_graph_def()
        self._nodes = {node.name: node for node in self._graph_def.node}
        self._order = {node.name: place for place, node in enumerate(self._graph_def.node)}
        self._functions = {function.signature.name: function
                           for function in self._graph_def.library.function}
        for name, placeholder in self.fed.items():
            self._add_placeholder(name, placeholder)

    def _cut_inputs(self) -> None:
        """Puts placeholders in the place of fed tensors that come from an iterator."""
        for name in self._wanted.inputs:
            tensor = self.graph.get_tensor_by_name(name)
            if tensor.op.type in _ITERATOR:
                self.fed[name] = "{}/fed_{}".format(tensor.op.name, tensor.value_index)
                self._add_placeholder(name, self.fed[name])
            elif not self.graph.is_feedable(tensor):
                raise ValueError(
                    "the model cannot be exported: its input {!r} may not be fed, because lookups "
                    "do not read it. They were moved into the input pipeline: export from a graph "
                    "that is not modified, such as one of its own for prediction.".format(name))
            self._roots.append(_op_name(self.fed.get(name, name)))

    def _add_placeholder(self, name: str, placeholder: str) -> None:
        tensor = self.graph.get_tensor_by_name(name)
        node = node_def_pb2.NodeDef(name=placeholder, op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        self._nodes[placeholder] = node
        self._order[placeholder] = self._order[tensor.op.name]

    def _keep(self) -> None:
        """Finds what the roots need, with the initializers of variables."""
        self._kept = set()  # type: Set[str]
        self._replaced.clear()
        self._walk(self._roots)
        while True:
            before = len(self._kept)
            for variable in self._kept_variables():
                definition = variable.to_proto()
                self._walk(_op_name(name) for name in (
                    definition.variable_name, definition.initializer_name,
                    definition.snapshot_name, definition.initial_value_name) if name)
            if len(self._kept) == before:
                return

    def _walk(self, names: Iterable[str]) -> None:
        ahead = list(names)
        while ahead:
            name = ahead.pop()
            if name in self._kept:
                continue
            node = self._nodes[name]
            if node.op.startswith(_OURS):
                self._replaced[name] = self._lookup_of(node)
                sources = [source.name for source in self._replaced[name].sources]
                sources += [source for source in node.input if source.startswith("^")]
            elif node.op in _ITERATOR:
                raise ValueError(
                    "the model cannot be exported: its outputs depend on the iterator {!r}, and a "
                    "server feeds its inputs. Make the tensors of the batch inputs; in a graph "
                    "that was modified lookups read another iterator: export from a graph of its "
                    "own.".format(name))
            else:
                for function in _called(node):
                    self._check_function(function)
                sources = [self._source(source) for source in node.input]
            self._kept.add(name)
            ahead.extend(_op_name(source) for source in sources)

    def _check_function(self, name: str) -> None:
        """Refuses a function that has ops of the plugin, or calls one that has."""
        if name not in self._functions or name in self._checked:
            return
        self._checked.add(name)
        for node in self._functions[name].node_def:
            if node.op.startswith(_OURS):
                self._refuse(node.name, node.op, name)
            for called in _called(node):
                self._check_function(called)

    def _source(self, name: str) -> str:
        """Returns what an input of a node is, with placeholders for fed tensors."""
        if name.startswith("^") or not self.fed:
            return name
        return self.fed.get(name if ":" in name else name + ":0", name)

    def _lookup_of(self, node: node_def_pb2.NodeDef) -> Replaced:
        """Returns what stands for an op of the plugin in a lookup, or refuses the op."""
        op = self.graph.get_operation_by_name(node.name)
        if node.op == FIND:
            replaced = self._find_of(node, op)
        elif node.op == READ:
            replaced = self._trained_of(node, op)
        elif node.op == _RESTORE:
            replaced = self._restored_of(node, op)
        elif node.op == _RESTORE_POOLED:
            ends, given = self._bags_of(op, 2)
            replaced = Replaced(
                node, [], [self._input_of(op, 0), self._ids_of(op, 1)] + ends,
                partial(plain_pool.restore_pooled, given, _key_work_of(op.inputs[1]) is not None))
        elif node.op in _ENDS:
            sources = [self._input_of(op, place) for place in range(len(op.inputs))]
            if node.op == "MxRecBagEnds":
                sources = [self._ids_of(op, 0)]
            replaced = Replaced(node, [], sources, _ENDS[node.op])
        elif node.op == _WEIGHTS:
            replaced = Replaced(node, [], [self._input_of(op, 0), self._ids_of(op, 1)],
                                plain_pool.weights)
        elif node.op == _DIVISORS:
            ends, given = self._bags_of(op, 1)
            replaced = Replaced(node, [], [self._ids_of(op, 0)] + ends,
                                partial(plain_pool.divisors, op.get_attr("combiner"),
                                        given.weights))
        elif node.op == _SPARSE_BAGS:
            replaced = self._sparse_bags_of(node, op)
        elif node.op == CHECKED_IDS:
            # All but the names.
            sources = [self._input_of(op, place) for place in range(len(op.inputs) - 1)]
            replaced = Replaced(node, [], sources, plain_pool.checked_ids)
        else:
            replaced = None
        if replaced is None:
            self._refuse(node.name, node.op)
        return replaced

    def _sparse_bags_of(self, node: node_def_pb2.NodeDef, op: tf.Operation) -> Optional[Replaced]:
        """Returns what stands for the bags of sparse ids, None if their rules are not known."""
        members = op.get_attr("N")
        rules = [source.op for source in op.inputs[3 * members:]]
        if any(one.type != "Const" for one in rules):
            return None
        rows, combiners = [tf.make_ndarray(one.get_attr("value")).tolist() for one in rules]
        return Replaced(node, [], [self._input_of(op, place) for place in range(3 * members)],
                        partial(plain_pool.sparse_bags, rows, combiners,
                                bool(op.get_attr("leave_out")), bool(op.get_attr("fill"))))

    def _find_of(self, node: node_def_pb2.NodeDef, op: tf.Operation) -> Optional[Replaced]:
        """Returns what stands for lookups of the part that predicts, None if nothing does."""
        if op.get_attr("initial"):
            return None
        members, absents, bags = op.get_attr("N"), op.get_attr("A"), op.get_attr("B")
        uses, sources, has_absent, given = [], [], [], []
        for member in range(members):
            absent = self._absent_of(op, 3 * members + member) if absents else []
            uses.append(self._use_of(op, member))
            sources.append(self._input_of(op, 2 * members + member))
            if bags:
                ends, of_bags = self._bags_of(op, 3 * members + absents + member, members)
                sources += ends
                given.append((of_bags, bool(absent)))
            sources += absent
            has_absent.append(bool(absent))
        return Replaced(node, uses, sources, partial(plain_pool.find_pooled_many, given)
                        if bags else partial(finding, has_absent, False))

    def _trained_of(self, node: node_def_pb2.NodeDef, op: tf.Operation) -> Optional[Replaced]:
        """Returns what stands for training lookups, None if nothing does."""
        members = op.get_attr("N")
        inverses, bags = op.get_attr("R"), op.get_attr("B")
        uses, sources, given = [], [], []
        for member in range(members):
            offsets = op.inputs[2 * members + member]
            work = offsets.op, offsets.value_index
            if work[0].type != ID_OFFSET or 2 * work[1] >= len(work[0].outputs) \
                    or inverses and _key_work_of(op.inputs[3 * members + member]) != work:
                return None
            uses.append(self._trained_use_of(node, *work))
            sources.append(self._ids_of_work(*work))
            if bags:
                ends, of_bags = self._bags_of(op, 4 * members + member, members)
                sources += ends
                given.append((of_bags, False))
        if bags:
            return Replaced(node, uses, sources, partial(plain_pool.find_pooled_many, given))
        if not inverses:
            return Replaced(node, uses, sources, plain_pool.distinct_rows) if members == 1 else None
        return Replaced(node, uses, sources,
                        partial(finding, [False] * members, op.get_attr("M") != members))

    def _restored_of(self, node: node_def_pb2.NodeDef, op: tf.Operation) -> Optional[Replaced]:
        """Returns what stands for the rows of ids that distinct rows give, None if nothing does."""
        rows, work = op.inputs[0].op, _key_work_of(op.inputs[1])
        if not reads_distinct(rows) or work is None \
                or rows.inputs[2] is not work[0].outputs[work[1]]:
            return None
        return Replaced(node, [self._trained_use_of(node, *work)], [self._ids_of_work(*work)],
                        partial(finding, [False], False))

    def _trained_use_of(self, node: node_def_pb2.NodeDef, work: tf.Operation,
                        member: int) -> TableUse:
        """Returns the table of a training lookup, or refuses the lookup."""
        use = self._use_of(work, member)
        if not self._training:
            table = self.graph.get_operation_by_name(use.table)
            raise ValueError(
                "the model cannot be exported: its outputs depend on the training lookup {!r} of "
                "the table {!r}, which gives new keys rows, and TensorFlow's own ops cannot. Look "
                "up with is_train=False in the part that predicts; or give "
                "training_lookups='find' to export it as a lookup that gives keys without a row "
                "zeros.".format(node.name, described_name(table)))
        return use

    def _use_of(self, op: tf.Operation, place: int) -> TableUse:
        """Returns the table that an op has the handle of."""
        path, table = self._table_of(op, op.inputs[place])
        return TableUse(table.name, path)

    def _input_of(self, op: tf.Operation, place: int) -> Source:
        """Returns an input of an op."""
        return Source(self._source(op.node_def.input[place]), op.inputs[place].dtype,
                      op.inputs[place].shape)

    def _absent_of(self, op: tf.Operation, place: int) -> List[Source]:
        """Returns the rows of absent ids, nothing if there are surely none."""
        shape = op.inputs[place].shape
        rows = tf.compat.dimension_value(shape[0]) if shape.rank else None
        source = self._input_of(op, place)
        return [] if rows == 0 else [source._replace(shape=tf.TensorShape([rows, None]))]

    def _bags_of(self, op: tf.Operation, start: int,
                 step: int = 1) -> Tuple[List[Source], plain_pool.Given]:
        """Returns ends, and what else there is of bags, and what that is."""
        sources, given = [self._input_of(op, start)], []
        for place in (start + step, start + 2 * step, start + 3 * step):
            is_input = place < len(op.inputs)
            given.append(is_input and op.inputs[place].shape.num_elements() != 0)
            if given[-1]:
                sources.append(self._input_of(op, place))
        return sources, plain_pool.Given(*given)

    def _ids_of(self, op: tf.Operation, place: int) -> Source:
        """Returns an input of an op; the ids, if it is the inverse of what a table resolves."""
        work = _key_work_of(op.inputs[place])
        return self._input_of(op, place) if work is None else self._ids_of_work(*work)

    def _ids_of_work(self, work: tf.Operation, member: int) -> Source:
        """Returns the ids that an op of key work resolves."""
        return self._input_of(work, len(work.outputs) // 2 + member)

    def _table_of(self, lookup: tf.Operation, handle: tf.Tensor
                  ) -> Tuple[List[node_def_pb2.NodeDef], tf.Operation]:
        """Returns what a table passes on its way to a lookup, the outermost first, and its op."""
        path = []  # type: List[node_def_pb2.NodeDef]
        while handle.op.type in PASSING:
            path.append(handle.op.node_def)
            handle = handle.op.inputs[0]
        if handle.op.type != TABLE_OP:
            raise ValueError(
                "the model cannot be exported: the table of the lookup {!r} comes from the op {!r} "
                "of type {}, so that it is not known which one it is.".format(
                    lookup.name, handle.op.name, handle.op.type))
        return path[::-1], handle.op

    def _refuse(self, name: str, kind: str, function: Optional[str] = None) -> NoReturn:
        where = "" if function is None else " in the function {!r}".format(function)
        why = ""
        if function is not None:
            why = " Lookups in functions, and in branches and loops of control flow v2, cannot " \
                "be replaced: look the rows up outside of them, or build the graph with " \
                "tf.compat.v1.disable_control_flow_v2()."
        elif kind in _TRAINING:
            why = " It is part of a training lookup, of a kind that cannot be exported: look up " \
                "with is_train=False in the part that predicts."
        elif kind == FIND:
            why = " It gives keys without a row random initial values, which are drawn by key: " \
                "export with the plugin. With StockTables(access_threshold=...) of 2 and more, " \
                "such keys are zeros, and with a constant initializer they are this constant: " \
                "both have plain exports."
        raise ValueError(
            "the model cannot be exported: its outputs or its initialization depend on the op "
            "{!r}{} of type {}, which TensorFlow does not have.{}".format(name, where, kind, why))

    def _plain_node(self, node: node_def_pb2.NodeDef) -> node_def_pb2.NodeDef:
        """Returns a node without attributes of this package and colocation with what is gone."""
        result = node_def_pb2.NodeDef()
        result.CopyFrom(node)
        for place, name in enumerate(node.input):
            result.input[place] = self._source(name)
        for key in list(result.attr):
            if key.startswith(_OUR_ATTRIBUTES):
                del result.attr[key]
        if "_class" in result.attr:
            kept = [name for name in result.attr["_class"].list.s
                    if not name.startswith(b"loc:@") or name[5:].decode() in self._kept]
            del result.attr["_class"].list.s[:]
            result.attr["_class"].list.s.extend(kept)
            if not kept:
                del result.attr["_class"]
        return result

    def _called_functions(self, nodes: Iterable[node_def_pb2.NodeDef]
                          ) -> function_pb2.FunctionDefLibrary:
        """Returns the functions that nodes call, directly or by others."""
        gradients = self._graph_def.library.gradient
        seen = set()  # type: Set[str]
        ahead = [name for node in nodes for name in _called(node)]
        while ahead:
            name = ahead.pop()
            if name in self._functions and name not in seen:
                seen.add(name)
                # A gradient function comes with an import and may not be called by any node.
                self._check_function(name)
                ahead.extend(one for node in self._functions[name].node_def
                             for one in _called(node))
                ahead.extend(one.gradient_func for one in gradients if one.function_name == name)
        return function_pb2.FunctionDefLibrary(
            function=[function for name, function in self._functions.items() if name in seen],
            gradient=[one for one in gradients if one.function_name in seen])

    def _kept_variables(self) -> List[Any]:
        """Returns the variables of all collections whose ops are kept, each once."""
        found = collections.OrderedDict()  # type: Dict[str, Any]
        for key in self.graph.get_all_collection_keys():
            for value in self.graph.get_collection_ref(key):
                if _is_variable(value) and value.op.name in self._kept:
                    found.setdefault(value.op.name, value)
        return list(found.values())

    def _copy_collections(self) -> None:
        """Fills the default graph's collections with what of theirs was imported."""
        graph = tf.compat.v1.get_default_graph()
        read = tf_ops.get_from_proto_function(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        variables = {one.op.name: read(one.to_proto()) for one in self._kept_variables()}
        for key in self.graph.get_all_collection_keys():
            if key in _OF_BUILDERS or not isinstance(key, str) or key.startswith("ASCEND"):
                continue
            for value in self.graph.get_collection_ref(key):
                if _is_variable(value):
                    if value.op.name in variables:
                        graph.add_to_collection(key, variables[value.op.name])
                elif isinstance(value, (tf.Tensor, tf.Operation)) \
                        and _op_name(value.name) in self._kept:
                    graph.add_to_collection(key, graph.as_graph_element(value.name))


def saver_of(cut: Cut) -> Any:
    """Returns the SaverDef of what a part of a graph saves; its ops are made once in the graph.

    Args:
        cut: The part; the ops are added to it.
    """
    graph = cut.graph
    saveables = cut.saveables()
    savers = kept(graph, _SAVERS)
    key = tuple(sorted(one.name for one in saveables))
    with extensible(graph):
        if key not in savers:
            savers[key] = tf.compat.v1.train.Saver(saveables or [Nothing("no_variables")],
                                                   name="plain_save").saver_def
    saver_def = savers[key]
    cut.add([saver_def.filename_tensor_name, saver_def.restore_op_name,
             saver_def.save_tensor_name])
    return saver_def


def _is_variable(value: Any) -> bool:
    """Whether an element of a collection is a variable of TensorFlow, not that of a table."""
    return isinstance(value, tf.compat.v1.Variable) and value.op.type != TABLE_OP


def _key_work_of(inverse: tf.Tensor) -> Optional[Tuple[tf.Operation, int]]:
    """Returns the op that makes an inverse, and which of its tables it is of; None without one."""
    op = inverse.op
    member = inverse.value_index - len(op.outputs) // 2
    return (op, member) if op.type == ID_OFFSET and member >= 0 else None


def _op_name(name: str) -> str:
    """Returns the name of the op of a tensor, an input of a node, or an op."""
    return name.lstrip("^").split(":")[0]


def _called(node: node_def_pb2.NodeDef) -> List[str]:
    """Returns the names of functions that a node calls."""
    names = [node.op]
    for value in node.attr.values():
        names.append(value.func.name)
        names.extend(function.name for function in value.list.func)
    return [name for name in names if name]
