"""Warm start of an Estimator's tables: what comes from where, once, and what is refused.

The checkpoint of step 0, which training writes before its first step, shows what a model started with.
"""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import estimator_cases as cases
import support
from mx_rec.util.initialize import init, terminate_config_initializer
from mx_rec.util.variable import get_dense_and_sparse_variable

ROWS = {"embedding"}
SLOTS = {"embedding", "LazyAdam_momentum", "LazyAdam_velocity"}
USER, ITEM = cases.TABLES


def settings(*args, **kwargs):
    return tf.estimator.WarmStartSettings(*args, **kwargs)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of three trained models: 3, 6 and 9 steps on other users."""
    init()
    found = []
    for place in range(3):
        directory = str(tmp_path_factory.mktemp("model") / str(place))
        case = cases.Case("step", directory, save_checkpoints_steps=3, keep_checkpoint_max=9)
        data = cases.samples(seed=place, users=10 * (place + 1))
        case.train(data, steps=3 * (place + 1))
        found.append(case.directory)
    terminate_config_initializer()
    return found


def started(directory, warm_start, form="step", params=None, steps=1):
    """Trains a step; returns (tables, variables) that it started with."""
    case = cases.Case(form, directory, params=params, warm_start=warm_start, keep_checkpoint_max=9)
    case.train(steps=steps)
    # The step itself is a variable, which a list of expressions may have brought.
    first = cases.checkpoint_steps(case.directory)[0][0]
    return cases.saved_tables(case.directory, first), cases.saved_variables(case.directory, first)


def assert_from(actual, directory, parts, step=None):
    """Asserts that a table, given as (its name, {table: parts}), is that of a checkpoint, with exactly these parts."""
    name, mine = actual[0], actual[1][actual[0]]
    theirs = cases.saved_tables(directory, step)[name]
    assert set(theirs) == SLOTS and set(mine) == parts and theirs["embedding"]
    for part in parts:
        support.assert_same_tables(mine[part], theirs[part], name + "/" + part)


def kernels(variables):
    return {name: value for name, value in variables.items()
            if name.startswith("dense") and name.count("/") == 1}


def assert_same_kernels(variables, directory, step=None):
    theirs = kernels(cases.saved_variables(directory, step))
    assert sorted(theirs) == sorted(kernels(variables)) and len(theirs) == 4
    for name, value in theirs.items():
        support.assert_same_bits(variables[name], value, name)


@pytest.mark.long
@pytest.mark.parametrize("form", cases.FORMS)
def test_a_path_brings_the_rows_of_all_tables_and_what_is_trainable(dynamic, models, tmp_path, form):
    tables, variables = started(tmp_path / form, models[2], form)
    for name in cases.TABLES:
        assert_from((name, tables), models[2], ROWS)
    assert_same_kernels(variables, models[2])
    assert variables["global_step"] == 0
    assert not np.any(variables["dense/kernel/Adam"])


@pytest.mark.long
@pytest.mark.parametrize("form", cases.FORMS)
def test_a_list_of_all_brings_slots_and_the_step_too(dynamic, models, tmp_path, form):
    case = cases.Case(form, tmp_path / form, warm_start=settings(models[1], [".*"]), save_checkpoints_steps=100)
    losses = case.train(steps=4)
    # The same as going on: nothing of the model is left behind.
    shutil.copytree(models[1], str(tmp_path / "on"))
    on = cases.Case(form, tmp_path / "on", save_checkpoints_steps=100)
    support.assert_same_bits(losses, on.train(steps=4))
    assert cases.latest_step(case.directory) == 10
    cases.assert_same_checkpoints(case.directory, on.directory)


@pytest.mark.parametrize("wanted, user, item, dense", [
    (".*", ROWS, ROWS, True), ("user_.*|item", ROWS, ROWS, False), ("user", ROWS, None, False), ("dense", None, None, True),
    (None, None, None, False), (["user_table"], SLOTS, None, False), (["user_table", "item_table"], SLOTS, SLOTS, False),
    (["user_table$", "dense"], ROWS, None, True), (["user_table[^/]", "item_table"], ROWS, SLOTS, False),
    (["(user|item)_table(/LazyAdam_.*)?$"], SLOTS, SLOTS, False), (["dense/kernel", "dense/bias", "dense_1"], None, None, True),
    (("user_table", "item_table$"), SLOTS, ROWS, False),
], ids=lambda one: str(sorted(one) if isinstance(one, set) else one))
def test_expressions_choose_tables_slots_and_variables(dynamic, models, tmp_path, wanted, user, item, dense):
    tables, variables = started(tmp_path / "new", settings(models[2], wanted))
    for name, parts in ((USER, user), (ITEM, item)):
        if parts is None:
            assert not tables[name]["embedding"]
        else:
            assert_from((name, tables), models[2], parts)
    if dense:
        assert_same_kernels(variables, models[2])
    else:
        assert np.any(variables["dense/kernel"] != cases.saved_variables(models[2])["dense/kernel"])


class Listed(cases.Case):
    """Gives its tables, or variables, as objects: those of its graph, which are known when model_fn has run."""

    def __init__(self, wanted, source, directory):
        self._wanted, self._list = wanted, []
        super().__init__("step", directory, warm_start=settings(source, self._list), keep_checkpoint_max=9)

    def model_fn(self, features, labels, mode, params):
        spec = super().model_fn(features, labels, mode, params)
        self._list[:] = self._wanted()
        return spec


@pytest.mark.long
def test_tables_and_variables_may_be_given_as_objects(dynamic, models, tmp_path):
    dense = lambda: get_dense_and_sparse_variable()[0]  # noqa: E731
    sparse = lambda: get_dense_and_sparse_variable()[1][:1]  # noqa: E731
    for number, wanted in enumerate([lambda: dense() + sparse(), dense, sparse]):
        case = Listed(wanted, models[0], tmp_path / str(number))
        case.train(steps=1)
        tables, variables = cases.saved_tables(case.directory, 0), cases.saved_variables(case.directory, 0)
        if wanted is dense:
            assert not tables[USER]["embedding"]
        else:
            assert_from((USER, tables), models[0], ROWS)
        assert not tables[ITEM]["embedding"]
        if wanted is not sparse:
            assert_same_kernels(variables, models[0])


@pytest.mark.long
def test_a_certain_checkpoint_is_taken_where_one_is_named(dynamic, models, tmp_path):
    for form, path in (("str", models[2] + "/model.ckpt-3"), ("settings", settings(models[2] + "/model.ckpt-6"))):
        tables, variables = started(tmp_path / form, path)
        step = 3 if form == "str" else 6
        for name in cases.TABLES:
            assert_from((name, tables), models[2], ROWS, step)
        assert_same_kernels(variables, models[2], step)


@pytest.mark.long
def test_later_paths_replace_what_earlier_ones_brought(dynamic, models, tmp_path):
    tables, variables = started(tmp_path / "new", settings(
        models, [".*", ["user_table", "item_table"], "dense_1"], None, [None, {}, None]))
    for name in cases.TABLES:
        assert_from((name, tables), models[1], SLOTS)
    for name, value in kernels(variables).items():
        source = models[2 if name.startswith("dense_1") else 0]
        support.assert_same_bits(value, cases.saved_variables(source)[name], name)
    # A later path without slots leaves none of an earlier one: they belonged to other rows.
    tables, _ = started(tmp_path / "other", settings(models[:2], [[".*"], "user_table"]))
    assert_from((USER, tables), models[1], ROWS)
    assert_from((ITEM, tables), models[0], SLOTS)


@pytest.mark.long
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_one_path_and_previous_names_work(dynamic, models, tmp_path, kind):
    swapped = {"dense/bias": "dense/bias"}
    tables, variables = started(tmp_path / "new", settings(
        kind([models[0] + "/model.ckpt-3"]), kind([".*"]), None, kind([swapped])))
    assert_from((USER, tables), models[0], ROWS)
    assert_same_kernels(variables, models[0])
    _, variables = started(tmp_path / "renamed", settings(
        kind(models[:2]), kind(["dense_1|user", ["dense/bias[^/]"]]), None,
        kind([None, {"dense/bias": "dense/bias/Adam"}])))
    support.assert_same_bits(variables["dense/bias"], cases.saved_variables(models[1])["dense/bias/Adam"])


@pytest.mark.long
@pytest.mark.parametrize("form", cases.FORMS)
def test_a_warm_start_applies_once(dynamic, models, tmp_path, form):
    """Not where training goes on from its own directory, and not where a trained model is evaluated."""
    epoch = 6
    case = cases.Case(form, tmp_path / "parts", warm_start=models[2])
    losses = case.train(steps=epoch, make=endless)
    first = case.evaluate()
    losses += cases.Case(form, tmp_path / "parts", warm_start=models[2]).train(steps=epoch, make=endless)
    whole = cases.Case(form, tmp_path / "whole", warm_start=models[2])
    support.assert_same_bits(losses, whole.train(steps=2 * epoch, make=endless))
    cases.assert_same_checkpoints(case.directory, whole.directory)
    again, evaluated = cases.Case(form, tmp_path / "parts"), case.evaluate()
    assert again.evaluate() == evaluated != first
    support.assert_same_bits(case.predict()["output"], again.predict()["output"])


def endless(data, repeat):
    return cases.dataset(data).repeat(repeat)


@pytest.mark.long
def test_a_model_without_training_is_evaluated_as_it_would_start(dynamic, models, tmp_path):
    trained = cases.Case("step", models[2])
    for form in cases.FORMS:
        case = cases.Case(form, tmp_path / form, warm_start=models[2])
        assert case.evaluate()["error"] == trained.evaluate()["error"]
        support.assert_same_bits(case.predict()["output"], trained.predict()["output"])
        assert not os.path.exists(case.directory + "/checkpoint")


@pytest.mark.long
def test_train_and_evaluate_starts_warm_and_goes_on_with_its_own(mx, models, tmp_path):
    mx(train_steps=5, eval_steps=-1, save_steps=5)
    errors = {}
    for name, warm_start in (("warm", models[2]), ("cold", None)):
        case = cases.Case("ahead", tmp_path / name, warm_start=warm_start, save_checkpoints_steps=5)
        tf.estimator.train_and_evaluate(
            case.estimator, tf.estimator.TrainSpec(case.input_fn(True, repeat=None), max_steps=15, hooks=case.hooks()),
            tf.estimator.EvalSpec(case.input_fn(False), steps=None, hooks=case.hooks(), start_delay_secs=0,
                                  throttle_secs=0))
        steps, errors[name] = cases.summary_values(case.directory + "/eval", "error")
        assert steps == [5, 10, 15] and errors[name][2] < errors[name][0]
    assert errors["warm"][0] < errors["cold"][0]


def test_a_table_without_is_save_is_passed_over_and_an_initializer_of_the_user_serves(dynamic, models, tmp_path):
    """Outside an Estimator's default Scaffold, and on a graph that TensorFlow initialises in one run."""
    from tensorflow.python.training import warm_starting_util

    tables = [support.make_table(name, 4, 1000, is_save=name == USER) for name in (USER, "scratch_table")]
    initializer = None
    with pytest.raises(ValueError, match="no variable"):
        warm_starting_util.warm_start(models[0])
    tf.compat.v1.train.get_or_create_global_step()
    initializer = tf.compat.v1.global_variables_initializer()
    warm_starting_util.warm_start(models[0])
    with support.started(support.new_session(), initializer) as sess:
        support.assert_same_tables(support.Raw.of(tables[0]).rows(sess), cases.saved_tables(models[0])[USER]["embedding"])
        assert tables[1].size() == 0


WRONG = [
    # what, settings of (directories of the models, a fresh directory), the Estimator's params, error, text
    ("fewer expressions", lambda m, _: settings(m[:2], [".*"], None, [None, None]), {}, ValueError, "vars_to_warm_start"),
    ("fewer names", lambda m, _: settings(m[:2], [".*", ".*"], None, [None]), {}, ValueError, "prev_var_name.* list of 2"),
    ("no list", lambda m, _: settings(m[:2], ".*"), {}, ValueError, "vars_to_warm_start.* list of 2"),
    ("no dicts", lambda m, _: settings(m[:1], [".*"], None, ["x"]), {}, ValueError, "prev_var_name.*'x'"),
    ("a path of None", lambda m, _: settings([None], [".*"]), {}, ValueError, "should hold paths"),
    ("no directory", lambda m, d: d + "/nowhere", {}, FileNotFoundError, "/nowhere"),
    ("an empty directory", lambda m, d: d, {}, FileNotFoundError, "file 'checkpoint'"),
    ("no such step", lambda m, _: m[0] + "/model.ckpt-77", {}, FileNotFoundError, "model.ckpt-77"),
    ("one of two", lambda m, d: settings([m[0], d], [".*", ".*"]), {}, FileNotFoundError, "file 'checkpoint'"),
    ("a wrong dim", lambda m, _: settings(m[0], ["item_table"]), {"dim": 3}, ValueError, "'item_table'.* dim 3, .* has 4"),
    ("too many rows", lambda m, _: settings(m[2], "user|item"), {"capacity": 29}, ValueError, "_table' .* 29 rows, and"),
    ("a new name", lambda m, _: m[0], {"rename": {USER: "people"}}, ValueError, "'people' .* matches it, but it is not"),
    ("the old name", lambda m, _: settings(m[0], [USER]), {"rename": {USER: "people"}}, ValueError,
     "'user_table' of .*the model has the tables 'item_table', 'people'"),
    ("renaming", lambda m, _: settings(m[0], ".*", None, {"people": USER}), {"rename": {USER: "people"}}, ValueError,
     "'people' to 'user_table', but a table cannot be renamed"),
    ("renaming in a list", lambda m, _: settings(m[:1], [".*"], None, [{USER: ITEM}]), {}, ValueError, "cannot be renamed"),
    ("a vocabulary", lambda m, _: settings(m[0], ".*", {USER: None}), {}, ValueError, "no vocabulary"),
    ("a misspelt table", lambda m, _: settings(m[0], ["usr_table"]), {}, ValueError, "'usr_table', but no table and no var"),
    ("a misspelt expression", lambda m, _: settings(m[:2], [".*", "usr.*"]), {}, ValueError, "'usr.*', but no table"),
    ("slots alone", lambda m, _: settings(m[0], ["user_table/LazyAdam"]), {}, ValueError, "LazyAdam.* without its rows"),
]


@pytest.mark.parametrize("make, params, error, text", [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_does_not_fit_is_refused_before_anything_changes(dynamic, models, tmp_path, make, params, error, text):
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=text):
        cases.Case("ahead", tmp_path / "new", params=params, warm_start=make(models, str(tmp_path / "empty"))).train(steps=1)
    assert not os.path.exists(str(tmp_path / "new" / "checkpoint"))


def test_lists_that_do_not_fit_are_refused_where_the_estimator_is_made(dynamic, models, tmp_path):
    with pytest.raises(ValueError, match="vars_to_warm_start"):
        cases.Case("step", tmp_path, warm_start=settings(models, [".*"]))


def test_a_table_that_one_path_lacks_may_come_from_another(dynamic, models, tmp_path):
    other = cases.Case("step", tmp_path / "other", params={"rename": {USER: "people"}})
    other.train(steps=2)
    tables, _ = started(tmp_path / "new", settings([models[0], other.directory], [".*", "dense|item|.*table"]))
    assert_from((USER, tables), models[0], ROWS)
    assert_from((ITEM, tables), other.directory, ROWS)
    with pytest.raises(ValueError, match="'user_table' .* not in the checkpoint .*'item_table', 'people'"):
        started(tmp_path / "named", settings([models[0], other.directory], [".*", [USER]]))


@pytest.mark.parametrize("damage", ["short", "flipped", "gone", "no tables"])
def test_a_damaged_checkpoint_starts_nothing(dynamic, models, tmp_path, damage):
    source = str(tmp_path / "source")
    shutil.copytree(models[0], source)
    table = source + "/sparse-model.ckpt-3/item_table"
    if damage == "short":
        with open(table + "/embedding/slice.data", "r+b") as file:
            file.truncate(20)
    elif damage == "flipped":
        with open(table + "/embedding/slice.data", "r+b") as file:
            file.seek(21)
            file.write(b"\x55")
    else:
        shutil.rmtree(table if damage == "gone" else os.path.dirname(table))
    error = ValueError if damage == "no tables" else tf.errors.DataLossError
    with pytest.raises(error, match="item_table|user_table"):
        started(tmp_path / "new", source)
    assert not os.path.exists(str(tmp_path / "new" / "checkpoint"))


def test_one_dict_of_vocabularies_beside_several_paths_is_passed_over_with_a_warning(dynamic, models, tmp_path, caplog):
    tables, _ = started(tmp_path / "new", settings(models[:1], [".*"], {"dense/kernel": object()}))
    assert "var_name_to_vocab_info' is ignored" in caplog.text
    assert_from((USER, tables), models[0], ROWS)
