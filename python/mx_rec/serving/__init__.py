"""Brings the rows and variables of a training's checkpoints into models that serve."""

from mx_rec.serving.push import Outcome, Version, newest, push, version_of
from mx_rec.serving.servers import Server, ServerError, Unreachable, server_of, signatures_of

__all__ = [
    "Outcome",
    "Server",
    "ServerError",
    "Unreachable",
    "Version",
    "newest",
    "push",
    "server_of",
    "signatures_of",
    "version_of",
]
