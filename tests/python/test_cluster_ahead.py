"""Rows that are pulled from parameter servers one step ahead: those of an oracle that holds them for a step."""

import pytest

from cluster_cases import run_alone
from test_cluster_tables import trained

# Servers and a worker in one process; a model whose batches come from an iterator that can start again.
AHEAD = """
from tensorflow.python.ops import resources
from mx_rec.graph.modifier import GraphModifierHook, modify_graph_and_start_emb_cache
from mx_rec.optimizers import adagrad, lazy_adam
def error_of(call):
    try:
        call()
    except (tf.errors.OpError, ValueError, NotImplementedError) as error:
        return "%s: %s" % (type(error).__name__, str(error).replace("\\n", " "))
    return "nothing"
def start_servers(ps):
    cluster = tf.train.ClusterSpec({"ps": addresses[:ps], "worker": addresses[ps:ps + 1]})
    return [tf.compat.v1.train.Server(cluster, *task) for task in [("ps", at) for at in range(ps)] + [("worker", 0)]]

data = np.random.RandomState(1).randint(-1, 40, [96, 4]).astype(np.int64)
BATCH, STEPS = 10, 10

class Model:
    def __init__(self, ps, fed=False, many=True):
        tf.compat.v1.reset_default_graph()
        self.device = tf.compat.v1.train.replica_device_setter(ps, "/job:ps", "/job:worker/task:0") if ps else "/cpu:0"
        with tf.device(self.device):
            self.batch = tf.compat.v1.placeholder(tf.int64, [None, 4])
            if not fed:
                dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
                self.iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
                self.batch = self.iterator.get_next()
            tables = [create_table(tf.int64, dim, name, tf.compat.v1.random_uniform_initializer(-1, 1, seed=dim),
                                   device_vocabulary_size=1000, row_dtype=row_dtype) for name, dim, row_dtype in (
                                       ("items", 5, os.environ.get("ROW_DTYPE", "float32")), ("users", 8, "float32"))]
            ids = [self.batch[:, 0], self.batch[:, 1] // 2, self.batch[:, 2:]]
            used = [tables[0], tables[1], tables[0]]
            self.found = list(sparse_lookup_many(used, ids, modify_graph=True)) if many else [
                sparse_lookup(table, one, modify_graph=True) for table, one in zip(used, ids)]
            flat = [tf.reduce_sum(one, list(range(1, one.shape.ndims))) for one in self.found]
            self.loss = tf.reduce_sum(tf.square(flat[0] + 2.0 * flat[1] * flat[2] - 1.0))
            variables = [table.variable for table in tables]
            optimizer = lazy_adam.create_hash_optimizer(0.05)
            self.train = optimizer.apply_gradients(zip(tf.gradients(self.loss, variables), variables))
            self.every = [sparse_lookup(table, tf.range(-1, 40, dtype=tf.int64), is_train=False, modify_graph=True)
                          for table in tables]

    def session(self, target=""):
        sess = tf.compat.v1.Session(target)
        sess.run([tf.compat.v1.global_variables_initializer()] + [one.create for one in resources.shared_resources()])
        return sess

def oracle(epochs, held_back=True):
    model = Model(0, fed=True)
    with model.session() as sess:
        losses = []
        for epoch in range(epochs):
            feed = lambda at: {model.batch: data[at * BATCH:(at + 1) * BATCH]}
            held = None
            for at in range(STEPS):
                own = held if held is not None else sess.run(model.found, feed(at))
                held = sess.run(model.found, feed(at + 1)) if at + 1 < STEPS and held_back else None
                value, _ = sess.run([model.loss, model.train], dict(
                    list(feed(at).items()) + (list(zip(model.found, own)) if held_back else [])))
                # Evaluation sees each update at once.
                losses.append([float(value), sess.run(model.every[0]).tolist()])
        return [losses, [one.tolist() for one in sess.run(model.every)]]

def on_servers(target, ps, epochs, many=True, **options):
    model = Model(ps, many=many)
    with tf.device(model.device):
        modify_graph_and_start_emb_cache(**options)
    with model.session(target) as sess:
        losses = []
        for _ in range(epochs):
            sess.run(model.iterator.initializer)
            while True:
                try:
                    value, _ = sess.run([model.loss, model.train])
                except tf.errors.OutOfRangeError:
                    break
                losses.append([float(value), sess.run(model.every[0]).tolist()])
        return [losses, [one.tolist() for one in sess.run(model.every)]]
"""

RUN = AHEAD + """
ps = int(os.environ["PS"])
target = start_servers(ps)[-1].target
print(json.dumps([oracle(2), oracle(2, held_back=False), on_servers(target, ps, 2, pull_ahead=True),
                  on_servers(target, ps, 2, many=False, pull_ahead=True), on_servers(target, ps, 2)]))
"""


@pytest.mark.long
@pytest.mark.parametrize("ps, row_dtype", [(1, "float32"), (2, "float32"), (1, "bfloat16"), (2, "float16")])
def test_rows_pulled_ahead_are_one_update_old_in_each_epoch_and_by_default_none_is(ps, row_dtype):
    """Also where the rows of one table of a request are sent in 2 bytes a value, and the other's are not."""
    held, fresh, ahead, apart, default = trained(run_alone(RUN, PS=str(ps), ROW_DTYPE=row_dtype))
    assert len(held[0]) == 20
    assert ahead == held and apart == held
    assert default == fresh and fresh != held


UNEVEN = AHEAD + """
import threading
target = start_servers(2)[-1].target
model = Model(2)
with tf.device(model.device):
    modify_graph_and_start_emb_cache(pull_ahead=True)
    small = tf.identity(model.loss)
with model.session(target) as sess:
    # The second start finds rows of the first one's second batch, which is not its own second one.
    for steps in (1, 4):
        sess.run(model.iterator.initializer)
        [sess.run(model.train) for _ in range(steps)]
    # A run without an update, one that reads the batch alone, and one without anything ahead.
    print("only", float(sess.run(small)), sess.run(model.batch).tolist() == data[50:60].tolist())
    before = [one.tolist() for one in sess.run(model.every)]
    value, _ = sess.run([model.loss, model.train])
    print("after", float(value))
    print("before", before)
    lookup = model.found[0].op
    print("fed", error_of(lambda: sess.run(model.loss, {model.batch: data[:3]})))
    sess.run(model.iterator.initializer)
    def train():
        try:
            while True:
                sess.run(model.train)
        except tf.errors.OutOfRangeError:
            done.append(1)
    done = []
    threads = [threading.Thread(target=train) for _ in range(3)]
    [one.start() for one in threads], [one.join(300) for one in threads]
    print("threads", len(done), all(np.isfinite(one).all() for one in sess.run(model.every)))
sizes = [int(one) for one in np.unique(data[:, [0]]).shape]
fed = Model(0, fed=True)
with fed.session() as sess:
    state = [tf.identity(one) for one in fed.found]
    feed = lambda at: {fed.batch: data[at * BATCH:(at + 1) * BATCH]}
    for steps in (1, 4):
        held = sess.run(fed.found, feed(0))
        for at in range(steps):
            following = sess.run(fed.found, feed(at + 1))
            sess.run(fed.train, dict(list(feed(at).items()) + list(zip(fed.found, held))))
            held = following
    print("only_expected", float(sess.run(fed.loss, dict(list(feed(4).items()) + list(zip(fed.found, held))))))
    sess.run(fed.found, feed(5))
    print("before_expected", [one.tolist() for one in sess.run(fed.every)])
    print("after_expected", float(sess.run(fed.loss, feed(6))))
"""


@pytest.mark.long
def test_runs_without_updates_skipped_batches_restarts_and_threads_never_get_rows_of_another_batch():
    found = dict(line.split(" ", 1) for line in run_alone(UNEVEN).strip().splitlines())
    assert found["only"] == found["only_expected"] + " True"
    assert found["before"] == found["before_expected"]
    # The batch in between was read by nobody: the rows of this one were not held, and are fresh.
    assert found["after"] == found["after_expected"]
    assert "may not be fed" in found["fed"]
    assert found["threads"] == "3 True"


RESTORED = AHEAD + """
target = start_servers(2)[-1].target
path = os.environ["PLACE"] + "/model"
model = Model(2, many=os.environ["MANY"] == "1")
with tf.device(model.device):
    modify_graph_and_start_emb_cache(pull_ahead=True)
    saver = tf.compat.v1.train.Saver()
def rows(sess, model):
    return [one.tolist() for one in sess.run(model.every)]
with model.session(target) as sess:
    sess.run(model.iterator.initializer)
    [sess.run(model.train) for _ in range(3)]
    saver.save(sess, path)
    saved = rows(sess, model)
    sess.run(model.train)
    saver.restore(sess, path)
    # The rows of this step are those before the restore.
    print("held", error_of(lambda: sess.run(model.train)).split(":")[0], rows(sess, model) == saved)
    sess.run(model.train)
    after = rows(sess, model)
alone = Model(0, fed=True, many=os.environ["MANY"] == "1")
saver = tf.compat.v1.train.Saver()
with alone.session() as sess:
    saver.restore(sess, path)
    sess.run(alone.train, {alone.batch: data[50:60]})
    # The step has made rows for the keys of the one behind it.
    sess.run(alone.found, {alone.batch: data[60:70]})
    print("next", rows(sess, alone) == after, after != saved)
"""


@pytest.mark.long
@pytest.mark.parametrize("many", ["0", "1"])
def test_a_step_with_rows_from_before_a_restore_changes_no_row_and_the_next_one_has_its_own(many, tmp_path):
    """The step updated restored rows by gradients of those that had been there before."""
    found = dict(line.split(" ", 1) for line in run_alone(RESTORED, PLACE=str(tmp_path), MANY=many).strip().splitlines())
    assert found == {"held": "AbortedError True", "next": "True True"}


REFUSED = AHEAD + """
from mx_rec.core.asc.feature_spec import FeatureSpec
from mx_rec.core.asc.helper import get_asc_insert_func
def refusal(make, modify=True, sync=False, device=None):
    tf.compat.v1.reset_default_graph()
    device = device or tf.compat.v1.train.replica_device_setter(1, "/job:ps", "/job:worker/task:0")
    with tf.device(device):
        step = tf.compat.v1.train.get_or_create_global_step()
        batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data).batch(10)).get_next()
        table = create_table(tf.int64, 4, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=1000)
        rows = make(table, batch)
        loss = tf.reduce_sum(rows)
        if modify:
            optimizer = lazy_adam.create_hash_optimizer(0.05)
            if sync:
                optimizer = tf.compat.v1.train.SyncReplicasOptimizer(optimizer, 2, 2)
            slices = tf.gradients(loss, [table.variable])
            if slices[0] is not None:
                optimizer.apply_gradients(zip(slices, [table.variable]), global_step=step)
        before = len(tf.compat.v1.get_default_graph().get_operations())
        error = error_of(lambda: modify_graph_and_start_emb_cache(pull_ahead=True))
        return error, len(tf.compat.v1.get_default_graph().get_operations()) - before
def by_feature(table, _):
    spec = FeatureSpec("a", table_name="items")
    dataset = tf.data.Dataset.from_tensor_slices({"a": data}).map(get_asc_insert_func([spec], is_training=True))
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    return sparse_lookup(table, spec, send_count=50, is_train=True, batch=batch)
plain = lambda table, batch: sparse_lookup(table, batch, modify_graph=True)
print(json.dumps({
    "plain": refusal(plain), "one process": refusal(plain, device="/cpu:0"),
    "sync": refusal(plain, sync=True), "no update": refusal(plain, modify=False),
    "constant": refusal(lambda table, batch: sparse_lookup(table, tf.constant([1, 2], tf.int64), modify_graph=True)),
    "unmoved": refusal(by_feature),
    "admission": refusal(lambda table, batch: sparse_lookup(table, batch, modify_graph=True,
                                                            access_and_evict_config=dict(access_threshold=2))),
    "partly": refusal(lambda table, batch: tf.concat(sparse_lookup_many(
        [table, table], [tf.reshape(batch, [-1]), tf.constant([1], tf.int64)], modify_graph=True), 0)),
    "evaluation": refusal(lambda table, batch: sparse_lookup(table, batch, is_train=False, modify_graph=True)),
    "hook": [error_of(lambda: GraphModifierHook(modify_graph=False, pull_ahead=True)), 0],
    "type": [error_of(lambda: modify_graph_and_start_emb_cache(pull_ahead=1)), 0],
}))
"""


def test_lookups_whose_rows_cannot_be_pulled_ahead_are_refused_by_name_and_the_graph_stays():
    found = trained(run_alone(REFUSED))
    for case in ("plain", "one process", "evaluation"):
        assert found[case][0] == "nothing" and found[case][1] > 0, found[case]
    for case, reason in (("sync", "SyncReplicasOptimizer"), ("no update", "without an update"),
                         ("constant", "stays in the step"), ("unmoved", "modify_graph=True"),
                         ("admission", "counted for admission"), ("partly", "stays in the step")):
        error, added = found[case]
        assert error.startswith("NotImplementedError: pull_ahead") and "'items'" in error and reason in error, (case, error)
        assert added == 0, case
    assert "'modify_graph'" in found["hook"][0] and "'pull_ahead' is not bool" in found["type"][0], found
