"""Puts ops in the place of others in a graph, and walks along its inputs."""
