"""Graph modification: moves the key work of lookups from the step to the input pipeline."""

from mx_rec.graph.acg_push_ops import ACGPushOpsToDatasetHook
from mx_rec.graph.merge_lookup import do_merge_lookup
from mx_rec.graph.modifier import GraphModifierHook, modify_graph_and_start_emb_cache, run
from mx_rec.graph.slicers import LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook

__all__ = [
    "ACGPushOpsToDatasetHook",
    "GraphModifierHook",
    "LookupSubgraphSlicerHook",
    "OrphanLookupKeySlicerHook",
    "do_merge_lookup",
    "modify_graph_and_start_emb_cache",
    "run",
]
