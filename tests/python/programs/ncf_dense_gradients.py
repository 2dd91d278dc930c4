"""NCF of tensorflow/models: rows of users and items by layers of tf.keras in a graph, two towers of each, and gradients that are
made dense (tf.convert_to_tensor) before Adam takes them.
"""

import common
import support

TABLES = ["item_mf/embeddings", "item_mlp/embeddings", "user_mf/embeddings", "user_mlp/embeddings"]


def run(directory, steps):
    tf = support.tf()
    layers = tf.keras.layers
    ids, labels = common.placeholders()
    rows = {}
    for at, side in enumerate(("user", "item")):
        for tower in ("mf", "mlp"):
            layer = layers.Embedding(common.ROWS, common.DIM, name="{}_{}".format(side, tower),
                                     embeddings_initializer=tf.keras.initializers.TruncatedNormal(stddev=0.1))
            rows[side, tower] = tf.squeeze(layer(ids[:, at:at + 1]), 1)
    scores = tf.reduce_sum(rows["user", "mf"] * rows["item", "mf"], 1) + common.deep(
        tf.concat([rows["user", "mlp"], rows["item", "mlp"]], 1))
    loss = common.log_loss(scores, labels)
    optimizer = tf.compat.v1.train.AdamOptimizer(0.02)
    pairs = [(tf.convert_to_tensor(grad), variable) for grad, variable in optimizer.compute_gradients(loss)]
    return common.train(directory, steps, [ids, labels], loss, optimizer.apply_gradients(pairs), scores)
