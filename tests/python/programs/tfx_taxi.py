"""The taxi model of TFX: a canned Estimator by its defaults, whose columns are numbers, words of a hash with an indicator, an
identity column of the same ids in both parts, and a crossed one.
"""

import common
import support

TABLES = ["linear/linear_model/item/weights/part_0", "linear/linear_model/item_X_user/weights/part_0",
          "linear/linear_model/word/weights/part_0"]


def run(directory, steps):
    tf = support.tf()
    column = tf.feature_column
    word = column.categorical_column_with_hash_bucket("word", common.ROWS)
    item = column.categorical_column_with_identity("item", common.ROWS, default_value=0)
    crossed = column.crossed_column(["user", "item"], common.ROWS)
    made = tf.estimator.DNNLinearCombinedClassifier(
        model_dir=directory, linear_feature_columns=[word, item, crossed], dnn_hidden_units=[8],
        dnn_feature_columns=[column.numeric_column("number"), column.indicator_column(word)],
        config=tf.estimator.RunConfig(tf_random_seed=4, log_step_count_steps=None, save_summary_steps=1000))
    return common.estimate(made, steps)
