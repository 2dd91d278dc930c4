"""Checkpoints that go from one version of TensorFlow to another, in both directions."""

import os

import tensorflow as tf

import model
from features import Lacking
from model import Training, initialized, lazy_adam, session, started

tf1 = tf.compat.v1
OLDEST = "1.15"
_SAVED = "model.ckpt-6"


def features(directory):
    """The features: leaving a checkpoint, and restoring those of the oldest and of others.

    Args:
        directory: Has a directory for each version that left a checkpoint.
    """
    return [("checkpoints: save here for other versions", lambda place: _leave(directory)),
            ("checkpoints of 1.15 restore here", lambda place: _restore(directory, True)),
            ("checkpoints of 2.x restore here", lambda place: _restore(directory, False))]


def _leave(directory):
    with started():
        training = Training(lazy_adam)
        with initialized() as sess:
            training.run(sess, range(6))
            mine = os.path.join(directory, tf.__version__)
            os.makedirs(mine, exist_ok=True)
            tf1.train.Saver().save(sess, os.path.join(mine, "model.ckpt"), global_step=6)
            return training.contents.digest(sess)


def _restore(directory, is_oldest):
    others = [name for name in sorted(os.listdir(directory)) if name.startswith(OLDEST) == is_oldest
              and name != tf.__version__
              and os.path.exists(os.path.join(directory, name, _SAVED + ".index"))]
    if not others:
        raise Lacking("no other such version has left a checkpoint")
    told = set()
    for name in others:
        with started():
            training = Training(lazy_adam)
            with session() as sess:
                tf1.train.Saver().restore(sess, os.path.join(directory, name, _SAVED))
                training.run(sess, range(6, model.STEPS))
                told.add(training.contents.digest(sess))
    assert len(told) == 1, (others, told)
    return told.pop()
