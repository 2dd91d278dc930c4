"""Runs example programs of Rec SDK TensorFlow, unchanged, on generated data.

    usage: scripts/originals DIR [--only PROGRAM] [--match PATTERN] [--full] [--long] [--list]
                             [--work DIR] [--python PYTHON] [--timeout SECONDS]

DIR holds any of these programs, each in a directory of its name, as their repository has them under
`examples/` (demo/ and model/ in between may be there or not):

    little_demo  little_demo_estimator  WideDeep  DCNv2  dlrm  mmoe

Nothing is downloaded and no file in DIR is changed: every program is copied to the work directory
and runs there, once for each row of the table that is printed. The models read TFRecords of click
logs or of a census, which are generated; the two demos make their own data.

The models evaluate after as many steps as their main file says: mmoe is given enough data for
that. Of the others, whose batches hold thousands of samples, the last rows cut that number to 10 in
the copy. Rows of little_demo have a tenth of the memory for rows, in the copy, so that nearly all
are on disk: that the program writes them is looked at while it runs. --long adds WideDeep unchanged
on enough data for its 1,120 steps, which takes 5 GB of memory. A step of DCNv2 multiplies matrices
for some 10 seconds on two cores.

What a program needs beside TensorFlow and mx_rec comes from PyPI into the interpreter that runs it,
for instance:

    .venv/bin/python -m pip install --no-deps scikit-learn==1.0.2 joblib==1.3.2 \\
        threadpoolctl==3.1.0 scipy==1.7.3 easydict==1.13

Outcomes are `end` (the program's last log line came), `refused` (an error that the original
documents for these switches), `absent: PACKAGE` and `FAILED`. The exit code is 1 if a row FAILED.
"""

import argparse
import itertools
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAST_LINE = "Demo done!"

# Rows that memory holds, as little_demo's main file says for its tables with rows on disk: a tenth
# of them, so that nearly all go to disk.
FEWER_IN_MEMORY = (r"(user_vocab_size \*) 0\.1\)", r"\1 0.01)")

# Where little_demo has its rows on disk.
ROWS = "ssd_data"

# Batches of a demo have 32 samples with more than 2 further lookups, else 4,096.
SMALL = {"USE_MULTI_LOOKUP": "1", "MULTI_LOOKUP_TIMES": "3"}

Switches = Dict[str, str]


class Run(NamedTuple):
    """One run of a program.

    Attributes:
        program: Name of the program.
        switches: Environment variables that it reads.
        refusal: Pattern of the documented error; None where the program comes to its end.
        continues: Whether it runs where the run before it was.
        cut: (pattern, text) that is replaced in the copy's main file; None leaves it unchanged.
        evidence: Pattern that the log must hold as well.
        is_whole: Whether it reads data for all steps up to an evaluation.
        spills: Whether it must write rows to disk.
    """

    program: str
    switches: Switches
    refusal: Optional[str] = None
    continues: bool = False
    cut: Optional[Any] = None
    evidence: Optional[str] = None
    is_whole: bool = False
    spills: bool = False


class Program(NamedTuple):
    """What is known of a program.

    Attributes:
        places: Where its directory may be below DIR.
        main: Its main file.
        prepare: Makes its data in a directory; returns further environment variables.
        runs: Its runs, by whether all combinations are asked for.
        prepare_whole: Makes the data of a run that is whole; None if the program has none.
    """

    places: List[str]
    main: str
    prepare: Callable[[str], Switches]
    runs: Callable[[bool], List[Run]]
    prepare_whole: Optional[Callable[[str], Switches]] = None


# The two demos ---------------------------------------------------------------------------------

_DDR_EXPANSION = "with dynamic expansion tables have no preset size"
_EVICT_EXPANSION = "not possible with dynamic expansion"


def _demo(program: str, **switches: str) -> Switches:
    mode = "USE_MODE" if program == "little_demo" else "RUN_MODE"
    found = {mode: "train", "CACHE_MODE": "HBM", "USE_DYNAMIC": "1", "USE_MODIFY_GRAPH": "1"}
    found.update(SMALL)
    found.update(switches)
    return found


def _refusal(switches: Switches) -> Optional[str]:
    """Returns the documented refusal of a combination of switches."""
    if switches.get("USE_DYNAMIC_EXPANSION") == "1":
        if switches["CACHE_MODE"] in ("DDR", "SSD"):
            return _DDR_EXPANSION
        if switches.get("USE_TIMESTAMP") == "1":
            return _EVICT_EXPANSION
    return None


def _products(names: List[str]) -> Iterator[Switches]:
    """Yields every combination of switches that are 0 or 1."""
    for values in itertools.product("01", repeat=len(names)):
        yield dict(zip(names, values))


def little_demo_runs(full: bool) -> List[Run]:
    """Returns the runs of the demo with a session."""
    runs = []  # type: List[Run]

    def add(**switches: str) -> None:
        chosen = _demo("little_demo", **switches)
        runs.append(Run("little_demo", chosen, _refusal(chosen),
                        continues=chosen["USE_MODE"] != "train"))

    if full:
        for cache in ("HBM", "DDR"):
            for switches in _products(["USE_MODIFY_GRAPH", "USE_DYNAMIC", "USE_DYNAMIC_EXPANSION",
                                       "USE_TIMESTAMP", "USE_ONE_SHOT", "USE_DETERMINISTIC"]):
                add(CACHE_MODE=cache, **switches)
    for modify in "10":
        for mode in ("train", "load_and_train", "predict"):
            add(USE_MODE=mode, USE_MODIFY_GRAPH=modify)
        add(USE_MODIFY_GRAPH=modify, USE_DYNAMIC="0")
        add(USE_MODIFY_GRAPH=modify, USE_TIMESTAMP="1")
        add(USE_MODIFY_GRAPH=modify, USE_ONE_SHOT="1")
        add(USE_MODIFY_GRAPH=modify, CACHE_MODE="DDR")
        for mode in ("train", "load_and_train", "predict"):
            add(USE_MODE=mode, USE_MODIFY_GRAPH=modify, CACHE_MODE="SSD")
        for mode in ("train", "load_and_train", "predict"):
            add(USE_MODE=mode, USE_MODIFY_GRAPH=modify, USE_DYNAMIC_EXPANSION="1")
    add(USE_DYNAMIC="0", USE_ONE_SHOT="1", USE_DETERMINISTIC="1", USE_DP="1",
        USE_TUPLE_DATA_FORMAT="1", USE_PADDING_KEYS="1")
    add(CACHE_MODE="DDR", USE_TIMESTAMP="1", USE_ONE_SHOT="1")
    add(MULTI_LOOKUP_TIMES="127")
    add(CACHE_MODE="SSD", USE_TIMESTAMP="1", USE_ONE_SHOT="1")
    add(CACHE_MODE="DDR", USE_DYNAMIC_EXPANSION="1")
    add(CACHE_MODE="SSD", USE_DYNAMIC_EXPANSION="1")
    add(USE_TIMESTAMP="1", USE_DYNAMIC_EXPANSION="1")
    add(MULTI_LOOKUP_TIMES="2")
    add(USE_MULTI_LOOKUP="0", USE_MODIFY_GRAPH="0")
    for modify in "10":
        spilling = _demo("little_demo", CACHE_MODE="SSD", USE_MODIFY_GRAPH=modify)
        runs.append(Run("little_demo", spilling, cut=FEWER_IN_MEMORY, spills=True))
        for mode in ("load_and_train", "predict"):
            runs.append(Run("little_demo", dict(spilling, USE_MODE=mode), continues=True,
                            spills=mode == "load_and_train"))
    too_small = _demo("little_demo", CACHE_MODE="DDR", USE_DYNAMIC="0", MULTI_LOOKUP_TIMES="2")
    runs.append(Run("little_demo", too_small, "device_vocabulary_size was too small"))
    return runs


def little_demo_estimator_runs(full: bool) -> List[Run]:
    """Returns the runs of the demo with an Estimator."""
    program = "little_demo_estimator"
    runs = []  # type: List[Run]

    def add(**switches: str) -> None:
        chosen = _demo(program, **switches)
        refusal = _refusal(chosen)
        evidence = None
        if chosen["RUN_MODE"] == "predict" and chosen["USE_MODIFY_GRAPH"] == "0":
            # The program itself sets the features of training, and asks for those of evaluation.
            refusal = "eval_feature_spec_list"
        elif chosen["RUN_MODE"] == "predict" and chosen.get("USE_TUPLE_DATA_FORMAT") == "1":
            # The program itself asks for labels, which no Estimator gives a prediction.
            refusal = "'NoneType' object is not subscriptable"
        if chosen.get("USE_EXPORT_SAVED_MODEL") == "1":
            evidence = "The export saved model path is"
        runs.append(Run(program, chosen, refusal, continues=chosen["RUN_MODE"] == "predict",
                        evidence=evidence))

    if full:
        for switches in _products(["USE_MODIFY_GRAPH", "USE_DYNAMIC", "USE_DYNAMIC_EXPANSION",
                                   "USE_TIMESTAMP", "USE_ONE_SHOT", "USE_TUPLE_DATA_FORMAT"]):
            for cache in ("HBM", "DDR"):
                if switches["USE_MODIFY_GRAPH"] == "1" or switches["USE_TUPLE_DATA_FORMAT"] == "0":
                    add(RUN_MODE="train_and_evaluate", CACHE_MODE=cache, **switches)
    for modify in "10":
        for mode in ("train", "predict", "train_and_evaluate"):
            add(RUN_MODE=mode, USE_MODIFY_GRAPH=modify)
        for mode in ("train", "train_and_evaluate"):
            add(RUN_MODE=mode, USE_MODIFY_GRAPH=modify, USE_DYNAMIC="0")
        add(RUN_MODE="train_and_evaluate", USE_MODIFY_GRAPH=modify, USE_TIMESTAMP="1")
        add(RUN_MODE="train_and_evaluate", USE_MODIFY_GRAPH=modify, USE_DYNAMIC_EXPANSION="1")
        add(RUN_MODE="train_and_evaluate", USE_MODIFY_GRAPH=modify, USE_ONE_SHOT="1")
        add(RUN_MODE="train", USE_MODIFY_GRAPH=modify, CACHE_MODE="DDR")
    add(RUN_MODE="train_and_evaluate", USE_EXPORT_SAVED_MODEL="1")
    add(RUN_MODE="train_and_evaluate", USE_EXPORT_SAVED_MODEL="1", USE_DYNAMIC_EXPANSION="1")
    add(RUN_MODE="train_and_evaluate", USE_EXPORT_SAVED_MODEL="1", CACHE_MODE="DDR")
    add(RUN_MODE="train_and_evaluate", USE_EXPORT_SAVED_MODEL="1", USE_MODIFY_GRAPH="0")
    for mode in ("train", "predict", "train_and_evaluate"):
        add(RUN_MODE=mode, ENABLE_SLICER_TEST="1", ENABLE_PUSH_OPS_TEST="1")
    for mode in ("train", "predict", "train_and_evaluate"):
        add(RUN_MODE=mode, USE_TUPLE_DATA_FORMAT="1")
    for modify in "10":
        for mode in ("train", "train_and_evaluate"):
            add(RUN_MODE=mode, USE_DETERMINISTIC="1", USE_DP="1", USE_MODIFY_GRAPH=modify)
    add(RUN_MODE="train_and_evaluate", CACHE_MODE="DDR", USE_TIMESTAMP="1", USE_ONE_SHOT="1")
    add(RUN_MODE="train", USE_DYNAMIC_EXPANSION="1", CACHE_MODE="DDR")
    add(RUN_MODE="train", USE_DYNAMIC_EXPANSION="1", USE_TIMESTAMP="1")
    add(RUN_MODE="train", MULTI_LOOKUP_TIMES="2")
    return runs


def prepare_demo(directory: str) -> Switches:
    """Writes data.dat, which the Estimator's demo reads when it is to be deterministic."""
    import numpy as np

    random = np.random.RandomState(128)
    batches = []
    for _ in range(200):
        batch = {name: random.randint(0, limit, (32, width)) for name, limit, width in (
            ("item_ids", 80000, 16), ("user_ids", 200000, 8), ("category_ids", 5000, 3))}
        batch.update({name: random.randint(0, 2, (32,)) for name in ("label_0", "label_1")})
        batches.append(batch)
    with open(os.path.join(directory, "data.dat"), "wb") as file:
        pickle.dump(batches, file)
    return {}


# The models --------------------------------------------------------------------------------------


# The models that have a CACHE_MODE for rows on disk.
HAVE_SSD = ("DCNv2", "dlrm")


def _model_switches(**switches: str) -> Switches:
    found = {"CACHE_MODE": "HBM", "USE_DYNAMIC": "1", "USE_MODIFY_GRAPH": "1"}
    found.update(switches)
    return found


def model_runs(program: str, cut: Optional[Any], evidence: str) -> Callable[[bool], List[Run]]:
    """Returns the function that lists a model's runs.

    Args:
        program: Its name.
        cut: What has to be smaller in a copy to reach the evaluation; None if nothing.
        evidence: Pattern of the log line of an evaluation.
    """

    def runs(full: bool) -> List[Run]:
        found = []  # type: List[Run]

        def add(**switches: str) -> None:
            chosen = _model_switches(**switches)
            refusal = None
            if chosen.get("USE_DYNAMIC_EXPANSION") == "1" and chosen["CACHE_MODE"] == "DDR":
                refusal = _DDR_EXPANSION
            elif chosen.get("USE_DYNAMIC_EXPANSION") == "1" and chosen.get("USE_FAAE") == "1":
                refusal = "dynamic expansion"
            found.append(Run(program, chosen, refusal,
                             evidence=None if cut or refusal else evidence))

        names = ["USE_MODIFY_GRAPH", "USE_DYNAMIC", "USE_FAAE", "USE_MULTI_LOOKUP",
                 "USE_DYNAMIC_EXPANSION"]
        if full:
            for switches in _products(names):
                for cache in ("HBM", "DDR"):
                    add(CACHE_MODE=cache, **switches)
            return found
        for modify in "10":
            add(USE_MODIFY_GRAPH=modify)
            add(USE_MODIFY_GRAPH=modify, USE_DYNAMIC="0")
            add(USE_MODIFY_GRAPH=modify, USE_FAAE="1")
            add(USE_MODIFY_GRAPH=modify, USE_MULTI_LOOKUP="1")
            add(USE_MODIFY_GRAPH=modify, USE_DYNAMIC_EXPANSION="1")
            add(USE_MODIFY_GRAPH=modify, CACHE_MODE="DDR")
            if program in HAVE_SSD:
                add(USE_MODIFY_GRAPH=modify, CACHE_MODE="SSD")
        add(USE_DYNAMIC_EXPANSION="1", CACHE_MODE="DDR")
        if cut:
            for modify in "10":
                found.append(Run(program, _model_switches(USE_MODIFY_GRAPH=modify), cut=cut,
                                 evidence=evidence))
        return found

    return runs


def _write_records(path: str, count: int, lines: int, sparse: int, dense: int, labels: int,
                   whole: bool) -> None:
    """Writes a TFRecord file of samples whose first label depends on the ids."""
    import numpy as np
    import tensorflow as tf

    random = np.random.RandomState(7)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(count):
            ids = random.zipf(1.3, (lines, sparse)) % 900 + np.arange(sparse) * 1000
            if labels == 2:
                ids = random.randint(0, 16, (lines, sparse)) + np.arange(sparse) * 16
            first = (ids[:, :3].sum(axis=1) + random.randint(0, 4, lines)) % 5 < 2
            label = np.stack([first.astype(np.int64)] + [random.randint(0, 2, lines)
                                                         for _ in range(labels - 1)], axis=1)
            numbers = random.randint(0, 50, lines * dense)
            features = {
                "label": _integers(label.reshape(-1)),
                "sparse_feature": _integers(ids.reshape(-1)),
                "dense_feature": _integers(numbers) if whole else tf.train.Feature(
                    float_list=tf.train.FloatList(value=numbers.astype(np.float32) / 10)),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def _integers(values: Any) -> Any:
    import tensorflow as tf

    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def records(train: int, test: int, links: int, **form: Any) -> Callable[[str], Switches]:
    """Returns the function that makes a model's data.

    Args:
        train: Records in a training file.
        test: Records in the test file.
        links: Names of the training file; each is read as a file of its own.
        **form: As `_write_records`.
    """

    def prepare(directory: str) -> Switches:
        for part, count in (("train", train), ("test", test)):
            os.makedirs(os.path.join(directory, part))
            first = os.path.join(directory, part, "part-000.tfrecord")
            _write_records(first, count, **form)
            for number in range(1, links if part == "train" else 1):
                os.link(first, os.path.join(directory, part, "part-%03d.tfrecord" % number))
        # One process is a job of one rank, as the original's launcher would say.
        return {"DLRM_CRITEO_DATA_PATH": directory, "TRAIN_RANK_SIZE": "1",
                "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}

    return prepare


_CLICKS = {"lines": 1024, "sparse": 26, "dense": 13, "labels": 1, "whole": False}
_LINES = {"lines": 1, "sparse": 26, "dense": 13, "labels": 1, "whole": True}
_CUT = (r"(?m)^(    train_steps = )\d+", r"\g<1>10")

PROGRAMS = {
    "little_demo": Program(["little_demo", "demo/little_demo"], "main.py", prepare_demo,
                           little_demo_runs),
    "little_demo_estimator": Program(
        ["little_demo_estimator", "demo/little_demo_estimator"], "main.py", prepare_demo,
        little_demo_estimator_runs),
    "mmoe": Program(["mmoe"], "main_mxrec.py", records(
        352, 320, 1, lines=1, sparse=29, dense=11, labels=2, whole=False),
        model_runs("mmoe", None, "Test auc income")),
    "WideDeep": Program(
        ["WideDeep", "WideDeep/model"], "main_mxrec.py", records(4096, 8192, 22, **_LINES),
        model_runs("WideDeep", _CUT, "Test auc"), records(4096, 8192, 1122, **_LINES)),
    "DCNv2": Program(["DCNv2"], "main_mxrec.py", records(8, 16, 4, **_CLICKS),
                     model_runs("DCNv2", _CUT, "Test auc")),
    "dlrm": Program(["dlrm", "dlrm/model"], "main_mxrec.py", records(8, 16, 4, **_CLICKS),
                    model_runs("dlrm", _CUT, "Test auc")),
}  # type: Dict[str, Program]


# Running -----------------------------------------------------------------------------------------


def find_program(directory: str, name: str) -> Optional[str]:
    """Returns the directory of a program, None if it is not there."""
    for place in PROGRAMS[name].places:
        found = os.path.join(directory, place)
        if os.path.isfile(os.path.join(found, PROGRAMS[name].main)):
            return found
    return None


def run_program(python: str, where: str, run: Run, data: Switches, timeout: int) -> str:
    """Runs a program in a directory and returns the outcome."""
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", PYTHONDONTWRITEBYTECODE="1")
    environment.update(data)
    environment.update(run.switches)
    with open(os.path.join(where, "out.log"), "w") as log:
        child = subprocess.Popen(
            [python, "-W", "ignore", PROGRAMS[run.program].main], cwd=where, env=environment,
            stdout=log, stderr=subprocess.STDOUT)
        end, bytes_of_rows = time.time() + timeout, 0
        while child.poll() is None:
            if time.time() > end:
                child.kill()
                child.wait()
                return "FAILED: no end after {} s".format(timeout)
            if run.spills:
                bytes_of_rows = max(bytes_of_rows, open_bytes(child.pid, where))
            time.sleep(0.05)
        code = child.returncode
    with open(os.path.join(where, "out.log"), errors="replace") as log:
        text = log.read()
    result = outcome(run, code, text)
    if result == "end" and run.spills and not bytes_of_rows:
        return "FAILED: no row went to disk"
    return result


def open_bytes(process: int, where: str) -> int:
    """Returns the bytes of the files of rows that a process has open. They have no names."""
    found = 0
    inside = os.path.join(os.path.realpath(where), ROWS) + os.sep
    opened = "/proc/{}/fd".format(process)
    try:
        for name in os.listdir(opened):
            path = os.path.join(opened, name)
            try:
                if os.readlink(path).startswith(inside):
                    found += os.stat(path).st_size
            except FileNotFoundError:
                pass  # It was closed.
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        pass  # It has ended.
    return found


def outcome(run: Run, code: int, text: str) -> str:
    """Tells how a run went from its exit code and its log."""
    last = (text.strip().splitlines() or ["no output"])[-1]
    if code != 0:
        # TensorFlow prints where an op was made behind its error.
        last = (re.findall(r"(?m)^[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b.*", text) or [last])[-1]
    absent = re.search(r"ModuleNotFoundError: No module named '(sklearn|easydict|mpi4py|pandas)",
                       text)
    if absent:
        return "absent: " + absent.group(1)
    if run.refusal is not None:
        if code != 0 and re.search(run.refusal, last):
            return "refused"
        return "FAILED: not refused: " + last
    if code != 0 or LAST_LINE not in last:
        return "FAILED: " + last
    if run.evidence is not None and not re.search(run.evidence, text):
        return "FAILED: the log has no " + run.evidence
    return "end"


def describe(run: Run) -> str:
    """Returns the switches of a run in one line."""
    parts = ["{}={}".format(name, value) for name, value in sorted(run.switches.items())
             if not (name.startswith(("USE_", "ENABLE_")) and value == "0")]
    if run.is_whole:
        parts.append("(whole, up to an evaluation)")
    if run.spills:
        parts.append("(a tenth of the memory for rows, in the copy)")
    elif run.cut is not None:
        parts.append("(train_steps cut to 10 in the copy, to reach the evaluation)")
    return " ".join(parts)


def copy_of(source: str, where: str, run: Run) -> None:
    """Copies a program to where it runs."""
    shutil.copytree(source, where, ignore=shutil.ignore_patterns("__pycache__"))
    if run.cut is not None:
        main = os.path.join(where, PROGRAMS[run.program].main)
        with open(main, encoding="utf-8") as file:
            text = file.read()
        changed = re.sub(run.cut[0], run.cut[1], text)
        if changed == text:
            raise SystemExit("{} has no line {!r}".format(main, run.cut[0]))
        with open(main, "w", encoding="utf-8") as file:
            file.write(changed)


def runs_of(name: str, options: argparse.Namespace) -> List[Run]:
    """Returns the runs of a program that the options ask for."""
    runs = PROGRAMS[name].runs(options.full)
    if options.long and PROGRAMS[name].prepare_whole is not None:
        runs.append(Run(name, _model_switches(), evidence="Test auc", is_whole=True))
    return chosen(runs, options.match)


def chosen(runs: List[Run], pattern: str) -> List[Run]:
    """Returns the runs whose description a pattern finds, and those that they continue."""
    kept = [bool(re.search(pattern, describe(run))) for run in runs]
    for place in range(len(runs) - 1, 0, -1):
        if kept[place] and runs[place].continues:
            kept[place - 1] = True
    return [run for run, is_kept in zip(runs, kept) if is_kept]


def make_data(name: str, is_whole: bool, base: str) -> Switches:
    """Makes a program's data below its directory of work; returns further environment variables."""
    program = PROGRAMS[name]
    directory = os.path.join(base, "data-whole" if is_whole else "data")
    os.makedirs(directory)
    prepare = program.prepare_whole if is_whole else program.prepare
    return prepare(directory)


def run_all(options: argparse.Namespace, work: str) -> int:
    """Runs what lies in the directory; returns the number of failures."""
    names = [name for name in PROGRAMS if options.only in (None, name)
             and find_program(options.directory, name)]
    if not names:
        raise SystemExit("{} holds none of {}".format(options.directory, ", ".join(PROGRAMS)))
    failures = 0
    for name in names:
        source = find_program(options.directory, name)
        runs = runs_of(name, options)
        data = {}  # type: Dict[bool, Switches]
        base = os.path.join(work, name)
        where = ""
        for number, run in enumerate(runs):
            if options.list:
                print("| {} | {} |".format(name, describe(run)))
                continue
            if run.is_whole not in data:
                data[run.is_whole] = make_data(name, run.is_whole, base)
            if not run.continues:
                where = os.path.join(base, "%03d" % number)
                copy_of(source, where, run)
                prepared = os.path.join(base, "data", "data.dat")
                if os.path.isfile(prepared):
                    os.link(prepared, os.path.join(where, "data.dat"))
            began = time.time()
            result = run_program(options.python, where, run, data[run.is_whole],
                                 options.timeout)
            failures += result.startswith("FAILED")
            print("| {} | {} | {} | {:.0f} s |".format(name, describe(run), result,
                                                       time.time() - began), flush=True)
    return failures


def main() -> int:
    """Reads the arguments and runs the programs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS, prog="scripts/originals")
    parser.add_argument("directory", metavar="DIR", help="where the programs lie")
    parser.add_argument("--only", choices=sorted(PROGRAMS), help="run one program")
    parser.add_argument("--match", default="", metavar="PATTERN",
                        help="run the rows whose switches this regular expression finds, and what "
                             "they continue")
    parser.add_argument("--full", action="store_true", help="every combination of switches")
    parser.add_argument("--long", action="store_true",
                        help="WideDeep unchanged up to its evaluation as well")
    parser.add_argument("--list", action="store_true", help="print the runs without running them")
    parser.add_argument("--work", help="where programs and data are copied to; kept at the end")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs them")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds for one run")
    options = parser.parse_args()
    print("| program | switches | outcome | time |\n|---|---|---|---|", flush=True)
    if options.work:
        os.makedirs(options.work, exist_ok=True)
        return 1 if run_all(options, os.path.abspath(options.work)) else 0
    with tempfile.TemporaryDirectory(prefix="originals-") as work:
        return 1 if run_all(options, work) else 0


if __name__ == "__main__":
    sys.exit(main())
