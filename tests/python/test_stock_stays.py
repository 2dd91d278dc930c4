"""Variables that cannot be tables stay TensorFlow's, with the reason in the plan, and graphs go on running."""

import json

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import stock_cases as cases
import support
from mx_rec.state.settings import Settings
from mx_rec.stock import select
from mx_rec.stock.convert import converted
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables


def plan_of(graph, name="w", trains=True):
    return {plan.name: plan for plan in convert_graph(graph, trains)}[name]


def variable(v1, name="w", shape=(cases.ROWS, cases.DIM), **kwargs):
    kwargs.setdefault("initializer", v1.random_uniform_initializer(-0.1, 0.1))
    return v1.get_variable(name, shape, **kwargs)


def train(v1, loss, optimizer=None):
    return (optimizer or v1.train.AdagradOptimizer(0.1)).minimize(loss)


def whole(v1, w):
    return train(v1, v1.reduce_sum(v1.gather(w, [1])) + v1.nn.l2_loss(w))


def read_by_training(v1, w):
    largest = v1.stop_gradient(v1.reduce_max(w))
    return train(v1, largest * v1.reduce_sum(v1.gather(w, [1])))


def read_beside_training(v1, w):
    return v1.group(train(v1, v1.reduce_sum(v1.gather(w, [1]))), v1.reduce_max(w))


def read_into_a_state(v1, w):
    train(v1, v1.reduce_sum(v1.gather(w, [1])))
    return v1.assign(v1.get_variable("largest", []), v1.reduce_max(w))


def averaged(v1, w):
    step = train(v1, v1.reduce_sum(v1.gather(w, [1])))
    with v1.control_dependencies([step]):
        return v1.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())


def moving_average_optimizer(v1, w):
    return train(v1, v1.reduce_sum(v1.gather(w, [1])), tf.contrib.opt.MovingAverageOptimizer(v1.train.AdagradOptimizer(0.1)))


def no_gather(v1, w):
    return train(v1, v1.reduce_sum(w))


def assigned(v1, w):
    train(v1, v1.reduce_sum(v1.gather(w, [1])))
    return v1.assign(w, w * 0.5)


def second_axis(v1, w):
    return train(v1, v1.reduce_sum(v1.gather(w, [1], axis=1)))


def in_loop(v1, w):
    total = v1.while_loop(lambda i, t: i < 3, lambda i, t: [i + 1, t + v1.reduce_sum(v1.gather(w, [i]))], [0, 0.0])[1]
    return train(v1, total)


def update_in_cond(v1, w):
    grads = v1.train.GradientDescentOptimizer(0.1)
    pairs = grads.compute_gradients(v1.reduce_sum(v1.gather(w, [1])), [w])
    return v1.cond(v1.constant(True), lambda: grads.apply_gradients(pairs), v1.no_op)


def two_optimizers(v1, w):
    loss = v1.reduce_sum(v1.gather(w, [1]))
    return v1.group(train(v1, loss), train(v1, loss, v1.train.MomentumOptimizer(0.1, 0.5)))


def saver_of_another(v1, w):
    train(v1, v1.reduce_sum(v1.gather(w, [1])))
    return v1.train.Saver(saver_def=v1.train.Saver().as_saver_def()) and None


def slot_is_read(v1, w):
    optimizer = v1.train.AdagradOptimizer(0.1)
    train(v1, v1.reduce_sum(v1.gather(w, [1])), optimizer)
    return v1.reduce_max(optimizer.get_slot(w, "accumulator"))


def not_trained(v1, w):
    return v1.reduce_sum(v1.gather(w, [1]))


def repeated_rows(v1, w):
    slot = v1.get_variable("slot", w.shape, initializer=v1.constant_initializer(0.1))
    return tf.raw_ops.SparseApplyAdagrad(
        var=w._ref(), accum=slot._ref(), lr=0.1, grad=v1.gather(w, [1, 1]), indices=[1, 1])


def initial_of_another(v1, w):
    other = v1.get_variable("other", initializer=w.initialized_value() * 2.0)
    return train(v1, v1.reduce_sum(v1.gather(w, [1])) + v1.reduce_sum(other))


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_averages_of_other_variables_keep_no_variable_from_becoming_a_table(v1, use_resource):
    """What is averaged are the numbers of the model on variables, and so is what the average gives."""
    def build(ids, labels):
        w, dense = [v1.get_variable(name, shape, use_resource=use_resource, initializer=v1.random_uniform_initializer(-0.1, 0.1))
                    for name, shape in (("w", [cases.ROWS, cases.DIM]), ("dense", [cases.DIM, 1]))]
        rows = tf.reduce_sum(tf.nn.embedding_lookup(w, ids), 1)
        step = v1.train.AdagradOptimizer(0.1).minimize(
            tf.reduce_mean(tf.square(tf.matmul(rows, dense)[:, 0] - labels)))
        averages = v1.train.ExponentialMovingAverage(0.5)
        with tf.control_dependencies([step]):
            step = averages.apply([dense])
        with tf.control_dependencies([step]):
            average = averages.average(dense).read_value()
        return tf.reduce_sum(tf.square(tf.matmul(rows, average)[:, 0] - labels)), step, [w, dense]

    cases.expect_equal(build, ["w"], 12)


def setter(ps_device="/job:ps"):
    return tf.compat.v1.train.replica_device_setter(
        ps_tasks=2, ps_device=ps_device, worker_device="/job:worker/task:0")


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("ps_device", ["/job:ps", "/job:servers"])
def test_variables_on_parameter_servers_become_tables_there_and_others_stay(v1, graph, ps_device, is_inside):
    with v1.device("/job:worker/task:0"):
        train(v1, v1.reduce_sum(v1.gather(variable(v1, "local"), [1])))
    with v1.device(setter(ps_device)):
        train(v1, v1.reduce_sum(v1.gather(variable(v1), [1])))
        if is_inside:
            plans = convert_graph(graph, True)
    if not is_inside:
        plans = convert_graph(graph, True)
    on_server, local = [next(plan for plan in plans if plan.name == name) for name in ("w", "local")]
    assert on_server.converts and on_server.on_servers and "on parameter servers" in on_server.reason
    assert not local.converts and "not on a parameter server" in local.reason
    # Outside of the device function the servers are those up to the last with a variable.
    made = {op.device for op in graph.get_operations() if op.type == "MxRecPartInit"}
    assert made == {ps_device + "/task:%d/device:CPU:0" % task for task in range(2 if is_inside else 1)}
    assert {op.device for op in graph.get_operations() if op.type == "MxRecStitch"} == {
        "/job:worker/task:0/device:CPU:0"}


@pytest.mark.parametrize("option", ["servers", "use_dynamic_expansion", "is_incremental_checkpoint"])
def test_variables_on_parameter_servers_stay_with_settings_that_tables_there_have_not(v1, graph, option, monkeypatch):
    with v1.device(setter()):
        train(v1, v1.reduce_sum(v1.gather(variable(v1), [1])))
        options = select.options_of_process()
        if option == "servers":
            monkeypatch.setattr(select, "options_of_process", lambda: options._replace(servers=False))
        else:
            monkeypatch.setitem(vars(Settings.get_instance()), option, True)
        assert select.convert_graph(graph, True) == []
    assert not [op.type for op in graph.get_operations() if op.type.startswith("MxRec")]


@pytest.mark.parametrize("device, converts", [("", True), ("/cpu:0", True), ("/job:localhost/task:0/cpu:0", True),
                                              ("/job:worker/task:0", True), ("/job:worker/task:1", False)])
def test_variables_on_the_first_task_of_a_job_convert(v1, graph, device, converts):
    with v1.device(device):
        train(v1, v1.reduce_sum(v1.gather(variable(v1), [1])))
    assert plan_of(graph).converts == converts


STAYS = {
    whole: "its gradient is dense",
    read_by_training: "also read as a whole, by Max",
    read_beside_training: "also read as a whole, by Max",
    averaged: r"also read as a whole, by .*, for .*AssignMovingAvg",
    moving_average_optimizer: r"also read as a whole, by .*, for .*AssignMovingAvg",
    read_into_a_state: "also read as a whole, by Max",
    no_gather: "its gradient is dense",
    assigned: "also read as a whole, by mul",
    second_axis: "its gradient is dense",
    in_loop: "branch|as a whole|loop",
    update_in_cond: "branch|as a whole",
    two_optimizers: "several optimizers",
    saver_of_another: "Saver that cannot be built anew was made",
    slot_is_read: "cannot be a slot: something else reads it",
    not_trained: "nothing updates it",
    repeated_rows: "may repeat",
    initial_of_another: "as a whole|branch|row by row",
}


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("case", list(STAYS), ids=lambda case: case.__name__)
def test_what_cannot_be_a_table_stays_and_says_why(v1, graph, case, use_resource):
    if case is repeated_rows and use_resource:
        pytest.skip("the op takes a reference")
    made = case(v1, variable(v1, use_resource=use_resource))
    before = graph.as_graph_def()
    plan = plan_of(graph)
    assert not plan.converts
    assert support.re.search(STAYS[case], plan.reason), plan.reason
    assert graph.as_graph_def() == before
    with support.started(support.new_session()) as sess:
        if made is not None:
            sess.run(made)


@pytest.mark.parametrize("initializer, kind", [
    (lambda v1: v1.zeros_initializer(), "zeros"),
    (lambda v1: v1.constant_initializer(0.25), "constant"),
    (lambda v1: v1.random_uniform_initializer(-0.5, 0.25), "random_uniform"),
    (lambda v1: v1.random_normal_initializer(0.5, 0.25), "random_normal"),
    (lambda v1: v1.truncated_normal_initializer(-0.5, 0.25), "truncated_normal"),
    (lambda v1: v1.glorot_uniform_initializer(), "random_uniform"),
    (lambda v1: v1.glorot_normal_initializer(), "truncated_normal"),
    (lambda v1: v1.variance_scaling_initializer(2.0, "fan_out", "untruncated_normal"), "random_normal"),
    (lambda v1: None, "random_uniform")],
    ids=["zeros", "constant", "uniform", "normal", "truncated", "glorot uniform", "glorot normal", "scaling", "none"])
def test_new_rows_have_the_distribution_of_the_initializer(v1, graph, initializer, kind):
    shape = (4000, 8)
    w = v1.get_variable("w", shape, initializer=initializer(v1))
    expected = v1.get_variable("v", shape, initializer=initializer(v1))
    train(v1, v1.reduce_sum(v1.gather(w, [1])))
    plan = plan_of(graph)
    assert plan.converts and plan.initializer["kind"] == kind
    with support.started(support.new_session()) as sess:
        rows = cases.dense_value(sess, converted(graph)[0], shape[0])
        stock = sess.run(expected)
    assert abs(rows.mean() - stock.mean()) < 0.02 * stock.std() + 1e-6
    assert abs(rows.std() - stock.std()) < 0.02 * stock.std() + 1e-6
    parts = np.linspace(0.05, 99.95, 21)
    assert np.abs(np.percentile(rows, parts) - np.percentile(stock, parts)).max() <= 0.3 * stock.std() + 1e-6
    if kind not in ("random_normal",):
        assert rows.min() >= stock.min() - 0.02 * stock.std() - 1e-6
        assert rows.max() <= stock.max() + 0.02 * stock.std() + 1e-6


def test_names_and_sizes_choose(mx, graph):
    v1 = tf.compat.v1
    mx(stock_tables=StockTables(names=["big", "other"], least_rows=50))
    loss = 0.0
    for name, rows in (("big", 60), ("bigger", 10), ("else", 60), ("other/x", 50)):
        loss += v1.reduce_sum(v1.gather(variable(v1, name, [rows, 2]), [1]))
    train(v1, loss)

    plans = {plan.name: plan for plan in convert_graph(graph, True)}
    assert [name for name, plan in plans.items() if plan.converts] == ["big", "other/x"]
    assert "fewer than 50" in plans["bigger"].reason and "no name" in plans["else"].reason


@pytest.mark.parametrize("wrong", [3, [], ["("], [1], {"a": 1}])
def test_a_wrong_choice_is_refused_by_init(mx, wrong):
    with pytest.raises(ValueError, match="stock_tables"):
        mx(stock_tables=wrong)


def test_the_command_prints_the_same_plan(v1, graph, tmp_path):
    train(v1, v1.reduce_sum(v1.gather(variable(v1), [1])) + v1.nn.l2_loss(variable(v1, "dense")))
    tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt")
    plan = plan_of(graph)
    said = preloaded.run_python(cases.COMMAND, tmp_path / "graph.pbtxt", "--variables", "1")
    assert "1 variable becomes a table:\n  w {}: {}\n".format(json.dumps(plan.shape), plan.reason) in said
    assert "  dense [60, 4]: its gradient is dense: Adagrad/update_dense/ApplyAdagrad updates it as a whole\n" in said


@pytest.mark.long
def test_the_plan_of_variables_is_in_the_json_if_asked(v1, graph, tmp_path):
    train(v1, v1.reduce_sum(v1.gather(variable(v1), [1])) + v1.nn.l2_loss(variable(v1, "dense")))
    tf.io.write_graph(graph, str(tmp_path), "graph.pbtxt")
    without, plans = [json.loads(preloaded.run_python(cases.COMMAND, tmp_path / "graph.pbtxt", "--json", "-", *more))
                      for more in ([], ["--variables", "1"])]
    assert "variables" not in without
    dense, w = [next(one for one in plans["variables"] if one["name"] == name) for name in ("dense", "w")]
    assert w["converts"] and w["table"] == "w" and w["optimizer"] == "adagrad" and w["fused"]
    assert [slot["name"] for slot in w["slots"]] == ["Adagrad_accumulator"] and w["shape"] == [cases.ROWS, cases.DIM]
    assert not dense["converts"] and "dense" in dense["reason"] and dense["table"] == ""
