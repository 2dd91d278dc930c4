"""The factories of optimizers check their arguments; apply_gradients and compute_gradients keep TensorFlow's manners."""

import importlib
import logging

import pytest
import tensorflow as tf

import support
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.util.initialize import ConfigInitializer, init, terminate_config_initializer

PLAIN = ("adam", "lazy_adam", "adagrad", "ftrl", "gradient_descent", "momentum", "rmsprop")
BY_ADDRESS = {"adam_by_addr": "create_hash_optimizer_by_address",
              "lazy_adam_by_addr": "create_hash_optimizer_by_address",
              "adagrad_by_addr": "create_hash_optimizer_by_address",
              "gradient_descent_by_addr": "create_hash_optimizer_by_addr",
              "rmsprop_by_addr": "create_hash_optimizer_by_address"}
NAMES = {"momentum": ("learning_rate_input", "optimizer_name", "enable_locking")}


def factory(module):
    return getattr(importlib.import_module("mx_rec.optimizers." + module),
                   BY_ADDRESS.get(module, "create_hash_optimizer"))


def create(module, **arguments):
    arguments.setdefault(NAMES.get(module, ("learning_rate",))[0], 0.1)
    return factory(module)(**arguments)


@pytest.mark.parametrize("module", PLAIN + tuple(BY_ADDRESS))
@pytest.mark.parametrize("rate, message", [
    (-0.1, "is less than 0.0: it is -0.1"), (10.1, "is bigger than 10.0: it is 10.1"), ("0.1", "Invalid parameter type"),
    (None, "Invalid parameter type"), (True, "Invalid parameter type"), (float("nan"), "is less than 0")])
def test_a_learning_rate_is_a_number_from_0_to_10(graph, module, rate, message):
    name = NAMES.get(module, ("learning_rate",))[0]
    with pytest.raises(ValueError) as caught:
        create(module, **{name: rate})
    assert message in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("make, message", [
    (lambda: tf.constant(11.0), "is bigger than 10"), (lambda: tf.constant([0.1]), "should be a scalar"),
    (lambda: tf.constant(1), "floating point")])
def test_a_learning_rate_tensor_is_checked_as_far_as_it_is_known(dynamic, make, message):
    with pytest.raises(ValueError) as caught:
        create("lazy_adam", learning_rate=make())
    assert message in str(caught.value)


def test_a_learning_rate_that_only_the_session_knows_passes_with_a_warning(dynamic, caplog):
    with caplog.at_level(logging.WARNING, "mx_rec"):
        create("lazy_adam", learning_rate=tf.compat.v1.placeholder(tf.float32, []))
    assert "'learning_rate'" in caplog.text
    create("adagrad", learning_rate=tf.constant(0.5))
    create("ftrl", learning_rate=1)


def cases():
    for module in ("adam", "adam_by_addr", "lazy_adam", "lazy_adam_by_addr"):
        for name, low, high in (("beta1", 0.0, 1.0), ("epsilon", 0.0, 1.5), ("beta2", -0.1, 1.1)):
            yield module, {name: low}, name
            yield module, {name: high}, name
            yield module, {name: 1}, "type of '{}' is not float".format(name)
    for module in ("adagrad", "adagrad_by_addr"):
        yield module, {"initial_accumulator_value": 0.0}, "is less than or equal 0"
        yield module, {"initial_accumulator_value": 1.1}, "is bigger than 1"
        yield module, {"initial_accumulator_value": 1}, "is not float"
    yield "adagrad", {"use_locking": 1}, "is not bool"
    yield "lazy_adam", {"use_fusion_optim": 1}, "is not bool"
    yield "gradient_descent", {"use_fusion_optim": 1}, "is not bool"
    yield "gradient_descent", {"use_locking": None}, "is not bool"
    for decay, message in ((0.0, "is less than"), (0.1, "is bigger than"), (1, "is not float")):
        yield "gradient_descent", {"weight_decay": decay}, message
    for decay, message in ((-0.1, "is less than"), (1.1, "is bigger than"), (None, "is not float")):
        yield "gradient_descent_by_addr", {"weight_decay": decay}, message
    yield "ftrl", {"learning_rate_power": 0.1}, "is bigger than 0"
    yield "ftrl", {"initial_accumulator_value": 0}, "is less than or equal 0"
    yield "ftrl", {"initial_accumulator_value": 1.1}, "is bigger than 1"
    for name in ("l1_regularization_strength", "l2_regularization_strength", "l2_shrinkage_regularization_strength"):
        yield "ftrl", {name: -1}, "is less than 0"
        yield "ftrl", {name: 10001.0}, "is bigger than"
        yield "ftrl", {name: "1"}, "type of '{}'".format(name)
    for name in ("accum_name", "linear_name"):
        yield "ftrl", {name: ""}, "length is less than 1"
        yield "ftrl", {name: "n" * 256}, "length is bigger than 255"
    yield "momentum", {"mom": -0.1}, "is less than 0"
    yield "momentum", {"mom": 1}, "type of 'mom' is not float: it is 1"
    yield "momentum", {"enable_nesterov": 1}, "is not bool"
    yield "momentum", {"enable_locking": 1}, "is not bool"
    for module in ("rmsprop", "rmsprop_by_addr"):
        for name in ("decay", "momentum"):
            yield module, {name: -0.1}, "'{}' is less than 0: it is -0.1".format(name)
            yield module, {name: 1.5}, "'{}' is bigger than 1: it is 1.5".format(name)
            yield module, {name: "0.9"}, "type of '{}' is not float: it is '0.9'".format(name)
            yield module, {name: float("nan")}, "'{}' is less than 0: it is nan".format(name)
        yield module, {"epsilon": 0}, "'epsilon' is less than or equal 0: it is 0"
        yield module, {"epsilon": 2}, "'epsilon' is bigger than 1: it is 2"
        yield module, {"centered": 1}, "type of 'centered' is not bool: it is 1"
    yield "rmsprop", {"use_locking": "no"}, "type of 'use_locking' is not bool: it is 'no'"
    for module in PLAIN + tuple(BY_ADDRESS):
        name = NAMES.get(module, (None, "name"))[1]
        yield module, {name: ""}, "length is less than 1"
        yield module, {name: "n" * 201}, "length is bigger than 200"
        yield module, {name: 5}, "is not str"


@pytest.mark.parametrize("module, changes, message", list(cases()))
def test_a_wrong_argument_is_a_value_error(graph, module, changes, message):
    with pytest.raises(ValueError) as caught:
        create(module, **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("module", PLAIN + tuple(BY_ADDRESS))
def test_an_optimizer_needs_init_and_the_right_mode_of_tables(mx, module):
    with pytest.raises(EnvironmentError, match="Please init"):
        create(module)
    mx(use_dynamic_expansion=module not in BY_ADDRESS)
    with pytest.raises(ValueError, match="The dynamic expansion mode is not compatible with the optimizer"):
        create(module)
    terminate_config_initializer()
    init(use_dynamic_expansion=module in BY_ADDRESS)
    optimizer = create(module)
    assert isinstance(optimizer, tf.compat.v1.train.Optimizer)
    assert ConfigInitializer.get_instance().optimizer_config.optimizer_instance is optimizer


@pytest.mark.parametrize("module, name", [
    ("adam", "CustomizedAdam"), ("adam_by_addr", "CustomizedAdamByAddress"),
    ("lazy_adam", "CustomizedLazyAdam"), ("lazy_adam_by_addr", "CustomizedLazyAdamByAddress"),
    ("adagrad", "CustomizedAdagrad"), ("adagrad_by_addr", "CustomizedAdagradByAddress"),
    ("ftrl", "CustomizedFtrl"), ("gradient_descent", "CustomizedGradientDescent"),
    ("gradient_descent_by_addr", "CustomizedGradientDescentByAddr"), ("rmsprop", "CustomizedRMSProp"),
    ("rmsprop_by_addr", "CustomizedRMSPropByAddress")])
def test_classes_have_the_documented_names(mx, module, name):
    mx(use_dynamic_expansion=module in BY_ADDRESS)
    assert type(create(module)).__name__ == name


def model(**arguments):
    table = create_table(tf.int64, 2, "t", tf.compat.v1.ones_initializer(), device_vocabulary_size=10)
    rows = sparse_lookup(table, tf.constant([1, 2, 1], tf.int64), modify_graph=True, **arguments)
    return table, tf.reduce_sum(tf.square(rows))


def test_missing_pairs_and_gradients_are_errors_as_in_tensorflow(dynamic):
    optimizer = create("lazy_adam")
    table, loss = model(is_grad=False)
    with pytest.raises(ValueError, match="No variables provided."):
        optimizer.apply_gradients([])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.apply_gradients([(None, table.variable)])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        optimizer.minimize(loss, var_list=[table.variable])


def test_without_tables_there_is_nothing_to_optimize(dynamic):
    with pytest.raises(ValueError, match="No variables to optimize"):
        create("lazy_adam").compute_gradients(tf.constant(1.0))


def test_lazy_adam_refuses_ordinary_variables(dynamic):
    weight = tf.compat.v1.get_variable("weight", [2])
    with pytest.raises(NotImplementedError, match="updates tables only"):
        create("lazy_adam").minimize(tf.reduce_sum(weight), var_list=[weight])
    with pytest.raises(NotImplementedError, match="updates tables only"):
        create("gradient_descent", weight_decay=0.001).minimize(tf.reduce_sum(weight), var_list=[weight])


@pytest.mark.parametrize("module", ["adagrad", "ftrl", "gradient_descent", "momentum", "rmsprop"])
def test_the_others_update_ordinary_variables_as_tensorflow_does(dynamic, session, module):
    table, loss = model()
    weight = tf.compat.v1.get_variable("weight", initializer=[1.0, 2.0])
    step = tf.compat.v1.train.get_or_create_global_step()
    train = create(module).minimize(loss + tf.reduce_sum(weight), step, [table.variable, weight])
    sess = support.started(session())
    sess.run(train)
    assert sess.run(step) == 1 and (sess.run(weight) < [1.0, 2.0]).all() and table.size() == 2


def test_a_table_s_gradient_must_be_slices(dynamic):
    table, _ = model()
    with pytest.raises(TypeError, match="should be an IndexedSlices"):
        create("adagrad").apply_gradients([(tf.ones([1, 2]), table.variable)])


def test_offsets_need_an_optimizer_by_address(dynamic):
    _, loss = model()
    rows = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB)
    offsets = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
    with pytest.raises(ValueError, match="The dynamic expansion mode is not compatible"):
        create("adagrad").apply_gradients(zip(tf.gradients(loss, rows), offsets))


def test_the_training_op_is_in_its_collection_and_the_table_knows_its_optimizer(dynamic):
    table, loss = model()
    optimizer = create("lazy_adam")
    train = optimizer.minimize(loss, name="train_tables")
    assert train in tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP)
    assert isinstance(train, tf.Operation) and train.name == "train_tables"
    assert table.optimizer is optimizer and table.ext_emb_size == 6


def test_beta_powers_advance_once_per_step_and_only_then(dynamic, session):
    _, loss = model()
    train = create("lazy_adam", beta1=0.5, beta2=0.25).minimize(loss)
    powers = [var for var in tf.compat.v1.global_variables() if "power" in var.name]
    assert [var.op.name for var in powers] == ["beta1_power", "beta2_power"]
    sess = support.started(session())
    for _ in range(3):
        sess.run(train)
    assert sess.run(powers) == [0.5 ** 4, 0.25 ** 4]
