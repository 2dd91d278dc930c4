"""Savers: what tf.train.Saver does for tables, incremental checkpoints and warm starts."""

from mx_rec.export.plain import export_plain, plain_exports

__all__ = [
    "export_plain",
    "plain_exports",
]
