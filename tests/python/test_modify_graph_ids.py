"""A modified graph shows the script the same bits, wherever the ids of its lookups come from."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases as cases
from modify_cases import AHEAD, SPECS, STEP
import support
from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB
from mx_rec.graph import do_merge_lookup
from mx_rec.optimizers.gradient_descent_by_addr import create_hash_optimizer_by_addr


def dataset(batch=8):
    """Every kind of column; the last batch is a short one."""
    ids, label = cases.arrays()
    return tf.data.Dataset.from_tensor_slices({
        "ids": ids, "one": ids[:, 0], "two": ids[:, 1], "label": label, "small": ids.astype(np.int32),
        "text": np.char.add("user ", ids.astype(str)), "number": ids[:, 0].astype(str),
        "float": ids.astype(np.float32)}).batch(batch)


def trained(run, build, slots=(), epochs=2, data=dataset, **modify):
    """Trains what `build(run, batch)` returns: a Model, and fetches of evaluation."""
    iterator = cases.initializable(data())
    batch = iterator.get_next()
    model, others = build(run, batch)
    run.modify(**modify)
    sess = run.session()
    for _ in range(epochs):
        run.start(sess, iterator)
        assert run.epoch(sess, model.seen) >= 5
        if others:
            # Not in a training step: there it is open which of the two the table sees first.
            run.start(sess, iterator)
            run.steps(sess, others, 2)
    run.contents(sess, slots)


def _scatter(batch):
    """Through a sparse tensor and back."""
    places = tf.where(tf.not_equal(batch["ids"], -1))
    sparse = tf.SparseTensor(places, tf.gather_nd(batch["ids"], places), tf.shape(batch["ids"], out_type=tf.int64))
    return tf.sparse.to_dense(sparse, default_value=-1)


def _strings(batch):
    return tf.strings.to_number(tf.strings.regex_replace(batch["text"], "user *", ""), tf.int64)


def _function(ids):
    return tf.function(lambda one: tf.where(tf.equal(tf.math.floormod(one, 2), 0), one + 100, one))(ids)


IDS = {
    "a component": lambda batch: batch["ids"],
    "int32": lambda batch: batch["small"],
    "cast to int32": lambda batch: tf.cast(batch["ids"], tf.int32),
    "cast of floats": lambda batch: tf.cast(batch["float"], tf.int64),
    "identities": lambda batch: tf.identity(tf.identity(batch["one"])),
    "string hash": lambda batch: tf.strings.to_hash_bucket_fast(batch["text"], 500),
    "strong hash": lambda batch: tf.strings.to_hash_bucket_strong(batch["text"], 500, [7, 9]),
    "numbers as text": lambda batch: tf.strings.to_number(batch["number"], tf.int64),
    "reshape": lambda batch: tf.reshape(batch["ids"], [-1]),
    "expand and squeeze": lambda batch: tf.squeeze(tf.expand_dims(batch["ids"], 1), 1),
    "slice": lambda batch: batch["ids"][:, 1:],
    "strides": lambda batch: batch["ids"][::2, ::-1],
    "stack": lambda batch: tf.stack([batch["one"], batch["two"], batch["one"] + 3], axis=1),
    "concat of many": lambda batch: tf.concat([batch["ids"]] * 20 + [tf.cast(batch["small"], tf.int64) * 5], axis=1),
    "boolean mask": lambda batch: tf.boolean_mask(batch["ids"], batch["ids"] > 0),
    "a mask that leaves nothing": lambda batch: tf.boolean_mask(batch["one"], batch["one"] > 10 ** 6),
    "unique": lambda batch: tf.unique(batch["one"])[0],
    "padding": lambda batch: tf.where(batch["ids"] > 20, batch["ids"], -tf.ones_like(batch["ids"])),
    "gather": lambda batch: tf.gather(tf.constant(np.arange(1000, 2000)), tf.abs(batch["ids"])),
    "sparse to dense": _scatter,
    "edited strings": _strings,
    "a scalar": lambda batch: batch["one"][0],
    "arithmetic": lambda batch: tf.bitwise.bitwise_xor(batch["ids"] * 31 + 7, batch["ids"]),
    "sort": lambda batch: tf.sort(batch["ids"], axis=1),
    "a function": lambda batch: _function(batch["ids"]),
    "map_fn unrolled": lambda batch: tf.stack([part + 1 for part in tf.unstack(batch["ids"], axis=1)], axis=1),
}


@pytest.mark.parametrize("name", sorted(IDS))
@support.run_by(cases.alike, moves=1)
def test_ids_computed_from_the_batch(run, name):
    trained(run, lambda run, batch: (cases.Model(run, [run.lookup(run.table(), IDS[name](batch))], batch["label"],
                                                 others=[batch["ids"]]), []))


def test_the_same_ids_into_several_tables_and_used_by_the_model_too():
    def build(run, batch):
        ids = tf.math.floormod(batch["ids"], 50)
        tables = [run.table(name, dim) for name, dim in (("a", 3), ("b", 4), ("c", 1))]
        weights = tf.cast(ids, tf.float32)[:, :, None] * 0.01
        return cases.Model(run, [run.lookup(table, ids) * weights for table in tables], batch["label"], others=[ids]), []

    def script(run):
        trained(run, build, ["LazyAdam_momentum"])
        functions = tf.compat.v1.get_default_graph().as_graph_def().library.function
        prepared.append([node.attr["N"].i for function in functions for node in function.node_def
                         if node.op == "MxRecPrepare"])

    prepared = []
    cases.alike(script, moves=3)
    assert [3] in prepared and all(found in ([], [3]) for found in prepared), prepared


@pytest.mark.long
def test_several_lookups_of_one_table_in_both_modes():
    def build(run, batch):
        run_table = run.table()
        ids = [batch["ids"], batch["one"], tf.math.floormod(batch["two"], 9), batch["one"]]
        model = cases.Model(run, [run.lookup(run_table, one, name="lookup_%d" % number)
                                  for number, one in enumerate(ids)], batch["label"])
        return model, [run.lookup(run_table, one * 2, is_train=False) for one in ids[:2]]

    cases.alike(lambda run: trained(run, build), moves=6)


@pytest.mark.long
def test_feature_specs_give_the_same_with_two_tables_and_repeated_columns():
    def data():
        return cases.slices(batch=6).map(lambda batch: dict(batch, other=batch["ids"][:, 0] * 5))

    def script(run):
        run.specs(ids="a", other="b")
        iterator = cases.initializable(run.insert(data()).prefetch(1))
        batch = iterator.get_next()
        a, b = run.table("a"), run.table("b")
        model = cases.Model(run, [run.lookup(a, "ids", batch=batch), run.lookup(b, "other", batch=batch)], batch["label"])
        run.modify()
        sess = run.session()
        for _ in range(2):
            run.start(sess, iterator)
            assert run.finish(sess, model.seen) == 6

    cases.alike(script, moves=2, forms=(STEP, AHEAD, SPECS))


def test_lookups_without_gradients_make_rows_too():
    def build(run, batch):
        learned, fixed = run.table("learned"), run.table("fixed")
        embeddings = [run.lookup(learned, batch["ids"]), run.lookup(fixed, batch["one"], is_grad=False),
                      run.lookup(learned, batch["two"] + 1, is_grad=False)]
        return cases.Model(run, embeddings, batch["label"], tables=[learned]), []

    cases.alike(lambda run: trained(run, build), moves=3)


def test_default_rows_of_evaluation():
    def build(run, batch):
        table = run.table()
        model = cases.Model(run, [run.lookup(table, batch["one"])], batch["label"])
        return model, [run.lookup(table, batch["ids"], is_train=False, serving_default_value=np.float32([9, 8, 7, 6])),
                       run.lookup(table, batch["two"] * 2, is_train=False, serving_default_value=tf.reshape(
                           tf.cast(batch["ids"][:, :1], tf.float32), [-1, 1]) * tf.ones([1, 4]))]

    cases.alike(lambda run: trained(run, build), moves=3)


def _optimizers():
    def ftrl(loss, variables):
        from mx_rec.optimizers.ftrl import create_hash_optimizer
        return create_hash_optimizer(0.05).minimize(loss, var_list=variables)

    def adagrad(loss, variables):
        from mx_rec.optimizers.adagrad import create_hash_optimizer
        return create_hash_optimizer(0.05).minimize(loss, var_list=variables)

    def sgd(loss, variables):
        from mx_rec.optimizers.gradient_descent import create_hash_optimizer
        return create_hash_optimizer(0.05).minimize(loss, var_list=variables)

    def momentum(loss, variables):
        from mx_rec.optimizers.momentum import create_hash_optimizer
        return create_hash_optimizer(0.05).minimize(loss, var_list=variables)

    return [(ftrl, ["Ftrl_accum", "Ftrl_linear"]), (adagrad, ["Adagrad_accumulator"]), (sgd, []),
            (momentum, ["Momentum_momentum"]), (cases.lazy_adam, ["LazyAdam_momentum", "LazyAdam_velocity"])]


@pytest.mark.parametrize("make, slots", _optimizers(), ids=lambda one: getattr(one, "__name__", ""))
def test_every_optimizer_with_two_lookups_of_its_table(make, slots):
    def build(run, batch):
        table = run.table()
        embeddings = [run.lookup(table, batch["ids"]), run.lookup(table, batch["one"] + 0)]
        return cases.Model(run, embeddings, batch["label"], optimizer=make), []

    cases.alike(lambda run: trained(run, build, slots), moves=2)


def test_bare_gradients_after_do_merge_lookup():
    def bare(loss, variables):
        from mx_rec.optimizers.lazy_adam import create_hash_optimizer

        do_merge_lookup(is_train=True)
        gradients = tf.gradients(loss, variables)
        return create_hash_optimizer(0.05).apply_gradients(zip(gradients, variables))

    def build(run, batch):
        table = run.table()
        embeddings = [run.lookup(table, batch["ids"]), run.lookup(table, batch["one"] * 2)]
        return cases.Model(run, embeddings, batch["label"], optimizer=bare), []

    cases.alike(lambda run: trained(run, build, ["LazyAdam_momentum"]), moves=2)


def test_padding_keys_are_not_trained():
    def build(run, batch):
        table = run.table(padding_keys=[-50, 6], padding_keys_mask=True, padding_keys_len=24)
        other = run.table("other")
        embeddings = [run.lookup(table, batch["ids"]), run.lookup(other, batch["one"])]
        return cases.Model(run, embeddings, batch["label"]), []

    cases.alike(lambda run: trained(run, build), moves=2)


def _by_address(name):
    if name == "sgd":
        return create_hash_optimizer_by_addr(0.1)
    if name == "adagrad":
        from mx_rec.optimizers.adagrad_by_addr import create_hash_optimizer_by_address
    else:
        from mx_rec.optimizers.lazy_adam_by_addr import create_hash_optimizer_by_address
    return create_hash_optimizer_by_address(0.1)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "lazy_adam"])
def test_dynamic_expansion_with_collections_taken_before_the_modification(name):
    def by_address(loss, variables):
        rows, offsets = [tf.compat.v1.get_collection(collection)
                         for collection in (ASCEND_SPARSE_LOOKUP_LOCAL_EMB, ASCEND_SPARSE_LOOKUP_ID_OFFSET)]
        assert len(rows) == len(offsets) == 2
        return _by_address(name).apply_gradients(zip(tf.gradients(loss, rows), offsets))

    def build(run, batch):
        tables = [run.table(one, capacity=3) for one in ("a", "b")]
        embeddings = [run.lookup(tables[0], batch["ids"]), run.lookup(tables[1], batch["one"] * 3)]
        return cases.Model(run, embeddings, batch["label"], optimizer=by_address), []

    cases.alike(lambda run: trained(run, build), moves=2, use_dynamic_expansion=True)


def test_static_shape_with_a_limit_that_is_kept():
    def data():
        return dataset().apply(tf.data.experimental.unbatch()).batch(6, drop_remainder=True).repeat(2)

    def build(run, batch):
        return cases.Model(run, [run.lookup(run.table(), batch["ids"], send_count=18)], batch["label"]), []

    cases.alike(lambda run: trained(run, build, data=data), moves=1, use_dynamic=False)


@pytest.mark.parametrize("repeats", [1, 2])
def test_static_shape_with_a_limit_that_is_exceeded_at_one_step(repeats):
    """The step that has too many keys fails and changes nothing; the steps before and behind it are good."""
    batches = np.array([[1, 2, 3, 3], [2, 3, 4, 4], [5, 6, 7, 8], [1, 1, 9, 2], [3, 3, 3, 10], [7, 8, 11, 12], [1, 1, 1, 1]])

    def script(run):
        data = tf.data.Dataset.from_tensor_slices({"ids": batches, "label": np.arange(7, dtype=np.float32)})
        iterator = cases.initializable(data)
        batch = iterator.get_next()
        model = cases.Model(run, [run.lookup(run.table(), batch["ids"], send_count=3)], batch["label"])
        run.modify()
        sess = run.session()
        for _ in range(repeats):
            run.start(sess, iterator)
            for _ in range(8):
                run.step(sess, model.seen)
        run.contents(sess)

    runs = cases.alike(script, moves=1, use_dynamic=False)
    found = cases.errors(runs[AHEAD])
    assert len(found) == 3 * repeats and [kind for kind, _ in found].count("OutOfRangeError") == repeats, found
    assert any("table" in text and "3" in text for kind, text in found if kind != "OutOfRangeError"), found
