"""A check of paths, under the name that scripts import."""

from mx_rec.checkpoint.paths import validate_save_path  # noqa: F401
