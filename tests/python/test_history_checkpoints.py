"""The admission history goes with its table: through saves, restores, deltas, other file systems, warm starts, and the command."""

import json
import os
import shutil
import struct

import pytest
import tensorflow as tf

import admission_cases
import estimator_cases as cases
import modify_cases
import support
from mx_rec.checkpoint.__main__ import main
from mx_rec.core.admission import evict, set_threshold
from mx_rec.core.embedding import sparse_lookup

tf1 = tf.compat.v1

USER, ITEM = cases.TABLES
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "checkpoints")
KEYS = {7: (5, 100), 8: (4, 110), 9: (1, 120), -5: (2, 0)}


def write_history(directory, keys=None, thresholds=(3, 60, 1), latest=120):
    """Makes a saved table one of the original with a history: no manifest, two files more."""
    for path in (directory, os.path.dirname(directory)):
        if os.path.exists(path + "/manifest.json"):
            os.remove(path + "/manifest.json")
    support.write(directory + "/table_2_thresh", struct.pack("<%di" % len(thresholds), *thresholds))
    records = [struct.pack("<qqq", key, *seen) for key, seen in (KEYS if keys is None else keys).items()]
    support.write(directory + "/hist_rec", struct.pack("<q", latest) + b"".join(records))


def read_history(directory):
    """{key: (count, last)} of a saved table."""
    with open(directory + "/hist_rec", "rb") as file:
        words = struct.unpack("<q", file.read(8)) + tuple(
            word for record in iter(lambda: file.read(24), b"") for word in struct.unpack("<qqq", record))
    return {words[at]: words[at + 1:at + 3] for at in range(1, len(words), 3)}


def described(directory):
    from mx_rec.checkpoint import tables

    found = tables.describe(directory)
    assert found["faults"] == []
    return found["history"]


def command(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return capsys.readouterr().out, code


class Model:
    """Two tables, of which `users` has a history in the files that are restored."""

    def __init__(self, items_is_save=True):
        tables = [support.make_table(name, 3, 100, 1.0, is_save=is_save)
                  for name, is_save in (("users", True), ("items", items_is_save))]
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.rows = [sparse_lookup(table, self.ids, modify_graph=True) for table in tables]
        tf.compat.v1.get_variable("dense", initializer=1.0)
        self.saver = tf.compat.v1.train.Saver(max_to_keep=9)
        self.init = tf.compat.v1.global_variables_initializer()

    def start(self, sess, ids=(7, 8, 9)):
        sess.run(self.init)
        sess.run(self.rows, {self.ids: ids})


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("items_is_save", [True, False])
def test_what_was_restored_is_saved_again_on_any_file_system(dynamic, session, tmp_path, scheme, items_is_save):
    model, sess = Model(items_is_save), session()
    place = os.path.realpath(str(tmp_path)) + "/m"
    model.start(sess)
    path = model.saver.save(sess, scheme + place, global_step=1)
    assert described(str(tmp_path) + "/sparse-m-1/users") is None
    write_history(str(tmp_path) + "/sparse-m-1/users")
    other = support.restored(session(), model.saver, path)
    again = model.saver.save(other, scheme + place, global_step=2)
    saved = str(tmp_path) + "/sparse-m-2/users"
    assert read_history(saved) == KEYS
    assert described(saved) == {"keys": 4, "access": 3, "configured_access": 3, "eviction": 60, "counting": True, "latest": 120}
    listed = [file["path"] for file in json.load(open(saved + "/manifest.json"))["files"]]
    assert "hist_rec" in listed and "table_2_thresh" in listed
    assert not os.path.exists(str(tmp_path) + "/sparse-m-2/items/hist_rec")
    # And now from our own files.
    third = support.restored(session(), model.saver, again)
    model.saver.save(third, scheme + place, global_step=3)
    assert read_history(str(tmp_path) + "/sparse-m-3/users") == KEYS


def test_every_delta_has_the_whole_history_and_the_newest_counts(mx, session, tmp_path):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    model, sess = Model(), session()
    place = os.path.realpath(str(tmp_path)) + "/m"
    model.start(sess)
    path = model.saver.save(sess, place, global_step=1)
    write_history(place[:-1] + "sparse-m-1/users")
    other = support.restored(session(), model.saver, path)
    base = model.saver.save(other, place, global_step=2)
    other.run(model.rows, {model.ids: [11]})
    delta = model.saver.save(other, place, global_step=3, save_delta=True)
    known = read_history(place[:-1] + "delta-sparse-m-3/users")
    # The new row was made without admission: it counts as admitted.
    assert known == {11: (3, 120), **KEYS}
    for path, expected in ((delta, known), (base, KEYS)):
        third = support.restored(session(), model.saver, path)
        model.saver.save(third, place + "-again", global_step=4)
        assert read_history(place[:-1] + "sparse-m-again-4/users") == expected


@pytest.mark.parametrize("name", ["hist_rec", "table_2_thresh"])
@pytest.mark.parametrize("damage", ["bit", "cut", "missing"])
def test_a_damaged_history_is_refused_by_name_before_anything_changes(dynamic, session, tmp_path, name, damage):
    model, sess = Model(), session()
    place = os.path.realpath(str(tmp_path)) + "/m"
    model.start(sess)
    path = model.saver.save(sess, place, global_step=1)
    write_history(place[:-1] + "sparse-m-1/users")
    model.saver.restore(sess, path)
    path = model.saver.save(sess, place, global_step=2)
    file = place[:-1] + "sparse-m-2/users/" + name
    content = open(file, "rb").read()
    os.remove(file)
    if damage != "missing":
        support.write(file, content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(tf.errors.DataLossError, match=name) as raised:
        model.saver.restore(sess, path)
    assert "users" in str(raised.value)


def old_model(directory):
    """A trained model whose user table has a history, in files of the original."""
    case = cases.Case("step", directory, keep_checkpoint_max=9)
    case.train(steps=6)
    sparse = case.directory + "/sparse-model.ckpt-6/"
    for name in cases.TABLES:
        os.remove(sparse + name + "/manifest.json")
    write_history(sparse + USER)
    return case.directory


@pytest.mark.parametrize("wanted, comes", [
    (".*", False), (["user_table", "item_table"], True), (["user_table$"], False),
    (["user_table$", "user_table/hist_rec"], True), (["user_table$", "user_table/LazyAdam"], False)])
def test_a_history_starts_warm_where_slots_would(dynamic, tmp_path, wanted, comes):
    old = old_model(tmp_path / "old")
    case = cases.Case("step", tmp_path / "new", keep_checkpoint_max=9,
                      warm_start=tf.estimator.WarmStartSettings(old, wanted))
    case.train(steps=1)
    saved = case.directory + "/sparse-model.ckpt-0/"
    assert described(saved + ITEM) is None
    assert (described(saved + USER) is not None) == comes
    if comes:
        assert KEYS.items() <= read_history(saved + USER).items()


# Training that goes on -----------------------------------------------------------------------


def run_steps(script, sess, rules, steps, evictions, thresholds):
    """Trains steps against the rules, with evictions and new thresholds after some of them."""
    with sess.as_default():
        for step in steps:
            script.step(sess, step, rules)
            if step in thresholds:
                set_threshold(thresholds[step])
                rules.set_threshold(thresholds[step])
            if step in evictions:
                expected = rules.evict()
                assert tuple(evict()["table"]) == expected


@pytest.mark.parametrize("thresholds", [{}, {3: 1, 14: 5}, {5: 4, 9: 0}])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("stop", [4, 11])
def test_a_resumed_training_admits_refuses_and_evicts_as_if_it_had_not_stopped(mx, tmp_path, stop, delta, thresholds):
    """Against the rules, which know nothing of a stop."""
    mx(**(dict(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
          if delta else {}))
    data = admission_cases.batches(3)
    rules = admission_cases.Rules(2, 10)
    config = {"access_threshold": 2, "eviction_threshold": 10}
    evictions = (2, 7, 12, 13, 20)
    place = os.path.realpath(str(tmp_path)) + "/m"
    path, first = None, 0
    for last in (stop, admission_cases.STEPS):
        tf1.reset_default_graph()
        script = admission_cases.Script(modify_cases.Run(modify_cases.AHEAD), data, config)
        with support.started(support.new_session()) as sess:
            if path is not None:
                script.saver.restore(sess, path)
            script.start(sess, first)
            half = (first + last) // 2
            run_steps(script, sess, rules, range(first, half), evictions, thresholds)
            script.saver.save(sess, place, global_step=half)
            run_steps(script, sess, rules, range(half, last), evictions, thresholds)
            script.compare(sess, rules)
            path = script.saver.save(sess, place, global_step=last, save_delta=delta)
            assert os.path.isdir(place[:-1] + "delta-sparse-m-{}".format(last)) == delta
        first = last
    assert rules.evicted > 3 and rules.refused > 0


@pytest.mark.parametrize("configured, threshold, counts", [(2, 4, True), (3, 3, True), (0, 4, False)])
def test_a_new_configuration_comes_before_a_threshold_that_was_set_while_training(
        dynamic, tmp_path, configured, threshold, counts):
    data = admission_cases.batches(4)
    rules = admission_cases.Rules(2)
    place = os.path.realpath(str(tmp_path)) + "/m"
    for last, access in ((8, 2), (16, configured)):
        tf1.reset_default_graph()
        script = admission_cases.Script(modify_cases.Run(modify_cases.STEP), data, {"access_threshold": access},
                                        has_time=False)
        with support.new_session() as sess, sess.as_default():
            sess.run(tf1.global_variables_initializer())
            if last > 8:
                script.saver.restore(sess, place + "-8")
                rules.threshold, rules.is_counting = threshold, counts
            script.start(sess, last - 8)
            run_steps(script, sess, rules, range(last - 8, last), (), {})
            if last == 8:
                set_threshold(4)
            script.saver.save(sess, place, global_step=last)


# The command, on tables that were saved with a history ------------------------------------------


def test_the_command_lists_keys_that_are_known(capsys):
    for fixture in ("version_2_history", "original_history"):
        said, code = command(capsys, FIXTURES + "/" + fixture)
        lines = said.splitlines()
        assert code == 0 and lines[0].split()[2:5] == ["table", "rows", "history"]
        assert lines[1].split()[2:5] == ["users", "5", "7"]
        said, _ = command(capsys, FIXTURES + "/" + fixture, "--json")
        table = json.loads(said)["checkpoints"][0]["tables"][0]
        assert table["history"]["keys"] == 7 and table["history"]["eviction"] == 3600
        assert [slot["name"] for slot in table["slots"]] == ["LazyAdam_momentum", "LazyAdam_velocity"]
        assert table["faults"] == []
    assert "history" not in command(capsys, FIXTURES + "/version_2")[0]


def test_the_command_shows_a_key_that_waits(capsys):
    path = FIXTURES + "/version_2_history"
    said, code = command(capsys, path, "--key", -3)
    assert code == 0 and "is row 1\n  counted 3 times, last seen at 1700000000 (2023-11-14 22:13:20 UTC)\n" in said
    said, code = command(capsys, path, "--key", 41)
    assert code == 1 and "has no row\n  counted once, last seen at 1700000050" in said
    said, code = command(capsys, path, "--key", 41, "--json")
    table = json.loads(said)["tables"][0]
    assert code == 1 and table["row"] is None and table["seen"] == {"count": 1, "last": 1700000050}
    said, code = command(capsys, path, "--key", 40)
    assert code == 1 and said.endswith("has no row\n")
    table = json.loads(command(capsys, FIXTURES + "/version_2", "--key", 7, "--json")[0])["tables"][0]
    assert sorted(table["row"]) == ["parts", "position"] and table["seen"] is None


def test_the_command_verifies_and_compares_histories(capsys, tmp_path):
    assert command(capsys, FIXTURES + "/version_2_history", "--verify")[1] == 0
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    for path in (one, other):
        shutil.copytree(FIXTURES + "/original_history", path)
    assert command(capsys, one, "--diff", other)[1] == 0
    write_history(other + "/users", thresholds=(4, -1, 0), keys={7: (2, 1700000000), -3: (9, 1700000000), 77: (1, 0)})
    said, code = command(capsys, one, "--diff", other)
    assert code == 1
    for line in ("history: access 3 here, 4 there", "history: eviction 3600 here, null there", "history: counting true here, false there",
                 "history: latest 1700000050 here, 120 there", "history: 1 key with another count or time: -3",
                 "history: 5 keys only here: ", "history: 1 key only there: 77"):
        assert "  " + line in said, said
    write_history(other + "/users", keys={-1: (1, 1)})
    said, code = command(capsys, other, "--verify")
    assert code == 1 and "hist_rec: a key is the padding key -1" in said
    os.remove(other + "/users/hist_rec")
    os.remove(other + "/users/table_2_thresh")
    assert "  history: only here" in command(capsys, one, "--diff", other)[0]
