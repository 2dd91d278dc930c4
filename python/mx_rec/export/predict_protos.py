"""The few messages of TensorFlow Serving that are written and read here, without their definitions.

They are PredictRequest, PredictResponse and PredictionLog of its tensorflow_serving/apis, in the
wire format of protocol buffers, where a message inside of another, a text and bytes look the same:
one message of bytes stands for all of them. Tensors are TensorFlow's own TensorProto, so that the
package tensorflow-serving-api is not needed.
"""

from typing import Any, Dict

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from tensorflow.core.framework import tensor_pb2

# Fields: of a request, of the ModelSpec in it, of a map's entries, of a response and of a log.
_MODEL_SPEC, _INPUTS = "f1", "f2"
_NAME, _SIGNATURE = "f1", "f3"
_KEY, _VALUE = "f1", "f2"
_OUTPUTS = "f1"
_REQUEST_OF_LOG, _PREDICT_LOG = "f1", "f6"


def _message_of_bytes() -> Any:
    """Returns the class of a message that has lists of bytes in the fields that are used here."""
    file = descriptor_pb2.FileDescriptorProto(name="mx_rec/bytes.proto", package="mx_rec")
    kind = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Bytes").field.extend(
        kind(name="f{}".format(number), number=number, type=kind.TYPE_BYTES,
             label=kind.LABEL_REPEATED) for number in (1, 2, 3, 6))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("mx_rec.Bytes")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    # Before 4.22.
    return message_factory.MessageFactory(pool).GetPrototype(found)


_Bytes = _message_of_bytes()


def predict_request(model: str, signature: str, inputs: Dict[str, Any]) -> bytes:
    """Returns a PredictRequest.

    Args:
        model: Name of the model.
        signature: Name of the signature.
        inputs: Arrays, numbers, str or bytes by the names of the inputs.
    """
    entries = []
    for name, value in sorted(inputs.items()):
        tensor = value if isinstance(value, tensor_pb2.TensorProto) \
            else tf.compat.v1.make_tensor_proto(value)
        entries.append(_written({_KEY: [name.encode("utf-8")],
                                 _VALUE: [tensor.SerializeToString()]}))
    return _written({_MODEL_SPEC: [_written({_NAME: [model.encode("utf-8")],
                                             _SIGNATURE: [signature.encode("utf-8")]})],
                     _INPUTS: entries})


def predict_outputs(response: bytes) -> Dict[str, np.ndarray]:
    """Returns the outputs of a PredictResponse by name.

    Raises:
        ValueError: If it is none.
    """
    outputs = {}
    try:
        for entry in map(_Bytes.FromString, getattr(_Bytes.FromString(response), _OUTPUTS)):
            value = tensor_pb2.TensorProto.FromString(b"".join(getattr(entry, _VALUE)))
            outputs[getattr(entry, _KEY)[-1].decode("utf-8")] = tf.make_ndarray(value)
    except (message.DecodeError, IndexError) as error:
        raise ValueError("it is no PredictResponse: {}".format(error)) from error
    return outputs


def prediction_log(request: bytes) -> bytes:
    """Returns a PredictionLog of a PredictRequest."""
    return _written({_PREDICT_LOG: [_written({_REQUEST_OF_LOG: [request]})]})


def _written(fields: Dict[str, Any]) -> bytes:
    return bytes(_Bytes(**fields).SerializeToString())
