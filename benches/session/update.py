"""P3 and P4: optimizer updates from raw ids with duplicates, through a session."""

import tensorflow as tf
from mx_rec.ops.optimizers import Gradients, optimizer_named, update

from session import limits, measure, workload
from session.sides import Filling, Held, Ours, dense_variable, floor_of_lookups, session

RATE = 0.01


WORDS = {"u": "uniform ids", "z": "Zipf 1.05 ids"}


def lazy_adam(sizes, draw):
    """P3: LazyAdam beside tf.contrib.opt.LazyAdamOptimizer."""
    return _measure(
        sizes, draw, "P3", "LazyAdam", tf.contrib.opt.LazyAdamOptimizer(RATE), _apply_lazy_adam, 8.0,
        "lazy_adam",
    )


def adagrad(sizes, draw):
    """P4: Adagrad beside TensorFlow's."""
    peer = tf.compat.v1.train.AdagradOptimizer(RATE)
    return _measure(sizes, draw, "P4a", "Adagrad", peer, _apply_adagrad, 4.0, "adagrad")


def ftrl(sizes, draw):
    """P4: FTRL beside TensorFlow's."""
    peer = tf.compat.v1.train.FtrlOptimizer(RATE)
    return _measure(sizes, draw, "P4f", "FTRL", peer, _apply_ftrl, 4.0, "ftrl")


def momentum(sizes, draw):
    """P4: momentum beside TensorFlow's."""
    peer = tf.compat.v1.train.MomentumOptimizer(RATE, 0.9)
    return _measure(sizes, draw, "P4m", "momentum", peer, _apply_momentum, 4.0, "momentum")


def sgd(sizes, draw):
    """P4: gradient descent beside TensorFlow's."""
    peer = tf.compat.v1.train.GradientDescentOptimizer(RATE)
    return _measure(sizes, draw, "P4s", "SGD", peer, _apply_sgd, 2.0, "sgd")


def _measure(sizes, draw, number, rule, optimizer, apply_, target, limit_rule):
    what = "%s update from ids, %s" % (rule, WORDS[draw])
    which = tf.compat.v1.placeholder(tf.int32, [])
    table = dense_variable(sizes, "dense")
    ours = Ours(sizes, "update")
    filling = Filling(table, workload.key_order(sizes), ours.assign)
    batches = workload.id_batches(sizes, draw)
    held = Held(batches, "ids")
    gradient = Held(workload.gradients(sizes), "gradient")
    ids = held.value[which]

    updated = apply_(ours, ids, gradient.value)
    slices = tf.IndexedSlices(gradient.value, ids, tf.constant([sizes.rows, sizes.dim], tf.int64))
    train = optimizer.apply_gradients([(slices, table)])
    with tf.control_dependencies([train]):
        # A value that only exists after the update: the update cannot be dropped from the graph.
        done = tf.reduce_sum(tf.gather(table, ids[:1]))
    probe = [ours.find(ids), tf.gather(table, ids)]

    floor = floor_of_lookups(ids)
    limit = limits.Limit(batches, sizes.rows, sizes.dim, "update", optimizer=limit_rule)

    with session() as running, limit:
        running.run(tf.compat.v1.global_variables_initializer())
        held.load(running)
        gradient.load(running)
        filling.run(running)
        times = measure.interleave(
            [
                lambda k: running.run(updated, {which: k}),
                lambda k: running.run(done, {which: k}),
                lambda k: running.run(floor, {which: k}),
            ]
            + limit.sides,
            sizes.batches,
            sizes.repetitions,
            sizes.warmup,
        )
        values = running.run(probe, {which: 0})
        measure.agree(what, values[0], values[1], 2e-5)
    number = "%s %s" % (number, draw)
    peer_name = "%s, dense variable" % type(optimizer).__name__
    figure = measure.figure(number, what, times[0], times[1], target, True, peer_name)
    return [measure.with_limit(figure, limit, times[2], times[3:])]


def _apply_lazy_adam(ours, ids, gradient):
    """The update and what LazyAdam does besides: advancing the powers of beta."""
    powers = [tf.Variable(0.9, name="power_1"), tf.Variable(0.999, name="power_2")]
    updated = _apply(ours, ids, gradient, "lazy_adam", lr=RATE, beta1_power=powers[0],
                     beta2_power=powers[1], beta1=0.9, beta2=0.999, epsilon=1e-8)
    with tf.control_dependencies([updated]):
        advance = [
            tf.compat.v1.assign(powers[0], powers[0] * 0.9).op,
            tf.compat.v1.assign(powers[1], powers[1] * 0.999).op,
        ]
    with tf.control_dependencies(advance):
        return tf.identity(updated)


def _apply_adagrad(ours, ids, gradient):
    return _apply(ours, ids, gradient, "adagrad", lr=RATE, initial_accumulator=0.1)


def _apply_ftrl(ours, ids, gradient):
    return _apply(ours, ids, gradient, "ftrl", lr=RATE, lr_power=-0.5, initial_accumulator=0.1,
                  l1=0.0, l2=0.0, l2_shrinkage=0.0)


def _apply_momentum(ours, ids, gradient):
    return _apply(ours, ids, gradient, "momentum", lr=RATE, momentum=0.9)


def _apply_sgd(ours, ids, gradient):
    return _apply(ours, ids, gradient, "sgd", lr=RATE, weight_decay=0.0)


def _apply(ours, ids, gradient, rule, **numbers):
    """The update of the rows of ids, by an optimizer with its numbers."""
    (offsets,), (inverse,) = ours.ops.mx_rec_id_offset([ours.handle], [ids], [], [], create=1)
    step = optimizer_named(rule).step(numbers)
    return update(step, Gradients([ours.handle], [offsets], [gradient], [inverse])).outputs[0]
