"""Writes the table of docs/compatibility.md from the results of tests/matrix/run.py.

A cell is `ok`, `ok` with a footnote where the rows are not the bits of the reference, or a
footnote that says why the version lacks the feature, or `failed`.
"""

import argparse
import json
import os
import sys

BEGIN = "<!-- begin: made by scripts/stress matrix -->"
END = "<!-- end: made by scripts/stress matrix -->"
# The column whose digests the others are compared with.
REFERENCE = "1.15.5:3.7"
GRAPH_ROW = "the rows above with `tf.Graph().as_default()` alone, the behaviour of 2.x left on"


def main():
    """Runs the command; the exit code is 1 if a column is missing or has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", required=True, help="the directory of the results")
    parser.add_argument("--columns", nargs="+", required=True, help="TensorFlow:Python")
    parser.add_argument("page", help="the page with the two marker lines")
    arguments = parser.parse_args()
    results, graph = {}, {}
    for column in arguments.columns:
        name = os.path.join(arguments.results, "{}-py{}".format(*column.split(":")))
        for kind, ending in ((results, ".json"), (graph, "-graph.json")):
            if os.path.exists(name + ending):
                with open(name + ending) as file:
                    kind[column] = json.load(file)
    absent = [column for column in arguments.columns if column not in results]
    if absent:
        print("the table is not written: there are no results of {}".format(", ".join(absent)))
        return 0
    table, failed = render(arguments.columns, results, graph)
    with open(arguments.page, encoding="ascii") as file:
        text = file.read()
    before, _, rest = text.partition(BEGIN + "\n")
    _, _, after = rest.partition(END + "\n")
    with open(arguments.page, "w", encoding="ascii") as file:
        file.write(before + BEGIN + "\n\n" + table + "\n" + END + "\n" + after)
    print("wrote {}{}".format(arguments.page, ", with failures" if failed else ""))
    return 1 if failed else 0


def render(columns, results, graph):
    """Returns the table as Markdown, and whether a feature has failed."""
    features = {column: {one["title"]: one for one in results[column]["features"]}
                for column in columns}
    notes = []
    failed = False

    def cell(column, title):
        nonlocal failed
        one = features[column].get(title)
        if one is None:
            failed = True
            return "not tried"
        if one["state"] == "ok":
            expected = features.get(REFERENCE, {}).get(title, {}).get("digest")
            same = expected is None or one["digest"] == expected
            return "ok" if same else "ok " + note(notes, "other bits than on " + REFERENCE.replace(
                ":", " with Python "))
        failed = failed or one["state"] == "failed"
        return "{} {}".format("no" if one["state"] == "lacking" else "failed",
                              note(notes, one["reason"]))

    lines = ["| | " + " | ".join("{} / {}".format(*column.split(":")) for column in columns) + " |",
             "|---" * (len(columns) + 1) + "|"]
    for title in [one["title"] for one in results[columns[-1]]["features"]]:
        lines.append("| {} | {} |".format(
            title, " | ".join(cell(column, title) for column in columns)))
    row = []
    for column in columns:
        if column.startswith("1."):
            row.append("no " + note(notes, "1.15 has graph mode alone"))
            continue
        tried = graph.get(column, {"features": []})["features"]
        bad = [one["title"] for one in tried if one["state"] == "failed" or
               one.get("digest") != features[column].get(one["title"], {}).get("digest")]
        failed = failed or bool(bad) or not tried
        row.append("not tried" if not tried else
                   "ok" if not bad else "failed " + note(notes, ", ".join(bad)))
    lines.append("| {} | {} |".format(GRAPH_ROW, " | ".join(row)))
    lines.append("")
    for number, text in enumerate(notes, 1):
        lines.append("{}. {}".format(number, _ascii(text)))
    return "\n".join(lines) + "\n", failed


def note(notes, text):
    """Returns the mark of a footnote, which is added if it is new."""
    if text not in notes:
        notes.append(text)
    return "({})".format(notes.index(text) + 1)


def _ascii(text):
    return text.encode("ascii", "replace").decode("ascii").replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
