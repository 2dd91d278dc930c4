"""A SavedModel of TensorFlow's own ops predicts what the tables predict, bit for bit, in processes that have never heard of this package.

The processes that load have TensorFlow 1.15, and TensorFlow 2.x if MX_REC_TF2_PYTHON names its interpreter.
"""

import os

import pytest

import plain_cases as cases
import support


# Cases of tables that take several variables.
CHUNKS = {"chunks": cases.CASES["several"], "chunks, no ids": cases.CASES["a vector"], "chunks, loops": cases.CASES["loops"]}


@pytest.fixture(scope="module")
def models(request, tmp_path_factory):
    """name -> (directory, expected outputs) of each case that this run has."""
    import mx_rec.saver
    from mx_rec.export import plain, plain_rows
    from mx_rec.util.initialize import init, terminate_config_initializer

    tf = support.tf()
    tf.compat.v1.disable_control_flow_v2()
    init()
    parent = os.path.realpath(str(tmp_path_factory.mktemp("plain")))
    made = {}
    wanted = cases.named_in(request) | {"chunks"}
    for number, (name, case) in enumerate(sorted(cases.CASES.items()) + sorted(CHUNKS.items())):
        if name not in wanted:
            continue
        with tf.Graph().as_default(), support.new_session() as sess:
            model = case(tf)
            sess.run(tf.compat.v1.global_variables_initializer())
            for table in model.tables:
                cases.fill(table, sess, model.keys)
            directory = "{}/model {}".format(parent, number)
            if name in CHUNKS:
                # As a table beyond the limit of a variable is: several variables, pieces of each, several reads of keys.
                limits = plain_rows.Limits(chunk_bytes=1000, piece_bytes=240, keys=17)
                plain._export(sess, directory, model.inputs, model.outputs, None, ("serve",), None, None, True, False,
                              plain.PlainOptions(), limits)
            else:
                assert mx_rec.saver.export_plain(sess, directory, model.inputs, model.outputs) == directory
            expected = [sess.run(model.outputs, {model.inputs[key]: value for key, value in feed.items()})
                        for feed in model.feeds]
            cases.save_feeds(directory, model.feeds)
            made[name] = directory, expected
    terminate_config_initializer()
    return made


@pytest.fixture(scope="module")
def predicted(models, tmp_path_factory):
    """A function that gives what all models predict in one way; each is run once."""
    results = {}
    names = sorted(models)

    def run(way):
        if way not in results:
            out = str(tmp_path_factory.mktemp("out")) + "/out.npz"
            found = cases.load_in(way, [models[name][0] for name in names], out)
            results[way] = dict(zip(names, found))
        return results[way]

    return run


@pytest.mark.parametrize("name", sorted(cases.CASES) + sorted(CHUNKS))
@pytest.mark.parametrize("way", sorted(cases.WAYS))
def test_a_process_without_the_package_predicts_the_same_bits(models, predicted, way, name):
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
