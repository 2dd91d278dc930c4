"""What a training says when the disk of its rows fails, and what is left of it then.

Files of rows have no names, but the process has them open: tests reach them through /proc/self/fd.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import test_ssd
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.stats import table_stats

KEYS = np.arange(0, 400)
# A record: checksum, generation and row of 4 bytes each, the key, then embedding and two slots.
FLOATS = 20
RECORD = FLOATS + 3 * test_ssd.DIM * 4


class Training:
    """A table with 60 of its rows in memory, a step on it and an evaluation."""

    def __init__(self, session, directory):
        self.directory = os.path.realpath(str(directory))
        self.table = test_ssd.make("disk", self.directory, name="rows_of_users")
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self._rows = sparse_lookup(self.table, self.ids, modify_graph=True)
        self._found = sparse_lookup(self.table, self.ids, is_train=False, modify_graph=True)
        self._train = test_ssd.train_op(self._rows)
        self.saver = tf.compat.v1.train.Saver()
        self.session = session()
        self.session.run(tf.compat.v1.global_variables_initializer())

    def step(self, keys):
        self.session.run(self._train, {self.ids: keys})

    def fill(self, keys=KEYS):
        for start in range(0, len(keys), 50):
            self.step(keys[start:start + 50])

    def find(self, keys=KEYS):
        return self.session.run(self._found, {self.ids: keys})

    def stats(self):
        return table_stats(self.table)

    def file(self):
        """The number of the open file that holds rows; others are empty."""
        found = []
        for number in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink("/proc/self/fd/" + number)
            except OSError:
                continue
            if path.startswith(self.directory + "/"):
                found.append(int(number))
        return max(found, key=lambda file: os.fstat(file).st_size)

    def fails(self, error, keys, *named):
        """Asserts that a step on `keys` fails with an error that names these."""
        with pytest.raises(error) as raised:
            self.step(keys)
        for name in named + ("rows_of_users",):
            assert name in raised.value.message, raised.value.message
        return raised.value.message


@pytest.fixture
def training(graph, dynamic, session, tmp_path):
    made = Training(session, tmp_path)
    made.fill()
    assert made.stats().rows_disk == 340
    return made


def cold(training):
    """Some keys whose rows are on disk: those that an evaluation of reads bytes."""
    keys = []
    for key in KEYS:
        before = training.stats().bytes_read
        training.find([key])
        if training.stats().bytes_read > before:
            keys.append(key)
    assert len(keys) == training.stats().rows_disk
    return keys


def test_a_flipped_bit_is_data_loss_with_table_key_file_and_offset(training):
    file = training.file()
    before = training.find()
    key = cold(training)[0]
    content = os.pread(file, os.fstat(file).st_size, 0)
    # Each record, those included that are not live any more.
    places = [at for at in range(0, len(content) - RECORD + 1, RECORD)
              if content[at + 12:at + 20] == np.int64(key).tobytes()]
    assert places

    def flip(bit):
        for at in places:
            os.pwrite(file, bytes([content[at + FLOATS] ^ bit]), at + FLOATS)

    flip(4)
    message = training.fails(tf.errors.DataLossError, [key], "key={}".format(key), training.directory)
    assert "checksum" in message and any("offset={}".format(at) in message for at in places)
    with pytest.raises(tf.errors.DataLossError, match="key={}".format(key)):
        training.find([key])
    with pytest.raises(tf.errors.DataLossError, match="key={}".format(key)):
        training.saver.save(training.session, training.directory + "/model.ckpt")
    # It is no new row, and the others are what they were.
    assert training.stats().rows == len(KEYS)
    others = KEYS[KEYS != key]
    assert training.find(others).tobytes() == before[others].tobytes()
    # With the bit as it was the row is there again.
    flip(0)
    assert training.find().tobytes() == before.tobytes()


def test_a_file_that_became_short_is_data_loss(training):
    file = training.file()
    size = os.fstat(file).st_size
    keys = cold(training)[:40]
    os.ftruncate(file, 16)
    training.fails(tf.errors.DataLossError, keys, training.directory, "key=", "offset=")
    os.ftruncate(file, size)
    # What was cut off is gone, and said to be.
    training.fails(tf.errors.DataLossError, keys, training.directory, "key=", "offset=")
    assert training.stats().rows == len(KEYS)


def test_reads_and_writes_that_the_system_refuses_change_nothing(training, tmp_path):
    file = training.file()
    before, (keys, kept) = training.find(), (cold(training)[:40], os.dup(file))
    other = tmp_path / "other"
    other.write_bytes(b"")
    for flags, error in ((os.O_WRONLY, "read"), (os.O_RDONLY, "write")):
        broken = os.open(str(other), flags)
        os.dup2(broken, file)
        os.close(broken)
        if error == "read":
            training.fails(tf.errors.OpError, keys, training.directory, "cause=", "Bad file descriptor")
        else:
            # All are new, so that rows have to go to disk.
            training.fails(tf.errors.OpError, range(10 ** 6, 10 ** 6 + 50), training.directory, "cause=")
        os.dup2(kept, file)
        assert training.find().tobytes() == before.tobytes(), error
        assert training.stats().rows == len(KEYS)
    os.close(kept)
    training.step(keys)
    assert training.find().tobytes() != before.tobytes()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB, if this system lets the test mount one."""
    path = str(tmp_path / "small")
    os.mkdir(path)
    mounted = subprocess.call(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], stderr=subprocess.DEVNULL)
    if mounted != 0:
        pytest.skip("this system lets no test mount a file system")
    yield path
    subprocess.call(["umount", "-l", path])


def test_a_full_disk_fails_the_step_and_training_goes_on_when_there_is_space(graph, dynamic, session, small_disk):
    training = Training(session, small_disk)
    training.fill(np.arange(0, 60))
    # Somebody else's file takes what is left.
    with open(small_disk + "/other", "wb") as other:
        try:
            while True:
                os.write(other.fileno(), b"\0" * 4096)
        except OSError:
            pass
    before, stats = training.find(np.arange(60)), training.stats()
    message = training.fails(tf.errors.ResourceExhaustedError, range(100, 150), training.directory)
    assert "free" in message
    assert training.find(np.arange(60)).tobytes() == before.tobytes()
    assert training.stats()[:2] == stats[:2] and training.stats().rows == 60
    os.remove(small_disk + "/other")
    training.fill(np.arange(100, 300))
    assert training.stats().rows == 260
    assert training.find(np.arange(60)).tobytes() == before.tobytes()


@pytest.mark.parametrize("directory", ["/sys/kernel", "/proc/sys"])
def test_a_directory_that_takes_no_files_is_named_before_anything_is_trained(graph, dynamic, session, directory):
    if not os.path.isdir(directory):
        pytest.skip(directory + " is not there")
    # Where permissions do not tell, the start of the session does.
    with pytest.raises((ValueError, tf.errors.OpError)) as raised:
        Training(session, directory).step([1])
    assert directory in str(raised.value)


def test_a_directory_that_vanishes_takes_no_row_with_it(graph, dynamic, session, tmp_path):
    directory = tmp_path / "vanishes"
    directory.mkdir()
    training = Training(session, directory)
    training.fill()
    before = training.find()
    directory.rmdir()
    assert training.find().tobytes() == before.tobytes()
    training.fill(np.arange(390, 430))
    assert training.stats().rows == 430
    # A restore needs new files.
    path = training.saver.save(training.session, str(tmp_path / "model.ckpt"))
    with pytest.raises(tf.errors.NotFoundError, match="vanishes"):
        training.saver.restore(training.session, path)
    assert training.stats().rows == 430


def test_what_a_killed_process_left_is_removed_by_the_next_start(graph, dynamic, session, tmp_path):
    left, others = tmp_path / "mx_rec-rows-999999-0.scratch", tmp_path / "notes.txt"
    for path in (left, others):
        path.write_bytes(b"left over")
    Training(session, tmp_path).step([1])
    assert not left.exists() and others.exists()


SECCOMP = """
import ctypes, logging, struct, sys

# A filter of system calls, as containers have one: io_uring_setup (425) is not permitted.
program = b"".join(struct.pack("HBBI", *one) for one in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7fff0000)))
kept = ctypes.create_string_buffer(program)
fprog = struct.pack("HxxxxxxQ", 4, ctypes.addressof(kept))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(fprog), 0, 0):
    sys.exit("no filter: %d" % ctypes.get_errno())
"""

USED = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
import support, test_ssd, test_ssd_faults
from mx_rec.util.initialize import init

support.turn_graph_mode_on()
init()
training = test_ssd_faults.Training(support.new_session, {directory!r})
training.fill()
# Nothing of it is in the page cache.
import os
file = training.file()
os.fsync(file)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
training.fill()
print("sum", float(np.abs(training.find()).sum()), training.stats().read_disk > 100)
"""


@pytest.mark.long
def test_the_log_says_whether_io_uring_reads_and_why_not(tmp_path):
    code = USED.format(here=os.path.dirname(os.path.abspath(__file__)), directory=str(tmp_path))
    done = {}
    for what, filtered in (("here", ""), ("forbidden", SECCOMP)):
        run = subprocess.run([sys.executable, "-W", "ignore", "-c", filtered + code], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, universal_newlines=True, timeout=300)
        if "no filter" in run.stderr:
            pytest.skip(run.stderr)
        assert run.returncode == 0, run.stderr
        lines = [line for line in run.stderr.splitlines() if "are read by" in line]
        assert len(lines) == 1, run.stderr
        assert "rows_of_users" in lines[0] and str(tmp_path) in lines[0] and "60 rows in memory" in lines[0]
        sums = [line for line in run.stdout.splitlines() if line.startswith("sum")]
        done[what] = lines[0].split("are read by ")[1], sums
    reads = "up to 64 threads: this system or container forbids io_uring (Operation not permitted"
    assert done["forbidden"][0].startswith(reads)
    assert done["here"][0] == "io_uring" or done["here"][0].startswith("up to 64 threads: ")
    # The numbers are the same.
    assert done["here"][1] == done["forbidden"][1] != []
