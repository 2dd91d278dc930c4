"""Access to the plugin's ops."""

import os

from mx_rec.plugin import PLUGIN_NAME
from mx_rec.util.host_ops import HostOps, host_pipeline_ops
from mx_rec.validator.validator import Text, checked


@checked(so_pkg_name=Text(1, 100))
def import_host_pipeline_ops(so_pkg_name: str = PLUGIN_NAME) -> HostOps:
    """Returns the Python functions of the plugin's ops.

    Args:
        so_pkg_name: Name of the plugin's file, 1-100 characters. The original's file names
            (libasc_ops.so and the like) mean the plugin as well.

    Returns:
        An object with one function per op, and with the host ops of the original
        (mx_rec.util.host_ops).

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
