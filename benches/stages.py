"""Where the time of a step goes: the ops of traced steps, by what they do, as stacked bars.

Of P17, P18, P19 and P24 (Zipf ids) it trains four sides from pipelines of their own: the peer, ours
with a lookup a table, ours looked up by one op, and the first of these with its graph modified. A
bar is the sum of the times of a step's ops, which run on several threads; the mark beside it is how
long an untraced step took.
"""

import argparse
import json
import os
import sys
import time
import warnings

import numpy as np

from session import traced

TRACED = 12
UNTRACED = 30
BEFORE = 12

# From the bottom of a bar to its top.
COLORS = {
    traced.PIPELINE: "#e9a3a0",
    traced.KEYS: "#c0504d",
    traced.ROWS: "#2a7f62",
    traced.LAYERS: "#7f8c9b",
    traced.SUMS: "#d9a441",
    traced.UPDATES: "#33608c",
    traced.OTHER: "#d4d8dd",
}


def main():
    """Traces all cases and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", help="PNG to write; the numbers go to a file .json beside it")
    parser.add_argument("--short", action="store_true", help="small sizes; measures nothing")
    parser.add_argument("--draw", help="draw the numbers of this JSON file again, and trace nothing")
    options = parser.parse_args()
    if options.draw:
        with open(options.draw) as file:
            found = json.load(file)
    else:
        found = {"short": options.short, "cases": all_cases(options.short)}
        with open(os.path.splitext(options.picture)[0] + ".json", "w") as file:
            json.dump(found, file, indent=1, sort_keys=True)
            file.write("\n")
    draw(found, options.picture)
    print("written: %s" % options.picture)
    return 0


def all_cases(short):
    """For each case its sides: dicts of name, wall (ms) and the milliseconds of each stage."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    from session import staged

    cases = []
    for title, make, arrays in staged.cases(short):
        sides = []
        for name, kind in staged.KINDS:
            side = make(kind)
            side.start(arrays)
            sides.append(dict(measured(side), name=name))
            side.session.close()
            print("%-28s %-24s step %7.2f ms, ops %7.2f ms" % (
                title, name, sides[-1]["wall"], sum(sides[-1]["stages"].values())), flush=True)
        cases.append({"title": title, "sides": sides})
    return cases


def measured(side):
    """The median step of a side: its wall time untraced, its stages traced, in milliseconds."""
    from mx_rec.graph.timeline import Recording

    for _ in range(BEFORE):
        side.step()
    walls = []
    for _ in range(UNTRACED):
        begin = time.perf_counter()
        side.step()
        walls.append((time.perf_counter() - begin) * 1e3)
    traced.run(side)
    with Recording() as recording:
        steps = [traced.run(side) for _ in range(TRACED)]
    sums = [traced.stages_of(step) for step in steps]
    stages = {name: float(np.median([one[name] for one in sums])) for name in traced.STAGES}
    ahead = [one.duration for one in recording.spans if one.op == "MxRecPrepare"]
    stages[traced.PIPELINE] = sum(ahead) / 1e3 / TRACED
    stages = {name: round(value, 4) for name, value in stages.items()}
    return {"wall": round(float(np.median(walls)), 4), "stages": stages}


def draw(found, path):
    """One group of bars for each case, a bar for each side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    cases = found["cases"]
    figure, axes = pyplot.subplots(1, len(cases), figsize=(2.9 * len(cases) + 0.6, 4.6))
    for axis, case in zip(np.atleast_1d(axes), cases):
        for place, side in enumerate(case["sides"]):
            bottom = 0.0
            for name, color in COLORS.items():
                height = side["stages"][name]
                axis.bar(place, height, 0.62, bottom=bottom, color=color)
                bottom += height
            axis.plot([place - 0.42, place + 0.42], [side["wall"]] * 2, color="black", lw=2)
        axis.set_xticks(range(len(case["sides"])))
        axis.set_xticklabels([side["name"] for side in case["sides"]], fontsize=8, rotation=30,
                             ha="right")
        axis.set_title(case["title"], fontsize=9)
        axis.grid(axis="y", lw=0.3, alpha=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", labelsize=8)
    np.atleast_1d(axes)[0].set_ylabel("milliseconds of ops, all threads", fontsize=8)
    patches = [Patch(color=color, label=name) for name, color in COLORS.items()]
    figure.legend(handles=patches, loc="lower center", ncol=4, fontsize=7.5, frameon=False)
    note = " - SHORT FORM, NOT A MEASUREMENT" if found["short"] else ""
    figure.suptitle("Time of a step by stage; black mark: how long an untraced step took" + note,
                    fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 0.96))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
