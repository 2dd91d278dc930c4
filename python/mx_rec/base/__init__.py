"""What every other room knows: the environment, the log, and which process of a job this is."""
