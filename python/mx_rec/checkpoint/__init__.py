"""How tables lie on disk: Savers use it, and `python -m mx_rec.checkpoint DIR` looks at them."""
