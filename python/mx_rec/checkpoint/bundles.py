"""Checkpoints of TensorFlow's variables that are written without a graph that has these."""

import contextlib
import os
from typing import Iterator, List

import numpy as np
import tensorflow as tf

from mx_rec.checkpoint.contents import alone


class BundleWriter:
    """Writes tensors one by one into the files of one checkpoint of TensorFlow.

    Args:
        session: A session of an empty graph.
        directory: Holds what is not yet merged, and goes with `finish`; on the file system of the
            checkpoint.
    """

    def __init__(self, session: tf.compat.v1.Session, directory: str) -> None:
        self._session = session
        self._directory = directory
        self._parts = []  # type: List[str]
        with session.graph.as_default(), tf.device("/cpu:0"):
            placeholder = tf.compat.v1.placeholder
            self._prefix = placeholder(tf.string, [])
            self._name, self._slice = placeholder(tf.string, [1]), placeholder(tf.string, [1])
            self._values = {np.dtype(dtype): placeholder(dtype)
                            for dtype in (np.float32, np.int16, np.int8, np.int64)}
            self._saves = {dtype: tf.raw_ops.SaveV2(
                prefix=self._prefix, tensor_names=self._name, shape_and_slices=self._slice,
                tensors=[value]) for dtype, value in self._values.items()}
            self._merged = placeholder(tf.string, [None])
            self._merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=self._merged, destination_prefix=self._prefix,
                delete_old_dirs=True)

    def new_part(self) -> str:
        """Returns a prefix for a checkpoint that is to be merged with the others."""
        self._parts.append(os.path.join(self._directory, "part-{:06}".format(len(self._parts))))
        return self._parts[-1]

    def write(self, name: str, where: str, values: np.ndarray) -> None:
        """Writes a tensor, or a part of one.

        Args:
            name: Its name in the checkpoint.
            where: Shape of the whole and slice, as SaveV2 has it; empty for a whole one.
            values: float32, int16, int8 or int64.
        """
        self._session.run(self._saves[values.dtype], {
            self._prefix: self.new_part(), self._name: [name], self._slice: [where],
            self._values[values.dtype]: values})

    def finish(self, prefix: str) -> None:
        """Makes one checkpoint of all parts, under a prefix."""
        self._session.run(self._merge, {self._merged: self._parts, self._prefix: prefix})


@contextlib.contextmanager
def bundle(prefix: str) -> Iterator[BundleWriter]:
    """A context in which a checkpoint is written; it is there at the end.

    Args:
        prefix: Its prefix; no other checkpoint is written in its directory meanwhile.
    """
    directory = os.path.dirname(prefix) + "/parts"
    tf.io.gfile.makedirs(directory)
    with tf.compat.v1.Session(graph=tf.Graph(), config=alone()) as session:
        writer = BundleWriter(session, directory)
        yield writer
        writer.finish(prefix)
    if tf.io.gfile.exists(directory):
        tf.io.gfile.rmtree(directory)
