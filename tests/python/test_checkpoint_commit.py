"""The tables of a checkpoint come into place all at once, and what dead processes left goes at the next save."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def place(tmp_path):
    return os.path.realpath(str(tmp_path))


def stage(directory, text, tables=("t",)):
    from mx_rec.saver.commit import Staging

    staging = Staging(directory)
    for table in tables:
        os.mkdir(os.path.join(staging.path, table))
        with open(os.path.join(staging.path, table, "content"), "w") as file:
            file.write(text)
    return staging


def content(directory):
    with open(os.path.join(directory, "t", "content")) as file:
        return file.read()


@pytest.mark.parametrize("exchange", [True, False])
def test_an_earlier_directory_is_replaced_whole_and_comes_back(place, monkeypatch, exchange):
    from mx_rec.saver import commit

    if not exchange:
        monkeypatch.setattr(commit, "_exchange", lambda one, other: False)
    target = place + "/sparse-m-1"
    for text in ("one", "two"):
        staging = stage(target, text)
        staging.commit([{"name": "t", "rows": 1}], True)
        assert content(target) == text
        staging.finish()
    assert os.listdir(place) == ["sparse-m-1"]
    with open(target + "/manifest.json") as file:
        assert [table["name"] for table in json.load(file)["tables"]] == ["t"]
    staging = stage(target, "three")
    staging.commit([], True)
    staging.undo()
    assert content(target) == "two" and os.listdir(place) == ["sparse-m-1"]


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_leftovers_of_dead_processes_go_and_others_stay(place):
    dead, alive = dead_process(), os.getppid()
    for name in (".sparse-m-1.saving-%d-0" % dead, ".sparse-m-2.saving-%d-0" % alive, ".sparse-other-1.saving-%d-0" % dead,
                 "sparse-m-3", "sparse-m-4", "sparse-m-5"):
        os.mkdir(os.path.join(place, name))
    for name, dense in (("sparse-m-3", True), ("sparse-m-4", False), ("sparse-m-5", True)):
        with open(os.path.join(place, name, "manifest.json"), "w") as file:
            json.dump({"format_version": 2, "tables": [], "dense": dense, "process": dead}, file)
    open(place + "/m-5.index", "w").close()
    stage(place + "/sparse-m-6", "x").commit([], True)
    assert sorted(os.listdir(place)) == sorted(
        [".sparse-m-2.saving-%d-0" % alive, ".sparse-other-1.saving-%d-0" % dead, "m-5.index", "sparse-m-4", "sparse-m-5",
         "sparse-m-6"])


def test_a_save_cut_off_between_two_renames_is_put_back(place):
    from mx_rec.saver.commit import recover

    stage(place + "/sparse-m-1", "old").commit([], True)
    os.rename(place + "/sparse-m-1", "%s/.sparse-m-1.old-%d-0" % (place, dead_process()))
    recover(place + "/sparse-m-1")
    assert content(place + "/sparse-m-1") == "old"


def test_a_file_in_the_way_is_named(place):
    open(place + "/sparse-m-1", "w").close()
    open(place + "/file", "w").close()
    for target in (place + "/sparse-m-1", place + "/file/sparse-m-1"):
        with pytest.raises(OSError) as refused:
            stage(target, "x")
        assert place in str(refused.value)
