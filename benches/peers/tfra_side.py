"""The side of TensorFlow Recommenders Addons: `python tfra_side.py CASE [--short]`.

Runs in an environment of its own (requirements/peer-tfra.txt): CASE is lookup, known-sgd,
known-adagrad, known-adam, new-sgd, new-adagrad or new-adam.
"""

import os
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
import tensorflow_recommenders_addons as tfra  # noqa: E402
import tf_keras  # noqa: E402

import work  # noqa: E402

RATE = 0.01
CHUNK = 50000
OPTIMIZERS = {
    "sgd": tf_keras.optimizers.legacy.SGD,
    "adagrad": tf_keras.optimizers.legacy.Adagrad,
    "adam": tf_keras.optimizers.legacy.Adam,
}


def main():
    """Fills the table and serves."""
    case, sizes = sys.argv[1], work.SHORT if "--short" in sys.argv else work.STANDARD
    kind, _, rule = case.partition("-")
    table = tfra.dynamic_embedding.get_variable(
        "table",
        dim=sizes.dim,
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        initializer=tf_keras.initializers.Constant(0.01),
        init_size=2 * sizes.rows,
    )
    rows = work.initial(sizes.rows, sizes.dim)
    for begin in range(0, sizes.rows, CHUNK):
        end = min(begin + CHUNK, sizes.rows)
        table.upsert(tf.range(begin, end, dtype=tf.int64), tf.constant(rows[begin:end]))
    make = {"lookup": work.lookups, "known": work.known, "new": work.new}[kind]
    batches = [tf.constant(batch) for batch in make(sizes)]
    step = lookup(table) if kind == "lookup" else training(table, OPTIMIZERS[rule](RATE))

    def probe():
        return table.lookup(batches[0][:64]).numpy().reshape(-1).tolist()

    work.serve(lambda k: step(batches[k % len(batches)]).numpy(), probe)


def lookup(table):
    """A function of ids that looks them up and gives the sum of the last row."""

    @tf.function
    def run(ids):
        return tf.reduce_sum(table.lookup(ids)[-1])

    return run


def training(table, optimizer):
    """A function of ids that takes one step of l2_loss over their rows, and gives the loss."""
    optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(optimizer)
    shadow = tfra.dynamic_embedding.shadow_ops.ShadowVariable(table, name="shadow")

    @tf.function
    def run(ids):
        with tf.GradientTape() as tape:
            tape.watch(shadow)
            rows = tfra.dynamic_embedding.shadow_ops.embedding_lookup(shadow, ids)
            loss = tf.nn.l2_loss(rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, [shadow]), [shadow]))
        return loss

    return run


if __name__ == "__main__":
    main()
