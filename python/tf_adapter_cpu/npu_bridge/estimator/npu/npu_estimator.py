"""NPUEstimator and NPUEstimatorSpec: tf_adapter.estimator."""

from npu_bridge._stand_in import stand_for

stand_for(__name__, "estimator")
