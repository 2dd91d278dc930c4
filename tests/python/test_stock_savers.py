"""Savers of some variables of an unchanged model: they save and restore the tables of these, and no others."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.select import convert_graph
from mx_rec.util.initialize import terminate_config_initializer
from mx_rec.util.stock_tables import StockTables


def losses(v1, tables, made, kind, of, place):
    """The losses of a model that is trained, restored by a Saver of some of its variables, and trained on.

    Args:
        tables: Whether its variables become tables.
        made: "before" or "after" the conversion.
        kind: "reference" or "resource".
        of: Takes the variables by name, returns the var_list.
    """
    with tf.Graph().as_default() as graph:
        found = {name: v1.get_variable(name, [cases.ROWS, cases.DIM], initializer=v1.ones_initializer(),
                                       use_resource=kind == "resource")
                 for name in ("users", "items")}
        found["w"] = v1.get_variable("w", [cases.DIM, 1], initializer=v1.ones_initializer())
        found["b"] = v1.get_variable("b", [1], initializer=v1.zeros_initializer())
        ids = v1.placeholder(tf.int64, [None])
        rows = sum(tf.nn.embedding_lookup(found[name], ids) for name in ("users", "items"))
        loss = tf.reduce_mean(tf.square(tf.matmul(rows, found["w"]) + found["b"] - 3.0))
        optimizer = v1.train.AdagradOptimizer(0.2) if made == "before" else v1.train.MomentumOptimizer(0.02, 0.5)
        train = optimizer.minimize(loss)
        # A table is saved with its slots.
        slot, = optimizer.get_slot_names()
        found.update({name + "_slot": optimizer.get_slot(found[name], slot) for name in ("users", "items")})
        evaluated = [tf.nn.embedding_lookup(found[name], ids) for name in ("users", "items")]
        # One that was there before is built anew.
        saver = v1.train.Saver(of(found), max_to_keep=None) if made == "before" else None
        support.keep_variables()
        if tables:
            assert sorted(plan.name for plan in convert_graph(graph, True) if plan.converts) == ["items", "users"]
        saver = saver or v1.train.Saver(of(found), max_to_keep=None)
        with support.started(support.new_session()) as sess:
            for name in ("users", "items"):
                cases.set_variable(sess, found[name], cases.start(seed=len(name)))
            seen = []
            for step in range(9):
                if step == 3:
                    path = saver.save(sess, str(place / ("tables" if tables else "stock")))
                if step == 6:
                    saver.restore(sess, path)
                seen.append(sess.run([loss, train], {ids: np.arange(step, step + 20)})[0])
            return np.array(seen + [one.sum() for one in sess.run(evaluated, {ids: np.arange(cases.ROWS)})])


@pytest.mark.parametrize("made, kind", [("before", "reference"), ("before", "resource"), ("after", "reference"),
                                        ("after", "resource")])
@pytest.mark.parametrize("of", [
    lambda one: [one["w"]], lambda one: [one["w"], one["users"], one["users_slot"]],
    lambda one: {name: one[name] for name in ("w", "items", "items_slot")},
    lambda one: [one["items"], one["items_slot"]],
    lambda one: tf.compat.v1.global_variables(), lambda one: None,
], ids=["dense", "one-table", "dict", "table-alone", "all-by-list", "all"])
def test_a_saver_restores_the_tables_of_its_variables_and_no_others(v1, made, kind, of, tmp_path):
    """A Saver of a dense variable rolled all tables back: a loss of 0.536 where TensorFlow gives 0.321."""
    stock, tables = (losses(v1, is_on, made, kind, of, tmp_path) for is_on in (False, True))
    np.testing.assert_allclose(tables, stock, rtol=1e-5)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_all_parts_of_a_variable_become_tables_or_none_does(mx, graph, use_resource, tmp_path):
    """Of 7 rows in 3 parts only the one of 3 rows became a table: a script with variables could not restore the checkpoint,
    'Does not have sufficient slices for partitioned tensor w'."""
    v1 = tf.compat.v1
    found = []
    for least, converts in ((3, False), (2, True), (0, None)):
        if least:
            mx(stock_tables=StockTables(least_rows=least))
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", [7, cases.DIM], use_resource=use_resource, initializer=v1.ones_initializer(),
                                partitioner=v1.fixed_size_partitioner(3))
            ids = v1.placeholder(tf.int64, [None])
            rows = tf.nn.embedding_lookup(w, ids, partition_strategy="div")
            train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(rows)))
            if least:
                plans = [plan for plan in convert_graph(graph, True) if "Adagrad" not in plan.name]
                assert [plan.converts for plan in plans] == [converts] * 3
                if not converts:
                    assert "its part w/part_1 stays" in plans[0].reason and "fewer than 3" in plans[1].reason
            saver = v1.train.Saver()
            with support.started(support.new_session()) as sess:
                if least:
                    sess.run(train, {ids: [0, 4, 6]})
                    paths = saver.save(sess, str(tmp_path / str(least)))
                    found.append((sess.run(rows, {ids: np.arange(7)}), paths))
                    terminate_config_initializer()
                else:
                    for expected, path in found:
                        saver.restore(sess, path)
                        np.testing.assert_allclose(sess.run(rows, {ids: np.arange(7)}), expected, rtol=cases.TOLERANCE)


@pytest.mark.parametrize("optimizer, use_resource, parts", support.by_turns(
    ["sgd", "adagrad", "momentum", "ftrl"], [False, True], [1, 3]))
def test_a_graph_that_sets_its_variables_takes_rows_and_slots_of_tables_too(v1, optimizer, use_resource, parts, tmp_path):
    """A restore into such a graph, whose variables could not be tables, ended with "Key w/Momentum not found"."""

    def program(sets, tables, path, restores):
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(3)
            w = v1.get_variable("w", [20, 2], initializer=v1.random_uniform_initializer(1, 2), use_resource=use_resource,
                                partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None)
            ids = v1.placeholder(tf.int64, [None])
            bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
            loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, ids) + bias))
            made = cases.optimizers()[optimizer]()
            train = made.minimize(loss)
            if sets:
                for one in [w] if parts == 1 else list(w):
                    v1.assign(one, tf.ones_like(one))
                v1.variables_initializer(made.variables())
            support.keep_variables()
            if tables:
                assert all(plan.converts for plan in convert_graph(graph, True))
            saver = v1.train.Saver()
            with support.started(support.new_session()) as sess:
                if restores:
                    saver.restore(sess, path)
                seen = [sess.run([loss, train], {ids: step})[0] for step in ([1, 2, 2], [2, 9, 19], [1, 5, 19])]
                if not restores:
                    saver.save(sess, path)
                return seen + [sess.run(loss, {ids: np.arange(20)})]

    path = str(tmp_path / "model")
    first = program(False, True, path, False)
    expected = program(False, True, path, True)
    assert expected[0] != first[0]
    np.testing.assert_allclose(program(True, False, path, True), expected, rtol=1e-6)


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_take_a_table_without_rows(v1, use_resource, tmp_path):
    """A table that was saved before its first step, or after an initializer, ended with "cannot reshape array of size 0"."""

    def values(tables):
        with tf.Graph().as_default() as graph:
            w = v1.get_variable("w", [20, 2], initializer=v1.constant_initializer(0.5), use_resource=use_resource)
            bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
            made = v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.25)
            train = made.minimize(tf.reduce_sum(tf.square(tf.nn.embedding_lookup(w, [3, 4])) + bias))
            support.keep_variables()
            if tables:
                assert all(plan.converts for plan in convert_graph(graph, True))
            saver = v1.train.Saver()
            with support.new_session() as sess:
                init = v1.global_variables_initializer()
                sess.run(init)
                sess.run(train)
                if tables:
                    sess.run(init)
                    saver.save(sess, str(tmp_path / "model"))
                else:
                    saver.restore(sess, str(tmp_path / "model"))
                    return sess.run([w, made.get_slot(w, "accumulator")])

    values(True)
    for found, expected in zip(values(False), (0.5, 0.25)):
        np.testing.assert_array_equal(found, np.full([20, 2], expected, np.float32))


@pytest.mark.parametrize("is_table", [False, True], ids=["variable", "table"])
def test_a_table_under_another_name_is_an_error_that_says_how_to_start_with_it(mx, is_table, tmp_path):
    """It was "Key users not found in checkpoint", though tf.train.list_variables lists it."""
    v1 = tf.compat.v1
    mx(stock_tables=StockTables(least_rows=1))
    with tf.Graph().as_default():
        users = v1.get_variable("users", [cases.ROWS, cases.DIM], initializer=v1.zeros_initializer())
        v1.train.AdagradOptimizer(0.2).minimize(tf.reduce_sum(tf.nn.embedding_lookup(users, [1, 2])))
        with support.started(support.new_session()) as sess:
            cases.set_variable(sess, users, cases.start())
            path = v1.train.Saver([users]).save(sess, str(tmp_path / "model"))
    if not is_table:
        terminate_config_initializer()
    with tf.Graph().as_default() as graph:
        new = v1.get_variable("new", [cases.ROWS, cases.DIM], initializer=v1.zeros_initializer())
        v1.train.AdagradOptimizer(0.2).minimize(tf.reduce_sum(tf.nn.embedding_lookup(new, [1, 2])))
        saver = v1.train.Saver({"users": new})
        with support.started(support.new_session()) as sess:
            assert bool(cases.table_of(new)) == is_table
            with pytest.raises(tf.errors.NotFoundError, match="'users' is a table in .*model.*init_from_checkpoint"):
                saver.restore(sess, path)
            with pytest.raises(tf.errors.NotFoundError, match="Key nobody not found"):
                with graph.as_default():
                    v1.train.Saver({"nobody": new}).restore(sess, path)
    with tf.Graph().as_default():
        new = v1.get_variable("new", [cases.ROWS, cases.DIM], initializer=v1.zeros_initializer())
        v1.train.init_from_checkpoint(path, {"users": new})
        with support.started(support.new_session()) as sess:
            support.assert_same_bits(sess.run(new), cases.start())


@pytest.mark.parametrize("names", [["v"], ["w", "v"]], ids=["another", "more"])
def test_a_variable_that_a_checkpoint_has_not_is_the_error_of_tensorflow_if_it_is_a_table(mx, names, tmp_path):
    """A renamed variable started anew beside a line in the log, where its program had an error to find."""
    def program(names, use):
        with tf.Graph().as_default(), support.new_session() as session:
            ws = [v1.get_variable(name, [20, 2], initializer=v1.constant_initializer(0.5)) for name in names]
            loss = sum(tf.reduce_sum(tf.gather(w, [1, 2])) for w in ws)
            train = v1.train.AdagradOptimizer(0.1).minimize(loss)
            saver = v1.train.Saver()
            session.run(v1.global_variables_initializer())
            session.run(train)
            before = session.run(ws)
            use(saver, session)
            np.testing.assert_array_equal(session.run(ws), before)

    def restores(saver, session):
        with pytest.raises(tf.errors.NotFoundError, match="Key v(/Adagrad)? not found in checkpoint"):
            saver.restore(session, str(tmp_path / "model"))

    v1 = tf.compat.v1
    for is_on in (False, True):
        if is_on:
            mx(stock_tables=".*")
        program(["w"], lambda saver, session: saver.save(session, str(tmp_path / "model")))
        program(names, restores)


@pytest.mark.parametrize("trains", [True, False], ids=["training", "reading"])
@pytest.mark.parametrize("rows", [cases.ROWS // 2, cases.ROWS * 2], ids=["fewer", "more"])
def test_a_variable_of_another_number_of_rows_is_not_restored(mx, rows, trains, tmp_path):
    """TensorFlow's error. Of hashed ids each would be another row."""
    mx(stock_tables=StockTables(least_rows=1))
    v1 = tf.compat.v1

    def session_of(rows, trains):
        with tf.Graph().as_default():
            w = v1.get_variable("w", [rows, cases.DIM], initializer=v1.ones_initializer())
            found = tf.nn.embedding_lookup(w, v1.placeholder(tf.int64, [None], "ids"))
            if trains:
                v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(found)), name="train")
            saver, start = v1.train.Saver(), v1.global_variables_initializer()
            sess = v1.Session()
        sess.run(start)
        return sess, saver, found

    sess, saver, _ = session_of(cases.ROWS, True)
    with sess:
        sess.run("train", {"ids:0": [0, 1]})
        path = saver.save(sess, str(tmp_path / "model"))
    sess, saver, found = session_of(rows, trains)
    with sess:
        before = sess.run(found, {"ids:0": [0, 1, 2]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="'w' has {} rows, and {} in".format(rows, cases.ROWS)):
            saver.restore(sess, path)
        np.testing.assert_array_equal(sess.run(found, {"ids:0": [0, 1, 2]}), before)


def test_what_an_imported_graph_saves_is_read_and_restored_as_variables(mx, tmp_path):
    """Readers did not list the variables of such a checkpoint."""
    v1 = tf.compat.v1
    mx(stock_tables=StockTables(least_rows=1))
    with tf.Graph().as_default():
        users = v1.get_variable("users", [cases.ROWS, cases.DIM],
                                initializer=v1.zeros_initializer())
        loss = tf.reduce_sum(tf.nn.embedding_lookup(users, [1, 2]))
        train = v1.train.AdagradOptimizer(0.2, initial_accumulator_value=0.5).minimize(loss)
        with support.started(support.new_session()) as sess:
            cases.set_variable(sess, users, cases.start())
            path = v1.train.Saver().save(sess, str(tmp_path / "first"))
    with tf.Graph().as_default():
        saver = v1.train.import_meta_graph(path + ".meta")
        with support.new_session() as sess:
            saver.restore(sess, path)
            sess.run(train.name)
            path = saver.save(sess, str(tmp_path / "second"))
    terminate_config_initializer()
    assert sorted(name for name, _ in tf.train.list_variables(path) if name != "mx_rec_tables") \
        == ["users", "users/Adagrad"]
    with tf.Graph().as_default():
        users = v1.get_variable("users", [cases.ROWS, cases.DIM],
                                initializer=v1.zeros_initializer())
        optimizer = v1.train.AdagradOptimizer(0.2)
        optimizer.minimize(tf.reduce_sum(tf.nn.embedding_lookup(users, [1, 2])))
        with support.new_session() as sess:
            v1.train.Saver().restore(sess, path)
            rows, slot = sess.run([users, optimizer.get_slot(users, "accumulator")])
    support.assert_same_bits(rows, tf.train.load_variable(path, "users"))
    expected = np.full([cases.ROWS, cases.DIM], 0.5, np.float32)
    expected[1:3] += 1
    np.testing.assert_array_equal(slot, expected)
    changed = cases.start()
    changed[1:3] -= np.float32(0.2) / np.sqrt(np.float32(1.5))
    np.testing.assert_allclose(rows, changed, rtol=1e-6)
