"""Looks at saved tables: `python -m mx_rec.checkpoint DIR`."""
