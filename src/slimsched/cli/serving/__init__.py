"""Commands that serve and simulate serving."""
