"""Estimators, sessions and operations of the device, under the vendor's paths."""
