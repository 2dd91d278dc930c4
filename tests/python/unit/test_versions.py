"""The layer that knows versions of TensorFlow: names that are gone, and versions that were never tried."""

import pytest

import preloaded
from mx_rec.tensorflow import versions

UNTRIED = """
import logging
import sys
import tensorflow as tf
tf.__version__ = sys.argv[1]
lines = []
logger = logging.getLogger("mx_rec")
logger.addHandler(type("Keep", (logging.Handler,), {"emit": lambda self, record: lines.append(record.getMessage())})())
import mx_rec
from mx_rec.tensorflow import versions
versions.report_untried()
print("\\n".join(line for line in lines if "never tried" in line))
"""


@pytest.mark.parametrize("version", ["1.16.0", "2.5.3", "2.99.0-rc1"])
def test_a_version_that_was_never_tried_is_told_once_and_imports(version):
    lines = preloaded.run_python(UNTRIED, version).strip().splitlines()
    assert len(lines) == 1 and version in lines[0] and "1.15, 2.6" in lines[0] and "docs/compatibility.md" in lines[0]


def test_a_version_that_was_tried_is_not_told():
    assert preloaded.run_python(UNTRIED, "1.15.3").strip() == ""


def test_a_name_that_is_gone_is_told_once_with_its_feature_and_refused_where_it_is_used(caplog):
    places = ((99, 0), "tensorflow.python.ops.gone:later"), ((1, 15), "tensorflow.python.ops.array_ops:never_there")
    before = versions.missing()
    made = [versions.find("the feature", *places) for _ in range(2)]
    assert versions.missing() == before + ["the feature"]
    assert [record.getMessage().count("the feature") for record in caplog.records] == [1]
    assert "array_ops:never_there" in caplog.records[0].getMessage()
    for one in made:
        assert not one
        for use in (one, lambda: one.attribute):
            with pytest.raises(NotImplementedError, match="the feature cannot be used with TensorFlow .*never_there"):
                use()
    versions._missing.remove("the feature")


def test_a_name_is_taken_from_the_newest_place_that_the_version_has():
    import json

    assert versions.find("x", ((99, 0), "json:loads"), ((1, 15), "json:dumps")) is json.dumps
    assert versions.find("x", ((1, 15), "json:gone"), ((1, 14), "json:dumps")) is json.dumps


def test_this_tensorflow_has_every_name():
    assert versions.missing() == []
