"""The command `python -m mx_rec.graph`: what is changed in a graph before it runs, and why."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from typing import List, Optional, Sequence, Tuple

import tensorflow as tf

from mx_rec import plugin
from mx_rec.base.command import counted, print_text, sentence
from mx_rec.edits.replacing import extensible
from mx_rec.graph.drawing import draw_dot
from mx_rec.graph.files import GraphFile, merged_ops, read_graph
from mx_rec.graph.fuse import Counts, pass_over
from mx_rec.graph.plan import Plan, make_plan
from mx_rec.graph.together import take_apart
from mx_rec.ops.lookups import is_claim
from mx_rec.ops.registered import registered_ops
from mx_rec.state.table_variable import CLUSTER_TABLE_OP, TABLE_OP
from mx_rec.stock.analysis import is_training, plan_variables
from mx_rec.stock.planned import StockVariable, plan_text
from mx_rec.stock.options import (ALL_ROWS, BATCH_ROWS, LEAST_ROWS, StockTables,
                                  checked_options)
from mx_rec.tensorflow.graph_def import serialized

_PROGRAM = "python -m mx_rec.graph"
_FAILED = 2
_DESCRIPTION = """\
Says which embedding lookups of a graph would move into its input pipelines, and why the others
stay in the step; which share ops or are fused before its first run, and how many ops are left.
Nothing is run, and the file is not changed. A running script logs the same at level INFO, the
number of ops at level DEBUG."""
_EPILOG = """\
FILE may be
  a GraphDef          tf.io.write_graph, export_graph/old_graph.pbtxt
  a MetaGraphDef      the .meta file of a checkpoint, tf.train.export_meta_graph
  a SavedModel        its directory or its saved_model.pb
binary or text; which one shows from its content.

examples:
  python -m mx_rec.graph model/model.ckpt-1000.meta
  python -m mx_rec.graph graph.pbtxt --dot plan.dot && dot -Tsvg -o plan.svg plan.dot
  python -m mx_rec.graph graph.pbtxt --svg plan.svg
  python -m mx_rec.graph exported/1700000000 --tag serve --json -

exit code: 0 if the plan was made, whether or not anything moves; 2 if the file cannot be read,
the plugin cannot be loaded, or an output cannot be written."""


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command.

    Args:
        argv: The arguments after the program's name; None is those of the process.

    Returns:
        The exit code: 0, or 2 after one line about the error on stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        file = read_graph(arguments.file, arguments.tag)
        plugin.load()
        plan, passed = _planned(file)
        if arguments.dot:
            _write(arguments.dot, draw_dot(plan))
        if arguments.svg:
            _render(plan, "svg", arguments.svg)
        if arguments.png:
            _render(plan, "png", arguments.png)
        if arguments.json:
            _write(arguments.json, as_json(plan, None if arguments.variables is None else
                                           planned_variables(file, _options_of(arguments))))
        if "-" not in (arguments.dot, arguments.svg, arguments.png, arguments.json):
            text = report(arguments.file, file, plan, passed)
            if arguments.variables is not None:
                text += variables_text(file, _options_of(arguments))
            _write("-", text)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. What is left must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ImportError, OSError, ValueError) as error:
        print("{}: {}".format(_PROGRAM, sentence(error)), file=sys.stderr)
        return _FAILED
    return 0


def report(path: str, file: GraphFile, plan: Plan, passed: str) -> str:
    """Returns what the command prints.

    Args:
        path: The file's name.
        file: What was read from it.
        plan: Its plan.
        passed: What the pass before the first run makes of it, a line.

    Returns:
        Several lines of text.
    """
    tables = sum(node.op in (TABLE_OP, CLUSTER_TABLE_OP) for node in file.graph.node)
    claims = sum(node.attr["N"].i for node in file.graph.node if is_claim(node))
    lines = ["{}: a {} with {}".format(path, file.kind, counted(tables or "no", "table"))]
    if not plan.lookups:
        if not tables:
            lines.append("No table of mx_rec is in the graph: there is nothing to modify.")
        else:
            lines.append("No lookup was made by sparse_lookup(..., modify_graph=True): there is "
                         "nothing to modify.")
    if claims:
        lines.append("The graph is modified already: {} take{} what a pipeline prepared.".format(
            counted(claims, "lookup"), "s" if claims == 1 else ""))
    if tables:
        lines.append(passed)
    if not plan.lookups:
        return "\n".join(lines) + "\n"
    return "\n".join(lines) + "\n" + plan.text()


def _planned(file: GraphFile) -> Tuple[Plan, str]:
    """Returns the plan of a graph, and what the pass before its first run makes of it, a line."""
    ops = merged_ops(registered_ops(), file.ops)
    text = "Ops of tables, before and after the first run: {}"
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.import_graph_def(file.graph, name="")
    except (ValueError, tf.errors.OpError) as error:
        return make_plan(file.graph.SerializeToString(), ops), text.format(
            "unknown, since TensorFlow cannot import it: " + sentence(error))
    counts = Counts(graph)
    with extensible(graph):
        # An earlier pass may have joined them.
        take_apart(graph.get_operations())
        plan = make_plan(serialized(graph), ops, graph=graph)
        pass_over(graph)
    return plan, text.format(counts.text())


def _options_of(arguments: argparse.Namespace) -> StockTables:
    """Returns which variables of a graph are asked for.

    Args:
        arguments: The command line, with a number of rows.

    Raises:
        ValueError: If an option is wrong.
    """
    return checked_options(StockTables(
        (".*",), arguments.variables, unlimited_ids=arguments.unlimited_ids, l2=arguments.l2))


def variables_text(file: GraphFile, options: StockTables) -> str:
    """Returns which variables of a graph become tables, and why the others do not.

    Args:
        file: What was read.
        options: Which ones are asked for.

    Returns:
        Several lines of text.
    """
    return "\n" + (plan_text(planned_variables(file, options))
                   or "No variable of the graph has rows.\n")


def planned_variables(file: GraphFile, options: StockTables) -> List[StockVariable]:
    """Returns what becomes of the variables of a graph that have rows.

    Args:
        file: What was read.
        options: Which ones are asked for.
    """
    return plan_variables(file.graph, options, is_training(file.graph), has_saver=True)


def as_json(plan: Plan, variables: Optional[Sequence[StockVariable]] = None) -> str:
    """Returns the plan as JSON: its fields, with the moved ops by name and type.

    Args:
        plan: The plan.
        variables: What becomes of variables: the field "variables" then has, for each, its name,
            shape, whether it becomes a table, why, whether its ids lose their limits, and the
            table, its optimizer and slots.
    """
    more = {} if variables is None else {"variables": [
        {"name": one.name, "shape": one.shape, "converts": one.converts, "reason": one.reason,
         "ids": {"unlimited": one.ids.is_lifted, "reason": one.ids.text},
         "table": one.table, "optimizer": one.kind,
         "initializer": {"kind": "set"} if one.sets_rows else one.initializer,
         "slots": [slot._asdict() for slot in one.slots],
         "lookups": [lookup._asdict() for lookup in one.lookups],
         "fused": one.pieces is not None} for one in variables]}
    iterators = []
    for iterator in plan.iterators:
        types = {node.name: node.op for node in iterator.graph.node}
        entry = dict(iterator, nodes=[{"name": name, "op": types.get(name)}
                                      for name in iterator.nodes])
        del entry["graph"]
        iterators.append(entry)
    return json.dumps(dict(plan._asdict(), iterators=iterators, **more), indent=2) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=_DESCRIPTION, epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", help="the graph, see below")
    parser.add_argument("--dot", metavar="OUT",
                        help="draw the plan as Graphviz text; - is stdout")
    parser.add_argument("--svg", metavar="OUT",
                        help="draw the plan as SVG with Graphviz's program dot; - is stdout")
    parser.add_argument("--png", metavar="OUT",
                        help="draw the plan as PNG with Graphviz's program dot; - is stdout")
    parser.add_argument("--json", metavar="OUT", help="write the plan as JSON; - is stdout")
    parser.add_argument("--variables", metavar="ROWS", type=int, nargs="?", const=LEAST_ROWS,
                        help="also say which variables init(stock_tables=...) makes tables of, "
                             "from ROWS rows on (default {})".format(LEAST_ROWS))
    parser.add_argument("--unlimited-ids", metavar="NAME", action="append", default=[],
                        help="with --variables, also say of which variables with such a name (a "
                             "regular expression) ids lose their limits; repeat it for further "
                             "names")
    parser.add_argument("--l2", metavar="ROWS", default=ALL_ROWS,
                        help="with --variables, of which rows penalties on variables are: {!r} "
                             "(default) or {!r}".format(ALL_ROWS, BATCH_ROWS))
    parser.add_argument("--tag", metavar="TAG", action="append",
                        help="a tag of the graph of a SavedModel; repeat it for all of its tags")
    return parser


def _render(plan: Plan, form: str, path: str) -> None:
    """Lets Graphviz draw a plan; the picture replaces the file only if it was drawn."""
    program = shutil.which("dot")
    if program is None:
        raise ValueError("--{0} needs Graphviz's program dot, which is not in PATH: install "
                         "Graphviz, or use --dot OUT and run dot -T{0} elsewhere".format(form))
    drawn = subprocess.run([program, "-T" + form], input=draw_dot(plan).encode("ascii"),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if drawn.returncode != 0 or not drawn.stdout:
        raise ValueError("{} -T{} failed with code {}: {}".format(
            program, form, drawn.returncode, drawn.stderr.decode("utf-8", "replace").strip()))
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(drawn.stdout)
        sys.stdout.buffer.flush()
        return
    with open(path, "wb") as file:
        file.write(drawn.stdout)


def _write(path: str, text: str) -> None:
    if path == "-":
        print_text(text)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main())
