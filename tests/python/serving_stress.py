"""Pushes for as long as wanted, while pusher and server are killed at random: in the end the server has the checkpoint's rows.

A training in this process saves deltas, and whole checkpoints now and then; the command follows it in a process of its own, and a
model server (examples/model_server.py, which stands for tensorflow_model_server) in another. Readers ask all the time: a row
that is torn or of another key is an error, and so is an answer that is none while the server runs.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import serving_cases as serving
import support

KEYS = 6000


class Readers:
    """Threads that look keys up, and check that each row is one of its key."""

    def __init__(self, rest, count=2):
        self.rest, self.count, self.wrong, self.failures = rest, 0, [], 0
        self.is_up = True
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(seed,)) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, seed):
        from mx_rec import serving as package

        server = package.server_of(self.rest, timeout=20)
        draw = np.random.RandomState(seed)
        while not self._done.is_set():
            keys = draw.randint(0, KEYS, 200)
            was_up = self.is_up
            try:
                rows = np.asarray(server.predict("serving_default", {"ids": keys})["items"], np.float32)
            except package.Unreachable:
                if was_up and self.is_up:
                    self.failures += 1
                time.sleep(0.02)
                continue
            except Exception as error:  # pylint: disable=broad-except
                self.wrong.append(error)
                return
            right = (rows[:, 0] == keys) & (rows[:, 1:] == rows[:, 1:2]).all(axis=1) & (rows[:, 1] > 0)
            if not (right | ~rows.any(axis=1)).all():
                self.wrong.append((keys[~right], rows[~right]))
            self.count += 1
            time.sleep(0.005)
        server.close()

    def end(self):
        self._done.set()
        for thread in self._threads:
            thread.join()


def pusher_of(training, server, rows):
    return subprocess.Popen(
        [sys.executable, "-m", "mx_rec.serving", "push", training.place, server.rest, "--interval", "0.1", "--rows",
         str(rows), "--pause", "0.01", "--retries", "2"], env=support.environment_of({}), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)


def run(training, seconds, seed, kill_each):
    """Trains, saves, kills; returns what happened.

    Args:
        training: Of serving_cases.
        seconds: For how long.
        seed: Of the kills and of what is trained.
        kill_each: Seconds between kills, on average.
    """
    from mx_rec import serving as package

    draw = random.Random(seed)
    training.write(np.arange(1000))
    directory = training.export(spare_rows=KEYS)
    training.save()
    server = serving.Process(directory)
    pusher = pusher_of(training, server, 300)
    readers = Readers(server.rest)
    told = {"saves": 0, "killed pushers": 0, "killed servers": 0}
    end, next_kill = time.time() + seconds, time.time() + draw.expovariate(1.0 / kill_each)
    try:
        while time.time() < end:
            begun = time.time()
            keys = draw.sample(range(KEYS), 800)
            training.write(keys[:700])
            training.remove(keys[700:])
            training.write(draw.sample(range(100), 10), table=1)
            training.save(delta=draw.random() < 0.8)
            told["saves"] += 1
            if time.time() > next_kill:
                next_kill = time.time() + draw.expovariate(1.0 / kill_each)
                if draw.random() < 0.6:
                    pusher.send_signal(signal.SIGKILL)
                    pusher.wait()
                    pusher = pusher_of(training, server, draw.choice([50, 300]))
                    told["killed pushers"] += 1
                else:
                    readers.is_up = False
                    server.kill()
                    server = serving.Process(directory, ports=server.ports)
                    readers.is_up = True
                    told["killed servers"] += 1
            assert not readers.wrong, readers.wrong[0]
            time.sleep(max(0.0, draw.uniform(0.1, 1.0) - (time.time() - begun)))
        asking = package.server_of(server.rest)
        wanted, patience = os.path.basename(training.save()), time.time() + 60
        while True:
            version = package.version_of(asking)
            if version.name == wanted and not version.push:
                break
            assert pusher.poll() is None and time.time() < patience, version
            time.sleep(0.1)
        for start in range(-2, KEYS, 1000):
            ids = np.arange(start, start + 1000)
            found = asking.predict("serving_default", {"ids": ids})
            serving.assert_same({name: np.asarray(value, np.float32) for name, value in found.items()},
                                training.look(ids), "after {}".format(told))
        assert version.rows == {table.table_name: table.size() for table in training.tables}
        asking.close()
    finally:
        readers.end()
        pusher.kill()
        pusher.wait()
        server.kill()
    assert not readers.wrong, readers.wrong[0]
    assert not readers.failures, "{} lookups had no answer while the server ran".format(readers.failures)
    told["lookups"] = readers.count
    return told
