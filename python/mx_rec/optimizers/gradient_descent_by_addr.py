"""Gradient descent for tables with dynamic expansion, under the path that scripts import."""

from mx_rec.optimizers.gradient_descent import (CustomizedGradientDescentByAddr,  # noqa: F401
                                                create_hash_optimizer_by_addr)
