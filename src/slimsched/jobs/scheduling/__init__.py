"""The decision: which job runs where, who waits, who is stopped. Pure."""
