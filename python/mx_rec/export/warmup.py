"""The requests that TensorFlow Serving runs before a model serves: the first ones are slow."""

import os
from typing import Any, Dict, Sequence

import numpy as np
import tensorflow as tf

from mx_rec.export.predict_protos import predict_request, prediction_log

_SIGNATURE = tf.compat.v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY

# The server refuses more of them.
_MOST = 1000


def write_warmup(export_dir: str, examples: Sequence[Dict[str, Any]],
                 signatures: Dict[str, Any]) -> None:
    """Writes `assets.extra/tf_serving_warmup_requests`; nothing without examples.

    Args:
        export_dir: Directory of the model.
        examples: Arrays by the names of inputs of the signature `serving_default`.
        signatures: The model's signatures.

    Raises:
        ValueError: If examples do not fit the signature, or there are more than 1,000.
    """
    if not examples:
        return
    if len(examples) > _MOST:
        raise ValueError("'warmup' has {} examples, and TensorFlow Serving takes at most {}".format(
            len(examples), _MOST))
    if _SIGNATURE not in signatures:
        raise ValueError("'warmup' has examples of the signature {!r}, which the model does not "
                         "have".format(_SIGNATURE))
    inputs = signatures[_SIGNATURE].inputs
    directory = os.path.join(export_dir, "assets.extra")
    tf.io.gfile.makedirs(directory)
    with tf.io.TFRecordWriter(os.path.join(directory, "tf_serving_warmup_requests")) as writer:
        for number, example in enumerate(examples):
            if set(example) != set(inputs):
                raise ValueError("example {} of 'warmup' has the inputs {}, and the signature {!r} "
                                 "has {}".format(number, sorted(example), _SIGNATURE,
                                                 sorted(inputs)))
            values = {name: _tensor(value, inputs[name], number, name)
                      for name, value in example.items()}
            # The server fills in its own name for the model.
            writer.write(prediction_log(predict_request("", _SIGNATURE, values)))


def _tensor(value: Any, info: Any, number: int, name: str) -> Any:
    """Returns an input of an example as the signature has it."""
    shape = tf.TensorShape(info.tensor_shape)
    found = np.shape(value)
    if not shape.is_compatible_with(found):
        raise ValueError("example {} of 'warmup' has the input {!r} of shape {}, and the signature "
                         "has {}".format(number, name, found, shape))
    try:
        return tf.compat.v1.make_tensor_proto(value, tf.as_dtype(info.dtype))
    except TypeError as error:
        raise ValueError("example {} of 'warmup' has the input {!r}, which is no {}: {}".format(
            number, name, tf.as_dtype(info.dtype).name, error)) from error
