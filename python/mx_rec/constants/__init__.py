"""Names and numbers shared by the whole package and by model scripts."""
