"""Import paths of newer scripts for what mx_rec holds: ranks, the logger, the vendor's ops."""

from rec_sdk_common import communication, log

__all__ = [
    "communication",
    "log",
]
