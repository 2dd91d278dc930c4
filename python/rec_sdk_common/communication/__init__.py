"""Who this process is among the workers of a job."""

from rec_sdk_common.communication import hccl

__all__ = [
    "hccl",
]
