"""One picture in time of training steps and of the key work done ahead of them.

TensorFlow's RunMetadata shows the ops of a step. What input pipelines do it shows only while a
step is traced, among everything else that the process does, and without tables. The plugin records
the runs of its own ops, with the same clock; this module puts both into a file for
chrome://tracing.

    with Recording() as recording:
        for _ in range(3):
            metadata = tf.compat.v1.RunMetadata()
            session.run(train, options=tf.compat.v1.RunOptions(
                trace_level=tf.compat.v1.RunOptions.FULL_TRACE), run_metadata=metadata)
            steps.append(metadata)
    write_timeline("timeline.json", recording.spans, steps)
"""

import ctypes
import json
import re
from types import TracebackType
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type

from mx_rec import plugin
from mx_rec.ops.lookups import PREPARE

TRAINING = "training step"
STEP_OPS = "training step: mx_rec ops"
PIPELINE = "input pipeline (mx_rec)"

# What graph modification puts into input pipelines; the other ops run in steps.
_PIPELINE_OPS = (PREPARE,)
_LABEL = re.compile(r".* = ([A-Za-z0-9_>]+)\(")

# The device under which TensorFlow 1.15 lists what all threads of the process did: ops of steps
# once more, and ops of datasets' functions, as "node:Type".
_HOST = "/host:CPU"
_HOST_OP = re.compile(r"([^:]+):([A-Za-z0-9_>]+)$")


class Span(NamedTuple):
    """One run of an op of the plugin.

    Attributes:
        op: Type of the op.
        table: Name of its table; None if it works on none.
        thread: Number of its thread, from 1.
        start: Microseconds since the Unix epoch.
        duration: Microseconds.
    """

    op: str
    table: Optional[str]
    thread: int
    start: int
    duration: float


class Recording:
    """Records the runs of the plugin's ops in this process while its block runs.

    There is one recording in a process: a second one that begins ends the first.

    Attributes:
        spans: After the block, what was recorded, in the order in which the runs ended.
        dropped: After the block, how many runs there were beyond the 262,144 that are kept.

    Raises:
        ImportError: If the plugin cannot be loaded.
        RuntimeError: If the recording cannot be read.
    """

    def __init__(self) -> None:
        self.spans = []  # type: List[Span]
        self.dropped = 0
        self._library = None  # type: Any

    def __enter__(self) -> "Recording":
        plugin.load()
        self._library = ctypes.CDLL(plugin.plugin_path())
        self._library.mx_rec_trace_start.restype = None
        self._library.mx_rec_trace_start.argtypes = []
        self._library.mx_rec_trace_start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        del kind, error, trace
        answer = json.loads(_stop().decode("utf-8"))
        self.dropped = answer["dropped"]
        self.spans = [Span(**span) for span in answer["spans"]]


def make_timeline(spans: Iterable[Span], steps: Sequence[Any]) -> Dict[str, Any]:
    """Makes one trace of spans and steps.

    Its processes: the ops of the steps, the plugin's ops among them once more with their tables,
    and the ops of input pipelines: the plugin's, and those of datasets' functions that ran while a
    step was traced. Threads of a process are lanes: an op is put on the first one that is free, so
    that what overlaps in time lies in different lanes.

    Args:
        spans: What `Recording` found.
        steps: A RunMetadata of each traced step.

    Returns:
        A dict to be written as JSON, in the trace event format. Times are microseconds, from the
        start of whatever comes first.
    """
    events = []  # type: List[Dict[str, Any]]
    spans = list(spans)
    ahead = [_event(span) for span in spans if span.op in _PIPELINE_OPS]
    ahead += [event for number, step in enumerate(steps) for event in _moved(step, number)]
    inside = [_event(span) for span in spans if span.op not in _PIPELINE_OPS]
    ops = [_op_event(node, device.device, number) for number, step in enumerate(steps)
           for device in step.step_stats.dev_stats if device.device != _HOST
           for node in device.node_stats]
    begin = min([event["ts"] for event in ops + ahead + inside] or [0])
    for number, (name, found) in enumerate(((TRAINING, ops), (STEP_OPS, inside),
                                            (PIPELINE, ahead))):
        for key, value in (("process_name", {"name": name}),
                           ("process_sort_index", {"sort_index": number})):
            events.append({"ph": "M", "pid": number, "name": key, "args": value})
        for event, lane in _lanes(found):
            events.append(dict(event, pid=number, tid=lane, ts=round(event["ts"] - begin, 3)))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_timeline(path: str, spans: Iterable[Span], steps: Sequence[Any]) -> None:
    """Writes the trace of `make_timeline` to a file.

    Args:
        path: The file; one that exists is replaced.
        spans: What `Recording` found.
        steps: A RunMetadata of each traced step.

    Raises:
        OSError: If the file cannot be written.
    """
    with open(path, "w", encoding="utf-8") as file:
        json.dump(make_timeline(spans, steps), file)
        file.write("\n")


def _event(span: Span) -> Dict[str, Any]:
    name = span.op if span.table is None else "{} {}".format(span.op, span.table)
    return {"ph": "X", "cat": "mx_rec", "name": name, "ts": float(span.start),
            "dur": span.duration,
            "args": {"op": span.op, "table": span.table, "thread": span.thread}}


def _op_event(node: Any, device: str, step: int) -> Dict[str, Any]:
    label = _LABEL.match(node.timeline_label)
    return {"ph": "X", "cat": "Op", "name": label.group(1) if label else node.node_name,
            "ts": float(node.all_start_micros), "dur": float(node.all_end_rel_micros),
            "args": {"name": node.node_name, "device": device, "step": step}}


def _moved(step: Any, number: int) -> List[Dict[str, Any]]:
    """Finds the ops of datasets' functions: those of the process that are no nodes of the step."""
    devices = step.step_stats.dev_stats
    own = {node.node_name for device in devices if device.device != _HOST
           for node in device.node_stats}
    events = []
    for device in devices:
        for node in device.node_stats if device.device == _HOST else ():
            op = _HOST_OP.match(node.node_name)
            if op and op.group(1) not in own and op.group(2) not in _PIPELINE_OPS:
                events.append(dict(_op_event(node, _HOST, number), name=op.group(2)))
    return events


def _lanes(events: List[Dict[str, Any]]) -> List[Tuple[Dict[str, Any], int]]:
    """Puts each event on the first lane that is free at its start."""
    placed = []
    free = []  # type: List[float]
    for event in sorted(events, key=lambda event: event["ts"]):
        lane = next((lane for lane, end in enumerate(free) if end <= event["ts"]), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = event["ts"] + event["dur"]
        placed.append((event, lane))
    return placed


def _stop() -> bytes:
    status, answer = plugin.call("mx_rec_trace_stop")
    if status != 0:
        raise RuntimeError("the recording cannot be read: {}".format(
            answer.decode("utf-8", "replace")))
    return answer
