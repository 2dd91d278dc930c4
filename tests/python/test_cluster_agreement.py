"""Workers and their chief on what tables on parameter servers are made by: seeds that nobody chose, and real differences."""

import json
import os
import time

import pytest

import preloaded
from cluster_cases import Job
from stock_cluster_cases import RUN as STOCK_RUN
from stock_cluster_cases import StockJob
from mx_rec.base.global_env_conf import cluster_wait_seconds

# A table whose initializer has a seed if SEED says so, in a graph whose seed is the task's number. Rows of NEW begin in
# the training of this task, whose updates are zeros, so that they stay what they began with.
SCRIPT = """
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
v1 = tf.compat.v1
v1.set_random_seed(int(os.environ.get("GRAPH_SEED", index)))
NEW = np.arange(40) + 1000 * int(os.environ.get("NEW", index))
KEYS = np.concatenate([np.arange(40) + 1000 * number for number in range(6)])
with tf.device(device):
    step = v1.train.get_or_create_global_step()
    seed = os.environ.get("SEED")
    padding = [int(key) for key in os.environ.get("PADDING", "").split()]
    items = create_table(tf.int64, int(os.environ.get("DIM", 4)), "items",
                         v1.random_uniform_initializer(-1, 1, seed=int(seed) if seed else None),
                         device_vocabulary_size=int(os.environ.get("ROWS", 500)),
                         padding_keys=padding or None, padding_keys_mask=bool(padding), padding_keys_len=1 if padding else None)
    found = sparse_lookup(items, tf.constant(NEW, tf.int64), modify_graph=True)
    train = create_hash_optimizer(0.0).minimize(tf.reduce_sum(found), var_list=[items.variable], global_step=step)
    every = sparse_lookup(items, tf.constant(KEYS, tf.int64), is_train=False, modify_graph=True)
print("built", flush=True)
with v1.train.MonitoredTrainingSession(
        target, is_chief=is_chief, config=config, checkpoint_dir=os.environ.get("CHECKPOINTS"), log_step_count_steps=None,
        save_checkpoint_steps=1000, save_summaries_steps=None, stop_grace_period_secs=1) as sess:
    began = sess.run(found).tolist()
    sess.run(train)
    print(json.dumps({"began": began, "rows": sess.run(every).tolist(), "size": items.size()}))
"""


def shown(text):
    return json.loads(text.strip().splitlines()[-1])


@pytest.mark.long
def test_a_table_without_a_seed_of_its_own_has_the_rows_of_the_chief_in_all_workers(tmp_path):
    """A script with `tf.set_random_seed(task_index)` waited for ever without a word; with variables it trains."""
    with Job(SCRIPT, worker=2, CHECKPOINTS=str(tmp_path)) as job:
        chief = shown(job.worker(0))
        worker = shown(job.worker(1))
        assert worker["began"] == chief["rows"][40:80] or worker["began"] == worker["rows"][40:80]
        assert worker["size"] == 80 and worker["rows"][:80] == chief["rows"][:40] + worker["began"]
        # A chief of another seed goes on from the checkpoint; the rows of its worker begin as its own do.
        chief = shown(job.worker(0, GRAPH_SEED=9, NEW=2))
        worker = shown(job.worker(1, GRAPH_SEED=8, NEW=3))
        other = shown(job.worker(1, GRAPH_SEED=7, NEW=2))
        assert other["rows"] == worker["rows"] and other["began"] == chief["began"]
        assert worker["rows"][120:160] == worker["began"]
    # One process without a cluster that goes on with the chief's seed makes the rows that the worker made.
    with Job(SCRIPT, ps=1, worker=1, GRAPH_SEED=9, NEW=3) as job:
        assert shown(job.worker(0))["began"] == worker["began"]


@pytest.mark.long
def test_a_variable_that_became_a_table_has_the_rows_of_the_chief_in_all_workers(tmp_path):
    """The same with `init(stock_tables=...)`, which knows no seed of an initializer."""
    code = "tf.compat.v1.set_random_seed(10 + index)\n" + STOCK_RUN
    with StockJob(code, worker=2, CHECKPOINTS=str(tmp_path), ROWS=120) as job:
        chief = job.run(LAST=5)
        worker = json.loads(job.worker(1, BEFORE=1, FIRST=5, LAST=10))
        assert worker["before"] == chief["rows"] and worker["step"] == 10
        assert all(converts for name, (converts, _) in worker["plans"].items() if name in ("items", "deep/users"))
    with StockJob(STOCK_RUN, ROWS=120) as job:
        # The seed is that of the chief, and not just any that all have.
        other = job.run(LAST=5)
        assert other["rows"][0] != chief["rows"][0]


@pytest.mark.parametrize("chief, worker, setting, values", [
    (dict(SEED=3), dict(SEED=4), "seed", None),
    ({}, dict(SEED=4), "seed", None),
    ({}, dict(DIM=8), "dim", ("4", "8")),
    ({}, dict(ROWS=700), "capacity", None),
    (dict(PADDING="5"), dict(PADDING="5 7"), "padding_keys", ("[5]", "[5,7]")),
], ids=["seed", "chosen seed", "dim", "vocabulary", "padding"])
def test_a_worker_of_another_configuration_warns_soon_and_ends_with_both_values(chief, worker, setting, values):
    """It waited for ever, and neither it nor the chief said anything."""
    with Job(SCRIPT, ps=1, worker=2, MXREC_CLUSTER_WAIT_SECS=3) as job:
        job.worker(0, **chief)
        process = job.start("worker", 1, **worker)
        assert process.stdout.readline().strip() == b"built"
        began = time.time()
        while "cannot use a table of the parameter servers" not in job.failure("worker", 1):
            assert time.time() < began + 300 and process.poll() is None, job.failure("worker", 1)
            time.sleep(0.1)
        text = job.failure("worker", 1)
        try:
            process.communicate(timeout=300)
        except preloaded.TimeoutExpired:
            raise AssertionError(job.failure("worker", 1))
        assert process.returncode != 0
        for text in (text, job.failure("worker", 1).split("has waited 3 seconds")[1]):
            assert "table=items" in text and "setting=" + setting in text, text
            made, asked = text.split("made_by=")[1].split(", asked_for=")
            asked = asked.split(")")[0]
            assert made != asked and (values is None or (made, asked) == values), text


def test_a_seed_that_the_chief_chose_is_good_for_workers_that_chose_none():
    with Job(SCRIPT, ps=1, worker=2) as job:
        chief, worker = shown(job.worker(0, SEED=3)), shown(job.worker(1))
        assert worker["rows"][:40] == chief["began"] and worker["rows"][40:80] == worker["began"]


@pytest.mark.long
def test_a_worker_that_waits_goes_on_when_the_chief_has_made_the_table_anew():
    """The servers live on from a job of another configuration, and the worker starts before its chief."""
    with Job(SCRIPT, ps=1, worker=2, MXREC_CLUSTER_WAIT_SECS=100) as job:
        job.worker(0, DIM=8)
        process = job.start("worker", 1)
        assert process.stdout.readline().strip() == b"built"
        while "setting=dim" not in job.failure("worker", 1):
            assert process.poll() is None, job.failure("worker", 1)
            time.sleep(0.1)
        job.worker(0)
        assert shown(job.finish("worker", 1))["size"] == 80


@pytest.mark.long
def test_a_worker_names_the_tables_that_its_chief_does_not_have():
    """A chief that keeps its variables, as one whose graph a session has run before: its workers waited for tables in silence."""
    code = STOCK_RUN.replace("    plans = convert_graph(v1.get_default_graph(), True)\n",
                             "    plans = []\n    from mx_rec.state.graph_state import graph_state\n    graph_state().is_settled = is_chief\n", 1)
    with StockJob(code, ps=1, worker=2) as job:
        assert job.run()["plans"] == {}
        process = job.start("worker", 1)
        while "waits for the tables 'items', 'deep_users_" not in job.failure("worker", 1):
            assert process.poll() is None, job.failure("worker", 1)
            time.sleep(0.1)


def test_the_time_is_checked():
    assert cluster_wait_seconds() == 300
    os.environ["MXREC_CLUSTER_WAIT_SECS"] = "soon"
    try:
        with pytest.raises(ValueError, match="MXREC_CLUSTER_WAIT_SECS is 'soon'"):
            cluster_wait_seconds()
    finally:
        del os.environ["MXREC_CLUSTER_WAIT_SECS"]
