"""EvictHook in MonitoredTrainingSessions and Estimators: when it evicts, what it reports, how it ends."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases
import modify_cases
import support
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.core import feature_process
from mx_rec.core.admission import evict
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import EvictHook
from mx_rec.graph import modify_graph_and_start_emb_cache
from mx_rec.optimizers.lazy_adam import create_hash_optimizer


class Training:
    """A graph that trains batches of one key each; batch n has key n and time 10 n."""

    def __init__(self, eviction=35, count=10 ** 6, form="step", access=1, width=1, capacity=100):
        data = tf.data.Dataset.range(1, count).map(
            lambda step: {"ids": step * width + tf.range(width, dtype=tf.int64), "time": step * 10})
        batch = tf.compat.v1.data.make_one_shot_iterator(data.prefetch(2)).get_next()
        self.table = support.make_table("table", 4, capacity, tf.compat.v1.random_normal_initializer(seed=1))
        embedding = sparse_lookup(self.table, batch["ids"], modify_graph=True, access_and_evict_config={
            "access_threshold": access, "eviction_threshold": eviction})
        if eviction is not None:
            tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])
        self.step = tf.compat.v1.train.get_or_create_global_step()
        with tf.control_dependencies([embedding]):
            self.update = tf.group(
                create_hash_optimizer(0.1).minimize(tf.reduce_sum(embedding), var_list=[self.table.variable]),
                tf.compat.v1.assign_add(self.step, 1))
        self.raw = support.Raw.of(self.table)
        self.batch, self.embedding = batch, embedding
        if form == "ahead":
            modify_graph_and_start_emb_cache()


def hook(**arguments):
    arguments.setdefault("evict_enable", True)
    return EvictHook(**arguments)


def monitored(hooks, directory=None, **arguments):
    return tf.compat.v1.train.MonitoredTrainingSession(
        hooks=hooks, checkpoint_dir=directory, save_checkpoint_secs=None, log_step_count_steps=None, **arguments)


def raw_session(sess):
    """The session in a MonitoredSession."""
    return sess._sess._sess._sess._sess


def wait_until(condition):
    """Waits until something is so; a test that waits in vain fails."""
    end = time.time() + 300
    while not condition():
        assert time.time() < end, "nothing happened"
        time.sleep(0.01)


def logged(caplog):
    return [reason for reason in modify_cases.reasons(caplog) if "evicted" in reason and "kept" in reason]


@pytest.mark.parametrize("form", ["step", "ahead"])
def test_steps_decide_when_to_evict(graph, dynamic, caplog, form):
    training = Training(form=form)
    with caplog.at_level("INFO", logger="mx_rec"), monitored([hook(evict_step_interval=5)]) as sess:
        for step in range(1, 13):
            sess.run(training.update)
            if step % 5 == 0:
                wait_until(lambda: len(logged(caplog)) == step // 5)
                # Keys of the last 35 seconds stay.
                assert "step {}: evicted {} keys of the table 'table', kept 4, ".format(
                    step, 1 if step == 5 else 5) in logged(caplog)[-1], logged(caplog)
        rows = training.raw.rows(sess)
    assert sorted(rows) == list(range(7, 13))
    assert len(logged(caplog)) == 2


def test_time_decides_when_to_evict(graph, dynamic, caplog):
    training = Training()
    with caplog.at_level("INFO", logger="mx_rec"), monitored([hook(evict_time_interval=1)]) as sess:
        sess.run(training.update)
        assert not logged(caplog)

        def run():
            sess.run(training.update)
            return logged(caplog)

        wait_until(run)


def test_whichever_interval_ends_first_evicts(graph, dynamic, caplog):
    training = Training()
    both = hook(evict_time_interval=10 ** 6, evict_step_interval=3)
    with caplog.at_level("INFO", logger="mx_rec"), monitored([both]) as sess:
        for _ in range(3):
            sess.run(training.update)
    assert len(logged(caplog)) == 1
    # Without a time it is steps alone.
    hook(evict_time_interval=None, evict_step_interval=3)


def test_a_session_that_goes_on_from_a_checkpoint_keeps_to_multiples(graph, dynamic, caplog, tmp_path):
    training = Training()
    directory = str(tmp_path.resolve())
    saver = tf.compat.v1.train.Saver()
    with monitored([]) as sess:
        for _ in range(7):
            sess.run(training.update)
        saver.save(raw_session(sess), directory + "/model.ckpt", global_step=7)
    with caplog.at_level("INFO", logger="mx_rec"), monitored([hook(evict_step_interval=5)], directory) as sess:
        sess.run(training.update)
        sess.run(training.update)
        assert not logged(caplog)
        sess.run(training.update)
    assert len(logged(caplog)) == 1 and "step 10: " in logged(caplog)[0]


def test_a_hook_that_is_not_enabled_does_nothing(graph, dynamic, caplog):
    tf.compat.v1.train.get_or_create_global_step()
    before = len(graph.get_operations())
    quiet = hook(evict_enable=False, evict_step_interval=1)
    quiet.begin()
    assert len(graph.get_operations()) == before
    Training(eviction=None)
    with caplog.at_level("INFO", logger="mx_rec"), monitored([hook(evict_enable=False, evict_step_interval=1)]) as sess:
        sess.run(tf.compat.v1.train.get_global_step())
    assert not logged(caplog)


def test_summaries_show_what_was_evicted(graph, dynamic, tmp_path):
    training = Training()
    directory = str(tmp_path.resolve())
    evicting = hook(evict_step_interval=4)
    with monitored([evicting], directory, save_summaries_steps=1) as sess:
        for step in range(1, 10):
            sess.run(training.update)
            wait_until(lambda: not evicting.is_evicting)
    steps, evicted = estimator_cases.summary_values(directory, "evict/table/evicted")
    _, kept = estimator_cases.summary_values(directory, "evict/table/kept")
    assert len(steps) == 9
    assert evicted[0] == 0 and evicted[-1] == 4 and kept[-1] == 4, (evicted, kept)


# Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, message", [
    (dict(evict_enable=1), "type of 'evict_enable' is not bool"),
    (dict(evict_time_interval=-1), "'evict_time_interval' is less than 1"),
    (dict(evict_time_interval=0), "'evict_time_interval' is less than 1"),
    (dict(evict_time_interval=2 ** 31), "'evict_time_interval' is bigger than"),
    (dict(evict_time_interval=1.5), "type of 'evict_time_interval' is not int"),
    (dict(evict_step_interval=-1), "'evict_step_interval' is less than 1"),
    (dict(evict_step_interval=True), "type of 'evict_step_interval' is not int"),
    (dict(evict_time_interval=None), "both None"),
])
def test_a_wrong_argument_is_refused(arguments, message):
    with pytest.raises(ValueError) as caught:
        hook(**arguments)
    assert message in str(caught.value)


def test_the_defaults_and_the_form_of_the_documents():
    EvictHook()
    EvictHook(evict_enable=True, evict_time_interval=24 * 60 * 60, evict_step_interval=10000)
    EvictHook(True, 86400, None)


@pytest.mark.parametrize("make", [lambda: None, lambda: Training(eviction=None)])
def test_where_no_table_evicts_there_is_a_warning_and_nothing_to_do(graph, dynamic, caplog, make):
    training = make()
    with caplog.at_level("WARNING", logger="mx_rec"), monitored([hook(evict_step_interval=1)]) as sess:
        if training is not None:
            for _ in range(3):
                sess.run(training.update)
            assert training.table.size() == 3
    assert any("EvictHook will evict nothing" in reason for reason in modify_cases.reasons(caplog))


def test_an_eviction_threshold_without_a_timestamp_is_refused_before_training(graph, dynamic):
    lookup_without_time()
    with pytest.raises(ValueError, match="is_timestamp=True"):
        hook().begin()


def lookup_without_time():
    table = create_table(tf.int64, 2, "table", tf.compat.v1.ones_initializer(), device_vocabulary_size=10)
    return sparse_lookup(table, tf.constant([1], tf.int64), modify_graph=True, access_and_evict_config={
        "access_threshold": 1, "eviction_threshold": 5})


@pytest.mark.parametrize("intervals, evicts", [
    ({"evict_time_interval": 1}, True), ({"evict_time_interval": None, "evict_step_interval": 1}, False)])
def test_a_graph_without_a_global_step_gets_one_that_nothing_advances(graph, dynamic, caplog, intervals, evicts):
    data = tf.data.Dataset.range(10 ** 6).map(lambda n: {"ids": tf.expand_dims(n, 0), "time": n * 10 + 1})
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    table = create_table(tf.int64, 2, "table", tf.compat.v1.ones_initializer(), device_vocabulary_size=10 ** 6)
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", batch["time"])
    made = sparse_lookup(table, batch["ids"], modify_graph=True, access_and_evict_config={
        "access_threshold": 1, "eviction_threshold": 35})
    with caplog.at_level("INFO", logger="mx_rec"), monitored([hook(**intervals)]) as sess:
        began, steps = time.time(), 0
        while time.time() < began + 1.5 or (evicts and "evicted" not in caplog.text and time.time() < began + 30):
            sess.run(made)
            steps += 1
            time.sleep(0.01)
        assert sess.run(tf.compat.v1.train.get_global_step()) == 0
    assert ("EvictHook made one, which nothing advances" in caplog.text) and ("evicted " in caplog.text) == evicts


def test_dynamic_expansion_is_refused(graph, mx):
    mx(use_dynamic_expansion=True)
    with pytest.raises(ValueError, match="dynamic expansion"):
        hook().begin()


def test_an_evaluation_graph_is_left_alone(graph, dynamic, caplog):
    tf.compat.v1.train.get_or_create_global_step()
    table = create_table(tf.int64, 2, "table", tf.compat.v1.ones_initializer(), device_vocabulary_size=10)
    found = sparse_lookup(table, tf.constant([1], tf.int64), is_train=False, modify_graph=True)
    with caplog.at_level("WARNING", logger="mx_rec"), monitored([hook(evict_step_interval=1)]) as sess:
        sess.run(found)
    assert any("EvictHook is for training" in reason for reason in modify_cases.reasons(caplog))


# How it ends ---------------------------------------------------------------------------------


class Slow:
    """Stands before the eviction: it waits until it is let go, or fails."""

    def __init__(self, monkeypatch, error=None):
        self.go, self.began, self.error = threading.Event(), threading.Event(), error
        slow = self

        class Eviction(feature_process._Eviction):
            def run(self):
                slow.began.set()
                slow.go.wait(60)
                if slow.error is not None:
                    self._session = slow
                super().run()

        monkeypatch.setattr(feature_process, "_Eviction", Eviction)

    def run(self, fetches, **options):
        raise self.error


def test_training_goes_on_while_an_eviction_runs_and_the_next_one_waits(graph, dynamic, monkeypatch, caplog):
    training = Training()
    slow = Slow(monkeypatch)
    with caplog.at_level("INFO", logger="mx_rec"), monitored([hook(evict_step_interval=2)]) as sess:
        for _ in range(7):
            sess.run(training.update)
        assert slow.began.is_set() and not logged(caplog)
        slow.go.set()
        wait_until(lambda: len(logged(caplog)) == 1)
        sess.run(training.update)
        wait_until(lambda: len(logged(caplog)) == 2)
    assert "step 2: " in logged(caplog)[0] and "step 8: " in logged(caplog)[1]


def test_the_end_of_training_waits_for_the_eviction(graph, dynamic, monkeypatch, caplog):
    training = Training()
    slow = Slow(monkeypatch)
    with caplog.at_level("INFO", logger="mx_rec"):
        with monitored([hook(evict_step_interval=2)]) as sess:
            sess.run(training.update)
            sess.run(training.update)
            assert slow.began.wait(60)
            threading.Timer(0.2, slow.go.set).start()
        assert len(logged(caplog)) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "mx_rec_evict"]


def test_an_error_of_the_eviction_is_logged_and_raised_in_the_next_step(graph, dynamic, monkeypatch, caplog):
    training = Training()
    slow = Slow(monkeypatch, tf.errors.InternalError(None, None, "the table is upset"))
    slow.go.set()
    with pytest.raises(tf.errors.InternalError, match="upset"), monitored([hook(evict_step_interval=2)]) as sess:
        for _ in range(1000):
            sess.run(training.update)
            time.sleep(0.001)
    assert any("the eviction at step 2 failed" in reason for reason in modify_cases.reasons(caplog))


def test_an_error_of_the_last_eviction_is_raised_at_the_end(graph, dynamic, monkeypatch):
    training = Training()
    slow = Slow(monkeypatch, tf.errors.InternalError(None, None, "the table is upset"))
    threading.Timer(0.3, slow.go.set).start()
    with pytest.raises(tf.errors.InternalError, match="upset"), monitored([hook(evict_step_interval=2)]) as sess:
        sess.run(training.update)
        sess.run(training.update)


def test_a_session_that_is_closed_by_an_error_waits_for_the_eviction(graph, dynamic, monkeypatch, caplog):
    training = Training()
    slow = Slow(monkeypatch)
    with caplog.at_level("INFO", logger="mx_rec"):
        with pytest.raises(ZeroDivisionError), monitored([hook(evict_step_interval=1)]) as sess:
            sess.run(training.update)
            assert slow.began.wait(60)
            threading.Timer(0.3, slow.go.set).start()
            raise ZeroDivisionError
        assert len(logged(caplog)) == 1
    assert not any("failed" in reason for reason in modify_cases.reasons(caplog))


def test_an_error_of_training_does_not_wait_in_vain(graph, dynamic):
    training = Training()
    with pytest.raises(ZeroDivisionError), monitored([hook(evict_step_interval=1)]) as sess:
        sess.run(training.update)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), monitored([hook(evict_step_interval=1)]) as sess:
        sess.run(training.update)
        raise ZeroDivisionError


# Estimators ----------------------------------------------------------------------------------


class Case(estimator_cases.Case):
    """The Estimator of estimator_cases on tables that admit and evict; each batch has its time."""

    access, eviction = 2, 25

    def input_fn(self, is_training, data=None, repeat=1, make=estimator_cases.dataset):
        def timed(data, repeat):
            times = tf.data.Dataset.range(1, 10 ** 6).map(lambda step: step * 10)
            return tf.data.Dataset.zip((make(data, repeat), times)).map(
                lambda batch, time: (dict(batch[0], time=time), batch[1]))

        def input_fn():
            batches = timed(data, repeat)
            if self.form == "specs":
                self.specs = [FeatureSpec(name, table_name=table, index_key=name, access_threshold=self.access,
                                          eviction_threshold=self.eviction)
                              for name, table in zip(("user", "item"), estimator_cases.TABLES)]
                inserted = self.specs + [FeatureSpec("time", is_timestamp=True)]
                batches = batches.map(get_asc_insert_func(inserted, is_training=is_training))
            return batches.prefetch(2)

        return input_fn

    def model_fn(self, features, labels, mode, params):
        import mx_rec.core.embedding as embedding

        stock = embedding.sparse_lookup
        is_train = mode == tf.estimator.ModeKeys.TRAIN

        def with_thresholds(table, ids, **arguments):
            if self.form != "specs":
                arguments["access_and_evict_config"] = dict(access_threshold=self.access,
                                                            eviction_threshold=self.eviction, faae_coefficient=1)
            return stock(table, ids, **arguments)

        embedding.sparse_lookup = with_thresholds
        try:
            spec = super().model_fn(features, labels, mode, params)
        finally:
            embedding.sparse_lookup = stock
        if is_train and self.form != "specs":
            tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", features["time"])
        return spec


class ByHand:
    """Evicts at some steps and waits, so that runs can be compared."""

    def __init__(self, steps):
        self.steps, self.found = steps, []

    def hook(self):
        outer = self

        class Hook(tf.estimator.SessionRunHook):
            def before_run(self, run_context):
                return tf.estimator.SessionRunArgs(tf.compat.v1.train.get_global_step())

            def after_run(self, run_context, run_values):
                if int(run_context.session.run(tf.compat.v1.train.get_global_step())) in outer.steps:
                    with run_context.session.graph.as_default():
                        outer.found.append(evict())

        return Hook()


@pytest.mark.long
def test_an_estimator_trains_evaluates_and_resumes_the_same_in_every_form(dynamic, tmp_path):
    kept = {}
    data = estimator_cases.samples()
    for form in estimator_cases.FORMS:
        case = Case(form, tmp_path / form)
        by_hand = ByHand((3, 5, 8, 14))
        losses = case.train(data, repeat=2, hooks=[by_hand.hook()])
        losses += case.train(data, repeat=1, hooks=[by_hand.hook()])
        assert len(by_hand.found) >= 3 and any(one.evicted for found in by_hand.found for one in found.values())
        kept[form] = np.array(losses), case.evaluate(data), case.predict(data), by_hand.found
        estimator_cases.assert_same_checkpoints(str(case.directory), str((tmp_path / "step").resolve()))
        sizes = {name: len(parts["embedding"]) for name, parts in estimator_cases.saved_tables(case.directory).items()}
        assert 0 < sizes["user_table"] and 0 < sizes["item_table"] < estimator_cases.ITEMS
    for form in estimator_cases.FORMS[1:]:
        mine, theirs = kept[form], kept["step"]
        support.assert_same_bits(mine[0], theirs[0], "losses")
        assert mine[1] == theirs[1] and mine[3] == theirs[3]
        for name in theirs[2]:
            assert mine[2][name].tobytes() == theirs[2][name].tobytes(), name


@pytest.mark.parametrize("form", estimator_cases.FORMS)
def test_an_evict_hook_works_in_an_estimator(dynamic, tmp_path, caplog, form):
    case = Case(form, tmp_path, save_summary_steps=1)
    with caplog.at_level("INFO", logger="mx_rec"):
        case.train(repeat=3, hooks=[hook(evict_step_interval=4)])
    lines = logged(caplog)
    assert any("step 4: " in line and "'user_table'" in line for line in lines) and len(lines) % 2 == 0
    case.evaluate()
    steps, _ = estimator_cases.summary_values(case.directory, "evict/item_table/evicted")
    assert len(steps) >= 10


def test_the_hook_may_stand_before_the_one_that_modifies_the_graph(dynamic, tmp_path, caplog):
    case = Case("ahead", tmp_path)
    stock = case.hooks
    case.hooks = lambda *more: stock(*more)[::-1]
    with caplog.at_level("INFO", logger="mx_rec"):
        case.train(repeat=2, hooks=[hook(evict_step_interval=4)])
    assert any("2 of 2 lookups moved" in reason for reason in modify_cases.reasons(caplog))
    assert len(logged(caplog)) >= 2


@pytest.mark.long
def test_train_and_evaluate_evicts_in_training_alone(dynamic, tmp_path, caplog):
    case = Case("ahead", tmp_path, save_checkpoints_steps=4)
    with caplog.at_level("INFO", logger="mx_rec"):
        tf.estimator.train_and_evaluate(
            case.estimator,
            tf.estimator.TrainSpec(case.input_fn(True, repeat=4), max_steps=12,
                                   hooks=case.hooks(hook(evict_step_interval=3))),
            tf.estimator.EvalSpec(case.input_fn(False), steps=2, hooks=case.hooks(hook(evict_step_interval=1)),
                                  throttle_secs=0))
    assert any("EvictHook is for training" in reason for reason in modify_cases.reasons(caplog))
    assert any("step 12: " in line or "step 9: " in line for line in logged(caplog))


# All at once ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("form", ["step", "ahead"])
def test_pipeline_training_and_evictions_side_by_side(graph, dynamic, form):
    """Evictions run all the time, from the hook and from another thread; what training sees stays whole."""
    # Room for all: on a busy machine, training may be far ahead of what an eviction has got to.
    training = Training(form=form, width=256, eviction=100, capacity=10 ** 7)
    # Each key is new when it comes, so that its row is its first value whatever was evicted.
    expected = {}
    done, failures, evicted = threading.Event(), [], []

    def evict_always(sess):
        try:
            while not done.is_set():
                with sess.as_default():
                    evicted.append(evict(training.table)["table"].evicted)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    with monitored([hook(evict_step_interval=1)]) as sess:
        raw = raw_session(sess)
        thread = threading.Thread(target=evict_always, args=(raw,))
        thread.start()
        end = time.time() + 3
        steps = 0
        try:
            while time.time() < end or steps < 100:
                batch, rows, _ = sess.run([training.batch["ids"], training.embedding, training.update])
                steps += 1
                assert rows.any(axis=1).all()
                if steps % 50 == 0:
                    expected.update(zip(batch.tolist(), rows))
        finally:
            done.set()
            thread.join()
        assert not failures, failures
        with raw.as_default():
            evict(training.table)
        # Ten batches are of the last 100 seconds; the pipeline may have made rows for a few more.
        kept = raw.run(training.table.stats)[0]
        assert sum(evicted) > 0 and kept < 256 * 20
    assert steps > 50
    tf.compat.v1.reset_default_graph()
    ids = tf.compat.v1.placeholder(tf.int64, [None])

    table = support.make_table("table", 4, 10 ** 6, tf.compat.v1.random_normal_initializer(seed=1))
    fresh = sparse_lookup(table, ids, modify_graph=True)
    with support.new_session() as sess:
        for key, row in expected.items():
            support.assert_same_bits(sess.run(fresh, {ids: [key]})[0], row, key)
