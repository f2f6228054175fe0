"""The nouns: frozen values with units in their names. Imports nothing of ours."""
