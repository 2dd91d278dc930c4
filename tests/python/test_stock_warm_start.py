"""warm_start_from of unchanged Estimators, from variables and from tables, onto variables and onto tables."""

import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import support
from test_stock_estimators import TOLERANCE, estimator, figures, ops_of, same_figures, stop, train
from mx_rec.util import initialize

v1 = tf.compat.v1

STEPS = 15


def warm(kind, directory, source, *arguments, **settings):
    """An estimator that starts from another's directory; settings are those of WarmStartSettings."""
    made = estimator(kind, directory, *arguments)
    options = tf.estimator.WarmStartSettings(str(source), **settings)
    made._warm_start_settings = options
    return made


def tables_of(directory):
    """Names of the tables of the last checkpoint."""
    path = tf.train.latest_checkpoint(str(directory))
    return sorted(os.path.basename(one) for one in glob.glob(
        os.path.join(os.path.dirname(path), "sparse-" + os.path.basename(path), "*")) if os.path.isdir(one))


def expect_same(tmp_path, mx, kind, source, others, *arguments, evaluates=False, **settings):
    """Starts a model with variables from one source, and from others with tables; their numbers are equal.

    Args:
        others: For each further training its source, the variables that become tables, and how many do.
        evaluates: Whether what the models evaluate and predict afterwards is compared, too.

    Returns:
        The losses.
    """
    start = warm(kind, tmp_path / "on_variables", source, *arguments, **settings)
    losses = train(start, STEPS)
    expected = figures(start) if evaluates else None
    for number, (other, options, count) in enumerate(others):
        directory = tmp_path / "on_tables_{}".format(number)
        mx(stock_tables=options)
        made = warm(kind, directory, other, *arguments, **settings)
        np.testing.assert_allclose(train(made, STEPS), losses, rtol=TOLERANCE, atol=TOLERANCE)
        assert ops_of(directory).count("MxRecTable") == count
        if evaluates:
            same_figures(figures(made), expected)
        stop()
    return losses


@pytest.mark.long
@pytest.mark.parametrize("kind, count", [
    ("linear", 7), pytest.param("dnn", 8, marks=pytest.mark.slow), pytest.param("both", 15, marks=pytest.mark.slow)])
def test_tables_start_with_the_rows_of_variables(mx, tmp_path, kind, count):
    source = tmp_path / "source"
    cold = train(estimator(kind, source), STEPS)
    losses = expect_same(tmp_path, mx, kind, source, [(source, ".*", count)])
    assert abs(cold[0] - losses[0]) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("patterns", [
    ".*hash.*", ".*nothing", [".*hash.*/part_0/Ftrl:0"], [".*hash.*", ".*bags.*Ftrl_1"], [".*"], None])
def test_patterns_choose_variables_and_slots_as_without_tables(mx, tmp_path, both_sources, patterns):
    """From variables, and from tables."""
    names = ("hash", "bags")
    sources = both_sources("linear", *names)
    expect_same(tmp_path, mx, "linear", sources[0], [(source, ".*", 2) for source in sources], names,
                vars_to_warm_start=patterns)
    for number in range(2):
        step = tf.train.load_variable(str(tmp_path / "on_tables_{}".format(number)), "global_step")
        assert step == ((STEPS + 1 if patterns == [".*"] else 0) + STEPS)


@pytest.fixture(scope="module")
def both_sources(tmp_path_factory):
    """Gives directories of one model with the same numbers: of variables, and of tables."""
    made = {}

    def sources(kind, *names):
        if (kind, names) not in made:
            path = tmp_path_factory.mktemp(kind) / "model"
            path.mkdir()
            made[kind, names] = pair_of(path, lambda directory, steps: train(estimator(kind, directory, names), steps))
        return made[kind, names]

    return sources


def pair_of(path, run_steps):
    """Trains a model on variables, and from its first step on, on tables; returns both directories."""
    run_steps(path / "variables", 1)
    shutil.copytree(str(path / "variables"), str(path / "tables"))
    run_steps(path / "variables", STEPS)
    initialize.init(stock_tables=".*")
    run_steps(path / "tables", STEPS)
    stop()
    return path / "variables", path / "tables"


@pytest.mark.long
@pytest.mark.parametrize("patterns, others", [
    (".*", [(".*", 3), (".*hash", 1), (None, 0)]), ([".*"], [(".*", 3), (".*hash", 1)]),
    ([".*embedding_weights.*", "dnn/hidden.*"], [(".*", 3)])])
def test_tables_and_variables_start_with_the_rows_of_tables(mx, tmp_path, both_sources, patterns, others):
    """All variables are tables, or one is, or none, where a script does not know stock_tables."""
    names = ("hash", "bags", "shared")
    sources = both_sources("dnn", *names)
    expect_same(tmp_path, mx, "dnn", sources[0], [(sources[1],) + one for one in others], names,
                evaluates=len(others) == 1, vars_to_warm_start=patterns)


@pytest.mark.long
def test_rows_that_the_source_never_made_are_those_that_it_would_have_made(mx, tmp_path):
    mx(stock_tables=".*")
    train(estimator("dnn", tmp_path / "source", ("hash",)), 2)
    on_tables = train(warm("dnn", tmp_path / "on_tables", tmp_path / "source", ("hash",)), STEPS)
    assert len(tables_of(tmp_path / "on_tables")) == 1
    stop()
    mx()
    on_variables = train(warm("dnn", tmp_path / "on_variables", tmp_path / "source", ("hash",)), STEPS)
    assert not tables_of(tmp_path / "on_variables")
    np.testing.assert_allclose(on_variables, on_tables, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_a_training_that_goes_on_does_not_start_again(mx, tmp_path, sources):
    sources, made = sources(), model([60, 4], "rows")
    mx(stock_tables=".*")
    for number, source in enumerate(sources):
        once = tmp_path / "once{}".format(number)
        run(once, made, 5, source=source)
        shutil.copytree(str(once), str(once) + "_copy")
        expected = run(str(once) + "_copy", made, 5)
        np.testing.assert_allclose(run(once, made, 5, source=source), expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert len(tables_of(once)) == 1
        assert tf.train.load_variable(str(once), "global_step") == 10


@pytest.mark.long
def test_an_untrained_model_is_evaluated_as_it_would_start(mx, tmp_path, both_sources):
    sources = both_sources("linear", "hash", "bags")
    expected = figures(warm("linear", tmp_path / "a", sources[0], ("hash", "bags")))
    mx(stock_tables=".*")
    for source in sources:
        same_figures(figures(warm("linear", tmp_path / "b", source, ("hash", "bags"))), expected)


def model(shape, name, parts=None, optimizer=None, kind="resource", strategy="mod"):
    """A model_fn with one variable of rows and another of a dense layer."""
    def model_fn(features, labels, mode):
        partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts else None
        rows = v1.get_variable(name, shape, partitioner=partitioner, use_resource=kind == "resource",
                               initializer=v1.truncated_normal_initializer(stddev=0.3))
        found = tf.nn.embedding_lookup(rows, features, partition_strategy=strategy)
        scale = v1.get_variable("scale", [], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.square(scale * tf.reduce_sum(tf.reshape(found, [8, -1]), 1) - labels))
        chosen = optimizer() if optimizer else v1.train.AdagradOptimizer(0.1)
        update = chosen.minimize(loss, v1.train.get_global_step())
        v1.losses.add_loss(loss)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=update, predictions=found)

    return model_fn


def rows_input(limit=60):
    random = np.random.RandomState(2)
    return tf.data.Dataset.from_tensor_slices(
        (random.zipf(1.3, 160) % limit, random.rand(160).astype(np.float32))).repeat().batch(8)


def run(directory, made, steps=STEPS, limit=60, source=None, chosen=None, **settings):
    """Trains a model_fn; returns the losses, of each step one or what each of its parts has."""
    config = tf.estimator.RunConfig(str(directory), tf_random_seed=4, log_step_count_steps=None)
    if source is not None:
        chosen = tf.estimator.WarmStartSettings(str(source), **settings)
    losses = []
    # The last one is that of the EstimatorSpec.
    hook = support.fetching(lambda: tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[:-1], losses.append)
    tf.estimator.Estimator(made, config=config, warm_start_from=chosen).train(
        lambda: rows_input(limit), steps=steps, hooks=[hook])
    found = np.array(losses)
    return found[:, 0] if found.shape[1] == 1 else found


@pytest.fixture(scope="module", name="sources")
def sources_of_rows(tmp_path_factory):
    """Gives directories of a variable of rows, in so many parts if any: of variables, and of tables. Nobody changes them."""
    made = {}

    def of(parts=None):
        if parts not in made:
            kind = "resource" if parts else "reference"
            build = model([60, 4], "rows", parts, kind=kind)
            made[parts] = pair_of(tmp_path_factory.mktemp("sources"),
                                  lambda directory, steps: run(directory, build, steps))
        return made[parts]

    return of


@pytest.mark.long
@pytest.mark.parametrize("parts, again, kind", [
    (None, None, "reference"), (3, 3, "resource"), (3, 2, "reference"), (3, None, "resource"), (None, 4, "resource")])
def test_parts_start_with_the_parts_of_the_source(mx, tmp_path, sources, parts, again, kind):
    sources = sources(parts)
    new = model([60, 4], "other", again, kind=kind, strategy="div")
    renamed = {"var_name_to_prev_var_name": {"other": "rows"}}
    expected = run(tmp_path / "expected", new, source=sources[0], **renamed)
    mx(stock_tables=".*")
    for number, source in enumerate(sources):
        got = run(tmp_path / str(number), new, source=source, **renamed)
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert len(tables_of(tmp_path / str(number))) == (again or 1)


@pytest.mark.long
def test_slots_start_where_a_list_names_them(mx, tmp_path):
    """A variable for each optimizer: with all slots, and with none."""
    import stock_cases

    names = ["sgd", "momentum", "ftrl", "lazy_adam", "rmsprop", "centered_rmsprop"]

    def made(features, labels, mode):
        step, losses, updates = v1.train.get_global_step(), [], []
        for name in names:
            rows = v1.get_variable(name, [60, 4], initializer=v1.truncated_normal_initializer(stddev=0.3))
            losses.append(tf.reduce_mean(tf.square(tf.reduce_sum(tf.nn.embedding_lookup(rows, features), 1) - labels)))
            v1.losses.add_loss(losses[-1])
            updates.append(stock_cases.optimizers()[name]().minimize(losses[-1]))
        with tf.control_dependencies(updates):
            return tf.estimator.EstimatorSpec(mode, loss=tf.add_n(losses), train_op=v1.assign_add(step, 1))

    sources = pair_of(tmp_path, lambda directory, steps: run(directory, made, steps))
    rows_alone = [name + ":0" for name in names]
    expected = {place: run(tmp_path / "expected{}".format(place), made, source=sources[0], vars_to_warm_start=chosen)
                for place, chosen in enumerate([[".*"], rows_alone])}
    different = np.abs(expected[0] - expected[1]).max(0)
    assert dict(zip(names, different > 1e-4)) == {name: name != "sgd" for name in names}
    mx(stock_tables=".*")
    for number, (source, chosen) in enumerate([(0, 0), (1, 0), (1, 1)]):
        got = run(tmp_path / str(number), made, source=sources[source],
                  vars_to_warm_start=[[".*"], rows_alone][chosen])
        np.testing.assert_allclose(got, expected[chosen], rtol=TOLERANCE, atol=TOLERANCE)
        assert len(tables_of(tmp_path / str(number))) == len(names)


def vocabulary(tmp_path):
    for name, words in (("old", range(60)), ("new", [70, 3, 5, 80, 1, 2, 59] + list(range(20, 53)))):
        with open(str(tmp_path / name), "w", encoding="utf-8") as file:
            file.writelines("w{}\n".format(word) for word in words)
    return tf.estimator.VocabInfo(
        new_vocab=str(tmp_path / "new"), new_vocab_size=40, num_oov_buckets=10, old_vocab=str(tmp_path / "old"),
        backup_initializer=lambda shape, dtype=None, partition_info=None: tf.fill(shape, 0.25))


@pytest.mark.long
@pytest.mark.parametrize("parts", [None, 3])
def test_a_vocabulary_moves_rows_to_where_their_words_are_now(mx, tmp_path, sources, parts):
    sources = sources(parts)
    new = model([50, 4], "rows", parts)
    info = {"var_name_to_vocab_info": {"rows": vocabulary(tmp_path)}}
    expected = run(tmp_path / "expected", new, limit=50, source=sources[0], **info)
    mx(stock_tables=".*")
    for number, source in enumerate(sources):
        got = run(tmp_path / str(number), new, limit=50, source=source, **info)
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert len(tables_of(tmp_path / str(number))) == (parts or 1)


@pytest.mark.parametrize("shape", [[61, 4], [60, 3]])
@pytest.mark.parametrize("which", [0, 1])
def test_another_shape_is_an_error_that_names_the_variable(mx, tmp_path, sources, shape, which):
    source = sources()[which]
    mx(stock_tables=".*")
    with pytest.raises(ValueError, match="rows") as error:
        run(tmp_path / "new", model(shape, "rows"), source=source)
    assert str(shape[0]) in str(error.value) and not glob.glob(str(tmp_path / "new/model.ckpt*"))


def test_what_is_not_there_is_the_error_of_tensorflow(mx, tmp_path, sources):
    sources = sources()
    new = model([60, 4], "others")
    (tmp_path / "empty").mkdir()
    attempts = [dict(source=sources[0]), dict(source=tmp_path / "empty"), dict(source=tmp_path / "nowhere"),
                dict(source=sources[0], var_name_to_prev_var_name={"others": "rows", "nothing": "x"})]
    texts = []
    for stock_tables in (None, ".*"):
        mx(stock_tables=stock_tables)
        texts.append([])
        for number, settings in enumerate(attempts):
            with pytest.raises((TypeError, ValueError, tf.errors.OpError)) as error:
                run(tmp_path / "new{}".format(number), new, **settings)
            texts[-1].append((type(error.value), str(error.value).split("[")[0]))
        stop()
    assert texts[0] == texts[1]
    mx(stock_tables=".*")
    with pytest.raises(ValueError, match="others"):
        run(tmp_path / "new", new, source=sources[1])
