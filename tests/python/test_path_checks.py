"""validate_read_file and validate_save_path, which converters of data call: what they accept, and errors that name the path."""

import os
import socket

import pytest

import support  # noqa: F401  finds the package of this checkout
from mx_rec.saver.patch import validate_save_path
from mx_rec.saver.saver import validate_read_file


def write(path, text="data", mode=0o640):
    support.write(path, text)
    os.chmod(path, mode)
    return path


def test_a_file_of_our_own_may_be_read(place, monkeypatch):
    for mode in (0o600, 0o640, 0o644, 0o444, 0o755):
        assert validate_read_file(write("{}/{:o}".format(place, mode), mode=mode)) is None
    os.mkdir(place + "/real")
    os.symlink(place + "/real", place + "/link")
    write(place + "/real/file")
    validate_read_file(place + "/link/file")
    monkeypatch.chdir(place)
    validate_read_file("real/file")
    validate_read_file("./real/../real/file")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_is_refused(place, mode):
    path = write(place + "/file", mode=mode)
    with pytest.raises(ValueError, match="read_file_path.*{}.*{:04o}.*chmod go-w".format(path, mode)):
        validate_read_file(path)


def test_what_is_no_file_is_refused(place):
    with pytest.raises(FileNotFoundError, match=place + "/none"):
        validate_read_file(place + "/none")
    os.symlink(write(place + "/file"), place + "/link")
    os.symlink(place + "/nowhere", place + "/dangling")
    os.mkfifo(place + "/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place + "/socket")
        for name, words in (("link", "a symbolic link"), ("dangling", "a symbolic link"), ("pipe", "is none"),
                            ("socket", "is none"), ("", "a directory")):
            with pytest.raises(ValueError, match="should be a file, but .* " + words if words != "is none" else words):
                validate_read_file(os.path.join(place, name))
    with pytest.raises(ValueError, match="0 bytes"):
        validate_read_file(write(place + "/empty", ""))


def test_a_file_too_large_is_refused(place):
    path = write(place + "/file")
    try:
        os.truncate(path, 500 * 1024 ** 3)
    except OSError:
        pytest.skip("this file system has no files of 500 GiB, even of holes")
    validate_read_file(path)
    os.truncate(path, 500 * 1024 ** 3 + 1)
    with pytest.raises(ValueError, match="{} bytes".format(500 * 1024 ** 3 + 1)):
        validate_read_file(path)


def test_a_file_of_another_user_and_group_is_refused(place, monkeypatch):
    path = write(place + "/file")
    user, group = os.geteuid(), os.getegid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    validate_read_file(path)
    monkeypatch.setattr(os, "getegid", lambda: group + 1)
    with pytest.raises(ValueError, match="belongs to user {} and group {}".format(user, group)):
        validate_read_file(path)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    validate_read_file(path)


@pytest.mark.parametrize("path", [None, 3, b"file", "", "x" * 1025, ["file"]])
def test_another_thing_than_a_path_is_refused(path):
    with pytest.raises(ValueError, match="read_file_path"):
        validate_read_file(path)
    with pytest.raises(ValueError, match="save_path"):
        validate_save_path(path)


def test_files_that_tensorflow_alone_reaches_are_checked_for_being_there_and_their_size(place):
    write(place + "/file", mode=0o666)
    write(place + "/empty", "")
    validate_read_file("file://" + place + "/file")
    validate_save_path("file://" + place + "/other")
    with pytest.raises(FileNotFoundError, match="file://{}/none".format(place)):
        validate_read_file("file://" + place + "/none")
    with pytest.raises(ValueError, match="0 bytes"):
        validate_read_file("file://" + place + "/empty")


def test_a_path_to_save_to_may_be_there_or_not(place, monkeypatch):
    for path in (place, place + "/", place + "/model.ckpt", place + "/not/there/yet", write(place + "/file")):
        assert validate_save_path(path) is None
    monkeypatch.chdir(place)
    validate_save_path("model")
    assert sorted(os.listdir(place)) == ["file"]


def test_a_path_that_cannot_be_saved_to_is_refused(place):
    for path, words in (("/usr/local/x", "system directory"), (place + "/../x", "'\\.\\.'"), (place + "/a\nb", "control")):
        with pytest.raises(ValueError, match="save_path.*" + words):
            validate_save_path(path)
    write(place + "/file")
    with pytest.raises(NotADirectoryError, match=place + "/file"):
        validate_save_path(place + "/file/model")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_this_process_must_not_write_is_refused(place):
    os.chmod(place, 0o500)
    with pytest.raises(PermissionError, match=place):
        validate_save_path(place + "/model")


def test_access_is_asked_of_the_nearest_directory_that_is_there(place, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(PermissionError, match=place):
        validate_save_path(place + "/a/b")
    assert asked == [(place, os.W_OK | os.X_OK)]
