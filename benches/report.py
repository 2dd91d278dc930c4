"""Turns figures (JSON lines) into the record of a run: one table as JSON, Markdown and a plot."""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys

# What stands beside the engine's figures; its lines carry the rest.
ENGINE = {
    "A1 u e": "lease + embed",
    "A1 z e": "lease + embed",
    "A2": "",
    "A3": "",
    "A4": "all rows in use",
    "A5": "a training lookup",
    "P6": "prefetched copy of known rows",
    "P7": "read-modify-write of known rows",
    "P8": "one thread",
    "P9": "",
    "P10": "the same at 1M keys",
    "P11": "",
}

BEGIN = "<!-- figures: written by scripts/bench -->"
END = "<!-- end of figures -->"

DEFINITION = (
    "Ratio: for targets written `>=` the peer's time divided by ours (speed), for targets written "
    "`<=` our value divided by the peer's, or our value itself where there is no peer. "
    "Times and ratio are medians; \"of minima\" is the ratio of the fastest repetitions, which a busy "
    "machine disturbs less, and decides nothing. Limit: the time (or rate) in which this machine "
    "would do the same work at places that need no search, measured in the same run; at best: the "
    "ratio that an engine at that limit would have."
)


def main():
    """Reads figures, writes the record, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", nargs="+", help="JSON lines to read, a file for each run")
    parser.add_argument("--out", help="directory of the record")
    parser.add_argument("--name", help="stem of the files; default: date and commit")
    parser.add_argument("--short", action="store_true", help="mark as no measurement")
    parser.add_argument("--commit", help="what was measured; default: the checkout as it is now")
    parser.add_argument("--page", help="Markdown page whose block of figures is replaced")
    parser.add_argument("--print-commit", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.print_commit:
        print(commit())
        return 0
    if not (options.figures and options.out):
        parser.error("--figures and --out are needed")
    runs = []
    for path in options.figures:
        with open(path) as lines:
            runs.append(joined([json.loads(line) for line in lines if line.strip()]))
    figures = merged(runs)
    if not figures:
        print("no figures in the input", file=sys.stderr)
        return 1
    figures.sort(key=lambda item: order(item["id"]))
    record = {
        "date": datetime.datetime.utcnow().strftime("%Y-%m-%d %H:%M UTC"),
        "commit": options.commit or commit(),
        "measurement": not options.short,
        "machine": machine(),
        "versions": versions(),
        "figures": figures,
    }
    name = options.name or "%s-%s" % (record["date"][:10], record["commit"].rstrip("+"))
    os.makedirs(options.out, exist_ok=True)
    stem = os.path.join(options.out, name)
    text = markdown(record, name)
    with open(stem + ".json", "w") as out:
        json.dump(record, out, indent=1, sort_keys=True)
        out.write("\n")
    with open(stem + ".md", "w") as out:
        out.write(text)
    plot(record, stem + ".png")
    if options.page:
        replace_block(options.page, markdown(record, name, os.path.dirname(options.page), options.out))
    print(text)
    print("written: %s.{json,md,png}" % os.path.relpath(stem))
    return 0


def joined(lines):
    """Complete figures of lines, each with the limit that a line of the engine's bench tells of it."""
    limits = {(line["limit_of"], line["what"]): line for line in lines if "limit_of" in line}
    figures = [complete(line) for line in lines if "id" in line]
    for item in figures:
        found = limits.get((item["id"], item["what"]))
        if not found:
            continue
        item.update((key, value) for key, value in found.items() if key.startswith("limit_"))
        item.pop("limit_of", None)
        item.update(limit=found["limit"], at_best=found["at_best"])
        if item["unit"] == "M/s":
            item["limit_ratio"] = round(found["limit"] / item["ours"], 3)
        else:
            item["limit_ratio"] = round(item["ours"] / found["limit"], 3)
            item["limit_gbs"] = round(found["limit_bytes"] / found["limit"] / 1e6, 2)
    return figures


def merged(runs):
    """Figures of several runs as one of each: the run with the median ratio, and the range of all."""
    found = {}
    for figures in runs:
        for item in figures:
            found.setdefault((item["id"], item["what"]), []).append(item)
    result = []
    for items in found.values():
        items.sort(key=lambda item: item["ratio"])
        # Of an even number the worse of the two in the middle.
        middle = (len(items) - 1) // 2 if items[0]["at_least"] else len(items) // 2
        chosen = dict(items[middle])
        if len(runs) > 1:
            chosen["ratio_range"] = [items[0]["ratio"], items[-1]["ratio"]]
            chosen["runs"] = len(items)
        result.append(chosen)
    return result


def complete(item):
    """Fills what a line of the engine's bench leaves out, so that every line has the same fields."""
    words = item["what"]
    units = (("rows a GB", "rows"), ("bytes", "bytes"), ("million", "M/s"))
    unit = next((unit for word, unit in units if word in words), "ms")
    filled = {"peer": None, "unit": unit, "peer_name": ENGINE.get(item["id"], "")}
    filled["at_least"] = (item["ratio"] >= item["target"]) == item["met"]
    filled.update(item)
    return filled


def order(number):
    """Sort key of a target's number: P2 before P10 before A1 before AD1 before H1, the rest as text."""
    found = re.match(r"(AD|[APH])(\d+)(.*)", number)
    if not found:
        return (4, 0, number)
    return (("P", "A", "AD", "H").index(found.group(1)), int(found.group(2)), found.group(3))


def machine():
    """Facts of the machine that a speed depends on; nothing that identifies it."""
    facts = {"cores": os.cpu_count(), "cpu": platform.processor() or "unknown"}
    with open("/proc/cpuinfo") as lines:
        text = lines.read()
    model = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = set((re.search(r"^flags\s*: (.*)$", text, re.M) or [None, ""])[1].split())
    facts["cpu"] = model.group(1) if model else facts["cpu"]
    facts["vectors"] = " ".join(f for f in ("avx2", "fma", "avx512f") if f in flags)
    with open("/proc/meminfo") as lines:
        total = re.search(r"MemTotal:\s+(\d+) kB", lines.read())
    facts["ram_gib"] = round(int(total.group(1)) / 2.0 ** 20, 1)
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as lines:
            facts["huge_pages"] = re.search(r"\[(\w+)\]", lines.read()).group(1)
    except (OSError, AttributeError):
        facts["huge_pages"] = "unknown"
    facts["load_at_end"] = round(os.getloadavg()[1], 2)
    return facts


def versions():
    """Versions of what took part."""
    import numpy
    import tensorflow

    return {
        "python": platform.python_version(),
        "tensorflow": tensorflow.__version__,
        "numpy": numpy.__version__,
        "rustc": output(["rustc", "--version"]).replace("rustc ", ""),
    }


def commit():
    """Short hash of the checkout, with "+" when tracked code differs from it."""
    here = os.path.dirname(os.path.abspath(__file__))
    number = output(["git", "-C", here, "rev-parse", "--short", "HEAD"]) or "unknown"
    changed = output(["git", "-C", here, "status", "--porcelain", "--untracked-files=no"])
    return number + ("+" if changed else "")


def output(command):
    """First line a command prints, or nothing when it cannot be run."""
    try:
        text = subprocess.check_output(command, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return text.decode().strip().split("\n")[0]


def number_text(value, unit):
    """A value with as many digits as it carries."""
    if value is None:
        return "-"
    if unit == "bytes" and value >= 1e6:
        return "%.0f MB" % (value / 1e6)
    return "%.3g %s" % (value, unit) if value < 1000 else "%.0f %s" % (value, unit)


def replace_block(page, text):
    """Puts `text` between the two marks of a page, one heading level lower and without its title."""
    with open(page) as lines:
        old = lines.read()
    before, _, rest = old.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError("%s has no block between '%s' and '%s'" % (page, BEGIN, END))
    title, _, body = text.partition("\n")
    body = "Measured %s.\n%s" % (title.replace("# Speed, ", ""), body)
    with open(page, "w") as out:
        out.write(before + BEGIN + "\n\n" + body + "\n" + END + after)


def ratio_text(item):
    """The ratio; of several runs the median and the range."""
    if "ratio_range" not in item:
        return "%.2f" % item["ratio"]
    return "%.2f (%.2f to %.2f)" % (item["ratio"], *item["ratio_range"])


def at_best(item):
    """The ratio that an engine at the limit would have, and whether that meets the target."""
    if "at_best" not in item:
        return "-"
    value, target = item["at_best"], item["target"]
    allowed = value >= target if item["at_least"] else value <= target
    return "%.2f" % value if allowed else "%.2f, **forbids it**" % value


def markdown(record, name, page_directory="", picture_directory=""):
    """The record as a Markdown page, which shows the plot by its path from where the page lies."""
    facts, used = record["machine"], record["versions"]
    lines = ["# Speed, %s, commit %s" % (record["date"], record["commit"]), ""]
    if not record["measurement"]:
        lines += ["**Short form: small sizes, few repetitions. Not a measurement.**", ""]
    lines += [
        "%s, %s cores (%s), %s GiB RAM, transparent huge pages: %s; load average at the end %s."
        % (
            facts["cpu"],
            facts["cores"],
            facts["vectors"],
            facts["ram_gib"],
            facts["huge_pages"],
            facts["load_at_end"],
        ),
        "TensorFlow %s, Python %s, rustc %s."
        % (used["tensorflow"], used["python"], used["rustc"]),
        DEFINITION,
        "",
        "| # | what | beside | ours | peer | ratio | of minima | target | | limit | ours/limit | at best |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for item in record["figures"]:
        lines.append(
            "| %s | %s | %s | %s | %s | %s | %s | %s %g | %s | %s | %s | %s |"
            % (
                item["id"],
                item["what"],
                item["peer_name"],
                number_text(item["ours"], item["unit"]),
                number_text(item["peer"], item["unit"]),
                ratio_text(item),
                "%.2f" % item["best_ratio"] if "best_ratio" in item else "-",
                ">=" if item["at_least"] else "<=",
                item["target"],
                "met" if item["met"] else "**not met**",
                number_text(item.get("limit"), item["unit"]),
                "%.2f" % item["limit_ratio"] if "limit" in item else "-",
                at_best(item),
            )
        )
    runs = max(item.get("runs", 1) for item in record["figures"])
    if runs > 1:
        lines += ["", "%d runs: the one with the median ratio, and the range of all." % runs]
    met = sum(1 for item in record["figures"] if item["met"])
    lines += ["", "%d of %d met." % (met, len(record["figures"])), ""]
    picture = os.path.relpath(os.path.join(picture_directory, name), page_directory or ".")
    lines += ["![ratio and target of every figure](%s.png)" % picture, ""]
    return "\n".join(lines)


def plot(record, path):
    """Ratios beside their targets, speeds (more is better) above times (less is better)."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter

    groups = [
        ("speed, times the peer's or else the target: right of the mark is better", True),
        ("cost, times the peer's or else the limit: left of the mark is better", False),
    ]
    groups = [
        (title, [item for item in record["figures"] if item["at_least"] == side])
        for title, side in groups
    ]
    groups = [group for group in groups if group[1]]
    rows = [len(group[1]) + 1.5 for group in groups]
    figure, axes = pyplot.subplots(
        len(groups), 1, squeeze=False, figsize=(9.5, 0.36 * sum(rows) + 1.2),
        gridspec_kw={"height_ratios": rows},
    )
    for axis, (title, items) in zip(axes[:, 0], groups):
        places = list(range(len(items)))[::-1]
        colors = ["#2a7f62" if item["met"] else "#c0504d" for item in items]
        bars = [_bar(item) for item in items]
        axis.barh(places, [value for value, _ in bars], color=colors, height=0.62, left=0)
        for place, item, (value, target) in zip(places, items, bars):
            axis.plot([target] * 2, [place - 0.42, place + 0.42], color="black", lw=2)
            if "at_best" in item and item["peer"] is not None:
                axis.plot([item["at_best"]], [place], marker="D", color="#444444", ms=5)
            axis.annotate(
                "%.3g" % item["ratio"],
                (max(value, target), place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        axis.set_xscale("log")
        values = [v for bar in bars for v in bar if v > 0]
        axis.set_xlim(max(0.05, min(0.5, min(values) * 0.7)), max(values) * 1.6)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "%g" % value))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.axvline(1.0, color="gray", lw=0.8, ls=":")
        axis.set_yticks(places)
        axis.set_yticklabels(["%s  %s" % (item["id"], item["what"]) for item in items], fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        axis.grid(axis="x", which="both", lw=0.3, alpha=0.6)
        axis.set_axisbelow(True)
    note = "" if record["measurement"] else " - SHORT FORM, NOT A MEASUREMENT"
    figure.suptitle(
        "%s, %d cores, commit %s, %s%s\nblack mark: target; diamond: at the limit; green: met, red: not met"
        % (
            record["machine"]["cpu"],
            record["machine"]["cores"],
            record["commit"],
            record["date"][:10],
            note,
        ),
        fontsize=9,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=110)


def _bar(item):
    """The length of a figure's bar and the place of its mark; one without a peer is drawn in units of its target."""
    if item["peer"] is None:
        return item["ratio"] / item["target"], 1.0
    return item["ratio"], item["target"]


if __name__ == "__main__":
    sys.exit(main())
