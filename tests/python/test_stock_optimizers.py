"""TensorFlow's own optimizers on a table's variable: the numbers of a dense variable, and the rows of our optimizers."""

import numpy as np
import pytest
import tensorflow as tf

import modify_cases
import support
from test_fused_updates import needed
from mx_rec.base import log
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers import adagrad, ftrl, gradient_descent, lazy_adam, momentum, rmsprop
from mx_rec.util.initialize import init, terminate_config_initializer

DIM = 4
ROWS = 20
STEPS = 8
LR = 0.2


def stock_optimizers():
    """name -> (TensorFlow's optimizer, ours with the same numbers, slots); each is given a learning rate."""
    train = tf.compat.v1.train
    return {
        "sgd": (train.GradientDescentOptimizer, gradient_descent.create_hash_optimizer, ()),
        "momentum": (lambda lr: train.MomentumOptimizer(lr, 0.7), lambda lr: momentum.create_hash_optimizer(lr, mom=0.7),
                     ("Momentum_momentum",)),
        "nesterov": (lambda lr: train.MomentumOptimizer(lr, 0.7, use_nesterov=True),
                     lambda lr: momentum.create_hash_optimizer(lr, mom=0.7, enable_nesterov=True),
                     ("Momentum_momentum",)),
        "adagrad": (lambda lr: train.AdagradOptimizer(lr, initial_accumulator_value=0.4),
                    lambda lr: adagrad.create_hash_optimizer(lr, initial_accumulator_value=0.4),
                    ("Adagrad_accumulator",)),
        "ftrl": (lambda lr: train.FtrlOptimizer(lr, -0.6, 0.3, 0.01, 0.02, l2_shrinkage_regularization_strength=0.03),
                 lambda lr: ftrl.create_hash_optimizer(
                     lr, learning_rate_power=-0.6, initial_accumulator_value=0.3, l1_regularization_strength=0.01,
                     l2_regularization_strength=0.02, l2_shrinkage_regularization_strength=0.03),
                 ("Ftrl_accum", "Ftrl_linear")),
        "rmsprop": (lambda lr: train.RMSPropOptimizer(lr, 0.8, 0.5, 1e-4),
                    lambda lr: rmsprop.create_hash_optimizer(lr, decay=0.8, momentum=0.5, epsilon=1e-4),
                    ("RMSProp_rms", "RMSProp_momentum")),
        "centered_rmsprop": (lambda lr: train.RMSPropOptimizer(lr, 0.8, epsilon=1e-2, centered=True),
                             lambda lr: rmsprop.create_hash_optimizer(lr, decay=0.8, epsilon=1e-2, centered=True),
                             ("RMSProp_rms", "RMSProp_mg", "RMSProp_momentum")),
        "adam": (lambda lr: train.AdamOptimizer(lr, 0.8, 0.95, 1e-4),
                 lambda lr: lazy_adam.create_hash_optimizer(lr, beta1=0.8, beta2=0.95, epsilon=1e-4),
                 ("LazyAdam_momentum", "LazyAdam_velocity")),
    }


ALL = ["sgd", "momentum", "nesterov", "adagrad", "ftrl", "rmsprop", "centered_rmsprop", "adam"]
# Adam of an ordinary variable moves rows that are not in the batch.
LIKE_DENSE = ALL[:-1]


def key_of(row):
    return np.asarray(row, np.int64) * 1000003 - 10 ** 7


def batches(distinct=False):
    """Pairs of batches of row numbers, the second of another size, with repeats within and between them if not distinct."""
    random = np.random.RandomState(1)
    if distinct:
        return [np.split(random.permutation(ROWS)[:14], [9]) for _ in range(STEPS)]
    return [(random.randint(0, ROWS, 9), random.randint(0, ROWS // 2, 5)) for _ in range(STEPS)]


def loss_of(tf, parts):
    """A loss that is not linear in the rows, so that the order of updates and losses shows."""
    return tf.add_n([tf.reduce_sum(tf.square(part - 0.3) * (1.0 + place)) for place, part in enumerate(parts)])


class Model:
    """One table, looked up twice."""

    def __init__(self, name="table", lookups=2):
        self.table = support.make_table(name, DIM, ROWS)
        self.variable = self.table.variable
        self.ids = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in range(lookups)]
        self.loss = loss_of(tf, [sparse_lookup(self.table, ids, modify_graph=True) for ids in self.ids])
        self.raw = support.Raw.of(self.table)

    def gradients(self):
        return tf.gradients(self.loss, [self.variable])

    def feed(self, batch):
        return dict(zip(self.ids, map(key_of, batch)))

    def contents(self, sess, slots):
        return [support.as_array(values, key_of(np.arange(ROWS)))
                for values in [self.raw.rows(sess)] + [self.raw.slot_rows(sess, slot) for slot in slots]]


class Dense:
    """The same model on an ordinary variable."""

    def __init__(self, initial, lookups=2, **arguments):
        self.variable = tf.compat.v1.Variable(initial, **arguments)
        self.rows = [tf.compat.v1.placeholder(tf.int64, [None]) for _ in range(lookups)]
        self.loss = loss_of(tf, [tf.nn.embedding_lookup(self.variable, rows) for rows in self.rows])

    def feed(self, batch):
        return dict(zip(self.rows, batch))


def feeds(models, batch):
    feed = {}
    for model in models:
        feed.update(model.feed(batch))
    return feed


def initial_rows():
    return np.random.RandomState(3).randn(ROWS, DIM).astype(np.float32)


def start(session, *models):
    """A session whose tables hold the initial rows."""
    for model in models:
        for name in ("Momentum_momentum", "Adagrad_accumulator", "Ftrl_accum", "Ftrl_linear", "LazyAdam_momentum",
                     "LazyAdam_velocity", "RMSProp_rms", "RMSProp_mg", "RMSProp_momentum"):
            model.raw.slot(name)
    sess = support.started(session())
    for model in models:
        model.raw.assign(sess, key_of(np.arange(ROWS)), initial_rows())
    return sess


@pytest.mark.parametrize("how", ["apply_gradients", "minimize", "clipped", "mixed"])
@pytest.mark.parametrize("name", LIKE_DENSE)
def test_a_table_trains_to_the_numbers_of_the_same_model_on_a_variable(graph, session, dynamic, name, how):
    make, _, slots = stock_optimizers()[name]
    model, dense = Model(), Dense(initial_rows())
    slot_names = {"Momentum_momentum": "momentum", "Adagrad_accumulator": "accumulator", "Ftrl_accum": "accum",
                  "Ftrl_linear": "linear", "RMSProp_rms": "rms", "RMSProp_mg": "mg", "RMSProp_momentum": "momentum"}
    optimizer = make(LR)
    if how == "mixed":
        update = optimizer.minimize(model.loss + dense.loss, var_list=[model.variable, dense.variable])
    else:
        updates = []
        for loss, variable in ((model.loss, model.variable), (dense.loss, dense.variable)):
            if how == "minimize":
                updates.append(optimizer.minimize(loss, var_list=[variable]))
                continue
            grads = tf.gradients(loss, [variable])
            if how == "clipped":
                grads, _ = tf.clip_by_global_norm(grads, 2.0)
            updates.append(optimizer.apply_gradients(zip(grads, [variable])))
        update = tf.group(*updates)
    # A slot of a table is no variable.
    dense_slots = [optimizer.get_slot(dense.variable, slot_names[slot]) for slot in slots]
    assert tf.compat.v1.global_variables() == [dense.variable] + dense_slots
    sess = start(session, model)
    # A norm counts the parts of a row's gradient one by one, and a table's are sums already.
    for batch in batches(distinct=how == "clipped"):
        sess.run(update, feeds([model, dense], batch))
    ours = model.contents(sess, slots)
    theirs = sess.run([dense.variable] + dense_slots)
    assert not np.array_equal(theirs[0], initial_rows())
    for values, expected in zip(ours, theirs):
        np.testing.assert_allclose(values, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("how", ["apply_gradients", "minimize", "clipped", "twice"])
@pytest.mark.parametrize("name", ALL)
def test_a_table_gets_the_bits_that_our_optimizer_gives_it(graph, session, dynamic, name, how):
    stock, own, slots = stock_optimizers()[name]
    models = Model("stock"), Model("own")
    updates = []
    for make, model in zip((stock, own), models):
        optimizer = make(LR)
        if how == "minimize":
            updates.append(optimizer.minimize(model.loss, var_list=[model.variable]))
            continue
        grads = model.gradients()
        if how == "clipped":
            grads, _ = tf.clip_by_global_norm(grads, 2.0)
        pairs = list(zip(grads, [model.variable]))
        # Two gradients of a table in one call are one update by their sum.
        updates.append(optimizer.apply_gradients(pairs * 2 if how == "twice" else pairs))
    sess = start(session, *models)
    for batch in batches():
        sess.run(updates, feeds(models, batch))
    support.assert_same_each(*[model.contents(sess, slots) for model in models], what=name)
    assert not np.array_equal(models[0].contents(sess, [])[0], initial_rows())


@pytest.mark.parametrize("name", ALL)
def test_hyper_parameters_may_be_tensors_and_callables(graph, session, dynamic, name):
    train = tf.compat.v1.train
    rate = tf.compat.v1.placeholder(tf.float64, [])
    other = tf.compat.v1.Variable(0.7, trainable=False)
    made = {
        "sgd": lambda: (train.GradientDescentOptimizer(lambda: rate), train.GradientDescentOptimizer(LR)),
        "momentum": lambda: (train.MomentumOptimizer(lambda: rate, lambda: other), train.MomentumOptimizer(LR, 0.7)),
        "nesterov": lambda: (train.MomentumOptimizer(rate, other, use_nesterov=True),
                             train.MomentumOptimizer(LR, 0.7, use_nesterov=True)),
        "adagrad": lambda: (train.AdagradOptimizer(lambda: rate), train.AdagradOptimizer(LR)),
        "ftrl": lambda: (train.FtrlOptimizer(rate), train.FtrlOptimizer(LR)),
        "rmsprop": lambda: (train.RMSPropOptimizer(lambda: rate, momentum=lambda: other, epsilon=tf.constant(1e-3)),
                            train.RMSPropOptimizer(LR, momentum=0.7, epsilon=1e-3)),
        "centered_rmsprop": lambda: (train.RMSPropOptimizer(rate, other, epsilon=1e-3, centered=True),
                                     train.RMSPropOptimizer(LR, 0.7, epsilon=1e-3, centered=True)),
        "adam": lambda: (train.AdamOptimizer(lambda: rate, beta1=0.7, epsilon=lambda: tf.constant(1e-3)),
                         train.AdamOptimizer(LR, beta1=0.7, epsilon=1e-3)),
    }[name]()
    models = Model("tensors"), Model("numbers")
    updates = [optimizer.minimize(model.loss, var_list=[model.variable]) for optimizer, model in zip(made, models)]
    sess = start(session, *models)
    for batch in batches():
        sess.run(updates, {rate: LR, **feeds(models, batch)})
    support.assert_same_bits(models[0].contents(sess, [])[0], models[1].contents(sess, [])[0])
    assert not np.array_equal(models[0].contents(sess, [])[0], initial_rows())


@pytest.mark.parametrize("name", ALL)
def test_the_step_advances_after_the_update_and_the_table_knows_its_optimizer(graph, session, dynamic, name):
    make, _, slots = stock_optimizers()[name]
    model = Model()
    step = tf.compat.v1.train.get_or_create_global_step()
    optimizer = make(LR)
    update = optimizer.minimize(model.loss, global_step=step, var_list=[model.variable], name="training")
    assert update.name == "training" and tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP) == [update]
    assert model.table.optimizer is optimizer and model.table.ext_emb_size == DIM * (1 + len(slots))
    sess = start(session, model)
    before = model.contents(sess, [])[0]
    for number, batch in enumerate(batches()[:3]):
        sess.run(update, model.feed(batch))
        assert sess.run(step) == number + 1
    assert not np.array_equal(model.contents(sess, [])[0], before)


def test_adam_advances_its_powers_once_for_tables_and_variables_together(graph, session, dynamic):
    """In one call with a table, a variable gets the bits that it gets alone."""
    train = tf.compat.v1.train
    model, other, together, alone = Model(), Model("other"), Dense(initial_rows()), Dense(initial_rows())
    update = train.AdamOptimizer(LR).minimize(
        model.loss + other.loss + together.loss, var_list=[together.variable, other.variable, model.variable])
    powers = [variable for variable in tf.compat.v1.global_variables() if "power" in variable.name]
    assert [variable.op.name for variable in powers] == ["beta1_power", "beta2_power"]
    expected = train.AdamOptimizer(LR).minimize(alone.loss, var_list=[alone.variable])
    sess = start(session, model, other)
    for batch in batches():
        sess.run([update, expected], feeds([model, other, together, alone], batch))
    support.assert_same_bits(*sess.run([together.variable, alone.variable]))
    support.assert_same_bits(model.contents(sess, [])[0], other.contents(sess, [])[0])
    np.testing.assert_allclose(sess.run(powers), [0.9 ** (STEPS + 1), 0.999 ** (STEPS + 1)], rtol=1e-5)


def test_adam_says_once_that_it_is_lazy_here_and_others_say_nothing(graph, dynamic, monkeypatch):
    said = []
    monkeypatch.setattr(log.logger, "warning", lambda message, *args: said.append(message % args))
    model = Model("warned_table")
    for name in LIKE_DENSE:
        stock_optimizers()[name][0](LR).minimize(model.loss, var_list=[model.variable])
    assert not said
    for _ in range(2):
        stock_optimizers()["adam"][0](LR).minimize(model.loss, var_list=[model.variable])
    assert len(said) == 1 and "lazily" in said[0] and "warned_table" in said[0] \
        and "mx_rec.optimizers.adam moves" in said[0]


def as_a_script_writes_it(optimizer):
    """The same optimizer, as a class that the engine has no rule of: how older releases saved RMSProp."""
    optimizer.__class__ = type("Written", (type(optimizer),), {})
    return optimizer


@pytest.mark.parametrize("name, saved_by", [(name, by) for name in ALL for by in ("stock", "own")] + [
    ("rmsprop", "written"), ("centered_rmsprop", "written")])
def test_training_goes_on_from_a_checkpoint_with_either_optimizer(graph, session, mx, tmp_path, name, saved_by):
    prefix = str(tmp_path / "model")

    def run(which, first, last, restored):
        terminate_config_initializer()
        tf.compat.v1.reset_default_graph()
        init()
        make, own, slots = stock_optimizers()[name]
        model = Model()
        optimizer = {"stock": make, "own": own, "written": lambda lr: as_a_script_writes_it(make(lr))}[which](LR)
        update = optimizer.minimize(model.loss, var_list=[model.variable])
        saver = tf.compat.v1.train.Saver()
        with support.started(support.new_session()) as sess:
            model.raw.assign(sess, key_of(np.arange(ROWS)), initial_rows() if restored is None else
                             np.full([ROWS, DIM], 9.0))
            for slot in slots:
                model.raw.slot(slot)
            if restored is not None:
                saver.restore(sess, restored)
            for batch in batches()[first:last]:
                sess.run(update, model.feed(batch))
            path = saver.save(sess, prefix, global_step=last)
            return path, model.contents(sess, slots)

    mx()
    _, expected = run(saved_by, 0, STEPS, None)
    path, _ = run(saved_by, 0, STEPS // 2, None)
    for which in sorted({saved_by, "stock", "own"}):
        _, values = run(which, STEPS // 2, STEPS, path)
        for one, whole in zip(values, expected):
            if saved_by == "written" and which != "written":
                np.testing.assert_allclose(one, whole, rtol=1e-5, atol=1e-5)
            else:
                support.assert_same_bits(one, whole, which)


@pytest.mark.parametrize("name", ALL)
@support.run_by(modify_cases.alike, moves=2)
def test_a_modified_graph_gives_the_same_bits(run, name):
    random = np.random.RandomState(2)
    data = tf.data.Dataset.from_tensor_slices({
        "ids": random.randint(0, 30, [40, 6]), "more": random.randint(0, 30, [40, 3]),
        "label": random.rand(40).astype(np.float32)})
    iterator = modify_cases.initializable(data)
    batch = iterator.get_next()
    table = run.table()
    make, _, slots = stock_optimizers()[name]
    model = modify_cases.Model(
        run, [run.lookup(table, batch["ids"]), run.lookup(table, batch["more"])], batch["label"],
        optimizer=lambda loss, variables: make(0.01).minimize(loss, var_list=variables))
    sess = run.begin(iterator)
    assert run.epoch(sess, model.seen) == 40
    run.contents(sess, slots)


def test_sums_of_gradients_need_no_tensor(graph, dynamic):
    model = Model()
    train = tf.compat.v1.train.AdagradOptimizer(LR).minimize(model.loss, var_list=[model.variable])
    update, = needed(train)["MxRecUpdate"]
    assert (support.rule_of(update), support.form_of(update), update.get_attr("N")) == ("adagrad", "ids", 2)


def test_updates_may_stand_in_a_branch_with_their_lookup_and_not_outside_of_it(graph, session, dynamic):
    table = support.make_table("table", DIM, ROWS)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)
    flag = tf.compat.v1.placeholder(tf.bool, [])
    kept = []

    def train():
        loss = tf.reduce_sum(sparse_lookup(table, tf.constant([3, 3], tf.int64), modify_graph=True))
        kept.append(tf.gradients(loss, [table.variable])[0])
        with tf.control_dependencies([optimizer.apply_gradients([(kept[0], table.variable)])]):
            return tf.constant(1)

    done = tf.cond(flag, train, lambda: tf.constant(0))
    raw = support.Raw.of(table)
    with pytest.raises(ValueError, match="'table' cannot be applied here"):
        optimizer.apply_gradients([(kept[0], table.variable)])
    sess = session()
    for value, size in ((False, 0), (True, 1)):
        assert sess.run(done, {flag: value}) == int(value) and raw.size(sess) == size
    np.testing.assert_array_equal(raw.rows(sess)[3], np.full(DIM, -1.0, np.float32))


def test_an_optimizer_without_a_sparse_update_is_refused_with_the_name_of_the_table(graph, dynamic):
    class Dense(tf.compat.v1.train.Optimizer):
        def _apply_dense(self, grad, var):
            return var.assign_sub(grad)

    model = Model("refused")
    grads = model.gradients()
    before = len(graph.get_operations())
    with pytest.raises(NotImplementedError, match=r"'Own' \(Dense\) cannot update the table 'refused'.*_apply_sparse"):
        Dense(False, "Own").apply_gradients(zip(grads, [model.variable]))
    assert model.table.optimizer is None and len(graph.get_operations()) == before


def test_gradients_that_are_dense_and_dynamic_expansion_are_refused(graph, mx):
    mx(use_dynamic_expansion=True)
    model = Model(lookups=1)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(LR)
    slices = tf.IndexedSlices(tf.zeros([1, DIM]), tf.zeros([1], tf.int64))
    with pytest.raises(ValueError, match="dynamic expansion.*GradientDescentOptimizer.*'table'.*_by_addr"):
        optimizer.apply_gradients([(slices, model.variable)])

    terminate_config_initializer()
    tf.compat.v1.reset_default_graph()
    init()
    model = Model(lookups=1)
    before = len(tf.compat.v1.get_default_graph().get_operations())
    with pytest.raises(TypeError, match="should be an IndexedSlices"):
        optimizer.apply_gradients([(np.zeros([1, DIM], np.float32), model.variable)])
    assert len(tf.compat.v1.get_default_graph().get_operations()) == before


def test_an_imported_graph_trains_its_table(graph, session, dynamic):
    """Collections of an imported graph hold raw tensors in the place of variables."""
    model = Model()
    tf.compat.v1.add_to_collection("loss", model.loss)
    for ids in model.ids:
        tf.compat.v1.add_to_collection("ids", ids)
    meta = tf.compat.v1.train.export_meta_graph()
    tf.compat.v1.reset_default_graph()
    tf.compat.v1.train.import_meta_graph(meta)
    loss, = tf.compat.v1.get_collection("loss")
    op, = [op for op in tf.compat.v1.get_default_graph().get_operations() if op.type == "MxRecTable"]
    raw = support.Raw(op.outputs[0], op.outputs[1], DIM)
    update = tf.compat.v1.train.GradientDescentOptimizer(0.5).apply_gradients(
        zip(tf.gradients(loss, [op.outputs[0]]), [op.outputs[0]]))
    with support.new_session() as sess:
        sess.run(update, dict(zip(tf.compat.v1.get_collection("ids"), ([1, 1], [2]))))
        assert sorted(raw.rows(sess)) == [1, 2] and np.all(raw.rows(sess)[1] != 0)
