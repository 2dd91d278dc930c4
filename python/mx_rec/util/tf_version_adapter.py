"""The device vendor's `hccl_ops` and `npu_ops` under the names that scripts import from here.

They are those of `npu_bridge`: the vendor's, or the stand-in of the distribution mx-rec-tf-adapter.
Without either the names can be imported all the same, and a use of them says what to install: many
scripts only need them for several ranks.
"""

import importlib
from typing import Any

from mx_rec.base.log import logger


class _Absent:
    """Stands for a module that is not installed, until something of it is used."""

    def __init__(self, name: str, error: ImportError) -> None:
        self._name = name
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError("{}.{} is not available: {} Install the stand-in for the vendor's "
                          "package, python/tf_adapter_cpu (distribution mx-rec-tf-adapter).".format(
                              self._name, name, str(self._error).rstrip(".") + "."))


def _module(name: str) -> Any:
    """Returns a module of `npu_bridge`, or what stands for it until it is used."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        logger.debug("%s cannot be imported: %s", name, error)
        return _Absent(name, error)


hccl_ops = _module("npu_bridge.hccl.hccl_ops")
npu_ops = _module("npu_bridge.estimator.npu_ops")
