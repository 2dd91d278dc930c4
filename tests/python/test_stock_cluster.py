"""An unchanged Estimator with `stock_tables` in a job with parameter servers, and what stays TensorFlow's there."""

import json
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from cluster_cases import cluster_of
from stock_cluster_cases import MODEL, StockJob, run_alone

SCRIPT = """
import os, sys
import numpy as np
import tensorflow as tf
from mx_rec.util.initialize import init
from mx_rec.util.stock_tables import StockTables
init(stock_tables=eval(os.environ["STOCK"]))

# TensorFlow cuts variables of 64 MB into parts, one for each server; evaluators do not.
ROWS = 600000
column = tf.feature_column.categorical_column_with_identity("key", ROWS)
columns = [tf.feature_column.embedding_column(column, 32)]

def input_fn():
    keys = np.random.RandomState(7).randint(0, 500, 4000) * 1199
    features = {"key": keys.astype(np.int64)}
    return tf.data.Dataset.from_tensor_slices((features, keys % 2)).repeat().batch(100)

config = tf.estimator.RunConfig(model_dir=sys.argv[1], save_checkpoints_steps=60)
made = tf.estimator.DNNLinearCombinedClassifier(
    linear_feature_columns=[column], dnn_feature_columns=columns, dnn_hidden_units=[8], config=config,
    linear_optimizer=tf.compat.v1.train.AdagradOptimizer(0.5), dnn_optimizer=tf.compat.v1.train.AdagradOptimizer(0.1))
exporter = tf.estimator.FinalExporter("final", tf.estimator.export.build_parsing_serving_input_receiver_fn(
    tf.feature_column.make_parse_example_spec([column])))
tf.estimator.train_and_evaluate(
    made, tf.estimator.TrainSpec(input_fn, max_steps=120),
    tf.estimator.EvalSpec(input_fn, steps=20, start_delay_secs=0, throttle_secs=1, exporters=[exporter]))
print("done")
"""

SERVES = """
import sys
import numpy as np
import tensorflow as tf
def example(key):
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[key]))
    return tf.train.Example(features=tf.train.Features(feature={"key": feature})).SerializeToString()
serve = tf.contrib.predictor.from_saved_model(sys.argv[1], "predict")
keys = np.unique(np.random.RandomState(7).randint(0, 500, 4000)) * 1199
found = serve({"examples": [example(key) for key in keys]})["class_ids"][:, 0]
print((found == keys % 2).mean())
assert "mx_rec" not in sys.modules
"""


def run_job(model, stock, servers, *others):
    """Runs a chief and others to their ends; returns the chief's stderr."""
    cluster = cluster_of(chief=1, ps=servers)
    processes, errors = {}, {}
    try:
        for job, index in [("ps", index) for index in range(servers)] + [("chief", 0)] + [(job, 0) for job in others]:
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            errors[job, index] = tempfile.TemporaryFile()
            processes[job, index] = preloaded.Process(
                SCRIPT, support.environment_of({"TF_CONFIG": config, "STOCK": stock}), errors[job, index], [model])
        texts = []
        for job in ("chief",) + others:
            out, _ = processes[job, 0].communicate(timeout=100)
            errors[job, 0].seek(0)
            texts.append(errors[job, 0].read().decode("utf-8", "replace"))
            assert (out.decode().strip(), processes[job, 0].returncode) == ("done", 0), texts[-1][-4000:]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    return texts[0]


@pytest.mark.long
def test_an_estimator_trains_tables_on_servers_and_its_evaluator_exports_variables(tmp_path):
    model = tmp_path / "model"
    text = run_job(model, "True", 2, "evaluator")
    assert "stock_tables: 3 of 3 variables with 10,000 rows and more are tables." in text
    names = support.variables_in(model)
    assert not any("embedding_weights" in name or "linear_model/key" in name for name in names)
    parts = sorted(os.listdir(str(model / "sparse-model.ckpt-120")))
    assert len(parts) == 9 and sum("embedding_weights_part_0_" in name for name in parts) == 4
    exported, = (model / "export" / "final").iterdir()
    assert float(preloaded.run_python(SERVES, exported)) > 0.9
    # Another number of servers, and so of parts, goes on.
    model_of_one = tmp_path / "one"
    os.rename(str(model), str(model_of_one))
    run_job(model_of_one, "True", 1)


@pytest.mark.long
def test_servers_false_leaves_all_variables_on_servers_and_says_so(tmp_path):
    model = tmp_path / "model"
    text = run_job(model, "StockTables(servers=False)", 1)
    assert text.count("all variables stay TensorFlow's: the job has parameter servers, whose tables do not support "
                      "StockTables(servers=False)") == 1
    names = [name for name, _ in tf.train.list_variables(str(model))]
    assert any("embedding_weights" in name for name in names) and "global_step" in names
    assert not list(model.glob("sparse-*"))


PLANS = MODEL + """
import subprocess
tf.io.write_graph(v1.get_default_graph(), os.environ["OUT"], "graph.pbtxt")
print(json.dumps({plan.name: [plan.converts, plan.reason] for plan in plans}))
"""


@pytest.mark.parametrize("change, variables, reason", [
    ("", dict(STOCK="StockTables(least_rows=5, access_threshold={'deep/.*': 2, '.*': None})"), "access_threshold"),
    ("", dict(STOCK="StockTables(names=['items'], least_rows=5)"), "no name of stock_tables matches it"),
    ("with tf.device('/job:worker/task:0'):\n        users = ", {}, "not on a parameter server"),
], ids=["threshold", "name", "worker"])
def test_what_cannot_be_converted_stays_with_its_reason(change, variables, reason, tmp_path):
    """All in the graph of a worker; nothing runs it."""
    code = PLANS.replace("    users = ", "    " + change) if change else PLANS
    servers = """
device = tf.compat.v1.train.replica_device_setter(
    worker_device="/job:worker/task:0", cluster=tf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]}))
"""
    plans = run_alone(servers + code, OUT=str(tmp_path), **variables)
    converts, why = plans["deep/users"]
    assert not converts and reason in why, plans
    assert plans["items"][0], plans


@pytest.mark.long
def test_the_plan_of_a_saved_graph_with_servers_says_the_same(tmp_path):
    code = PLANS.replace("    plans = convert_graph(v1.get_default_graph(), True)", "", 1)
    code = code.replace('"graph.pbtxt")', '"graph.pbtxt")\nplans = convert_graph(v1.get_default_graph(), True)')
    servers = """
device = tf.compat.v1.train.replica_device_setter(
    worker_device="/job:worker/task:0", cluster=tf.train.ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]}))
"""
    plans = run_alone(servers + code, OUT=str(tmp_path), PARTS="3")
    assert sum(converts for converts, _ in plans.values()) == 4
    said = json.loads(preloaded.run_python(
        "from mx_rec.graph.__main__ import main; main()", tmp_path / "graph.pbtxt", "--variables", "1", "--json", "-"))
    assert {one["name"]: [one["converts"], one["reason"]] for one in said["variables"]} == plans


def test_an_id_that_a_variable_does_not_have_is_an_error_that_names_it():
    code = MODEL + """
for wrong in (-1, ROWS):
    try:
        with v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config) as sess:
            sess.run(train, {ids: [[wrong, 1, 2]], labels: [0.0]})
    except tf.errors.InvalidArgumentError as error:
        print(error.message.replace("\\n", " "))
"""
    with StockJob(code, ps=1) as job:
        said = job.worker().splitlines()
    assert len(said) == 2 and "= 300 is not in [0, 300)" in said[1], said
    # Bags leave negative ids out, other lookups do not.
    assert "= -1 is not in [0, 300)" in said[0] and "[[node embedding_lookup" in said[0], said


SESSION = MODEL.replace("    plans = convert_graph(v1.get_default_graph(), True)\n", """
    saver, init = v1.train.Saver(), v1.global_variables_initializer()
""") + """
if os.environ["WAY"] == "session":
    sess = v1.Session(target, config=config)
    sess.run(init)
else:
    supervisor = v1.train.Supervisor(is_chief=is_chief, logdir=os.environ["OUT"], global_step=step, saver=saver,
                                     save_model_secs=0, summary_op=None)
    sess = supervisor.prepare_or_wait_for_session(target, config=config)
losses = []
for number in list(range(6)) + list(range(3, 9)):
    if len(losses) == 3:
        path = saver.save(sess, os.path.join(os.environ["OUT"], "model.ckpt"), global_step=step)
    if len(losses) == 6:
        saver.restore(sess, path)
    losses.append(float(sess.run([loss, train], dict(zip([ids, labels], batch(number))))[0]))
from mx_rec.stock.convert import converted
print(json.dumps({"losses": losses, "rows": [value.tolist() for value in sess.run(every)],
                  "tables": sorted(one.plan.name for one in converted(sess.graph))}))
"""


@pytest.mark.long
@pytest.mark.parametrize("way, resource", [("session", "0"), ("supervisor", "1")])
def test_a_session_on_servers_converts_at_its_first_run_with_the_saver_made_before(way, resource, tmp_path):
    found = []
    for stock in ("None", "['.*']"):
        place = tmp_path / str(len(found))
        place.mkdir()
        with StockJob(SESSION, ps=2) as job:
            found.append(job.run(WAY=way, RESOURCE=resource, CONSTANT="1", STOCK=stock, OUT=str(place)))
    assert [one["tables"] for one in found] == [[], ["deep/users", "items"]]
    np.testing.assert_allclose(found[1]["losses"], found[0]["losses"], rtol=1e-5)
    for one, other in zip(found[1]["rows"], found[0]["rows"]):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert found[1]["losses"][3:6] == found[1]["losses"][6:9]
