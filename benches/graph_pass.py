"""What the pass over a graph costs before its first run: processor time, in seconds.

The graph has 26 tables, a lookup and a sum over bags of each, and layers of a dense network behind
them until it has 10,000 nodes with gradients and Adam, so that nearly all of it depends on lookups.
Each run is a process of its own; the figures are medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

FEATURES, WIDTH, LENGTH, DIM = 26, 64, 10, 16
NODES, MOST = 10000, 0.3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="append figures to this file, one JSON object a line")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--short", action="store_true", help="a small graph: no measurement")
    parser.add_argument("--one", action="store_true", help="be one run")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.nodes, arguments.runs = 1500, 1
    if arguments.one:
        print(json.dumps(measure(arguments.nodes)), flush=True)
        return
    command = [sys.executable, os.path.abspath(__file__), "--one", "--nodes", str(arguments.nodes)]
    found = [json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       check=True).stdout.decode().splitlines()[-1])
             for _ in range(arguments.runs)]
    figures = {name: statistics.median(one[name] for one in found) for name in found[0]}
    verdict = "met" if figures["pass"] < MOST else "not met"
    print("the pass over {nodes:.0f} nodes, which adds {added:.0f}: {pass:.3f} s, of which its "
          "GraphDef {definition:.3f}, the plan {plan:.3f}, the changes {changes:.3f}".format(
              **figures), "(below {}: {})".format(MOST, verdict))
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            print(json.dumps(dict(figures, runs=arguments.runs, short=arguments.short)), file=file)


def measure(nodes):
    """Builds the graph and passes over it; returns the figures by name."""
    import tensorflow as tf

    from mx_rec.edits.replacing import extensible
    from mx_rec.graph import fuse
    from mx_rec.util.initialize import init

    init()
    build(tf, nodes)
    graph = tf.compat.v1.get_default_graph()
    found = {"nodes": len(graph.get_operations())}
    for name, of in (("definition", "serialized"), ("plan", "make_plan"), ("changes", "_apply")):
        timed(fuse, of, found, name)
    with extensible(graph):
        begin = time.process_time()
        fuse.pass_over(graph)
        found["pass"] = time.process_time() - begin
    found["added"] = len(graph.get_operations()) - found["nodes"]
    return found


def build(tf, nodes):
    """Builds a model of so many nodes, or a few more."""
    from mx_rec.core.embedding import create_table, sparse_lookup
    from mx_rec.optimizers.lazy_adam import create_hash_optimizer
    from mx_rec.util.variable import get_dense_and_sparse_variable

    layers = tf.compat.v1.layers
    ids = tf.compat.v1.placeholder(tf.int64, [None, FEATURES, LENGTH])
    label = tf.compat.v1.placeholder(tf.float32, [None, 1])
    sums = []
    for at in range(FEATURES):
        table = create_table(key_dtype=tf.int64, dim=DIM, name="table_%d" % at,
                             device_vocabulary_size=10000,
                             emb_initializer=tf.compat.v1.random_normal_initializer(stddev=0.1))
        rows = sparse_lookup(table, ids[:, at], is_train=True, modify_graph=True)
        sums.append(tf.reduce_sum(rows, 1))
    value = layers.dense(tf.concat(sums, 1), WIDTH)
    # A layer has about 53 nodes with its gradients, its updates and its slots.
    for _ in range((nodes - 1000) // 53 + 2):
        value = value + layers.dense(value, WIDTH, activation=tf.nn.relu)
    loss = tf.reduce_mean(tf.compat.v1.nn.sigmoid_cross_entropy_with_logits(
        labels=label, logits=layers.dense(value, 1)))
    dense, sparse = get_dense_and_sparse_variable()
    grads = tf.gradients(loss, dense + sparse)
    tf.group(
        tf.compat.v1.train.AdamOptimizer().apply_gradients(zip(grads, dense)),
        create_hash_optimizer(0.01).apply_gradients(zip(grads[len(dense):], sparse)))
    tf.compat.v1.global_variables_initializer()


def timed(module, name, found, figure):
    """Lets a function of a module note how long it takes."""
    stock = getattr(module, name)

    def function(*args, **kwargs):
        begin = time.process_time()
        try:
            return stock(*args, **kwargs)
        finally:
            found[figure] = time.process_time() - begin

    setattr(module, name, function)


if __name__ == "__main__":
    main()
