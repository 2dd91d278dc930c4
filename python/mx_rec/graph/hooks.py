"""The hooks of graph modification, under the path that newer scripts import them from."""

from mx_rec.graph.acg_push_ops import ACGPushOpsToDatasetHook
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.graph.slicers import LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook

__all__ = [
    "ACGPushOpsToDatasetHook",
    "GraphModifierHook",
    "LookupSubgraphSlicerHook",
    "OrphanLookupKeySlicerHook",
]
