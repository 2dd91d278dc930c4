"""What a user-written optimizer must not do with a table: an error that names both and the op, and never wrong numbers."""

import numpy as np
import pytest
import tensorflow as tf

import support
from test_stock_optimizers import DIM, ROWS, Model
from mx_rec.optimizers import momentum

v1 = tf.compat.v1


def optimizer_of(update=None, slots=None, resource=False):
    """An optimizer whose sparse update is `update(self, grad, var)` and whose slots `slots(self, var)` makes."""
    class Own(tf.compat.v1.train.Optimizer):
        def _create_slots(self, var_list):
            for variable in var_list:
                if slots is None:
                    self._zeros_slot(variable, "m", "Own")
                else:
                    slots(self, variable)

    def reference(self, grad, var):
        return update(self, grad, var)

    def on_resource(self, grad, handle, indices):
        return update(self, tf.IndexedSlices(grad, indices), handle)

    setattr(Own, "_resource_apply_sparse" if resource else "_apply_sparse", on_resource if resource else reference)
    return Own(False, "Own")


def uses():
    """name -> (update, what the message says)."""
    def all_rows(self, grad, var):
        return tf.group(v1.scatter_sub(var, grad.indices, grad.values * tf.reduce_mean(var)))

    def arithmetic(self, grad, var):
        return v1.scatter_sub(var, grad.indices, (var * 0.1)[:1] + grad.values)

    def assign(self, grad, var):
        return var.assign(var)

    def assign_function(self, grad, var):
        return v1.assign(var, tf.zeros([3, DIM]))

    def assign_slot(self, grad, var):
        return self.get_slot(var, "m").assign_add(tf.ones([3, DIM]))

    def size(self, grad, var):
        return v1.scatter_sub(var, grad.indices, grad.values / tf.cast(tf.shape(var)[0], tf.float32))

    def other_row(self, grad, var):
        first = tf.gather(var, tf.zeros_like(grad.indices))
        return v1.scatter_sub(var, grad.indices, grad.values + first)

    def next_row(self, grad, var):
        return v1.scatter_sub(var, grad.indices + 1, grad.values)

    def columns(self, grad, var):
        return v1.scatter_sub(var, grad.indices, grad.values + tf.gather(var, grad.indices[:DIM], axis=1))

    def own_variable(self, grad, var):
        counts = tf.compat.v1.Variable(tf.zeros([ROWS, DIM]), use_resource=False)
        return tf.group(v1.scatter_add(counts, grad.indices, grad.values),
                        v1.scatter_sub(var, grad.indices, grad.values))

    def own_rates(self, grad, var):
        rates = tf.gather(tf.ones([ROWS, 1]), grad.indices)
        return v1.scatter_sub(var, grad.indices, rates * grad.values)

    def numbers(self, grad, var):
        return v1.scatter_sub(var, grad.indices, grad.values * tf.cast(grad.indices, tf.float32)[:, None])

    def in_function(self, grad, var):
        read = tf.function(lambda: tf.gather(var, grad.indices))
        return v1.scatter_sub(var, grad.indices, read())

    def slot_in_update(self, grad, var):
        return v1.scatter_add(self._zeros_slot(var, "late", "Own"), grad.indices, grad.values)

    def fused_with_own(self, grad, var):
        from tensorflow.python.training import training_ops

        sums = tf.compat.v1.Variable(tf.zeros([ROWS, DIM]), use_resource=False)
        return training_ops.sparse_apply_adagrad(var, sums, 0.1, grad.values, grad.indices)

    table = "table 'refused'"
    return {
        "all_rows": (all_rows, "variable of the {}.*'Own' .Own.*of type Mean".format(table)),
        "arithmetic": (arithmetic, "variable of the {}.*'Own' .Own.*of type Mul".format(table)),
        "assign": (assign, "variable of the {}.*'assign'".format(table)),
        "assign_function": (assign_function, table),
        "assign_slot": (assign_slot, "slot 'm' of the {}.*'assign_add'".format(table)),
        "size": (size, "variable of the {}.*'Own' .Own.*of type Shape".format(table)),
        "other_row": (other_row, "variable of the {}.*GatherV2.*other rows than those".format(table)),
        "next_row": (next_row, table),
        "columns": (columns, "variable of the {}.*GatherV2, along another axis".format(table)),
        "own_variable": (own_variable, "indices.*{}.*of type ScatterAdd.*get_slot".format(table)),
        "own_rates": (own_rates, "indices.*{}.*of type GatherV2.*get_slot".format(table)),
        "numbers": (numbers, "indices.*{}.*of type Cast.*get_slot".format(table)),
        "in_function": (in_function, table),
        "slot_in_update": (slot_in_update, "'Own' makes the slot 'late' of the {} in its update".format(table)),
        "fused_with_own": (fused_with_own, "indices.*{}.*of type SparseApplyAdagrad".format(table)),
    }


# What TensorFlow itself has of resource variables is used in other ops than of reference variables.
ON_BOTH = ["assign", "assign_slot", "numbers", "in_function", "next_row", "slot_in_update"]
BY_OTHER_OPS = ["all_rows", "arithmetic", "size", "other_row", "own_variable", "own_rates"]
ON_REFERENCES = ["assign_function", "columns", "fused_with_own"]


@pytest.mark.parametrize("name, resource", [(name, False) for name in ON_BOTH + BY_OTHER_OPS + ON_REFERENCES]
                         + [(name, True) for name in ON_BOTH + BY_OTHER_OPS])
def test_what_reaches_beyond_the_rows_of_the_batch_is_refused(graph, dynamic, name, resource):
    update, message = uses()[name]
    if resource and name in BY_OTHER_OPS:
        message = "table 'refused'"
    model = Model("refused")
    with pytest.raises(NotImplementedError, match=message):
        optimizer_of(update, resource=resource).minimize(model.loss, var_list=[model.variable])
    assert model.table.optimizer is None


def slot_makers():
    """name -> (what makes a slot, what the message says)."""
    def shaped(self, var):
        return self._get_or_make_slot_with_initializer(var, v1.zeros_initializer(), tf.TensorShape([1]), tf.float32,
                                                       "m", "Own")

    def random(self, var):
        return self._get_or_make_slot_with_initializer(var, v1.random_normal_initializer(), var.get_shape(),
                                                       tf.float32, "m", "Own")

    def doubles(self, var):
        return self._get_or_make_slot(var, tf.zeros(var.get_shape(), tf.float64), "m", "Own")

    def different(self, var):
        return self._get_or_make_slot(var, tf.constant([[1.0, 2.0, 1.0, 1.0]]), "m", "Own")

    def infinite(self, var):
        return self._get_or_make_slot(var, tf.fill(var.get_shape(), np.float32(np.inf)), "m", "Own")

    def first_values(self, var):
        return self._get_or_make_slot(var, var.initialized_value(), "m", "Own")

    return {
        "shaped": (shaped, r"slot 'm' of the table 'refused' is float32 of shape \(1,\)"),
        "random": (random, "slot 'm' of the table 'refused' does not start at one constant"),
        "doubles": (doubles, "slot 'm' of the table 'refused' is float64"),
        "different": (different, "slot 'm' of the table 'refused' does not start at one constant"),
        "infinite": (infinite, "slot 'm' of the table 'refused' does not start at one constant"),
        "first_values": (first_values, "table 'refused'.*'initialized_value'"),
    }


@pytest.mark.parametrize("name", ["shaped", "random", "doubles", "different", "infinite", "first_values"])
def test_slots_that_cannot_live_with_rows_are_refused(graph, dynamic, name):
    make, message = slot_makers()[name]
    model = Model("refused")
    with pytest.raises(NotImplementedError, match=message):
        optimizer_of(lambda self, grad, var: None, make).minimize(model.loss, var_list=[model.variable])


def test_adam_as_variables_have_it_is_refused_because_it_moves_all_rows(graph, dynamic):
    class OtherAdam(tf.compat.v1.train.AdamOptimizer):
        pass

    model = Model("refused")
    with pytest.raises(NotImplementedError, match="table 'refused' is used by the optimizer 'Adam' .OtherAdam.*Assign"):
        OtherAdam(0.1).minimize(model.loss, var_list=[model.variable])


def test_an_update_that_returns_nothing_is_refused(graph, dynamic):
    model = Model("refused")
    with pytest.raises(TypeError, match="'Own' .Own.* for the variable of the table 'refused' returned None"):
        optimizer_of(lambda self, grad, var: None).minimize(model.loss, var_list=[model.variable])


def test_the_variable_has_no_value_outside_of_the_update(graph, dynamic):
    model = Model("refused")

    class Own(tf.compat.v1.train.GradientDescentOptimizer):
        def _create_slots(self, var_list):
            self.seen = var_list

        def _finish(self, update_ops, name_scope):
            with pytest.raises(NotImplementedError, match="variable of the table 'refused' is used outside"):
                tf.reduce_sum(self.seen[0])
            return super()._finish(update_ops, name_scope)

    optimizer = Own(0.1)
    optimizer.minimize(model.loss, var_list=[model.variable])
    with pytest.raises(NotImplementedError, match="variable of the table 'refused' is used outside"):
        tf.gather(optimizer.seen[0], [0])


def test_a_slot_of_another_optimizer_is_not_shared_by_its_name(graph, dynamic):
    model = Model("refused")

    class Nesterov(tf.compat.v1.train.MomentumOptimizer):
        pass

    Nesterov(0.1, 0.9).minimize(model.loss, var_list=[model.variable])
    with pytest.raises(ValueError, match="'refused': its slot 'Momentum_momentum' is that of.*Nesterov"):
        momentum.create_hash_optimizer(0.1).minimize(model.loss, var_list=[model.variable])


def whole_optimizers():
    """name -> a maker of an optimizer of contrib that works on whole variables or gradients."""
    adagrad = tf.compat.v1.train.AdagradOptimizer
    scales = tf.contrib.mixed_precision
    return {
        "add_sign": lambda: tf.contrib.opt.AddSignOptimizer(0.1),
        "power_sign": lambda: tf.contrib.opt.PowerSignOptimizer(0.1),
        "fixed_scale": lambda: scales.LossScaleOptimizer(adagrad(0.1), scales.FixedLossScaleManager(8.0)),
        "scale": lambda: scales.LossScaleOptimizer(adagrad(0.1), scales.ExponentialUpdateLossScaleManager(8.0, 10)),
        "graph_rewrite": lambda: tf.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite(adagrad(0.1)),
    }


@pytest.mark.parametrize("lookups", [1, 2])
@pytest.mark.parametrize("name", ["add_sign", "power_sign", "fixed_scale", "scale", "graph_rewrite"])
def test_optimizers_that_make_a_gradient_dense_are_told_that_a_table_has_none(mx, graph, name, lookups):
    """It was TensorFlow's "Tensor conversion requested for IndexedSlices without dense_shape"."""
    mx(use_dynamic=True)
    model = Model(lookups=lookups)
    make = whole_optimizers()[name]
    try:
        with pytest.raises(NotImplementedError, match="gradient of the table 'table' .*mx_rec.optimizers"):
            make().minimize(model.loss, var_list=[model.variable])
    finally:
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})


def test_gradients_of_variables_become_dense_tensors_as_before(mx, graph):
    mx(use_dynamic=True)
    variable = tf.compat.v1.Variable(tf.ones([4, 2]))
    grad, = tf.gradients(tf.reduce_sum(tf.gather(variable, [1, 1])), [variable])
    bare = tf.IndexedSlices(grad.values, grad.indices)
    with pytest.raises(ValueError, match="without dense_shape"):
        tf.convert_to_tensor(bare)
    with support.new_session() as sess:
        assert sess.run(tf.convert_to_tensor(grad))[:, 0].tolist() == [0, 2, 0, 0]
