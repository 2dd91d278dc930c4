"""Features of tables on parameter servers: admission, eviction, pooled lookups, rows on disk, feature specs."""

import pytest

from cluster_cases import Job, run_alone
from test_cluster_tables import trained

# Trains as RUN of cluster_cases does, with a graph of its own: BUILD sets found, optimizer, every; print what is there.
HEAD = """
import time
from mx_rec.optimizers import lazy_adam
from mx_rec.core.pooled import sparse_lookup_pooled
from mx_rec.core.admission import evict, set_threshold
from mx_rec.constants.constants import ASCEND_TIMESTAMP
KEYS = np.arange(-5, 60, dtype=np.int64) * 977
"""


def graph(found, every="[sparse_lookup(items, tf.constant(KEYS), is_train=False, modify_graph=True)]", table="", before=""):
    """A script that trains one table with `found` and prints all that can be seen."""
    return HEAD + """
with tf.device(device):
    step = tf.compat.v1.train.get_or_create_global_step()
    ids = tf.compat.v1.placeholder(tf.int64, [None, 3], name="ids")
    now = tf.compat.v1.placeholder(tf.int64, [], name="now")
    weights = tf.compat.v1.placeholder(tf.float32, [None, 3], name="weights")
    items = create_table(tf.int64, 4, "items", tf.compat.v1.random_uniform_initializer(-1, 1, seed=3),
                         device_vocabulary_size=500%s)
    found = %s
    loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in found])
    optimizer = lazy_adam.create_hash_optimizer(0.05)
    slices = tf.gradients(loss, [items.variable])
    train = optimizer.apply_gradients(zip(slices, [items.variable]), global_step=step)
    every = %s
def batch(number):
    random = np.random.RandomState(number)
    chosen = KEYS[random.randint(0, len(KEYS), [12, 3])]
    chosen[random.rand(12, 3) < 0.2] = -1
    return {ids: chosen, now: 1000 + 10 * number, weights: random.rand(12, 3).astype(np.float32)}
first, last = int(os.environ.get("FIRST", 0)), int(os.environ.get("LAST", 8))
%s
with tf.compat.v1.train.MonitoredTrainingSession(
        target, is_chief=is_chief, config=config, checkpoint_dir=os.environ.get("CHECKPOINTS"), log_step_count_steps=None,
        save_checkpoint_steps=1000, save_summaries_steps=None, stop_grace_period_secs=1) as sess:
    seen = []
    for number in range(first, last):
        values, _ = sess.run([found, train], batch(number))
        seen.append([value.tolist() for value in values])
        EACH
    AFTER
    stats = table_stats("items")
    print(json.dumps({"seen": seen, "size": items.size(), "rows": [value.tolist() for value in sess.run(every, batch(99))],
                      "refused": stats.refused, "evicted": stats.evicted, "stale": stats.stale, "new": stats.new,
                      "hits": stats.hits, "extra": extra if "extra" in globals() else None}))
""" % (table, found, every, before)


def done(code, each="pass", after="pass"):
    return code.replace("EACH", each).replace("AFTER", after)


def both(code, ps=2, **variables):
    """What one process prints, and what a cluster does."""
    alone = trained(run_alone(code, **variables))
    with Job(code, ps=ps, **variables) as job:
        return alone, trained(job.worker())


POOLED = """[
        sparse_lookup_pooled(items, ids, combiner="sum", modify_graph=True),
        sparse_lookup_pooled(items, ids + 1, combiner="mean", weights=weights, modify_graph=True),
        sparse_lookup_pooled(items, tf.RaggedTensor.from_row_lengths(tf.reshape(ids, [-1]), [0, 30, 6]), combiner="sqrtn",
                             modify_graph=True)]"""


@pytest.mark.long
def test_pooled_lookups_pull_distinct_rows_and_pool_them_to_the_bits_of_one_process():
    every = """[sparse_lookup(items, tf.constant(KEYS), is_train=False, modify_graph=True),
             sparse_lookup_pooled(items, ids, combiner="mean", is_train=False, modify_graph=True)]"""
    alone, found = both(done(graph(POOLED, every)))
    assert found == alone and alone["size"] > 50


@pytest.mark.slow
def test_rows_with_a_greatest_norm_are_pooled_to_rounding():
    """TensorFlow's own ops clip, whose last bit depends on the place of a row in its tensor."""
    alone, found = both(done(graph(POOLED.replace('"sqrtn",', '"sqrtn", max_norm=0.7,'))))
    assert found["size"] == alone["size"] > 50
    for ours, theirs in zip(found["rows"][0], alone["rows"][0]):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


ADMITTED = """[sparse_lookup(items, ids[:, :2], modify_graph=True, access_and_evict_config=dict(
        access_threshold=3, eviction_threshold=25, faae_coefficient=1)),
        sparse_lookup(items, ids[:, 2], modify_graph=True, access_and_evict_config=dict(
        access_threshold=3, eviction_threshold=25, faae_coefficient=2))]"""
TIMED = "tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, now)"


def test_admission_and_eviction_on_servers_are_those_of_one_process():
    # Evictions, and a threshold that later keys must reach, between the steps.
    code = done(graph(ADMITTED, before=TIMED), each="""
        if number in (3, 6):
            extra = list(evict()["items"])
        if number == 4:
            set_threshold(5)""")
    alone, found = both(code)
    assert found == alone
    assert alone["refused"] > 0 and alone["evicted"] > 0 and alone["size"] < 60 and alone["stale"] == 0


@pytest.mark.long
@pytest.mark.parametrize("servers", [
    (0, 2), pytest.param((2, 3), marks=pytest.mark.slow), (2, 0)], ids=str)
def test_the_history_of_admission_moves_with_the_checkpoint_between_servers_and_one_process(servers, tmp_path):
    code = done(graph(ADMITTED, before=TIMED), after="extra = list(evict()['items']) if last > 8 else None")
    alone = trained(run_alone(code, LAST="9"))
    for at, count in enumerate(servers):
        variables = dict(CHECKPOINTS=str(tmp_path), FIRST=str(4 * at), LAST=str(4 + 5 * at))
        if count:
            with Job(code, ps=count, **variables) as job:
                found = trained(job.worker())
        else:
            found = trained(run_alone(code, **variables))
    assert found["seen"] == alone["seen"][4:]
    assert [found[name] for name in ("size", "rows", "extra")] == [alone[name] for name in ("size", "rows", "extra")]


@pytest.mark.long
def test_a_feature_spec_with_an_access_threshold_trains_as_in_one_process():
    code = """
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.optimizers import adagrad
random = np.random.RandomState(5)
data = random.randint(0, 40, [30, 7]).astype(np.int64)
specs = [FeatureSpec("a", table_name="items", access_threshold=2), FeatureSpec("b", table_name="items", access_threshold=2)]
with tf.device(device):
    dataset = tf.data.Dataset.from_tensor_slices({"a": data, "b": data[:, :3] + 20}).map(get_asc_insert_func(specs, is_training=True))
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    step = tf.compat.v1.train.get_or_create_global_step()
    items = create_table(tf.int64, 4, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
    rows = [sparse_lookup(items, spec, send_count=50, is_train=True, batch=batch) for spec in specs]
    loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in rows])
    train = adagrad.create_hash_optimizer(0.1).minimize(loss, var_list=[items.variable], global_step=step)
    every = sparse_lookup(items, tf.constant(np.arange(70)), is_train=False, modify_graph=True)
    start_asc_pipeline()
with tf.compat.v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, log_step_count_steps=None) as sess:
    seen = [sess.run([loss, train])[0].tolist() for _ in range(20)]
    print(json.dumps([seen, items.size(), sess.run(every).tolist()]))
"""
    alone, found = both(code)
    assert found == alone and 0 < alone[1] < 70


@pytest.mark.long
def test_rows_of_servers_on_disk_train_as_in_memory_and_a_missing_directory_is_named(tmp_path):
    wide = HEAD + """
with tf.device(device):
    step = tf.compat.v1.train.get_or_create_global_step()
    keys = tf.compat.v1.placeholder(tf.int64, [None])
    tier = dict(device_vocabulary_size=100, host_vocabulary_size=300, ssd_vocabulary_size=20000,
                ssd_data_path=[os.environ["DISK"]]) if os.environ.get("DISK") else dict(device_vocabulary_size=20400)
    items = create_table(tf.int64, 8, "items", tf.compat.v1.random_uniform_initializer(-1, 1, seed=3), **tier)
    rows = sparse_lookup(items, keys, modify_graph=True)
    loss = tf.reduce_sum(tf.square(rows))
    train = lazy_adam.create_hash_optimizer(0.05).minimize(loss, var_list=[items.variable], global_step=step)
    every = sparse_lookup(items, keys, is_train=False, modify_graph=True)
with tf.compat.v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, checkpoint_dir=os.environ.get("CHECKPOINTS"),
                                                 save_summaries_steps=None, log_step_count_steps=None) as sess:
    for number in range(int(os.environ.get("LAST", 12))):
        sess.run(train, {keys: (np.arange(250) * (number %% 4 + 1) + 1000 * (number %% 4))})
    stats = table_stats("items")
    print(json.dumps([items.size(), sess.run(every, {keys: np.arange(4100)}).sum(1).tolist(), stats.rows_disk > 0]))
""".replace("%%", "%")
    disk = tmp_path / "disk"
    disk.mkdir()
    alone = trained(run_alone(wide))
    with Job(wide, ps=2, DISK=str(disk), CHECKPOINTS=str(tmp_path / "model")) as job:
        found = trained(job.worker())
    assert found == alone[:2] + [True] and not alone[2]
    assert list(disk.iterdir()) == []
    with Job(wide, ps=1, DISK=str(disk), CHECKPOINTS=str(tmp_path / "model"), LAST="0") as job:
        assert trained(job.worker())[:2] == alone[:2]
    with Job(wide, ps=1, DISK=str(tmp_path / "nowhere")) as job:
        with pytest.raises(AssertionError, match="nowhere"):
            job.worker()


MOVED = HEAD + """
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.core.grouped import sparse_lookup_many
from tensorflow.python.client import timeline
random = np.random.RandomState(5)
data = random.randint(-1, 300, [400, 6]).astype(np.int64)
MORE = os.environ.get("MORE")
with tf.device(device):
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(20)
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    step = tf.compat.v1.train.get_or_create_global_step()
    make = lambda name, dim: create_table(tf.int64, dim, name, tf.compat.v1.random_uniform_initializer(-1, 1, seed=dim),
                                          device_vocabulary_size=1000)
    tables = [make("items", 4), make("users", 8), make("shops", 4)]
    counted = dict(access_and_evict_config=dict(access_threshold=2)) if MORE == "admission" else {}
    if MORE == "many":
        found = sparse_lookup_many(tables, [batch[:, 0], batch[:, 1] // 2, batch[:, 2:]], modify_graph=True)
    elif MORE == "partly":
        # One table's ids are no batch's: the group stays in the step.
        found = sparse_lookup_many(tables[:2], [batch[:, 0], tf.constant([5, 6, 7], tf.int64)], modify_graph=True)
        found.append(sparse_lookup(tables[2], batch[:, 2:], modify_graph=True))
    else:
        found = [sparse_lookup(tables[0], batch[:, 0], modify_graph=True, **counted),
                 sparse_lookup(tables[1], batch[:, 1] // 2, modify_graph=True, **counted)]
        if MORE == "pooled":
            found.append(sparse_lookup_pooled(tables[2], batch[:, 2:], combiner="mean", modify_graph=True))
        else:
            found.append(sparse_lookup(tables[2], batch[:, 2:], modify_graph=True, **counted))
    found.append(sparse_lookup(tables[0], batch[:, 3], modify_graph=True, **counted))
    unused = sparse_lookup(tables[1], batch[:, 4], modify_graph=True, is_grad=False, **counted)
    evaluated = sparse_lookup(tables[0], batch[:, 5], is_train=False, modify_graph=True)
    loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in found]) + tf.reduce_sum(unused) + tf.reduce_sum(evaluated)
    train = lazy_adam.create_hash_optimizer(0.05).minimize(loss, var_list=[one.variable for one in tables], global_step=step)
    every = [sparse_lookup(table, tf.range(-1, 300, dtype=tf.int64), is_train=False, modify_graph=True) for table in tables]
hooks = [GraphModifierHook(modify_graph=os.environ.get("MODIFY") == "1")]
with tf.compat.v1.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config, hooks=hooks, log_step_count_steps=None) as sess:
    seen = [sess.run([found, train, evaluated])[0] for _ in range(8)]
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    seen.append(sess.run([found, train, evaluated], options=options, run_metadata=metadata)[0])
    ran = [node.timeline_label.split(" = ")[1].split("(")[0] for one in metadata.step_stats.dev_stats
           for node in one.node_stats if " = MxRec" in node.timeline_label]
    print(json.dumps([[[value.tolist() for value in one] for one in seen], [table.size() for table in tables],
                      [value.tolist() for value in sess.run(every)],
                      {name: ran.count(name) for name in sorted(set(ran))}]))
"""


@pytest.mark.long
@pytest.mark.parametrize("more", [
    pytest.param("", marks=pytest.mark.slow), "many", pytest.param("partly", marks=pytest.mark.slow),
    pytest.param("pooled", marks=pytest.mark.slow), "admission"])
def test_a_modified_graph_splits_ids_ahead_and_pulls_once_from_each_server(more):
    alone = trained(run_alone(MOVED, MODIFY="0", MORE=more))
    with Job(MOVED, ps=2, MODIFY="1", MORE=more) as job:
        found = trained(job.worker())
        plain = trained(job.worker(MODIFY="0")) if not more else None
    assert found[:3] == alone[:3]
    ran = found[3]
    assert ran["MxRecPush"] == 2, ran
    if more in ("", "many", "pooled"):
        # From each of two servers a pull of what is trained, and one for the evaluation; what nobody fetches is not run.
        assert ran["MxRecPull"] == 4 and ran["MxRecStitch"] == 2 and "MxRecDistinctSplit" not in ran, ran
    if more == "admission":
        assert "MxRecDistinctSplit" not in ran and ran["MxRecPartObserve"] == 10, ran
    if plain is not None:
        assert plain[:3] == alone[:3] and plain[3]["MxRecPull"] == 10 and plain[3]["MxRecDistinctSplit"] == 5, plain[3]
