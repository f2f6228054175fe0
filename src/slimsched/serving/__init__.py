"""Serve elastic models on unequal devices: from a request to an answer."""
