"""Checks of arguments, and the log line for settings that have no effect here."""

import numbers
from typing import Any, Iterable, Tuple

import tensorflow as tf

BOOL = "a bool"
INTEGER = "an int"
NATURAL = "an int >= 0"
POSITIVE = "an int >= 1"
NUMBER = "a number"
TEXT = "a str"
TEXT_OR_INTEGER = "a str or an int"


def fits(value: Any, kind: Any) -> bool:
    """Returns whether a value is of a kind: one of the constants above, or a class."""
    is_bool = isinstance(value, bool)
    is_integer = isinstance(value, numbers.Integral) and not is_bool
    if kind is BOOL:
        return is_bool
    if kind is INTEGER:
        return is_integer
    if kind is NATURAL:
        return is_integer and value >= 0
    if kind is POSITIVE:
        return is_integer and value >= 1
    if kind is NUMBER:
        return isinstance(value, numbers.Real) and not is_bool
    if kind is TEXT:
        return isinstance(value, str)
    if kind is TEXT_OR_INTEGER:
        return isinstance(value, str) or is_integer
    return isinstance(value, kind)


def check(name: str, value: Any, kind: Any, optional: bool = False) -> None:
    """Checks one argument.

    Args:
        name: Its name, for the message.
        value: What was given.
        kind: One of the constants above, or a class.
        optional: Whether None is right, too.

    Raises:
        ValueError: If it is not of that kind; the message names the argument and the value.
    """
    if (optional and value is None) or fits(value, kind):
        return
    wanted = kind if isinstance(kind, str) else "of type {}".format(kind.__name__)
    raise ValueError("{} should be {}{}, but is {!r}".format(
        name, wanted, " or None" if optional else "", value))


def one_of(name: str, value: Any, choices: Tuple[Any, ...]) -> None:
    """Checks that an argument is one of a few values.

    Raises:
        ValueError: If it is not; the message lists them.
    """
    if isinstance(value, bool) or value not in choices:
        raise ValueError("{} should be one of {}, but is {!r}".format(
            name, ", ".join(repr(choice) for choice in choices), value))


def log_ignored(where: str, names: Iterable[str]) -> None:
    """Writes one log line that names settings without effect; nothing if there are none.

    Args:
        where: What they were given to.
        names: The settings.
    """
    listed = ", ".join(names)
    if listed:
        tf.compat.v1.logging.warning(
            "tf_adapter, mx_rec's stand-in for CPUs: %s: settings for NPUs, without effect here: "
            "%s", where, listed)
