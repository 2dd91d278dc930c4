"""Adagrad for tables with dynamic expansion, under the path that scripts import."""

from mx_rec.optimizers.adagrad import (CustomizedAdagradByAddress,  # noqa: F401
                                       create_hash_optimizer_by_address)
