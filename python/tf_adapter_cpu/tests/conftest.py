"""Fixtures: a fresh graph for each test, and an environment without ranks."""

import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
warnings.filterwarnings("ignore", category=FutureWarning)
HERE = os.path.dirname(os.path.abspath(__file__))
# At the end, where an installed copy would be, too.
sys.path.append(os.path.dirname(HERE))
sys.path.append(os.path.join(HERE, "..", "..", "..", "tests", "python"))

import pytest  # noqa: E402
import unread  # noqa: E402

unread.let_xla_rest()

import tensorflow as tf  # noqa: E402


def pytest_collection_finish(session):
    """Spends less time where no test looks."""
    del session
    unread.leave_out()
    unread.collect_seldom()


@pytest.fixture(autouse=True)
def fresh_graph():
    tf.compat.v1.reset_default_graph()
    yield
    tf.compat.v1.reset_default_graph()


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    for name in ("RANK_SIZE", "RANK_ID", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
