"""Models that do not know mx_rec on parameter servers: their numbers, their requests, and several workers."""

import json

import numpy as np
import pytest

from stock_cluster_cases import MODEL, RUN, StockJob, run_alone
from support import EPS

# The engine sums gradients in another order where it has no ops of TensorFlow between.
TOLERANCE = 16 * EPS


def expect_equal(found, alone, tolerance=TOLERANCE):
    """Two runs have the same losses and rows; both trained."""
    assert abs(alone["losses"][0] - alone["losses"][-1]) > 1e-3 and np.isfinite(alone["losses"]).all()
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=tolerance, atol=tolerance)
    for rows, wanted in zip(found["rows"], alone["rows"]):
        np.testing.assert_allclose(rows, wanted, rtol=tolerance, atol=tolerance)


def tables(found):
    """The variables that became tables."""
    return sorted(name for name, (converts, _) in found["plans"].items() if converts)


@pytest.mark.parametrize("optimizer, resource, clip, tolerance", [
    ("sgd", "", "", 0), ("sgd", "1", "1", 0), ("momentum", "", "", TOLERANCE), ("adagrad", "1", "1", 0),
    ("ftrl", "", "1", 0), ("ftrl", "1", "", TOLERANCE), ("lazy_adam", "", "1", 0), ("lazy_adam", "1", "", TOLERANCE),
    ("adam", "", "1", 0), ("adam", "1", "", TOLERANCE),
    ("rmsprop", "", "1", 0), ("centered", "1", "", TOLERANCE)])
def test_one_worker_gives_the_numbers_of_one_process(optimizer, resource, clip, tolerance):
    """Bit for bit where TensorFlow's own ops stand between lookup and update there, too."""
    variables = dict(OPTIMIZER=optimizer, RESOURCE=resource, CLIP=clip, BEFORE="1", LAST="40")
    alone = run_alone(**variables)
    with StockJob(ps=2) as job:
        found = job.run(**variables)
    assert tables(found) == tables(alone) == ["deep/users", "items"]
    assert all("on parameter servers" in found["plans"][name][1] for name in tables(found))
    assert found["before"] == alone["before"]
    expect_equal(found, alone, tolerance)
    # Gradients are summed, and rows copied, on the worker.
    assert not {"Unique", "UnsortedSegmentSum", "Reshape", "StridedSlice"}.intersection(found["on_servers"]), found
    # One pull and one push for each server; no lookup makes a row.
    assert found["ops"]["MxRecPull"] == 2 and found["ops"]["MxRecStitch"] == 1
    assert found["ops"]["MxRecPush"] == 2


@pytest.mark.long
def test_a_variable_of_parts_is_one_table_however_many_parts_there_are():
    variables = dict(PARTS="3", CONSTANT="1", STRATEGY="div")
    alone, whole = run_alone(**variables), run_alone(CONSTANT="1")
    with StockJob(ps=2) as job:
        found = job.run(**variables)
    assert tables(found) == ["deep/users"] + ["items/part_%d" % part for part in range(3)]
    assert "with all 3 parts in one table" in found["plans"]["items/part_1"][1]
    expect_equal(found, alone)
    expect_equal(found, whole)


@pytest.mark.long
def test_sixty_four_bit_keys_and_rows_on_disk_work_on_servers(tmp_path):
    """Each server holds 20 rows and more of a table in memory, and the others on disk."""
    alone = run_alone(CONSTANT="1")
    options = "StockTables(least_rows=100, memory_rows=120, ssd_data_path=[%r])" % str(tmp_path)
    with StockJob(ps=2, STOCK=options) as job:
        found = job.run(CONSTANT="1")
    expect_equal(found, alone)
    code = MODEL.replace("    found = tf.nn", "    hashed = tf.strings.to_hash_bucket_fast(tf.as_string(ids[:, 0]), ROWS)\n"
                         "    found = tf.nn").replace("(users, ids[:, 0])", "(users, hashed)").replace(
                             "tf.nn.embedding_lookup(users, tf.range(ROWS, dtype=tf.int64))", "found") + """
with v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config) as sess:
    for number in range(5):
        sess.run(train, dict(zip([ids, labels], batch(number))))
    keys = {key for number in range(5) for key in batch(number)[0][:, 0]}

    from mx_rec.state.graph_state import graph_state
    sizes = {name: int(sess.run(table._physical.stats)[0]) for name, table in graph_state().tables.items()}
    print(json.dumps([sizes, len(keys), {plan.name: plan.ids.is_lifted for plan in plans if plan.converts}]))
"""
    with StockJob(code, ps=2, STOCK="StockTables(least_rows=5, unlimited_ids=['deep/users'])", ROWS="10") as job:
        sizes, keys, lifted = job.run()
    assert lifted == {"items": False, "deep/users": True}
    unlimited, = [size for name, size in sizes.items() if "unlimited" in name]
    # Ten buckets would hold ten.
    assert unlimited == keys and keys >= 5


@pytest.mark.long
def test_modify_graph_converts_outside_of_the_device_function_and_in_a_hook():
    """The servers are those that variables are on."""
    alone = run_alone(CONSTANT="1", LAST="10")
    code = RUN.replace("    plans = convert_graph(v1.get_default_graph(), True)\n", "plans = []\n", 1)
    for change in (code.replace("plans = []", "plans = []\nmodify_graph_and_start_emb_cache()", 1),
                   code.replace("save_checkpoint_steps=", "hooks=[GraphModifierHook()], save_checkpoint_steps=").replace(
                       "import modify", "import GraphModifierHook, modify", 1)):
        with StockJob(change, ps=2) as job:
            found = job.run(CONSTANT="1", LAST="10")
        assert found["ops"]["MxRecPull"] == 2
        expect_equal(found, alone)


@pytest.mark.parametrize("optimizer, pushes", [
    ("adam", 2), pytest.param("adagrad", 4, marks=pytest.mark.long)
])
def test_without_the_graph_pass_variables_have_pushes_of_their_own_and_the_same_bits(optimizer, pushes):
    """A push of Adam is a step of all rows of a table: parts of a variable are pushed together in any case."""
    found = []
    for passes in ("True", "False"):
        with StockJob(ps=2) as job:
            job.task = job.task.replace("init(stock_tables", "init(graph_pass=%s, stock_tables" % passes)
            found.append(job.run(OPTIMIZER=optimizer, PARTS="3", CONSTANT="1", LAST="12"))
    shared, apart = found
    assert tables(shared) == tables(apart) == ["deep/users"] + ["items/part_%d" % part for part in range(3)]
    assert (shared["ops"]["MxRecPush"], apart["ops"]["MxRecPush"]) == (2, 2 * pushes)
    assert (shared["losses"], shared["rows"]) == (apart["losses"], apart["rows"])


ALONE = """
v1 = tf.compat.v1
with tf.device(device):
    step = v1.train.get_or_create_global_step()
    ids = v1.placeholder(tf.int64, [None])
    variables = [v1.get_variable(name, [50, 2], initializer=v1.zeros_initializer()) for name in ("a", "b")]
    grads = tf.gradients([tf.reduce_sum(tf.nn.embedding_lookup([one], ids)) for one in variables], variables)
    train = v1.train.GradientDescentOptimizer(1.0).apply_gradients(zip(grads, variables))
    every = [tf.nn.embedding_lookup(one, tf.range(50)) for one in variables]
with v1.Session(target, config=config) as sess:
    sess.run(v1.global_variables_initializer())
    seen = []
    for fetched in ("train", "of_a", "both", "train"):
        if seen:
            of_a = next(op for op in sess.graph.get_operations() if "_mx_rec_update_of" in op.node_def.attr
                        and op.get_attr("_mx_rec_update_of") == b"a")
        sess.run({"train": train, "of_a": of_a, "both": [train, of_a]}[fetched] if seen else train, {ids: [3]})
        seen.append([float(rows[3][0]) for rows in sess.run(every)])
    print(json.dumps([seen, ops_of_type(sess.graph, train, "MxRecPush")]))
"""


def test_a_run_of_the_update_of_one_variable_leaves_those_alone_that_share_its_push():
    counts = """
def ops_of_type(graph, fetched, kind):
    found, todo = set(), [fetched]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return sum(op.type == kind for op in found)
"""
    with StockJob(counts + ALONE, ps=2) as job:
        assert job.run() == [[[-1, -1], [-2, -1], [-3, -2], [-4, -3]], 2]


RATES = """
v1 = tf.compat.v1
from mx_rec.stock.convert import converted
with tf.device(device):
    step = v1.train.get_or_create_global_step()
    ids = v1.placeholder(tf.int64, [None])
    rate = v1.get_variable("rate", [], initializer=v1.zeros_initializer(), use_resource=os.environ["RESOURCE"] == "1")
    variables = [v1.get_variable(name, [50, 2], initializer=v1.zeros_initializer()) for name in ("a", "b")]
    grads = tf.gradients([tf.reduce_sum(tf.nn.embedding_lookup([one], ids)) for one in variables], variables)
    rates, before = {}, []
    for name, value in zip("ab", (1.0, 100.0)):
        with tf.device(rate.device), tf.control_dependencies(before):
            with tf.control_dependencies([rate.assign(value)]):
                rates[name] = rate.read_value() * 0.5
        before = [rates[name]]

    class ByVariable(v1.train.AdagradOptimizer):
        def _apply_sparse(self, grad, var):
            self._learning_rate_tensor = rates[var.op.name]
            return super()._apply_sparse(grad, var)

    train = ByVariable(1.0, initial_accumulator_value=3.0).apply_gradients(zip(grads, variables))
    every = [tf.nn.embedding_lookup(one, tf.range(50)) for one in variables]
with v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, log_step_count_steps=None) as sess:
    sess.run(train, {ids: [3]})
    print(json.dumps([sorted(one.plan.name for one in converted(sess.graph)), [rows[3].tolist() for rows in sess.run(every)]]))
"""


@pytest.mark.parametrize("resource", ["", "1"])
def test_a_rate_that_is_read_after_a_change_of_it_is_another_one(resource):
    """Both variables were updated with the first rate: the reads seemed to be the same number."""
    for stock, tables_of_it in ("None", []), ("['.*']", ["a", "b"]):
        with StockJob(RATES, ps=1, STOCK=stock) as job:
            assert job.run(RESOURCE=resource) == [tables_of_it, [[-0.25, -0.25], [-25.0, -25.0]]]


COUNTING = """
v1 = tf.compat.v1
from mx_rec.stock.select import convert_graph
import time
with tf.device(device):
    step = v1.train.get_or_create_global_step()
    ids = v1.placeholder(tf.int64, [None])
    counts = v1.get_variable("counts", [50, 2], initializer=v1.zeros_initializer())
    other = v1.get_variable("other", [50, 1], initializer=v1.ones_initializer())
    rows = tf.nn.embedding_lookup([counts], ids)
    # Its gradient needs no row: -1 for each occurrence.
    loss = -tf.reduce_sum(rows) - tf.reduce_sum(tf.nn.embedding_lookup([other], ids // 2))
    train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    # Locked, as the global step's increments of an optimizer are not: of two at once one may be lost.
    add = v1.assign_add(step, 61, use_locking=True)
    every = [tf.nn.embedding_lookup(one, tf.range(50)) for one in (counts, other)]
    plans = convert_graph(v1.get_default_graph(), True)
assert sum(plan.converts for plan in plans) == 2
with v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, log_step_count_steps=None) as sess:
    random = np.random.RandomState(index)
    for _ in range(60):
        sess.run(train, {ids: random.randint(0, 50, 20)})
    sess.run(train, {ids: []})
    sess.run(add)
    if index:
        print("done")
    else:
        # All steps of the other worker are counted.
        end = time.time() + 300
        while sess.run(step) < 122 and time.time() < end:
            time.sleep(0.05)
        print(json.dumps([int(sess.run(step))] + [value.tolist() for value in sess.run(every)]))
"""


def test_no_update_of_several_workers_is_lost():
    """Gradients of -1 count occurrences; the numbers are whole, so that any order gives the same."""
    wanted, other = np.zeros(50), np.ones(50)
    for index in range(2):
        random = np.random.RandomState(index)
        for _ in range(60):
            keys = random.randint(0, 50, 20)
            np.add.at(wanted, keys, 1)
            np.add.at(other, keys // 2, 1)
    with StockJob(COUNTING, ps=2, worker=2) as job:
        job.start("worker", 0)
        job.start("worker", 1)
        assert job.finish("worker", 1).strip() == "done"
        steps, counted, others = json.loads(job.finish("worker", 0))
    assert steps == 122
    np.testing.assert_array_equal(counted, np.stack([wanted, wanted], 1))
    np.testing.assert_array_equal(others, other[:, None])


@pytest.mark.long
def test_synchronous_training_averages_as_tensorflow_does():
    """SyncReplicasOptimizer hands the gradients on, and its chief updates the tables; one worker is one process."""
    code = MODEL.replace('    train = optimizer.apply_gradients(pairs, global_step=step)\n', """
    hooks = []
    if cluster is not None:
        optimizer = v1.train.SyncReplicasOptimizer(optimizer, 1, 1)
        hooks.append(optimizer.make_session_run_hook(is_chief, num_tokens=0))
    train = optimizer.apply_gradients(pairs, global_step=step)
""") + RUN[len(MODEL):].replace("save_checkpoint_steps=", "hooks=hooks, save_checkpoint_steps=")
    for optimizer in ("adagrad", "lazy_adam", "adam"):
        alone = run_alone(code, OPTIMIZER=optimizer, LAST="12")
        with StockJob(code, ps=2) as job:
            found = job.run(OPTIMIZER=optimizer, LAST="12")
        assert tables(found) == ["deep/users", "items"]
        expect_equal(found, alone)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_gradients_made_dense_give_the_numbers_of_one_process(optimizer):
    """The dense update stands where a sparse one would."""
    applied = "    train = optimizer.apply_gradients("
    code = RUN.replace(applied, "    pairs = [(tf.convert_to_tensor(grad), one) for grad, one in pairs]\n" + applied)
    assert code != RUN
    alone = run_alone(code, OPTIMIZER=optimizer, LAST="15")
    with StockJob(code, ps=2) as job:
        found = job.run(OPTIMIZER=optimizer, LAST="15")
    assert tables(found) == tables(alone) == ["deep/users", "items"]
    expect_equal(found, alone)


@pytest.mark.long
@pytest.mark.parametrize("resource", ["", "1"], ids=["reference", "resource"])
def test_a_training_may_wait_for_reads_of_its_variables(resource):
    """Reads whose values nobody takes are not left with a variable that has no rows.

    Those of a resource variable are of what it was before, which a table no longer has when a run asks for both.
    """
    applied = "    train = optimizer.apply_gradients("
    code = RUN.replace(applied, "    reads = [items.value(), tf.identity(users), tf.size(users), tf.gather(items, [1, 2])]\n"
                       "    with tf.control_dependencies(reads):\n    " + applied)
    assert code != RUN
    stock = run_alone(code, STOCK="None", CONSTANT="1", RESOURCE=resource, LAST="8")
    with StockJob(code, ps=2) as job:
        found = job.run(CONSTANT="1", RESOURCE=resource, LAST="8")
    assert tables(found) == ([] if resource else ["deep/users", "items"])
    assert not resource or all("shows what it was before" in found["plans"][name][1] for name in ("deep/users", "items"))
    expect_equal(found, stock, 1e-5)


def test_penalties_and_rows_that_are_set_leave_a_variable_to_the_servers():
    """Their tables do not know such ops: the plan says which."""
    built = "    optimizer = OPTIMIZERS["
    code = RUN.replace(built, "    loss += 0.01 * tf.nn.l2_loss(items)\n" + built).replace(
        "    found = tf.nn.embedding_lookup(users, ids[:, 0])",
        "    with tf.control_dependencies([v1.scatter_update(users, ROWS - 1, tf.zeros([8]))]):\n"
        "        found = tf.nn.embedding_lookup(users, ids[:, 0])")
    assert code.count("l2_loss") == code.count("scatter_update(users") == 1
    options = "StockTables(least_rows=1, l2='rows of the batch')"
    with StockJob(code, ps=2, STOCK=options) as job:
        found = job.run(LAST="3")
    assert tables(found) == []
    assert "a penalty on the rows of a batch is not there on parameter servers" in found["plans"]["items"][1]
    assert "sets rows of it, which tables on parameter servers do not know" in found["plans"]["deep/users"][1]
    assert np.isfinite(found["losses"]).all()


@pytest.mark.long
@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_what_reads_a_variable_behind_its_training_sees_what_that_left(resource):
    """The copy of a reference variable is its memory; the servers were asked where the copy stood, in front of the pushes."""
    code = MODEL.replace("    plans = convert_graph", """    with tf.control_dependencies([train]):
        behind = tf.reduce_sum(users, 0)
    plans = convert_graph""") + """
import json
with v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, log_step_count_steps=None, save_summaries_steps=None,
                                       stop_grace_period_secs=1) as sess:
    found = []
    for number in range(4):
        found.append([sess.run(behind, dict(zip([ids, labels], batch(number)))).tolist(), sess.run(every[1]).sum(0).tolist()])
    print(json.dumps({"tables": [plan.name for plan in plans if plan.converts], "found": found}))
"""
    with StockJob(code=code, ps=2) as job:
        told = job.run(RESOURCE=str(int(resource)), OPTIMIZER="sgd")
    assert "deep/users" in told["tables"]
    behind, after = np.array(told["found"]).transpose(1, 0, 2)
    np.testing.assert_allclose(behind, after, rtol=1e-5)
    assert (np.abs(np.diff(after, axis=0)) > 1e-4).any(1).all()
