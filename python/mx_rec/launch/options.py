"""The options of `python -m mx_rec run`: of the command line, and of a file."""

import argparse
import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from mx_rec.core.rows import ROUNDINGS, ROW_DTYPES, SLOT_DTYPES
from mx_rec.stock.options import (ALL_ROWS, BATCH_ROWS, LEAST_ROWS, SECONDS, STEPS, StockTables,
                                  checked_options)

PROGRAM = "python -m mx_rec run"
_DESCRIPTION = """\
Runs a TensorFlow program that knows nothing of mx_rec: its large embedding variables are tables.
The program is a process of its own from its first line on, with its arguments, its output, its
exit code and its signals. At its end a few lines on stderr say which variables were tables."""
_EPILOG = """\
--config FILE has the same options in TOML: least_rows = 1000, names = ["dnn/.*"], servers = false,
access_threshold = {"dnn/.*" = 5}. Those of the command line go before it. What each of them means
is in docs/unchanged-estimators.md.

examples:
  python -m mx_rec run train.py --data clicks.csv
  python -m mx_rec run --least-rows 100000 -m easy_rec.python.train_eval --pipeline_config_path c

exit code: that of the program; 2 if an option is wrong."""


class Launch(NamedTuple):
    """What a program is to be run with.

    Attributes:
        options: Which variables become tables.
        graph_pass: Whether lookups are fused and joined.
        children: Whether Python processes that the program starts are run so, too.
        report: "text" for lines on stderr at the program's end, "" for none, else the file for it
            as JSON.
        is_child: Whether the process was started by the program.
    """

    options: StockTables
    graph_pass: bool
    children: bool
    report: str
    is_child: bool = False

    def to_json(self) -> str:
        """Returns it as text for the environment of the program."""
        return json.dumps(dict(self._asdict(), options=dict(self.options._asdict())))

    @staticmethod
    def from_json(given: Dict[str, Any]) -> "Launch":
        """Returns what `to_json` wrote.

        Args:
            given: The JSON, read.
        """
        return Launch(**dict(given, options=checked_options(StockTables(**given["options"]))))


class _Setting(NamedTuple):
    """An option that has its name in a file and, with dashes, on the command line."""

    name: str
    help: str
    kind: str
    metavar: Optional[str] = None


_NUMBER, _LIST, _THRESHOLD, _SWITCH, _TEXT = "a number", "a list", "a threshold", "a switch", "text"
_TEXTS = "text by names"

_SETTINGS = (
    _Setting("names", "variables whose name matches this regular expression from its start become "
             "tables, of any number of rows without --least-rows; repeat it for further names",
             _LIST, "REGEX"),
    _Setting("least_rows", "variables with fewer rows stay TensorFlow's (default {})".format(
        LEAST_ROWS), _NUMBER, "N"),
    _Setting("lazy_adam", "tables of tf.train.AdamOptimizer move the rows of the batch alone: "
             "other numbers than TensorFlow's", _SWITCH),
    _Setting("memory_rows", "rows of each table in memory; the others are on disk", _NUMBER, "N"),
    _Setting("ssd_data_path", "a directory for the rows on disk; repeat it for further ones",
             _LIST, "DIR"),
    _Setting("unlimited_ids", "ids of variables with such a name lose their limits; repeat it for "
             "further names", _LIST, "REGEX"),
    _Setting("access_threshold", "a key gets a row at its Nth occurrence in training; REGEX=N for "
             "variables with such a name, which can be repeated", _THRESHOLD, "N"),
    _Setting("eviction_threshold", "a key that did not occur for so long may lose its row; also "
             "REGEX=N", _THRESHOLD, "N"),
    _Setting("eviction_unit", "{} (default) or {}".format(SECONDS, STEPS), _TEXT, "UNIT"),
    _Setting("evict_time_interval", "seconds between evictions of an Estimator's training",
             _NUMBER, "N"),
    _Setting("evict_step_interval", "steps between them", _NUMBER, "N"),
    _Setting("servers", "variables on parameter servers stay TensorFlow's", _SWITCH),
    _Setting("admission_sketch_bytes", "bytes in which keys without rows are counted; also "
             "REGEX=N", _THRESHOLD, "N"),
    _Setting("l2", "{!r} (default): variables with a penalty on all rows stay TensorFlow's; {!r}: "
             "the penalty is that of the rows of a batch, other numbers than TensorFlow's".format(
                 ALL_ROWS, BATCH_ROWS), _TEXT, "ROWS"),
    _Setting("row_dtype", "tables keep their rows as {}; REGEX=TYPE for variables with such a "
             "name, which can be repeated".format(" or ".join(ROW_DTYPES)), _TEXTS, "TYPE"),
    _Setting("row_rounding", "how updates round to a row_dtype of 2 bytes: {} (default) or "
             "{}".format(*ROUNDINGS), _TEXT, "HOW"),
    _Setting("row_conversion", "how rows and slots of a checkpoint of other types, and its "
             "variables, are rounded: {} or {}".format(*ROUNDINGS), _TEXT, "HOW"),
    _Setting("slot_dtype", "tables keep their slots as {} beside a row_dtype of 2 bytes; also "
             "REGEX=TYPE".format(" or ".join(SLOT_DTYPES)), _TEXTS, "TYPE"),
    _Setting("graph_pass", "lookups are not fused and joined", _SWITCH),
    _Setting("children", "Python processes that the program starts are run the same way", _SWITCH),
)

# Switches that are on without an option, which then says --no-NAME.
_ON = ("servers", "graph_pass")


class Wanted(NamedTuple):
    """A command line, read.

    Attributes:
        launch: What the program is run with.
        program: Arguments of Python: the script or -m and the module, and the program's own.
    """

    launch: Launch
    program: List[str]


def read_arguments(argv: Optional[Sequence[str]]) -> Wanted:
    """Reads the command line, and the file that it names.

    Args:
        argv: The arguments after `run`; None is those of the process.

    Raises:
        ValueError: If an option is wrong, or the file cannot be read.
        SystemExit: As of argparse, for -h and for arguments that it refuses.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    given = _of_file(arguments.config) if arguments.config else {}
    for setting in _SETTINGS:
        value = getattr(arguments, setting.name)
        if value is not None:
            if setting.kind == _THRESHOLD:
                value = _by_names(setting.name, value, int, "whole number N")
            elif setting.kind == _TEXTS:
                value = _by_names(setting.name, value, str, "TYPE")
            given[setting.name] = value
    if "names" in given:
        given.setdefault("least_rows", 1)
    others = {name: _switch(name, given.pop(name, name in _ON))
              for name in ("graph_pass", "children")}
    report = "" if arguments.quiet else arguments.report or "text"
    return Wanted(Launch(checked_options(StockTables(**given)), report=report, **others),
                  (["-m"] if arguments.module else []) + [arguments.program]
                  + arguments.arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False,
        usage=PROGRAM + " [options] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="module", action="store_true",
                        help="the program is a module, as of `python -m`")
    parser.add_argument("--config", metavar="FILE", help="a TOML file with options")
    for setting in _SETTINGS:
        flag = setting.name.replace("_", "-")
        if setting.kind == _SWITCH:
            off = setting.name in _ON
            parser.add_argument("--no-" + flag if off else "--" + flag, dest=setting.name,
                                action="store_const", const=not off, help=setting.help)
        else:
            parser.add_argument(
                "--" + flag, metavar=setting.metavar, help=setting.help,
                type=int if setting.kind == _NUMBER else str,
                action="append" if setting.kind in (_LIST, _THRESHOLD, _TEXTS) else "store")
    parser.add_argument("--report", metavar="FILE",
                        help="write what was a table to FILE, as JSON, and not to stderr")
    parser.add_argument("--quiet", action="store_true", help="say nothing at the end")
    parser.add_argument("program", metavar="SCRIPT", help="the program")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER,
                        help="its arguments")
    return parser


def _of_file(path: str) -> Dict[str, Any]:
    """Reads options from a TOML file."""
    try:
        import tomllib as toml  # Python 3.11 and newer  # type: ignore
    except ImportError:
        try:
            import tomli as toml
        except ImportError as error:
            raise ValueError("--config needs the package tomli before Python 3.11: pip install "
                             "tomli, or give the options on the command line") from error
    try:
        with open(path, "rb") as file:
            given = toml.loads(file.read().decode("utf-8"))
    except OSError as error:
        raise ValueError("--config {}: {}".format(path, error.strerror)) from error
    except ValueError as error:  # also of bytes that are no UTF-8
        raise ValueError("--config {} is no TOML: {}".format(path, error)) from error
    known = [setting.name for setting in _SETTINGS]
    for name in given:
        if name not in known:
            raise ValueError("--config {} has {!r}, which is no option; options are {}".format(
                path, name, ", ".join(known)))
    return dict(given)


def _by_names(name: str, values: List[str], read: Callable[[str], Any],
              what: str) -> Union[Any, Dict[str, Any]]:
    """Reads one value, or REGEX=VALUE several times."""
    pairs = [value.rpartition("=") for value in values]
    try:
        numbers = [read(number) for _, _, number in pairs]
    except ValueError as error:
        raise ValueError("--{} should be N or REGEX=N with a {}, but is {}".format(
            name.replace("_", "-"), what, " and ".join(values))) from error
    if not any(equals for _, equals, _ in pairs):
        if len(values) > 1:
            raise ValueError("--{} without a name is given {} times".format(
                name.replace("_", "-"), len(values)))
        return numbers[0]
    return {regex if equals else ".*": number
            for (regex, equals, _), number in zip(pairs, numbers)}


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("{!r} should be true or false, but is {!r}".format(name, value))
    return value
