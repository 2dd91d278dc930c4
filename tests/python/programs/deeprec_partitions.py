"""DeepRec's modelzoo with --tf: embedding columns of hashed words whose variables a partitioner cuts, linear columns by FTRL and the
rest by Adam, and a MonitoredTrainingSession with a Scaffold that has the Saver and the initializers.
"""

import common
import stock_cases as cases
import support

TABLES = ["input_layer/word_embedding/embedding_weights/part_0", "input_layer/word_embedding/embedding_weights/part_1",
          "linear_model/word/weights/part_0", "linear_model/word/weights/part_1"]


def run(directory, steps):
    tf = support.tf()
    v1 = tf.compat.v1
    ids, labels = common.placeholders()
    step = v1.train.get_or_create_global_step()
    column = tf.feature_column.categorical_column_with_hash_bucket("word", common.ROWS)
    features = {"word": tf.strings.as_string(ids)}
    with v1.variable_scope("", partitioner=v1.fixed_size_partitioner(2)):
        deep = v1.feature_column.input_layer(features, [tf.feature_column.embedding_column(column, common.DIM)])
        wide = v1.feature_column.linear_model(features, [column])
    scores = wide[:, 0] + common.deep(deep)
    loss = common.log_loss(scores, labels)
    linear = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, "linear_model")
    rest = [one for one in v1.trainable_variables() if all(one is not other for other in linear)]
    train = tf.group(v1.train.FtrlOptimizer(0.1).minimize(loss, var_list=linear),
                     v1.train.AdamOptimizer(0.02).minimize(loss, global_step=step, var_list=rest))
    scaffold = v1.train.Scaffold(local_init_op=tf.group(v1.local_variables_initializer(), v1.tables_initializer()),
                                 saver=v1.train.Saver(max_to_keep=1))
    with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, scaffold=scaffold, save_checkpoint_steps=10,
                                           save_summaries_steps=None, save_summaries_secs=None,
                                           log_step_count_steps=None) as session:
        losses = [session.run([loss, train], {ids: one, labels: other})[0] for one, other in cases.batches(steps)]
        (one, _), = cases.batches(1, seed=9)
        found = session.run_step_fn(lambda step_context: step_context.session.run(scores, {ids: one}))
    return {"losses": losses, "scores": found}
