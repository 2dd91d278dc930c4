"""The variables of a model, dense ones and tables apart."""

from typing import List, Tuple

import tensorflow as tf

from mx_rec.state.table_variable import TableVariable, own_variables
from mx_rec.state.settings import Settings


def get_dense_and_sparse_variable() -> Tuple[List[tf.Variable], List[TableVariable]]:
    """Lists what the present default graph trains.

    Returns:
        The trainable variables of TensorFlow, and the variables of the tables.

    Raises:
        EnvironmentError: If `init` was not called.
    """
    name = Settings.get_instance().train_params_config.ascend_global_hashtable_collection
    return (tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES),
            own_variables(tf.compat.v1.get_collection(name)))
