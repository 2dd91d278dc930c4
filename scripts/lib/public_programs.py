"""The public programs that scripts/programs runs: where each lies, and data and drivers for it.

None of their code is here: a driver calls what a program's repository is for, as its documentation
does, where the program itself has no command.
"""

import os
import pickle
import random
import re
import subprocess
import sys
from typing import Callable, List, NamedTuple, Tuple


class Program(NamedTuple):
    """A program, and how it is run.

    Attributes:
        name: What it is called in the table.
        folder: Its directory in DIR; "" for one that comes as a wheel.
        inside: Where in that it runs.
        prepare: Makes its data and returns Python's arguments.
        loss: Pattern of a line with a loss: its groups are `loss` and, unless a line is one step
            more, `step`.
        python2: Files that 2to3 translates.
        options: Of `python -m mx_rec run`.
        alike: Pairs of texts: with --same-start the second takes the place of the first in the
            driver; an empty first one adds an argument. They leave out
            what differs between any two runs, and penalties on all rows.
    """

    name: str
    folder: str
    inside: str
    prepare: Callable[[], List[str]]
    loss: str
    python2: List[str] = []
    options: List[str] = []
    alike: List[Tuple[str, str]] = []


def skewed(number: int) -> int:
    """An id below `number`, the small ones more often."""
    return int(number ** random.random()) % number


def criteo_line() -> List[str]:
    """A line of Criteo's form: a label that the first ids tell, 13 numbers, 26 hexadecimal ids."""
    ids = [skewed(random.choice([100, 1000, 100000, 1000000])) * 31 + column
           for column in range(26)]
    label = sum(one % 7 for one in ids[:8]) + 10 * random.random() > 30
    return [str(int(label))] + [str(random.randint(0, 500)) for _ in range(13)] \
        + ["%08x" % one for one in ids]


def easyrec(buckets: int) -> Callable[[], List[str]]:
    """EasyRec's DeepFM on Criteo's form of data; its config with fewer steps."""

    def prepare() -> List[str]:
        random.seed(1)
        os.makedirs("examples/data/criteo", exist_ok=True)
        for name, rows in (("train", 120000), ("test", 8192)):
            with open("examples/data/criteo/criteo_{}_data".format(name), "w") as file:
                for _ in range(rows):
                    file.write("\t".join(criteo_line()) + "\n")
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


def easyrec_taobao(config: str) -> Callable[[], List[str]]:
    """One of EasyRec's models on the form of its Taobao data: ids of an advertisement and a user,
    their lists of categories and brands, a price; its config with fewer steps and smaller batches.
    """

    def prepare() -> List[str]:
        random.seed(1)
        few, many, batch, steps = 10, 100000, 1024, 25
        sizes = [few, many, 10000] + [many] * 4 + [100] * 2 + [few] * 6
        os.makedirs("data/test/tb_data", exist_ok=True)
        for name, rows in (("train", batch * steps), ("test", 4096)):
            with open("data/test/tb_data/taobao_{}_data".format(name), "w") as file:
                for _ in range(rows):
                    ids = [skewed(size) for size in sizes]
                    length = random.randint(1, 20)
                    lists = ["|".join(str(skewed(size)) for _ in range(length))
                             for size in (10000, many)]
                    clicked = sum(one % 7 for one in ids[1:7]) + 10 * random.random() > 23
                    bought = clicked and random.random() < 0.3
                    file.write(",".join(map(str, [int(clicked), int(bought)] + ids + lists
                                            + [random.randint(0, 49)])) + "\n")
        with open("samples/model_config/{}_on_taobao.config".format(config)) as file:
            text = file.read()
        for name, value in (("num_steps", steps), ("batch_size", batch),
                            ("log_step_count_steps", 2)):
            text, found = re.subn(r"\b{}: *[0-9]+".format(name), "{}: {}".format(name, value), text)
            if not found:
                raise ValueError("{}_on_taobao.config has no '{}'".format(config, name))
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


def deeprec(model: str, batch: int) -> Callable[[], List[str]]:
    """One of DeepRec's models on stock TensorFlow, with data of its form.

    A copy of DeepRec moves the first directory beside the checkpoint after its export, which may be
    that of the tables, so that there is no evaluation.
    """
    arguments = ["train.py", "--tf", "--data_location", "data", "--steps", "400", "--save_steps",
                 "200", "--no_eval", "--batch_size", str(batch)]

    def criteo() -> List[str]:
        for name, rows in (("train", 40000), ("eval", 4096)):
            with open("data/{}.csv".format(name), "w") as file:
                for _ in range(rows):
                    file.write(",".join(criteo_line()) + "\n")
        return arguments

    def taobao() -> List[str]:
        # Ids of the first seven columns tell the label.
        for name, rows in (("train", 120000), ("test", 8192)):
            with open("data/taobao_{}_data".format(name), "w") as file:
                for _ in range(rows):
                    ids = [skewed(100000) for _ in range(18)]
                    label = sum(one % 7 for one in ids[:7]) > 21
                    file.write(",".join(map(str, [int(label), 0] + ids)) + "\n")
        return arguments

    def books() -> List[str]:
        users, items, categories = 50000, 60000, 1500
        for name, number in (("uid", users), ("mid", items), ("cat", categories)):
            with open("data/{}_voc.txt".format(name), "w") as file:
                file.write("\n".join("%s%d" % (name, one) for one in range(number)) + "\n")

        def columns_of(history: List[int]) -> List[str]:
            return ["\x02".join("mid%d" % one for one in history),
                    "\x02".join("cat%d" % (one % categories) for one in history)]

        for name, rows in (("train", 60000), ("test", 4096)):
            path = "data/local_{}_splitByUser".format(name)
            with open(path, "w") as file, open(path + "_neg", "w") as others:
                for _ in range(rows):
                    history = [skewed(items) for _ in range(random.randint(2, 20))]
                    label = random.randint(0, 1)
                    item = (history[0] + 1) % items if label else skewed(items)
                    file.write("\t".join([str(label), "uid%d" % skewed(users), "mid%d" % item,
                                          "cat%d" % (item % categories)]
                                         + columns_of(history)) + "\n")
                    others.write("\t".join(columns_of([skewed(items) for _ in history])) + "\n")
        # A copy of DeepRec has no tables_initializer in train(), which fails on stock TensorFlow.
        with open("of_this_run.py", "w") as file:
            file.write("""import runpy
import tensorflow as tf
scaffold = tf.train.Scaffold
def with_tables(local_init_op=None, **given):
    return scaffold(local_init_op=tf.group(tf.tables_initializer(), local_init_op), **given)
tf.train.Scaffold = with_tables
runpy.run_path("train.py", run_name="__main__")
""")
        return ["of_this_run.py"] + arguments[1:]

    def prepare() -> List[str]:
        random.seed(1)
        for folder in ("data", "result"):
            os.makedirs(folder, exist_ok=True)
        return {"dssm": taobao, "din": books, "dien": books}.get(model, criteo)()

    return prepare


def cross_network() -> List[str]:
    """Examples for the DCN of yangxudong/deeplearning, made by its own feature columns."""
    with open("of_this_run.py", "w") as file:
        file.write("""import random
import sys
import tensorflow as tf
from DCN.input_fn import create_feature_columns
random.seed(1)
ids = {"productId": 500000, "sellerId": 10000, "brandId": 10000, "cateId": 10000, "cate2Id": 10000,
       "cate1Id": 100}
bags = {"behaviorPids": 500000, "behaviorSids": 10000, "behaviorBids": 10000,
        "behaviorCids": 10000, "behaviorC1ids": 100}
create_feature_columns()
def skewed(number):
    return int(number ** random.random()) % number
def feature(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
for name, rows in (("samples", 40000), ("eval", 4096)):
    with tf.io.TFRecordWriter("data/" + name + "/part-0") as writer:
        for _ in range(rows):
            one = {key: [skewed(number)] for key, number in ids.items()}
            label = sum(values[0] % 5 for values in one.values()) > 10
            one.update({key: [skewed(number) for _ in range(random.randint(1, 10))]
                        for key, number in bags.items()})
            one["click"] = [int(label)]
            example = tf.train.Example(features=tf.train.Features(
                feature={key: feature(values) for key, values in one.items()}))
            writer.write(example.SerializeToString())
""")
    for name in ("samples", "eval"):
        os.makedirs("data/" + name, exist_ok=True)
    subprocess.check_call([sys.executable, "-W", "ignore", "of_this_run.py"],
                          stderr=subprocess.DEVNULL)
    return ["-m", "DCN.train", "--train_steps", "500", "--batch_size", "256", "--job_name",
            "worker", "--task_index", "0"]


def movielens() -> List[str]:
    """Ratings in the form of ml-20m for TensorFlow's official wide_deep/movielens_main.py."""
    random.seed(1)
    os.makedirs("data/ml-20m", exist_ok=True)
    users, movies = 138493, 3952
    with open("data/ml-20m/movies.csv", "w") as file:
        file.write("item_id,titles,genres\n")
        for movie in range(1, movies):
            file.write("{0},Film {0},{1}\n".format(movie, ("Drama", "Comedy", "War")[movie % 3]))
    with open("data/ml-20m/ratings.csv", "w") as file:
        file.write("user_id,item_id,rating,timestamp\n")
        for _ in range(100000):
            user, movie = 1 + skewed(users - 1), 1 + skewed(movies - 1)
            file.write("{},{},{},{}\n".format(user, movie, 1 + (user + movie) % 5,
                                              random.randint(0, 1000)))
    return ["-m", "official.wide_deep.movielens_main", "--dataset", "ml-20m", "--data_dir", "data",
            "--model_dir", "model", "--train_epochs", "2", "--epochs_between_evals", "1",
            "--nodownload_if_missing", "--hooks", "LoggingTensorHook"]


def ranking() -> List[str]:
    """A listwise model of TensorFlow Ranking, after the form of its documentation."""
    with open("of_this_run.py", "w") as file:
        file.write("""import tensorflow as tf
import tensorflow_ranking as tfr
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
column = tf.feature_column
def embedded(name, size):
    ids = column.categorical_column_with_hash_bucket(name, size, dtype=tf.int64)
    return column.embedding_column(ids, 32)
context, examples = {"user": embedded("user", 200000)}, {"item": embedded("item", 300000)}
def transform(features, mode):
    return tfr.feature.encode_listwise_features(features, context, examples, mode=mode)
def score(context_features, group_features, mode, params, config):
    net = tf.concat([tf.compat.v1.layers.flatten(one) for one in
                     (context_features["user"], group_features["item"])], 1)
    return tf.compat.v1.layers.dense(tf.compat.v1.layers.dense(net, 64, tf.nn.relu), 1)
def input_fn(seed, batches):
    def drawn(_):
        def ids(shape, size):
            return tf.cast(tf.pow(float(size), tf.random.uniform(shape)), tf.int64)
        user, item = ids([128, 1], 50000), ids([128, 10, 1], 100000)
        return {"user": user, "item": item}, tf.cast(
            tf.squeeze((item + tf.expand_dims(user, 1)) % 5, 2), tf.float32)
    return lambda: tf.data.Dataset.range(batches).map(drawn)
head = tfr.head.create_ranking_head(
    loss_fn=tfr.losses.make_loss_fn("pairwise_logistic_loss"),
    eval_metric_fns={"ndcg": tfr.metrics.make_ranking_metric_fn("ndcg")},
    train_op_fn=lambda loss: tf.compat.v1.train.AdagradOptimizer(0.1).minimize(
        loss, global_step=tf.compat.v1.train.get_global_step()))
model = tf.estimator.Estimator(
    tfr.model.make_groupwise_ranking_fn(
        group_score_fn=score, group_size=1, transform_fn=transform, ranking_head=head),
    model_dir="model",
    config=tf.estimator.RunConfig(tf_random_seed=1))
model.train(input_fn(1, 1000))
print(model.evaluate(input_fn(2, 50)))
""")
    return ["of_this_run.py"]


def wide_deep() -> List[str]:
    """Microsoft recommenders' wide & deep model on ratings, after its example."""
    with open("of_this_run.py", "w") as file:
        file.write("""import random
import pandas
import tensorflow as tf
from recommenders.models.wide_deep import wide_deep_utils
from recommenders.utils import tf_utils
tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
random.seed(1)
users, items = 30000, 60000
pairs = [(int(users ** random.random()), int(items ** random.random())) for _ in range(60000)]
data = pandas.DataFrame([(u, i, 1.0 + (u + i) % 5) for u, i in pairs],
                        columns=["userID", "itemID", "rating"])
wide, deep = wide_deep_utils.build_feature_columns(
    range(users), range(items), "userID", "itemID", crossed_feat_dim=100000, user_dim=16,
    item_dim=64)
model = wide_deep_utils.build_model("model", wide, deep, log_every_n_iter=100, seed=1)
train = tf_utils.pandas_input_fn(data, "rating", batch_size=64, num_epochs=1, shuffle=True)
model.train(train)
asked = tf_utils.pandas_input_fn(data[:4096], "rating", batch_size=4096)
print(model.evaluate(asked), next(model.predict(asked)))
""")
    return ["of_this_run.py"]


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


def tf_repos(script: str) -> Callable[[], List[str]]:
    """The data of a script of tf_repos: lines of libsvm."""

    def prepare() -> List[str]:
        random.seed(1)
        fields, size = 20, 1000000
        for name, rows in (("tr", 256 * 150), ("va", 2560)):
            libsvm("%s.libsvm" % name, rows, fields, size)
        return [script, "--data_dir=.", "--model_dir=model", "--feature_size=%d" % size,
                "--field_size=%d" % fields, "--embedding_size=16", "--batch_size=256",
                "--num_epochs=1", "--log_steps=10", "--num_threads=2"]

    return prepare


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


OF_DRIVERS = r"step (?P<step>\d+) loss (?P<loss>[0-9.]+)"
OF_ESTIMATORS = r"loss = (?P<loss>[0-9.e-]+), steps? = (?P<step>\d+)"
OF_EASYREC = r"global step (?P<step>\d+): lr = .*cross_entropy_loss = (?P<loss>[0-9.]+)"
OF_EASYREC_SUMS = r"global step (?P<step>\d+): lr = .*total_loss = (?P<loss>[0-9.]+)"
OF_LIBRECO = r"train_loss: (?P<loss>[0-9.]+)"
OF_RECOMMENDERS = r"step (?P<step>\d+) , total_loss: (?P<loss>[0-9.]+)"
_L2 = ["--l2", "rows of the batch"]

PROGRAMS = (
    Program("EasyRec, a tenth", "EasyRec", "", easyrec(100000), OF_EASYREC),
    Program("EasyRec", "EasyRec", "", easyrec(1000000), OF_EASYREC),
    Program("EasyRec DIN", "EasyRec", "", easyrec_taobao("din"), OF_EASYREC_SUMS),
    Program("EasyRec MMoE", "EasyRec", "", easyrec_taobao("mmoe"), OF_EASYREC_SUMS),
    Program("DeepRec WDL", "DeepRec", "modelzoo/wide_and_deep", deeprec("wdl", 512), OF_ESTIMATORS),
    Program("DeepRec DLRM", "DeepRec", "modelzoo/dlrm", deeprec("dlrm", 512), OF_ESTIMATORS),
    Program("DeepRec DeepFM", "DeepRec", "modelzoo/deepfm", deeprec("deepfm", 512), OF_ESTIMATORS),
    Program("DeepRec DSSM", "DeepRec", "modelzoo/dssm", deeprec("dssm", 512), OF_ESTIMATORS),
    Program("DeepRec DIN", "DeepRec", "modelzoo/din", deeprec("din", 512), OF_ESTIMATORS),
    Program("DeepRec DIEN", "DeepRec", "modelzoo/dien", deeprec("dien", 512), OF_ESTIMATORS),
    Program("DeepInterestNetwork", "DeepInterestNetwork", "din", din, OF_DRIVERS,
            ["train.py", "model.py", "input.py", "Dice.py"]),
    Program("tensorflow-DeepFM", "tensorflow-DeepFM", "", deepfm, OF_DRIVERS),
    Program("yangxudong DCN", "deeplearning", "", cross_network, OF_ESTIMATORS),
    Program("TensorFlow models, MovieLens", "models", "", movielens, OF_ESTIMATORS),
    Program("recommenders wide_deep", "recommenders", "", wide_deep, OF_ESTIMATORS),
    Program("TensorFlow Ranking", "", "", ranking, OF_ESTIMATORS),
    Program("LibRecommender DeepFM", "", "", libreco("DeepFM"), OF_LIBRECO),
    Program("LibRecommender YouTubeRanking", "", "", libreco("YouTubeRanking"), OF_LIBRECO),
    Program("LibRecommender TwoTower", "", "", libreco("TwoTower"), OF_LIBRECO),
    Program("DeepCTR DeepFM", "", "", deepctr("Keras"), OF_DRIVERS, options=_L2,
            alike=[('task="binary")', 'task="binary", l2_reg_embedding=0, l2_reg_linear=0)')]),
    Program("DeepCTR DeepFMEstimator", "", "", deepctr("Estimator"), OF_DRIVERS, options=_L2),
    Program("DeepMatch YoutubeDNN", "", "", deepmatch, OF_DRIVERS, options=_L2,
            alike=[("user_dnn_hidden_units=(64, 16),",
                    "user_dnn_hidden_units=(64, 16), l2_reg_embedding=0,")]),
    Program("tf_repos DeepFM", "tf_repos", "deep_ctr/Model_pipeline", tf_repos("DeepFM.py"),
            OF_ESTIMATORS, ["DeepFM.py"], _L2,
            [("", "--l2_reg=0"), ("", "--dropout=1,1,1")]),
    Program("tf_repos DCN", "tf_repos", "deep_ctr/Model_pipeline", tf_repos("DCN.py"),
            OF_ESTIMATORS, ["DCN.py"], _L2,
            [("", "--l2_reg=0"), ("", "--dropout=1,1,1")]),
    Program("tf_repos NFM", "tf_repos", "deep_ctr/Model_pipeline", tf_repos("NFM.py"),
            OF_ESTIMATORS, ["NFM.py"], _L2,
            [("", "--l2_reg=0"), ("", "--dropout=1,1,1")]),
    Program("tf_repos DeepMVM", "tf_repos", "deep_ctr/Model_pipeline", tf_repos("DeepMVM.py"),
            OF_ESTIMATORS, ["DeepMVM.py"], _L2,
            [("", "--l2_reg=0"), ("", "--dropout=1,1,1")]),
    Program("recommenders xDeepFM", "recommenders", "", xdeepfm, OF_RECOMMENDERS, options=_L2,
            alike=[("embed_l2=1e-4", "embed_l2=0.0")]),
)
