"""The version of the distribution; setup.py reads it without importing the package."""

VERSION = "0.1.0"
