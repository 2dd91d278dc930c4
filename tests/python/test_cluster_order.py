"""Sums of three and more gradients of a table on parameter servers: their order decides bits."""

import json

import pytest

from cluster_cases import run_alone

# Trains one model in one process and on two servers, as it is and modified, and prints the rows of each.
ORDER = """
from tensorflow.python.ops import resources
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.optimizers import adagrad
cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:3]})
servers = [tf.compat.v1.train.Server(cluster, *task) for task in (("ps", 0), ("ps", 1), ("worker", 0))]
data = np.random.RandomState(1).randint(0, 10, [200, 4]).astype(np.int64)

def rows_of(count, modify):
    tf.compat.v1.reset_default_graph()
    device = tf.compat.v1.train.replica_device_setter(2, "/job:ps", "/job:worker/task:0") if count else "/cpu:0"
    with tf.device(device):
        batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data).batch(10)).get_next()
        items, users = [create_table(tf.int64, 4, name, tf.compat.v1.random_uniform_initializer(-1, 1, seed=3),
                                     device_vocabulary_size=100) for name in ("items", "users")]
        column = lambda at: sparse_lookup(items, batch[:, at], modify_graph=True)
        constant = lambda: sparse_lookup(items, tf.constant(np.arange(10)), modify_graph=True)
        many = lambda: sparse_lookup_many([items, users], [batch[:, 0], batch[:, 3]], modify_graph=True)[0]
        found = FOUND
        loss = tf.add_n([tf.reduce_sum(tf.square(one)) * (0.1 + 0.37 * at) for at, one in enumerate(found)])
        train = adagrad.create_hash_optimizer(0.1).apply_gradients(
            zip(tf.gradients(loss, [items.variable]), [items.variable]))
        every = sparse_lookup(items, tf.constant(np.arange(10)), is_train=False, modify_graph=True)
        if modify:
            modify_graph_and_start_emb_cache()
        init = [tf.compat.v1.global_variables_initializer()] + [one.create for one in resources.shared_resources()]
    with tf.compat.v1.Session(servers[2].target if count else "") as sess:
        sess.run(init)
        for _ in range(6):
            sess.run(train)
        return sess.run(every).tolist()

print(json.dumps([rows_of(count, modify) for count, modify in ((0, False), (2, False), (2, True))]))
"""


@pytest.mark.parametrize("found", [
    # Lookups that graph modification joins, and one among and before them that stays in the step.
    "[column(0), constant(), column(1), column(2)]",
    "[constant(), column(0), column(1), column(2)]",
    # A lookup of a group of which another is not trained has a request of its own.
    "[column(1), many(), column(2)]",
    "[many(), column(1), column(2)]",
])
def test_gradients_of_several_lookups_are_summed_in_the_order_of_one_process(found):
    alone, *others = json.loads(run_alone(ORDER.replace("FOUND", found)).splitlines()[-1])
    assert others == [alone, alone]
