"""Placing training jobs where the network lets them run."""
