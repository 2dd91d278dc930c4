"""Importing mx_rec fails with one paragraph that says what to do, and changes TensorFlow once."""

import os
import shutil
import subprocess
import sys

import pytest

import preloaded
import support
from mx_rec.base.global_env_conf import read_environment


def paragraph(returned, errors):
    """What a process says at the end that was expected to fail with ImportError."""
    last = errors.strip().splitlines()[-1]
    assert returned == 1 and last.startswith("ImportError: "), errors[-2000:]
    return last


def error_of_tensorflow(tmp_path):
    """What an import says beside a module `tensorflow` of a directory."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), support.PACKAGES]))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", "import mx_rec"], env=environment, cwd=str(tmp_path),
                          stderr=subprocess.PIPE, timeout=120)
    return paragraph(done.returncode, done.stderr.decode("utf-8"))


def error_of_plugin(path):
    """What an import says where this is to be the plugin."""
    returned, _, errors = preloaded.ended("import mx_rec", env={"MX_REC_LIBRARY": path})
    return paragraph(returned, errors)


def test_a_missing_tensorflow_is_explained(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError(\"No module named 'tensorflow'\")")
    assert "pip install tensorflow==1.15.5" in error_of_tensorflow(tmp_path)


@pytest.mark.parametrize("version", ["1.14.0", "1.1.15", "0.115", "nightly"])
def test_an_older_tensorflow_is_refused_with_its_version_and_place(tmp_path, version):
    (tmp_path / "tensorflow.py").write_text("__version__ = {!r}".format(version))
    text = error_of_tensorflow(tmp_path)
    assert version in text and str(tmp_path) in text and "pip install tensorflow==1.15.5" in text


def test_a_missing_plugin_is_explained(tmp_path):
    text = error_of_plugin(tmp_path / "nothing.so")
    assert "nothing.so does not exist" in text and "cargo build --release" in text and "MX_REC_LIBRARY" in text


def test_a_file_that_is_no_library_is_explained(tmp_path):
    (tmp_path / "text.so").write_text("not a library")
    text = error_of_plugin(tmp_path / "text.so")
    assert "could not be loaded" in text and "MX_REC_LIBRARY" in text


def test_a_damaged_plugin_is_explained(tmp_path):
    with open(support.library_path(), "rb") as plugin:
        (tmp_path / "half.so").write_bytes(plugin.read(200000))
    assert "could not be loaded" in error_of_plugin(tmp_path / "half.so")


def compile_library(tmp_path, source):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "other.c").write_text(source)
    subprocess.check_call([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "other.so"), str(tmp_path / "other.c")])
    return tmp_path / "other.so"


C_FUNCTIONS = """
int mx_rec_load_status(void) {{ return {status}; }}
const char *mx_rec_load_message(void) {{ return "{message}"; }}
const char *mx_rec_version(void) {{ return "{version}"; }}
"""


def test_another_library_is_not_taken_for_the_plugin(tmp_path):
    library = compile_library(tmp_path, "int answer(void) { return 42; }")
    assert "is a shared library, but not mx_rec's plugin" in error_of_plugin(library)


def test_a_plugin_that_could_not_register_says_why(tmp_path):
    library = compile_library(tmp_path, C_FUNCTIONS.format(status=3, message="TF_NewKernelBuilder is missing",
                                                           version="0.1.0"))
    text = error_of_plugin(library)
    assert "TF_NewKernelBuilder is missing" in text and "(code 3)" in text


def test_a_plugin_of_another_version_is_refused(tmp_path):
    library = compile_library(tmp_path, C_FUNCTIONS.format(status=0, message="", version="9.9.9"))
    text = error_of_plugin(library)
    assert "9.9.9" in text and "install both from one wheel" in text


@pytest.mark.parametrize("name, value", [
    ("MXREC_LOG_LEVEL", "LOUD"), ("GLOG_stderrthreshold", "3"), ("TF_DEVICE", "TPU"), ("AclTimeout", "-2"),
    ("HD_CHANNEL_SIZE", "1"), ("KEY_PROCESS_THREAD_NUM", "11"), ("MAX_UNIQUE_THREAD_NUM", "0"),
    ("FAST_UNIQUE", "yes"), ("HOT_EMB_UPDATE_STEP", "1001"), ("USE_COMBINE_FAAE", "2"), ("RECORD_KEY_COUNT", ""),
    ("SSD_SAVE_COMPACT_LEVEL", "3"), ("USE_SHM_SWAP", "-1"), ("HUGE_TLB_ENABLE", "on"), ("CM_WORKER_SIZE", "513"),
    ("APPLY_GRADIENTS_STRATEGY", "sum")])
def test_an_illegal_environment_variable_is_a_value_error_that_names_it(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        read_environment()


def test_environment_variables_are_checked_at_import():
    code = "try:\n    import mx_rec\nexcept ValueError as error:\n    print(error)"
    assert "MXREC_LOG_LEVEL" in preloaded.run_python(code, MXREC_LOG_LEVEL="LOUD")


def test_the_log_level_is_the_environment_s_and_the_root_logger_is_left_alone():
    code = """
import logging
before = (logging.getLogger().level, list(logging.getLogger().handlers))
import mx_rec
from mx_rec.util.log import logger
from rec_sdk_common.log import logger as same
print(logger.level == logging.ERROR, logger is same, before == (logging.getLogger().level, logging.getLogger().handlers))
"""
    assert preloaded.run_python(code, MXREC_LOG_LEVEL="ERROR").split() == ["True"] * 3


def test_patches_are_applied_once_and_the_version_is_told():
    code = """
import tensorflow as tf
stock = tf.compat.v1.train.Saver.save
import mx_rec
from mx_rec import patches
from mx_rec._version import VERSION
once = tf.compat.v1.train.Saver.save
patches.apply()
print(once is not stock, tf.compat.v1.train.Saver.save is once, mx_rec.version() == mx_rec.__version__ == VERSION)
"""
    assert preloaded.run_python(code).split() == ["True"] * 3
