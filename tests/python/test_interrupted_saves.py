"""A save that Ctrl-C ends anywhere in Python leaves the checkpoint before it, and nothing that stays around."""

import os
import sys

import numpy as np
import pytest
import tensorflow as tf

import support
from test_incremental_checkpoints import Model, incremental  # noqa: F401  a fixture


class Interrupt:
    """Raises KeyboardInterrupt before one of the lines that a save runs in the package."""

    def __init__(self, line):
        self.line, self.seen = line, 0

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _call(self, frame, event, _):
        name = frame.f_code.co_filename
        is_of_saves = os.sep + "mx_rec" + os.sep in name and ("saver" in name or "checkpoint" in name)
        return self._line if is_of_saves else None

    def _line(self, _, event, __):
        if event == "line":
            self.seen += 1
            if self.seen == self.line:
                raise KeyboardInterrupt()
        return self._line


def state(model, sess):
    rows, dense = model.state(sess)
    return [{key: np.asarray(row).tolist() for key, row in one.items()} for one in rows] + [dense]


@pytest.mark.long
@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
def test_an_interrupted_save_leaves_the_one_before_and_the_next_removes_what_lies_around(
        graph, session, incremental, place, delta):  # noqa: F811
    """Ctrl-C left hidden directories of unfinished saves and, with deltas, a chain that could not be restored."""
    incremental()
    model = Model(max_to_keep=3)
    with support.started(support.new_session()) as sess:
        line, number, stopped = 1, 1, 0
        sess.run(model.train, {model.ids: [1, 2, 3]})
        model.save(sess, place + "/m", number, delta=False)
        saved = state(model, sess)
        while line < 1000:
            sess.run(model.train, {model.ids: [number % 7, 3]})
            with Interrupt(line) as interrupt:
                model.saver.save(sess, place + "/m", number + 1, save_delta=delta, write_meta_graph=False)
            if interrupt.seen < line:
                break
            stopped += 1
            now = state(model, sess)
            model.saver.restore(sess, tf.train.latest_checkpoint(place))
            assert state(model, sess) in (saved, now), line
            # The next save is whole or a delta, and clean.
            number += 2
            sess.run(model.train, {model.ids: [number % 5]})
            model.save(sess, place + "/m", number, delta=delta)
            saved = state(model, sess)
            assert not [name for name in os.listdir(place) if name.startswith(".")], (line, os.listdir(place))
            model.saver.restore(sess, place + "/m-%d" % number)
            assert state(model, sess) == saved, line
            # Of all lines some, another choice in each run of the two.
            line += 37 if delta else 41
    assert stopped > 10
