"""C1 to C4: tables on parameter servers beside TensorFlow's partitioned variables on the same ones.

Each case starts its processes on the loopback interface. Both sides are trained in turn by the same
workers on the same batches, so that noise hits both alike.
"""

import argparse
import contextlib
import multiprocessing
import socket
import sys
import time

import numpy as np

from cluster import task
from cluster.proxy import Proxy
from cluster.task import SIDES
from session import measure

PEER = "partitioned variables, tf.unique, LazyAdam"
STANDARD = {"tables": 26, "rows": 100000, "dim": 16, "batch": 2048, "batches": 12, "steps": 6,
            "rounds": 12}
SHORT = {"tables": 3, "rows": 2000, "dim": 16, "batch": 64, "batches": 2, "steps": 2, "rounds": 2}


class Cluster:
    """The processes of a case.

    Args:
        sizes: How much it does.
        servers, workers: How many.
        counted: Whether what workers and servers exchange goes through counting proxies.

    Attributes:
        distinct: Distinct keys of a batch, summed over the tables, on average.
    """

    def __init__(self, sizes, servers, workers, counted=False):
        sockets = [socket.socket() for _ in range(servers + workers)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [one.getsockname() for one in sockets]
        for one in sockets:
            one.close()
        real = ["%s:%d" % address for address in addresses]
        self._proxies = [Proxy(address) for address in addresses] if counted else []
        shown = [proxy.address for proxy in self._proxies] or real
        self._processes, self._pipes = {}, {}
        try:
            names = [("ps", at) for at in range(servers)] + [("worker", at) for at in range(workers)]
            for number, (job, index) in enumerate(names):
                # Each knows the others by their proxies, and itself as it is.
                own = list(shown)
                own[number] = real[number]
                self._start(job, index, {"ps": own[:servers], "worker": own[servers:]}, sizes)
                if (job, index) == ("ps", servers - 1):
                    for at in range(servers):
                        self._read("ps", at)
                if job == "worker":
                    # The chief initializes before others come.
                    self.distinct = self._read(job, index)["distinct"]
        except BaseException:
            self.close()
            raise
        self.workers = workers

    def _start(self, job, index, cluster, sizes):
        # Forked with TensorFlow imported, which takes longer than a short case does.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["cluster.task", "tensorflow.contrib"])
        self._pipes[job, index], other = multiprocessing.Pipe()
        process = context.Process(target=task.run, args=(cluster, job, index, sizes, other))
        process.start()
        other.close()
        self._processes[job, index] = process

    def _read(self, job, index):
        try:
            return self._pipes[job, index].recv()
        except EOFError:
            raise RuntimeError("%s %d has ended: its error stands above" % (job, index))

    def ask(self, side, first, count):
        """Lets all workers train a side at the same time.

        Returns:
            Milliseconds for each step of any worker.
        """
        began = time.perf_counter()
        for at in range(self.workers):
            self._pipes["worker", at].send((side, first, count))
        answers = [self._read("worker", at) for at in range(self.workers)]
        seconds = time.perf_counter() - began
        return answers[0] if side == "sum" else seconds * 1e3 / (count * self.workers)

    def processor_time(self, job):
        """Milliseconds of processor time that all tasks of a job have used."""
        # Linux' clock of another process (clock_getcpuclockid), in nanoseconds: /proc counts in ticks
        # of 10 ms, which are 0 for a short case.
        return 1e3 * sum(time.clock_gettime((~process.pid << 3) | 2)
                         for (name, _), process in self._processes.items() if name == job)

    @property
    def bytes(self):
        """Bytes that went through the proxies."""
        return sum(proxy.bytes for proxy in self._proxies)

    def close(self):
        """Ends all processes."""
        for process in self._processes.values():
            process.kill()
            process.join()
        for pipe in self._pipes.values():
            pipe.close()


def measured(sizes, servers, workers):
    """Times all sides in turn.

    Returns:
        For each of SIDES: milliseconds a step, an array of rounds, and the processor time
        a step of the servers and of the workers, in milliseconds.
    """
    with contextlib.closing(Cluster(sizes, servers, workers)) as cluster:
        for side in SIDES:
            # All keys have rows, and all memory is touched, before anything is measured.
            cluster.ask(side, 0, sizes["batches"])
        times = {side: [] for side in SIDES}
        processor = {side: np.zeros(2) for side in SIDES}
        for number in range(sizes["rounds"]):
            for side in SIDES if number % 2 else SIDES[::-1]:
                before = np.array([cluster.processor_time(job) for job in ("ps", "worker")])
                times[side].append(cluster.ask(side, number * sizes["steps"], sizes["steps"]))
                after = np.array([cluster.processor_time(job) for job in ("ps", "worker")])
                processor[side] += after - before
        if workers == 1:
            found = cluster.ask("sum", 0, 0)
            if found["size"] == 0 or not found["gap"] <= 1e-3:
                raise RuntimeError("the sides differ: %r" % (found,))
        steps = sizes["rounds"] * sizes["steps"] * workers
        return [(np.array(times[side]), processor[side] / steps) for side in SIDES]


def words(sizes, servers, workers):
    """What a case is, in words."""
    return "%d tables, batch %s, %d ps, %d worker%s" % (
        sizes["tables"], "{:,}".format(sizes["batch"]), servers, workers, "s" * (workers > 1))


def steps(sizes):
    """C1: steps of one and of two workers; C3: one server and two; C4: the servers' work."""
    figures, ours_of, work = [], {}, {}
    for servers, workers in ((2, 1), (2, 2), (1, 1)):
        (ours, ours_work), (separate, separate_work), (peer, peer_work) = measured(
            sizes, servers, workers)
        ours_of[servers, workers], work[servers, workers] = ours, ours_work
        mark = "" if (servers, workers) == (2, 1) else " %dps %dw" % (servers, workers)
        figures.append(measure.figure(
            "C1" + mark, "cluster step, " + words(sizes, servers, workers), ours, peer, 2.0, True,
            PEER))
        figures.append(measure.figure(
            "C1 separate" + mark, "the same by separate lookups, " + words(sizes, servers, workers),
            separate, peer, 2.0, True, PEER))
        print("%s: processor time a step, servers and workers: ours %.1f and %.1f ms, separate %.1f "
              "and %.1f ms, peer %.1f and %.1f ms" % (
                  (words(sizes, servers, workers),) + tuple(ours_work) + tuple(separate_work)
                  + tuple(peer_work)), flush=True)
        if (servers, workers) == (2, 1):
            figures.append(measure.figure(
                "C4", "processor time of the servers, " + words(sizes, servers, workers),
                ours_work[:1], peer_work[:1], 2.0, True, PEER))
    figures.append(measure.figure(
        "C3", "cluster step, two ps beside one", ours_of[2, 1], ours_of[1, 1], 1.0, True,
        "the same on one ps"))
    say_sixteen(work[1, 1], work[2, 1])
    return figures


def say_sixteen(one, two):
    """Calculates what 16 servers would take, from the processor time with one and with two.

    Args:
        one, two: Milliseconds a step of all servers, and of the worker.
    """
    # What a second server adds is what its request costs; the rest is shared by all servers.
    request, at_worker = np.maximum(two - one, 0.0)
    server = (one[0] - request) / 16 + request
    worker = one[1] + 15 * at_worker
    print("calculation for 16 ps from the processor time with 1 and 2: a request costs a server "
          "%.2f ms and the worker %.2f ms. A step takes each server %.2f ms (1 ps: %.2f) and the "
          "worker %.2f ms, so that servers of one core each serve %.0f steps/s (1 ps: %.0f), which "
          "%.1f workers of one core each ask for" % (
              request, at_worker, server, one[0], worker, 1e3 / server, 1e3 / one[0],
              worker / server), flush=True)


def traffic(sizes):
    """C2: bytes between worker and servers, beside the formula, with rows of 4 and of 2 bytes."""
    figures = []
    for row_dtype, of_row in (("float32", 4), ("bfloat16", 2)):
        case, found = dict(sizes, row_dtype=row_dtype), {}
        with contextlib.closing(Cluster(case, 2, 1, counted=True)) as cluster:
            for side in SIDES:
                cluster.ask(side, 0, sizes["batches"])
                before = cluster.bytes
                cluster.ask(side, 0, sizes["batches"])
                # What the servers still send when the worker is done.
                time.sleep(0.5)
                found[side] = (cluster.bytes - before) / sizes["batches"]
            formula = cluster.distinct * (8 + (4 + of_row) * sizes["dim"])
        print("bytes a step, rows of %s: ours %.0f, separate %.0f, peer %.0f, formula %.0f (%.0f "
              "distinct keys)" % (row_dtype, found["ours"], found["separate"], found["peer"],
                                  formula, cluster.distinct), flush=True)
        mark = "" if row_dtype == "float32" else " " + row_dtype
        target = [formula], 1.1, False, "distinct x (8 + %d dim)" % (4 + of_row)
        figures.append(measure.figure(
            "C2" + mark, "bytes between worker and ps, " + words(sizes, 2, 1), [found["ours"]],
            *target))
        figures.append(measure.figure(
            "C2 separate" + mark, "the same by separate lookups, " + words(sizes, 2, 1),
            [found["separate"]], *target))
    for figure in figures:
        figure["unit"] = "bytes"
    return figures


CASES = {"C1": steps, "C2": traffic, "C3": steps, "C4": steps}


def main():
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True, help="file to append figures to")
    parser.add_argument("--only", help="comma separated targets, e.g. C1,C2")
    parser.add_argument("--short", action="store_true", help="small sizes; not a measurement")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else sorted(CASES)
    sizes = SHORT if options.short else STANDARD
    for case in [one for one in (steps, traffic)
                 if any(CASES.get(target) is one for target in wanted)]:
        measure.emit(case(sizes), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
