"""What stands for the variables of a checkpoint that has none."""

from typing import Any, List

import tensorflow as tf

from mx_rec.tensorflow.names import saveable_object


class Nothing(saveable_object.SaveableObject):
    """Is saved and restored in the place of variables, so that there are files and a Saver.

    Args:
        name: Its name in the checkpoint.
    """

    def __init__(self, name: str) -> None:
        with tf.init_scope():
            value = tf.constant(0, tf.int64, name=name)
        spec = saveable_object.SaveSpec(value, "", name, dtype=tf.int64)
        super().__init__(value, [spec], name)

    def restore(self, restored_tensors: List[tf.Tensor], restored_shapes: Any) -> tf.Operation:
        """Does nothing with what was read."""
        del restored_shapes
        return tf.group(*[tensor.op for tensor in restored_tensors])
