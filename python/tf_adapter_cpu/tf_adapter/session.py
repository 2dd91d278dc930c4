"""Configurations and sessions for scripts without an Estimator.

Settings of the device stand in the configuration as those of a custom optimizer of the name
"NpuOptimizer". TensorFlow passes over custom optimizers that it does not know, so such a
configuration runs as it is.
"""

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from .npu_ops import initialize_system, shutdown_system


def npu_config_proto(config_proto=None):
    """Returns a session configuration that may place ops of any device.

    The graph optimisations that the vendor's function switches off for its device stay as they
    are, so that a script computes what it computes without this call.

    Args:
        config_proto: A ConfigProto, changed in place; a new one without.

    Returns:
        It.
    """
    if not isinstance(config_proto, config_pb2.ConfigProto):
        config_proto = config_pb2.ConfigProto()
    config_proto.allow_soft_placement = True
    config_proto.log_device_placement = False
    return config_proto


def npu_run_config_init(run_config=None):
    """Returns `run_config`, a RunConfig, or a new one: there is no device to set up."""
    if isinstance(run_config, tf.estimator.RunConfig):
        return run_config
    return tf.estimator.RunConfig()


def npu_graph_options(graph_options=None):
    """Returns `graph_options`, a GraphOptions, or new ones."""
    if isinstance(graph_options, config_pb2.GraphOptions):
        return graph_options
    return config_pb2.GraphOptions()


def npu_optimizer_options(optimizer_options=None):
    """Returns `optimizer_options`, an OptimizerOptions, or new ones."""
    if isinstance(optimizer_options, config_pb2.OptimizerOptions):
        return optimizer_options
    return config_pb2.OptimizerOptions()


def init_resource(config=None):
    """Opens a session on the default graph, as scripts do that start the device themselves.

    Args:
        config: As for `npu_config_proto`.

    Returns:
        (the session, an op for `shutdown_resource`).
    """
    session = tf.compat.v1.Session(config=npu_config_proto(config))
    session.run(initialize_system())
    return session, shutdown_system()


def shutdown_resource(sess, npu_shutdown):
    """Runs the op that `init_resource` returned."""
    sess.run(npu_shutdown)


def close_session(sess):
    """Closes a session."""
    sess.close()
