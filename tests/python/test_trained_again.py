"""Programs that make training ops after a run that trains: their tables are variables again, and the next run converts what it can."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from test_evaluated_first import fit, ids_and_labels, in_sessions, keras_model
from test_first_run import DIM, ROWS, Model, both, settings, tables, warned
from mx_rec.graph import back, fuse, runs

v1 = tf.compat.v1


def initialized(session, variables):
    session.run(v1.variables_initializer(variables))


# What the second one becomes: variables that two optimizers with slots update stay TensorFlow's.
SECOND = {"the same": ("sgd", "sgd", ("items", "users")), "another": ("sgd", "adagrad", ("items", "users")),
          "slots": ("adagrad", "adagrad", ()), "moments": ("lazy_adam", "momentum", ()), "averages": ("rmsprop", "sgd", ("items", "users"))}


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("case", list(SECOND))
def test_a_second_optimizer_trains_what_the_first_one_did(said, case, resource):
    """Both go on by turns, each with its own slots, and functions of the first are still there."""
    first, second, names = SECOND[case]

    def program(is_on):
        model = Model(resource, first)
        listed = v1.global_variables()
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(3))
            assert tables(session.graph) == (["items", "users"] if is_on else [])
            known = v1.global_variables()
            assert known == listed and v1.global_variables("item") == [one for one in listed if one.name.startswith("item")]
            yield [session.run(one) for one in known]
            other = cases.optimizers()[second]()
            with tf.name_scope("again"), tf.control_dependencies([model.step]):
                train = other.minimize(model.loss * 2.0, model.step)
            made = [one for one in v1.global_variables() if session.run(v1.is_variable_initialized(one)) == np.False_]
            # Tables were not known, and became new variables: programs that initialize what is new began anew with their rows.
            # Slots of a table have their initial values, in which no row differs.
            of_tables = ("users/", "items/") if is_on and names else ("no table",)
            assert made == [one for one in v1.global_variables() if one not in known and not one.name.startswith(of_tables)]
            initialized(session, made)
            for number in range(3, 6):
                yield session.run([model.loss, train], model.feeds(number))[0]
                yield model.trained(session, [number + 10])
            yield model.all_rows(session)
            yield [session.run(one) for one in v1.trainable_variables()]
            yield session.run(model.step)

    both(program, names=names)
    warned(said)


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@support.run_by(both, "said", names=["items", "users"], times=1)
def test_a_program_derives_by_all_that_it_trains(is_on, resource):
    """What is trained has tables in it, as variables, to count them, read them and derive by them."""
    model = Model(resource, "sgd")
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(3))
        assert tables(session.graph) == (["items", "users"] if is_on else [])
        found = v1.trainable_variables()
        yield [int(np.prod(one.shape.as_list())) for one in found]
        yield [session.run(one) for one in found]
        yield session.run([tf.reduce_sum(tf.square(one)) for one in v1.trainable_variables()])
        # As optimizers do: an update of a reference variable may be seen by gradients that are not computed yet.
        gradients = tf.gradients(model.loss * 2.0, found, gate_gradients=True)
        assert all(one is not None for one in gradients)
        train = v1.train.GradientDescentOptimizer(0.05).apply_gradients(list(zip(gradients, found)))
        for number in range(3, 6):
            session.run(train, model.feeds(number))
            yield model.trained(session, [number + 10])
        yield session.run([tf.norm(tf.convert_to_tensor(one)) for one in gradients], model.feeds(9))
        yield model.all_rows(session)
        yield [session.run(one) for one in v1.trainable_variables()]


@pytest.mark.parametrize("same", [False, True], ids=["other", "same"])
@pytest.mark.parametrize("first,second", [("adam", "adam"), ("sgd", "sgd"), ("adam", "sgd"), ("rmsprop", "adam")])
# Nothing has the functions of before any more.
@pytest.mark.long
@support.run_by(in_sessions, "said", names=["items/embeddings"], times=2)
def test_a_keras_model_is_compiled_again(session, first, second, same):
    made = keras_model(first, metrics=["mae"])
    yield fit(made)
    yield made.predict(ids_and_labels()[0])
    for turn in range(2):
        optimizer = made.optimizer if same else keras_model(second).optimizer
        made.compile(optimizer, "mae", metrics=["mse"])
        yield made.get_weights()
        yield fit(made, 4 + turn)
        yield made.predict(ids_and_labels()[0])
    yield made.get_weights()


@pytest.mark.long
def test_a_model_whose_rows_are_drawn_is_compiled_again(said):  # noqa: F811
    """What Keras initializes rows with by itself; its draws are not TensorFlow's, so both begin with rows that are set."""
    keras = tf.keras

    def program(session):
        ids = keras.layers.Input((3,), dtype="int64")
        made = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(ROWS, DIM, name="items")(ids))))
        random = np.random.RandomState(2)
        made.set_weights([random.randn(*one.shape.as_list()) for one in made.weights])
        for optimizer in (keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1)):
            made.compile(optimizer, "mse")
            yield fit(made)
            yield made.get_weights()

    in_sessions(program, names=["items/embeddings"])
    warned(said, 2)


@pytest.mark.long
@pytest.mark.parametrize("is_first", [False, True], ids=["thawed", "frozen"])
def test_a_layer_is_frozen_and_thawed(said, is_first):  # noqa: F811
    """A table that later steps leave alone stays one; a variable that no step trained at first stays a variable."""
    def program(session):
        made = keras_model("adam")
        for turn in range(3):
            made.layers[1].trainable = bool((turn + is_first) % 2)
            made.compile(tf.keras.optimizers.Adam(0.01 * (turn + 1)), "mse")
            yield fit(made, turn)
            yield made.predict(ids_and_labels()[0])
        yield made.get_weights()

    in_sessions(program, names=["items/embeddings"] if is_first else [])
    warned(said, int(is_first))
    # An optimizer's variables, as many as the rows, are no model that was added.
    assert not any("were added to the graph" in one or "/m of shape" in one for one in said("INFO"))


@support.run_by(in_sessions, "said", names=[], times=1)
def test_a_function_that_is_kept_keeps_its_step(session):
    made = keras_model("adam")
    yield fit(made)
    kept = made.train_function
    made.compile(tf.keras.optimizers.Adam(0.05), "mae")
    yield fit(made, 4)
    made.train_function = kept
    yield made.get_weights()


@pytest.mark.long
def test_two_models_of_one_embedding_train_by_turns(said):
    """The training function of the second is made after the first has trained; functions that showed the lookup itself go on."""
    keras = tf.keras

    def program(session):
        one = keras_model("adam")
        ids, labels = ids_and_labels()
        yield one.train_on_batch(ids, labels)
        shown = keras.backend.function(one.inputs, [one.layers[1].output])
        yield shown([ids])[0]
        other = keras.Model(one.inputs, keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Flatten()(one.layers[1].output)))
        other.compile(keras.optimizers.Adam(0.02), "mse")
        for _ in range(3):
            yield other.train_on_batch(ids, labels)
            yield shown([ids])[0]
            yield one.train_on_batch(ids, labels)
            yield shown([ids])[0]
        yield one.get_weights()

    in_sessions(program, names=[])
    warned(said)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum"])
@support.run_by(both, "said", names=[], times=1)
def test_an_initializer_that_was_made_while_there_were_tables_starts_slots_too(is_on, optimizer):
    """What empties a table empties its slots; those of the variables kept the values of the training before."""
    model = Model(True, optimizer)
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(2))
        of_all, of_some = v1.global_variables_initializer(), v1.variables_initializer(
            [model.users, model.optimizer.get_slot(model.users, model.optimizer.get_slot_names()[0])])
        second = v1.train.AdagradOptimizer(0.3)
        train = second.minimize(model.loss)
        initialized(session, second.variables())
        for init in (of_some, of_all):
            session.run(train, model.feeds(2))
            yield model.trained(session, range(3, 6))
            session.run(init)
            yield [session.run(one) for one in v1.global_variables()]
        yield model.trained(session, range(6, 9))


@pytest.mark.parametrize("way", ["assign", "scatter", "set before", "initialize"])
def test_what_was_set_between_goes_on(said, way):
    """Ops that a program has made on tables are those on variables again."""

    def program(is_on):
        model = Model(True, "sgd")
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(2))
            values = np.random.RandomState(3).randn(ROWS, DIM).astype(np.float32)
            change = {"assign": lambda: model.users.assign(values), "set before": lambda: model.users.assign_add(values),
                      "scatter": lambda: model.users.scatter_update(tf.IndexedSlices(values[:3], tf.constant([1, 5, 7]))),
                      "initialize": lambda: model.users.initializer}[way]()
            if way != "set before":
                session.run(change)
            norm = tf.reduce_sum(tf.square(model.users))
            yield session.run(norm)
            train = v1.train.GradientDescentOptimizer(0.3).minimize(model.loss)
            session.run(change)
            yield session.run(norm)
            for number in range(2, 5):
                yield session.run([model.loss, train], model.feeds(number))[0]
                session.run(change)
                yield session.run(norm)
            yield model.all_rows(session)

    # What may set a variable at any time, and never did before a run, keeps it TensorFlow's.
    both(program, names=["items"] if way == "set before" else ["items", "users"])
    warned(said)


@pytest.mark.long
def test_training_ops_that_are_made_in_a_loop_end_the_change(said, monkeypatch):
    monkeypatch.setattr(back, "_MOST", 3)

    def program(is_on):
        model = Model(True, "sgd")
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(2))
            for number in range(5):
                train = v1.train.GradientDescentOptimizer(0.1 + 0.1 * number).minimize(model.loss)
                yield session.run([model.loss, train], model.feeds(number))[0]
                assert tables(session.graph) == (["items", "users"] if is_on and number < 2 else [])
            yield model.all_rows(session)

    both(program, names=[])
    warned(said, 3)


@support.run_by(both, "said", names=[], times=1)
def test_bags_branches_and_lookups_that_share_ops_are_as_before(is_on):
    users, items = [v1.get_variable(name, [ROWS, DIM], initializer=v1.constant_initializer(start)) for name, start
                    in (("users", 0.2), ("items", -0.1))]
    ids = v1.placeholder(tf.int64, [None])
    bags = tf.SparseTensor(tf.stack([tf.range(6, dtype=tf.int64) // 2, tf.range(6, dtype=tf.int64) % 2], 1), ids[:6], [3, 2])
    pooled = [tf.nn.embedding_lookup_sparse(one, bags, None, combiner=how) for one, how in ((users, "mean"), (items, "sum"))]
    asked = v1.placeholder_with_default(True, [])
    plain = tf.cond(asked, lambda: tf.nn.embedding_lookup(users, ids), lambda: tf.nn.embedding_lookup(items, ids))
    loss = tf.reduce_sum(tf.square(pooled[0] - pooled[1] + 1.0)) + tf.reduce_mean(tf.sin(plain))
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    with support.started(support.new_session()) as session:
        random = np.random.RandomState(1)

        def steps(of):
            return [session.run([loss, of], {ids: random.randint(0, ROWS, [20]), asked: bool(one % 2)})[0] for one in range(4)]

        yield steps(train)
        other = v1.train.MomentumOptimizer(0.05, 0.9)
        again = other.minimize(loss + tf.reduce_mean(pooled[0]))
        initialized(session, other.variables())
        yield steps(again) + steps(train)
        yield session.run([pooled, plain], {ids: np.arange(20)})[0]
        yield [session.run(one) for one in v1.global_variables()]


def test_a_saver_of_before_saves_and_restores_variables(said, tmp_path):
    place = os.path.realpath(str(tmp_path))

    def program(is_on):
        model = Model(True, "adagrad")
        saver = v1.train.Saver()
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(2))
            path = saver.save(session, os.path.join(place, "first-%d" % is_on))
            yield model.trained(session, range(2, 4))
            other = v1.train.MomentumOptimizer(0.05, 0.9)
            train = other.minimize(model.loss)
            initialized(session, other.variables())
            yield session.run([model.loss, train], model.feeds(5))[0]
            second = saver.save(session, os.path.join(place, "second-%d" % is_on))
            yield model.trained(session, range(5, 7))
            saver.restore(session, second)
            yield model.trained(session, range(7, 9))
            # What it saved of tables are the variables' rows.
            saver.restore(session, path)
            yield model.trained(session, range(7, 9))
            yield model.all_rows(session)
            saved = tf.train.load_checkpoint(second)
            assert {"users", "items", "users/Adagrad"} <= set(saved.get_variable_to_shape_map())

    both(program, names=[])
    warned(said)


@pytest.mark.long
@support.run_by(both, "said", names=["items", "users"], times=1)
def test_values_are_read_by_ops_that_can_be_fetched(is_on):
    """"Operation 'save/Read/ReadVariableOp' has been marked as not fetchable": it was of a Saver that had been built anew."""
    model = Model(True, "sgd")
    reader = next(op for op in model.w.handle.consumers() if op.type == "ReadVariableOp" and not op.control_inputs)
    reader.graph.prevent_fetching(reader)
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(2))
        train = model.optimizer.minimize(model.loss * 0.5)
        session.run(train, model.feeds(2))
        yield model.trained(session, range(3, 5))
        yield model.all_rows(session)


STAYS = {"iterator": ({}, "has the state of IteratorGetNext"), "saver": ({}, "a tf.train.Saver was made since"),
         "session": ({}, "several open sessions"), "ids": ({"unlimited_ids": True}, "its ids have no limits"),
         "admission": ({"access_threshold": 1}, "it counts its keys"), "memory": ({}, "take 0.0 GiB, and 0.0 are available")}


@pytest.mark.parametrize("why", list(STAYS))
def test_what_cannot_go_back_is_an_error_and_changes_nothing(said, monkeypatch, why):
    options, text = STAYS[why]
    if why == "memory":
        # A byte less than three times the rows of both.
        monkeypatch.setattr(back, "_available_bytes", lambda: 3 * 2 * ROWS * DIM * 4 - 1)
    with settings(True, **options), tf.Graph().as_default() as graph:
        model = Model(True, "sgd")
        more = [v1.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()] if why == "iterator" else []
        sessions = [support.new_session() for _ in range(2 if why == "session" else 1)]
        for session in sessions:
            session.run(v1.global_variables_initializer())
            model.trained(session, range(2))
            session.run(more)
        if why == "saver":
            v1.train.Saver()
        assert tables(graph) == ["items", "users"]
        before = [model.all_rows(session) for session in sessions]
        second = v1.train.GradientDescentOptimizer(0.1)
        for ask in (lambda: second.minimize(model.loss), lambda: tf.gradients(model.loss, [model.users]),
                    lambda: second.minimize(model.loss, var_list=[model.w, model.users])):
            with pytest.raises(NotImplementedError, match="'(users|items)' has been the table .*" + text):
                ask()
        assert tables(graph) == ["items", "users"] and not said()
        for session, rows in zip(sessions, before):
            support.assert_same_bits(model.all_rows(session), rows)
            model.trained(session, range(3))
            session.close()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_lookups_that_are_made_with_their_training_op_train_the_variable(said, optimizer):
    """Their gradients were those of the variable, which is none: the op of an optimizer with slots was an error of its run."""
    def program(is_on):
        model = Model(True, "sgd")
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(3))
            rows = tf.nn.embedding_lookup(model.users, model.ids)
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, 1) - model.labels))
            other = cases.optimizers()[optimizer]()
            train = other.minimize(loss)
            initialized(session, other.variables())
            for number in range(3):
                yield [session.run([loss, train], model.feeds(number))[0]]
                yield model.trained(session, [number + 5])
            yield model.all_rows(session)

    both(program)
    warned(said)


@support.run_by(both, "said", names=["items", "users"], times=1)
def test_a_step_that_another_thread_is_in_is_finished_before_tables_are_variables(is_on):
    """What it changed came behind the values that the variables got, and was lost."""
    model, begun, goes_on, seen = Model(True, "sgd"), threading.Event(), threading.Event(), []

    def waits():
        begun.set()
        return np.float32(goes_on.wait(60))

    with tf.control_dependencies(model.rows):
        late = tf.compat.v1.py_func(waits, [], tf.float32)
    slow = v1.train.GradientDescentOptimizer(0.1).minimize(model.loss * late)
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(3))
        thread = threading.Thread(target=lambda: seen.append(session.run([late, slow], model.feeds(7))[0]))
        thread.start()
        assert begun.wait(60)
        threading.Timer(0.5, goes_on.set).start()
        v1.train.GradientDescentOptimizer(0.1).minimize(model.loss * 2.0)
        thread.join(60)
        assert seen == [1.0]
        yield model.all_rows(session)
        yield model.trained(session, range(3, 6))


def test_a_step_that_does_not_end_leaves_the_tables(said, monkeypatch):
    monkeypatch.setattr(runs, "_LONGEST", 0.3)
    with settings(True), tf.Graph().as_default() as graph, support.new_session() as session:
        model = Model(True, "sgd")

        def derives():
            with graph.as_default(), pytest.raises(NotImplementedError, match="a run of its session does not end"):
                tf.gradients(model.loss, [model.users])
            return np.float32(1.0)

        inside = tf.compat.v1.py_func(derives, [], tf.float32)
        support.started(session)
        model.trained(session, range(2))
        assert session.run(inside) == 1.0
        assert tables(graph) == ["items", "users"] and not said()
        model.trained(session, range(2))


@support.run_by(both, "said", names=["items", "users"], times=1)
def test_gradients_that_a_loop_asks_for_are_an_error_and_no_hang(is_on):
    """A session was run in the body of a loop, where TensorFlow lets none: the program waited for itself."""
    model = Model(True, "sgd")

    def sums():
        def turn(number, total):
            gradient, = tf.gradients(model.loss * 2.0, [model.users])
            return number + 1, total + tf.reduce_sum(tf.abs(gradient))
        return tf.while_loop(lambda number, _: number < 2, turn, [0, 0.0])[1]

    with support.started(support.new_session()) as session:
        yield model.trained(session, range(3))

        def refused(graph):
            with graph.as_default(), pytest.raises(NotImplementedError, match="'users' has been the table .* a loop, or"):
                sums()

        if is_on:
            support.in_threads(refused, [session.graph], 60)
        yield model.trained(session, range(3, 6))
        assert tables(session.graph) == (["items", "users"] if is_on else [])
        tf.gradients(model.loss, [model.users])
        yield session.run(sums(), model.feeds(9))
        yield model.all_rows(session)


def test_gradients_of_others_leave_tables_alone(said):
    with settings(True), tf.Graph().as_default() as graph, support.new_session() as session:
        model = Model(True, "sgd")
        other = v1.get_variable("other", [3], initializer=v1.ones_initializer())
        session.run(v1.global_variables_initializer())
        model.trained(session, range(2))
        assert [one.op.name for one in v1.trainable_variables()] == ["users", "items", "w", "other"]
        second = v1.train.GradientDescentOptimizer(0.1)
        of_others = [second.minimize(tf.reduce_sum(tf.square(other))), second.minimize(model.loss, var_list=[model.w])]
        session.run(of_others + tf.gradients(model.loss, [model.w, model.rows[0]]), model.feeds(3))
        assert tables(graph) == ["items", "users"] and not said()
        model.trained(session, range(2))


@support.run_by(both, "said", names=["items"], times=1)
def test_assignments_of_before_run_on_what_is_a_variable_again(is_on):
    model = Model(True, "adagrad")
    assigns = [one.assign(tf.fill([ROWS, DIM], 0.4), read_value=False) for one in (model.users, model.items)]
    starts = [one.initializer for one in (model.users, model.items)]
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(2))
        session.run(assigns)
        yield model.all_rows(session)
        second = v1.train.MomentumOptimizer(0.05, 0.9)
        train = second.minimize(model.loss, var_list=[model.users])
        initialized(session, second.variables())
        for op in assigns + starts:
            session.run(train, model.feeds(2))
            yield model.trained(session, range(3, 5))
            session.run(op)
            yield model.all_rows(session)


@pytest.mark.long
@support.run_by(both, "said", times=1)
def test_gradients_asked_by_hand_are_those_of_variables(is_on):
    model = Model(False, "sgd")
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(2))
        slices = tf.gradients(model.loss, [model.users, model.w])
        yield session.run(tf.convert_to_tensor(slices[0]), model.feeds(4))
        yield session.run(slices[1], model.feeds(4))
        yield model.trained(session, range(2))


def test_models_that_are_exported_afterwards_have_no_tables(said, tmp_path):
    """The ops of the tables stay in the graph, and so in a SavedModel and a meta graph."""
    place = os.path.realpath(str(tmp_path))
    with settings(True), tf.Graph().as_default(), support.new_session() as session:
        model = Model(True, "adagrad")
        session.run(v1.global_variables_initializer())
        model.trained(session, range(2))
        second = v1.train.MomentumOptimizer(0.05, 0.9)
        train = second.minimize(model.loss)
        initialized(session, second.variables())
        session.run(train, model.feeds(3))
        rows = model.all_rows(session)
        v1.saved_model.simple_save(session, place + "/model", {"ids": model.ids}, {"rows": model.rows[0]})
        v1.train.Saver().save(session, place + "/saved")
    for load in (lambda session: v1.saved_model.loader.load(session, ["serve"], place + "/model"),
                 lambda session: v1.train.import_meta_graph(place + "/saved.meta").restore(session, place + "/saved")):
        with tf.Graph().as_default(), support.new_session() as session:
            load(session)
            found = session.run([one.name for one in model.rows], {model.ids.name: np.arange(ROWS)})
            support.assert_same_bits(np.concatenate([one.ravel() for one in found]), rows)
    warned(said)


@pytest.mark.parametrize("kind", ["disk", "parts"])
def test_rows_on_disk_and_of_parts_go_back(said, tmp_path, kind):
    options = {"parts": {"least_rows": ROWS // 2},
               "disk": {"memory_rows": ROWS // 2, "ssd_data_path": [os.path.realpath(str(tmp_path))]}}[kind]

    def program(is_on):
        model = Model(True, "adagrad", v1.fixed_size_partitioner(2) if kind == "parts" else None)
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(3))
            assert len(tables(session.graph)) == (is_on and {"parts": 4, "disk": 2}[kind])
            second = v1.train.MomentumOptimizer(0.05, 0.9)
            train = second.minimize(model.loss)
            initialized(session, second.variables())
            yield [session.run([model.loss, train], model.feeds(number))[0] for number in range(4)]
            yield model.trained(session, range(3))
            yield model.all_rows(session)

    both(program, names=[], **options)
    warned(said)


def scoped(name, *arguments):
    with v1.variable_scope(name):
        return Model(*arguments)


@pytest.mark.long
@pytest.mark.parametrize("first,second", [("adagrad", "rmsprop"), ("sgd", "sgd")])
@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_a_model_that_is_added_trains_on_tables_of_its_own_and_all_go_back(said, first, second, resource):
    def program(is_on):
        one = scoped("one", resource, first)
        with support.started(support.new_session()) as session:
            yield one.trained(session, range(3))
            other = scoped("other", resource, second)
            initialized(session, [one for one in v1.global_variables() if one.op.name.startswith("other")])
            for model in (other, one, other):
                yield model.trained(session, range(3))
                yield model.all_rows(session)
            assert tables(session.graph) == (["one/items", "one/users", "other/items", "other/users"] if is_on else [])
            # Of both: their losses are one's now.
            train = v1.train.GradientDescentOptimizer(0.1).minimize(one.loss + 2.0 * other.loss)
            for number in range(3):
                feeds = one.feeds(number)
                feeds.update(other.feeds(number + 5))
                session.run(train, feeds)
                yield [model.trained(session, [number]) for model in (one, other)]
            yield [model.all_rows(session) for model in (one, other)]

    both(program, names=["one/items", "one/users", "other/items", "other/users"])
    warned(said)


# What is read as a whole stays: it was looked at with its optimizer, and what came later by itself.
@support.run_by(both, "said", names=["one/items", "one/users", "other/items", "other/users"])
def test_an_optimizer_that_was_run_keeps_no_later_model_from_tables(is_on):  # noqa: F811
    one = scoped("one", True, "sgd")
    with support.started(support.new_session()) as session:
        yield one.trained(session, range(2))
        wide = v1.get_variable("wide", [ROWS, 2], initializer=v1.ones_initializer())
        second = v1.train.MomentumOptimizer(0.1, 0.9)
        train = second.minimize(tf.reduce_sum(tf.square(wide)))
        initialized(session, [wide] + second.variables())
        session.run(train)
        other = scoped("other", True, "adagrad")
        initialized(session, [one for one in v1.global_variables() if one.op.name.startswith("other")])
        for model in (other, one, other):
            yield model.trained(session, range(3))
        yield session.run(wide)


@pytest.mark.long
@support.run_by(in_sessions, "said", names=["items/embeddings", "items_1/embeddings", "items_2/embeddings"])
def test_models_of_keras_that_follow_each_other_are_tables(session):
    for turn, name in enumerate(("adam", "sgd", "rmsprop")):
        made = keras_model(name)
        yield fit(made, turn)
        yield made.predict(ids_and_labels()[0])
        yield made.get_weights()


@support.run_by(both, "said", names=["one/items", "one/users"])
def test_variables_that_were_run_before_their_training_ops_stay_beside_tables(is_on):
    one = scoped("one", True, "adagrad")
    with support.started(support.new_session()) as session:
        yield one.trained(session, range(2))
        added = v1.get_variable("added", [ROWS, DIM], initializer=v1.constant_initializer(0.3))
        rows = tf.nn.embedding_lookup(added, one.ids)
        session.run(added.initializer)
        yield session.run(rows, one.feeds(1))
        second = v1.train.MomentumOptimizer(0.1, 0.9)
        train = second.minimize(tf.reduce_mean(tf.square(rows)), var_list=[added])
        initialized(session, second.variables())
        for number in range(3):
            session.run(train, one.feeds(number))
            yield one.trained(session, [number])
        yield session.run(added)


def test_tensors_are_those_of_tables_where_the_pass_fails(said, monkeypatch):
    """Objects that the program holds moved to the lookups of tables before, and not with the pass alone."""
    apply = fuse.Fusing.apply

    def failing(self):
        apply(self)
        raise RuntimeError("no")

    monkeypatch.setattr(fuse.Fusing, "apply", failing)

    def program(is_on):
        ids = v1.placeholder(tf.int64, [None])
        rows = tf.gather(v1.get_variable("users", [ROWS, DIM], initializer=v1.constant_initializer(0.2), use_resource=False), ids)
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_mean(tf.sin(rows)))
        with support.started(support.new_session()) as session:
            for number in range(3):
                session.run(train, {ids: np.arange(number, 20)})
                yield session.run(rows, {ids: np.arange(30)})

    both(program, names=["users"])
    assert any("the graph runs without" in one for one in said())
