"""Random models on parameter servers and in one process: the worker of test_cluster_random_models.py."""

import os
import tempfile

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


def train(model, form, target, cluster):
    """Trains a model, and saves and restores it between steps.

    Args:
        model: The Model.
        form: One of random_models.FORMS.
        target: Of the session; "" is without servers.
        cluster: The ClusterSpec, or None.

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
    if cluster is not None:
        filters = ["/job:ps", "/job:worker/task:0"]
        device = tf1.train.replica_device_setter(worker_device="/job:worker/task:0", cluster=cluster)
    with tf.device(device):
        tf1.train.get_or_create_global_step()
        start_at = tf1.placeholder_with_default(tf.constant(0, tf.int64), [])
        iterator = modify_cases.initializable(random_models._dataset(model).skip(start_at))
        tables = [support.make_table("t%d" % at, dim, 1000, tf1.random_normal_initializer(stddev=0.3, seed=at))
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
        sess.run(start)
        return sess

    seen, sess = [], opened()
    sess.run(iterator.initializer)
    with tempfile.TemporaryDirectory() as directory:
        for step, between in enumerate(model.between):
            seen.append(("step %d" % step, sess.run([found, updates])[0]))
            seen.append(("rows after step %d" % step, sess.run(rows)))
            if between:
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
