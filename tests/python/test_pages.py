"""The code of the README and of the pages runs as it stands there, and does what it shows."""

import os
import re

import pytest

import preloaded
import support


def lines_of(*page, blocks):
    """What the code of a page prints, which is in so many blocks."""
    with open(os.path.join(support.REPO, *page), encoding="utf-8") as file:
        found = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(found) == blocks
    return preloaded.run_python("".join(found)).splitlines()


def test_the_readme_code_learns():
    steps = [line.split() for line in lines_of("README.md", blocks=1)]
    assert len(steps) == 200
    first, last = float(steps[0][1]), float(steps[-1][1])
    assert last < 0.01 * first, (first, last)
    assert steps[-1][2] == "64"


@pytest.mark.long
def test_the_code_of_the_page_on_admission_runs():
    lines = lines_of("docs", "admission-eviction.md", blocks=2)
    assert lines[0].split()[2:] == ["refused", "True", "evicted", "True"] and int(lines[0].split()[1]) > 0, lines
    assert lines[1:] == ["True"] * 4 + ["same rows True"], lines


def test_the_code_of_the_porting_page_runs():
    first, second, third = lines_of("docs", "porting.md", blocks=3)
    words = first.split()
    assert float(words[3]) < 0.2 * float(words[1]) and words[5] == "3000", first
    assert second == "[0.8 0.9 0. ] 2", second
    assert third == "0.71", third


@pytest.mark.long
def test_the_code_of_the_page_on_warm_starts_runs():
    lines = lines_of("docs", "warm-start.md", blocks=4)
    _, old, _, cold, _, warm = lines[0].split()
    old, cold, warm = float(old), float(cold), float(warm)
    assert old < 0.5 * cold and warm < 0.5 * cold, lines
    starts = [line.rsplit(" ", 2) for line in lines[1:8]]
    losses, steps = [float(loss) for _, loss, _ in starts], [int(step) for _, _, step in starts]
    assert losses[:3] == [old] * 3 and losses[5] == old and steps == [0, 0, 0, 0, 0, 300, 0], starts
    assert all(abs(loss - old) > 0.1 for loss in losses[3:5] + losses[6:]), starts
    assert lines[8].startswith("mixed ") and float(lines[8].split()[1]) < 0.5 * cold, lines
    assert lines[9:] == ["steps 25"], lines
