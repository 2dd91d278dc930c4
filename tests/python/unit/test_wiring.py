"""Tensors in the place of outputs that a script holds."""

import tensorflow as tf

import support
from mx_rec.edits.wiring import replace_output


def test_the_object_of_a_replaced_output_is_the_tensor_in_its_place():
    """It was the first output of that tensor's op: a fetch of the second of two gathers gave the rows of the first."""
    with tf.Graph().as_default():
        held = [tf.reshape(tf.constant([float(at)]), [1]) for at in range(2)]
        read = [tf.identity(one) for one in held]
        parts = tf.unstack(tf.constant([[5.0], [6.0], [7.0]]))
        for old, part in zip(held, parts[1:]):
            replace_output(old.op, part)
        assert [one.value_index for one in held] == [1, 2] and held[0].op is held[1].op
        with support.new_session() as session:
            found = session.run(held + read)
    assert [one.tolist() for one in found] == [[6.0], [7.0]] * 2
