"""What this machine allows any engine: the work of a bench at places that need no search.

A process of `kernels/examples/limit_bench.rs` does it, in turn with the sides of the bench. A bench
adds what the session takes without any lookup or update (`sides.floor_of_lookups`,
`floor_of_steps`), which no engine can avoid.
"""

import os
import subprocess
import tempfile

import numpy as np

from session import measure, workload

PREFIX = "peers: "


class Limit:
    """The work of the batches of a bench, in a process of its own.

    Args:
        ids: int64 (batches, tables, ids) or (batches, ids), each below rows; of new keys any.
        rows: rows of a table.
        dim: columns of an embedding.
        work: "read", "update", "read,update" or "fresh,update".
        bag: ids of a bag.
        optimizer: of the update: "lazy_adam", "adagrad", "ftrl", "momentum" or "sgd".

    Attributes:
        sides: functions of the batch number that return Measured: with an index, and as if ids were
            places.
        lines: cache lines at random places that a batch touches, with an index.
        bytes: bytes that a batch moves, with an index.
    """

    def __init__(self, ids, rows, dim, work, bag=1, optimizer="lazy_adam"):
        ids = np.ascontiguousarray(ids, np.int64)
        ids = ids.reshape(ids.shape[0], -1, ids.shape[-1])
        with tempfile.NamedTemporaryFile(suffix=".ids") as file:
            ids.tofile(file.name)
            command = [os.environ[workload.LIMIT_BENCH], "--ids", file.name, "--work", work]
            numbers = {
                "batches": ids.shape[0], "tables": ids.shape[1], "ids-of-table": ids.shape[2],
                "rows": rows, "dim": dim, "bag": bag, "threads": os.cpu_count(),
            }
            for name, number in numbers.items():
                command += ["--" + name, str(number)]
            self._process = subprocess.Popen(
                command + ["--optimizer", optimizer],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True,
            )
            words = self._read().split()
        self.lines, self.bytes = int(words[1]), int(words[2])
        self.sides = [self._side("keyed"), self._side("arrays")]

    def _side(self, form):
        def run(number):
            self._process.stdin.write("%s %d\n" % (form, number))
            self._process.stdin.flush()
            return measure.Measured(self._read())

        return run

    def _read(self):
        line = self._process.stdout.readline()
        if not line.startswith(PREFIX):
            raise RuntimeError("limit_bench ended with code %s" % self._process.wait())
        return line[len(PREFIX):].strip()

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
