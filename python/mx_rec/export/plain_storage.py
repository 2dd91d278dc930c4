"""How rows of tables are stored in SavedModels of TensorFlow's own ops: float32, float16 or int8.

A row of int8 begins with its scale, a float32 in four bytes, so that one read gives both:

    offset  0                 4                5
           +-----------------+----------------+----------------+-----
           | scale  float32  | number 0  int8 | number 1  int8 | ..         a number is scale * int8
           +-----------------+----------------+----------------+-----
"""

from typing import Dict

import numpy as np
import tensorflow as tf

_SCALE_BYTES = 4
_GREATEST = np.float32(127)


class Storage:
    """Rows that are stored as they are.

    Attributes:
        name: What the argument `rows_as` calls it.
        dtype: Of the variables with the rows.
    """

    name = "float32"
    dtype = tf.float32

    def width(self, dim: int) -> int:
        """Returns the elements of a stored row of `dim` floats."""
        return dim

    def bytes_of(self, dim: int) -> int:
        """Returns the bytes of a stored row of `dim` floats."""
        return self.width(dim) * int(self.dtype.size)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows as they are stored.

        Args:
            rows: float32 of shape (n, dim).

        Returns:
            Of shape (n, width(dim)).

        Raises:
            ValueError: If a row has a number that cannot be stored so.
        """
        return rows

    def decode(self, stored: tf.Tensor, dim: int) -> tf.Tensor:
        """Adds the ops that give rows, float32 of shape (n, dim), from stored ones."""
        return tf.ensure_shape(stored, [None, dim])


class _Halves(Storage):
    """Rows of float16, rounded to the nearest, of 65,504 at most.

    Their variables have int16: TensorFlow 1.15 does not restore slices of float16.
    """

    name = "float16"
    dtype = tf.int16

    def encode(self, rows: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            stored = rows.astype(np.float16)
        _refuse(rows, np.isinf(stored) & np.isfinite(rows), self.name)
        return stored.view(np.int16)

    def decode(self, stored: tf.Tensor, dim: int) -> tf.Tensor:
        return tf.cast(tf.bitcast(tf.ensure_shape(stored, [None, dim]), tf.float16), tf.float32)


class _Bytes(Storage):
    """Rows of int8 with a scale each, so that the greatest number of a row is 127 or -127."""

    name = "int8"
    dtype = tf.int8

    def width(self, dim: int) -> int:
        return _SCALE_BYTES + dim

    def encode(self, rows: np.ndarray) -> np.ndarray:
        _refuse(rows, ~np.isfinite(rows), self.name)
        scales = (np.max(np.abs(rows), 1, keepdims=True) / _GREATEST).astype(np.float32)
        numbers = rows / np.where(scales > 0, scales, np.float32(1))
        # The scale of a denormal row may be rounded down.
        numbers = np.clip(np.rint(numbers), -_GREATEST, _GREATEST).astype(np.int8)
        return np.concatenate([np.ascontiguousarray(scales).view(np.int8), numbers], 1)

    def decode(self, stored: tf.Tensor, dim: int) -> tf.Tensor:
        stored = tf.ensure_shape(stored, [None, self.width(dim)])
        scales = tf.bitcast(stored[:, :_SCALE_BYTES], tf.float32)
        return tf.cast(stored[:, _SCALE_BYTES:], tf.float32) * scales[:, tf.newaxis]


def _refuse(rows: np.ndarray, wrong: np.ndarray, name: str) -> None:
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError("a row has the number {!r}, which rows_as={!r} cannot store".format(
            float(rows[row, column]), name))


FLOAT32 = Storage()

# By the name that `rows_as` has for it.
STORAGES = {one.name: one for one in (FLOAT32, _Halves(), _Bytes())}  # type: Dict[str, Storage]
