"""Tables in clusters: several tasks are refused before a step runs, a cluster of one task trains.

Every worker used to train a table of its own without a word; only the chief's was saved, and a worker that started
again began with an empty one.
"""

import json
import os

import pytest
import tensorflow as tf

import preloaded
import support
from cluster_cases import cluster_of, idle_task, run_task
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer

ONE_TASK = """
with tf.device(DEVICE):
    table = table_of()
    train = train_op(table)
for _ in range(2):
    with tf.compat.v1.train.MonitoredTrainingSession(server.target) as sess:
        for _ in range(3):
            sess.run(train)
        print(table.size())
"""


def config_of(job, index=0, **jobs):
    """A TF_CONFIG as text."""
    return json.dumps({"cluster": cluster_of(**jobs), "task": {"type": job, "index": index}})


def create(name="items"):
    return create_table(tf.int64, 4, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=100)


def train_op(table):
    rows = sparse_lookup(table, tf.constant([1, 2, 1], tf.int64), modify_graph=True)
    return create_hash_optimizer(0.5).minimize(tf.reduce_sum(rows), var_list=[table.variable])


# TF_CONFIG -----------------------------------------------------------------------------------


@pytest.mark.parametrize("job, jobs", [
    ("worker", dict(worker=2)), ("chief", dict(chief=1, worker=1)), ("worker", dict(chief=1, worker=2, evaluator=1)),
    ("master", dict(master=1, worker=1)), ("worker", dict(worker=1, ps=1)), ("ps", dict(worker=1, ps=1)),
    ("ps", dict(ps=1)), ("trainer", dict(trainer=2)),
])
def test_a_table_in_a_job_of_several_tasks_is_refused_by_name(dynamic, monkeypatch, job, jobs):
    monkeypatch.setenv("TF_CONFIG", config_of(job, **jobs))
    with pytest.raises(NotImplementedError, match="'items'.*TF_CONFIG.*%s:0.*Or train in one process" % job) as caught:
        create()
    for name, tasks in jobs.items():
        assert name == "evaluator" or "%d %s" % (tasks, name) in str(caught.value)
    graph = tf.compat.v1.get_default_graph()
    assert not graph.get_operations() and not graph.get_all_collection_keys()
    monkeypatch.delenv("TF_CONFIG")
    assert create().table_name == "items"


@pytest.mark.parametrize("job, jobs", [
    ("worker", dict(worker=1)), ("chief", dict(chief=1)), ("chief", dict(chief=1, evaluator=1)),
    ("evaluator", dict(chief=1, evaluator=1)), ("evaluator", dict(chief=1, worker=3, ps=2)),
    ("master", dict(master=1)), ("chief", dict(chief=1, ps=0)),
])
def test_one_training_task_and_evaluators_have_tables(dynamic, session, monkeypatch, job, jobs):
    monkeypatch.setenv("TF_CONFIG", config_of(job, **jobs))
    table = create()
    train = train_op(table) if job != "evaluator" else tf.no_op()
    session().run(train)
    assert table.size() == (2 if job != "evaluator" else 0)


def test_gradients_are_not_divided_by_ranks_that_add_nothing(dynamic, session, monkeypatch):
    """They were divided by the number of workers, though only one process had summed them."""
    monkeypatch.setenv("TF_CONFIG", config_of("evaluator", worker=4))
    gradients = []
    for kind in ("sum_gradients", "sum_gradients_and_div_by_ranksize"):
        table = support.make_table(kind, 4, 100, 1.0, all2all_gradients_op=kind)
        rows = sparse_lookup(table, tf.constant([1, 2, 1], tf.int64), modify_graph=True)
        gradients.append(tf.gradients(tf.reduce_sum(rows), [table.variable])[0].values)
    summed, divided = session().run(gradients)
    assert summed[:, 0].tolist() == divided[:, 0].tolist() == [2.0, 1.0]


def test_an_imported_graph_that_trains_is_refused_under_several_workers_and_one_that_reads_is_not(
        dynamic, session, monkeypatch, tmp_path):
    table = create()
    read = tf.identity(sparse_lookup(table, tf.constant([1], tf.int64), is_train=False, modify_graph=True), "read")
    tf.compat.v1.train.export_meta_graph(str(tmp_path / "reads.meta"))
    tf.identity(read)
    train = train_op(table)
    tf.compat.v1.train.export_meta_graph(str(tmp_path / "trains.meta"))
    del train
    monkeypatch.setenv("TF_CONFIG", config_of("worker", worker=2))
    with tf.Graph().as_default():
        tf.compat.v1.train.import_meta_graph(str(tmp_path / "reads.meta"))
        with tf.compat.v1.Session() as sess:
            assert sess.run("read:0").tolist() == [[0.0] * 4]
    with tf.Graph().as_default():
        tf.compat.v1.train.import_meta_graph(str(tmp_path / "trains.meta"))
        with pytest.raises(NotImplementedError, match="'items'.*2 worker"):
            tf.compat.v1.Session()


def test_a_model_without_tables_is_left_alone(graph, monkeypatch):
    import mx_rec  # noqa: F401

    monkeypatch.setenv("TF_CONFIG", "this is no JSON")
    value = tf.constant(3)
    with tf.compat.v1.Session() as sess:
        assert sess.run(value) == 3


# Devices and strategies ----------------------------------------------------------------------


@pytest.mark.parametrize("device, words", [
    (lambda: tf.compat.v1.train.replica_device_setter(ps_tasks=2, ps_device="/cpu:0"),
     "2 parameter servers without the name"),
    (lambda: "/job:ps", "/job:ps"), (lambda: "/job:ps/task:0/cpu:0", "/job:ps"),
    (lambda: "/job:worker/task:1", "/job:worker"), (lambda: "/job:worker/replica:0/task:3/device:CPU:0", "/job:worker"),
])
@pytest.mark.parametrize("inner", [False, True])
def test_a_table_under_the_device_of_a_shared_job_is_refused(dynamic, device, words, inner):
    with tf.device(device()):
        with tf.device("/cpu:0" if inner else ""):
            with pytest.raises(NotImplementedError, match="'items'.*%s" % words):
                create()
    assert not tf.compat.v1.get_default_graph().get_operations()


@pytest.mark.parametrize("outer, inner", [
    ("/cpu:0", ""), ("/job:worker/task:0", "/cpu:0"), ("/job:localhost", ""), ("/job:ps/task:1", None),
    ("/job:worker/task:1", "/job:localhost/task:0"), (lambda op: "/cpu:0", ""),
    (tf.compat.v1.train.replica_device_setter(cluster=tf.train.ClusterSpec({"worker": ["a:1"]})), ""),
])
def test_other_devices_have_tables(dynamic, outer, inner):
    with tf.device(outer), tf.device(inner):
        assert create().table_name == "items"


def test_a_strategy_with_a_cluster_of_its_own_is_refused(dynamic, monkeypatch):
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster_of(worker=1, ps=1)), task_type="worker", task_id=0)
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    with strategy.scope():
        with pytest.raises(NotImplementedError, match="'items'"):
            create()
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        create()


# Servers -------------------------------------------------------------------------------------


def test_a_session_on_a_server_of_several_tasks_is_refused_before_a_step_runs(tmp_path):
    cluster = cluster_of(worker=2)
    with idle_task(cluster, "worker", 1):
        out = run_task(cluster, "worker", 0, """
early = tf.compat.v1.Session(server.target)
print("empty", early.run(tf.constant(1)))
table = table_of()
train = train_op(table)
print("grown", said(lambda: early.run(train)))
print("plain", said(lambda: tf.compat.v1.Session(server.target)))
print("interactive", said(lambda: tf.compat.v1.InteractiveSession(server.target)))
def monitored(make):
    with tf.Graph().as_default():
        train_op(table_of())
        return said(make)
print("chief", monitored(lambda: tf.compat.v1.train.MonitoredTrainingSession(server.target, is_chief=True)))
print("worker", monitored(lambda: tf.compat.v1.train.MonitoredTrainingSession(server.target, is_chief=False)))
print("singular", monitored(lambda: tf.compat.v1.train.SingularMonitoredSession(master=server.target)))
config = tf.compat.v1.ConfigProto(device_filters=["/job:worker/task:0"])
with tf.compat.v1.Session(server.target, config=config) as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    sess.run(train)
    print("filtered", table.size())
with tf.compat.v1.Session() as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    sess.run(train)
    print("in process", table.size())
meta = tf.compat.v1.train.export_meta_graph()
with tf.Graph().as_default():
    tf.compat.v1.train.import_meta_graph(meta)
    print("imported", said(lambda: tf.compat.v1.Session(server.target)))
with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as sess:
    print("stock", sess.run(tf.constant(2)))
""")
    lines = dict(line.split(" ", 1) for line in out.strip().splitlines())
    assert lines["empty"] == "1" and lines["stock"] == "2"
    assert lines["filtered"] == "2" and lines["in"] == "process 2"
    for kind in ("grown", "plain", "interactive", "chief", "worker", "singular", "imported"):
        assert "'items'" in lines[kind] and "worker:0, worker:1" in lines[kind], (kind, lines[kind])


@pytest.mark.parametrize("device", ["'/cpu:0'", "'/job:worker/task:0'",
                                    "tf.compat.v1.train.replica_device_setter(cluster=cluster)"])
def test_a_cluster_of_one_task_trains(device):
    out = run_task(cluster_of(worker=1), "worker", 0, ONE_TASK.replace("DEVICE", device))
    assert out.split() == ["2", "2"]


def test_a_local_server_trains():
    out = run_task(cluster_of(worker=1), "worker", 0, "server = tf.compat.v1.train.Server.create_local_server()\n"
                   + ONE_TASK.replace("DEVICE", "'/cpu:0'"))
    assert out.split() == ["2", "2"]


# Estimators ----------------------------------------------------------------------------------


ESTIMATOR = """
import sys, warnings
import tensorflow as tf
import estimator_cases
from mx_rec.util.initialize import init
init()
case = estimator_cases.Case("step", sys.argv[1])
try:
    tf.estimator.train_and_evaluate(
        case.estimator, tf.estimator.TrainSpec(case.input_fn(True, repeat=None), max_steps=20),
        tf.estimator.EvalSpec(case.input_fn(False), steps=2, start_delay_secs=0, throttle_secs=1))
    print("done", tf.train.latest_checkpoint(sys.argv[1]))
except NotImplementedError as error:
    print("refused", error)
"""


@pytest.mark.long
@pytest.mark.parametrize("job, jobs", [("chief", dict(chief=1, worker=1)), ("worker", dict(chief=1, worker=1))])
def test_an_estimator_of_several_tasks_without_parameter_servers_is_refused(tmp_path, job, jobs):
    out = preloaded.run_python(ESTIMATOR, tmp_path / "model", TF_CONFIG=config_of(job, **jobs))
    assert out.startswith("refused the table") and "TF_CONFIG" in out


@pytest.mark.long
def test_a_chief_alone_trains_and_its_evaluator_evaluates(tmp_path):
    out = preloaded.run_python(ESTIMATOR, tmp_path / "model", TF_CONFIG=config_of("chief", chief=1))
    assert out.startswith("done") and "model.ckpt-20" in out
    out = preloaded.run_python(ESTIMATOR, tmp_path / "model", TF_CONFIG=config_of("evaluator", chief=1))
    assert out.startswith("done")
    assert os.path.isdir(str(tmp_path / "model" / "eval"))
