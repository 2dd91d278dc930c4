"""Checks of arguments that public functions share."""
