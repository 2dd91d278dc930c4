"""The logger of the package; it never touches the root logger or anyone else's."""

import logging
import sys

from mx_rec.base.global_env_conf import global_env


class _QuietHandler(logging.StreamHandler):
    """Writes to standard error, unless the application has set up logging itself.

    Records also travel to the root logger; where that has handlers they are the ones that
    write, so that nothing is printed twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("[%(asctime)s] [mx_rec] [%(levelname)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record to the present standard error."""
        if logging.getLogger().handlers:
            return
        self.stream = sys.stderr
        super().emit(record)


def _build_logger() -> logging.Logger:
    built = logging.getLogger("mx_rec")
    built.setLevel(global_env.log_level)
    if not any(type(handler).__name__ == _QuietHandler.__name__ for handler in built.handlers):
        built.addHandler(_QuietHandler())
    return built


logger = _build_logger()
_said = set()


def warn_once(message: str, *args: object) -> None:
    """Logs a warning the first time that this text is given in the process.

    Args:
        message: A format string as for `logging.Logger.warning`.
        *args: Its arguments.
    """
    text = message % args if args else message
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
