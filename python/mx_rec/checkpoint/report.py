"""What the command prints, for a person to read."""

import json
import time
from typing import Any, Dict, List, Optional, Sequence

from mx_rec.base.command import counted
from mx_rec.checkpoint.progress import size

# So many values of a row are printed in one line.
_VALUES = 8


def listing_text(listing: Dict[str, Any]) -> str:
    """Returns the checkpoints of a place with their tables, as columns.

    Args:
        listing: What `--json` prints.
    """
    lines = [["", "checkpoint", "step", "base", "table", "rows", "removed", "history", "dim",
              "bytes", "format", "slots"]]
    notes = []  # type: List[str]
    for one in listing["checkpoints"]:
        mark = "*" if one["newest"] else ""
        head = [mark, one["name"], _or_dash(one["step"]),
                (one["base"] or "?") if one["delta"] else "-"]
        for table in one["tables"]:
            slots = ", ".join(slot["name"] + (
                "" if slot["initial"] is None else "={}".format(_number(slot["initial"])))
                for slot in table["slots"])
            lines.append(head + [
                table["name"], _or_dash(table["rows"]), _or_dash(table["removed"]),
                _or_dash(table["history"] and table["history"]["keys"]), _columns_of(table),
                size(table["bytes"]), _format(table["version"]),
                slots or "none"])
            head = [""] * 4
            notes += _faults(table["faults"])
        if not one["tables"]:
            lines.append(head + ["no tables"] + ["-"] * 7)
        if one["has_dense"] is False and not one["faults"]:
            notes.append(_tables_alone(one))
        notes += _faults(one["faults"])
    if any(one["delta"] for one in listing["checkpoints"]):
        notes.append("rows of a delta: those that changed; removed: keys that lost their rows")
    notes += ["{}: left by a save that did not end".format(name) for name in listing["leftovers"]]
    unused = [] if any(one["delta"] for one in listing["checkpoints"]) else ["base", "removed"]
    if any(table["history"] for one in listing["checkpoints"] for table in one["tables"]):
        notes.insert(0, "history: keys with a count or a time, with rows and without")
    else:
        unused.append("history")
    shown = [at for at, name in enumerate(lines[0]) if name not in unused]
    lines = [[line[at] for at in shown] for line in lines]
    right = [lines[0].index(name) for name in ("step", "rows", "history", "dim", "bytes")
             if name in lines[0]]
    text = _columns(lines, right)
    if any(one["newest"] for one in listing["checkpoints"]):
        text += "\n* the newest\n"
    return text + ("\n" + "".join(note + "\n" for note in notes) if notes else "")


def _columns_of(table: Dict[str, Any]) -> str:
    """How many columns a table has, and of which type if that is not float32."""
    stored = (table["config"] or {}).get("row_storage") or {}
    types = [stored["dtype"]] if "dtype" in stored else []
    types += ["slots " + stored["slot_dtype"]] if "slot_dtype" in stored else []
    return " ".join([_or_dash(table["dim"])] + types)


def verify_text(result: Dict[str, Any]) -> str:
    """Returns one line for each table, one for each fault, and a sum.

    Args:
        result: What `--json` prints.
    """
    lines, faults, files, read, checked = [], 0, 0, 0, 0
    for one in result["checkpoints"]:
        for table in one["tables"]:
            found = len(table["faults"])
            lines.append("{}: {}, {} rows, {}, {}, {}".format(
                table["path"], counted(found, "fault") if found else "ok", _or_dash(table["rows"]),
                counted(table["files"], "file"), size(table["bytes"]), _checksums(table)))
            lines += ["  " + fault for fault in _faults(table["faults"])]
            faults, files, read = faults + found, files + table["files"], read + table["bytes"]
            checked += table["checksums"]
        if not one["tables"]:
            lines.append("{}: no tables".format(one["path"]))
        lines += ["  " + fault for fault in _faults(one["faults"])]
        faults += len(one["faults"])
        if one["has_dense"] is False and not one["faults"]:
            lines.append("  " + _tables_alone(one))
    lines.append("{} in {} of {}, {}".format(
        counted(faults, "fault") if faults else "no fault", counted(files, "file"), size(read),
        "{} with a checksum".format(checked) if checked else "none with a checksum"))
    return "\n".join(lines) + "\n"


def row_text(result: Dict[str, Any]) -> str:
    """Returns the rows of a key.

    Args:
        result: What `--json` prints.
    """
    lines = []
    for table in result["tables"]:
        if table["row"] is None:
            lines.append("{}: the key {} has no row{}".format(
                table["path"], result["key"], " in this delta" if result["delta"] else ""))
            lines += _seen(table["seen"])
            continue
        lines.append("{}: the key {} is row {}".format(
            table["path"], result["key"], table["row"]["position"]))
        lines += _seen(table["seen"])
        for part in table["row"]["parts"]:
            lines.append("  {}".format(part["name"]))
            values = [_number(value) for value in part["values"]]
            for at in range(0, len(values), _VALUES):
                lines.append("    " + " ".join("{:>13}".format(value)
                                               for value in values[at:at + _VALUES]))
    return "\n".join(lines) + "\n"


def diff_text(result: Dict[str, Any]) -> str:
    """Returns how two checkpoints differ.

    Args:
        result: What `--json` prints.
    """
    lines = ["here:  {}".format(result["here"]), "there: {}".format(result["there"])]
    # Keys that a delta does not hold are no keys that are gone.
    keys = [(side, "not in the delta " + other if is_delta else "only " + here)
            for side, here, other, is_delta in (
                ("only_here", "here", "there", result["deltas"][1]),
                ("only_there", "there", "here", result["deltas"][0]))]
    lines += ["table {}: only here".format(name) for name in result["only_here"]]
    lines += ["table {}: only there".format(name) for name in result["only_there"]]
    for table in result["tables"]:
        head = "table {}: ".format(table["name"])
        if table["equal"]:
            lines.append(head + "equal, {} rows".format(table["rows"][0]))
            continue
        lines.append(head + "differs, {} rows here, {} there".format(*table["rows"]))
        if table["dims"][0] != table["dims"][1]:
            lines.append("  dim {} here, {} there: no rows are compared".format(*table["dims"]))
        for name, words in keys + [("differing", "with another row")]:
            if table[name]["count"]:
                lines.append("  {} {}: {}".format(
                    counted(table[name]["count"], "key"), words, _first(table[name])))
        lines += ["  the delta {} holds the rows that changed since the save before it, and "
                  "removes {}: a restore takes all others from that save".format(
                      side, counted(removed, "key"))
                  for side, removed in zip(("here", "there"), table["removed"])
                  if removed is not None]
        for part in table["parts"]:
            if part["rows"]:
                largest = "what is not finite" if part["largest"] is None \
                    else "{:.7g}".format(part["largest"])
                lines.append("  {}: {} {}, by {} at most, at the key {}".format(
                    part["name"], counted(part["rows"], "row"),
                    "differs" if part["rows"] == 1 else "differ", largest, part["key"]))
        lines += ["  {}: only here".format(name) for name in table["parts_only_here"]]
        lines += ["  {}: only there".format(name) for name in table["parts_only_there"]]
        lines += ["  {}: new rows start at {} here, {} there".format(
            slot["name"], _number(slot["here"]), _number(slot["there"]))
            for slot in table["initials"]]
        lines += _history_difference(table["history"])
    lines.append("equal" if result["equal"] else "different")
    return "\n".join(lines) + "\n"


def _seen(seen: Optional[Dict[str, int]]) -> List[str]:
    """Returns what a history knows of a key, as lines."""
    if seen is None:
        return []
    return ["  counted {}, {}".format(
        "once" if seen["count"] == 1 else "{} times".format(seen["count"]), _time(seen["last"]))]


def _time(seconds: int) -> str:
    if not seconds:
        return "without a time"
    return "last seen at {} ({} UTC)".format(
        seconds, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)))


def _history_difference(found: Optional[Dict[str, Any]]) -> List[str]:
    """Returns how two histories differ, as lines; none if there are none."""
    if found is None:
        return []
    here, there = found["here"], found["there"]
    if here is None or there is None:
        return ["  history: only {}".format("there" if here is None else "here")]
    lines = ["  history: {} {} here, {} there".format(
        name.replace("_", " "), *[json.dumps(one[name]) for one in (here, there)])
        for name in ("access", "configured_access", "eviction", "counting", "latest")
        if here[name] != there[name]]
    return lines + ["  history: {} {}: {}".format(
        counted(found[name]["count"], "key"), words, _first(found[name])) for name, words in (
            ("only_here", "only here"), ("only_there", "only there"),
            ("differing", "with another count or time")) if found[name]["count"]]


def _first(keys: Dict[str, Any]) -> str:
    rest = keys["count"] - len(keys["first"])
    return ", ".join(str(key) for key in keys["first"]) + (
        " and {} more".format(rest) if rest > 0 else "")


def _checksums(table: Dict[str, Any]) -> str:
    if table["version"] is None:
        return "not read"
    if table["checksums"]:
        return "{} compared".format(counted(table["checksums"], "checksum"))
    if table["version"] < 2:
        return "no checksums (format {})".format(_format(table["version"]))
    return "no checksum compared"


def _tables_alone(checkpoint: Dict[str, Any]) -> str:
    return "{}: tables alone, without TensorFlow's part".format(checkpoint["path"])


def _format(version: Optional[int]) -> str:
    if version is None:
        return "-"
    return str(version) if version else "original"


def _faults(faults: List[Dict[str, str]]) -> List[str]:
    return ["{}: {}".format(fault["path"], fault["message"]) for fault in faults]


def _columns(lines: List[List[str]], right: Sequence[int]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = ""
    for line in lines:
        cells = [cell.rjust(width) if column in right else cell.ljust(width)
                 for column, (cell, width) in enumerate(zip(line, widths))]
        text += "  ".join(cells).rstrip() + "\n"
    return text


def _or_dash(value: Any) -> str:
    return "-" if value is None else str(value)


def _number(value: Any) -> str:
    return value if isinstance(value, str) else "{:.9g}".format(value)
