"""The global decision: which server, which choice, how many requests together. Pure."""
