"""What a served model refuses, and that it changes nothing then; two pushers at once, pushes that end half way."""

import os

import numpy as np
import pytest
import tensorflow as tf

import serving_cases as serving
import support
from mx_rec import serving as package
from mx_rec.serving import ServerError
from mx_rec.serving.changes import Contents, Saved, Unfit
from mx_rec.serving.push import _Checksum
from mx_rec.util.initialize import init, terminate_config_initializer

ALL = np.arange(-2, 400)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A training of whole saves 1 and deltas 2 to 4, its export from before 1, and what each save predicts.

    The export has room for what is in the first three.
    """
    init(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    tf.compat.v1.reset_default_graph()
    sess = support.new_session()
    try:
        training = serving.Training(os.path.realpath(str(tmp_path_factory.mktemp("training"))), sess)
        training.write(np.arange(100))
        training.write(np.arange(0, 1000, 10), table=1)
        training.directory = training.export(spare_rows=30)
        training.prefixes, training.shown = [], []
        for turn in range(4):
            training.write(np.arange(turn * 20, turn * 20 + 30))
            if turn == 3:
                training.write(np.arange(300, 325))
            training.write([200 + 2 * turn, 201 + 2 * turn])
            training.write(10 * np.arange(turn, turn + 5), table=1)
            training.remove([90 + turn])
            training.prefixes.append(training.save(delta=turn > 0))
            training.shown.append(training.look(ALL))
        yield training
    finally:
        sess.close()
        terminate_config_initializer()
        tf.compat.v1.reset_default_graph()


@pytest.fixture
def served(shared):
    one = serving.Served(shared.directory)
    yield one
    one.close()


def requests_of(shared, server, number, **arguments):
    """The requests by which a checkpoint is pushed into a model, which are not sent."""
    recorder = serving.as_server(serving.Recorder(Swallow(server)))
    package.push(shared.prefixes[number], [recorder], pause=0, retries=0, **arguments)
    return recorder.requests


class Swallow:
    """Answers what changes a model without doing it."""

    def __init__(self, server):
        self.server = server

    def predict(self, signature, inputs):
        return self.server.predict(signature, inputs) if signature == "version" else {"applied": 0}


def send(served, requests):
    for signature, inputs in requests:
        served.server.predict(signature, inputs)


def checked(inputs, **changed):
    """Inputs of a piece with others, and the checksum of these."""
    inputs = dict(inputs, **changed)
    values = [inputs[name] for name in (("table", "keys", "rows", "removed") if "keys" in inputs
                                        else ("names", "values"))]
    return dict(inputs, checksum=_Checksum()(inputs["push"], inputs["piece"], values))


@pytest.mark.long
def test_what_does_not_fit_is_refused_and_changes_nothing(shared, served):
    assert served.push(shared.prefixes[0]).error is None
    requests = requests_of(shared, served.server, 1)
    (_, begin), (_, rows), (dense, variables) = requests[0], requests[1], requests[-1]
    before, state = served.look(ALL), served.version()

    def refuse(signature, inputs, text):
        with pytest.raises(ServerError, match=text):
            served.server.predict(signature, inputs)
        serving.assert_same(served.look(ALL), before, text)

    refuse("begin_delta", dict(begin, previous="another"), "does not continue what the model holds.*another")
    refuse("begin_delta", dict(begin, model="0123"), "of another model.*0123")
    refuse("begin_delta", dict(begin, interrupted="x/1"), "another push is under way")
    refuse("begin_delta", dict(begin, push=""), "should not be empty")
    refuse("begin_delta", dict(begin, pieces=-1), "'pieces' should be at least 0.*-1")
    refuse("begin_delta", dict(begin, pieces=0, full=1), "'pieces' should be at least 0, and 1 of a full push")
    new_rows = [31 if name == "items" else 0 for name in state.spare_rows]
    refuse("begin_delta", dict(begin, new_rows=new_rows), "the table 'items' has no room.*31.*28")
    refuse("apply_delta", rows, "was not begun, or another one has taken its place")
    assert served.version() == state
    served.server.predict("begin_delta", begin)
    state = served.version()
    assert state.push == begin["push"] and state.applied == 0
    refuse("apply_delta", dict(rows, keys=rows["keys"][:-8]), "the delta is torn: the checksum of piece.*0")
    refuse("apply_delta", dict(rows, table="users"), "the delta is torn: the checksum")
    refuse("apply_delta", dict(rows, piece=1), "the delta is torn: the checksum")
    refuse("apply_delta", checked(rows, piece=1), "piece.*1.*should be piece.*0")
    refuse("apply_delta", checked(rows, piece=-1), "piece.*-1.*should be piece.*0")
    refuse("apply_delta", checked(rows, push="other"), "was not begun, or another one")
    refuse("apply_delta", checked(rows, table=b"nobody"), "of another model: it has the table.*nobody")
    refuse("apply_delta", checked(rows, keys=rows["keys"][:-1]), "torn: keys have 8 bytes each")
    refuse("apply_delta", checked(rows, removed=b"123"), "torn: keys have 8 bytes each")
    refuse("apply_delta", checked(rows, rows=rows["rows"][:-4]), "torn: 'rows' has.*table 'items', whose rows of 4")
    refuse("apply_delta", checked(rows, keys=rows["keys"][:8] * (len(rows["keys"]) // 8)), "a key is there twice")
    refuse("apply_delta", checked(rows, removed=rows["keys"][:8]), "a key is there twice")
    for reserved in [-1] + state.model["tables"]["items"]["reserved"]:
        key = np.array([reserved], "<i8").tobytes()
        refuse("apply_delta", checked(rows, keys=rows["keys"][:-8] + key), "cannot have rows for the keys")
    many = np.arange(1000, 1031)
    refuse("apply_delta", checked(rows, keys=many.astype("<i8").tobytes(), rows=b"\0" * 16 * len(many)),
           "the table 'items' has no room: the piece brings.*31.*28")
    too_many = np.arange((1 << 16) + 1)
    refuse("apply_delta", checked(rows, keys=too_many.astype("<i8").tobytes(), rows=b"\0" * 16 * len(too_many)),
           "a piece has at most 65536 keys")
    first = dict(variables, piece=0)
    refuse(dense, checked(first, names=[b"nobody"] + variables["names"][1:]), "has not all variables of")
    refuse(dense, checked(first, names=variables["names"][:1] + variables["names"][:-1]), "a variable is there twice")
    refuse(dense, checked(first, values=variables["values"][1:]), "names, and values")
    refuse(dense, checked(first, values=[one + b"1234" for one in variables["values"]]), "values have the bytes")
    assert served.version() == state
    # What was refused has not spoilt the push.
    assert served.push(shared.prefixes[1]).error is None
    serving.assert_same(served.look(ALL), shared.shown[1])


@pytest.mark.long
def test_a_delta_that_is_applied_twice_does_no_harm(shared, served):
    assert served.push(shared.prefixes[0]).error is None
    requests = requests_of(shared, served.server, 1, rows=7)
    send(served, [one for request in requests for one in (request, request)])
    serving.assert_same(served.look(ALL), shared.shown[1])
    state = served.version()
    send(served, requests)
    assert served.version() == state and state.name == "model.ckpt-2"
    serving.assert_same(served.look(ALL), shared.shown[1])


def test_a_checkpoint_without_room_is_refused_before_anything_changes(shared, served):
    """The 25th new key has no row; what the model holds stays whole."""
    assert served.push(shared.prefixes[2]).error is None
    before, state = served.look(ALL), served.version()
    assert state.spare_rows["items"] == 24
    outcome = served.push(shared.prefixes[3])
    assert "the table 'items' has no room" in outcome.error and "model.ckpt-3" in outcome.error
    serving.assert_same(served.look(ALL), before)
    assert served.version() == state


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_refused(shared, served, tmp_path):
    import shutil

    assert served.push(shared.prefixes[0]).error is None
    state = served.version()
    damaged = tmp_path / "training"
    shutil.copytree(shared.place, str(damaged), ignore=lambda *_: ["export"])
    path = damaged / "delta-sparse-model.ckpt-2" / "items" / "embedding" / "slice.data"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(bytes(content))
    outcome = served.push(str(damaged / "model.ckpt-2"))
    assert "embedding/slice.data" in outcome.error
    os.rename(str(damaged / "delta-sparse-model.ckpt-2"), str(damaged / "gone"))
    assert "delta-sparse-model.ckpt-2" in served.push(str(damaged / "model.ckpt-3")).error
    other = dict(state.model, tables={"nobody": state.model["tables"]["items"]})

    saved = Saved(shared.prefixes[1])
    for model, text in ((other, "'nobody'"),
                        (dict(state.model, tables={"items": dict(state.model["tables"]["items"], dim=3)}), "4 floats"),
                        (dict(state.model, variables=[{"name": "n", "dtype": "float32", "shape": []}]), "variable 'n'"),
                        (dict(state.model, variables=[{"name": "bias", "dtype": "float32", "shape": [4]}]), "shape")):
        with pytest.raises(Unfit, match=text):
            Contents().changes(saved, state.held, ("", "", False), model, 100)
    assert served.version() == state


@pytest.mark.parametrize("limit", [1, 3, 7])
@pytest.mark.parametrize("number", [0, 1])
def test_a_push_that_ends_half_way_is_told_and_gone_on_with(shared, served, limit, number):
    """A model that was left between two checkpoints by a full push, or by a delta, says so."""
    for prefix in shared.prefixes[:number]:
        served.push(prefix)
    recorder = serving.as_server(serving.Recorder(served.server, limit))
    outcome, = package.push(shared.prefixes[number], [recorder], rows=7, pause=0, retries=0)
    assert "half updated: it has {} of".format(limit - 1) in outcome.error
    state = served.version()
    assert state.push and state.applied == limit - 1 and state.target_name == "model.ckpt-{}".format(number + 1)
    rest = serving.as_server(serving.Recorder(served.server))
    outcome, = package.push(shared.prefixes[number], [rest], rows=7, pause=0)
    assert outcome.error is None and len(rest.requests) == state.pieces - state.applied + 1
    serving.assert_same(served.look(ALL), shared.shown[number])


@pytest.mark.parametrize("first, then", [(0, 1), (1, 2), (0, 2)])
def test_a_later_checkpoint_takes_the_place_of_a_push_that_ended_half_way(shared, served, first, then):
    for prefix in shared.prefixes[:first]:
        served.push(prefix)
    recorder = serving.as_server(serving.Recorder(served.server, 4))
    package.push(shared.prefixes[first], [recorder], rows=7, pause=0, retries=0)
    assert served.version().push
    outcome = served.push(shared.prefixes[then], rows=5)
    assert outcome.error is None
    serving.assert_same(served.look(ALL), shared.shown[then])
    assert served.version().rows["items"] == int(np.any(shared.shown[then]["items"] != 0, axis=1).sum())


@pytest.mark.long
def test_two_pushers_at_once_corrupt_nothing(shared, served):
    """They cut what they send in other pieces, and push other checkpoints."""
    def follow(rows):
        for prefix in shared.prefixes[:3]:
            served.push(prefix, rows=rows, retries=30)

    support.in_threads(follow, (3, 7, 7))
    assert served.push(shared.prefixes[2]).error is None
    serving.assert_same(served.look(ALL), shared.shown[2])
    assert served.version().name == "model.ckpt-3"
