"""The stand-in never takes the place of the vendor's package, however the two meet."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tf_adapter import _stand_in

ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHOW = "import tf_adapter; print(getattr(tf_adapter, 'OWNER', 'stand-in'))"


def package(directory, name, text="OWNER = 'vendor'\n"):
    """Makes a package of the vendor's in a directory, and returns the directory."""
    os.makedirs(str(directory / name))
    with open(str(directory / name / "__init__.py"), "w") as file:
        file.write(text)
    return str(directory)


def python(code, path, before=""):
    """Runs code with directories on PYTHONPATH; returns (exit code, output and errors)."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
    # In front of its own directory, that of -c, nothing may hide.
    ran = subprocess.run([sys.executable, "-c", before + code], env=env, cwd=os.path.dirname(ROOM),
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return ran.returncode, ran.stdout.decode()


def test_without_the_vendors_package_it_is_imported():
    assert _stand_in.find_foreign() is None
    assert python(SHOW, [ROOM]) == (0, "stand-in\n")


def test_the_vendors_package_is_what_is_imported_where_it_comes_first(tmp_path):
    assert python(SHOW, [package(tmp_path, "tf_adapter"), ROOM]) == (0, "vendor\n")


@pytest.mark.parametrize("name", ["tf_adapter", "npu_bridge"])
def test_the_import_is_refused_where_the_vendors_package_comes_later(tmp_path, name):
    code, text = python(SHOW, [ROOM, package(tmp_path, name)])
    assert code == 1 and "ImportError: the vendor's TensorFlow adapter is present" in text
    assert str(tmp_path / name) in text and "PYTHONPATH" in text


def test_another_copy_of_the_stand_in_and_plain_directories_are_no_vendor(tmp_path):
    for name in ("tf_adapter", "npu_bridge"):
        shutil.copytree(os.path.join(ROOM, name), str(tmp_path / "copy" / name))
    os.makedirs(str(tmp_path / "plain" / "tf_adapter"))
    os.makedirs(str(tmp_path / "plain" / "npu_bridge"))
    assert python(SHOW, [ROOM, str(tmp_path / "copy"), str(tmp_path / "plain")]) == (0, "stand-in\n")


def test_the_check_of_the_scripts_needs_no_tensorflow(tmp_path):
    script = os.path.join(ROOM, "tf_adapter", "_stand_in.py")
    for path, code in (([], 0), ([package(tmp_path, "npu_bridge")], 1)):
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(path))
        ran = subprocess.run([sys.executable, "-S", script], env=env, stderr=subprocess.PIPE)
        assert ran.returncode == code
        assert (b"vendor" in ran.stderr) == bool(code)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the sources, to be built in."""
    copied = str(tmp_path_factory.mktemp("source") / "room")
    shutil.copytree(ROOM, copied, ignore=shutil.ignore_patterns("tests", "build", "dist", "*.egg-info"))
    return copied


def build(source, target, path=()):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path))
    ran = subprocess.run([sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", target], cwd=source,
                         env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return ran.returncode, ran.stdout.decode()


@pytest.mark.parametrize("name", ["tf_adapter", "npu_bridge"])
def test_setup_refuses_where_the_vendors_package_is(source, tmp_path, name):
    code, text = build(source, str(tmp_path / "dist"), [package(tmp_path, name)])
    assert code != 0 and "the vendor's TensorFlow adapter is present" in text and str(tmp_path / name) in text
    assert not os.path.exists(str(tmp_path / "dist"))


@pytest.fixture(scope="module")
def site(source, tmp_path_factory):
    """A site directory with the wheel unpacked, as pip installs it."""
    base = tmp_path_factory.mktemp("wheel")
    code, text = build(source, str(base / "dist"))
    assert code == 0, text
    wheel, = os.listdir(str(base / "dist"))
    assert wheel.startswith("mx_rec_tf_adapter-") and wheel.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(str(base / "dist" / wheel)) as file:
        names = file.namelist()
        file.extractall(str(base / "site"))
    # No file of the vendor's package can be overwritten.
    assert not [name for name in names if name.startswith(("tf_adapter", "npu_bridge"))]
    assert "mx_rec_tf_adapter/tf_adapter/__init__.py" in names and "mx_rec_tf_adapter.pth" in names
    assert "mx_rec_tf_adapter/npu_bridge/estimator/npu/npu_config.py" in names
    return base / "site"


def add(site):
    """Code that makes a directory a site directory, and the sources, which scripts/setup makes importable, none."""
    return ("import site, sys; site.addsitedir({!r}); "
            "sys.path = [one for one in sys.path if one != {!r}]; ".format(str(site), ROOM))


def test_the_wheel_is_found_through_its_path_file(site):
    code = SHOW + "; print(tf_adapter.__file__.startswith({!r}))".format(str(site))
    assert python(code, [], add(site)) == (0, "stand-in\nTrue\n")


def test_npu_bridge_is_found_through_the_path_file_of_the_wheel(site):
    code = "import npu_bridge.npu_init as names; print(names.NPUEstimator.__name__, names.tf.__name__, " \
        "__import__('npu_bridge').__file__.startswith({!r}))".format(str(site))
    assert python(code, [], add(site)) == (0, "NPUEstimator tensorflow True\n")


def test_the_vendors_package_beside_the_wheel_wins(site, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(str(site), str(both))
    package(both, "tf_adapter")
    assert python(SHOW, [], add(both)) == (0, "vendor\n")
    package(tmp_path / "third", "npu_bridge")
    code, text = python(SHOW, [str(tmp_path / "third")], add(site))
    assert code == 1 and "ImportError" in text
