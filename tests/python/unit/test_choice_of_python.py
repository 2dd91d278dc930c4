"""scripts/setup finds Pythons where their tools keep them, and says what to do where there is none."""

import os
import shutil
import subprocess
import sys

import pytest

import support

VERSION = "{}.{}".format(*sys.version_info)
TOOLS = ("bash", "sed", "dirname", "basename", "cat")
# Below the home directory; `{}` is the version.
PLACES = {
    "pyenv": ".pyenv/versions/{}.99/bin/python{}",
    "uv": ".local/share/uv/python/cpython-{}.99-linux-x86_64-gnu/bin/python{}",
    "conda's own folder": "miniconda3/envs/some/bin/python{1}",
    "an environment that conda lists": "elsewhere/some/bin/python{1}",
    "PATH": "tools/python{1}",
}


@pytest.fixture
def find(tmp_path):
    """A function that runs find_python in a home directory of its own and returns the process."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(str(tmp_path / "elsewhere" / "some") + "\n")

    def run(**variables):
        return subprocess.run(
            ["bash", "-c", ". scripts/lib/common.sh; find_python"], cwd=support.REPO, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, universal_newlines=True,
            env=dict(PATH=str(tools), HOME=str(tmp_path), **variables))

    return run


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_python_is_found_where_its_tools_keep_it(find, tmp_path, place):
    path = tmp_path / PLACES[place].format(VERSION, VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.realpath(sys.executable))
    done = find()
    assert (done.returncode, done.stdout.strip()) == (0, str(path)), done.stderr


def test_without_any_python_the_error_says_how_to_get_one(find):
    done = find()
    assert done.returncode != 0 and done.stdout == ""
    assert "found no Python that has a TensorFlow" in done.stderr and "pyenv install 3.7" in done.stderr


def test_a_python_of_the_variable_that_cannot_be_used_is_refused_though_another_is_there(find, tmp_path):
    (tmp_path / "tools" / "python3").symlink_to(os.path.realpath(sys.executable))
    done = find(PYTHON="sed")
    assert done.returncode != 0 and "$PYTHON is 'sed'" in done.stderr
    done = find(PYTHON="python3")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "tools" / "python3"))
