"""The ops of the plugin: their Python functions, static shapes and gradients."""

from typing import Optional

from mx_rec import plugin
from mx_rec.ops.shapes import Library

_library = None  # type: Optional[Library]


def library() -> Library:
    """Returns one Python function per op of the plugin."""
    global _library
    if _library is None:
        _library = Library(plugin.load())
    return _library
