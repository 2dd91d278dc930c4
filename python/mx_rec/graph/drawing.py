"""A plan as Graphviz text: what moves into the input pipelines, what stays in the step, and what is
fused."""

import re
import textwrap
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from mx_rec.base.command import counted
from mx_rec.graph.plan import ADMIT, EVAL, SPLIT, TRAIN, Plan, Record, few

MOST_OPS = 40
MOST_LOOKUPS = 24

_COLUMNS = 44
_MOST_LINES = 6
_STEP_OPS = {TRAIN: "MxRecIdOffset", ADMIT: "MxRecObserve", EVAL: "MxRecFind", SPLIT: "MxRecPull"}
# Borders tell moved from unmoved in black and white, fills do so in colour.
_STYLES = {"moves": 'style="filled,bold", fillcolor="#d9e8f7", penwidth=2.5',
           "stays": 'style="filled,dashed", fillcolor="#fdf6dd"',
           "other": 'style="filled", fillcolor="#ffffff"'}
_PIPELINE_FILL = "#eef4fb"
_STEP_FILL = "#f7f3ea"
# A word of a reason that names one op or one number; reasons that differ in these alone are alike.
_NAME_OR_NUMBER = re.compile(r"[^\s]*[/:0-9][^\s]*")


class _Entry(NamedTuple):
    """One lookup, or several that are drawn as one node.

    Attributes:
        kind: "train", "admit" or "eval".
        name: Its name, or the first names.
        details: Lines below the name.
        tooltip: All names.
        count: Number of lookups.
        component: Which component of the element its ids are; None if several are drawn as one.
        is_direct: Whether its ids are a component of the element, and not computed.
    """

    kind: str
    name: str
    details: List[str]
    tooltip: List[str]
    count: int
    component: Optional[int]
    is_direct: bool


def draw_dot(plan: Plan) -> str:
    """Draws a plan for Graphviz: `dot -Tsvg` makes a picture of the text.

    Args:
        plan: The plan.

    Returns:
        One `digraph` in the DOT language, ASCII only and the same for the same plan. Each iterator
        is a cluster with the input pipeline and the step inside; lookups that stay are clusters of
        their own, with their reasons, and so are sums and concatenations that are fused or are not.
        Many ops and many lookups are drawn as groups; tooltips hold
        all names.
    """
    moving = sum(lookup.moves for lookup in plan.lookups)
    title = "Graph modification: {} of {} lookups move, {} stay; {} nodes".format(
        moving, len(plan.lookups), len(plan.lookups) - moving, plan.nodes)
    out = ["digraph plan {",
           '  graph [rankdir=LR, charset="UTF-8", labelloc=t, labeljust=l, fontname="monospace",',
           '         label="{}\\l"];'.format(_escaped(title)),
           '  node [shape=box, fontname="monospace", fontsize=11];',
           '  edge [fontname="monospace", fontsize=10];']
    out += _legend()
    for number, iterator in enumerate(plan.iterators):
        out += _iterator_cluster(plan, iterator, number)
    for kind in sorted({lookup.kind for lookup in plan.lookups if not lookup.moves}, reverse=True):
        out += _staying_cluster(kind, [one for one in plan.lookups
                                       if not one.moves and one.kind == kind])
    out += _fusions(plan)
    if not plan.lookups:
        out.append(_node("  ", "none", "other",
                         ["no lookup of this graph was made with modify_graph=True"], []))
    out.append("}")
    return "\n".join(out) + "\n"


def grouped_ops(iterator: Record) -> List[str]:
    """Returns a line for each moved op, or for each name scope if there are many ops."""
    types = {node.name: node.op for node in iterator.graph.node}
    if len(iterator.nodes) <= MOST_OPS:
        return ["{}{}".format(name, " ({})".format(types[name]) if name in types else "")
                for name in iterator.nodes]
    for scope_of in (lambda name: name.rpartition("/")[0], lambda name: name.split("/")[0]):
        scopes = {}  # type: Dict[str, List[str]]
        for name in iterator.nodes:
            scopes.setdefault(scope_of(name) if "/" in name else "", []).append(name)
        if len(scopes) <= MOST_OPS:
            break
    lines = []
    for scope, names in list(scopes.items())[:MOST_OPS - 1]:
        kinds = sorted({types[name] for name in names if name in types})
        lines.append("{}: {}{}".format(
            scope + "/" if scope else "(no scope)", counted(len(names), "op"),
            " ({})".format(few(kinds)) if kinds else ""))
    rest = list(scopes.values())[MOST_OPS - 1:]
    if rest:
        lines.append("and {} ops in {} more scopes".format(sum(map(len, rest)), len(rest)))
    return lines


def _legend() -> List[str]:
    return (["  subgraph cluster_legend {", '    label="legend"; labeljust=l;']
            + [_node("    ", "legend_{}".format(number), style, [text], [])
               for number, (style, text) in enumerate((
                   ("moves", "moves into the input pipeline"),
                   ("stays", "a lookup that stays in the step"),
                   ("other", "other nodes")))]
            + ["  }"])


def _iterator_cluster(plan: Plan, iterator: Record, number: int) -> List[str]:
    """Draws one iterator with the lookups that it feeds."""
    entries = _moving(plan, iterator)
    kinds = {entry.kind for entry in entries}
    source, moved, reader = ("{}_{}".format(what, number)
                             for what in ("iterator", "moved", "get_next"))
    before = ["prepare_{}_{}".format(number, place) for place in range(len(entries))]
    after = ["lookup_{}_{}".format(number, place) for place in range(len(entries))]
    lines = [iterator.iterator, iterator.kind.replace("_", "-")]
    if iterator.initializers:
        lines.append("started by " + few(iterator.initializers))
    components = counted(iterator.components, "component")
    out = ["  subgraph cluster_iterator_{} {{".format(number),
           '    label="{}"; labeljust=l;'.format(_escaped(_shortened(iterator.iterator))),
           "    subgraph cluster_pipeline_{} {{".format(number),
           '      label="input pipeline"; style=filled; fillcolor="{}";'.format(_PIPELINE_FILL),
           _node("      ", source, "other", ["iterator"] + lines, [iterator.iterator])]
    if iterator.nodes:
        out.append(_node("      ", moved, "moves",
                         ["moved: " + counted(len(iterator.nodes), "op")] + grouped_ops(iterator),
                         iterator.nodes))
    for entry, name in zip(entries, before):
        out.append(_node("      ", name, "moves", [_prepared(entry)] + entry.details,
                         entry.tooltip))
    out += ["    }",
            "    subgraph cluster_step_{} {{".format(number),
            '      label="{}"; style=filled; fillcolor="{}";'.format(_step(kinds), _STEP_FILL),
            _node("      ", reader, "other",
                  ["get_next", iterator.get_next, components + " and what was prepared"],
                  [iterator.get_next])]
    for entry, name in zip(entries, after):
        out.append(_node("      ", name, "other",
                         [_STEP_OPS[entry.kind] + _times(entry.count), entry.name], entry.tooltip))
    out += ["    }", "  }", _edge(source, reader, components)]
    if iterator.nodes:
        out.append(_edge(source, moved))
    for entry, one, other in zip(entries, before, after):
        if entry.is_direct or not iterator.nodes:
            label = "" if entry.component is None else "component {}".format(entry.component)
            out.append(_edge(source, one, label))
        else:
            out.append(_edge(moved, one))
        out += [_edge(one, reader), _edge(reader, other)]
    return out


def _staying_cluster(kind: str, lookups: List[Record]) -> List[str]:
    """Draws the lookups of one kind that stay."""
    nodes = []  # type: List[Tuple[List[str], List[str]]]
    if len(lookups) <= MOST_LOOKUPS:
        nodes = [([one.node, "table " + one.table, "ids " + one.ids, one.reason], [one.node])
                 for one in lookups]
    else:
        groups = list(_grouped(lookups, lambda one: _NAME_OR_NUMBER.sub("*", one.reason)).values())
        for group in groups[:MOST_LOOKUPS]:
            names = [one.node for one in group]
            nodes.append(([counted(len(group), "lookup"), few(names),
                           "tables " + few(list(dict.fromkeys(one.table for one in group))),
                           ("the first: " if len(group) > 1 else "") + group[0].reason],
                          names))
        rest = groups[MOST_LOOKUPS:]
        if rest:
            nodes.append((["{} more lookups".format(sum(map(len, rest))),
                           "for {} more reasons; the text form of the plan lists them".format(
                               len(rest))], [one.node for group in rest for one in group]))
    return (["  subgraph cluster_stays_{} {{".format(kind),
             '    label="{}: lookups that stay"; labeljust=l;'.format(_step({kind})),
             '    style=filled; fillcolor="{}";'.format(_STEP_FILL)]
            + [_node("    ", "stays_{}_{}".format(kind, place), "stays", lines, tooltip)
               for place, (lines, tooltip) in enumerate(nodes)]
            + ["  }"])


def _fusions(plan: Plan) -> List[str]:
    """Draws sums over bags and concatenations of lookups: what is fused, and what stays and why."""
    fusions = [(one.fuses, "{}sums over bags".format("weighted " if one.weights else ""),
                few([part.node for part in one.sums]), [one.lookup], [one.table], one.reason)
               for one in plan.sums]
    fusions += [(one.fuses, "concatenation of " + counted(len(one.parts), "lookup"), one.node,
                 [part.lookup for part in one.parts], [part.table for part in one.parts],
                 one.reason) for one in plan.concats]
    if not fusions:
        return []
    out = ["  subgraph cluster_fusions {", '    label="fusions"; labeljust=l;']
    for place, (fuses, what, name, lookups, tables, reason) in enumerate(fusions[:MOST_LOOKUPS]):
        tables = list(dict.fromkeys(tables))
        lines = ["{}: {}".format("fused" if fuses else "not fused", what), name,
                 "table{} {}".format("" if len(tables) == 1 else "s", few(tables)), reason]
        out.append(_node("    ", "fusion_{}".format(place), "moves" if fuses else "stays", lines,
                         lookups))
    rest = fusions[MOST_LOOKUPS:]
    if rest:
        fused = sum(one[0] for one in rest)
        out.append(_node("    ", "fusion_rest", "other", [
            "{} more: {} fused, {} not".format(len(rest), fused, len(rest) - fused),
            "the text form of the plan lists them"], [one[2] for one in rest]))
    return out + ["  }"]


def _moving(plan: Plan, iterator: Record) -> List[_Entry]:
    """The lookups of an iterator; those of one table are one entry if there are many."""
    components = {ids.tensor: ids.component for ids in iterator.ids}
    lookups = [plan.lookups[position] for position in iterator.lookups]
    if len(lookups) <= MOST_LOOKUPS:
        return [_Entry(one.kind, one.node, ["table " + one.table, "ids " + one.ids], [one.node],
                       1,
                       components.get(one.ids), components.get(one.ids) is not None)
                for one in lookups]
    for table_of in (lambda one: one.table, lambda one: ""):
        groups = _grouped(lookups, lambda one: (
            one.kind, components.get(one.ids) is not None, table_of(one)))
        if len(groups) <= MOST_LOOKUPS:
            break
    entries = []
    for (kind, is_direct, _), group in groups.items():
        names = [one.node for one in group]
        tables = list(dict.fromkeys(one.table for one in group))
        entries.append(_Entry(
            kind, few(names),
            ["{}: {}".format(counted(len(tables), "table"), few(tables))],
            names, len(group), None, is_direct))
    return entries


def _prepared(entry: _Entry) -> str:
    """What the pipeline does for a lookup."""
    if entry.kind == TRAIN:
        return "MxRecPrepare" + _times(entry.count)
    if entry.kind == SPLIT:
        return "MxRecDistinctSplit" + _times(entry.count)
    return ("ids as they are" if entry.is_direct else "ids, computed") + _times(entry.count)


def _grouped(lookups: List[Record], key: Callable[[Record], Any]) -> Dict[Any, List[Record]]:
    """Lookups by a key, in the order of the first of each."""
    groups = {}  # type: Dict[Any, List[Record]]
    for one in lookups:
        groups.setdefault(key(one), []).append(one)
    return groups


def _step(kinds: Any) -> str:
    if SPLIT in kinds:
        return "step"
    if EVAL in kinds and len(kinds) > 1:
        return "training and evaluation step"
    return "evaluation step" if EVAL in kinds else "training step"


def _times(count: int) -> str:
    return "" if count == 1 else " x {}".format(count)


def _node(indent: str, name: str, style: str, lines: List[str], tooltip: List[str]) -> str:
    """A statement of a node; its lines are left-justified, and its tooltip is a list of names."""
    label = "".join(_escaped(line) + "\\l" for text in lines for line in _wrapped(text))
    # Graphviz reads the escapes of a tooltip twice.
    hint = "\\n".join(_escaped(one.replace("\\", "\\\\")) for one in tooltip or lines[:1])
    return '{}{} [label="{}", tooltip="{}", {}];'.format(indent, name, label, hint, _STYLES[style])


def _edge(tail: str, head: str, label: str = "") -> str:
    return "  {} -> {}{};".format(tail, head, ' [label="{}"]'.format(label) if label else "")


def _wrapped(text: str) -> List[str]:
    """Breaks a text into a few lines; the middle of a long one is left out."""
    lines = textwrap.wrap(text, _COLUMNS, break_on_hyphens=False, subsequent_indent="  ") or [""]
    if len(lines) > _MOST_LINES:
        lines = lines[:_MOST_LINES - 2] + ["  [...]"] + lines[-1:]
    return lines


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _COLUMNS else text[:2 * _COLUMNS] + "..."


def _escaped(text: str) -> str:
    """A text inside of a quoted string of the DOT language, in ASCII.

    Graphviz reads character references in strings: they carry quotes, markup and what lies beyond
    ASCII. A backslash is no such character, since escapes such as the node's name are read after
    references. Characters that XML cannot hold, or that need more than 16 bits, become question
    marks.
    """
    out = []
    for char in text:
        code = ord(char)
        if char.isspace():
            out.append(" ")
        elif char == "\\":
            out.append("\\\\")
        elif code < 0x20 or 0xd800 <= code < 0xe000 or code >= 0xfffe:
            out.append("?")
        else:
            out.append("&#{};".format(code) if char in '"&<>' or code >= 0x7f else char)
    return "".join(out)
