"""The table of scripts/bench: several runs become one, and limits stand beside their figures."""

import os

import pytest

import support


@pytest.fixture(scope="module")
def report():
    """benches/report.py as a module."""
    return support.load_script(os.path.join(support.REPO, "benches", "report.py"))


def figure(ratio, at_least=True, target=2.0, **more):
    """A figure of that ratio."""
    met = ratio >= target if at_least else ratio <= target
    item = {"id": "P1 u", "what": "lookup", "ours": 1.0, "peer": ratio, "ratio": ratio, "unit": "ms",
            "target": target, "at_least": at_least, "met": met, "peer_name": "gather"}
    return dict(item, **more)


def test_of_three_runs_the_one_with_the_median_ratio_is_shown_with_the_range(report):
    merged = report.merged([[figure(3.0)], [figure(1.0)], [figure(1.5)]])
    assert [item["ratio"] for item in merged] == [1.5]
    assert merged[0]["ratio_range"] == [1.0, 3.0]
    assert not merged[0]["met"]
    assert report.ratio_text(merged[0]) == "1.50 (1.00 to 3.00)"


@pytest.mark.parametrize("at_least, ratio", [(True, 1.0), (False, 3.0)])
def test_of_two_runs_the_worse_one_counts(report, at_least, ratio):
    runs = [[figure(3.0, at_least)], [figure(1.0, at_least)]]
    assert report.merged(runs)[0]["ratio"] == ratio


def test_one_run_stays_as_it_is(report):
    item = figure(1.5)
    assert report.merged([[item]]) == [item]
    assert report.ratio_text(item) == "1.50"


def test_figures_of_one_number_and_other_words_are_kept_apart(report):
    merged = report.merged([[figure(1.0), figure(2.0, what="update")]])
    assert [item["ratio"] for item in merged] == [1.0, 2.0]


def test_a_line_of_the_engine_s_bench_gives_a_figure_its_limit(report):
    line = {"id": "P6", "what": "find, 1 thread", "ours": 6.0, "peer": 4.0, "ratio": 1.5,
            "target": 1.5, "met": True}
    limit = {"limit_of": "P6", "what": "find, 1 thread", "limit": 5.0, "at_best": 1.25,
             "limit_lines": 10, "limit_bytes": 5000000}
    other = dict(limit, what="another")
    item, = report.joined([other, line, limit])
    assert (item["limit"], item["at_best"], item["limit_ratio"]) == (5.0, 1.25, 1.2)
    assert item["limit_lines"] == 10
    assert item["limit_gbs"] == 1.0
    assert "limit_of" not in item


def test_the_limit_of_a_rate_is_above_it(report):
    what = "new keys, million a second"
    line = {"id": "P9", "what": what, "ours": 4.0, "peer": None, "ratio": 4.0, "target": 6.0,
            "met": False}
    limit = {"limit_of": "P9", "what": what, "limit": 10.0, "at_best": 10.0, "limit_lines": 1,
             "limit_bytes": 1}
    item, = report.joined([line, limit])
    assert item["limit_ratio"] == 2.5


@pytest.mark.parametrize("at_least, best, text", [
    (True, 1.9, "1.90, **forbids it**"), (True, 2.0, "2.00"),
    (False, 2.1, "2.10, **forbids it**"), (False, 2.0, "2.00"),
])
def test_a_target_that_the_machine_forbids_is_shown_to_be_so(report, at_least, best, text):
    assert report.at_best(figure(1.0, at_least, at_best=best)) == text
    assert report.at_best(figure(1.0, at_least)) == "-"
