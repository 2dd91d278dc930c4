"""Checkpoints of unchanged models on parameter servers: other numbers of servers, variables, killed processes."""

import json
import os
import time

import numpy as np
import pytest

from stock_cluster_cases import RUN, StockJob, run_alone
from test_cluster_life import wait_for
from test_stock_cluster_numbers import expect_equal, tables


def trained(servers, directory, first, last, **variables):
    """Trains from one batch to another on some servers, or in one process for 0 of them."""
    variables.update(CHECKPOINTS=str(directory), FIRST=str(first), LAST=str(last), CLIP="1")
    variables.setdefault("OPTIMIZER", "ftrl")
    if not servers:
        return run_alone(**variables)
    with StockJob(ps=servers, **variables) as job:
        return job.run()


def expect_rows(found, alone):
    """The rows are those of a run that was not interrupted."""
    for rows, wanted in zip(found["rows"], alone["rows"]):
        np.testing.assert_allclose(rows, wanted, rtol=1e-6, atol=1e-7)


@pytest.fixture(scope="module", params=["ftrl", "adam"])
def alone(request):
    """All batches in one process, on tables."""
    return dict(run_alone(LAST="16", OPTIMIZER=request.param, CLIP="1"), optimizer=request.param)


@pytest.mark.long
def test_any_number_of_servers_and_one_process_go_on_from_each_other(tmp_path, alone):
    first = 0
    for servers in (2, 3, 0, 1):
        found = trained(servers, tmp_path, first, first + 4, OPTIMIZER=alone["optimizer"])
        first += 4
        names = os.listdir(str(tmp_path / ("sparse-model.ckpt-%d" % first)))
        assert len(names) == 1 + 2 * max(2 * servers, 1), names
        assert found["step"] == first
    expect_rows(found, alone)


@pytest.mark.long
def test_variables_fill_tables_on_servers_and_tables_go_back_to_variables(tmp_path, alone):
    """Variables of one process, tables on servers, variables on servers, tables, variables of one process."""
    first = 0
    # All runs start with the rows of the first table; a table starts with other rows than a variable.
    for servers, stock in ((2, "['.*']"), (2, "None"), (3, "['.*']"), (0, "None"), (1, "['.*']"), (0, "['.*']")):
        last = min(first + 3, 16)
        found = trained(servers, tmp_path, first, last, STOCK=stock, OPTIMIZER=alone["optimizer"])
        assert tables(found) == (["deep/users", "items"] if stock != "None" else [])
        assert os.path.exists(str(tmp_path / ("sparse-model.ckpt-%d" % last))) == (stock != "None")
        first = last
    assert first == 16
    expect_rows(found, alone)
    # What was between is gone.
    assert not [name for name in os.listdir(str(tmp_path)) if name.startswith("mx_rec_")]


@pytest.mark.long
def test_parts_of_a_variable_are_found_in_any_number_of_parts(tmp_path):
    variables = dict(STRATEGY="div", CONSTANT="1")
    whole = run_alone(LAST="10", OPTIMIZER="ftrl", CLIP="1", **variables)
    found = trained(2, tmp_path, 0, 2, PARTS="3", **variables)
    assert os.listdir(str(tmp_path / "sparse-model.ckpt-2"))
    found = trained(1, tmp_path, 2, 4, PARTS="2", **variables)
    # An Estimator's training and evaluation tell what the checkpoint has: then it is one table in one process, too.
    called = "convert_graph(v1.get_default_graph(), True)"
    assert RUN.count(called) == 1
    code = "from mx_rec.stock.checkpoints import saved_tables\nfrom mx_rec.stock.convert import Needs\n" + RUN.replace(
        called, """convert_graph(v1.get_default_graph(), True, Needs(
            saved_tables(tf.train.latest_checkpoint(os.environ["CHECKPOINTS"])), histories={}))""")
    found = run_alone(code, CHECKPOINTS=str(tmp_path), FIRST="4", LAST="6", OPTIMIZER="ftrl", CLIP="1", PARTS="2", **variables)
    assert all("with all 2 parts in one table" in found["plans"]["items/part_%d" % part][1] for part in range(2))
    # With a threshold it goes back to variables.
    threshold = "StockTables(least_rows=5, access_threshold={'items': 2, '.*': None})"
    found = run_alone(code, CHECKPOINTS=str(tmp_path), FIRST="6", LAST="7", OPTIMIZER="ftrl", CLIP="1", PARTS="2",
                      STOCK=threshold, **variables)
    assert "its parts share a table" in found["plans"]["items/part_1"][1]
    # Variables of parts, and one variable.
    trained(2, tmp_path, 7, 8, PARTS="4", STOCK="None", **variables)
    found = trained(3, tmp_path, 8, 10, PARTS="2", **variables)
    expect_rows(found, whole)


@pytest.mark.long
def test_parts_in_another_number_of_tables_are_refused_by_name(tmp_path):
    """In one process each part is a table: a session says so before it reads any."""
    variables, saved, other = dict(STRATEGY="div", CONSTANT="1"), tmp_path / "saved", tmp_path / "other"
    trained(2, saved, 0, 2, PARTS="2", **variables)
    with pytest.raises(AssertionError, match="(?s)InvalidArgumentError.*'items'.*its parts are one table there"):
        trained(0, saved, 2, 4, PARTS="2", **variables)
    trained(0, other, 0, 2, PARTS="2", **variables)
    with pytest.raises(AssertionError, match="(?s)InvalidArgumentError.*'items'.*its parts are a table each there"):
        trained(2, other, 2, 4, PARTS="2", **variables)


def test_rows_of_another_optimizer_and_of_another_shape_are_as_in_one_process(tmp_path):
    trained(2, tmp_path, 0, 3, STOCK="None")
    with pytest.raises(AssertionError, match="(?s)InvalidArgumentError.*'items'.*has the shape"):
        trained(2, tmp_path, 3, 5, ROWS="200")


@pytest.mark.long
def test_a_second_job_on_living_servers_begins_with_new_rows():
    alone = run_alone(LAST="8")
    with StockJob(ps=2, LAST="8") as job:
        first, second = job.run(), job.run()
    expect_equal(first, alone)
    assert first["rows"] == second["rows"] and first["losses"] == second["losses"]


@pytest.mark.long
def test_initializers_that_were_made_before_the_conversion_empty_the_tables():
    """As a script's own Scaffold has them; nothing else initializes the tables then."""
    alone = run_alone(LAST="8")
    code = RUN.replace("    plans = convert_graph", """    early = v1.train.Scaffold(
        init_op=v1.global_variables_initializer(), ready_op=v1.report_uninitialized_variables(),
        ready_for_local_init_op=tf.constant([], tf.string))
    plans = convert_graph""").replace("save_checkpoint_steps=", "scaffold=early, save_checkpoint_steps=")
    with StockJob(code, ps=2, LAST="8") as job:
        first, second = job.run(), job.run()
    expect_equal(first, alone)
    assert first["rows"] == second["rows"]


SOME = RUN.replace("\nfirst, last", """
slot = optimizer.get_slot(items, "accumulator")
some = v1.train.Saver([weights] if os.environ["SOME"] == "dense" else [items, slot])
first, last""", 1).replace("        losses.append", """        if number == 4:
            path = some.save(sess._tf_sess(), os.environ["PLACE"])
        if number == 8:
            some.restore(sess._tf_sess(), path)
        losses.append""")


@pytest.mark.long
@pytest.mark.parametrize("some", ["dense", "table"])
def test_a_saver_of_some_variables_restores_the_tables_of_these_and_no_others(some, tmp_path):
    """As in one process, and as TensorFlow's variables."""
    settings = dict(SOME=some, CONSTANT="1", LAST="12", PLACE=str(tmp_path / "some"))
    stock = run_alone(SOME, STOCK="None", **settings)
    with StockJob(SOME, ps=2, **settings) as job:
        found = job.run()
    assert tables(found) == ["deep/users", "items"]
    np.testing.assert_allclose(found["losses"], stock["losses"], rtol=1e-5)
    expect_rows(found, stock)


LONG = RUN.replace("    print(json", "    print('done', flush=True)\n    print(json").replace(
    "        losses.append", "        print('step', number, flush=True)\n        time.sleep(0.02)\n        losses.append").replace(
        "\nfirst, last", "\nimport time\nfirst, last", 1)


@pytest.mark.long
def test_a_killed_server_comes_back_with_the_rows_of_the_last_checkpoint(tmp_path):
    with StockJob(LONG, ps=2, worker=2, CHECKPOINTS=str(tmp_path / "model"), SAVE="10", LAST="120", ROWS="5000") as job:
        chief = job.start("worker", 0)
        job.start("worker", 1)
        wait_for(chief, "step 30")
        job.kill("ps", 1)
        time.sleep(1)
        job.start("ps", 1)
        found = json.loads(job.finish("worker", 0, 90).split("\n")[-2])
        job.finish("worker", 1, 90)
    restored = run_alone(CHECKPOINTS=str(tmp_path / "model"), FIRST="0", LAST="0", ROWS="5000")
    assert restored["step"] >= found["step"] >= 120
    assert np.isfinite(np.array(restored["rows"][0])).all()
    initial = run_alone(LAST="0", ROWS="5000")
    # They were trained, and rows that no batch has are as they were.
    changed = [(np.array(one) != np.array(other)).any(1) for one, other in zip(restored["rows"], initial["rows"])]
    assert all(0 < rows.sum() < len(rows) for rows in changed)
