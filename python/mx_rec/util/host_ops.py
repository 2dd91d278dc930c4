"""The host ops of the original, on what `import_host_pipeline_ops()` returns.

There is no host pipeline here: ids travel with the batch. Ops that only told the pipeline something
do nothing when they run; those that would put ids into it are refused when they are called.
"""

from typing import Any, NoReturn, Optional

import tensorflow as tf

from mx_rec import plugin
from mx_rec.constants.constants import EVAL_CHANNEL_ID, TRAIN_CHANNEL_ID
from mx_rec.core.admission import set_threshold_op
from mx_rec.ops.shapes import Library
from mx_rec.validator.validator import Int

_library = None  # type: Optional[HostOps]


class HostOps(Library):
    """The Python functions of the plugin's ops, and the host ops of the original."""

    set_threshold = staticmethod(set_threshold_op)

    def clear_channel(self, channel_id: int, name: Optional[str] = None) -> tf.Operation:
        """Makes the op that scripts run before an evaluation round: there is nothing to clear.

        Args:
            channel_id: 0 for training, 1 for evaluation.
            name: A name for the op.

        Returns:
            An op without inputs and outputs.

        Raises:
            ValueError: If there is no such channel.
        """
        Int(TRAIN_CHANNEL_ID, EVAL_CHANNEL_ID)("channel_id", channel_id)
        return tf.no_op(name=name or "ClearChannel")

    def return_timestamp(self, input: Any,  # pylint: disable=redefined-builtin
                         name: Optional[str] = None) -> tf.Tensor:
        """Makes an op that tells the time of each run, for example for every batch of a dataset.

        Args:
            input: int64 tensor of any shape; its value is not looked at.
            name: A name for the op.

        Returns:
            int64 scalar: seconds since 1970.

        Raises:
            ValueError: If input is not int64.
        """
        value = tf.convert_to_tensor(input)
        if value.dtype != tf.int64:
            raise ValueError("type of 'input' of return_timestamp is not int64: it is {}".format(
                value.dtype.name))
        with tf.compat.v1.name_scope(name or "ReturnTimestamp"):
            with tf.control_dependencies([value]):
                return tf.cast(tf.timestamp(), tf.int64)

    def eos_dataset(self, input_dataset: tf.Tensor, channel_id: Any, max_train_steps: Any,
                    max_eval_steps: Any, output_types: Any, output_shapes: Any,
                    name: Optional[str] = None) -> tf.Tensor:
        """Makes the op that ends a dataset after the number of batches of its channel.

        Args:
            input_dataset: variant scalar, as `dataset._variant_tensor`.
            channel_id: int32 scalar, 0 for training, 1 for evaluation.
            max_train_steps: int32 scalar: batches of channel 0; -1 is all.
            max_eval_steps: int32 scalar: batches of channel 1; -1 is all.
            output_types: List of the dtypes of an element's components.
            output_shapes: List of their shapes.
            name: A name for the op.

        Returns:
            variant scalar, the new dataset.
        """
        channel, train, evaluation = [
            tf.convert_to_tensor(value, tf.int32, name=argument) for argument, value in (
                ("channel_id", channel_id), ("max_train_steps", max_train_steps),
                ("max_eval_steps", max_eval_steps))]
        count = tf.compat.v1.where(tf.equal(channel, TRAIN_CHANNEL_ID), train, evaluation)
        return tf.raw_ops.TakeDataset(
            input_dataset=input_dataset, count=tf.cast(count, tf.int64), output_types=output_types,
            output_shapes=output_shapes, name=name or "EosDataset")

    def read_emb_key_v2(self, sample: Any = None, channel_id: int = 0, splits: Any = None,
                        emb_name: Any = None, timestamp: bool = False,
                        name: Optional[str] = None) -> NoReturn:
        """Raises NotImplementedError: there is no queue to put ids into."""
        _no_queue("read_emb_key_v2")

    def read_emb_key_v2_dynamic(self, sample: Any = None, splits: Any = None, channel_id: int = 0,
                                emb_name: Any = None, timestamp: bool = False,
                                name: Optional[str] = None) -> NoReturn:
        """Raises NotImplementedError: there is no queue to put ids into."""
        _no_queue("read_emb_key_v2_dynamic")


def _no_queue(name: str) -> NoReturn:
    raise NotImplementedError(
        "{} puts ids into a queue of the original's host pipeline, which there is none of here: "
        "lookups take ids from the batch. Map get_asc_insert_func([FeatureSpec(...)]) over the "
        "dataset instead, or look up tensor ids with modify_graph=True.".format(name))


def host_pipeline_ops() -> HostOps:
    """Returns the functions of the plugin's ops and the host ops, always the same object.

    Raises:
        ImportError: If the plugin cannot be loaded.
    """
    global _library
    if _library is None:
        _library = HostOps(plugin.load())
    return _library
