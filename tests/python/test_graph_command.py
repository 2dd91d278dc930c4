"""`python -m mx_rec.graph`: graphs of every kind of file, the plan in words, its drawing, and its errors."""

import html
import json
import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf

import support
from mx_rec.core.embedding import sparse_lookup
from mx_rec.graph.__main__ import main
from mx_rec.graph.drawing import draw_dot
from mx_rec.graph.plan import Plan, Record
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.stock.select import convert_graph

v1 = tf.compat.v1

STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
STATEMENT = re.compile(r"(digraph plan \{|(graph|node|edge) \[[^][]*\];|subgraph \w+ \{|\w+=(S|\w+);|\}"
                       r"|\w+ -> \w+( \[label=S\])?;|\w+ \[label=S, tooltip=S, style=S(, \w+=[\w.]+)*\];)\Z")


def make_plan(moving=3, staying=2, ops=2, table="user_table", name="user_table//l{}/id_offset", direct=1):
    """A plan made by hand: one iterator, of whose lookups the first `direct` read a component."""
    from tensorflow.core.framework import graph_pb2

    def lookup(n, moves, iterator, reason):
        return Record(node=name.format(n), kind="train", table=table.format(n), handle="t:1", ids="ids_{}:0".format(n),
                      moves=moves, iterator=iterator, reason=reason)

    names = ["scope_{}/op_{}".format(number % 7, number) for number in range(ops)]
    graph = graph_pb2.GraphDef()
    for one in names:
        graph.node.add(name=one, op="Cast")
    lookups = [lookup(n, True, 0, "it moves") for n in range(moving)]
    lookups += [lookup(n, False, None, "it comes from the placeholder 'fed_{}': nothing to move".format(n))
                for n in range(moving, moving + staying)]
    ids = [Record(tensor="ids_{}:0".format(n), component=n if n < direct else None, dtype=9) for n in range(moving)]
    iterators = [Record(get_next="IteratorGetNext", iterator="IteratorV2", kind="initializable",
                        initializers=["MakeIterator"], components=3, lookups=list(range(moving)), ids=ids, bags=[],
                        nodes=names, graph=graph)] if moving else []
    return Plan(100, lookups, iterators)


def labels(dot):
    """The labels of a drawing as Graphviz shows them: lines by line ends, references and escapes read."""
    return [html.unescape(re.sub(r"\\(.)", lambda escape: escape.group(1).replace("l", "\n"), text)).rstrip("\n")
            for text in re.findall(r"label=" + STRING.pattern, dot)]


def tooltips(dot):
    """The tooltips of a drawing, lists of names."""
    return [html.unescape(text).split("\\n") for text in re.findall(r"tooltip=" + STRING.pattern, dot)]


def assert_dot(dot):
    """Holds a text against the part of the DOT language that drawings use: whole statements, closed clusters, and
    edges between nodes that exist. Strings hold nothing that ends them early."""
    assert dot.encode("ascii") and dot.endswith("}\n")
    bare = STRING.sub("S", dot)
    assert '"' not in bare
    depth, nodes, clusters = 0, [], []
    for line in re.sub(r",\n +", ", ", bare).splitlines():
        for statement in re.split(r"(?<=;) (?=\w+=)", line.strip()):
            assert STATEMENT.match(statement), statement
        depth += line.count("{") - line.count("}")
        assert depth > 0 or line == "}", line
        nodes += re.findall(r"^ *(\w+) \[label", line)
        clusters += re.findall(r"subgraph (\w+)", line)
    assert depth == 0
    assert len(set(nodes)) == len(nodes) and len(set(clusters)) == len(clusters)
    for pair in re.findall(r"(\w+) -> (\w+)", bare):
        assert set(pair) <= set(nodes), pair


@pytest.mark.parametrize("size", [dict(), dict(moving=0), dict(staying=0), dict(moving=0, staying=0), dict(ops=0),
                                  dict(moving=300, staying=300, ops=900), dict(table="t{}", moving=300)])
def test_drawings_of_every_size_are_dot_and_short(size):
    dot = draw_dot(make_plan(**size))
    assert_dot(dot)
    shown = labels(dot)
    assert all(len(line) <= 100 for text in shown for line in text.splitlines())
    assert len(shown) < 100 and sum(text.count("\n") for text in shown) < 300
    assert dot == draw_dot(make_plan(**size))


def test_a_small_plan_is_drawn_as_it_was_before():
    path = os.path.join(os.path.dirname(__file__), "golden", "plan.dot")
    drawn = draw_dot(make_plan(moving=2, staying=1))
    if os.environ.get("MX_REC_REWRITE_GOLDEN"):
        support.write(path, drawn)
    assert drawn == support.text_of(path)


def test_the_drawing_names_lookups_ops_reasons_and_components():
    dot = draw_dot(make_plan())
    drawn = " ".join(" ".join(labels(dot)).split())
    for wanted in ("input pipeline", "training step", "IteratorV2", "IteratorGetNext", "scope_0/op_0 (Cast)",
                   "component 0", "user_table//l1/id_offset", "placeholder 'fed_4'"):
        assert wanted in drawn, wanted
    assert drawn.count("MxRecPrepare") == drawn.count("MxRecIdOffset") == 3
    assert "iterator_0 -> prepare_0_0 [label=\"component 0\"];" in dot and "moved_0 -> prepare_0_1;" in dot
    styles = [re.search(r"^ *{}.*style=\"([^\"]*)\"".format(node), dot, re.MULTILINE).group(1)
              for node in ("prepare_0_0", "stays_train_0", "lookup_0_0")]
    assert styles == ["filled,bold", "filled,dashed", "filled"]


def test_many_ops_and_many_lookups_are_drawn_as_groups_and_none_is_lost():
    dot = draw_dot(make_plan(moving=300, staying=200, ops=700))
    drawn = " ".join(" ".join(labels(dot)).split())
    assert "MxRecPrepare x 299" in drawn and "MxRecIdOffset x 299" in drawn, drawn
    assert "moved: 700 ops" in drawn and "scope_3/: 100 ops (Cast)" in drawn
    assert "200 lookups" in drawn
    named = {name for names in tooltips(dot) for name in names}
    assert {"user_table//l{}/id_offset".format(number) for number in range(500)} <= named
    assert {"scope_{}/op_{}".format(number % 7, number) for number in range(700)} <= named


def test_names_that_dot_would_take_for_its_own_and_long_names_are_drawn():
    start = "a<b>&\"'\x01\u00e9&amp;\\N\\l\\"
    dot = draw_dot(make_plan(name=start + "long_" * 100 + "{}"))
    assert_dot(dot)
    shown = start.replace("\x01", "?")
    assert any(text.startswith("MxRecIdOffset\n" + shown) for text in labels(dot)), labels(dot)
    full = shown.replace("\\", "\\" * 4) + "long_" * 100 + "1"
    assert [full] in tooltips(dot), tooltips(dot)


def test_a_name_that_ends_with_a_backslash_or_holds_a_line_end_closes_no_string():
    for table in ("t\\", "t\\\\", "t\"];}}", "t\n}}", "t\r\n", "\ud800\ufffe\U0001f600", ""):
        assert_dot(draw_dot(make_plan(table=table, name=table + "{}")))


@pytest.mark.parametrize("count", [1, 3, 200])
def test_sums_and_concatenations_are_drawn_whether_they_are_fused_or_not(count):
    tables = ["table \"%d\"" % at for at in range(count)]
    sums = [Record(lookup="rows_%d" % at, table=table, fuses=at % 2 == 0,
                   weights=Record(tensor="mask:0", axis=-1) if at % 3 == 0 else None,
                   sums=[Record(node="sum_%d" % at, combiner="sum", keep_dims=False)], reason="because <%d>" % at)
            for at, table in enumerate(tables)]
    concats = [Record(node="joined", fuses=True, parts=[Record(lookup="rows", output=0, table=table) for table in tables],
                      reason="side by side")]
    dot = draw_dot(make_plan(moving=1, staying=0)._replace(sums=sums, concats=concats))
    assert_dot(dot)
    drawn = " ".join(" ".join(labels(dot)).split())
    assert "fused: weighted sums over bags" in drawn and "sum_0" in drawn and "because" in drawn
    assert ("not fused: sums over bags" in drawn) == (count > 1)
    assert ("%d more: " % (count + 1 - 24) in drawn) == (count == 200)
    assert ("fused: concatenation of %d lookup" % count in drawn) == (count < 200) and len(dot) < 60000
    assert "fusion" not in draw_dot(make_plan(moving=1, staying=0))


def test_a_plan_without_lookups_says_so():
    assert any("no lookup" in text for text in labels(draw_dot(make_plan(moving=0, staying=0))))


@pytest.fixture
def movable(dynamic):
    """A graph with a training iterator, one of evaluation, a hash of strings and a placeholder."""
    table = support.make_table("user_table", 4, 1000)
    batches = [v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(
        (tf.constant([1, 2], tf.int64), tf.constant(["a", "b"])))).get_next() for _ in range(2)]
    for batch, is_train in zip(batches, (True, False)):
        for ids in (batch[0], tf.strings.to_hash_bucket_fast(batch[1], 100)):
            sparse_lookup(table, ids, is_train=is_train, modify_graph=True)
    sparse_lookup(table, v1.placeholder(tf.int64, [None], name="fed"), is_train=True, modify_graph=True)
    return v1.get_default_graph()


def command(*arguments):
    return main([str(argument) for argument in arguments])


def save(graph, directory, form):
    """Writes a graph in one of the forms that the command reads; the names tell nothing."""
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
    dot, plan = tmp_path / "plan.dot", tmp_path / "plan.json"
    assert command(path, "--dot", dot, "--json", plan) == 0
    assert_dot(dot.read_text())
    drawn = labels(dot.read_text())
    assert "evaluation step" in drawn and "training step: lookups that stay" in drawn
    assert any(text.startswith("MxRecFind") for text in drawn)
    read = json.loads(plan.read_text())
    assert [one["moves"] for one in read["lookups"]] == [True, True, True, True, False]
    assert {"name": "StringToHashBucketFast", "op": "StringToHashBucketFast"} in read["iterators"][0]["nodes"]
    capsys.readouterr()
    for option, text in (("--json", plan), ("--dot", dot)):
        assert command(path, option, "-") == 0
        assert capsys.readouterr().out == text.read_text()


@pytest.mark.parametrize("form", ["svg", "png"])
def test_pictures_come_from_graphviz_and_without_it_the_text_form_is_named(movable, tmp_path, capsys, monkeypatch,
                                                                          form):
    """A program of the name dot stands in for Graphviz's: it writes its option and what it reads."""
    path, picture = save(movable, tmp_path, "graph"), tmp_path / "plan.picture"
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=False)
    assert command(path, "--" + form, picture) == 2
    said = capsys.readouterr().err
    assert "Graphviz" in said and "--dot" in said and said.count("\n") == 1
    assert not picture.exists()
    dot = programs / "dot"
    dot.write_text("#!/bin/sh\necho \"$1\"\nexec /bin/cat\n")
    dot.chmod(0o755)
    assert command(path, "--" + form, picture) == 0
    option, drawn = picture.read_text().split("\n", 1)
    assert option == "-T" + form
    assert_dot(drawn)
    dot.write_text("#!/bin/sh\necho 'no such format' >&2\nexit 3\n")
    capsys.readouterr()
    assert command(path, "--" + form, picture) == 2
    said = capsys.readouterr().err
    assert "code 3" in said and "no such format" in said and said.count("\n") == 1
    assert picture.read_text() == option + "\n" + drawn


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
    tf.constant(1)
    assert command(save(graph, tmp_path, "graph")) == 0
    assert "No table" in capsys.readouterr().out


def test_ops_of_other_plugins_are_known_from_a_meta_file_and_stop_nothing_else(movable, tmp_path, capsys):
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
        printed = capsys.readouterr().out
        assert ("4 move, 1 stay" if known else "3 move, 2 stay") in printed
        assert "before and after the first run: unknown, since TensorFlow cannot import it: " in printed


def test_the_command_counts_the_ops_of_tables_before_and_after_the_first_run(dynamic, tmp_path, capsys):
    tables = [support.make_table("t%d" % number, 4, 1000) for number in range(3)]
    ids = [tf.compat.v1.placeholder(tf.int64, [None, 5]) for _ in tables]
    rows = [tf.reduce_sum(sparse_lookup(table, one, modify_graph=True), 1) for table, one in zip(tables, ids)]
    tf.add_n(rows)
    assert command(save(tf.compat.v1.get_default_graph(), tmp_path, "meta")) == 0
    assert "before and after the first run: MxRecBagEnds 0 -> 3, MxRecIdOffset 3 -> 1, MxRecRead 3 -> 1\n" in capsys.readouterr().out


def test_the_json_has_what_shares_an_op_and_updates_that_change(dynamic, tmp_path, capsys):
    tables = [support.make_table("t%d" % number, 4, 1000) for number in range(2)]
    ids = [v1.placeholder(tf.int64, [None, 5]) for _ in tables]
    rows = [sparse_lookup(table, one, modify_graph=True) for table, one in zip(tables, ids)]
    variables = [table.variable for table in tables]
    grads = tf.gradients(tf.add_n(rows), variables)
    create_hash_optimizer(0.1).apply_gradients(zip(grads, variables))
    assert command(save(v1.get_default_graph(), tmp_path, "meta"), "--json", "-") == 0
    read = json.loads(capsys.readouterr().out)
    assert [(one["op"], len(one["nodes"])) for one in read["together"]] == [("MxRecIdOffset", 2), ("MxRecRead", 2)]
    assert [len(one["updates"]) for one in read["updates"]] == [2] and read["requests"] == []


def test_the_tables_of_parameter_servers_are_tables(mx, tmp_path, capsys):
    mx(stock_tables=["a", "b"])
    ids = v1.placeholder(tf.int64, [None])
    with tf.device("/job:ps/task:0"):
        variables = [v1.get_variable(name, [5000, 4]) for name in "ab"]
    tf.add_n([tf.nn.embedding_lookup(one, ids) for one in variables])
    assert [plan.on_servers for plan in convert_graph(v1.get_default_graph(), False) if plan.converts] == [True, True]
    path = save(v1.get_default_graph(), tmp_path, "graph")
    assert command(path) == 0
    printed = capsys.readouterr().out
    assert "with 2 tables\nNo lookup was made by sparse_lookup" in printed and "No table" not in printed
    assert "before and after the first run: " in printed
    assert command(path, "--json", "-") == 0
    assert [len(one["nodes"]) for one in json.loads(capsys.readouterr().out)["requests"]] == [2]


@pytest.mark.long
def test_three_hundred_lookups_and_the_command_as_a_process(dynamic, tmp_path):
    tables = [support.make_table("t{}".format(number), 4, 1000) for number in range(3)]
    batch = v1.data.make_initializable_iterator(tf.data.Dataset.from_tensors(tf.zeros([300, 4], tf.int64))).get_next()
    for number in range(300):
        sparse_lookup(tables[number % 3], batch[number], is_train=True, modify_graph=True)
    path = save(v1.get_default_graph(), tmp_path, "meta")
    run = [sys.executable, "-W", "ignore", "-m", "mx_rec.graph"]
    environment = dict(os.environ, PYTHONPATH=support.PACKAGES, TF_CPP_MIN_LOG_LEVEL="2")
    done = subprocess.run(run + [path, "--dot", str(tmp_path / "plan.dot")], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 0, done.stderr
    assert "300 move, 0 stay" in done.stdout
    assert " ".join(labels((tmp_path / "plan.dot").read_text())).count("MxRecPrepare x 100") == 3
    missing = subprocess.run(run + ["nothing.pb"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             universal_newlines=True)
    assert missing.returncode == 2 and "nothing.pb" in missing.stderr.splitlines()[-1]
