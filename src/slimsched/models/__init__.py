"""Elastic models: how to describe, train, check and evaluate them."""
