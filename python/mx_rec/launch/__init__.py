"""`python -m mx_rec run`: programs that know nothing of mx_rec, on tables."""
