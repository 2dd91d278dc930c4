"""Training 2n steps is training n, saving, restoring in a new process or session, and training n: bit for bit."""

import json
import threading

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases
import preloaded
import support
from optimizer_cases import CASES, ids_of
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.initialize import init, terminate_config_initializer

EACH = [case for case in CASES if case.name in (
    "sgd", "momentum", "nesterov", "adagrad_from_0.9", "lazy_adam_0.5_0.9_0.001", "ftrl_l1", "ftrl_everything", "rmsprop_0.7",
    "centered_rmsprop_0.7")]


class Trained:
    """A table under one optimizer and a dense layer under Adam; step n trains the batch n."""

    def __init__(self, case, initializer=None):
        self.case = case
        table = support.make_table("table", 4, 500,
                                   initializer or tf.compat.v1.truncated_normal_initializer(stddev=0.1))
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        output = tf.compat.v1.layers.dense(sparse_lookup(table, self.ids, modify_graph=True), 1,
                                           kernel_initializer=tf.compat.v1.ones_initializer())
        loss = tf.reduce_mean(tf.square(output - 1.0))
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.gradients(loss, variables + [table.variable], gate_gradients=True)
        with tf.control_dependencies([getattr(gradient, "values", gradient) for gradient in gradients]):
            self.update = tf.group(
                tf.compat.v1.train.AdamOptimizer(0.01).apply_gradients(zip(gradients, variables)),
                case.ours(case.lr).apply_gradients([(gradients[-1], table.variable)]))
        self.raw = support.Raw.of(table)
        self.raw.make_slots(case)
        self.saver = tf.compat.v1.train.Saver()

    def train(self, sess, start, stop):
        for step in range(start, stop):
            sess.run(self.update, {self.ids: np.random.RandomState(step).randint(-60, 60, 32)})

    def everything(self, sess):
        return ([self.raw.rows(sess)] + [self.raw.slot_rows(sess, slot) for slot, _ in self.case.slots],
                sess.run(tf.compat.v1.global_variables()))


def assert_same(mine, theirs):
    support.assert_same_each(mine[0], theirs[0])
    for now, then in zip(mine[1], theirs[1]):
        assert now.tobytes() == then.tobytes()


@pytest.mark.parametrize("case", EACH, ids=ids_of(EACH))
def test_each_optimizer_resumes_in_a_new_graph(dynamic, graph, session, place, case):
    trained = Trained(case)
    whole = support.started(session())
    trained.train(whole, 0, 7)
    path = trained.saver.save(whole, place + "/m", global_step=7)
    trained.train(whole, 7, 14)
    expected = trained.everything(whole)
    tf.compat.v1.reset_default_graph()
    terminate_config_initializer()
    init(if_load=True)
    again = Trained(case)
    with support.restored(support.new_session(), again.saver, path) as sess:
        again.train(sess, 7, 14)
        assert_same(again.everything(sess), expected)


def test_a_row_in_a_checkpoint_is_of_one_step_while_another_thread_trains(graph, session, dynamic, place):
    """A slot of plain sums tells how often a row was updated, and the row has to agree."""
    case = [one for one in CASES if one.name == "adagrad_from_0.1"][0]
    table = support.make_table("table", 2, 5000)
    ids = tf.constant(np.arange(5000))
    raw = support.Raw.of(table)
    # The gradient is 1 for every row: after n updates the accumulator is 0.1 + n, and the row a function of n.
    with tf.control_dependencies([support.ops().resolve(raw.handle, ids, create=True).offsets]):
        update = case.apply(raw.handle, ids, tf.ones([5000, 2]), tf.constant(0.5), tf.constant(1.0), by_ids=True)
    saver, sess = tf.compat.v1.train.Saver(max_to_keep=None), session()
    raw.slot("Adagrad_accumulator")
    rows, steps = {}, 60
    sess.run(update)
    saver.save(sess, place + "/m", global_step=0)
    failed = []

    def train():
        try:
            done = 0
            # At least until two saves have ended beside it, however slow the disk is.
            while done < steps or (number < 2 and done < 100 * steps):
                sess.run(update)
                done += 1
        except Exception as error:  # pylint: disable=broad-except
            failed.append(error)

    number = 0
    thread = threading.Thread(target=train)
    thread.start()
    while thread.is_alive() and number < 40:
        number += 1
        saver.save(sess, place + "/m", global_step=number)
    thread.join()
    assert not failed and number >= 2
    seen = set()
    for step in range(number + 1):
        root = "%s/sparse-m-%d/table" % (place, step)
        embedding = np.fromfile(root + "/embedding/slice.data", "<f4")
        accumulator = np.fromfile(root + "/Adagrad_accumulator/slice.data", "<f4")
        assert len(embedding) == 10000
        # One moment for the whole table: every row has had the same updates.
        assert len(set(embedding.tolist())) == 1 and len(set(accumulator.tolist())) == 1, step
        assert rows.setdefault(accumulator[0], embedding[0]) == embedding[0]
        seen.add(accumulator[0])
    assert len(seen) >= 2 and len(rows) == len(set(rows.values()))


SESSION = """
import hashlib, json, os, sys
import numpy as np
import support
import modify_cases
from mx_rec.optimizers import adagrad, lazy_adam
from mx_rec.util.initialize import init

form, start, stop, restore_from, save_to = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
init(if_load=bool(restore_from))
tf = support.tf()
run = modify_cases.Run(form)
run.specs(ids="table")
data = modify_cases.slices(400, seed=4, width=3, keys=300, batch=8).skip(start)
batch_iterator = modify_cases.initializable(run.insert(data).prefetch(10))
batch = batch_iterator.get_next()
table = run.table()
rows = run.lookup(table, "ids", batch=batch)
loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, [1, 2]) - batch["label"]))
update = lazy_adam.create_hash_optimizer(0.05).minimize(loss, var_list=[table.variable])
saver = tf.compat.v1.train.Saver()
run.modify()
sess = run.session()
if restore_from:
    saver.restore(sess, restore_from)
run.start(sess, batch_iterator)
for _ in range(start, stop):
    sess.run(update)
keys, values = run._raws["table"].export(sess)
if save_to:
    saver.save(sess, save_to, global_step=stop)
root = os.path.dirname(save_to) + "/sparse-" + os.path.basename(save_to) + "-%d/table/" % stop
saved = np.fromfile(root + "key/slice.data", "<i8")
order = np.argsort(saved)
digest = hashlib.sha256(saved[order].tobytes())
for part in ("embedding", "LazyAdam_momentum", "LazyAdam_velocity"):
    digest.update(np.fromfile(root + part + "/slice.data", "<f4").reshape(-1, 4)[order].tobytes())
trained = np.unique(modify_cases.arrays(400, 4, 3, 300)[0][:8 * stop])
print(json.dumps([digest.hexdigest(), sorted(saved.tolist()) == sorted(trained[trained != -1].tolist())]))
run.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["step", "ahead", "specs"])
def test_a_session_resumes_in_a_new_process_with_its_pipeline_ahead(place, form):
    """The checkpoint holds the keys of the batches that were trained, and none that the pipeline had staged."""
    def run(*arguments):
        return json.loads(preloaded.run_python(SESSION, form, *arguments).strip().splitlines()[-1])

    whole = run(0, 12, "", place + "/whole")
    half = run(0, 6, "", place + "/half")
    resumed = run(6, 12, place + "/half-6", place + "/resumed")
    assert resumed[0] == whole[0] != half[0]
    assert half[1] and whole[1]


@pytest.mark.parametrize("form", estimator_cases.FORMS)
def test_an_estimator_resumes_from_its_directory(dynamic, graph, place, form):
    data = estimator_cases.samples(16 * 12)
    whole = estimator_cases.Case(form, place + "/whole")
    whole.train(data, steps=12)
    half = estimator_cases.Case(form, place + "/parts")
    half.train(first_half(data, True), steps=6)
    resumed = estimator_cases.Case(form, place + "/parts", save_checkpoints_steps=4, keep_checkpoint_max=2)
    resumed.train(first_half(data, False), max_steps=12)
    estimator_cases.assert_same_checkpoints(place + "/parts", place + "/whole")
    assert estimator_cases.checkpoint_steps(place + "/parts") == ([10, 12], [10, 12])


def first_half(data, first):
    """The first or the last 6 of 12 batches."""
    features, labels = data
    part = slice(0, 96) if first else slice(96, None)
    return {name: value[part] for name, value in features.items()}, labels[part]


@pytest.mark.long
def test_train_and_evaluate_resumes(dynamic, graph, place):
    data = estimator_cases.samples(16 * 12)

    def run(directory, part, steps):
        case = estimator_cases.Case("step", directory)
        tf.estimator.train_and_evaluate(
            case.estimator, tf.estimator.TrainSpec(case.input_fn(True, part), max_steps=steps),
            tf.estimator.EvalSpec(case.input_fn(False, part), steps=2, throttle_secs=0, start_delay_secs=0))

    run(place + "/whole", data, 12)
    run(place + "/parts", first_half(data, True), 6)
    run(place + "/parts", first_half(data, False), 12)
    estimator_cases.assert_same_checkpoints(place + "/parts", place + "/whole")
