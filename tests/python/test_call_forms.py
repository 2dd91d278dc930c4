"""The call forms of the original's documents work as they stand there."""

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers.lazy_adam import create_hash_optimizer
from mx_rec.saver.sparse import export
from mx_rec.util.initialize import (
    ConfigInitializer, get_initializer, get_rank_id, get_rank_size, get_target_batch, get_use_dynamic_expansion,
    get_use_static)
from mx_rec.util.variable import get_dense_and_sparse_variable


def user_table():
    return create_table(key_dtype=tf.int64, value_dtype=tf.float32, name="user_table", dim=tf.TensorShape([1]),
                        emb_initializer=tf.compat.v1.truncated_normal_initializer(mean=10),
                        device_vocabulary_size=800000, host_vocabulary_size=0)


def batch_and_specs(is_training):
    specs = [FeatureSpec("user_ids", feat_count=2, table_name="user_table")]
    data = tf.data.Dataset.from_tensor_slices({"user_ids": np.arange(12).reshape(6, 2), "label": np.arange(6)})
    data = data.batch(2, drop_remainder=True).map(
        get_asc_insert_func(tgt_key_specs=specs, is_training=is_training, dump_graph=False)).prefetch(100)
    iterator = tf.compat.v1.data.make_initializable_iterator(data)
    return iterator, iterator.get_next(), specs


def test_a_table_of_the_documents_is_looked_up_by_tensor(graph, session, dynamic):
    table = user_table()
    feature = tf.constant([[1, 2], [3, 1]], tf.int64)
    batch = {"user_ids": feature}
    config = dict(access_threshold=None, eviction_threshold=None, faae_coefficient=1)
    embedding = sparse_lookup(table, feature, 32, dim=None, is_train=True, access_and_evict_config=config,
                              name=table.table_name + "_lookup", modify_graph=True, batch=batch)
    assert embedding.shape.as_list() == [2, 2, 1]
    assert "user_table" in embedding.op.name and "user_table_lookup" in embedding.op.name
    rows = session().run(embedding)
    assert 8.0 <= rows.min() and rows.max() <= 12.0 and rows[0, 0] == rows[1, 1]


@pytest.mark.parametrize("is_train", [True, False])
def test_a_list_of_one_feature_spec_is_looked_up(graph, session, dynamic, is_train):
    iterator, batch, specs = batch_and_specs(is_train)
    table = user_table()
    batch_size = 2
    embedding = sparse_lookup(table, specs, batch_size * 16, is_train=is_train, name="user_lookup", modify_graph=False,
                              batch=batch)
    start_asc_pipeline()
    start_asc_pipeline()
    sess = support.started(session(), iterator.initializer)
    rows = sess.run(embedding)
    assert rows.shape == (2, 2, 1)
    assert (rows != 0).all() == is_train


def test_the_list_form_needs_no_batch_in_static_shape(graph, session, mx):
    mx(use_dynamic=False)
    iterator, _, specs = batch_and_specs(True)
    embedding = sparse_lookup(user_table(), specs, 32, is_train=True, name="user_lookup", modify_graph=False)
    assert embedding.shape.as_list() == [2, 2, 1]
    start_asc_pipeline()
    sess = support.started(session(), iterator.initializer)
    assert sess.run(embedding).shape == (2, 2, 1)


def test_a_training_script_of_the_documents_runs_from_init_to_terminate(graph, session, tmp_path):
    tf.compat.v1.set_random_seed(1)
    with support.initialized(max_steps=200, train_steps=100, eval_steps=10, save_steps=50, use_dynamic=True,
                             use_dynamic_expansion=False):
        iterator, batch, specs = batch_and_specs(True)
        table = user_table()
        embedding = sparse_lookup(table, specs[0], 32, is_train=True, name="user_lookup", batch=batch)
        output = tf.compat.v1.layers.dense(tf.reshape(embedding, [-1, 2]), 1)
        loss = tf.reduce_mean(tf.square(output[:, 0] - tf.cast(batch["label"], tf.float32)))
        dense_variables, sparse_variables = get_dense_and_sparse_variable()
        assert len(dense_variables) == 2 and len(sparse_variables) == 1
        dense_optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
        dense = dense_optimizer.apply_gradients(zip(tf.gradients(loss, dense_variables), dense_variables))
        sparse_optimizer = create_hash_optimizer(learning_rate=0.1)
        sparse = sparse_optimizer.apply_gradients(zip(tf.gradients(loss, sparse_variables), sparse_variables))
        saver = tf.compat.v1.train.Saver()
        start_asc_pipeline()
        sess = support.started(session())
        losses = []
        for _ in range(30):
            sess.run(iterator.initializer)
            while True:
                try:
                    losses.append(sess.run([loss, dense, sparse])[0])
                except tf.errors.OutOfRangeError:
                    break
        assert np.mean(losses[-3:]) < 0.2 * np.mean(losses[:3])
        assert table.size() == 12 and table.capacity() == 800000
        saver.save(sess, str(tmp_path.resolve()) + "/model.ckpt", global_step=90)


def test_get_initializer_of_the_documents_imports(graph, dynamic):
    assert get_rank_id() == 0 and get_rank_size() == 1
    assert get_use_static() is False and get_use_dynamic_expansion() is False
    assert get_initializer(True) is None
    assert callable(get_target_batch)
    assert ConfigInitializer.get_instance().use_static is False


def test_a_second_graph_of_the_process_may_have_tables_of_the_same_names(graph, session, dynamic):
    """As an Estimator builds its evaluation graph."""
    first = user_table()
    with tf.Graph().as_default() as second_graph:
        second = user_table()
        assert second.table_name == first.table_name
        embedding = sparse_lookup(second, tf.constant([1], tf.int64), modify_graph=True)
        with support.new_session(second_graph) as sess:
            assert sess.run(embedding).shape == (1, 1)


def test_exported_tables_are_numpy_dictionaries(graph, session, dynamic, tmp_path):
    table = user_table()
    embedding = sparse_lookup(table, tf.constant([5, -9], tf.int64), modify_graph=True)
    sess = session()
    rows = sess.run(embedding)
    sess.run(tf.compat.v1.global_variables_initializer())
    directory = str(tmp_path.resolve())
    tf.compat.v1.train.Saver().save(sess, directory + "/model.ckpt", global_step=1)
    export(table_list=["user_table"])
    content = np.load(directory + "/sparse-model.ckpt-1/user_table/key-emb.npy", allow_pickle=True).item()
    assert sorted(content) == [-9, 5]
    support.assert_same_bits(content[5], rows[0])
    support.assert_same_bits(content[-9], rows[1])


def test_arguments_of_older_releases_are_taken_and_those_without_effect_are_logged(dynamic, caplog):
    import mx_rec.core.embedding as embedding

    with caplog.at_level("INFO", logger="mx_rec"):
        table = embedding.create_table(
            key_dtype=tf.int64, dim=4, name="old", emb_initializer=tf.compat.v1.zeros_initializer(),
            optimizer_list=[object()], value_dtype=tf.float32, shard_num=8, fusion_optimizer_var=False,
            hashtable_threshold=1)
    assert table.table_name == "old"
    assert "'old': accepted without effect: fusion_optimizer_var, hashtable_threshold, optimizer_list, shard_num." \
        in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", logger="mx_rec"):
        embedding.create_table(tf.int64, 4, "new", tf.compat.v1.zeros_initializer(), optimizer_list=None)
    assert "without effect" not in caplog.text
    with pytest.raises(ValueError, match="optimizer_list"):
        embedding.create_table(tf.int64, 4, "wrong", tf.compat.v1.zeros_initializer(), optimizer_list="Adam")


def sizes(table):
    return table.slice_device_vocabulary_size, table.slice_host_vocabulary_size


def test_a_table_takes_its_arguments_in_the_order_of_older_releases(graph, session, dynamic, caplog):
    import mx_rec.core.embedding as embedding

    ones = tf.compat.v1.ones_initializer()
    with caplog.at_level("INFO", logger="mx_rec"):
        table = embedding.create_table(
            tf.int64, 4, "old", ones, [create_hash_optimizer(0.1)], 5, 3, 0, (".",), False, 2.0,
            "sum_gradients_and_div_by_ranksize", tf.float32, 8, False, 1)
    assert sizes(table) == (5, 3) and (table.is_save, table.is_dp, table.init_param) == (False, False, 2.0)
    assert "'old': accepted without effect: fusion_optimizer_var, hashtable_threshold, optimizer_list, shard_num." \
        in caplog.text
    rows = embedding.sparse_lookup(table, tf.constant([7], tf.int64), modify_graph=True)
    assert session().run(rows).tolist() == [[2.0] * 4]
    for number, fifth in enumerate([[], (), None, create_hash_optimizer(0.1)]):
        assert sizes(embedding.create_table(tf.int64, 4, "t%d" % number, ones, fifth, 5)) == (5, 0)
        assert sizes(embedding.create_table(tf.int64, 4, "k%d" % number, ones, fifth, host_vocabulary_size=6,
                                            is_dp=True)) == (1, 6)
    assert sizes(embedding.create_table(tf.int64, 4, "now", ones, 5, 3)) == (5, 3)
    assert sizes(embedding.create_table(tf.int64, 4, "keyword", ones, optimizer_list=create_hash_optimizer(0.1))) == (1, 0)


def test_a_wrong_use_of_the_older_order_is_told(graph, dynamic):
    import mx_rec.core.embedding as embedding

    first = (tf.int64, 4, "old", tf.compat.v1.zeros_initializer())
    with pytest.raises(TypeError, match="multiple values for the argument 'device_vocabulary_size'"):
        embedding.create_table(*first, [], 5, device_vocabulary_size=5)
    with pytest.raises(TypeError, match="multiple values for the argument 'optimizer_list'"):
        embedding.create_table(*first, [], optimizer_list=[])
    with pytest.raises(TypeError, match="16 arguments by position .* 17 were given"):
        embedding.create_table(*first, [], 5, 3, 0, (".",), True, 1.0, "sum_gradients", tf.float32, 1, True, 0, 0)
    with pytest.raises(ValueError, match="device_vocabulary_size"):
        embedding.create_table(*first, "Adam")
    with pytest.raises(ValueError, match="init_param"):
        embedding.create_table(*first, [], 5, 3, 0, (".",), True, False)
