"""The code of docs/warm-start.md runs as it stands there, and does what it says."""

import os
import preloaded
import re

import support


def test_the_code_of_the_page_runs():
    with open(os.path.join(support.REPO, "docs", "warm-start.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    lines = preloaded.run_python("".join(blocks)).splitlines()
    _, old, _, cold, _, warm = lines[0].split()
    old, cold, warm = float(old), float(cold), float(warm)
    assert old < 0.5 * cold and warm < 0.5 * cold, lines
    starts = [line.rsplit(" ", 2) for line in lines[1:8]]
    losses, steps = [float(loss) for _, loss, _ in starts], [int(step) for _, _, step in starts]
    assert losses[:3] == [old] * 3 and losses[5] == old and steps == [0, 0, 0, 0, 0, 300, 0], starts
    assert all(abs(loss - old) > 0.1 for loss in losses[3:5] + losses[6:]), starts
    assert lines[8].startswith("mixed ") and float(lines[8].split()[1]) < 0.5 * cold, lines
    assert lines[9:] == ["steps 25"], lines
