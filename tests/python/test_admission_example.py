"""examples/admission_eviction.py keeps its promises on generated ratings and on files."""

import os

import pytest

import preloaded
import support

PATH = os.path.join(support.REPO, "examples", "admission_eviction.py")


@pytest.mark.long
def test_it_keeps_its_promises_and_draws_them(tmp_path):
    text = preloaded.run_script(PATH, "--quick", "--out", str(tmp_path))
    assert text.count("  kept    ") == 7 and "BROKEN" not in text
    assert (tmp_path / "admission_eviction.png").stat().st_size > 10000
    for name in ("all", "admission", "eviction", "both"):
        assert [part for part in os.listdir(str(tmp_path / name)) if "tfevents" in part], name


@pytest.mark.long
def test_wrong_arguments_say_what_is_wrong(tmp_path):
    for arguments, message in ((["--access", "0"], "at least 1"),
                               (["--data", str(tmp_path / "none")], "there is no directory")):
        assert message in preloaded.run_script(PATH, *arguments, expected=2)
