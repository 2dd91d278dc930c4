"""A modified graph shows the script the same bits as an unmodified one, whatever the kind of iterator and of dataset."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
from modify_cases import AHEAD, SPECS, STEP
import support
from mx_rec.util.initialize import get_initializer, get_target_batch


def trained(run, iterator, batch=None, key="ids", label="label"):
    """One table looked up by one entry of the batch, ready to run."""
    batch = iterator.get_next() if batch is None else batch
    table = run.table()
    model = cases.Model(run, [run.lookup(table, key, batch=batch)], batch[label], others=[batch[key]])
    run.modify()
    return model


@pytest.mark.parametrize("own", [False, True], ids=["get_initializer", "iterator.initializer"])
@support.run_by(cases.alike, moves=1, forms=(STEP, AHEAD, SPECS))
def test_epochs_by_running_the_initializer_again(run, own):
    run.specs(ids="table")
    iterator = cases.initializable(run.insert(cases.slices()).prefetch(2))
    model = trained(run, iterator)
    sess = run.session()
    for _ in range(3):
        run.start(sess, iterator, own=own)
        assert run.epoch(sess, model.seen) == 5
    run.contents(sess, ["LazyAdam_momentum", "LazyAdam_velocity"])


@support.run_by(cases.alike, moves=1)
def test_a_one_shot_iterator_starts_by_itself(run):
    model = trained(run, cases.one_shot(cases.slices().repeat(2).prefetch(1)))
    sess = run.session()
    assert run.epoch(sess, model.seen) == 10
    run.steps(sess, model.seen)
    run.contents(sess)


def both_modes(run, batch, evaluation):
    """A model and an evaluation lookup of the same table."""
    table = run.table()
    model = cases.Model(run, [run.lookup(table, "ids", batch=batch)], batch["label"], others=[batch["ids"]])
    looked = run.lookup(table, "ids", is_train=False, batch=evaluation)
    run.modify()
    return model, [looked, evaluation["label"]]


@pytest.mark.parametrize("structure", [False, True], ids=["two_make_initializer", "eval_by_get_initializer"])
@support.run_by(cases.alike, moves=2)
def test_a_reinitializable_iterator_switches_between_training_and_evaluation(run, structure):
    train, test = cases.slices(), cases.slices(count=20, seed=5, keys=60)
    iterator = tf.compat.v1.data.Iterator.from_structure(
        tf.compat.v1.data.get_output_types(train), tf.compat.v1.data.get_output_shapes(train))
    begin, begin_test = iterator.make_initializer(train), iterator.make_initializer(test)
    batch = iterator.get_next()
    model, looked = both_modes(run, batch, batch)
    sess = run.session()
    if structure and run.is_modified:
        assert get_initializer(True) is begin and get_initializer(False) is begin_test
        begin, begin_test = get_initializer(True), get_initializer(False)
    for _ in range(2):
        sess.run(begin)
        run.steps(sess, model.seen, 3)
        sess.run(begin_test)
        assert run.epoch(sess, looked) == 3
        sess.run(begin)
        assert run.finish(sess, model.seen) == 5


@support.run_by(cases.alike, moves=2, forms=(STEP, AHEAD, SPECS))
def test_training_and_evaluation_iterators_alternate_in_one_session(run):
    run.specs(ids="table")
    iterator = cases.initializable(run.insert(cases.slices()).prefetch(1))
    other = cases.initializable(run.insert(cases.slices(count=20, seed=5, keys=60), False).prefetch(1))
    model, looked = both_modes(run, iterator.get_next(), other.get_next())
    sess = run.begin(iterator)
    for _ in range(3):
        run.steps(sess, model.seen, 2)
        run.start(sess, other, False)
        run.steps(sess, looked, 1)
        run.steps(sess, model.seen, 1)
        run.steps(sess, looked)
        if run.steps(sess, model.seen, 1) == 0:
            run.start(sess, iterator)
    run.contents(sess)


def _options(data):
    options = tf.data.Options()
    options.experimental_threading.private_threadpool_size = 2
    options.experimental_deterministic = True
    options.experimental_optimization.map_and_batch_fusion = True
    return data.with_options(options)


PIPELINES = {
    "no prefetch": lambda data: data,
    "prefetch": lambda data: data.prefetch(3),
    "no batch": lambda data: data.apply(tf.data.experimental.unbatch()),
    "repeat": lambda data: data.repeat(3),
    "shuffle": lambda data: data.shuffle(4, seed=3),
    "shuffle before prefetch, repeat": lambda data: data.shuffle(4, seed=3).repeat(2).prefetch(2),
    "cache": lambda data: data.cache().repeat(2),
    "parallel map": lambda data: data.map(lambda batch: dict(batch, ids=batch["ids"] * 3), num_parallel_calls=2),
    "filter": lambda data: data.filter(lambda batch: tf.reduce_sum(batch["label"]) < 4.0),
    "options": lambda data: _options(data.prefetch(2)),
    "map and batch": lambda data: data.apply(tf.data.experimental.unbatch()).apply(
        tf.data.experimental.map_and_batch(lambda one: one, 5)),
    "interleave": lambda data: tf.data.Dataset.range(3).interleave(lambda _: data, cycle_length=2),
}


@pytest.mark.parametrize("kind", [cases.initializable, cases.one_shot], ids=["initializable", "one_shot"])
@pytest.mark.parametrize("name", sorted(PIPELINES))
@support.run_by(cases.alike, moves=1)
def test_datasets_need_not_end_in_prefetch_or_be_batched(run, name, kind):
    iterator = kind(PIPELINES[name](cases.slices()))
    model = trained(run, iterator)
    sess = run.session()
    for _ in range(1 if kind is cases.one_shot else 2):
        if kind is cases.initializable:
            run.start(sess, iterator)
        assert run.finish(sess, model.seen) >= 2


def _sparse(ids, label):
    places = np.argwhere(ids != -1)
    return tf.data.Dataset.from_tensor_slices(
        {"sparse": tf.SparseTensor(places, ids[ids != -1], ids.shape), "ids": ids[:, 0], "label": label}).batch(8)


ELEMENTS = {
    "tuple": (lambda ids, label: (ids, label), lambda batch: (batch[0], batch[1])),
    "nested": (lambda ids, label: ({"a": {"ids": ids}, "b": (label, label)}, label),
               lambda batch: (batch[0]["a"]["ids"], batch[0]["b"][1])),
    "strings": (lambda ids, label: {"text": ids.astype(str), "label": label},
                lambda batch: (tf.strings.to_hash_bucket_fast(batch["text"], 1000), batch["label"])),
    "many": (lambda ids, label: tuple(ids[:, column] for column in (0, 1, 2)) + (label,),
             lambda batch: (tf.stack(batch[:3], axis=1), batch[3])),
}


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_elements_of_any_nesting(name):
    make, take = ELEMENTS[name]

    def script(run):
        iterator = cases.initializable(tf.data.Dataset.from_tensor_slices(make(*cases.arrays())).batch(8))
        batch = iterator.get_next()
        ids, label = take(batch)
        model = cases.Model(run, [run.lookup(run.table(), ids)], label, others=tf.nest.flatten(batch))
        run.modify()
        sess = run.session()
        for _ in range(2):
            run.start(sess, iterator)
            run.finish(sess, model.seen)
        if run.is_modified:
            target = get_target_batch(True)
            tf.nest.assert_same_structure(target, batch)
            assert [one.name for one in tf.nest.flatten(target)] == [one.name for one in tf.nest.flatten(batch)]

    cases.alike(script, moves=1)


@support.run_by(cases.alike, moves=1)
def test_an_element_that_is_one_tensor(run):
    ids = cases.arrays()[0]
    iterator = cases.initializable(tf.data.Dataset.from_tensor_slices(ids).batch(8))
    batch = iterator.get_next()
    model = cases.Model(run, [run.lookup(run.table(), batch)], batch)
    sess = run.begin(iterator)
    assert run.finish(sess, model.seen) == 5
    if run.is_modified:
        assert isinstance(get_target_batch(True), tf.Tensor)


@pytest.mark.parametrize("dense", [False, True], ids=["beside", "made_dense"])
@support.run_by(cases.alike, moves=1)
def test_sparse_tensors_of_an_element(run, dense):
    iterator = cases.initializable(_sparse(*cases.arrays()))
    batch = iterator.get_next()
    ids = tf.sparse.to_dense(batch["sparse"], default_value=-1) if dense else batch["ids"]
    model = cases.Model(run, [run.lookup(run.table(), ids)], batch["label"],
                        others=[batch["sparse"], tf.sparse.reduce_sum(batch["sparse"])])
    run.modify()
    sess = run.session()
    for _ in range(2):
        run.start(sess, iterator)
        assert run.finish(sess, model.seen) == 5
    if run.is_modified:
        assert isinstance(get_target_batch(True)["sparse"], tf.SparseTensor)


@support.run_by(cases.alike, moves=2)
def test_several_iterators_of_one_mode_start_together(run):
    iterators = [cases.initializable(cases.slices(seed=seed)) for seed in (1, 2)]
    batches = [iterator.get_next() for iterator in iterators]
    table = run.table()
    model = cases.Model(run, [run.lookup(table, "ids", batch=batch) for batch in batches], batches[0]["label"])
    run.modify()
    sess = run.session()
    for _ in range(2):
        if run.is_modified:
            run.start(sess, None)
        else:
            sess.run([iterator.initializer for iterator in iterators])
        assert run.finish(sess, model.seen) == 5
