"""Fixtures of the end-to-end tests: a fresh graph for each test, sessions, and an initialised mx_rec."""

import binascii
import gc
import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest  # noqa: E402

import left_out  # noqa: E402
import support  # noqa: E402
import unread  # noqa: E402

unread.let_xla_rest()
support.turn_graph_mode_on()
# A shell starts what is to run in the background with SIGINT ignored, and processes that tests start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--short", action="store_true",
                     help="one case of each test, and none of those marked long")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: downloads or takes minutes; run with -m slow or MX_REC_SLOW=1")
    config.addinivalue_line("markers", "long: takes 1.3 seconds of a core and more; left out by --short")


def leave_out_of_short_form(config, items):
    """Leaves one case of each test, of those that are not long; which one depends on the test's name alone.

    So each of the optimizers, say, is in the cases of some tests, and every process and run has the same ones.
    """
    quick = [item for item in items if not item.get_closest_marker("long")]
    kept = {item for item in quick if item.get_closest_marker("slow")}
    cases = {}
    for item in quick:
        if item not in kept:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    for name, found in cases.items():
        kept.add(found[binascii.crc32(name.encode()) % len(found)])
    kept = [item for item in quick if item in kept]
    left = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = kept


def pytest_collection_modifyitems(config, items):
    if config.getoption("--short"):
        leave_out_of_short_form(config, items)
    if "slow" in (config.getoption("-m") or "") or os.environ.get("MX_REC_SLOW") == "1":
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow or MX_REC_SLOW=1")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


def pytest_collection_finish(session):
    """Spends less time where no test looks."""
    del session
    support.tf()
    unread.leave_out()
    gc.collect()
    unread.collect_seldom()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Leaves a test out that asks TensorFlow 2.x for what only other versions have."""
    outcome = yield
    reason = left_out.reason(call.excinfo)
    if reason is not None:
        report = outcome.get_result()
        report.outcome = "skipped"
        report.longrepr = (str(item.path if hasattr(item, "path") else item.fspath), 0, "Skipped: " + reason)
        left_out.forget_init()


def pytest_make_parametrize_id(config, val, argname):
    """Gives a set the same id in every process: pytest-xdist wants the same tests in each."""
    return "-".join(sorted(map(str, val))) if isinstance(val, (set, frozenset)) else None


@pytest.fixture
def graph():
    """A fresh default graph (TensorFlow's global one, which is what mx_rec works on)."""
    tf = support.tf()
    tf.compat.v1.reset_default_graph()
    yield tf.compat.v1.get_default_graph()
    tf.compat.v1.reset_default_graph()


@pytest.fixture
def session(graph):
    """A function that opens sessions on the fresh graph; all of them are closed at the end."""
    opened = []

    def open_session():
        sess = support.new_session()
        opened.append(sess)
        return sess

    yield open_session
    for sess in opened:
        sess.close()


@pytest.fixture
def place(tmp_path):
    """A directory of the test, by an absolute path without links, as save wants it."""
    return os.path.realpath(str(tmp_path))


@pytest.fixture
def mx(graph):
    """`mx_rec` before `init`: a function that initialises it with the keywords of `init`, undone at the end."""
    from mx_rec.util.initialize import init, terminate_config_initializer

    started = []

    def start(**kwargs):
        init(**kwargs)
        started.append(True)

    yield start
    if started:
        terminate_config_initializer()


@pytest.fixture
def v1(mx, graph):
    """tf.compat.v1 with a fresh graph, all of whose variables that can be tables become such."""
    mx(stock_tables=".*")
    return support.tf().compat.v1


@pytest.fixture
def said(caplog):
    """A function that returns what the package has logged so far, warnings or from another level on."""
    from mx_rec.base import log

    before = set(log._said)
    log._said.clear()
    caplog.set_level("INFO", "mx_rec")

    def lines(level="WARNING"):
        least = {"INFO": 20, "WARNING": 30}[level]
        return [record.getMessage() for record in caplog.records if record.name == "mx_rec" and record.levelno >= least]

    yield lines
    log._said.update(before)


@pytest.fixture
def dynamic(mx):
    """`mx_rec` initialised with the defaults (dynamic shape)."""
    mx()
