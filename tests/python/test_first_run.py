"""Session programs that know nothing of tables: the first run of their graph converts it, Savers that they made before included."""

import contextlib
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import stock_cases as cases
import support
from mx_rec.saver.var_lists import KnownSaver
from mx_rec.stock import convert
from mx_rec.stock.convert import converted
from mx_rec.tensorflow.versions import IS_1
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

ROWS, DIM = 60, 4
STEPS = 6


@contextlib.contextmanager
def settings(tables, **options):
    """`init(stock_tables=...)` of all variables of ROWS rows, or nothing."""
    if not tables:
        yield
        return
    with support.initialized(stock_tables=StockTables(**dict({"least_rows": ROWS}, **options))):
        yield


class Model:
    """Two variables that can be tables, and dense ones."""

    def __init__(self, resource=True, optimizer="adagrad", partitioner=None):
        self.step = v1.train.get_or_create_global_step()
        self.ids, self.labels = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None])
        self.users, self.items = [v1.get_variable(
            name, [ROWS, DIM], initializer=v1.constant_initializer(start), use_resource=resource, partitioner=partitioner)
            for name, start in (("users", 0.2), ("items", -0.1))]
        self.w = v1.get_variable("w", [DIM, 1], initializer=v1.constant_initializer(0.5), use_resource=resource)
        self.rows = [tf.nn.embedding_lookup(one, self.ids, partition_strategy="div") for one in (self.users, self.items)]
        self.total = tf.squeeze(tf.matmul(self.rows[0] * 2.0 + tf.sin(self.rows[1]), self.w), 1)
        self.loss = tf.reduce_mean(tf.square(self.total - self.labels))
        self.optimizer = cases.optimizers()[optimizer]()
        self.train = self.optimizer.minimize(self.loss, self.step)

    def feeds(self, number):
        random = np.random.RandomState(number)
        ids = random.zipf(1.3, [20]) % ROWS
        return {self.ids: ids, self.labels: np.sin(ids).astype(np.float32)}

    def trained(self, session, numbers, run=None):
        """Trains; returns the losses."""
        run = run or session.run
        return [run([self.loss, self.train], self.feeds(number))[0] for number in numbers]

    def all_rows(self, session):
        return np.concatenate([one.ravel() for one in session.run(self.rows, {self.ids: np.arange(ROWS)})])


def tables(graph):
    """The names of the variables of a graph that are tables."""
    return sorted(one.plan.name for one in converted(graph))


def flat(value):
    """The numbers of an array, or of a list of such."""
    return np.hstack([flat(one) for one in value]) if isinstance(value, list) else np.ravel(value)


def warned(said, times=1):
    found = said()
    assert len(found) == times and all("the tables are variables again" in one for one in found), found


def both(program, *arguments, names=("items", "users"), said=None, times=0, **options):
    """Runs a program on variables and on tables, and compares what it returns.

    Args:
        program: Takes the arguments and returns numbers; makes ops in the default graph.
        names: Of the variables that become tables.
        said: What the package has logged; it has to warn so many times that tables are variables again.
        options: Of StockTables.
    """
    seen = []
    for is_on in (False, True):
        with settings(is_on, **options), tf.Graph().as_default() as graph:
            graph.seed = 4
            seen.append(np.concatenate([flat(one) for one in program(is_on, *arguments)]))
            assert tables(graph) == (list(names) if is_on else [])
    assert len(set(seen[0])) > 3 and np.isfinite(seen[0]).all()
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5, atol=1e-6)
    if said is not None:
        warned(said, times)


def saved_values(path, **model):
    """All that a checkpoint has, as a program without tables reads it: rows, slots, dense variables."""
    with tf.Graph().as_default(), v1.Session() as session:
        Model(**model)
        v1.train.Saver().restore(session, path)
        return session.run(v1.global_variables())


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "momentum", "ftrl"])
@support.run_by(both, "said")
def test_the_first_run_of_a_session_converts_its_graph(is_on, resource, optimizer):
    """`init(stock_tables=...)` and a plain session: all variables stayed, unless the script called a function of this package."""
    model = Model(resource, optimizer)
    init = tf.compat.v1.global_variables_initializer()
    with support.started(support.new_session(), init) as session:
        yield model.trained(session, range(STEPS))
        yield model.all_rows(session)
        session.run(init)
        yield model.trained(session, range(STEPS, 2 * STEPS))


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("way", ["make_callable", "partial_run", "feed_rows", "name", "control_dependencies"])
@support.run_by(both)
def test_each_way_to_run_converts(is_on, resource, way):
    model = Model(resource)
    with support.new_session() as session:
        if way != "control_dependencies":
            session.make_callable(v1.global_variables_initializer())()
        if way == "make_callable":
            step = session.make_callable([model.loss, model.train], [model.ids, model.labels])
            yield [step(*model.feeds(number).values())[0] for number in range(STEPS)]
        elif way == "partial_run":
            with tf.control_dependencies([model.train]):
                after = tf.identity(model.loss)
            for number in range(STEPS):
                handle = session.partial_run_setup([model.total, after], [model.ids, model.labels])
                feeds = model.feeds(number)
                yield session.partial_run(handle, model.total, {model.ids: feeds[model.ids]})
                yield [session.partial_run(handle, after, {model.labels: feeds[model.labels]})]
        elif way == "feed_rows":
            for number in range(STEPS):
                feeds = model.feeds(number)
                feeds[model.total] = np.cos(np.arange(20)).astype(np.float32)
                yield session.run(model.loss, feeds)
                yield model.trained(session, [number])
        elif way == "name":
            for number in range(STEPS):
                yield session.run([model.loss.name, model.train.name], model.feeds(number))[0]
                yield session.run(model.rows[0].name, {model.ids.name: [1, 2, 59]})
        else:
            with tf.control_dependencies([model.train]):
                after = tf.identity(model.loss)
            with tf.control_dependencies([model.users.initializer, model.items.initializer]):
                started = v1.variables_initializer([model.w, model.step] + model.optimizer.variables())
            session.run(started)
            for number in range(STEPS):
                yield session.run(after, model.feeds(number))
        yield model.all_rows(session)


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@support.run_by(both)
def test_initializers_that_a_program_holds_start_tables(is_on, resource, optimizer):
    """session.run([v.initializer for v in tf.global_variables()]): "Operation 'users/Assign' has been marked as not fetchable"."""
    model = Model(resource, optimizer)
    all_of_them = [one.initializer for one in v1.global_variables()]
    of_optimizer = [one.initializer for one in model.optimizer.variables()]
    with support.new_session() as session:
        session.run(all_of_them)
        yield model.trained(session, range(STEPS))
        session.run(of_optimizer)
        yield model.all_rows(session)
        yield model.trained(session, range(STEPS, 2 * STEPS))
        session.run(all_of_them)
        yield model.all_rows(session)
        yield model.trained(session, range(STEPS))


# Ways in which programs take over what they find in a checkpoint.
def listed_and_restored(path, variables):
    return v1.train.Saver([one for one in variables if one.op.name in dict(tf.train.list_variables(path))]).restore


def listed_and_started(path, _):
    found = dict(tf.train.list_variables(path))
    trained = [one for one in v1.trainable_variables() if one.op.name in found]
    assert len(trained) == 3
    v1.train.init_from_checkpoint(path, {one.op.name: one.op.name for one in trained})


def started_by_scope(path, _):
    v1.train.init_from_checkpoint(path, {"/": "/"})


def read_and_assigned(path, variables):
    reader = v1.train.NewCheckpointReader(path)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    found = [one for one in variables if reader.has_tensor(one.op.name)]
    assert all(one.shape.as_list() == shapes[one.op.name] and one.dtype.base_dtype == types[one.op.name] for one in found)
    return lambda session, _: session.run([one.assign(reader.get_tensor(one.op.name)) for one in found])


@pytest.mark.skipif(not IS_1, reason="modules of 2.x are there once")
def test_modules_of_tensorflow_that_a_program_imports_by_name_have_the_readers():
    """`from tensorflow.train import ...`, as in EasyRec, makes them anew: a reader of the second left tables out."""
    said = preloaded.run_python("""
import mx_rec
import tensorflow as tf
first = tf.train
import tensorflow.train
import tensorflow.compat.v1.train as second
print(tf.train is first, *[hasattr(one.NewCheckpointReader, "__wrapped__") for one in (first, tf.train, second)])
""")
    assert said.split() == ["False", "True", "True", "True"]


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("way", [listed_and_restored, listed_and_started, started_by_scope, read_and_assigned],
                         ids=lambda way: way.__name__)
def test_what_a_program_finds_in_a_checkpoint_has_the_variables_that_are_tables(said, tmp_path, way, resource):
    """Readers did not list tables: rows of a program that takes over what it finds stayed as they were."""
    def save(is_on):
        model = Model(resource)
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(3))
            yield model.all_rows(session)
            v1.train.Saver().save(session, str(tmp_path / str(is_on)))

    def go_on(is_on):
        model, path = Model(resource), str(tmp_path / str(is_on))
        variables = v1.global_variables()
        restore = way(path, variables)
        with support.started(support.new_session()) as session:
            if restore is not None:
                restore(session, path)
            yield model.all_rows(session)
            yield model.trained(session, range(3, 6))

    both(save)
    paths = [str(tmp_path / name) for name in ("False", "True")]
    assert "users" not in support.variables_in(paths[1]) and "users" in support.variables_in(paths[0])
    assert tf.train.list_variables(paths[1]) == tf.train.list_variables(paths[0])
    both(go_on, names=["items", "users"])
    assert not said()


def test_sessions_of_a_server_share_variables_and_no_tables(said):
    """The second session of a server had tables of its own, with the rows that they start with."""
    def program(is_on):
        model = Model()
        target = v1.train.Server.create_local_server().target
        with v1.Session(target) as first:
            first.run(v1.global_variables_initializer())
            yield model.trained(first, range(3))
            with v1.Session(target) as second:
                yield model.trained(second, range(3, 6))
                yield model.all_rows(second)
            yield model.trained(first, range(6, 9))

    both(program, names=[])
    warned, = said()
    assert "whose sessions share variables" in warned


def saver_class():
    class Own(tf.compat.v1.train.Saver):
        """A Saver of a script."""

        def __init__(self, *args, **kwargs):
            super(Own, self).__init__(*args, **kwargs)
            self.saves = 0

        def save(self, *args, **kwargs):
            self.saves += 1
            return super(Own, self).save(*args, **kwargs)

    return Own


SAVERS = {
    "all": lambda v1, model: v1.train.Saver(),
    "list": lambda v1, model: v1.train.Saver(v1.global_variables()),
    "dict": lambda v1, model: v1.train.Saver({one.op.name: one for one in v1.global_variables()}),
    "sharded": lambda v1, model: v1.train.Saver(sharded=True),
    "few-kept": lambda v1, model: v1.train.Saver(max_to_keep=2, name="mine"),
    "sequential": lambda v1, model: v1.train.Saver(restore_sequentially=True, reshape=True),
    "v1": lambda v1, model: v1.train.Saver(pad_step_number=True, filename="here"),
    "own": lambda v1, model: saver_class()(),
    "tables-alone": lambda v1, model: v1.train.Saver([one for one in v1.global_variables() if one.shape.as_list() == [ROWS, DIM]]),
}


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("kind", sorted(SAVERS))
def test_a_saver_that_was_made_before_saves_and_restores_the_tables(resource, kind, tmp_path, said):
    """The variables of a Saver that was made while the graph was built stayed TensorFlow's: most scripts make one."""
    saved = {}

    def program(is_on):
        (tmp_path / str(is_on)).mkdir()
        model = Model(resource)
        saver = SAVERS[kind](v1, model)
        extra = v1.train.Saver()
        init = v1.global_variables_initializer()
        with support.started(support.new_session(), init) as session:
            yield model.trained(session, range(3))
            path = saver.save(session, str(tmp_path / str(is_on) / "model"), global_step=model.step)
            saved[is_on] = extra.save(session, str(tmp_path / "all{}".format(is_on)))
            yield model.trained(session, range(3, 6))
            saver.restore(session, path)
            yield model.all_rows(session)
            yield session.run([model.w, model.step])
            yield model.trained(session, range(6, 9))
        with support.started(support.new_session(), init) as session:
            saver.restore(session, path)
            yield model.trained(session, range(3))
            for number in range(20, 24):
                saver.save(session, str(tmp_path / str(is_on) / "model"), global_step=number, write_meta_graph=False)
            yield [len(saver.last_checkpoints)]
        # What TensorFlow has saved is restored by a Saver that was made before, too.
        with support.started(support.new_session(), init) as session:
            extra.restore(session, saved[False])
            yield model.all_rows(session)
            yield model.trained(session, range(3, 6))

    both(program)
    assert not said()
    # And the way back.
    for one, other in zip(saved_values(saved[True], resource=resource), saved_values(saved[False], resource=resource)):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["monitored", "singular", "supervisor", "supervisor-own", "estimator-like"])
@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_sessions_that_manage_checkpoints_convert_and_go_on(resource, kind, tmp_path, said):
    def program(is_on):
        place = str(tmp_path / "{}".format(is_on))
        for count in range(2):
            with tf.Graph().as_default() as graph:
                graph.seed = 4
                model = Model(resource)
                ready = v1.report_uninitialized_variables()
                if kind.startswith("supervisor"):
                    own = {} if kind == "supervisor" else {"saver": v1.train.Saver(), "ready_op": ready,
                                                           "init_op": v1.global_variables_initializer()}
                    supervisor = v1.train.Supervisor(logdir=place, global_step=model.step, save_model_secs=0, summary_op=None, **own)
                    with supervisor.managed_session() as session:
                        yield [session.run(model.step)]
                        yield model.trained(session, range(count, count + STEPS))
                        yield model.all_rows(session)
                        supervisor.saver.save(session, supervisor.save_path, model.step)
                else:
                    saver = v1.train.Saver()
                    if kind == "estimator-like":
                        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
                    scaffold = v1.train.Scaffold(saver=None if kind == "estimator-like" else saver, ready_op=ready,
                                                 init_op=v1.global_variables_initializer(),
                                                 init_fn=lambda scaffold, session: session.run(model.step.initializer))
                    hooks = [v1.train.CheckpointSaverHook(place, save_steps=2, saver=saver)]
                    if kind == "singular":
                        opened = v1.train.SingularMonitoredSession(hooks, scaffold, checkpoint_dir=place)
                    else:
                        opened = v1.train.MonitoredTrainingSession(
                            scaffold=scaffold, checkpoint_dir=place, hooks=hooks, save_checkpoint_secs=None,
                            save_checkpoint_steps=None, log_step_count_steps=None)
                    with opened as session:
                        yield [session.run(model.step)]
                        yield model.trained(session, range(count, count + STEPS))
                        yield model.all_rows(session)
                assert tables(graph) == (["items", "users"] if is_on else [])

    both(program, names=())
    assert not said()
    for one, other in zip(*[saved_values(tf.train.latest_checkpoint(str(tmp_path / is_on)), resource=resource)
                            for is_on in ("True", "False")]):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@support.run_by(both)
def test_a_saver_of_some_variables_under_other_names_is_built_anew_too(is_on, tmp_path):
    """Under another name than its own, a variable is saved as one, and under its own it is its table."""
    model = Model()
    saver = v1.train.Saver({"other": model.users, "items": model.items, "w": model.w})
    of_dense = v1.train.Saver([model.w])
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(3))
        path = saver.save(session, str(tmp_path / str(is_on)))
        dense = of_dense.save(session, str(tmp_path / "dense{}".format(is_on)))
        assert support.variables_in(dense) == ["w"]
        assert support.variables_in(path) == ["other", "w"] if is_on else ["items", "other", "w"]
        yield tf.train.load_variable(path, "other").ravel()
        yield model.trained(session, range(3, 4))
        of_dense.restore(session, dense)
        yield model.all_rows(session)
        # A table is saved with its slots, and so is items; users keeps those that it has.
        saver.restore(session, path)
        yield model.all_rows(session)


@pytest.mark.parametrize("way", ["saver_def", "needed", "slots-alone", "imported"])
def test_variables_of_savers_that_cannot_be_built_anew_stay_with_a_warning(way, tmp_path, said):
    path = str(tmp_path / "model")
    if way == "imported":
        with tf.Graph().as_default():
            model = Model()
            made = [model.ids.name, model.labels.name, model.loss.name, model.train.name]
            v1.train.Saver()
            v1.train.export_meta_graph(path, collection_list=None, saver_def=v1.train.Saver().saver_def)
    with settings(True), tf.Graph().as_default() as graph:
        if way == "imported":
            saver = v1.train.import_meta_graph(path)
            ids, labels, loss, train = made
        else:
            model = Model()
            ids, labels, loss, train = model.ids, model.labels, model.loss, model.train
            saver = v1.train.Saver()
        if way == "saver_def":
            saver = v1.train.Saver(saver_def=saver.as_saver_def())
        if way == "slots-alone":
            v1.train.Saver(model.optimizer.variables())
        if way == "needed":
            tf.group(graph.get_operation_by_name(saver.saver_def.restore_op_name), name="also")
        with support.started(support.new_session()) as session:
            seen = session.run([loss, train], {ids: [1, 2], labels: [1.0, 2.0]})[0]
            saver.save(session, path)
            session.run(train, {ids: [1, 2], labels: [1.0, 2.0]})
            saver.restore(session, path)
            assert session.run(loss, {ids: [1, 2], labels: [1.0, 2.0]}) < seen
        assert tables(graph) == []
        assert {name for name, _ in tf.train.list_variables(path)} >= {"items", "users"}
    warned, = said()
    assert "items, users" in warned and "cannot be built anew" in warned


def test_ops_of_a_saver_that_was_built_anew_cannot_be_run(tmp_path):
    """They would save the variables that nothing trains any more."""
    with settings(True), tf.Graph().as_default() as graph:
        model = Model()
        saver = v1.train.Saver()
        before = saver.as_saver_def()
        kept = type(before)()
        kept.CopyFrom(before)
        with support.started(support.new_session()) as session:
            assert tables(graph) == ["items", "users"]
            for name in (kept.save_tensor_name, kept.restore_op_name):
                with pytest.raises(ValueError, match="not fetchable"):
                    session.run(name, {kept.filename_tensor_name: str(tmp_path / "dead")})
            with pytest.raises(ValueError, match="not fetchable"):
                v1.train.Saver(saver_def=kept).save(session, str(tmp_path / "dead"))
            path = saver.save(session, str(tmp_path / "model"))
    # Its graph is written with the ops that save the tables.
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(path + ".meta")
        with support.restored(support.new_session(), saver, path) as session:
            assert session.run(model.rows[0].name, {model.ids.name: [3]}).tolist() == [[np.float32(0.2)] * DIM]


@support.run_by(both, "said")
def test_two_sessions_run_a_graph_one_after_another_and_at_once(is_on):
    model = Model()
    init = v1.global_variables_initializer()
    for _ in range(2):
        with support.started(support.new_session(), init) as session:
            yield model.trained(session, range(STEPS))

    def run(session):
        session.run(init)
        return model.trained(session, range(STEPS))

    yield from support.in_threads(run, [support.new_session() for _ in range(2)])


def test_first_runs_of_two_sessions_at_once_convert_once(caplog):
    caplog.set_level("INFO", "mx_rec")
    for _ in range(5):
        caplog.clear()
        with settings(True), tf.Graph().as_default() as graph:
            model = Model()
            init = v1.global_variables_initializer()
            sessions = [support.new_session(graph) for _ in range(3)]

            def run(session):
                session.run(init)
                return model.trained(session, range(STEPS))

            found = support.in_threads(run, sessions)
            assert found[0] == found[1] == found[2]
            assert tables(graph) == ["items", "users"]
        assert sum("is the table users" in record.getMessage() for record in caplog.records) == 1


def test_a_session_that_begins_while_another_one_converts_its_graph_waits(monkeypatch):
    """It would run a graph of which a part is on tables."""
    stock, begun = convert.fuse, threading.Event()

    def slow(*args):
        begun.set()
        time.sleep(0.5)
        return stock(*args)

    monkeypatch.setattr(convert, "fuse", slow)
    with settings(True), tf.Graph().as_default() as graph:
        model = Model()
        init = v1.global_variables_initializer()
        sessions = [support.new_session(graph) for _ in range(2)]

        def run(at):
            if at:
                begun.wait()
            sessions[at].run(init)
            return model.trained(sessions[at], range(STEPS))

        found = support.in_threads(run, range(2))
        assert found[0] == found[1] and found[0] and tables(graph) == ["items", "users"]


@pytest.mark.long
@support.run_by(both)
def test_a_graph_that_grows_after_its_first_run_sees_the_tables(is_on, tmp_path):
    model = Model()
    with support.started(support.new_session()) as session:
        yield model.trained(session, range(3))
        asked = v1.placeholder(tf.int64, [None])
        tower = tf.reduce_sum(tf.nn.embedding_lookup(model.users, asked), 1)
        yield session.run(tower, {asked: np.arange(ROWS)})
        yield session.make_callable(tower, [asked])([1, 2, 3])
        yield session.run(model.items).ravel()
        saver = v1.train.Saver()
        path = saver.save(session, str(tmp_path / str(is_on)))
        yield model.trained(session, range(3, 5))
        saver.restore(session, path)
        yield model.all_rows(session)
        session.run(v1.assign(model.users, tf.ones([ROWS, DIM])))
        yield model.trained(session, range(5, 7))
        yield [len(session.run(v1.report_uninitialized_variables()))]


@pytest.mark.parametrize("is_closed", [False, True])
@support.run_by(both, "said", names=["users"])
def test_training_ops_may_be_made_after_the_first_run(is_on, is_closed):
    users = v1.get_variable("users", [ROWS, DIM], initializer=v1.constant_initializer(0.2))
    ids = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.square(tf.gather(users, ids) - 1.0))
    session = support.new_session()
    session.run(users.initializer)
    yield session.run(loss, {ids: [1, 2]}).reshape(1)
    if is_closed:
        session.close()
        session = support.new_session()
    train = v1.train.AdagradOptimizer(0.1).minimize(loss)
    session.run(v1.global_variables_initializer())
    yield [session.run([loss, train], {ids: [number % 7, 5, 5, 9]})[0] for number in range(8)]
    session.close()


@support.run_by(both)
def test_a_session_that_ran_before_there_was_a_variable_converts(is_on):
    with support.new_session() as session:
        yield [session.run(tf.constant(1.0) + 1.0)]
        model = Model()
        session.run(v1.global_variables_initializer())
        yield model.trained(session, range(STEPS))


FAULTS = ["make_table", "fuse", "forget_variables", "forbid_dropped_feeds", "late_ops", "saver"]


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_conversion_that_fails_leaves_the_graph_as_it_was(monkeypatch, fault, resource, tmp_path, said):
    def fail(*args, **kwargs):
        raise RuntimeError("a fault at " + fault)

    def program(is_on):
        model = Model(resource)
        saver = v1.train.Saver()
        init, ready = v1.global_variables_initializer(), v1.report_uninitialized_variables()
        graph = tf.compat.v1.get_default_graph()
        before = list(graph.as_graph_def().node)
        collections = {key: graph.get_collection(key) for key in graph.get_all_collection_keys()}
        with support.new_session() as session:
            yield [len(session.run(ready))]
            session.run(init)
            yield [len(session.run(ready))]
            assert list(graph.as_graph_def().node)[:len(before)] == before
            assert all(graph.get_collection(key) == values for key, values in collections.items())
            yield model.trained(session, range(3))
            path = saver.save(session, str(tmp_path / str(is_on)))
            yield model.trained(session, range(3, 6))
            saver.restore(session, path)
            yield model.all_rows(session)
            model.users.load(np.ones([ROWS, DIM], np.float32), session)
            yield model.trained(session, range(6, 9))
            yield session.run(model.loss, {model.total: np.ones(3), model.labels: np.zeros(3)}).reshape(1)
        assert not (tmp_path / "sparse-{}".format(is_on)).exists()

    if fault == "saver":
        monkeypatch.setattr(KnownSaver, "build_anew", fail)
    else:
        monkeypatch.setattr(convert, fault, fail)
    both(program, names=[])
    warned, = said()
    assert "a fault at " + fault in warned and "stay TensorFlow's" in warned


def test_rows_on_disk_without_their_directory_leave_the_program_on_variables(tmp_path, said):
    """The second of two tables cannot be made: the first is left, too, and is in no checkpoint."""
    place = tmp_path / "rows"

    def program(is_on):
        place.mkdir(exist_ok=True)
        model = Model()
        saver = v1.train.Saver()
        if is_on:
            place.rmdir()
        with support.started(support.new_session()) as session:
            yield model.trained(session, range(STEPS))
            saver.restore(session, saver.save(session, str(tmp_path / str(is_on))))
            yield model.all_rows(session)

    place.mkdir()
    both(program, names=[], memory_rows=10, ssd_data_path=[str(place)])
    assert len(said()) == 1 and str(place) in said()[0]
    assert not list(tmp_path.glob("sparse-*"))


@pytest.mark.parametrize("why", ["small", "no training", "other names", "settled"])
def test_a_graph_without_candidates_is_not_written_out(monkeypatch, why, said):
    written = []
    stock = tf.Graph.as_graph_def
    with settings(True, least_rows=ROWS + 1 if why == "small" else ROWS, names=["nothing" if why == "other names" else ".*"]), \
            tf.Graph().as_default() as graph:
        if why == "no training":
            loss = tf.reduce_sum(tf.gather(v1.get_variable("users", [ROWS, DIM]), [1, 2]))
        else:
            loss = Model().loss
        if why == "settled":
            support.keep_variables(graph)
        monkeypatch.setattr(tf.Graph, "as_graph_def", lambda self, *args, **kwargs: written.append(self) or stock(self, *args, **kwargs))
        with support.started(support.new_session()) as session:
            session.run(tf.constant(1))
            assert not written and tables(graph) == [] and loss.graph is graph
    assert not said()


@pytest.mark.parametrize("strategy", ["OneDeviceStrategy", "MirroredStrategy"])
def test_variables_of_a_distribution_strategy_stay_outside_of_its_scope_too(strategy, said):
    with settings(True), tf.Graph().as_default() as graph:
        chosen = tf.distribute.OneDeviceStrategy("/cpu:0") if strategy == "OneDeviceStrategy" \
            else tf.distribute.MirroredStrategy(["/cpu:0"])
        with chosen.scope():
            users = v1.get_variable("users", [ROWS, DIM], initializer=v1.ones_initializer())
        rows = tf.gather(users.read_value(), [1, 2])
        update = tf.raw_ops.ResourceScatterAdd(
            resource=getattr(users, "primary", getattr(users, "_primary_var", users)).handle, indices=[1], updates=tf.ones([1, DIM]))
        with support.started(support.new_session()) as session:
            session.run(update)
            assert session.run(rows).tolist() == [[2.0] * DIM, [1.0] * DIM]
        assert tables(graph) == []


@pytest.mark.parametrize("weights, optimizer", [("none", "SGD"), ("before", "SGD"), ("after", "SGD"), ("after", "Adam")])
def test_a_keras_model_trains_on_tables_and_gives_its_weights(weights, optimizer, said):
    """Keras runs its functions by a method of sessions of its own, which saw neither the tables nor ops that were made later."""
    keras = tf.keras

    def program(is_on):
        with support.new_session() as session:
            keras.backend.set_session(session)
            try:
                model = keras.Sequential([
                    keras.layers.Embedding(ROWS, DIM, input_length=3, embeddings_initializer=keras.initializers.Constant(0.1)),
                    keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.2))])
                model.compile(getattr(keras.optimizers, optimizer)(0.1), "mse")
                start = [0.01 * np.arange(np.prod(one.shape.as_list())).reshape(one.shape.as_list()) for one in model.weights]
                if weights == "before":
                    model.set_weights(start)
                data = list(cases.batches(STEPS))
                yield [float(model.train_on_batch(ids % ROWS, labels)) for ids, labels in data]
                if weights == "after":
                    model.set_weights(start)
                yield model.predict(data[0][0])
                yield [float(model.train_on_batch(ids % ROWS, labels)) for ids, labels in data]
                yield [float(model.evaluate(*data[1], verbose=0))]
                yield model.get_weights()
            finally:
                keras.backend.set_session(None)

    both(program, names=["embedding/embeddings"])
    assert not said()
