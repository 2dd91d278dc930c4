"""EasyRec's AdamOptimizerS: an optimizer of its own, whose moments of the rows of a batch are gathered, set by scatter_update, and
whose step is added by scatter_add; the gradients of each row are summed before. The model has a bag of ids and a column of its own.
"""

import common
import support

TABLES = ["items", "users"]


def optimizer():
    """Lazy Adam as TensorFlow's base class of optimizers calls it, by gathers and scatters."""
    tf = support.tf()
    v1 = tf.compat.v1

    class Lazy(v1.train.AdamOptimizer):
        def _moved(self, grad, var, indices, add):
            one, two = [v1.cast(power, tf.float32) for power in self._get_beta_accumulators()]
            rate = self._lr_t * tf.sqrt(1 - two) / (1 - one)
            m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
            new_m = grad * (1 - self._beta1_t) + tf.gather(m, indices) * self._beta1_t
            new_v = (grad * grad) * (1 - self._beta2_t) + tf.gather(v, indices) * self._beta2_t
            set_m, set_v = v1.scatter_update(m, indices, new_m), v1.scatter_update(v, indices, new_v)
            return tf.group(add(var, indices, -rate * new_m / (tf.sqrt(new_v) + self._epsilon_t)), set_m, set_v)

        def _apply_sparse(self, grad, var):
            return self._moved(grad.values, var, grad.indices, v1.scatter_add)

        def _resource_apply_sparse(self, grad, var, indices):
            def add(to, rows, values):
                with tf.control_dependencies([tf.raw_ops.ResourceScatterAdd(resource=to.handle, indices=rows, updates=values)]):
                    return to.value()

            return self._moved(grad, var, indices, add)

    return Lazy(0.02)


def run(directory, steps, use_resource=False):
    tf = support.tf()
    ids, labels = common.placeholders()
    items, users = [common.variable(name, use_resource=use_resource) for name in ("items", "users")]
    rows = tf.concat([tf.reduce_sum(tf.nn.embedding_lookup(items, ids[:, 1:]), 1), tf.nn.embedding_lookup(users, ids[:, 0])], 1)
    scores = common.deep(rows)
    loss = common.log_loss(scores, labels)
    return common.train(directory, steps, [ids, labels], loss, optimizer().minimize(loss), scores)
