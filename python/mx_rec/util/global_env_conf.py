"""The environment variables, under the name that scripts import."""

from mx_rec.base.global_env_conf import global_env  # noqa: F401
