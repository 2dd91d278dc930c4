"""Finds the modules that this package shares with our `tf_adapter`.

That it lies in a directory is also how a copy of the stand-in is told from the vendor's package.
"""

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

# Our tf_adapter, which may not be what a script gets by that name.
_NAME = "tf_adapter"
_OTHER_NAME = "mx_rec_shared_tf_adapter"
_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), _NAME)


def shared(name: str) -> ModuleType:
    """Returns a module of our tf_adapter.

    Args:
        name: Its name inside of the package; "" is the package.

    Raises:
        ImportError: If the vendor's package is present.
    """
    package = _package()
    return importlib.import_module(package + "." + name if name else package)


def stand_for(path: str, name: str) -> None:
    """Makes a module of this package one with a module of our tf_adapter.

    Args:
        path: `__name__` of the module of this package, which is being imported.
        name: As for `shared`.
    """
    sys.modules[path] = shared(name)


def _package() -> str:
    """Returns the name under which our tf_adapter is or can be imported."""
    if _OTHER_NAME in sys.modules:
        return _OTHER_NAME
    present = sys.modules.get(_NAME)
    if present is None:
        spec = PathFinder.find_spec(_NAME)
        origin = spec.origin if spec is not None else None
    else:
        origin = getattr(present, "__file__", None)
    if origin and os.path.dirname(os.path.realpath(origin)) == _DIRECTORY:
        return _NAME
    # A tf_adapter of the script's own has that name: the same files under another one.
    spec = importlib.util.spec_from_file_location(
        _OTHER_NAME, os.path.join(_DIRECTORY, "__init__.py"),
        submodule_search_locations=[_DIRECTORY])
    package = importlib.util.module_from_spec(spec)
    sys.modules[_OTHER_NAME] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[_OTHER_NAME]
        raise
    return _OTHER_NAME
