"""FeatureSpec, under the name that scripts import."""

from mx_rec.state.feature_spec import FeatureSpec  # noqa: F401
