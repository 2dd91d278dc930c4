"""The recorder sees the plugin's ops, and the timeline shows key work beside the step that it does not belong to."""

import json

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.graph import modify_graph_and_start_emb_cache, timeline
from mx_rec.graph.timeline import Span
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer

BATCH = 4096


@pytest.fixture
def train(graph, mx, session):
    """Starts a model with one table, modified or not; returns a function that runs steps, traced or not."""
    def start(modify):
        mx()
        random = np.random.RandomState(3)
        ids = random.randint(0, 100000, [16, BATCH]).astype(np.int64)
        dataset = tf.data.Dataset.from_tensor_slices(ids).repeat().prefetch(1)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        users = support.make_table("users", 16, 200000, 0.1)
        rows = sparse_lookup(users, iterator.get_next() + 1, is_train=True, name="train", modify_graph=True)
        weights = tf.Variable(tf.random.uniform([16, 2048], seed=1))
        deep = tf.nn.relu(tf.matmul(rows, weights))
        loss = tf.reduce_mean(tf.matmul(deep, deep, transpose_a=True))
        gradient = tf.gradients(loss, [users.variable])
        update = create_hash_optimizer(0.01).apply_gradients(zip(gradient, [users.variable]))
        if modify:
            modify_graph_and_start_emb_cache()
        sess = support.started(session())
        sess.run(iterator.initializer)

        def steps(count, traced):
            found = []
            for _ in range(count):
                options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
                found.append(tf.compat.v1.RunMetadata())
                sess.run([loss, update], options=options if traced else None,
                         run_metadata=found[-1] if traced else None)
            return found

        return steps

    return start


@pytest.mark.long
def test_runs_are_recorded_in_the_block_and_only_there(train):
    steps = train(modify=False)
    steps(2, traced=False)
    with timeline.Recording() as recording:
        steps(3, traced=False)
    steps(2, traced=False)
    with timeline.Recording() as empty:
        pass
    found = [(span.op, span.table) for span in recording.spans]
    assert found.count(("MxRecIdOffset", "users")) == 3
    assert found.count(("MxRecRead", "users")) == 3
    assert "MxRecPrepare" not in [op for op, _ in found]
    assert recording.dropped == 0
    assert empty.spans == []


@pytest.mark.long
def test_a_recording_ends_with_its_block_also_after_an_error(train):
    steps = train(modify=False)
    with pytest.raises(KeyError):
        with timeline.Recording() as recording:
            steps(1, traced=False)
            raise KeyError("of the caller")
    assert "MxRecRead" in [span.op for span in recording.spans]
    steps(1, traced=False)
    with timeline.Recording() as after:
        pass
    assert after.spans == []


@pytest.mark.long
def test_key_work_of_a_modified_graph_runs_under_the_step(train, tmp_path):
    steps = train(modify=True)
    steps(3, traced=False)
    for _ in range(10):
        with timeline.Recording() as recording:
            traced = steps(6, traced=True)
        path = tmp_path / "timeline.json"
        timeline.write_timeline(str(path), recording.spans, traced)
        events = json.loads(path.read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        rows = {name: [event for event in events if event["ph"] == "X" and names[event["pid"]] == name]
                for name in names.values()}
        ahead = [event for event in rows[timeline.PIPELINE] if event["name"] == "MxRecPrepare users"]
        dense = [event for event in rows[timeline.TRAINING] if event["name"] == "MatMul"]
        assert len(ahead) >= 3 and len(dense) >= 12
        assert {event["args"]["step"] for event in dense} == set(range(6))
        # One window for both clocks: microseconds of the same epoch.
        window = max(event["ts"] + event["dur"] for event in dense)
        assert all(-1e4 <= event["ts"] <= window + 1e6 for event in ahead)
        # The step claims what the pipeline made, so it does no key work of its own.
        inside = {event["name"] for event in rows[timeline.STEP_OPS]}
        assert "MxRecIdOffset users" in inside
        under = [event for event in ahead for other in rows[timeline.TRAINING]
                 if event["ts"] < other["ts"] + other["dur"] and other["ts"] < event["ts"] + event["dur"]]
        # On a machine without an idle core the threads of a pipeline may run between the ops of steps alone.
        if under:
            return
    pytest.fail("no key work lies under an op of a step")


def test_what_overlaps_lies_in_different_lanes():
    spans = [Span("MxRecPrepare", "a", 1, 1000, 50.0), Span("MxRecPrepare", "b", 2, 1020, 10.0),
             Span("MxRecPrepare", "a", 1, 1060, 5.0), Span("MxRecEvict", None, 3, 1010, 1.0)]
    events = [event for event in timeline.make_timeline(spans, [])["traceEvents"] if event["ph"] == "X"]
    ahead = [(event["name"], event["ts"], event["tid"]) for event in events if event["pid"] == 2]
    assert ahead == [("MxRecPrepare a", 0, 0), ("MxRecPrepare b", 20, 1), ("MxRecPrepare a", 60, 0)]
    assert [(event["name"], event["pid"]) for event in events if event["pid"] != 2] == [("MxRecEvict", 1)]


def test_a_timeline_of_nothing_is_empty():
    events = timeline.make_timeline([], [])["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}
