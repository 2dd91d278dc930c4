"""Eviction for unchanged models: keys that do not occur any more lose their rows, in seconds or in steps."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import test_stock_admission as admissions
import test_stock_estimators as estimators
from mx_rec.graph.modifier import GraphModifierHook
from mx_rec.stock.select import convert_graph
from mx_rec.util import initialize
from mx_rec.util.stock_tables import StockTables

v1 = tf.compat.v1

NAMES = ("hash", "bags")


def evict(model):
    from mx_rec.core.feature_process import evict as run

    with model.graph.as_default():
        return {name: tuple(counts) for name, counts in run().items()}


@pytest.mark.parametrize("how, clips", admissions.FORMS)
@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "rmsprop"])
def test_a_key_that_did_not_occur_for_some_steps_loses_row_and_slots_and_starts_again(mx, how, clips, optimizer):
    admissions.admission(mx, 1, 3, eviction_unit="steps")
    model = admissions.Model(how, optimizer, clips)
    first = model.step(np.array([[1, 2, 2]]))
    assert evict(model) == {"w": (0, 2)}
    for _ in range(2):
        model.step(np.array([[1, 5, 5]]))
    assert evict(model) == {"w": (0, 3)}
    model.step(np.array([[1, 5, 5]]))
    assert evict(model) == {"w": (1, 2)} and model.keys() == [{1, 5}]
    np.testing.assert_array_equal(model.find([2]), [[admissions.START] * 2])
    # Row and slot are new: a second first step.
    other = admissions.Model(how, optimizer, clips)
    expected = [other.step(np.array([[2, 3, 3]])), other.step(np.array([[2, 2, 2]]))]
    again = [model.step(np.array([[2, 3, 3]])), model.step(np.array([[2, 2, 2]]))]
    np.testing.assert_array_equal(again, expected)
    assert first.shape == expected[0].shape


def test_an_evicted_key_is_counted_from_nothing(mx):
    admissions.admission(mx, 2, 2, eviction_unit="steps")
    model = admissions.Model("rows", "adagrad")
    model.step(np.array([[1, 1, 2]]))
    for _ in range(2):
        model.step(np.array([[3, 3, 3]]))
    assert evict(model) == {"w": (2, 1)}
    model.step(np.array([[1, 2, 3]]))
    assert model.keys() == [{3}] and not model.find([1, 2]).any()


def test_keys_are_evicted_whose_gradients_are_of_other_runs(mx):
    """Where updates alone count, as with accumulators, nothing evicted: the graph was said to have been cut when it was imported."""
    from mx_rec.core.feature_process import evict as run

    admissions.admission(mx, 1, 3, eviction_unit="steps")
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None])
        w = v1.get_variable("w", [20, 2], initializer=v1.constant_initializer(0.5))
        optimizer = v1.train.MomentumOptimizer(0.1, 0.5)
        (grad, _), = optimizer.compute_gradients(tf.reduce_sum(tf.gather(w, ids)))
        sums = v1.SparseConditionalAccumulator(tf.float32, [20, 2])
        add = sums.apply_indexed_slices_grad(grad, tf.constant(2 ** 40, tf.int64))
        train = optimizer.apply_gradients([(sums.take_indexed_slices_grad(1), w)], v1.train.get_or_create_global_step())
        convert_graph(graph, True)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for batch in ([1, 2], [3], [3], [3, 3]):
                session.run(add, {ids: batch})
                session.run(train)
            # It is counted from nothing when its gradient is applied.
            session.run(add, {ids: [2]})
            assert {name: tuple(counts) for name, counts in run().items()} == {"w": (2, 1)}
            np.testing.assert_array_equal(session.run(tf.gather(w, [1, 2])), np.full([2, 2], 0.5))
            session.run(train)
            np.testing.assert_allclose(session.run(tf.gather(w, [1, 2])), [[0.5, 0.5], [0.4, 0.4]], rtol=1e-6)


def test_seconds_are_those_of_the_clock(mx):
    import time

    admissions.admission(mx, 1, 2)
    model = admissions.Model("rows", "adagrad")
    model.step(np.array([[1, 2, 2]]))
    model.step(np.array([[1, 3, 3]]))
    assert evict(model) == {"w": (0, 3)}
    time.sleep(3.1)
    model.step(np.array([[1, 1, 1]]))
    assert evict(model) == {"w": (2, 1)} and model.keys() == [{1}]


def test_steps_need_a_global_step_and_nothing_changes_without(mx):
    admissions.admission(mx, 1, 5, eviction_unit="steps")
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [20, 2])
        v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [1, 2])))
        before = graph.as_graph_def()
        with pytest.raises(ValueError, match="global step"):
            convert_graph(graph, True)
        assert graph.as_graph_def() == before


def test_dynamic_expansion_is_refused(mx):
    mx(use_dynamic_expansion=True, stock_tables=StockTables(least_rows=1, access_threshold=1, eviction_threshold=5))
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", [20, 2])
        v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.gather(w, [1, 2])))
        with pytest.raises(ValueError, match="dynamic expansion.*'w'"):
            convert_graph(graph, True)


def made(directory, kind="dnn", **config):
    return estimators.estimator(kind, directory, NAMES, **config)


def rows_of(directory):
    """Keys of all tables of the last checkpoint."""
    checkpoint = tf.train.latest_checkpoint(str(directory))
    step = checkpoint.rsplit("-", 1)[1]
    found = {}
    base = os.path.join(str(directory), "sparse-model.ckpt-" + step)
    for name in os.listdir(base):
        path = os.path.join(base, name, "key", "slice.data")
        if os.path.isfile(path):
            found[name] = set(np.fromfile(path, "<i8").tolist())
    return found


def input_fn():
    """Ids of the first batch come once, the others go on."""
    features, labels = estimators.data()
    first = ({name: values[:32] for name, values in features.items()}, labels[:32])
    first[0]["hash"] = np.array(["once{}".format(number) for number in range(32)])
    second = ({name: values[32:64] for name, values in features.items()}, labels[32:64])
    return tf.data.Dataset.from_tensor_slices(first).batch(32).concatenate(
        tf.data.Dataset.from_tensor_slices(second).repeat().batch(32))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dnn", pytest.param("both", marks=pytest.mark.slow)])
def test_an_estimator_evicts_while_it_trains(mx, tmp_path, kind):
    admissions.admission(mx, 1)
    made(tmp_path / "kept", kind).train(input_fn, steps=30)
    admissions.again(mx, 1, 10, eviction_unit="steps", evict_time_interval=None, evict_step_interval=5)
    model = made(tmp_path / "model", kind)
    model.train(input_fn, steps=30)
    kept, left = rows_of(tmp_path / "kept"), rows_of(tmp_path / "model")
    hashed = [name for name in kept if "hash" in name]
    assert sorted(kept) == sorted(left) and hashed
    for name in hashed:
        # 32 ids of the first batch, of which some may share a bucket.
        assert left[name] < kept[name] and len(kept[name]) - len(left[name]) > 25
    assert np.isfinite(model.evaluate(estimators.input_fn, steps=2)["loss"])
    # A later training goes on, and evicts too. A round that is due while another one runs is left out.
    model.train(input_fn, steps=100)
    assert all(rows_of(tmp_path / "model")[name] == left[name] for name in hashed)


@pytest.mark.long
def test_another_unit_than_that_of_the_checkpoint_is_refused(mx, tmp_path):
    admissions.admission(mx, 1, 10, eviction_unit="steps")
    made(tmp_path / "model").train(estimators.input_fn, steps=3)
    admissions.again(mx, 1, 10)
    with pytest.raises(ValueError, match="eviction_unit.*'seconds'.*in steps: the latest is 3"):
        made(tmp_path / "model").train(estimators.input_fn, steps=3)


def predicted(model, count=60):
    predictions = model.predict(estimators.input_fn)
    values = [next(predictions)["logits"] for _ in range(count)]
    predictions.close()
    return np.array(values)


@pytest.mark.long
def test_evaluation_export_and_a_training_without_the_setting_go_by_the_checkpoint(mx, tmp_path):
    admissions.admission(mx, 4)
    model = made(tmp_path / "model")
    model.train(estimators.input_fn, steps=3)
    expected, loss = predicted(model), model.evaluate(estimators.input_fn, steps=3)["loss"]
    before = rows_of(tmp_path / "model")
    features, _ = estimators.data(40)
    placeholders = {name: tf.TensorSpec([None] + list(features[name].shape[1:]), tf.string) for name in NAMES}

    def receiver():
        inputs = {name: tf.compat.v1.placeholder(one.dtype, one.shape, name) for name, one in placeholders.items()}
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)

    exported = model.export_saved_model(str(tmp_path / "export"), receiver)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as sess:
        loaded = tf.compat.v1.saved_model.loader.load(sess, ["serve"], exported.decode())
        assert not any("MxRec" in op.type for op in graph.get_operations())
        outputs = loaded.signature_def["predict"].outputs
        all_features, _ = estimators.data()
        logits = sess.run(outputs["logits"].name, {name + ":0": all_features[name][:60] for name in NAMES})
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    admissions.again(mx)
    same = made(tmp_path / "model")
    np.testing.assert_array_equal(predicted(same), expected)
    assert same.evaluate(estimators.input_fn, steps=3)["loss"] == loss
    shutil.copytree(str(tmp_path / "model"), str(tmp_path / "copy"))
    same.train(estimators.input_fn, steps=1)
    without = rows_of(tmp_path / "model")
    admissions.again(mx, 4)
    made(tmp_path / "copy").train(estimators.input_fn, steps=1)
    assert without == rows_of(tmp_path / "copy")
    assert all(before[name] < without[name] for name in before)


@pytest.mark.long
def test_a_training_goes_back_to_variables_whose_rows_are_all_there(mx, tmp_path):
    admissions.admission(mx, 4)
    model = made(tmp_path / "model")
    model.train(estimators.input_fn, steps=3)
    initialize.terminate_config_initializer()
    mx()
    back = made(tmp_path / "model")
    back.train(estimators.input_fn, steps=1)
    values = [back.get_variable_value(name) for name in back.get_variable_names()
              if name.endswith("embedding_weights")]
    assert len(values) == 2 and all((value != 0).any(1).all() for value in values)
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith("-4")


@pytest.mark.long
def test_graph_modification_keeps_the_counts_in_the_step_and_the_numbers(mx, tmp_path):
    mx(use_dynamic=True, stock_tables=StockTables(
        least_rows=1, access_threshold=3, eviction_threshold=1000, eviction_unit="steps"))
    losses = {}
    for name in ("one", "other"):
        hooks = [GraphModifierHook(modify_graph=True)] if name == "other" else []
        model = made(tmp_path / name)
        model.train(estimators.input_fn, steps=12, hooks=hooks)
        losses[name] = model.evaluate(estimators.input_fn, steps=2)["loss"]
        assert "MxRecObserve" in estimators.ops_of(tmp_path / name)
        assert tf.train.latest_checkpoint(str(tmp_path / name)).endswith("-12")
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "other")
    np.testing.assert_allclose(losses["one"], losses["other"], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_ids_without_limits_and_rows_on_disk_are_admitted_and_evicted(mx, tmp_path, where):
    more = dict(memory_rows=200, ssd_data_path=[str(tmp_path)]) if where == "disk" else {}
    admissions.admission(mx, 2, 6, eviction_unit="steps", unlimited_ids=True, evict_time_interval=None,
                         evict_step_interval=3, **more)
    model = made(tmp_path / "model")
    model.train(input_fn, steps=20)
    rows = rows_of(tmp_path / "model")
    assert len(rows) == 2 and all("unlimited" in name and found for name, found in rows.items())
    expected = predicted(model)
    features, _ = estimators.data()

    def receiver():
        inputs = {name: tf.compat.v1.placeholder(tf.string, [None] + list(features[name].shape[1:]), name)
                  for name in NAMES}
        return tf.estimator.export.ServingInputReceiver(inputs, inputs)

    exported = model.export_saved_model(str(tmp_path / "export"), receiver)
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        loaded = tf.compat.v1.saved_model.loader.load(sess, ["serve"], exported.decode())
        outputs = loaded.signature_def["predict"].outputs
        logits = sess.run(outputs["logits"].name, {name + ":0": features[name][:60] for name in NAMES})
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_rows_of_a_warm_start_count_as_admitted_in_the_training_after_it(mx, tmp_path):
    made(tmp_path / "first").train(estimators.input_fn, steps=3)
    admissions.admission(mx, 4)
    _, dense = estimators.columns(NAMES, tmp_path)
    run = tf.estimator.RunConfig(tf_random_seed=3)
    warm = tf.estimator.DNNClassifier([8], dense, str(tmp_path / "second"), optimizer="Adagrad", config=run,
                                      warm_start_from=str(tmp_path / "first"))
    warm.train(estimators.input_fn, steps=1)
    expected = predicted(warm)
    made(tmp_path / "second").train(estimators.input_fn, steps=1)
    assert "MxRecTable" in estimators.ops_of(tmp_path / "second")
    assert np.abs(predicted(made(tmp_path / "second")) - expected).max() < 0.5
    assert sorted(map(len, rows_of(tmp_path / "second").values())) == [300, 1000]


@pytest.mark.long
def test_an_old_directory_of_variables_goes_on_with_the_same_numbers_whatever_the_threshold(mx, tmp_path):
    estimators.train(made(tmp_path / "stock"), 1)
    shutil.copytree(str(tmp_path / "stock"), str(tmp_path / "tables"))
    expected = estimators.train(made(tmp_path / "stock"), 20)
    admissions.admission(mx, 50, 10 ** 6)
    np.testing.assert_allclose(estimators.train(made(tmp_path / "tables"), 20), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("is_trained", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("access", [1, 3])
def test_rows_that_a_delta_removes_are_those_of_new_keys_in_a_variable(mx, tmp_path, is_trained, access):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=3600, save_delta_checkpoints_secs=3600,
       stock_tables=StockTables(least_rows=1, access_threshold=access, eviction_threshold=2, eviction_unit="steps"))
    model = admissions.Model("rows", "adagrad")
    model.step(np.array([[1, 1, 1], [2, 2, 2]]))
    model.saver.save(model.sess, str(tmp_path / "model"), global_step=0, save_delta=False)
    for _ in range(2):
        model.step(np.array([[2, 2, 5]]))
    assert evict(model) == {"w": (1, 2)}
    expected = model.find()
    path = model.saver.save(model.sess, str(tmp_path / "model"), global_step=1, save_delta=True)
    assert (tmp_path / "delta-sparse-model-1").is_dir()
    initialize.terminate_config_initializer()
    mx()
    with tf.Graph().as_default():
        v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [admissions.cases.ROWS, 2], initializer=v1.constant_initializer(admissions.START))
        found = tf.gather(w, [1, 2, 5, 7])
        if is_trained:
            v1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.3).minimize(tf.reduce_sum(found))
        with v1.Session() as sess:
            saver = v1.train.Saver()
            saver.restore(sess, path)
            got = sess.run(found)
            slots = [sess.run(one) for one in v1.global_variables() if "Adagrad" in one.op.name]
    wanted = expected[[1, 2, 5, 7]]
    if is_trained:
        wanted[~wanted.any(1)] = admissions.START
        assert (slots[0][[1, 7]] == np.float32(0.3)).all() and (slots[0][2] != np.float32(0.3)).all()
    np.testing.assert_array_equal(got, wanted)
    assert (got[[0, 3]] == (admissions.START if access == 1 or is_trained else 0)).all()
