"""A small elastic model of its own, which `slim model new` copies for people to start from."""
