"""Initial values of rows: their distribution, seeds, init_param, and each kind of initializer object."""

import math

import numpy as np
import pytest
import tensorflow as tf

import support

KEYS = np.concatenate([np.arange(2000), np.arange(2000) * 10 ** 12 + 7, -np.arange(2, 2002)])
DIM = 16
CAPACITY = 20000


def erf(values):
    return np.array([math.erf(value) for value in values])


def normal_cdf(values, mean, stddev):
    return 0.5 * (1.0 + erf((values - mean) / (stddev * math.sqrt(2.0))))


def distance(values, cdf):
    """Kolmogorov's distance of a sample from a distribution, in units of 1/sqrt(n): 1.63 is passed once in 100."""
    ordered = np.sort(values.ravel().astype(np.float64))
    share = np.arange(len(ordered) + 1) / len(ordered)
    expected = cdf(ordered)
    return max(np.max(share[1:] - expected), np.max(expected - share[:-1])) * math.sqrt(len(ordered))


def uniform(low, high):
    return lambda values: np.clip((values - low) / (high - low), 0.0, 1.0)


def normal(mean, stddev):
    return lambda values: normal_cdf(values, mean, stddev)


def truncated(mean, stddev):
    inside = normal_cdf(np.array([2.0]), 0.0, 1.0)[0] - normal_cdf(np.array([-2.0]), 0.0, 1.0)[0]
    below = normal_cdf(np.array([-2.0]), 0.0, 1.0)[0]
    return lambda values: np.clip((normal_cdf(values, mean, stddev) - below) / inside, 0.0, 1.0)


TRUNCATED_STDDEV = 0.87962566103423978

DISTRIBUTIONS = [
    # configuration, distribution function, bounds
    ({"kind": "random_uniform", "min": -0.25, "max": 1.5}, uniform(-0.25, 1.5), (-0.25, 1.5)),
    ({"kind": "random_normal", "mean": 3.0, "stddev": 0.5}, normal(3.0, 0.5), None),
    ({"kind": "truncated_normal", "mean": -1.0, "stddev": 2.0}, truncated(-1.0, 2.0), (-5.0, 3.0)),
    ({"kind": "variance_scaling", "scale": 2.0, "mode": "fan_in", "distribution": "uniform", "fan_in": 6, "fan_out": 100},
     uniform(-1.0, 1.0), (-1.0, 1.0)),
    ({"kind": "variance_scaling", "scale": 1.0, "mode": "fan_avg", "distribution": "untruncated_normal", "fan_in": 20,
      "fan_out": 12}, normal(0.0, 0.25), None),
    ({"kind": "variance_scaling", "scale": 1.0, "mode": "fan_out", "distribution": "truncated_normal", "fan_in": 9,
      "fan_out": 16}, truncated(0.0, 0.25 / TRUNCATED_STDDEV), (-0.5 / TRUNCATED_STDDEV, 0.5 / TRUNCATED_STDDEV)),
]


def new_rows(sess, raw):
    """Rows of KEYS, created, in the order of KEYS."""
    offsets, restore = support.ops().resolve(raw.handle, tf.constant(KEYS), create=1)
    rows = support.ops().mx_rec_restore(support.ops().lookup(raw.handle, raw.variable, offsets), restore)
    return sess.run(rows)


def names(cases):
    return ["%s_%s" % (case[0]["kind"], case[0].get("distribution", "")) for case in cases]


@pytest.mark.parametrize("seed", [0, 1, 2 ** 64 - 1])
@pytest.mark.parametrize("initializer, cdf, bounds", DISTRIBUTIONS, ids=names(DISTRIBUTIONS))
def test_rows_follow_the_distribution_that_was_asked_for(graph, session, initializer, cdf, bounds, seed):
    table = support.Raw.new(DIM, capacity=CAPACITY, initializer=initializer, seed=seed)
    rows = new_rows(session(), table)
    assert distance(rows, cdf) < 2.0
    for column in (0, 7, DIM - 1):
        assert distance(rows[:, column], cdf) < 2.2, column
    for key in (0, 1, 4001):
        assert len(set(rows[key].tolist())) == DIM
    if bounds:
        # float32 rounds the product of a value close to the bound and the scale.
        slack = 4 * support.EPS * max(abs(bound) for bound in bounds)
        assert rows.min() >= bounds[0] - slack and rows.max() <= bounds[1] + slack
        width = bounds[1] - bounds[0]
        assert rows.min() < bounds[0] + 0.02 * width and rows.max() > bounds[1] - 0.02 * width


@pytest.mark.parametrize("initializer", [case[0] for case in DISTRIBUTIONS[:3]], ids=names(DISTRIBUTIONS[:3]))
def test_neighbouring_keys_columns_and_seeds_are_not_correlated(graph, session, initializer):
    table = support.Raw.new(DIM, capacity=CAPACITY, initializer=initializer, seed=11)
    other = support.Raw.new(DIM, capacity=CAPACITY, initializer=initializer, seed=12)
    sess = session()
    rows, different = new_rows(sess, table).astype(np.float64), new_rows(sess, other).astype(np.float64)
    pairs = {
        "next key": (rows[:-1], rows[1:]), "next column": (rows[:, :-1], rows[:, 1:]),
        "half a row": (rows[:, :8], rows[:, 8:]), "next seed": (rows, different),
        "key and next column": (rows[:-1, :-1], rows[1:, 1:]), "sequential keys": (rows[:1999], rows[1:2000]),
        "far keys": (rows[2000:3999], rows[2001:4000]), "key and its negative": (rows[2:2000], rows[4000:5998]),
    }
    for what, (left, right) in pairs.items():
        left, right = left.ravel() - rows.mean(), right.ravel() - rows.mean()
        correlation = np.mean(left * right) / np.var(rows)
        assert abs(correlation) < 4.5 / math.sqrt(left.size), what


@pytest.mark.parametrize("initializer, value", [({"kind": "zeros"}, 0.0), ({"kind": "ones"}, 1.0),
                                                ({"kind": "constant", "value": -2.5}, -2.5)])
@pytest.mark.parametrize("init_param", [1.0, 0.5, -10.0, 0.0])
def test_constants_are_exact_and_init_param_multiplies_them(graph, session, initializer, value, init_param):
    table = support.Raw.new(3, capacity=CAPACITY, initializer=initializer, init_param=init_param)
    assert np.all(new_rows(session(), table) == np.float32(value * init_param))


def test_init_param_scales_random_rows_and_no_slots(graph, session):
    spec = {"kind": "random_normal", "mean": 0.0, "stddev": 1.0}
    plain = support.Raw.new(DIM, name="plain", capacity=CAPACITY, initializer=spec)
    scaled = support.Raw.new(DIM, name="scaled", capacity=CAPACITY, initializer=spec, init_param=0.125)
    update = support.update_ids("adagrad", scaled.handle, tf.constant([0], tf.int64), tf.zeros([1, DIM]),
                                                       0.1, 0.75)
    scaled.slot("Adagrad_accumulator")
    sess = session()
    support.assert_same_bits(new_rows(sess, scaled), new_rows(sess, plain) * np.float32(0.125))
    sess.run(update)
    assert np.all(scaled.slot_rows(sess, "Adagrad_accumulator")[1] == 0.75)


def objects(tf):
    """name -> (initializer object, distribution function or constant, bounds)."""
    v1 = tf.compat.v1
    keras = tf.keras.initializers
    fan_in, fan_out = CAPACITY, DIM
    glorot = math.sqrt(6.0 / (fan_in + fan_out))
    normal_of = lambda variance: truncated(0.0, math.sqrt(variance) / TRUNCATED_STDDEV)  # noqa: E731
    return {
        "v1 zeros": (v1.zeros_initializer(), 0.0),
        "v1 ones": (v1.ones_initializer(), 1.0),
        "v1 constant": (v1.constant_initializer(0.3), 0.3),
        "v1 random_uniform": (v1.random_uniform_initializer(-2.0, 4.0), uniform(-2.0, 4.0)),
        "v1 random_normal": (v1.random_normal_initializer(1.0, 3.0), normal(1.0, 3.0)),
        "v1 truncated_normal": (v1.truncated_normal_initializer(mean=10), truncated(10.0, 1.0)),
        "v1 variance_scaling": (v1.variance_scaling_initializer(2.0, mode="fan_out", distribution="uniform"),
                                uniform(-math.sqrt(6.0 / DIM), math.sqrt(6.0 / DIM))),
        "v1 glorot_uniform": (v1.glorot_uniform_initializer(), uniform(-glorot, glorot)),
        "v1 glorot_normal": (v1.glorot_normal_initializer(), normal_of(2.0 / (fan_in + fan_out))),
        "v1 he_normal": (v1.initializers.he_normal(), normal_of(2.0 / fan_in)),
        "v1 he_uniform": (v1.initializers.he_uniform(), uniform(-math.sqrt(6.0 / fan_in), math.sqrt(6.0 / fan_in))),
        "v1 lecun_normal": (v1.initializers.lecun_normal(), normal_of(1.0 / fan_in)),
        "v1 lecun_uniform": (v1.initializers.lecun_uniform(),
                             uniform(-math.sqrt(3.0 / fan_in), math.sqrt(3.0 / fan_in))),
        "keras zeros": (keras.Zeros(), 0.0),
        "keras ones": (keras.Ones(), 1.0),
        "keras constant": (keras.Constant(-0.5), -0.5),
        "keras random_uniform": (keras.RandomUniform(-1.0, 1.0), uniform(-1.0, 1.0)),
        "keras random_normal": (keras.RandomNormal(0.0, 0.1), normal(0.0, 0.1)),
        "keras truncated_normal": (keras.TruncatedNormal(0.0, 0.1), truncated(0.0, 0.1)),
        "v2 zeros": (tf.compat.v2.zeros_initializer(), 0.0),
        "v2 constant": (tf.compat.v2.constant_initializer(4.0), 4.0),
        "v2 random_uniform": (tf.compat.v2.random_uniform_initializer(-1.0, 0.0), uniform(-1.0, 0.0)),
        "v2 random_normal": (tf.compat.v2.random_normal_initializer(5.0, 0.1), normal(5.0, 0.1)),
        "v2 keras glorot_uniform": (tf.compat.v2.keras.initializers.GlorotUniform(), uniform(-glorot, glorot)),
        "v2 keras truncated_normal": (tf.compat.v2.keras.initializers.TruncatedNormal(0.0, 2.0), truncated(0.0, 2.0)),
    }


OBJECT_NAMES = sorted(["v1 " + name for name in (
    "zeros", "ones", "constant", "random_uniform", "random_normal", "truncated_normal", "variance_scaling",
    "glorot_uniform", "glorot_normal", "he_normal", "he_uniform", "lecun_normal", "lecun_uniform")] + [
        "keras " + name for name in ("zeros", "ones", "constant", "random_uniform", "random_normal",
                                     "truncated_normal")] + [
        "v2 " + name for name in ("zeros", "constant", "random_uniform", "random_normal", "keras glorot_uniform",
                                  "keras truncated_normal")])


def create(name, initializer, **arguments):
    return support.make_table(name, DIM, CAPACITY, initializer, **arguments)


@pytest.mark.parametrize("name", OBJECT_NAMES)
def test_each_initializer_object_of_tensorflow_gives_its_distribution(graph, session, dynamic, name):
    """The fans are those of a variable of shape [row budget, dim], as TensorFlow computes them."""
    initializer, expected = objects(tf)[name]
    raw = support.Raw.of(create("table", initializer))
    rows = new_rows(session(), raw)
    if callable(expected):
        assert distance(rows, expected) < 2.0
    else:
        assert np.all(rows == np.float32(expected))


def test_every_kind_of_object_is_listed(graph):
    assert sorted(objects(tf)) == OBJECT_NAMES


@pytest.mark.parametrize("make", [
    lambda tf: tf.compat.v1.initializers.orthogonal(), lambda tf: tf.compat.v1.initializers.identity(),
    lambda tf: (lambda shape, dtype=None, partition_info=None: tf.zeros(shape)),
    lambda tf: tf.compat.v1.initializers.uniform_unit_scaling(),
], ids=["orthogonal", "identity", "a function", "uniform_unit_scaling"])
def test_any_other_initializer_is_a_value_error_that_lists_the_good_ones(graph, dynamic, make):
    with pytest.raises(ValueError) as error:
        create("table", make(tf))
    for word in ("zeros", "constant", "random_uniform", "truncated_normal", "variance_scaling"):
        assert word in str(error.value)


def test_init_param_of_create_table_multiplies(graph, session, dynamic):
    raw = support.Raw.of(create("table", tf.compat.v1.constant_initializer(2.0), init_param=-1.5))
    assert np.all(new_rows(session(), raw) == -3.0)


def test_seeds_decide_and_tables_without_one_differ_by_name(graph, session, dynamic):
    make = tf.compat.v1.random_normal_initializer
    raws = {name: support.Raw.of(create(name, make(seed=seed))) for name, seed in
            (("a", 1), ("b", 1), ("c", 2), ("d", None), ("e", None))}
    sess = session()
    rows = {name: new_rows(sess, raw) for name, raw in raws.items()}
    assert not np.array_equal(rows["a"], rows["c"])
    assert not np.array_equal(rows["d"], rows["e"])
    different = [name for name in "bcde" if not np.array_equal(rows["a"], rows[name])]
    assert "c" in different and "d" in different
    again = session()
    for name, raw in raws.items():
        support.assert_same_bits(new_rows(again, raw), rows[name], name)


def test_initial_rows_are_the_same_in_another_process(graph, session, dynamic):
    """Also for an initializer without a seed: a table that is made again after a restart has to be the same table."""
    code = """
import sys, numpy as np, support, test_initial_values as here
from mx_rec.util.initialize import init
init()
tf = support.tf()
for name, seed in (("seeded", 9), ("unseeded", None)):
    raw = support.Raw.of(here.create(name, tf.compat.v1.truncated_normal_initializer(seed=seed)))
    np.save(sys.argv[1] + name, here.new_rows(support.new_session(), raw))
"""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        support.run_python(code, directory + "/", PYTHONHASHSEED=77)
        for name, seed in (("seeded", 9), ("unseeded", None)):
            raw = support.Raw.of(create(name, tf.compat.v1.truncated_normal_initializer(seed=seed)))
            support.assert_same_bits(new_rows(session(), raw), np.load("%s/%s.npy" % (directory, name)), name)
