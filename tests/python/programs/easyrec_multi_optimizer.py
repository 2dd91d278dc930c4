"""EasyRec's MultiOptimizer with gradient multipliers and clipping: one optimizer for the wide part and one for the rest, each with
variables of its own, behind one apply_gradients; gradients of some variables are multiplied, all are clipped by a global norm that
the program computes, and summaries show it. The Saver is one of all variables, sharded, in a Scaffold.
"""

import os

import common
import stock_cases as cases
import support

TABLES = ["deep/items", "wide/items"]


def optimizer(wide, rest):
    """Two optimizers behind the methods of one."""
    v1 = support.tf().compat.v1

    class Both(v1.train.Optimizer):
        def __init__(self):
            super().__init__(False, "Both")
            self._parts = [(v1.train.FtrlOptimizer(0.1), wide), (v1.train.AdamOptimizer(0.02), rest)]

        def compute_gradients(self, loss):  # pylint: disable=arguments-differ
            return [pair for one, variables in self._parts for pair in one.compute_gradients(loss, variables)]

        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs, done = list(grads_and_vars), []
            for one, variables in self._parts:
                names = {variable.name for variable in variables}
                done.append(one.apply_gradients([pair for pair in pairs if pair[1].name in names],
                                                global_step if not done else None))
            return v1.group(done)

    return Both()


def changed(pairs, multiplier):
    """Gradients of embeddings times a number, and all of them clipped."""
    tf = support.tf()
    found = []
    for grad, variable in pairs:
        if isinstance(grad, tf.IndexedSlices):
            grad = tf.IndexedSlices(grad.values * multiplier, grad.indices, grad.dense_shape)
        found.append((grad, variable))
    halves = tf.stack([tf.nn.l2_loss(getattr(grad, "values", grad)) for grad, _ in found])
    norm = tf.sqrt(tf.reduce_sum(halves) * 2.0)
    tf.compat.v1.summary.scalar("norm", norm)
    grads, _ = tf.clip_by_global_norm([grad for grad, _ in found], 0.5, use_norm=norm)
    return list(zip(grads, [variable for _, variable in found]))


def run(directory, steps):
    tf = support.tf()
    v1 = tf.compat.v1
    ids, labels = common.placeholders()
    step = v1.train.get_or_create_global_step()
    with v1.variable_scope("wide"):
        wide = common.variable("items", [common.ROWS, 1])
    with v1.variable_scope("deep"):
        items = common.variable("items")
    scores = tf.reduce_sum(tf.nn.embedding_lookup(wide, ids), [1, 2]) + common.deep(
        tf.reshape(tf.nn.embedding_lookup(items, ids), [-1, 3 * common.DIM]))
    loss = common.log_loss(scores, labels)
    both = optimizer([wide], [one for one in v1.trainable_variables() if one is not wide])
    train = both.apply_gradients(changed(both.compute_gradients(loss), 2.0), step)
    scaffold = v1.train.Scaffold(saver=v1.train.Saver(v1.global_variables(), sharded=True, max_to_keep=2))
    losses = []
    with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, scaffold=scaffold, save_checkpoint_steps=10,
                                           save_summaries_steps=5, log_step_count_steps=None) as session:
        for one, other in cases.batches(steps):
            losses.append(session.run([loss, train], {ids: one, labels: other})[0])
        (one, _), = cases.batches(1, seed=9)
        found = session.run_step_fn(lambda step_context: step_context.session.run(scores, {ids: one}))
    assert os.path.exists(os.path.join(directory, "checkpoint"))
    return {"losses": losses, "scores": found}
