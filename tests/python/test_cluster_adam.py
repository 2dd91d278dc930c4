"""Adam and its like, which change all rows in each step, for tables on parameter servers: numbers of one process and of
TensorFlow."""

import json
import time

import numpy as np
import pytest
import tensorflow as tf

import cluster_cases
from stock_cluster_cases import StockJob, run_alone
from test_cluster_attacks import in_both
from test_cluster_life import wait_for
from test_cluster_tables import trained
from mx_rec.stock.analysis import plan_variables
from mx_rec.stock.convert import saved_places
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

# Two variables, of which the second train op leaves one alone. Batches have few ids, so that most parts get no key.
MODEL = """
import time
v1 = tf.compat.v1
from mx_rec.stock.convert import converted
ROWS = 300
with tf.device(device):
    step = v1.train.get_or_create_global_step()
    ids, labels = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None])
    parts, resource = int(os.environ.get("PARTS", 0)), os.environ.get("RESOURCE") == "1"
    constant = v1.constant_initializer(0.2)
    items = v1.get_variable("items", [ROWS, 3], initializer=constant, use_resource=resource,
                            partitioner=v1.fixed_size_partitioner(parts) if parts else None)
    users = v1.get_variable("users", [ROWS, 2], initializer=constant, use_resource=resource)
    look_up = lambda one, keys: tf.nn.embedding_lookup(one, keys, partition_strategy="div")
    scores = tf.reduce_sum(look_up(items, ids), 1) + tf.reduce_sum(look_up(users, ids // 2), 1)
    loss = tf.reduce_sum(tf.square(scores - labels))
    other = tf.reduce_sum(tf.square(look_up(users, ids) - 0.1))
    rate = v1.train.exponential_decay(0.02, step, 5, 0.9)
    kind = os.environ.get("KIND", "adam")
    optimizer = {"adam": lambda: v1.train.AdamOptimizer(rate),
                 "adamw": lambda: tf.contrib.opt.AdamWOptimizer(rate, rate),
                 "nadam": lambda: tf.contrib.opt.NadamOptimizer(rate),
                 "adamax": lambda: tf.contrib.opt.AdaMaxOptimizer(rate),
                 "keras_adam": lambda: tf.keras.optimizers.Adam(0.02, decay=0.1)}[kind]()
    if kind == "keras_adam":
        optimizer.iterations = step
    def train(loss, some):
        pairs = list(zip(v1.gradients(loss, some), some))
        # AdamW of TensorFlow decays rows in any order with their lookups.
        with tf.control_dependencies([grad.values for grad, _ in pairs] if kind == "adamw" else []):
            return optimizer.apply_gradients(pairs, **({} if kind == "keras_adam" else {"global_step": step}))
    trains = [train(loss, v1.trainable_variables()), train(other, [users])]
    every = [look_up(one, tf.range(ROWS, dtype=tf.int64)) for one in (items, users)]
    saver, start = v1.train.Saver(), v1.global_variables_initializer()

def feed(number):
    random = np.random.RandomState(number)
    # Every seventh step has an empty batch.
    some = random.zipf(1.2, 0 if number % 7 == 6 else random.randint(1, 4)) % ROWS
    return {ids: some, labels: np.sin(some)}

def seen(sess):
    return [value.tolist() for value in sess.run(every)]

def tables():
    return sorted(one.plan.name for one in converted(v1.get_default_graph()))
"""

# All rows get a gradient at first. Saves at step 20, and goes back there at step 30.
ALONE = MODEL + """
with v1.Session(target, config=config) as sess:
    sess.run(start)
    for first in range(0, ROWS, 30):
        some = np.arange(first, first + 30)
        sess.run(trains[0], {ids: some, labels: np.cos(some)})
    losses, rows = [], []
    for at, number in enumerate(list(range(30)) + list(range(20, 40))):
        if at == 20:
            path = saver.save(sess, os.path.join(os.environ["OUT"], "model.ckpt"))
        if at == 30:
            saver.restore(sess, path)
        losses.append(float(sess.run(loss, feed(number))))
        sess.run(trains[number % 4 == 3], feed(number))
        if at % 6 == 0:
            rows.append(seen(sess))
    on_disk = [table_stats(name).rows_disk for name in {one.plan.table for one in converted(v1.get_default_graph())}]
    print(json.dumps({"losses": losses, "rows": rows + [seen(sess)], "tables": tables(), "on_disk": on_disk}))
"""


def expect_close(found, wanted, moved=100):
    np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-5, atol=1e-5)
    for one, other in zip(found["rows"], wanted["rows"]):
        for rows, expected in zip(one, other):
            np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)
    first, last = [np.array(found["rows"][at][0]) for at in (0, -1)]
    assert (np.abs(first - last).max(1) > 1e-3).sum() > moved, "many rows move"


@pytest.mark.long
@pytest.mark.parametrize("kind, resource, parts, disk", [
    ("adam", "", "0", False), ("adam", "1", "3", True), ("adamw", "", "3", False), ("adamw", "1", "0", True),
    ("nadam", "1", "3", True), ("keras_adam", "1", "3", False), ("adamax", "", "0", False)])
def test_an_unchanged_model_has_the_numbers_of_variables_on_servers_and_of_one_process(
        kind, resource, parts, disk, tmp_path):
    """AdamOptimizer stayed TensorFlow's on servers."""
    found = []
    tables = "StockTables(least_rows=5, memory_rows=20, ssd_data_path=[%r])" % str(tmp_path) if disk else "['.*']"
    for stock in ("None", tables):
        with StockJob(ALONE, ps=2) as job:
            found.append(job.run(KIND=kind, RESOURCE=resource, PARTS=parts, STOCK=stock, OUT=str(tmp_path)))
    alone = run_alone(ALONE, KIND=kind, RESOURCE=resource, STOCK="['.*']", OUT=str(tmp_path))
    names = ["items/part_%d" % part for part in range(3)] if parts != "0" else ["items"]
    assert [one["tables"] for one in found + [alone]] == [[], names + ["users"], ["items", "users"]]
    # The others leave the rows outside of a batch where they are.
    moved = 100 if kind in ("adam", "adamw", "keras_adam") else 10
    expect_close(found[1], found[0], moved)
    expect_close(found[1], alone, moved)
    assert (max(found[1]["on_disk"]) > 100) == disk, found[1]["on_disk"]
    assert found[1]["losses"][20:30] == found[1]["losses"][30:40]


# Workers take turns, so that the numbers are the same in every run.
TURNS = MODEL + """
with v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, log_step_count_steps=None) as sess:
    losses = []
    for number in range(30):
        place = os.path.join(os.environ["OUT"], "%d" % number)
        if number % 2 == index:
            losses.append(float(sess.run(loss, feed(number))))
            sess.run(trains[number % 3 == 2], feed(number))
            open(place, "w").close()
        while not os.path.exists(place):
            time.sleep(0.005)
    print(json.dumps({"losses": losses, "rows": [seen(sess)], "tables": tables()}))
    time.sleep(1)
"""


@pytest.mark.long
def test_each_step_of_each_of_several_workers_moves_all_rows_with_the_powers_there_are(tmp_path):
    found = []
    for stock in ("None", "['.*']"):
        place = tmp_path / stock
        place.mkdir()
        with StockJob(TURNS, ps=2, worker=2, OUT=str(place), STOCK=stock) as job:
            for index in range(2):
                job.start("worker", index)
            found.append([json.loads(job.finish("worker", index)) for index in range(2)])
    for wanted, one in zip(*found):
        assert (wanted["tables"], one["tables"]) == ([], ["items", "users"])
        np.testing.assert_allclose(one["losses"], wanted["losses"], rtol=1e-5, atol=1e-5)
        for rows, others in zip(one["rows"][0], wanted["rows"][0]):
            np.testing.assert_allclose(rows, others, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("form", ["together", "apart", "one"])
def test_parts_that_may_be_updated_without_the_others_leave_adam_to_tensorflow(v1, graph, form, use_resource):
    """A push is a step of all rows of a table, which has all parts."""
    cluster = tf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]})
    with tf.device(v1.train.replica_device_setter(worker_device="/job:worker/task:0", cluster=cluster)):
        w = v1.get_variable("w", [20, 2], partitioner=v1.fixed_size_partitioner(2), use_resource=use_resource)
        loss = tf.reduce_sum(tf.nn.embedding_lookup(w, tf.constant([1, 15])))
        made = v1.train.AdamOptimizer(0.1)
        for some in {"together": [list(w)], "apart": [[one] for one in w], "one": [list(w), list(w)[:1]]}[form]:
            made.minimize(loss, var_list=some)
    for lazy_adam in (False, True):
        plans = [plan for plan in plan_variables(
            graph.as_graph_def(), StockTables(least_rows=1, lazy_adam=lazy_adam), True, saved=saved_places(graph))
                 if plan.name in ("w/part_0", "w/part_1")]
        assert [plan.converts for plan in plans] == [form == "together" or lazy_adam] * 2, plans
        if form != "together" and not lazy_adam:
            assert all("not always updated together" in plan.reason for plan in plans), plans


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("form", ["same", "other", "late"])
def test_parts_that_are_updated_with_other_rates_leave_adam_to_tensorflow(v1, graph, form, use_resource):
    """The conversion ended with an AssertionError."""
    cluster = tf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]})
    with tf.device(v1.train.replica_device_setter(worker_device="/job:worker/task:0", cluster=cluster)):
        w = v1.get_variable("w", [20, 2], partitioner=v1.fixed_size_partitioner(2), use_resource=use_resource)
        rate = v1.get_variable("rate", [], use_resource=use_resource)
        rates = {}
        for at, one in enumerate(w):
            with tf.control_dependencies([rate.assign(0.1 + at)] if form == "late" else []):
                rates[one.op.name] = rate.read_value() * (0.5 + at if form == "other" else 0.5)

        class ByPart(v1.train.AdamOptimizer):
            def _apply_sparse_shared(self, grad, var, *rest):
                self._lr_t = rates[var.op.name]
                return super()._apply_sparse_shared(grad, var, *rest)

        loss = tf.reduce_sum(tf.nn.embedding_lookup(w, tf.constant([1, 15])))
        ByPart().minimize(loss, var_list=list(w))
    plans = [plan for plan in convert_graph(graph, True) if plan.name in ("w/part_0", "w/part_1")]
    assert [plan.converts for plan in plans] == [form == "same"] * 2, plans
    if form != "same":
        assert all("is updated with other numbers" in plan.reason for plan in plans), plans


# The global step says which batch comes next: a session that recovers runs its last call again, with what was fed.
BY_STEP = cluster_cases.RUN.replace("""    ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    labels = tf.compat.v1.placeholder(tf.float32, [None], name="labels")
""", """    ids, labels = tf.compat.v1.py_func(lambda number: batch(int(number)), [step], [tf.int64, tf.float32])
    ids.set_shape([None])
    labels.set_shape([None])
""").replace("    for number in range(first, last):\n", """    while True:
        number = int(sess.run(step))
        if number >= last:
            break
        print("step", number, flush=True)
        time.sleep(0.02)
""").replace(", dict(zip([ids, labels], batch(number))))", ")")


@pytest.mark.long
def test_a_killed_server_comes_back_with_rows_that_have_caught_up_with_the_checkpoint(tmp_path):
    assert all(part in BY_STEP for part in ("while True", "py_func", "sess.run([loss, train])"))
    variables = dict(OPTIMIZER="adam", LAST="60", SAVE="10")
    alone = trained(cluster_cases.run_alone(BY_STEP, CHECKPOINTS=str(tmp_path / "alone"), **variables))
    with cluster_cases.Job(BY_STEP, ps=2, CHECKPOINTS=str(tmp_path / "model"), **variables) as job:
        chief = job.start("worker", 0)
        wait_for(chief, "step 35")
        job.kill("ps", 1)
        time.sleep(1)
        job.start("ps", 1)
        found = trained(job.finish("worker", 0, 90))
    assert found["step"] == alone["step"] == 60
    for one, other in zip(found["rows"], alone["rows"]):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


TURNS_OF_TRAIN_OPS = """
from mx_rec.optimizers import adam
with tf.device(device):
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    tables = [create_table(tf.int64, 2, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
              for name in ("one", "two")]
    rows = [sparse_lookup(table, ids, modify_graph=True) for table in tables]
    optimizer = adam.create_hash_optimizer(0.01)
    variables = [table.variable for table in tables]
    loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in rows])
    trains = [optimizer.minimize(loss, var_list=variables), optimizer.minimize(loss, var_list=variables[:1])]
    every = tf.range(20, dtype=tf.int64)
    look = [sparse_lookup(table, every, is_train=False, modify_graph=True) for table in tables]
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    sess.run(trains[0], {ids: range(20)})
    for number in range(60):
        random = np.random.RandomState(number)
        sess.run(trains[number % 3 == 1], {ids: random.randint(0, 20, number % 3)})
        if number % 10 == 0:
            print("rows%d" % number, [one.tolist() for one in sess.run(look)])
    before = sess.run(look)
    sess.run(trains[1], {ids: []})
    print("still", [bool((one == other).all()) for one, other in zip(sess.run(look), before)])
"""


def test_parts_without_a_key_in_a_batch_move_with_the_others_and_a_table_that_is_left_alone_does_not():
    found, alone = in_both(TURNS_OF_TRAIN_OPS, ps=3)
    assert found == alone and len(found) == 7
    assert found["still"] == "[False, True]"
