"""Servers of a plain model, by gRPC, by REST or in this process; all answer `predict`."""

import base64
import http.client
import json
import threading
import urllib.parse
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from mx_rec.export.predict_protos import predict_outputs, predict_request

try:
    import grpc
except ImportError:
    # TensorFlow 2.16 and newer may come without it; REST needs none.
    grpc = None

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_MODELS = "/v1/models/"

# What an output is called that is the only one: REST leaves its name away.
_ONLY_OUTPUT = "outputs"

_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class ServerError(Exception):
    """A server has refused a request; the text says why, and the request is of no use again."""


class Unreachable(Exception):
    """A server did not answer, or does not serve the model yet; the request may be sent again."""


class Server:
    """A server of one model.

    Attributes:
        name: For messages.
    """

    name = ""

    def predict(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, Any]:
        """Runs a signature.

        Args:
            signature: Its name.
            inputs: bytes, str, int or lists of them, or arrays, by the names of inputs.

        Returns:
            The outputs by name, arrays or what JSON has for them. REST does not name an output
            that is the only one: it is called "outputs".

        Raises:
            ServerError: If the server refuses.
            Unreachable: If it does not answer in time.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends connections."""


class GrpcServer(Server):
    """TensorFlow Serving's PredictionService.

    Args:
        target: host:port.
        model: The model's name.
        timeout: Seconds that an answer may take.
    """

    def __init__(self, target: str, model: str, timeout: float) -> None:
        if grpc is None:
            raise ServerError("{} is an address of gRPC, and the package grpcio is not there: "
                              "install it, or use http://HOST:PORT{}{}".format(
                                  target, _MODELS, model))
        self.name = "{}/{}".format(target, model)
        self._model, self._timeout = model, timeout
        self._channel = grpc.insecure_channel(target, options=_UNLIMITED)
        self._predict = self._channel.unary_unary(_PREDICT)

    def predict(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, Any]:
        try:
            return predict_outputs(self._predict(
                predict_request(self._model, signature, inputs), timeout=self._timeout))
        except grpc.RpcError as error:
            code = error.code()
            text = "{}: {}: {}".format(self.name, code.name, _readable(error.details()))
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED,
                        grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED,
                        grpc.StatusCode.ABORTED):
                raise Unreachable(text) from error
            raise ServerError(text) from error

    def close(self) -> None:
        self._channel.close()


class RestServer(Server):
    """TensorFlow Serving's REST form, in which bytes are base64.

    Args:
        address: http://host:port/v1/models/NAME; /versions/N may follow.
        timeout: Seconds that an answer may take.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self.name = address
        parts = urllib.parse.urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" \
            else http.client.HTTPConnection  # type: Any
        self._path = parts.path + ":predict"
        self._open = lambda: kind(parts.netloc, timeout=timeout)  # type: Callable[[], Any]
        self._connection = None  # type: Optional[Any]
        self._lock = threading.Lock()

    def predict(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, Any]:
        body = json.dumps({"signature_name": signature,
                           "inputs": {name: _json(value) for name, value in inputs.items()}})
        with self._lock:
            status, answer = self._post(body.encode("utf-8"))
        try:
            found = json.loads(answer.decode("utf-8"))
            if status == 200:
                outputs = found["outputs"]
                return outputs if isinstance(outputs, dict) else {_ONLY_OUTPUT: outputs}
            text = "{}: {}: {}".format(self.name, status, _readable(str(found.get("error", found))))
        except (ValueError, KeyError, AttributeError):
            text = "{}: {}: {!r}".format(self.name, status, answer[:200])
        if status in (404, 408, 429, 502, 503, 504):
            raise Unreachable(text)
        raise ServerError(text)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes) -> Any:
        """Returns status and body of the answer; a connection that has ended is opened anew."""
        try:
            if self._connection is None:
                self._connection = self._open()
            self._connection.request("POST", self._path, body,
                                     {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable("{}: {}".format(self.name, error or type(error).__name__)) from error


class SessionServer(Server):
    """A model that a session of this process has loaded.

    Args:
        session: The session.
        signatures: What the loader gave: a MetaGraphDef, or its signature_def.
    """

    name = "session"

    def __init__(self, session: Any, signatures: Any) -> None:
        self._session = session
        self._signatures = getattr(signatures, "signature_def", signatures)

    def predict(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, Any]:
        if signature not in self._signatures:
            raise ServerError(_missing(signature, sorted(self._signatures)))
        wanted = self._signatures[signature]
        try:
            return self._session.run(
                {name: info.name for name, info in wanted.outputs.items()},
                {wanted.inputs[name].name: value for name, value in inputs.items()})
        except tf.errors.OpError as error:
            raise ServerError("{}: {}".format(self.name, _readable(error.message))) from error


class LoadedServer(Server):
    """What TensorFlow 2's tf.saved_model.load gave.

    Args:
        model: It.
    """

    name = "tf.saved_model.load"

    def __init__(self, model: Any) -> None:
        self._signatures = model.signatures

    def predict(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, Any]:
        if signature not in self._signatures:
            raise ServerError(_missing(signature, sorted(self._signatures)))
        function = self._signatures[signature]
        types = function.structured_input_signature[1]
        try:
            found = function(**{name: tf.constant(value, types[name].dtype)
                                for name, value in inputs.items()})
        except tf.errors.OpError as error:
            raise ServerError("{}: {}".format(self.name, _readable(error.message))) from error
        return {name: value.numpy() for name, value in found.items()}


def server_of(where: Any, timeout: float = 30.0) -> Server:
    """Returns what reaches a server.

    Args:
        where: HOST:PORT/MODEL or grpc://HOST:PORT/MODEL for gRPC; http://HOST:PORT/v1/models/MODEL
            for REST; a `Server`; a predictor of tf.contrib.predictor; what TensorFlow 2's
            tf.saved_model.load gave; or a session and what its loader gave, as a tuple.
        timeout: Seconds that an answer over the network may take.

    Raises:
        ValueError: If it is none of them.
    """
    if isinstance(where, Server):
        return where
    if isinstance(where, tuple) and len(where) == 2:
        return SessionServer(*where)
    if hasattr(where, "signatures"):
        return LoadedServer(where)
    if hasattr(where, "session") and hasattr(where, "graph"):
        raise ValueError("a predictor does not know the model's other signatures: give the tuple "
                         "(predictor.session, signatures) with those of "
                         "mx_rec.serving.signatures_of(export_dir)")
    if isinstance(where, str):
        parts = urllib.parse.urlsplit(where if "://" in where else "grpc://" + where)
        path = parts.path.strip("/")
        if parts.scheme in ("http", "https") and parts.netloc \
                and ("/" + path).startswith(_MODELS):
            return RestServer(where.rstrip("/"), timeout)
        if parts.scheme == "grpc" and parts.netloc and path and "/" not in path:
            return GrpcServer(parts.netloc, path, timeout)
    raise ValueError("{!r} is no server: it should be HOST:PORT/MODEL (gRPC) or "
                     "http://HOST:PORT{}MODEL (REST)".format(where, _MODELS))


def signatures_of(export_dir: str, tags: Any = ("serve",)) -> Dict[str, Any]:
    """Returns the signatures of a SavedModel by name, for a session that has loaded it.

    Args:
        export_dir: Directory of the model.
        tags: Tags of the model.

    Raises:
        ValueError: If there is no model with these tags.
    """
    path = export_dir.rstrip("/") + "/saved_model.pb"
    with tf.io.gfile.GFile(path, "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    for graph in model.meta_graphs:
        if set(graph.meta_info_def.tags) == set(tags):
            return dict(graph.signature_def)
    raise ValueError("{} has no model with the tags {}".format(export_dir, sorted(tags)))


def text_of(value: Any) -> str:
    """Returns an output that is a string: bytes, an array of one, or JSON's."""
    value = value.item() if isinstance(value, (np.ndarray, np.generic)) else value
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def texts_of(value: Any) -> List[str]:
    """Returns an output that is a vector of strings."""
    return [text_of(one) for one in value]


def _readable(message: Optional[str]) -> str:
    """Returns TensorFlow's message of an error without the op that it is of."""
    text = (message or "").split("\n\t [[")[0].replace("\\'", "'").replace("assertion failed: ", "")
    return text.strip()


def _missing(signature: str, there: List[str]) -> str:
    return "the model has no signature {!r}, only {}: export it with updates=True".format(
        signature, there)


def _json(value: Any) -> Any:
    """Returns an input as JSON has it."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_json(one) for one in value]
    return value
