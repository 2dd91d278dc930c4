"""Variables of unchanged models as tables of 2 bytes a value: a NumPy oracle's rows, checkpoints of either kind, what sets rows."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from stock_cluster_cases import StockJob, run_alone
from test_half_rows import HALVES, Oracle, draws, grads_by_key, rounded, seed_of, sgd
from mx_rec.checkpoint import tables
from mx_rec.launch.options import read_arguments
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util.initialize import terminate_config_initializer
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

ROWS, DIM = 40, 5


def settings(mx, row_dtype="bfloat16", names=(".*",), **more):
    mx(stock_tables=StockTables(names=names, least_rows=1, row_dtype=row_dtype, **more))


def stop():
    terminate_config_initializer()


def adagrad(row, slot, grad, step):
    slot = (np.full_like(row, 0.3) if slot is None else slot) + grad * grad
    return row - np.float32(0.1) * grad / np.sqrt(slot), slot


def momentum(row, slot, grad, step):
    slot = (np.zeros_like(row) if slot is None else slot) * np.float32(0.9) + grad
    return row - np.float32(0.05) * slot, slot


OPTIMIZERS = {"sgd": sgd, "adagrad": adagrad, "momentum": momentum}


def first_rows(rows=ROWS):
    return np.random.RandomState(4).uniform(-1, 1, [rows, DIM]).astype(np.float32)


class Model:
    """A variable whose gradients are fed: the sum of its rows times what is fed."""

    def __init__(self, optimizer="sgd", start=None, name="w", use_resource=True, converts=True, how="rows", parts=None, rows=ROWS):
        v1.set_random_seed(2)
        start = v1.constant_initializer(first_rows(rows)) if start is None else start
        self.variable = v1.get_variable(name, [rows, DIM], initializer=start, use_resource=use_resource,
                                        partitioner=v1.fixed_size_partitioner(parts) if parts else None)
        self.ids, self.factors = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, DIM])
        if how == "rows":
            self.rows = tf.nn.embedding_lookup(self.variable, self.ids, partition_strategy="div")
        else:
            bags = tf.sparse.from_dense(1 + self.ids[:, None])
            bags = tf.SparseTensor(bags.indices, bags.values - 1, bags.dense_shape)
            self.rows = tf.nn.safe_embedding_lookup_sparse(self.variable, bags, combiner="sum")
        made = cases.optimizers()[optimizer]() if isinstance(optimizer, str) else optimizer
        self.train = made.minimize(tf.reduce_sum(self.rows * self.factors))
        self.graph = v1.get_default_graph()
        self.plans = {plan.name: plan for plan in convert_graph(self.graph, True)} if converts else {}
        support.keep_variables()
        self.converted = converted(self.graph) if converts else []
        self.init, self.saver = v1.global_variables_initializer(), v1.train.Saver(max_to_keep=99)

    def step(self, sess, number, size=9, rows=ROWS):
        """Step `number`; returns the gradient of each key."""
        random = np.random.RandomState(number)
        ids = random.randint(0, rows, size)
        factors = random.uniform(-1, 1, [size, DIM]).astype(np.float32)
        sess.run(self.train, {self.ids: ids, self.factors: factors})
        return grads_by_key(ids, factors)

    def value(self, sess):
        """All rows, as a lookup gives them."""
        return sess.run(self.rows, {self.ids: np.arange(self.graph_rows())})

    def graph_rows(self):
        return ROWS if not self.converted else self.converted[0].plan.rows


def seed(model):
    return seed_of(model.converted[0].table)


def started(model, sess):
    sess.run(model.init)
    return model


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer, use_resource, how", [
    ("sgd", True, "rows"), ("sgd", False, "bags"), ("adagrad", False, "rows"), ("adagrad", True, "bags"), ("momentum", True, "rows")])
def test_rows_are_the_oracles_after_every_step(graph, session, mx, dtype, rounding, optimizer, use_resource, how):
    settings(mx, dtype, row_rounding=rounding)
    model = Model(optimizer, use_resource=use_resource, how=how)
    plan = model.plans["w"]
    assert plan.converts and plan.row_dtype == dtype and plan.reason.endswith("rows of " + dtype)
    sess = support.started(session(), model.init)
    oracle = Oracle(seed(model), dtype, rounding, dict(enumerate(first_rows())), OPTIMIZERS[optimizer])
    np.testing.assert_array_equal(model.value(sess), rounded(first_rows(), dtype))
    for number in range(12):
        oracle.step(model.step(sess, number))
        np.testing.assert_array_equal(model.value(sess), [oracle.rows[key] for key in range(ROWS)], "after step %d" % number)


def test_a_type_for_each_name_and_float32_for_the_others(graph, session, mx):
    settings(mx, {"one": "bfloat16", "one|two": "float16"})
    models = {name: Model("sgd", name=name) for name in ("one", "two", "three")}
    sess = session()
    for model in models.values():
        sess.run(model.init)
    for name, dtype in (("one", "bfloat16"), ("two", "float16"), ("three", "float32")):
        model = models[name]
        assert model.plans[name].row_dtype == dtype and model.plans[name].reason.endswith(" of " + dtype) == (dtype != "float32")
        expected = first_rows() if dtype == "float32" else rounded(first_rows(), dtype)
        np.testing.assert_array_equal(model.value(sess), expected)
        grads = model.step(sess, 1)
        for key, grad in grads.items():
            row = expected[key] - np.float32(0.1) * grad
            if dtype != "float32":
                found = [one for one in model.converted if one.plan.name == name]
                row = rounded(row, dtype, draws(seed_of(found[0].table), key, DIM, 1))
            np.testing.assert_array_equal(model.value(sess)[key], row)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl", "lazy_adam"])
def test_training_goes_on_after_a_restore_with_the_same_bits(graph, session, mx, place, dtype, optimizer):
    settings(mx, dtype)
    model = Model(optimizer)
    sess = support.started(session(), model.init)
    for number in range(5):
        model.step(sess, number)
    path = model.saver.save(sess, place + "/m")
    for number in range(5, 9):
        model.step(sess, number)
    expected = model.value(sess)
    other = support.restored(session(), model.saver, path)
    for number in range(5, 9):
        model.step(other, number)
    np.testing.assert_array_equal(model.value(other), expected)
    manifest = support.json_of(os.path.join(place, "sparse-m", "w", "manifest.json"))
    # What sets the first rows is no update.
    assert manifest["updates"] == 5 and manifest["table"]["row_storage"]["dtype"] == dtype


@pytest.mark.parametrize("parts", [None, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("dtype", HALVES)
def test_variables_become_rows_of_two_bytes_and_go_back_exactly(mx, place, dtype, optimizer, parts):
    uniform = tf.compat.v1.random_uniform_initializer(-1, 1, seed=8)

    def run(path, row_dtype=None, steps=range(0), **more):
        """The values of a run, its slots and a checkpoint of it."""
        if more.get("converts", True):
            settings(mx, row_dtype, row_conversion=more.get("row_conversion"))
        with tf.Graph().as_default():
            model = Model(optimizer, uniform, converts=more.get("converts", True), parts=parts)
            with support.started(support.new_session(), model.init) as sess:
                if path:
                    model.saver.restore(sess, path)
                for number in steps:
                    model.step(sess, number)
                found = sess.run(model.rows, {model.ids: np.arange(ROWS)})
                saved = model.saver.save(sess, place + "/m", global_step=len(os.listdir(place)))
                seeds = [(one.plan.first + one.saved.first, one.plan.shape[0], seed_of(one.table)) for one in model.converted]
                stop()
        return found, saved, seeds

    plain, path, _ = run(None, converts=False, steps=range(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="row_dtype '%s' cannot be filled.*'w'.*row_conversion" % dtype):
        run(path, dtype)
    stop()
    nearest, half, _ = run(path, dtype, row_conversion="nearest")
    np.testing.assert_array_equal(nearest, rounded(plain, dtype))
    found, _, seeds = run(path, dtype, row_conversion="stochastic")
    for first, count, one in seeds:
        for key in range(count):
            expected = rounded(plain[first + key], dtype, draws(one, key, DIM, 0))
            np.testing.assert_array_equal(found[first + key], expected)
    assert not np.array_equal(found, nearest)
    # Slots came along, and go back: the steps of variables that start from the rounded rows.
    back, wide, _ = run(half, converts=False)
    np.testing.assert_array_equal(back, nearest)
    once, _, _ = run(half, converts=False, steps=range(3, 4))
    halves, half, _ = run(half, dtype, steps=range(3, 4))
    step = 2.0 ** (-7 if dtype == "bfloat16" else -10)
    np.testing.assert_allclose(halves, once, rtol=1.01 * step, atol=1e-6)
    # To float32 tables only as asked, and back from their checkpoint.
    with pytest.raises(Exception, match="row_conversion.*StockTables"):
        run(half, None)
    stop()
    again, wide, _ = run(half, None, row_conversion="nearest")
    np.testing.assert_array_equal(again, halves)
    with pytest.raises(Exception, match="row_conversion.*StockTables"):
        run(wide, dtype)
    stop()
    np.testing.assert_array_equal(run(wide, dtype, row_conversion="stochastic")[0], halves)


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_that_were_never_made_go_to_variables_as_the_table_has_them(mx, place, dtype):
    uniform = tf.compat.v1.random_uniform_initializer(-1, 1, seed=8)
    settings(mx, dtype)
    with tf.Graph().as_default():
        model = Model("adagrad", uniform)
        with support.started(support.new_session(), model.init) as sess:
            model.step(sess, 1, 3)
            assert sess.run(model.converted[0].table.stats)[0] <= 3
            rows = model.value(sess)
            path = model.saver.save(sess, place + "/m")
    np.testing.assert_array_equal(rows, rounded(rows, dtype))
    stop()
    with tf.Graph().as_default():
        model = Model("adagrad", uniform, converts=False)
        with support.restored(support.new_session(), model.saver, path) as sess:
            np.testing.assert_array_equal(sess.run(model.rows, {model.ids: np.arange(ROWS)}), rows)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("use_resource", [False, True])
def test_what_sets_rows_rounds_to_the_nearest_and_what_adds_to_them_is_an_update(graph, session, mx, dtype, use_resource):
    settings(mx, dtype)
    model = Model("sgd", use_resource=use_resource)
    given = np.random.RandomState(7).uniform(-2, 2, [ROWS, DIM]).astype(np.float32)
    ids = tf.constant([3, 4, 39], tf.int64)
    assign = model.variable.assign(given)
    scatter = v1.scatter_update(model.variable, ids, 3 * given[:3])
    add = v1.scatter_add(model.variable, ids, 1e-4 * given[:3])
    sess = support.started(session(), model.init)
    sess.run(assign)
    np.testing.assert_array_equal(model.value(sess), rounded(given, dtype))
    sess.run(scatter)
    expected = rounded(given, dtype)
    expected[[3, 4, 39]] = rounded(3 * given[:3], dtype)
    np.testing.assert_array_equal(model.value(sess), expected)
    np.testing.assert_array_equal(sess.run(model.variable), expected)
    # Sums of much less than the distance of neighbours.
    for number in range(1, 5):
        sess.run(add)
        for at, key in enumerate([3, 4, 39]):
            value = expected[key] + np.float32(1e-4) * given[at]
            expected[key] = rounded(value, dtype, draws(seed(model), key, DIM, number))
        np.testing.assert_array_equal(model.value(sess), expected)
    for key, grad in model.step(sess, 3).items():
        expected[key] = rounded(expected[key] - np.float32(0.1) * grad, dtype, draws(seed(model), key, DIM, 5))
    np.testing.assert_array_equal(model.value(sess), expected)


def test_weights_of_keras_are_rounded_to_the_nearest(graph, mx):
    import test_stock_keras as models

    settings(mx, "float16", ["items"])
    with support.new_session() as sess:
        tf.keras.backend.set_session(sess)
        made = models.model(models.optimizers()["adagrad"])
        ids, labels = models.data()
        made.fit(ids, labels, models.BATCH, 1, verbose=0)
        assert [one.table.row_dtype for one in converted(graph)] == ["float16"]
        rows, *others = made.get_weights()
        np.testing.assert_array_equal(rows, rounded(rows, "float16"))
        given = np.random.RandomState(1).uniform(-1, 1, rows.shape).astype(np.float32)
        made.set_weights([given] + others)
        np.testing.assert_array_equal(made.get_weights()[0], rounded(given, "float16"))
        tf.keras.backend.set_session(None)


def test_admission_and_eviction_with_rows_of_two_bytes(mx):
    import test_stock_admission as admissions
    import test_stock_eviction as evictions

    admissions.admission(mx, 2, 3, eviction_unit="steps", row_dtype="bfloat16")
    model = admissions.Model("rows", "adagrad")
    model.step(np.array([[1, 1, 2]]))
    for _ in range(2):
        model.step(np.array([[1, 5, 5]]))
    assert model.keys() == [{1, 5}]
    rows = model.find([1, 5])
    np.testing.assert_array_equal(rows, rounded(rows, "bfloat16"))
    for _ in range(3):
        model.step(np.array([[5, 5, 5]]))
    evictions.evict(model)
    assert model.keys() == [{5}]
    model.step(np.array([[1, 1, 1]]))
    np.testing.assert_array_equal(model.find([1]), rounded(model.find([1]), "bfloat16"))


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 3])
def test_parameter_servers_train_the_bits_of_one_process(servers):
    variables = dict(STOCK="StockTables(least_rows=1, row_dtype={'items': 'bfloat16', '.*': 'float16'})", OPTIMIZER="adagrad", LAST="12")
    alone = run_alone(**variables)
    with StockJob(ps=servers, **variables) as job:
        found = job.run()
    assert found["rows"] == alone["rows"]
    for rows, dtype in zip(found["rows"], ("bfloat16", "float16")):
        np.testing.assert_array_equal(rows, rounded(np.float32(rows), dtype))


@pytest.mark.long
@pytest.mark.parametrize("slot_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("conversion", ["nearest", "stochastic"])
def test_variables_fill_tables_on_servers_as_in_one_process(tmp_path, conversion, slot_dtype):
    """Servers take them from files that the chief writes, one process by assignments: the same rows, also after steps that read slots."""
    import shutil

    stock = "StockTables(least_rows=1, row_dtype='bfloat16', row_conversion=%r, slot_dtype=%r)" % (conversion, slot_dtype)
    common = dict(OPTIMIZER="adagrad", CONSTANT="1")
    made = str(tmp_path / "variables")
    run_alone(STOCK="None", CHECKPOINTS=made, LAST="3", **common)
    found = []
    for servers in (0, 2):
        directory = str(tmp_path / str(servers))
        shutil.copytree(made, directory)
        variables = dict(STOCK=stock, CHECKPOINTS=directory, FIRST="3", LAST="6", BEFORE="1", **common)
        if not servers:
            found.append(run_alone(**variables))
            continue
        with StockJob(ps=servers, **variables) as job:
            found.append(job.run())
    assert found[0]["before"] == found[1]["before"] and found[0]["rows"] == found[1]["rows"]
    np.testing.assert_array_equal(found[0]["before"][0], rounded(np.float32(found[0]["before"][0]), "bfloat16"))


@pytest.mark.parametrize("given, said", [
    (dict(row_dtype="int8"), "'row_dtype' of stock_tables.*'int8'"), (dict(row_dtype={"a": "float64"}), "'row_dtype'.*'float64'"),
    (dict(row_dtype={"(": "float16"}), "row_dtype.*no regular expression"), (dict(row_rounding="up"), "'row_rounding'.*'up'"),
    (dict(row_rounding=None), "'row_rounding'.*None"), (dict(row_conversion="x"), "'row_conversion'.*'x'"), (dict(row_dtype=3), "'row_dtype'")])
def test_wrong_settings_are_refused_by_name(mx, given, said):
    with pytest.raises(ValueError, match=said):
        mx(stock_tables=StockTables(**given))


@pytest.mark.long
def test_the_command_line_takes_a_type_or_types_by_name_and_the_report_says_it(tmp_path):
    import test_run as runs

    options = read_arguments(["--row-dtype", "bfloat16", "--row-conversion", "nearest", "a.py"]).launch
    assert (options.options.row_dtype, options.options.row_conversion) == ("bfloat16", "nearest")
    options = read_arguments(["--row-dtype", "dnn/a=b=float16", "--row-dtype", "bfloat16", "a.py"]).launch
    assert options.options.row_dtype == {"dnn/a=b": "float16", ".*": "bfloat16"}
    assert options.from_json(json.loads(options.to_json())).options == options.options
    with pytest.raises(ValueError, match="'row_dtype' of stock_tables.*'float8'"):
        read_arguments(["--row-dtype", "x=float8", "a.py"])
    script = runs.write(tmp_path, "program.py", runs.TRAINS)
    done = runs.ran(runs.command("--row-dtype", "users=float16", script))
    assert done.returncode == 0, done.stderr
    assert "users [20000, 4]: a table, adagrad, float16, 3 rows in " in done.stderr


def test_an_initial_value_that_does_not_fit_is_an_error_that_names_the_table(mx, graph):
    settings(mx, "float16")
    with pytest.raises(Exception, match="must fit float16.*table=w"):
        Model("sgd", tf.compat.v1.constant_initializer(7e4))


def estimator_of(directory, source=None, chosen=".*"):
    """An Estimator whose loss is the squared sum of rows, of a variable that is drawn."""
    def model_fn(features, labels, mode):
        w = v1.get_variable("w", [cases.ROWS, DIM], initializer=v1.random_uniform_initializer(-1, 1, seed=8))
        ids = features["ids"]
        rows = tf.reduce_sum(tf.nn.embedding_lookup(w, ids), [1, 2])
        if mode == "infer":
            return tf.estimator.EstimatorSpec(mode, predictions={"rows": rows})
        loss = tf.reduce_mean(tf.square(rows - labels))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, predictions=rows, loss=loss, train_op=train)

    return tf.estimator.Estimator(model_fn, str(directory), tf.estimator.RunConfig(tf_random_seed=3, log_step_count_steps=None),
                                  warm_start_from=source and tf.estimator.WarmStartSettings(str(source), chosen))


def estimator_input():
    ids, labels = [np.concatenate(parts) for parts in zip(*cases.batches(4))]
    return tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels)).batch(cases.BATCH)


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALVES)
def test_an_estimator_trains_evaluates_goes_on_and_exports(mx, tmp_path, dtype):
    settings(mx, dtype)
    made, losses = estimator_of(tmp_path / "model"), []
    for _ in range(3):
        made.train(estimator_input, steps=4)
        losses.append(made.evaluate(estimator_input)["loss"])
        values = made.get_variable_value("w")
        np.testing.assert_array_equal(values, rounded(values, dtype))
    assert losses[2] < losses[0]
    stop()
    inputs = tf.estimator.export.build_raw_serving_input_receiver_fn({"ids": tf.compat.v1.placeholder(tf.int64, [None, 3])})
    tf.compat.v1.reset_default_graph()
    settings(mx, dtype)
    path = made.export_saved_model(str(tmp_path / "export"), inputs)
    stop()
    with tf.Graph().as_default(), support.new_session() as sess:
        signature = tf.compat.v1.saved_model.load(sess, ["serve"], path.decode() if isinstance(path, bytes) else path)
        signature = signature.signature_def["serving_default"]
        ids = np.arange(30).reshape(10, 3)
        rows = sess.run(signature.outputs["rows"].name, {signature.inputs["ids"].name: ids})
    np.testing.assert_allclose(rows, values[ids].sum((1, 2)), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALVES)
def test_a_warm_start_from_variables_rounds_as_asked_and_one_from_a_table_is_exact(mx, tmp_path, dtype):
    plain = estimator_of(tmp_path / "plain")
    plain.train(estimator_input, steps=3)
    values = plain.get_variable_value("w")
    settings(mx, dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match="row_dtype '%s'.*row_conversion" % dtype):
        estimator_of(tmp_path / "refused", tmp_path / "plain").train(estimator_input, steps=1)
    stop()
    settings(mx, dtype, row_conversion="nearest")
    untrained = estimator_of(tmp_path / "started", tmp_path / "plain")
    # A step of no rows would need no batch: what an untrained model evaluates is what it starts with.
    loss = untrained.evaluate(estimator_input)["loss"]
    batches = list(cases.batches(4))
    rows = rounded(values, dtype)
    expected = np.mean([np.mean((rows[ids].sum((1, 2)) - labels) ** 2) for ids, labels in batches])
    assert loss == pytest.approx(expected, rel=1e-5)
    untrained.train(estimator_input, steps=3)
    trained = untrained.get_variable_value("w")
    stop()
    # From a table to a table of the same type nothing is asked; from it to variables either.
    for row_dtype in (dtype, None):
        if row_dtype:
            settings(mx, row_dtype)
        other = estimator_of(tmp_path / ("other-%s" % row_dtype), tmp_path / "started")
        loss = other.evaluate(estimator_input)["loss"]
        expected = np.mean([np.mean((trained[ids].sum((1, 2)) - labels) ** 2) for ids, labels in batches])
        assert loss == pytest.approx(expected, rel=1e-5)
        if row_dtype:
            stop()


@pytest.mark.parametrize("dtype", HALVES)
def test_tables_of_two_types_are_compared_by_their_values(graph, session, mx, place, dtype):
    uniform = tf.compat.v1.random_uniform_initializer(-1, 1, seed=8)
    found = {}
    for name, row_dtype, conversion, restored in (
            ("wide", None, None, None), ("half", dtype, "nearest", "wide"), ("back", None, "nearest", "half")):
        tf.compat.v1.reset_default_graph()
        settings(mx, row_dtype, row_conversion=conversion)
        model = Model("adagrad", uniform)
        with support.started(support.new_session(), model.init) as sess:
            if restored:
                model.saver.restore(sess, place + "/" + restored)
            else:
                model.step(sess, 1)
            found[name] = model.value(sess)
            model.saver.save(sess, place + "/" + name)
        stop()
    paths = {name: place + "/sparse-" + name + "/w" for name in found}
    for one, other in (("wide", "half"), ("half", "wide")):
        different = tables.diff(paths[one], paths[other])
        assert different["differing"]["count"] == ROWS and not different["equal"]
        by_part = {part["name"]: part for part in different["parts"]}
        assert by_part.pop("Adagrad_accumulator")["rows"] == 0
        embedding, = by_part.values()
        expected = np.abs(found["wide"].astype(np.float64) - found["half"])
        assert embedding["rows"] == ROWS and embedding["largest"] == expected.max()
    for one, other in (("back", "half"), ("half", "back")):
        assert tables.diff(paths[one], paths[other])["equal"]
