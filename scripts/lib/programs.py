"""Runs public TensorFlow 1.15 programs, unchanged, on their variables and on tables.

    usage: scripts/programs DIR [--only PROGRAM] [--list] [--work DIR] [--python PYTHON]
                            [--timeout SECONDS] [--plot FILE] [--same-start | --limit [TURNS]]
                            [-- OPTIONS OF python -m mx_rec run]

DIR holds any of these programs, each in a directory of its name, as its repository has it:

    EasyRec              github.com/alibaba/EasyRec: deepfm_on_criteo.config, whole (12 GB of
                         memory and of disk on variables), and with a tenth of its buckets,
                         and {din,mmoe}_on_taobao.config
    DeepRec              github.com/DeepRec-AI/DeepRec, or a copy that has modelzoo/: its WDL, DLRM,
                         DeepFM, DSSM, DIN and DIEN on stock TensorFlow (--tf)
    DeepInterestNetwork  github.com/zhougr1993/DeepInterestNetwork: din/train.py
    tensorflow-DeepFM    github.com/ChenglongChen/tensorflow-DeepFM: DeepFM.py
    deeplearning         github.com/yangxudong/deeplearning: DCN
    models               github.com/tensorflow/models of 2018: official/wide_deep/movielens_main.py
    recommenders         github.com/recommenders-team/recommenders: models/wide_deep, xDeepFM
    tf_repos             github.com/lambdaji/tf_repos: deep_ctr/Model_pipeline, its DeepFM, DCN,
                         NFM and DeepMVM
    DeepCTR, DeepMatch   their wheels, in PYTHON: DeepFM of Keras and of Estimators, YoutubeDNN
    TensorFlow Ranking   its wheel, in PYTHON
    LibRecommender       its wheel, in PYTHON: DeepFM, YouTubeRanking and TwoTower on generated data

Nothing is downloaded and no file in DIR is changed: a program is copied to the work directory and
runs there, once as it is and once by `python -m mx_rec run`, on data that is made for it. What is
written for Python 2 goes through 2to3 first. Of each run the table has its losses, steps a second
between the first and the last of them, the most memory, and the bytes of the files that it left.
Below it stands what the program's variables became.

Initial values of tables are other draws than TensorFlow's, so that losses are near each other, not
equal. With --same-start both runs begin at the values of the variables and with one seed
(scripts/lib/same_start.py), without dropout and penalties where these would differ, and lines tell
how far the printed losses go from each other, and how far from those of three more runs, on
variables that start a last bit off to either side.

With --limit a third run has neither lookups nor updates of what would be tables
(scripts/lib/limit.py), and lines tell the medians of a step's time of all three, on the clock and
of the processors, and which part of the limit's speed the tables reach. All three are run TURNS
times (2), one after the other, and the least median counts: others may use the machine.

What the programs need beside TensorFlow and mx_rec has to be in PYTHON (default: that of this
checkout); docs/unchanged-programs.md has the commands. The exit code is 1 if a run failed.
"""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, NamedTuple, Optional

from public_programs import PROGRAMS, Program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAME_START = os.path.join(ROOT, "scripts", "lib", "same_start.py")
LIMIT = os.path.join(ROOT, "scripts", "lib", "limit.py")

# Of --same-start. With fewer it may be by luck that tables go farther, or that they do not.
_NUDGES = ("nudge1", "nudge2", "nudge3")


class Result(NamedTuple):
    """What a run showed.

    Attributes:
        code: Its exit code; None if it took too long.
        losses: Step -> loss.
        rate: Steps a second between the first and the last loss; 0 without two.
        seconds: From start to end.
        memory: The most memory, in bytes.
        disk: Bytes of the files that it left.
        report: What `--report` wrote, None without.
        tail: The last lines of its output.
    """

    code: Optional[int]
    losses: Dict[int, float]
    rate: float
    seconds: float
    memory: int
    disk: int
    report: Optional[Dict]
    tail: List[str]


def run(arguments: List[str], folder: str, pattern: str, timeout: float,
        report: str = "") -> Result:
    """Runs a program and watches it.

    Args:
        arguments: Of the process.
        folder: Where it runs.
        pattern: See `Program.loss`.
        timeout: Seconds until it is ended.
        report: The file of `--report`.
    """
    before = {path: os.path.getmtime(path) for path in files_of(folder)}
    paths = [os.path.join(ROOT, "python"), folder, os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in paths if path),
                       TF_CPP_MIN_LOG_LEVEL="2", PYTHONUNBUFFERED="1", PYTHONHASHSEED="0")
    log = os.path.join(folder, "of_this_run.log")
    began = time.time()
    losses, times, tail = {}, [], []  # type: ignore
    process = subprocess.Popen(["timeout", str(int(timeout))] + arguments, cwd=folder,
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               universal_newlines=True, errors="replace")
    with open(log, "w") as file:
        for line in process.stdout or ():
            file.write(line)
            tail = (tail + [line.rstrip()])[-12:]
            found = re.search(pattern, line)
            if found:
                said = found.groupdict()
                step = int(said.get("step", len(losses) + 1))
                losses[step] = float(said["loss"])
                times.append((step, time.time()))
    _, status, usage = os.wait4(process.pid, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    process.returncode = code
    made = [path for path in files_of(folder) if path != log
            and before.get(path) != os.path.getmtime(path)]
    rate = 0.0
    if len(times) > 1:
        # Not from the first loss: the first steps wait for memory and for TensorFlow's own work.
        start = times[len(times) // 4]
        if times[-1][1] > start[1]:
            rate = (times[-1][0] - start[0]) / (times[-1][1] - start[1])
    written = None
    if report and os.path.exists(report):
        with open(report) as file:
            written = json.load(file)
    return Result(None if code == 124 else code, losses, rate, time.time() - began,
                  usage.ru_maxrss * 1024, sum(map(os.path.getsize, made)), written, tail)


def files_of(folder: str) -> List[str]:
    """Returns the paths of all files under a folder."""
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names
            if not name.endswith(".pyc") and os.path.exists(os.path.join(path, name))]


def place(program: Program, source: str, work: str, form: str, python: str) -> str:
    """Copies a program to the work directory; returns where it runs."""
    folder = os.path.join(work, re.sub(r"\W+", "_", program.name) + "_" + form)
    shutil.rmtree(folder, ignore_errors=True)
    if program.folder:
        shutil.copytree(os.path.join(source, program.folder), folder,
                        ignore=shutil.ignore_patterns(".git", "ckpt"))
    inside = os.path.join(folder, program.inside)
    os.makedirs(inside, exist_ok=True)
    for name in program.python2:
        subprocess.check_call([python, "-m", "lib2to3", "-w", "-n", name], cwd=inside,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return inside


def at_ends(losses: Dict[int, float]) -> str:
    """The first and the last loss, as text."""
    steps = sorted(losses)
    return "-" if not steps else "{:.4f} > {:.4f}".format(losses[steps[0]], losses[steps[-1]])


def text_of(program: Program, results: Dict[str, Result]) -> str:
    """The lines of the table for a program."""
    lines = []
    for form, one in results.items():
        ended = "" if one.code == 0 else "  {}".format(
            "took too long" if one.code is None else "FAILED: exit code {}".format(one.code))
        lines.append("{:32} {:10} {:20} {:>9} {:>8.0f} s {:>7.2f} GiB {:>9.1f} MiB{}".format(
            program.name, form, at_ends(one.losses),
            "{:.3g}/s".format(one.rate) if one.rate else "-", one.seconds, one.memory / 2 ** 30,
            one.disk / 2 ** 20, ended))
        if one.code not in (0, None):
            lines += ["    | " + line[:200] for line in one.tail]
    said = results["tables"].report
    variables = said["variables"] if said else []
    kinds = collections.Counter(one["optimizer"] for one in variables if one["table"])
    lines.append("    {} of {} variables were tables: {}; {:,} rows".format(
        sum(kinds.values()), len(variables),
        ", ".join("{} {}".format(*kind) for kind in sorted(kinds.items())) or "none",
        sum(one.get("rows", 0) for one in variables)))
    lines += ["    {} {} stays: {}".format(one["name"], one["shape"], one["reason"])
              for one in variables if not one["table"]]
    return "\n".join(lines)


def made_alike(program: Program, arguments: List[str]) -> List[str]:
    """Changes a program for --same-start in the directory where it runs; returns its arguments."""
    for old, new in program.alike:
        if not old:
            arguments = arguments + [new]
            continue
        with open(arguments[0]) as file:
            text = file.read()
        if old not in text:
            raise ValueError("{} has no '{}'".format(arguments[0], old))
        with open(arguments[0], "w") as file:
            file.write(text.replace(old, new))
    return arguments


def differences(results: Dict[str, Result]) -> str:
    """Lines: how far losses went from those on variables, up to steps that both printed.

    The largest so far: the difference itself goes through zero wherever its sign changes, so that
    one step says nothing.
    """
    forms = [form for form in results if form not in ("variables", "tables")]
    lines = []
    for names, what in ((["tables"], "on tables"),
                        (forms, "on variables that start a last bit off, the farthest of "
                                + str(len(forms)))):
        far = [_farthest(results["variables"].losses, results[form].losses) for form in names]
        steps = sorted(set.intersection(*[set(one) for one in far]))
        shown = ["{}: {:.1e}".format(steps[at], max(one[steps[at]] for one in far))
                 for at in sorted({0, len(steps) // 4, len(steps) // 2, len(steps) - 1}) if steps]
        lines.append("    largest relative difference of losses {}, up to step: {}".format(
            what, ", ".join(shown) or "none to compare"))
    return "\n".join(lines)


def _farthest(before: Dict[int, float], after: Dict[int, float]) -> Dict[int, float]:
    """Returns for each step that both have the largest relative difference so far."""
    found, most = {}, 0.0
    for step in sorted(set(before) & set(after)):
        most = max(most, abs(after[step] - before[step]) / max(abs(before[step]), 1e-30))
        found[step] = most
    return found


def distances(times: Dict[str, Dict[str, float]]) -> str:
    """Lines: what a step takes in each form, and how near tables come to the limit.

    Args:
        times: Of each form what scripts/lib/limit.py wrote.
    """
    lines = []
    for what, words in (("wall", "on the clock"), ("processor", "of processors")):
        each = {form: one[what] for form, one in times.items()}
        lines.append("    a step, ms {}: {}; tables reach {:.2f} of the limit".format(
            words, ", ".join("{} {:.4g}".format(*one) for one in each.items()),
            each["limit"] / each["tables"]))
    return "\n".join(lines)


def plot(measured: Dict[str, Dict[str, Result]], path: str) -> None:
    """Draws speed and memory on tables as multiples of those on variables.

    Args:
        measured: Of each program the runs on "variables" and on "tables". Left out is what has no
            rate of both.
        path: Where the picture goes.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = [(name, both) for name, both in reversed(list(measured.items()))
             if both["variables"].rate and both["tables"].rate]
    figure, sides = pyplot.subplots(1, 2, figsize=(10, 1.4 + 0.34 * len(drawn)), sharey=True)
    values = ([both["tables"].rate / both["variables"].rate for _, both in drawn],
              [both["tables"].memory / both["variables"].memory for _, both in drawn])
    titles = ("steps a second: tables / variables", "most memory: tables / variables")
    for axes, numbers, title in zip(sides, values, titles):
        axes.barh(range(len(drawn)), [one - 1 for one in numbers], left=1, height=0.6,
                  color="#3b6ea5")
        axes.set_xscale("log")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlim(min(numbers + [1]) / 1.6, max(numbers + [1]) * 1.6)
        axes.set_yticks(range(len(drawn)))
        axes.set_yticklabels([name for name, _ in drawn])
        for at, one in enumerate(numbers):
            axes.annotate("{:.3g}".format(one) if one < 9.5 else "{:.0f}".format(one), (one, at),
                          (4 if one >= 1 else -4, 0), textcoords="offset points", va="center",
                          ha="left" if one >= 1 else "right", fontsize=9)
        axes.set_title(title, fontsize=10)
        axes.xaxis.set_major_formatter(pyplot.FuncFormatter(lambda x, _: "{:g}".format(x)))
        axes.xaxis.set_minor_formatter(pyplot.NullFormatter())
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    """Runs what the command line asks for."""
    argv, more = sys.argv[1:], []  # type: ignore
    if "--" in argv:
        argv, more = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="where the programs lie")
    parser.add_argument("--only", action="append", help="a program of the table; repeat it")
    parser.add_argument("--list", action="store_true", help="name the programs that DIR has")
    parser.add_argument("--work", help="where they run (default: a new directory that goes)")
    parser.add_argument("--python", default=sys.executable,
                        help="the interpreter with their packages")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds of a run (1200)")
    parser.add_argument("--plot", metavar="FILE", help="draw speed and memory into a PNG file")
    third = parser.add_mutually_exclusive_group()
    third.add_argument("--same-start", action="store_true",
                       help="compare losses from the same initial values")
    third.add_argument("--limit", type=int, nargs="?", const=2, default=0, metavar="TURNS",
                       help="compare steps with those without lookups and updates of tables")
    options = parser.parse_args(argv)
    there = [one for one in PROGRAMS if (not options.only or one.name in options.only)
             and (not one.folder or os.path.isdir(os.path.join(options.dir, one.folder)))]
    unknown = set(options.only or ()) - {one.name for one in PROGRAMS}
    if unknown or not there:
        parser.error("no such program: {}; there are {}".format(
            ", ".join(sorted(unknown)) or options.dir, ", ".join(one.name for one in PROGRAMS)))
    if options.list:
        print("\n".join(one.name for one in there))
        return 0
    work = os.path.abspath(options.work or tempfile.mkdtemp(prefix="mx_rec_programs_"))
    drawing = os.path.abspath(options.plot) if options.plot else None
    failed, measured = False, {}
    print("{:32} {:10} {:20} {:>9} {:>10} {:>11} {:>13}".format(
        "program", "", "loss", "steps", "whole run", "memory", "files"))
    try:
        for program in there:
            results = {}  # type: Dict[str, Result]
            times = {}  # type: Dict[str, Dict[str, float]]
            for form in ("variables", "tables", "limit") * options.limit \
                    or ("variables", "tables") + _NUDGES * options.same_start:
                inside = place(program, os.path.abspath(options.dir), work, form, options.python)
                os.chdir(inside)
                arguments, report = program.prepare(), os.path.join(work, "report.json")
                took = os.path.join(work, "steps.json")
                for earlier in filter(os.path.exists, (report, took)):
                    os.remove(earlier)
                launch = ["-m", "mx_rec", "run", "--report", report] + program.options + more \
                    if form in ("tables", "limit") else []
                if options.same_start:
                    arguments = made_alike(program, arguments)
                    action = {"variables": "save", "tables": "load"}.get(form, form)
                    launch += [SAME_START, action, os.path.join(work, "start.npz")]
                if options.limit:
                    launch += [LIMIT, "limit" if form == "limit" else "steps", took]
                results[form] = run([options.python] + launch + arguments, inside, program.loss,
                                    options.timeout, report if form == "tables" else "")
                os.chdir(ROOT)
                if results[form].code == 0 and os.path.exists(took):
                    with open(took) as file:
                        now = json.load(file)
                    times[form] = {key: min(value, times.get(form, now)[key])
                                   for key, value in now.items()}
            failed = failed or any(one.code not in (0, None) for one in results.values())
            print(text_of(program, results), flush=True)
            if options.same_start:
                print(differences(results), flush=True)
            if len(times) == 3:
                print(distances(times), flush=True)
            measured[program.name] = results
        if drawing:
            plot(measured, drawing)
    finally:
        os.chdir(ROOT)
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
