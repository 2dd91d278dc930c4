"""`ACGPushOpsToDatasetHook`, under the path that scripts of older releases import it from."""

from mx_rec.graph.slicers import ACGPushOpsToDatasetHook

__all__ = ["ACGPushOpsToDatasetHook"]
