"""Embedding tables for TensorFlow, with the names that Rec SDK scripts import."""

from mx_rec._version import VERSION
from mx_rec.base.command import is_run_command

if not is_run_command():
    from mx_rec import plugin

    plugin.check_tensorflow()

    from mx_rec.base import global_env_conf  # noqa: F401  the environment is checked first

    plugin.load()

    from mx_rec.ops import gradients  # noqa: F401  registers the gradients of the ops
    from mx_rec import patches, util  # noqa: F401  scripts reach mx_rec.util.initialize so
    from mx_rec.tensorflow import versions

    patches.apply()
    versions.report_untried()

__version__ = VERSION


def version() -> str:
    """Returns the version of the package, for example "0.1.0"."""
    return VERSION


__all__ = [
    "__version__",
    "version",
]
