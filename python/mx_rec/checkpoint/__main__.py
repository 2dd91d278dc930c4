"""The command `python -m mx_rec.checkpoint`: lists, verifies and compares saved tables."""

import argparse
import json
import os
import sys
from typing import Any, Dict, List, Optional

from mx_rec.base.command import print_text, sentence
from mx_rec.checkpoint import tables
from mx_rec.checkpoint.places import (CHECKPOINT, TABLE, Checkpoint, Place, SavedTable,
                                       find_place)
from mx_rec.checkpoint.progress import Meter
from mx_rec.checkpoint.report import diff_text, listing_text, row_text, verify_text

_PROGRAM = "python -m mx_rec.checkpoint"
_FAULTY = 1
_FAILED = 2
# As of a process that SIGINT ended.
_INTERRUPTED = 130
_DESCRIPTION = """\
Lists what is in checkpoints of embedding tables, verifies their files, shows a key's row, and
compares two checkpoints. Nothing is changed, and no table is loaded."""
_EPILOG = """\
DIR may be
  a directory with checkpoints    model/          all of them; the newest is marked
  a checkpoint's prefix           model/model.ckpt-100
  the tables of a checkpoint      model/sparse-model.ckpt-100, model/delta-sparse-model.ckpt-130
  one table                       model/sparse-model.ckpt-100/user_table

examples:
  python -m mx_rec.checkpoint model
  python -m mx_rec.checkpoint model --verify
  python -m mx_rec.checkpoint model/model.ckpt-100 --key 4711 --table user_table
  python -m mx_rec.checkpoint model/model.ckpt-100 --diff model/model.ckpt-200

exit code: 0 if all is well; 1 if --verify found a fault, --key no row, or --diff a difference; 2 if
DIR is no checkpoint or something cannot be read."""


class _Refused(Exception):
    """An argument does not fit what is there."""


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command.

    Args:
        argv: The arguments after the program's name; None is those of the process.

    Returns:
        The exit code: 0, 1 or 2, as the help says. 2 comes with one line about the error on
        stderr.
    """
    arguments = _parser().parse_args(argv)
    meter = Meter(sys.stderr, arguments.progress or sys.stderr.isatty())
    try:
        place = find_place(arguments.dir)
        if arguments.verify:
            answer, code = _verify(place, arguments.table, meter)
            text = verify_text
        elif arguments.key is not None:
            answer, code = _find(place, arguments.key, arguments.table, meter)
            text = row_text
        elif arguments.diff is not None:
            answer, code = _diff(place, find_place(arguments.diff), arguments.table, meter)
            text = diff_text
        else:
            answer, code = _list(place, arguments.table), 0
            text = listing_text
        print_text(json.dumps(answer, indent=2) + "\n" if arguments.json else text(answer))
        return code
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. What is left must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ImportError, OSError, ValueError, tables.TableError, _Refused) as error:
        meter.end()
        print("{}: {}".format(_PROGRAM, sentence(error)), file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        meter.end()
        print("{}: interrupted".format(_PROGRAM), file=sys.stderr)
        return _INTERRUPTED


def _list(place: Place, table: Optional[str]) -> Dict[str, Any]:
    """Returns the listing as data."""
    checkpoints = []
    for one in _chosen(place, table):
        entry = _head(one)
        entry["tables"] = [_described(each) for each in one.tables]
        checkpoints.append(entry)
    return {"kind": place.kind, "path": place.path, "checkpoints": checkpoints,
            "leftovers": place.leftovers}


def _verify(place: Place, table: Optional[str], meter: Meter) -> Any:
    """Returns (what was verified as data, exit code)."""
    checkpoints, faulty = [], False
    for one in _chosen(place, table):
        entry = _head(one)
        for each in one.tables:
            try:
                report = tables.verify(each.directory, meter.of("verifying " + each.directory))
            except tables.TableError as error:
                report = {"version": None, "rows": None, "files": 0, "bytes": 0, "checksums": 0,
                          "faults": [{"file": ".", "message": str(error)}]}
            meter.end()
            for fault in report["faults"]:
                fault["path"] = os.path.normpath(os.path.join(each.directory, fault.pop("file")))
            entry["tables"].append(dict(report, name=each.name, path=each.directory))
            faulty = faulty or bool(report["faults"])
        faulty = faulty or bool(entry["faults"])
        checkpoints.append(entry)
    return ({"kind": place.kind, "path": place.path, "ok": not faulty, "checkpoints": checkpoints},
            _FAULTY if faulty else 0)


def _find(place: Place, key: int, table: Optional[str], meter: Meter) -> Any:
    """Returns (rows of a key as data, exit code)."""
    one = _single(place, table)
    found = []
    for each in one.tables:
        row = tables.find_row(each.directory, key, meter.of("searching " + each.directory))
        meter.end()
        seen = row.pop("seen") if row is not None else None
        if row is not None and row["position"] is None:
            row = None
        found.append({"name": each.name, "path": each.directory, "row": row, "seen": seen})
    has_row = any(entry["row"] is not None for entry in found)
    return ({"key": key, "checkpoint": one.name, "step": one.step, "delta": one.delta,
             "base": one.base, "tables": found},
            0 if has_row else _FAULTY)


def _diff(here: Place, there: Place, table: Optional[str], meter: Meter) -> Any:
    """Returns (how two checkpoints differ as data, exit code)."""
    if here.kind != there.kind and TABLE in (here.kind, there.kind):
        # A table is compared with that of its name.
        name = (here if here.kind == TABLE else there).newest.tables[0].name
        if table not in (None, name):
            raise _Refused("--table {} is not the table {}".format(table, name))
        table = name
    first, second = _single(here, table), _single(there, table)
    if here.kind == there.kind == TABLE:
        pairs = [(first.tables[0], second.tables[0])]
        only_here, only_there = [], []  # type: List[str], List[str]
    else:
        others = {each.name: each for each in second.tables}
        pairs = [(each, others[each.name]) for each in first.tables if each.name in others]
        shared = [pair[0].name for pair in pairs]
        only_here = [each.name for each in first.tables if each.name not in shared]
        only_there = [each.name for each in second.tables if each.name not in shared]
    compared = []
    for one, other in pairs:
        result = tables.diff(one.directory, other.directory, meter.of("comparing " + one.directory))
        meter.end()
        described = [tables.describe(each.directory) for each in (one, other)]
        slots = [{slot["name"]: slot["initial"] for slot in each["slots"]} for each in described]
        result["initials"] = [
            {"name": name, "here": slots[0][name], "there": slots[1][name]}
            for name in slots[0] if name in slots[1] and None not in (
                slots[0][name], slots[1][name]) and slots[0][name] != slots[1][name]]
        result["equal"] = result["equal"] and not result["initials"]
        result["removed"] = [each["removed"] for each in described]
        compared.append(dict(result, name=one.name, here=one.directory, there=other.directory))
    equal = not only_here and not only_there and all(one["equal"] for one in compared)
    return ({"equal": equal, "here": first.directory, "there": second.directory,
             "deltas": [first.delta, second.delta], "only_here": only_here,
             "only_there": only_there, "tables": compared},
            0 if equal else _FAULTY)


def _chosen(place: Place, table: Optional[str]) -> List[Checkpoint]:
    """The checkpoints with just the wanted table, or all of theirs."""
    if table is None:
        return place.checkpoints
    chosen = [one._replace(tables=[each for each in one.tables if each.name == table])
              for one in place.checkpoints]
    if not any(one.tables for one in chosen):
        names = sorted({each.name for one in place.checkpoints for each in one.tables})
        raise _Refused("{}: no table {!r}; there {}".format(
            place.path, table, "is {}".format(", ".join(names)) if names else "are no tables"))
    return chosen


def _single(place: Place, table: Optional[str]) -> Checkpoint:
    """The one checkpoint that is meant, the newest of a directory, with the wanted tables."""
    one = place.newest
    if not one.tables:
        raise _Refused("{}: the checkpoint has no tables".format(one.directory))
    return _chosen(Place(CHECKPOINT, one.directory, [one], []), table)[0]


def _head(one: Checkpoint) -> Dict[str, Any]:
    return {"name": one.name, "step": one.step, "path": one.directory, "newest": one.newest,
            "has_dense": one.has_dense, "delta": one.delta, "base": one.base, "chain": one.chain,
            "tables": [],
            "faults": [{"path": path, "message": message} for path, message in one.faults]}


def _described(table: SavedTable) -> Dict[str, Any]:
    try:
        found = tables.describe(table.directory)
    except tables.TableError as error:
        found = {"version": None, "rows": None, "removed": None, "dim": None, "slots": [],
                 "parts": [], "bytes": 0, "history": None, "config": None,
                 "faults": [{"file": ".", "message": str(error)}]}
    for fault in found["faults"]:
        fault["path"] = os.path.normpath(os.path.join(table.directory, fault.pop("file")))
    return dict(found, name=table.name, path=table.directory)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=_DESCRIPTION, epilog=_EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="the checkpoint or checkpoints, see below")
    verb = parser.add_mutually_exclusive_group()
    verb.add_argument("--verify", action="store_true", help="read every file and tell each fault")
    verb.add_argument("--key", metavar="K", type=_key, help="show the row of this key")
    verb.add_argument("--diff", metavar="OTHER", help="compare with another checkpoint, by key")
    parser.add_argument("--table", metavar="T", help="only this table")
    parser.add_argument("--json", action="store_true", help="print data instead of text")
    parser.add_argument("--progress", action="store_true",
                        help="show progress on stderr even if it is no terminal")
    return parser


def _key(text: str) -> int:
    key = int(text)
    if not -2 ** 63 <= key < 2 ** 63:
        raise argparse.ArgumentTypeError("a key is a signed 64-bit number: {}".format(text))
    return key


if __name__ == "__main__":
    sys.exit(main())
