"""How tables lie on disk: `python -m mx_rec.checkpoint DIR` looks at them, and Savers use the rest."""
