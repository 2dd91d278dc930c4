"""tf.train.Saver saves and restores tables with their slots, in the documented layout, and a run resumes exactly."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
from optimizer_cases import ONE_OF_EACH, ids_of
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.variable import get_dense_and_sparse_variable

KEYS = np.array([5, -3, 0, support.INT64_MIN, support.INT64_MAX, 10 ** 12], np.int64)


class Trained:
    """A table with one optimizer, a dense variable, and the saver of both."""

    def __init__(self, case, dim=3, name="table", initializer=None, **arguments):
        self.case, self.dim = case, dim
        self.table = support.make_table(name, dim, 1000,
                                        initializer or tf.compat.v1.random_normal_initializer(seed=4), **arguments)
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.embedding = sparse_lookup(self.table, self.ids, modify_graph=True)
        self.dense = tf.compat.v1.get_variable(name + "_dense", initializer=np.float32([1.0, 2.0]))
        loss = tf.reduce_sum(tf.square(self.embedding)) * tf.reduce_sum(self.dense)
        sparse, dense = tf.gradients(loss, [self.table.variable, self.dense])
        # Otherwise the update of one may come before the other's gradient has read it.
        with tf.control_dependencies([sparse.values, dense]):
            self.update = [case.ours(case.lr).apply_gradients([(sparse, self.table.variable)]),
                           tf.compat.v1.train.AdamOptimizer(0.01).apply_gradients([(dense, self.dense)])]
        self.raw = support.Raw.of(self.table)
        for slot, _ in case.slots:
            self.raw.slot(slot)

    def train(self, sess, steps=3, seed=0):
        random = np.random.RandomState(seed)
        for _ in range(steps):
            sess.run(self.update, {self.ids: random.choice(KEYS, 8)})

    def everything(self, sess):
        return [self.raw.rows(sess)] + [self.raw.slot_rows(sess, slot) for slot, _ in self.case.slots]


def adam():
    return [case for case in ONE_OF_EACH if case.op == "lazy_adam"][0]


def begin(session, steps=3, case=None, **saver):
    """(a table with Adam or another optimizer, a Saver, a session in which it has been trained for some steps)"""
    made, saver, sess = Trained(case or adam()), tf.compat.v1.train.Saver(**saver), support.started(session())
    made.train(sess, steps)
    return made, saver, sess


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=ids_of(ONE_OF_EACH))
def test_restoring_in_a_new_session_gives_the_rows_and_slots_bit_for_bit(graph, session, dynamic, place, case):
    trained, saver, first = begin(session, case=case)
    path = saver.save(first, place + "/model.ckpt", global_step=3)
    assert path == place + "/model.ckpt-3"
    before, dense = trained.everything(first), first.run(trained.dense)
    second = support.restored(session(), saver, path)
    support.assert_same_each(trained.everything(second), before)
    support.assert_same_bits(second.run(trained.dense), dense)
    trained.train(first, 4, seed=1)
    trained.train(second, 4, seed=1)
    support.assert_same_each(trained.everything(second), trained.everything(first))


def test_restoring_replaces_what_the_table_held(graph, session, dynamic, place):
    trained, saver, sess = begin(session)
    path = saver.save(sess, place + "/model.ckpt")
    before = trained.everything(sess)
    trained.train(sess, 5, seed=8)
    trained.raw.assign(sess, [777, 778], np.ones([2, 3]))
    saver.restore(sess, path)
    support.assert_same_each(trained.everything(sess), before)


def read_slice(path, dtype, width=None):
    """One entry of a table's place, by numpy alone."""
    data = np.fromfile(path + "/slice.data", dtype)
    attribute = np.fromfile(path + "/slice.attribute", "<i8")
    if width is None:
        assert attribute.tolist() == [data.size, 8]
        return data
    assert attribute.tolist() == [data.size // width, width, 4]
    return data.reshape(-1, width)


@pytest.mark.parametrize("step", [None, 0, 12])
def test_the_files_on_disk_have_the_documented_layout(graph, session, dynamic, place, step):
    trained = Trained(adam())
    sess = support.started(session())
    trained.train(sess)
    tf.compat.v1.train.Saver().save(sess, place + "/model.ckpt", global_step=step)
    base = "model.ckpt" if step is None else "model.ckpt-%d" % step
    for suffix in (".index", ".meta", ".data-00000-of-00001"):
        assert os.path.isfile("%s/%s%s" % (place, base, suffix))
    root = "%s/sparse-%s/table" % (place, base)
    keys = read_slice(root + "/key", "<i8")
    assert sorted(keys.tolist()) == sorted(trained.raw.rows(sess))
    for entry, values in zip(["embedding", "LazyAdam_momentum", "LazyAdam_velocity"], trained.everything(sess)):
        support.assert_same_bits(read_slice("%s/%s" % (root, entry), "<f4", 3), support.as_array(values, keys), entry)


def test_the_dense_checkpoint_holds_no_table(graph, session, dynamic, place):
    trained = Trained(adam())
    sess = support.started(session())
    trained.train(sess)
    path = tf.compat.v1.train.Saver().save(sess, place + "/model.ckpt")
    names = [name for name, _ in tf.compat.v1.train.list_variables(path)]
    assert "table_dense" in names
    assert not [name for name in names if name == "table" or name.startswith("table/") or "embedding" in name]


def write_slice(path, array, width=None):
    """One entry as the original writes it."""
    os.makedirs(path)
    array.tofile(path + "/slice.data")
    attribute = [len(array), 8] if width is None else [len(array), width, 4]
    np.array(attribute, "<i8").tofile(path + "/slice.attribute")


@pytest.mark.parametrize("with_slots", [True, False])
def test_a_checkpoint_written_by_hand_in_the_layout_of_the_original_loads(graph, session, dynamic, place,
                                                                           with_slots):
    trained, saver, sess = begin(session, 0)
    path = saver.save(sess, place + "/model.ckpt", global_step=7)
    root = place + "/sparse-model.ckpt-7"
    shutil.rmtree(root)
    random = np.random.RandomState(0)
    values = [random.randn(len(KEYS), 3).astype("<f4") for _ in range(3)]
    write_slice(root + "/table/key", KEYS.astype("<i8"))
    for entry, array in list(zip(["embedding", "LazyAdam_momentum", "LazyAdam_velocity"], values))[
            :3 if with_slots else 1]:
        write_slice("%s/table/%s" % (root, entry), array, 3)
    for parent, directories, files in os.walk(root):
        os.chmod(parent, 0o750)
        for name in files:
            os.chmod(os.path.join(parent, name), 0o640)
    fresh = support.restored(session(), saver, path)
    assert trained.raw.export(fresh)[0].tolist() == KEYS.tolist()
    support.assert_same_bits(trained.raw.export(fresh)[1], values[0])
    # A step with the gradient zero tells what the slots hold.
    trained.train(fresh, 1)
    if with_slots:
        rows = trained.raw.slot_rows(fresh, "LazyAdam_momentum")
        batch = set(np.random.RandomState(0).choice(KEYS, 8).tolist())
        for key, momentum in zip(KEYS.tolist(), values[1]):
            if key not in batch:
                support.assert_same_bits(rows[key], momentum)


def test_negative_and_extreme_keys_survive(graph, session, dynamic, place):
    trained = Trained(ONE_OF_EACH[0])
    saver = tf.compat.v1.train.Saver()
    sess = support.started(session())
    trained.raw.assign(sess, KEYS, np.arange(18).reshape(6, 3))
    path = saver.save(sess, place + "/model.ckpt")
    fresh = support.restored(session(), saver, path)
    support.assert_same_tables(trained.raw.rows(fresh), trained.raw.rows(sess))
    assert sorted(trained.raw.rows(fresh)) == sorted(KEYS.tolist())


def test_an_empty_table_is_saved_and_restored(graph, session, dynamic, place):
    trained, saver, sess = begin(session, 0)
    path = saver.save(sess, place + "/model.ckpt")
    fresh = session()
    trained.raw.assign(fresh, [1], [[1, 2, 3]])
    saver.restore(fresh, path)
    assert trained.raw.size(fresh) == 0


def test_a_missing_sparse_directory_is_a_file_exists_error_that_names_it(graph, session, dynamic, place):
    trained, saver, sess = begin(session)
    path = saver.save(sess, place + "/model.ckpt", global_step=1)
    shutil.rmtree(place + "/sparse-model.ckpt-1")
    trained.train(sess)
    before, dense = trained.everything(sess), sess.run(tf.compat.v1.global_variables())
    with pytest.raises(FileExistsError) as error:
        saver.restore(sess, path)
    assert place + "/sparse-model.ckpt-1" in str(error.value)
    for now, then in zip(sess.run(tf.compat.v1.global_variables()), dense):
        assert np.array_equal(now, then), "the variables are restored only with the tables"
    support.assert_same_each(trained.everything(sess), before)


@pytest.mark.parametrize("damage", ["short data", "no embedding", "wrong attribute", "flipped attribute", "no key"])
def test_a_damaged_table_is_an_error_that_names_the_file_and_leaves_the_table(graph, session, dynamic, place,
                                                                             damage):
    trained, saver, sess = begin(session)
    path = saver.save(sess, place + "/model.ckpt", global_step=1)
    root = place + "/sparse-model.ckpt-1/table/"
    victim = root + ("key" if damage == "no key" else "embedding")
    if damage in ("no embedding", "no key"):
        shutil.rmtree(victim)
    elif damage == "short data":
        with open(victim + "/slice.data", "r+b") as data:
            data.truncate(os.path.getsize(victim + "/slice.data") - 4)
    elif damage == "wrong attribute":
        np.array([6, 4, 4], "<i8").tofile(victim + "/slice.attribute")
    else:
        np.array([2 ** 62, 3, 4], "<i8").tofile(victim + "/slice.attribute")
    before = trained.everything(sess)
    with pytest.raises((tf.errors.OpError, OSError, ValueError)) as error:
        saver.restore(sess, path)
    assert ("key" if damage == "no key" else "embedding") in str(error.value)
    support.assert_same_each(trained.everything(sess), before)


def test_max_to_keep_prunes_both_parts(graph, session, dynamic, place):
    trained, saver, sess = begin(session, 0, max_to_keep=2)
    for step in range(1, 6):
        trained.train(sess, 1, seed=step)
        saver.save(sess, place + "/model.ckpt", global_step=step)
    names = os.listdir(place)
    assert sorted(name for name in names if name.startswith("sparse-")) == ["sparse-model.ckpt-4", "sparse-model.ckpt-5"]
    assert sorted(name for name in names if name.endswith(".index")) == ["model.ckpt-4.index", "model.ckpt-5.index"]
    fresh = support.restored(session(), saver, place + "/model.ckpt-4")
    assert trained.raw.size(fresh) > 0


def test_saving_the_same_step_again_replaces_it(graph, session, dynamic, place):
    trained, saver, sess = begin(session, 0)
    for seed in (1, 2):
        trained.train(sess, 2, seed=seed)
        path = saver.save(sess, place + "/model.ckpt", global_step=9)
    fresh = support.restored(session(), saver, path)
    support.assert_same_tables(trained.raw.rows(fresh), trained.raw.rows(sess))


def test_a_saver_with_a_var_list_restores_those_variables_and_the_tables(graph, session, dynamic, place):
    trained = Trained(adam())
    other = tf.compat.v1.get_variable("other", initializer=np.float32(1.0))
    saver = tf.compat.v1.train.Saver(var_list=[trained.dense])
    sess = support.started(session())
    trained.train(sess)
    path = saver.save(sess, place + "/model.ckpt")
    assert [name for name, _ in tf.compat.v1.train.list_variables(path)] == ["table_dense"]
    fresh = support.started(session())
    fresh.run(other.assign(5.0))
    saver.restore(fresh, path)
    assert fresh.run(other) == 5.0
    support.assert_same_bits(fresh.run(trained.dense), sess.run(trained.dense))
    support.assert_same_tables(trained.raw.rows(fresh), trained.raw.rows(sess))


def test_a_var_list_may_name_tables(graph, session, dynamic, place):
    trained = Trained(adam())
    dense, sparse = get_dense_and_sparse_variable()
    saver = tf.compat.v1.train.Saver(var_list=list(dense) + list(sparse))
    sess = support.started(session())
    trained.train(sess)
    path = saver.save(sess, place + "/model.ckpt")
    fresh = support.restored(session(), saver, path)
    support.assert_same_tables(trained.raw.rows(fresh), trained.raw.rows(sess))


def test_a_table_with_is_save_false_stays_out_of_checkpoints(graph, session, dynamic, place):
    kept, left = Trained(adam(), name="kept"), Trained(adam(), name="left", is_save=False)
    saver = tf.compat.v1.train.Saver()
    sess = support.started(session())
    kept.train(sess)
    left.train(sess)
    path = saver.save(sess, place + "/model.ckpt")
    assert "left" not in os.listdir(place + "/sparse-model.ckpt")
    fresh = support.restored(session(), saver, path)
    assert kept.raw.size(fresh) > 0 and left.raw.size(fresh) == 0


def test_a_checkpoint_moves_with_its_directory(graph, session, dynamic, place):
    trained, saver, sess = begin(session)
    os.makedirs(place + "/here")
    saver.save(sess, place + "/here/model.ckpt")
    shutil.move(place + "/here", place + "/there")
    fresh = support.restored(session(), saver, place + "/there/model.ckpt")
    support.assert_same_tables(trained.raw.rows(fresh), trained.raw.rows(sess))


def test_latest_checkpoint_names_what_was_saved_last(graph, session, dynamic, place):
    Trained(adam())
    saver = tf.compat.v1.train.Saver()
    sess = support.started(session())
    for step in (1, 2):
        saver.save(sess, place + "/model.ckpt", global_step=step)
    assert tf.train.latest_checkpoint(place) == place + "/model.ckpt-2"


def test_a_graph_without_tables_is_saved_as_by_stock_tensorflow(graph, session, dynamic, place):
    tf.compat.v1.get_variable("plain", initializer=np.float32([1.0, 2.0]))
    saver = tf.compat.v1.train.Saver()
    sess = support.started(session())
    assert saver.save(sess, place + "/model.ckpt", global_step=1) == place + "/model.ckpt-1"
    assert sorted(os.listdir(place)) == ["checkpoint", "model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index",
                                             "model.ckpt-1.meta"]
    saver.restore(session(), place + "/model.ckpt-1")


RESUME = """
import hashlib, json, sys
import numpy as np
import support
from optimizer_cases import CASES
from mx_rec.util.initialize import init
from mx_rec.core.embedding import create_table, sparse_lookup

start, stop, restore_from, save_to = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
init(if_load=bool(restore_from))
tf = support.tf()
tf.compat.v1.set_random_seed(1)
ids = tf.compat.v1.placeholder(tf.int64, [None])
label = tf.compat.v1.placeholder(tf.float32, [None])
chosen = [case for case in CASES if case.name in (
    "sgd", "nesterov", "adagrad_from_0.9", "lazy_adam_0.9_0.999_1e-08", "ftrl_everything")]
tables, embeddings = [], []
for case in chosen:
    tables.append(create_table(key_dtype=tf.int64, dim=8, name=case.op + "_table", device_vocabulary_size=5000,
                               emb_initializer=tf.compat.v1.truncated_normal_initializer(stddev=0.1)))
    embeddings.append(sparse_lookup(tables[-1], ids, modify_graph=True))
hidden = tf.compat.v1.layers.dense(tf.concat(embeddings, 1), 8, tf.nn.tanh)
loss = tf.reduce_mean(tf.square(tf.compat.v1.layers.dense(hidden, 1)[:, 0] - label))
step = tf.compat.v1.train.get_or_create_global_step()
variables = tf.compat.v1.trainable_variables()
gradients = tf.gradients(loss, variables + [table.variable for table in tables])
# No update before every gradient has read the variables: the order of those is TensorFlow's and not always the same.
with tf.control_dependencies([tf.group(*[tf.convert_to_tensor(getattr(g, "values", g)) for g in gradients])]):
    updates = [tf.compat.v1.train.AdamOptimizer(0.01).apply_gradients(zip(gradients, variables), global_step=step)]
    for case, table, gradient in zip(chosen, tables, gradients[len(variables):]):
        updates.append(case.ours(0.1 * case.lr).apply_gradients([(gradient, table.variable)]))
raws = [support.Raw.of(table) for table in tables]
for case, raw in zip(chosen, raws):
    for slot, _ in case.slots:
        raw.slot(slot)
saver = tf.compat.v1.train.Saver()
with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)) as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    if restore_from:
        saver.restore(sess, restore_from)
    for number in range(start, stop):
        random = np.random.RandomState(number)
        sess.run(updates, {ids: random.randint(-400, 400, 64), label: random.rand(64)})
    digest = hashlib.sha256()
    for raw in raws:
        for fetch in [raw.slot(slot) for slot in sorted(raw._slots)]:
            keys, values = sess.run(fetch)
            order = np.argsort(keys)
            digest.update(keys[order].tobytes() + values[order].tobytes())
    dense = hashlib.sha256(b"".join(value.tobytes() for value in sess.run(tf.compat.v1.global_variables())))
    print(json.dumps([int(sess.run(step)), [raw.size(sess) for raw in raws], digest.hexdigest(), dense.hexdigest()]))
    if save_to:
        saver.save(sess, save_to, global_step=stop)
"""


@pytest.mark.long
def test_train_save_and_resume_in_a_new_process_is_training_without_a_stop(place):
    """Tables, slots, Adam powers and dense variables of all five optimizers, bit for bit."""
    def run(*arguments):
        return json.loads(preloaded.run_python(RESUME, *arguments).strip().splitlines()[-1])

    whole = run(0, 20, "", "")
    run(0, 10, "", place + "/model.ckpt")
    resumed = run(10, 20, place + "/model.ckpt-10", "")
    assert whole[0] == 20 and min(whole[1]) > 100
    assert resumed == whole
