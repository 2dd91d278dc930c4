"""How many rows a table on parameter servers may have, and checkpoints of more: restored anywhere, trained nowhere."""

import pytest

from cluster_cases import Job, run_alone
from test_cluster_attacks import PLAIN

# Trains keys from FIRST on until the table is full, a few at a time, or looks at what is there; saves what it has.
FULL = """
ROWS = 2000
with tf.device(device):
    ids = tf.compat.v1.placeholder(tf.int64, [None])
    items = create_table(tf.int64, 2, "items", tf.compat.v1.ones_initializer(),
                         device_vocabulary_size=int(os.environ.get("ROWS", ROWS)))
    look = sparse_lookup(items, ids, is_train=False, modify_graph=True)
    optimizer = adagrad.create_hash_optimizer(1.0)
    train = optimizer.minimize(tf.reduce_sum(sparse_lookup(items, ids, modify_graph=True)), var_list=[items.variable])
    saver = tf.compat.v1.train.Saver()
place = os.environ["PLACE"] + "/model-%s"
with tf.compat.v1.Session(target, config=config) as sess:
    initialize(sess)
    if os.environ.get("FROM"):
        print("restore", error_of(lambda: saver.restore(sess, place % os.environ["FROM"])))
        # Keys with a row train on, a key without one gets none while the table has more rows than its vocabulary.
        known = np.arange(ROWS)
        before = sess.run(look, {ids: known})
        print("known", error_of(lambda: sess.run(train, {ids: known})),
              bool(np.all(sess.run(look, {ids: known}) < before)))
        print("new", error_of(lambda: sess.run(train, {ids: np.arange(50000, 52000)})))
    else:
        error, first = "nothing", 0
        while error == "nothing":
            error = error_of(lambda: sess.run(train, {ids: np.arange(first, first + 50)}))
            first += 50
        print("full", error)
    print("rows", items.size(), round(float(sess.run(look, {ids: np.arange(20000)}).sum()), 2))
    if os.environ.get("TO"):
        saver.save(sess, place % os.environ["TO"])
"""
FULL = PLAIN + FULL


def lines(out):
    return dict(line.split(" ", 1) for line in out.strip().splitlines())


@pytest.mark.long
def test_a_full_table_is_restored_by_fewer_servers_and_one_process_and_back(tmp_path):
    """A full table on servers had a tenth and 1,024 rows more for each part than its vocabulary: its checkpoint was
    restored by no fewer servers and no one process, which an evaluator is. "More rows than its vocabulary"."""
    variables = dict(PLACE=str(tmp_path))
    with Job(FULL, ps=3, **variables) as job:
        found = lines(job.worker(TO="many"))
    assert "ResourceExhaustedError" in found["full"] and "'items'" in found["full"], found
    rows = int(found["rows"].split()[0])
    # Six parts: the vocabulary, and room for what does not spread evenly.
    assert 2000 < rows < 2000 + 6 * 128, found
    for name, to, servers in (("many", "one", 1), ("one", "alone", 0), ("alone", "again", 0), ("again", "end", 3)):
        if servers:
            with Job(FULL, ps=servers, **variables) as job:
                found = lines(job.worker(FROM=name, TO=to))
        else:
            found = lines(run_alone(FULL, FROM=name, TO=to, **variables))
        assert found["restore"] == "nothing" and found["known"] == "nothing True", (name, found)
        assert "ResourceExhaustedError" in found["new"] and int(found["rows"].split()[0]) == rows, (name, found)
    # A table that was made smaller refuses what it has no room for.
    assert "ResourceExhaustedError" in lines(run_alone(FULL, FROM="many", ROWS="1500", **variables))["restore"]
