"""P14: training on a table with rows on disk, beside the same table all in memory, or beside what
the device of the files can read.
"""

import errno
import fcntl
import os
import tempfile
import time

import numpy as np
import tensorflow as tf

from session import device, measure, workload

RATE = 0.01
CHUNK = 65536
MEMORY_SHARE = 10
# What a measurement of the device reads, and how much of it at once: as much as the engine does.
RECORDS = 30000
DEPTH = 512
ROUNDS = 3
# Steps of a side in a row, for what modified graphs do ahead of them, and those before them.
BLOCK, BEFORE = 40, 4


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
            handle, self._filled, tf.tile(values[:, None], [1, sizes.dim]), [], [], [])
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
        variable = self.table.variable.op.outputs[0]
        self._found, = ops.mx_rec_find([handle], [variable], [self._filled], [], [], [], [], [])

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
    """Files that are read past the page cache, an unmodified graph; the device's own reads."""
    return _run_cold("P14 c", "cold files, rows 10x memory, Zipf 1.05", sizes, False)


def cold_ahead(sizes, draw):
    """The same with a modified graph."""
    return _run_cold("P14 ca", "the same, modified", sizes, True)


def _files_of(directory):
    """The open files of this process in a directory: those of rows, which have no names."""
    inside = os.path.realpath(directory) + "/"
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        # Each file is open twice: the way past the page cache cannot be written.
        is_written = path.startswith(inside) and fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_RDWR
        if is_written and os.fstat(int(name)).st_size:
            found.append(int(name))
    return found


class _Device:
    """What the device reads of the files of a table, with nothing else to do.

    Args:
        directory: where the files are.
        record: bytes of a record.
    """

    def __init__(self, directory, record):
        self._record = record
        self._places = []
        random = np.random.RandomState(11)
        for file in _files_of(directory):
            os.fdatasync(file)
            records = os.fstat(file).st_size // record - 1
            chosen = random.permutation(records)[:RECORDS] * record
            # Space that was given back is not on the device.
            self._places += [(file, int(at)) for at in chosen if _has_data(file, int(at))]
        random.shuffle(self._places)
        self._places = self._places[:RECORDS]

    def reads_a_second(self):
        """How many records the device reads in a second, DEPTH of them under way at once."""
        files = sorted({file for file, _ in self._places})
        opened = [device.open_past_cache(file) for file in files]
        try:
            numbers = np.array([files.index(file) for file, _ in self._places])
            offsets = np.array([at for _, at in self._places])
            return device.reads_a_second(opened, numbers, offsets, self._record, DEPTH)
        finally:
            for file in opened:
                os.close(file)


def _has_data(file, at):
    try:
        return os.lseek(file, at, os.SEEK_DATA) == at
    except OSError as error:
        if error.errno == errno.ENXIO:  # Nothing from there to the end of the file.
            return False
        raise


def _read_by_device():
    """Bytes that devices have read for this process."""
    with open("/proc/self/io", encoding="ascii") as file:
        fields = dict(line.split(": ") for line in file)
    return int(fields["read_bytes"])


def _run_cold(number, what, sizes, is_modified):
    from mx_rec.util.initialize import init

    init(use_dynamic=True)
    # No batch comes twice: its rows would be where they were written together, for a few reads.
    settling = sizes.batches
    repetitions = max(1, sizes.repetitions // ROUNDS)
    batches = settling + ROUNDS * (sizes.warmup + repetitions) + 8
    sizes = workload.Sizes(sizes.rows // 2, sizes.dim, sizes.batch, batches,
                           repetitions, sizes.warmup, sizes.calls)
    arrays = workload.id_batches(sizes, "z")
    with tempfile.TemporaryDirectory() as directory:
        memory = max(sizes.rows // MEMORY_SHARE, (6 if is_modified else 2) * sizes.batch)
        asked = os.environ.get("MXREC_SSD_DIRECT")
        os.environ["MXREC_SSD_DIRECT"] = "1"
        try:
            side = Side(sizes, arrays, directory, memory, is_modified)
        finally:
            os.environ.pop("MXREC_SSD_DIRECT")
            if asked is not None:
                os.environ["MXREC_SSD_DIRECT"] = asked
        for _ in range(settling):
            side.step()
        # Embedding and two slots.
        record = 20 + 3 * 4 * sizes.dim
        reader = _Device(directory, record)
        rates, times, rows, waited, read = [], [], 0, 0.0, 0
        # The device in between: what else uses it changes from second to second.
        for _ in range(ROUNDS):
            rates.append(reader.reads_a_second())
            for _ in range(sizes.warmup):
                side.step()
            before, bytes_before = side.stats(), _read_by_device()
            for _ in range(sizes.repetitions):
                begin = time.perf_counter()
                side.step()
                times.append((time.perf_counter() - begin) * 1e3)
            after = side.stats()
            rows += after.read_disk - before.read_disk
            waited += after.wait_seconds - before.wait_seconds
            read += _read_by_device() - bytes_before
        rates.append(reader.reads_a_second())
        side.session.close()
    steps = len(times)
    rate, rows = float(np.median(rates)), rows / steps
    allowed = [rows / one * 1e3 for one in rates]
    print("%s: %d rows in memory, %d on disk; a step read %d rows of %d bytes, %.1f MB of the "
          "device, and waited %.1f ms; the device reads %d such rows a second (%d to %d), %d at "
          "once" % (number, after.rows_memory, after.rows_disk, rows, record, read / steps / 1e6,
                    waited * 1e3 / steps, rate, min(rates), max(rates), DEPTH), flush=True)
    if waited:
        print("%s: while a step waited, %d rows a second came, %.2f of what the device reads" % (
            number, rows * steps / waited, rows * steps / waited / rate), flush=True)
    if read < steps * rows * device.PAGE * 0.8:
        print("%s: rows were read together, or came from the page cache: this does not measure "
              "cold files" % number, flush=True)
    peer = "random reads of the device"
    return [measure.figure(number, what, times, allowed, 0.8, True, peer)]


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
        in_blocks = measure.blocks(
            [_runner(side) for side in sides], sizes.batches, max(2, sizes.repetitions // 4), BLOCK, BEFORE) \
            if is_modified else None
        steps = sizes.repetitions + sizes.warmup
        print("%s: %d rows in memory, %d on disk; each step read %d rows and waited %.2f ms" % (
            number, after.rows_memory, after.rows_disk,
            (after.read_disk - before.read_disk) / steps,
            (after.wait_seconds - before.wait_seconds) * 1e3 / steps), flush=True)
        ids = np.unique(arrays[0])[:memory // 2]
        measure.agree(number, sides[0].rows(ids), sides[1].rows(ids), 0)
        for side in sides:
            side.session.close()
    found = [measure.figure(number, what, times[0], times[1], target, True, "all in memory")]
    if in_blocks is not None:
        found.append(measure.figure(
            number + " b", what + ", %d steps of a side in a row" % BLOCK, in_blocks[0],
            in_blocks[1], target, True, "all in memory"))
    return found


def _runner(side):
    return lambda _: side.step()
