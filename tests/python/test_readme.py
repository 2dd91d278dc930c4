"""The README's twenty lines run as they stand there, and do what they show."""

import os
import re
import subprocess
import sys

import support


def test_the_readme_code_learns():
    with open(os.path.join(support.REPO, "README.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
        [support.PACKAGES, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    ran = subprocess.run([sys.executable, "-c", blocks[0]], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=environment, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    steps = [line.split() for line in ran.stdout.decode().splitlines()]
    assert len(steps) == 200
    first, last = float(steps[0][1]), float(steps[-1][1])
    assert last < 0.01 * first, (first, last)
    assert steps[-1][2] == "64"
