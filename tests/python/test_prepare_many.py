"""Key work of many tables in one op of the pipeline: the same bits as a table's own op, whatever comes between."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from modify_cases import AHEAD, STEP
from mx_rec.core.embedding import create_table


def prepared():
    """The ops that prepare in pipelines of the default graph: a list of (type, members) for each function that has some."""
    functions = tf.compat.v1.get_default_graph().as_graph_def().library.function
    ops = [[(support.kind_of(node), node.attr["N"].i) for node in function.node_def if node.op.startswith("MxRecPrepare")]
           for function in functions]
    return sorted(filter(None, ops))


def columns(count=48, seed=0, keys=40):
    """Columns of ids of several types and shapes, with padding, and labels."""
    random = np.random.RandomState(seed)

    def ids(*shape):
        found = random.randint(0, keys, shape) * 7 - 50
        found[random.rand(*shape) < 0.1] = -1
        return found

    return {"a": ids(count, 3), "b": ids(count), "c": ids(count, 2, 2), "d": ids(count, 4).astype(np.int32),
            "e": ids(count, 1).astype(np.int32), "label": random.rand(count).astype(np.float32)}


def dataset(count=48, seed=0, keys=40, batch=8):
    return tf.data.Dataset.from_tensor_slices(columns(count, seed, keys)).batch(batch)


class Trained:
    """Five tables of several widths; one is looked up twice, and two share their ids."""

    TABLES = (("one", 3), ("two", 4), ("three", 1), ("four", 8), ("five", 2))

    def __init__(self, run, batch, **arguments):
        tables = {name: run.table(name, dim, **arguments) for name, dim in self.TABLES}
        ids = [("one", batch["a"]), ("two", batch["a"]), ("three", batch["b"] + 3), ("one", batch["c"]),
               ("four", batch["d"]), ("five", batch["e"] * 2)]
        self.tables = tables
        self.model = cases.Model(run, [run.lookup(tables[name], one) for name, one in ids], batch["label"])
        self.seen = self.model.seen


def test_one_op_for_each_type_of_ids_prepares_all_tables_of_an_iterator():
    found = []

    def script(run):
        iterator = cases.initializable(dataset())
        trained = Trained(run, iterator.get_next())
        run.modify()
        found.append(prepared())
        sess = run.session()
        for epoch in range(2):
            run.start(sess, iterator)
            assert run.epoch(sess, trained.seen) == 6
            run.contents(sess, ["LazyAdam_momentum"])

    cases.alike(script, moves=6)
    assert found == [[], [], [[("MxRecPrepare of many", 4), ("MxRecPrepare of many", 2)]]]


def test_whatever_is_removed_restored_cleared_or_started_anew_between_steps_the_bits_are_the_same(tmp_path):
    def script(run):
        iterator = cases.initializable(dataset(80).repeat(3))
        trained = Trained(run, iterator.get_next())
        saver = tf.compat.v1.train.Saver()
        sess = run.begin(iterator)
        run.steps(sess, trained.seen, 3)
        saver.save(sess, run.directory + "/model.ckpt")
        run.steps(sess, trained.seen, 2)
        for name in ("one", "four"):
            run.note("removed", run.raw(trained.tables[name]).remove(sess, np.arange(-50, 90, 2)))
        run.steps(sess, trained.seen, 3)
        saver.restore(sess, run.directory + "/model.ckpt")
        run.steps(sess, trained.seen, 3)
        run.start(sess, iterator)
        run.steps(sess, trained.seen, 4)
        run.note("removed", run.raw(trained.tables["two"]).remove(sess, np.arange(-60, 300)))
        run.steps(sess, trained.seen)
        run.contents(sess, ["LazyAdam_momentum"])

    runs = cases.alike(script, moves=6, tmp_path=tmp_path)
    assert len(cases.errors(runs[AHEAD])) == 1


def test_a_full_table_is_an_error_of_its_own_step_that_names_it_and_no_other_table_is_held_up():
    """Its batches are not prepared; those of the other tables are."""
    def script(run):
        ids = np.arange(64, dtype=np.int64).reshape(16, 4)
        iterator = cases.initializable(tf.data.Dataset.from_tensor_slices({"a": ids, "b": ids % 9, "label": ids[:, 0]}))
        batch = iterator.get_next()
        small, large = run.table("small", capacity=20), run.table("large")
        model = cases.Model(run, [run.lookup(large, batch["b"])], batch["label"], tables=[large])
        tight = run.lookup(small, batch["a"])
        run.modify()
        if run.form == AHEAD:
            assert prepared() == [[("MxRecPrepare of many", 2)]]
        sess = run.begin(iterator)
        for _ in range(5):
            run.step(sess, [model.seen, tight])
        run.steps(sess, model.seen, 4)
        run.step(sess, tight)
        run.contents(sess)

    runs = cases.alike(script, moves=2)
    (kind, text), = cases.errors(runs[AHEAD])
    assert kind == "ResourceExhaustedError" and "on table 'small'" in text, text


@pytest.mark.long
@support.run_by(cases.alike, moves=9)
def test_training_and_evaluation_have_each_their_own_iterator(run):
    iterators = [cases.initializable(dataset(seed=seed)) for seed in (0, 1)]
    batches = [iterator.get_next() for iterator in iterators]
    trained = Trained(run, batches[0])
    looked = [run.lookup(trained.tables[name], batches[1][column], is_train=False)
              for name, column in (("one", "a"), ("two", "b"), ("five", "e"))]
    run.modify()
    sess = run.session()
    for _ in range(2):
        for at, iterator in enumerate(iterators):
            run.start(sess, iterator, at == 0, own=True)
        for _ in range(6):
            run.step(sess, trained.seen)
            run.step(sess, looked, label="evaluation")
    run.contents(sess)


@pytest.mark.long
@support.run_by(cases.alike, moves=5)
def test_ids_that_leave_nothing_and_batches_that_differ_in_length_are_prepared(run):
    iterator = cases.initializable(dataset(45, batch=7))
    batch = iterator.get_next()
    ids = [batch["a"], tf.boolean_mask(batch["b"], batch["b"] > 200), tf.boolean_mask(batch["b"], batch["b"] > 10 ** 6),
           batch["a"][0, 0], batch["c"]]
    model = cases.Model(run, [run.lookup(run.table("table_%d" % at, 2), one) for at, one in enumerate(ids)],
                        batch["label"])
    sess = run.begin(iterator)
    assert run.finish(sess, model.seen) == 7


@pytest.mark.long
@support.run_by(cases.alike, moves=4)
def test_tables_with_rows_on_disk_and_in_memory_are_prepared_together(run, tmp_path):
    iterator = cases.initializable(dataset(96, keys=300, batch=4).repeat(2))
    batch = iterator.get_next()
    made = []
    for at, column in enumerate(("a", "b", "c", "a")):
        rows = {}
        if at < 3:
            (tmp_path / ("%s_%d" % (run.form, at))).mkdir()
            rows = dict(device_vocabulary_size=20, host_vocabulary_size=20, ssd_vocabulary_size=600,
                        ssd_data_path=str(tmp_path / ("%s_%d" % (run.form, at))))
        name = "table_%d" % at
        table = _on_disk(run, name, rows) if rows else run.table(name, 3)
        made.append(run.lookup(table, batch[column]))
    model = cases.Model(run, made, batch["label"])
    run.modify()
    if run.form == AHEAD:
        assert prepared() == [[("MxRecPrepare of many", 4)]]
    sess = run.begin(iterator)
    assert run.epoch(sess, model.seen) == 48
    run.contents(sess, ["LazyAdam_momentum"])


def _on_disk(run, name, rows):
    """A table of few rows in memory, whose others are on disk."""
    initializer = tf.compat.v1.random_normal_initializer(stddev=0.3, seed=len(run.tables))
    run.tables[name] = create_table(tf.int64, 3, name, initializer, **rows)
    return run.tables[name]


@pytest.mark.long
@support.run_by(cases.alike, moves=6, forms=(STEP, AHEAD))
def test_the_steps_of_many_sessions_at_once_are_those_of_each_alone(run):
    iterator = cases.initializable(dataset(64))
    trained = Trained(run, iterator.get_next())
    run.modify()
    sessions = [run.session() for _ in range(3)]
    for sess in sessions:
        run.start(sess, iterator)
    for _ in range(8):
        for sess in sessions:
            run.step(sess, trained.seen[:2])
    for sess in sessions:
        run.contents(sess)


@pytest.mark.parametrize("limit", [0, 4])
def test_the_op_gives_what_each_tables_own_op_gives(graph, limit):
    """Through the raw ops: the offsets, the inverse, and what the claims make of both."""
    ops = support.ops()
    names = ("many_0", "many_1", "many_2")
    tables = [support.Raw.new(2 + at, name=name, capacity=40) for at, name in enumerate(names)]
    peers = [support.Raw.new(2 + at, name="peer_" + name, capacity=40) for at, name in enumerate(names)]
    ids = [tf.constant([[3, -1, 5], [3, 9, 3]], tf.int64), tf.constant([], tf.int64),
           tf.constant([7, 8, 9, 10, 11, 7], tf.int64)]
    many = ops.mx_rec_prepare([table.handle for table in tables], ids, limit=limit)
    each = [ops.prepare([peer.handle], one, limit=limit) for peer, one in zip(peers, ids)]
    claims = []
    for own, prepared_ in ((tables, [(many.offsets[at], many.inverse[at]) for at in range(3)]),
                           (peers, [(one.offsets[0], one.inverse) for one in each])):
        claims.append([ops.resolve(table.handle, one, prepared=(offsets, inverse), limit=limit if at != 2 else 0)
                       for at, (table, one, (offsets, inverse)) in enumerate(zip(own, ids, prepared_))])
    with support.new_session(graph) as sess:
        sess.run([table.handle for table in tables + peers])
        found, expected, inverses = sess.run([claims[0], claims[1], many.inverse])
        assert inverses[2].tolist() == ([-1] * 6 if limit else [0, 1, 2, 3, 4, 0])
        for one, other in zip(found, expected):
            assert np.array_equal(one.inverse, other.inverse)
            assert [offset & 0x7fffffff for offset in one.offsets] == [offset & 0x7fffffff for offset in other.offsets]
        support.assert_same_rows(sess, tables, peers)
        assert [table.size(sess) for table in tables] == [3, 0, 5]
