"""The tables of a checkpoint come into place all at once, and what dead processes left goes at the next save."""

import concurrent.futures
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import tensorflow as tf

import preloaded
import support
from mx_rec.checkpoint import commit
from mx_rec.checkpoint.commit import Staging, recover
from mx_rec.saver import incremental


def stage(directory, text, tables=("t",)):
    staging = Staging(directory)
    for table in tables:
        support.saved_table(os.path.join(staging.path, table))
        support.write(os.path.join(staging.path, table, "content"), text)
    return staging


def place_tables(directory, text, dense=True):
    """A save of tables that ends."""
    staging = stage(directory, text)
    staging.commit([], dense)
    staging.finish()


def content(directory):
    return support.text_of(os.path.join(directory, "t", "content"))


@pytest.fixture(params=["exchange", "rename"])
def refused(request, monkeypatch):
    """Steps that fail, as (step, path) -> errno or 0: none, or the exchange of directories."""
    def before(step, path):
        return errno.EINVAL if step == "exchange" and request.param == "rename" else 0

    monkeypatch.setattr(commit, "before_step", before)
    return before


def test_an_earlier_directory_is_replaced_whole_and_comes_back(place, refused):
    target = place + "/sparse-m-1"
    for text in ("one", "two"):
        staging = stage(target, text)
        staging.commit([{"name": "t", "rows": 1}], True)
        assert content(target) == text
        staging.finish()
    assert os.listdir(place) == ["sparse-m-1"]
    assert [table["name"] for table in support.json_of(target + "/manifest.json")["tables"]] == ["t"]
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
    place_tables(place + "/sparse-m-6", "x")
    assert sorted(os.listdir(place)) == sorted(
        [".sparse-m-2.saving-%d-0" % alive, ".sparse-other-1.saving-%d-0" % dead, "m-5.index", "sparse-m-4", "sparse-m-5",
         "sparse-m-6"])


def test_a_save_cut_off_between_two_renames_is_put_back(place):
    stage(place + "/sparse-m-1", "old").commit([], True)
    os.rename(place + "/sparse-m-1", "%s/.sparse-m-1.old-%d-0" % (place, dead_process()))
    recover(place + "/sparse-m-1")
    assert content(place + "/sparse-m-1") == "old"


def dense(place, text):
    for suffix in (".index", ".data-00000-of-00001"):
        support.write(place + "/m-1" + suffix + ".tempstate1", text)
        os.rename(place + "/m-1" + suffix + ".tempstate1", place + "/m-1" + suffix)


def save_over(place, stop, refused):
    """Saves over sparse-m-1 in a process that ends before its step number `stop` on the disk; returns whether it did."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] != 0
    changes = [0]

    def counted(function):
        def call(*arguments, **more):
            changes[0] += 1
            if changes[0] == stop:
                os._exit(3)
            return function(*arguments, **more)
        return call

    try:
        staging = stage(place + "/sparse-m-1", "new")
        # The plugin's steps, and those of the variables.
        commit.before_step, os.rename = counted(refused), counted(os.rename)
        staging.commit([], True)
        dense(place, "new")
        staging.finish()
        os._exit(0)
    finally:
        os._exit(4)


def test_a_save_over_the_same_step_that_is_cut_off_anywhere_leaves_one_of_both_whole(place, refused):
    """The tables and the variables of one step are never of two saves, wherever the process ends."""
    seen = set()
    for stop in range(1, 100):
        for name in os.listdir(place):
            path = os.path.join(place, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        place_tables(place + "/sparse-m-1", "old")
        dense(place, "old")
        cut_off = save_over(place, stop, refused)
        commit.recover(place + "/sparse-m-1")
        found = [content(place + "/sparse-m-1")]
        for suffix in (".index", ".data-00000-of-00001"):
            found.append(support.text_of(place + "/m-1" + suffix))
        assert found in (["old"] * 3, ["new"] * 3), (stop, found)
        seen.add(found[0])
        place_tables(place + "/sparse-m-2", "x")
        assert [name for name in sorted(os.listdir(place)) if ".tempstate" not in name] == [
            "m-1.data-00000-of-00001", "m-1.index", "sparse-m-1", "sparse-m-2"], stop
        if not cut_off:
            break
    assert stop > 8 and seen == {"old", "new"}


def test_what_a_process_left_whose_number_another_has_now_goes(place):
    """Containers start their processes with the same numbers again and again."""
    os.mkdir(place + "/.sparse-m-1.saving-%d-0" % os.getpid())
    # Half a second more than the clocks may be apart.
    time.sleep(1.5)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        before, after = (place + "/.sparse-m-%d.saving-%d-0" % (step, process.pid) for step in (2, 3))
        os.mkdir(after)
        # As old as that of this process: a directory's time of change cannot be set.
        os.rename(place + "/.sparse-m-1.saving-%d-0" % os.getpid(), before)
        Staging(place + "/sparse-m-6").undo()
        assert sorted(os.listdir(place)) == sorted(os.path.basename(path) for path in (before, after))
    finally:
        process.communicate(b"\n")


def test_temporary_files_of_tensorflow_go_if_they_are_older_than_this_process(place):
    names = ["checkpoint.tmp0123abc", "m-3.index.tempstate77", "m-3.data-00000-of-00001.tempstate78", "m-3.meta.tmp0f",
             "other-3.index.tempstate77", "m-3.notes"]
    for name in names + ["m-4.index.tempstate9"]:
        open(os.path.join(place, name), "w").close()
    for name in names:
        os.utime(os.path.join(place, name), (1.0, 1.0))
    place_tables(place + "/sparse-m-6", "x")
    # The system says when a file was made, whatever its time of change: these were made by this process.
    assert sorted(os.listdir(place)) == sorted(names + ["m-4.index.tempstate9", "sparse-m-6"])
    # The system tells when a process started to a hundredth of a second.
    time.sleep(0.2)
    code = "import sys; from mx_rec.checkpoint.commit import Staging; Staging(sys.argv[1]).undo()"
    preloaded.run_python(code, place + "/sparse-m-7")
    assert sorted(os.listdir(place)) == ["m-3.notes", "other-3.index.tempstate77", "sparse-m-6"]


def test_a_file_in_the_way_is_named(place):
    open(place + "/sparse-m-1", "w").close()
    open(place + "/file", "w").close()
    for target in (place + "/sparse-m-1", place + "/file/sparse-m-1"):
        with pytest.raises(OSError) as refused:
            stage(target, "x")
        assert place in str(refused.value)


class OneSave:
    """A save that is taken step by step, on a thread of its own as saves of two jobs are."""

    def __init__(self, place, name, saver=None, **more):
        self.place, self.name, self.staging = place, name, None
        self.saver, self.more, self.before = saver, dict(more, id=name), {}
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        self.error = None

    def __iter__(self):
        prefix = os.path.join(self.place, self.name.split("sparse-")[1])

        def begin():
            self.before = incremental.deltas_before(os.path.join(self.place, self.name))
            self.staging = stage(os.path.join(self.place, self.name), self.name)

        def variables():
            for suffix in (".data-00000-of-00001", ".index"):
                support.write(prefix + suffix, self.name)

        def tidy():
            with commit.alone(self.place):
                incremental.tidy_after(self.saver, prefix, os.path.join(self.place, self.name), self.before, None)

        return iter([begin, lambda: self.staging.commit([], True, **self.more), variables, lambda: self.staging.finish(),
                     tidy])

    def take(self, step):
        if self.error is None:
            try:
                self.thread.submit(step).result()
            except tf.errors.AbortedError as error:
                self.error = error
                if self.staging is not None:
                    self.thread.submit(self.staging.undo).result()

    def is_whole(self):
        prefix = os.path.join(self.place, self.name.split("sparse-")[1])
        texts = [content(os.path.join(self.place, self.name))]
        for suffix in (".data-00000-of-00001", ".index"):
            texts.append(support.text_of(prefix + suffix))
        return texts == [self.name] * 3


@pytest.mark.long
@pytest.mark.parametrize("names", [("sparse-m-1", "sparse-m-2"), ("sparse-m-3", "delta-sparse-m-4"),
                                   ("sparse-m-5", "delta-sparse-m-5"), ("sparse-m-6", "sparse-m-6")], ids="-".join)
def test_two_saves_at_once_leave_both_whole_or_one_is_refused_in_every_order_of_their_steps(place, names):
    """What one save had placed, and whose variables were still being written, the other took for what a dead one left."""
    ended = set()
    is_same = names[0].split("sparse-")[1] == names[1].split("sparse-")[1]
    for order in orders(5):
        for name in os.listdir(place):
            path = os.path.join(place, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        saves = [OneSave(place, name) for name in names]
        steps = [iter(save) for save in saves]
        for number in order:
            saves[number].take(next(steps[number]))
        whole = [save.error is None for save in saves]
        ended.add(tuple(whole))
        assert any(whole), order
        # Of one step the save stays whose tables came last.
        second = [[at for at, one in enumerate(order) if one == number][1] for number in (0, 1)]
        stays = [saves[second.index(max(second))]] if is_same and all(whole) else saves
        for save in saves:
            if save.error is None and save in stays:
                assert save.is_whole(), (order, save.name)
        assert not [name for name in os.listdir(place) if name.startswith(".")], order
        for save in saves:
            save.thread.shutdown()
    # Of saves of one step that overlap the later one is refused, and saves of two steps never are.
    assert ended == ({(True, True), (True, False), (False, True)} if is_same else {(True, True)})


@pytest.mark.long
def test_a_delta_that_comes_while_a_whole_save_is_under_way_stays_in_every_order_of_their_steps(mx, place):
    """A whole save removed deltas that another training had completed in the meantime, and that it had reported."""
    v1 = tf.compat.v1
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=1000, save_delta_checkpoints_secs=1000)
    saver = v1.train.Saver([v1.get_variable("x", [])])
    for order in orders(5):
        for name in os.listdir(place):
            path = os.path.join(place, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        old = OneSave(place, "sparse-m-8")
        follows = {"directory": "sparse-m-8", "id": "sparse-m-8"}
        ended = OneSave(place, "delta-sparse-m-9", previous=follows)
        for save in (old, ended):
            for step in list(save)[:4]:
                save.take(step)
        saves = [OneSave(place, "sparse-m-10", saver), OneSave(place, "delta-sparse-m-11", previous=follows)]
        steps = [iter(save) for save in saves]
        for number in order:
            saves[number].take(next(steps[number]))
        assert [save.error for save in saves] == [None, None]
        assert saves[0].is_whole() and old.is_whole(), order
        begin, variables = order.index(0), [at for at, one in enumerate(order) if one == 1][2]
        if variables > begin:
            assert saves[1].is_whole(), order
        assert "delta-sparse-m-9" not in os.listdir(place), order
        for save in saves + [old, ended]:
            save.thread.shutdown()


def orders(count):
    """All ways to take so many steps of each of two in turn."""
    for places in itertools.combinations(range(2 * count), count):
        yield [int(at in places) for at in range(2 * count)]


def test_a_save_whose_tables_were_removed_meanwhile_is_an_error(place):
    staging = stage(place + "/sparse-m-1", "x")
    staging.commit([], True)
    shutil.rmtree(place + "/sparse-m-1")
    with pytest.raises(tf.errors.AbortedError, match="sparse-m-1"):
        staging.finish()
    assert os.listdir(place) == []
