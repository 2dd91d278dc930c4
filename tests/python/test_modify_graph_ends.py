"""Ends and errors of a modified pipeline, and modification at the wrong time, twice, or of another graph."""

import os

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import preloaded
import support
from modify_cases import AHEAD, PASSED, STEP
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.graph import (
    ACGPushOpsToDatasetHook, GraphModifierHook, LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook,
    modify_graph_and_start_emb_cache)
from mx_rec.util.initialize import init, terminate_config_initializer


def text_data(bad=()):
    """12 batches of 3 numbers as text; those in `bad` hold one that is none."""
    text = np.arange(36).reshape(12, 3).astype("S8")
    for number in bad:
        text[number, 1] = b"seven"
    return tf.data.Dataset.from_tensor_slices({"text": text, "label": np.linspace(0, 1, 12, dtype=np.float32)})


@pytest.mark.parametrize("where", ["in the moved ops", "in the user's map"])
def test_an_error_of_the_pipeline_reaches_its_step_as_itself_and_training_goes_on(where):
    def to_ids(text):
        return tf.strings.to_number(text, tf.int64)

    def script(run):
        data = text_data(bad=[5])
        if where == "in the user's map":
            data = data.map(lambda batch: dict(batch, ids=to_ids(batch["text"])))
        iterator = cases.initializable(data)
        batch = iterator.get_next()
        ids = batch["ids"] if "ids" in batch else to_ids(batch["text"])
        model = cases.Model(run, [run.lookup(run.table(), ids)], batch["label"])
        run.modify()
        sess = run.session()
        for _ in range(2):
            run.start(sess, iterator)
            for _ in range(13):
                run.step(sess, model.seen)
        run.contents(sess)

    runs = cases.alike(script, moves=1)
    found = cases.errors(runs[AHEAD])
    assert [kind for kind, _ in found] == ["InvalidArgumentError", "OutOfRangeError"] * 2
    assert "seven" in found[0][1]


def limited(iterator_of=cases.initializable, steps=None, **config):
    """Number of steps until the end, by form."""
    done = {}

    def script(run):
        iterator = iterator_of(cases.slices())
        batch = iterator.get_next()
        table = run.table()
        model = cases.Model(run, [run.lookup(table, batch["ids"])], batch["label"])
        run.modify()
        sess = run.session()
        if iterator_of is cases.initializable:
            run.start(sess, iterator)
        done[run.form] = run.epoch(sess, model.seen)
        run.notes[:] = [("ran", True)]

    cases.alike(script, moves=1, **config)
    return done


@pytest.mark.parametrize("iterator_of", [cases.initializable, cases.one_shot])
def test_max_steps_ends_the_modified_training_pipeline(iterator_of):
    assert limited(iterator_of, max_steps=3) == {STEP: 5, PASSED: 5, AHEAD: 3}
    assert limited(iterator_of, max_steps=100) == {STEP: 5, PASSED: 5, AHEAD: 5}


@support.run_by(cases.alike, moves=1, max_steps=2)
def test_max_steps_leaves_evaluation_alone(run):
    iterator = cases.initializable(cases.slices())
    batch = iterator.get_next()
    looked = run.lookup(run.table(), batch["ids"] + 1, is_train=False)
    sess = run.begin(iterator, False)
    assert run.epoch(sess, looked) == 5


@pytest.mark.parametrize("channel, steps", [(0, 2), (1, 3)])
@support.run_by(cases.alike, moves=1)
def test_eos_map_ends_a_dataset(run, channel, steps):
    data = cases.slices().eos_map(None, channel, 2, 3)
    iterator = cases.initializable(data)
    batch = iterator.get_next()
    model = cases.Model(run, [run.lookup(run.table(), batch["ids"])], batch["label"])
    sess = run.begin(iterator)
    assert run.finish(sess, model.seen) == steps


def simple(run, data=None, modify=True, **modify_arguments):
    iterator = cases.initializable(cases.slices() if data is None else data)
    batch = iterator.get_next()
    model = cases.Model(run, [run.lookup(run.table(), batch["ids"] * 2)], batch["label"])
    if modify:
        run.modify(**modify_arguments)
    return iterator, model


def test_a_second_modification_changes_nothing(caplog):
    caplog.set_level("WARNING", "mx_rec")

    def script(run):
        iterator, model = simple(run)
        if run.is_modified:
            before = tf.compat.v1.get_default_graph().as_graph_def()
            modify_graph_and_start_emb_cache()
            after = tf.compat.v1.get_default_graph().as_graph_def()
            assert not [node.name for node in after.node if (node.op == "MxRecPrepare" or support.kind_of(node).startswith("MxRecIdOffset prepared")) and
                        node.name not in {one.name for one in before.node}]
            assert [f.signature.name for f in after.library.function] == [f.signature.name for f in before.library.function]
        sess = run.begin(iterator)
        assert run.finish(sess, model.seen) == 5

    cases.alike(script, moves=1)


def test_a_graph_without_lookups_by_tensor_is_left_alone(dynamic, caplog):
    caplog.set_level("WARNING", "mx_rec")
    run = cases.Run(AHEAD)
    run.table()
    modify_graph_and_start_emb_cache()
    assert any("nothing to modify" in line for line in cases.reasons(caplog))


def test_a_graph_without_tables_cannot_be_started(dynamic):
    with pytest.raises(RuntimeError, match="create_table"):
        modify_graph_and_start_emb_cache()


def test_a_graph_that_a_session_has_run_stays_with_a_warning(caplog):
    caplog.set_level("WARNING", "mx_rec")

    def script(run):
        iterator, model = simple(run, modify=False)
        sess = run.session()
        if run.is_modified:
            before = len(tf.compat.v1.get_default_graph().get_operations())
            modify_graph_and_start_emb_cache()
            assert len(tf.compat.v1.get_default_graph().get_operations()) == before
        else:
            start_asc_pipeline()
        run.start(sess, iterator)
        assert run.epoch(sess, model.seen) == 5

    runs = []
    for form in (STEP, AHEAD):
        tf.compat.v1.reset_default_graph()
        init()
        runs.append(cases.Run(form))
        try:
            script(runs[-1])
        finally:
            runs[-1].close()
            terminate_config_initializer()
    cases.compare(*runs)
    assert [line for line in cases.reasons(caplog) if "a session has run this graph already" in line]


@support.run_by(cases.alike, moves=1)
def test_a_session_that_is_closed_again_is_no_obstacle(run):
    iterator, model = simple(run, modify=False)
    support.started(support.new_session()).close()
    sess = run.begin(iterator)
    assert run.epoch(sess, model.seen) == 5


def test_another_graph_than_the_default_one_is_modified():
    def script(run):
        graph = tf.Graph()
        with graph.as_default():
            iterator, model = simple(run, modify=not run.is_modified)
        if run.is_modified:
            other = tf.compat.v1.get_default_graph()
            count = len(other.get_operations())
            run.modify(full_graph=graph)
            assert len([op for op in other.get_operations() if "Export" not in op.type]) >= count
            assert not [op for op in other.get_operations() if op.type in ("MxRecPrepare", "IteratorV2") or support.kind_of(op).startswith("MxRecIdOffset prepared")]
        with graph.as_default():
            sess = support.new_session(graph)
            sess.run(tf.compat.v1.global_variables_initializer())
            run.start(sess, iterator)
            assert run.epoch(sess, model.seen) == 5
            sess.close()

    def raws_of_the_graph(run):
        # Ops that look at the table belong into its graph.
        of = support.Raw.of
        support.Raw.of = classmethod(lambda cls, table: None)
        try:
            script(run)
        finally:
            support.Raw.of = of

    cases.alike(raws_of_the_graph, moves=1)


def test_the_dump_has_the_graphs_and_the_plan(tmp_path, monkeypatch):
    from google.protobuf import text_format

    monkeypatch.chdir(tmp_path)
    count = {}

    def script(run):
        iterator, model = simple(run, **({"dump_graph": True} if run.is_modified else {}))
        sess = run.begin(iterator)
        run.epoch(sess, model.seen)
        count[run.form] = None

    runs = cases.alike(script, moves=1)
    graphs = {}
    names = sorted(os.listdir("export_graph"))
    assert {"moved_graph_0.pbtxt", "new_graph.pbtxt", "old_graph.pbtxt", "plan.dot", "plan.txt"} <= set(names), names
    for name in names:
        text = support.text_of(os.path.join("export_graph", name))
        if name.endswith(".pbtxt"):
            graphs[name] = text_format.Parse(text, tf.compat.v1.GraphDef())
    ops = {name: {support.kind_of(node) for node in graph.node} for name, graph in graphs.items()}
    assert "MxRecIdOffset" in ops["old_graph.pbtxt"] and "MxRecIdOffset prepared" not in ops["old_graph.pbtxt"]
    assert "MxRecIdOffset prepared" in ops["new_graph.pbtxt"]
    assert "Mul" in ops["moved_graph_0.pbtxt"]
    assert support.text_of("export_graph/plan.txt") == runs[AHEAD].plan.text()
    with open("export_graph/plan.dot") as file:
        from mx_rec.graph.drawing import draw_dot
        assert file.read() == draw_dot(runs[AHEAD].plan)


def test_an_unmodified_graph_warns_once_that_it_is_slower():
    code = """
import logging, sys
import modify_cases as cases, support
import test_modify_graph_ends as ends
run = cases.Run(sys.argv[1])
from mx_rec.util.initialize import init
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            lines.append(record.getMessage())
from mx_rec.util.log import logger
logger.addHandler(Keep())
init()
iterator, model = ends.simple(run)
for _ in range(2):
    sess = run.begin(iterator)
    run.epoch(sess, model.seen)
print(sum("slower" in line and "modify_graph_and_start_emb_cache" in line for line in lines))
"""
    assert preloaded.run_python(code, STEP).strip() == "1"
    assert preloaded.run_python(code, AHEAD).strip() == "0"


@pytest.mark.long
def test_a_modified_graph_trains_on_from_its_meta_graph_in_a_new_process(tmp_path):
    """Nothing of mx_rec's Python is needed then but the ops."""
    def script(run):
        iterator, model = simple(run)
        saver = tf.compat.v1.train.Saver([model.weight])
        for name, op in (("loss", model.loss), ("update", model.update), ("begin", iterator.initializer)):
            tf.compat.v1.add_to_collection(name, op)
        tf.compat.v1.add_to_collection("size", support.ops().mx_rec_table_stats(run.raw(
            run.tables["table"]).handle)[0])
        saver.export_meta_graph(os.path.join(run.directory, "model.meta"))
        code = """
import sys, tensorflow as tf, support
support.ops()
tf1 = tf.compat.v1
tf1.train.import_meta_graph(sys.argv[1])
loss, update, begin, size = [tf1.get_collection(name)[0] for name in ("loss", "update", "begin", "size")]
with support.started(support.new_session()) as sess:
    for _ in range(2):
        sess.run(begin)
        for _ in range(5):
            print(sess.run([loss, update])[0].tobytes().hex(), sess.run(size))
"""
        run.note("elsewhere", preloaded.run_python(code, os.path.join(run.directory, "model.meta")))
        sess = run.session()
        lines = []
        for _ in range(2):
            run.start(sess, iterator)
            for _ in range(5):
                loss = sess.run([model.loss, model.update])[0]
                lines.append("{} {}".format(loss.tobytes().hex(), run.tables["table"].size()))
        assert run.notes[0][1].split("\n")[:-1] == lines

    cases.alike(script, moves=1, tmp_path=tmp_path)


def test_hooks_of_older_scripts_stand_before_the_modification(caplog):
    caplog.set_level("INFO", "mx_rec")

    def script(run):
        iterator, model = simple(run, modify=False)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        hooks = [LookupSubgraphSlicerHook(op_types=["Mul", "StringToNumber"]), OrphanLookupKeySlicerHook(),
                 ACGPushOpsToDatasetHook(dump_graph=False), GraphModifierHook(modify_graph=run.is_modified)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as sess:
            done = 0
            while not sess.should_stop():
                try:
                    run.note("step", sess.run(model.seen))
                except tf.errors.OutOfRangeError:
                    break
                done += 1
        assert done == 5
        ops = {support.kind_of(op) for op in tf.compat.v1.get_default_graph().get_operations()}
        assert bool(ops & {"MxRecIdOffset prepared", "MxRecIdOffset prepared of many"}) == run.is_modified

    runs = []
    for form in (STEP, AHEAD):
        tf.compat.v1.reset_default_graph()
        runs.append(cases.Run(form))
        with support.initialized():
            script(runs[-1])
    cases.compare(*runs)
    assert sum("has nothing to do" in line for line in cases.reasons(caplog)) == 6
