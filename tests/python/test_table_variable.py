"""The variable of a table: gradients, optimizers and collections take it; whatever reads its value is told that there is none."""

import os

import numpy as np
import pytest
import tensorflow as tf

import support
from mx_rec.constants.constants import ASCEND_GLOBAL_HASHTABLE_COLLECTION
from mx_rec.core.embedding import sparse_lookup
from mx_rec.optimizers.gradient_descent import create_hash_optimizer
from mx_rec.util.initialize import ConfigInitializer, set_ascend_global_hashtable_collection
from mx_rec.util.variable import get_dense_and_sparse_variable

NO_VALUE = "the table 'items' has no dense value"


def make_table(name="items", dim=4, **arguments):
    return support.make_table(name, dim, 100, 1.0, **arguments)


def lookup(table, ids, **arguments):
    return sparse_lookup(table, tf.constant(ids, tf.int64), modify_graph=True, **arguments)


def sgd(rate=1.0):
    return create_hash_optimizer(rate)


def ordinary(tf, dim=4):
    return tf.compat.v1.get_variable("w", [dim], initializer=tf.compat.v1.zeros_initializer())


# Each of these gave zeros, an empty array, or an error about something else.
READS = {
    "l2_loss": lambda tf, v: tf.nn.l2_loss(v),
    "norm": lambda tf, v: tf.norm(v),
    "global_norm": lambda tf, v: tf.linalg.global_norm([v]),
    "histogram": lambda tf, v: tf.compat.v1.summary.histogram("h", v),
    "moving average": lambda tf, v: tf.train.ExponentialMovingAverage(0.9).apply([v]),
    "regularizer": lambda tf, v: tf.contrib.layers.apply_regularization(tf.contrib.layers.l2_regularizer(0.1), [v]),
    "identity": lambda tf, v: tf.identity(v),
    "stop_gradient": lambda tf, v: tf.stop_gradient(v),
    "product": lambda tf, v: v * 2.0,
    "product from the right": lambda tf, v: 2.0 * v,
    "sum with a tensor": lambda tf, v: tf.ones([1, 4]) + v,
    "minus": lambda tf, v: -v,
    "matmul": lambda tf, v: tf.matmul(tf.ones([2, 4]), v, transpose_b=True),
    "comparison": lambda tf, v: v < 1.0,
    "slice": lambda tf, v: v[0],
    "cast": lambda tf, v: tf.cast(v, tf.float64),
    "shape": lambda tf, v: tf.shape(v),
    "size": lambda tf, v: tf.size(v),
    "convert_to_tensor": lambda tf, v: tf.convert_to_tensor(v),
    "conversion of a list": lambda tf, v: tf.convert_to_tensor([v, v]),
    "concat": lambda tf, v: tf.concat([v, v], 0),
    "tensor info": lambda tf, v: tf.compat.v1.saved_model.utils.build_tensor_info(v),
    "output of a SavedModel": lambda tf, v: tf.compat.v1.saved_model.predict_signature_def({"x": tf.ones([1])}, {"rows": v}),
    "input of a SavedModel": lambda tf, v: tf.compat.v1.saved_model.predict_signature_def({"rows": v}, {"y": tf.ones([1])}),
    "py_func": lambda tf, v: tf.compat.v1.py_func(lambda a: a, [v], tf.float32),
    "stack": lambda tf, v: tf.stack([v, v]),
    "add_n": lambda tf, v: tf.add_n([v, v]),
    "tuple": lambda tf, v: tf.tuple([v]),
    "gather": lambda tf, v: tf.gather(v, [0]),
    "embedding_lookup": lambda tf, v: tf.nn.embedding_lookup(v, [0]),
    "value": lambda tf, v: v.value(),
    "read_value": lambda tf, v: v.read_value(),
    "initialized_value": lambda tf, v: v.initialized_value(),
    "initializer": lambda tf, v: tf.compat.v1.variables_initializer([v]),
    "is_variable_initialized": lambda tf, v: tf.compat.v1.is_variable_initialized(v),
    "assign": lambda tf, v: tf.compat.v1.assign(v, tf.ones([0, 4])),
    "assign_add": lambda tf, v: v.assign_add(tf.ones([0, 4])),
    "scatter_update": lambda tf, v: tf.compat.v1.scatter_update(v, [0], tf.ones([1, 4])),
    "new variable": lambda tf, v: tf.compat.v1.Variable(v),
    "loop variable": lambda tf, v: tf.while_loop(lambda a: True, lambda a: a, [v]),
    "result of a branch": lambda tf, v: tf.cond(tf.constant(True), lambda: v, lambda: v),
    "loss": lambda tf, v: tf.gradients(v, v),
    "dataset": lambda tf, v: tf.data.Dataset.from_tensor_slices(v),
    "Print": lambda tf, v: tf.compat.v1.Print(v, [v]),
    "array": lambda tf, v: np.asarray(v, np.float32),
    "iteration": lambda tf, v: list(v),
    "len": lambda tf, v: len(v),
    "truth": lambda tf, v: bool(v),
}


@pytest.mark.parametrize("read", sorted(READS))
def test_whatever_reads_or_assigns_the_value_names_the_table_and_what_to_use(graph, session, dynamic, read, tmp_path,
                                                                             monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = make_table()
    with session().as_default(), pytest.raises(NotImplementedError) as error:
        READS[read](tf, table.variable)
    for part in (NO_VALUE, "sparse_lookup", "mx_rec.optimizers", "export"):
        assert part in str(error.value)


def test_a_checkpoint_of_objects_does_not_take_it(graph, session, dynamic, tmp_path):
    with session().as_default(), pytest.raises(NotImplementedError, match="do not save tables.*'items'.*Saver"):
        tf.train.Checkpoint(v=make_table().variable).save(str(tmp_path / "nowhere"))
    assert not os.listdir(str(tmp_path))


def test_a_session_neither_fetches_nor_feeds_it(graph, session, dynamic):
    table = make_table()
    ids = tf.constant([1], tf.int64)
    sess = session()
    for run in (lambda: sess.run(table.variable), lambda: sess.run({"a": [ids, table.variable]}),
                lambda: sess.run(ids, {table.variable: np.zeros([0, 4])}), lambda: sess.make_callable(table.variable),
                lambda: sess.run(ids, {ids: table.variable}),
                lambda: sess.partial_run_setup([ids], [table.variable])):
        with pytest.raises(NotImplementedError, match=NO_VALUE):
            run()
    sess.run(table.variable.op)


@pytest.mark.parametrize("optimizer", ["AdadeltaOptimizer", "a subclass"])
def test_an_optimizer_without_a_rule_of_the_engine_takes_its_gradient_and_updates_its_rows(graph, dynamic, session,
                                                                                          optimizer):
    """test_user_optimizers compares the numbers with those of an ordinary variable."""
    table = make_table()
    rows = lookup(table, [1, 2])
    loss = tf.reduce_sum(rows) + tf.reduce_sum(ordinary(tf))
    if optimizer == "a subclass":
        made = type("Own", (tf.compat.v1.train.GradientDescentOptimizer,), {})(0.1)
    else:
        made = getattr(tf.compat.v1.train, optimizer)(0.1)
    pairs = made.compute_gradients(loss, [table.variable] + tf.compat.v1.trainable_variables())
    assert isinstance(pairs[0][0], tf.IndexedSlices) and pairs[0][1] is table.variable
    train = made.apply_gradients(pairs)
    sess = support.started(session())
    before = sess.run(rows)
    sess.run(train)
    assert (sess.run(rows) < before).all()


def test_it_has_the_attributes_of_a_variable(graph, dynamic):
    table = make_table()
    other = make_table("other")
    variable = table.variable
    assert isinstance(variable, tf.Variable) and isinstance(variable, tf.compat.v1.Variable)
    assert variable.name == "items:0" and variable.op.type == "MxRecTable" and variable.op.name == "items"
    assert variable.graph is graph and "CPU:0" in variable.device and variable.trainable
    assert variable.dtype == tf.float32 and variable.shape.as_list() == variable.get_shape().as_list() == [0, 4]
    assert "items:0" in str(variable) and "'items'" in repr(variable)
    # Equality is identity: pairs, dictionaries and sets work.
    assert variable == table.variable and variable != other.variable and not variable == "items:0"
    assert {variable: 1, other.variable: 2}[table.variable] == 1 and len({variable, table.variable}) == 1
    assert [other.variable, variable].index(variable) == 1


def test_gradients_take_it_alone_in_lists_and_among_ordinary_variables(graph, session, dynamic):
    table, other = make_table(), make_table("other")
    weight = ordinary(tf)
    loss = tf.reduce_sum(lookup(table, [1, 2, 1]) * 3.0) + tf.reduce_sum(weight * 2.0)
    alone = tf.gradients(loss, table.variable)
    several = tf.gradients(loss, [weight, table.variable, other.variable], stop_gradients=[other.variable])
    stopped = tf.gradients(loss, [weight], stop_gradients=[table.variable])
    with tf.GradientTape() as tape:
        tape.watch(table.variable)
        watched = tf.reduce_sum(lookup(table, [1, 2, 1]) * 3.0)
    taped = tape.gradient(watched, table.variable)
    sess = support.started(session())
    found = sess.run([alone[0], several[0], several[1], stopped[0], taped])
    assert several[2] is None
    for slices in (found[0], found[2], found[4]):
        assert slices.values.tolist() == [[6.0] * 4, [3.0] * 4]
    assert found[1].tolist() == found[3].tolist() == [2.0] * 4


def test_minimize_and_apply_take_the_variable_and_the_raw_tensor(graph, session, dynamic):
    tables = [make_table("t%d" % number) for number in range(4)]
    losses = [tf.reduce_sum(lookup(table, [1])) for table in tables]
    raw = graph.get_tensor_by_name("t3:0")
    optimizer = sgd(0.25)
    updates = [
        optimizer.minimize(losses[0], var_list=[tables[0].variable]),
        optimizer.apply_gradients(optimizer.compute_gradients(losses[1], [tables[1].variable])),
        optimizer.apply_gradients(zip(tf.gradients(losses[2], [tables[2].variable]), [tables[2].variable])),
        optimizer.apply_gradients(zip(tf.gradients(losses[3], raw), [raw]))]
    sess = support.started(session())
    sess.run(updates)
    for table in tables:
        assert support.Raw.of(table).rows(sess)[1].tolist() == [0.75] * 4
        assert table.optimizer is optimizer


def test_the_view_of_tables_finds_a_table_by_its_variable_and_by_its_tensor(graph, dynamic):
    table = make_table()
    tables = ConfigInitializer.get_instance().sparse_embed_config
    for key in (table.variable, graph.get_tensor_by_name("items:0")):
        assert tables.get_table_instance(key) is table and tables.get_table_instance_by_tensor(key) is table
    with pytest.raises(KeyError):
        tables.get_table_instance(table.handle)


def test_functions_loops_and_branches_differentiate_with_respect_to_it(graph, session, dynamic):
    """tf.gradients may stand where the loss does."""
    table = make_table()

    def gradient():
        return tf.reshape(tf.gradients(tf.reduce_sum(lookup(table, [5, 5]) * 2.0), [table.variable])[0].values, [1, 4])

    in_function = tf.function(gradient, autograph=False)()
    _, in_loop = tf.while_loop(lambda i, _: i < 2, lambda i, total: (i + 1, total + gradient()),
                               (tf.constant(0), tf.zeros([1, 4])))
    in_branch = tf.cond(tf.constant(True), gradient, lambda: tf.zeros([1, 4]))
    sess = session()
    for number, found in enumerate(sess.run([in_function, in_loop, in_branch])):
        assert found.tolist() == [[[4.0] * 4], [[8.0] * 4], [[4.0] * 4]][number]


def test_control_dependencies_colocation_and_groups_take_it(graph, session, dynamic):
    table = make_table()
    with tf.control_dependencies([table.variable]), tf.compat.v1.colocate_with(table.variable):
        one = tf.constant(1.0)
    assert one.op.control_inputs == [table.variable.op]
    sess = session()
    assert sess.run([one, tf.group(table.variable)])[0] == 1.0


@pytest.mark.parametrize("collection", [None, "my_tables"])
def test_an_imported_graph_has_the_variables_of_its_tables(graph, session, dynamic, tmp_path, collection):
    """By the collection's name, by get_dense_and_sparse_variable, and for an optimizer without var_list."""
    if collection is not None:
        set_ascend_global_hashtable_collection(collection)
    weight = ordinary(tf)
    table = make_table()
    tf.compat.v1.add_to_collection("of_the_script", table.variable)
    tf.identity(tf.reduce_sum(lookup(table, [1, 2])) + tf.reduce_sum(weight), name="loss")
    meta = tf.compat.v1.train.export_meta_graph(os.path.join(str(tmp_path), "graph.meta"))
    assert weight.name == "w:0"
    for scope in (None, "again"):
        with tf.Graph().as_default() as other:
            tf.compat.v1.train.import_meta_graph(meta, import_scope=scope)
            prefix = scope + "/" if scope else ""
            name = collection or ASCEND_GLOBAL_HASHTABLE_COLLECTION
            variable, = tf.compat.v1.get_collection(name)
            dense, (found,) = get_dense_and_sparse_variable()
            assert found is variable and variable is tf.compat.v1.get_collection("of_the_script")[0]
            assert [one.name for one in dense] == [prefix + "w:0"]
            assert variable.name == prefix + "items:0" and variable.graph is other
            with pytest.raises(NotImplementedError, match=NO_VALUE):
                tf.nn.l2_loss(variable)
            update = sgd(0.5).minimize(other.get_tensor_by_name(prefix + "loss:0"))
            export = support.export(variable.op.outputs[1])
            with support.new_session(other) as sess:
                sess.run(tf.compat.v1.global_variables_initializer())
                sess.run(update)
                assert sess.run(export)[1].tolist() == [[0.5] * 4] * 2
            assert tf.compat.v1.train.export_meta_graph().collection_def[name].node_list.value == [prefix + "items:0"]


def test_a_collection_of_variables_that_holds_it_does_not_stop_an_export(graph, dynamic, caplog):
    """TensorFlow leaves the collection out with a warning, as it did when the variable was a tensor."""
    table = make_table()
    ordinary(tf)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES, table.variable)
    meta = tf.compat.v1.train.export_meta_graph()
    assert "trainable_variables" not in meta.collection_def and "variables" in meta.collection_def


def test_tensorflow_keeps_its_own_conversions_of_ordinary_variables(graph, session, dynamic):
    make_table()
    weight = ordinary(tf)
    resource = tf.compat.v1.get_variable("r", initializer=2.0, use_resource=True)
    sess = support.started(session())
    assert sess.run([weight, weight + 1.0, resource, tf.nn.l2_loss(resource)], {weight: np.ones(4)})[1].tolist() == [2.0] * 4
