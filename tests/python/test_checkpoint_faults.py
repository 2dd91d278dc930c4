"""A disk that is full, and files with a changed bit: the error names file and table, and nothing is lost."""

import errno
import glob
import os
import resource
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import support
from saver_cases import Model
from mx_rec.checkpoint import commit


def make_model():
    """A table of about 2.4 MB beside a small one and a variable."""
    return Model(("small", "big"), (10, 60000), 8, 60000, [1000])


@pytest.fixture
def model(graph, dynamic):
    return make_model()


def everything(place):
    """path -> bytes of all files below a directory."""
    found = {}
    for path in glob.glob(place + "/**", recursive=True) + glob.glob(place + "/.*/**", recursive=True):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[os.path.relpath(path, place)] = file.read()
    return found


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1.5 MB."""
    place = os.path.realpath(str(tmp_path)) + "/disk"
    os.mkdir(place)
    if os.getuid() != 0 or subprocess.call(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", place]):
        pytest.skip("no mounts here")
    yield place
    subprocess.check_call(["umount", place])


@pytest.mark.parametrize("step", [1, 2])
def test_a_full_disk_is_named_and_the_earlier_checkpoint_stays(model, session, small_disk, step):
    """Over the earlier checkpoint (step 1) and beside it."""
    sess, path = model.saved(session(), 1.0, 100, prefix=small_disk + "/m")
    before = everything(small_disk)
    model.fill(sess, 2.0)
    with pytest.raises(tf.errors.ResourceExhaustedError) as refused:
        model.saver.save(sess, small_disk + "/m", global_step=step)
    text = str(refused.value)
    assert " bytes=" in text and "free_bytes=" in text, text
    assert small_disk in text and "big" in text and "slice.data" in text and "space" in text.lower(), text
    assert everything(small_disk) == before
    model.assert_filled(sess, 2.0)
    assert tf.train.latest_checkpoint(small_disk) == path
    fresh = support.restored(session(), model.saver, path)
    model.assert_filled(fresh, 1.0, 100)


@pytest.mark.parametrize("step", ["make", "write", "flush", "rename"])
def test_a_disk_that_is_full_for_the_commit_is_the_same_error_as_of_the_op(model, session, tmp_path, monkeypatch, step):
    """The op's error was an UnknownError, and that of the commit an OSError."""
    place = os.path.realpath(str(tmp_path))
    sess = model.fill(session(), 1.0, 100)
    monkeypatch.setattr(commit, "before_step", lambda now, path: errno.ENOSPC if now == step and place != path else 0)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="cannot be saved: .*disk is full") as refused:
        model.saver.save(sess, place + "/m", global_step=1)
    text = str(refused.value)
    assert place in text and "'big'" in text and "free_bytes=" in text and (step != "write" or " bytes=" in text), text
    monkeypatch.setattr(commit, "before_step", None)
    assert os.listdir(place) == []


@pytest.mark.parametrize("step", [1, 2])
def test_a_disk_that_is_full_for_the_variables_takes_the_tables_back(graph, dynamic, session, small_disk, step):
    model = make_model()
    wide = tf.compat.v1.get_variable("wide", initializer=tf.zeros([600000]))
    everywhere = tf.compat.v1.train.Saver()
    sess = support.started(session())
    model.fill(sess, 1.0, 100)
    path = model.saver.save(sess, small_disk + "/m", global_step=1)
    before = everything(small_disk)
    model.fill(sess, 2.0, 100)
    with pytest.raises((tf.errors.OpError, OSError)):
        everywhere.save(sess, small_disk + "/m", global_step=step)
    after = everything(small_disk)
    # TensorFlow leaves a temporary file, which a later process removes.
    assert {name: after[name] for name in after if ".tempstate" not in name} == before
    for name in after:
        if ".tempstate" in name:
            os.remove(os.path.join(small_disk, name))
    fresh = support.restored(session(), model.saver, path)
    model.assert_filled(fresh, 1.0, 100)
    assert tf.train.latest_checkpoint(small_disk) == path and wide is not None


@pytest.mark.parametrize("step", [1, 2])
def test_variables_that_a_server_was_writing_when_it_died_are_removed(model, session, tmp_path, monkeypatch, step):
    """Over the earlier checkpoint (step 1) and beside it; the saving process goes on."""
    place = os.path.realpath(str(tmp_path))
    sess, path = model.saved(session(), 1.0, 100, prefix=place + "/m")
    others = ["m-20.data-00000-of-00001", "m-2.notes", "other-2.index.tempstate7"]
    for name in others:
        open(os.path.join(place, name), "w").close()
    before = everything(place)
    stock = sess.run

    def run(fetches, *arguments, **more):
        if fetches != model.saver.saver_def.save_tensor_name:
            return stock(fetches, *arguments, **more)
        # Its data has its name, its index has not.
        for suffix in (".data-00000-of-00002", ".data-00001-of-00002.tempstate5", ".index.tempstate5"):
            open("%s/m-%d%s" % (place, step, suffix), "w").close()
        raise tf.errors.UnavailableError(None, None, "a server has gone")

    monkeypatch.setattr(sess, "run", run)
    with pytest.raises(tf.errors.UnavailableError):
        model.saver.save(sess, place + "/m", global_step=step)
    left = everything(place)
    if step == 1:
        # The earlier one is back; temporary files beside it are a later process's to remove.
        left = {name: left[name] for name in left if ".tempstate5" not in name}
    assert left == before
    monkeypatch.undo()
    model.saver.restore(sess, path)
    model.assert_filled(sess, 1.0, 100)


@pytest.mark.parametrize("limit", [1000, 300000])
def test_a_short_write_is_named_and_the_earlier_checkpoint_stays(model, session, tmp_path, limit):
    """A limit on the size of files, which the system enforces in the middle of a write."""
    import signal

    place = os.path.realpath(str(tmp_path))
    sess, path = model.saved(session(), 1.0, 100, prefix=place + "/m")
    before = everything(place)
    model.fill(sess, 2.0)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises((tf.errors.OpError, OSError)) as refused:
            model.saver.save(sess, place + "/m", global_step=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    text = str(refused.value)
    assert place in text and "slice.data" in text and ("big" in text or "small" in text), text
    assert everything(place) == before
    model.assert_filled(sess, 2.0)
    fresh = support.restored(session(), model.saver, path)
    model.assert_filled(fresh, 1.0, 100)


def test_a_changed_bit_in_any_file_of_the_tables_is_found_before_anything_changes(model, session, tmp_path):
    place = os.path.realpath(str(tmp_path))
    sess, path = model.saved(session(), 1.0, 100, prefix=place + "/m")
    model.fill(sess, 2.0)
    root = place + "/sparse-m-1"
    random = np.random.RandomState(3)
    files = sorted(name for name in everything(root))
    assert len(files) == 11, files
    for name in files:
        whole = everything(root)[name]
        for position in random.choice(len(whole), min(len(whole), 12), replace=False):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << random.randint(8)
            support.write(os.path.join(root, name), damaged)
            with pytest.raises((tf.errors.OpError, OSError, ValueError)) as refused:
                model.saver.restore(sess, path)
            # What an attribute says contradicts other files too.
            told = "slice.attribute" if name.endswith("attribute") else name
            assert told in str(refused.value), (name, position, str(refused.value))
            if "/" in name:
                assert name.split("/")[0] in str(refused.value).replace(path, "")
        support.write(os.path.join(root, name), whole)
    model.assert_filled(sess, 2.0)
    model.saver.restore(sess, path)
    model.assert_filled(sess, 1.0, 100)


def test_a_save_of_which_any_step_is_refused_leaves_one_checkpoint_whole(model, session, tmp_path, monkeypatch):
    """The error names the file and the tables; nothing is left over after the next save."""
    place = os.path.realpath(str(tmp_path))
    sess, fresh = session(), session()
    refused, steps, seen = 0, [], set()
    # As long as the save before got as far as the step that was refused.
    while refused <= len(steps) + 1:
        model.fill(sess, 1.0, 20)
        path = model.saver.save(sess, place + "/m", global_step=1)
        del steps[:]

        def before(step, path):
            assert path.startswith(place), path
            steps.append(step)
            return errno.EIO if len(steps) == refused else 0

        monkeypatch.setattr(commit, "before_step", before)
        model.fill(sess, 2.0, 20)
        failed = False
        try:
            model.saver.save(sess, place + "/m", global_step=1)
        except (OSError, tf.errors.OpError) as error:
            failed = True
            assert os.strerror(errno.EIO) in str(error) and place in str(error), str(error)
        monkeypatch.setattr(commit, "before_step", None)
        if failed:
            seen.add(steps[refused - 1])
        model.saver.restore(fresh, path)
        if fresh.run(model.dense)[0] == 1.0:
            assert failed
            model.assert_filled(fresh, 1.0, 20)
        else:
            model.assert_filled(fresh, 2.0, 20)
        refused += 1
    assert {"make", "write", "flush", "link", "copy", "rename", "exchange", "remove"} >= seen
    assert {"make", "write", "flush", "copy"} <= seen, seen
    assert refused > 12, steps
    model.saver.save(sess, place + "/m", global_step=2)
    assert not [name for name in os.listdir(place) if name.startswith(".")]
