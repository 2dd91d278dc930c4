"""Writes a trace of some steps of the graph-modified model (P16), and a picture of it."""

import argparse
import os
import sys
import warnings

STEPS = 3
BEFORE = 12

# Ops by what they do, for the colours of the picture.
KINDS = [
    ("key work of later batches", "#c0504d", ("MxRecPrepare",)),
    ("layers (MatMul, Adam, ...)", "#7f8c9b", ("MatMul", "Adam", "Relu", "Bias", "Concat", "Slice")),
    ("tables: rows and updates", "#2a7f62", ("MxRec",)),
    ("all other ops", "#c9ced6", ("",)),
]


def main():
    """Trains the model and writes the trace of a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="trace to write (JSON, for chrome://tracing)")
    parser.add_argument("--picture", help="PNG to write")
    parser.add_argument("--form", default="z", help="form of P16: u, z, s, d or k")
    parser.add_argument("--short", action="store_true", help="small sizes")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    import tensorflow as tf

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    from mx_rec.graph.timeline import PIPELINE, TRAINING, Recording, make_timeline, write_timeline

    spans, steps = trace(options.form, options.short, Recording)
    write_timeline(options.file, spans, steps)
    print("written: %s" % options.file)
    if options.picture:
        draw(make_timeline(spans, steps), TRAINING, PIPELINE, options.picture)
        print("written: %s" % options.picture)
    return 0


def trace(form, short, recording):
    """(spans, RunMetadata of each step) of a few steps after some others."""
    import tensorflow as tf

    from session import model

    made = model.FORMS[form][0]
    made = made.short() if short else made
    side = model.Side(made, model.AHEAD)
    side.start(model.make_arrays(made))
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    steps = []
    # The first traced step prepares TensorFlow's tracing; it is left out.
    side.step(options, tf.compat.v1.RunMetadata())
    for _ in range(BEFORE):
        side.step()
    with recording() as found:
        for _ in range(STEPS):
            steps.append(tf.compat.v1.RunMetadata())
            side.step(options, steps[-1])
    side.session.close()
    return found.spans, steps


def draw(timeline, training, pipeline, path):
    """Steps above, key work of later batches below, over the same time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    names = {
        event["pid"]: event["args"]["name"]
        for event in timeline["traceEvents"]
        if event["name"] == "process_name"
    }
    found = {training: [], pipeline: []}
    for event in timeline["traceEvents"]:
        # What only waits or hands over is no work: shorter than a tenth of a millisecond.
        if event["ph"] == "X" and names[event["pid"]] in found and event["dur"] >= 100:
            found[names[event["pid"]]].append(event)
    figure, axes = pyplot.subplots(
        2, 1, sharex=True, figsize=(10, 3.6), gridspec_kw={"height_ratios": [3, 1]}
    )
    for axis, (name, events) in zip(axes, found.items()):
        for event in events:
            axis.broken_barh(
                [(event["ts"] / 1e3, event["dur"] / 1e3)],
                (event["tid"] - 0.4, 0.8),
                facecolors=color(event["name"]),
                edgecolor="white",
                linewidth=0.3,
            )
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_yticks([])
        axis.margins(x=0.01)
        axis.invert_yaxis()
    starts = {}
    for event in found[training]:
        step = event["args"]["step"]
        starts[step] = min(starts.get(step, event["ts"]), event["ts"])
    for axis in axes:
        for start in starts.values():
            axis.axvline(start / 1e3, color="black", lw=0.8, ls=":")
    axes[1].set_xlabel("milliseconds; dotted: a step begins", fontsize=8)
    patches = [Patch(color=color_, label=label) for label, color_, _ in KINDS]
    figure.legend(handles=patches, loc="lower center", ncol=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)


def color(op):
    """The colour of an op's kind."""
    return next(color_ for _, color_, parts in KINDS if any(part in op for part in parts))


if __name__ == "__main__":
    sys.exit(main())
