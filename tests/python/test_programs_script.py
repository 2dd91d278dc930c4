"""scripts/programs: how it runs a program both ways, what it reads from the output, and its arguments."""

import json
import os
import re
import subprocess
import sys

import pytest

import support

PATH = os.path.join(support.REPO, "scripts", "lib", "programs.py")


programs = support.load_script(PATH)
public = sys.modules["public_programs"]

SCRIPT = """
import sys, time
open("left", "w").write("x" * 100)
for step in range(1, 9):
    print("step %d loss %.2f" % (step * 10, 1.0 / step))
    time.sleep(0.05)
held = bytearray(50 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_is_watched_to_its_end(tmp_path, code):
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "data").write_text("there before")
    done = programs.run([sys.executable, "program.py", str(code)], str(tmp_path), public.OF_DRIVERS, 60)
    assert done.code == code and done.disk == 100 and done.memory > 50 << 20
    assert sorted(done.losses) == list(range(10, 90, 10)) and done.losses[20] == 0.5
    assert 50 < done.rate < 200.0 and 0.4 < done.seconds < 60
    assert programs.at_ends(done.losses) == "1.0000 > 0.1200"
    assert done.tail[-1] == "step 80 loss 0.12"


def test_a_run_that_takes_too_long_is_ended_and_said(tmp_path):
    (tmp_path / "program.py").write_text("import time\ntime.sleep(100)\n")
    done = programs.run([sys.executable, "program.py"], str(tmp_path), public.OF_DRIVERS, 1)
    assert done.code is None and done.rate == 0 and done.seconds < 50
    program = programs.Program("slow", "", "", lambda: [], "")
    text = programs.text_of(program, {"variables": done, "tables": done._replace(code=5, tail=["the end"])})
    assert "took too long" in text and "FAILED: exit code 5" in text and "| the end" in text


def test_patterns_read_what_programs_print():
    assert re.search(public.OF_EASYREC, "[INFO] global step 16: lr = 0.001, cross_entropy_loss = 0.62, total_loss = 1"
                     ).groupdict() == {"step": "16", "loss": "0.62"}
    assert re.search(public.OF_EASYREC_SUMS, "global step 16: lr = 0.001, regularization_loss = 0.1, total_loss = 1.25"
                     ).groupdict() == {"step": "16", "loss": "1.25"}
    assert not re.search(public.OF_EASYREC, "Saving dict for global step 25: auc = 0.6, cross_entropy_loss = 0.68")
    assert re.search(public.OF_ESTIMATORS, "INFO:tensorflow:loss = 6.5e-05, step = 101 (2.1 sec)"
                     ).groupdict() == {"step": "101", "loss": "6.5e-05"}
    assert re.search(public.OF_RECOMMENDERS, "step 20 , total_loss: 0.7002, data_loss: 0.6911").groupdict() == {
        "step": "20", "loss": "0.7002"}
    assert re.search(public.OF_LIBRECO, "\t train_loss: 0.6669").groupdict() == {"loss": "0.6669"}


def test_programs_are_found_and_others_are_refused(tmp_path):
    (tmp_path / "EasyRec").mkdir()
    (tmp_path / "tf_repos").mkdir()
    listed = subprocess.run([sys.executable, PATH, str(tmp_path), "--list"], stdout=subprocess.PIPE,
                            universal_newlines=True, check=True).stdout.splitlines()
    assert "tf_repos DeepFM" in listed and "recommenders xDeepFM" not in listed and "DeepCTR DeepFM" in listed
    assert "EasyRec" in listed and "DeepInterestNetwork" not in listed and "LibRecommender DeepFM" in listed
    wrong = subprocess.run([sys.executable, PATH, str(tmp_path), "--only", "nothing"], stderr=subprocess.PIPE,
                           universal_newlines=True)
    assert wrong.returncode == 2 and "no such program: nothing; there are EasyRec" in wrong.stderr


@pytest.mark.long
def test_the_picture_has_every_program_with_two_rates(tmp_path):
    def result(rate, memory):
        return programs.Result(0, {1: 0.5}, rate, 1.0, memory, 0, None, [])

    measured = {"fast": {"variables": result(2.0, 100), "tables": result(40.0, 20)},
                "slow": {"variables": result(2.0, 100), "tables": result(1.0, 150)},
                "no rate": {"variables": result(0.0, 100), "tables": result(1.0, 150)}}
    programs.plot(measured, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
    from matplotlib import pyplot

    left, right = pyplot.gcf().axes
    assert [one.get_text() for one in left.get_yticklabels()] == ["slow", "fast"]
    assert [one.get_text() for one in left.texts] == ["0.5", "20"]
    assert [one.get_text() for one in right.texts] == ["1.5", "0.2"]


def test_differences_are_the_largest_so_far_and_those_of_the_farthest_nudge():
    def result(*losses):
        return programs.Result(0, dict(zip(range(1, 50, 10), losses)), 0.0, 1.0, 0, 0, None, [])

    text = programs.differences({
        "variables": result(1.0, 1.0, 1.0, 2.0), "tables": result(1.0, 1.001, 1.0, 2.0, 7.0),
        "nudge1": result(1.0, 1.0, 1.0, 2.0), "nudge2": result(1.0, 1.0, 0.98, 2.02)})
    tables, nudged = text.splitlines()
    assert tables.endswith("on tables, up to step: 1: 0.0e+00, 11: 1.0e-03, 21: 1.0e-03, 31: 1.0e-03")
    assert nudged.endswith("the farthest of 2, up to step: 1: 0.0e+00, 11: 0.0e+00, 21: 2.0e-02, 31: 2.0e-02")


STEPS = """
import json
import numpy as np
import tensorflow as tf
v1 = tf.compat.v1
ran = {"ids": 0, "gradient": 0, "rows": 0.0}
def note(what, value):
    ran[what] += 1 if what != "rows" else float(np.abs(value).sum())
    return value
def noted(what, tensor):
    found = tf.numpy_function(lambda value: note(what, value), [tensor], tensor.dtype)
    found.set_shape(tensor.shape)
    return found
@tf.custom_gradient
def layer(rows):
    return noted("rows", rows), lambda grad: noted("gradient", grad)
words = v1.placeholder(tf.string, [None, 2])
ids = noted("ids", tf.strings.to_hash_bucket_fast(words, 5000))
table = v1.get_variable("table", [5000, 4])
bags = v1.get_variable("bags", [5000, 4])
sparse = tf.sparse.from_dense(ids)
both = layer(tf.concat([tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, 8]),
                        tf.nn.safe_embedding_lookup_sparse(bags, sparse, combiner="mean")], 1))
loss = tf.reduce_mean(tf.square(v1.layers.dense(both, 1) - 1.0))
optimizer = v1.train.AdamOptimizer(0.1)
pairs = optimizer.compute_gradients(loss)
if CLIPS:
    pairs = [(tf.clip_by_norm(grad, 5.0), one) for grad, one in pairs]
train = optimizer.apply_gradients(pairs)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    losses = [session.run([loss, train], {words: [["a", "b"], ["c", "d"]]})[0] for _ in range(12)]
    ran["moved"] = bool(losses[-1] < losses[0])
    before = session.run([table, bags])
    session.run([loss, train], {words: [["a", "b"], ["c", "d"]]})
    ran["same"] = all(np.array_equal(*pair) for pair in zip(before, session.run([table, bags])))
json.dump(ran, open("ran.json", "w"))
"""


@pytest.mark.long
@pytest.mark.parametrize("clips", [False, True], ids=["plain", "clipped"])
def test_the_limit_computes_ids_and_gradients_and_neither_reads_nor_updates_what_would_be_tables(tmp_path, clips):
    (tmp_path / "program.py").write_text(STEPS.replace("CLIPS", str(clips)))
    found = {}
    for form in ("steps", "limit"):
        done = programs.run([sys.executable, "-m", "mx_rec", "run", "--least-rows", "1000", programs.LIMIT, form,
                             str(tmp_path / "took.json"), "program.py"], str(tmp_path), "nothing", 100)
        assert done.code == 0, done.tail
        took, found[form] = [json.loads((tmp_path / name).read_text()) for name in ("took.json", "ran.json")]
        assert took["steps"] in (8, 9) and took["wall"] > 0 and took["processor"] > 0
    assert found["steps"]["rows"] > 0 and not found["steps"]["same"]
    assert found["limit"] == {"ids": 13, "gradient": 13, "rows": 0.0, "moved": True, "same": True}
    text = programs.distances({"variables": took, "tables": dict(took, wall=2 * took["wall"]), "limit": took})
    assert "on the clock" in text.splitlines()[0] and text.splitlines()[0].endswith("tables reach 0.50 of the limit")
    assert text.splitlines()[1].endswith("tables reach 1.00 of the limit")
