"""Shows on a terminal how far a long reading is."""

import time
from typing import Callable, TextIO

# Seconds before the first line, and between two.
_PAUSE = 0.5


class Meter:
    """A line that is written over and over.

    Args:
        stream: Where the line goes.
        enabled: Whether it is shown at all.
    """

    def __init__(self, stream: TextIO, enabled: bool) -> None:
        self._stream = stream
        self._enabled = enabled
        self._overwrites = stream.isatty()
        self._width = 0

    def of(self, what: str) -> Callable[[int, int], None]:
        """Returns a function that shows (bytes done, bytes in all) of one task.

        Args:
            what: What is done, such as "verifying model/sparse-model.ckpt-1/user_table".
        """
        shown = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            # The end is told only where it stays.
            waits = now - shown < _PAUSE and (self._overwrites or done < total)
            if not self._enabled or waits:
                return
            shown = now
            self._line("{}: {:3d}% of {}".format(what, 100 * done // max(total, 1), size(total)))

        return tell

    def end(self) -> None:
        """Removes the line from a terminal."""
        if self._width and self._overwrites:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
        self._width = 0

    def _line(self, text: str) -> None:
        text = text.encode("ascii", "backslashreplace").decode("ascii")
        if self._overwrites:
            self._stream.write("\r" + text.ljust(self._width))
        else:
            self._stream.write(text + "\n")
        self._width = max(self._width, len(text))
        self._stream.flush()


def size(number: int) -> str:
    """Returns a number of bytes for a person to read."""
    if number < 1024:
        return "{} B".format(number)
    value = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return "{:.1f} {}".format(value, unit)
    return "{:.1f} TiB".format(value / 1024)
