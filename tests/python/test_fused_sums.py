"""Sums over bags of a sparse_lookup, which modified graphs fuse in both directions: the same numbers as unmodified."""

import os

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import preloaded
import support
from fused_cases import BATCH, LENGTH, batches, close, data, loss_of, needed, optimizer, total, train
from modify_cases import AHEAD
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup, sparse_lookup_many
from mx_rec.graph import GraphModifierHook
from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address
from mx_rec.util.variable import get_dense_and_sparse_variable

tf1 = tf.compat.v1


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("axis", [1, -2, [1]], ids=str)
@pytest.mark.parametrize("keepdims", [False, True], ids=["dropped", "kept"])
def test_sums_over_bags_give_the_same_bits(static, axis, keepdims):
    def script(run):
        source, ids, label = batches(static)
        tables = [run.table("t{}".format(at), dim=4 * (at + 1)) for at in range(2)]
        sums = [total(run.lookup(table, ids[:, at]), axis, keepdims) for at, table in enumerate(tables)]
        train(run, source, loss_of(sums, label), tables, others=sums)

    runs = cases.alike(script, moves=2, use_dynamic=True)
    plan = runs[AHEAD].plan
    assert [len(one.gradients) for one in plan.sums] == [1, 1]
    assert "fuses  the sum" in plan.text() and "added up where they are read" in plan.text()


@pytest.mark.parametrize("kind", ["lazy_adam", "adagrad", "gradient_descent"])
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@support.run_by(cases.alike, moves=1, use_dynamic=True)
def test_one_table_with_an_update_of_its_own_gives_the_same_bits(run, static, kind):
    source, ids, label = batches(static, features=1)
    table = run.table(dim=8)
    train(run, source, loss_of([total(run.lookup(table, ids[:, 0]))], label), [table], kind=kind)


@pytest.mark.parametrize("change", ["clipped", "scaled"])
@pytest.mark.parametrize("count", [1, 2])
def test_gradients_that_the_script_changes_give_the_same_bits(change, count):
    def changed(pairs):
        if change == "clipped":
            grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 0.05)
            return list(zip(grads, [variable for _, variable in pairs]))
        return [(tf.IndexedSlices(grad.values * 0.3, grad.indices, grad.dense_shape), variable)
                for grad, variable in pairs]

    def script(run):
        source, ids, label = batches(False, features=count)
        tables = [run.table("t{}".format(at), dim=4) for at in range(count)]
        sums = [total(run.lookup(table, ids[:, at])) for at, table in enumerate(tables)]
        train(run, source, loss_of(sums, label), tables, changed)

    cases.alike(script, moves=count, use_dynamic=True)


def test_lookups_of_one_table_with_sums_and_without_give_the_same_bits():
    def script(run):
        source, ids, label = batches(True, features=3)
        table, other = run.table("t", dim=4), run.table("other", dim=4)
        rows = run.lookup(table, ids[:, 2])
        sums = [total(run.lookup(table, ids[:, 0])), total(run.lookup(table, ids[:, 1])),
                tf.reshape(rows, [-1, LENGTH * 4]), total(run.lookup(other, ids[:, 2]))]
        train(run, source, loss_of(sums, label), [table, other], others=[rows], fused=None)

    for form in cases.alike(script, moves=4, use_dynamic=True).values():
        if form.plan is not None:
            assert [len(one.gradients) for one in form.plan.sums if one.fuses] == [1, 1, 1]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("summed", [(0, 1, 2), (0, 2), (1,)], ids=str)
def test_members_of_a_group_give_the_same_bits(static, summed):
    def script(run):
        source, ids, label = batches(static, features=3)
        tables = [run.table("t{}".format(at), dim=4 * (at + 1)) for at in range(3)]
        rows = sparse_lookup_many(tables, [ids[:, at] for at in range(3)], modify_graph=True)
        sums = [total(one) if at in summed else tf.reshape(one, [-1, LENGTH * 4 * (at + 1)])
                for at, one in enumerate(rows)]
        seen = [rows[at] for at in range(3) if at not in summed]
        train(run, source, loss_of(sums, label), tables, others=seen, fused=None)

    runs = cases.alike(script, moves=3, use_dynamic=True)
    assert sum(one.fuses for one in runs[AHEAD].plan.sums) == len(summed)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("keepdims", [False, True], ids=["dropped", "kept"])
def test_means_over_bags_are_equal_to_rounding(static, keepdims):
    def script(run):
        source, ids, label = batches(static)
        tables = [run.table("t{}".format(at), dim=4 * (at + 1)) for at in range(2)]
        means = [total(run.lookup(table, ids[:, at]), -2, keepdims, "reduce_mean") for at, table in enumerate(tables)]
        train(run, source, loss_of(means, label), tables, others=means, kind="adagrad")

    plan = close(script, use_dynamic=True).plan
    assert [len(one.gradients) for one in plan.sums] == [1, 1]


@pytest.mark.parametrize("batch, length", [(9, 7), (9, 8), (3, 50), (1, 300)])
@pytest.mark.parametrize("kind", ["gradient_descent", "adagrad"])
@support.run_by(close, use_dynamic=True)
def test_sums_of_rows_of_one_float_are_equal_to_rounding(run, batch, length, kind):
    ids = tf.compat.v1.placeholder(tf.int64, [None, None])
    table = run.table(dim=1)
    summed = total(run.lookup(table, ids))
    loss = tf.reduce_sum(tf.square(tf.tanh(summed) - 0.5))
    update = optimizer(kind).minimize(loss, var_list=[table.variable])
    run.modify()
    if run.is_modified:
        assert [one.fuses for one in run.plan.sums] == [True]
    sess = run.session()
    random = np.random.RandomState(length)
    for _ in range(3):
        run.step(sess, [summed, loss, update], {ids: random.randint(-1, 500, [batch, length])})
    run.contents(sess)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_rows_that_are_summed_twice_are_equal_to_rounding(static):
    def script(run):
        source, ids, label = batches(static, features=1)
        table = run.table(dim=4)
        rows = run.lookup(table, ids[:, 0])
        sums = [total(rows), total(rows, -2, True), total(rows, 1, False, "reduce_mean"), total(tf.identity(rows))]
        train(run, source, loss_of(sums, label), [table], others=sums, kind="adagrad")

    plan = close(script, use_dynamic=True).plan
    assert [(len(one.sums), len(one.gradients)) for one in plan.sums] == [(4, 1)]


@support.run_by(cases.alike, moves=1, use_dynamic=True)
def test_bags_of_any_number_of_dimensions_give_the_same_bits(run):
    source, ids, label = batches(False, features=3)
    table = run.table(dim=4)
    summed = tf.reduce_sum(run.lookup(table, ids), axis=2)
    train(run, source, loss_of([tf.reshape(summed, [-1, 12])], label), [table], others=[summed])


@pytest.mark.parametrize("length", [0, 1])
@support.run_by(cases.alike, moves=0, use_dynamic=True)
def test_empty_bags_and_empty_batches_give_the_same_bits(run, length):
    ids = tf.compat.v1.placeholder(tf.int64, [None, None])
    table = run.table(dim=4)
    summed = total(run.lookup(table, ids))
    loss = tf.reduce_sum(tf.square(summed)) + 1.0
    update = optimizer("gradient_descent").minimize(loss, var_list=[table.variable])
    run.modify()
    sess = run.session()
    for bags in (3, 0, 2):
        run.step(sess, [summed, loss, update], {ids: np.arange(bags * length).reshape(bags, length)})
    run.contents(sess)
    if run.is_modified:
        assert "MxRecRead" not in needed(update)


@support.run_by(cases.alike, moves=5, use_dynamic=True)
def test_evaluation_and_default_rows_give_the_same_bits(run):
    source, ids, label = batches(True)
    table = run.table(dim=4)
    summed = total(run.lookup(table, ids[:, 0]))
    default = np.full([1, 4], 0.25, np.float32)
    seen = [total(run.lookup(table, ids[:, at % 2], is_train=False,
                             serving_default_value=default if at > 1 else None), keepdims=bool(at % 2))
            for at in range(4)]
    train(run, source, loss_of([summed], label), [table])
    if run.is_modified:
        assert sum(one.fuses for one in run.plan.sums) == 5
        assert not any(needed(one.op) & {"MxRecFind", "MxRecFind of many"} for one in seen)
    run.start(run._sessions[-1], source, is_training=False)
    run.epoch(run._sessions[-1], seen)


@support.run_by(cases.alike, moves=3, use_dynamic=True)
def test_lookups_without_gradient_and_with_admission_give_the_same_bits(run):
    source, ids, label = batches(True)
    table, counted = run.table("t", dim=4), run.table("counted", dim=4)
    config = {"access_threshold": 2}
    sums = [total(run.lookup(table, ids[:, 0])),
            total(run.lookup(table, ids[:, 1], is_grad=False)),
            total(run.lookup(counted, ids[:, 1], access_and_evict_config=config))]
    train(run, source, loss_of(sums, label), [table, counted], others=sums)


def test_default_rows_of_keys_that_are_not_admitted_keep_their_sum():
    def script(run):
        source, ids, label = batches(True, features=1)
        table = run.table(dim=4)
        rows = run.lookup(table, ids[:, 0], access_and_evict_config={"access_threshold": 2},
                          serving_default_value=np.full([1, 4], 0.25, np.float32))
        train(run, source, loss_of([total(rows)], label), [table], others=[rows], fused=False)

    plan = cases.alike(script, moves=1, use_dynamic=True)[AHEAD].plan
    assert ["default rows" in one.reason for one in plan.sums] == [True]


@support.run_by(cases.alike, moves=2, use_dynamic=True, use_dynamic_expansion=True)
def test_dynamic_expansion_gives_the_same_bits(run):
    source, ids, label = batches(False)
    tables = [create_table(key_dtype=tf.int64, dim=4, name="t{}".format(at),
                           emb_initializer=tf.compat.v1.random_normal_initializer(stddev=0.3, seed=at))
              for at in range(2)]
    run.tables.update({table.table_name: table for table in tables})
    sums = [total(run.lookup(table, ids[:, at])) for at, table in enumerate(tables)]
    loss = loss_of(sums, label)
    get_dense_and_sparse_variable()
    rows = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    grads = tf.gradients(loss, rows)
    addresses = tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
    update = create_hash_optimizer_by_address(0.05).apply_gradients(list(zip(grads, addresses)))
    run.modify()
    if run.is_modified:
        assert [one.fuses for one in run.plan.sums] == [True, True]
        assert not needed(update) & {"MxRecRestore", "repeats"}
    sess = run.begin(source)
    run.finish(sess, [loss, sums, update])


def test_rows_that_something_else_reads_stay():
    def script(run):
        source, ids, label = batches(True, features=3)
        table = run.table(dim=4)
        rows = [run.lookup(table, ids[:, at]) for at in range(3)]
        squares = tf.reduce_sum(tf.square(rows[0]), axis=1)
        with tf.control_dependencies([rows[1]]):
            label = tf.identity(label)
        sums = [total(rows[0]), squares, total(rows[1]), tf.reduce_sum(rows[2], axis=[1, 2])[:, tf.newaxis]]
        train(run, source, loss_of(sums, label), [table], fused=False)

    reasons = [one.reason for one in cases.alike(script, moves=3, use_dynamic=True)[AHEAD].plan.sums]
    assert len(reasons) == 2
    assert "Square" in reasons[0] and "too" in reasons[0] and "waits for" in reasons[1]


@support.run_by(cases.alike, moves=1, use_dynamic=True)
def test_branches_and_loops_give_the_same_bits(run):
    source, ids, label = batches(True)
    table, other, third = (run.table(name, dim=4) for name in ("t", "other", "third"))
    rows = run.lookup(table, ids[:, 0])
    is_high = tf.reduce_mean(label) > 0.5
    branch = tf.cond(is_high, lambda: total(run.lookup(other, ids[:, 1])), lambda: tf.zeros([BATCH, 4]))
    inside = tf.cond(is_high, lambda: total(rows), lambda: tf.zeros([BATCH, 4]))
    looped = tf.while_loop(lambda step, _: step < 2,
                             lambda step, value: (step + 1, value + total(run.lookup(third, ids[:, 1], is_grad=False))),
                             [tf.constant(0), tf.zeros([BATCH, 4])])[1]
    train(run, source, loss_of([branch, inside, looped], label), [table, other], others=[branch, looped], fused=False)


@support.run_by(cases.alike, moves=1, use_dynamic=True)
def test_an_update_in_a_branch_gives_the_same_bits(run):
    source, ids, label = batches(True, features=1)
    table = run.table(dim=4)
    loss = loss_of([total(run.lookup(table, ids[:, 0]))], label)
    opt = optimizer()
    grads = opt.compute_gradients(loss, [table.variable])
    update = tf.cond(loss > 0.5, lambda: tf.group(opt.apply_gradients(grads)), tf.no_op)
    sess = run.begin(source)
    run.finish(sess, [loss, update])


@support.run_by(cases.alike, moves=2, use_dynamic=True)
def test_sums_wait_for_what_they_waited_for(run):
    source, ids, label = batches(True)
    table = run.table(dim=4)
    count = tf.compat.v1.get_variable("count", [], tf.int32, tf.compat.v1.zeros_initializer(), use_resource=True)
    first, rows = (run.lookup(table, ids[:, at]) for at in range(2))
    with tf.control_dependencies([count.assign_add(1)]):
        summed = total(rows)
    with tf.control_dependencies([summed]):
        later = total(tf.identity(first))
    train(run, source, loss_of([summed, later], label), [table], others=[later])
    run.note("count", run._sessions[-1].run(count))


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_gradients_wait_for_what_they_waited_for(static):
    """As of a model with batch normalization, whose whole update waits for the averages."""
    def script(run):
        source, ids, label = batches(static)
        tables = [run.table("t{}".format(at), dim=4) for at in range(2)]
        count = tf.compat.v1.get_variable("count", [], tf.int32, tf.compat.v1.zeros_initializer(), use_resource=True)
        loss = loss_of([total(run.lookup(table, ids[:, at])) for at, table in enumerate(tables)], label)
        step = count.assign_add(1)

        def gradients(pairs):
            with tf.control_dependencies([step]):
                grads = tf.gradients(loss, [variable for _, variable in pairs])
            return [(grad, variable) for grad, (_, variable) in zip(grads, pairs)]

        train(run, source, loss, tables, gradients)
        run.note("count", run._sessions[-1].run(count))

    plan = cases.alike(script, moves=2, use_dynamic=True)[AHEAD].plan
    assert all(any(gradient.waits for gradient in one.gradients) for one in plan.sums)


@support.run_by(cases.alike, moves=1, use_dynamic=True)
def test_rows_are_fetched_as_before_also_beside_their_update(run):
    source, ids, label = batches(True, features=1)
    table = run.table(dim=4)
    rows = run.lookup(table, ids[:, 0])
    summed = total(rows)
    loss = loss_of([summed], label)
    update = train(run, source, loss, [table])
    sess = run.session()
    for _ in range(2):
        run.start(sess, source)
        run.step(sess, [rows, summed, loss])
        run.step(sess, [rows.name, loss])
    kept = rows + 1.0
    run.step(sess, kept)
    for fetches in ([rows, update], {"rows": rows.name, "step": [update]}, [kept, summed, update.name]):
        run.start(sess, source)
        for _ in range(2):
            run.step(sess, fetches)
    step = sess.make_callable([rows, update])
    run.note("callable", [step()[0], step()[0]])
    begun = sess.partial_run_setup([rows, summed], [])
    run.note("partial", sess.partial_run(begun, [rows, summed]))
    run.contents(sess)


@support.run_by(cases.alike, moves=1, use_dynamic=True)
def test_what_a_fused_sum_does_not_read_cannot_be_fed(run, tmp_path):
    source, ids, label = batches(True, features=1)
    table = run.table(dim=4)
    rows = run.lookup(table, ids[:, 0])
    passed = tf.identity(rows)
    summed = total(passed)
    loss = loss_of([summed], label)
    update = optimizer().minimize(loss, var_list=[table.variable])
    sess = run.begin(source)
    run.step(sess, [loss, update], {summed: np.ones([BATCH, 4], np.float32)})
    run.contents(sess)
    if run.is_modified:
        tile = next(op for op in tf.compat.v1.get_default_graph().get_operations() if op.type == "Tile" and op.outputs[0].shape.rank == 3)
        for tensor in (rows, passed, tile.outputs[0]):
            with pytest.raises(ValueError, match="may not be fed"):
                sess.run(loss, {tensor: np.ones([BATCH, LENGTH, 4], np.float32)})


@pytest.mark.long
def test_an_imported_graph_with_fused_sums_works_and_refuses_the_same_feeds(tmp_path):
    path = str(tmp_path / "graph.meta")

    def script(run):
        source, ids, label = batches(False)
        tables = [run.table("t{}".format(at), dim=4) for at in range(2)]
        rows = [run.lookup(table, ids[:, at]) for at, table in enumerate(tables)]
        loss = loss_of([total(one) for one in rows], label)
        update = train(run, source, loss, tables)
        if run.is_modified:
            tf1.train.export_meta_graph(path)
            run.names = (loss.name, [one.name for one in rows], update.name)

    runs = cases.alike(script, moves=2, use_dynamic=True)
    losses = [note for label, note in runs[cases.STEP].notes if label == "step"]
    with support.initialized(use_dynamic=True):
        tf1.train.import_meta_graph(path)
        graph = tf1.get_default_graph()
        loss, rows, update = runs[AHEAD].names
        with support.started(support.new_session()) as sess:
            sess.run(next(op for op in graph.get_operations() if op.type == "MakeIterator"))
            first = sess.run([loss, update])[0]
            assert cases.frozen(first) == losses[0][0]
            with pytest.raises(ValueError, match="may not be fed"):
                sess.run(loss, {rows[0]: np.ones([BATCH, LENGTH, 4], np.float32)})
            with pytest.raises(ValueError, match="rows of single ids"):
                sess.run([rows[0], update])
    tf1.reset_default_graph()


def test_lookups_of_a_modified_graph_move_one_by_one_where_the_pass_is_off():
    def script(run):
        source, ids, label = batches(True)
        tables = [run.table("table_%d" % at, dim=4) for at in range(2)]
        rows = [run.lookup(table, ids[:, at % 2]) for at, table in enumerate(tables + tables)]
        found = [total(rows[0]), total(rows[1]), total(tf.concat(rows[2:], -1))]
        train(run, source, loss_of(found, label), tables, others=rows, fused=False)

    plan = cases.alike(script, moves=4, graph_pass=False, use_dynamic=True)[AHEAD].plan
    assert not any((plan.sums, plan.concats, plan.together, plan.updates))


def test_the_command_shows_what_is_fused(tmp_path):
    path = str(tmp_path / "graph.pbtxt")

    def script(run):
        source, ids, label = batches(True)
        table = run.table(dim=4)
        rows = run.lookup(table, ids[:, 0]), run.lookup(table, ids[:, 1])
        loss = loss_of([total(rows[0]), total(rows[1]), tf.reshape(tf.square(rows[1]), [-1, LENGTH * 4])], label)
        optimizer().minimize(loss, var_list=[table.variable])
        graph = tf.compat.v1.get_default_graph().as_graph_def(add_shapes=True)
        tf.io.write_graph(graph, *os.path.split(path))
        run.note("written", True)

    cases.alike(script, moves=0, forms=[cases.STEP], use_dynamic=True)
    shown = preloaded.run_python("import sys; from mx_rec.graph.__main__ import main; sys.exit(main(sys.argv[1:]))", path)
    assert "sums over bags:" in shown and "  fuses  the sum " in shown and "  stays  the sum " in shown


@pytest.mark.long
def test_estimators_train_evaluate_and_predict_as_unmodified(tmp_path):
    seen, fused = {}, []

    def input_fn():
        ids, label = data()
        return tf.data.Dataset.from_tensor_slices(({"ids": ids}, label)).batch(BATCH)

    def model_fn(features, labels, mode):
        is_train = mode == tf1.estimator.ModeKeys.TRAIN
        table = support.make_table("table", 4, 1000, tf1.random_normal_initializer(stddev=0.3, seed=1))
        sums = [total(sparse_lookup(table, features["ids"][:, at], is_train=is_train, modify_graph=True))
                for at in range(2)]
        joined = tf.concat(sums, axis=1)
        if mode == tf1.estimator.ModeKeys.PREDICT:
            return tf1.estimator.EstimatorSpec(mode, predictions={"joined": joined})
        loss, update = loss_of(sums, labels), None
        if is_train:
            update = optimizer().minimize(loss, tf1.train.get_global_step(), var_list=[table.variable])
        return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=update)

    class Hook(GraphModifierHook):
        def begin(self):
            super().begin()
            types = {support.kind_of(op) for op in tf1.get_default_graph().get_operations()}
            fused.append(types & {"MxRecRead bags of many", "MxRecFind bags of many"})

    for is_modified in (False, True):
        with support.initialized(use_dynamic=True):
            estimator = tf1.estimator.Estimator(model_fn, str(tmp_path / str(is_modified)))
            for _ in range(2):
                estimator.train(input_fn, hooks=[Hook()] if is_modified else [GraphModifierHook(modify_graph=False)])
            hooks = [Hook()] if is_modified else [GraphModifierHook(modify_graph=False)]
            loss = estimator.evaluate(input_fn, hooks=hooks)["loss"]
            hooks = [Hook()] if is_modified else [GraphModifierHook(modify_graph=False)]
            rows = [one["joined"] for one in estimator.predict(input_fn, hooks=hooks)]
            seen[is_modified] = cases.frozen([loss, rows])
        tf1.reset_default_graph()
    assert seen[True] == seen[False]
    assert fused == [{"MxRecRead bags of many"}] * 2 + [{"MxRecFind bags of many"}] * 2


@pytest.mark.parametrize("length", [None, LENGTH], ids=["dynamic", "static"])
def test_no_update_comes_before_its_sums_are_read(graph, dynamic, length):
    """The gradient of a linear loss needs no rows, so that only an order of its own keeps the update behind them."""
    ids = tf.compat.v1.placeholder(tf.int64, [4, length])
    run = cases.Run(AHEAD)
    table = run.table(dim=4)
    summed = total(run.lookup(table, ids))
    update = optimizer("gradient_descent").minimize(tf.reduce_sum(summed), var_list=[table.variable])
    run.modify()
    assert [len(one.gradients) for one in run.plan.sums] == [1]
    assert "MxRecRead bags" in needed(update)
