"""Makes sure that this stand-in never takes the place of the vendor's package.

Of the standard library alone, as setup.py and scripts/setup run this file by itself. That it lies
in a directory is also how a copy of the stand-in is told from a package of someone else.
"""

import os
import sys
from importlib.machinery import PathFinder
from typing import List, Optional

HERE = os.path.dirname(os.path.realpath(__file__))
MARK = os.path.basename(__file__)


def find_foreign(path: Optional[List[str]] = None) -> Optional[str]:
    """Looks for the vendor's `tf_adapter` and `npu_bridge`, unless they are copies of ours.

    Nothing is imported. Directories without `__init__.py` do not count, nor do single files: a
    tf_adapter.py beside a script is the script's own.

    Args:
        path: Directories to look in, all of them; `sys.path` by default.

    Returns:
        The file that would be imported, or None if there is none.
    """
    for entry in sys.path if path is None else path:
        for name in ("tf_adapter", "npu_bridge"):
            spec = PathFinder.find_spec(name, [entry or os.getcwd()])
            if spec is None or not spec.origin or spec.origin == "namespace":
                continue
            if spec.submodule_search_locations is None or os.path.isfile(
                    os.path.join(os.path.dirname(spec.origin), MARK)):
                continue
            return spec.origin
    return None


def complaint(foreign: str) -> str:
    """Returns the text of the refusal.

    Args:
        foreign: What `find_foreign` returned.
    """
    return ("the vendor's TensorFlow adapter is present ({}), and mx_rec's stand-in for it does "
            "not take its place. Use the vendor's; to use the stand-in, take the vendor's off "
            "PYTHONPATH and out of the environment. The stand-in is {}, distribution "
            "mx-rec-tf-adapter.".format(foreign, HERE))


def refuse_to_shadow() -> None:
    """Stops the import of the stand-in where the vendor's package is present.

    Raises:
        ImportError: If it is, wherever it stands on `sys.path`.
    """
    foreign = find_foreign()
    if foreign is not None:
        raise ImportError(complaint(foreign))


if __name__ == "__main__":
    sys.path = [entry for entry in sys.path if os.path.realpath(entry or ".") != HERE]
    found = find_foreign()
    if found is not None:
        sys.exit(complaint(found))
