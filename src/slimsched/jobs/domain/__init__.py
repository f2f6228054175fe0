"""The nouns of training clusters."""
