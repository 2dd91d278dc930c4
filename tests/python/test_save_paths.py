"""Where checkpoints may lie: every form of a path, errors that name the path and the table, and file systems of TensorFlow."""

import glob
import os

import pytest
import tensorflow as tf

import support
from saver_cases import Model
from mx_rec.checkpoint.__main__ import main
from mx_rec.saver.saver import Saver


@pytest.fixture
def model(graph, dynamic):
    """A table beside a variable."""
    return Model(["table"], max_to_keep=2)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory, which is the working directory too."""
    place = os.path.realpath(str(tmp_path))
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("path", [
    "{}/model.ckpt", "./model.ckpt", "sub/model.ckpt", "{}/not/there/yet/model.ckpt", "{}/with some  spaces/my model",
    "{}/\u00fcbung/\u6a21\u578b", "{}/percent%20and'quote\"/m;$x&y", "{}/.hidden", "{}/model-7", "{}/" + "l" * 150,
    "{}//twice//model.ckpt", "{}/./model", ".//model", "sub//model", "/{}/model", "{}/link/model", "link/model", "./link//model", "{}/through/link/model"])
def test_a_checkpoint_goes_there_and_comes_back(model, session, place, path):
    from tensorflow.python.training import warm_starting_util

    for link, target in (("link", place + "/real"), ("through", ".")):
        os.symlink(target, os.path.join(place, link))
    os.mkdir(place + "/real")
    prefix = path.format(place)
    first = model.fill(session(), 3.0)
    saved = model.saver.save(first, prefix, global_step=4)
    assert saved == prefix.replace("//", "/") + "-4"
    directory, base = os.path.split(os.path.join(place, saved))
    assert os.path.isfile("{}/{}.index".format(directory, base))
    assert os.path.isfile("{}/sparse-{}/table/key/slice.data".format(directory, base))
    assert not [name for name in os.listdir(directory) if name.startswith(".sparse")]
    second = support.restored(session(), model.saver, tf.train.latest_checkpoint(os.path.dirname(saved)))
    model.assert_filled(second, 3.0)
    third = support.restored(session(), model.saver, prefix + "-4")
    model.assert_filled(third, 3.0)
    assert main([prefix + "-4", "--verify"]) == 0 and main([saved, "--verify"]) == 0 and main([os.path.dirname(saved), "--verify"]) == 0
    # A save over it, and one beside it, leave nothing behind.
    model.fill(first, 4.0)
    for step in (4, 5):
        model.saver.save(first, prefix, global_step=step)
    assert not [name for name in os.listdir(directory) if name.startswith(".sparse")]
    model.saver.restore(third, saved)
    model.assert_filled(third, 4.0)
    tf.compat.v1.train.get_or_create_global_step()
    warm_starting_util.warm_start(prefix + "-4")
    fourth = support.started(session())
    model.assert_filled(fourth, 4.0)


def test_a_bare_name_is_as_in_tensorflow(model, session, place):
    """TensorFlow either saves into the working directory or refuses; the tables do the same."""
    sess = model.fill(session(), 3.0)
    try:
        saved = model.saver.save(sess, "bare")
    except ValueError as error:
        assert "bare" in str(error) and not glob.glob(place + "/*sparse*") and not glob.glob(place + "/.sparse*")
        return
    second = support.restored(session(), model.saver, saved)
    model.assert_filled(second, 3.0)


def bad_paths():
    return [
        ("a file as parent", "{}/file/model", OSError), ("a file above", "{}/file/sub/model", OSError),
        ("too long a name", "{}/" + "n" * 300, OSError), ("too long in characters of two bytes", "{}/" + "\u00fc" * 130, OSError),
        ("no place to write", "/proc/model", OSError), ("no place to write", "/sys/kernel/model", OSError),
        ("a file where the tables go", "{}/taken", OSError), ("a file where a delta goes", "{}/whole", OSError),
        ("a directory where a file goes", "{}/index", OSError), ("a directory where a file goes", "{}/meta", OSError),
        ("a directory of the system", "{}/system/model", ValueError),
        ("too long", "{}/" + "/".join(["d" * 100] * 11), ValueError), ("parents", "{}/../model", ValueError),
        ("a line feed", "{}/model\n", ValueError), ("nothing", "", ValueError)]


@pytest.mark.parametrize("what, path, kind", bad_paths())
def test_a_path_that_cannot_be_is_named_and_nothing_is_left(model, session, place, what, path, kind):
    sess = model.fill(session(), 3.0)
    open(place + "/file", "w").close()
    open(place + "/sparse-taken-1", "w").close()
    open(place + "/delta-sparse-whole-1", "w").close()
    for name in ("real", "index-1.index", "meta-1.meta"):
        os.mkdir(os.path.join(place, name))
    os.symlink("/etc", place + "/system")
    before = sorted(os.listdir(place))
    with pytest.raises(kind) as refused:
        model.saver.save(sess, path.format(place), global_step=1)
    text = str(refused.value)
    if kind is OSError:
        assert "'table'" in text and os.path.dirname(path.format(place)) in text.replace("\\\\", "\\"), text
    else:
        assert "save_path" in text
    assert sorted(os.listdir(place)) == before and os.listdir(place + "/real") == []
    model.assert_filled(sess, 3.0)
    assert model.saver.last_checkpoints == []


@pytest.mark.parametrize("in_the_way, arguments", [
    ("checkpoint", {}), ("other", {"latest_filename": "other"}), ("model_index.json", {}), ("file", {"latest_filename": "file/state"})])
def test_what_stands_in_the_way_of_the_last_file_is_refused_before_the_first(mx, session, place, in_the_way, arguments):
    """The tables and variables were in place before the state file could not be written."""
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    model = Model(["table"], max_to_keep=2)
    sess = model.fill(session(), 3.0)
    if in_the_way == "file":
        open(place + "/file", "w").close()
    else:
        os.mkdir(os.path.join(place, in_the_way))
    with pytest.raises(OSError) as refused:
        model.saver.save(sess, place + "/model", global_step=1, **arguments)
    assert os.path.join(place, in_the_way) in str(refused.value) and "'table'" in str(refused.value)
    assert os.listdir(place) == [in_the_way]


def test_a_link_in_the_place_of_the_tables_is_replaced_and_what_it_leads_to_stays(model, session, place):
    sess, path = model.saved(session(), 3.0, prefix=place + "/m")
    os.rename(place + "/sparse-m-1", place + "/elsewhere")
    os.symlink(place + "/elsewhere", place + "/sparse-m-1")
    model.fill(sess, 4.0)
    model.saver.restore(sess, path)
    model.assert_filled(sess, 3.0)
    model.fill(sess, 5.0)
    model.saver.save(sess, place + "/m", global_step=1)
    assert not os.path.islink(place + "/sparse-m-1") and os.path.isfile(place + "/elsewhere/table/key/slice.data")
    assert not [name for name in os.listdir(place) if name.startswith(".")]
    model.saver.restore(sess, path)
    model.assert_filled(sess, 5.0)


def test_a_delta_follows_a_save_through_a_link(mx, session, place):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600)
    model = Model(["table"], max_to_keep=2)
    os.mkdir(place + "/real")
    os.symlink(place + "/real", place + "/link")
    sess = model.fill(session(), 1.0)
    model.saver.save(sess, place + "/link/m", global_step=1)
    model.fill(sess, 2.0)
    path = model.saver.save(sess, place + "/real//m", global_step=2, save_delta=True)
    assert os.path.isdir(place + "/real/delta-sparse-m-2")
    fresh = support.restored(session(), model.saver, path)
    model.assert_filled(fresh, 2.0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_a_file_system_that_is_read_only_is_named(model, session, place):
    import subprocess

    sess = model.fill(session(), 3.0)
    os.mkdir(place + "/mount")
    if subprocess.call(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", place + "/mount"]):
        pytest.skip("no mounts here")
    try:
        with pytest.raises(OSError) as refused:
            model.saver.save(sess, place + "/mount/model", global_step=1)
        assert place + "/mount" in str(refused.value) and "'table'" in str(refused.value)
    finally:
        subprocess.check_call(["umount", place + "/mount"])


@pytest.mark.parametrize("path", ["{}/nothing-1", "{}/nowhere/model-1", "{}/file/model-1"])
def test_restoring_what_is_not_there_is_a_value_error_that_names_it(model, session, place, path):
    sess = model.fill(session(), 3.0)
    open(place + "/file", "w").close()
    with pytest.raises(ValueError) as refused:
        model.saver.restore(sess, path.format(place))
    assert path.format(place) in str(refused.value)
    model.assert_filled(sess, 3.0)


# File systems of TensorFlow; file:// is the one that is here -------------------------------------


def names(place):
    return sorted(os.listdir(place))


def whole(*steps):
    return sorted(["checkpoint"] + ["sparse-m-%d" % step for step in steps] + [
        "m-%d%s" % (step, suffix) for step in steps for suffix in (".index", ".meta", ".data-00000-of-00001")])


def test_a_remote_directory_is_made_filled_pruned_and_read(model, session, place):
    url = "file://" + place + "/far away/deep"
    first = session()
    for step in (1, 2, 3):
        model.fill(first, float(step))
        assert model.saver.save(first, url + "/m", global_step=step) == "%s/m-%d" % (url, step)
    assert names(place + "/far away/deep") == whole(2, 3)
    assert tf.train.latest_checkpoint(url) == url + "/m-3"
    second = session()
    for step in (2, 3):
        model.saver.restore(second, "%s/m-%d" % (url, step))
        model.assert_filled(second, float(step))
    # The same directory, reached as a local one.
    model.saver.restore(second, place + "/far away/deep/m-2")
    model.assert_filled(second, 2.0)


def test_a_remote_save_over_the_same_step_replaces_it_and_leftovers_go(model, session, place):
    url = "file://" + place
    sess = session()
    for value in (1.0, 2.0):
        model.fill(sess, value)
        model.saver.save(sess, url + "/m", global_step=1)
    for leftover in (".sparse-m-1.saving-" + "0" * 32, ".sparse-m-2.old-" + "1" * 32, ".sparse-other-1.saving-" + "0" * 32):
        os.makedirs("%s/%s/table" % (place, leftover))
    model.saver.save(sess, url + "/m", global_step=3)
    assert names(place) == sorted(whole(1, 3) + [".sparse-other-1.saving-" + "0" * 32, "sparse-m-2"])
    fresh = support.restored(session(), model.saver, url + "/m-1")
    model.assert_filled(fresh, 2.0)


def test_a_remote_save_that_fails_leaves_what_was_there(model, session, place, monkeypatch):
    url = "file://" + place
    sess = model.fill(session(), 1.0)
    model.saver.save(sess, url + "/m", global_step=1)
    before = names(place)
    model.fill(sess, 2.0)
    stock = {name: getattr(tf.io.gfile, name) for name in ("copy", "rename")}
    for name, at in (("copy", 1), ("copy", 4), ("rename", 1), ("rename", 2)):
        calls = []

        def failing(*arguments, **more):
            calls.append(arguments)
            if len(calls) == at:
                raise tf.errors.UnavailableError(None, None, "the network is down")
            return stock[name](*arguments, **more)

        with monkeypatch.context() as patch:
            patch.setattr(tf.io.gfile, name, failing)
            with pytest.raises(OSError) as refused:
                model.saver.save(sess, url + "/m", global_step=1)
        assert "network is down" in str(refused.value) and url in str(refused.value) and "'table'" in str(refused.value)
        assert names(place) == before
    fresh = support.restored(session(), model.saver, url + "/m-1")
    model.assert_filled(fresh, 1.0)


def test_a_damaged_remote_table_is_named_by_its_remote_path(model, session, place):
    url = "file://" + place
    sess, path = model.saved(session(), 1.0, prefix=url + "/m")
    with open(place + "/sparse-m-1/table/embedding/slice.data", "r+b") as file:
        file.truncate(8)
    model.fill(sess, 2.0)
    with pytest.raises(tf.errors.DataLossError) as refused:
        model.saver.restore(sess, path)
    assert url + "/sparse-m-1/table/embedding/slice.data" in str(refused.value) and "'table'" in str(refused.value)
    model.assert_filled(sess, 2.0)
    os.rename(place + "/sparse-m-1", place + "/away")
    with pytest.raises(FileExistsError) as refused:
        model.saver.restore(sess, path)
    assert url + "/sparse-m-1" in str(refused.value)


def test_nothing_local_is_left_by_remote_saves_and_restores(model, session, place, monkeypatch):
    import tempfile

    os.mkdir(place + "/scratch")
    monkeypatch.setattr(tempfile, "tempdir", place + "/scratch")
    sess, path = model.saved(session(), 1.0, prefix="file://" + place + "/far/m")
    model.saver.restore(sess, path)
    with pytest.raises(OSError):
        model.saver.save(sess, "file:///proc/m", global_step=1)
    assert os.listdir(place + "/scratch") == []


@pytest.mark.parametrize("url", ["nonsense://host/dir/m", "ram://dir/m"])
def test_a_file_system_that_tensorflow_does_not_know_is_named(model, session, url):
    sess = model.fill(session(), 1.0)
    with pytest.raises(OSError) as refused:
        model.saver.save(sess, url)
    assert url.rsplit("/", 1)[0] in str(refused.value) and "'table'" in str(refused.value)


def test_the_savers_of_tables_alone_take_remote_paths(model, session, place):
    url = "file://" + place
    sess = session()
    saver = Saver(max_to_keep=1)
    for step in (1, 2):
        model.fill(sess, float(step))
        assert saver.save(sess, url + "/t", global_step=step) == "%s/sparse-t-%d" % (url, step)
    assert names(place) == ["sparse-t-2"]
    fresh = support.restored(session(), saver, url + "/t-2")
    support.assert_same_tables(model.raws[0].rows(fresh), model.raws[0].rows(sess))
