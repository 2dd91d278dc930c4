"""Optimizers that scripts write, on tables: the bits of an ordinary variable with the same rows."""

import numpy as np
import pytest
import tensorflow as tf

import support
import user_optimizers
from test_stock_optimizers import DIM, ROWS, Dense, Model, feeds, initial_rows, key_of
from user_optimizers import ALL, RESOURCES, SLOTS
from mx_rec.core.embedding import sparse_lookup
from mx_rec.util.initialize import init, terminate_config_initializer
from mx_rec.util.stats import table_stats

STEPS = 20


def batches(steps=STEPS):
    """Batches without repeats within a lookup: a table's gradient has one part for each lookup and row."""
    random = np.random.RandomState(4)
    return [(random.permutation(ROWS)[:9], random.permutation(ROWS)[:5]) for _ in range(steps)]


@pytest.fixture
def plain(graph):
    """A function that opens sessions in which TensorFlow does not rewrite the graph; they are closed at the end.

    Elsewhere it multiplies numbers in another order, such as a gradient by two constants, where it sees all of them.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    opened = []

    def open_session():
        opened.append(tf.compat.v1.Session(config=config))
        return opened[-1]

    yield open_session
    for sess in opened:
        sess.close()


def start(session, models, slots=()):
    for model in models:
        for slot in slots:
            model.raw.slot(slot)
    sess = support.started(session())
    for model in models:
        model.raw.assign(sess, key_of(np.arange(ROWS)), initial_rows())
    return sess


def assert_same(sess, optimizer, name, model, dense):
    values = model.contents(sess, list(SLOTS[name].values()))
    expected = sess.run([dense.variable] + [optimizer.get_slot(dense.variable, slot) for slot in SLOTS[name]])
    support.assert_same_each(values, expected, what=name)
    return values


@pytest.mark.parametrize("how", ["minimize", "apply_gradients", "clipped", "together", "rewritten"])
@pytest.mark.parametrize("name", ALL)
def test_a_table_gets_the_bits_of_a_variable(graph, session, plain, dynamic, name, how):
    optimizer = user_optimizers.classes()[name]()
    model, dense = Model(), Dense(initial_rows(), use_resource=name in RESOURCES)
    if how in ("together", "rewritten"):
        train = optimizer.minimize(model.loss + dense.loss, var_list=[model.variable, dense.variable])
    else:
        updates = []
        for one in (model, dense):
            if how == "minimize":
                # Each has its own powers, as if it were alone.
                optimizer = user_optimizers.classes()[name]()
                updates.append(optimizer.minimize(one.loss, var_list=[one.variable]))
                continue
            optimizer = user_optimizers.classes()[name]()
            grads = tf.gradients(one.loss, [one.variable])
            if how == "clipped":
                grads, _ = tf.clip_by_global_norm(grads, 2.0)
            updates.append(optimizer.apply_gradients(zip(grads, [one.variable])))
        train = tf.group(*updates)
    sess = start(session if how == "rewritten" else plain, [model], SLOTS[name].values())
    for batch in batches():
        sess.run(train, feeds([model, dense], batch))
    if how == "rewritten":
        values = model.contents(sess, list(SLOTS[name].values()))
        np.testing.assert_allclose(values[0], sess.run(dense.variable), rtol=1e-4, atol=1e-6)
    else:
        values = assert_same(sess, optimizer, name, model, dense)
    assert not np.array_equal(values[0], initial_rows())
    assert all(np.any(slot != slot[0, 0]) for slot in values[1:])


@pytest.mark.parametrize("name", ALL)
def test_repeated_ids_are_summed_or_left_as_the_class_says(graph, plain, dynamic, name):
    """A lookup sums its own repeats, so the variable gets such sums as well."""
    at = [tf.constant([3, 7, 5], tf.int64), tf.constant([7, 3], tf.int64)]
    values = [tf.constant(np.random.RandomState(8).randn(len(rows), DIM), tf.float32) for rows in ([3, 7, 5], [7, 3])]
    model = Model(lookups=2)
    ids, offsets = model.ids, tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
    dense = Dense(initial_rows(), use_resource=name in RESOURCES)
    optimizer = user_optimizers.classes()[name]()
    train = optimizer.apply_gradients([
        (tf.IndexedSlices(tf.concat(values, 0), tf.concat(offsets, 0)), model.variable),
        (tf.IndexedSlices(tf.concat(values, 0), tf.concat(at, 0)), dense.variable)])
    sess = start(plain, [model], SLOTS[name].values())
    for _ in range(3):
        sess.run(train, {ids[0]: key_of([3, 7, 5]), ids[1]: key_of([7, 3])})
    assert_same(sess, optimizer, name, model, dense)


@pytest.mark.parametrize("name", ALL)
def test_in_a_branch_an_update_runs_when_the_branch_does(graph, plain, dynamic, name):
    optimizer = user_optimizers.classes()[name]()
    model, dense = Model(), Dense(initial_rows(), use_resource=name in RESOURCES)
    flag = tf.compat.v1.placeholder(tf.bool, [])
    pairs = [(tf.gradients(one.loss, [one.variable])[0], one.variable) for one in (model, dense)]

    def both():
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.constant(1)

    done = tf.cond(flag, both, lambda: tf.constant(0))
    sess = start(plain, [model], SLOTS[name].values())
    for number, batch in enumerate(batches(7)):
        before = model.contents(sess, [])[0]
        assert sess.run(done, {flag: number % 3 != 1, **feeds([model, dense], batch)}) == int(number % 3 != 1)
        assert np.array_equal(before, model.contents(sess, [])[0]) == (number % 3 == 1)
    assert_same(sess, optimizer, name, model, dense)


def test_the_rows_outlive_what_a_branch_that_is_not_taken_does_with_them(graph, dynamic):
    """A reference to them was handed to the other branch after the update had ended: memory that was freed."""
    model = Model(lookups=1)
    train = user_optimizers.classes()["InBranches"]().minimize(model.loss, var_list=[model.variable])
    ended = [op for op in graph.get_operations() if op.type == "DestroyTemporaryVariable"]
    assert not ended
    with tf.compat.v1.Session() as sess:
        model.raw.assign(sess, key_of(np.arange(ROWS)), initial_rows())
        for _ in range(300):
            sess.run(train, model.feed([np.arange(ROWS)]))
    other = Model("other", lookups=1)
    user_optimizers.classes()["Descent"]().minimize(other.loss, var_list=[other.variable])
    assert [op for op in graph.get_operations() if op.type == "DestroyTemporaryVariable"]


@pytest.mark.parametrize("name", ["OwnAdam", "OnResources"])
def test_in_a_loop_each_turn_is_an_update(graph, plain, dynamic, name):
    optimizer = user_optimizers.classes()[name]()
    model, dense = Model(), Dense(initial_rows(), use_resource=name in RESOURCES)
    numbers = tf.constant(np.array([batch[0] for batch in batches(6)], np.int64))

    def turn(number):
        rows = numbers[number]
        at = sparse_lookup(model.table, rows * 1000003 - 10 ** 7, modify_graph=True)
        values = tf.ones_like(at) * tf.cast(number + 1, tf.float32)
        offsets = at.op.inputs[2]
        update = optimizer.apply_gradients([
            (tf.IndexedSlices(values, offsets), model.variable), (tf.IndexedSlices(values, rows), dense.variable)])
        with tf.control_dependencies([update]):
            return number + 1

    done = tf.while_loop(lambda number: number < 6, turn, [0], parallel_iterations=1)
    sess = start(plain, [model], SLOTS[name].values())
    assert sess.run(done) == 6
    assert_same(sess, optimizer, name, model, dense)


@pytest.mark.parametrize("name", ["Decayed", "OwnAdagrad", "OwnAdam", "OnResources"])
def test_two_tables_and_shared_lookups_have_each_their_own_slots(graph, plain, dynamic, name):
    """The second table is looked up by the same ids; one optimizer updates both and two variables."""
    optimizer = user_optimizers.classes()[name]()
    model, dense = Model("first"), Dense(initial_rows(), use_resource=name in RESOURCES)
    wide = support.make_table("second", 3, ROWS, 0.5)
    wide_dense = tf.compat.v1.Variable(np.full([ROWS, 3], 0.5, np.float32), use_resource=name in RESOURCES)
    found = sparse_lookup(wide, model.ids[0], modify_graph=True), tf.nn.embedding_lookup(wide_dense, dense.rows[0])
    losses = [one.loss * tf.reduce_sum(tf.square(rows)) for one, rows in zip((model, dense), found)]
    train = optimizer.minimize(tf.add_n(losses), var_list=[wide.variable, model.variable, dense.variable, wide_dense])
    second = support.Raw.of(wide)
    for slot in SLOTS[name].values():
        second.slot(slot)
    sess = start(plain, [model], SLOTS[name].values())
    for batch in batches(8):
        sess.run(train, feeds([model, dense], batch))
    assert_same(sess, optimizer, name, model, dense)
    rows = second.rows(sess)
    known = [row for row in range(ROWS) if int(key_of(row)) in rows]
    assert len(known) > 10
    support.assert_same_bits(support.as_array(rows, key_of(known)), sess.run(wide_dense)[known])
    for slot, stored in SLOTS[name].items():
        expected = sess.run(optimizer.get_slot(wide_dense, slot))[known]
        support.assert_same_bits(support.as_array(second.slot_rows(sess, stored), key_of(known)), expected)


@pytest.mark.parametrize("name", ["Decayed", "OwnAdagrad", "OwnAdam", "OwnMomentum", "OnResources"])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(dynamic, tmp_path, name):
    """Slots and embeddings of both halves are those of one run, whatever the names of earlier optimizers."""
    def run(first, last, restored):
        terminate_config_initializer()
        tf.compat.v1.reset_default_graph()
        init()
        model = Model()
        train = user_optimizers.classes()[name]().minimize(model.loss, var_list=[model.variable])
        saver = tf.compat.v1.train.Saver()
        for slot in SLOTS[name].values():
            model.raw.slot(slot)
        with support.started(support.new_session()) as sess:
            model.raw.assign(sess, key_of(np.arange(ROWS)), initial_rows() if restored is None else
                             np.full([ROWS, DIM], 9.0))
            if restored is not None:
                sess.run(train, model.feed(batches()[0]))
                saver.restore(sess, restored)
            for batch in batches()[first:last]:
                sess.run(train, model.feed(batch))
            path = saver.save(sess, str(tmp_path / "model"), global_step=last)
            return path, model.contents(sess, list(SLOTS[name].values())) + sess.run(tf.compat.v1.global_variables())

    _, expected = run(0, STEPS, None)
    path, _ = run(0, STEPS // 2, None)
    saved = sorted(entry.name for entry in (tmp_path / ("sparse-model-%d" % (STEPS // 2)) / "table").iterdir())
    assert [entry for entry in saved if entry.startswith(name + "_")] == sorted(SLOTS[name].values())
    _, values = run(STEPS // 2, STEPS, path)
    support.assert_same_each(values, expected, what=name)


@pytest.mark.parametrize("name", ["OwnAdam", "Decayed"])
def test_a_monitored_session_resumes_with_the_slots(dynamic, tmp_path, name):
    def run(directory, stop):
        terminate_config_initializer()
        tf.compat.v1.reset_default_graph()
        init()
        model = Model()
        step = tf.compat.v1.train.get_or_create_global_step()
        train = user_optimizers.classes()[name]().minimize(model.loss, global_step=step, var_list=[model.variable])
        for slot in SLOTS[name].values():
            model.raw.slot(slot)
        with tf.compat.v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / directory), save_checkpoint_steps=100, log_step_count_steps=None) as sess:
            for number in range(sess.run(step), stop):
                sess.run(train, model.feed(batches()[number]))
            return [support.as_array(one, sorted(one)) for one in [model.raw.rows(sess)] + [
                model.raw.slot_rows(sess, slot) for slot in SLOTS[name].values()]]

    expected = run("whole", STEPS)
    run("parts", 7)
    support.assert_same_each(run("parts", STEPS), expected, what=name)


@pytest.mark.parametrize("name", ["Decayed", "OwnAdam", "OnResources"])
def test_with_dynamic_expansion_pairs_of_gradients_and_offsets_are_taken(graph, plain, mx, name):
    mx(use_dynamic_expansion=True)
    model, dense = Model(), Dense(initial_rows(), use_resource=name in RESOURCES)
    rows = tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")
    offsets = tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")
    optimizer = user_optimizers.classes()[name]()
    grads = tf.gradients(model.loss, rows)
    train = optimizer.apply_gradients(list(zip(grads, offsets)) + [
        (tf.gradients(dense.loss, [dense.variable])[0], dense.variable)])
    with pytest.raises(ValueError, match="offsets"):
        optimizer.apply_gradients([(tf.gradients(model.loss, [model.variable])[0], model.variable)])
    sess = start(plain, [model], SLOTS[name].values())
    for batch in batches():
        sess.run(train, feeds([model, dense], batch))
    assert_same(sess, optimizer, name, model, dense)


def test_rows_without_slots_get_them_and_new_rows_start_at_the_initial_value(graph, session, dynamic):
    model = Model(lookups=1)
    train = user_optimizers.classes()["OwnAdagrad"](0.0).minimize(model.loss, var_list=[model.variable])
    assert model.table.ext_emb_size == 2 * DIM and model.table.optimizer.get_name() == "OwnAdagrad"
    model.raw.slot("OwnAdagrad_accumulator")
    sess = session()
    model.raw.assign(sess, key_of([1, 2, 3]), np.full([3, DIM], 0.3))
    sess.run(train, model.feed([np.array([2, 7])]))
    sums = model.raw.slot_rows(sess, "OwnAdagrad_accumulator")
    assert sorted(sums) == sorted(key_of([1, 2, 3, 7]))
    for row in (1, 2, 3):
        # The loss has no gradient where a row is 0.3.
        np.testing.assert_array_equal(sums[int(key_of(row))], np.full(DIM, 0.3, np.float32))
    assert np.all(sums[int(key_of(7))] > 0.3)


def test_gradients_of_removed_keys_and_padding_keys_change_nothing_and_are_counted(graph, session, dynamic):
    table = support.make_table("table", DIM, ROWS, 1.0, padding_keys=[5], padding_keys_mask=True, padding_keys_len=1)
    ids = tf.constant([4, 5, 6, -1], tf.int64)
    raw = support.Raw.of(table)
    grad, = tf.gradients(tf.reduce_sum(sparse_lookup(table, ids, modify_graph=True)), [table.variable])
    offsets = tf.compat.v1.placeholder(tf.int64, [None])
    train = user_optimizers.classes()["OwnMomentum"](1.0).apply_gradients([
        (tf.IndexedSlices(tf.ones([4, DIM]), offsets), table.variable)])
    sess = session()
    given = sess.run(grad.indices)
    assert len(given) == 3
    raw.remove(sess, [4])
    sess.run(train, {offsets: np.append(given, -1)})
    rows = raw.rows(sess)
    assert sorted(rows) == [5, 6] and table_stats(table).stale == 1
    np.testing.assert_array_equal(rows[5], np.ones(DIM))
    np.testing.assert_array_equal(rows[6], np.zeros(DIM))
    raw.remove(sess, [5, 6])
    sess.run(train, {offsets: np.append(given, -1)})
    assert raw.size(sess) == 0 and table_stats(table).stale == 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="never given out"):
        sess.run(train, {offsets: np.array([12345, 0, 0, 0])})


def test_a_batch_without_rows_is_an_update_of_nothing(graph, session, dynamic):
    for name in ("OwnAdam", "OnResources", "Decayed"):
        model = Model(name.lower())
        train = user_optimizers.classes()[name]().minimize(model.loss, var_list=[model.variable])
        with support.started(support.new_session()) as sess:
            sess.run(train, model.feed([np.zeros(0, np.int64), np.zeros(0, np.int64)]))
            assert model.raw.size(sess) == 0


def test_two_optimizers_in_one_step_both_update_and_in_order_give_the_bits_of_a_variable(graph, plain, dynamic):
    model, dense = Model(), Dense(initial_rows())
    made = user_optimizers.classes()
    updates = []
    for one in (model, dense):
        grads = tf.gradients(one.loss, [one.variable])
        with tf.control_dependencies([grads[0].values]):
            first = made["OwnAdagrad"]().apply_gradients(zip(grads, [one.variable]))
        with tf.control_dependencies([first]):
            updates.append(made["Decayed"]().apply_gradients(zip(grads, [one.variable])))
    sess = start(plain, [model])
    for batch in batches():
        sess.run(updates, feeds([model, dense], batch))
    support.assert_same_bits(model.contents(sess, [])[0], sess.run(dense.variable))


def test_of_two_updates_at_once_none_is_lost(graph, session, dynamic):
    """Optimizers without order, and steps in several threads, each subtract 1 from the same rows."""
    import threading

    model = Model(lookups=1)
    ones = tf.IndexedSlices(tf.ones([ROWS, DIM]), tf.compat.v1.get_collection("ASCEND_SPARSE_LOOKUP_ID_OFFSET")[0])
    made = user_optimizers.classes()
    train = [made[name](1.0, name + str(number)).apply_gradients([(ones, model.variable)])
             for number, name in enumerate(["Descent", "ByMethod", "OnResourcesAsTheyAre", "Descent"])]
    sess = support.started(session())
    model.raw.assign(sess, key_of(np.arange(ROWS)), np.zeros([ROWS, DIM]))
    feed = model.feed([np.arange(ROWS)])

    def steps():
        for _ in range(25):
            sess.run(train, feed)

    threads = [threading.Thread(target=steps) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(model.contents(sess, [])[0], np.full([ROWS, DIM], -300.0, np.float32))


def test_two_optimizers_of_one_name_have_slots_of_their_own(graph, session, dynamic):
    model = Model(lookups=1)
    make = user_optimizers.classes()["OwnMomentum"]
    first = make().minimize(model.loss, var_list=[model.variable])
    second = make().minimize(model.loss, var_list=[model.variable])
    for slot in ("OwnMomentum_trace", "OwnMomentum_trace_1"):
        model.raw.slot(slot)
    sess = start(session, [model])
    sess.run(first, model.feed([np.array([1])]))
    with pytest.raises(tf.errors.NotFoundError):
        model.raw.slot_rows(sess, "OwnMomentum_trace_1")
    sess.run(second, model.feed([np.array([2])]))
    one, two = [model.raw.slot_rows(sess, slot) for slot in ("OwnMomentum_trace", "OwnMomentum_trace_1")]
    assert np.all(one[int(key_of(1))] != 0) and not np.any(one[int(key_of(2))])
    assert np.all(two[int(key_of(2))] != 0) and not np.any(two[int(key_of(1))])


def test_an_optimizer_updates_a_table_in_several_calls_with_one_slot(graph, session, dynamic):
    model = Model(lookups=1)
    optimizer = user_optimizers.classes()["OwnMomentum"]()
    grads = tf.gradients(model.loss, [model.variable])
    updates = [optimizer.apply_gradients(zip(grads, [model.variable])) for _ in range(2)]
    model.raw.slot("OwnMomentum_trace")
    sess = start(session, [model])
    for update in updates:
        sess.run(update, model.feed([np.array([1])]))
    with pytest.raises(tf.errors.NotFoundError):
        sess.run(support.export(model.raw.handle, "OwnMomentum_trace_1"))
    assert optimizer.get_slot(model.variable, "trace").slot_name == "OwnMomentum_trace"
    assert optimizer.get_slot(model.variable, "other") is None and optimizer.variables() == []
    with pytest.raises(NotImplementedError, match="slot 'trace' of the table 'table'.*session.run"):
        sess.run(optimizer.get_slot(model.variable, "trace"))


def test_a_number_that_the_update_does_not_wait_for_can_be_fetched(graph, plain, dynamic):
    """A script may keep a tensor of its rows for a summary; it runs beside the update."""
    kept = []

    class Watched(user_optimizers.classes()["OwnMomentum"]):
        def _apply_sparse(self, grad, var):
            update = super()._apply_sparse(grad, var)
            kept.append(tf.reduce_sum(tf.gather(var, grad.indices)))
            return update

    model, dense = Model(), Dense(initial_rows())
    train = Watched().minimize(model.loss + dense.loss, var_list=[model.variable, dense.variable])
    model.raw.slot("Watched_trace")
    sess = start(plain, [model])
    for batch in batches():
        assert np.all(np.isfinite(sess.run([train] + kept, feeds([model, dense], batch))[1:]))
    support.assert_same_bits(model.contents(sess, [])[0], sess.run(dense.variable))


@pytest.mark.parametrize("module", ["ftrl_t", "ftrl_t_dense"])
def test_the_ftrl_of_older_releases_updates_tables(graph, plain, dynamic, module):
    import importlib

    make = importlib.import_module("mx_rec.optimizers." + module).create_hash_optimizer
    slots = ["z", "n", "g"] + ["w"] * (module == "ftrl_t")
    model, dense = Model(), Dense(initial_rows())
    settings = {"alpha": 0.2, "lambda1": 0.05, "lambda2": 0.1, "epsilon": 0.1, "grad_factor": 0.3, "name": "Old"}
    optimizer = make(0.1, **settings)
    train = optimizer.minimize(model.loss + dense.loss, var_list=[model.variable, dense.variable])
    sess = start(plain, [model], ["Old_" + slot for slot in slots])
    for batch in batches():
        sess.run(train, feeds([model, dense], batch))
    values = model.contents(sess, ["Old_" + slot for slot in slots])
    expected = sess.run([dense.variable] + [optimizer.get_slot(dense.variable, slot) for slot in slots])
    support.assert_same_each(values, expected, what=module)


STOCK = ["adadelta", "proximal_descent", "proximal_adagrad", "lazy_adam"]


@pytest.mark.parametrize("name", STOCK)
def test_other_optimizers_of_tensorflow_give_the_bits_of_a_variable(graph, plain, dynamic, name):
    train = tf.compat.v1.train
    optimizer = {
        "adadelta": lambda: train.AdadeltaOptimizer(0.5),
        "proximal_descent": lambda: train.ProximalGradientDescentOptimizer(0.1, 0.01, 0.01),
        "proximal_adagrad": lambda: train.ProximalAdagradOptimizer(0.1, 0.2, 0.01, 0.01),
        "lazy_adam": lambda: tf.contrib.opt.LazyAdamOptimizer(0.1),
    }[name]()
    model, dense = Model(), Dense(initial_rows())
    update = optimizer.minimize(model.loss + dense.loss, var_list=[model.variable, dense.variable])
    sess = start(plain, [model])
    for batch in batches():
        sess.run(update, feeds([model, dense], batch))
    values = model.contents(sess, [])[0]
    support.assert_same_bits(values, sess.run(dense.variable), name)
    assert not np.array_equal(values, initial_rows())
