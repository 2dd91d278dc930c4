"""Checkpoints of N servers restored by M, for N and M from 1 to 8 and for one process without a cluster."""

import json

import pytest

from cluster_cases import run_alone

# Eight servers and a worker in one process: each count of servers uses the first of them.
MATRIX = """
from tensorflow.python.ops import resources
from mx_rec.optimizers import lazy_adam
cluster = tf.train.ClusterSpec({"ps": addresses[:8], "worker": addresses[8:9]})
small = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
servers = [tf.compat.v1.train.Server(cluster, job, index, config=small)
           for job, count in (("ps", 8), ("worker", 1)) for index in range(count)]
KEYS = np.arange(-20, 60, dtype=np.int64) * 977
COUNTS = range(9)

class Model:
    def __init__(self, count):
        setter = tf.compat.v1.train.replica_device_setter(
            ps_tasks=count, ps_device="/job:ps", worker_device="/job:worker/task:0") if count else "/cpu:0"
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.device(setter), self.graph.container("of%d" % count):
            self.ids = tf.compat.v1.placeholder(tf.int64, [None])
            uniform = tf.compat.v1.random_uniform_initializer(-1, 1, seed=3)
            tables = [create_table(tf.int64, dim, name, uniform, device_vocabulary_size=500)
                      for name, dim in (("items", 4), ("users", 8))]
            rows = [sparse_lookup(table, self.ids, modify_graph=True) for table in tables]
            loss = tf.add_n([tf.reduce_sum(tf.square(one)) for one in rows])
            variables = [table.variable for table in tables]
            self.train = lazy_adam.create_hash_optimizer(0.1).apply_gradients(
                zip(tf.gradients(loss, variables), variables))
            self.look = [sparse_lookup(table, tf.constant(KEYS), is_train=False, modify_graph=True) for table in tables]
            self.init = [tf.compat.v1.global_variables_initializer()] + [
                one.create for one in resources.shared_resources()]
            self.saver = tf.compat.v1.train.Saver(max_to_keep=None)
        self.sess = tf.compat.v1.Session(servers[8].target if count else "", graph=self.graph)
        self.sess.run(self.init)

    def go_on(self, first):
        # Slots and steps of optimizers show in what is trained from them.
        for number in range(first, first + 2):
            self.sess.run(self.train, {self.ids: KEYS[number::3]})
        return [one.tobytes() for one in self.sess.run(self.look)]

path = os.environ["CHECKPOINTS"] + "/of-%d"
saved, models = set(), []
for count in COUNTS:
    # An initialization ends the parts that servers have of a table in another number of parts.
    models.append(Model(count))
    saved.add(tuple(models[-1].go_on(0)))
    models[-1].saver.save(models[-1].sess, path % count)
later = set()
restored = set()
for model in models:
    for count in COUNTS:
        model.saver.restore(model.sess, path % count)
        restored.add(tuple(one.tobytes() for one in model.sess.run(model.look)))
        later.add(tuple(model.go_on(2)))
print(json.dumps([len(saved), restored == saved, len(later), later == saved]))
"""


@pytest.mark.long
def test_what_any_number_of_servers_saved_any_other_restores_and_trains_on_to_the_same_bits(tmp_path):
    assert json.loads(run_alone(MATRIX, CHECKPOINTS=str(tmp_path)).splitlines()[-1]) == [1, True, 1, False]


WARM = """
from mx_rec.optimizers import lazy_adam
table = create_table(tf.int64, 4, "items", tf.compat.v1.ones_initializer(), device_vocabulary_size=500)
rows = sparse_lookup(table, tf.constant([977], tf.int64), is_train=False, modify_graph=True)
try:
    tf.compat.v1.train.warm_start(os.environ["CHECKPOINTS"])
except NotImplementedError as error:
    print("refused", error)
"""


@pytest.mark.long
def test_a_warm_start_from_a_checkpoint_of_servers_is_refused_by_name(tmp_path):
    """It said that the table was not in the checkpoint."""
    from cluster_cases import RUN, Job

    with Job(RUN, ps=2, CHECKPOINTS=str(tmp_path), LAST="2") as job:
        job.worker()
    out = run_alone(WARM, CHECKPOINTS=str(tmp_path))
    assert out.startswith("refused the table 'items'") and "in parts" in out
