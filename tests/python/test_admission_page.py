"""The code of docs/admission-eviction.md runs as it stands there, and does what it shows."""

import os
import preloaded
import re

import support


def test_the_code_of_the_page_runs():
    with open(os.path.join(support.REPO, "docs", "admission-eviction.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    lines = preloaded.run_python("".join(blocks)).splitlines()
    assert lines[0].split()[2:] == ["refused", "True", "evicted", "True"] and int(lines[0].split()[1]) > 0, lines
    assert lines[1:] == ["True"] * 4 + ["same rows True"], lines
