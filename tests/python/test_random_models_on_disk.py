"""Random models whose rows have no room in memory: the same bits as in memory, modified or not."""

import os

import numpy as np
import pytest

import random_models
from random_models import AHEAD, PLAIN, Model

COUNT, LONG = 4, int(os.environ.get("MX_REC_RANDOM_MODELS", "300"))
STEPS = 12


class WideModel(Model):
    """A Model whose batches are of hundreds of keys, so that most rows are on disk.

    Attributes:
        memory: Rows that a table has room for in memory: a few more than one batch needs.
    """

    def __init__(self, seed):
        super().__init__(seed, steps=STEPS)
        random = np.random.RandomState(seed + 1000)
        self.keys = np.concatenate([np.arange(420) * 11 - 40, self.keys[-4:]])
        self.batches = [{feature.name: self._spread(random, feature) for feature in self.features
                         if feature.source == feature.name} for _ in range(STEPS)]
        self.memory = max(self._distinct(batch) for batch in self.batches) + int(random.choice([8, 24, 60]))
        self.removed = [random.choice(self.keys, 60) for _ in range(STEPS)]

    def _spread(self, random, feature):
        """A batch of the feature; most of its ids are of any key, the others of often seen ones."""
        batch = feature.batch(random, self.keys, most=16)
        ids = batch["ids"]
        anew = (ids != -1) & (random.rand(*ids.shape) < 0.6)
        batch["ids"] = np.where(anew, random.choice(self.keys, ids.shape), ids)
        return batch

    def _distinct(self, batch):
        """Most distinct keys of a table in a batch."""
        keys = [set() for _ in self.dims]
        for feature in self.features:
            keys[feature.table].update(batch[feature.source]["ids"].reshape(-1).tolist())
        return max(map(len, keys))


def trained(seed, tmp_path):
    """Trains a model in memory and, unmodified and modified, on disk; returns how many rows are on disk in the end."""
    model = WideModel(seed)
    storages = {"memory": {"device_vocabulary_size": 2000},
                "disk": {"device_vocabulary_size": model.memory - 4, "host_vocabulary_size": 4,
                         "ssd_vocabulary_size": 2000, "ssd_data_path": [str(tmp_path)]}}
    runs = {}
    for name, form, storage in [("memory", PLAIN, "memory"), ("disk", PLAIN, "disk"), ("ahead", AHEAD, "disk")]:
        directory = tmp_path / "{}_{}".format(seed, name)
        directory.mkdir()
        runs[name] = random_models.train(WideModel(seed), form, str(directory), **storages[storage])
    for name in ("disk", "ahead"):
        assert len(runs[name].notes) == len(runs["memory"].notes)
        for (label, mine), (_, theirs) in zip(runs[name].notes, runs["memory"].notes):
            assert mine == theirs, "{}: on disk ({}), the bits differ".format(label, name)
    assert all(stats.rows_disk == 0 for stats in runs["memory"].stats)
    return min(sum(stats.rows_disk for stats in runs[name].stats) for name in ("disk", "ahead"))


@pytest.mark.long
def test_random_models_train_the_same_bits_with_rows_on_disk(tmp_path):
    assert sum(trained(seed, tmp_path) for seed in range(COUNT)) > 50 * COUNT


@pytest.mark.slow
def test_many_random_models_train_the_same_bits_with_rows_on_disk(tmp_path):
    for seed in range(COUNT, COUNT + LONG):
        trained(seed, tmp_path)
