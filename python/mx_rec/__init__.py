"""Embedding tables for TensorFlow, with the names that Rec SDK scripts import."""

from mx_rec import plugin
from mx_rec._version import VERSION

plugin.check_tensorflow()

from mx_rec.base import global_env_conf  # noqa: E402,F401  the environment is checked first

plugin.load()

from mx_rec.ops import gradients  # noqa: E402,F401  registers the gradients of the ops
from mx_rec import patches, util  # noqa: E402,F401  scripts reach mx_rec.util.initialize so
from mx_rec.tensorflow import versions  # noqa: E402

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
