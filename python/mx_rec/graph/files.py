"""Reads the graph out of a file: GraphDef, MetaGraphDef or SavedModel, binary or text."""

import os
import re
import warnings
from typing import Any, List, NamedTuple, Optional, Sequence

from google.protobuf import text_format
from google.protobuf.internal.decoder import _DecodeVarint
from google.protobuf.message import DecodeError
from tensorflow.core.framework import graph_pb2, op_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
_DEFAULT_TAGS = ["serve"]
# The fields that a file in text form can begin with, and what it is then.
_FIRST_FIELDS = {
    "node": graph_pb2.GraphDef,
    "library": graph_pb2.GraphDef,
    "version": graph_pb2.GraphDef,
    "versions": graph_pb2.GraphDef,
    "meta_info_def": meta_graph_pb2.MetaGraphDef,
    "graph_def": meta_graph_pb2.MetaGraphDef,
    "saver_def": meta_graph_pb2.MetaGraphDef,
    "collection_def": meta_graph_pb2.MetaGraphDef,
    "signature_def": meta_graph_pb2.MetaGraphDef,
    "asset_file_def": meta_graph_pb2.MetaGraphDef,
    "saved_model_schema_version": saved_model_pb2.SavedModel,
    "meta_graphs": saved_model_pb2.SavedModel,
}
_FIRST_FIELD = re.compile(rb"(?:\s|#[^\n]*\n)*([a-z_]+)\s*[:{<]")


class GraphFile(NamedTuple):
    """What was read.

    Attributes:
        kind: "GraphDef", "MetaGraphDef" or "SavedModel".
        graph: The graph.
        ops: Definitions of ops that the file brings along; empty for a GraphDef.
    """

    kind: str
    graph: graph_pb2.GraphDef
    ops: op_def_pb2.OpList


def read_graph(path: str, tags: Optional[Sequence[str]] = None) -> GraphFile:
    """Reads a graph; what kind of file it is shows from its content, not from its name.

    Args:
        path: A file, or the directory of a SavedModel.
        tags: All tags of the wanted graph of a SavedModel. None is its only graph, or the one
            with the tag "serve".

    Returns:
        The graph; it need not be importable in this process.

    Raises:
        OSError: If the file is missing or cannot be read.
        ValueError: If it holds no graph, a graph without nodes, or no graph with these tags.
    """
    if os.path.isdir(path):
        path = _saved_model_in(path)
    with open(path, "rb") as file:
        content = file.read()
    if not content.strip():
        raise ValueError("{} is empty".format(path))
    message = _parse(path, content)
    kind = type(message).__name__
    if tags and kind != "SavedModel":
        raise ValueError("{} is a {}: only a SavedModel has tags".format(path, kind))
    if isinstance(message, saved_model_pb2.SavedModel):
        message = _tagged(path, message, tags)
    ops = op_def_pb2.OpList()
    if isinstance(message, meta_graph_pb2.MetaGraphDef):
        ops = message.meta_info_def.stripped_op_list
        message = message.graph_def
    if not message.node:
        raise ValueError("{} is a {} whose graph has no nodes".format(path, kind))
    return GraphFile(kind, message, ops)


def merged_ops(known: bytes, others: op_def_pb2.OpList) -> bytes:
    """Adds definitions of ops to a list; an op that is in both stays as it is.

    Args:
        known: A serialized OpList.
        others: The definitions to add.

    Returns:
        A serialized OpList.
    """
    ops = op_def_pb2.OpList.FromString(known)
    names = {op.name for op in ops.op}
    ops.op.extend(op for op in others.op if op.name not in names)
    return ops.SerializeToString()


def _saved_model_in(directory: str) -> str:
    for name in _SAVED_MODEL_FILES:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            return path
    raise ValueError("{} is a directory without {}, so it is no SavedModel".format(
        directory, " or ".join(_SAVED_MODEL_FILES)))


def _parse(path: str, content: bytes) -> Any:
    """Parses a file as what it is."""
    found = _FIRST_FIELD.match(content)
    text_kind = _FIRST_FIELDS.get(found.group(1).decode("ascii")) if found else None
    if text_kind is not None:
        try:
            return text_format.Parse(content.decode("utf-8"), text_kind(),
                                     allow_unknown_field=True)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise ValueError("{} begins as a {} in text form, but cannot be read: {}".format(
                path, text_kind.__name__, " ".join(str(error).split()))) from error
    # Bytes of one kind can be parsed as another, but make no graph then. The likely kind comes
    # first, because the parser prints warnings about texts of the others.
    for kind in _likely_kinds(content):
        message = kind()
        try:
            # To the parser, bytes behind the message are only a warning.
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                message.ParseFromString(content)
        except (DecodeError, RuntimeError):
            continue
        if not warned and _is_graph(message):
            return message
    raise ValueError("{} is no GraphDef, MetaGraphDef or SavedModel, neither binary nor text, or "
                     "it is damaged".format(path))


def _likely_kinds(content: bytes) -> List[Any]:
    """Orders the kinds by the outermost fields of the file."""
    kinds = [graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef, saved_model_pb2.SavedModel]
    if content[:1] == b"\x08":  # field 1 is a number: the version of a SavedModel's format
        return kinds[::-1]
    try:
        end = _DecodeVarint(content, 1)
        second = content[sum(end):][:1] if content[:1] == b"\x0a" else content[:1]
    except IndexError:
        return kinds
    # Field 1 once and then field 2: meta information and its graph.
    return [kinds[1], kinds[0], kinds[2]] if second == b"\x12" else kinds


def _is_graph(message: Any) -> bool:
    if isinstance(message, saved_model_pb2.SavedModel):
        return bool(message.meta_graphs) and all(_is_graph(one) for one in message.meta_graphs)
    if isinstance(message, meta_graph_pb2.MetaGraphDef):
        return message.HasField("graph_def") and _is_graph(message.graph_def)
    if not message.node:
        return message.HasField("versions") and message.versions.producer > 0
    return all(node.name and node.op for node in message.node)


def _tagged(path: str, model: saved_model_pb2.SavedModel,
            tags: Optional[Sequence[str]]) -> meta_graph_pb2.MetaGraphDef:
    """Finds the graph with these tags."""
    graphs = list(model.meta_graphs)
    if not graphs:
        raise ValueError("{} is a SavedModel without graphs".format(path))
    if not tags and len(graphs) == 1:
        return graphs[0]
    wanted = sorted(tags or _DEFAULT_TAGS)
    for graph in graphs:
        if sorted(graph.meta_info_def.tags) == wanted:
            return graph
    offered = "; ".join(_tag_text(graph.meta_info_def.tags) for graph in graphs)
    if tags:
        raise ValueError("{} has no graph with exactly the tags {}; it has: {}".format(
            path, _tag_text(wanted), offered))
    raise ValueError("{} has {} graphs, choose one by --tag; it has: {}".format(
        path, len(graphs), offered))


def _tag_text(tags: Sequence[str]) -> str:
    names = sorted(tags)  # type: List[str]
    return ", ".join(names) if names else "(no tag)"
