"""Models and tables for programs without this package: SavedModels and NumPy files."""
