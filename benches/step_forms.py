"""Steps of unchanged models in the forms that programs have, on variables and on tables.

    python benches/step_forms.py [FORM...] [--steps N] [--turns N]

A form is an optimizer and what the program does besides, such as `lazy_adam clip`:

    clip    gradients are clipped by the norm of all (tf.clip_by_global_norm)
    norm    batch normalization, whose averages the training waits for
    sparse  4 columns of 20 ids whose rows are averaged (tf.nn.embedding_lookup_sparse), batches of
            4,096, dim 32; else 26 columns of an id, batches of 2,048, dim 16
    weights of them with a weight for each id
    padded  zeros in the place of the first row of each column

Columns have 200,000 rows, and ids, which an iterator gives, are the more frequent the smaller they
are. Each side is a process, by turns; a line has the medians of a step in milliseconds of the
quicker turn of each, and how many times as quick tables are.
"""

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any, List

import numpy as np
import tensorflow as tf

FORMS = ["lazy_adam", "lazy_adam clip", "lazy_adam norm", "sgd", "adagrad clip", "adagrad sparse",
         "adagrad sparse weights", "adam padded"]
ROWS, BATCHES, WARM_UP = 200000, 32, 34
SIDES = ("variables", "tables")
v1 = tf.compat.v1


def optimizer_named(name: str) -> Any:
    """Returns an optimizer of TensorFlow."""
    return {"lazy_adam": lambda: tf.contrib.opt.LazyAdamOptimizer(0.001),
            "adam": lambda: v1.train.AdamOptimizer(0.001),
            "adagrad": lambda: v1.train.AdagradOptimizer(0.01),
            "sgd": lambda: v1.train.GradientDescentOptimizer(0.01)}[name]()


def columns(has: List[str]) -> List[tf.Tensor]:
    """Builds the lookups of the columns."""
    is_sparse = "sparse" in has
    count, batch, dim, size = (4, 4096, 32, 20) if is_sparse else (26, 2048, 16, 1)
    random = np.random.RandomState(0)
    drawn = [(np.exp(random.rand(BATCHES, batch * size) * np.log(ROWS)) - 1).astype(np.int64)
             for _ in range(count)]
    data = tf.data.Dataset.from_tensor_slices(tuple(drawn)).repeat().prefetch(2)
    ids = v1.data.make_one_shot_iterator(data).get_next()
    made = [v1.get_variable("column{}".format(at), [ROWS, dim],
                            initializer=v1.random_uniform_initializer(-0.01, 0.01))
            for at in range(count)]
    if "padded" in has:
        made = [tf.concat([tf.zeros([1, dim]), one[1:, :]], 0) for one in made]
    if not is_sparse:
        return [tf.nn.embedding_lookup(one, of) for one, of in zip(made, ids)]
    places = tf.constant(np.stack([np.arange(batch * size) // size,
                                   np.arange(batch * size) % size], 1), tf.int64)
    weights = tf.SparseTensor(places, tf.constant(random.rand(batch * size), tf.float32),
                              [batch, size]) if "weights" in has else None
    return [tf.nn.embedding_lookup_sparse(
        one, tf.SparseTensor(places, of, [batch, size]), weights, combiner="mean")
        for one, of in zip(made, ids)]


def measure(side: str, form: str, steps: int) -> float:
    """Trains a model; returns the median of a step in milliseconds."""
    if side == "tables":
        from mx_rec.util.initialize import init

        init(stock_tables=".*")
    optimizer, *has = form.split()
    rows = tf.concat(columns(has), 1)
    if "norm" in has:
        rows = v1.layers.batch_normalization(rows, training=True)
    loss = tf.reduce_mean(tf.square(v1.layers.dense(rows, 8)))
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        chosen = optimizer_named(optimizer)
        grads, variables = zip(*chosen.compute_gradients(loss))
        if "clip" in has:
            grads, _ = tf.clip_by_global_norm(grads, 1.0)
        train = chosen.apply_gradients(zip(grads, variables))
    took = []  # type: List[float]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for step in range(WARM_UP + steps):
            began = time.perf_counter()
            session.run([train, loss])
            took.append(time.perf_counter() - began)
    return 1e3 * statistics.median(took[WARM_UP:])


def main() -> None:
    """Runs the forms that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", default=FORMS)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--side", choices=SIDES, help="in this process, the median alone")
    given = parser.parse_args()
    for form in given.forms:
        if given.side:
            print(measure(given.side, form, given.steps))
            continue
        found = {side: float("inf") for side in SIDES}
        for side in SIDES * given.turns:
            out = subprocess.run([sys.executable, __file__, form, "--side", side, "--steps",
                                  str(given.steps)], check=True, stdout=subprocess.PIPE)
            found[side] = min(found[side], float(out.stdout.split()[-1]))
        print("{:22} variables {:7.2f}  tables {:7.2f}  {:.2f}".format(
            form, found["variables"], found["tables"], found["variables"] / found["tables"]),
            flush=True)


if __name__ == "__main__":
    main()
