"""Collective operations, under the vendor's path."""
