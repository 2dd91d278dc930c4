"""Checkpoints of tables on parameter servers, and what happens when a server, a worker or the chief is killed."""

import json
import os
import time

import pytest

from cluster_cases import RUN, Job, run_alone
from mx_rec.cluster.tables import PARTS_PER_SERVER
from test_cluster_tables import assert_same, trained


@pytest.mark.slow  # test_cluster_matrix.py has all pairs of numbers with smaller tables
def test_checkpoints_of_any_number_of_servers_are_those_of_any_other_and_of_one_process(tmp_path):
    """One chain of restores: each trains on from what another number of servers has saved."""
    alone = trained(run_alone(RUN, LAST="20"))
    first, saved = 0, None
    # 0 servers: one process without a cluster.
    for number, servers in enumerate([2, 3, 0, 1, 8]):
        variables = dict(CHECKPOINTS=str(tmp_path / "model"), FIRST=str(first), LAST=str(first + 4), BEFORE="1")
        if servers:
            with Job(RUN, ps=servers, **variables) as job:
                found = trained(job.worker())
        else:
            found = trained(run_alone(RUN, **variables))
        if number:
            assert found["before"] == saved, servers
        saved = found["rows"]
        first += 4
        tables = sorted(os.listdir(str(tmp_path / "model" / ("sparse-model.ckpt-%d" % first))))
        expected = [table + "-part-%05d-of-%05d" % (part, PARTS_PER_SERVER * servers) for table in ("items", "users")
                    for part in range(PARTS_PER_SERVER * servers)] if servers else ["items", "users"]
        assert tables == sorted(expected + ["manifest.json"])
    assert_same(found, alone)


@pytest.mark.long
def test_a_part_that_is_damaged_is_named_and_nothing_is_restored(tmp_path):
    directory = tmp_path / "model"
    with Job(RUN, ps=2, CHECKPOINTS=str(directory)) as job:
        job.worker()
    path = directory / "sparse-model.ckpt-12" / "users-part-00001-of-00004" / "embedding" / "slice.data"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(bytes(content))
    code = RUN.replace("with tf.compat.v1.train.Mon", "with_session = lambda: tf.compat.v1.train.Mon", 1)
    code = code[:code.index("    before =")].replace(" as sess:", "") + """
try:
    with_session()
except tf.errors.DataLossError as error:
    print("refused", error.message.replace("\\n", " "))
"""
    with Job(code, ps=2, CHECKPOINTS=str(directory)) as job:
        out = job.worker()
    assert out.startswith("refused") and "users" in out and "part-00001-of-00004" in out, out
    with pytest.raises(AssertionError, match="DataLossError"):
        run_alone(RUN, CHECKPOINTS=str(directory))


# Trains for a long time, saves often, and tells of each step.
LONG = RUN.replace("    print(json", "    print('done', flush=True)\n    print(json").replace(
    "        lost, _ =", "        print('step', number, flush=True)\n        time.sleep(0.02)\n        lost, _ =")


def wait_for(process, words):
    """Reads what a process prints until a line starts so; returns it."""
    end = time.time() + 300
    while time.time() < end:
        line = process.stdout.readline().decode()
        if line.startswith(words):
            return line
        assert line, "the process has ended before %r" % words
    raise AssertionError("no line %r" % words)


@pytest.mark.long
def test_a_killed_server_comes_back_with_the_rows_of_the_last_checkpoint_and_no_worker_dies(tmp_path):
    with Job(LONG, ps=2, worker=2, CHECKPOINTS=str(tmp_path / "model"), SAVE="10", LAST="200") as job:
        chief, other = job.start("worker", 0), job.start("worker", 1)
        for round_number in range(2):
            wait_for(chief, "step %d" % (40 + 60 * round_number))
            victim = round_number % 2
            job.kill("ps", victim)
            time.sleep(1)
            job.start("ps", victim)
        found = trained(job.finish("worker", 0, 90))
        trained(job.finish("worker", 1, 90))
        assert chief.returncode == other.returncode == 0
    assert found["sizes"][0] > 0 and found["sizes"][1] > 0
    # What was saved last is what the session saw last, or was trained on by the other worker.
    restored = trained(run_alone(RUN, CHECKPOINTS=str(tmp_path / "model"), FIRST="0", LAST="0"))
    assert restored["sizes"] == found["sizes"]


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_goes_on(tmp_path):
    with Job(LONG, ps=2, worker=2, LAST="60") as job:
        chief, other = job.start("worker", 0), job.start("worker", 1)
        wait_for(other, "step 5")
        job.kill("worker", 1)
        wait_for(chief, "step 20")
        job.start("worker", 1)
        second = trained(job.finish("worker", 1, 90))
        first = trained(job.finish("worker", 0, 90))
    # What both trained, and what the killed one did before.
    assert max(first["step"], second["step"]) >= 80
    assert first["sizes"][0] > 0


@pytest.mark.slow
def test_a_killed_chief_comes_back_where_it_saved(tmp_path):
    with Job(LONG, ps=2, CHECKPOINTS=str(tmp_path / "model"), SAVE="10", LAST="60") as job:
        wait_for(job.start("worker", 0), "step 45")
        job.kill("worker", 0)
        step = json.loads(run_alone("""
print(json.dumps(int(tf.train.latest_checkpoint(%r).split("-")[-1])))
""" % str(tmp_path / "model")).strip())
        found = trained(job.worker(FIRST=str(step)))
    assert found["step"] == 60
    assert_same(found, trained(run_alone(RUN, LAST="60")))


@pytest.mark.long
def test_a_worker_waits_while_tables_are_restored_after_the_variables(tmp_path):
    """Variables are restored first: a worker that starts between must not take the session for ready."""
    with Job(RUN, ps=1, CHECKPOINTS=str(tmp_path / "model")) as job:
        expected = trained(job.worker())["rows"]
    code = RUN.replace("first, last =", """
from mx_rec.checkpoint import loads
stock_publish = loads.StagedLoads.publish
def publish(self):
    print("between", flush=True)
    sys.stdin.readline() if False else time.sleep(6)
    return stock_publish(self)
loads.StagedLoads.publish = publish
first, last =""", 1)
    with Job(code, ps=1, worker=2, CHECKPOINTS=str(tmp_path / "model"), FIRST="0", LAST="0", BEFORE="1") as job:
        chief = job.start("worker", 0)
        wait_for(chief, "between")
        started = time.time()
        found = trained(job.worker(1))
        assert found["before"] == expected
        assert time.time() - started > 3
        assert trained(job.finish("worker", 0))["before"] == expected


# Where the chief ends itself in its third save: the directory is there, all parts are written, the tables are in
# their place but the variables are not, and all files are there but the state file does not name them.
IN_A_SAVE = LONG.replace("first, last =", """
import signal
from mx_rec.checkpoint import commit
from mx_rec.saver import saver
saves, place = [], os.environ.get("DIES")

def dying(stock, at, behind):
    def run(*args, **kwargs):
        if place != at:
            return stock(*args, **kwargs)
        saves.append(at)
        if len(saves) == 3 and not behind:
            os.kill(os.getpid(), signal.SIGKILL)
        result = stock(*args, **kwargs)
        if len(saves) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return run

commit.Staging.__init__ = dying(commit.Staging.__init__, "begun", True)
for at, behind in (("written", False), ("placed", True)):
    commit.Staging.commit = dying(commit.Staging.commit, at, behind)
saver.sync_dense = dying(saver.sync_dense, "unnamed", True)
first, last =""", 1)


@pytest.mark.long
@pytest.mark.parametrize("place", [
    pytest.param("begun", marks=pytest.mark.slow), "written", "placed",
    pytest.param("unnamed", marks=pytest.mark.slow)])
def test_a_chief_that_is_killed_in_a_save_goes_on_from_the_newest_complete_checkpoint(tmp_path, place):
    """Saves are of steps 0, 10 and 20: the third does not end, so the newest is that of step 10."""
    model = str(tmp_path / "model")
    with Job(IN_A_SAVE, ps=2, CHECKPOINTS=model, SAVE="10", LAST="30") as job:
        chief = job.start("worker", 0, DIES=place)
        said = chief.communicate(timeout=300)[0].decode()
        assert chief.returncode == -9, job.failure("worker", 0)
        assert "step 19" in said and "step 20" not in said
        found = trained(job.worker(FIRST="10", BEFORE="1"))
    expected = trained(run_alone(RUN, LAST="10"))
    assert found["before"] == expected["rows"]
    assert found["step"] == 30
    assert_same(found, trained(run_alone(RUN, LAST="30")))
    # What the save left is no checkpoint, and it is gone or replaced.
    assert not [name for name in os.listdir(model) if name.startswith(".")]
