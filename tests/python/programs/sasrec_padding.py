"""SASRec's items: the row of the padding is cut off and zeros stand in its place, for the sequence, for the item that follows and
one that does not, and for the items that are scored. Adam forgets its second moments faster than by default.
"""

import common
import support

TABLES = ["items"]


def run(directory, steps):
    tf = support.tf()
    v1 = tf.compat.v1
    ids, labels = common.placeholders()
    items = common.variable("items")
    table = tf.concat((tf.zeros(shape=[1, common.DIM]), items[1:, :]), 0)
    history = tf.cast(tf.where(tf.equal(ids % 3, 1), tf.zeros_like(ids), ids), tf.int32)
    state = tf.nn.embedding_lookup(table, history) * common.DIM ** 0.5
    state += tf.nn.embedding_lookup(common.variable("places", [3, common.DIM]), tf.range(3))
    state *= v1.to_float(tf.not_equal(history, 0))[..., None]
    right, wrong = [tf.nn.embedding_lookup(table, history * step % common.ROWS) for step in (7, 11)]
    is_item = v1.to_float(tf.not_equal(history, 0))
    of_right, of_wrong = [tf.sigmoid(tf.reduce_sum(one * state, -1)) for one in (right, wrong)]
    loss = -tf.reduce_sum((v1.log(of_right + 1e-24) + v1.log(1 - of_wrong + 1e-24)) * is_item) / tf.reduce_sum(is_item)
    loss += 0.01 * tf.reduce_mean(tf.square(common.deep(tf.reduce_sum(state, 1)) - labels))
    asked = tf.nn.embedding_lookup(table, tf.range(12))
    train = v1.train.AdamOptimizer(0.02, beta2=0.98).minimize(loss)
    return common.train(directory, steps, [ids, labels], loss, train, tf.matmul(state[:, -1], asked, transpose_b=True))
