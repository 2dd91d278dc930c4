"""Programs that run a model before they make its training ops: evaluate, predict, load or show it, and then train it."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tensorflow as tf

import support
from test_first_run import DIM, ROWS, both
from mx_rec.graph import anew, variables
from mx_rec.stock import convert

v1 = tf.compat.v1

STEPS = 5
BATCH = 16


def ids_and_labels(seed=3, count=STEPS * BATCH):
    ids = np.random.RandomState(seed).randint(0, ROWS, [count, 3])
    return ids, np.sin(ids.sum(1)).astype(np.float32)


def keras_model(name="adam", dropout=0.0, metrics=()):
    keras = tf.keras
    ids = keras.layers.Input((3,), dtype="int64")
    start = np.random.RandomState(1).randn(ROWS, DIM).astype(np.float32)
    rows = keras.layers.Embedding(ROWS, DIM, name="items", embeddings_initializer=keras.initializers.Constant(start))(ids)
    deep = keras.layers.Dense(6, activation="tanh", kernel_initializer=keras.initializers.Constant(0.3))(keras.layers.Flatten()(rows))
    deep = keras.layers.BatchNormalization()(keras.layers.Dropout(dropout)(deep) if dropout else deep)
    made = keras.Model(ids, keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.2))(deep))
    optimizer = {"adam": lambda: keras.optimizers.Adam(0.01), "sgd": lambda: keras.optimizers.SGD(0.1),
                 "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5)}[name]()
    made.compile(optimizer, "mse", metrics=list(metrics))
    return made


def in_sessions(program, **arguments):
    """Runs a program of Keras by `both`, in sessions that are Keras's."""
    def run(is_on):
        keras = tf.keras
        with support.new_session() as session:
            keras.backend.set_session(session)
            try:
                yield from program(session)
            finally:
                keras.backend.set_session(None)

    both(run, **arguments)


def fit(made, seed=3, **arguments):
    return made.fit(*ids_and_labels(seed), BATCH, 2, verbose=0, shuffle=False, **arguments).history["loss"]


FIRST = {
    "predict": lambda made, path: [made.predict(ids_and_labels()[0])],
    "evaluate": lambda made, path: [np.reshape(made.evaluate(*ids_and_labels(), verbose=0), [-1])],
    "get_weights": lambda made, path: made.get_weights(),
    "load_weights": lambda made, path: made.load_weights(path) and [1.0],
    "load and evaluate": lambda made, path: made.load_weights(path) and [list(made.evaluate(*ids_and_labels(), verbose=0))],
    "save_weights": lambda made, path: made.save_weights(path + "_again") or [1.0],
}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
@pytest.mark.parametrize("first", list(FIRST))
def test_a_keras_model_that_was_run_before_it_is_fitted_trains_on_tables(said, tmp_path, first, optimizer):
    path = os.path.join(str(tmp_path), "weights")
    with tf.Graph().as_default(), support.new_session() as own:
        tf.keras.backend.set_session(own)
        other = keras_model(optimizer)
        fit(other)
        other.save_weights(path)
        tf.keras.backend.set_session(None)

    def program(session):
        made = keras_model(optimizer, metrics=["mae"])
        yield from FIRST[first](made, path)
        before = made.get_weights()
        yield fit(made)
        assert np.abs(made.get_weights()[0] - before[0]).max() > 1e-3
        # By functions that were made before, where there are.
        yield made.predict(ids_and_labels()[0])
        yield list(made.evaluate(*ids_and_labels(), verbose=0))
        yield fit(made, 4)
        yield made.get_weights()

    in_sessions(program, names=["items/embeddings"])
    assert not said()


def test_functions_of_before_see_what_later_ones_train(said):
    """Keras keeps its functions, which hold callables of the session that began anew, and TensorFlow numbers these anew."""
    K = tf.keras.backend

    def program(session):
        made = keras_model("sgd")
        shown = K.function(made.inputs, [made.layers[1].output])
        ids, labels = ids_and_labels()
        for _ in range(3):
            yield shown([ids])[0]
            yield made.predict(ids)
        for seed in range(3):
            fit(made, seed)
            yield shown([ids])[0]
            yield made.predict(ids)
            yield [made.evaluate(ids, labels, verbose=0)]
            # Those that go release no callable of another.
            shown = K.function(made.inputs, [made.layers[1].output])
            yield shown([ids])[0]

    in_sessions(program, names=["items/embeddings"])
    assert not said()


def session_program(resource=True, optimizer=None, more=None):
    """Evaluates, then makes training ops, trains and evaluates."""
    def program(is_on):
        users = v1.get_variable("users", [ROWS, DIM], initializer=v1.random_normal_initializer(seed=3), use_resource=resource)
        items = v1.get_variable("items", [ROWS, DIM], initializer=v1.zeros_initializer(), use_resource=resource)
        w = v1.get_variable("w", [DIM, 1], initializer=v1.ones_initializer(), use_resource=resource)
        ids = v1.placeholder(tf.int64, [None])
        rows = [tf.nn.embedding_lookup(one, ids) for one in (users, items)]
        loss = tf.reduce_mean(tf.square(tf.matmul(rows[0] + tf.sin(rows[1]), w) - 1.0))
        session = support.new_session()
        session.run(v1.global_variables_initializer())
        session.run(v1.assign(items, np.arange(ROWS * DIM).reshape(ROWS, DIM) * 0.01))
        extra = more(session, locals()) if more else None
        yield [session.run(loss, {ids: [1, 2, 2]})]
        before = set(v1.global_variables())
        train = (optimizer or (lambda: v1.train.AdagradOptimizer(0.1)))().minimize(loss)
        session.run(v1.variables_initializer([one for one in v1.global_variables() if one not in before]))
        for number in range(STEPS):
            yield [session.run([loss, train], {ids: [number, 2, 2, 9]})[0]]
        yield session.run(rows, {ids: np.arange(ROWS)})
        yield session.run([users, items, w])
        yield [session.run(loss, {ids: [1, 2, 2]})]
        yield [len(session.run(v1.report_uninitialized_variables()))]
        if callable(extra):
            yield extra()
        session.close()

    return program


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam", "GradientDescent", "Ftrl"])
def test_a_session_that_evaluated_before_the_training_ops_were_made_trains_on_tables(said, resource, optimizer):
    make = getattr(tf.compat.v1.train, optimizer + "Optimizer")
    both(session_program(resource, lambda: make(0.1)))
    assert not said()


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_a_saver_of_before_saves_and_restores(said, tmp_path, resource):

    def more(session, there):
        saver = v1.train.Saver([there["users"], there["items"], there["w"]])
        path = saver.save(session, os.path.join(str(tmp_path), "before"))

        def end():
            after = session.run([there["users"], there["items"]])
            other = saver.save(session, os.path.join(str(tmp_path), "after"))
            saver.restore(session, path)
            old = session.run([there["users"], there["items"]])
            assert np.abs(old[0] - after[0]).max() > 1e-3
            saver.restore(session, other)
            return old + session.run([there["users"], there["items"]])

        return end

    both(session_program(resource, more=more))
    assert not said()


@support.run_by(both, "said", names=["users"])
def test_variables_that_were_not_initialized_still_are_not(is_on):
    users = v1.get_variable("users", [ROWS, DIM], initializer=v1.constant_initializer(0.5))
    late = v1.get_variable("late", [3], initializer=v1.ones_initializer())
    words = v1.get_variable("words", initializer=tf.constant(["a", "b"]), trainable=False)
    with support.started(support.new_session(), [users.initializer, words.initializer]) as session:
        assert session.run(words).tolist() == [b"a", b"b"]
        loss = tf.reduce_sum(tf.square(tf.gather(users, [1, 2])) * late[0])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        assert session.run(v1.report_uninitialized_variables()).tolist() == [b"late"]
        session.run(late.initializer)
        yield [session.run([loss, train])[0] for _ in range(4)]
        assert session.run(words).tolist() == [b"a", b"b"]


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam", "Momentum"])
@support.run_by(both, "said", names=["users"])
def test_initializers_of_before_and_of_slots_alone_do_what_they_do_to_variables(is_on, resource, optimizer):
    """The one sets the rows and leaves the slots, the other sets the slots and leaves the rows."""
    users = v1.get_variable("users", [ROWS, DIM], initializer=v1.constant_initializer(0.5), use_resource=resource)
    ids = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.square(tf.gather(users, ids) - 1.0))
    of_before = v1.global_variables_initializer()
    with support.started(support.new_session(), of_before) as session:
        yield [session.run(loss, {ids: [1, 2]})]
        made = getattr(v1.train, optimizer + "Optimizer")(*[0.1, 0.9][:2 if optimizer == "Momentum" else 1])
        train = made.minimize(loss)
        of_slots = v1.variables_initializer(made.variables())

        def steps(seed):
            random = np.random.RandomState(seed)
            return [session.run([loss, train], {ids: random.randint(0, 9, 5)})[0] for _ in range(4)] + [
                session.run(users)] + [session.run(made.get_slot(users, name)) for name in made.get_slot_names()]

        session.run(of_slots)
        yield steps(1)
        session.run(of_slots)
        yield steps(2)
        session.run(of_before)
        yield steps(3)
        session.run(users.initializer)
        yield steps(4)
        session.run(v1.global_variables_initializer())
        yield steps(5)


@pytest.mark.parametrize("way", ["parts", "access_threshold", "memory_rows", "unlimited_ids"])
def test_what_tables_can_be_asked_for_goes_with_values_that_are_there(said, tmp_path, way):
    parts = v1.fixed_size_partitioner(3) if way == "parts" else None

    def program(is_on):
        users = v1.get_variable("users", [ROWS, DIM], partitioner=parts, initializer=v1.random_normal_initializer(seed=3))
        ids = v1.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(users, ids % ROWS, partition_strategy="div")
        loss = tf.reduce_sum(tf.square(rows - 1.0))
        with support.started(support.new_session()) as session:
            yield [session.run(loss, {ids: [1, 2, 59]})]
            before = set(v1.global_variables())
            train = v1.train.AdagradOptimizer(0.1).minimize(loss)
            session.run(v1.variables_initializer([one for one in v1.global_variables() if one not in before]))
            for number in range(STEPS):
                yield [session.run([loss, train], {ids: [number, 2, 2, 20 + 7 * number]})[0]]
            yield [session.run(rows, {ids: np.arange(first, first + 15)}) for first in range(0, ROWS, 15)]

    options = {"parts": {"least_rows": 15}, "access_threshold": {"access_threshold": 3}, "unlimited_ids": {"unlimited_ids": True},
               "memory_rows": {"memory_rows": 20, "ssd_data_path": [str(tmp_path)]}}
    both(program, names=["users/part_%d" % at for at in range(3)] if parts else ["users"], **options.get(way, {}))
    assert len(said()) == (way == "unlimited_ids")


def stateful(kind):
    """Makes the state of a session that is more than variables; returns what shows it again."""
    def more(session, there):
        if kind == "iterator":
            shown = v1.data.make_one_shot_iterator(tf.data.Dataset.range(9)).get_next()
        elif kind == "queue":
            queue = tf.queue.FIFOQueue(5, [tf.float32], [[]])
            session.run(queue.enqueue_many([[4.0, 5.0, 6.0]]))
            shown = queue.dequeue()
        elif kind == "table":
            words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [4]), -1)
            session.run(v1.tables_initializer())
            shown = words.lookup(tf.constant("a"))
        elif kind == "callable":
            run = session.make_callable(there["loss"], [there["ids"]])
            return lambda: [run([1, 2, 2])]

        def show():
            return [session.run(shown)]

        show()
        return show

    return more


@pytest.mark.parametrize("kind", ["iterator", "queue", "table", "callable"])
def test_a_session_that_has_more_than_variables_goes_on_with_them(said, kind):
    both(session_program(more=stateful(kind)), names=[])
    assert len(said()) == 1 and "has run the graph with its variables, which stay" in said()[0]


def test_of_two_sessions_none_begins_anew(said):
    def more(session, there):
        other = support.new_session()
        other.run(there["users"].initializer)

        def end():
            rows = other.run(there["users"])
            other.close()
            return rows

        return end

    both(session_program(more=more), names=[])
    assert len(said()) == 1 and "which stay TensorFlow's: it is another one" in said()[0]


@pytest.mark.long
def test_other_threads_of_the_program_do_no_harm(said):
    """The session of before stays then, in case that one of them is in it."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        both(session_program())
    finally:
        ends.set()
        thread.join()
    assert not said()


@support.run_by(both, "said", names=["users"])
def test_a_run_of_another_thread_is_finished_before_the_session_begins_anew(is_on):
    """What it set came behind the values that the session went on with, and was lost."""
    users = v1.get_variable("users", [ROWS, DIM], initializer=v1.random_normal_initializer(seed=3))
    count = v1.get_variable("count", [3], initializer=v1.zeros_initializer())
    loss = tf.reduce_sum(tf.square(tf.gather(users, [1, 2, 2]) - 1.0))
    begun, goes_on = threading.Event(), threading.Event()

    def waits():
        begun.set()
        return np.float32(goes_on.wait(60))

    slow = count.assign_add(tf.fill([3], v1.py_func(waits, [], tf.float32)))
    with support.started(support.new_session()) as session:
        yield [session.run(loss)]
        thread = threading.Thread(target=session.run, args=(slow.op,))
        thread.start()
        assert begun.wait(60)
        threading.Timer(0.5, goes_on.set).start()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        yield [session.run([loss, train])[0] for _ in range(3)]
        thread.join(60)
        yield session.run([users, count])


def test_a_graph_that_cannot_convert_keeps_its_session(said, monkeypatch):

    monkeypatch.setattr(variables, "begin_anew", lambda session: pytest.fail("no variable becomes a table"))
    both(session_program(optimizer=lambda: v1.train.AdagradDAOptimizer(0.1, v1.train.get_or_create_global_step())), names=[])
    assert not said()


def test_a_conversion_that_fails_leaves_the_values(said, monkeypatch):

    def fails(*arguments):
        raise ValueError("on purpose")

    monkeypatch.setattr(convert, "forget_variables", fails)
    both(session_program(), names=[])
    assert len(said()) == 1 and "could not become tables: ValueError: on purpose" in said()[0]


@support.run_by(both, "said", names=["users"])
def test_values_that_cannot_be_set_are_set_by_a_later_run(is_on, monkeypatch):
    """A run without them would look rows up that start as new ones do."""
    users = v1.get_variable("users", [ROWS, DIM], initializer=v1.random_normal_initializer(seed=3))
    loss = tf.reduce_sum(tf.square(tf.gather(users, [1, 2, 2]) - 1.0))
    with support.started(support.new_session()) as session:
        yield [session.run(loss)]
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        if is_on:
            with monkeypatch.context() as patch:
                patch.setattr(anew, "_set", lambda op, value: tf.debugging.Assert(False, ["on purpose"]))
                for _ in range(3):
                    with pytest.raises(tf.errors.InvalidArgumentError, match="on purpose"):
                        session.run(loss)
        yield [session.run([loss, train])[0] for _ in range(3)]
        yield session.run(users)


MEMORY = """
    import gc, tensorflow as tf
    from mx_rec.stock.convert import converted
    from mx_rec.util.initialize import init
    v1 = tf.compat.v1
    init(stock_tables=True)
    def resident():
        gc.collect()
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096 / 2.0 ** 20
    big = v1.get_variable("big", [2000000, 16], initializer=v1.constant_initializer(0.5))
    loss = tf.reduce_sum(tf.square(tf.gather(big, [1, 2])))
    session = v1.Session()
    session.run(big.initializer)
    session.run(loss)
    used = resident()
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    session.run(train)
    print(len(converted(tf.compat.v1.get_default_graph())), resident() - used)
"""


@pytest.mark.long
def test_memory_of_the_values_is_given_back(tmp_path):
    """A variable of 122 MiB: neither that of the session of before nor the copy of its values stays."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(MEMORY))
    count, more = subprocess.check_output([sys.executable, "-W", "ignore", str(path)]).split()
    # A key of each row beside it.
    assert int(count) == 1 and float(more) < 60
