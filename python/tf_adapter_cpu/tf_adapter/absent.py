"""Names that cannot do here what they promise: to be imported, but not to be called."""


def _absent(name, why):
    """Returns a function of that name which raises NotImplementedError when it is called."""

    def refuse(*args, **kwargs):
        raise NotImplementedError("tf_adapter.{}: {}".format(name, why))

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raises NotImplementedError: {}.".format(why)
    return refuse


_KERAS = "Keras models are not supported; use an Estimator or a session"
_GROUPS = "there is one rank, so there are no groups of ranks"

KerasDistributeOptimizer = _absent("KerasDistributeOptimizer", _KERAS)
NPUBroadcastGlobalVariablesCallback = _absent("NPUBroadcastGlobalVariablesCallback", _KERAS)
model_to_npu_estimator = _absent("model_to_npu_estimator", _KERAS)
npu_callbacks_append = _absent("npu_callbacks_append", _KERAS)
npu_clear_session = _absent("npu_clear_session", _KERAS)
npu_keras_optimizer = _absent("npu_keras_optimizer", _KERAS)
set_keras_session_npu_config = _absent("set_keras_session_npu_config", _KERAS)
NPUStrategy = _absent("NPUStrategy", "there are no NPUs to spread a model over; use a strategy of "
                      "tf.distribute")
DynamicRNN = _absent("DynamicRNN", "it is a layer of the device; use tf.nn.dynamic_rnn, or "
                     "npu_rnn.npu_dynamic_rnn, with a cell")
DynamicGRUV2 = _absent("DynamicGRUV2", "it is a layer of the device; use tf.nn.dynamic_rnn, or "
                       "npu_rnn.npu_dynamic_rnn, with a GRUCell")
create_group = _absent("create_group", _GROUPS)
destroy_group = _absent("destroy_group", _GROUPS)
