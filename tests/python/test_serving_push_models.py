"""Every kind of lookup in models that take updates, unchanged models, and runs that are cut off by a deadline."""

import numpy as np
import pytest
import tensorflow as tf

import plain_cases as cases
import serving_cases as serving
import support
from mx_rec import serving as package
from mx_rec.export import plain
from mx_rec.saver import export_plain
from mx_rec.serving.servers import SessionServer
from mx_rec.util.stock_tables import StockTables


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(cases.CASES))
def test_every_lookup_sees_updates(dynamic, session, place, name):
    """Also in branches and loops, with default rows, and of tables that had no row when they were exported."""
    model = cases.CASES[name](tf)
    tf.compat.v1.get_variable("saved_too", initializer=1.0)
    sess = support.started(session())
    for table in model.tables:
        cases.fill(table, sess, model.keys)
    plain.export_plain(sess, place + "/export", model.inputs, model.outputs, updates=True,
                       spare_rows={table.table_name: 20 for table in model.tables})
    served = serving.Served(place + "/export")
    try:
        for table in model.tables:
            raw = support.Raw.of(table)
            keys = np.concatenate([cases.KNOWN[:5], cases.UNKNOWN[cases.UNKNOWN != -1][:3]])
            raw.assign(sess, keys, np.random.RandomState(4).randn(len(keys), table.emb_size))
            raw.remove(sess, cases.KNOWN[5:9])
        prefix = tf.compat.v1.train.Saver().save(sess, place + "/m", global_step=1)
        outcome = served.push(prefix, rows=50)
        assert outcome.error is None
        for feed in model.feeds:
            expected = sess.run(model.outputs, {model.inputs[key]: value for key, value in feed.items()})
            serving.assert_same(served.server.predict("serving_default", feed), expected)
    finally:
        served.close()


@pytest.mark.long
def test_runs_that_a_deadline_cuts_off_are_done_again_without_harm(mx, session, place):
    """A server cuts runs off when a request's deadline has passed, wherever they are."""
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    training = serving.Training(place, session())
    training.write(np.arange(3000))
    served = serving.Served(training.export(spare_rows=6000))

    class Hasty(SessionServer):
        """Gives runs little time at first."""

        cut = 0

        def predict(self, signature, inputs):
            if signature != "version":
                wanted = self._signatures[signature]
                for timeout in (1, 1, 1, 1, 2, 3, 1, 1):
                    try:
                        self._session.run({key: info.name for key, info in wanted.outputs.items()},
                                          {wanted.inputs[key].name: value for key, value in inputs.items()},
                                          options=tf.compat.v1.RunOptions(timeout_in_ms=timeout))
                    except tf.errors.DeadlineExceededError:
                        self.cut += 1
            return super().predict(signature, inputs)

    hasty = Hasty(served.sess, served.meta)
    for turn in range(4):
        training.write(np.arange(1000 * turn, 1000 * turn + 3000))
        training.remove(np.arange(1000 * turn, 1000 * turn + 500))
        outcome, = package.push(training.save(delta=turn != 2), [hasty], rows=2000, pause=0)
        assert outcome.error is None
        keys = np.arange(7000)
        serving.assert_same(served.look(keys), training.look(keys), "turn {}".format(turn))
        assert served.version().rows["items"] == training.tables[0].size()
    assert hasty.cut > 0
    served.close()


@pytest.mark.long
def test_an_unchanged_model_takes_updates(mx, session, place):
    """Its variables are tables of which nobody told it; its deltas have their rows."""
    mx(stock_tables=StockTables(least_rows=1), is_incremental_checkpoint=True, save_checkpoint_due_time=3600,
       save_delta_checkpoints_secs=3600)
    ids = tf.compat.v1.placeholder(tf.int64, [None], "ids")
    table = tf.compat.v1.get_variable("emb", [1000, 4], initializer=tf.compat.v1.random_normal_initializer(seed=1))
    found = tf.nn.embedding_lookup(table, ids)
    weight = tf.compat.v1.get_variable("weight", initializer=1.0)
    score = tf.reduce_sum(found * weight, 1)
    train = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(score - 1.0)))
    saver = tf.compat.v1.train.Saver(max_to_keep=100)
    sess = support.started(session())
    sess.run(train, {ids: [1, 2, 3]})
    export_plain(sess, place + "/export", {"ids": ids}, {"score": score}, updates=True, spare_rows=2000,
                 training_lookups="find")
    served = serving.Served(place + "/export")
    try:
        kinds = []
        for turn in range(3):
            sess.run(train, {ids: np.arange(10) + turn})
            outcome = served.push(saver.save(sess, place + "/m", global_step=turn, save_delta=turn > 0))
            assert outcome.error is None
            kinds.append(outcome.changes.kind)
            keys = np.arange(0, 20)
            expected = sess.run(score, {ids: keys})
            shown = served.server.predict("serving_default", {"ids": keys})["score"]
            support.assert_same_bits(shown[:turn + 10], expected[:turn + 10])
        assert kinds == ["full", "delta", "delta"]
    finally:
        served.close()
