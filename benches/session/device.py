"""How many random records a device reads in a second, past the page cache: without the engine.

Reads are asynchronous ones of Linux (io_submit), so many under way at once, of the whole pages that
hold a record.
"""

import ctypes
import mmap
import os
import platform
import time

import numpy as np

PAGE = 4096

# io_setup, io_destroy, io_getevents, io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_PREAD = 0
_REQUEST = np.dtype([("data", "<u8"), ("key", "<u4"), ("flags", "<u4"), ("opcode", "<u2"),
                     ("priority", "<i2"), ("file", "<u4"), ("buffer", "<u8"), ("bytes", "<u8"),
                     ("offset", "<i8"), ("reserved", "<u8"), ("more", "<u4"), ("event", "<u4")])
_EVENT = np.dtype([("data", "<u8"), ("request", "<u8"), ("result", "<i8"), ("second", "<i8")])


def open_past_cache(file):
    """Opens an open file again, for reads past the page cache.

    Raises:
        OSError: If its file system has no such reads.
    """
    return os.open("/proc/self/fd/{}".format(file), os.O_RDONLY | os.O_DIRECT)


def spans(offsets, record):
    """The pages that hold records: (first byte, bytes), int64 (n) each."""
    first = offsets // PAGE * PAGE
    last = -(-(offsets + record) // PAGE) * PAGE
    return first, last - first


def reads_a_second(files, numbers, offsets, record, depth):
    """Reads records, each by one read, and returns how many a second that were.

    Args:
        files: descriptors that `open_past_cache` gave.
        numbers: int64 (n), the file of each record, a place in `files`.
        offsets: int64 (n), where each record begins.
        record: bytes of a record.
        depth: how many reads are under way at once.

    Raises:
        OSError: If the system refuses a read, or has no such reads.
    """
    setup, destroy, events, submit = _CALLS[platform.machine()]
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long

    def system(*arguments):
        done = call(*[ctypes.c_long(one) if isinstance(one, int) else one for one in arguments])
        if done < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return done

    at, length = spans(offsets, record)
    room = int(length.max())
    memory = mmap.mmap(-1, room * len(offsets))
    start = np.frombuffer(memory, np.uint8).ctypes.data
    requests = np.zeros(len(offsets), _REQUEST)
    requests["opcode"] = _PREAD
    requests["file"] = np.asarray(files)[numbers]
    requests["buffer"] = start + room * np.arange(len(offsets))
    requests["bytes"] = length
    requests["offset"] = at
    pointers = requests.ctypes.data + _REQUEST.itemsize * np.arange(len(offsets), dtype=np.uint64)
    found = np.zeros(depth, _EVENT)
    context = ctypes.c_ulong(0)
    system(setup, depth, ctypes.byref(context))
    try:
        sent = done = 0
        begin = time.perf_counter()
        while done < len(offsets):
            more = min(depth - (sent - done), len(offsets) - sent)
            if more:
                sent += system(submit, context, more,
                               ctypes.c_void_p(pointers.ctypes.data + 8 * sent))
            least = max(1, sent - done - depth // 2) if sent < len(offsets) else sent - done
            came = system(events, context, least, depth, ctypes.c_void_p(found.ctypes.data), 0)
            if (found["result"][:came] < record).any():
                raise OSError("a read of the device came back short")
            done += came
        return len(offsets) / (time.perf_counter() - begin)
    finally:
        system(destroy, context)
