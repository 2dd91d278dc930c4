"""examples/admission_eviction.py keeps its promises on generated ratings and on files."""

import os
import subprocess
import sys

import pytest

import support

PATH = os.path.join(support.REPO, "examples", "admission_eviction.py")


def run(*arguments, expected=0):
    """Runs the example in a new process; returns what it wrote."""
    environment = dict(os.environ, PYTHONPATH=support.PACKAGES, TF_CPP_MIN_LOG_LEVEL="2")
    done = subprocess.run([sys.executable, PATH] + list(arguments), env=environment, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode("utf-8", "replace")
    assert done.returncode == expected, text[-4000:]
    return text


@pytest.mark.long
def test_it_keeps_its_promises_and_draws_them(tmp_path):
    text = run("--quick", "--out", str(tmp_path))
    assert text.count("  kept    ") == 7 and "BROKEN" not in text
    assert (tmp_path / "admission_eviction.png").stat().st_size > 10000
    for name in ("all", "admission", "eviction", "both"):
        assert [part for part in os.listdir(str(tmp_path / name)) if "tfevents" in part], name


@pytest.mark.long
def test_wrong_arguments_say_what_is_wrong(tmp_path):
    for arguments, message in ((["--access", "0"], "at least 1"),
                               (["--data", str(tmp_path / "none")], "there is no directory")):
        assert message in run(*arguments, expected=2)
