"""What `init` was told, and what is known of a graph, its features and its tables' variables."""
