"""Optimizers as scripts write them, in the styles that there are: for the tests of them on tables."""

import support

LR = 0.1


def classes():
    """name -> class; each is made with a learning rate, and its slots are in SLOTS."""
    # pylint: disable=import-outside-toplevel
    tf = support.tf()
    from tensorflow.python.ops import gen_state_ops, resource_variable_ops
    from tensorflow.python.training import training_ops

    from mx_rec.optimizers.base import CustomizedOptimizer

    v1 = tf.compat.v1
    train = v1.train

    class Own(train.Optimizer):
        slots = ()

        def __init__(self, lr=LR, name=None):
            super().__init__(False, name or type(self).__name__)
            self._lr = lr

        def _create_slots(self, var_list):
            for variable in var_list:
                for slot in self.slots:
                    self._zeros_slot(variable, slot, self._name)

        def _prepare(self):
            self._lr_t = tf.convert_to_tensor(self._lr, name="lr")

    class Descent(Own):
        """Subtracts, by the function of the module."""

        def _apply_sparse(self, grad, var):
            return v1.scatter_sub(var, grad.indices, tf.cast(self._lr_t, var.dtype.base_dtype) * grad.values)

        def _resource_apply_sparse(self, grad, handle, indices):
            return v1.scatter_sub(handle, indices, self._lr_t * grad)

    class ByMethod(Own):
        """Subtracts, by the variable's own method."""

        def _apply_sparse(self, grad, var):
            return var.scatter_sub(tf.IndexedSlices(grad.values * self._lr_t, grad.indices))

    class Decayed(train.GradientDescentOptimizer, CustomizedOptimizer):
        """Gradient descent with decay, of duplicates as they are, by scatter_nd_add: scripts of the original."""

        def __init__(self, lr=LR, name="Decayed"):
            self._get_name(name=name)
            super().__init__(learning_rate=lr, use_locking=True, name=self.unique_name)

        def get_slot_init_values(self):
            return []

        def _apply_sparse_duplicate_indices(self, grad, var):
            old = tf.gather(var, grad.indices)
            step = (grad.values + 0.01 * old) * self._learning_rate_tensor
            return tf.compat.v1.scatter_nd_add(var, tf.expand_dims(grad.indices, 1), -step,
                                               use_locking=self._use_locking)

    class OwnAdagrad(Own):
        """Adagrad of gathers and scatters, with a slot that starts at a number."""

        def _create_slots(self, var_list):
            for variable in var_list:
                self._get_or_make_slot_with_initializer(
                    variable, tf.compat.v1.constant_initializer(0.3), variable.get_shape(),
                    variable.dtype.base_dtype, "accumulator", self._name)

        def _apply_sparse(self, grad, var):
            sums = self.get_slot(var, "accumulator")
            added = v1.scatter_add(sums, grad.indices, tf.square(grad.values))
            scale = tf.math.rsqrt(tf.gather(added, grad.indices) + 1e-7)
            return tf.group(v1.scatter_sub(var, grad.indices, self._lr_t * grad.values * scale), added)

    class OwnAdam(Own):
        """Adam of the rows of a batch, its powers in variables that are no slots."""

        slots = ("m", "v")

        def _create_slots(self, var_list):
            super()._create_slots(var_list)
            first = min(var_list, key=lambda one: one.name)
            self._create_non_slot_variable(0.9, "power1", first)
            self._create_non_slot_variable(0.99, "power2", first)

        def _powers(self):
            here = tf.compat.v1.get_default_graph()
            here = getattr(here, "outer_graph", None) or here
            return [self._get_non_slot_variable(name, graph=here) for name in ("power1", "power2")]

        def _apply_sparse(self, grad, var):
            m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
            power1, power2 = self._powers()
            m_new = 0.9 * tf.gather(m, grad.indices) + 0.1 * grad.values
            v_new = 0.99 * tf.gather(v, grad.indices) + 0.01 * tf.square(grad.values)
            rate = self._lr_t * tf.sqrt(1 - power2) / (1 - power1)
            m_t = v1.scatter_update(m, grad.indices, m_new)
            v_t = v1.scatter_update(v, grad.indices, v_new)
            return tf.group(v1.scatter_sub(var, grad.indices, rate * m_new / (tf.sqrt(v_new) + 1e-4)), m_t, v_t)

        def _finish(self, update_ops, name_scope):
            with tf.control_dependencies(update_ops):
                power1, power2 = self._powers()
                powers = [power1.assign(power1 * 0.9), power2.assign(power2 * 0.99)]
            return tf.group(*(list(update_ops) + powers), name=name_scope)

    class OwnMomentum(Own):
        """Momentum whose slot is read after it was written, by control dependencies."""

        slots = ("trace",)

        def _apply_sparse(self, grad, var):
            trace = self.get_slot(var, "trace")
            new = 0.7 * tf.nn.embedding_lookup(trace, grad.indices) + grad.values
            with tf.control_dependencies([gen_state_ops.scatter_nd_update(trace, grad.indices[:, None], new)]):
                return gen_state_ops.scatter_sub(var, grad.indices, self._lr_t * tf.gather(trace, grad.indices))

    class Fused(Own):
        """The kernel of TensorFlow's own Adagrad, from a tensor that the slot starts as."""

        def _create_slots(self, var_list):
            for variable in var_list:
                start = tf.constant(0.2, shape=variable.get_shape())
                self._get_or_make_slot(variable, start, "sums", self._name + "/sums")

        def _apply_sparse(self, grad, var):
            return training_ops.sparse_apply_adagrad(var, self.get_slot(var, "sums"), self._lr_t, grad.values,
                                                     grad.indices, use_locking=self._use_locking)

    class OnResources(Own):
        """Written for resource variables alone."""

        slots = ("trace",)

        def _resource_apply_sparse(self, grad, handle, indices):
            trace = self.get_slot(handle, "trace")
            new = 0.5 * tf.gather(trace, indices) + grad
            write = resource_variable_ops.resource_scatter_update(trace.handle, indices, new)
            with tf.control_dependencies([write]):
                return v1.scatter_sub(handle, indices, self._lr_t * trace.sparse_read(indices))

    class OnResourcesAsTheyAre(Own):
        """The same with duplicates as they are."""

        def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices):
            return resource_variable_ops.resource_scatter_add(handle.handle, indices, -self._lr_t * grad)

    class InBranches(Own):
        """Large gradients go another way than small ones."""

        def _apply_sparse(self, grad, var):
            size = tf.reduce_sum(tf.abs(grad.values))
            return tf.cond(size > 20.0,
                           lambda: tf.group(v1.scatter_sub(var, grad.indices, self._lr_t * tf.sign(grad.values))),
                           lambda: tf.group(v1.scatter_sub(var, grad.indices, self._lr_t * grad.values)))

    class SomeRows(Own):
        """Updates rows with a large gradient only, and lets others be."""

        slots = ("count",)

        def _apply_sparse(self, grad, var):
            chosen = tf.reduce_max(tf.abs(grad.values), axis=1) > 1.0
            rows = tf.boolean_mask(grad.indices, chosen)
            values = tf.boolean_mask(grad.values, chosen)
            count = v1.scatter_add(self.get_slot(var, "count"), rows, tf.ones_like(values))
            return tf.group(count, v1.scatter_sub(var, tf.cast(rows, tf.int32), self._lr_t * values))

    return {one.__name__: one for one in (
        Descent, ByMethod, Decayed, OwnAdagrad, OwnAdam, OwnMomentum, Fused, OnResources, OnResourcesAsTheyAre,
        InBranches, SomeRows)}


# Names of the slots, as the optimizer and as checkpoints have them.
SLOTS = {
    "Descent": {}, "ByMethod": {}, "Decayed": {}, "OwnAdagrad": {"accumulator": "OwnAdagrad_accumulator"},
    "OwnAdam": {"m": "OwnAdam_m", "v": "OwnAdam_v"}, "OwnMomentum": {"trace": "OwnMomentum_trace"},
    "Fused": {"sums": "Fused_sums"}, "OnResources": {"trace": "OnResources_trace"}, "OnResourcesAsTheyAre": {},
    "InBranches": {}, "SomeRows": {"count": "SomeRows_count"},
}
ALL = sorted(SLOTS)
RESOURCES = ("OnResources", "OnResourcesAsTheyAre")
