"""Argument checks: one small class per rule, and the decorator that applies them.

Where a number of Python is taken, one of NumPy is taken as well, and becomes one of Python: what is
stored is an int or a float. A bool, of either, is no number.
"""

import functools
import inspect
import numbers
from typing import Any, Callable, Optional, Sequence, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Check:
    """One rule for one argument.

    Args:
        optional: Whether None is accepted.

    Attributes:
        takes_numbers: Whether an accepted number of NumPy is turned into one of Python.
    """

    takes_numbers = False

    def __init__(self, optional: bool = False) -> None:
        self.optional = optional

    def __call__(self, name: str, value: Any) -> Any:
        """Checks `value`.

        Args:
            name: The argument's name, for the message.
            value: What the caller gave.

        Returns:
            The value to use: a number of NumPy as one of Python, anything else as it is.

        Raises:
            ValueError: If the value breaks the rule.
        """
        if value is None and self.optional:
            return value
        self.check(name, value)
        return as_python_number(value) if self.takes_numbers else value

    def check(self, name: str, value: Any) -> None:
        """Checks a value that is not an accepted None."""
        raise NotImplementedError


class Range(Check):
    """Bounds of a number; a bound of None is no bound."""

    takes_numbers = True

    def __init__(self, least: Optional[float] = None, most: Optional[float] = None,
                 above: Optional[float] = None, below: Optional[float] = None,
                 optional: bool = False) -> None:
        super().__init__(optional)
        self.least = least
        self.most = most
        self.above = above
        self.below = below

    def check(self, name: str, value: Any) -> None:
        """Checks the bounds; a value that does not compare (NaN) is refused as well."""
        for rule, bound, is_kept in (
                ("less than", self.least, lambda bound: value >= bound),
                ("less than or equal", self.above, lambda bound: value > bound),
                ("bigger than", self.most, lambda bound: value <= bound),
                ("bigger than or equal", self.below, lambda bound: value < bound)):
            if bound is not None and not is_kept(bound):
                raise ValueError("'{}' is {} {}: it is {}".format(name, rule, bound, value))


class Int(Range):
    """An int (not a bool) within bounds."""

    def check(self, name: str, value: Any) -> None:
        """Checks type, then bounds."""
        if not is_int(value):
            raise ValueError("type of '{}' is not int: it is {!r}".format(name, value))
        super().check(name, value)


class Float(Range):
    """A float within bounds; an int is refused."""

    def check(self, name: str, value: Any) -> None:
        """Checks type, then bounds."""
        if not is_float(value):
            raise ValueError("type of '{}' is not float: it is {!r}".format(name, value))
        super().check(name, value)


class Number(Range):
    """A float or an int (not a bool) within bounds."""

    def check(self, name: str, value: Any) -> None:
        """Checks type, then bounds."""
        if not is_float(value) and not is_int(value):
            raise ValueError("type of '{}' is not float: it is {!r}".format(name, value))
        super().check(name, value)


class Bool(Check):
    """A bool."""

    def check(self, name: str, value: Any) -> None:
        """Checks the type."""
        if not isinstance(value, bool):
            raise ValueError("type of '{}' is not bool: it is {!r}".format(name, value))


class Text(Check):
    """A str with a bounded length."""

    def __init__(self, least: int, most: int, optional: bool = False) -> None:
        super().__init__(optional)
        self.least = least
        self.most = most

    def check(self, name: str, value: Any) -> None:
        """Checks type and length."""
        if not isinstance(value, str):
            raise ValueError("type of '{}' is not str: it is {!r}".format(name, value))
        if len(value) < self.least:
            raise ValueError("'{}' length is less than {}".format(name, self.least))
        if len(value) > self.most:
            raise ValueError("'{}' length is bigger than {}".format(name, self.most))


class Type(Check):
    """An instance of one of the given classes; int stands for integers of NumPy as well."""

    def __init__(self, *types: type, optional: bool = False) -> None:
        super().__init__(optional)
        self.types = types
        self.takes_numbers = int in types

    def check(self, name: str, value: Any) -> None:
        """Checks the type."""
        if not isinstance(value, self.types) and not (int in self.types and is_int(value)):
            raise ValueError("Invalid parameter type of para '{}', not in {}: it is a {}".format(
                name, [kind.__name__ for kind in self.types], type(value).__name__))


class Option(Check):
    """One of a few values."""

    def __init__(self, options: Sequence[Any], optional: bool = False) -> None:
        super().__init__(optional)
        self.options = tuple(options)

    def check(self, name: str, value: Any) -> None:
        """Checks membership."""
        if not any(type(value) is type(option) and value == option for option in self.options):
            raise ValueError("Invalid option of '{}', should be one of {}".format(
                name, list(self.options)))


def is_int(value: Any) -> bool:
    """Returns whether `value` is an integer of Python or NumPy, and not a bool."""
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in "iu"
    return isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))


def is_float(value: Any) -> bool:
    """Returns whether `value` is a floating point number of Python or NumPy."""
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind == "f"
    return isinstance(value, (float, np.floating))


def as_python_number(value: Any) -> Any:
    """Returns a number of NumPy as an int or a float; anything else as it is."""
    if is_int(value):
        return int(value)
    return float(value) if is_float(value) else value


def checked(**checks: Check) -> Callable[[_Function], _Function]:
    """Makes a decorator that checks arguments before the function is called.

    Checked numbers of NumPy reach the function as numbers of Python.

    Args:
        **checks: The rule of each argument, by the argument's name. Defaults are checked too.

    Returns:
        A decorator. The decorated function raises ValueError for the first broken rule, in
        the order in which the rules are written.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        unknown = set(checks) - set(signature.parameters)
        if unknown:
            raise TypeError("{} has no parameters {}".format(function.__name__, sorted(unknown)))

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name, check in checks.items():
                bound.arguments[name] = check(name, bound.arguments[name])
            return function(*bound.args, **bound.kwargs)

        return wrapper  # type: ignore

    return decorate
