"""Fills, trains, saves and restores a table of 100 million rows with memory for a tenth of them.

    python benches/ssd_large.py DIRECTORY [--rows N]

DIRECTORY gets the rows on disk and one checkpoint: about 20 GB for 100 million rows of 64 bytes.
Prints a line of JSON for each part: seconds, what table_stats says, and the memory of the process.
Ends with an error if a row that was looked at before the save differs after the restore.
"""

import argparse
import json
import os
import resource
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from mx_rec.core.embedding import create_table, sparse_lookup  # noqa: E402
from mx_rec.optimizers.gradient_descent import create_hash_optimizer  # noqa: E402
from mx_rec.util.initialize import init  # noqa: E402
from mx_rec.util.stats import table_stats  # noqa: E402

tf1 = tf.compat.v1

DIM = 16
FILL = 500000
BATCH = 65536
STEPS = 100


def parse():
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIRECTORY")
    parser.add_argument("--rows", type=int, default=100000000, metavar="N",
                        help="rows in all (default 100,000,000)")
    return parser.parse_args()


class Model:
    """One table, a step of gradient descent on it, and a lookup that changes nothing."""

    def __init__(self, rows, directory):
        self.graph = tf.Graph()
        with self.graph.as_default():
            memory = max(rows // 10, 2 * FILL)
            self.table = create_table(
                key_dtype=tf.int64, dim=DIM, name="large",
                emb_initializer=tf1.truncated_normal_initializer(stddev=0.1),
                device_vocabulary_size=1, host_vocabulary_size=memory - 1,
                ssd_vocabulary_size=rows - memory, ssd_data_path=[directory])
            self.ids = tf1.placeholder(tf.int64, [None])
            variable = self.table.variable
            found = sparse_lookup(self.table, self.ids, is_train=True, modify_graph=True)
            self.train = create_hash_optimizer(0.1).apply_gradients(
                [(tf.gradients(tf.nn.l2_loss(found) / BATCH, variable)[0], variable)])
            self.found = sparse_lookup(self.table, self.ids, is_train=False, modify_graph=True)
            # A graph without variables has no part of a checkpoint for TensorFlow.
            self.step = tf1.train.get_or_create_global_step()
            self.saver = tf1.train.Saver()
            self.session = tf1.Session()
            self.session.run(tf1.global_variables_initializer())

    def tell(self, what, begin, **more):
        """Prints how long something took, and what the table looks like after it."""
        with self.graph.as_default():
            stats = table_stats(self.table)
        numbers = dict(what=what, seconds=round(time.time() - begin, 2),
                       peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                       resident_mb=_resident(), stats=stats._asdict(), **more)
        print(json.dumps(numbers, default=str), flush=True)


def _resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


def main():
    """Runs the command."""
    args = parse()
    checkpoint = os.path.join(args.directory, "checkpoint", "model")
    init()
    model = Model(args.rows, args.directory)
    begin = time.time()
    for first in range(0, args.rows, FILL):
        ids = np.arange(first, min(first + FILL, args.rows))
        model.session.run(model.train, {model.ids: ids})
    model.tell("fill", begin)
    random = np.random.RandomState(3)
    ranks = np.minimum(random.zipf(1.2, [STEPS, BATCH]), args.rows).astype(np.int64)
    batches = ranks * 7919 % args.rows
    times = []
    for ids in batches:
        start = time.time()
        model.session.run(model.train, {model.ids: ids})
        times.append(time.time() - start)
    model.tell("train", time.time() - sum(times),
               median_ms=round(1000 * float(np.median(times)), 2))
    sample = np.concatenate([batches[-1], random.randint(0, args.rows, 200000)])
    before = model.session.run(model.found, {model.ids: sample})
    begin = time.time()
    path = model.saver.save(model.session, checkpoint, global_step=1)
    model.tell("save", begin)
    model.session.close()
    again = Model(args.rows, args.directory)
    begin = time.time()
    again.saver.restore(again.session, path)
    again.tell("restore", begin)
    after = again.session.run(again.found, {again.ids: sample})
    if not np.array_equal(before, after) or not np.isfinite(before).all() or not before.any():
        raise SystemExit("rows differ after the restore")
    print("rows are the same bits after the restore")


if __name__ == "__main__":
    main()
