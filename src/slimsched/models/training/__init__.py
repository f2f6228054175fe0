"""Training of slimmable networks."""
