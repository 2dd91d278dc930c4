"""Runs public TensorFlow 1.15 programs, unchanged, on their variables and on tables.

    usage: scripts/programs DIR [--only PROGRAM] [--list] [--work DIR] [--python PYTHON]
                            [--timeout SECONDS] [-- OPTIONS OF python -m mx_rec run]

DIR holds any of these programs, each in a directory of its name, as its repository has it:

    EasyRec              github.com/alibaba/EasyRec: deepfm_on_criteo.config, whole (12 GB of
                         memory and of disk on variables), and with a tenth of its buckets
    DeepInterestNetwork  github.com/zhougr1993/DeepInterestNetwork: din/train.py
    tensorflow-DeepFM    github.com/ChenglongChen/tensorflow-DeepFM: DeepFM.py
    LibRecommender       its wheel, in PYTHON: DeepFM, YouTubeRanking and TwoTower on generated data
    DeepCTR, DeepMatch   their wheels, in PYTHON: DeepFM of Keras and of Estimators, YoutubeDNN
    tf_repos             github.com/lambdaji/tf_repos: deep_ctr/Model_pipeline/DeepFM.py
    recommenders         github.com/recommenders-team/recommenders: its xDeepFM

Nothing is downloaded and no file in DIR is changed: a program is copied to the work directory and
runs there, once as it is and once by `python -m mx_rec run`, on data that is made for it. What is
written for Python 2 goes through 2to3 first. Of each run the table has its losses, steps a second
between the first and the last of them, the most memory, and the bytes of the files that it left.
Below it stands what the program's variables became.

Initial values of tables are other draws than TensorFlow's, so that losses are near each other, not
equal: the tests compare from the same start.

What the programs need beside TensorFlow and mx_rec has to be in PYTHON (default: that of this
checkout); docs/unchanged-programs.md has the commands. The exit code is 1 if a run failed.
"""

import argparse
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, NamedTuple, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Program(NamedTuple):
    """A program, and how it is run.

    Attributes:
        name: What it is called in the table.
        folder: Its directory in DIR; "" for one that comes as a wheel.
        inside: Where in that it runs.
        prepare: Makes its data and returns Python's arguments.
        loss: Pattern of a line with a loss, whose groups are `step` and `loss`.
        python2: Files that 2to3 translates.
        options: Of `python -m mx_rec run`.
    """

    name: str
    folder: str
    inside: str
    prepare: Callable[[], List[str]]
    loss: str
    python2: List[str] = []
    options: List[str] = []


class Result(NamedTuple):
    """What a run showed.

    Attributes:
        code: Its exit code; None if it took too long.
        losses: Step -> loss.
        rate: Steps a second between the first and the last loss; 0 without two.
        seconds: From start to end.
        memory: The most memory, in bytes.
        disk: Bytes of the files that it left.
        report: What `--report` wrote, None without.
        tail: The last lines of its output.
    """

    code: Optional[int]
    losses: Dict[int, float]
    rate: float
    seconds: float
    memory: int
    disk: int
    report: Optional[Dict]
    tail: List[str]


def skewed(number: int) -> int:
    """An id below `number`, the small ones more often."""
    return int(number ** random.random()) % number


def easyrec(buckets: int) -> Callable[[], List[str]]:
    """EasyRec's DeepFM on Criteo's form of data; its config with fewer steps."""

    def prepare() -> List[str]:
        random.seed(1)
        os.makedirs("examples/data/criteo", exist_ok=True)
        for name, rows in (("train", 120000), ("test", 8192)):
            with open("examples/data/criteo/criteo_{}_data".format(name), "w") as file:
                for _ in range(rows):
                    ids = [skewed(random.choice([100, 1000, 100000, 1000000])) * 31 + column
                           for column in range(26)]
                    label = sum(one % 7 for one in ids[:8]) + 10 * random.random() > 30
                    numbers = [random.randint(0, 500) for _ in range(13)]
                    file.write("\t".join([str(int(label))] + [str(one) for one in numbers]
                                         + ["%08x" % one for one in ids]) + "\n")
        with open("examples/configs/deepfm_on_criteo.config") as file:
            text = file.read()
        for old, new in (("num_steps: 20000", "num_steps: 25"),
                         ("log_step_count_steps: 500", "log_step_count_steps: 2"),
                         ("hash_bucket_size: 1000000", "hash_bucket_size: %d" % buckets)):
            if old not in text:
                raise ValueError("deepfm_on_criteo.config has no '{}'".format(old))
            text = text.replace(old, new)
        with open("of_this_run.config", "w") as file:
            file.write(text)
        return ["-m", "easy_rec.python.train_eval", "--pipeline_config_path", "of_this_run.config"]

    return prepare


def din() -> List[str]:
    """The data of DeepInterestNetwork's din/train.py: histories of items, an item, a label."""
    random.seed(1)
    users, items, categories = 30000, 60000, 800
    history = [[skewed(items) for _ in range(random.randint(1, 20))] for _ in range(3000)]

    def wanted(user: int) -> int:
        return (history[user][0] * 7 + 1) % items

    train = [(user, history[user], wanted(user) if label else skewed(items), label)
             for user in range(3000) for label in (0, 1)] * 11
    test = [(user, history[user], (wanted(user), skewed(items))) for user in range(512)]
    with open("dataset.pkl", "wb") as file:
        for one in (train, test, [item % categories for item in range(items)],
                    (users, items, categories)):
            pickle.dump(one, file, pickle.HIGHEST_PROTOCOL)
    os.makedirs("save_path", exist_ok=True)
    # It trains for 50 epochs: a driver ends it by the error that the data gives then.
    with open("of_this_run.py", "w") as file:
        file.write("""import runpy, time
import model
train, began, steps, total = model.Model.train, time.time(), [0], [0.0]
def counted(self, *given):
    loss = train(self, *given)
    steps[0] += 1
    total[0] += loss
    if steps[0] % 100 == 0:
        print("step %d loss %.4f" % (steps[0], total[0] / 100), flush=True)
        total[0] = 0.0
    if steps[0] == 2000:
        raise SystemExit(0)
    return loss
model.Model.train = counted
runpy.run_path("train.py", run_name="__main__")
""")
    return ["of_this_run.py"]


def deepfm() -> List[str]:
    """A driver of tensorflow-DeepFM's class, which is what its repository is for."""
    # An optimizer that the module imports, that comes from nowhere, and that is not used here.
    with open("yellowfin.py", "w") as file:
        file.write("YFOptimizer = None\n")
    with open("of_this_run.py", "w") as file:
        file.write("""import random
from DeepFM import DeepFM
random.seed(1)
fields, size, rows = 20, 1000000, 256 * 400
Xi = [[int(size ** random.random()) for _ in range(fields)] for _ in range(rows)]
y = [int(sum(one % 5 for one in line[:6]) + 4 * random.random() > 13) for line in Xi]
Xv = [[1.0] * fields for _ in Xi]
model = DeepFM(feature_size=size, field_size=fields, embedding_size=16, epoch=1, batch_size=256,
               optimizer_type="adam", l2_reg=0.01, verbose=False)
fit, steps, total = model.fit_on_batch, [0], [0.0]
def counted(*given):
    total[0] += fit(*given)
    steps[0] += 1
    if steps[0] % 20 == 0:
        print("step %d loss %.4f" % (steps[0], total[0] / 20), flush=True)
        total[0] = 0.0
model.fit_on_batch = counted
model.fit(Xi, Xv, y)
model.saver.save(model.sess, "model.ckpt")
print("evaluation", model.evaluate(Xi[:4096], Xv[:4096], y[:4096]))
""")
    return ["of_this_run.py"]


def libreco(algorithm: str) -> Callable[[], List[str]]:
    """A driver of one of LibRecommender's models, after the form of its documentation."""

    def prepare() -> List[str]:
        more = {"TwoTower": "", "DeepFM": "", "YouTubeRanking": ", recent_num=10"}[algorithm]
        with open("of_this_run.py", "w") as file:
            file.write("""import random
import pandas
from libreco.data import DatasetPure, DatasetFeat, split_by_ratio_chrono
from libreco.algorithms import {0}
random.seed(1)
rows = [(int(30000 ** random.random()), int(60000 ** random.random()), random.randint(0, 1), at)
        for at in range(120000)]
rows += [(user, user * 2, 1, -user) for user in range(30000)]
data = pandas.DataFrame(rows, columns=["user", "item", "label", "time"])
data["group"] = data["user"] % 50
train, info = DatasetFeat.build_trainset(data, ["group"], [], ["group"], [])
model = {0}(task="ranking", data_info=info, embed_size=16, n_epochs=3, lr=1e-3, batch_size=2048{1})
model.fit(train, neg_sampling=False, verbose=2)
model.save("saved", "model")
print("asked", model.predict(user=1, item=2), flush=True)
""".format(algorithm, more))
        return ["of_this_run.py"]

    return prepare


def deepctr(kind: str) -> Callable[[], List[str]]:
    """A driver of DeepCTR's DeepFM after the form of its documentation, with its own l2 of 1e-5."""

    def prepare() -> List[str]:
        with open("of_this_run.py", "w") as file:
            file.write("""import numpy as np
import tensorflow as tf
random = np.random.RandomState(1)
columns, size, rows, batch = 20, 100000, 256 * 200, 256
ids = {"C%d" % at: (size ** random.rand(rows)).astype(np.int32) for at in range(columns)}
labels = (sum(ids["C%d" % at] % 5 for at in range(6)) + 4 * random.rand(rows) > 13).astype(np.int32)
""" + {"Keras": """from deepctr.feature_column import SparseFeat
from deepctr.models import DeepFM
features = [SparseFeat(name, size, embedding_dim=16) for name in ids]
class Say(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, at, logs=None):
        if at % 10 == 9:
            print("step %d loss %.4f" % (at + 1, float(logs["loss"])), flush=True)
model = DeepFM(features, features, task="binary")
model.compile("adam", "binary_crossentropy")
model.fit(ids, labels, batch, 1, verbose=0, callbacks=[Say()])
model.save_weights("weights.h5")
few = {name: one[:5000] for name, one in ids.items()}
print("evaluation", model.evaluate(few, labels[:5000], batch, verbose=0))
print("asked", model.predict(few, batch)[:2].ravel())
""", "Estimator": """from deepctr.estimator import DeepFMEstimator
column = tf.feature_column
sparse = [column.categorical_column_with_identity(name, size) for name in ids]
def feed():
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(batch)
class Say(tf.estimator.SessionRunHook):
    def begin(self):
        self.loss = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[0]
        self.step = 0
    def before_run(self, context):
        return tf.estimator.SessionRunArgs(self.loss)
    def after_run(self, context, values):
        self.step += 1
        if self.step % 10 == 0:
            print("step %d loss %.4f" % (self.step, np.mean(values.results)), flush=True)
dense = [column.embedding_column(one, 16) for one in sparse]
model = DeepFMEstimator(sparse, dense, model_dir="model")
model.train(feed, hooks=[Say()])
print("evaluation", model.evaluate(feed, steps=20))
"""}[kind])
        return ["of_this_run.py"]

    return prepare


def deepmatch() -> List[str]:
    """A driver of DeepMatch's YoutubeDNN: a sampled softmax over all items, looked up each step."""
    with open("of_this_run.py", "w") as file:
        file.write("""import numpy as np
import tensorflow as tf
from deepctr.feature_column import SparseFeat, VarLenSparseFeat
from deepmatch.models import YoutubeDNN
from deepmatch.utils import NegativeSampler, sampledsoftmaxloss
random = np.random.RandomState(1)
users, items, rows, batch = 200000, 20000, 256 * 100, 256
def skewed(size, shape):
    return (size ** random.rand(*shape)).astype(np.int32)
inputs = {"user": skewed(users, (rows,)), "item": skewed(items, (rows,)),
          "history": skewed(items, (rows, 10)), "length": random.randint(1, 11, rows)}
of_user = [SparseFeat("user", users, embedding_dim=16), VarLenSparseFeat(SparseFeat(
    "history", items, 16, embedding_name="item"), 10, "mean", "length")]
model = YoutubeDNN(of_user, [SparseFeat("item", items, 16)], user_dnn_hidden_units=(64, 16),
                   sampler_config=NegativeSampler("uniform", num_sampled=20, item_name="item"))
model.compile("adam", loss=sampledsoftmaxloss)
class Say(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, at, logs=None):
        if at % 10 == 9:
            print("step %d loss %.4f" % (at + 1, float(logs["loss"])), flush=True)
model.fit(inputs, np.ones(rows), batch, 1, verbose=0, callbacks=[Say()])
model.save_weights("weights.h5")
""")
    return ["of_this_run.py"]


def libsvm(path: str, rows: int, fields: int, size: int) -> None:
    """Writes lines of a label and `fields` pairs of a feature and its value."""
    with open(path, "w") as file:
        for _ in range(rows):
            ids = [at + fields * (skewed(size // fields) - 1) for at in range(fields)]
            label = int(sum(one // fields % 5 for one in ids[:6]) + 4 * random.random() > 13)
            file.write(" ".join([str(label)] + ["%d:1.0" % max(one, 0) for one in ids]) + "\n")


def tf_repos() -> List[str]:
    """The data of tf_repos' DeepFM.py: lines of libsvm."""
    random.seed(1)
    fields, size = 20, 1000000
    for name, rows in (("tr", 256 * 150), ("va", 2560)):
        libsvm("%s.libsvm" % name, rows, fields, size)
    return ["DeepFM.py", "--data_dir=.", "--model_dir=model", "--feature_size=%d" % size,
            "--field_size=%d" % fields, "--embedding_size=16", "--batch_size=256",
            "--num_epochs=1", "--log_steps=10", "--num_threads=2"]


def xdeepfm() -> List[str]:
    """A driver of recommenders' xDeepFM, and lines of its form: field:feature:value."""
    random.seed(1)
    fields, size = 10, 300000
    for name, rows in (("train", 256 * 100), ("valid", 2560)):
        with open(name, "w") as file:
            for _ in range(rows):
                ids = [skewed(size) for _ in range(fields)]
                label = int(sum(one % 5 for one in ids[:6]) + 4 * random.random() > 13)
                file.write(" ".join([str(label)] + [
                    "%d:%d:1.0" % (at + 1, one + 1) for at, one in enumerate(ids)]) + "\n")
    with open("of_this_run.py", "w") as file:
        file.write("""from recommenders.models.deeprec.deeprec_utils import prepare_hparams
from recommenders.models.deeprec.io.iterator import FFMTextIterator
from recommenders.models.deeprec.models.xDeepFM import XDeepFMModel
given = prepare_hparams(
    model_type="xDeepFM", FEATURE_COUNT=%d, FIELD_COUNT=%d, dim=10, data_format="ffm",
    method="classification", loss="log_loss", layer_sizes=[100], activation=["relu"],
    cross_layer_sizes=[20], use_CIN_part=True, use_DNN_part=True, dropout=[0.0], epochs=1,
    batch_size=256, embed_l2=1e-4, layer_l2=1e-4, optimizer="adam", learning_rate=0.001,
    show_step=10, metrics=["auc"], MODEL_DIR="model", save_epoch=1, cross_activation="identity")
model = XDeepFMModel(given, FFMTextIterator, seed=1)
model.fit("train", "valid")
print("evaluation", model.run_eval("valid"))
""" % (size, fields))
    return ["of_this_run.py"]


_OF_DRIVERS = r"step (?P<step>\d+) loss (?P<loss>[0-9.]+)"
_OF_EASYREC = r"global step (?P<step>\d+): .*cross_entropy_loss = (?P<loss>[0-9.]+)"
_OF_LIBRECO = r"(?P<step>NO STEP)?train_loss: (?P<loss>[0-9.]+)"
_OF_ESTIMATOR = r"loss = (?P<loss>[0-9.]+), step = (?P<step>\d+)"
_OF_RECOMMENDERS = r"step (?P<step>\d+) , total_loss: (?P<loss>[0-9.]+)"
_L2 = ["--l2", "rows of the batch"]

PROGRAMS = (
    Program("EasyRec, a tenth", "EasyRec", "", easyrec(100000), _OF_EASYREC),
    Program("EasyRec", "EasyRec", "", easyrec(1000000), _OF_EASYREC),
    Program("DeepInterestNetwork", "DeepInterestNetwork", "din", din, _OF_DRIVERS,
            ["train.py", "model.py", "input.py", "Dice.py"]),
    Program("tensorflow-DeepFM", "tensorflow-DeepFM", "", deepfm, _OF_DRIVERS),
    Program("LibRecommender DeepFM", "", "", libreco("DeepFM"), _OF_LIBRECO),
    Program("LibRecommender YouTubeRanking", "", "", libreco("YouTubeRanking"), _OF_LIBRECO),
    Program("LibRecommender TwoTower", "", "", libreco("TwoTower"), _OF_LIBRECO),
    Program("DeepCTR DeepFM", "", "", deepctr("Keras"), _OF_DRIVERS, options=_L2),
    Program("DeepCTR DeepFMEstimator", "", "", deepctr("Estimator"), _OF_DRIVERS, options=_L2),
    Program("DeepMatch YoutubeDNN", "", "", deepmatch, _OF_DRIVERS, options=_L2),
    Program("tf_repos DeepFM", "tf_repos", "deep_ctr/Model_pipeline", tf_repos, _OF_ESTIMATOR,
            ["DeepFM.py"], _L2),
    Program("recommenders xDeepFM", "recommenders", "", xdeepfm, _OF_RECOMMENDERS, options=_L2),
)


def run(arguments: List[str], folder: str, pattern: str, timeout: float,
        report: str = "") -> Result:
    """Runs a program and watches it.

    Args:
        arguments: Of the process.
        folder: Where it runs.
        pattern: See `Program.loss`.
        timeout: Seconds until it is ended.
        report: The file of `--report`.
    """
    before = {path: os.path.getmtime(path) for path in files_of(folder)}
    paths = [os.path.join(ROOT, "python"), folder, os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in paths if path),
                       TF_CPP_MIN_LOG_LEVEL="2", PYTHONUNBUFFERED="1", PYTHONHASHSEED="0")
    log = os.path.join(folder, "of_this_run.log")
    began = time.time()
    losses, times, tail = {}, [], []  # type: ignore
    process = subprocess.Popen(["timeout", str(int(timeout))] + arguments, cwd=folder,
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               universal_newlines=True, errors="replace")
    with open(log, "w") as file:
        for line in process.stdout or ():
            file.write(line)
            tail = (tail + [line.rstrip()])[-12:]
            found = re.search(pattern, line)
            if found:
                # LibRecommender prints a loss an epoch, and no number of it.
                step = int(found.group("step") or len(losses) + 1)
                losses[step] = float(found.group("loss"))
                times.append((step, time.time()))
    _, status, usage = os.wait4(process.pid, 0)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    process.returncode = code
    made = [path for path in files_of(folder) if path != log
            and before.get(path) != os.path.getmtime(path)]
    rate = 0.0
    if len(times) > 1:
        # Not from the first loss: the first steps wait for memory and for TensorFlow's own work.
        start = times[len(times) // 4]
        if times[-1][1] > start[1]:
            rate = (times[-1][0] - start[0]) / (times[-1][1] - start[1])
    said = None
    if report and os.path.exists(report):
        with open(report) as file:
            said = json.load(file)
    return Result(None if code == 124 else code, losses, rate, time.time() - began,
                  usage.ru_maxrss * 1024, sum(map(os.path.getsize, made)), said, tail)


def files_of(folder: str) -> List[str]:
    """Returns the paths of all files under a folder."""
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names
            if not name.endswith(".pyc") and os.path.exists(os.path.join(path, name))]


def place(program: Program, source: str, work: str, form: str, python: str) -> str:
    """Copies a program to the work directory; returns where it runs."""
    folder = os.path.join(work, re.sub(r"\W+", "_", program.name) + "_" + form)
    shutil.rmtree(folder, ignore_errors=True)
    if program.folder:
        shutil.copytree(os.path.join(source, program.folder), folder,
                        ignore=shutil.ignore_patterns(".git", "ckpt"))
    inside = os.path.join(folder, program.inside)
    os.makedirs(inside, exist_ok=True)
    for name in program.python2:
        subprocess.check_call([python, "-m", "lib2to3", "-w", "-n", name], cwd=inside,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return inside


def at_ends(losses: Dict[int, float]) -> str:
    """The first and the last loss, as text."""
    steps = sorted(losses)
    return "-" if not steps else "{:.4f} > {:.4f}".format(losses[steps[0]], losses[steps[-1]])


def text_of(program: Program, results: Dict[str, Result]) -> str:
    """The lines of the table for a program."""
    lines = []
    for form, one in results.items():
        ended = "" if one.code == 0 else "  {}".format(
            "took too long" if one.code is None else "FAILED: exit code {}".format(one.code))
        lines.append("{:32} {:10} {:20} {:>9} {:>8.0f} s {:>7.2f} GiB {:>9.1f} MiB{}".format(
            program.name, form, at_ends(one.losses),
            "{:.3g}/s".format(one.rate) if one.rate else "-", one.seconds, one.memory / 2 ** 30,
            one.disk / 2 ** 20, ended))
        if one.code not in (0, None):
            lines += ["    | " + line[:200] for line in one.tail]
    said = results["tables"].report
    for one in said["variables"] if said else []:
        if one["table"]:
            lines.append("    {} {}: a table, {}, {:,} rows".format(
                one["name"], one["shape"], one["optimizer"], one.get("rows", 0)))
        else:
            lines.append("    {} {} stays: {}".format(one["name"], one["shape"], one["reason"]))
    return "\n".join(lines)


def main() -> int:
    """Runs what the command line asks for."""
    argv, more = sys.argv[1:], []  # type: ignore
    if "--" in argv:
        argv, more = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", help="where the programs lie")
    parser.add_argument("--only", action="append", help="a program of the table; repeat it")
    parser.add_argument("--list", action="store_true", help="name the programs that DIR has")
    parser.add_argument("--work", help="where they run (default: a new directory that goes)")
    parser.add_argument("--python", default=sys.executable,
                        help="the interpreter with their packages")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds of a run (1200)")
    options = parser.parse_args(argv)
    there = [one for one in PROGRAMS if (not options.only or one.name in options.only)
             and (not one.folder or os.path.isdir(os.path.join(options.dir, one.folder)))]
    unknown = set(options.only or ()) - {one.name for one in PROGRAMS}
    if unknown or not there:
        parser.error("no such program: {}; there are {}".format(
            ", ".join(sorted(unknown)) or options.dir, ", ".join(one.name for one in PROGRAMS)))
    if options.list:
        print("\n".join(one.name for one in there))
        return 0
    work = os.path.abspath(options.work or tempfile.mkdtemp(prefix="mx_rec_programs_"))
    failed = False
    print("{:32} {:10} {:20} {:>9} {:>10} {:>11} {:>13}".format(
        "program", "", "loss", "steps", "whole run", "memory", "files"))
    try:
        for program in there:
            results = {}
            for form in ("variables", "tables"):
                inside = place(program, os.path.abspath(options.dir), work, form, options.python)
                os.chdir(inside)
                arguments, report = program.prepare(), os.path.join(work, "report.json")
                if os.path.exists(report):
                    os.remove(report)
                launch = [] if form == "variables" else \
                    ["-m", "mx_rec", "run", "--report", report] + program.options + more
                results[form] = run([options.python] + launch + arguments, inside, program.loss,
                                    options.timeout, report)
                os.chdir(ROOT)
            failed = failed or any(one.code not in (0, None) for one in results.values())
            print(text_of(program, results), flush=True)
    finally:
        os.chdir(ROOT)
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
