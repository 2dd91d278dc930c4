"""Random models against NumPy, and in three forms: grouped and pooled, neither of it, modified."""

import os

import numpy as np
import pytest

import random_models
from random_models import AHEAD, APART, FORMS, KINDS, OPTIMIZERS, PLAIN, Model

# MX_REC_RANDOM_MODELS is how many models the long form draws.
COUNT, LONG = 10, int(os.environ.get("MX_REC_RANDOM_MODELS", "300"))


def trained(seed, tmp_path, **arguments):
    """Trains a model in each form; what modification may not change has the same bits."""
    runs = {}
    for form in FORMS:
        directory = tmp_path / "{}_{}".format(seed, form)
        directory.mkdir()
        runs[form] = random_models.train(Model(seed, **arguments), form, str(directory))
    plan, features = runs[AHEAD].plan, Model(seed, **arguments).features
    assert [lookup.moves for lookup in plan.lookups] == [True] * len(features)
    assert len(plan.sums) == sum(feature.kind in ("sum", "mean") for feature in features), seed
    for (label, mine), (_, theirs) in zip(runs[PLAIN].notes, runs[AHEAD].notes):
        assert mine == theirs, "{}: modified, the bits differ".format(label)
    assert len(runs[PLAIN].notes) == len(runs[AHEAD].notes) == len(runs[APART].notes)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_model_trains_what_numpy_trains_in_every_form(tmp_path, seed):
    trained(seed, tmp_path)


@pytest.mark.slow
def test_many_random_models_train_what_numpy_trains_in_every_form(tmp_path):
    for seed in range(COUNT, COUNT + LONG):
        trained(seed, tmp_path, steps=5 + seed % 7)


def test_the_random_models_are_of_all_kinds():
    models = [Model(seed) for seed in range(COUNT)]
    features = [feature for model in models for feature in model.features]
    assert {feature.kind for feature in features} == set(KINDS)
    assert {name for model in models for name in model.optimizers} == set(OPTIMIZERS)
    assert {feature.combiner for feature in features} == set(random_models.COMBINERS)
    assert {feature.has_weights for feature in features} == {True, False}
    assert {threshold for model in models for threshold in model.thresholds} == {0, 2, 3}
    assert {between for model in models for between in model.between} == {"", "remove", "save"}
    assert any(feature.source != feature.name for feature in features)
    # One table of several features, tables of two optimizers, empty batches and empty bags.
    assert any(len(model.used()) < len(model.features) for model in models)
    assert any(len({model.optimizer_of[at] for at in model.used()}) == 2 for model in models)
    sizes = [feature.occurrences(batch[feature.source])[3] for model in models
             for batch in model.batches for feature in model.features]
    assert min(sizes) == 0 and max(sizes) > 4


def test_the_oracle_pools_and_admits_as_told_by_hand():
    model = Model(0)
    model.dims, model.optimizers, model.optimizer_of, model.thresholds = [1], ["sgd"], [0], [2]
    feature = model.features[0]
    feature.kind, feature.table, feature.combiner, feature.has_weights = "pooled", 0, "mean", True
    feature.noise, feature.source = np.ones(1, np.float32), feature.name
    model.features = [feature]
    oracle = random_models.Oracle(model)
    batch = {feature.name: {"ids": np.array([[7, 7, -1], [8, -1, -1]]),
                            "weights": np.array([[1, 2, 5], [1, 1, 1]], np.float32)}}
    found, = oracle.step(batch)
    # 7 is admitted and begins with 0.25; 8 has no row, and counts.
    assert found.tolist() == [[0.25], [0.0]] and sorted(oracle.rows[0]) == [7]
    expected = 0.25 - random_models.RATE * (1 + 0.2 * 0.25)
    np.testing.assert_allclose(oracle.rows[0][7][0], [expected])
