"""What tests of checkpoints save and restore: tables beside a variable, each with one value in all its floats."""

import numpy as np
import tensorflow as tf

import support


class Model:
    """Tables beside a dense variable, and their Saver.

    Attributes:
        raws: The tables.
        dense: The variable.
        saver: A Saver of all.
    """

    def __init__(self, names=("users", "items"), rows=(5, 5), dim=3, capacity=100, shape=(2,), **saver):
        """
        Args:
            rows: How many rows each table gets.
            shape: That of the variable.
            **saver: Arguments of the Saver.
        """
        self.rows = rows
        self.raws = [support.Raw.of(support.make_table(name, dim, capacity)) for name in names]
        self.dense = tf.compat.v1.get_variable("dense", initializer=np.zeros(shape, np.float32))
        self._value = tf.compat.v1.placeholder(tf.float32, [])
        self._fill_dense = self.dense.assign(tf.fill(shape, self._value))
        self.saver = tf.compat.v1.train.Saver(**saver)

    def fill(self, sess, value, most=None):
        """Sets all of a session, at most so many rows of each table; returns the session."""
        for raw, rows in self._with_rows(most):
            raw.assign(sess, np.arange(rows), np.full([rows, raw.dim], value))
        sess.run(self._fill_dense, {self._value: value})
        return sess

    def saved(self, sess, value, most=None, prefix=None):
        """Sets all of a session as `fill` does, and saves it at step 1; returns (the session, the checkpoint)."""
        return self.fill(sess, value, most), self.saver.save(sess, prefix, global_step=1)

    def assert_filled(self, sess, value, most=None):
        """Asserts that a session is as `fill` leaves it."""
        for raw, rows in self._with_rows(most):
            keys, found = raw.export(sess)
            assert sorted(keys) == list(range(rows)) and np.all(found == np.float32(value))
        assert np.all(sess.run(self.dense) == np.float32(value))

    def _with_rows(self, most):
        return [(raw, min(rows, most or rows)) for raw, rows in zip(self.raws, self.rows)]
