"""What the programs share: batches, and a training in a session that goes on from the checkpoint of its directory."""

import os

import numpy as np

import stock_cases as cases
import support

ROWS, DIM = cases.ROWS, cases.DIM


def placeholders():
    """Ids (b, 3) int64 and labels (b) float32."""
    tf = support.tf()
    v1 = tf.compat.v1
    return v1.placeholder(tf.int64, [None, 3], "ids"), v1.placeholder(tf.float32, [None], "labels")


def variable(name, shape=(ROWS, DIM), **arguments):
    v1 = support.tf().compat.v1
    arguments.setdefault("initializer", v1.truncated_normal_initializer(stddev=0.1))
    return v1.get_variable(name, shape, **arguments)


def deep(rows, name="deep"):
    """Scores (b) of vectors (b, n): a hidden layer and a last one."""
    v1 = support.tf().compat.v1
    width = rows.shape.as_list()[1]
    with v1.variable_scope(name):
        hidden = v1.nn.relu(v1.matmul(rows, variable("hidden", [width, 8])) + variable("bias", [8]))
        return v1.matmul(hidden, variable("last", [8, 1]))[:, 0]


def log_loss(scores, labels):
    v1 = support.tf().compat.v1
    targets = v1.cast(labels > 0.0, v1.float32)
    return v1.reduce_mean(v1.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=scores))


def train(directory, steps, inputs, loss, step, scores, saver=None):
    """Trains in a session, and saves; returns the losses and the scores of a batch by name.

    Args:
        directory: Of checkpoints. If it has one, training goes on from it.
        steps: How many.
        inputs: The placeholders.
        loss: Of a step.
        step: The training op.
        scores: What is predicted.
        saver: A Saver of the program.
    """
    v1 = support.tf().compat.v1
    saver = saver or v1.train.Saver()
    with support.started(support.new_session()) as session:
        latest = v1.train.latest_checkpoint(directory)
        if latest:
            saver.restore(session, latest)
        losses = [session.run([loss, step], dict(zip(inputs, batch)))[0] for batch in cases.batches(steps)]
        (ids, labels), = cases.batches(1, seed=9)
        found = {"losses": np.array(losses), "scores": session.run(scores, {inputs[0]: ids})}
        saver.save(session, os.path.join(directory, "model"), global_step=len(losses))
    return found


def dataset(steps):
    """Batches as features and labels, for an Estimator."""
    tf = support.tf()
    ids, labels = [np.concatenate(parts) for parts in zip(*cases.batches(max(steps, 1)))]
    features = {"user": ids[:, 0], "item": ids[:, 1], "word": np.array(["w%d" % one for one in ids[:, 2]]),
                "number": np.cos(ids[:, 0]).astype(np.float32)}
    return tf.data.Dataset.from_tensor_slices((features, (labels > 0).astype(np.int64))).batch(cases.BATCH).prefetch(1)


def estimate(made, steps):
    """Trains, evaluates and predicts by a canned Estimator; returns the losses and logits."""
    tf = support.tf()
    losses = []

    class Losses(tf.estimator.SessionRunHook):
        def before_run(self, context):
            return tf.estimator.SessionRunArgs(context.session.graph.get_collection(tf.compat.v1.GraphKeys.LOSSES)[0])

        def after_run(self, context, run_values):
            losses.append(run_values.results)

    made.train(lambda: dataset(steps), hooks=[Losses()], steps=max(steps, 1))
    if not steps:
        return {}
    found = made.evaluate(lambda: dataset(1), steps=1)
    return {"losses": np.array(losses + [found["loss"]]),
            "scores": np.array([one["logits"] for one in made.predict(lambda: dataset(1))])}
