"""P20 to P23: ours beside engines that need a Python of their own."""
