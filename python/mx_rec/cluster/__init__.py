"""Tables on TensorFlow's parameter servers: their ops, lookups, updates and saves."""
