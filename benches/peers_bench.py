"""P20 to P23: ours beside TFRA and FBGEMM, each in a Python and a process of its own.

Both processes of a figure are alive together and are asked for one repetition in turn, so that
noise hits both; the one that is not asked waits for a line of standard input.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

from peers import work
from session import limits, measure, workload

# Repetitions of a side in a row, those before them that are not timed, and how often each side comes.
BLOCK, BEFORE, BLOCKS = 20, 5, 10

HERE = os.path.dirname(os.path.abspath(__file__))
TFRA = "TFRA 0.8.1, its own process"
FBGEMM = "FBGEMM's CPU lookup of arrays, its own process"

# (figure, what, case of ours, peer, case of the peer, target, largest difference of values)
FIGURES = [
    ("P20", "bags of 20 summed, 4 tables, evaluation", "bags", "fbgemm", "bags", 0.5, 1e-5),
    ("P20 t", "bags of 20 summed, 4 tables, training lookup", "bags-train", "fbgemm", "bags", 0.5,
     1e-5),
    ("P21", "evaluation lookup, 80% of ids from 20% of keys", "lookup", "tfra", "lookup", 6.0, 0.0),
]
for _name, _target in (("sgd", 4.0), ("adagrad", 8.0), ("adam", 12.0)):
    FIGURES.append(("P22 " + _name, "step of known ids, " + _name, "known-" + _name, "tfra",
                    "known-" + _name, _target, None))
for _name in ("sgd", "adagrad", "adam"):
    FIGURES.append(("P23 " + _name, "step of new ids, " + _name, "new-" + _name, "tfra",
                    "new-" + _name, 4.0, None))


class Side:
    """A process that serves repetitions."""

    def __init__(self, python, script, case, short):
        command = [python, os.path.join(HERE, "peers", script), case] + ["--short"] * short
        environment = dict(os.environ, OMP_WAIT_POLICY="passive", TF_CPP_MIN_LOG_LEVEL="3")
        self._name = "%s %s" % (script, case)
        # The libraries say much there: it is shown only if the process fails.
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env=environment, universal_newlines=True,
        )
        self._read()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith(work.PREFIX):
                return line[len(work.PREFIX) :].strip()
        code = self._process.wait()
        self._errors.seek(0)
        said = "".join(self._errors.readlines()[-15:])
        raise RuntimeError("%s ended with code %s:\n%s" % (self._name, code, said))

    def _ask(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def step(self, number):
        """Runs a repetition and returns its milliseconds, as that process measured them."""
        return float(self._ask("step %d" % number))

    def floor(self, number):
        """The milliseconds of a repetition without lookup and update."""
        return float(self._ask("floor %d" % number))

    def value(self):
        """What the side computed, for comparison: float64 array."""
        return np.array([float(number) for number in self._ask("value").split()])

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()


def main():
    """Measures what has an environment; the exit code is 0 when all of it ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="file to append figures to")
    parser.add_argument("--tfra", help="Python of an environment with TFRA")
    parser.add_argument("--fbgemm", help="Python of an environment with FBGEMM")
    parser.add_argument("--only", help="comma separated targets, e.g. P21")
    parser.add_argument("--limit-bench", required=True, help="the built example limit_bench")
    parser.add_argument("--short", action="store_true", help="small sizes; not a measurement")
    options = parser.parse_args()
    os.environ[workload.LIMIT_BENCH] = os.path.abspath(options.limit_bench)
    pythons = {"tfra": options.tfra, "fbgemm": options.fbgemm}
    wanted = options.only.split(",") if options.only else ["P20", "P21", "P22", "P23"]
    failed = False
    for figure in FIGURES:
        if figure[0].split()[0] not in wanted:
            continue
        if not pythons[figure[3]]:
            print("%s left out: no environment of %s" % (figure[0], figure[3]), file=sys.stderr)
            continue
        try:
            measure.emit(measured(figure, pythons[figure[3]], options.short), options.json)
        except RuntimeError as error:
            print("%s failed: %s" % (figure[0], error), file=sys.stderr)
            failed = True
    return 1 if failed else 0


def limit_of(case, sizes):
    """The limit of a case of ours."""
    kind, _, rule = case.partition("-")
    rule = "lazy_adam" if rule == "adam" else rule
    if kind == "bags":
        return limits.Limit(
            work.bags(sizes).reshape(sizes.batches, sizes.tables, -1), sizes.bag_rows, sizes.dim,
            "read", bag=sizes.length
        )
    if kind == "lookup":
        return limits.Limit(work.lookups(sizes), sizes.rows, sizes.dim, "read")
    if kind == "known":
        return limits.Limit(
            work.known(sizes), sizes.rows, sizes.dim, "read,update", optimizer=rule
        )
    return limits.Limit(
        work.new(sizes), 2 * sizes.rows, sizes.dim, "fresh,update", optimizer=rule
    )


def measured(figure, python, short):
    """The records of one figure: repetitions in turn and, where ids may come again, many of a side in a
    row."""
    number, what, our_case, peer, peer_case, target, tolerance = figure
    sizes = work.SHORT if short else work.STANDARD
    sides = []
    in_a_row = None
    limit = limit_of(our_case, sizes)
    try:
        sides.append(Side(sys.executable, "ours_side.py", our_case, short))
        sides.append(Side(python, peer + "_side.py", peer_case, short))
        if tolerance is not None:
            measure.agree(number, sides[0].value(), sides[1].value(), tolerance)
        runs = [_own(run) for run in (sides[0].step, sides[1].step, sides[0].floor)] + limit.sides
        # Of new ids each repetition has a batch of its own.
        count = sizes.warmup + sizes.repetitions
        times = measure.interleave(runs, count, sizes.repetitions, sizes.warmup)
        if tolerance is None:
            # The same steps from the same rows: Adam's two forms differ in epsilon's place.
            largest = 2e-3 if number.endswith("adam") else 1e-5
            measure.agree(number, sides[0].value(), sides[1].value(), largest)
        if not our_case.startswith("new"):
            length, before, blocks = (2, 1, 2) if short else (BLOCK, BEFORE, BLOCKS)
            in_a_row = measure.blocks(runs, sizes.batches, blocks, length, before)
    finally:
        for side in sides + [limit]:
            side.close()
    name = TFRA if peer == "tfra" else FBGEMM
    found = [_with_limit(number, what, times, target, name, limit)]
    if in_a_row is not None:
        words = "%s, %d in a row" % (what, length)
        found.append(_with_limit(number + " b", words, in_a_row, target, name, limit))
    return found


def _own(run):
    """A side that has measured its time itself."""
    return lambda number: measure.Measured(run(number))


def _with_limit(number, what, times, target, name, limit):
    item = measure.figure(number, what, times[0], times[1], target, True, name)
    return measure.with_limit(item, limit, times[2], times[3:])


if __name__ == "__main__":
    sys.exit(main())
