"""Programs in the style of the original's, which import the vendor's names and train, evaluate and evict by a session."""

import os
import re

import pytest

import preloaded
import support

SCRIPT = '''
import os

import numpy as np
from npu_bridge.npu_init import *
from npu_bridge.estimator.npu.npu_config import NPURunConfig

from mx_rec.constants.constants import (ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB,
                                        ASCEND_TIMESTAMP, LIBREC_CPU_SO, LIBREC_EOS_OPS_SO)
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.asc.manager import start_asc_pipeline
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import EvictHook
from mx_rec.graph.hooks import LookupSubgraphSlicerHook, OrphanLookupKeySlicerHook
from mx_rec.graph.modifier import GraphModifierHook, modify_graph_and_start_emb_cache
from mx_rec.optimizers import lazy_adam, lazy_adam_by_addr
from mx_rec.util.initialize import ConfigInitializer, init, terminate_config_initializer
import mx_rec.util as mxrec_util
from mx_rec.util.ops import import_host_pipeline_ops
from mx_rec.util.tf_version_adapter import hccl_ops as collectives
from mx_rec.util.variable import get_dense_and_sparse_variable

npu_plugin.set_device_sat_mode(0)
MODIFY, FAAE, EXPANSION = [bool(int(os.environ[name])) for name in ("MODIFY", "FAAE", "EXPANSION")]
TRAIN, EVAL, LOOP, BATCH = 20, 4, 5, 16


def batches(is_training, spec):
    random = np.random.RandomState(1)
    users = random.randint(0, 90, [BATCH * 40, 3])
    data = tf.data.Dataset.from_tensor_slices({"users": users, "label": (users.sum(1) % 2).astype(np.float32)})
    data = data.batch(BATCH, drop_remainder=True)
    if FAAE:
        def add_time(batch):
            batch["timestamp"] = import_host_pipeline_ops().return_timestamp(tf.cast(batch["label"], tf.int64))
            return batch
        data = data.map(add_time)
    if not MODIFY:
        data = data.eos_map(import_host_pipeline_ops(LIBREC_EOS_OPS_SO), 0 if is_training else 1, TRAIN, EVAL)
        data = data.map(get_asc_insert_func(tgt_key_specs=spec, is_training=is_training))
    iterator = data.prefetch(10).make_initializable_iterator()
    return iterator.get_next(), iterator


def specs():
    found = [FeatureSpec("users", table_name="users", access_threshold=2 if FAAE else None,
                         eviction_threshold=60 if FAAE else None)]
    return found + [FeatureSpec("timestamp", is_timestamp=True)] if FAAE else found


def model(table, spec, batch, is_train):
    rows = sparse_lookup(table, batch["users"] if MODIFY else spec[0], 500, dim=None, is_train=is_train,
                         name="users_lookup", modify_graph=MODIFY, batch=batch, access_and_evict_config=None)
    with tf.compat.v1.variable_scope("top", reuse=tf.compat.v1.AUTO_REUSE):
        logits = tf.layers.dense(tf.reshape(rows, [-1, 12]), 1, name="dense",
                                 kernel_initializer=tf.glorot_uniform_initializer(seed=3))[:, 0]
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=batch["label"]))


init(max_steps=TRAIN, train_steps=10, eval_steps=EVAL, use_dynamic=True, use_dynamic_expansion=EXPANSION)
train_spec, eval_spec = specs(), specs()
train_batch, train_iterator = batches(True, train_spec)
eval_batch, eval_iterator = batches(False, eval_spec)
table = create_table(key_dtype=tf.int64, dim=tf.TensorShape([4]), name="users", device_vocabulary_size=100,
                     emb_initializer=tf.compat.v1.truncated_normal_initializer(seed=1))
if FAAE:
    tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, train_batch["timestamp"])
loss = model(table, train_spec, train_batch, True)
eval_loss = model(table, eval_spec, eval_batch, False)
dense, sparse = get_dense_and_sparse_variable()
offsets = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
parts = tf.compat.v1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB) if EXPANSION else sparse
# Of one call: an update does not run while another gradient still reads the variable.
gradients = tf.gradients(loss, dense + parts, gate_gradients=True)
pairs = [(collectives.allreduce(grad, "sum"), var) for grad, var in zip(gradients, dense)]
make = lazy_adam_by_addr.create_hash_optimizer_by_address if EXPANSION else lazy_adam.create_hash_optimizer
optimizer = make(learning_rate=0.01)
update = list(zip(gradients[len(dense):], offsets if EXPANSION else sparse))
count = tf.Variable(0, trainable=False)
with tf.control_dependencies([loss]):
    counted = count.assign_add(1)
train_op = tf.group(tf.compat.v1.train.AdamOptimizer(0.01).apply_gradients(pairs), optimizer.apply_gradients(update),
                    counted)
if MODIFY:
    modify_graph_and_start_emb_cache(dump_graph=True)
else:
    start_asc_pipeline()
settings = ConfigInitializer.get_instance().train_params_config
config = tf.ConfigProto()
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["iterations_per_loop"].i = LOOP
if FAAE:
    hooks = [EvictHook(evict_enable=True, evict_time_interval=120)]
    if MODIFY:
        hooks.append(GraphModifierHook(modify_graph=False))
    sess = tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks, config=config)
    sess.graph._unsafe_unfinalize()
else:
    sess = tf.compat.v1.Session(config=config)
    sess.run(tf.compat.v1.global_variables_initializer())
sess.run(settings.get_initializer(True) if MODIFY else train_iterator.initializer)
train_op = util.set_iteration_per_loop(sess, train_op, LOOP)
step = 0
while True:
    try:
        _, value = sess.run([train_op, loss])
        step += LOOP
    except tf.errors.OutOfRangeError:
        break
    if step % 10 == 0:
        sess.run(settings.get_initializer(False) if MODIFY else eval_iterator.initializer)
        sess.run(import_host_pipeline_ops(LIBREC_CPU_SO).clear_channel(settings.get_training_mode_channel_id(False)))
        label = settings.get_target_batch(False)["label"] if MODIFY else eval_batch["label"]
        seen = 0
        try:
            while True:
                evaluated, labels = sess.run([eval_loss, label])
                seen += 1
        except tf.errors.OutOfRangeError:
            pass
        print("evaluated", seen, "of", len(labels), "rank", mxrec_util.communication.hccl_ops.get_rank_id())
print("steps", step, sess.run(count), "rows", table.size(), "loss", repr(float(value)))
sess.close()
terminate_config_initializer()
print("done")
'''


def run(directory, monkeypatch, **switches):
    for name in ("MODIFY", "FAAE", "EXPANSION"):
        monkeypatch.setenv(name, str(switches.get(name, 0)))
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PYTHONPATH", os.path.join(support.PACKAGES, "tf_adapter_cpu"))
    return preloaded.run_python(SCRIPT)


def check(text, switches):
    assert text.strip().endswith("done")
    assert re.search(r"steps 20 20 rows \d\d", text)
    evaluated = re.findall(r"evaluated (\d+) of 16 rank 0", text)
    # The script's own dataset ends after the steps of an evaluation, that of a modified graph with its data.
    assert evaluated == [str(40 if switches.get("MODIFY") else 4)] * 2


@pytest.mark.parametrize("switches", [{"MODIFY": 1, "FAAE": 1}, {"EXPANSION": 1}])
def test_a_session_program_trains_evaluates_and_ends(tmp_path, monkeypatch, switches):
    check(run(tmp_path, monkeypatch, **switches), switches)


@pytest.mark.long
def test_both_modes_have_the_same_numbers(tmp_path, monkeypatch):
    found = []
    for switches in ({}, {"MODIFY": 1}):
        text = run(tmp_path, monkeypatch, **switches)
        check(text, switches)
        found.append(re.search(r"rows .*", text).group())
    assert found[0] == found[1]
