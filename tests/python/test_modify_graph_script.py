"""The tensors and collections that a script holds stay good when its graph is modified."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
import support
from modify_cases import AHEAD, STEP
from mx_rec.constants import constants
from mx_rec.constants.constants import ASCEND_TIMESTAMP
from mx_rec.util.initialize import get_initializer, get_target_batch


class Held:
    """A training and an evaluation pipeline, and the tensors that the script got from them."""

    def __init__(self, run, ids=lambda batch: batch["ids"], modify=True, more=None):
        self.iterator = cases.initializable(cases.slices())
        self.other = cases.initializable(cases.slices(count=20, seed=5, keys=60))
        self.batch, self.evaluation = self.iterator.get_next(), self.other.get_next()
        self.table = run.table()
        self.embedding = run.lookup(self.table, ids(self.batch))
        self.model = cases.Model(run, [self.embedding], self.batch["label"])
        self.looked = run.lookup(self.table, ids(self.evaluation), is_train=False)
        self.more = more(self) if more else None
        if modify:
            run.modify()


@support.run_by(cases.alike, moves=2)
def test_a_batch_tensor_is_fetched_by_object_and_by_name(run):
    held = Held(run)
    names = [held.batch["ids"].name, held.batch["label"].name]
    by_name = names if not run.is_modified else [held.batch[key].name for key in ("ids", "label")]
    sess = run.begin(held.iterator)
    for _ in range(5):
        run.step(sess, [held.batch["ids"], held.batch["label"], by_name, held.model.seen])
    ids, label = cases.arrays()
    for number, (_, values) in enumerate([note for note in run.notes if note[0] == "step"]):
        there = slice(8 * number, 8 * number + 8)
        assert values[0] == values[2][0] == cases.frozen(ids[there])
        assert values[1] == values[2][1] == cases.frozen(label[there])


@support.run_by(cases.alike, moves=2)
def test_names_taken_before_the_modification_are_still_there(run):
    """The old get_next stays in the graph: its name gives the old op, the tensor object the new one."""
    held = Held(run, modify=False)
    name = held.batch["label"].name
    graph = held.batch["label"].graph
    run.modify()
    tensor = graph.get_tensor_by_name(name)
    assert tensor is held.batch["label"]
    assert held.batch["label"] in held.batch["label"].op.outputs
    assert graph.as_graph_element(held.batch["label"]) is held.batch["label"]
    sess = run.begin(held.iterator)
    run.steps(sess, [name, held.batch["label"], held.model.seen], 5)


@support.run_by(cases.alike, moves=2)
def test_get_target_batch_has_the_nesting_and_the_values_of_the_element(run):
    held = Held(run)
    train, test = held.batch, held.evaluation
    if run.is_modified:
        train, test = get_target_batch(True), get_target_batch(False)
        assert sorted(train) == sorted(test) == ["ids", "label"]
    sess = run.begin(held.iterator)
    run.start(sess, held.other, False)
    for _ in range(3):
        run.step(sess, [train["ids"], train["label"], held.model.seen])
        run.step(sess, [test["label"], held.looked])


@support.run_by(cases.alike, moves=2)
def test_a_fed_component_reaches_the_lookup_whose_ids_it_is(run):
    held = Held(run)
    sess = run.begin(held.iterator)
    run.start(sess, held.other, False)
    fed = np.array([[1000, 1001, 1000], [-1, 7, 1003]], np.int64)
    run.step(sess, [held.embedding, held.model.update, held.batch["ids"]], {held.batch["ids"]: fed})
    run.step(sess, [held.looked, held.evaluation["ids"]], {held.evaluation["ids"]: fed})
    run.step(sess, held.model.seen)
    run.contents(sess)
    assert run.raw(held.table).find(sess, [1000, 1001]).any(axis=1).all()


def test_a_step_that_is_fed_its_whole_batch_takes_one_from_a_modified_pipeline_all_the_same():
    """The one thing that modification changes: TensorFlow leaves a get_next out if every output of it that is needed is
    fed, but a moved lookup needs its offsets. The numbers are those of what was fed."""
    fed = np.array([[1000, 1001, 1000]], np.int64)
    left = {}

    def script(run):
        held = Held(run)
        sess = run.begin(held.iterator)
        run.step(sess, [held.embedding, held.model.loss], {held.batch["ids"]: fed, held.batch["label"]: [0.5]})
        run.contents(sess)
        left[run.form] = sess.run(held.batch["label"])

    cases.alike(script, moves=2)
    label = cases.arrays()[1]
    support.assert_same_bits(left[STEP], label[:8])
    support.assert_same_bits(left[AHEAD], label[8:16])


@support.run_by(cases.alike, moves=2)
def test_a_fed_label_reaches_the_loss(run):
    held = Held(run)
    sess = run.begin(held.iterator)
    for value in (0.1, 0.9):
        run.step(sess, held.model.seen, {held.batch["label"]: [value]})
    run.contents(sess)


@support.run_by(cases.alike, moves=2)
def test_ops_that_wait_for_the_batch_run_with_it(run):
    counter = tf.compat.v1.get_variable("counter", [], tf.int64, use_resource=True, trainable=False,
                                          initializer=tf.compat.v1.zeros_initializer())

    def more(held):
        with tf.control_dependencies([held.batch["label"]]):
            waits = tf.compat.v1.assign_add(counter, 1)
        with tf.control_dependencies([held.embedding]):
            return waits, tf.constant(5) + tf.cast(tf.shape(held.batch["ids"])[0], tf.int32)

    held = Held(run, more=more)
    sess = run.begin(held.iterator)
    for _ in range(6):
        run.step(sess, [held.more[0], held.more[1]])
    run.note("counted", sess.run(counter))


@support.run_by(cases.alike, moves=1)
def test_the_timestamp_of_a_batch_is_that_of_its_step(run):
    ids, label = cases.arrays(24)
    data = tf.data.Dataset.from_tensor_slices({"ids": ids, "label": label, "time": np.arange(24)}).batch(4)
    iterator = cases.initializable(data.map(lambda batch: dict(batch, time=batch["time"][0])))
    batch = iterator.get_next()
    tf.compat.v1.add_to_collection(ASCEND_TIMESTAMP, batch["time"])
    model = cases.Model(run, [run.lookup(run.table(), batch["ids"])], batch["label"])
    run.modify()
    (stamp,) = tf.compat.v1.get_collection(ASCEND_TIMESTAMP)
    sess = run.begin(iterator)
    for number in range(6):
        assert run.step(sess, [stamp, batch["time"], model.seen])[:2] == [4 * number, 4 * number]


@support.run_by(cases.alike, moves=2)
def test_what_the_collections_hold(run):
    held = Held(run)
    collection = tf.compat.v1.get_collection
    entrances = collection(constants.ASCEND_SPARSE_LOOKUP_ENTRANCE)
    assert len(entrances) == 2 and all(one.op.type == "Identity" for one in entrances)
    initializers = collection(constants.ASCEND_CUTTING_POINT_INITIALIZER)
    if run.is_modified:
        assert initializers == [get_initializer(True), get_initializer(False)]
        assert initializers == [held.iterator.initializer, held.other.initializer]
    else:
        assert initializers == []
    sess = run.begin(held.iterator)
    run.start(sess, held.other, False)
    for _ in range(3):
        run.step(sess, [entrances[0], held.model.seen])
        run.step(sess, [entrances[1], held.looked])


@support.run_by(cases.alike, moves=2)
def test_shapes_and_types_that_the_script_sees_stay(run):
    held = Held(run, ids=lambda batch: tf.stack([batch["ids"][:, 0], batch["ids"][:, 1] + 1], axis=1), modify=False)
    tensors = [held.batch["ids"], held.batch["label"], held.embedding, held.looked, held.model.loss]
    before = [(tensor.shape.as_list(), tensor.dtype.name, tensor.op.device) for tensor in tensors[2:]]
    seen = [(tensor.shape.as_list(), tensor.dtype.name) for tensor in tensors]
    run.modify()
    assert [(tensor.shape.as_list(), tensor.dtype.name, tensor.op.device) for tensor in tensors[2:]] == before
    assert [(tensor.shape.as_list(), tensor.dtype.name) for tensor in tensors] == seen
    run.note("shapes", str(seen))


@support.run_by(cases.alike, moves=2)
def test_ops_added_after_the_modification_use_its_tensors(run):
    held = Held(run)
    more = tf.reduce_sum(held.batch["ids"]) + tf.cast(tf.reduce_sum(held.embedding * 0.0), tf.int64)
    sess = run.begin(held.iterator)
    run.steps(sess, [more, held.batch["ids"], held.model.seen])


@support.run_by(cases.alike, moves=2)
def test_a_callable_made_by_the_session_trains(run):
    """session.make_callable goes another way through the session than run."""
    held = Held(run)
    sess = run.begin(held.iterator)
    call = sess.make_callable([held.model.loss, held.batch["label"], held.model.update])
    for _ in range(4):
        run.note("called", call())
    run.contents(sess)


@pytest.mark.parametrize("full_trace", [False, True])
@support.run_by(cases.alike, moves=2)
def test_run_metadata_and_options_are_passed_on(run, full_trace):
    held = Held(run)
    sess = run.begin(held.iterator)
    level = tf.compat.v1.RunOptions.FULL_TRACE if full_trace else tf.compat.v1.RunOptions.NO_TRACE
    metadata = tf.compat.v1.RunMetadata()
    values = sess.run(held.model.seen, options=tf.compat.v1.RunOptions(trace_level=level), run_metadata=metadata)
    run.note("values", values)
    assert bool(metadata.step_stats.dev_stats) == full_trace


@support.run_by(cases.alike, moves=2)
def test_a_fed_tensor_reaches_the_lookups_or_is_refused(run):
    """Ids that the pipeline had computed were looked up, whatever was fed for them or for what they are computed of."""
    held = Held(run, ids=lambda batch: batch["ids"] * 3 + 1)
    sess = run.begin(held.iterator)
    run.start(sess, held.other, False)
    for batch, fetch in ((held.batch, held.embedding), (held.evaluation, held.looked)):
        product = next(op.outputs[0] for op in batch["ids"].consumers() if op.type == "Mul")
        total = product.consumers()[0].outputs[0]
        for tensor in (batch["ids"], product, total):
            value = np.full(sess.run(tensor).shape, 7, np.int64)
            if not run.is_modified:
                sess.run(fetch, {tensor: value})
                continue
            with pytest.raises(ValueError, match="may not be fed"):
                sess.run(fetch, {tensor: value})
        label = sess.run(batch["label"], {batch["label"]: np.full([8], 5.0)})
        assert label.tolist() == [5.0] * 8
    run.note("fed", True)


@support.run_by(cases.alike, moves=2)
def test_ids_that_are_a_tensor_of_the_batch_can_be_fed(run):
    held = Held(run)
    sess = run.begin(held.iterator)
    run.steps(sess, held.model.seen, 2)
    fed = np.full(cases.arrays()[0][:8].shape, 12345, np.int64)
    run.step(sess, held.model.seen, {held.batch["ids"]: fed})
