"""Checkpoints of tables, beside those of TensorFlow's variables."""
