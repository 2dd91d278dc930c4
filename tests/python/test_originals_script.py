"""scripts/originals: what it runs, how it tells outcomes, and the data that it makes."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

import support

PATH = os.path.join(support.REPO, "scripts", "lib", "originals.py")

originals = support.load_script(PATH)

# A program that has the line which is cut, and writes rows to disk only if that was done.
DEMO = """
import os, time
open('made', 'w').close()
user_vocab_size = 1000
in_memory = int(user_vocab_size * 0.1)
if os.environ['CACHE_MODE'] == 'SSD' and in_memory < 100:
    os.makedirs('ssd_data', exist_ok=True)
    rows = open('ssd_data/rows', 'w')
    os.unlink('ssd_data/rows')
    rows.write('row')
    rows.flush()
    time.sleep(1)
print(os.environ['USE_MODE'], os.environ['CACHE_MODE'], 'Demo done!')
"""


@pytest.mark.parametrize("code, text, refusal, evidence, wanted", [
    (0, "x\nINFO Demo done!\n", None, None, "end"),
    (0, "Test auc: 0.5\nDemo done!\n", None, "Test auc", "end"),
    (0, "Demo done!\n", None, "Test auc", "FAILED: the log has no Test auc"),
    (0, "stopped early\n", None, None, "FAILED: stopped early"),
    (1, "ValueError: it is so\n  File x\n", None, None, "FAILED: ValueError: it is so"),
    (1, "ValueError: it is so\n", "it is", None, "refused"),
    (1, "KeyError: other\n", "it is", None, "FAILED: not refused: KeyError: other"),
    (0, "Demo done!\n", "it is", None, "FAILED: not refused: Demo done!"),
    (1, "ModuleNotFoundError: No module named 'sklearn'\n", None, None, "absent: sklearn"),
    (1, "ModuleNotFoundError: No module named 'npu_bridge'\n", None, None,
     "FAILED: ModuleNotFoundError: No module named 'npu_bridge'"),
])
def test_outcomes(code, text, refusal, evidence, wanted):
    run = originals.Run("mmoe", {}, refusal=refusal, evidence=evidence)
    assert originals.outcome(run, code, text) == wanted


@pytest.mark.long
def test_a_program_is_copied_runs_with_its_switches_and_is_left_as_it_was(tmp_path):
    home = tmp_path / "programs" / "demo" / "little_demo"
    home.mkdir(parents=True)
    (home / "main.py").write_text(DEMO)
    ran = subprocess.run([sys.executable, PATH, str(tmp_path / "programs"), "--work", str(tmp_path / "work"),
                          "--only", "little_demo"], stdout=subprocess.PIPE)
    rows = ran.stdout.decode().splitlines()[2:]
    assert os.listdir(str(home)) == ["main.py"]
    assert len(rows) == len(originals.little_demo_runs(False))
    # It refuses nothing, so that the rows of documented refusals fail.
    refused = [run.refusal is not None for run in originals.little_demo_runs(False)]
    assert [" FAILED: not refused: " in row for row in rows] == refused and ran.returncode == 1
    assert all(" | end | " in row for row, is_refused in zip(rows, refused) if not is_refused)
    made = sorted(os.listdir(str(tmp_path / "work" / "little_demo")))
    assert (tmp_path / "work" / "little_demo" / made[0] / "made").exists()


def test_a_run_that_must_write_rows_to_disk_fails_if_it_does_not(tmp_path):
    for text, wanted in [(DEMO, "FAILED: no row went to disk"), (DEMO.replace("0.1)", "0.01)"), "end")]:
        (tmp_path / "main.py").write_text(text)
        run = originals.Run("little_demo", {"CACHE_MODE": "SSD", "USE_MODE": "train"}, spills=True)
        assert originals.run_program(sys.executable, str(tmp_path), run, {}, 60) == wanted
        assert originals.run_program(sys.executable, str(tmp_path), run._replace(spills=False), {}, 60) == "end"


def test_a_run_that_takes_too_long_is_ended(tmp_path):
    (tmp_path / "main.py").write_text("import time\ntime.sleep(60)\n")
    run = originals.Run("little_demo", {}, spills=True)
    assert originals.run_program(sys.executable, str(tmp_path), run, {}, 1) == "FAILED: no end after 1 s"


def test_a_directory_without_programs_is_named(tmp_path):
    ran = subprocess.run([sys.executable, PATH, str(tmp_path)], stderr=subprocess.PIPE)
    assert ran.returncode == 1 and str(tmp_path) in ran.stderr.decode()


def test_every_combination_is_run_once():
    for name, program in originals.PROGRAMS.items():
        runs = program.runs(True)
        assert len(runs) > 60 and len(program.runs(False)) > 12
        assert {run.program for run in runs} == {name}


def test_a_run_that_is_whole_has_data_of_its_own(tmp_path, monkeypatch):
    home = tmp_path / "programs" / "WideDeep"
    home.mkdir(parents=True)
    (home / "main_mxrec.py").write_text("import os\ntrain_steps = 1120\npath = os.environ['DLRM_CRITEO_DATA_PATH']\n"
                                        "print('Test auc', len(os.listdir(path + '/train')), path)\nprint('Demo done!')\n")
    small = originals.PROGRAMS["WideDeep"]._replace(
        prepare=originals.records(2, 2, 3, **originals._LINES), prepare_whole=originals.records(2, 2, 5, **originals._LINES))
    monkeypatch.setitem(originals.PROGRAMS, "WideDeep", small)
    work = str(tmp_path / "work")
    monkeypatch.setattr(sys, "argv", ["originals", str(tmp_path / "programs"), "--long", "--work", work, "--match",
                                      "DDR USE_DYNAMIC=1$|whole"])
    assert originals.main() == 0
    logs = sorted(os.path.join(work, "WideDeep", name, "out.log") for name in os.listdir(work + "/WideDeep")
                  if not name.startswith("data"))
    assert [open(log).read().split()[2] for log in logs] == ["3", "5"]
    assert [open(log).read().split()[3].split("/")[-1] for log in logs] == ["data", "data-whole"]


def test_a_pattern_chooses_rows_and_what_they_continue():
    runs = originals.little_demo_runs(False)
    chosen = originals.chosen(runs, "USE_DYNAMIC_EXPANSION=1 USE_MODE=predict USE_MODIFY_GRAPH=1")
    assert [run.switches["USE_MODE"] for run in chosen] == ["train", "load_and_train", "predict"]
    assert originals.chosen(runs, "") == runs and originals.chosen(runs, "nothing") == []


def test_generated_records_have_the_input_format(tmp_path):
    prepare = originals.records(4, 2, 3, lines=8, sparse=26, dense=13, labels=1, whole=False)
    environment = prepare(str(tmp_path))
    assert environment["DLRM_CRITEO_DATA_PATH"] == str(tmp_path) and environment["TRAIN_RANK_SIZE"] == "1"
    files = sorted(os.listdir(str(tmp_path / "train")))
    assert len(files) == 3 and len(os.listdir(str(tmp_path / "test"))) == 1
    labels = []
    for record in tf.compat.v1.io.tf_record_iterator(str(tmp_path / "train" / files[2])):
        features = tf.train.Example.FromString(record).features.feature
        assert len(features["sparse_feature"].int64_list.value) == 8 * 26
        assert len(features["dense_feature"].float_list.value) == 8 * 13
        labels.extend(features["label"].int64_list.value)
    assert len(labels) == 32 and set(labels) == {0, 1}
