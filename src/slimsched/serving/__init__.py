"""Serving elastic models on unequal devices."""
