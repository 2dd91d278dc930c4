"""Random programs that know nothing of mx_rec see on tables what they see on TensorFlow's variables."""

import os

import numpy as np
import pytest
import tensorflow as tf

import program_runs
import stock_programs as programs
from stock_programs import Program
from mx_rec.stock.select import convert_graph

# MX_REC_RANDOM_PROGRAMS is how many programs the long form draws; MX_REC_PROGRAM_SEED is the one to run instead.
COUNT, LONG, CHUNK = 60, int(os.environ.get("MX_REC_RANDOM_PROGRAMS", "2000")), 50
ONE = os.environ.get("MX_REC_PROGRAM_SEED")
STARTS = [int(ONE)] if ONE else range(COUNT, COUNT + LONG, CHUNK)


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_program_sees_on_tables_what_it_sees_on_variables(graph, seed, tmp_path):
    program_runs.run(Program(seed), str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_many_random_programs_see_on_tables_what_they_see_on_variables(graph, start, tmp_path):
    wrong = {}
    for seed in [start] if ONE else range(start, min(start + CHUNK, COUNT + LONG)):
        (tmp_path / str(seed)).mkdir()
        try:
            program_runs.run(Program(seed), str(tmp_path / str(seed)))
        except Exception as error:  # pylint: disable=broad-except
            if ONE:
                raise
            wrong[seed] = "{}: {}".format(type(error).__name__, str(error)[:500])
    assert not wrong, "\n".join("scripts/stress programs --seed {}: {}".format(*one) for one in wrong.items())


def test_the_random_programs_are_of_all_kinds():
    drawn = [Program(seed) for seed in range(COUNT)]
    assert {one.kind for one in drawn} == {programs.SESSION, programs.MONITORED, programs.ESTIMATOR}
    assert {one.input for one in drawn} == {programs.PLACEHOLDERS, programs.DATASET, programs.DEFAULTS}
    assert {one.training for one in drawn} == set(programs.TRAININGS)
    assert {name for one in drawn for name in one.optimizers} == set(programs.optimizers())
    assert {one.forms for one in drawn} == {(programs.TABLES,), (programs.AHEAD,), (programs.TABLES, programs.AHEAD)}
    assert {verb for one in drawn for verb, _, _ in one.history} == set(programs.VERBS + programs.MORE)
    assert {len(ids) for one in drawn for ids, _ in one.batches} >= {0, programs.LONGEST}
    assert {name for one in drawn for name in one.options} == {
        "names", "least_rows", "lazy_adam", "unlimited_ids", "access_threshold", "eviction_threshold"}


@pytest.mark.long
def test_random_programs_have_tables_and_variables(v1):
    plans = []
    for program in [Program(seed) for seed in range(COUNT)][1::2]:
        if program.kind == programs.SESSION:
            with tf.Graph().as_default() as graph:
                program.build()
                plans.extend(convert_graph(graph, True))
    tables = sum(plan.converts for plan in plans)
    assert 5 < tables < len(plans) - 5 and 0 < sum(plan.pieces is not None for plan in plans) < tables


@pytest.mark.long
@pytest.mark.parametrize("what", ["a batch", "a row", "a number"])
def test_a_program_that_sees_something_else_is_found_out(graph, monkeypatch, what, tmp_path):
    player = program_runs.Player
    feeds, values, step = player.feeds, player.values, player._step
    if what == "a batch":
        monkeypatch.setattr(player, "feeds", lambda self, *fed: [feeds(self, *fed), feeds(self, *fed)][
            self.form != programs.STOCK])
    elif what == "a row":
        monkeypatch.setattr(player, "values", lambda self: [one + (self.form == programs.STOCK) * 1e-4 for one in values(self)])
    else:
        monkeypatch.setattr(player, "_step", lambda self, *arguments: [
            one if hasattr(one, "indices") else one * np.float32(1 + 1e-4 * (self.form == programs.STOCK))
            for one in step(self, *arguments)])
    seed = next(seed for seed in range(COUNT) if Program(seed).input == programs.PLACEHOLDERS)
    with pytest.raises(AssertionError):
        program_runs.run(Program(seed), str(tmp_path))
