"""A check of paths, under the name that scripts import."""

from mx_rec.saver.paths import validate_save_path  # noqa: F401
