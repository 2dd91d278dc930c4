"""`python -m mx_rec.checkpoint`: what it lists, verifies, finds and compares, its errors and its exit codes."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.checkpoint import progress, tables
from mx_rec.checkpoint.__main__ import main
from mx_rec.checkpoint.chains import checked_manifest
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer

v1 = tf.compat.v1

SLOTS = ["LazyAdam_momentum", "LazyAdam_velocity"]


def write_table(directory, keys, rows, slots=()):
    """The files of the original, without a manifest: keys (n), embedding and slots (n, dim)."""
    keys, rows = np.asarray(keys, "<i8"), np.asarray(rows, "<f4")
    parts = [("key", [len(keys), 8], keys), ("embedding", list(rows.shape) + [4], rows)]
    parts += [(name, list(rows.shape) + [4], np.asarray(values, "<f4")) for name, values in slots]
    for name, attribute, data in parts:
        os.makedirs(os.path.join(str(directory), name), exist_ok=True)
        np.asarray(attribute, "<i8").tofile(os.path.join(str(directory), name, "slice.attribute"))
        data.tofile(os.path.join(str(directory), name, "slice.data"))


def command(*arguments):
    return main([str(argument) for argument in arguments])


def data(capsys, *arguments):
    """What a command prints with --json, and its exit code."""
    capsys.readouterr()
    code = command(*(arguments + ("--json",)))
    return json.loads(capsys.readouterr().out), code


@pytest.fixture
def model(graph, session, dynamic, tmp_path):
    """A directory with two checkpoints of two tables, trained for a step in between."""
    updates, placeholders = [], []
    for name in ("user_table", "item_table"):
        table = support.make_table(name, 4, 100, 1.0)
        placeholders.append(v1.placeholder(tf.int64, [None]))
        loss = tf.reduce_sum(sparse_lookup(table, placeholders[-1], modify_graph=True))
        gradient, = tf.gradients(loss, [table.variable])
        updates.append(create_hash_optimizer(0.5).apply_gradients([(gradient, table.variable)]))
    v1.get_variable("dense", initializer=1.0)
    sess = support.started(session())
    directory = str(tmp_path.resolve() / "model dir \u00fc")
    saver = v1.train.Saver()
    sess.run(updates, {placeholders[0]: [3, 5], placeholders[1]: [7]})
    saver.save(sess, directory + "/model.ckpt", global_step=9)
    sess.run(updates[0], {placeholders[0]: [3, 11]})
    saver.save(sess, directory + "/model.ckpt", global_step=10)
    return directory


@pytest.fixture
def deltas(graph, session, mx, tmp_path):
    """A directory with a whole save of step 1 and deltas of the steps 2 and 3, of one table."""
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    table = support.make_table("user_table", 4, 100, 1.0)
    ids = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(sparse_lookup(table, ids, modify_graph=True))
    update = create_hash_optimizer(0.5).minimize(loss, var_list=[table.variable])
    v1.get_variable("dense", initializer=1.0)
    raw, sess = support.opened(table, session, True)
    saver = v1.train.Saver()
    directory = str(tmp_path.resolve() / "model")
    for step, keys, gone in ((1, [3, 5, 7], []), (2, [3], [5, 7]), (3, [11, 12], [])):
        sess.run(update, {ids: keys})
        raw.remove(sess, gone)
        saver.save(sess, directory + "/m", global_step=step, save_delta=step > 1)
    return directory


def sparse(model, step, table=""):
    return os.path.join(model, "sparse-model.ckpt-{}".format(step), table).rstrip("/")


def flip(path, at=0):
    """Changes a bit of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_directory_is_listed_with_the_newest_marked(model, capsys):
    assert command(model) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0].split() == ["checkpoint", "step", "table", "rows", "dim", "bytes", "format", "slots"]
    assert lines[1].split()[:5] == ["model.ckpt-9", "9", "item_table", "1", "4"]
    assert lines[2].split()[:3] == ["user_table", "2", "4"]
    assert lines[3].split()[:5] == ["*", "model.ckpt-10", "10", "item_table", "1"]
    assert lines[4].endswith("LazyAdam_momentum=0, LazyAdam_velocity=0")
    assert "* the newest" in lines


def test_the_listing_as_data_agrees_with_the_files(model, capsys):
    listing, code = data(capsys, model)
    assert code == 0 and listing["kind"] == "directory"
    assert [one["step"] for one in listing["checkpoints"]] == [9, 10]
    assert [one["newest"] for one in listing["checkpoints"]] == [False, True]
    assert [one["has_dense"] for one in listing["checkpoints"]] == [True, True]
    table = listing["checkpoints"][1]["tables"][1]
    assert table["name"] == "user_table" and table["rows"] == 3 and table["dim"] == 4
    assert table["slots"] == [{"name": name, "initial": 0.0} for name in SLOTS]
    on_disk = sum(os.path.getsize(os.path.join(path, name))
                  for path, _, names in os.walk(table["path"]) for name in names)
    assert table["bytes"] == on_disk
    assert table["parts"] == [{"name": "key", "bytes": 24}] + [
        {"name": name, "bytes": 48} for name in ["embedding"] + SLOTS]
    assert table["faults"] == []


@pytest.mark.parametrize("kind", ["prefix", "sparse", "table"])
def test_every_form_of_path_is_understood(model, capsys, monkeypatch, kind):
    path = {"prefix": model + "/model.ckpt-9", "sparse": sparse(model, 9) + "/",
            "table": sparse(model, 9, "user_table")}[kind]
    listing, _ = data(capsys, path)
    assert [one["name"] for one in listing["checkpoints"]] == ["model.ckpt-9"]
    assert listing["checkpoints"][0]["step"] == 9
    names = [table["name"] for table in listing["checkpoints"][0]["tables"]]
    assert names == (["user_table"] if kind == "table" else ["item_table", "user_table"])
    # And relative, from inside.
    monkeypatch.chdir(os.path.dirname(path.rstrip("/")))
    listing, _ = data(capsys, os.path.basename(path.rstrip("/")))
    assert listing["checkpoints"][0]["step"] == 9
    assert command(path, "--verify") == 0


def test_the_newest_is_what_the_state_file_names(model, capsys):
    from tensorflow.python.training.checkpoint_management import update_checkpoint_state

    update_checkpoint_state(model, model + "/model.ckpt-9")
    listing, _ = data(capsys, model)
    assert [one["newest"] for one in listing["checkpoints"]] == [True, False]
    # Without one, the last with both parts.
    os.remove(model + "/checkpoint")
    os.remove(model + "/model.ckpt-10.index")
    listing, _ = data(capsys, model)
    assert [one["newest"] for one in listing["checkpoints"]] == [True, False]
    assert command(model) == 0
    assert capsys.readouterr().out.count(sparse(model, 10) + ": tables alone, without TensorFlow's part") == 1


def test_leftovers_of_a_save_are_named_and_no_checkpoints(model, capsys):
    names = [".delta-sparse-model.ckpt-12.saving-123-4", ".sparse-model.ckpt-11.gone-123-3",
             ".sparse-model.ckpt-11.old-123-2", ".sparse-model.ckpt-11.saving-123-0", ".sparse-model.ckpt-11.undo-123-1"]
    for name in names:
        os.mkdir(os.path.join(model, name))
    assert command(model) == 0
    said = capsys.readouterr().out
    assert ".sparse-model.ckpt-11.saving-123-0: left by a save that did not end" in said
    assert data(capsys, model)[0]["leftovers"] == names


def test_a_whole_checkpoint_is_verified(model, capsys):
    assert command(model, "--verify") == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.count(": ok, ") == 4
    assert said.out.splitlines()[-1].startswith("no fault in ")
    result, code = data(capsys, model, "--verify")
    assert code == 0 and result["ok"] is True
    for one in result["checkpoints"]:
        for table in one["tables"]:
            assert table["checksums"] == (table["files"] if table["version"] >= 2 else 0)


def test_deltas_are_listed_with_their_base_what_changed_and_what_went(deltas, capsys):
    listing, code = data(capsys, deltas)
    assert code == 0
    assert [(one["name"], one["delta"], one["base"], one["chain"]) for one in listing["checkpoints"]] == [
        ("m-1", False, None, ["m-1"]), ("m-2", True, "m-1", ["m-1", "m-2"]),
        ("m-3", True, "m-1", ["m-1", "m-2", "m-3"])]
    assert [(one["tables"][0]["rows"], one["tables"][0]["removed"]) for one in listing["checkpoints"]] == [
        (3, None), (1, 2), (2, 0)]
    assert [one["newest"] for one in listing["checkpoints"]] == [False, False, True]
    assert not any(one["faults"] or one["tables"][0]["faults"] for one in listing["checkpoints"])
    assert command(deltas) == 0
    lines = [line.split()[:7] for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == [["checkpoint", "step", "base", "table", "rows", "removed", "dim"],
                         ["m-1", "1", "-", "user_table", "3", "-", "4"],
                         ["m-2", "2", "m-1", "user_table", "1", "2", "4"],
                         ["*", "m-3", "3", "m-1", "user_table", "2", "0"]]


@pytest.mark.parametrize("path", ["m-2", "delta-sparse-m-2", "delta-sparse-m-2/user_table"])
def test_every_form_of_path_of_a_delta_is_understood(deltas, capsys, path):
    listing, _ = data(capsys, deltas + "/" + path)
    one, = listing["checkpoints"]
    assert (one["name"], one["step"], one["delta"], one["base"]) == ("m-2", 2, True, "m-1")
    assert one["tables"][0]["removed"] == 2
    assert command(deltas + "/" + path, "--verify") == 0
    # A key is searched in what the delta holds.
    assert command(deltas + "/" + path, "--key", 5) == 1
    assert "the key 5 has no row in this delta" in capsys.readouterr().out
    assert command(deltas + "/" + path, "--key", 3) == 0


def test_every_file_of_a_delta_is_verified(deltas, capsys):
    assert command(deltas, "--verify") == 0
    assert capsys.readouterr().out.count(": ok, ") == 3
    directory = deltas + "/delta-sparse-m-2/user_table"
    files = [os.path.join(path, name) for path, _, names in os.walk(directory) for name in names]
    assert len(files) == 11
    for path in files:
        with open(path, "rb") as file:
            content = file.read()
        flip(path)
        assert command(deltas, "--verify") == 1, path
        assert path in capsys.readouterr().out
        support.write(path, content)
    os.remove(directory + "/removed/slice.data")
    assert command(deltas + "/m-2", "--verify") == 1
    assert directory + "/removed/slice.data: cannot find" in capsys.readouterr().out
    shutil.rmtree(directory + "/removed")
    listing, _ = data(capsys, deltas + "/m-2")
    assert listing["checkpoints"][0]["tables"][0]["removed"] is None


@pytest.mark.parametrize("damage, word", [("gone", "which is missing"), ("other", "follows another save"),
                                          ("silent", "does not say what it follows")])
def test_a_delta_that_cannot_be_restored_is_a_fault(deltas, capsys, damage, word):
    middle = deltas + "/delta-sparse-m-2"
    if damage == "gone":
        shutil.rmtree(middle)
    else:
        content = checked_manifest(support.text_of(middle + "/manifest.json"))
        content.update({"id": "another"} if damage == "other" else {"previous": None})
        support.write(middle + "/manifest.json", support.sealed(content))
    assert command(deltas, "--verify") == 1
    said = capsys.readouterr().out
    assert word in said and middle in said
    # The listing tells it too, and is no failure.
    listing, code = data(capsys, deltas)
    assert code == 0 and listing["checkpoints"][-1]["delta"] and listing["checkpoints"][-1]["base"] is None
    assert command(deltas) == 0
    assert ["*", "m-3", "3", "?"] in [line.split()[:4] for line in capsys.readouterr().out.splitlines()]


def test_a_changed_bit_in_the_manifest_of_a_checkpoint_is_a_fault(deltas, capsys):
    for path in (deltas + "/sparse-m-1/manifest.json", deltas + "/delta-sparse-m-3/manifest.json"):
        content = support.text_of(path)
        support.write(path, content.replace('"rows": ', '"rows": 1'))
        assert command(deltas, "--verify") == 1
        said = capsys.readouterr().out
        assert path + ": is no manifest: its checksum is " in said
        support.write(path, content)
    assert command(deltas, "--verify") == 0


def test_files_of_the_original_have_no_checksums_and_it_is_said(tmp_path, capsys):
    write_table(tmp_path / "sparse-m-1" / "t", [1, 2], np.ones([2, 3]))
    assert command(tmp_path / "sparse-m-1" / "t", "--verify") == 0
    assert "no checksums (format original)" in capsys.readouterr().out
    assert command(tmp_path / "sparse-m-1" / "t") == 0
    assert " original  none" in capsys.readouterr().out


def test_all_faults_of_all_tables_are_told_with_their_files(model, capsys):
    item, user = sparse(model, 9, "item_table"), sparse(model, 10, "user_table")
    with open(item + "/embedding/slice.data", "ab") as file:
        file.write(b"x")
    os.remove(user + "/LazyAdam_momentum/slice.data")
    np.array([3, -1, 3], "<i8").tofile(user + "/key/slice.data")
    result, code = data(capsys, model, "--verify")
    assert code == 1 and result["ok"] is False
    faults = [(fault["path"], fault["message"]) for one in result["checkpoints"]
              for table in one["tables"] for fault in table["faults"]]
    for path, word in ((item + "/embedding/slice.data", "size"), (user + "/key/slice.data", "more than once"),
                       (user + "/LazyAdam_momentum/slice.data", "cannot find"),
                       (user + "/key/slice.data", "padding key -1")):
        assert any(found == path and word in message for found, message in faults), (path, word, faults)
    assert command(model, "--verify") == 1
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("{} faults in ".format(len(faults)))
    assert all(path in said and message in said for path, message in faults)
    # The listing says what shows without reading data, and is no failure.
    assert command(model) == 0
    assert user + "/LazyAdam_momentum/slice.data: cannot find" in capsys.readouterr().out


def test_a_flipped_bit_is_found_by_its_checksum(model, capsys):
    path = sparse(model, 10, "user_table") + "/LazyAdam_velocity/slice.data"
    flip(path, 17)
    assert command(model, "--verify") == 1
    said = capsys.readouterr().out
    assert "1 fault in " in said and path + ": a file's checksum is not the manifest's" in said


def test_a_table_that_the_manifest_lists_and_is_gone_is_a_fault(model, capsys):
    manifest = sparse(model, 10) + "/manifest.json"
    if not os.path.isfile(manifest):
        with open(manifest, "w") as file:
            json.dump({"tables": ["item_table", "user_table"]}, file)
    assert command(model, "--verify") == 0
    os.rename(sparse(model, 10, "item_table"), sparse(model, 10, "other_table"))
    capsys.readouterr()
    assert command(model, "--verify") == 1
    said = capsys.readouterr().out
    assert sparse(model, 10, "item_table") + ": the manifest of the checkpoint lists this table" in said
    assert sparse(model, 10, "other_table") + ": the manifest of the checkpoint does not list" in said
    shutil.rmtree(sparse(model, 10, "other_table"))
    support.write(manifest, "{")
    assert command(model, "--verify") == 1
    assert manifest + ": is no manifest" in capsys.readouterr().out


def test_names_that_are_no_text_are_shown(tmp_path, capsys):
    directory = os.path.join(os.fsencode(str(tmp_path)), b"sparse-m\xff-1", b"t \xfe")
    write_table(os.fsdecode(directory), [1], np.ones([1, 2]))
    os.remove(directory + b"/embedding/slice.data")
    path = os.fsdecode(os.path.dirname(directory))
    assert command(path) == 0
    assert "\\udcff-1" in capsys.readouterr().out
    result, code = data(capsys, path, "--verify")
    assert code == 1
    fault, = result["checkpoints"][0]["tables"][0]["faults"]
    assert fault["path"] == os.fsdecode(directory) + "/embedding/slice.data"
    assert command(path, "--key", 1) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_dense_part_that_the_state_file_names_and_is_gone_is_a_fault(model, capsys):
    os.remove(model + "/model.ckpt-9.index")
    for path in (model, model + "/model.ckpt-9"):
        assert command(path, "--verify") == 1
        assert model + "/model.ckpt-9.index: TensorFlow's state file names" in capsys.readouterr().out
    # Saver of this package writes tables alone.
    os.remove(model + "/checkpoint")
    assert command(model, "--verify") == 0
    assert sparse(model, 9) + ": tables alone" in capsys.readouterr().out


def test_the_row_of_a_key_is_shown_with_its_slots(model, capsys):
    found, code = data(capsys, model, "--key", "11")
    assert code == 0 and found["step"] == 10
    rows = {table["name"]: table["row"] for table in found["tables"]}
    assert rows["item_table"] is None
    parts = {part["name"]: part["values"] for part in rows["user_table"]["parts"]}
    assert list(parts) == ["embedding"] + SLOTS
    keys = np.fromfile(sparse(model, 10, "user_table") + "/key/slice.data", "<i8").tolist()
    assert rows["user_table"]["position"] == keys.index(11)
    for name, values in parts.items():
        saved = np.fromfile(sparse(model, 10, "user_table/" + name) + "/slice.data", "<f4").reshape(-1, 4)
        assert np.float32(values).tobytes() == saved[keys.index(11)].tobytes(), name
    assert command(model, "--key", "11", "--table", "user_table") == 0
    said = capsys.readouterr().out
    assert "the key 11 is row 2" in said and "LazyAdam_velocity" in said


def test_a_key_without_a_row_is_exit_code_1(model, capsys):
    assert command(model + "/model.ckpt-9", "--key", "11") == 1
    assert capsys.readouterr().out.count("the key 11 has no row") == 2
    assert command(model, "--key", "-9223372036854775808", "--table", "item_table") == 1


def test_values_that_are_no_numbers_are_shown(tmp_path, capsys):
    write_table(tmp_path / "t", [5], [[np.nan, np.inf, -np.inf, 0.1]])
    found, _ = data(capsys, tmp_path / "t", "--key", 5)
    assert found["tables"][0]["row"]["parts"][0]["values"] == ["NaN", "Infinity", "-Infinity", 0.1]
    assert command(tmp_path / "t", "--key", 5) == 0
    assert capsys.readouterr().out.split()[-4:] == ["NaN", "Infinity", "-Infinity", "0.1"]


def test_a_checkpoint_equals_itself_whatever_the_order_of_its_rows(model, tmp_path, capsys):
    assert command(model, "--diff", model + "/model.ckpt-10") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "equal"
    rows = np.random.RandomState(1).rand(1000, 5)
    order = np.random.RandomState(2).permutation(1000)
    write_table(tmp_path / "a", np.arange(1000), rows, [("x", rows + 1)])
    write_table(tmp_path / "b", order, rows[order], [("x", rows[order] + 1)])
    assert command(tmp_path / "a", "--diff", tmp_path / "b") == 0
    assert "equal, 1000 rows" in capsys.readouterr().out


def test_what_a_step_changed_is_told(model, capsys):
    result, code = data(capsys, model + "/model.ckpt-9", "--diff", model + "/model.ckpt-10")
    assert code == 1 and result["equal"] is False
    item, user = result["tables"]
    assert item["equal"] is True and user["equal"] is False
    assert user["rows"] == [2, 3]
    assert user["only_here"] == {"count": 0, "first": []}
    assert user["only_there"] == {"count": 1, "first": [11]}
    assert user["differing"] == {"count": 1, "first": [3]}
    for part in user["parts"]:
        before, after = [[value for one in data(capsys, model + "/model.ckpt-" + step, "--key", 3, "--table",
                                                "user_table")[0]["tables"][0]["row"]["parts"]
                          if one["name"] == part["name"] for value in one["values"]] for step in ("9", "10")]
        largest = np.max(np.abs(np.float32(before).astype(float) - np.float32(after)))
        assert part == {"name": part["name"], "rows": 1, "key": 3, "largest": largest}
    assert command(model + "/model.ckpt-9", "--diff", model + "/model.ckpt-10") == 1
    said = capsys.readouterr().out
    assert "1 key only there: 11" in said and "1 key with another row: 3" in said
    assert "embedding: 1 row differs, by " in said and said.splitlines()[-1] == "different"


@pytest.mark.parametrize("here, there", [("m-2", "m-1"), ("m-1", "m-2"), (
    "delta-sparse-m-2/user_table", "sparse-m-1/user_table"), ("m-2", "m-3")])
def test_keys_that_a_delta_does_not_hold_are_not_told_as_lost(deltas, capsys, here, there):
    # They were called "only there", as if a delta beside its base had lost all rows that did not change.
    arguments = deltas + "/" + here, "--diff", deltas + "/" + there
    result, code = data(capsys, *arguments)
    table, = result["tables"]
    is_delta, removed = ["m-1" not in one for one in (here, there)], {"m-1": None, "m-2": 2, "m-3": 0}
    gone = [removed[re.search("m-.", one).group()] for one in (here, there)]
    assert code == 1 and result["deltas"] == is_delta and table["removed"] == gone
    assert command(*arguments) == 1
    said = capsys.readouterr().out
    for side, other, name, delta, count in (("here", "there", "only_there", is_delta[0], gone[0]),
                                            ("there", "here", "only_here", is_delta[1], gone[1])):
        assert ("the delta {} holds the rows that changed since the save before it, and removes {} keys: "
                "a restore takes all others from that save".format(side, count) in said) == delta
        keys = table[name]
        assert bool(keys["count"]) == delta
        words = "{} key{} not in the delta {}: {}".format(
            keys["count"], "" if keys["count"] == 1 else "s", side, ", ".join(map(str, keys["first"])))
        assert (words in said) == delta and "only " + other not in said
    assert set(table["only_here"]["first"] + table["only_there"]["first"]) == (
        {3, 11, 12} if all(is_delta) else {5, 7})


def test_tables_slots_dims_and_many_keys_of_one_side_are_told(tmp_path, capsys):
    here, there = tmp_path / "sparse-a-1", tmp_path / "sparse-b-1"
    write_table(here / "both", np.arange(30), np.ones([30, 2]), [("x", np.ones([30, 2]))])
    write_table(there / "both", np.arange(29, 31), np.ones([2, 2]), [("y", np.ones([2, 2]))])
    write_table(here / "dims", [1], np.ones([1, 2]))
    write_table(there / "dims", [1], np.ones([1, 3]))
    write_table(here / "left", [1], np.ones([1, 2]))
    write_table(there / "right", [1], np.ones([1, 2]))
    assert command(here, "--diff", there) == 1
    said = capsys.readouterr().out
    for wanted in ("table left: only here", "table right: only there", "x: only here", "y: only there",
                   "29 keys only here: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 19 more", "1 key only there: 30",
                   "dim 2 here, 3 there"):
        assert wanted in said, wanted
    # One table of each, under any names; and a table with that of its name.
    assert command(here / "left", "--diff", there / "right") == 0
    assert command(here / "both", "--diff", here) == 0
    assert command(here, "--diff", here / "both") == 0
    assert command(here, "--diff", there, "--table", "dims") == 1


def test_a_damaged_table_is_not_compared(tmp_path, capsys):
    for name in "ab":
        write_table(tmp_path / name, [1, 2], np.ones([2, 2]))
    os.truncate(str(tmp_path / "b" / "embedding" / "slice.data"), 15)
    for arguments in ((tmp_path / "a", "--diff", tmp_path / "b"), (tmp_path / "b", "--key", 1)):
        assert command(*arguments) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        assert str(tmp_path / "b" / "embedding" / "slice.data") in said.err


@pytest.mark.parametrize("path, word", [
    ("none", "there is no such directory"), ("none/", "there is no such directory"), ("", "no such directory"),
    ("file", "a file, no checkpoint"), ("empty", "is empty"), ("other", "no checkpoint: neither"),
    ("m-1.index", "without an ending")])
def test_what_is_no_checkpoint_is_one_line_and_exit_code_2(tmp_path, capsys, path, word):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "things").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "m-1.index").write_text("x")
    # Not joined: a slash at the end must stay.
    full = str(tmp_path) + "/" + path if path else ""
    assert command(full) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert word in said.err and full in said.err


@pytest.mark.parametrize("arguments, word", [
    (["--table", "none"], "no table 'none'; there is t"), (["--key", "1", "--table", "none"], "no table 'none'"),
    (["--diff", "nowhere"], "nowhere: there is no such directory")])
def test_arguments_that_do_not_fit_are_exit_code_2(tmp_path, capsys, arguments, word):
    write_table(tmp_path / "sparse-m-1" / "t", [1], np.ones([1, 2]))
    assert command(tmp_path / "sparse-m-1", *arguments) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--key", "x"], ["--key", str(2 ** 63)], ["--verify", "--key", "1"], []])
def test_wrong_arguments_are_refused(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        command(*([tmp_path] + arguments if arguments else []))
    assert stopped.value.code == 2


def test_tables_may_have_the_names_of_parts(tmp_path, capsys):
    for name in ("key", "embedding"):
        write_table(tmp_path / "sparse-m-1" / name, [1], np.ones([1, 2]))
    listing, _ = data(capsys, tmp_path / "sparse-m-1")
    assert [table["name"] for table in listing["checkpoints"][0]["tables"]] == ["embedding", "key"]


def test_progress_is_shown_when_asked_for(tmp_path, capsys):
    write_table(tmp_path / "t", np.arange(1000), np.ones([1000, 2]))
    assert command(tmp_path / "t", "--verify", "--progress") == 0
    said = capsys.readouterr()
    assert "verifying {}: 100% of 15.6 KiB\n".format(tmp_path / "t") in said.err
    assert command(tmp_path / "t", "--verify") == 0
    assert capsys.readouterr().err == ""


def test_a_line_on_a_terminal_is_written_over_and_removed():
    class Terminal:
        def __init__(self):
            self.text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    terminal = Terminal()
    meter = progress.Meter(terminal, True)
    tell = meter.of("reading")
    tell(1, 2)
    assert terminal.text == "", "quick work shows nothing"
    progress._PAUSE, pause = 0, progress._PAUSE
    try:
        tell(1, 2)
    finally:
        progress._PAUSE = pause
    meter.end()
    assert terminal.text == "\rreading:  50% of 2 B" + "\r" + " " * 20 + "\r"


def test_ctrl_c_ends_a_long_reading(tmp_path):
    write_table(tmp_path / "t", np.arange(10), np.ones([10, 2]))
    calls = []

    def interrupt(done, total):
        calls.append((done, total))
        raise KeyboardInterrupt()

    for work in (lambda: tables.verify(str(tmp_path / "t"), interrupt),
                 lambda: tables.find_row(str(tmp_path / "t"), 77, interrupt),
                 lambda: tables.diff(str(tmp_path / "t"), str(tmp_path / "t"), interrupt)):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert len(calls) == 3


def test_an_interrupted_command_says_so_in_one_line(tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt()

    write_table(tmp_path / "t", [1], np.ones([1, 2]))
    monkeypatch.setattr(tables, "verify", interrupt)
    assert command(tmp_path / "t", "--verify") == 130
    assert capsys.readouterr().err == "python -m mx_rec.checkpoint: interrupted\n"


@pytest.mark.long
def test_the_command_runs_as_a_module(tmp_path):
    write_table(tmp_path / "t", [1], np.ones([1, 2]))
    for path, code in (("t", 0), ("none", 2)):
        ran = subprocess.run([sys.executable, "-m", "mx_rec.checkpoint", str(tmp_path / path)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        assert ran.returncode == code, ran.stderr
    assert "python -m mx_rec.checkpoint: " in ran.stderr


@pytest.mark.long
@pytest.mark.parametrize("verb", ["verify", "diff"])
def test_memory_does_not_grow_with_the_rows(tmp_path, verb):
    """Beside 16 bytes a key: 100 MB of rows are read in less than 64 MiB."""
    rows = np.random.RandomState(0).permutation(100000)
    for name, keys in (("a", np.arange(100000)), ("b", rows)):
        write_table(tmp_path / name, keys, np.broadcast_to(keys[:, None], [100000, 256]))
    script = """
import sys
from mx_rec.checkpoint import tables
def peak():
    return [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
tables.describe(sys.argv[1])
# From here on; the import of TensorFlow had a peak of its own.
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = peak()
if sys.argv[3] == "verify":
    assert not tables.verify(sys.argv[1])["faults"]
else:
    assert tables.diff(sys.argv[1], sys.argv[2])["equal"]
print(peak() - before)
"""
    ran = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a"), str(tmp_path / "b"), verb],
                         stdout=subprocess.PIPE, universal_newlines=True, check=True)
    assert int(ran.stdout) < (64 << 10) + 16 * 100000 // 1024, ran.stdout
