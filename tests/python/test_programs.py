"""Programs of the op patterns of public ones (programs/, a pattern a file), on variables and on tables."""

import glob
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import stock_cases as cases
import support
from mx_rec.stock.convert import converted
from mx_rec.stock.select import decisions
from mx_rec.util.initialize import terminate_config_initializer
from mx_rec.util.stock_tables import StockTables

FOLDER = os.path.join(support.REPO, "tests", "python", "programs")
NAMES = sorted(os.path.basename(path)[:-len(".py")] for path in glob.glob(os.path.join(FOLDER, "*.py"))
               if os.path.basename(path) != "common.py")
STEPS, MORE = 8, 2
LONG = ("deeprec_partitions", "nvidia_wide_deep", "tfx_taxi")


def ran(program, directory, steps, tables=None, copy=None):
    """What a program gives that goes on from a copy of a directory; `tables` are those it has to have."""
    if copy:
        shutil.copytree(copy, directory)
        # A program that keeps few checkpoints would remove those of the other directory.
        state = os.path.join(directory, "checkpoint")
        text = support.text_of(state)
        support.write(state, text.replace(copy, directory))
    made = set()
    with tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(5)
        if tables is None:
            support.keep_variables(graph)
        found = program.run(directory, steps)
        made.update(one.plan.name for one in converted(graph))
    assert tables is None or not made or sorted(made) == tables
    return found


def compare(found, expected):
    assert len(expected["losses"]) and np.std(expected["scores"]) > 1e-4
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=cases.TOLERANCE, atol=cases.TOLERANCE)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in NAMES])
def test_a_program_gives_on_tables_what_it_gives_on_variables(mx, tmp_path, name):
    """Losses and scores from the same checkpoint, and from that of the tables as variables and as tables."""
    program = support.load_script(os.path.join(FOLDER, name + ".py"))
    paths = {form: str(tmp_path / form) for form in ("start", "stock", "tables", "plain", "again")}
    os.makedirs(paths["start"])
    ran(program, paths["start"], 0)
    expected = ran(program, paths["stock"], STEPS, copy=paths["start"])
    mx(stock_tables=StockTables(least_rows=cases.ROWS // 2))
    found = ran(program, paths["tables"], STEPS, program.TABLES, paths["start"])
    assert sorted(one.name for one in decisions() if one.table and one.name in program.TABLES) == program.TABLES
    compare(found, expected)
    assert glob.glob(os.path.join(paths["tables"], "sparse-*"))
    again = ran(program, paths["again"], MORE, program.TABLES, paths["tables"])
    terminate_config_initializer()
    compare(ran(program, paths["plain"], MORE, copy=paths["tables"]), again)
