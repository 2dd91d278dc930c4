"""A small server over tf.saved_model with the protocols of TensorFlow Serving; it stands for that.

It has the flags that it shares with tensorflow_model_server, gRPC's Predict and GetModelMetadata
where the package tensorflow-serving-api is installed, and REST's :predict and :metadata. It has no
versions, no batching and no monitoring, and does not know mx_rec: it is what examples and tests
talk to where no real one can be installed.
"""

import argparse
import base64
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Dict, List, Optional

import numpy as np
import tensorflow as tf

try:
    import grpc
    from tensorflow_serving.apis import (get_model_metadata_pb2, predict_pb2,
                                         prediction_service_pb2_grpc)
except ImportError:
    grpc = None

tf1 = tf.compat.v1
_DEFAULT = "serving_default"


class Model:
    """A SavedModel in a session of its own.

    Args:
        path: Directory of the model, or of its versions, of which the greatest is served.
        threads: Threads of an op, and of the session.
    """

    def __init__(self, path: str, threads: int) -> None:
        versions = [int(name) for name in os.listdir(path) if name.isdigit()]
        self.version = max(versions) if versions else 1
        config = tf1.ConfigProto(intra_op_parallelism_threads=threads,
                                 inter_op_parallelism_threads=threads,
                                 device_count={"GPU": 0})
        self._session = tf1.Session(graph=tf.Graph(), config=config)
        with self._session.graph.as_default():
            self.signatures = tf1.saved_model.loader.load(
                self._session, [tf1.saved_model.SERVING],
                os.path.join(path, str(self.version)) if versions else path).signature_def
        self._calls = {}  # type: Dict[str, Any]
        self._lock = threading.Lock()

    def run(self, signature: str, inputs: Dict[str, Any]) -> Dict[str, np.ndarray]:
        """Runs a signature.

        Raises:
            KeyError: If the model does not have it.
            ValueError: If the inputs are not those of the signature.
            tf.errors.OpError: If it fails.
        """
        if signature not in self.signatures:
            raise KeyError("Serving signature name: \"{}\" not found in signature def".format(
                signature))
        wanted = self.signatures[signature]
        if set(inputs) != set(wanted.inputs):
            raise ValueError("input size does not match signature: {} != {}".format(
                sorted(inputs), sorted(wanted.inputs)))
        outputs, names = sorted(wanted.outputs), sorted(wanted.inputs)
        with self._lock:
            if signature not in self._calls:
                self._calls[signature] = self._session.make_callable(
                    [wanted.outputs[name].name for name in outputs],
                    [wanted.inputs[name].name for name in names])
        values = [np.asarray(inputs[name], tf.as_dtype(
            wanted.inputs[name].dtype).as_numpy_dtype) for name in names]
        return dict(zip(outputs, self._calls[signature](*values)))


class Rest(ThreadingMixIn, HTTPServer):
    """The REST form.

    Args:
        port: On this machine, 0 for any.
        name: Name of the model.
        model: The model, None while it is loaded.
    """

    daemon_threads = True

    def __init__(self, port: int, name: str, model: Model) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.path, self.model = "/v1/models/" + name, model


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # pylint: disable=redefined-builtin
        """Requests are not logged."""

    def do_GET(self) -> None:  # pylint: disable=invalid-name
        """State and metadata of the model."""
        server = self.server  # type: Any
        if self.path == server.path:
            self._answer(200, {"model_version_status": [{
                "version": str(server.model.version), "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""}}]})
        elif self.path == server.path + "/metadata":
            self._answer(200, {"model_spec": {"name": os.path.basename(server.path)}, "metadata": {
                "signature_def": {"signature_def": {
                    name: {"inputs": sorted(one.inputs), "outputs": sorted(one.outputs)}
                    for name, one in server.model.signatures.items()}}}})
        else:
            self._answer(404, {"error": "Not Found"})

    def do_POST(self) -> None:  # pylint: disable=invalid-name
        """Runs a signature."""
        server = self.server  # type: Any
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != server.path + ":predict":
            self._answer(404, {"error": "Malformed request: POST " + self.path})
            return
        try:
            request = json.loads(body.decode("utf-8"))
            inputs = {name: _decoded(value) for name, value in request["inputs"].items()}
            outputs = server.model.run(request.get("signature_name", _DEFAULT), inputs)
        except (KeyError, TypeError, ValueError, tf.errors.OpError) as error:
            self._answer(400, {"error": getattr(error, "message", str(error))})
            return
        found = {name: _encoded(value) for name, value in outputs.items()}
        # One output comes without its name.
        self._answer(200, {"outputs": found if len(found) > 1 else list(found.values())[0]})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _decoded(value: Any) -> Any:
    """Returns an input of JSON: {"b64": ..} are bytes."""
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    return value


def _encoded(value: np.ndarray) -> Any:
    """Returns an output as JSON has it: strings are text."""
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return [_encoded(one) for one in value]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def serve_grpc(port: int, name: str, model: Model, threads: int) -> int:
    """Begins to serve by gRPC on this machine; returns the port.

    Args:
        port: 0 for any.
        name: Name of the model.
        model: The model.
        threads: Requests at the same time.
    """

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        """Predict and GetModelMetadata; the others are not implemented."""

        def Predict(self, request: Any, context: Any) -> Any:  # pylint: disable=invalid-name
            """Runs a signature."""
            if request.model_spec.name != name:
                context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found for request: "
                              "Latest({})".format(request.model_spec.name))
            signature = request.model_spec.signature_name or _DEFAULT
            try:
                outputs = model.run(signature, {key: tf.make_ndarray(value)
                                                for key, value in request.inputs.items()})
            except (KeyError, TypeError, ValueError, tf.errors.OpError) as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT,
                              getattr(error, "message", str(error)))
            response = predict_pb2.PredictResponse()
            response.model_spec.CopyFrom(request.model_spec)
            for key, value in outputs.items():
                response.outputs[key].CopyFrom(tf1.make_tensor_proto(value))
            return response

        def GetModelMetadata(self, request: Any, context: Any) -> Any:
            """Tells the signatures."""
            # pylint: disable=invalid-name
            if request.model_spec.name != name:
                context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found")
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.CopyFrom(request.model_spec)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            for key, value in model.signatures.items():
                signatures.signature_def[key].CopyFrom(value)
            response.metadata["signature_def"].Pack(signatures)
            return response

    server = grpc.server(ThreadPoolExecutor(threads), options=[
        ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
        ("grpc.so_reuseport", 0)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    bound = server.add_insecure_port("127.0.0.1:{}".format(port))
    server.start()
    _KEPT.append(server)
    return bound


_KEPT = []  # type: List[Any]


def main(argv: Optional[List[str]] = None) -> int:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", required=True)
    parser.add_argument("--model_name", default="model")
    parser.add_argument("--port", type=int, default=0, help="of gRPC; 0 for any")
    parser.add_argument("--rest_api_port", type=int, default=0, help="of REST; 0 for any")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args(argv)
    model = Model(arguments.model_base_path, arguments.threads)
    rest = Rest(arguments.rest_api_port, arguments.model_name, model)
    ports = {"rest": rest.server_port}
    if grpc is not None:
        ports["grpc"] = serve_grpc(arguments.port, arguments.model_name, model, 16)
    # Who has started it reads the ports from here.
    print(json.dumps(ports), flush=True)
    rest.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
