"""Start-up, configuration and look-ups that model scripts call by name."""
