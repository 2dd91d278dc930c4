"""Pushes while pusher and server are killed at random; `scripts/stress serving` does it for an hour."""

import os

import pytest

import serving_cases
import serving_stress


@pytest.fixture
def training(mx, session, place):
    mx(is_incremental_checkpoint=True, save_checkpoint_due_time=10 ** 6, save_delta_checkpoints_secs=10 ** 6)
    made = serving_cases.Training(place, session())
    made.saver = type(made.saver)(max_to_keep=5)
    return made


@pytest.mark.long
def test_a_server_has_the_checkpoints_rows_in_the_end_whoever_is_killed(training):
    told = serving_stress.run(training, seconds=25, seed=7, kill_each=6.0)
    assert told["saves"] > 5 and told["lookups"] > 20
    assert told["killed pushers"] + told["killed servers"] > 0


@pytest.mark.slow
def test_an_hour_of_pushes_and_kills(training):
    seconds = int(os.environ.get("MX_REC_STRESS_SECONDS", "3600"))
    print(serving_stress.run(training, seconds, seed=int.from_bytes(os.urandom(4), "little"), kill_each=15.0))
