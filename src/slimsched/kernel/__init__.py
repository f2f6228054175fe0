"""The kernel: what serving and jobs share."""
