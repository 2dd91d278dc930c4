"""LibRecommender's sequences: a tf.scatter_update sets the row of the padding to zeros before each lookup of a sequence, and the
mean of the rows is that of the ids that are none.
"""

import common
import support

TABLES = ["items", "users"]
PADDING = common.ROWS - 1


def run(directory, steps):
    tf = support.tf()
    v1 = tf.compat.v1
    ids, labels = common.placeholders()
    items, users = common.variable("items"), common.variable("users")
    sequence = tf.where(tf.equal(ids % 3, 1), tf.fill(tf.shape(ids), tf.constant(PADDING, tf.int64)), tf.minimum(ids, PADDING - 1))
    with tf.control_dependencies([v1.scatter_update(items, PADDING, tf.zeros([common.DIM]))]):
        rows = tf.nn.embedding_lookup(items, sequence)
    count = tf.reduce_sum(tf.cast(tf.not_equal(sequence, PADDING), tf.float32), 1, keepdims=True)
    scores = common.deep(tf.concat([tf.math.divide_no_nan(tf.reduce_sum(rows, 1), tf.sqrt(count)),
                                    tf.nn.embedding_lookup(users, ids[:, 0])], 1))
    loss = common.log_loss(scores, labels)
    train = v1.train.AdamOptimizer(0.02).minimize(loss)
    return common.train(directory, steps, [ids, labels], loss, train, scores)
