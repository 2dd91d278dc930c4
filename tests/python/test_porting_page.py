"""The code of docs/porting.md runs as it stands there, and does what it shows."""

import os
import re

import preloaded
import support


def test_the_code_of_the_porting_page_runs():
    with open(os.path.join(support.REPO, "docs", "porting.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    first, second, third = preloaded.run_python("".join(blocks)).splitlines()
    words = first.split()
    assert float(words[3]) < 0.2 * float(words[1]) and words[5] == "3000", first
    assert second == "[0.8 0.9 0. ] 2", second
    assert third == "0.71", third
