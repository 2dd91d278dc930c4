"""Tables with admission_sketch_bytes: the same rules as exact counters as long as keys do not meet, in memory that does not grow."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases
import support
from admission_cases import STEPS, Rules, Script, batches
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.stats import table_stats

# So wide that the few keys of these tests do not meet.
WIDE = 2 ** 20


class RowsOnly(Rules):
    """The rules of exact counters, but for evictions, which tell of keys with rows alone."""

    def evict(self):
        had = set(self.rows)
        super().evict()
        return len(had - set(self.rows)), len(self.rows)


def make(sketch, name="table", **arguments):
    return support.make_table(name, 2, 1000, 1.0, admission_sketch_bytes=sketch, **arguments)


def lookup(table, ids, access=2, eviction=None):
    return sparse_lookup(table, ids, modify_graph=True, access_and_evict_config={
        "access_threshold": access, "eviction_threshold": eviction})


def placeholder():
    return tf.compat.v1.placeholder(tf.int64, [None])


def test_the_worked_example_refuses_33_alone(graph, session, dynamic):
    table, ids = make(np.int64(1024)), placeholder()
    assert table.admission_sketch_bytes == 1024
    embedding = lookup(table, ids)
    batch = [key for key, count in ((11, 1), (11, 2), (33, 1), (44, 3), (11, 1), (55, 1), (88, 4), (55, 1))
             for _ in range(count)]
    raw, sess = support.opened(table, session)
    found = sess.run(embedding, {ids: batch})
    assert [key for key, row in zip(batch, found) if not row.any()] == [33]
    assert sorted(raw.rows(sess)) == [11, 44, 55, 88]
    assert sess.run(embedding, {ids: [33]}).tolist() == [[1, 1]]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_training_follows_the_rules_in_every_form(tmp_path, seed):
    """Evictions, thresholds that change, and checkpoints from which a training goes on."""
    from mx_rec.core.admission import evict, set_threshold

    def script(run):
        random = np.random.RandomState(seed)
        one = Script(run, batches(seed), dict(access_threshold=4, eviction_threshold=12), admission_sketch_bytes=WIDE)
        rules = RowsOnly(4, 12)
        sess = run.session()
        one.start(sess)
        for step in range(STEPS):
            one.step(sess, step, rules)
            with sess.as_default():
                if random.rand() < 0.4:
                    evicted = evict()["table"]
                    assert tuple(evicted) == rules.evict()
                    run.note("evicted", evicted)
                if random.rand() < 0.2:
                    value = int(random.randint(0, 9))
                    set_threshold(value, "table")
                    rules.set_threshold(value)
            if random.rand() < 0.2:
                path = one.saver.save(sess, "{}/step".format(run.directory), global_step=step)
                sess.close()
                sess = run.session()
                one.saver.restore(sess, path)
                one.start(sess, step + 1)
            one.compare(sess, rules)
        assert rules.evicted > 0 and rules.refused > 0
        run.contents(sess)

    forms = (modify_cases.STEP, modify_cases.AHEAD, modify_cases.SPECS)
    modify_cases.alike(script, moves=2, forms=forms, tmp_path=tmp_path)


def test_100000_rare_ids_take_the_bytes_that_were_given(graph, session, dynamic):
    tables = [make(2 ** 16, "sketch"), make(0, "exact")]
    ids = placeholder()
    embeddings = [lookup(table, ids, access=1000) for table in tables]
    sess = session()
    for start in range(0, 100000, 10000):
        found = sess.run(embeddings, {ids: np.arange(start, start + 10000) * 7919})
        assert not found[0].any() and not found[1].any()
        assert table_stats("sketch").bytes_history == 2 ** 16
    assert table_stats("exact").bytes_history > 10 * 2 ** 16
    assert table_stats("sketch").refused == table_stats("exact").refused == 100000


@pytest.mark.parametrize("saved, restored, keeps", [
    (WIDE, WIDE, True), (0, WIDE, True), (WIDE, 0, False), (WIDE, 2 * WIDE, False)])
def test_a_checkpoint_restores_into_a_table_with_another_setting(graph, dynamic, tmp_path, caplog, saved, restored, keeps):
    tf1 = tf.compat.v1
    path = None
    for sketch in (saved, restored):
        tf1.reset_default_graph()
        table, ids = make(sketch), placeholder()
        embedding = lookup(table, ids, access=3)
        saver = tf1.train.Saver()
        with support.new_session() as sess:
            if path is None:
                sess.run(embedding, {ids: [1, 1, 1, 2, 2]})
                path = saver.save(sess, str(tmp_path / "model"), global_step=1)
            else:
                saver.restore(sess, path)
                # 1 has its row in any case; 2 was seen twice.
                found = sess.run(embedding, {ids: [1, 2]})
    assert found.any(axis=1).tolist() == [True, keeps]
    assert ("the counts of keys without rows are not restored" in caplog.text) == (not keeps)


def test_tables_with_other_sketches_are_not_merged(graph, mx):
    mx(use_dynamic_expansion=True)
    tables = [make(size, name, enable_merge=True)
              for name, size in (("one", 4096), ("two", 4096), ("wide", 8192), ("exact", 0))]
    names = [table.physical_name for table in tables]
    assert names[0] == names[1] and len(set(names)) == 3


def test_a_sketch_that_no_machine_has_room_for_fails_the_step_by_name(graph, session, dynamic):
    with open("/proc/meminfo", encoding="ascii") as file:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    if kibibytes["MemAvailable"] >= 2 ** 30:
        pytest.skip("this machine has 1 TiB to give")
    table, ids = make(2 ** 40), placeholder()
    embedding = lookup(table, ids)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="table"):
        session().run(embedding, {ids: [1]})
