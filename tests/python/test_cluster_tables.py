"""Tables on parameter servers train what a process alone trains, from the same batches to the same bits."""

import json

import pytest

from cluster_cases import RUN, Job, run_alone


def trained(out):
    """What a worker printed at its end."""
    return json.loads(out.strip().splitlines()[-1])


def assert_same(cluster, alone):
    """The same rows and loss, bit for bit: JSON tells floats apart."""
    for name in ("loss", "step", "sizes", "rows"):
        assert cluster[name] == alone[name], name


@pytest.mark.parametrize("variables", [
    dict(ps=1, OPTIMIZER="adagrad"), dict(ps=2, OPTIMIZER="ftrl"), dict(ps=2, OPTIMIZER="sgd"),
    dict(ps=3, OPTIMIZER="momentum"), dict(ps=2, OPTIMIZER="decayed"), dict(ps=2, CLIP="1"),
    dict(ps=2, MANY="1"), dict(ps=2, OPTIMIZER="rmsprop"), dict(ps=3, OPTIMIZER="centered", MANY="1"),
    dict(ps=2, OPTIMIZER="adam"), dict(ps=3, OPTIMIZER="adam", CLIP="1"),
], ids=lambda one: "-".join("%s_%s" % pair for pair in one.items()))
def test_one_worker_trains_the_bits_of_one_process(variables):
    servers = variables.pop("ps")
    alone = trained(run_alone(RUN, **variables))
    with Job(RUN, ps=servers, **variables) as job:
        found = trained(job.worker())
    assert_same(found, alone)
    assert found["stats"]["stale"] == 0 and found["stats"]["new"] == alone["stats"]["new"]
    assert found["stats"]["load"] <= alone["stats"]["load"] and found["stats"]["rows"] == alone["sizes"][1]


@pytest.mark.long
def test_gradients_of_several_workers_are_neither_lost_nor_torn():
    """Each worker adds 1 to each float of each row so many times; sums of integers are exact in any order."""
    code = """
from mx_rec.optimizers import gradient_descent
with tf.device(device):
    step = tf.compat.v1.train.get_or_create_global_step()
    keys = tf.constant(np.arange(2000), tf.int64)
    table = create_table(tf.int64, 16, "items", tf.compat.v1.zeros_initializer(), device_vocabulary_size=5000)
    loss = -tf.reduce_sum(sparse_lookup(table, keys, modify_graph=True))
    train = gradient_descent.create_hash_optimizer(1.0).minimize(loss, var_list=[table.variable])
    # Locked, as the global step's increments of an optimizer are not: of two at once one may be lost.
    add = tf.compat.v1.assign_add(step, 100, use_locking=True)
    rows = sparse_lookup(table, keys, is_train=False, modify_graph=True)
with tf.compat.v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, log_step_count_steps=None) as sess:
    for _ in range(100):
        sess.run(train)
    sess.run(add)
    # All have trained when this many steps are done.
    import time
    while sess.run(step) < 300:
        time.sleep(0.05)
    found = sess.run(rows)
    print(json.dumps([float(found.min()), float(found.max()), table.size()]))
    time.sleep(3)
"""
    with Job(code, ps=2, worker=3) as job:
        for index in range(3):
            job.start("worker", index)
        for index in range(3):
            assert json.loads(job.finish("worker", index)) == [300.0, 300.0, 2000]


@pytest.mark.long
def test_synchronous_training_with_one_worker_is_that_of_one_process_bit_for_bit():
    alone = trained(run_alone(RUN.replace("if not os.environ.get(\"SYNC\")", "if False")))
    with Job(RUN, ps=2, SYNC="1") as job:
        found = trained(job.worker())
    assert_same(found, alone)


@pytest.mark.long
def test_synchronous_training_with_two_workers_is_that_of_one_process_with_both_batches(tmp_path):
    joined = RUN.replace("batch(number)))", "[np.concatenate(pair) for pair in zip(batch(number), batch(number + 1000))]))")
    assert joined != RUN
    alone = trained(run_alone(joined.replace("if not os.environ.get(\"SYNC\")", "if False")))
    second = RUN.replace("batch(number)))", "batch(number + 1000 * index)))").replace(
        "    print(json", "    time.sleep(2)\n    print(json")
    with Job(second, ps=2, worker=2, SYNC="2", BARRIER=str(tmp_path)) as job:
        job.start("worker", 0)
        job.start("worker", 1)
        found = trained(job.finish("worker", 0))
        job.finish("worker", 1)
    assert found["step"] == alone["step"] and found["sizes"] == alone["sizes"]
    for ours, theirs in zip(found["rows"], alone["rows"]):
        for one, other in zip(ours, theirs):
            assert one == pytest.approx(other, rel=2e-4, abs=2e-5)


def test_a_gradient_that_comes_before_an_update_waits_no_more_is_averaged_with_the_others():
    """With a backup worker an update of two workers may find three gradients: their sum was divided by two."""
    code = """
import threading, time
from tensorflow.python.ops import resources
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
with tf.device(device):
    step = tf.compat.v1.train.get_or_create_global_step()
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    items = create_table(tf.int64, 2, "items", tf.compat.v1.zeros_initializer(), device_vocabulary_size=100)
    loss = -tf.reduce_sum(sparse_lookup(items, ids, modify_graph=True))
    optimizer = tf.compat.v1.train.SyncReplicasOptimizer(create_hash_optimizer(1.0), 2, 3)
    train = optimizer.minimize(loss, step, var_list=[items.variable])
    found = sparse_lookup(items, tf.range(4, dtype=tf.int64), is_train=False, modify_graph=True)
    counts = [accumulator.num_accumulated() for accumulator, _ in optimizer._accumulator_list]
    update, = optimizer.get_chief_queue_runner().enqueue_ops
with tf.compat.v1.Session(target, config=config) as sess:
    sess.run([tf.compat.v1.global_variables_initializer(), [one.create for one in resources.shared_resources()]])
    sess.run(optimizer.chief_init_op)
    workers = [threading.Thread(target=sess.run, args=(train, {ids: keys})) for keys in ([-1, 1, 1, 2, -1], [3], [1, 2, 2, -1, 2])]
    for worker in workers:
        worker.start()
    while sess.run(counts) != [3]:
        time.sleep(0.01)
    sess.run(update)
    for worker in workers:
        worker.join()
    print(json.dumps(sess.run(found)[:, 0].tolist()))
"""
    with Job(code, ps=1) as job:
        assert json.loads(job.worker(seconds=60)) == pytest.approx([0, 3 / 3, 4 / 3, 1 / 3])


@pytest.mark.long
def test_a_second_job_on_living_servers_begins_afresh_also_with_another_configuration():
    alone = trained(run_alone(RUN))
    other = trained(run_alone(RUN, SEED="9"))
    with Job(RUN, ps=2) as job:
        assert_same(trained(job.worker()), alone)
        assert_same(trained(job.worker()), alone)
        assert_same(trained(job.worker(SEED="9")), other)


@pytest.mark.long
def test_rows_are_made_in_training_alone():
    with Job(RUN, ps=2, BEFORE="1") as job:
        found = trained(job.worker())
    assert all(value == 0.0 for table in found["before"] for row in table for value in row)
    assert found["sizes"][0] > 0


def test_a_server_that_did_not_import_mx_rec_is_named_before_a_step_runs():
    code = RUN.replace("with tf.compat.v1.train.Mon", """
def guarded(make):
    try:
        return make()
    except tf.errors.NotFoundError as error:
        print("refused", error.message)
        sys.exit(0)
with guarded(lambda: tf.compat.v1.train.Mon""", 1)
    code = code.replace("stop_grace_period_secs=1) as sess", "stop_grace_period_secs=1)) as sess")
    with Job(code, ps=1, WITHOUT_MX_REC="ps") as job:
        out = job.worker()
    assert out.startswith("refused") and "did not import mx_rec" in out and "MxRecPart" in out


REFUSED = """
from mx_rec.optimizers import lazy_adam
def said(call):
    try:
        call()
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return "nothing"
with tf.device(device):
    table = create_table(tf.int64, 4, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=100)
    ids = tf.constant([1, 2], tf.int64)
    print("sketch", said(lambda: create_table(tf.int64, 4, "other", tf.compat.v1.ones_initializer(),
                                              device_vocabulary_size=100, admission_sketch_bytes=2048)))
    look_up = lambda **more: said(lambda: sparse_lookup(table, ids, modify_graph=True, **more))
    print("default", look_up(is_train=False, serving_default_value=tf.ones([1, 4])))
    print("cond", said(lambda: tf.cond(tf.constant(True), lambda: sparse_lookup(table, ids, modify_graph=True),
                                       lambda: tf.zeros([2, 4]))))
    rows = sparse_lookup(table, ids, modify_graph=True)
    pairs = list(zip(tf.gradients(tf.reduce_sum(rows), [table.variable]), [table.variable]))
    print("stock", said(lambda: tf.compat.v1.train.AdagradOptimizer(0.1).apply_gradients(pairs)))
    print("own", said(lambda: tf.compat.v1.train.AdadeltaOptimizer(0.1).apply_gradients(pairs)))
    print("update", said(lambda: tf.cond(tf.constant(True), lambda: lazy_adam.create_hash_optimizer().apply_gradients(
        pairs), lambda: tf.no_op())))
print("warm", said(lambda: tf.compat.v1.train.warm_start("/nowhere")))
print("freeze", said(lambda: tf.compat.v1.graph_util.convert_variables_to_constants(
    None, tf.compat.v1.get_default_graph().as_graph_def(), [rows.op.name])))
with tf.device(device):
    read = sparse_lookup(table, ids, is_train=False, modify_graph=True)
print("read", said(lambda: tf.compat.v1.graph_util.convert_variables_to_constants(
    None, tf.compat.v1.get_default_graph().as_graph_def(), [read.op.name])))
print("object", said(lambda: tf.train.Checkpoint(step=tf.compat.v1.train.get_or_create_global_step()).write(
    "/tmp/never", session=tf.compat.v1.Session())))
print("saved", said(lambda: tf.compat.v1.saved_model.Builder(os.environ["EXPORT"]).add_meta_graph_and_variables(
    tf.compat.v1.Session(), ["serve"])))
"""


def test_what_does_not_work_on_servers_yet_is_refused_by_name(tmp_path):
    # No process is asked for anything: the graph is refused while it is built.
    cases = dict(sketch="admission_sketch_bytes", default="serving_default_value", cond="tf.cond",
                 stock="AdagradOptimizer", own="AdadeltaOptimizer", update="tf.cond", warm="warm start", freeze="freez", read="freez",
                 object="tf.train.Checkpoint", saved="export of a SavedModel")
    with Job(REFUSED, ps=1, EXPORT=str(tmp_path / "model")) as job:
        lines = dict(line.split(" ", 1) for line in job.worker().strip().splitlines())
    for case, words in cases.items():
        named = "'other'" if case == "sketch" else "items"
        assert words in lines[case] and named in lines[case], (case, lines[case])


@pytest.mark.parametrize("initialize, words", [
    ("dynamic_expansion", "use_dynamic_expansion"), ("incremental", "is_incremental_checkpoint")])
def test_modes_that_do_not_work_on_servers_are_refused(initialize, words):
    arguments = {"dynamic_expansion": "use_dynamic_expansion=True",
                 "incremental": "is_incremental_checkpoint=True, save_checkpoint_due_time=100, "
                                "save_delta_checkpoints_secs=10"}[initialize]
    code = """
from mx_rec.util.initialize import terminate_config_initializer
terminate_config_initializer()
init(%s)
with tf.device(device):
    try:
        create_table(tf.int64, 4, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=1)
    except NotImplementedError as error:
        print(error)
""" % arguments
    with Job(code, ps=1) as job:
        out = job.worker()
    assert "'items'" in out and words in out


@pytest.mark.slow
def test_models_of_workers_are_never_slowed_by_a_dead_worker_s_kernels():
    """The kernels of a killed worker are never deleted: no table's life may hang on them."""
    slow = RUN.replace("    for number in range(first, last):", "    for number in range(first, 100000):")
    slow = slow.replace("lost, _ =", "number == first + 1 and print('steps', flush=True)\n        lost, _ =")
    with Job(slow, ps=2) as job:
        worker = job.start("worker", 0)
        assert worker.stdout.readline().strip() == b"steps"
        job.kill("worker", 0)
        job.code = RUN
        found = trained(job.worker())
    assert_same(found, trained(run_alone(RUN)))
