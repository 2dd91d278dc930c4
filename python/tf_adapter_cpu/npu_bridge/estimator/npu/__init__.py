"""Estimators, sessions and settings of the device, under the vendor's paths."""
