"""Pushes into servers of processes, by gRPC and REST, with the command: restarts, and pushers that are killed.

The server is examples/model_server.py, a small one over tf.saved_model that stands for tensorflow_model_server: no registry
has that one.
"""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import serving_cases as serving
import support
from mx_rec import serving as package
from mx_rec.export.predict_protos import predict_outputs, predict_request
from mx_rec.serving.__main__ import main

ALL = np.arange(-2, 400)


@pytest.fixture
def training(mx, session, place):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    made = serving.Training(place, session())
    made.write(np.arange(100))
    made.write(np.arange(0, 100, 10), table=1)
    return made


@pytest.fixture
def serve():
    """Starts servers in processes, which end with the test."""
    started = []

    def start(*arguments, **options):
        started.append(serving.Process(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


def command(*arguments, **options):
    """Runs the command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "mx_rec.serving", "push"] + list(arguments),
                            env=support.environment_of({}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def ask(address, keys=ALL, types=None):
    """What a server predicts, as the training has it."""
    server = package.server_of(address)
    try:
        found = server.predict("serving_default", {"ids": np.asarray(keys, np.int64)})
        return {name: np.asarray(value, np.float32) for name, value in found.items()}
    finally:
        server.close()


@pytest.mark.long
def test_servers_are_brought_to_the_newest_checkpoint_by_both_protocols(training, serve):
    """Also one that was restarted: it begins with what was exported."""
    directory = training.export(spare_rows=100)
    one = serve(directory)
    addresses = [one.rest] + ([one.grpc] if one.grpc else [])
    for turn in range(3):
        training.write(np.arange(turn * 20, turn * 20 + 30))
        training.write([200 + turn])
        training.remove([50 + turn])
        prefix = training.save(delta=turn > 0)
        outcome, = package.push(prefix, [addresses[turn % len(addresses)]], rows=11, pause=0)
        assert outcome.error is None
        for address in addresses:
            serving.assert_same(ask(address), training.look(ALL), address)
    one.kill()
    again = serve(directory, ports=one.ports)
    outcome, = package.push(prefix, [again.rest])
    assert outcome.error is None and outcome.changes.kind == "full"
    serving.assert_same(ask(again.rest), training.look(ALL))
    two = serve(directory)
    first, second = package.push(prefix, [again.rest, two.grpc or two.rest])
    assert first.changes is None and second.changes.kind == "full"
    if two.grpc is None:
        pytest.skip("NOT TESTED: pushes by gRPC; tensorflow-serving-api is not installed")


@pytest.mark.long
def test_a_killed_pusher_leaves_a_state_that_the_next_one_goes_on_from(training, serve):
    server = serve(training.export(spare_rows=300))
    training.write(np.arange(300))
    prefix = training.save()
    pusher = command(training.place, server.grpc or server.rest, "--rows", "2", "--pause", "0.05")
    target = package.server_of(server.rest)
    ends = time.time() + 300
    while package.version_of(target).applied < 5:
        assert time.time() < ends and pusher.poll() is None
        time.sleep(0.02)
    pusher.send_signal(signal.SIGKILL)
    pusher.communicate(timeout=300)
    state = package.version_of(target)
    assert state.push and 5 <= state.applied < state.pieces and state.target_name == os.path.basename(prefix)
    outcome, = package.push(prefix, [server.rest], rows=2, pause=0)
    assert outcome.error is None
    serving.assert_same(ask(server.rest), training.look(ALL))
    assert package.version_of(target).name == os.path.basename(prefix)
    target.close()


@pytest.mark.long
def test_the_command_follows_a_training_and_a_server_that_comes_and_goes(training, serve):
    directory = training.export(spare_rows=300)
    server = serve(directory)
    # One server is never there: nobody waits for it.
    pusher = command(training.place, "http://127.0.0.1:1/v1/models/m", server.rest, "--interval", "0.1", "--retries", "30")
    target = package.server_of(server.rest)

    def wait_for(name):
        ends = time.time() + 300
        while True:
            try:
                if package.version_of(target).name == name:
                    return
            except package.Unreachable:
                pass
            assert time.time() < ends and pusher.poll() is None
            time.sleep(0.05)

    try:
        assert b"waiting for a checkpoint" in pusher.stdout.readline()
        for turn in range(3):
            training.write([1, 2, 100 + turn])
            wait_for(os.path.basename(training.save(delta=turn > 0)))
            serving.assert_same(ask(server.rest), training.look(ALL))
            if turn == 1:
                server.kill()
                server = serve(directory, ports=server.ports)
    finally:
        pusher.send_signal(signal.SIGINT)
        told = pusher.communicate(timeout=300)[0].decode()
        target.close()
    assert pusher.returncode == 130 and "model.ckpt-3 by " in told


@pytest.mark.long
def test_the_command_says_what_it_would_do_and_what_went_wrong(training, serve, capsys):
    def run(*arguments):
        code = main(["push"] + list(arguments))
        told = capsys.readouterr()
        return code, told.out + told.err

    server = serve(training.export(spare_rows=1))
    code, told = run(training.place + "/nothing", server.rest, "--once")
    assert code == 2 and "there is no checkpoint" in told
    training.write([1])
    training.save()
    code, told = run(training.place, server.rest, "--once", "--dry-run")
    assert code == 0 and "model.ckpt-1 by full: 110 rows, 0 removed keys, 4 variables in 3 pieces" in told
    assert ask(server.rest, [1])["items"][0, 1] == 1
    training.write([1, 200, 201])
    prefix = training.save()
    code, told = run(prefix, server.rest, "http://127.0.0.1:1/v1/models/m", "--once", "--retries", "1")
    assert code == 1 and "has no room" in told and "127.0.0.1:1" in told and told.count("FAILED") == 2
    code, told = run(prefix, "localhost", "--once")
    assert code == 2 and "'localhost' is no server" in told
    code, told = run(prefix, server.rest + "x", "--once", "--retries", "0")
    assert code == 1 and "404" in told


@pytest.mark.long
def test_messages_are_those_of_tensorflow_serving(training):
    """Against the package tensorflow-serving-api, which only tests need."""
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2",
                                      reason="NOT TESTED: messages against tensorflow-serving-api, which is not installed")
    from tensorflow_serving.apis import prediction_log_pb2

    inputs = {"ids": np.arange(3), "name": b"\0\xff", "number": 7, "texts": [b"a", b"" * 200, b"b" * 300]}
    request = predict_pb2.PredictRequest.FromString(predict_request("m", "s", inputs))
    assert request.model_spec.name == "m" and request.model_spec.signature_name == "s"
    assert {key: tf.make_ndarray(value).tolist() for key, value in request.inputs.items()} == {
        "ids": [0, 1, 2], "name": b"\0\xff", "number": 7, "texts": [b"a", b"", b"b" * 300]}
    response = predict_pb2.PredictResponse()
    response.model_spec.name = "m"
    response.model_spec.version.value = 300
    response.outputs["rows"].CopyFrom(tf.compat.v1.make_tensor_proto(np.ones([3, 200], np.float32)))
    response.outputs["text"].CopyFrom(tf.compat.v1.make_tensor_proto(b"x"))
    found = predict_outputs(response.SerializeToString())
    assert sorted(found) == ["rows", "text"] and found["rows"].shape == (3, 200) and found["text"].item() == b"x"
    for end in range(1, 40):
        with pytest.raises(Exception):
            predict_outputs(response.SerializeToString()[:end])
            raise ValueError("a message may end between two fields")
    directory = training.export(warmup=[{"ids": [1, 2]}, {"ids": np.arange(5)}])
    records = [prediction_log_pb2.PredictionLog.FromString(one) for one in tf.compat.v1.io.tf_record_iterator(
        directory + "/assets.extra/tf_serving_warmup_requests")]
    assert [tf.make_ndarray(one.predict_log.request.inputs["ids"]).tolist() for one in records] == [[1, 2], [0, 1, 2, 3, 4]]
    assert records[0].predict_log.request.model_spec.signature_name == "serving_default"
