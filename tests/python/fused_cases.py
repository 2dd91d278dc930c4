"""What the tests of lookups that modified graphs fuse share."""

import numpy as np
import tensorflow as tf

import modify_cases as cases
import support
from modify_cases import AHEAD

BATCH, LENGTH = 6, 5


def data(count=7 * BATCH, features=2, seed=0):
    """(ids (n, features, length) with padding and repeated keys, labels (n))."""
    random = np.random.RandomState(seed)
    ids = random.randint(0, 40, [count, features, LENGTH]).astype(np.int64) * 7 - 50
    ids[random.random_sample(ids.shape) < 0.2] = -1
    return ids, random.random_sample(count).astype(np.float32)


def iterator(static, **arguments):
    dataset = tf.data.Dataset.from_tensor_slices(data(**arguments)).batch(BATCH, drop_remainder=static)
    return tf.compat.v1.data.make_initializable_iterator(dataset)


def batches(static, **arguments):
    """(iterator, ids, label)."""
    source = iterator(static, **arguments)
    return (source,) + tuple(source.get_next())


def total(rows, axis=1, keepdims=False, reduce="reduce_sum"):
    """A sum over bags, (batch, dim) whether the dimension was kept or not."""
    value = getattr(tf, reduce)(rows, axis=axis, keepdims=keepdims)
    return tf.reshape(value, [-1, rows.shape.as_list()[-1]]) if keepdims else value


def loss_of(sums, label):
    """A loss whose gradients differ from bag to bag."""
    joined = tf.concat(sums, axis=1)
    return tf.reduce_mean(tf.square(tf.reduce_sum(tf.tanh(joined), axis=1) - label))


def optimizer(name="lazy_adam"):
    if name == "lazy_adam":
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer
    elif name == "adagrad":
        from mx_rec.optimizers.adagrad import create_hash_optimizer
    else:
        from mx_rec.optimizers.gradient_descent import create_hash_optimizer
    return create_hash_optimizer(0.05)


def needed(op):
    """The types of all ops that a run of `op` needs; those that repeat over bags are marked."""
    seen, waiting = set(), [op]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(tensor.op for tensor in one.inputs)
            waiting.extend(one.control_inputs)
    repeats = {one for one in seen if one.type in ("Tile", "BroadcastTo") and (one.outputs[0].shape.rank or 3) > 2}
    return {support.kind_of(one) for one in seen} | ({"repeats"} if repeats else set())


def train(run, source, loss, tables, change=lambda pairs: pairs, kind="lazy_adam", others=(), fused=True):
    """Updates the tables, runs all steps, and notes what there is to see."""
    opt = optimizer(kind)
    grads = tf.gradients(loss, [table.variable for table in tables])
    update = opt.apply_gradients(change([(grad, table.variable) for grad, table in zip(grads, tables)]))
    run.modify()
    if run.is_modified:
        types = needed(update)
        if fused:
            assert not types & {"MxRecRead", "MxRecRead of many", "MxRecRestore", "MxRecFind", "repeats"}, types
        if fused is not None:
            assert any(one.fuses for one in run.plan.sums + run.plan.concats) == fused, run.plan.text()
    sess = run.begin(source)
    run.finish(sess, [loss, list(others), update])
    return update


def close(script, **config):
    """Runs a script in both forms; its notes are equal to rounding."""
    from mx_rec.util.initialize import init, terminate_config_initializer

    runs = []
    for form in (cases.STEP, AHEAD):
        tf.compat.v1.reset_default_graph()
        init(**config)
        run = cases.Run(form)
        run.note = lambda label, value, run=run: run.notes.append((label, value))
        try:
            script(run)
        finally:
            run.close()
            terminate_config_initializer()
            tf.compat.v1.reset_default_graph()
        runs.append(run)
    assert runs[0].notes and len(runs[0].notes) == len(runs[1].notes)
    for (label, one), (_, other) in zip(runs[0].notes, runs[1].notes):
        _assert_close(label, one, other)
    return runs[1]


def _assert_close(label, one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), label
        for key in one:
            _assert_close(label, one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), label
        for left, right in zip(one, other):
            _assert_close(label, left, right)
    elif isinstance(one, (np.ndarray, np.floating)):
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-6, err_msg=label)
    else:
        assert one == other, label
