"""The global decision: which server, which width, how many together. Pure."""
