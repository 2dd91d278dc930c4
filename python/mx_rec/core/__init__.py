"""Tables, lookups and what ties them to the input pipeline."""
