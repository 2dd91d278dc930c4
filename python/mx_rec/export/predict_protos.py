"""The few messages of TensorFlow Serving that are written and read here, byte by byte.

They are PredictRequest, PredictResponse and PredictionLog of its tensorflow_serving/apis, in the
wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding. Tensors are
TensorFlow's own TensorProto, so that the package tensorflow-serving-api is not needed.
"""

from typing import Any, Dict, Iterator, Tuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

# Fields: of a request, of the ModelSpec in it, of a map's entries, of a response and of a log.
_MODEL_SPEC, _INPUTS = 1, 2
_NAME, _SIGNATURE = 1, 3
_KEY, _VALUE = 1, 2
_OUTPUTS = 1
_REQUEST_OF_LOG, _PREDICT_LOG = 1, 6

# Kinds of values: of fixed sizes, and those with a length.
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def predict_request(model: str, signature: str, inputs: Dict[str, Any]) -> bytes:
    """Returns a PredictRequest.

    Args:
        model: Name of the model.
        signature: Name of the signature.
        inputs: Arrays, numbers, str or bytes by the names of the inputs.
    """
    spec = _field(_NAME, model.encode("utf-8")) + _field(_SIGNATURE, signature.encode("utf-8"))
    request = _field(_MODEL_SPEC, spec)
    for name, value in sorted(inputs.items()):
        tensor = value if isinstance(value, tensor_pb2.TensorProto) \
            else tf.compat.v1.make_tensor_proto(value)
        request += _field(_INPUTS, _field(_KEY, name.encode("utf-8"))
                          + _field(_VALUE, tensor.SerializeToString()))
    return request


def predict_outputs(response: bytes) -> Dict[str, np.ndarray]:
    """Returns the outputs of a PredictResponse by name.

    Raises:
        ValueError: If it is none.
    """
    outputs = {}
    for number, value in _fields(response):
        if number == _OUTPUTS:
            entry = dict(_fields(value))
            outputs[entry[_KEY].decode("utf-8")] = tf.make_ndarray(
                tensor_pb2.TensorProto.FromString(entry.get(_VALUE, b"")))
    return outputs


def prediction_log(request: bytes) -> bytes:
    """Returns a PredictionLog of a PredictRequest."""
    return _field(_PREDICT_LOG, _field(_REQUEST_OF_LOG, request))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def _fields(message: bytes) -> Iterator[Tuple[int, bytes]]:
    """Yields number and value of the fields that have a length."""
    place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        kind = tag & 7
        if kind == _VARINT:
            _, place = _read_varint(message, place)
            continue
        if kind == _LENGTH:
            size, place = _read_varint(message, place)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError("a field of a message has the unknown kind {}".format(kind))
        if place + size > len(message):
            raise ValueError("a message ends within a field")
        if kind == _LENGTH:
            yield tag >> 3, message[place:place + size]
        place += size


def _read_varint(message: bytes, place: int) -> Tuple[int, int]:
    number = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
    raise ValueError("a message ends within a number")
