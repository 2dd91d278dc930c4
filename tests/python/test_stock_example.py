"""Examples of unchanged Estimators: they run, and unchanged_estimator.py names mx_rec in one line only."""

import os

import pytest
import tensorflow as tf

import preloaded
import support

EXAMPLE = os.path.join(support.REPO, "examples", "unchanged_estimator.py")
UNLIMITED = os.path.join(support.REPO, "examples", "unlimited_ids.py")


def test_the_example_names_the_package_in_one_line():
    with open(EXAMPLE, encoding="utf-8") as file:
        assert [line for line in file if "mx_rec" in line] == ["from mx_rec.util.initialize import init\n"]


@pytest.mark.long
@pytest.mark.parametrize("example", [EXAMPLE, pytest.param(UNLIMITED, marks=pytest.mark.slow)],
                         ids=os.path.basename)
def test_the_example_trains_on_tables_and_keeps_its_promises(example):
    if not hasattr(tf, "estimator"):
        pytest.skip("this TensorFlow has no Estimators")
    assert "auc" in preloaded.run_script(example)
