"""warm_start_from of unchanged Estimators, from variables and from tables, onto variables and onto tables."""

import glob
import os
import shutil

import numpy as np
import pytest

import support
from test_stock_estimators import TOLERANCE, estimator, figures, ops_of, train

STEPS = 15


def stop():
    from mx_rec.util import initialize

    initialize.terminate_config_initializer()


def warm(kind, directory, source, *arguments, **settings):
    """An estimator that starts from another's directory; settings are those of WarmStartSettings."""
    made = estimator(kind, directory, *arguments)
    options = support.tf().estimator.WarmStartSettings(str(source), **settings)
    made._warm_start_settings = options
    return made


def tables_of(directory):
    """Names of the tables of the last checkpoint."""
    path = support.tf().train.latest_checkpoint(str(directory))
    return sorted(os.path.basename(one) for one in glob.glob(
        os.path.join(os.path.dirname(path), "sparse-" + os.path.basename(path), "*")) if os.path.isdir(one))


def expect_same(tmp_path, mx, kind, sources, count, *arguments, options=".*", evaluates=True, **settings):
    """Starts a model with variables from one source and with tables from another; their numbers are equal."""
    start = warm(kind, tmp_path / "on_variables", sources[0], *arguments, **settings)
    losses = train(start, STEPS)
    expected = figures(start) if evaluates else None
    mx(stock_tables=options)
    made = warm(kind, tmp_path / "on_tables", sources[1], *arguments, **settings)
    np.testing.assert_allclose(train(made, STEPS), losses, rtol=TOLERANCE, atol=TOLERANCE)
    assert ops_of(tmp_path / "on_tables").count("MxRecTable") == count
    if not evaluates:
        return losses
    got = figures(made)
    np.testing.assert_allclose(got[0], expected[0], rtol=TOLERANCE)
    np.testing.assert_allclose(got[1], expected[1], rtol=TOLERANCE, atol=TOLERANCE)
    return losses


@pytest.mark.parametrize("kind, count", [
    ("linear", 7), pytest.param("dnn", 8, marks=pytest.mark.slow), pytest.param("both", 15, marks=pytest.mark.slow)])
def test_tables_start_with_the_rows_of_variables(mx, tmp_path, kind, count):
    source = tmp_path / "source"
    train(estimator(kind, source), STEPS)
    losses = expect_same(tmp_path, mx, kind, (source, source), count)
    cold = train(estimator(kind, tmp_path / "cold"), STEPS)
    assert abs(cold[0] - losses[0]) > 1e-3


@pytest.mark.parametrize("patterns", [
    ".*hash.*", ".*nothing", [".*hash.*/part_0/Ftrl:0"], [".*hash.*", ".*bags.*Ftrl_1"], [".*"], None])
@pytest.mark.parametrize("which", [0, 1])
def test_patterns_choose_variables_and_slots_as_without_tables(mx, tmp_path, both_sources, patterns, which):
    names = ("hash", "bags")
    sources = both_sources("linear", *names)
    expect_same(tmp_path, mx, "linear", (sources[0], sources[which]), 2, names, evaluates=False,
                vars_to_warm_start=patterns)
    step = support.tf().train.load_variable(str(tmp_path / "on_tables"), "global_step")
    assert step == ((STEPS + 1 if patterns == [".*"] else 0) + STEPS)


@pytest.fixture(scope="module")
def both_sources(tmp_path_factory):
    """Gives directories of one model with the same numbers: of variables, and of tables."""
    from mx_rec.util import initialize

    made = {}

    def sources(kind, *names):
        if (kind, names) not in made:
            path = tmp_path_factory.mktemp(kind) / "model"
            path.mkdir()
            train(estimator(kind, path / "variables", names), 1)
            shutil.copytree(str(path / "variables"), str(path / "tables"))
            train(estimator(kind, path / "variables", names), STEPS)
            initialize.init(stock_tables=".*")
            train(estimator(kind, path / "tables", names), STEPS)
            stop()
            made[kind, names] = path / "variables", path / "tables"
        return made[kind, names]

    return sources


@pytest.mark.parametrize("patterns", [".*", [".*"], [".*embedding_weights.*", "dnn/hidden.*"]])
def test_tables_start_with_the_rows_of_tables(mx, tmp_path, both_sources, patterns):
    sources = both_sources("dnn", "hash", "bags", "shared")
    expect_same(tmp_path, mx, "dnn", sources, 3, ("hash", "bags", "shared"), vars_to_warm_start=patterns)


@pytest.mark.parametrize("patterns", [".*", [".*"]])
def test_variables_start_with_the_rows_of_tables(mx, tmp_path, both_sources, patterns):
    sources = both_sources("dnn", "hash", "bags", "shared")
    expect_same(tmp_path, mx, "dnn", sources, 1, ("hash", "bags", "shared"), options=".*hash", evaluates=False,
                vars_to_warm_start=patterns)


def test_a_script_without_stock_tables_starts_with_the_rows_of_tables(mx, tmp_path, both_sources):
    sources = both_sources("linear", "hash", "bags")
    expect_same(tmp_path, mx, "linear", sources, 0, ("hash", "bags"), options=None, evaluates=False)


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


def test_a_training_that_goes_on_does_not_start_again(mx, tmp_path, both_sources):
    sources = both_sources("linear", "hash", "bags")
    mx(stock_tables=".*")
    for number, source in enumerate(sources):
        once = tmp_path / "once{}".format(number)
        train(warm("linear", once, source, ("hash", "bags")), 5)
        shutil.copytree(str(once), str(once) + "_copy")
        expected = train(estimator("linear", str(once) + "_copy", ("hash", "bags")), 5)
        again = train(warm("linear", once, source, ("hash", "bags")), 5)
        np.testing.assert_array_equal(again, expected)
        assert len(tables_of(once)) == 2
        assert support.tf().train.load_variable(str(once), "global_step") == 10


def test_an_untrained_model_is_evaluated_as_it_would_start(mx, tmp_path, both_sources):
    sources = both_sources("linear", "hash", "bags")
    expected = figures(warm("linear", tmp_path / "a", sources[0], ("hash", "bags")))
    mx(stock_tables=".*")
    for source in sources:
        loss, predicted = figures(warm("linear", tmp_path / "b", source, ("hash", "bags")))
        np.testing.assert_allclose(loss, expected[0], rtol=TOLERANCE)
        np.testing.assert_allclose(predicted, expected[1], rtol=TOLERANCE, atol=TOLERANCE)


def model(shape, name, parts=None, optimizer=None, kind="resource", strategy="mod"):
    """A model_fn with one variable of rows and another of a dense layer."""
    tf = support.tf()
    v1 = tf.compat.v1

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
    return support.tf().data.Dataset.from_tensor_slices(
        (random.zipf(1.3, 160) % limit, random.rand(160).astype(np.float32))).repeat().batch(8)


def run(directory, made, steps=STEPS, limit=60, source=None, chosen=None, **settings):
    """Trains a model_fn; returns the losses."""
    tf = support.tf()
    config = tf.estimator.RunConfig(str(directory), tf_random_seed=4, log_step_count_steps=None)
    if source is not None:
        chosen = tf.estimator.WarmStartSettings(str(source), **settings)
    losses = []

    class Hook(tf.estimator.SessionRunHook):
        def before_run(self, context):
            return tf.estimator.SessionRunArgs(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)[0])

        def after_run(self, context, values):
            losses.append(values.results)

    tf.estimator.Estimator(made, config=config, warm_start_from=chosen).train(
        lambda: rows_input(limit), steps=steps, hooks=[Hook()])
    return np.array(losses)


def sources_of(tmp_path, mx, made):
    run(tmp_path / "variables", made, 1)
    shutil.copytree(str(tmp_path / "variables"), str(tmp_path / "tables"))
    run(tmp_path / "variables", made)
    mx(stock_tables=".*")
    run(tmp_path / "tables", made)
    stop()
    return tmp_path / "variables", tmp_path / "tables"


@pytest.mark.parametrize("parts, again, kind", [
    (None, None, "reference"), (3, 3, "resource"), (3, 2, "reference"), (3, None, "resource"), (None, 4, "resource")])
def test_parts_start_with_the_parts_of_the_source(mx, tmp_path, parts, again, kind):
    sources = sources_of(tmp_path, mx, model([60, 4], "rows", parts, kind=kind))
    new = model([60, 4], "other", again, kind=kind, strategy="div")
    renamed = {"var_name_to_prev_var_name": {"other": "rows"}}
    expected = run(tmp_path / "expected", new, source=sources[0], **renamed)
    mx(stock_tables=".*")
    for number, source in enumerate(sources):
        got = run(tmp_path / str(number), new, source=source, **renamed)
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
        assert len(tables_of(tmp_path / str(number))) == (again or 1)


@pytest.mark.parametrize("name", ["sgd", "momentum", "ftrl", "lazy_adam", "rmsprop", "centered_rmsprop"])
def test_slots_start_where_a_list_names_them(mx, tmp_path, name):
    import stock_cases

    optimizer = stock_cases.optimizers()[name]
    made = model([60, 4], "rows", optimizer=optimizer)
    sources = sources_of(tmp_path, mx, made)
    expected = run(tmp_path / "expected", made, source=sources[0], vars_to_warm_start=[".*"])
    mx(stock_tables=".*")
    for number, source in enumerate(sources):
        got = run(tmp_path / str(number), made, source=source, vars_to_warm_start=[".*"])
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    rows_alone = run(tmp_path / "rows", made, source=sources[1], vars_to_warm_start=["rows:0", "scale"])
    stop()
    np.testing.assert_allclose(rows_alone, run(tmp_path / "stock", made, source=sources[0],
                                               vars_to_warm_start=["rows:0", "scale"]), rtol=TOLERANCE, atol=TOLERANCE)


def vocabulary(tmp_path):
    tf = support.tf()
    for name, words in (("old", range(60)), ("new", [70, 3, 5, 80, 1, 2, 59] + list(range(20, 53)))):
        with open(str(tmp_path / name), "w", encoding="utf-8") as file:
            file.writelines("w{}\n".format(word) for word in words)
    return tf.estimator.VocabInfo(
        new_vocab=str(tmp_path / "new"), new_vocab_size=40, num_oov_buckets=10, old_vocab=str(tmp_path / "old"),
        backup_initializer=lambda shape, dtype=None, partition_info=None: tf.fill(shape, 0.25))


@pytest.mark.parametrize("parts", [None, 3])
def test_a_vocabulary_moves_rows_to_where_their_words_are_now(mx, tmp_path, parts):
    sources = sources_of(tmp_path, mx, model([60, 4], "rows", parts))
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
def test_another_shape_is_an_error_that_names_the_variable(mx, tmp_path, shape, which):
    sources = sources_of(tmp_path, mx, model([60, 4], "rows"))
    mx(stock_tables=".*")
    with pytest.raises(ValueError, match="rows") as error:
        run(tmp_path / "new", model(shape, "rows"), source=sources[which])
    assert str(shape[0]) in str(error.value) and not glob.glob(str(tmp_path / "new/model.ckpt*"))


def test_what_is_not_there_is_the_error_of_tensorflow(mx, tmp_path):
    sources = sources_of(tmp_path, mx, model([60, 4], "rows"))
    new = model([60, 4], "others")
    (tmp_path / "empty").mkdir()
    attempts = [dict(source=sources[0]), dict(source=tmp_path / "empty"), dict(source=tmp_path / "nowhere"),
                dict(source=sources[0], var_name_to_prev_var_name={"others": "rows", "nothing": "x"})]
    texts = []
    for stock_tables in (None, ".*"):
        mx(stock_tables=stock_tables)
        texts.append([])
        for number, settings in enumerate(attempts):
            with pytest.raises((TypeError, ValueError, support.tf().errors.OpError)) as error:
                run(tmp_path / "new{}".format(number), new, **settings)
            texts[-1].append((type(error.value), str(error.value).split("[")[0]))
        stop()
    assert texts[0] == texts[1]
    mx(stock_tables=".*")
    with pytest.raises(ValueError, match="others"):
        run(tmp_path / "new", new, source=sources[1])
