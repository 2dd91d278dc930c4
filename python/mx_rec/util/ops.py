"""Access to the plugin's ops."""

import os
from typing import Any, Optional

import tensorflow as tf

from mx_rec import plugin
from mx_rec.core.admission import set_threshold_op
from mx_rec.ops.shapes import Library
from mx_rec.plugin import PLUGIN_NAME
from mx_rec.validator.validator import Text, checked

_ops = None  # type: Optional[HostPipelineOps]


class HostPipelineOps(Library):
    """The Python functions of the plugin's ops, and those of the original that are no op here."""

    def set_threshold(self, input: Any,  # pylint: disable=redefined-builtin
                      emb_name: Any = "", ids_name: str = "") -> tf.Tensor:
        """Makes an op that changes the admission threshold of tables.

        Args:
            input: int32 scalar tensor: the new threshold, or 0, which stops the counting.
            emb_name: A table's name, or a list of names; empty is all tables with admission.
            ids_name: Of the original, without effect.

        Returns:
            int32 scalar, the value, once it is set.

        Raises:
            ValueError: If there is no such table in the present graph, or it has no admission.
        """
        return set_threshold_op(input, emb_name, ids_name)


def host_pipeline_ops() -> HostPipelineOps:
    """Returns the functions of the plugin's ops, always the same object.

    Raises:
        ImportError: If the plugin cannot be loaded.
    """
    global _ops
    if _ops is None:
        _ops = HostPipelineOps(plugin.load())
    return _ops


@checked(so_pkg_name=Text(1, 100))
def import_host_pipeline_ops(so_pkg_name: str = PLUGIN_NAME) -> HostPipelineOps:
    """Returns the Python functions of the plugin's ops.

    Args:
        so_pkg_name: Name of the plugin's file, 1-100 characters. The original's file names
            (libasc_ops.so and the like) mean the plugin as well.

    Returns:
        An object with one function per op.

    Raises:
        ValueError: If the name is not a str of 1-100 characters.
        RuntimeError: If the name is not that of a shared library, or the plugin cannot be loaded.
    """
    if not os.path.basename(so_pkg_name).endswith(".so"):
        raise RuntimeError("{!r} is not the name of a shared library; the plugin is {}.".format(
            so_pkg_name, PLUGIN_NAME))
    try:
        return host_pipeline_ops()
    except ImportError as error:
        raise RuntimeError(str(error)) from error
