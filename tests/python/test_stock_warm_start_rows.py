"""Warm starts of unchanged models onto tables with settings of their own: ids without limits, admission, rows on disk,
graph modification, several checkpoints, sessions, and processes that end in between."""

import gc
import glob
import os
import shutil
import signal
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import preloaded
import support
import test_stock_estimators as estimators
import test_stock_unlimited_estimators as unlimited
from test_stock_warm_start import STEPS, model, rows_input, run, sources_of_rows, stop, tables_of, warm  # noqa: F401
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.stock.select import convert_graph
from mx_rec.util.stock_tables import StockTables

TOLERANCE = unlimited.TOLERANCE


def warm_linear(directory, size, source, key="hash"):
    made = unlimited.linear(directory, size, key)
    made._warm_start_settings = tf.estimator.WarmStartSettings(str(source))
    return made


@pytest.fixture(scope="module")
def expected(sources, tmp_path_factory):
    """Losses of a training of variables that starts with variables."""
    return run(tmp_path_factory.mktemp("expected"), model([60, 4], "rows"), source=sources()[0])


def options(**settings):
    return StockTables(least_rows=1, **settings)


@pytest.mark.long
def test_rows_without_limits_start_with_rows_without_limits(mx, tmp_path):
    train = unlimited.train
    train(unlimited.linear(tmp_path / "stock", unlimited.LARGE), STEPS)
    expected = train(warm_linear(tmp_path / "expected", unlimited.LARGE, tmp_path / "stock"), STEPS)
    unlimited.unlimited(mx)
    train(unlimited.linear(tmp_path / "source", unlimited.SMALL), STEPS)
    got = train(warm_linear(tmp_path / "warm", unlimited.SMALL, tmp_path / "source"), STEPS)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    # Whatever unlimited_ids says, as for a directory that goes on.
    unlimited.again(mx, stock_tables=options(names=["nothing"]))
    got = train(warm_linear(tmp_path / "again", unlimited.SMALL, tmp_path / "source"), STEPS)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert tables_of(tmp_path / "again") == tables_of(tmp_path / "warm") == tables_of(tmp_path / "source")


@pytest.mark.long
def test_rows_without_limits_cannot_start_a_variable(mx, tmp_path):
    unlimited.unlimited(mx)
    unlimited.train(unlimited.linear(tmp_path / "source", unlimited.SMALL), 2)
    stop()
    mx()
    with pytest.raises(ValueError) as error:
        unlimited.train(warm_linear(tmp_path / "warm", unlimited.SMALL, tmp_path / "source"), 2)
    assert unlimited.tables(tmp_path / "source")[0] in str(error.value)
    assert "linear/linear_model/hash/weights" in str(error.value) and not glob.glob(str(tmp_path / "warm/model*"))


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_rows_with_limits_keep_them_with_a_warning(mx, tmp_path, caplog, which):
    train = unlimited.train
    source = tmp_path / "source"
    if which:
        mx(stock_tables=".*")
    train(unlimited.linear(source, unlimited.SMALL), STEPS)
    if which:
        stop()
        mx()
    expected = train(warm_linear(tmp_path / "expected", unlimited.SMALL, source), STEPS)
    if which:
        stop()
    unlimited.unlimited(mx)
    with caplog.at_level("WARNING"):
        got = train(warm_linear(tmp_path / "warm", unlimited.SMALL, source), STEPS)
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert "linear/linear_model/hash/weights/part_0 keep their limits" in caplog.text
    assert len(tables_of(tmp_path / "warm")) == 1


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_an_identity_column_starts_with_its_rows_and_takes_further_ids(mx, tmp_path, sources, which):
    sources = sources()
    mx(stock_tables=options(unlimited_ids=True))
    made = model([60, 4], "rows")
    got = run(tmp_path / "warm", made, 1, source=sources[which])
    run(tmp_path / "warm", made, 3, limit=10 ** 6)
    stop()
    expected = run(tmp_path / "expected", made, 1, source=sources[0])
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("unit", ["seconds", "steps"])
@pytest.mark.parametrize("which", [0, 1])
def test_rows_that_a_warm_start_brings_are_admitted(mx, tmp_path, sources, expected, which, unit):
    """The clock of steps is not there when rows are set: the global step starts with them."""
    made = model([60, 4], "rows")
    sources = sources()
    mx(stock_tables=options(access_threshold=1000, eviction_threshold=10 ** 6, eviction_unit=unit))
    got = run(tmp_path / "warm", made, source=sources[which])
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_a_list_of_expressions_brings_the_counts_of_keys(mx, tmp_path):
    made = model([1000, 4], "rows")
    mx(stock_tables=options(access_threshold=20))
    whole = run(tmp_path / "whole", made, 40)
    run(tmp_path / "source", made, 20)
    got = run(tmp_path / "warm", made, 20, source=tmp_path / "source", vars_to_warm_start=[".*"])
    again = run(tmp_path / "without", made, 20, source=tmp_path / "source", vars_to_warm_start=["rows$", "scale"])
    # The input starts from its first batch, as the second half of a run over 160 rows of it does.
    np.testing.assert_allclose(got, whole[20:], rtol=TOLERANCE, atol=TOLERANCE)
    assert abs(again - got).max() > 1e-4


def test_rows_on_disk_start_with_variables_and_tables(mx, tmp_path, sources):
    made = model([60, 4], "rows")
    sources = sources()
    expected = run(tmp_path / "expected", made, source=sources[0], vars_to_warm_start=[".*"])
    for number, source in enumerate(sources):
        (tmp_path / "disk{}".format(number)).mkdir()
        mx(stock_tables=options(memory_rows=16, ssd_data_path=[str(tmp_path / "disk{}".format(number))]))
        got = run(tmp_path / str(number), made, source=source, vars_to_warm_start=[".*"])
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE)
        stop()


@pytest.mark.long
def test_graph_modification_goes_with_a_warm_start(mx, tmp_path):
    names = ("hash", "bags")
    source = tmp_path / "source"
    estimators.train(estimators.estimator("dnn", source, names), STEPS)
    made = warm("dnn", tmp_path / "expected", source, names)
    estimators.train(made, STEPS)
    mx(stock_tables=".*", use_dynamic=True)
    moved = warm("dnn", tmp_path / "moved", source, names)
    moved.train(estimators.input_fn, steps=STEPS, hooks=[GraphModifierHook(modify_graph=True)])
    assert any("prepared" in one for one in estimators.ops_of(tmp_path / "moved"))
    np.testing.assert_allclose(moved.evaluate(estimators.input_fn, 3)["loss"],
                               made.evaluate(estimators.input_fn, 3)["loss"], rtol=estimators.TOLERANCE)


@pytest.mark.long
def test_a_later_checkpoint_replaces_what_an_earlier_one_brought(mx, tmp_path, sources):
    made = model([60, 4], "rows")
    sources = sources()
    run(tmp_path / "longer", made, 40)
    settings = tf.estimator.WarmStartSettings
    mx(stock_tables=".*")
    expected = run(tmp_path / "expected", made, source=sources[0], vars_to_warm_start=["rows", "scale"])
    for number, (first, second) in enumerate([(0, 1), (1, 0), (1, 1), (0, 0)]):
        several = settings([str(tmp_path / "longer"), str(sources[first]), str(sources[second])],
                           [[".*"], ["rows"], ["rows", "scale"]])
        got = run(tmp_path / str(number), made, chosen=several)
        np.testing.assert_allclose(got[:1], expected[:1], rtol=TOLERANCE, atol=TOLERANCE)
    with pytest.raises(ValueError, match="one checkpoint"):
        run(tmp_path / "mixed", made, chosen=settings(
            [str(sources[1]), str(sources[0])], [["rows"], ["rows/Adagrad"]]))


@pytest.mark.parametrize("which", [0, 1])
def test_a_session_starts_when_its_variables_are_initialised(mx, tmp_path, sources, expected, which):
    v1 = tf.compat.v1
    made = model([60, 4], "rows")
    sources = sources()
    mx(stock_tables=".*")
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(4)
        v1.train.get_or_create_global_step()
        batch = v1.data.make_one_shot_iterator(rows_input()).get_next()
        spec = made(*batch, mode=tf.estimator.ModeKeys.TRAIN)
        assert sum(plan.converts for plan in convert_graph(graph, True)) == 1
        v1.train.warm_start(str(sources[which]))
        with v1.Session() as sess:
            # Twice: what empties the table sets it again.
            for _ in range(2):
                sess.run(v1.global_variables_initializer())
            losses = [sess.run([spec.loss, spec.train_op])[0] for _ in range(STEPS)]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.long
def test_tables_that_are_written_out_leave_nothing_behind(mx, tmp_path, sources, monkeypatch):
    sources = sources(3)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    mx(stock_tables=".*")
    run(tmp_path / "warm", model([60, 4], "rows", 2), 2, source=sources[1])
    run(tmp_path / "warm", model([60, 4], "rows", 2), 2, source=sources[1])
    gc.collect()
    assert not os.listdir(str(tmp_path / "temporary"))


KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
import support
import test_stock_warm_start as cases
from mx_rec.util.initialize import init
tf = support.tf()
init(stock_tables=".*")

class Kill(tf.estimator.SessionRunHook):
    def after_create_session(self, session, coord):
        os.kill(os.getpid(), signal.SIGKILL)

tf.estimator.Estimator(
    cases.model([60, 4], "rows"), {directory!r}, warm_start_from={source!r}).train(
        lambda: cases.rows_input(), steps=5, hooks=[Kill()])
"""


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_is_killed_before_its_first_checkpoint_starts_again(mx, tmp_path, sources, expected, which):
    made = model([60, 4], "rows")
    sources = sources()
    script = KILLED.format(tests=os.path.dirname(os.path.abspath(__file__)), directory=str(tmp_path / "warm"),
                           source=str(sources[which]))
    ended = preloaded.Process(script, support.environment_of({}))
    assert ended.wait(300) == -signal.SIGKILL
    mx(stock_tables=".*")
    np.testing.assert_allclose(run(tmp_path / "warm", made, source=sources[which]), expected,
                               rtol=TOLERANCE, atol=TOLERANCE)


def test_a_damaged_table_is_an_error_before_a_checkpoint_is_written(mx, tmp_path, sources):
    made = model([60, 4], "rows")
    source = tmp_path / "source"
    shutil.copytree(str(sources()[1]), str(source))
    path = glob.glob(str(source / "sparse-model.ckpt-16" / "*" / "embedding" / "slice.data"))[0]
    with open(path, "r+b") as file:
        file.write(b"\xff" * 16)
    for stock_tables in (".*", None):
        mx(stock_tables=stock_tables)
        with pytest.raises(tf.errors.DataLossError, match="embedding"):
            run(tmp_path / "warm", made, source=source)
        stop()
    assert not glob.glob(str(tmp_path / "warm" / "model*"))
