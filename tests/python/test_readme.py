"""The README's twenty lines run as they stand there, and do what they show."""

import os
import re

import preloaded
import support


def test_the_readme_code_learns():
    with open(os.path.join(support.REPO, "README.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    steps = [line.split() for line in preloaded.run_python(blocks[0]).splitlines()]
    assert len(steps) == 200
    first, last = float(steps[0][1]), float(steps[-1][1])
    assert last < 0.01 * first, (first, last)
    assert steps[-1][2] == "64"
