"""Models that do not know mx_rec, run as they are and with tables in the place of their variables."""

import numpy as np

import support

STEPS = 60
ROWS, DIM, BATCH = 60, 4, 24

# What `python -m mx_rec.graph` does.
COMMAND = "import sys; from mx_rec.graph.__main__ import main; sys.exit(main(sys.argv[1:]))"

# Losses and rows of both runs are equal to rounding.
TOLERANCE = 64 * support.EPS


def optimizers():
    """Makers of the optimizers of TensorFlow whose sparse form becomes an update of rows, by name."""
    train = support.tf().compat.v1.train
    return {
        "sgd": lambda: train.GradientDescentOptimizer(0.1),
        "momentum": lambda: train.MomentumOptimizer(0.05, 0.9),
        "nesterov": lambda: train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        "adagrad": lambda: train.AdagradOptimizer(0.1, initial_accumulator_value=0.3),
        "ftrl": lambda: train.FtrlOptimizer(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02),
        "ftrl_shrinkage": lambda: train.FtrlOptimizer(
            0.1, learning_rate_power=-0.4, initial_accumulator_value=0.2, l2_shrinkage_regularization_strength=0.01),
        "lazy_adam": lambda: support.tf().contrib.opt.LazyAdamOptimizer(0.02),
        "rmsprop": lambda: train.RMSPropOptimizer(0.01, momentum=0.5),
        "centered_rmsprop": lambda: train.RMSPropOptimizer(0.01, decay=0.8, epsilon=1e-3, centered=True),
        "adadelta": lambda: train.AdadeltaOptimizer(0.5, 0.9, 1e-4),
        "proximal_sgd": lambda: train.ProximalGradientDescentOptimizer(0.1, 0.01, 0.02),
        "proximal_adagrad": lambda: train.ProximalAdagradOptimizer(0.1, 0.3, 0.01, 0.02),
    }


def batches(steps=STEPS, seed=0):
    """Skewed ids (BATCH, 3) int64 in [0, ROWS), and labels (BATCH) float32, for each step."""
    random = np.random.RandomState(seed)
    for _ in range(steps):
        ids = random.zipf(1.3, [BATCH, 3]) % ROWS
        yield ids, np.sin(ids.sum(1)).astype(np.float32)


def start(shape=(ROWS, DIM), seed=5):
    """What the variable starts with in both runs."""
    return (0.3 * np.random.RandomState(seed).randn(*shape)).astype(np.float32)


class Run:
    """What a run gave.

    Attributes:
        losses: Of each step, (steps) float32.
        rows: The variables at the end, by name.
        plans: The plan by name of the variable, empty where nothing was to be converted.
    """

    def __init__(self, losses, rows, plans):
        self.losses = np.array(losses)
        self.rows = rows
        self.plans = plans


def run(build, is_converted, steps=STEPS, seed=0):
    """Builds a model and trains it.

    Args:
        build: Takes placeholders of ids and labels, returns (loss, training op, list of the variables).
        is_converted: Whether its variables become tables; mx_rec is initialised then.
    """
    tf = support.tf()
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(seed)
        ids, labels = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None])
        loss, train, variables = build(ids, labels)
        plans = {}
        if is_converted:
            from mx_rec.stock.select import convert_graph

            plans = {plan.name: plan for plan in convert_graph(graph, True)}
            gone = {name for name, plan in plans.items() if plan.converts}
            # Nothing of a step is left on a variable that is a table.
            assert not [op.name for op in ops_of_run([loss, train]) if gone.intersection(
                tensor.op.name for tensor in op.inputs)]
        support.keep_variables(graph)
        with v1.Session(config=v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)) as sess:
            sess.run(v1.global_variables_initializer())
            for number, variable in enumerate(variables):
                set_variable(sess, variable, start(variable.shape.as_list(), number))
            losses = [sess.run([loss, train], {ids: batch, labels: label})[0] for batch, label in batches(steps)]
            rows = {variable.op.name: value_of(sess, variable) for variable in variables}
    return Run(losses, rows, plans)


def ops_of_run(fetches):
    """The ops that a run needs."""
    found, todo = set(), [getattr(one, "op", one) for one in fetches]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found


def table_of(variable):
    """The converted variable of an object of TensorFlow, None if it is TensorFlow's as before."""
    from mx_rec.stock.convert import converted

    return next((one for one in converted(variable.graph) if one.plan.name == variable.op.name), None)


def set_variable(sess, variable, value):
    """Assigns a variable, or fills its table."""
    from mx_rec.edits.replacing import extensible
    from mx_rec.stock.dense import set_all

    table = table_of(variable)
    if table is None:
        variable.load(value, sess)
        return
    tf = support.tf()
    with extensible(variable.graph), tf.device("/cpu:0"):
        given = tf.compat.v1.placeholder(tf.float32, value.shape)
        slots = {slot.name: tf.fill(value.shape, slot.initial) for slot in table.plan.slots}
        done = set_all(table.table, table.plan._replace(shape=list(value.shape)), given, table.rules_of_values, slots,
                       True)
    sess.run(done, {given: value})


def value_of(sess, variable):
    """The value of a variable, or of its table."""
    table = table_of(variable)
    if table is None:
        return sess.run(variable.read_value())
    return dense_value(sess, table, table.plan.shape[0]).reshape(table.plan.shape)


def dense_value(sess, one, count):
    """Rows 0, 1, ... of the table of a converted variable, also those that were never made."""
    from mx_rec.edits.replacing import extensible
    from mx_rec.ops.lookups import find_rows
    from mx_rec.state.table_variable import row_shape

    tf = support.tf()
    with extensible(sess.graph), tf.device("/cpu:0"):
        found, = find_rows([one.table.handle], [row_shape(one.table.variable)],
                           [tf.range(tf.constant(count, tf.int64))], initial=True)
    return sess.run(found)


def expect_equal(build, converts, steps=STEPS, stock=None):
    """Trains a model both ways; the variables whose names are `converts` become tables, no others.

    `stock` builds the model that keeps its variables, where it is another one.

    Returns:
        The plans by name.
    """
    stock, tables = run(stock or build, False, steps), run(build, True, steps)
    assert sorted(name for name, plan in tables.plans.items() if plan.converts) == sorted(converts), tables.plans
    assert np.isfinite(stock.losses).all() and abs(stock.losses[0] - stock.losses[-1]) > 1e-3
    np.testing.assert_allclose(tables.losses, stock.losses, rtol=TOLERANCE, atol=TOLERANCE)
    for name, rows in stock.rows.items():
        np.testing.assert_allclose(tables.rows[name], rows, rtol=TOLERANCE, atol=TOLERANCE)
    return tables.plans


def train_half(session, path, begins, variable, run, batches):
    """The first four of eight batches from `start()` and a checkpoint behind them, or the others from that checkpoint;
    `run` trains by one batch and its labels."""
    v1 = support.tf().compat.v1
    saver = v1.train.Saver()
    session.run(v1.global_variables_initializer())
    if begins:
        set_variable(session, variable, start())
    else:
        saver.restore(session, path)
    for batch, label in batches[:4] if begins else batches[4:]:
        run(batch, label)
    if begins:
        saver.save(session, path)


def both_halves(tmp_path, half):
    """What `half(is_converted, path, begins)` gives behind both halves, arrays: with variables and with tables in either,
    which has to be alike. Returns that of tables in both."""
    found = {}
    for before in (False, True):
        for behind in (False, True):
            path = str(tmp_path / "model-{}-{}".format(before, behind))
            half(before, path, True)
            found[before, behind] = half(behind, path, False)
    for several in found.values():
        for one, expected in zip(several, found[False, False]):
            np.testing.assert_allclose(one, expected, rtol=TOLERANCE, atol=TOLERANCE)
    return found[True, True]
