"""Features of the input pipeline and their insertion into it."""
