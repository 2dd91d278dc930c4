"""Ops that are made on a variable after it became a table work on the table, or are errors that name both."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.late import LateOps
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
IDS = np.array([3, 3, 7, 0])
START = cases.start()


class Model:
    """A model whose variable becomes a table or stays, and a session in which it has trained.

    Attributes:
        w: The variable.
        slot: The accumulator of its optimizer.
        sess: The session.
    """

    def __init__(self, v1, use_resource, tables, steps=2, begin=None, **kwargs):
        self.graph = tf.Graph()
        with self.graph.as_default():
            v1.set_random_seed(1)
            self.w = v1.get_variable("w", START.shape, use_resource=use_resource,
                                     initializer=v1.random_uniform_initializer(-0.1, 0.1))
            self.ids = v1.placeholder(tf.int64, [None])
            self.loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(self.w, self.ids) - 1.0))
            optimizer = v1.train.AdagradOptimizer(0.1)
            self.train = optimizer.minimize(self.loss)
            self.slot = optimizer.get_slot(self.w, "accumulator")
            init = v1.global_variables_initializer()
            support.keep_variables()
            if tables:
                assert [plan.name for plan in convert_graph(self.graph, True) if plan.converts] == ["w"]
            self.extra = begin(self) if begin else None
            if kwargs.get("finalize"):
                self.graph.finalize()
            self.sess = support.new_session(self.graph)
            self.sess.run(init)
            if not tables:
                self.w.load(START, self.sess)
            else:
                cases.set_variable(self.sess, self.w, START)
            for _ in range(steps):
                self.step()

    def step(self):
        return self.sess.run([self.loss, self.train], {self.ids: IDS})[0]

    def rows(self):
        return self.sess.run(self.w)


def same(v1, use_resource, run, **kwargs):
    """What `run(model)` yields, by names, and then the rows and a step, are those of the variable."""
    seen = []
    for tables in (False, True):
        model = Model(v1, use_resource, tables, **kwargs)
        with model.graph.as_default(), model.sess.as_default():
            seen.append(list(run(model)) + [("rows", model.rows()), ("step", model.step()),
                                            ("rows", model.rows())])
        model.sess.close()
    assert [name for name, _ in seen[0]] == [name for name, _ in seen[1]]
    for (name, stock), (_, table) in zip(*seen):
        np.testing.assert_allclose(table, stock, rtol=cases.TOLERANCE, atol=cases.TOLERANCE, err_msg=name)


NEW = cases.start(seed=9)
SOME = np.array([5, 3, 5, 59])

WRITES = {
    "assign": lambda v1, m: m.w.assign(NEW),
    "assign_without_read": lambda v1, m: m.w.assign(NEW, read_value=False),
    "assign_form": lambda v1, m: v1.assign(m.w, NEW),
    "assign_of_itself": lambda v1, m: v1.assign(m.w, 2.0 * m.w),
    "assign_add": lambda v1, m: m.w.assign_add(NEW),
    "assign_sub": lambda v1, m: v1.assign_sub(m.w, NEW),
    "scatter_update": lambda v1, m: v1.scatter_update(m.w, SOME, NEW[:4]),
    "scatter_add": lambda v1, m: v1.scatter_add(m.w, SOME, NEW[:4]),
    "scatter_sub": lambda v1, m: v1.scatter_sub(m.w, SOME.astype(np.int32), NEW[:4]),
    "scatter_add_of_shape": lambda v1, m: v1.scatter_add(m.w, SOME.reshape(2, 2), NEW[:4].reshape(2, 2, -1)),
    "scatter_number": lambda v1, m: v1.scatter_update(m.w, SOME, 0.5),
    "scatter_none": lambda v1, m: v1.scatter_add(m.w, np.zeros([0], np.int64), np.zeros([0, cases.DIM], np.float32)),
    "method_update": lambda v1, m: m.w.scatter_update(v1.IndexedSlices(v1.constant(NEW[:4]), v1.constant(SOME))),
    "method_add": lambda v1, m: m.w.scatter_add(v1.IndexedSlices(v1.constant(NEW[:4]), v1.constant(SOME))),
    "method_sub": lambda v1, m: m.w.scatter_sub(v1.IndexedSlices(v1.constant(NEW[:4]), v1.constant(SOME))),
    "group": lambda v1, m: v1.group(m.w.assign(NEW)),
    "operation": lambda v1, m: v1.assign(m.w, NEW).op,
    "chain": lambda v1, m: v1.scatter_add(v1.assign(m.w, NEW), SOME, NEW[:4]),
    "slot_assign": lambda v1, m: m.slot.assign(np.abs(NEW) + 0.1),
    "slot_add": lambda v1, m: v1.scatter_add(m.slot, SOME, np.abs(NEW[:4])),
    "in_cond": lambda v1, m: v1.cond(v1.constant(True), lambda: v1.assign(m.w, NEW), lambda: v1.assign(m.w, 0.0 * NEW)),
    "in_cond_add": lambda v1, m: v1.cond(v1.constant(False), lambda: v1.scatter_add(m.w, SOME, NEW[:4]),
                                         lambda: v1.scatter_sub(m.w, SOME, NEW[:4])),
}


@pytest.mark.long
@KINDS
def test_what_sets_a_converted_variable_sets_its_table(v1, use_resource):
    """It set the dead variable without a word: rows that a hook loaded were not in the training."""

    def run(model):
        for name, make in WRITES.items():
            op = make(v1, model)
            got = model.sess.run(op)
            yield name, 0.0 if got is None else got
            yield name, model.rows()
            yield name, model.step()
        for variable, value in ((model.w, NEW), (model.slot, np.abs(NEW) + 0.1), (model.w, START)):
            variable.load(value)
            yield "load", model.rows()
            yield "load", model.sess.run(model.slot)
            yield "load", model.step()

    same(v1, use_resource, run)


@KINDS
@pytest.mark.parametrize("change", ["in_cond", "in_cond_add"])
def test_a_branch_that_changes_a_converted_variable_gives_it_on(v1, use_resource, change):
    """What was fetched of a reference variable was read beside the branch: "Retval[0] does not have value"."""

    def run(model):
        made = WRITES[change](v1, model)
        yield "given", model.sess.run(made)
        yield "and read", model.sess.run(2.0 * made)

    same(v1, use_resource, run)


@KINDS
@pytest.mark.parametrize("change", ["assign", "assign_without_read", "assign_add", "scatter_update", "group", "slot_assign"])
def test_what_waits_for_a_change_that_was_looked_at_before_waits_for_that_of_the_table(v1, use_resource, change):
    """It ran the op on the dead variable: an assignment was lost without a word, and others failed as if nothing had been initialized."""

    def run(model):
        made = WRITES[change](v1, model)
        # Looks at it.
        yield "step", model.step()
        with tf.control_dependencies([made]):
            behind = tf.gather(model.w, SOME) + tf.reduce_sum(model.slot)
        yield "behind", model.sess.run(behind)
        model.sess.run(tf.group(made))
        yield "group", model.rows()
        yield "slot", model.sess.run(model.slot)

    same(v1, use_resource, run)


@KINDS
def test_what_waits_for_an_update_of_before_the_conversion_waits_for_that_of_the_table(v1, use_resource):
    """As above: the group failed, and beside the training op the update has to run once."""

    def run(model):
        [update] = [op for op in model.graph.get_operations() if op.type.endswith("SparseApplyAdagrad")]
        group = tf.group(update)
        model.sess.run(group, {model.ids: SOME})
        yield "alone", model.rows()
        model.sess.run([group, model.train], {model.ids: SOME})
        yield "both", model.rows()

    same(v1, use_resource, run)


READS = {
    "fetch": lambda v1, m: m.w,
    "name": lambda v1, m: "w:0" if "Variable" in m.w.op.type else "w/Read/ReadVariableOp:0",
    "nested": lambda v1, m: [m.w, m.slot],
    "read_value": lambda v1, m: m.w.read_value(),
    "value": lambda v1, m: m.w.value(),
    "copy": lambda v1, m: v1.identity(m.w),
    "twice": lambda v1, m: 2.0 * m.w,
    "mean": lambda v1, m: v1.reduce_mean(m.w, 0),
    "slot": lambda v1, m: m.slot,
    "slot_sum": lambda v1, m: v1.reduce_sum(m.slot, 0),
    "slot_rows": lambda v1, m: v1.gather(m.slot, SOME),
    "gather": lambda v1, m: v1.gather(m.w, SOME),
    "gather_of_shape": lambda v1, m: v1.nn.embedding_lookup(m.w, SOME.reshape(2, 2)),
    "gather_int32": lambda v1, m: v1.nn.embedding_lookup(m.w, SOME.astype(np.int32)),
    "gather_axis": lambda v1, m: v1.gather(v1.identity(m.w), [1], axis=1),
    "sparse_read": lambda v1, m: m.w.sparse_read(SOME) if hasattr(m.w, "_handle") else v1.gather(m.w, SOME),
    "shape": lambda v1, m: v1.shape(m.w),
    "is_initialized": lambda v1, m: v1.is_variable_initialized(m.w),
    "none_missing": lambda v1, m: v1.report_uninitialized_variables([m.w, m.slot]),
    # TensorFlow 2.x has no method for resource variables.
    "initialized_value": lambda v1, m: m.w.initialized_value() if tf.__version__.startswith("1.") else m.w,
    "in_cond": lambda v1, m: v1.cond(v1.constant(True), lambda: v1.gather(m.w, SOME), lambda: v1.gather(m.w, SOME + 0)),
    "read_in_cond": lambda v1, m: v1.cond(v1.constant(False), lambda: 1.0 * m.w, lambda: 2.0 * m.w.read_value()),
    "in_loop": lambda v1, m: v1.while_loop(lambda i, t: i < 3, lambda i, t: [
        i + 1, t + v1.reduce_sum(v1.gather(m.w, [i]))], [0, 0.0])[1],
    "slices": lambda v1, m: m.w[2:4],
    "histogram": lambda v1, m: v1.reduce_max(v1.nn.l2_loss(m.w)),
}


@KINDS
def test_what_reads_a_converted_variable_reads_its_table(v1, use_resource):
    """sess.run(v) after a training was "Attempting to use uninitialized value v"."""

    def run(model):
        for name, make in READS.items():
            fetches = make(v1, model)
            got = model.sess.run(fetches)
            np.testing.assert_array_equal(model.sess.make_callable(fetches)(), got, err_msg=name)
            if name != "none_missing":
                yield name, got
            else:
                assert got.size == 0

    same(v1, use_resource, run)


@KINDS
def test_eval_and_waits_and_a_finalized_graph(v1, use_resource):
    def begin(model):
        with v1.control_dependencies([model.w.assign(NEW)]):
            read = model.w.read_value()
        with v1.control_dependencies([read]):
            later = v1.constant(1.0) + 0.0
        return read, later

    def run(model):
        yield "before", model.w.eval()
        yield "slot", model.slot.eval()
        yield "waits", model.sess.run(model.extra[1])
        yield "after", model.w.eval()
        yield "read", model.sess.run(model.extra[0])

    same(v1, use_resource, run, begin=begin, finalize=True)


@KINDS
@pytest.mark.parametrize("method", ["adopt", "_release_waiting"])
def test_ops_that_a_thread_makes_while_another_one_runs_work_on_the_table(v1, use_resource, method, monkeypatch):
    """An op that was made while a run of another thread prepared its session kept reading the variable, which has no value."""
    model = Model(v1, use_resource, True)
    made, threads = [], []

    def build():
        with model.graph.as_default():
            made.append(tf.gather(model.w, [1, 2]))

    def meanwhile(*_):
        if not threads:
            threads.append(threading.Thread(target=build))
            threads[0].start()
            threads[0].join(0.5)

    stock = getattr(LateOps, method)
    monkeypatch.setattr(LateOps, method, lambda self: (stock(self), meanwhile())[0])
    with model.graph.as_default():
        seen = tf.gather(model.w, [1, 2])
    before = model.sess.run(seen)
    threads[0].join()
    np.testing.assert_array_equal(model.sess.run(made[0]), before)
    np.testing.assert_array_equal(before, model.rows()[[1, 2]])
    model.sess.close()


def built_beside(v1, use_resource, tables, place, monkeypatch):
    """Two training ops of one variable, of which a thread runs the first when the other has `place` ops; returns all numbers, and the number of ops."""
    graph, made, threads, seen = tf.Graph(), [], [], []
    builder = threading.current_thread()
    with graph.as_default():
        w = v1.get_variable("w", START.shape, initializer=v1.constant_initializer(START), use_resource=use_resource)
        ids = v1.placeholder(tf.int64, [None])
        first = tf.reduce_sum(tf.square(tf.gather(w, ids) - 1.0))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(first)
        init, sess = v1.global_variables_initializer(), support.new_session(graph)
        if not tables:
            support.keep_variables()

        def meanwhile():
            sess.run(init)
            seen.append(sess.run([first, train], {ids: IDS})[0])

        def create(self, *args, stock=tf.Graph._create_op_internal, **kwargs):
            if self is graph and threading.current_thread() is builder:
                made.append(args)
                if len(made) == place:
                    threads.append(threading.Thread(target=meanwhile))
                    threads[0].start()
                    threads[0].join(0.5)
            return stock(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(tf.Graph, "_create_op_internal", create)
            loss = tf.reduce_sum(tf.abs(tf.nn.embedding_lookup(w, ids) - 2.0)) + tf.reduce_sum(tf.gather(w, ids + 1))
            other = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        for thread in threads:
            thread.join()
        if not threads:
            meanwhile()
        seen += [sess.run([found, each], {ids: IDS})[0] for found, each in ((loss, other), (first, train), (loss, other))]
        seen.append(sess.run(w))
        sess.close()
    return seen, len(made)


@pytest.mark.parametrize("parts", [pytest.param(40, marks=pytest.mark.long), 5])
@KINDS
def test_a_thread_makes_a_training_op_while_a_run_of_another_one_converts_the_graph(v1, use_resource, parts, monkeypatch):
    """The conversion took the gathers out of the graph from which the thread made gradients: the new op trained nothing, without a word."""
    expected, count = built_beside(v1, use_resource, False, 0, monkeypatch)
    for place in range(1, count + 1, count // parts):
        seen, _ = built_beside(v1, use_resource, True, place, monkeypatch)
        for name, (table, stock) in enumerate(zip(seen, expected)):
            np.testing.assert_allclose(table, stock, rtol=1e-5, atol=1e-5, err_msg="{} at {}".format(name, place))


@KINDS
@pytest.mark.parametrize("has_others", [False, True])
def test_an_initializer_of_all_variables_that_is_made_now_starts_the_table_again(v1, use_resource, has_others):
    """It left the rows of tables as the training before had them: the second of two trainings in one graph began with those of the first."""
    def initializers(model):
        if has_others:
            v1.get_variable("other", [], initializer=v1.ones_initializer(), use_resource=use_resource)
        model.locals = v1.local_variables_initializer()
        return [v1.global_variables_initializer(), v1.initializers.global_variables(), v1.initialize_all_variables(),
                v1.variables_initializer(iter(v1.global_variables()))]

    for which in range(4):
        model = Model(v1, use_resource, True, begin=initializers)
        trained = cases.value_of(model.sess, model.w)
        # A Scaffold runs it after a restore.
        model.sess.run(model.locals)
        np.testing.assert_array_equal(cases.value_of(model.sess, model.w), trained)
        model.sess.run(model.extra[which])
        start = cases.value_of(model.sess, model.w)
        assert not np.array_equal(start, trained) and 0.05 < np.abs(start).max() <= 0.1
        losses = [model.step() for _ in range(3)]
        model.sess.run(model.extra[which])
        np.testing.assert_array_equal(cases.value_of(model.sess, model.w), start)
        assert [model.step() for _ in range(3)] == losses


@KINDS
@pytest.mark.parametrize("optimizer", ["adagrad", "momentum", "sgd"])
def test_an_initializer_of_a_variable_alone_that_is_made_now_keeps_its_slots(v1, use_resource, optimizer):
    """The table was emptied: its slots started again as well."""
    seen = []
    for tables in (False, True):
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", START.shape, initializer=v1.constant_initializer(0.25), use_resource=use_resource)
            ids = v1.placeholder(tf.int64, [None])
            made = cases.optimizers()[optimizer]()
            train = made.minimize(tf.reduce_sum(tf.square(tf.gather(w, ids) - 1.0)))
            init = v1.global_variables_initializer()
            support.keep_variables()
            if tables:
                assert convert_graph(graph, True)[0].converts
            with support.started(support.new_session(), init) as sess:
                for of in ([w], v1.trainable_variables(), v1.global_variables()):
                    sess.run(train, {ids: IDS})
                    sess.run(v1.variables_initializer(of))
                    seen.append([sess.run(one) for one in v1.global_variables()])
    assert (seen[0][0] == 0.25).all() and (len(seen[0]) == 1 or seen[0][1].any())
    for table, stock in zip(seen[3:], seen[:3]):
        np.testing.assert_allclose(table, stock, rtol=1e-6)


@KINDS
def test_a_value_in_the_place_of_a_variable_is_refused(v1, use_resource):
    """What reads it reads the table: the value had no effect."""
    model = Model(v1, use_resource, True)
    with model.graph.as_default():
        copy = v1.identity(model.w)
        total = v1.reduce_sum(copy)
        model.sess.run(total)
        own = "w/read:0" if not use_resource else "w/Read/ReadVariableOp:0"
        for fed in (copy, own) + (() if use_resource else ("w:0",)):
            with pytest.raises(ValueError, match="may not be fed"):
                model.sess.run([total, model.loss], {fed: START, model.ids: IDS})


@KINDS
def test_rows_that_a_hook_loads_in_begin_are_those_of_the_training(v1, use_resource):
    losses = []
    for tables in (False, True):
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", START.shape, use_resource=use_resource)
            ids = tf.constant(IDS)
            loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, ids) - 1.0))
            train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())

            class Load(tf.estimator.SessionRunHook):
                def begin(self):
                    self.value = v1.placeholder(tf.float32, START.shape)
                    self.op = v1.assign(w, self.value)

                def after_create_session(self, session, coord):
                    session.run(self.op, {self.value: START})

            support.keep_variables()
            if tables:
                assert convert_graph(graph, True)[0].converts
            with v1.train.MonitoredSession(hooks=[Load()]) as sess:
                losses.append([sess.run([loss, train])[0] for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=cases.TOLERANCE)


REFUSED = {
    "scatter_mul": lambda v1, m: v1.scatter_mul(m.w, SOME, NEW[:4]),
    "scatter_max": lambda v1, m: v1.scatter_max(m.w, SOME, NEW[:4]),
    "scatter_nd_update": lambda v1, m: v1.scatter_nd_update(m.w, [[5, 1]], [0.5]),
    "scatter_nd_add": lambda v1, m: v1.scatter_nd_add(m.w, [[5, 1]], [0.5]),
    "adagrad": lambda v1, m: v1.train.AdagradOptimizer(0.1).apply_gradients(
        [(v1.IndexedSlices(NEW[:4], v1.constant(SOME), v1.constant(NEW.shape)), m.w)]),
    "dense": lambda v1, m: v1.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(v1.constant(NEW), m.w)]),
    "strided_slice": lambda v1, m: m.w[1:3].assign(NEW[:2]),
    "map": lambda v1, m: v1.data.make_initializable_iterator(
        v1.data.Dataset.range(3).map(lambda i: v1.gather(m.w, i))).initializer,
}


@KINDS
def test_what_a_table_cannot_do_is_an_error_that_names_it_and_the_training_goes_on(v1, use_resource):
    model = Model(v1, use_resource, True)
    with model.graph.as_default():
        for name, make in REFUSED.items():
            if name == "map" and not use_resource:
                continue  # TensorFlow refuses it
            op = make(v1, model)
            with v1.control_dependencies([op]):
                waiting = v1.constant(1)
            model.sess.run([one.initializer for one in v1.global_variables() if one is not model.slot])
            before = model.rows()
            for one in (op, waiting):
                with pytest.raises(tf.errors.InvalidArgumentError, match="variable w is the table w.*stock_tables"):
                    model.sess.run(one)
            np.testing.assert_array_equal(model.rows(), before)
            assert np.isfinite(model.step()) and (model.rows() != before).any()


@KINDS
def test_a_gradient_descent_that_is_built_later_trains_the_table(v1, use_resource):
    def run(model):
        loss = v1.reduce_sum(v1.square(v1.gather(model.w, SOME)))
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[model.w])
        for _ in range(3):
            yield "loss", model.sess.run([loss, step])[0]

    same(v1, use_resource, run)


@KINDS
@pytest.mark.parametrize("name", ["pretrained/rows", "w2"])
def test_a_saver_under_another_name_has_the_variable(v1, use_resource, name, tmp_path):
    """It saved the table under its own name, and nothing under the one that was asked for."""
    def run(model):
        saver = v1.train.Saver({name: model.w, name + "/slot": model.slot})
        before = model.rows()
        path = saver.save(model.sess, str(tmp_path / "model"))
        reader = tf.train.load_checkpoint(path)
        assert sorted(reader.get_variable_to_shape_map()) == [name, name + "/slot"]
        np.testing.assert_array_equal(reader.get_tensor(name), before)
        model.step()
        saver.restore(model.sess, path)
        np.testing.assert_array_equal(model.rows(), before)
        yield "slot", model.sess.run(model.slot)

    same(v1, use_resource, run)


@KINDS
def test_rows_that_are_set_count_as_admitted(mx, use_resource):
    """Keys without a row are zeros until they are admitted; what is set is there at once, and training goes on from it."""
    import test_stock_admission as admissions

    admissions.admission(mx, 3)
    seen = []
    for how in ("set_at_once", "set_later"):
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", START.shape, initializer=v1.constant_initializer(0.25), use_resource=use_resource)
            ids = v1.placeholder(tf.int64, [None])
            loss = tf.reduce_sum(tf.square(tf.gather(w, ids) - 1.0))
            train = v1.train.AdagradOptimizer(0.1).minimize(loss)
            assert convert_graph(graph, True)[0].converts
            with support.started(support.new_session()) as sess:
                sess.run(train, {ids: IDS})
                assert not sess.run(w).any()
                sess.run(v1.scatter_add(w, [4, 4, 50], NEW[:3]))
                # Of a key without a row the initial row is what is added to.
                expected = np.zeros_like(START)
                expected[[4, 50]] = 0.25 + NEW[0] + NEW[1], 0.25 + NEW[2]
                np.testing.assert_allclose(sess.run(w), expected, rtol=1e-6)
                if how == "set_at_once":
                    sess.run(w.assign(NEW))
                else:
                    for first in range(0, len(NEW), 20):
                        part = np.arange(first, first + 20)
                        sess.run(v1.scatter_update(w, part, NEW[part]))
                np.testing.assert_array_equal(sess.run(w), NEW)
                seen.append([sess.run([loss, train], {ids: IDS})[0] for _ in range(3)] + [sess.run(w).sum()])
    np.testing.assert_array_equal(seen[0], seen[1])
    assert seen[0][0] > seen[0][2] > 0


def of_hash(v1, w, ids):
    return v1.gather(w, v1.strings.to_hash_bucket_fast(v1.as_string(ids), len(START)))


@pytest.mark.parametrize("look_up", [of_hash, lambda v1, w, ids: v1.gather(w, ids)], ids=["hash", "identity"])
def test_ids_without_limits_are_no_rows_of_the_variable_unless_they_are_its_own(mx, graph, look_up):
    """A gather by buckets would have found the rows of other ids."""
    mx(stock_tables=StockTables(least_rows=1, unlimited_ids=True))
    w = v1.get_variable("w", START.shape, initializer=v1.constant_initializer(0.25))
    ids = v1.placeholder(tf.int64, [None])
    train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(look_up(tf, w, ids))))
    plan = convert_graph(graph, True)[0]
    assert plan.ids.is_lifted and plan.ids.keeps_rows == (look_up is not of_hash)
    later = [tf.gather(w, [1, 2]), v1.scatter_update(w, [1, 2], NEW[:2]), w.assign(NEW)]
    with support.started(support.new_session()) as sess:
        sess.run(train, {ids: [3, 3, 7]})
        assert (sess.run(w) < 0.25).any(1).sum() == 2
        if look_up is of_hash:
            for op in later:
                with pytest.raises(tf.errors.InvalidArgumentError, match="w is the table w_unlimited.*without limits"):
                    sess.run(op)
            return
        np.testing.assert_array_equal(sess.run(later[0]), 0.25)
        sess.run(later[1])
        np.testing.assert_array_equal(sess.run(w)[[0, 1, 2]], [[0.25] * cases.DIM, NEW[0], NEW[1]])
        assert (sess.run(w)[3] < 0.25).all()
        sess.run(later[2])
        np.testing.assert_array_equal(sess.run(w), NEW)


def test_rows_on_disk_are_set_and_read_in_parts(mx, tmp_path):
    mx(stock_tables=StockTables(least_rows=1, memory_rows=8, ssd_data_path=[str(tmp_path)]))

    def run(model):
        for name in ("assign", "assign_add", "scatter_update", "slot_assign"):
            model.sess.run(WRITES[name](tf.compat.v1, model))
            yield name, model.sess.run(model.w)
            yield name, model.sess.run(model.slot)

    same(tf.compat.v1, True, run)


SERVERS = """
with tf.device(device):
    every += [items[part].read_value() for part in range(3)] if parts else [items.read_value()]
    every += [users + 0.0, tf.gather(users, [[2, 1]])]
    refused = {"assign": users.assign(tf.zeros([ROWS, 8])), "add": v1.scatter_add(users, [1], [[1.0] * 8]),
               "slot": optimizer.get_slot(users, "accumulator") + 0.0}
"""


@pytest.mark.long
@pytest.mark.parametrize("parts", [0, 3])
def test_tables_on_parameter_servers_are_read_and_refuse_to_be_set(parts):
    from stock_cluster_cases import MODEL, RUN, StockJob

    code = MODEL.replace("    plans = convert", "    items = list(items) if parts else items\n    plans = convert") \
        + SERVERS + RUN[len(MODEL):].replace("    print(json.dumps({", """    errors = []
    for name in sorted(refused):
        try:
            sess.run(refused[name])
        except tf.errors.InvalidArgumentError as error:
            errors.append(str(error))
    fetched = sess.run(users)
    # A program that keeps all that it has at its end.
    assert len(sess.run(v1.global_variables())) == 4 + (parts or 1)
    print(json.dumps({"errors": errors, "fetched": fetched.tolist(), """)
    with StockJob(code=code, ps=2) as job:
        found = job.run(LAST="3", CONSTANT="1", RESOURCE="1", STRATEGY="div", PARTS=str(parts))
    rows = [np.array(one) for one in found["rows"]]
    assert (rows[1] != 0.1).any()
    np.testing.assert_array_equal(np.concatenate(rows[2:-2]), rows[0])
    for one in (rows[-2], np.array(found["fetched"])):
        np.testing.assert_array_equal(one, rows[1])
    np.testing.assert_array_equal(rows[-1], [rows[1][[2, 1]]])
    assert len(found["errors"]) == 3
    assert all("deep/users" in one and "parameter servers" in one for one in found["errors"])


@KINDS
def test_what_an_assignment_of_before_is_made_of_may_be_fed(v1, use_resource):
    """It is read in a loop, whose end does not depend on it as data, and counted as what nothing reads any more."""
    with tf.Graph().as_default() as graph, support.new_session() as session:
        w = v1.get_variable("w", START.shape, initializer=v1.zeros_initializer(), use_resource=use_resource)
        scale = tf.constant(1.0)
        assign = v1.assign(w, START * scale)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, IDS)))
        session.run(v1.global_variables_initializer())
        session.run(assign.op, {scale: 3.0})
        assert graph.get_collection("variables") == [] and graph.get_collection("trainable_variables") == [w]
        np.testing.assert_allclose(session.run(w), 3.0 * START, rtol=1e-6)
        session.run(train)
