"""Runs a program and tells how long its steps take, also without what tables do in them.

    usage: limit.py steps|limit FILE (SCRIPT | -m MODULE) [arguments]

FILE is a JSON object at the end: `steps`, and the medians `wall` and `processor`, in milliseconds
from the start of a step to that of the next one, of all threads of the process. Steps are the runs
of sessions with the fetches that took the most time in all, of those that there were ten times; the
first quarter does not count.

With `limit`, under `python -m mx_rec run`, the variables that would become tables stay variables
that nothing reads and nothing updates. Each gather of their rows gives zeros in its shape, and so
do the vectors of bags behind it. In the place of an update is an op that takes the ids and the
gradients that come to it: of the rows before they are summed or, where the table's update is fused
with the lookups, of what these give. So ids, layers and gradients are computed as before, and no
engine of embeddings makes the step faster than that.
"""

import atexit
import collections
import json
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as sessions

from same_start import run_program


class Steps:
    """Notes when each run of a session begins.

    Args:
        path: See the usage.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = []  # type: List[Tuple[str, float, float]]

    def watch(self) -> None:
        """Watches all sessions of this process from now on."""
        stock = sessions.BaseSession.run

        def run(session: Any, fetches: Any, *given: Any, **named: Any) -> Any:
            self._began.append((str(fetches), time.perf_counter(), time.process_time()))
            return stock(session, fetches, *given, **named)

        sessions.BaseSession.run = run
        atexit.register(self._write)

    def _write(self) -> None:
        starts = collections.defaultdict(list)  # type: Dict[str, List[Tuple[float, float]]]
        took = collections.Counter()  # type: Dict[str, float]
        for (fetches, *times), after in zip(self._began, self._began[1:]):
            starts[fetches].append(times)
            took[fetches] += after[1] - times[0]
        if max(map(len, starts.values()), default=0) < 3:
            return  # The program ended among its first steps: its own error is what to read.
        steps = max(starts, key=lambda one: (len(starts[one]) >= 10, took[one]))
        found = starts[steps][len(starts[steps]) // 4:]
        wall, processor = [1e3 * statistics.median(np.diff(times)) for times in zip(*found)]
        with open(self._path, "w") as file:
            json.dump({"steps": len(found) - 1, "wall": wall, "processor": processor}, file)


def leave_out_tables() -> None:
    """Lets what would convert variables leave out their lookups and updates instead."""
    from mx_rec.stock import select
    from mx_rec.stock.analysis import plan_variables
    from mx_rec.stock.convert import saved_places
    from mx_rec.stock.nodes import Nodes
    from mx_rec.stock.savers import ops_of, renewable_savers
    from mx_rec.tensorflow.graph_def import without_nodes

    def convert(graph: tf.Graph, options: Any, trains: bool, *_: Any) -> List[Any]:
        if not trains:
            return []
        graph_def = without_nodes(graph.as_graph_def(), ops_of(renewable_savers(graph)))
        plans = plan_variables(graph_def, options, True, saved=saved_places(graph))
        nodes = Nodes(graph_def)
        for plan in plans:
            if plan.converts:
                _leave_out(graph, nodes, plan)
        return plans

    select.convert = convert


def _leave_out(graph: tf.Graph, nodes: Any, plan: Any) -> None:
    """Leaves out the lookups and updates of a variable."""
    from mx_rec.edits.wiring import in_place_of, replace_output, replace_waiting
    from mx_rec.stock.fused import pooling_of

    def tensor(output: Any) -> tf.Tensor:
        return graph.get_operation_by_name(output[0]).outputs[output[1]]

    ids, sizes = [], tf.constant(plan.shape[1:], tf.int32)  # type: List[tf.Tensor], tf.Tensor
    sparse = {piece.gather: piece.bags.sparse for piece in plan.pieces or () if piece.bags}
    for lookup in plan.lookups:
        gather = graph.get_operation_by_name(lookup.node)
        given = gather.inputs[1]
        pooled = pooling_of(nodes, nodes.by_name[lookup.node], gather.inputs[1].op.name)
        with in_place_of(gather):
            rows = tf.zeros(tf.concat([tf.shape(given), sizes], 0))
        if pooled is not None:
            result = graph.get_operation_by_name(pooled.result.name)
            # Those that are given: what makes them distinct, and of a lookup that is fused what
            # leaves some of them out, is the lookup's.
            if pooled.fill:
                given, shape = graph.get_operation_by_name(pooled.fill).inputs[1:3]
            else:
                given, shape = tensor(pooled.ids[1]), tensor(pooled.segments)[-1:] + 1
            if lookup.node in sparse:
                given = tensor(sparse[lookup.node][1])
            with in_place_of(result):
                bags = tf.cast(shape[:1], tf.int32)
                vectors = tf.zeros(tf.concat([bags, sizes], 0))
            replace_output(result, vectors)
        replace_output(gather, rows)
        if lookup.trains:
            ids.append(given)
    for step in plan.updates:
        grads = [tensor(piece.grad) for piece in plan.pieces or ()]
        if not grads:
            values = [tensor(grad) for grad, _ in step.parts]
            grads = [value.op.inputs[0] if value.op.type == "UnsortedSegmentSum" else value
                     for value in values]
        # TensorFlow would leave out an op without a state.
        with in_place_of(graph.get_operation_by_name(step.ops[0]), (), step.ops):
            taken = tf.raw_ops.Assert(condition=tf.constant(True), data=grads + ids)
        for name in step.ops:
            replace_waiting(graph.get_operation_by_name(name), [taken])


def main() -> None:
    """Runs what the command line asks for."""
    action, path, target = sys.argv[1:4]
    if action not in ("steps", "limit"):
        raise SystemExit(__doc__)
    if action == "limit":
        leave_out_tables()
    Steps(path).watch()
    run_program(target, sys.argv[4:])


if __name__ == "__main__":
    main()
