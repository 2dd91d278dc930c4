"""recommenders' models: a class whose constructor builds the graph, its initializer and its Saver, and opens the session; gradients
are clipped one by one by their norms; sparse features with weights are pooled by embedding_lookup_sparse.
"""

import common
import stock_cases as cases
import support

TABLES = ["embedding/embedding_layer", "linear/w_linear"]


class Model:
    """A model in the graph that is the default one."""

    def __init__(self):
        tf = support.tf()
        v1 = tf.compat.v1
        self.inputs = common.placeholders()
        ids, labels = self.inputs
        with v1.variable_scope("embedding"):
            embedding = common.variable("embedding_layer")
        with v1.variable_scope("linear"):
            linear = common.variable("w_linear", [common.ROWS, 1])
        sparse = tf.sparse.from_dense(ids + 1)
        sparse = tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)
        weights = tf.SparseTensor(sparse.indices, 0.5 + tf.cast(sparse.values % 3, tf.float32), sparse.dense_shape)
        pooled, wide = [v1.nn.embedding_lookup_sparse(one, sparse, weights, combiner="sum") for one in (embedding, linear)]
        self.scores = wide[:, 0] + common.deep(pooled)
        self.loss = common.log_loss(self.scores, labels)
        optimizer = v1.train.AdagradOptimizer(0.1)
        pairs = [(tf.IndexedSlices(tf.clip_by_norm(grad.values, 0.3), grad.indices, grad.dense_shape)
                  if isinstance(grad, tf.IndexedSlices) else tf.clip_by_norm(grad, 0.3), variable)
                 for grad, variable in optimizer.compute_gradients(self.loss)]
        self.update = optimizer.apply_gradients(pairs)
        self.saver = v1.train.Saver(max_to_keep=3)
        self.session = support.new_session()
        self.session.run(v1.global_variables_initializer())


def run(directory, steps):
    v1 = support.tf().compat.v1
    model = Model()
    with model.session as session:
        latest = v1.train.latest_checkpoint(directory)
        if latest:
            model.saver.restore(session, latest)
        losses = [session.run([model.update, model.loss], dict(zip(model.inputs, batch)))[1] for batch in cases.batches(steps)]
        (ids, _), = cases.batches(1, seed=9)
        scores = session.run(model.scores, {model.inputs[0]: ids})
        model.saver.save(session, directory + "/epoch_1")
    return {"losses": losses, "scores": scores}
