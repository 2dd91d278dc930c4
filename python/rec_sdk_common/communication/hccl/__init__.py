"""Who this process is among the workers of a job."""

from rec_sdk_common.communication.hccl import hccl_info

__all__ = [
    "hccl_info",
]
