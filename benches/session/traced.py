"""Sorts the ops of a traced step by what they do."""

import re

PIPELINE = "key work of later batches (pipeline)"
KEYS = "key work: distinct ids, index"
ROWS = "rows out: lookup, gather, sums of bags"
LAYERS = "layers, loss and their gradients"
SUMS = "gradients of rows: sums of equal ids"
UPDATES = "updates of rows"
OTHER = "all other ops"
STAGES = (PIPELINE, KEYS, ROWS, LAYERS, SUMS, UPDATES, OTHER)

# "[CPU] 2.1MB node = Type(inputs)".
LABEL = re.compile(r".* = ([A-Za-z0-9_>]+)\(")


def stages_of(step):
    """Milliseconds of a traced step's ops by stage."""
    sums = dict.fromkeys(STAGES, 0.0)
    for device in step.step_stats.dev_stats:
        if device.device == "/host:CPU":
            continue
        for node in device.node_stats:
            label = LABEL.match(node.timeline_label)
            taken = node.op_end_rel_micros - node.op_start_rel_micros
            sums[stage(node.node_name, label.group(1) if label else "")] += taken / 1e3
    return sums


def stage(name, op):
    """The stage of an op.

    Args:
        name: of the node.
        op: its type.
    """
    if op.startswith("MxRec"):
        if re.match("MxRec(IdOffset|Claim|Prepare|Distinct)", op):
            return KEYS
        if op == "MxRecUpdate":
            return UPDATES
        return SUMS if op.startswith("MxRecReduce") else ROWS
    if "/update_" in name or name.startswith("update_") or "LazyAdam" in name:
        return SUMS if op in ("Unique", "UnsortedSegmentSum") else UPDATES
    if op in ("IteratorGetNext", "_Arg", "_Retval", "NoOp", "Const", "VariableV2", "VarHandleOp"):
        return OTHER
    if op.startswith(("Gather", "ResourceGather", "Concat", "ConcatV2")):
        return LAYERS if "gradients" in name else ROWS
    if name.startswith("bag_sum"):
        return ROWS
    if "gradients" in name and (op == "Tile" or "bag_sum" in name):
        return SUMS
    if op in ("Unpack", "StridedSlice", "Split", "ExpandDims", "Shape", "Reshape", "Identity"):
        return OTHER
    return LAYERS


def run(side):
    """One step of a side with all its ops traced: what `stages_of` takes.

    The first one of a session prepares TensorFlow's tracing, and tells nothing.
    """
    import tensorflow as tf

    step = tf.compat.v1.RunMetadata()
    level = tf.compat.v1.RunOptions.FULL_TRACE
    side.step(tf.compat.v1.RunOptions(trace_level=level), step)
    return step
