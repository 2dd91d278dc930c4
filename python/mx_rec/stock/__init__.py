"""Variables of models that do not know mx_rec become tables."""
