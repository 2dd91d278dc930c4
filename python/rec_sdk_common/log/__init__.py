"""The logger of mx_rec."""

from mx_rec.util.log import logger

__all__ = [
    "logger",
]
