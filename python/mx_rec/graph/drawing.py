"""Draws a plan: what moves into the input pipelines, and what stays in the step."""

import re
import textwrap
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from xml.sax.saxutils import escape

from mx_rec.graph.plan import ADMIT, EVAL, TRAIN, Iterator, Lookup, Plan

MOST_OPS = 40
MOST_LOOKUPS = 24
MOST_NAMES = 5

_FONT = 12.0
_CHAR = 7.25
_LINE = 16.0
_PAD = 9.0
_MARGIN = 20.0
_GAP = 14.0
_ITERATOR, _MOVED, _PREPARE, _GET_NEXT, _CLAIM = 215.0, 310.0, 255.0, 165.0, 285.0
_LANE = 54.0
_LABEL = 100.0
_STEP_OPS = {TRAIN: "MxRecClaim", ADMIT: "MxRecObserve", EVAL: "MxRecFind"}
_FIRST_ROW = 62.0
_STAY = 470.0
_FILLS = {"pipeline": "#eef4fb", "step": "#f7f3ea", "box": "#ffffff", "moves": "#d9e8f7",
          "stays": "#ffffff", "ops": "#ffffff"}
_WORD = re.compile(r"[^\s]*[/:0-9][^\s]*")


class Box(NamedTuple):
    """A rectangle with lines of text; the first line is bold. Lengths in pixels.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Its width.
        height: Its height.
        style: A key of the fills; "moves" has a heavy border, "stays" a dashed one.
        lines: Its text.
        title: All of what the text may shorten.
    """

    x: float
    y: float
    width: float
    height: float
    style: str
    lines: List[str]
    title: str


class Arrow(NamedTuple):
    """A line through points (x, y), in pixels, with a head at its end and a label at its start."""

    points: List[Tuple[float, float]]
    label: str


class Drawing(NamedTuple):
    """Shapes in the order of painting, and the size of the page in pixels."""

    width: float
    height: float
    boxes: List[Box]
    arrows: List[Arrow]


class _Entry(NamedTuple):
    """One lookup, or several that are drawn as one."""

    kind: str
    name: str
    details: List[str]
    title: str
    count: int
    component: Optional[int]
    is_direct: bool


def draw_svg(plan: Plan) -> str:
    """Draws a plan.

    Args:
        plan: The plan.

    Returns:
        An SVG document, ASCII only. It is readable in black and white: what moves has a heavy
        border, what stays a dashed one. Many ops and many lookups are drawn as groups.
    """
    drawing = layout(plan)
    size = "{:.0f}".format
    out = ['<?xml version="1.0" encoding="UTF-8"?>',
           '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" '
           'viewBox="0 0 {0} {1}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
           'font-size="{2}">'.format(size(drawing.width), size(drawing.height), size(_FONT)),
           '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" '
           'orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="#222222"/></marker></defs>',
           '<rect width="100%" height="100%" fill="#ffffff"/>']
    for box in drawing.boxes:
        out.append("<g>")
        if box.title:
            out.append("<title>{}</title>".format(_xml(box.title)))
        width, dash = _border(box.style)
        if box.style != "text":
            out.append('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="4" '
                       'fill="{}" stroke="#222222" stroke-width="{}"{}/>'.format(
                           box.x, box.y, box.width, box.height, _FILLS[box.style], width,
                           ' stroke-dasharray="6,4"' if dash else ""))
        for number, line in enumerate(box.lines):
            if line:
                out.append('<text x="{:.1f}" y="{:.1f}"{} xml:space="preserve">{}</text>'.format(
                    box.x + _PAD, _baseline(box, number),
                    ' font-weight="bold"' if number == 0 else "", _xml(line)))
        out.append("</g>")
    for arrow in drawing.arrows:
        out.append('<polyline points="{}" fill="none" stroke="#222222" stroke-width="1.2" '
                   'marker-end="url(#head)"/>'.format(
                       " ".join("{:.1f},{:.1f}".format(x, y) for x, y in arrow.points)))
        if arrow.label:
            x, y = _label_place(arrow)
            out.append('<text x="{:.1f}" y="{:.1f}" font-size="11">{}</text>'.format(
                x, y, _xml(arrow.label)))
    out.append("</svg>")
    return "\n".join(out) + "\n"


def draw_png(plan: Plan, path: str) -> None:
    """Draws a plan as PNG; needs matplotlib.

    Args:
        plan: The plan.
        path: The file to write.

    Raises:
        ImportError: If matplotlib is not installed.
        OSError: If the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise ImportError("a PNG needs the package matplotlib, which is not installed ({}); "
                          "use --svg instead, which needs nothing".format(error)) from error
    drawing = layout(plan)
    # Its lengths are points; it makes no picture higher than 65535 pixels.
    figure = Figure(figsize=(drawing.width / 72.0, drawing.height / 72.0),
                    dpi=min(100.0, 60000.0 * 72.0 / drawing.height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    font = {"family": "monospace", "parse_math": False, "va": "baseline"}  # type: Dict[str, Any]
    for box in drawing.boxes:
        width, dash = _border(box.style)
        if box.style != "text":
            axes.add_patch(Rectangle((box.x, box.y), box.width, box.height, linewidth=width,
                                     facecolor=_FILLS[box.style], edgecolor="#222222",
                                     linestyle=(0, (5, 3)) if dash else "solid"))
        for number, line in enumerate(box.lines):
            axes.text(box.x + _PAD, _baseline(box, number), line, fontsize=_FONT,
                      weight="bold" if number == 0 else "normal", **font)
    for arrow in drawing.arrows:
        axes.plot([x for x, _ in arrow.points], [y for _, y in arrow.points], color="#222222",
                  linewidth=1.2)
        axes.annotate("", xy=arrow.points[-1], xytext=arrow.points[-2],
                      arrowprops={"arrowstyle": "-|>", "color": "#222222", "shrinkA": 0,
                                  "shrinkB": 0})
        if arrow.label:
            x, y = _label_place(arrow)
            axes.text(x, y, arrow.label, fontsize=11, **font)
    figure.savefig(path, format="png")


def layout(plan: Plan) -> Drawing:
    """Places everything that is drawn.

    Args:
        plan: The plan.

    Returns:
        The drawing. No box reaches over the page.
    """
    boxes = []  # type: List[Box]
    arrows = []  # type: List[Arrow]
    width = 2 * _MARGIN + 2 * _STAY + 3 * _GAP
    moving = sum(lookup.moves for lookup in plan.lookups)
    heading = ["Graph modification: {} of {} lookups move, {} stay; {} nodes".format(
        moving, len(plan.lookups), len(plan.lookups) - moving, plan.nodes),
        "heavy border: moves into the input pipeline; dashed border: stays in the step as before"]
    boxes.append(Box(_MARGIN - _PAD, 10, width, 50, "text", heading, ""))
    y = 70.0
    for iterator in plan.iterators:
        right, y = _place_iterator(plan, iterator, y, boxes, arrows)
        width = max(width, right + _MARGIN)
    for kind in sorted({lookup.kind for lookup in plan.lookups if not lookup.moves}, reverse=True):
        staying = [one for one in plan.lookups if not one.moves and one.kind == kind]
        y = _place_staying(kind, staying, y, width, boxes)
    if not plan.lookups:
        boxes.append(Box(_MARGIN, y, width - 2 * _MARGIN, 34, "box",
                         ["no lookup of this graph was made with modify_graph=True"], ""))
        y += 34 + _GAP
    return Drawing(width, y + _MARGIN - _GAP, boxes, arrows)


def grouped_ops(iterator: Iterator) -> List[str]:
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
        lines.append("{}: {} op{}{}".format(
            scope + "/" if scope else "(no scope)", len(names), "" if len(names) == 1 else "s",
            " ({})".format(_several(kinds)) if kinds else ""))
    rest = list(scopes.values())[MOST_OPS - 1:]
    if rest:
        lines.append("and {} ops in {} more scopes".format(sum(map(len, rest)), len(rest)))
    return lines


def _place_iterator(plan: Plan, iterator: Iterator, y: float, boxes: List[Box],
                    arrows: List[Arrow]) -> Tuple[float, float]:
    """Draws one iterator with its lookups; returns (right edge, where the next thing begins)."""
    entries = _moving(plan, iterator)
    direct = [entry for entry in entries if entry.is_direct]
    computed = [entry for entry in entries if not entry.is_direct]
    moved_width = _MOVED if iterator.nodes else _LABEL
    left = _MARGIN + _GAP
    moved_x = left + _ITERATOR + _LANE
    prepare_x = moved_x + moved_width + _LANE
    border = prepare_x + _PREPARE + _GAP
    get_next_x = border + 2 * _GAP
    claim_x = get_next_x + _GET_NEXT + _LANE
    right = claim_x + _CLAIM + _GAP
    top = y + _FIRST_ROW
    places, moved_top, row = [], None, top
    for entry in direct + computed:
        if not entry.is_direct and moved_top is None:
            moved_top = row
        before, after = _prepare_box(entry, prepare_x, row), _claim_box(entry, claim_x, row)
        height = max(before.height, after.height)
        places.append((entry, before._replace(height=height), after._replace(height=height)))
        row += height + _GAP
    moved = None
    if iterator.nodes:
        text = ["moved: {} op{}".format(len(iterator.nodes), "s"[len(iterator.nodes) == 1:])]
        text += _wrapped(grouped_ops(iterator), _MOVED)
        moved = _box(moved_x, top if moved_top is None else moved_top, _MOVED, "moves", text,
                     "\n".join(iterator.nodes))
        row = max(row, moved.y + moved.height + _GAP)
    source = _box(left, y + 34, _ITERATOR, "box", _iterator_lines(iterator), iterator.iterator)
    row = max(row, source.y + source.height + _GAP)
    bottom = row - _GAP
    source = source._replace(height=bottom - source.y)
    reader = _box(get_next_x, y + 34, _GET_NEXT, "box", ["get_next"] + _wrapped(
        [iterator.get_next, "", _components(iterator), "and what was prepared"], _GET_NEXT),
        iterator.get_next)
    grown = max(bottom, reader.y + reader.height)
    reader = reader._replace(height=grown - reader.y)
    kinds = {entry.kind for entry in entries}
    region = [("pipeline", "input pipeline", _MARGIN, border),
              ("step", _step_name(kinds), border + _GAP, right)]
    for style, name, start, end in region:
        boxes.append(Box(start, y, end - start, grown + _GAP - y, style, [name], ""))
    boxes.extend([source, reader])
    edge = source.x + source.width
    arrows.append(Arrow([(edge, y + 50), (reader.x, y + 50)], _components(iterator)))
    if moved is not None:
        boxes.append(moved)
        at = moved.y + min(moved.height, 40.0) / 2
        arrows.append(Arrow([(edge, at), (moved.x, at)], ""))
    for entry, before, after in places:
        boxes.extend([before, after])
        at = before.y + before.height / 2
        if entry.is_direct or moved is None:
            label = "" if entry.component is None else "component {}".format(entry.component)
            arrows.append(Arrow([(edge, at), (before.x, at)], label))
        else:
            out = min(at, moved.y + moved.height - 12)
            middle = moved.x + moved.width + _LANE / 2
            points = [(moved.x + moved.width, out), (middle, out), (middle, at), (before.x, at)]
            arrows.append(Arrow(points if out < at else [points[0], points[-1]], ""))
        arrows.append(Arrow([(before.x + before.width, at), (reader.x, at)], ""))
        arrows.append(Arrow([(reader.x + reader.width, at), (after.x, at)], ""))
    return right, grown + 2 * _GAP + _GAP


def _place_staying(kind: str, lookups: List[Lookup], y: float, width: float,
                   boxes: List[Box]) -> float:
    """Draws lookups that stay, in columns; returns where the next thing begins."""
    texts = []  # type: List[Tuple[List[str], str]]
    if len(lookups) <= MOST_LOOKUPS:
        for one in lookups:
            texts.append(([one.node, "table " + one.table, "ids " + one.ids, one.reason],
                          one.node))
    else:
        groups = {}  # type: Dict[str, List[Lookup]]
        for one in lookups:
            groups.setdefault(_WORD.sub("*", one.reason), []).append(one)
        shown = list(groups.values())
        for group in shown[:MOST_LOOKUPS]:
            tables = list(dict.fromkeys(one.table for one in group))
            texts.append((["{} lookup{}".format(len(group), "s"[len(group) == 1:]),
                           _several([one.node for one in group]), "tables " + _several(tables),
                           ("the first: " if len(group) > 1 else "") + group[0].reason],
                          "\n".join(one.node for one in group)))
        rest = shown[MOST_LOOKUPS:]
        if rest:
            texts.append((["{} more lookups".format(sum(map(len, rest))),
                           "for {} further reasons; the text form of the plan lists them".format(
                               len(rest))], ""))
    room = width - 2 * _MARGIN - _GAP
    columns = max(1, int(room / (_STAY + _GAP)))
    one_width = room / columns - _GAP
    heights = [y + 34.0] * columns
    placed = []
    for text, title in texts:
        column = heights.index(min(heights))
        box = _box(_MARGIN + _GAP + column * (one_width + _GAP), heights[column], one_width,
                   "stays", _wrapped(text, one_width, 6), title)
        placed.append(box)
        heights[column] += box.height + _GAP
    bottom = max(heights)
    boxes.append(Box(_MARGIN, y, width - 2 * _MARGIN, bottom - y, "step",
                     ["{}: lookups that stay".format(_step_name({kind}))], ""))
    boxes.extend(placed)
    return bottom + _GAP


def _moving(plan: Plan, iterator: Iterator) -> List[_Entry]:
    """The lookups of an iterator, those of one table together if there are many."""
    components = {ids.tensor: ids.component for ids in iterator.ids}
    lookups = [plan.lookups[position] for position in iterator.lookups]
    if len(lookups) <= MOST_LOOKUPS:
        return [_Entry(one.kind, one.node, ["table " + one.table, "ids " + one.ids], one.node, 1,
                       components.get(one.ids), components.get(one.ids) is not None)
                for one in lookups]
    entries = []  # type: List[_Entry]
    for key in (lambda one: one.table, lambda one: ""):
        groups = {}  # type: Dict[Any, List[Lookup]]
        for one in lookups:
            is_direct = components.get(one.ids) is not None
            groups.setdefault((one.kind, is_direct, key(one)), []).append(one)
        if len(groups) <= MOST_LOOKUPS:
            break
    for (kind, is_direct, _), group in groups.items():
        tables = list(dict.fromkeys(one.table for one in group))
        entries.append(_Entry(
            kind, _several([one.node for one in group]),
            ["{} table{}: {}".format(len(tables), "s"[len(tables) == 1:], _several(tables))],
            "\n".join(one.node for one in group), len(group), None, is_direct))
    return entries


def _prepare_box(entry: _Entry, x: float, y: float) -> Box:
    many = "" if entry.count == 1 else " x {}".format(entry.count)
    if entry.kind == TRAIN:
        head = "MxRecPrepare" + many
    else:
        head = ("ids as they are" if entry.is_direct else "ids, computed") + many
    return _box(x, y, _PREPARE, "moves", [head] + _wrapped(entry.details, _PREPARE), entry.title)


def _claim_box(entry: _Entry, x: float, y: float) -> Box:
    many = "" if entry.count == 1 else " x {}".format(entry.count)
    head = _STEP_OPS[entry.kind]
    return _box(x, y, _CLAIM, "box", [head + many] + _wrapped([entry.name], _CLAIM), entry.title)


def _iterator_lines(iterator: Iterator) -> List[str]:
    lines = [iterator.iterator, iterator.kind.replace("_", "-")]
    if iterator.initializers:
        lines.append("started by " + _several(iterator.initializers))
    return ["iterator"] + _wrapped(lines, _ITERATOR)


def _components(iterator: Iterator) -> str:
    return "{} component{}".format(iterator.components, "s"[iterator.components == 1:])


def _step_name(kinds: Any) -> str:
    if EVAL in kinds and len(kinds) > 1:
        return "training and evaluation step"
    return "evaluation step" if EVAL in kinds else "training step"


def _several(names: List[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    rest = len(names) - MOST_NAMES
    return "{} and {} more".format(shown, rest) if rest > 0 else shown


def _box(x: float, y: float, width: float, style: str, lines: List[str], title: str) -> Box:
    return Box(x, y, width, len(lines) * _LINE + 2 * _PAD, style, lines, title)


def _wrapped(texts: List[str], width: float, most: int = 5) -> List[str]:
    """Breaks texts to a box's width, each into at most so many lines."""
    columns = int((width - 2 * _PAD) / _CHAR)
    lines = []  # type: List[str]
    for text in texts:
        broken = textwrap.wrap(_printable(text), columns, break_on_hyphens=False,
                               subsequent_indent="  ") or [""]
        if len(broken) > most:
            broken = broken[:most - 2] + ["  [...]"] + broken[-1:]
        lines.extend(broken)
    return lines


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _border(style: str) -> Tuple[float, bool]:
    return (2.6 if style == "moves" else 1.0), style == "stays"


def _baseline(box: Box, number: int) -> float:
    return box.y + _PAD + 11 + number * _LINE


def _label_place(arrow: Arrow) -> Tuple[float, float]:
    x, y = arrow.points[0]
    return x + 8, y - 5


def _xml(text: str) -> str:
    """Escapes a text for XML, into ASCII; characters that XML has not become question marks."""
    clean = "".join(
        char if char in "\n\t" or " " <= char < "\ud800" or "\ue000" <= char < "\ufffe"
        or char > "\uffff" else "?" for char in text)
    return escape(clean, {'"': "&quot;"}).encode("ascii", "xmlcharrefreplace").decode("ascii")
