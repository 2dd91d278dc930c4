"""`python -m mx_rec.graph`: graphs of every kind of file, the plan in words, its drawing, and its errors."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import support

SVG = "{http://www.w3.org/2000/svg}"


def make_plan(moving=3, staying=2, ops=2, table="user_table", name="user_table//l{}/id_offset", direct=1):
    """A plan made by hand: one iterator, of whose lookups the first `direct` read a component."""
    from tensorflow.core.framework import graph_pb2

    from mx_rec.graph.plan import Ids, Iterator, Lookup, Plan

    names = ["scope_{}/op_{}".format(number % 7, number) for number in range(ops)]
    graph = graph_pb2.GraphDef()
    for one in names:
        graph.node.add(name=one, op="Cast")
    lookups = [Lookup(name.format(n), "train", table.format(n), "t:1", "ids_{}:0".format(n), True, 0, "it moves")
               for n in range(moving)]
    lookups += [Lookup(name.format(n), "train", table.format(n), "t:1", "ids_{}:0".format(n), False, None,
                       "it comes from the placeholder 'fed_{}': nothing to move".format(n))
                for n in range(moving, moving + staying)]
    ids = [Ids("ids_{}:0".format(n), n if n < direct else None, 9) for n in range(moving)]
    iterators = [Iterator("IteratorGetNext", "IteratorV2", "initializable", ["MakeIterator"], 3,
                          list(range(moving)), ids, names, graph)] if moving else []
    return Plan(100, lookups, iterators)


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg.encode("utf-8")).iter(SVG + "text")]


@pytest.mark.parametrize("size", [dict(), dict(moving=0), dict(staying=0), dict(moving=0, staying=0), dict(ops=0),
                                  dict(moving=300, staying=300, ops=900), dict(table="t{}", moving=300)])
def test_nothing_reaches_over_the_page_or_over_another_box(size):
    from mx_rec.graph.drawing import draw_svg, layout

    plan = make_plan(**size)
    drawing = layout(plan)
    solid = [box for box in drawing.boxes if box.style in ("box", "moves", "stays")]
    for box in drawing.boxes:
        assert box.style == "text" or box.x + box.width <= drawing.width and box.y + box.height <= drawing.height, box
        assert all(len(line) * 7.25 <= box.width for line in box.lines), box.lines
    for number, one in enumerate(solid):
        for other in solid[number + 1:]:
            apart = (one.x + one.width <= other.x or other.x + other.width <= one.x
                     or one.y + one.height <= other.y or other.y + other.height <= one.y)
            assert apart, (one, other)
    assert drawing.height < 3000
    assert texts(draw_svg(plan))


def test_the_drawing_names_lookups_ops_reasons_and_components():
    from mx_rec.graph.drawing import draw_svg

    drawn = " ".join(texts(draw_svg(make_plan())))
    for wanted in ("input pipeline", "training step", "IteratorV2", "IteratorGetNext", "scope_0/op_0 (Cast)",
                   "component 0", "user_table//l1/id_offset", "placeholder 'fed_4'"):
        assert wanted in drawn, wanted
    assert drawn.count("MxRecPrepare") == drawn.count("MxRecClaim") == 3


def test_many_ops_and_many_lookups_are_drawn_as_groups_and_none_is_lost():
    from mx_rec.graph.drawing import draw_svg

    drawn = " ".join(texts(draw_svg(make_plan(moving=300, staying=200, ops=700))))
    assert "MxRecPrepare x 299" in drawn and "MxRecClaim x 299" in drawn, drawn
    assert "moved: 700 ops" in drawn and "scope_3/: 100 ops (Cast)" in drawn
    assert "200 lookups" in drawn


def test_names_that_xml_would_take_for_markup_and_long_names_are_drawn():
    from mx_rec.graph.drawing import draw_svg

    name = "a<b>&\"'\x01\u00e9" + "long_" * 100 + "{}"
    svg = draw_svg(make_plan(name=name))
    svg.encode("ascii")
    assert any(text.startswith("a<b>&\"'") and "\u00e9" in text for text in texts(svg))
    full = [element.text for element in ElementTree.fromstring(svg).iter(SVG + "title")]
    assert any(text.endswith("long_" * 100 + "1") for text in full)


def test_a_plan_without_lookups_says_so():
    from mx_rec.graph.drawing import draw_svg

    assert any("no lookup" in text for text in texts(draw_svg(make_plan(moving=0, staying=0))))


@pytest.fixture
def movable(dynamic):
    """A graph with a training iterator, one of evaluation, a hash of strings and a placeholder."""
    from mx_rec.core.embedding import create_table, sparse_lookup

    tf = support.tf()
    v1 = tf.compat.v1
    table = create_table(key_dtype=tf.int64, dim=4, name="user_table", device_vocabulary_size=1000,
                         emb_initializer=v1.zeros_initializer())
    batches = [v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(
        (tf.constant([1, 2], tf.int64), tf.constant(["a", "b"])))).get_next() for _ in range(2)]
    for batch, is_train in zip(batches, (True, False)):
        for ids in (batch[0], tf.strings.to_hash_bucket_fast(batch[1], 100)):
            sparse_lookup(table, ids, is_train=is_train, modify_graph=True)
    sparse_lookup(table, v1.placeholder(tf.int64, [None], name="fed"), is_train=True, modify_graph=True)
    return v1.get_default_graph()


def command(*arguments):
    from mx_rec.graph.__main__ import main

    return main([str(argument) for argument in arguments])


def save(graph, directory, form):
    """Writes a graph in one of the forms that the command reads; the names tell nothing."""
    tf = support.tf()
    v1 = tf.compat.v1
    path = os.path.join(str(directory), "some.file")
    if form.startswith("graph"):
        tf.io.write_graph(graph, str(directory), "some.file", as_text=form.endswith("text"))
    elif form.startswith("meta"):
        v1.train.export_meta_graph(path, graph=graph, as_text=form.endswith("text"))
    else:
        path = os.path.join(str(directory), "saved")
        builder = v1.saved_model.Builder(path)
        with support.new_session(graph) as session:
            session.run(v1.global_variables_initializer())
            builder.add_meta_graph_and_variables(session, ["train", "gpu"])
            builder.add_meta_graph(["other"])
        builder.save(as_text=form.endswith("text"))
    return path


@pytest.mark.parametrize("form", ["graph", "graph text", "meta", "meta text", "saved", "saved text"])
def test_a_graph_is_read_from_every_form(movable, tmp_path, capfd, form):
    path = save(movable, tmp_path, form)
    tags = ["--tag", "gpu", "--tag", "train"] if form.startswith("saved") else []
    capfd.readouterr()
    assert command(path, *tags) == 0
    said = capfd.readouterr()
    assert said.err == ""
    assert "5 lookups that may be moved: 4 move, 1 stay" in said.out
    assert "StringToHashBucketFast" in said.out and "placeholder 'fed'" in said.out


def test_a_saved_model_with_several_graphs_asks_for_a_tag(movable, tmp_path, capsys):
    path = save(movable, tmp_path, "saved")
    assert command(path) == 2
    assert "gpu, train; other" in capsys.readouterr().err
    assert command(path, "--tag", "gpu") == 2
    assert "exactly" in capsys.readouterr().err


def test_the_outputs_are_written(movable, tmp_path, capsys):
    path = save(movable, tmp_path, "graph")
    svg, plan = tmp_path / "plan.svg", tmp_path / "plan.json"
    assert command(path, "--svg", svg, "--json", plan) == 0
    drawn = " ".join(texts(svg.read_text()))
    assert "evaluation step" in drawn and "MxRecFind" in drawn and "training step: lookups that stay" in drawn
    read = json.loads(plan.read_text())
    assert [one["moves"] for one in read["lookups"]] == [True, True, True, True, False]
    assert {"name": "StringToHashBucketFast", "op": "StringToHashBucketFast"} in read["iterators"][0]["nodes"]
    capsys.readouterr()
    assert command(path, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == read


def test_a_png_is_drawn_or_the_svg_named(movable, tmp_path, capsys, monkeypatch):
    path = save(movable, tmp_path, "graph")
    png = tmp_path / "plan.png"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        pass
    else:
        assert command(path, "--png", png) == 0
        assert png.read_bytes()[:4] == b"\x89PNG"
    for name in ("matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.patches"):
        monkeypatch.setitem(sys.modules, name, None)
    capsys.readouterr()
    assert command(path, "--png", tmp_path / "none.png") == 2
    assert "--svg" in capsys.readouterr().err


@pytest.mark.parametrize("content, word", [
    (None, "No such file"), (b"", "is empty"), (b"hello world\n", "no GraphDef"), (bytes(range(256)), "no GraphDef"),
    (b"node { name: 1 }", "text form"), (b"versions { producer: 134 }", "no nodes"), ("directory", "no SavedModel")])
def test_what_is_no_graph_is_one_line_and_exit_code_2(tmp_path, capsys, content, word):
    path = tmp_path / "graph.pb"
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    assert command(path) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert word in said.err and str(path) in said.err


def test_a_graph_without_tables_says_so(graph, tmp_path, capsys):
    tf = support.tf()
    tf.constant(1)
    assert command(save(graph, tmp_path, "graph")) == 0
    assert "No table" in capsys.readouterr().out


def test_ops_of_other_plugins_are_known_from_a_meta_file_and_stop_nothing_else(movable, tmp_path, capsys):
    tf = support.tf()
    meta = tf.compat.v1.train.export_meta_graph(graph=movable)
    for node in meta.graph_def.node:
        if node.name == "StringToHashBucketFast":
            node.op = "HashOfSomebody"
    for known in (True, False):
        if known:
            meta.meta_info_def.stripped_op_list.op.add(name="HashOfSomebody")
        else:
            del meta.meta_info_def.stripped_op_list.op[-1]
        (tmp_path / "model.meta").write_bytes(meta.SerializeToString())
        assert command(tmp_path / "model.meta") == 0
        assert ("4 move, 1 stay" if known else "3 move, 2 stay") in capsys.readouterr().out


def test_three_hundred_lookups_and_the_command_as_a_process(dynamic, tmp_path):
    from mx_rec.core.embedding import create_table, sparse_lookup

    tf = support.tf()
    v1 = tf.compat.v1
    tables = [create_table(key_dtype=tf.int64, dim=4, name="t{}".format(number), device_vocabulary_size=1000,
                           emb_initializer=v1.zeros_initializer()) for number in range(3)]
    batch = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.zeros([300, 4], tf.int64))).get_next()
    for number in range(300):
        sparse_lookup(tables[number % 3], batch[number], is_train=True, modify_graph=True)
    path = save(v1.get_default_graph(), tmp_path, "meta")
    run = [sys.executable, "-W", "ignore", "-m", "mx_rec.graph"]
    environment = dict(os.environ, PYTHONPATH=support.PACKAGES, TF_CPP_MIN_LOG_LEVEL="2")
    done = subprocess.run(run + [path, "--svg", str(tmp_path / "plan.svg")], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 0, done.stderr
    assert "300 move, 0 stay" in done.stdout
    assert " ".join(texts((tmp_path / "plan.svg").read_text())).count("MxRecPrepare x 100") == 3
    missing = subprocess.run(run + ["nothing.pb"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             universal_newlines=True)
    assert missing.returncode == 2 and "nothing.pb" in missing.stderr.splitlines()[-1]
