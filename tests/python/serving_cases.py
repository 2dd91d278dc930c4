"""A training whose checkpoints go into served models, these models in a session, and servers in processes."""

import json
import os
import subprocess
import sys
from unittest import mock

import numpy as np

import plain_cases as cases
import preloaded
import support

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIM = 4


class Training:
    """Two tables that are written by hand, and variables of all kinds.

    The rows of a table begin with their key, so that a reader notices those of another one.
    """

    def __init__(self, place, sess, dims=(DIM, 2), **arguments):
        tf = support.tf()
        self.place, self.sess = place, sess
        self.tables = [cases.make_table(name, dim, device_vocabulary_size=60000, **arguments)
                       for name, dim in zip(("items", "users"), dims)]
        self.raws = [support.Raw.of(table) for table in self.tables]
        self.ids = cases.placeholder([None])
        self.weight = tf.compat.v1.get_variable("weight", initializer=[1.5, 0.5])
        self.bias = tf.compat.v1.get_variable("bias", initializer=np.arange(3.0), use_resource=True)
        parts = tf.compat.v1.get_variable("parts", [5, 2], partitioner=tf.compat.v1.fixed_size_partitioner(2),
                                          initializer=tf.compat.v1.zeros_initializer())
        self.parts = list(parts)
        self.outputs = {table.table_name: cases.find(table, self.ids) for table in self.tables}
        self.outputs.update(weight=self.weight + 0.0, bias=self.bias + 0.0, parts=tf.convert_to_tensor(parts) + 0.0)
        self.saver = tf.compat.v1.train.Saver(max_to_keep=100)
        sess.run(tf.compat.v1.global_variables_initializer())
        self.step = 0

    def write(self, keys, table=0, value=None):
        """Gives keys rows of this step."""
        keys = np.asarray(keys, np.int64)
        rows = np.full([len(keys), self.tables[table].emb_size], self.step + 1 if value is None else value, np.float32)
        rows[:, 0] = keys
        self.raws[table].assign(self.sess, keys, rows)

    def remove(self, keys, table=0):
        self.raws[table].remove(self.sess, np.asarray(keys, np.int64))

    def save(self, delta=False):
        """Saves the next step, with other variables; returns its prefix."""
        self.step += 1
        self.sess.run([one.assign(one + 1.0) for one in [self.weight, self.bias] + self.parts])
        return self.saver.save(self.sess, self.place + "/model.ckpt", global_step=self.step, save_delta=delta)

    def export(self, name="export", limits=None, **options):
        """Exports a model that takes updates; returns its directory."""
        from mx_rec.export import plain, plain_rows

        directory = "{}/{}".format(self.place, name)
        options.setdefault("updates", True)
        with mock.patch.object(plain_rows, "LIMITS", limits or plain_rows.LIMITS):
            plain.export_plain(self.sess, directory, {"ids": self.ids}, self.outputs, **options)
        return directory

    def look(self, keys):
        """What the session predicts."""
        return self.sess.run(self.outputs, {self.ids: keys})


class Served:
    """A model in a session of its own, beside the training's."""

    def __init__(self, directory):
        from mx_rec.serving.servers import SessionServer

        tf = support.tf()
        graph = tf.Graph()
        with graph.as_default():
            self.sess = tf.compat.v1.Session(graph=graph)
            self.meta = tf.compat.v1.saved_model.loader.load(self.sess, ["serve"], directory)
        self.server = SessionServer(self.sess, self.meta)

    def push(self, checkpoint, **arguments):
        """Pushes a checkpoint; returns the one outcome."""
        from mx_rec import serving

        arguments.setdefault("pause", 0)
        outcome, = serving.push(checkpoint, [self.server], **arguments)
        return outcome

    def version(self):
        from mx_rec import serving

        return serving.version_of(self.server)

    def look(self, keys):
        return self.server.predict("serving_default", {"ids": keys})

    def close(self):
        self.sess.close()


class Recorder:
    """Passes requests on, as many as it is let, and keeps them."""

    name = "recorder"

    def __init__(self, server, limit=None):
        self.server, self.limit, self.requests = server, limit, []

    def predict(self, signature, inputs):
        from mx_rec.serving import ServerError

        if signature != "version":
            if self.limit is not None and len(self.requests) >= self.limit:
                raise ServerError("the test has ended it")
            self.requests.append((signature, inputs))
        return self.server.predict(signature, inputs)

    def close(self):
        pass


def as_server(recorder):
    """A `Recorder` that the package takes for a server."""
    from mx_rec.serving.servers import Server

    return type("RecordingServer", (Recorder, Server), {})(recorder.server, recorder.limit)


def assert_same(found, expected, what=""):
    """Compares all outputs bit by bit."""
    assert sorted(found) == sorted(expected)
    for name in found:
        support.assert_same_bits(np.asarray(found[name]), np.asarray(expected[name]), "{} {}".format(what, name))


class Process:
    """The model server of the examples, which stands for tensorflow_model_server, in a process."""

    def __init__(self, directory, ports=(0, 0), interpreter=sys.executable):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "MX_REC"))}
        environment.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
        server = os.path.join(REPO, "examples", "model_server.py")
        arguments = ["--model_base_path", directory, "--model_name", "m", "--port", str(ports[0]), "--rest_api_port", str(ports[1])]
        # Where this process finds tensorflow-serving-api, if not among the installed packages.
        environment["PYTHONPATH"] = os.pathsep.join(
            one for one in sys.path if os.path.isdir(os.path.join(one, "tensorflow_serving")))
        self.log = open(directory + ".log", "ab")
        if interpreter == sys.executable:
            self.process = preloaded.Process(preloaded.code_of(server), environment, self.log, arguments)
        else:
            self.process = subprocess.Popen([interpreter, server] + arguments, stdout=subprocess.PIPE, stderr=self.log, env=environment)
        line = self.process.stdout.readline()
        assert line, open(directory + ".log").read()[-3000:]
        found = json.loads(line.decode())
        self.ports = found.get("grpc", 0), found["rest"]
        self.rest = "http://127.0.0.1:{}/v1/models/m".format(self.ports[1])
        self.grpc = "127.0.0.1:{}/m".format(self.ports[0]) if self.ports[0] else None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
