"""Elastic models: what they are, how they are trained, what they are worth."""
