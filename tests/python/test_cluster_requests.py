"""Separate lookups on parameter servers share one request for each of them, and nothing else than ids is shared."""

import json

import pytest

from cluster_cases import run_alone

# Two parameter servers and a worker in one process; `nodes` counts the ops that a run had, by type.
SERVERS = """
from collections import Counter
from tensorflow.python.ops import resources
from mx_rec.optimizers import adagrad
cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:3]})
servers = [tf.compat.v1.train.Server(cluster, *task) for task in (("ps", 0), ("ps", 1), ("worker", 0))]
target = servers[2].target
tf1 = tf.compat.v1
setter = tf1.train.replica_device_setter(2, "/job:ps", "/job:worker/task:0")
data = np.random.RandomState(1).randint(0, 50, [400, 4]).astype(np.int64)

def batches(size=10, rows=data):
    return tf1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(rows).repeat().batch(size)).get_next()

def table(name, dim=4):
    return create_table(tf.int64, dim, name, tf1.random_uniform_initializer(-1, 1, seed=3), device_vocabulary_size=500)

def look_up(table, ids, **how):
    return sparse_lookup(table, ids, modify_graph=True, **how)

def updated(found, tables, optimizer=None):
    loss = tf.add_n([tf.reduce_sum(tf.square(one)) * (0.1 + 0.37 * at) for at, one in enumerate(found)])
    variables = [table.variable for table in tables]
    return loss, (optimizer or adagrad.create_hash_optimizer(0.1)).apply_gradients(
        zip(tf.gradients(loss, variables), variables))

def start():
    return [tf1.global_variables_initializer(), tf1.local_variables_initializer()] \\
        + [one.create for one in resources.shared_resources()]

def ran(sess, fetches, feed=None):
    seen = tf1.RunMetadata()
    values = sess.run(fetches, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=seen)
    return values, Counter(node.op for graph in seen.partition_graphs for node in graph.node
                           if node.op.startswith("MxRec"))
"""


def told(code, **variables):
    """What the last line that a worker printed says."""
    return json.loads(run_alone(SERVERS + code, **variables).splitlines()[-1])


STEP = """
with tf.device(setter):
    batch = batches()
    tables = [table("a"), table("b", 8), table("c", 16)]
    found = [look_up(one, batch[:, at]) for at, one in enumerate(tables)] + [look_up(tables[0], batch[:, 3])]
    loss, train = updated(found, tables)
    every = [look_up(one, tf.constant(np.arange(50)), is_train=False) for one in tables]
    init = start()
with tf1.Session(target) as sess:
    sess.run(init)
    for _ in range(4):
        sess.run(train)
    (values, lost, _), step = ran(sess, [found, loss, train])
    rows, evaluation = ran(sess, every)
    _, one = ran(sess, every[1])
    print(json.dumps({"lost": float(lost), "rows": [value.tolist() for value in rows], "step": step,
                      "evaluation": evaluation, "one": one, "found": [value.tolist() for value in values],
                      "by_found": float(sum((value ** 2).sum(dtype=np.float64) * (0.1 + 0.37 * at)
                                            for at, value in enumerate(values)))}))
"""


def test_a_step_of_separate_lookups_has_one_pull_and_one_push_for_each_server_and_the_same_bits():
    shared, apart = told(STEP), told(STEP, PASSES="")
    assert shared["step"] == {"MxRecDistinctSplit": 1, "MxRecPull": 2, "MxRecStitch": 1, "MxRecReduce": 4,
                              "MxRecPackGradients": 2, "MxRecPush": 2, "MxRecClusterTable": 3}
    assert apart["step"]["MxRecPull"] == 8 and apart["step"]["MxRecPush"] == 2
    assert shared["evaluation"]["MxRecPull"] == 2 and apart["evaluation"]["MxRecPull"] == 6
    # Constants ask for nothing: a run that needs one of them reads the rows of all.
    assert shared["one"]["MxRecPull"] == 2
    for name in ("lost", "rows", "found"):
        assert shared[name] == apart[name]
    # The script holds the tensors that the model reads.
    assert shared["by_found"] == pytest.approx(shared["lost"], rel=1e-5)


APART = {
    "placeholders": ("""
    ids = [tf1.placeholder(tf.int64, [None]) for _ in range(2)]
    found = [look_up(one, value) for one, value in zip(tables, ids)]
""", "{ids[0]: [7, 8]}"),
    "iterators": ("""
    ids = [batches(rows=data + 1000 * at)[:, at] for at in range(2)]
    found = [look_up(one, value) for one, value in zip(tables, ids)]
""", "{}"),
    "a lookup by the rows of another": ("""
    ids = batches()[:, 0]
    found = [look_up(tables[0], ids)]
    found.append(look_up(tables[1], tf.cast(found[0][:, 0] * 100, tf.int64)))
""", "{}"),
    "a control dependency": ("""
    ids = batches()[:, 0]
    found = [look_up(tables[0], ids)]
    with tf.control_dependencies([found[0]]):
        found.append(look_up(tables[1], ids + 1))
""", "{}"),
    "random ids": ("""
    ids = [tf.random.uniform([5], 0, 50, tf.int64) for _ in range(2)]
    found = [look_up(one, value) for one, value in zip(tables, ids)]
""", "{}"),
    "a lookup without gradient": ("""
    ids = batches()[:, 0]
    found = [look_up(tables[0], ids), look_up(tables[1], ids, is_grad=False)]
""", "{}"),
}


@pytest.mark.parametrize("case", sorted(APART))
def test_what_a_run_would_have_to_feed_or_would_change_besides_shares_nothing(case):
    model, feed = APART[case]
    found = told("""
with tf.device(setter):
    tables = [table("a"), table("b")]
%s
    trained = tables[:len([one for one in found if tf.gradients(one, tables[found.index(one)].variable)[0] is not None])]
    loss, train = updated(found, trained)
    init = start()
with tf1.Session(target) as sess:
    sess.run(init)
    _, first = ran(sess, found[0], %s)
    print(json.dumps([first, tables[0].size(), tables[1].size()]))
""" % (model, feed))
    ops, sizes = found[0], found[1:]
    assert ops["MxRecPull"] == 2 and ops["MxRecDistinctSplit"] == 1 and ops["MxRecClusterTable"] == 1
    assert sizes[0] > 0 and sizes[1] == 0


@pytest.mark.long
def test_optimizers_that_train_by_turns_share_no_pull():
    found = told("""
with tf.device(setter):
    batch = batches()
    tables = [table(name) for name in "abcd"]
    found = [look_up(one, batch[:, at]) for at, one in enumerate(tables)]
    first, second = updated(found[:2], tables[:2])[1], updated(found[2:], tables[2:])[1]
    init = start()
with tf1.Session(target) as sess:
    sess.run(init)
    print(json.dumps([ran(sess, first)[1], [one.size() for one in tables], ran(sess, second)[1]]))
""")
    assert found[0]["MxRecPull"] == 2 and found[2]["MxRecPull"] == 2
    assert all(found[1][:2]) and not any(found[1][2:])


def test_ids_through_a_vocabulary_of_each_feature_share_their_requests():
    found = told("""
with tf.device(setter):
    words = tf.as_string(batches())
    tables, found = [table("a"), table("b")], []
    for at, one in enumerate(tables):
        with tf.device("/job:worker/task:0"):
            vocabulary = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
                tf.constant([str(value) for value in range(50)]), tf.range(50, dtype=tf.int64) + at), -1)
            ids = vocabulary.lookup(words[:, at])
        found.append(look_up(one, ids))
    loss, train = updated(found, tables)
    init = start() + [tf1.tables_initializer()]
with tf1.Session(target) as sess:
    sess.run(init)
    print(json.dumps([ran(sess, train)[1], tables[0].size(), tables[1].size()]))
""")
    assert found[0]["MxRecPull"] == 2 and found[1] > 0 and found[2] > 0


def test_ids_of_different_types_share_their_requests():
    found = told("""
with tf.device(setter):
    batch = batches()
    tables = [table("a"), table("b")]
    found = [look_up(tables[0], tf.cast(batch[:, 0], tf.int32)), look_up(tables[1], batch[:, 1] + (1 << 40))]
    loss, train = updated(found, tables)
    init = start()
with tf1.Session(target) as sess:
    sess.run(init)
    (values, lost, _), ops = ran(sess, [found, loss, train])
    print(json.dumps([ops, [list(value.shape) for value in values], [one.size() for one in tables]]))
""")
    assert found[0]["MxRecPull"] == 2 and found[1] == [[10, 4], [10, 4]] and all(found[2])


def test_a_graph_that_an_open_session_has_run_stays_as_it_is():
    """TensorFlow fails each later run of a session whose ops have changed."""
    found = told("""
with tf.device(setter):
    batch = batches()
    tables = [table("a"), table("b")]
    found = [look_up(one, batch[:, at]) for at, one in enumerate(tables)]
    init = start()
with tf1.Session(target) as early:
    early.run(init)
    early.run(found)
    with tf.device(setter):
        loss, train = updated(found, tables)
        slots = tf1.variables_initializer([one for one in tf1.global_variables() if "accum" in one.name.lower()])
    before = ran(early, [found[0], train])[1]
    with tf1.Session(target) as other:
        during = ran(other, train)[1]
    again = ran(early, train)[1]
with tf1.Session(target) as late:
    print(json.dumps([before, during, again, ran(late, train)[1]]))
""")
    assert [ops["MxRecPull"] for ops in found] == [4, 4, 4, 2]


@pytest.mark.long
def test_two_sessions_that_begin_at_once_both_train():
    found = told("""
import threading
with tf.device(setter):
    batch = batches()
    tables = [table(name) for name in "ab"]
    found = [look_up(one, batch[:, at]) for at, one in enumerate(tables)]
    loss, train = updated(found, tables)
    init = start()
tf1.get_default_graph().finalize()
sessions = [tf1.Session(target) for _ in range(4)]
barrier, seen = threading.Barrier(4), []

def begin(sess):
    barrier.wait()
    sess.run(init[0])
    sess.run(init)
    # A step beside the initializers of another session would be aborted.
    barrier.wait()
    seen.append(ran(sess, train)[1]["MxRecPull"])

threads = [threading.Thread(target=begin, args=[sess]) for sess in sessions]
[one.start() for one in threads]
[one.join() for one in threads]
print(json.dumps([seen, tf1.get_default_graph().finalized]))
""")
    assert found == [[2, 2, 2, 2], True]


@pytest.mark.long
def test_synchronous_training_pulls_once_from_each_server():
    found = told("""
with tf.device(setter):
    step = tf1.train.get_or_create_global_step()
    batch = batches()
    tables = [table("a"), table("b")]
    found = [look_up(tables[at % 2], batch[:, at]) for at in range(3)]
    loss = tf.add_n([tf.reduce_sum(one) for one in found])
    variables = [one.variable for one in tables]
    sync = tf1.train.SyncReplicasOptimizer(adagrad.create_hash_optimizer(0.1), 1, 1)
    train = sync.apply_gradients(zip(tf.gradients(loss, variables), variables), global_step=step)
    hook = sync.make_session_run_hook(True, num_tokens=0)
with tf1.train.MonitoredTrainingSession(target, hooks=[hook], save_summaries_steps=None, stop_grace_period_secs=1) as sess:
    seen = [sess.run_step_fn(lambda step_context: ran(step_context.session, train)[1]["MxRecPull"]) for _ in range(3)]
    print(json.dumps([seen, int(sess.run(step))]))
""")
    assert found == [[2, 2, 2], 3]


@pytest.mark.long
def test_a_meta_graph_of_shared_requests_can_be_modified_elsewhere(tmp_path):
    path = str(tmp_path / "graph.meta")
    names = told("""
with tf.device(setter):
    batch = batches()
    tables = [table("a"), table("b")]
    found = [look_up(one, batch[:, at]) for at, one in enumerate(tables)]
    names = [one.name for one in found]
    loss, train = updated(found, tables)
    init = start()
tf1.add_to_collection("loss", loss)
tf1.add_to_collection("train", train)
tf1.add_to_collection("init", tf.group(*init))
with tf1.Session(target) as sess:
    sess.run(init)
    sess.run(train)
    tf1.train.export_meta_graph(%r)
    print(json.dumps([names, [one.name for one in found]]))
""" % path)
    # Elsewhere the names that the lookups had are those of the ops in whose place others are.
    assert not set(names[0]) & set(names[1])
    found = told("""
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
results = []
for modify in (False, True):
    tf1.reset_default_graph()
    tf1.train.import_meta_graph(%r)
    if modify:
        modify_graph_and_start_emb_cache()
    loss, train, init = [tf1.get_collection(name)[0] for name in ("loss", "train", "init")]
    with tf1.Session(target) as sess:
        sess.run(init)
        for _ in range(3):
            sess.run(train)
        (lost, old, new, _), ops = ran(sess, [loss, %r, %r, train])
        assert all(np.array_equal(*pair) for pair in zip(old, new))
        results.append([float(lost), ops["MxRecPull"], ops.get("MxRecDistinctSplit", 0)])
print(json.dumps(results))
""" % (path, names[0], names[1]))
    assert found[0][0] == found[1][0]
    assert found[0][1:] == [2, 1] and found[1][1:] == [2, 0]


def test_new_lookups_of_a_graph_that_an_open_session_has_run_share_their_requests():
    found = told("""
with tf.device(setter):
    batch = batches()
    tables = [table("a"), table("b")]
    rows = [look_up(one, batch[:, at], is_train=False) for at, one in enumerate(tables)]
    init = start()
with tf1.Session(target) as sess:
    sess.run(init)
    before = ran(sess, rows[0])[1]
    with tf.device(setter):
        train = updated([look_up(one, batch[:, at]) for at, one in enumerate(tables)], tables)[1]
    print(json.dumps([before, ran(sess, rows)[1], ran(sess, train)[1]]))
""")
    # What was shared before the session ran it stays so.
    assert [ops["MxRecPull"] for ops in found] == [2, 2, 2]


MOVING = """
import logging
from mx_rec.base.log import logger
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.graph.plan import make_plan
told = []
logger.addHandler(type("Kept", (logging.Handler,), {"emit": lambda self, record: told.append(record.getMessage())})())
logger.setLevel(logging.INFO)
with tf.device(setter):
    fed = tf1.placeholder(tf.int64, [None])
    ids = [source[:, at] for source in (batches(), batches(rows=data[::-1])) for at in range(2)] + [fed, fed + 1]
    tables = [table(name) for name in "abcdef"]
    # The third gradient of a table must not pass the second.
    found = [look_up(one, value) for one, value in zip(tables + tables[:1] * 2, ids + [ids[2], ids[1]])]
    loss, train = updated(found, tables)
    init = start()
text = make_plan(tf1.get_default_graph().as_graph_def().SerializeToString()).text()
if MODIFY:
    modify_graph_and_start_emb_cache()
with tf1.Session(target) as sess:
    sess.run(init)
    for _ in range(3):
        sess.run(train, {fed: [4, 5]})
    (lost, _), ops = ran(sess, [loss, train], {fed: [4, 6]})
    rows = [one.tolist() for one in sess.run([look_up(one, tf.range(50), is_train=False) for one in tables])]
    print(json.dumps([ops["MxRecPull"], float(lost), rows, sum("one update takes their gradients" in one for one in told),
                      text.partition("that share requests:\\n")[2].splitlines()]))
"""


@pytest.mark.long
def test_lookups_share_with_those_of_their_own_iterator_and_what_stays_with_what_stays():
    modified = told(MOVING.replace("MODIFY", "True"))
    step = told(MOVING.replace("MODIFY", "False"))
    apart = told(MOVING.replace("MODIFY", "False"), PASSES="")
    moved_apart = told(MOVING.replace("MODIFY", "True"), PASSES="")
    # Two servers: two iterators and the placeholder, and of table a one lookup behind the one of another iterator.
    assert modified[0] == step[0] == 8 and apart[0] == moved_apart[0] == 16
    assert modified[1:3] == step[1:3] == apart[1:3] == moved_apart[1:3]
    assert [one[3] for one in (modified, step, apart, moved_apart)] == [1, 3, 0, 0]
    reason = ": one update takes their gradients, and a run that can have one can have all"
    assert modified[4] == step[4]
    assert [line.partition(" in the ")[2] for line in modified[4]] == [where + reason for where in (
        "pipeline of OneShotIterator", "pipeline of OneShotIterator_1", "step")]
    # The gradient of a lookup of the other iterator is summed between those of these.
    assert not any("a//sparse_lookup_0/" in line and "a//sparse_lookup_7/" in line for line in modified[4])
    assert not apart[4]


@pytest.mark.long
def test_a_failure_while_requests_are_joined_leaves_the_lookups_apart_with_the_same_bits():
    broken = told("""
from mx_rec.graph import fuse
shares = fuse.share_requests

def fails(graph, names):
    shares(graph, names)
    raise RuntimeError("a failure")

fuse.share_requests = fails
""" + STEP)
    apart = told(STEP, PASSES="")
    for name in ("step", "evaluation", "lost", "rows", "found", "by_found"):
        assert broken[name] == apart[name], name
