"""A graph that was built elsewhere and imported is modified as one that was built here, with the same bits.

What mx_rec knew of lookups did not come along: `modify_graph_and_start_emb_cache` found nothing to modify, and then no table.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from modify_cases import AHEAD
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.graph import GraphModifierHook, modifier, modify_graph_and_start_emb_cache, sessions
from mx_rec.util.initialize import get_initializer, get_target_batch

tf1 = tf.compat.v1

KINDS = ("initializable", "one_shot", "reinitializable")


def iterator_of(kind):
    """(get_next, initializer or None)."""
    data = cases.slices()
    if kind == "one_shot":
        return cases.one_shot(data).get_next(), None
    if kind == "initializable":
        iterator = cases.initializable(data)
        return iterator.get_next(), iterator.initializer
    iterator = tf.compat.v1.data.Iterator.from_structure(
        tf.compat.v1.data.get_output_types(data), tf.compat.v1.data.get_output_shapes(data))
    return iterator.get_next(), iterator.make_initializer(data)


def build(run, kind, **arguments):
    """The training that all tests import; its parts have names."""
    batch, begin = iterator_of(kind)
    table = run.table()
    ids = tf.strings.to_number(tf.strings.as_string(batch["ids"]), tf.int64) + 1
    model = cases.Model(run, [run.lookup(table, ids, **arguments),
                              run.lookup(table, batch["ids"], **arguments)], batch["label"])
    tf.identity(model.loss, "model_loss")
    tf.group(model.update, name="model_update")
    seen = run.lookup(table, batch["ids"], is_train=False)
    tf.identity(seen, "model_seen")
    tf.identity(support.ops().mx_rec_table_stats(table.handle)[0], "model_size")
    if begin is not None:
        tf.compat.v1.add_to_collection("begin", begin)
    return model


def names(scope, *parts):
    return [(scope + "/" if scope else "") + part for part in parts]


def exported(run, kind, **arguments):
    """A meta graph of the training, built in a graph of its own."""
    path = os.path.join(run.directory, "model.meta")
    with tf.Graph().as_default():
        build(run, kind, **arguments)
        tf.compat.v1.train.export_meta_graph(path)
    run.tables.clear()
    return path


@pytest.mark.parametrize("scope", ["", "again/here"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_graph_is_modified_and_shows_the_same_bits(tmp_path, kind, scope):
    def script(run):
        path = exported(run, kind)
        tf.compat.v1.train.import_meta_graph(path, import_scope=scope or None)
        graph = tf.compat.v1.get_default_graph()
        found = names(scope, "model_loss:0", "model_seen:0", "model_size:0", "model_update")
        if run.is_modified:
            run.modify()
            assert len(get_target_batch(True)) == 2
        begin = get_initializer(True) if run.is_modified else None
        if kind != "one_shot" and begin is None:
            begin = graph.get_collection("begin")[0]
        sess = run.session()
        for _ in range(1 if kind == "one_shot" else 2):
            if kind != "one_shot":
                sess.run(begin)
            for _ in range(3):
                run.step(sess, [found[0], found[3]])
                run.step(sess, found[1])
                run.step(sess, found[2])

    runs = cases.alike(script, moves=3, tmp_path=tmp_path)
    assert len(cases.errors(runs[AHEAD])) == (1 if kind == "one_shot" else 2)


@pytest.mark.parametrize("kind", KINDS)
@support.run_by(cases.alike, "tmp_path", moves=3)
def test_the_hook_modifies_an_imported_graph(run, kind):
    path = exported(run, kind)
    tf.compat.v1.train.import_meta_graph(path)
    tf.compat.v1.train.create_global_step()
    begins = tf.compat.v1.get_collection("begin")
    make_plan = modifier.make_plan

    def recorded(*given, **named):
        run.plan = make_plan(*given, **named)
        return run.plan

    modifier.make_plan = recorded
    try:
        scaffold = tf1.train.Scaffold(local_init_op=tf.group(tf1.train.Scaffold.default_local_init_op(), *begins))
        hooks = [GraphModifierHook()] if run.is_modified else []
        with tf1.train.MonitoredSession(tf1.train.ChiefSessionCreator(scaffold), hooks) as sess:
            for _ in range(2):
                run.note("step", sess.run(["model_loss:0", "model_update"])[0])
                run.note("seen", sess.run("model_seen:0"))
            run.note("size", sess.run("model_size:0"))
    finally:
        modifier.make_plan = make_plan


@pytest.mark.parametrize("is_late", [False, True])
@support.run_by(cases.alike, "tmp_path", moves=1)
def test_admission_of_an_imported_graph_finds_the_timestamp_of_the_collection(run, is_late):
    """It was connected when the graph was first run: exported before, keys had no time, and nothing was ever stale."""
    path = os.path.join(run.directory, "model.meta")
    with tf.Graph().as_default():
        batch = cases.one_shot(cases.slices()).get_next()
        stamp = tf.constant(1000, tf.int64)
        if not is_late:
            tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", stamp)
        rows = run.lookup(run.table(), batch["ids"],
                          access_and_evict_config={"access_threshold": 1, "eviction_threshold": 5})
        tf.identity(rows, "rows")
        tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", stamp)
        tf.compat.v1.train.export_meta_graph(path)
    run.tables.clear()
    graph = tf.compat.v1.get_default_graph()
    tf.compat.v1.train.import_meta_graph(path)
    if run.is_modified:
        run.modify()
    sess = run.session()
    for _ in range(3):
        run.step(sess, "rows:0")
    [observe] = [op for op in graph.get_operations() if op.type == "MxRecObserve"]
    assert sess.run(observe.inputs[3]) == 1000


def test_admission_of_an_imported_graph_without_its_timestamp_is_an_error(dynamic, tmp_path):
    run = cases.Run(AHEAD, tmp_path)
    with tf.Graph().as_default():
        run.lookup(run.table(), tf.constant([1], tf.int64),
                   access_and_evict_config={"access_threshold": 1, "eviction_threshold": 5})
        tf.compat.v1.train.export_meta_graph(str(tmp_path / "model.meta"))
    tf.compat.v1.train.import_meta_graph(str(tmp_path / "model.meta"))

    with pytest.raises(ValueError, match="'table'.*timestamp"):
        modify_graph_and_start_emb_cache()
    with support.new_session() as sess:
        with pytest.raises(ValueError, match="'table'.*timestamp"):
            sess.run(tf.compat.v1.global_variables_initializer())


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_was_modified_before_its_export_is_left_as_it_is(dynamic, tmp_path, kind):
    """Its one-shot iterator was started by the process that modified it alone."""
    losses = []
    for is_modified in (False, True):
        run = cases.Run(AHEAD, tmp_path)
        path = str(tmp_path / "model_{}.meta".format(is_modified))
        with tf.Graph().as_default():
            build(run, kind)
            if is_modified:
                modify_graph_and_start_emb_cache()
            tf1.train.export_meta_graph(path)
        for again in (False, True):
            with tf.Graph().as_default() as graph:
                tf1.train.import_meta_graph(path)
                before = len(graph.get_operations())
                if again and is_modified:
                    modify_graph_and_start_emb_cache()
                    assert len(graph.get_operations()) == before
                with support.started(support.new_session()) as sess:
                    sess.run(tf1.get_collection("begin"))
                    losses.append([sess.run(["model_loss:0", "model_update"])[0] for _ in range(5)])
    for other in losses[1:]:
        support.assert_same_bits(losses[0], other)
    assert np.ptp(losses[0]) > 0


def test_an_imported_graph_without_tables_still_says_so(dynamic, graph):
    with tf.Graph().as_default() as other:
        tf.constant(1)
        text = other.as_graph_def()
    tf.import_graph_def(text, name="")
    with pytest.raises(RuntimeError, match="table_info_list is empty"):
        modify_graph_and_start_emb_cache()


@pytest.mark.long
def test_two_imports_of_one_graph_are_both_modified(tmp_path):
    """Tables of two imports have one name each, but live apart: what one trains the other does not see."""
    def script(run):
        path = exported(run, "one_shot")
        for scope in ("one", "two"):
            tf.compat.v1.train.import_meta_graph(path, import_scope=scope)
        if run.is_modified:
            run.modify()
        sess = run.session()
        for scope in ("one", "two", "one"):
            for _ in range(2):
                run.step(sess, names(scope, "model_loss:0", "model_update"), label=scope)
                run.step(sess, names(scope, "model_size:0"), label=scope)

    runs = cases.alike(script, moves=6, tmp_path=tmp_path)
    assert not cases.errors(runs[AHEAD], "one") and not cases.errors(runs[AHEAD], "two")


def not_fed(graph):
    """Names of what a session refuses to be fed; TensorFlow refuses constants whose value it has used."""
    return {output.name for op in graph.get_operations() if op.type != "Const"
            for output in op.outputs if not graph.is_feedable(output)}


@pytest.mark.parametrize("scope", ["", "again/here"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_pipeline_of_an_imported_graph_computes_cannot_be_fed(dynamic, tmp_path, kind, scope):
    """The refusal stayed behind in the process that modified: lookups ignored what was fed."""
    run = cases.Run(AHEAD, tmp_path)
    paths = [str(tmp_path / name) for name in ("one.meta", "two.meta")]
    with tf.Graph().as_default() as graph:
        build(run, kind)
        modify_graph_and_start_emb_cache()
        tf1.train.export_meta_graph(paths[0])
        refused = not_fed(graph)
        # Of the element itself, the ids that are used as they are may still be fed.
        assert len(refused) >= 3
    for path, again in zip(paths, (paths[1], None)):
        with tf.Graph().as_default() as graph:
            tf1.train.import_meta_graph(path, import_scope=scope or None)
            prefix = scope + "/" if scope else ""
            found = not_fed(graph)
            assert found == {prefix + name for name in refused}
            name = sorted(name for name in found if "StringToNumber" in name)[0]
            with support.started(support.new_session()) as sess:
                with pytest.raises(ValueError, match="may not be fed"):
                    sess.run(prefix + "model_loss:0", {name: np.zeros([2, 3], np.int64)})
            if again:
                tf1.train.export_meta_graph(again, export_scope=scope or None)


@pytest.mark.parametrize("first", ["unmodified", "modified", "evaluation"])
def test_the_warning_of_slower_steps_is_for_imported_graphs_that_were_not_modified(
        dynamic, tmp_path, monkeypatch, first):
    said = []
    monkeypatch.setattr(sessions, "warn_once", lambda text, *args: said.append(text))
    run = cases.Run(AHEAD, tmp_path)
    path = str(tmp_path / "model.meta")
    with tf.Graph().as_default():
        if first == "evaluation":
            run.lookup(run.table(), tf1.placeholder(tf.int64, [2]), is_train=False)
        else:
            build(run, "one_shot")
        if first == "modified":
            modify_graph_and_start_emb_cache()
        tf1.train.export_meta_graph(path)
    for is_modified in (False, True):
        del said[:]
        with tf.Graph().as_default():
            tf1.train.import_meta_graph(path)
            if is_modified:
                modify_graph_and_start_emb_cache()
            support.started(support.new_session()).close()
        assert ["slower" in text for text in said] == [True] * (
            first == "unmodified" and not is_modified)


@pytest.mark.parametrize("change", ["no such op", "other lists"])
def test_a_graph_of_an_earlier_build_is_refused_with_what_to_do(graph, dynamic, change):
    """Before: "Op type not registered 'MxRecEmbedMany'. Make sure the Op and Kernel are registered", which they never are."""
    v1 = tf.compat.v1
    table = create_table(tf.int64, 4, "items", v1.random_normal_initializer(seed=5), device_vocabulary_size=100)
    for is_train in (True, False):
        sparse_lookup(table, v1.placeholder(tf.int64, [None]), is_train=is_train, modify_graph=True)
    meta = v1.train.export_meta_graph()
    node, = [node for node in meta.graph_def.node if node.op == "MxRecFind"]
    if change == "no such op":
        node.op = "MxRecFindMany"
    else:
        for name in ("N", "A", "B", "initial"):
            del node.attr[name]
    with tf.Graph().as_default(), pytest.raises((ValueError, tf.errors.NotFoundError)) as error:
        v1.train.import_meta_graph(meta)
    text = str(error.value)
    assert node.op in text and "earlier build of mx_rec" in text and "Write the graph again" in text
