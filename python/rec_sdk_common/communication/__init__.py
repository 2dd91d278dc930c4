"""Who this process is among the workers of a job."""
