"""Modified graphs on parameter servers under synchronous training, kills, later jobs and readers of checkpoints."""

import json
import os
import time

import pytest

from cluster_cases import RUN, Job, run_alone
from test_cluster_features import ADMITTED, TIMED, done, graph
from test_cluster_life import wait_for
from test_cluster_tables import assert_same, trained

# RUN with batches of an iterator, which are prepared ahead in a modified graph.
MOVED = RUN.replace("""    ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
    labels = tf.compat.v1.placeholder(tf.float32, [None], name="labels")
""", """    data = [np.stack(one) for one in zip(*[BATCH for number in range(60)])]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(data)).repeat()
    ids, labels = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
""").replace("lost, _ = sess.run([loss, train], dict(zip([ids, labels], batch(number))))", "lost, _ = sess.run([loss, train])")
MOVED = MOVED.replace("    hooks = []\n", """    from mx_rec.graph.modifier import GraphModifierHook
    hooks = [GraphModifierHook(pull_ahead=os.environ.get("AHEAD") == "1")] if os.environ.get("MODIFY") else []
""")
assert "GraphModifierHook(" in MOVED and "placeholder" not in MOVED and "sess.run([loss, train])" in MOVED
OWN = MOVED.replace("BATCH", "batch(number + 1000 * index)")
PLAIN = MOVED.replace("if not os.environ.get(\"SYNC\")", "if False")


@pytest.mark.long
def test_synchronous_training_of_a_modified_graph_with_one_worker_is_that_of_one_process():
    alone = trained(run_alone(PLAIN.replace("BATCH", "batch(number)")))
    with Job(OWN, ps=2, SYNC="1", MODIFY="1") as job:
        assert_same(trained(job.worker()), alone)


@pytest.mark.long
def test_synchronous_training_of_a_modified_graph_with_two_workers_has_both_batches(tmp_path):
    both = "[np.concatenate(pair) for pair in zip(batch(number), batch(number + 1000))]"
    alone = trained(run_alone(PLAIN.replace("BATCH", both)))
    code = OWN.replace("    print(json", "    time.sleep(2)\n    print(json")
    with Job(code, ps=2, worker=2, SYNC="2", MODIFY="1", BARRIER=str(tmp_path)) as job:
        job.start("worker", 0)
        job.start("worker", 1)
        found = trained(job.finish("worker", 0))
        job.finish("worker", 1)
    assert found["step"] == alone["step"] and found["sizes"] == alone["sizes"]
    for ours, theirs in zip(found["rows"], alone["rows"]):
        for one, other in zip(ours, theirs):
            assert one == pytest.approx(other, rel=2e-4, abs=2e-5)


LONG = OWN.replace("        lost, _ =", "        print('step', number, flush=True)\n        time.sleep(0.02)\n        lost, _ =")
assert LONG != OWN


@pytest.mark.long
@pytest.mark.parametrize("ahead", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_server_that_dies_under_batches_ahead_costs_no_worker(ahead, tmp_path):
    variables = dict(CHECKPOINTS=str(tmp_path / "model"), SAVE="10", LAST="120", MODIFY="1", AHEAD=ahead)
    with Job(LONG, ps=2, worker=2, **variables) as job:
        chief, _ = job.start("worker", 0), job.start("worker", 1)
        wait_for(chief, "step 40")
        job.kill("ps", 1)
        time.sleep(0.5)
        job.start("ps", 1)
        found = [trained(job.finish("worker", index, 300)) for index in range(2)]
    for one in found:
        assert one["stats"]["stale"] == 0 and one["sizes"][0] > 0
        assert all(abs(value) < 100 for table in one["rows"] for row in table for value in row)


@pytest.mark.long
@pytest.mark.parametrize("ahead", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_second_job_on_living_servers_sees_nothing_of_the_batches_ahead_of_a_killed_first_one(ahead):
    with Job(OWN, ps=2, MODIFY="1", AHEAD=ahead) as job:
        expected = trained(job.worker())
    with Job(LONG, ps=2, MODIFY="1", AHEAD=ahead, LAST="1000") as job:
        wait_for(job.start("worker", 0), "step 20")
        job.kill("worker", 0)
        job.code = OWN
        assert_same(trained(job.worker(LAST="12")), expected)


EACH = OWN.replace("        if os.environ.get(\"BARRIER\"):", """        time.sleep(0.1)
        if os.environ.get("SAY"):
            print("rows", json.dumps([int(sess.run(step)), [value.tolist() for value in sess.run(every)]]), flush=True)
        if os.environ.get("BARRIER"):""")
READER = OWN[:OWN.index("first, last =")] + """
saver, path, seen = tf.compat.v1.train.Saver(), os.environ["CHECKPOINTS"], []
end = time.time() + 300
while len(set(seen)) < 4 and time.time() < end:
    with tf.compat.v1.Session() as sess:
        newest = tf.train.latest_checkpoint(path)
        if newest is None:
            time.sleep(0.05)
            continue
        saver.restore(sess, newest)
        found = [int(sess.run(step)), [value.tolist() for value in sess.run(every)]]
        if found[0] not in seen:
            print("rows", json.dumps(found), flush=True)
        seen.append(found[0])
"""


@pytest.mark.slow
def test_a_process_that_reads_checkpoints_while_the_servers_save_gets_whole_ones(tmp_path):
    def rows_of(out):
        return {step: rows for step, rows in (json.loads(line[5:]) for line in out.splitlines() if line.startswith("rows "))}

    expected = rows_of(run_alone(EACH, SAY="1", LAST="50"))
    with Job(EACH, ps=2, MODIFY="1", CHECKPOINTS=str(tmp_path / "model"), SAVE="1", LAST="50") as job:
        job.start("worker", 0)
        found = rows_of(run_alone(READER, CHECKPOINTS=str(tmp_path / "model")))
        job.finish("worker", 0)
    assert len(found) >= 4
    assert all(rows == expected[step] for step, rows in found.items() if step > 0)


@pytest.mark.slow
def test_admission_and_eviction_of_tables_on_disk_move_from_two_servers_to_three_and_to_one(tmp_path):
    code = done(graph(ADMITTED.replace("access_threshold=3", "access_threshold=2"), before=TIMED), each="""
        if number in (3, 7):
            extra = list(evict()["items"])""", after="disk = table_stats('items').rows_disk")
    code = code.replace("np.arange(-5, 60", "np.arange(-5, 995").replace("[12, 3]", "[100, 3]").replace("rand(12, 3)", "rand(100, 3)")
    code = code.replace("device_vocabulary_size=500", "**sizes").replace("with tf.device(device):", """sizes = dict(
    device_vocabulary_size=140, host_vocabulary_size=140, ssd_vocabulary_size=4000, ssd_data_path=[os.environ["DISK"]]
) if os.environ.get("DISK") else dict(device_vocabulary_size=4280)
with tf.device(device):""", 1).replace('"extra":', '"disk": disk, "extra":')
    alone = trained(run_alone(code, LAST="11"))
    os.mkdir(str(tmp_path / "disk"))
    seen, disk = [], 0
    for servers, first, last in ((2, 0, 5), (3, 5, 8), (1, 8, 11)):
        with Job(code, ps=servers, DISK=str(tmp_path / "disk"), CHECKPOINTS=str(tmp_path / "model"), FIRST=str(first),
                 LAST=str(last)) as job:
            found = trained(job.worker())
        seen += found["seen"]
        disk += found["disk"]
    assert seen == alone["seen"] and disk > 0
    assert [found[name] for name in ("size", "rows")] == [alone[name] for name in ("size", "rows")]
    assert alone["extra"][0] > 0
