"""Recurrent networks of the device, made of TensorFlow's own ops."""

import tensorflow as tf


def npu_dynamic_rnn(cell, inputs, initial_state=None, dtype=None, sequence_length=None,
                    scope=None):
    """Runs a cell over time: `tf.nn.dynamic_rnn` with `time_major=True`.

    Args:
        cell: An RNNCell.
        inputs: A tensor of shape [max_time, batch_size, ...], or a nested tuple of such tensors.
        initial_state: The state before the first step, in the structure of `cell.state_size`.
        dtype: Of the initial state and the outputs; needed without `initial_state`.
        sequence_length: int32 or int64 tensor [batch_size] in [0, max_time]: after so many steps
            outputs are zero and the state stays. None is max_time.
        scope: A variable scope or its name, "rnn" by default.

    Returns:
        The outputs, [max_time, batch_size, cell.output_size], and the last state.
    """
    return tf.compat.v1.nn.dynamic_rnn(
        cell, inputs, sequence_length=sequence_length, initial_state=initial_state, dtype=dtype,
        time_major=True, scope=scope)
