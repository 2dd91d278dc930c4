"""The ops of the plugin: their Python functions and gradients."""

from types import ModuleType

from mx_rec import plugin


def library() -> ModuleType:
    """Returns the module with one Python function per op of the plugin."""
    return plugin.load()
