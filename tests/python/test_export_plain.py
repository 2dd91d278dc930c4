"""A SavedModel of TensorFlow's own ops predicts what the tables predict, bit for bit, in processes that have never heard of this package.

The processes that load have TensorFlow 1.15, and TensorFlow 2.x if MX_REC_TF2_PYTHON names its interpreter.
"""

import os

import pytest

import plain_cases as cases
import support
from plain_cases import predicted  # noqa: F401  a fixture


# Cases of tables that take several variables.
CHUNKS = {"chunks": cases.CASES["several"], "chunks, no ids": cases.CASES["a vector"], "chunks, loops": cases.CASES["loops"]}


@pytest.fixture(scope="module")
def models(request, tmp_path_factory):
    """name -> (directory, expected outputs) of each case that this run has."""
    # As a table beyond the limit of a variable is: several variables, pieces of each, several reads of keys.
    limits = {name: (1000, 240, 17) for name in CHUNKS}
    return cases.exported(dict(cases.CASES, **CHUNKS), cases.named_in(request) | {"chunks"}, limits, tmp_path_factory)


@pytest.mark.parametrize("name", sorted(cases.CASES) + sorted(CHUNKS))
@pytest.mark.parametrize("way", sorted(cases.WAYS))
def test_a_process_without_the_package_predicts_the_same_bits(models, predicted, way, name):  # noqa: F811
    expected, found = models[name][1], predicted(way)[name]
    assert len(found) == len(expected)
    for turn, outputs in enumerate(expected):
        assert sorted(found[turn]) == sorted(outputs)
        for key, value in outputs.items():
            support.assert_same_bits(found[turn][key], value, "{}, feed {}".format(key, turn))


@pytest.mark.parametrize("name", sorted(cases.CASES) + sorted(CHUNKS))
def test_no_op_and_no_word_of_the_plugin_is_left(models, name):
    directory = models[name][0]
    ops, content = cases.ops_of(directory)
    assert not [op for op in ops if op.startswith("MxRec")]
    for word in (b"MxRec", b"mx_rec", b"ASCEND"):
        assert word not in content, word
    # No optimizer slot, no file of a table, no scratch file.
    assert sorted(os.listdir(directory)) == ["saved_model.pb", "variables"]
    assert all(file.startswith("variables.") for file in os.listdir(directory + "/variables"))
    assert not [file for file in os.listdir(os.path.dirname(directory)) if file.startswith(".")]


def test_a_table_beyond_the_limit_of_a_variable_has_several(models):
    from tensorflow.python.training import checkpoint_utils

    names = [name for name, _ in checkpoint_utils.list_variables(models["chunks"][0] + "/variables/variables")]
    assert len([name for name in names if name.startswith("tables/items/rows_")]) > 3
    assert len([name for name in names if name.startswith("tables/items/keys_")]) > 3
