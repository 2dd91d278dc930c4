"""Checkpoints of tables, beside those of TensorFlow's variables, and models for serving."""

from mx_rec.export.plain import export_plain, plain_exports

__all__ = [
    "export_plain",
    "plain_exports",
]
