"""Which variables of unchanged models become tables, what the log says of it, and when sessions convert their graph."""

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.core.feature_process import EvictHook
from mx_rec.graph.hooks import GraphModifierHook
from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
from mx_rec.stock.convert import converted
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

ROWS = 300


def build(stays=("dense",), resource=True):
    """A model of a variable that can be a table, one that a dense penalty moves, and a small one.

    Args:
        stays: Of the variables `items` and `dense` those with a dense penalty.
    """
    step = v1.train.get_or_create_global_step()
    ids, labels = v1.placeholder(tf.int64, [None, 3], "ids"), v1.placeholder(tf.float32, [None], "labels")
    loss = 0.0
    for name, rows in (("items", ROWS), ("dense", ROWS), ("small", 20)):
        variable = v1.get_variable(name, [rows, 4], use_resource=resource, initializer=v1.random_uniform_initializer(-0.1, 0.1))
        loss += tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(variable, ids % rows), [1, 2]) - labels))
        if name in stays:
            loss += 1e-3 * tf.nn.l2_loss(variable)
    train = v1.train.AdagradOptimizer(0.1).minimize(loss, step)
    return ids, labels, loss, train


def trained(session, model, steps=4):
    """Trains a model; returns the losses."""
    ids, labels, loss, train = model
    return [float(session.run([loss, train], {ids: batch, labels: label})[0]) for batch, label in cases.batches(steps)]


def tables(graph):
    """The names of the variables of a graph that became tables."""
    return sorted(one.plan.name for one in converted(graph))


def plain(model, session=None):
    """Trains in a plain session."""
    with support.started(v1.Session()) as sess:
        return trained(sess, model)


def stock_tables(**settings):
    return StockTables(**settings)


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("names", ["items", "other"])
def test_a_modified_script_whose_variables_all_stay_runs_on_variables_and_says_why(mx, graph, said, names, resource):
    """It ended with "table_info_list is empty! Create a table with create_table": advice of another API."""
    mx(stock_tables=[names])
    model = build(["items", "dense"], resource)
    modify_graph_and_start_emb_cache()
    losses = plain(model)
    assert tables(graph) == [] and np.isfinite(losses).all()
    if names == "items":
        assert any("the variable items of shape [300, 4] stays TensorFlow's: it is also read as a whole" in line
                   or "the variable items of shape [300, 4] stays TensorFlow's: its gradient is dense" in line
                   for line in said("INFO")), said("INFO")
        line = "stock_tables: 0 of 1 variables whose names match 'items' are tables; 1 stays TensorFlow's: items."
        assert line in said("INFO")
    else:
        assert "stock_tables: the graph has no variables whose names match 'other': none is a table." in said("INFO")
    assert not any("modify_graph=True" in line for line in said("INFO")), said("INFO")


@pytest.mark.parametrize("modify", [False, True])
def test_graph_modifier_hook_lets_a_script_run_whose_variables_all_stay(mx, graph, said, modify):
    mx(stock_tables=["items"])
    model = build(["items"])
    with v1.train.MonitoredTrainingSession(hooks=[GraphModifierHook(modify_graph=modify)]) as sess:
        assert np.isfinite(trained(sess, model)).all()
    assert tables(graph) == [] and sum("0 of 1 variables" in line for line in said("INFO")) == 1


def test_without_stock_tables_a_script_without_a_table_is_still_refused(dynamic, graph):
    build()
    with pytest.raises(RuntimeError, match="table_info_list is empty!"):
        modify_graph_and_start_emb_cache()


@pytest.mark.parametrize("settings, counted", [
    (lambda: stock_tables(least_rows=100), "1 of 2 variables with 100 rows and more are tables; 1 stays TensorFlow's: dense."),
    (lambda: ["items", "small"], "2 of 2 variables whose names match 'items' or 'small' are tables."),
    (lambda: stock_tables(names=["items", "small"], least_rows=100),
     "1 of 1 variables with 100 rows and more whose names match 'items' or 'small' are tables."),
    (lambda: True, "the graph has no variables with 10,000 rows and more: none is a table."),
], ids=["rows", "names", "both", "none"])
@pytest.mark.parametrize("way", ["modify", "monitored"])
def test_the_log_counts_the_variables_that_the_setting_selects_and_names_those_that_stay(
        mx, graph, said, settings, counted, way):
    """Of a graph of which nothing became a table the log said no reason, and counted variables of optimizers."""
    mx(stock_tables=settings())
    model = build()
    if way == "modify":
        modify_graph_and_start_emb_cache()
    with v1.train.MonitoredTrainingSession() as sess:
        trained(sess, model)
    assert [line for line in said("INFO") if line.startswith("stock_tables: ")] == ["stock_tables: " + counted]
    stays = [line for line in said("INFO") if "stays TensorFlow's: " in line and not line.startswith("stock_tables")]
    assert len(stays) == counted.count("stays"), stays
    # Optimizers have variables of as many rows, which are no variables of the model.
    assert all(line.startswith("the variable dense of shape [300, 4] stays TensorFlow's: ") for line in stays)


def test_an_estimator_says_what_stays_in_training_and_evaluation(mx, graph, said, tmp_path):
    def model_fn(features, labels, mode):
        ids, labels, loss, train = features["ids"], labels, 0.0, None
        for name in ("items", "dense"):
            variable = tf.compat.v1.get_variable(name, [ROWS, 4], initializer=tf.compat.v1.random_uniform_initializer(-0.1, 0.1))
            loss += tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(variable, ids), [1, 2]) - labels))
            loss += 1e-3 * tf.nn.l2_loss(variable) if name == "dense" else 0.0
        if mode == tf.estimator.ModeKeys.TRAIN:
            train = tf.compat.v1.train.AdagradOptimizer(0.1).minimize(loss, tf.compat.v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def input_fn():
        ids, labels = next(cases.batches(1))
        return tf.data.Dataset.from_tensors(({"ids": ids}, labels)).repeat(3)

    mx(stock_tables=stock_tables(least_rows=100))
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    estimator.train(input_fn)
    expected = "stock_tables: 1 of 2 variables with 100 rows and more are tables; 1 stays TensorFlow's: dense."
    assert said("INFO").count(expected) == 1
    estimator.evaluate(input_fn)
    assert said("INFO").count(expected) == 2
    assert any("the variable dense of shape [300, 4] stays TensorFlow's: the checkpoint has it as a variable" in line
               for line in said("INFO"))
    assert not any("modify_graph_and_start_emb_cache() once" in line for line in said())


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("name", ["MonitoredTrainingSession", "MonitoredSession", "SingularMonitoredSession"])
def test_a_monitored_session_converts_its_graph_by_itself_and_goes_on_from_its_checkpoint(
        mx, graph, said, tmp_path, name, resource):
    """`init(stock_tables=...)` alone made no table in a session, and nothing was said."""
    def session():
        if name == "MonitoredTrainingSession":
            return v1.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_checkpoint_steps=2, log_step_count_steps=None)
        creator = v1.train.ChiefSessionCreator(checkpoint_dir=str(tmp_path))
        if name == "MonitoredSession":
            return v1.train.MonitoredSession(creator)
        return v1.train.SingularMonitoredSession(checkpoint_dir=str(tmp_path))

    mx(stock_tables=stock_tables(least_rows=100))
    for expected in (0, 4):
        with tf.Graph().as_default() as own:
            v1.set_random_seed(3)
            model = build(resource=resource)
            with session() as sess:
                assert sess.run(v1.train.get_global_step()) == (expected if name == "MonitoredTrainingSession" else 0)
                trained(sess, model)
            assert tables(own) == ["items"]
    if name == "MonitoredTrainingSession":
        saved = support.variables_in(tmp_path)
        assert "items" not in saved and "dense" in saved
        assert (tmp_path / "sparse-model.ckpt-8" / "items").is_dir()
    assert not said()


def test_a_monitored_session_trains_the_numbers_of_a_modified_script(mx, graph):
    mx(stock_tables=stock_tables(least_rows=100))
    losses = []
    for calls in (False, True):
        with tf.Graph().as_default():
            v1.set_random_seed(3)
            model = build()
            scaffold = v1.train.Scaffold(init_op=v1.global_variables_initializer(), saver=v1.train.Saver(defer_build=True))
            if calls:
                modify_graph_and_start_emb_cache()
            with v1.train.MonitoredTrainingSession(scaffold=scaffold) as sess:
                losses.append(trained(sess, model, 20))
    assert losses[0] == losses[1] and len(set(losses[0])) > 1


def test_hooks_find_the_tables_of_a_monitored_session_when_they_begin(mx, graph, said, tmp_path):
    mx(stock_tables=stock_tables(least_rows=100, access_threshold=1, eviction_threshold=2, eviction_unit="steps",
                                 evict_time_interval=None, evict_step_interval=2))
    model = build()
    with v1.train.MonitoredTrainingSession(hooks=[EvictHook(True, None, 2)]) as sess:
        trained(sess, model)
    assert tables(graph) == ["items"] and not said()


@pytest.mark.parametrize("way", ["scaffold", "collection", "modify", "estimator"])
def test_a_saver_that_was_made_before_saves_the_tables(mx, graph, said, way, tmp_path):
    """It kept its variables from being tables, with a warning."""
    mx(stock_tables=stock_tables(least_rows=100))
    if way == "estimator":
        def model_fn(features, labels, mode):
            variable = v1.get_variable("items", [ROWS, 4])
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(variable, features["ids"]), [1, 2]) - labels))
            train = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, scaffold=v1.train.Scaffold(saver=v1.train.Saver()))

        def input_fn():
            ids, labels = next(cases.batches(1))
            return tf.data.Dataset.from_tensors(({"ids": ids}, labels)).repeat(2)

        estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
        estimator.train(input_fn)
        first = estimator.evaluate(input_fn)
        estimator.train(input_fn)
        assert estimator.evaluate(input_fn)["loss"] < first["loss"] and first["global_step"] == 2
    else:
        model = build()
        saver = v1.train.Saver()
        if way == "collection":
            v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        if way == "modify":
            modify_graph_and_start_emb_cache()
        with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), scaffold=v1.train.Scaffold(saver=saver if way != "collection" else None)) as sess:
            trained(sess, model)
        assert tables(graph) == ["items"]
    assert not said()
    assert "items" not in support.variables_in(tmp_path)
    assert list(tmp_path.glob("sparse-model.ckpt-*/items"))


@pytest.mark.parametrize("way", ["modify", "monitored"])
@pytest.mark.parametrize("ran", ["nothing", "constant", "variables"])
def test_a_graph_whose_variables_an_open_session_has_run_stays_with_a_warning(mx, graph, said, ran, way):
    mx(stock_tables=stock_tables(least_rows=100))
    with v1.Session() as sess:
        if ran == "constant":
            step = v1.train.get_or_create_global_step()
            sess.run([v1.constant(1), step.initializer])
        if ran == "variables":
            early = v1.get_variable("early", [ROWS, 4])
            sess.run(v1.global_variables_initializer())
            assert sess.run(v1.gather(early, [1])).shape == (1, 4)
        model = build()
        if way == "modify":
            modify_graph_and_start_emb_cache()
            sess.run(v1.global_variables_initializer())
            losses = trained(sess, model)
        else:
            with v1.train.MonitoredTrainingSession() as own:
                losses = trained(own, model)
        assert np.isfinite(losses).all() and tables(graph) == ([] if ran == "variables" else ["items"])
    assert any("an open session has run the graph" in line for line in said()) == (ran == "variables")


def test_a_plain_session_that_is_closed_again_leaves_tables_to_a_monitored_one(mx, graph, said):
    """The plain session ran on variables, and warned of a call that it did without."""
    mx(stock_tables=stock_tables(least_rows=100))
    model = build()
    plain(model)
    assert tables(graph) == ["items"]
    with v1.train.MonitoredTrainingSession() as sess:
        trained(sess, model)
    assert not said() and tables(graph) == ["items"]
    assert sum(line.startswith("stock_tables: ") for line in said("INFO")) == 1


def test_sessions_that_have_nothing_to_convert_say_nothing(mx, graph, said, tmp_path):
    """Graphs without updates, a setting that selects nothing, and sessions without `stock_tables`."""
    mx(stock_tables=True)
    plain(build())
    with tf.Graph().as_default():
        rows = tf.gather(v1.get_variable("large", [20000, 2]), [1, 2])
        with support.started(v1.Session()) as sess:
            assert sess.run(rows).shape == (2, 2)
    assert not said()


def test_a_second_monitored_session_of_a_graph_neither_converts_nor_warns_again(mx, graph, said):
    mx(stock_tables=stock_tables(least_rows=100))
    model = build()
    for _ in range(2):
        with v1.train.MonitoredTrainingSession() as sess:
            trained(sess, model)
    assert tables(graph) == ["items"] and not said()
    assert sum(line.startswith("stock_tables: ") for line in said("INFO")) == 1


def test_without_the_setting_a_monitored_session_changes_nothing(dynamic, graph, said):
    model = build()
    with v1.train.MonitoredTrainingSession() as sess:
        trained(sess, model)
    assert tables(graph) == [] and not [line for line in said("INFO") if "stock_tables" in line]
