"""What `python -m mx_rec run` does in the process of a program: tables, and a report at its end."""

import atexit
import json
import os
import resource
import sys
import time
from typing import Any, Dict, List

from mx_rec import plugin
from mx_rec.base.log import logger
from mx_rec.core.rows import FLOAT32
from mx_rec.launch.options import PROGRAM, Launch
from mx_rec.stock.planned import StockVariable, product
from mx_rec.stock.select import decisions
from mx_rec.util.initialize import assume

_GIB, _MIB = 2.0 ** 30, 2.0 ** 20


def begin(given: Dict[str, Any]) -> None:
    """Sets up this process; called behind the import of TensorFlow.

    Args:
        given: What `Launch.to_json` wrote, read.
    """
    launch = Launch.from_json(given)
    assume(launch.options, launch.graph_pass)
    if launch.report:
        atexit.register(_report, launch, os.getpid(), time.time())


def _report(launch: Launch, process: int, since: float) -> None:
    """Says at the end of the program what was a table."""
    if os.getpid() != process:
        return  # a copy of the process that was made by fork
    where, is_child, seconds = launch.report, launch.is_child, time.time() - since
    try:
        held = json.loads(plugin.call("mx_rec_tables")[1].decode("utf-8"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if where == "text":
            name = "mx_rec, process {}".format(process) if is_child else "mx_rec"
            sys.stderr.write(report_text(name, decisions(), held, peak, seconds))
            sys.stderr.flush()
            return
        with open("{}.{}".format(where, process) if is_child else where, "w") as file:
            json.dump({
                "variables": [dict(_described(one), **held.get(one.table, {}))
                              for one in decisions()],
                "peak_bytes": peak, "seconds": seconds}, file, indent=2)
            file.write("\n")
    except (OSError, ValueError) as error:
        # The program has ended: nothing of it may fail for a report.
        logger.warning("%s: the report could not be written: %s", PROGRAM, error)


def _bytes_of(one: StockVariable) -> int:
    """Returns what a variable and its slots take as variables."""
    return 4 * product(one.shape) * (1 + len(one.slots))


def _described(one: StockVariable) -> Dict[str, Any]:
    """Returns what a report says of a variable; its table is "" if no graph has it as one."""
    return {"name": one.name, "shape": one.shape, "table": one.table, "optimizer": one.kind,
            "slots": [slot.name for slot in one.slots], "bytes": _bytes_of(one),
            "row_dtype": one.row_dtype, "slot_dtype": one.slot_dtype, "reason": one.reason}


def report_text(name: str, chosen: List[StockVariable], held: Dict[str, Dict[str, int]], peak: int,
                seconds: float) -> str:
    """Returns the lines at the end of a program.

    Args:
        name: What they begin with.
        chosen: The variables that the options choose by name and rows.
        held: Rows and bytes of tables by their names, as `mx_rec_tables` gives them.
        peak: The most memory that the process had, in bytes.
        seconds: How long it ran.
    """
    tables = [one for one in chosen if one.table]
    if chosen:
        first = "{} of {} variables of the size and name asked for {}".format(
            len(tables), len(chosen), "was a table" if len(tables) == 1 else "were tables")
    else:
        first = "no variable of the size and name asked for was in a graph that ran"
    lines = ["{}: {}; peak memory {:.2f} GiB, {:.1f} s".format(name, first, peak / _GIB, seconds)]
    for one in chosen:
        text = "  {} {}".format(one.name, one.shape)
        if not one.table:
            text += " stayed TensorFlow's: {}".format(one.reason)
        else:
            text += ": a table, {}".format(one.kind or "not trained")
            if one.row_dtype != FLOAT32:
                text += ", {}".format(one.row_dtype)
            if one.slot_dtype != FLOAT32:
                text += ", slots {}".format(one.slot_dtype)
            if one.table in held:
                numbers = held[one.table]
                text += ", {:,} rows in {:.1f} MiB where the variable {}takes {:.1f} MiB".format(
                    numbers["rows"], numbers["bytes"] / _MIB,
                    "with its slots " if one.slots else "", _bytes_of(one) / _MIB)
        lines.append(text)
    return "\n".join(lines) + "\n"
