"""Which TensorFlow this is, and where it has the private names that mx_rec uses.

A name is looked up in the places where versions have had it, newest first among those that this
version can have. What is in none of them is told in the log once, and stands for itself as an
`Absent`: importing mx_rec goes on, and using the feature says what is missing.
"""

import importlib
import importlib.util
from typing import Any, List, Tuple

import tensorflow as tf

from mx_rec.base.log import logger, warn_once

# The versions that docs/compatibility.md has a column for.
TRIED = ((1, 15), (2, 6), (2, 11), (2, 15), (2, 21))

_Place = Tuple[Tuple[int, int], str]


def _numbers(text: str) -> Tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


VERSION = _numbers(tf.__version__)
IS_1 = VERSION < (2, 0)


def has_estimators() -> bool:
    """Returns whether this TensorFlow comes with Estimators: 2.16 and newer do not."""
    return hasattr(tf, "estimator") and importlib.util.find_spec("tensorflow_estimator") is not None


_missing = []  # type: List[str]


class Absent:
    """Stands for a name that this TensorFlow does not have.

    Args:
        name: The name, with its module.
        feature: What needs it.
    """

    def __init__(self, name: str, feature: str) -> None:
        self._text = "{} cannot be used with TensorFlow {}: it has no {}, where mx_rec looks for " \
            "it. docs/compatibility.md lists the versions that were tried.".format(
                feature, tf.__version__, name)

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(self._text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(self._text)


def find(feature: str, *places: _Place) -> Any:
    """Finds a private module or a name in one.

    Args:
        feature: What needs it, the subject of a sentence.
        *places: (first version that has it there, "module" or "module:name"), newest first.

    Returns:
        What is there, or an `Absent`.
    """
    possible = [place for since, place in places if since <= VERSION]
    for place in possible:
        module, _, name = place.partition(":")
        try:
            found = importlib.import_module(module)
            return getattr(found, name) if name else found
        except (ImportError, AttributeError):
            continue
    return absent(feature, (possible or [place for _, place in places])[0])


def absent(feature: str, name: str) -> Absent:
    """Notes that a name is missing, and returns what stands for it."""
    if feature not in _missing:
        _missing.append(feature)
        logger.warning("TensorFlow %s has no %s, so that this is missing: %s.", tf.__version__,
                       name, feature)
    return Absent(name, feature)


def missing() -> List[str]:
    """Returns the features whose names this TensorFlow does not have."""
    return list(_missing)


def report_untried() -> None:
    """Says in the log, once, that this version of TensorFlow was never tried."""
    if VERSION not in TRIED:
        warn_once("mx_rec was never tried with TensorFlow %s, only with %s: see "
                  "docs/compatibility.md.", tf.__version__,
                  ", ".join("{}.{}".format(*one) for one in TRIED))
