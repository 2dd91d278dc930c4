"""Optimizers that update the rows of tables in place."""
