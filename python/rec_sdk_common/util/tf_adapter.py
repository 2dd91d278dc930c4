"""`hccl_ops` and `npu_ops` of the device vendor's package; see mx_rec.util.tf_version_adapter."""

from mx_rec.util.tf_version_adapter import hccl_ops, npu_ops

__all__ = [
    "hccl_ops",
    "npu_ops",
]
