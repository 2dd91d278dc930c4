"""`tf.train.init_from_checkpoint`: variables that start with those of another model, by an assignment map, become tables."""

import os

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from test_first_run import DIM, ROWS, Model, both
from mx_rec.stock.select import decisions

v1 = tf.compat.v1


@pytest.fixture
def source(tmp_path):
    """A checkpoint of another model, without tables; users and items under other names."""
    with tf.Graph().as_default(), support.new_session() as session:
        random = np.random.RandomState(5)
        for name in ("old/users", "old/items"):
            v1.get_variable(name, initializer=random.randn(ROWS, DIM).astype(np.float32))
        v1.get_variable("old/w", initializer=random.randn(DIM, 1).astype(np.float32))
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, os.path.join(str(tmp_path), "source"))


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum", "ftrl"])
@pytest.mark.parametrize("given", [{"old/users": "users", "old/items": "items"}, {"old/users": "users"}, {"old/items": "users", "old/w": "w"}])
@support.run_by(both, "said")
def test_a_variable_starts_with_that_of_another_model(is_on, source, tmp_path, resource, optimizer, given):
    model = Model(resource, optimizer)
    v1.train.init_from_checkpoint(source, given)
    init = v1.global_variables_initializer()
    with support.started(support.new_session(), init) as session:
        yield model.all_rows(session)
        yield model.trained(session, range(5))
        path = v1.train.Saver().save(session, os.path.join(str(tmp_path), "on" if is_on else "off"))
        session.run(init)
        yield model.all_rows(session)
        yield model.trained(session, range(5, 8))
        v1.train.Saver().restore(session, path)
        yield model.all_rows(session)
        yield [len(session.run(v1.report_uninitialized_variables()))]


@pytest.fixture
def trained(tmp_path, resource, optimizer, monkeypatch):
    """A checkpoint of the model itself after some steps, with its optimizer's variables."""
    known = dict(cases.optimizers(), adam=lambda: v1.train.AdamOptimizer(0.02))
    monkeypatch.setattr(cases, "optimizers", lambda: known)
    with tf.Graph().as_default():
        model = Model(resource, optimizer)
        with support.started(support.new_session()) as session:
            model.trained(session, range(20, 25))
            return v1.train.Saver().save(session, os.path.join(str(tmp_path), "trained"))


def slots_of(model, name):
    """The slots of a variable by their names."""
    return {one.op.name: one for one in model.optimizer.variables() if one.op.name.startswith(name + "/")}


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum", "ftrl", "adam", "lazy_adam", "centered_rmsprop"])
@pytest.mark.parametrize("given", ["all", "one"])
@support.run_by(both, "said")
def test_slots_start_with_those_of_another_training(is_on, trained, tmp_path, resource, optimizer, given):
    """EasyRec's fine_tune_checkpoint: such variables stayed TensorFlow's."""
    model = Model(resource, optimizer)
    v1.train.init_from_checkpoint(trained, {"/": "/"} if given == "all" else {"users": model.users, **slots_of(model, "users")})
    init = v1.global_variables_initializer()
    with support.started(support.new_session(), init) as session:
        yield model.all_rows(session)
        yield model.trained(session, range(5))
        path = v1.train.Saver().save(session, os.path.join(str(tmp_path), "on" if is_on else "off"))
        session.run(init)
        yield model.trained(session, range(5, 8))
        # Made after the conversion: of all variables, and of the optimizer's alone.
        session.run(v1.global_variables_initializer())
        yield model.trained(session, range(8, 11))
        session.run(v1.variables_initializer(model.optimizer.variables()))
        yield model.trained(session, range(11, 14))
        v1.train.Saver().restore(session, path)
        yield model.trained(session, range(14, 17))


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@support.run_by(both, names=["users"])
def test_a_variable_that_was_run_before_starts_so_again(is_on, source, resource):
    """The initializers of reference variables emptied their tables."""
    users = v1.get_variable("users", [ROWS, DIM], initializer=v1.zeros_initializer(), use_resource=resource)
    rows = tf.nn.embedding_lookup(users, np.arange(10))
    v1.train.init_from_checkpoint(source, {"old/users": "users"})
    session = support.started(support.new_session())
    yield session.run(rows)
    train = v1.train.AdagradOptimizer(0.1)
    train = train.minimize(tf.reduce_sum(tf.square(rows - 1.0))), v1.variables_initializer(train.variables())
    session.run(train[1])
    session.run(train[0])
    yield session.run(rows)
    session.run(users.initializer)
    yield session.run(rows)
    session.close()


@pytest.mark.parametrize("resource, optimizer", [(True, "adagrad")])
@support.run_by(both, names=["items"])
def test_slots_alone_that_start_so_keep_the_variable(is_on, trained, resource, optimizer):
    model = Model(resource, optimizer)
    v1.train.init_from_checkpoint(trained, slots_of(model, "users"))
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(5))


@pytest.mark.long
@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["momentum"])
@support.run_by(both)
def test_an_initializer_that_was_made_before_starts_slots_as_they_were_made(is_on, trained, resource, optimizer):
    model = Model(resource, optimizer)
    init = v1.global_variables_initializer()
    v1.train.init_from_checkpoint(trained, {"/": "/"})
    with support.started(support.new_session(), init) as session:
        yield model.trained(session, range(5))


@support.run_by(both, "said")
def test_of_two_maps_the_last_one_counts(is_on, source):
    model = Model()
    v1.train.init_from_checkpoint(source, {"old/users": "users"})
    v1.train.init_from_checkpoint(source, {"old/items": model.users})
    with support.started(support.new_session()) as session:
        yield model.all_rows(session)
        yield model.trained(session, range(5))


@support.run_by(both, names=["items", "users"])
def test_an_initializer_that_was_made_before_does_not_start_so(is_on, said, source):
    """TensorFlow's own: it is that of the variable as it was made."""
    model = Model()
    init = v1.global_variables_initializer()
    v1.train.init_from_checkpoint(source, {"old/users": "users"})
    with support.started(support.new_session(), init) as session:
        yield model.all_rows(session)
        yield model.trained(session, range(5))


@pytest.mark.long
def test_an_estimator_starts_so_and_goes_on_from_its_directory(mx, source, tmp_path):
    def model_fn(features, labels, mode):
        model = v1.get_variable("users", [ROWS, DIM], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(model, features), 1) - 1.0))
        v1.train.init_from_checkpoint(source, {"old/users": "users"})
        train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def feed():
        ids = np.random.RandomState(1).randint(0, ROWS // 2, 64)
        return tf.data.Dataset.from_tensor_slices((ids, np.zeros(64))).batch(8)

    def program(directory):
        found = []
        for _ in range(2):
            model = tf.estimator.Estimator(model_fn, str(tmp_path / directory), tf.estimator.RunConfig(tf_random_seed=3))
            model.train(feed)
            found += [model.evaluate(feed)["loss"], model.get_variable_value("users")]
        return found

    expected = program("variables")
    mx(stock_tables=["users"])
    found = program("tables")
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert [one.table for one in decisions() if one.name == "users"] == ["users"]
