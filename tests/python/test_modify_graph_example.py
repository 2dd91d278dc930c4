"""examples/session_modify_graph.py, run with and without graph modification, saves the same files."""

import os

import pytest

import preloaded
import support

PATH = os.path.join(support.REPO, "examples", "session_modify_graph.py")


def saved(directory):
    """{path: bytes} of the numbers of a checkpoint: tables, their slots, and dense variables."""
    found = {}
    for path, _, names in os.walk(directory):
        for name in names:
            if name.startswith("slice.") or ".data-" in name:
                with open(os.path.join(path, name), "rb") as file:
                    found[os.path.relpath(os.path.join(path, name), directory)] = file.read()
    return found


def lines(text):
    """What the example says of its epochs and promises, without times."""
    return [line.rsplit("  ", 1)[0].rstrip() for line in text.splitlines()
            if line.startswith(("  epoch", "  kept", "  BROKEN"))]


@pytest.mark.long
def test_the_saved_tables_are_the_same_files_with_and_without_modification(tmp_path):
    texts, files = {}, {}
    for way in ("0", "1"):
        directory = str(tmp_path / way)
        # By the environment variable, and by the flag, which wins over it.
        flag = ["--modify-graph", way] if way == "1" else []
        texts[way] = preloaded.run_script(PATH, "--quick", "--epochs", "2", "--out", directory, *flag, USE_MODIFY_GRAPH="0")
        files[way] = saved(directory)
    assert "6 of 6 lookups moved into 2 input pipelines" in texts["1"] and "graph modified" in texts["1"]
    assert "moved into" not in texts["0"] and "FeatureSpecs" in texts["0"]
    assert lines(texts["0"]) == lines(texts["1"]) and len(lines(texts["0"])) == 2 + 5
    # Three tables with keys, embeddings and two slots, each in two files, and the dense variables in one: all of them
    # byte for byte, so that the order of rows agrees too.
    assert len(files["0"]) == 3 * 4 * 2 + 1
    assert sorted(files["0"]) == sorted(files["1"])
    assert [name for name in files["0"] if files["0"][name] != files["1"][name]] == []


def test_wrong_arguments_say_what_is_wrong(tmp_path):
    for arguments, message in ((["--epochs", "0"], "at least 1"),
                               (["--data", str(tmp_path / "none")], "there is no directory")):
        assert message in preloaded.run_script(PATH, *arguments, expected=2)
