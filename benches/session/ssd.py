"""P14: training on a table with rows on disk, beside the same table all in memory, or beside what
the device of the files can read.
"""

import errno
import os
import tempfile
import threading
import time

import numpy as np
import tensorflow as tf

from session import measure, workload

RATE = 0.01
CHUNK = 65536
MEMORY_SHARE = 10
PAGE = 4096
PAGES = 30000
# Seconds between two times at which the page cache is emptied of the files.
PAUSE = 0.02


class Side:
    """A table and one training step on it, in a graph and a session of its own.

    Args:
        sizes: a workload.Sizes.
        arrays: int64 (batches, batch), the ids.
        directory: where rows go; None for a table that is all in memory.
        memory: rows in memory, of a table with a directory.
        is_modified: whether the graph is modified.
    """

    def __init__(self, sizes, arrays, directory=None, memory=0, is_modified=False):
        from mx_rec.util.stats import table_stats

        self._table_stats = table_stats
        with tf.Graph().as_default() as self.graph:
            self._build(sizes, arrays.shape, directory, memory, is_modified)
            self.session = tf.compat.v1.Session()
            self.session.run(tf.compat.v1.global_variables_initializer())
            order = workload.key_order(sizes)
            chunk = min(CHUNK, memory // 2 if directory else CHUNK)
            for begin in range(0, len(order), chunk):
                self.session.run(self._fill, {self._filled: order[begin:begin + chunk]})
            self.session.run(self._start, {self._fed: arrays})

    def _build(self, sizes, shape, directory, memory, is_modified):
        from mx_rec.core.embedding import create_table, sparse_lookup
        from mx_rec.graph import modify_graph_and_start_emb_cache
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer
        from mx_rec.util.initialize import get_initializer
        from mx_rec.util.ops import import_host_pipeline_ops

        storage = {"device_vocabulary_size": sizes.rows}
        if directory:
            storage = {"device_vocabulary_size": 1, "host_vocabulary_size": memory - 1,
                       "ssd_vocabulary_size": max(sizes.rows - memory, 1),
                       "ssd_data_path": directory}
        self.table = create_table(
            key_dtype=tf.int64, dim=sizes.dim, name="ssd",
            emb_initializer=tf.compat.v1.constant_initializer(0.0), **storage)
        ops = import_host_pipeline_ops()
        handle = self.table.variable.op.outputs[1]
        self._filled = tf.compat.v1.placeholder(tf.int64, [None])
        values = tf.cast(self._filled % 1000, tf.float32) * 1e-3
        self._fill = ops.mx_rec_assign(
            handle, self._filled, tf.tile(values[:, None], [1, sizes.dim]))
        self._fed = tf.compat.v1.placeholder(tf.int64, shape)
        dataset = tf.data.Dataset.from_tensor_slices(self._fed).repeat().prefetch(2)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        loss = tf.nn.l2_loss(
            sparse_lookup(self.table, iterator.get_next(), is_train=True, modify_graph=True))
        gradient = tf.gradients(loss, [self.table.variable])
        train = create_hash_optimizer(RATE).apply_gradients(zip(gradient, [self.table.variable]))
        self._fetches = [loss, train]
        self._start = iterator.initializer
        if is_modified:
            modify_graph_and_start_emb_cache(dump_graph=False)
            self._start = get_initializer(True)
        self._found = ops.mx_rec_find(handle, self.table.variable.op.outputs[0], self._filled,
                                      tf.zeros([0, sizes.dim]))

    def step(self):
        """One step of training: its loss."""
        return self.session.run(self._fetches)[0]

    def rows(self, ids):
        """The rows of some ids."""
        return self.session.run(self._found, {self._filled: ids})

    def stats(self):
        """The numbers of the table."""
        with self.graph.as_default():
            return self._table_stats(self.table)


def tenth(sizes, draw):
    """A tenth of the rows in memory, files in the page cache, unmodified graphs."""
    return _run("P14 " + draw, "rows 10x memory, Zipf 1.05, page cache", sizes, 1.05, 0.5)


def ahead(sizes, draw):
    """The same with modified graphs and ids that are a little more alike."""
    return _run("P14 m", "the same, modified, Zipf 1.2", sizes, 1.2, 0.8, is_modified=True)


def fits(sizes, draw):
    """All rows in memory, of a table that could have more on disk."""
    return _run("P14 f", "rows that memory holds, with a tier", sizes, 1.05, 0.98, share=1)


def cold(sizes, draw):
    """Files that the page cache does not hold, an unmodified graph; the device's own reads."""
    return _run_cold("P14 c", "cold files, rows 10x memory, Zipf 1.05", sizes, False)


def cold_ahead(sizes, draw):
    """The same with a modified graph."""
    return _run_cold("P14 ca", "the same, modified", sizes, True)


class Cold:
    """The open files of rows in a directory, which the page cache loses over and over.

    While it is entered, a thread writes what is new and drops it all from memory.
    """

    def __init__(self, directory):
        self._files = []
        for name in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink("/proc/self/fd/" + name)
            except OSError:
                continue
            if path.startswith(os.path.realpath(directory) + "/"):
                self._files.append(int(name))
        self._over = threading.Event()
        self._thread = None

    def __enter__(self):
        self._over.clear()
        self._thread = threading.Thread(target=self._keep_dropping)
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._over.set()
        self._thread.join()

    def _keep_dropping(self):
        while not self._over.wait(PAUSE):
            self.drop()

    def drop(self):
        """Writes what is new, and drops the files from the page cache."""
        for file in self._files:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def reads_a_second(self):
        """How many random pages of the files the device reads in a second, asked for at once."""
        random = np.random.RandomState(11)
        pages = []
        for file in self._files:
            size = os.fstat(file).st_size // PAGE
            found = random.permutation(size)[:PAGES // len(self._files)] * PAGE
            # Space that was given back is not on the device.
            pages += [(file, int(at)) for at in found if _has_data(file, int(at))]
        self.drop()
        begin = time.perf_counter()
        for file, at in pages:
            os.posix_fadvise(file, at, PAGE, os.POSIX_FADV_WILLNEED)
        for file, at in pages:
            os.pread(file, PAGE, at)
        return len(pages) / (time.perf_counter() - begin)


def _has_data(file, at):
    try:
        return os.lseek(file, at, os.SEEK_DATA) == at
    except OSError as error:
        if error.errno == errno.ENXIO:  # Nothing from there to the end of the file.
            return False
        raise


def _read_by_device():
    """Pages that the device has read for this process."""
    with open("/proc/self/io", encoding="ascii") as file:
        fields = dict(line.split(": ") for line in file)
    return int(fields["read_bytes"]) // PAGE


def _run_cold(number, what, sizes, is_modified):
    from mx_rec.util.initialize import init

    init(use_dynamic=True)
    sizes = workload.Sizes(sizes.rows // 2, sizes.dim, sizes.batch, sizes.batches,
                           sizes.repetitions, sizes.warmup, sizes.calls)
    arrays = workload.id_batches(sizes, "z")
    with tempfile.TemporaryDirectory() as directory:
        memory = max(sizes.rows // MEMORY_SHARE, (6 if is_modified else 2) * sizes.batch)
        side = Side(sizes, arrays, directory, memory, is_modified)
        for _ in range(sizes.batches):
            side.step()
        with Cold(directory) as files:
            for _ in range(sizes.warmup):
                side.step()
            before, pages, begin = side.stats(), _read_by_device(), time.perf_counter()
            for _ in range(sizes.repetitions):
                side.step()
            seconds, pages = time.perf_counter() - begin, _read_by_device() - pages
            after = side.stats()
        # Measured at once, on the same files, by reads that do not wait for each other.
        rate = float(np.median([files.reads_a_second() for _ in range(3)]))
        side.session.close()
    steps = sizes.repetitions
    rows = (after.read_disk - before.read_disk) / steps
    # Only what the device has read counts: the page cache still holds what was written just now.
    step, allowed = seconds * 1e3 / steps, pages / steps / rate * 1e3
    print("%s: %d rows in memory, %d on disk; each step read %d rows, %d pages of the device, and "
          "waited %.2f ms; the device reads %d random pages a second" % (
              number, after.rows_memory, after.rows_disk, rows, pages / steps,
              (after.wait_seconds - before.wait_seconds) * 1e3 / steps, rate), flush=True)
    if pages < steps * rows / 2:
        print("%s: most rows came from the page cache: this does not measure cold files" % number,
              flush=True)
    peer = "random reads of the device"
    return [measure.figure(number, what, [step], [allowed], 0.8, True, peer)]


def _run(number, what, sizes, exponent, target, share=MEMORY_SHARE, is_modified=False):
    from mx_rec.util.initialize import init

    init(use_dynamic=True)
    # Half of the standard rows: two tables with slots and their files fit most machines.
    sizes = workload.Sizes(sizes.rows // 2, sizes.dim, sizes.batch, sizes.batches,
                           sizes.repetitions, sizes.warmup, sizes.calls)
    arrays = workload.id_batches(sizes, "z", exponent=exponent)
    with tempfile.TemporaryDirectory() as directory:
        memory = max(sizes.rows // share, 2 * sizes.batch) if share > 1 else sizes.rows
        sides = [Side(sizes, arrays, directory, memory, is_modified),
                 Side(sizes, arrays, is_modified=is_modified)]
        # Until the rows in memory are those that are wanted most.
        for _ in range(sizes.batches):
            for side in sides:
                side.step()
        before = sides[0].stats()
        times = measure.interleave([_runner(side) for side in sides], sizes.batches,
                                   sizes.repetitions, sizes.warmup)
        after = sides[0].stats()
        steps = sizes.repetitions + sizes.warmup
        print("%s: %d rows in memory, %d on disk; each step read %d rows and waited %.2f ms" % (
            number, after.rows_memory, after.rows_disk,
            (after.read_disk - before.read_disk) / steps,
            (after.wait_seconds - before.wait_seconds) * 1e3 / steps), flush=True)
        ids = np.unique(arrays[0])[:memory // 2]
        measure.agree(number, sides[0].rows(ids), sides[1].rows(ids), 0)
        for side in sides:
            side.session.close()
    return [measure.figure(number, what, times[0], times[1], target, True, "all in memory")]


def _runner(side):
    return lambda _: side.step()
