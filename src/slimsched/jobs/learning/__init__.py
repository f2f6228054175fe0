"""A learned order of waiting jobs."""
