"""Numbers of NumPy do what numbers of Python do, in every public function, and are stored as numbers of Python.

Sizes that a script computes with NumPy, np.int64 for one, were refused here and there, or were kept and failed later.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.core.admission import set_threshold
from mx_rec.core.asc.helper import FeatureSpec, get_asc_insert_func
from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.core.feature_process import EvictHook
from mx_rec.core.initializers import table_seed
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.saver.saver import Saver
from mx_rec.util.initialize import ConfigInitializer, get_host_pipeline_ops, terminate_config_initializer
from mx_rec.util.stats import TableStatsHook

INTS = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.array)
FLOATS = (np.float16, np.float32, np.float64, np.array)
OPTIMIZERS = {
    "adam": ("create_hash_optimizer", "learning_rate", dict(beta1=0.5, beta2=0.75, epsilon=0.125)),
    "adam_by_addr": ("create_hash_optimizer_by_address", "learning_rate", dict(beta1=0.5, beta2=0.75, epsilon=0.125)),
    "lazy_adam": ("create_hash_optimizer", "learning_rate", dict(beta1=0.5, beta2=0.75, epsilon=0.125)),
    "lazy_adam_by_addr": ("create_hash_optimizer_by_address", "learning_rate",
                          dict(beta1=0.5, beta2=0.75, epsilon=0.125)),
    "adagrad": ("create_hash_optimizer", "learning_rate", dict(initial_accumulator_value=0.25)),
    "adagrad_by_addr": ("create_hash_optimizer_by_address", "learning_rate", dict(initial_accumulator_value=0.25)),
    "ftrl": ("create_hash_optimizer", "learning_rate", dict(
        learning_rate_power=-0.5, initial_accumulator_value=0.25, l1_regularization_strength=0.5,
        l2_regularization_strength=0.5, l2_shrinkage_regularization_strength=0.5)),
    "gradient_descent": ("create_hash_optimizer", "learning_rate", dict(weight_decay=0.0078125)),
    "gradient_descent_by_addr": ("create_hash_optimizer_by_addr", "learning_rate", dict(weight_decay=0.5)),
    "momentum": ("create_hash_optimizer", "learning_rate_input", dict(mom=0.5)),
}


def table_of(**changes):
    arguments = dict(key_dtype=tf.int64, dim=4, name="table", device_vocabulary_size=100,
                     emb_initializer=tf.compat.v1.ones_initializer())
    arguments.update(changes)
    return create_table(**arguments)


def config():
    return ConfigInitializer.get_instance()


def plain(value):
    """Asserts that nothing of NumPy is in a nest of values."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            plain(one)
    assert not isinstance(value, (np.generic, np.ndarray)), value
    return value


# (what, range of accepted ints, a function of (mx, number) that returns what is kept of the number)
def _init(name):
    def make(mx, number):
        arguments = {name: number}
        if "save" in name and name != "save_steps" or name == "recent_key_count_threshold" or "version" in name:
            arguments = dict({"is_incremental_checkpoint": True, "save_checkpoint_due_time": 5,
                              "save_delta_checkpoints_secs": 5}, **arguments)
        mx(**arguments)
        return getattr(config(), name)

    return make


def _setter(name):
    def make(mx, number):
        mx()
        setattr(config(), name, number)
        return getattr(config(), name)

    return make


def _table(name, read=None, **more):
    def make(mx, number):
        mx()
        table = table_of(**dict(more, **{name: number}))
        text = tf.contrib.util.constant_value(table.variable.op.inputs[0]).tobytes().decode()
        plain(json.loads(text))
        return getattr(table, read or name) if read != "" else number.item()

    return make


def _spec(name, **more):
    def make(mx, number):
        spec = FeatureSpec("feature", **dict(more, **{name: number}))
        plain(spec.thresholds)
        return getattr(spec, name)

    return make


def _hook(name):
    def make(mx, number):
        return getattr(EvictHook(True, **{name: number}), "_" + name[len("evict_"):])

    return make


def _stats_hook(mx, number):
    return TableStatsHook("/tmp", every_n_steps=number)._interval


def _thresholds(mx, number):
    mx()
    table = table_of()
    sparse_lookup(table, tf.constant([1], tf.int64), modify_graph=True, access_and_evict_config={
        "access_threshold": number, "eviction_threshold": number, "faae_coefficient": number})
    tf.compat.v1.add_to_collection("ASCEND_TIMESTAMP", tf.constant(1, tf.int64))
    kept = plain(table.thresholds[True])
    assert kept[0] == kept[1]
    return kept[0]


def _set_threshold(mx, number):
    mx()
    sparse_lookup(table_of(), tf.constant([1], tf.int64), modify_graph=True,
                  access_and_evict_config={"access_threshold": 2})
    changed = get_host_pipeline_ops().set_threshold(number, "table")
    with support.new_session() as sess:
        set_threshold(number)
        return int(sess.run(changed))


def _send_count(mx, number):
    mx(use_dynamic=False)
    table = table_of()
    sparse_lookup(table, tf.constant([1], tf.int64), send_count=number, modify_graph=True)
    return table.send_count


def _index_key(mx, number):
    mx()
    spec = FeatureSpec("ids", table_name="table", index_key=number)
    batch = get_asc_insert_func([spec])(*[tf.constant([1, 2], tf.int64)] * 6)
    assert sparse_lookup(table_of(), spec, batch=batch).shape.as_list() == [2, 4]
    return spec.index_key


def _positions(mx, number):
    mx()
    get_asc_insert_func(args_index_list=[number], table_names=["table"])(*[tf.constant([1], tf.int64)] * 6)
    return int(number)


def _eos(name):
    def make(mx, number):
        mx()
        arguments = {"channel_id": int("eval" in name), name: number}
        data = tf.data.Dataset.range(20).eos_map(None, **arguments)
        get_next = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
        seen = []
        with support.new_session() as sess:
            with pytest.raises(tf.errors.OutOfRangeError):
                while True:
                    seen.append(sess.run(get_next))
        return len(seen)

    return make


def _saver(mx, number):
    mx()
    table_of()
    kept = [value for name, value in vars(Saver(max_to_keep=number)).items() if "keep" in name]
    return plain(kept)[0]


ACCEPT_INTS = [
    ("init." + name, _init(name)) for name in (
        "max_steps", "train_steps", "eval_steps", "save_steps", "save_checkpoint_due_time",
        "save_delta_checkpoints_secs", "restore_model_version", "recent_key_count_threshold")
] + [
    ("config." + name, _setter(name)) for name in ("max_steps", "train_steps", "eval_steps", "save_steps")
] + [
    ("create_table." + name, _table(name, *read)) for name, read in (
        ("dim", ("emb_size",)), ("device_vocabulary_size", ()), ("host_vocabulary_size", ()), ("shard_num", ("",)),
        ("hashtable_threshold", ("",)))
] + [
    ("create_table.padding_keys", _table("padding_keys", "", padding_keys_mask=True, padding_keys_len=3)),
    ("create_table.padding_keys_len", _table("padding_keys_len", padding_keys=3, padding_keys_mask=True)),
    ("FeatureSpec.index_key", _spec("index_key")), ("FeatureSpec.access_threshold", _spec("access_threshold")),
    ("FeatureSpec.eviction_threshold", _spec("eviction_threshold", access_threshold=1)),
    ("FeatureSpec.batch_size", _spec("batch_size")), ("FeatureSpec.faae_coefficient", _spec("faae_coefficient")),
    ("FeatureSpec.index_key, looked up", _index_key), ("get_asc_insert_func.args_index_list", _positions),
    ("EvictHook.evict_time_interval", _hook("evict_time_interval")),
    ("EvictHook.evict_step_interval", _hook("evict_step_interval")),
    ("TableStatsHook.every_n_steps", _stats_hook), ("sparse_lookup.access_and_evict_config", _thresholds),
    ("set_threshold", _set_threshold), ("sparse_lookup.send_count", _send_count),
    ("eos_map.max_train_steps", _eos("max_train_steps")), ("eos_map.max_eval_steps", _eos("max_eval_steps")),
    ("Saver.max_to_keep", _saver),
]


@pytest.mark.parametrize("kind", INTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in ACCEPT_INTS])
def test_an_int_of_numpy_is_an_int(graph, mx, make, kind):
    kept = make(mx, kind(5))
    assert kept == 5 and type(kept) is int


@pytest.mark.parametrize("bad", [True, np.bool_(True), 5.0, np.float32(5), np.array([5]), np.array(5.0)], ids=repr)
@pytest.mark.parametrize("make", [pytest.param(make, id=what) for what, make in ACCEPT_INTS
                                  if what not in ("set_threshold", "create_table.padding_keys")])
def test_anything_else_is_no_int(graph, mx, make, bad):
    with pytest.raises(ValueError):
        make(mx, bad)


def test_a_sketch_has_a_size_of_numpy(dynamic):
    assert table_of(admission_sketch_bytes=np.int64(4096)).admission_sketch_bytes == 4096


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.__name__)
def test_the_factor_of_new_rows_may_be_a_float_of_numpy(dynamic, kind):
    table = table_of(init_param=kind(0.5))
    assert table.init_param == 0.5 and type(table.init_param) is float


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("module", sorted(OPTIMIZERS))
def test_numbers_of_optimizers_may_be_of_numpy(graph, mx, module, kind):
    import importlib

    mx(use_dynamic_expansion=module.endswith("addr"))
    function, rate, numbers = OPTIMIZERS[module]
    make = getattr(importlib.import_module("mx_rec.optimizers." + module), function)
    given = {name: kind(value) for name, value in numbers.items()}
    optimizers = [make(**dict(numbers, **{rate: 0.25})), make(**dict(given, **{rate: kind(0.25)}))]
    for one in optimizers:
        plain({name: value for name, value in vars(one).items() if name != "_tensors"})
    first, second = [{name: value for name, value in vars(one).items() if isinstance(value, (int, float))}
                     for one in optimizers]
    assert first == second and 0.25 in first.values()


@pytest.mark.parametrize("rate", [np.int64(1), np.uint8(1), np.float16(1)], ids=repr)
def test_a_learning_rate_may_be_any_number_of_numpy(dynamic, rate):
    create_hash_optimizer(rate)
    for bad in (np.bool_(True), np.array([1.0]), np.float32(-1), np.float32("nan")):
        with pytest.raises(ValueError, match="learning_rate"):
            create_hash_optimizer(bad)


def test_a_float_is_still_asked_for_where_an_int_is_none(dynamic):
    for bad in (1, np.int64(1), np.bool_(True), True):
        with pytest.raises(ValueError, match="type of 'init_param' is not float"):
            table_of(init_param=bad)


INITIALIZERS = {
    "constant": dict(value=0.5),
    "random_uniform": dict(minval=-0.5, maxval=0.25, seed=3),
    "random_normal": dict(mean=0.5, stddev=0.25, seed=3),
    "truncated_normal": dict(mean=0.5, stddev=0.25, seed=3),
    "variance_scaling": dict(scale=0.5, seed=3),
}


def configuration(table):
    """The bytes that the engine makes a table by."""
    return tf.contrib.util.constant_value(table.variable.op.inputs[0]).tobytes()


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("name", sorted(INITIALIZERS))
def test_numbers_of_initializers_may_be_of_numpy(mx, name, version, kind):
    """Merged tables share rows by their configuration, which is JSON and must not depend on it."""
    module = tf.compat.v1.initializers if version == "v1" else tf.compat.v2.initializers
    make = {"v1": lambda name: getattr(module, name),
            "v2": lambda name: getattr(module, {
                "constant": "Constant", "random_uniform": "RandomUniform",
                "random_normal": "RandomNormal", "truncated_normal": "TruncatedNormal",
                "variance_scaling": "VarianceScaling"}[name])}[version](name)
    numbers = INITIALIZERS[name]
    given = {key: np.int64(value) if key == "seed" else kind(value)
             for key, value in numbers.items()}
    for merged in (False, True):
        mx(use_dynamic_expansion=merged)
        tables = []
        for values in (numbers, given):
            with tf.Graph().as_default():
                tables.append(table_of(emb_initializer=make(**values), enable_merge=merged))
        assert configuration(tables[0]) == configuration(tables[1])
        if merged:
            with tf.Graph().as_default():
                one, other = [table_of(name=key, emb_initializer=make(**values), enable_merge=True)
                              for key, values in (("one", numbers), ("other", given))]
                assert one.variable is other.variable

        terminate_config_initializer()


@pytest.mark.parametrize("kind", INTS, ids=lambda kind: kind.__name__)
def test_seeds_may_be_of_numpy(dynamic, kind):
    make = tf.compat.v1.random_normal_initializer
    assert table_seed(make(seed=kind(3)), "t") == table_seed(make(seed=3), "t")
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(kind(3))
        assert table_seed(make(), "t") == table_seed(make(seed=3), "t")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.array],
                         ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("module", sorted(OPTIMIZERS))
def test_a_step_with_numbers_of_numpy_is_that_of_python(mx, module, kind):
    """The learning rate may also be an integer; the others are floats, of Python or NumPy."""
    import importlib

    by_address = module.endswith("addr")
    mx(use_dynamic_expansion=by_address)
    function, rate, numbers = OPTIMIZERS[module]
    make = getattr(importlib.import_module("mx_rec.optimizers." + module), function)
    as_float = np.float32 if kind is np.int64 else kind
    given = {name: as_float(value) for name, value in numbers.items()}
    rows = []
    for arguments in (dict(numbers, **{rate: 1}), dict(given, **{rate: kind(1)})):
        with tf.Graph().as_default() as graph:
            table = table_of(init_param=as_float(0.5))
            found = sparse_lookup(table, tf.constant([1, 2, 1], tf.int64), modify_graph=True)
            loss = tf.reduce_sum(found * [1.0, 2.0, 3.0, 4.0])
            if by_address:
                [looked_up], [offsets] = [graph.get_collection(key) for key in (
                    ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ASCEND_SPARSE_LOOKUP_ID_OFFSET)]
                pairs = [(tf.gradients(loss, looked_up)[0], offsets)]
                update = make(**arguments).apply_gradients(pairs)
            else:
                update = make(**arguments).minimize(loss, var_list=[table.variable])
            raw = support.Raw.of(table)
            with support.new_session(graph) as sess:
                sess.run(tf.compat.v1.global_variables_initializer())
                for _ in range(2):
                    sess.run(update)
                rows.append(raw.rows(sess))
    assert sorted(rows[0]) == [1, 2]
    support.assert_same_tables(*rows)
