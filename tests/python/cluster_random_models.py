"""Random models on parameter servers and in one process: the worker of test_cluster_random_models.py."""

import os
import tempfile
import time

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resources

import modify_cases
import random_models
import support
from random_models import AHEAD, APART, PLAIN, Model

tf1 = tf.compat.v1
# Not to the bit: the sum of three gradients or more has another order.
TOLERANCE = 1e-5


def same_bits(model):
    """Whether docs/cluster.md promises the bits of one process: not with three lookups of a table, some of them pooled."""
    for table in model.used():
        features = [feature for feature in model.features if feature.table == table]
        if len(features) > 2 and any(feature.is_pooled for feature in features):
            return False
    return True


class Turns:
    """Workers each of which trains the batches whose number leaves its own, when all before are trained.

    Args:
        index, count: The number of this worker, and of all.
        directory: Where they wait for each other.
    """

    def __init__(self, index=0, count=1, directory=None):
        self.index, self.count, self._directory = index, count, directory

    def has(self, step):
        return step % self.count == self.index

    def wait(self, name, seconds=120):
        """Waits until all have come here."""
        places = [os.path.join(str(self._directory), "%s-%d" % (name, one)) for one in range(self.count)]
        if self.count > 1:
            open(places[self.index], "w").close()
        end = time.time() + seconds
        while self.count > 1 and not all(map(os.path.exists, places)):
            assert time.time() < end, name
            time.sleep(0.005)


def train(model, form, target, cluster, turns=None, row_dtype="float32"):
    """Trains a model, and saves and restores it between steps, or trains it by turns.

    Args:
        model: The Model.
        form: One of random_models.FORMS.
        target: Of the session; "" is without servers.
        cluster: The ClusterSpec, or None.
        turns: The Turns, or None for one worker.
        row_dtype: Of all tables.

    Returns:
        A list of (what, arrays): what steps looked up, and all rows after each step and each restore.
    """
    from mx_rec.core.embedding import sparse_lookup
    from mx_rec.util.initialize import init, terminate_config_initializer

    tf1.reset_default_graph()
    terminate_config_initializer()
    init()
    run = modify_cases.Run(form)
    device, filters = None, []
    own = turns or Turns()
    if cluster is not None:
        filters = ["/job:ps", "/job:worker/task:%d" % own.index]
        device = tf1.train.replica_device_setter(worker_device=filters[1], cluster=cluster)
    with tf.device(device):
        tf1.train.get_or_create_global_step()
        start_at = tf1.placeholder_with_default(tf.constant(0, tf.int64), [])
        iterator = modify_cases.initializable(random_models._dataset(model).skip(start_at).shard(own.count, own.index))
        tables = [support.make_table("t%d" % at, dim, 1000, tf1.random_normal_initializer(stddev=0.3, seed=at),
                                     row_dtype=row_dtype)
                  for at, dim in enumerate(model.dims)]
        found = random_models._look_up(model, form, tables, iterator.get_next())
        loss = random_models._loss(model, found)
        updates = []
        for number, name in enumerate(model.optimizers):
            variables = [tables[at].variable for at in model.used() if model.optimizer_of[at] == number]
            if variables:
                updates.append(random_models.Rule(name).ours().minimize(loss, var_list=variables))
        rows = [sparse_lookup(tables[at], tf.constant(model.keys), is_train=False, modify_graph=True)
                for at in model.used()]
        saver = tf1.train.Saver()
        start = tf.group(tf1.global_variables_initializer(), *[one.create for one in resources.shared_resources()])
        run.modify()

    def opened():
        sess = tf1.Session(target, config=tf1.ConfigProto(device_filters=filters))
        if own.index == 0:
            sess.run(start)
        return sess

    seen, sess = [], opened()
    own.wait(form)
    sess.run(iterator.initializer)
    with tempfile.TemporaryDirectory() as directory:
        for step, between in enumerate(model.between):
            if own.has(step):
                seen.append(("step %d" % step, sess.run([found, updates])[0]))
                seen.append(("rows after step %d" % step, sess.run(rows)))
            own.wait("%s-%d" % (form, step))
            if between and turns is None:
                path = saver.save(sess, os.path.join(directory, "model"), global_step=step)
                sess.close()
                sess = opened()
                saver.restore(sess, path)
                sess.run(iterator.initializer, {start_at: step + 1})
                seen.append(("rows restored after step %d" % step, sess.run(rows)))
    sess.close()
    return seen


def compare(target, cluster, seeds):
    """Prints for each seed and form how many of its results have the bits of one process; raises at a difference."""
    for seed in seeds:
        alone = {form: train(Model(seed), form, "", None) for form in (PLAIN, APART)}
        for form in (PLAIN, AHEAD, APART):
            mine, theirs = train(Model(seed), form, target, cluster), alone[APART if form == APART else PLAIN]
            assert [what for what, _ in mine] == [what for what, _ in theirs]
            same = 0
            for (what, one), (_, other) in zip(mine, theirs):
                where = "seed %d, %s, %s" % (seed, form, what)
                equal = all(np.array_equal(left, right) for left, right in zip(one, other))
                assert equal or not same_bits(Model(seed)), where + ": the bits differ"
                for left, right in zip(one, other):
                    np.testing.assert_allclose(left, right, TOLERANCE, TOLERANCE, err_msg=where)
                same += equal
            print(seed, form, same, len(mine), int(same_bits(Model(seed))), flush=True)


def compare_by_turns(target, cluster, seed, row_dtype, turns):
    """Prints for each form how many results of this worker's steps have the bits of one process that trains all steps."""
    model = Model(seed)
    assert same_bits(model)
    for form in (PLAIN, AHEAD):
        theirs = dict(train(model, form, "", None, Turns(), row_dtype))
        mine = train(model, form, target, cluster, turns, row_dtype)
        same = [all(map(np.array_equal, found, theirs[what])) for what, found in mine]
        print(form, sum(same), len(same), flush=True)
        turns.wait(form + "-end")
