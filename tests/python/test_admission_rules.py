"""Random histories of training, eviction, thresholds and checkpoints against the rules in plain Python, in all forms of a script."""

import numpy as np
import pytest

import modify_cases
import support
from admission_cases import BATCH, DIM, STEPS, Rules, Script, batches
from mx_rec.core.admission import evict, set_threshold

FORMS = (modify_cases.STEP, modify_cases.AHEAD, modify_cases.SPECS)


def trained(run, seed, access, eviction, actions, has_time=True):
    """Trains a random history; `actions` are (name, chance) of what happens between steps."""
    random = np.random.RandomState(seed + 100)
    script = Script(run, batches(seed), dict(access_threshold=access, eviction_threshold=eviction), has_time=has_time,
                    time_first=seed % 2 == 0)
    rules = Rules(access, eviction)
    sess = run.session()
    script.start(sess)
    for step in range(STEPS):
        script.step(sess, step, rules)
        for name, chance in actions:
            if random.rand() >= chance:
                continue
            if name == "evict":
                with sess.as_default():
                    evicted = evict()["table"]
                assert tuple(evicted) == rules.evict()
                run.note("evicted", evicted)
            elif name == "threshold":
                value = int(random.randint(0, 9))
                with sess.as_default():
                    set_threshold(value, "table")
                rules.set_threshold(value)
            else:
                path = script.saver.save(sess, "{}/step".format(run.directory), global_step=step)
                sess.close()
                sess = run.session()
                script.saver.restore(sess, path)
                script.start(sess, step + 1)
            script.compare(sess, rules)
    run.contents(sess)
    run.rules = rules
    return rules


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@support.run_by(modify_cases.alike, "tmp_path", moves=2, forms=FORMS)
def test_admission_and_eviction_follow_the_rules_in_every_form(run, seed):
    rules = trained(run, seed, 1 + 4 * seed, 12, [("evict", 0.5)])
    assert rules.evicted > 0 and (rules.refused > 0 or seed == 0)


@pytest.mark.parametrize("seed", range(4))
@support.run_by(modify_cases.alike, "tmp_path", moves=2, forms=FORMS)
def test_thresholds_that_change_while_training_follow_the_rules_in_every_form(run, seed):
    trained(run, seed + 20, 3, 15, [("threshold", 0.3), ("evict", 0.2)])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@support.run_by(modify_cases.alike, "tmp_path", moves=2, forms=FORMS)
def test_histories_go_on_where_a_checkpoint_was_saved_in_every_form(run, seed):
    trained(run, seed + 40, 5, 20, [("save", 0.3), ("evict", 0.2), ("threshold", 0.1)])


@support.run_by(modify_cases.alike, "tmp_path", moves=2, forms=FORMS)
def test_admission_alone_needs_no_timestamp_in_any_form(run):
    assert trained(run, 60, 6, -1, [], has_time=False).refused > 0


@pytest.mark.long
def test_threshold_one_without_eviction_trains_what_no_threshold_trains():
    data = batches(70)
    found = []

    def script(config):
        def build(run):
            one = Script(run, data, config, has_time=False)
            sess = run.session()
            one.start(sess)
            for _ in range(STEPS):
                run.step(sess, one.seen)
            found.append(run.raw(one.table).rows(sess))

        return build

    for config in (dict(access_threshold=1), dict(access_threshold=None)):
        modify_cases.alike(script(config), moves=2, forms=FORMS)
    assert len(found) == 6 and found[0]
    for one in found[1:]:
        support.assert_same_tables(one, found[0])


def test_the_model_itself_refuses_and_evicts():
    """The rules are simple enough to be told by hand."""
    rules = Rules(2, 10)
    ones = np.ones([2, DIM])
    first, = rules.step([(np.array([7, 8]), 1, ones)], 100)
    assert not first.any() and not rules.rows
    second, = rules.step([(np.array([7, -1]), 1, ones)], 105)
    assert second.tolist() == [[0.5, 0.5], [0, 0]] and sorted(rules.rows) == [7]
    assert rules.evict() == (0, 2)
    rules.step([(np.array([9, 9]), 1, ones)], 110)
    assert rules.evict() == (1, 2) and sorted(rules.counts) == [7, 9]
    assert BATCH == 6
