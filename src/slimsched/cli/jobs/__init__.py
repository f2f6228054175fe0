"""Commands for training jobs."""
