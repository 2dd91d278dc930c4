"""The processes of the bench of clusters."""
