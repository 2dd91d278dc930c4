"""The logger of the package, under the name that scripts import."""

from mx_rec.base.log import logger, warn_once  # noqa: F401
