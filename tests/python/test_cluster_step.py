"""What a step of a worker costs beside the rows: hops between processes, and pages of memory."""

import pytest
import tensorflow as tf

import support
from cluster_cases import cluster_of
from mx_rec.core.embedding import create_table
from mx_rec.core.grouped import sparse_lookup_many
from mx_rec.optimizers.lazy_adam import create_hash_optimizer


def model_of(servers, rate=0.1):
    """The update of two tables under a device function of so many parameter servers, and its optimizer's powers."""
    cluster = tf.train.ClusterSpec(cluster_of(ps=servers, worker=1))
    with tf.device(tf.compat.v1.train.replica_device_setter(worker_device="/job:worker/task:0", cluster=cluster)):
        tables = [create_table(tf.int64, 4, name, tf.compat.v1.ones_initializer(), device_vocabulary_size=100)
                  for name in ("items", "users")]
        found = sparse_lookup_many(tables, [tf.constant([1, 2], tf.int64)] * 2, modify_graph=True)
        variables = [table.variable for table in tables]
        slopes = tf.gradients(tf.add_n([tf.reduce_sum(one) for one in found]), variables)
        optimizer = create_hash_optimizer(rate if isinstance(rate, float) else rate())
        optimizer.apply_gradients(zip(slopes, variables))
    powers = [one for one in tf.compat.v1.global_variables() if one.op.name.startswith("beta")]
    return powers, {kind: [op for op in tf.compat.v1.get_default_graph().get_operations() if op.type == kind]
                    for kind in ("MxRecPush", "Assign")}


def task_of(device):
    return device.split("/device:")[0].replace("/replica:0", "")


@pytest.mark.parametrize("rate", [0.1, lambda: tf.compat.v1.placeholder_with_default(0.1, [])], ids=["fixed", "tensor"])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_numbers_of_an_optimizer_travel_once_to_each_server_and_powers_wait_for_no_other_one(dynamic, servers, rate):
    """Each hop costs a step about 0.1 ms: there were two for the powers and two more for each server."""
    with tf.Graph().as_default():
        powers, ops = model_of(servers, rate)
        pushes = ops["MxRecPush"]
        assert len(powers) == 2 and len(pushes) == servers
        home = {task_of(one.device) for one in powers}
        assert len(home) == 1
        numbers = {push.inputs[-1] for push in pushes}
        assert len(numbers) == 1 and task_of(numbers.pop().device) in home
        # The others are those of the initializers.
        advances = [op for op in ops["Assign"] if op.inputs[1].op.type == "Mul"]
        assert len(advances) == 2
        for advance in advances:
            before, todo = set(), [advance]
            while todo:
                op = todo.pop()
                for one in list(op.control_inputs) + [value.op for value in op.inputs]:
                    if one not in before:
                        before.add(one)
                        if one.type != "MxRecPush" and task_of(one.device) in home:
                            todo.append(one)
            own = [push for push in pushes if task_of(push.device) in home]
            assert len(own) == 1 and own[0] in before
            assert not before & (set(pushes) - set(own))
            # What the other servers get has been read before the powers change.
            assert servers == 1 or own[0].inputs[-1].op in before


WORKER = """
import resource
import tensorflow as tf
import mx_rec
from mx_rec.ops import library
members, ids, dim = 4, 4096, 32
if %d:
    config = tf.constant(list(%s.encode()), tf.uint8)
    variable = library().mx_rec_cluster_table(config, tf.zeros([0, dim]), parts=1)
else:
    variable = tf.zeros([0, dim])
keys, places, counts, _, _, _ = library().mx_rec_distinct_split([tf.random.uniform([ids], 0, 99, tf.int64)] * members, parts=1)
rows = tf.zeros([tf.reduce_sum(counts) * dim])
found = library().mx_rec_stitch([variable] * members, list(keys), list(counts), list(places), [], rows)
loss = tf.add_n([one[0, 0] for one in found])
with tf.compat.v1.Session() as sess:
    for _ in range(20):
        sess.run(loss)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        sess.run(loss)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


@pytest.mark.long
def test_a_worker_whose_tables_are_elsewhere_keeps_the_memory_of_its_outputs():
    """Each step mapped and cleared the pages of all embeddings anew: a tenth of it went there."""
    config = repr(support.table_config("items", 32))
    kept, fresh = [float(support.run_python(WORKER % (there, config))) for there in (1, 0)]
    # The embeddings alone are 512 pages.
    assert fresh > 400 and kept < 100, (kept, fresh)
