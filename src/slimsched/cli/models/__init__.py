"""Commands for models and data."""
