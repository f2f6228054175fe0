"""The local scheduler of a server: Algorithm 1 of the paper."""
