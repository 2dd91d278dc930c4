"""What docs/compatibility.md has a row for: each function tries one feature and returns its digest.

A digest is of the rows that a fixed training leaves, so that versions can be compared bit by bit;
`OK` where there are no rows to compare. What a version lacks is told by `Lacking`.
"""

import importlib
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import tensorflow as tf

import lookups
import model
from model import (Contents, Training, features, initialized, lazy_adam, loss_of, make_table,
                   session, started)

tf1 = tf.compat.v1
OK = "ok"
IS_1 = tf.__version__.startswith("1.")


class Lacking(Exception):
    """Says why this version cannot have a feature."""


def _estimator():
    if not hasattr(tf, "estimator") or not hasattr(tf.estimator, "Estimator"):
        raise Lacking("TensorFlow 2.16 and newer come without Estimators")
    return tf.estimator


def _optimizer(module, **settings):
    made = importlib.import_module("mx_rec.optimizers." + module)
    create = next(getattr(made, name) for name in dir(made)
                  if name.startswith("create_hash_optimizer"))
    return lambda: create(**settings)


def _trains(module, **settings):
    def train(place):
        del place
        with started():
            return Training(_optimizer(module, **settings)).trained()

    return train


def _trains_by_address(module, **settings):
    def train(place):
        del place
        with started(use_dynamic_expansion=True):
            return Training(_optimizer(module, **settings), by_address=True, rows=1).trained()

    return train


def _trains_stock(make):
    def train(place):
        del place
        with started():
            return Training(make).trained()

    return train


def padding_and_evaluation(place):
    """Lookups of unknown keys give zeros and make no row."""
    del place
    with started():
        training = Training(lazy_adam)
        with initialized() as sess:
            training.run(sess)
            size = training.table.size()
            found = sess.run(training.found, {training.ids: [-1, 5, -3 * 10 ** 13]})
            assert not found[:2].any() and found[2].any() and training.table.size() == size
            return model.digest(found)


def feature_specs(place):
    """FeatureSpec, get_asc_insert_func, start_asc_pipeline."""
    del place
    from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
    from mx_rec.core.asc.manager import start_asc_pipeline
    from mx_rec.core.embedding import sparse_lookup

    with started():
        spec = FeatureSpec("ids", table_name="items", index_key="ids")
        data = features().map(get_asc_insert_func([spec], is_training=True)).prefetch(2)
        iterator = tf1.data.make_initializable_iterator(data)
        batch = iterator.get_next()
        table = make_table()
        rows = sparse_lookup(table, spec, is_train=True, batch=batch)
        update = lazy_adam().minimize(loss_of(rows, batch["label"]), var_list=[table.variable])
        contents = Contents(table)
        start_asc_pipeline()
        with session() as sess:
            sess.run([tf1.global_variables_initializer(), iterator.initializer])
            return _until_end(sess, update, contents)


def _until_end(sess, update, contents):
    steps = 0
    while True:
        try:
            sess.run(update)
            steps += 1
        except tf.errors.OutOfRangeError:
            break
    assert steps == model.STEPS, steps
    return contents.digest(sess)


def _graph_modified(kind):
    def train(place):
        del place
        from mx_rec.core.embedding import sparse_lookup
        from mx_rec.graph.modifier import modify_graph_and_start_emb_cache
        from mx_rec.ops.lookups import is_claim
        from mx_rec.util.initialize import get_initializer, get_target_batch

        with started():
            make = {"one-shot": tf1.data.make_one_shot_iterator,
                    "initializable": tf1.data.make_initializable_iterator}[kind]
            iterator = make(features())
            batch = iterator.get_next()
            table = make_table()
            rows = sparse_lookup(table, batch["ids"], is_train=True, modify_graph=True)
            update = lazy_adam().minimize(loss_of(rows, batch["label"]),
                                           var_list=[table.variable])
            contents = Contents(table)
            # What the script holds and fetches itself.
            held, later = tf.identity(batch["ids"]), batch["label"]
            modify_graph_and_start_emb_cache(dump_graph=False)
            moved = filter(is_claim, tf1.get_default_graph().get_operations())
            assert any(True for _ in moved), "nothing moved"
            assert get_target_batch(True) is not None
            after = tf.reduce_sum(later)
            with initialized() as sess:
                if kind == "initializable":
                    sess.run(get_initializer(True))
                data = model.batches()
                _, seen, label, total = sess.run([update, held, later, after])
                assert np.array_equal(seen, data["ids"][0])
                assert np.array_equal(label, data["label"][0])
                assert abs(total - data["label"][0].sum()) < 1e-3
                for _ in range(model.STEPS - 1):
                    sess.run(update)
                try:
                    sess.run(update)
                    raise AssertionError("the data did not end")
                except tf.errors.OutOfRangeError:
                    return contents.digest(sess)

    return train


def leases(place):
    """Offsets are nobody's memory to compute in: else their lease would keep rows for ever."""
    del place
    from mx_rec.ops import library
    from mx_rec.ops.lookups import resolve

    with started():
        table = make_table(rows=2000)
        ids = tf1.placeholder(tf.int64, [None])
        offsets, _ = resolve([table.handle], [ids]).of(0)
        alone = tf.negative(offsets)
        removed = library().mx_rec_remove(table.handle, ids)
        with session() as sess:
            for start in range(0, 6000, 500):
                keys = {ids: np.arange(start, start + 500)}
                assert (sess.run(alone, keys) < 0).all() and sess.run(removed, keys) == 500
            assert table.size() == 0
    return OK


def admission_and_eviction(place):
    """Thresholds, a timestamp, EvictHook's verb, table_stats."""
    del place
    from mx_rec.constants.constants import ASCEND_TIMESTAMP
    from mx_rec.core.admission import evict
    from mx_rec.core.embedding import sparse_lookup
    from mx_rec.core.feature_process import EvictHook
    from mx_rec.util.stats import table_stats

    with started():
        data = dict(model.batches(), time=np.arange(1, model.STEPS + 1))
        batch = tf1.data.make_one_shot_iterator(features(data)).get_next()
        table = make_table()
        rows = sparse_lookup(table, batch["ids"], is_train=True, modify_graph=True,
                             access_and_evict_config=dict(access_threshold=3, eviction_threshold=4,
                                                          faae_coefficient=1))
        tf1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])
        step = tf1.train.get_or_create_global_step()
        update = tf.group(lazy_adam().minimize(loss_of(rows, batch["label"]),
                                                var_list=[table.variable]),
                          tf1.assign_add(step, 1))
        contents = Contents(table)
        EvictHook(evict_enable=True, evict_time_interval=1)
        with initialized() as sess:
            for _ in range(model.STEPS):
                sess.run(update)
            evicted = evict("items")["items"].evicted
            stats = table_stats(table)
            assert evicted > 0 and stats.rows == table.size() > 0, (evicted, stats)
            return contents.digest(sess) + "/{}".format(evicted)


def merged_tables(place):
    """enable_merge, of dynamic expansion."""
    del place
    from mx_rec.core.embedding import sparse_lookup

    with started(use_dynamic_expansion=True):
        tables = [make_table(name, rows=1, enable_merge=True) for name in ("one", "two")]
        ids = tf1.placeholder(tf.int64, [None])
        rows = [sparse_lookup(table, ids + number, modify_graph=True)
                for number, table in enumerate(tables)]
        with initialized() as sess:
            found = sess.run(rows, {ids: [10, 20]})
            assert tables[0].size() == tables[1].size() == 4
            return model.digest(*found)


def save_and_restore(place):
    """tf.train.Saver in a directory of its own, restored in another session and trained on."""
    with started():
        training = Training(lazy_adam)
        saver = tf1.train.Saver()
        with initialized() as sess:
            training.run(sess, range(6))
            path = saver.save(sess, os.path.join(place, "model.ckpt"), global_step=6)
        with session() as sess:
            saver.restore(sess, path)
            training.run(sess, range(6, model.STEPS))
            return training.contents.digest(sess)


def deltas(place):
    """Incremental checkpoints: a base, a delta, and a restore of both."""
    with started(is_incremental_checkpoint=True, save_checkpoint_due_time=1000,
                 save_delta_checkpoints_secs=1000):
        training = Training(lazy_adam)
        saver = tf1.train.Saver()
        path = os.path.join(place, "model.ckpt")
        with initialized() as sess:
            training.run(sess, range(4))
            saver.save(sess, path, global_step=4)
            training.run(sess, range(4, 8))
            last = saver.save(sess, path, global_step=8, save_delta=True)
        assert os.path.isdir(os.path.join(place, "delta-sparse-model.ckpt-8"))
        with session() as sess:
            saver.restore(sess, last)
            training.run(sess, range(8, model.STEPS))
            return training.contents.digest(sess)


def warm_start(place):
    """tf.compat.v1.train.warm_start of a table and its slots."""
    with started():
        training = Training(lazy_adam)
        with initialized() as sess:
            training.run(sess, range(6))
            tf1.train.Saver().save(sess, os.path.join(place, "model.ckpt"), global_step=6)
    with started():
        training = Training(lazy_adam)
        tf1.train.warm_start(place, vars_to_warm_start=[".*"])
        with initialized() as sess:
            training.run(sess, range(6, model.STEPS))
            return training.contents.digest(sess)


def monitored_session(place):
    """MonitoredTrainingSession saves and goes on, GraphModifierHook and TableStatsHook in it."""
    from mx_rec.core.embedding import sparse_lookup
    from mx_rec.graph import GraphModifierHook
    from mx_rec.util.stats import TableStatsHook

    for _ in range(2):
        with started():
            batch = tf1.data.make_one_shot_iterator(features()).get_next()
            table = make_table()
            rows = sparse_lookup(table, batch["ids"], is_train=True, modify_graph=True)
            step = tf1.train.get_or_create_global_step()
            update = lazy_adam().minimize(loss_of(rows, batch["label"]),
                                           var_list=[table.variable], global_step=step)
            contents = Contents(table)
            hooks = [GraphModifierHook(), TableStatsHook(place, every_n_steps=5)]
            with tf1.train.MonitoredTrainingSession(checkpoint_dir=place, hooks=hooks,
                                                    log_step_count_steps=None) as sess:
                for _ in range(6):
                    sess.run(update)
                told = contents.digest(sess)
    assert tf.train.latest_checkpoint(place).endswith("-12")
    return told


_SERVE = """
import sys
import numpy as np
import tensorflow as tf
plugin, directory, out = sys.argv[1:]
tf.load_op_library(plugin)
with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
    loaded = tf.compat.v1.saved_model.load(sess, ["serve"], directory)
    signature = loaded.signature_def["serving_default"]
    np.save(out, sess.run(signature.outputs["rows"].name,
                          {signature.inputs["ids"].name: np.arange(-40, 20) * 10 ** 12}))
assert "mx_rec" not in sys.modules
"""


def saved_model(place):
    """simple_save; a process that knows the plugin alone predicts from it."""
    from mx_rec import plugin

    directory, out = os.path.join(place, "model"), os.path.join(place, "out.npy")
    with started():
        training = Training(lazy_adam)
        with initialized() as sess:
            training.run(sess)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tf1.saved_model.simple_save(sess, directory, {"ids": training.ids},
                                            {"rows": training.found})
            expected = sess.run(training.found, {training.ids: np.arange(-40, 20) * 10 ** 12})
    _python("-c", _SERVE, plugin.plugin_path(), directory, out)
    assert np.array_equal(np.load(out), expected) and expected.any()
    return model.digest(expected)


def _python(*arguments):
    done = subprocess.run([sys.executable] + list(arguments), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=200)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode("utf-8", "replace")[-1500:])
    return done.stdout.decode("utf-8", "replace")


def estimators(place):
    """train, evaluate, predict and export_saved_model with GraphModifierHook."""
    from mx_rec.core.embedding import sparse_lookup
    from mx_rec.graph import GraphModifierHook

    estimator_module = _estimator()

    def model_fn(features, labels, mode):
        is_train = mode == estimator_module.ModeKeys.TRAIN
        table = make_table()
        rows = sparse_lookup(table, features["ids"], is_train=is_train, modify_graph=True)
        if mode == estimator_module.ModeKeys.PREDICT:
            return estimator_module.EstimatorSpec(mode, predictions={"rows": rows})
        loss = loss_of(rows, labels)
        if not is_train:
            return estimator_module.EstimatorSpec(mode, loss=loss)
        update = lazy_adam().minimize(loss, var_list=[table.variable],
                                       global_step=tf1.train.get_global_step())
        return estimator_module.EstimatorSpec(mode, loss=loss, train_op=update)

    def input_fn():
        return features().map(lambda batch: ({"ids": batch["ids"]}, batch["label"]))

    def receiver_fn():
        ids = tf1.placeholder(tf.int64, [None], name="ids")
        return estimator_module.export.ServingInputReceiver({"ids": ids}, {"ids": ids})

    with started():
        made = estimator_module.Estimator(model_fn, config=estimator_module.RunConfig(
            model_dir=place, save_checkpoints_steps=6, log_step_count_steps=None,
            tf_random_seed=1))
        made.train(input_fn, hooks=[GraphModifierHook()])
        made.evaluate(input_fn, hooks=[GraphModifierHook()])
        predicted = np.array([one["rows"] for one in made.predict(
            input_fn, hooks=[GraphModifierHook()])])
        exported = made.export_saved_model(os.path.join(place, "export"), receiver_fn)
        assert predicted.shape == (model.STEPS * model.BATCH, model.DIM)
    with tf.Graph().as_default(), tf1.Session() as sess:
        loaded = tf1.saved_model.load(sess, ["serve"], tf.compat.as_str_any(exported))
        signature = list(loaded.signature_def.values())[0]
        rows = sess.run(list(signature.outputs.values())[0].name,
                        {list(signature.inputs.values())[0].name: model.batches()["ids"][0]})
    assert np.array_equal(rows, predicted[:model.BATCH])
    return model.digest(predicted)


def unchanged_scripts(_):
    """stock_tables: a session script on tables has the losses of its variables."""

    def losses(tables):
        with started(stock_tables=".*" if tables else None):
            with tf.Graph().as_default() as graph:
                ids, labels = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None])
                users, items, tags, history = [
                    tf1.get_variable(name, [50, 4], initializer=tf1.constant_initializer(start))
                    for name, start in (("users", 0.2), ("items", -0.1), ("tags", 0.3),
                                        ("history", 0.1))]
                weights = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [2, 0]], [0.5, 2.0, 1.0, 0.25],
                                          [3, 2])
                sparse = tf.SparseTensor(weights.indices, tf.concat([ids, ids[:1]], 0),
                                         weights.dense_shape)
                # Rows of tags have weights, and id 0 of the history is padding.
                padded = tf.concat([tf.zeros([1, 4]), history[1:, :]], 0)
                rows = tf.nn.embedding_lookup(users, ids) * 2.0 \
                    + tf.sin(tf.nn.embedding_lookup(items, ids)) \
                    + tf1.nn.embedding_lookup_sparse(tags, sparse, weights, combiner="mean") \
                    + tf.nn.embedding_lookup(padded, ids % 3)
                loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, 1) - labels))
                train = _train.AdamOptimizer(0.05).minimize(loss)
                start = tf1.global_variables_initializer()
                with tf1.Session() as sess:
                    sess.run(start)

                    def trained(by):
                        return [sess.run([loss, by], {ids: [step, step % 3, 7],
                                                      labels: [1, 0, 2]})[0] for step in range(8)]

                    found = trained(train)
                    # Made after a run that trains, which makes variables of the tables again.
                    found += trained(_train.GradientDescentOptimizer(0.1).minimize(loss))
                    found += trained(train)
                made = [op.type for op in graph.get_operations()].count("MxRecTable")
                assert made == (4 if tables else 0), made
                return found

    on_tables = losses(True)
    np.testing.assert_allclose(on_tables, losses(False), rtol=1e-5)
    assert on_tables[-1] < on_tables[0]
    return OK


def unchanged_estimators(place):
    """stock_tables: a canned Estimator on tables; its ways back to variables have its numbers."""

    estimator_module = _estimator()
    column = tf.feature_column.categorical_column_with_hash_bucket("ids", 500, dtype=tf.int64)

    def input_fn():
        return features().map(lambda batch: (
            {"ids": batch["ids"]}, tf.cast(batch["label"] > 0.5, tf.int32)))

    def receiver_fn():
        ids = tf1.placeholder(tf.int64, [None], name="ids")
        return estimator_module.export.ServingInputReceiver({"ids": ids}, {"ids": ids})

    def estimator(name="model"):
        # With the default partitioner, and slots beside the weights.
        return tf1.estimator.LinearClassifier([column], config=estimator_module.RunConfig(
            model_dir=os.path.join(place, name), log_step_count_steps=None, tf_random_seed=1))

    losses = []
    for tables in (True, False):
        with started(stock_tables=".*" if tables else None):
            if tables:
                estimator().train(input_fn, steps=6)
                names = tf1.train.latest_checkpoint(os.path.join(place, "model"))
                assert not any("ids" in name for name, _ in tf1.train.list_variables(names))
                shutil.copytree(os.path.join(place, "model"), os.path.join(place, "copy"))
            losses.append([estimator().evaluate(input_fn)["loss"]])
            exported = estimator().export_saved_model(os.path.join(place, "export"), receiver_fn)
            with tf.Graph().as_default() as graph, tf1.Session() as sess:
                tf1.saved_model.load(sess, ["serve"], tf.compat.as_str_any(exported))
                assert not any(op.type.startswith("MxRec") for op in graph.get_operations())
            # The same steps, with tables and without them.
            again = estimator("model" if tables else "copy")
            again.train(input_fn, steps=6)
            losses[-1].append(again.evaluate(input_fn)["loss"])
        if tables:
            shutil.rmtree(os.path.join(place, "model"))
            shutil.copytree(os.path.join(place, "copy"), os.path.join(place, "model"))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][0] != losses[0][1]
    return OK


def estimator_warm_start(place):
    """An Estimator's warm_start_from."""
    from mx_rec.core.embedding import sparse_lookup

    estimator_module = _estimator()
    with started():
        training = Training(lazy_adam)
        with initialized() as sess:
            training.run(sess, range(6))
            tf1.train.Saver().save(sess, os.path.join(place, "old", "model.ckpt"), global_step=6)

    def model_fn(features, mode):
        rows = sparse_lookup(make_table(), features["ids"], is_train=False, modify_graph=True)
        return estimator_module.EstimatorSpec(mode, loss=tf.reduce_sum(rows), train_op=tf.group(
            tf1.assign_add(tf1.train.get_global_step(), 1), tf.identity(rows, "found")))

    found = []

    class Hook(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            return tf1.train.SessionRunArgs("found:0")

        def after_run(self, run_context, run_values):
            found.append(run_values.results)

    with started():
        made = estimator_module.Estimator(model_fn, os.path.join(place, "new"),
                                          warm_start_from=os.path.join(place, "old"))
        made.train(lambda: features().map(lambda batch: {"ids": batch["ids"]}), hooks=[Hook()])
    assert np.any(found)
    return model.digest(*found)


def graph_command(place):
    """python -m mx_rec.graph on the meta graph of a checkpoint."""
    from mx_rec.core.embedding import sparse_lookup

    with started():
        batch = tf1.data.make_initializable_iterator(features()).get_next()
        sparse_lookup(make_table(), batch["ids"], is_train=True, modify_graph=True)
        path = os.path.join(place, "graph.meta")
        tf1.train.export_meta_graph(path)
    text = _python("-m", "mx_rec.graph", path)
    assert "1 move, 0 stay" in text, text
    return OK


def checkpoint_command(place):
    """python -m mx_rec.checkpoint, with --verify."""
    save_and_restore(place)
    text = _python("-m", "mx_rec.checkpoint", place, "--verify")
    assert "items" in text, text
    return OK


def eager_refusal(place):
    """Eager execution gets an error that says how to switch."""
    del place
    if IS_1:
        raise Lacking("graph mode is what 1.15 starts with")
    code = "from mx_rec.util.initialize import init\n" \
        "from mx_rec.core.embedding import create_table\n" \
        "import tensorflow as tf\ninit()\n" \
        "try:\n    create_table(tf.int64, 4, 'items', tf.compat.v1.zeros_initializer())\n" \
        "except RuntimeError as error:\n    print(error)\n"
    text = _python("-c", code)
    assert "create_table" in text and "disable_v2_behavior" in text, text
    return OK


def refusals(place):
    """tf.train.Checkpoint and freezing refuse tables; a table in a signature as well."""
    with started():
        training = Training(lazy_adam)
        with initialized() as sess:
            _refused(NotImplementedError, "items", lambda: tf1.train.Checkpoint(
                step=tf1.train.get_or_create_global_step()).save(
                    os.path.join(place, "objects"), session=sess))
            _refused(ValueError, "items", lambda: tf1.graph_util.convert_variables_to_constants(
                sess, sess.graph_def, [training.rows.op.name]))
            _refused(NotImplementedError, "items",
                     lambda: tf1.saved_model.build_tensor_info(training.table.variable))
            _refused(NotImplementedError, "items",
                     lambda: tf.convert_to_tensor(training.table.variable) + 1)
            _refused(NotImplementedError, "items", lambda: tf.stack([training.table.variable]))
    return OK


def _refused(kind, text, call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError("{} was not raised".format(kind.__name__))


def static_shapes_of_imported_graphs(place):
    """Shapes of lookups in a graph that is imported, where Python has not stated them."""
    del place
    with started():
        training = Training(lazy_adam)
        graph_def = tf1.get_default_graph().as_graph_def()
        name = training.rows.name
    with tf.Graph().as_default():
        rows, = tf1.import_graph_def(graph_def, return_elements=[name], name="")
        if rows.shape.rank is None:
            raise Lacking("its C API shows a shape function the first input only; shapes are "
                          "stated when an op is made")
        assert rows.shape.as_list() == [None, model.DIM], rows.shape
    return OK


def control_flow(place):
    """Lookups with gradient in a branch, and without one in a loop."""
    del place
    from mx_rec.core.embedding import sparse_lookup

    with started():
        table = make_table()
        ids = tf1.placeholder(tf.int64, [None])
        chosen = tf1.placeholder(tf.bool, [])
        rows = tf1.cond(chosen, lambda: sparse_lookup(table, ids, modify_graph=True),
                        lambda: tf.zeros([tf.size(ids), model.DIM]))
        update = lazy_adam().minimize(tf.reduce_sum(tf.square(rows)), var_list=[table.variable])
        contents = Contents(table)
        with initialized() as sess:
            for step, on in enumerate([True, False, True, True]):
                sess.run(update, {ids: np.arange(step, step + 5), chosen: on})
            return contents.digest(sess)


_train = tf1.train
FEATURES = (
    ("tables and `sparse_lookup`: padding, evaluation", padding_and_evaluation, True),
    ("Adam", _trains("adam", learning_rate=0.05), True),
    ("LazyAdam", _trains("lazy_adam", learning_rate=0.05), True),
    ("Adagrad", _trains("adagrad", learning_rate=0.1), True),
    ("FTRL", _trains("ftrl", learning_rate=0.3, l1_regularization_strength=0.01), True),
    ("RMSProp", _trains("rmsprop", learning_rate=0.05, momentum=0.5, centered=True), True),
    ("gradient descent", _trains("gradient_descent", learning_rate=0.05), True),
    ("momentum", _trains("momentum", learning_rate_input=0.05), True),
    ("dynamic expansion: LazyAdam by address",
     _trains_by_address("lazy_adam_by_addr", learning_rate=0.05), True),
    ("dynamic expansion: Adam by address",
     _trains_by_address("adam_by_addr", learning_rate=0.05), False),
    ("dynamic expansion: Adagrad by address",
     _trains_by_address("adagrad_by_addr", learning_rate=0.1), False),
    ("dynamic expansion: RMSProp by address",
     _trains_by_address("rmsprop_by_addr", learning_rate=0.05), False),
    ("dynamic expansion: gradient descent by address",
     _trains_by_address("gradient_descent_by_addr", learning_rate=0.05), False),
    ("dynamic expansion: `enable_merge`", merged_tables, False),
    ("stock `GradientDescentOptimizer` on a table",
     _trains_stock(lambda: _train.GradientDescentOptimizer(0.05)), False),
    ("stock `MomentumOptimizer` on a table",
     _trains_stock(lambda: _train.MomentumOptimizer(0.05, 0.9)), False),
    ("stock `AdagradOptimizer` on a table",
     _trains_stock(lambda: _train.AdagradOptimizer(0.1)), False),
    ("stock `AdamOptimizer` on a table", _trains_stock(lambda: _train.AdamOptimizer(0.05)), True),
    ("stock `FtrlOptimizer` on a table", _trains_stock(lambda: _train.FtrlOptimizer(0.3)), False),
    ("stock `RMSPropOptimizer` on a table",
     _trains_stock(lambda: _train.RMSPropOptimizer(0.05, momentum=0.5)), False),
    ("optimizers that scripts write", lookups.own_optimizer, True),
    ("pooled lookups: dense ids, weights", lookups.pooled_lookups, True),
    ("pooled lookups: `safe_embedding_lookup_sparse`", lookups.sparse_bags, True),
    ("`sparse_lookup_many`, updates in groups", lookups.many_tables, True),
    ("lookups in `tf.cond`", control_flow, False),
    ("leases of rows, with ops that compute in place", leases, True),
    ("FeatureSpec", feature_specs, True),
    ("graph modification, initializable iterator", _graph_modified("initializable"), True),
    ("graph modification, one-shot iterator", _graph_modified("one-shot"), True),
    ("admission and eviction, `table_stats`", admission_and_eviction, False),
    ("`tf.train.Saver`: save and restore", save_and_restore, True),
    ("incremental checkpoints", deltas, False),
    ("warm start, `tf.compat.v1.train.warm_start`", warm_start, False),
    ("`MonitoredTrainingSession`, `TableStatsHook`", monitored_session, True),
    ("SavedModel: `simple_save`, load in a session", saved_model, True),
    ("`export_plain`", lookups.plain_export, True),
    ("Estimators: train, evaluate, predict, export_saved_model", estimators, True),
    ("unchanged session scripts on tables", unchanged_scripts, True),
    ("unchanged Estimators on tables, and back to variables", unchanged_estimators, False),
    ("Estimators: `warm_start_from`", estimator_warm_start, False),
    ("`python -m mx_rec.graph`", graph_command, False),
    ("`python -m mx_rec.checkpoint`", checkpoint_command, False),
    ("eager execution: an error that says how to switch", eager_refusal, True),
    ("refusals: `tf.train.Checkpoint`, freezing, dense reads", refusals, False),
    ("static shapes in imported graphs", static_shapes_of_imported_graphs, False),
)
