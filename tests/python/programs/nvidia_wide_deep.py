"""NVIDIA's Wide&Deep, its form of one worker: DNNLinearCombinedClassifier whose optimizers are functions of the step (a learning
rate that decays), embeddings of identity and hashed columns in the deep part and the same columns in the linear one.
"""

import common
import support

TABLES = ["dnn/input_from_feature_columns/input_layer/item_embedding/embedding_weights/part_0",
          "dnn/input_from_feature_columns/input_layer/user_embedding/embedding_weights/part_0",
          "linear/linear_model/item/weights/part_0", "linear/linear_model/user/weights/part_0"]


def run(directory, steps):
    tf = support.tf()
    v1 = tf.compat.v1
    columns = [tf.feature_column.categorical_column_with_identity(name, common.ROWS) for name in ("user", "item")]
    deep = [tf.feature_column.embedding_column(one, common.DIM, combiner="mean") for one in columns]

    def rate():
        return v1.train.exponential_decay(0.1, v1.train.get_global_step(), 4, 0.5)

    made = tf.estimator.DNNLinearCombinedClassifier(
        model_dir=directory, linear_feature_columns=columns, dnn_hidden_units=[8, 4], dnn_dropout=None,
        dnn_feature_columns=deep + [tf.feature_column.numeric_column("number")],
        linear_optimizer=lambda: v1.train.FtrlOptimizer(rate(), l2_regularization_strength=0.01),
        dnn_optimizer=lambda: v1.train.AdagradOptimizer(rate()),
        config=tf.estimator.RunConfig(tf_random_seed=4, log_step_count_steps=None, save_summary_steps=1000))
    return common.estimate(made, steps)
